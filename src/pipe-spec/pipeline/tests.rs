use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::*;

const MINIMAL: &str = "version: 1\nname: demo\nmodel: {arch: t5, config: {d_model: 8}}\ndata: {train: a.jsonl}\n";

fn variables() -> Variables {
    Variables::new(None, [("HOOK".to_owned(), "s3cret".to_owned())].into_iter())
}

/// The section of an engine that stands in for the real ones.
#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
struct Farm {
    /// Machines of a job.
    #[schemars(range(min = 1, max = 64))]
    machines: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    queue: Option<String>,
}

impl Default for Farm {
    fn default() -> Self {
        Self { machines: 1, queue: None }
    }
}

impl EngineSection for Farm {
    const HELP: &'static str = "What jobs ask a farm for.";

    fn check(&self, work: WorkKind) -> Vec<(&'static str, String)> {
        let is_wide = self.machines > 1 && work == WorkKind::Command;
        is_wide
            .then(|| ("machines", format!("found {}; allowed: 1 for a command", self.machines)))
            .into_iter()
            .collect()
    }
}

const ENGINES: Engines = Engines {
    entries: &[
        EngineEntry { name: "here", section: None },
        EngineEntry { name: "farm", section: Some(SectionType::of::<Farm>()) },
    ],
    planned: &["cloud"],
    default: "here",
};

fn parse(text: &str) -> Result<Pipeline, Problems> {
    Pipeline::parse(text, &[], &variables(), ENGINES)
}

fn problems(text: &str) -> Vec<String> {
    parse(text).unwrap_err().0.iter().map(ToString::to_string).collect()
}

#[test]
fn defaults_are_filled_in_and_read_back() {
    let pipeline = parse(MINIMAL).unwrap();
    assert_eq!(
        (
            pipeline.training().unwrap().train.batch(),
            pipeline.training().unwrap().train.effective_batch,
            pipeline.training().unwrap().train.accum()
        ),
        (8, 8, 1)
    );
    assert_eq!(pipeline.training().unwrap().train.epochs, Some(1.0));
    assert_eq!(pipeline.on_oom.retries, 6);
    let again = parse(&pipeline.to_yaml()).unwrap();
    assert_eq!(again, pipeline);
}

#[test]
fn how_parts_are_computed_is_read_back_as_it_was_asked_for() {
    for split in ["fill", "fixed"] {
        for checkpointing in ["true", "false", "auto"] {
            for graphs in ["true", "false"] {
                let train = format!("{{split: {split}, checkpointing: {checkpointing}, cuda_graphs: {graphs}}}");
                let pipeline = parse(&format!("{MINIMAL}train: {train}\n")).unwrap();
                assert_eq!(parse(&pipeline.to_yaml()).unwrap(), pipeline, "{train}");
            }
        }
    }
    let plain = &parse(MINIMAL).unwrap();
    let Train { split, checkpointing, cuda_graphs, .. } = plain.training().unwrap().train;
    assert_eq!((split, checkpointing, cuda_graphs), (Split::Fill, Checkpointing::Auto, true));
    let found = &problems(&format!("{MINIMAL}train: {{checkpointing: sometimes}}\n"))[0];
    assert!(
        found.contains("train.checkpointing: found the text \"sometimes\"; allowed: true or false, or auto"),
        "{found}"
    );
}

#[test]
fn best_and_early_stop_are_written_only_where_they_are_given() {
    let plain = parse(MINIMAL).unwrap().to_yaml();
    assert!(!plain.contains("best") && !plain.contains("early_stop"), "{plain}");
    let text = MINIMAL.replace("a.jsonl", "a.jsonl, eval: b.jsonl");
    let text = format!(
        "{text}evaluate: {{every: epoch}}\nsave: {{best: eval.loss}}\ntrain: {{early_stop: {{metric: eval.perplexity, patience: 2}}}}\n"
    );
    let pipeline = parse(&text).unwrap();
    let training = pipeline.training().unwrap();
    assert_eq!(training.save.best, Some(Metric::loss()));
    assert_eq!(training.train.early_stop.as_ref().unwrap().metric, Metric::named("perplexity"));
    assert_eq!(parse(&pipeline.to_yaml()).unwrap(), pipeline);
}

/// A command with everything that it can have, and what is written for `pipe resume`.
#[test]
fn a_command_is_read_back() {
    let text = "version: 1\nname: a\ncommand: a --b {batch} --r {resume} {vars.x}\nvars: {x: 3, y: yes}\ncheckpoints: {complete: c}\n\
                train: {batch: 4, accum: 3}\nmemory: {limit: 0.5, allocator: {expandable_segments: true}}\n\
                metrics: ['(?P<loss>.)']\non_oom: {exit_codes: [9], patterns: [full]}\ncontainer: {image: 'a/b:c', workdir: /app, network: true}\n";
    let pipeline = parse(text).unwrap();
    assert!(pipeline.training().is_none());
    assert_eq!((pipeline.work.batch(), pipeline.work.effective_batch(), pipeline.work.ranks()), (4, 12, 1));
    assert_eq!(pipeline.container.image, Some(Image::Existing("a/b:c".to_owned())));
    assert_eq!(parse(&pipeline.to_yaml()).unwrap(), pipeline);
}

#[test]
fn effective_batch_need_not_be_a_multiple() {
    let pipeline = parse(&format!("{MINIMAL}train: {{batch: 48, effective_batch: 128}}\n")).unwrap();
    assert_eq!(
        (pipeline.training().unwrap().train.effective_batch, pipeline.training().unwrap().train.accum()),
        (128, 3)
    );
}

#[test]
fn every_problem_is_told_at_once_with_its_line() {
    let text = "version: 1\nname: a/b\nmodell: {arch: t5}\nmodel: {arch: t6, config: {}}\ndata:\n  trian: x\ntrain:\n  batch: 0\n  clip: many\n";
    let architectures = Arch::ALL.iter().map(|arch| arch.name()).collect::<Vec<_>>().join(", ");
    let unknown =
        format!("line 4: model.arch: found the text \"t6\"; allowed: one of {architectures}; did you mean `t5`?");
    assert_eq!(
        problems(text),
        [
            "line 2: name: found the text \"a/b\"; allowed: 1 to 64 letters, digits, '-', '_' or '.', beginning with a letter or digit",
            "line 3: modell: unknown key; did you mean `model`?; allowed: version, name, model, adapter, data, train, memory, on_oom, evaluate, save, container, engine, farm, notify, track, command, vars, checkpoints, metrics, steps",
            unknown.as_str(),
            "line 6: data.train: missing; allowed: text, or a list of text",
            "line 6: data.trian: unknown key; did you mean `train`?; allowed: train, eval, eval_share, tokenizer, fields, label_separator, loss_on, max_source, max_target, max_length, pad, skip_bad, augment, shuffle, workers, prefetch",
            "line 8: train.batch: found 0; allowed: a whole number of at least 1 and at most 16777216, or auto",
            "line 9: train.clip: found the text \"many\"; allowed: a number of at least 0",
        ]
    );
}

#[test]
fn a_table_of_bad_input() {
    let with = |section: &str| format!("{MINIMAL}{section}\n");
    let with_eval = |section: &str| with(section).replace("a.jsonl", "a.jsonl, eval: b.jsonl");
    let cases = [
        (String::new(), "the file is empty"),
        ("version: [1\nname: x".to_owned(), "YAML syntax"),
        ("version: 1\n\tname: x".to_owned(), "YAML syntax"),
        ("just text".to_owned(), "found the text \"just text\""),
        ("version: 2\nname: x\nmodel: {arch: t5, config: {}}\ndata: {train: a}".to_owned(), "line 1: version: found 2"),
        (
            "version: 1\nname: x\nmodel: {arch: t5, from: a, quantize: nf4}\ndata: {train: a}".to_owned(),
            "line 3: model.quantize: only with an `adapter`",
        ),
        (with("name: again"), "line 5: name: given twice; the first is at line 2"),
        (with("train:\n  batch: 4\n  batch: 8"), "line 7: train.batch: given twice; the first is at line 6"),
        (with("train: {batch: 1.5}"), "line 5: train.batch: found 1.5"),
        (with("train: {batch: auto}"), "line 5: train.effective_batch: missing; with batch: auto it says how many"),
        (
            with("on_oom: {then: [checkpointing, precision=fp8]}"),
            "on_oom.then.1: found \"precision=fp8\"; allowed: precision=",
        ),
        (with("train: {batch: -1}"), "found -1; allowed: a whole number of at least 1 and at most 16777216, or auto"),
        (with("train: {batch: 99999999999}"), "found 99999999999"),
        (with("train: {batch: \"${HOOK}\"}"), "a variable can stand in a text alone"),
        (with("train: {epochs: 0}"), "allowed: a number above 0"),
        (with("train: {epochs: 1, steps: 2}"), "give `epochs` or `steps`, not both"),
        (with("train: {accum: 1, effective_batch: 2}"), "give `accum` or `effective_batch`, not both"),
        (with("train: {batch: 9, effective_batch: 8}"), "at most the effective batch, which is 8"),
        (
            with("train: {batch: 4000000, accum: 4000000}"),
            "batch 4000000 x accum 4000000 is too large; allowed: at most 16777216",
        ),
        (with("train: {optimizer: {betas: [0.9]}}"), "found 1 values"),
        (with("train: {optimizer: {betas: [0.9, 1.0]}}"), "train.optimizer.betas.1: found 1"),
        (with("train: {clip: .nan}"), "non-finite"),
        (
            with_eval("evaluate: {every: 2}\nsave: {best: eval.macro_f1}"),
            "line 6: save.best: found \"eval.macro_f1\"; allowed: eval.loss, eval.rouge_l, eval.exact_match, eval.perplexity",
        ),
        (with_eval("evaluate: {every: 2}\nsave: {best: loss}"), "save.best: found \"loss\"; did you mean `eval.loss`?"),
        (
            with_eval("evaluate: {every: 2}\nsave: {best: eval.rouge_l}"),
            "save.best: eval.rouge_l is of generated texts",
        ),
        (with_eval("save: {best: eval.loss}"), "evaluate.every: save.best compares evaluations; say how often"),
        (
            with("evaluate: {every: 2}\nsave: {best: eval.loss}"),
            "save.best: there is nothing to evaluate on; give data.eval",
        ),
        (
            with_eval("train: {early_stop: {metric: eval.loss, patience: 3}}"),
            "evaluate.every: train.early_stop compares evaluations",
        ),
        (
            with_eval("evaluate: {every: epoch}\ntrain: {early_stop: {metric: eval.accuracy, patience: 3}}"),
            "line 6: train.early_stop.metric: found \"eval.accuracy\"; allowed: eval.loss",
        ),
        (with_eval("train: {early_stop: {metric: eval.loss, patience: 0}}"), "train.early_stop.patience: found 0"),
        (with_eval("train: {early_stop: {metric: eval.loss}}"), "train.early_stop.patience: missing"),
        (with("on_oom: {reduce: [4, 8]}"), "line 5: on_oom.reduce: the ladder must fall: 4 is followed by 8"),
        (with("on_oom: {reduce: []}"), "found 0 values; allowed: a falling list"),
        (with("on_oom: {reduce: [8, 0]}"), "on_oom.reduce.1: found 0"),
        (with("on_oom: {reduce: half}"), "did you mean `halve`?"),
        (with("on_oom: {then: [magic]}"), "on_oom.then.0: found \"magic\""),
        (with("memory: {limit: 12x}"), "a size such as 512m, 24g or 7.5g"),
        (with("memory: {limit: 1.5}"), "a share of the card above 0, up to 1"),
        (with("memory: {limit: 0.5}\ncontainer: {gpus: 0}"), "on the CPU give a size"),
        (with("container: {mounts: [{host: /a, container: b}]}"), "allowed: an absolute path"),
        (with("container: {mounts: [{host: /a, container: /b, readonly: false}]}"), "the only writable mount"),
        (
            with("container: {env: {TOKEN: \"${NOT_SET}\"}}"),
            "line 5: container.env.TOKEN: the variable ${NOT_SET} is not set",
        ),
        (
            with("notify:\n  - discord: https://a\n    webhook: https://b"),
            "line 6: notify.0: give `discord` or `webhook`, one of them in each entry",
        ),
        (with("notify: [{on: [oom]}]"), "line 5: notify.0: give `discord` or `webhook`"),
        (
            with("notify: [{webhook: https://a, on: [ooms]}]"),
            "notify.0.on.0: found the text \"ooms\"; allowed: one of started, oom",
        ),
        (with("notify: [{webhook: \"file:///a\"}]"), "notify.0.webhook: must be an address that begins with https://"),
        (with("track: {mlflow: ./mlruns}"), "line 5: track.mlflow: must be an address that begins with https://"),
        (with("track: {wandb: me/recipes}"), "line 5: track.wandb: must be the name of a W&B project"),
        (with("track: {wandb: \"\"}"), "track.wandb: must be the name of a W&B project"),
        ("version: 1\nname: x\ndata: {train: a}".to_owned(), "model: missing"),
        (
            "version: 1\nname: x\nmodel: {arch: t5}\ndata: {train: a}".to_owned(),
            "give `from` (trained weights) or `config`",
        ),
        (MINIMAL.replace("a.jsonl", "a.jsonl, fields: {sourc: x}"), "did you mean `source`?"),
        (MINIMAL.replace("a.jsonl", "a.jsonl, eval_share: 0.95"), "data.eval_share: found 0.95"),
        (
            format!("{MINIMAL}train: {{class_weights: balanced}}\n"),
            "train.class_weights: only for models that classify, not for text to text",
        ),
        (
            MINIMAL.replace("a.jsonl", "a.jsonl, eval: b.jsonl, eval_share: 0.1"),
            "give `eval` or `eval_share`, not both",
        ),
    ];
    for (text, want) in cases {
        let got = problems(&text);
        assert!(got.iter().any(|line| line.contains(want)), "{text}\n  wanted {want:?}\n  got {got:#?}");
    }
}

/// Each number at what its type can hold, one above what is allowed, and at what is allowed.
#[test]
fn numbers_have_bounds_and_nothing_overflows() {
    let bounded = [
        ("data.max_source", 1 << 20),
        ("data.max_target", 1 << 20),
        ("data.max_length", 1 << 20),
        ("data.workers", 1024),
        ("data.prefetch", 1024),
        ("train.effective_batch", 1 << 24),
        ("train.batch", 1 << 24),
        ("train.accum", 1 << 24),
        ("train.steps", 1_000_000_000),
        ("train.epochs", 1_000_000),
        ("train.schedule.warmup", 1_000_000_000),
        ("on_oom.retries", 1000),
        ("on_oom.min_batch", 1 << 24),
        ("on_oom.wait", 31_536_000),
        ("evaluate.batch", 1 << 24),
        ("evaluate.generate", 1 << 16),
        ("evaluate.max_tokens", 1 << 20),
        ("evaluate.beams", 1024),
        ("container.cpus", 4096),
        ("memory.allocator.max_split_size_mb", 1 << 24),
        ("memory.allocator.roundup_power2_divisions", 1 << 16),
    ];
    for (key, most) in bounded {
        for found in [most + 1, u64::from(u32::MAX), u64::from(u32::MAX) + 1, u64::MAX] {
            let got =
                Pipeline::parse(MINIMAL, &[format!("{key}={found}")], &variables(), ENGINES).unwrap_err().to_string();
            let (found, most) = (format!("{key}: found {found}; allowed: "), format!("at most {most}"));
            assert!(got.contains(&found) && got.contains(&most), "{got}");
        }
        // With batch 1 as the others need it.
        let set = ["train.batch=1".to_owned(), format!("{key}={most}")];
        let set = if key == "train.batch" {
            vec![set[1].clone(), "train.effective_batch=16777216".into()]
        } else {
            set.into()
        };
        if let Err(problems) = Pipeline::parse(MINIMAL, &set, &variables(), ENGINES) {
            panic!("{key}={most}: {problems}");
        }
    }
    for any in ["train.seed", "save.every", "evaluate.every", "memory.empty_cache_every"] {
        Pipeline::parse(MINIMAL, &[format!("{any}={}", u64::MAX)], &variables(), ENGINES).unwrap();
        let beyond = Pipeline::parse(MINIMAL, &[format!("{any}=18446744073709551616")], &variables(), ENGINES);
        assert!(beyond.unwrap_err().to_string().contains("allowed: a whole number"), "{any}");
    }
}

#[test]
fn what_is_not_built_yet_is_refused_by_name() {
    let cases = [("engine: cloud", "engine: the engine cloud: not available yet")];
    for (section, want) in cases {
        let got = problems(&format!("{MINIMAL}{section}\n"));
        assert!(got.iter().any(|line| line.ends_with(want)), "{section}\n  got {got:#?}");
    }
}

#[test]
fn an_alias_bomb_is_refused_quickly() {
    let mut text = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
    for level in 1..20 {
        let items = vec![format!("*a{}", level - 1); 10].join(", ");
        text.push_str(&format!("a{level}: &a{level} [{items}]\n"));
    }
    let got = problems(&text);
    assert!(got[0].contains("YAML syntax"), "{got:?}");
}

#[test]
fn overrides_replace_and_are_checked() {
    let set = |pairs: &[&str]| {
        Pipeline::parse(MINIMAL, &pairs.iter().map(|p| (*p).to_owned()).collect::<Vec<_>>(), &variables(), ENGINES)
    };
    let pipeline =
        set(&["train.batch=4", "train.effective_batch=12", "data.shuffle=false", "memory.limit=2g"]).unwrap();
    assert_eq!(
        (
            pipeline.training().unwrap().train.batch(),
            pipeline.training().unwrap().train.accum(),
            pipeline.training().unwrap().data.shuffle
        ),
        (4, 3, false)
    );
    assert_eq!(set(&["on_oom.reduce=[4, 2]"]).unwrap().on_oom.reduce, Reduce::Ladder(vec![4, 2]));
    for (pair, want) in [
        ("train.batch", "--set: found \"train.batch\"; allowed: path=value"),
        ("train.bacth=4", "train.bacth: unknown key; did you mean `batch`?"),
        ("train.batch=0", "train.batch: found 0"),
        ("name.x=1", "--set: name.x: no such key"),
        ("learning_rate=1e-4", "learning_rate: unknown key; did you mean `train.optimizer.lr`?;"),
        ("train.per_device_train_batch_size=4", "unknown key; did you mean `train.batch`?"),
    ] {
        let error = set(&[pair]).unwrap_err().to_string();
        assert!(error.contains(want), "{pair}: {error}");
    }
}

#[test]
fn values_of_variables_are_not_written() {
    let text = format!("{MINIMAL}container: {{env: {{TOKEN: \"${{HOOK}}\"}}}}\n");
    let yaml = parse(&text).unwrap().to_yaml();
    assert!(yaml.contains("${HOOK}") && !yaml.contains("s3cret"), "{yaml}");
}

#[test]
fn an_address_behind_a_variable_is_not_shown() {
    let sections = ["notify: [{discord: \"${HOOK}\"}]", "track: {mlflow: \"${HOOK}\"}"];
    for section in sections {
        let got = problems(&format!("{MINIMAL}{section}\n"));
        assert!(got.len() == 1 && got[0].contains("must be an address") && !got[0].contains("s3cret"), "{got:?}");
        let web = format!("{MINIMAL}{section}\n").replace("${HOOK}", "https://x/${HOOK}");
        let yaml = parse(&web).unwrap().to_yaml();
        assert!(yaml.contains("https://x/${HOOK}") && !yaml.contains("s3cret"), "{yaml}");
    }
}

#[test]
fn nothing_in_on_means_everything() {
    let notify = |section: &str| parse(&format!("{MINIMAL}{section}\n")).unwrap().notify[0].clone();
    assert!(notify("notify: [{webhook: https://a}]").wants(NotifyOn::Started));
    let some = notify("notify: [{webhook: https://a, on: [oom, failed]}]");
    assert!(some.wants(NotifyOn::Oom) && some.wants(NotifyOn::Failed) && !some.wants(NotifyOn::Finished));
}

#[test]
fn names_of_other_trainers_are_recognised_wherever_they_stand() {
    let cases = [
        ("learning_rate", "did you mean `train.optimizer.lr`?"),
        ("num_train_epochs", "did you mean `train.epochs`?"),
        ("num_epochs", "did you mean `train.epochs`?"),
        (
            "gradient_accumulation_steps",
            "did you mean `train.effective_batch`? (it is the samples of a step: the batch",
        ),
        ("per_device_train_batch_size", "did you mean `train.batch`?"),
        ("batch_size", "did you mean `train.batch`?"),
        ("warmup_steps", "did you mean `train.schedule.warmup`?"),
        ("warmup_ratio", "did you mean `train.schedule.warmup`? (a share of the steps is below 1)"),
        ("max_grad_norm", "did you mean `train.clip`?"),
        ("lr_scheduler_type", "did you mean `train.schedule.kind`?"),
        ("logging_steps", "every step is recorded"),
        ("eval_steps", "did you mean `evaluate.every`?"),
        ("save_steps", "did you mean `save.every`?"),
        ("save_total_limit", "did you mean `save.keep`?"),
        ("fp16", "did you mean `train.precision`? (`train.precision: fp16-mixed`"),
        ("bf16", "did you mean `train.precision`? (`train.precision: bf16-mixed`"),
        ("gradient_checkpointing", "did you mean `train.checkpointing`?"),
        ("optim", "did you mean `train.optimizer.kind`?"),
        ("dataloader_num_workers", "did you mean `data.workers`?"),
        ("max_steps", "did you mean `train.steps`?"),
        ("model_name_or_path", "did you mean `model.from`?"),
        ("train_file", "did you mean `data.train`?"),
        ("validation_file", "did you mean `data.eval`?"),
        ("max_seq_length", "did you mean `data.max_length`? (for text to text"),
        ("output_dir", "PIPE_RUNS"),
    ];
    for (name, want) in cases {
        for section in ["", "train.", "train.optimizer.", "evaluate.", "container."] {
            let got = Pipeline::parse(MINIMAL, &[format!("{section}{name}=1")], &variables(), ENGINES)
                .unwrap_err()
                .to_string();
            assert!(got.contains(want) && got.contains("; allowed: "), "{section}{name}: {got}");
        }
    }
    // Where the section has the key, it is no other name.
    for (set, want) in [("seed=1", "`train.seed`"), ("train.weight_decay=0", "`train.optimizer.weight_decay`")] {
        let got = Pipeline::parse(MINIMAL, &[set.to_owned()], &variables(), ENGINES).unwrap_err().to_string();
        assert!(got.contains(&format!("did you mean {want}?")), "{got}");
    }
    Pipeline::parse(MINIMAL, &["train.seed=1".to_owned(), "data.max_length=9".to_owned()], &variables(), ENGINES)
        .unwrap();
}

/// A key that this version does not have is not suggested.
#[test]
fn suggested_keys_exist() {
    let got = Pipeline::parse(MINIMAL, &["metric_for_best_model=f1".to_owned()], &variables(), ENGINES)
        .unwrap_err()
        .to_string();
    let has_best = schema(ENGINES)["$defs"]["Save"]["properties"].get("best").is_some();
    assert_eq!(got.contains("did you mean `save.best`?"), has_best, "{got}");
}

#[test]
fn values_of_other_trainers_are_recognised() {
    let cases = [
        ("train.precision=fp16", "did you mean `fp16-mixed`, or `bf16-mixed` on newer cards?"),
        ("train.precision=16", "did you mean `fp16-mixed`"),
        ("train.precision=bfloat16", "did you mean `bf16-mixed`"),
        ("train.precision=bf16-mix", "did you mean `bf16-mixed`?"),
        ("train.optimizer.kind=adamw_torch", "did you mean `adamw`?"),
        ("train.schedule.kind=constant_with_warmup", "did you mean `constant`"),
    ];
    for (set, want) in cases {
        let got = Pipeline::parse(MINIMAL, &[set.to_owned()], &variables(), ENGINES).unwrap_err().to_string();
        assert!(got.contains(want), "{set}: {got}");
    }
}

#[test]
fn warmup_is_steps_or_a_share() {
    let warmup = |text: &str| {
        let set = [format!("train.schedule.warmup={text}")];
        let pipeline = Pipeline::parse(MINIMAL, &set, &variables(), ENGINES)?;
        let again = parse(&pipeline.to_yaml()).unwrap();
        assert_eq!(again, pipeline, "{text}");
        Ok(pipeline.training().unwrap().train.schedule.warmup)
    };
    for (text, want, steps) in [
        ("100", Warmup::Steps(100), 100),
        ("0", Warmup::Steps(0), 0),
        ("1", Warmup::Steps(1), 1),
        ("0.1", Warmup::Share(0.1), 5),
        ("0.05", Warmup::Share(0.05), 3),
        ("0.0", Warmup::Share(0.0), 0),
    ] {
        let got = warmup(text).unwrap();
        assert_eq!((got, got.steps(50)), (want, steps), "{text}");
    }
    for text in ["1.0", "1.5", "-0.1", "-1", "some"] {
        let problems: Problems = warmup(text).unwrap_err();
        assert!(problems.to_string().contains("or a share of the steps, at least 0 and below 1"), "{problems}");
    }
    // A file without a share is resolved as before.
    assert!(parse(MINIMAL).unwrap().to_yaml().contains("    warmup: 0\n"));
}

/// One for each card unless the file says more; the number of samples in a step stays what it is.
#[test]
fn ranks_follow_the_cards() {
    let ranks = |settings: &[&str]| {
        let settings: Vec<String> = settings.iter().map(|&setting| setting.to_owned()).collect();
        let pipeline = Pipeline::parse(MINIMAL, &settings, &variables(), ENGINES);
        pipeline
            .map(|pipeline| (pipeline.work.ranks(), pipeline.work.effective_batch()))
            .map_err(|error| error.to_string())
    };
    let effective = ranks(&[]).unwrap().1;
    for (settings, want) in [
        (["container.gpus=auto", "train.seed=1"], 1),
        (["container.gpus=2", "train.seed=1"], 2),
        (["container.gpus=[0, GPU-77]", "train.seed=1"], 2),
        (["container.gpus=0", "train.ranks=3"], 3),
        (["container.gpus=1", "train.ranks=2"], 2),
        (["container.gpus=all", "train.ranks=2"], 2),
    ] {
        assert_eq!(ranks(&settings), Ok((want, effective)), "{settings:?}");
    }
    for (settings, want) in [
        (["container.gpus=2", "train.ranks=1"], "train.ranks: found 1; allowed: at least 2, one for each GPU"),
        (["container.gpus=0", "train.ranks=900"], "train.ranks: found 900; allowed: at most the effective batch"),
        (["container.gpus=900", "train.seed=1"], "container.gpus: found 900; allowed: at most the effective batch"),
    ] {
        let got = ranks(&settings).unwrap_err();
        assert!(got.contains(want), "{settings:?}: {got}");
    }
}

/// The schema, which editors show, marks engines that are not available yet.
#[test]
fn the_schema_marks_what_is_not_available_yet() {
    let schema = schema(ENGINES);
    let text = schema.pointer("/properties/engine/description").and_then(|text| text.as_str()).unwrap_or_default();
    assert!(text.contains("Not available yet: cloud"), "{text:?}");
    let got = Pipeline::parse(MINIMAL, &["engine=cloud".to_owned()], &variables(), ENGINES).unwrap_err().to_string();
    assert!(got.contains("not available yet"), "{got}");
}

#[test]
fn the_section_of_an_engine_is_checked_by_the_engine() {
    let pipeline = parse(&format!("{MINIMAL}engine: farm\nfarm: {{machines: 4}}\n")).unwrap();
    assert_eq!(
        (pipeline.engine.as_deref(), pipeline.engine_request().section::<Farm>("farm").machines),
        (Some("farm"), 4)
    );
    assert_eq!(parse(&pipeline.to_yaml()).unwrap(), pipeline);
    let plain = parse(&format!("{MINIMAL}farm: {{machines: 1}}\n")).unwrap();
    assert!(!plain.to_yaml().contains("farm"), "what is the default is not written");
    let names: Vec<&str> = ENGINES.section_names().collect();
    assert_eq!(names, ["farm"]);
    for (section, want) in [
        ("farm: {machine: 4}", "line 5: farm.machine: unknown key; did you mean `machines`?; allowed: machines, queue"),
        (
            "farm:\n  machines: 0",
            "line 6: farm.machines: found 0; allowed: a whole number of at least 1 and at most 64",
        ),
        (
            "engine: fram",
            "line 5: engine: found the text \"fram\"; allowed: one of here, farm, cloud; did you mean `farm`?",
        ),
        ("here: {}", "line 5: here: unknown key"),
        ("container: {env: {\"a b\": x}}", "container.env: \"a b\" is no name of a variable"),
    ] {
        let got = parse(&format!("{MINIMAL}{section}\n")).unwrap_err().to_string();
        assert!(got.contains(want), "{section}: {got}");
    }
    let command = "version: 1\nname: demo\ncommand: a\nfarm:\n  machines: 2\n";
    assert_eq!(problems(command), ["line 5: farm.machines: found 2; allowed: 1 for a command"]);
    let steps = "version: 1\nname: demo\nfarm: {machines: 2}\nsteps:\n  one: {command: a, farm: {machines: 1}}\n  two: {command: b}\n";
    let got = StageGraph::parse(steps, &[], &variables(), ENGINES).unwrap_err().to_string();
    assert_eq!(got, "line 3: steps.two.farm.machines: found 2; allowed: 1 for a command");
    let found = schema(ENGINES);
    assert_eq!(found.pointer("/properties/farm/default/machines"), Some(&serde_json::json!(1)));
    assert_eq!(found.pointer("/$defs/Step/properties/farm"), found.pointer("/properties/farm"));
}
