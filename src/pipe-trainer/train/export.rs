//! The result: `model/` in Hugging Face layout, loadable by transformers.
//!
//! `README.md` of an exported model: what it is, what it was trained on and how, and how good it is. It holds nothing of the
//! machine, the attempt or the time, so that the same training writes the same text.

use std::fmt::Write;
use std::io;
use std::path::Path;

use pipe_model::{architecture, read_config};
use pipe_spec::TrainerSpec;
use pipe_spec::event::Eval;
use pipe_spec::model_folder::{
    ADAPTER_CONFIG, ADAPTER_WEIGHTS, CHAT_TEMPLATE, CONFIG, GENERATION_CONFIG, MODEL_CARD, PREPROCESSOR, SAFETENSORS,
    TOKENIZER_JSON, TOKENIZER_SETTINGS,
};
use pipe_spec::pipeline::Paths;
use serde::Serialize;
use serde_json::{Map, Value, json};
use tch::{TchError, Tensor};

use super::session::Session;
use super::state::State;
use crate::data::Preprocessor;
use crate::error::TrainerError;
use crate::storage::{self, ExportedFolder, LARGEST_CONFIG, LARGEST_TOKENIZER, TensorFiles, tensor_files};
use crate::tokenizer::{self, SpecialTokens};

/// The weights that are exported, and what the model card says beside the settings.
pub struct Exported<'a> {
    /// The step of the weights.
    pub step: u64,
    /// The file of weights that is copied; absent for those of the state.
    pub weights: Option<&'a Path>,
    /// Rows that were trained on.
    pub rows: u64,
    /// The evaluation of that step, if it was evaluated.
    pub eval: Option<&'a Eval>,
}

pub fn export(session: &Session, state: &State, exported: &Exported<'_>) -> Result<(), TrainerError> {
    write(session, state, exported).map_err(|error| match error.downcast::<TchError>() {
        Ok(torch) => torch.into(),
        Err(source) => {
            let last = Some(session.store.path(state.step)).filter(|path| path.is_dir());
            TrainerError::Save { path: session.run.model(), source, last }
        }
    })
}

fn write(session: &Session, state: &State, exported: &Exported<'_>) -> io::Result<()> {
    let staged = ExportedFolder::create(&session.run.model())?;
    let config = state.model.config();
    write_json(&staged, CONFIG, &config)?;
    if let Some(path) = &session.spec.tokenizer {
        write_tokenizer(session, &staged, path, &config)?;
    }
    write_generation_config(session, &staged, &config)?;
    if let Some(preprocessor) = preprocessor(session, &config)? {
        storage::write_synced(&staged.path(PREPROCESSOR), &serde_json::to_vec_pretty(&preprocessor)?)?;
    }
    let card = ModelCard {
        spec: &session.spec,
        config: &config,
        parameters: state.model.weights().count(),
        steps: exported.step,
        rows: exported.rows,
        eval: exported.eval,
    };
    storage::write_synced(&staged.path(MODEL_CARD), card.text().as_bytes())?;
    write_weights(session, state, exported, &staged)?;
    staged.commit()
}

/// The weights of the model; or its adapter, as PEFT reads it, unless the two are to be merged.
fn write_weights(session: &Session, state: &State, exported: &Exported<'_>, staged: &ExportedFolder) -> io::Result<()> {
    let mut file = staged.path(SAFETENSORS.single);
    if let Some(lora) = state.adapter {
        if session.spec.save.merge {
            let read = |path: &Path| state.model.weights().with_stored(&TensorFiles::open_file(path)?);
            let stored = exported.weights.map(read).transpose().map_err(io::Error::other)?;
            let merged = stored.as_ref().unwrap_or(state.model.weights()).merged().map_err(io::Error::other)?;
            let tensors: Vec<(String, &Tensor)> = merged.iter().map(|(name, tensor)| (name.clone(), tensor)).collect();
            return tensor_files::write(&file, &tensors).map(drop);
        }
        write_json(staged, ADAPTER_CONFIG, &lora.export(session.spec.base_model.as_deref()))?;
        file = staged.path(ADAPTER_WEIGHTS);
    }
    match exported.weights {
        Some(weights) => storage::copy_synced(weights, &file),
        None => tensor_files::write(&file, &state.named_weights()).map(drop),
    }
}

fn write_json(staged: &ExportedFolder, name: &str, keys: &Map<String, Value>) -> io::Result<()> {
    storage::write_synced(&staged.path(name), &serde_json::to_vec_pretty(keys)?)
}

/// `tokenizer.json`, the settings that transformers reads beside it, and the vocabulary that it was made from.
fn write_tokenizer(
    session: &Session,
    staged: &ExportedFolder,
    path: &Path,
    config: &Map<String, Value>,
) -> io::Result<()> {
    let arch = session.spec.model.arch;
    let json = tokenizer::json(path, arch).map_err(io::Error::other)?;
    storage::write_synced(&staged.path(TOKENIZER_JSON), &json)?;
    // Without them transformers would take the defaults of the model's tokenizer instead, whatever tokenizer.json says.
    let [tokenizer_config, special_tokens, _] = TOKENIZER_SETTINGS;
    let mut carried = Vec::new();
    for name in TOKENIZER_SETTINGS {
        if let Some(keys) = carry_over(session, staged, &path.with_file_name(name), name)? {
            carried.push((name, keys));
        }
    }
    let template = path.with_file_name(CHAT_TEMPLATE);
    if template.is_file() {
        let text = storage::read(&template, LARGEST_CONFIG)?;
        storage::write_synced(&staged.path(CHAT_TEMPLATE), &text)?;
    }
    let known = tokenizer::open(path, arch).map_err(io::Error::other)?;
    let settings: Vec<&Map<String, Value>> = carried.iter().map(|(_, keys)| keys).collect();
    let tokenization = architecture(arch).tokenization;
    let roles = tokenization.map_or(&[][..], |tokenization| tokenization.roles());
    let special = SpecialTokens::of(&known, roles, &settings);
    let missing = |name: &str| carried.iter().all(|(one, _)| *one != name);
    if missing(tokenizer_config) {
        let token_types = tokenization.is_some_and(|tokenization| tokenization.token_types);
        let longest = config.get("max_position_embeddings").or_else(|| config.get("n_positions"));
        let reserved = tokenization.map_or(0, |tokenization| tokenization.reserved_positions);
        let longest = longest.and_then(Value::as_u64).map(|positions| positions.saturating_sub(reserved));
        write_json(staged, tokenizer_config, &special.tokenizer_config(token_types, longest))?;
    }
    if missing(special_tokens) {
        write_json(staged, special_tokens, &special.map())?;
    }
    write_vocabulary(session, staged, path)
}

/// The files of the vocabulary, where the tokenizer is the model's own or was read from them. Others of the same names may be of
/// another tokenizer.
fn write_vocabulary(session: &Session, staged: &ExportedFolder, path: &Path) -> io::Result<()> {
    let model = &session.spec.model;
    let names = model.arch.vocabulary_files();
    let is_one = path.file_name().is_some_and(|name| names.iter().any(|one| name == *one));
    if !is_one && model.from.as_deref().map(Path::new) != path.parent() {
        return Ok(());
    }
    for name in names {
        let file = path.with_file_name(name);
        if !file.is_file() {
            continue;
        }
        match storage::read(&file, LARGEST_TOKENIZER) {
            Ok(bytes) if name.ends_with(".json") && serde_json::from_slice::<Value>(&bytes).is_err() => {
                session.warn(format!("{} is not JSON and not part of the exported model", file.display()));
            }
            Ok(bytes) => storage::write_synced(&staged.path(name), &bytes)?,
            Err(error) => session.warn(format!("{}: {error}; it is not part of the exported model", file.display())),
        }
    }
    Ok(())
}

/// How texts are generated, for an architecture that has settings for it: those of the model's folder, else keys of its config.
fn write_generation_config(session: &Session, staged: &ExportedFolder, config: &Map<String, Value>) -> io::Result<()> {
    let names = architecture(session.spec.model.arch).generation_keys;
    if names.is_empty() {
        return Ok(());
    }
    if let Some(from) = &session.spec.model.from {
        let file = Path::new(from).join(GENERATION_CONFIG);
        if carry_over(session, staged, &file, GENERATION_CONFIG)?.is_some() {
            return Ok(());
        }
    }
    let mut keys = Map::from_iter([("_from_model_config".to_owned(), json!(true))]);
    keys.extend(names.iter().filter_map(|name| Some(((*name).to_owned(), config.get(*name)?.clone()))));
    write_json(staged, GENERATION_CONFIG, &keys)
}

/// Copies a file of settings where there is one; its keys. One that is too large or no JSON object is left out with a warning:
/// the training is not lost for it.
fn carry_over(
    session: &Session,
    staged: &ExportedFolder,
    file: &Path,
    name: &str,
) -> io::Result<Option<Map<String, Value>>> {
    if !file.is_file() {
        return Ok(None);
    }
    let read = storage::read(file, LARGEST_CONFIG).and_then(|bytes| {
        let keys = serde_json::from_slice(&bytes)?;
        Ok((bytes, keys))
    });
    match read {
        Ok((bytes, keys)) => {
            storage::write_synced(&staged.path(name), &bytes)?;
            Ok(Some(keys))
        }
        Err(error) => {
            session.warn(format!("{}: {error}; it is not part of the exported model", file.display()));
            Ok(None)
        }
    }
}

/// How pictures were prepared, for a model that sees them.
fn preprocessor(session: &Session, config: &Map<String, Value>) -> io::Result<Option<Value>> {
    let model = &session.spec.model;
    let task_data = read_config(model.arch, config).map_err(io::Error::other)?.task_data(None);
    let preprocessor = Preprocessor::find(&task_data, model.from.as_deref().map(Path::new));
    Ok(preprocessor.map_err(io::Error::other)?.map(|preprocessor| preprocessor.json()))
}

pub struct ModelCard<'a> {
    pub spec: &'a TrainerSpec,
    pub config: &'a Map<String, Value>,
    pub parameters: u64,
    pub steps: u64,
    /// Rows, or windows, that were trained on.
    pub rows: u64,
    /// The last evaluation.
    pub eval: Option<&'a Eval>,
}

impl ModelCard<'_> {
    pub fn text(&self) -> String {
        let Self { spec, .. } = self;
        let mut text = String::from("---\n");
        if architecture(spec.model.arch).in_transformers {
            text += "library_name: transformers\n";
        }
        let _ = writeln!(
            text,
            "tags:\n- pipe\n- {}\n---\n\n# A {} model\n",
            spec.model.arch.name(),
            spec.model.arch.name()
        );
        text += "Trained with `pipe`.\n";
        section(&mut text, "Model", &self.model());
        section(&mut text, "Data", &self.data());
        section(&mut text, "Training", &self.training());
        match self.eval {
            Some(eval) => section(&mut text, "Evaluation", &evaluation(eval)),
            None => text += "\n## Evaluation\n\nIt was not evaluated.\n",
        }
        text
    }

    fn model(&self) -> Vec<(&str, String)> {
        let mut rows = vec![
            ("architecture", self.spec.model.arch.name().to_owned()),
            ("task", self.spec.model.task().name().to_owned()),
            ("parameters", self.parameters.to_string()),
            ("weights from", origin(self.spec.model.from.as_deref())),
        ];
        if let Some(Value::Object(names)) = self.config.get("id2label").filter(|_| !self.predicts_a_number()) {
            let listed: Vec<String> = (0..names.len().min(20))
                .filter_map(|number| names.get(&number.to_string())?.as_str().map(quote))
                .collect();
            let more = if names.len() > listed.len() { " and more" } else { "" };
            rows.push(("classes", format!("{}: {}{more}", names.len(), listed.join(", "))));
        }
        rows
    }

    fn predicts_a_number(&self) -> bool {
        self.config.get("problem_type").is_some_and(|kind| kind == "regression")
    }

    fn data(&self) -> Vec<(&str, String)> {
        let data = &self.spec.data;
        let mut rows = vec![("trained on", names(&data.train)), ("rows trained on", self.rows.to_string())];
        match &data.eval {
            Some(eval) => rows.push(("evaluated on", names(eval))),
            None if data.eval_share > 0.0 => {
                rows.push(("evaluated on", format!("a share of {} of the same data", data.eval_share)));
            }
            None => {}
        }
        if let Some(eval) = self.eval {
            rows.push(("rows evaluated", eval.samples.to_string()));
        }
        let fields: Vec<String> =
            data.fields.iter().map(|(role, column)| format!("{role}: {}", quote(column))).collect();
        if !fields.is_empty() {
            rows.push(("columns", fields.join(", ")));
        }
        rows
    }

    fn training(&self) -> Vec<(&str, String)> {
        let train = &self.spec.train;
        let mut rows = vec![
            ("steps", self.steps.to_string()),
            ("samples in a step", train.effective_batch.to_string()),
            ("optimizer", word(train.optimizer.kind)),
            ("learning rate", train.optimizer.lr.to_string()),
            ("weight decay", train.optimizer.weight_decay.to_string()),
            ("schedule", format!("{}, warm-up of {}", word(train.schedule.kind), train.schedule.warmup)),
            ("gradient norm at most", if train.clip > 0.0 { train.clip.to_string() } else { "any".to_owned() }),
            ("precision", word(train.precision)),
            ("seed", train.seed.to_string()),
        ];
        if let Some(dropout) = train.dropout {
            rows.push(("dropout", dropout.to_string()));
        }
        if !train.class_weights.is_none() {
            rows.push(("class weights", word(train.class_weights)));
        }
        rows
    }
}

/// A setting that is written as one word.
fn word(setting: impl Serialize) -> String {
    let value = serde_json::to_value(setting).unwrap_or_default();
    value.as_str().unwrap_or_default().to_owned()
}

fn evaluation(eval: &Eval) -> Vec<(&str, String)> {
    let mut rows = vec![("after step", eval.step.to_string()), ("loss", format!("{:.4}", eval.loss))];
    rows.extend(eval.scores.iter().map(|(name, score)| (name.as_str(), format!("{score:.4}"))));
    rows
}

fn section(text: &mut String, title: &str, rows: &[(&str, String)]) {
    let _ = write!(text, "\n## {title}\n\n| | |\n|---|---|\n");
    for (key, value) in rows {
        let _ = writeln!(text, "| {key} | {value} |");
    }
}

/// The names of files, without their folders.
fn names(paths: &Paths) -> String {
    const LISTED: usize = 8;
    let name = |path: &String| quote(&Path::new(path).file_name().unwrap_or_default().to_string_lossy());
    let listed: Vec<String> = paths.0.iter().take(LISTED).map(name).collect();
    let more = if paths.0.len() > LISTED { format!(" and {} more", paths.0.len() - LISTED) } else { String::new() };
    listed.join(", ") + &more
}

/// Where the weights came from. A folder of the hub's cache says which repository and commit it is of.
fn origin(from: Option<&str>) -> String {
    let Some(from) = from else { return "none: trained from scratch".to_owned() };
    let parts: Vec<&str> = from.split('/').filter(|part| !part.is_empty()).collect();
    let repository = parts.windows(3).find_map(|window| match window {
        [repository, "snapshots", commit] => Some((repository.strip_prefix("models--")?, *commit)),
        _ => None,
    });
    match repository {
        Some((name, commit)) => format!("{} at commit {}", quote(&name.replace("--", "/")), quote(commit)),
        None => format!("the folder {}", quote(parts.last().unwrap_or(&""))),
    }
}

/// As code in a cell of a table, whatever characters it has.
fn quote(text: &str) -> String {
    let plain: String = text
        .chars()
        .map(|one| if one.is_control() || matches!(one, '`' | '|' | '<' | '>') { '_' } else { one })
        .take(200)
        .collect();
    format!("`{plain}`")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_have_an_origin() {
        for (from, want) in [
            (None, "none: trained from scratch"),
            (Some("models/tiny/"), "the folder `tiny`"),
            (Some("/c/hub/models--sentence--MiniLM/snapshots/0a1b"), "`sentence/MiniLM` at commit `0a1b`"),
        ] {
            assert_eq!(origin(from), want);
        }
    }

    #[test]
    fn names_stay_in_their_cell() {
        assert_eq!(quote("a|b`c\n<i>"), "`a_b_c__i_`");
        assert_eq!(names(&Paths(vec!["/data/a b.csv".to_owned(), "c.csv".to_owned()])), "`a b.csv`, `c.csv`");
    }
}
