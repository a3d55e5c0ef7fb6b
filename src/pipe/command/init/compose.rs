//! A draft from what is known of the data: the size of the model, the lengths and the settings.

use std::path::Path;

use pipe_model::{ModelSize, StarterSizes};
use pipe_spec::model_folder;
use pipe_spec::pipeline::{Arch, Task};

use super::column::{Column, Kind};
use super::draft::Draft;
use super::findings::findings;
use super::inspection::inspect;
use super::limits::Limits;
use super::settings::{self, Facts, Settings};
use super::survey::{Field, Survey};
use super::vocabulary;
use crate::error::Error;

/// The draft for data that was looked at.
pub fn known(
    arch: Arch,
    train: String,
    eval: Option<String>,
    from: Option<String>,
    survey: &Survey,
    fields: Vec<Field>,
) -> Draft {
    let task = arch.task();
    let starter = pipe_model::starter(arch);
    let size = ModelSize::for_rows(survey.rows);
    let limits = Limits::of(task, survey, &fields, size == ModelSize::Small && from.is_none());
    let label = survey.fed(&fields, "label");
    // The config of a trained model does not say what is predicted; its head is made for the labels: whole numbers are classes.
    let is_number = |label: &Column| label.is_quantity() && !(from.is_some() && label.whole);
    let is_number = task == Task::Classification && label.is_some_and(is_number);
    let window = settings::window(survey.rows);
    let facts = Facts {
        task,
        samples: Some(samples(task, survey, &fields, limits, window)),
        has_eval: eval.is_some(),
        from_weights: from.is_some(),
        size,
        is_number,
        classes: label.map_or(&[], |label| label.classes.as_slice()),
        window,
    };
    let settings = Settings::new(&starter, &facts);
    let tokenizer = tokenizer_beside(&train, arch);
    let sizes = StarterSizes {
        model: size,
        vocabulary: tokenizer.unwrap_or_else(|| size.vocabulary(starter.vocabulary)),
        length: limits.length,
        features: survey.features(&fields),
        window,
        classes: if is_number { 1 } else { label.map_or(2, classes) },
    };
    let is_small = size == ModelSize::Small && from.is_none();
    Draft {
        name: String::new(),
        arch,
        train,
        eval,
        from,
        sizes,
        limits,
        settings,
        skip_bad: task == Task::Classification && label.is_some_and(|label| label.empty > 0),
        findings: findings(survey, task, &fields, None),
        fields,
        has_tokenizer: tokenizer.is_some(),
        gpu_memory: None,
        card: false,
        batch: if is_small { settings.effective_batch } else { settings.effective_batch.min(8) },
    }
}

/// The draft for data that could not be looked at: the sizes of published models.
pub fn unknown(arch: Arch, train: String, eval: Option<String>, from: Option<String>, fields: Vec<Field>) -> Draft {
    let task = arch.task();
    let starter = pipe_model::starter(arch);
    let limits = Limits::unknown(task);
    let facts = Facts {
        task,
        samples: None,
        has_eval: eval.is_some(),
        from_weights: from.is_some(),
        size: ModelSize::Base,
        is_number: false,
        classes: &[],
        window: 60,
    };
    let settings = Settings::new(&starter, &facts);
    let tokenizer = tokenizer_beside(&train, arch);
    Draft {
        name: String::new(),
        arch,
        train,
        eval,
        fields,
        from,
        sizes: StarterSizes {
            model: ModelSize::Base,
            vocabulary: tokenizer.unwrap_or(starter.vocabulary),
            length: limits.length,
            features: 8,
            window: 60,
            classes: 2,
        },
        limits,
        settings,
        skip_bad: false,
        findings: Vec::new(),
        has_tokenizer: tokenizer.is_some(),
        gpu_memory: None,
        card: false,
        batch: 8.min(settings.effective_batch),
    }
}

/// With the lengths in tokens, where the trainer can count them.
pub fn with_tokens(draft: Draft, survey: &Survey) -> Result<Draft, Error> {
    let task = draft.arch.task();
    if !matches!(task, Task::Seq2Seq | Task::Classification) {
        return Ok(draft);
    }
    Ok(match inspect(&draft)? {
        Some(inspection) => Draft {
            limits: Limits::of_tokens(&inspection).unwrap_or(draft.limits),
            findings: findings(survey, task, &draft.fields, Some(&inspection)),
            ..draft
        },
        None => draft,
    })
}

/// What a step counts: rows, windows, or sequences of tokens.
fn samples(task: Task, survey: &Survey, fields: &[Field], limits: Limits, window: u32) -> u64 {
    match task {
        Task::TimeSeries => survey.rows.saturating_sub(u64::from(window)),
        Task::Language => {
            let texts = || survey.columns.iter().filter(|column| column.kind == Kind::Text);
            let column = survey.fed(fields, "text").or_else(|| texts().next());
            // Limits are on the safe side; the usual token has four bytes, and not three.
            column.map_or(0, |column| survey.rows * column.tokens.mean as u64 * 3 / 4) / u64::from(limits.length)
        }
        Task::Seq2Seq | Task::Classification | Task::Contrastive => survey.rows,
    }
    .max(1)
}

/// Numbers from 0 are the classes themselves.
fn classes(label: &Column) -> usize {
    let count = match label.range {
        Some((_, high)) if label.whole => high as usize + 1,
        _ => label.classes.len(),
    };
    count.max(2)
}

/// How many tokens a tokenizer beside the data has, if there is one.
fn tokenizer_beside(train: &str, arch: Arch) -> Option<u64> {
    let path = Path::new(train);
    let folder = if path.is_dir() { path } else { path.parent()? };
    let first = model_folder::find_tokenizer(folder, arch)?[0];
    let size = if first == model_folder::TOKENIZER_JSON { vocabulary::of_tokenizer(&folder.join(first)) } else { None };
    Some(size.unwrap_or(pipe_model::starter(arch).vocabulary))
}
