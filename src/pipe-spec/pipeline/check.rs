//! From a parsed tree to a pipeline: structure first, then what serde cannot know. Every problem is collected.

use std::num::NonZeroU32;

use serde_json::{Map, Value};

use super::bounds::MAX_SAMPLES;
use super::container::GivenSection;
use super::other_names::Transformers;
use super::{
    Augment, BatchSetting, Command, CommandTrain, Data, Edit, Engines, Every, Gpus, Limit, LossOn, Metric,
    MetricsFormat, Model, Mount, OnOom, PLACEHOLDERS, PROMPT, Pipeline, PipelineFile, Problems, Ranks, Reduce, Task,
    Track, Train, TrainFile, Training, Work, WorkKind, schema,
};
use crate::bucket::BucketAddress;
use crate::variables::{self, Variables};
use crate::yaml::{Node, Structure};

pub(crate) fn pipeline(tree: &Node, variables: &Variables, engines: Engines) -> Result<Pipeline, Problems> {
    let schema = schema(engines);
    let mut problems = Structure::new(&schema, &Transformers).check(tree);
    missing_variables(tree, variables, &mut problems);
    if !problems.is_empty() {
        return Err(problems.sorted());
    }
    let mut file = tree.to_json();
    let given_sections = engines.take_sections(&mut file);
    let file: PipelineFile = serde_json::from_value(file)
        .map_err(|error| Problems::one(tree.line, "", format!("not a pipeline: {error}")))?;

    if file.steps.is_some() {
        let message = "several steps, where one training or command is wanted: `pipe run`, `pipe check` and `pipe resume` take them";
        return Err(Problems::one(tree.line_of("steps"), "steps", message));
    }
    let mut check = Check { tree, problems };
    check.file(&file);
    check.metrics(&file);
    check.addresses(&file, variables);
    check.variables_of_job(&file);
    let sections = check.sections(&given_sections, &file);
    let ranks = check.ranks(&file);
    let train = check.train(&file.train).map(|train| Train { ranks, ..train });
    if let Some(name) = file.engine.as_deref().filter(|name| engines.planned.contains(name)) {
        check.problem("engine", format!("the engine {name}: not available yet"));
    }
    let work = match (file.command, file.model, file.data, train) {
        (Some(line), _, _, Some(train)) => {
            let Train { effective_batch, precision, seed, .. } = train;
            let train = CommandTrain { batch: train.batch(), effective_batch, precision, seed };
            let (vars, memory, checkpoints, metrics) = (file.vars, file.memory, file.checkpoints, file.metrics);
            let command = Command { line, vars, train, memory, checkpoints, metrics };
            check.command(&command, &file.on_oom);
            Some(Work::Command(Box::new(command)))
        }
        (None, Some(model), Some(mut data), Some(train)) => {
            if model.arch.task() == Task::PictureClasses {
                data.augment.get_or_insert(Augment::DEFAULT);
            }
            let (memory, evaluate, save) = (file.memory, file.evaluate, file.save);
            Some(Work::Training(Box::new(Training {
                model,
                adapter: file.adapter,
                data,
                train,
                memory,
                evaluate,
                save,
            })))
        }
        _ => None,
    };
    let problems = check.problems.sorted();
    match work {
        Some(work) if problems.is_empty() => Ok(Pipeline {
            version: file.version,
            name: file.name,
            work,
            on_oom: file.on_oom,
            container: file.container,
            engine: file.engine,
            sections,
            notify: file.notify,
            track: file.track,
        }),
        _ => Err(problems),
    }
}

/// The keys that only a command has.
pub(super) const OF_COMMANDS: [&str; 8] = [
    "vars",
    "checkpoints",
    "metrics",
    "on_oom.exit_codes",
    "on_oom.patterns",
    "on_oom.accumulates",
    "container.workdir",
    "container.network",
];

/// The last line of what is said of a regular expression: the others show where.
fn reason(error: &regex::Error) -> String {
    let text = error.to_string();
    text.lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned()
}

fn is_var_name(name: &str) -> bool {
    name.starts_with(|first: char| first.is_ascii_alphabetic())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

fn missing_variables(tree: &Node, known: &Variables, problems: &mut Problems) {
    tree.for_each_text(&mut |line, path, text| {
        for name in variables::names(text).filter(|name| known.get(name).is_none()) {
            let reason = known.reason(name);
            problems.push(
                line,
                path,
                format!(
                    "{reason}; set it in the environment or in a .env file, or write $${{{name}}} to pass ${{{name}}} on"
                ),
            );
        }
    });
}

struct Check<'a> {
    tree: &'a Node,
    problems: Problems,
}

impl Check<'_> {
    fn problem(&mut self, path: &str, message: impl Into<String>) {
        self.problems.push(self.tree.line_of(path), path, message);
    }

    fn file(&mut self, file: &PipelineFile) {
        match &file.command {
            Some(_) => self.keys_of_a_command(file),
            None => self.keys_of_a_training(file),
        }
        if let (Some(model), Some(data)) = (&file.model, &file.data) {
            self.data(model.task(), data);
        }
        if let Some(model) = &file.model
            && !file.train.class_weights.is_none()
            && !model.task().classifies()
        {
            let message = format!("only for models that classify, not for {}", model.task().name());
            self.problem("train.class_weights", message);
        }
        self.on_oom(&file.on_oom);
        if let Some(Limit::Share(_)) = file.memory.limit
            && file.container.gpus == Gpus::Count(0)
        {
            self.problem("memory.limit", "a share is of a GPU's memory; on the CPU give a size such as 4g");
        }
        self.mounts(&file.container.mounts);
    }

    /// Checks that a model and data are given, and nothing that is for commands.
    fn keys_of_a_training(&mut self, file: &PipelineFile) {
        match &file.model {
            None => self.problem("model", "missing; give a model (or a command)"),
            Some(model) => match (&model.from, &model.config) {
                (None, None) => self.problem("model", "give `from` (trained weights) or `config` (from scratch)"),
                (Some(_), Some(_)) => self.problem("model.config", "give `from` or `config`, not both"),
                _ => {}
            },
        }
        if let Some(Model { arch, task: Some(task), .. }) = &file.model
            && !arch.tasks().contains(task)
        {
            let found = format!("found {:?}, which {} has no head for; leave it out", task.name(), arch.name());
            self.problem("model.task", found);
        }
        let has_weights = file.model.as_ref().is_some_and(|model| model.from.is_some());
        if file.adapter.is_some() && !has_weights {
            self.problem("adapter", "needs trained weights beside which it is trained: give model.from");
        }
        if file.adapter.is_none() && file.model.as_ref().is_some_and(|model| !model.quantize.is_none()) {
            self.problem("model.quantize", "only with an `adapter`: quantized weights cannot be trained themselves");
        }
        let is_preference = file.model.as_ref().is_some_and(|model| model.task() == Task::Preference);
        if file.train.preference.is_some() && !is_preference {
            self.problem("train.preference", "only with `model.task: preference`; leave it out");
        }
        if file.adapter.is_none() && file.save.merge {
            self.problem("save.merge", "only with an `adapter`; leave it out");
        }
        if let Some(to) = file.save.to.as_deref().filter(|to| BucketAddress::parse(to).is_none()) {
            self.problem("save.to", format!("found {to:?}; allowed: {}", BucketAddress::ALLOWED));
        }
        if file.data.is_none() {
            self.problem("data", "missing; give at least data.train");
        }
        for key in self.given(&OF_COMMANDS) {
            self.problem(key, "only for a `command`");
        }
    }

    /// Checks that nothing is given that is for trainings.
    fn keys_of_a_command(&mut self, file: &PipelineFile) {
        if self.tree.find("save.to").is_some() {
            let why = "not for a command, whose files pipe cannot know to be whole; let the command itself upload them";
            self.problem("save.to", why);
        }
        for section in self.given(&["model", "adapter", "data", "evaluate", "save"]) {
            self.problem(section, format!("give `{section}` or `command`, not both: a command does this itself"));
        }
        for key in self.given(&["memory.worst_first", "memory.empty_cache_every"]) {
            self.problem(key, "not for a command");
        }
        let keys = self.tree.find("train").map(Node::keys).unwrap_or_default();
        for key in keys.iter().filter(|key| !CommandTrain::KEYS.contains(key)) {
            let allowed = CommandTrain::KEYS.join(", ");
            let message = format!("not for a command, whose own arguments say this; allowed: {allowed}");
            self.problem(&format!("train.{key}"), message);
        }
        if file.train.batch == BatchSetting::Auto {
            self.problem("train.batch", "found auto; a command needs a number: pipe cannot try what fits it");
        }
    }

    fn data(&mut self, task: Task, data: &Data) {
        let roles = task.roles();
        for role in data.fields.keys().filter(|role| !roles.contains(&role.as_str())) {
            self.problem(
                &format!("data.fields.{role}"),
                format!("unknown field{}; allowed: {}", crate::yaml::nearest(role, roles), roles.join(", ")),
            );
        }
        if let Some(separator) = &data.label_separator {
            if task != Task::Classification {
                self.problem("data.label_separator", format!("only for classification, not for {}", task.name()));
            } else if separator.trim().is_empty() {
                self.problem("data.label_separator", "found only space; allowed: a mark such as \"|\" or \",\"");
            }
        }
        if data.eval_share > 0.0 && data.eval.is_some() {
            self.problem("data.eval_share", "give `eval` or `eval_share`, not both");
        }
        let is_chat = task == Task::Language && data.is_chat();
        if data.loss_on != LossOn::default() && !is_chat {
            self.problem(
                "data.loss_on",
                "only for conversations of a language model: data.fields with messages or completion",
            );
        }
        if data.fields.contains_key(PROMPT) && task == Task::Language && !is_chat {
            self.problem("data.fields.prompt", "only with a completion: the column with the answers");
        }
        if data.augment.is_some() && task != Task::PictureClasses {
            self.problem("data.augment", format!("only for pictures with a class, not for {}", task.name()));
        }
    }

    fn on_oom(&mut self, on_oom: &OnOom) {
        if let Reduce::Ladder(rungs) = &on_oom.reduce
            && let Some(pair) = rungs.windows(2).find(|pair| pair[1] >= pair[0])
        {
            self.problem("on_oom.reduce", format!("the ladder must fall: {} is followed by {}", pair[0], pair[1]));
        }
        // The entries of a command are checked with it.
        let is_training = self.tree.find("command").is_none();
        for (index, change) in on_oom.then.iter().enumerate().filter(|_| is_training) {
            let message = match change.edit() {
                Err(allowed) => format!("found {:?}; allowed: {allowed}", change.0),
                Ok(Edit::EffectiveBatch) => "only for a `command`: a training keeps its effective batch".to_owned(),
                Ok(_) => continue,
            };
            self.problem(&format!("on_oom.then.{index}"), message);
        }
    }

    fn mounts(&mut self, mounts: &[Mount]) {
        for (index, mount) in mounts.iter().enumerate() {
            if !mount.container.starts_with('/') {
                self.problem(
                    &format!("container.mounts.{index}.container"),
                    format!("found {:?}; allowed: an absolute path", mount.container),
                );
            }
            if !mount.readonly {
                self.problem(
                    &format!("container.mounts.{index}.readonly"),
                    "the run folder is the only writable mount; leave out `readonly: false`",
                );
            }
        }
    }

    /// Those of these keys that the file has.
    fn given(&self, paths: &[&'static str]) -> Vec<&'static str> {
        paths.iter().copied().filter(|path| self.tree.find(path).is_some()).collect()
    }

    /// Checks what only a command has.
    fn command(&mut self, command: &Command, on_oom: &OnOom) {
        if command.line.0.first().is_none_or(String::is_empty) {
            self.problem("command", "no program in it; is a quote left open?");
        }
        let unknown: Vec<String> = command.unknown_placeholders().map(str::to_owned).collect();
        for name in unknown {
            let vars = command.vars.keys().map(|var| format!("vars.{var}"));
            let known: Vec<String> = PLACEHOLDERS.iter().map(|&name| name.to_owned()).chain(vars).collect();
            let known: Vec<&str> = known.iter().map(String::as_str).collect();
            let nearest = crate::yaml::nearest(&name, &known);
            let allowed = known.iter().map(|name| format!("{{{name}}}")).collect::<Vec<_>>().join(", ");
            let message =
                format!("unknown value {{{name}}}{nearest}; allowed: {allowed}; write {{{{{name}}}}} for the text");
            self.problem("command", message);
        }
        for name in command.vars.keys().filter(|name| !is_var_name(name)) {
            self.problem(&format!("vars.{name}"), "a name has letters, digits and _, and begins with a letter");
        }
        for (index, pattern) in on_oom.patterns.iter().enumerate() {
            let path = format!("on_oom.patterns.{index}");
            match regex::Regex::new(pattern) {
                Ok(pattern) if pattern.is_match("") => self.problem(&path, "matches everything; say what the log has"),
                Ok(_) => {}
                Err(error) => self.problem(&path, format!("not a regular expression: {}", reason(&error))),
            }
        }
        if let MetricsFormat::Patterns(patterns) = &command.metrics {
            for (index, pattern) in patterns.iter().enumerate() {
                let path = format!("metrics.{index}");
                match regex::Regex::new(pattern) {
                    Ok(found) if found.capture_names().flatten().all(|name| ["step", "steps"].contains(&name)) => {
                        self.problem(&path, "no value in it; name one, such as (?P<loss>[0-9.]+)");
                    }
                    Ok(_) => {}
                    Err(error) => self.problem(&path, format!("not a regular expression: {}", reason(&error))),
                }
            }
        }
        for (index, change) in on_oom.then.iter().enumerate() {
            if change.edit() != Ok(Edit::EffectiveBatch) {
                let message = format!(
                    "found {:?}; allowed for a command: effective_batch, its effective batch may fall with its batch",
                    change.0
                );
                self.problem(&format!("on_oom.then.{index}"), message);
            }
        }
        if command.resumes() && command.checkpoints.is_none() {
            self.problem("command", "{resume} needs `checkpoints`, which says what to resume from");
        }
        if let Some(checkpoints) = &command.checkpoints {
            let leaves = |path: &str| path.starts_with('/') || path.split('/').any(|part| part == "..");
            if leaves(&checkpoints.folder) {
                self.problem("checkpoints.folder", "must be a folder below {run}, such as `checkpoints` or `.`");
            }
            if checkpoints.complete.as_deref().is_some_and(leaves) {
                self.problem("checkpoints.complete", "must be a file in the checkpoint, such as trainer_state.json");
            }
            if checkpoints.pattern.is_empty() || checkpoints.pattern.contains('/') {
                self.problem("checkpoints.pattern", "must be a name with * for anything, such as checkpoint-*");
            }
        }
    }

    /// Checks `save.best` and `train.early_stop`: the task has the metric, and evaluations compute it.
    fn metrics(&mut self, file: &PipelineFile) {
        let (Some(model), Some(data)) = (&file.model, &file.data) else { return };
        let best = file.save.best.as_ref().map(|metric| ("save.best", "save.best", metric));
        let early_stop =
            file.train.early_stop.as_ref().map(|stop| ("train.early_stop", "train.early_stop.metric", &stop.metric));
        for (key, path, metric) in best.into_iter().chain(early_stop) {
            let generated = model.task().writes_text()
                && metric.name().is_some_and(|name| Metric::OF_GENERATED_TEXTS.contains(&name));
            if let Err(message) = metric.check(model.task().metrics()) {
                self.problem(path, message);
            } else if generated && file.evaluate.generate == 0 {
                self.problem(path, format!("{metric} is of generated texts; set evaluate.generate to at least 1"));
            }
            if file.evaluate.every == Every::Steps(0) {
                let message = format!("{key} compares evaluations; say how often: a number of steps, or epoch");
                self.problem("evaluate.every", message);
            }
            if data.eval.is_none() && data.eval_share <= 0.0 {
                self.problem(key, "there is nothing to evaluate on; give data.eval");
            }
        }
    }

    /// Checks addresses of receivers. The value of a variable is never part of a message.
    fn addresses(&mut self, file: &PipelineFile, variables: &Variables) {
        for (index, notify) in file.notify.iter().enumerate() {
            match notify.receiver() {
                Some((kind, address)) => self.address(&format!("notify.{index}.{kind}"), address, variables),
                None => {
                    self.problem(&format!("notify.{index}"), "give `discord` or `webhook`, one of them in each entry");
                }
            }
        }
        if let Some(address) = &file.track.mlflow {
            self.address("track.mlflow", address, variables);
        }
        if let Some(project) = &file.track.wandb
            && !variables.expand(project).is_ok_and(|project| Track::is_wandb_project(&project))
        {
            self.problem(
                "track.wandb",
                "must be the name of a W&B project: 1 to 128 characters without / \\ # ? % : \"",
            );
        }
    }

    fn address(&mut self, path: &str, address: &str, variables: &Variables) {
        let is_web = |address: &str| {
            let rest = address.strip_prefix("https://").or_else(|| address.strip_prefix("http://"));
            rest.is_some_and(|rest| !rest.is_empty() && !rest.starts_with('/') && !rest.contains(char::is_whitespace))
        };
        if !variables.expand(address).is_ok_and(|address| is_web(&address)) {
            self.problem(path, "must be an address that begins with https:// or http://");
        }
    }

    fn train(&mut self, file: &TrainFile) -> Option<Train> {
        if file.epochs.is_some() && file.steps.is_some() {
            self.problem("train.steps", "give `epochs` or `steps`, not both");
        }
        if file.accum.is_some() && file.effective_batch.is_some() {
            self.problem("train.effective_batch", "give `accum` or `effective_batch`, not both");
        }
        for (index, beta) in file.optimizer.betas.iter().enumerate() {
            if !(0.0..1.0).contains(beta) {
                self.problem(
                    &format!("train.optimizer.betas.{index}"),
                    format!("found {beta}; allowed: at least 0 and below 1"),
                );
            }
        }
        let effective_batch = self.effective_batch(file)?;
        if let BatchSetting::Fixed(batch) = file.batch
            && batch.get() > effective_batch
        {
            self.problem(
                "train.batch",
                format!("found {batch}; allowed: at most the effective batch, which is {effective_batch}"),
            );
        }
        Some(Train {
            epochs: match (file.epochs, file.steps) {
                (None, None) => Some(1.0),
                (epochs, _) => epochs,
            },
            steps: file.steps,
            batch: file.batch,
            effective_batch,
            split: file.split,
            ranks: file.ranks,
            shard: file.shard,
            rank_timeout: file.rank_timeout,
            precision: file.precision,
            optimizer: file.optimizer.clone(),
            schedule: file.schedule.clone(),
            clip: file.clip,
            checkpointing: file.checkpointing,
            dropout: file.dropout,
            seed: file.seed,
            deterministic: file.deterministic,
            cuda_graphs: file.cuda_graphs,
            early_stop: file.early_stop.clone(),
            class_weights: file.class_weights,
            preference: file.preference,
        })
    }

    /// One for each card, where their number is given. Every card has a rank, and every rank has a sample of a step.
    fn ranks(&mut self, file: &PipelineFile) -> Ranks {
        let cards = file.container.gpus.count().and_then(NonZeroU32::new);
        if file.command.is_some() {
            return Ranks::Auto;
        }
        let ranks = match (file.train.ranks, cards) {
            (Ranks::Auto, Some(cards)) if cards.get() > 1 => Ranks::Count(cards),
            (ranks, _) => ranks,
        };
        if let (Ranks::Count(count), Some(cards)) = (ranks, cards)
            && count < cards
        {
            let message = format!("found {count}; allowed: at least {cards}, one for each GPU of container.gpus");
            self.problem("train.ranks", message);
        }
        if let (Ranks::Count(count), Some(effective)) = (ranks, known_effective_batch(&file.train))
            && count.get() > effective
        {
            let path = if file.train.ranks.is_auto() { "container.gpus" } else { "train.ranks" };
            self.problem(path, format!("found {count}; allowed: at most the effective batch, which is {effective}"));
        }
        ranks
    }

    fn variables_of_job(&mut self, file: &PipelineFile) {
        let is_name = |name: &str| {
            name.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_')
                && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
        };
        for name in file.container.env.keys().filter(|name| !is_name(name)) {
            self.problem(
                "container.env",
                format!("{name:?} is no name of a variable: letters, digits and _, not beginning with a digit"),
            );
        }
    }

    /// The sections of engines that were given, with every default.
    fn sections(&mut self, given: &[GivenSection], file: &PipelineFile) -> Map<String, Value> {
        let work = if file.command.is_some() { WorkKind::Command } else { WorkKind::Training };
        let read = |section: &GivenSection| {
            let value = section.read(work, |path, message| self.problem(path, message))?;
            Some((section.name.to_owned(), value))
        };
        given.iter().filter_map(read).collect()
    }

    /// Samples in a step. A batch that depends on the card must not decide it.
    fn effective_batch(&mut self, file: &TrainFile) -> Option<u32> {
        let effective = known_effective_batch(file);
        match (file.batch, effective) {
            (_, Some(_)) => {}
            (BatchSetting::Fixed(batch), None) => {
                let accum = file.accum.map_or(1, u32::from);
                let message = format!("batch {batch} x accum {accum} is too large; allowed: at most {MAX_SAMPLES}");
                self.problem("train.accum", message);
            }
            (BatchSetting::Auto, None) => {
                self.problem("train.effective_batch", "missing; with batch: auto it says how many samples a step has");
            }
        }
        effective
    }
}

/// Nothing where the file does not say it, or says more than is allowed.
fn known_effective_batch(file: &TrainFile) -> Option<u32> {
    match (file.batch, file.effective_batch) {
        (_, Some(effective)) => Some(effective.get()),
        (BatchSetting::Fixed(batch), None) => {
            let effective = batch.get().checked_mul(file.accum.map_or(1, u32::from));
            effective.filter(|effective| *effective <= MAX_SAMPLES)
        }
        (BatchSetting::Auto, None) => None,
    }
}
