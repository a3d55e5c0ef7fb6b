//! `pipe-trainer inspect`: opens the data of a training as the training would, and prints what is in it. Trains nothing; of weights
//! it reads names and shapes.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pipe_model::TaskData;
use pipe_model::memory::has_attention_kernel;
use pipe_spec::pipeline::{self, BatchSetting, Data, Limit, Pad, Precision, Task};
use pipe_spec::trainer::{ClassCount, Lengths, Split, StepParts};
use pipe_spec::{Inspection, TrainerSpec};
use tch::Device;

use crate::data::{
    self, ALIGNED_COLUMNS, Column, IGNORED, PartShape, Reader, Sample, SampleOrder, Source, sort_longest_first,
};
use crate::error::TrainerError;
use crate::model::Definition;
use crate::session;
use crate::tokenizer::Tokens;
use crate::train::StepSplitter;

/// Rows of tokens that are read at most, evenly spread over the data: some seconds of work.
const MOST_ROWS: usize = 100_000;
/// The same for rows with pictures, which take far longer to read.
const MOST_PICTURES: usize = 500;
/// Steps whose samples are split into parts, to see how many there are.
const CUT_STEPS: u64 = 8;
/// Rows that are held at a time.
const CHUNK: usize = 1024;

pub fn inspect(spec_file: &Path) -> Result<(), TrainerError> {
    let spec = session::read(spec_file)?;
    let pool = data::workers(spec.data.workers.get())?;
    let definition = Definition::from_spec(&spec.model)?.with_adapter(spec.adapter.as_ref())?;
    let task_data = definition.task_data()?;
    let sources = data::open(&spec, &task_data, &pool)?;
    let definition = definition.with_labels(sources.labels.as_ref()).with_keys(sources.train.config_keys());
    definition.check_weights()?;
    let mut order = SampleOrder::new(sources.train.len(), spec.data.shuffle, &spec.train);
    let steps = order.steps();
    let reader = Reader { source: Arc::clone(&sources.train), pool: Arc::clone(&pool) };
    let step_parts = match (spec.train.split, spec.train.batch) {
        (pipeline::Split::Fixed, _) | (_, BatchSetting::Auto) => None,
        (pipeline::Split::Fill, BatchSetting::Fixed(_)) => {
            let shape = PartShape::new(&sources.paddings, Device::Cpu);
            // The capacity of a card without a limit is not known here.
            let capacity = match (spec.device, spec.memory.limit) {
                (pipe_spec::Device::Cuda, Some(Limit::Size(size))) => Some(size.0),
                _ => None,
            };
            let splitter = StepSplitter::new(&spec, &definition, &task_data, &shape, capacity)?;
            let samples = spec.train.effective_batch;
            // Rows with pictures take long to read, and their length says nothing.
            let most = if splitter.is_by_length() { MOST_ROWS } else { MOST_PICTURES };
            mean_parts(&splitter, &reader, &mut order, most)?.map(|parts| StepParts { samples, parts })
        }
    };
    let example = match &sources.tokens {
        Some(tokens) if spec.data.is_chat() || task_data.task() == Task::Preference => {
            example(sources.train.as_ref(), tokens)?
        }
        _ => Vec::new(),
    };
    let split = |source: Arc<dyn Source>| {
        Counter { data: &spec.data, task_data: &task_data, classes: definition.class_names() }
            .count(&Reader { source, pool: Arc::clone(&pool) })
    };
    let source = Arc::clone(&sources.train);
    let (train, eval) = (split(sources.train)?, sources.eval.map(split).transpose()?);
    check_any_left(&spec, &train, source.as_ref(), &sources.notices)?;
    let mut notices = sources.notices;
    notices.extend(about_padding(&spec, &definition)?);
    let inspection = Inspection { train, eval, steps, step_parts, example, notices };
    let text = serde_json::to_string(&inspection).expect("it is plain data");
    let write = writeln!(std::io::stdout(), "{text}");
    write.map_err(|source| TrainerError::Io { path: "stdout".into(), source })
}

/// Where rows are not padded, `data.pad: max` changes nothing. Whether there will be a card is not known here.
fn about_padding(spec: &TrainerSpec, definition: &Definition) -> Result<Option<String>, TrainerError> {
    if spec.data.pad != Pad::Max {
        return Ok(None);
    }
    if pipe_model::architecture(definition.arch()).tokenization.is_none() {
        let arch = definition.arch().name();
        return Ok(Some(format!("data.pad: max changes nothing: {arch} reads no texts, which alone are padded")));
    }
    let is_narrow = !matches!(spec.train.precision, Precision::Fp32 | Precision::Tf32);
    let has_kernel = definition.config()?.head_width().is_some_and(has_attention_kernel);
    let text =
        "data.pad: max changes nothing on a card in 16 bits: samples stand one behind the other, without padding";
    Ok((is_narrow && has_kernel).then(|| text.to_owned()))
}

/// Refuses data of which no row is left. Where all that were looked at are skipped, the others are read too.
fn check_any_left(
    spec: &TrainerSpec,
    train: &Split,
    source: &dyn Source,
    notices: &[String],
) -> Result<(), TrainerError> {
    if train.rows == 0 || train.skipped < train.read {
        return Ok(());
    }
    for row in 0..source.len() {
        if source.peek(row)?.is_some() {
            return Ok(());
        }
    }
    let why = match notices {
        [] if spec.data.skip_bad => "none of them can be read, and data.skip_bad is on".to_owned(),
        notices => notices.join("; "),
    };
    let message = format!("no row is left to train on: all {} are skipped: {why}", train.rows);
    let path = spec.data.train.0.first().map(PathBuf::from).unwrap_or_default();
    Err(TrainerError::Data { path, line: None, message })
}

/// The first row that has something to learn, in pieces that the loss counts or does not.
fn example(source: &dyn Source, tokens: &Tokens) -> Result<Vec<(String, bool)>, TrainerError> {
    let found = (0..source.len()).map(|row| source.peek(row)).find_map(Result::transpose).transpose()?;
    let Some(sample) = found else { return Ok(Vec::new()) };
    let mut pieces = pieces(&sample, ["ids", "labels"], tokens)?;
    let other = self::pieces(&sample, ["rejected_ids", "rejected_labels"], tokens)?;
    if !other.is_empty() {
        pieces.insert(0, ("chosen:\n".to_owned(), false));
        pieces.push(("\nrejected:\n".to_owned(), false));
        pieces.extend(other);
    }
    Ok(pieces)
}

fn pieces(sample: &Sample, [ids, labels]: [&str; 2], tokens: &Tokens) -> Result<Vec<(String, bool)>, TrainerError> {
    let (Some(Column::Tokens(ids)), Some(Column::PerToken(labels))) = (sample.column(ids), sample.column(labels))
    else {
        return Ok(Vec::new());
    };
    let rows: Vec<(i64, bool)> = ids.iter().copied().zip(labels.iter().map(|label| *label != IGNORED)).collect();
    let piece = |piece: &[(i64, bool)]| {
        let ids: Vec<i64> = piece.iter().map(|(id, _)| *id).collect();
        Ok((tokens.decode_whole(&ids)?, piece[0].1))
    };
    rows.chunk_by(|one, next| one.1 == next.1).map(piece).collect()
}

/// Parts of the first steps, on average, as long as they have no more than `most` rows; nothing where they have none.
fn mean_parts(
    splitter: &StepSplitter,
    reader: &Reader,
    order: &mut SampleOrder,
    most: usize,
) -> Result<Option<f64>, TrainerError> {
    let few = most / order.step(0).len().max(1);
    let steps = order.steps().min(CUT_STEPS).min(few as u64);
    let mut parts = 0;
    for step in 0..steps {
        let mut samples = reader.peek(&order.step(step))?;
        sort_longest_first(&mut samples);
        parts += splitter.parts(&samples).len();
    }
    Ok((parts > 0).then(|| parts as f64 / steps as f64))
}

struct Counter<'a> {
    data: &'a Data,
    task_data: &'a TaskData,
    /// Empty where the model does not classify.
    classes: Vec<String>,
}

impl Counter<'_> {
    fn count(&self, reader: &Reader) -> Result<Split, TrainerError> {
        let rows = reader.source.len();
        let mut lengths: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        let mut split = Split { rows: rows as u64, ..Split::default() };
        split.classes = self.classes.iter().map(|name| ClassCount { name: name.clone(), rows: 0 }).collect();
        let has_pictures = self.task_data.task().reads_pictures();
        let has_classes = has_pictures && !self.classes.is_empty();
        let most = if has_pictures { MOST_PICTURES } else { MOST_ROWS };
        let indices = spread(rows, most);
        for chunk in indices.chunks(CHUNK) {
            let samples = reader.peek(chunk)?;
            split.read += chunk.len() as u64;
            split.skipped += (chunk.len() - samples.len()) as u64;
            for (name, column) in samples.iter().flat_map(|sample: &Sample| &sample.columns) {
                match column {
                    Column::Tokens(tokens) if !ALIGNED_COLUMNS.contains(name) => {
                        lengths.entry(name).or_default().push(tokens.len());
                    }
                    Column::Whole(class) if *name == "labels" && !has_classes => count(&mut split, *class),
                    Column::Values { values, .. } if *name == "labels" => {
                        let applies = split.classes.iter_mut().zip(values).filter(|(_, applies)| **applies > 0.0);
                        applies.for_each(|(class, _)| class.rows += 1);
                    }
                    Column::PerToken(labels) if *name == "labels" => {
                        let classes: BTreeSet<usize> =
                            labels.iter().filter_map(|label| usize::try_from(*label).ok()).collect();
                        classes.into_iter().for_each(|class| count(&mut split, class as i64));
                    }
                    _ => {}
                }
            }
        }
        // The class of a picture is known without decoding it.
        for row in (0..rows).filter(|_| has_classes) {
            reader.source.class_of(row)?.into_iter().for_each(|class| count(&mut split, class));
        }
        // Rows that are cut out of joined texts are all of one length.
        if !matches!(self.task_data, TaskData::Language { joins_texts: true, .. }) {
            split.lengths = lengths.into_iter().map(|(column, lengths)| self.lengths(column, lengths)).collect();
        }
        Ok(split)
    }

    fn lengths(&self, column: &str, mut lengths: Vec<usize>) -> Lengths {
        lengths.sort_unstable();
        let Data { max_source, max_target, max_length, .. } = self.data;
        let (column, limit) = match self.task_data {
            TaskData::Seq2Seq { .. } if column == "labels" => ("target", max_target.get()),
            TaskData::Seq2Seq { .. } => ("source", max_source.get()),
            TaskData::Classification { max_length: most, .. } | TaskData::Contrastive { max_length: most, .. } => {
                ("text", max_length.get().min(*most))
            }
            TaskData::TokenLabels { max_length: most, .. } => ("tokens", max_length.get().min(*most)),
            TaskData::Language { max_length: most, .. } => ("text", max_length.get().min(*most)),
            TaskData::Preference { max_length: most, .. } => {
                (if column == "ids" { "chosen" } else { "rejected" }, max_length.get().min(*most))
            }
            TaskData::TimeSeries { .. } | TaskData::Table { .. } | TaskData::PictureClasses { .. } => {
                ("text", max_length.get())
            }
        };
        let longest = lengths.last().copied().unwrap_or(0);
        let at_limit = lengths.iter().rev().take_while(|length| **length >= limit as usize).count();
        Lengths {
            column: column.to_owned(),
            mean: lengths.iter().sum::<usize>() as f64 / lengths.len().max(1) as f64,
            p95: lengths.get((lengths.len() * 95).div_ceil(100).saturating_sub(1)).map_or(0, |length| *length as u64),
            longest: longest as u64,
            at_limit: at_limit as u64,
        }
    }
}

/// Counts a row of a class.
fn count(split: &mut Split, class: i64) {
    if let Some(found) = usize::try_from(class).ok().and_then(|class| split.classes.get_mut(class)) {
        found.rows += 1;
    }
}

/// At most `most` of `rows` indices, the first and the last among them.
fn spread(rows: usize, most: usize) -> Vec<usize> {
    match rows {
        _ if rows <= most => (0..rows).collect(),
        _ => (0..most).map(|number| number * (rows - 1) / (most - 1)).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_spread_over_the_data() {
        assert_eq!(spread(3, 5), [0, 1, 2]);
        assert_eq!(spread(9, 5), [0, 2, 4, 6, 8]);
        assert_eq!(spread(0, 5), [0; 0]);
    }
}
