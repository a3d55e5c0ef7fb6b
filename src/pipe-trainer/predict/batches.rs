//! Samples through a model, in batches of about the same length: what is computed does not depend on the batch, and an out-of-memory makes
//! it smaller.
//!
//! The output is one JSON object for each prediction, in a file that has its name when it is complete, and events on stdout.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use pipe_spec::PredictEvent;
use pipe_spec::event::MemoryKind;
use rayon::ThreadPool;
use rayon::iter::{IntoParallelIterator, ParallelIterator};
use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::Value;

use crate::boundary;
use crate::data::{Column, Sample, Source};
use crate::error::TrainerError;
use crate::host::Stop;

/// Batches whose samples are sorted by length together.
const SORTED_BATCHES: usize = 32;

/// Between two progress events.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(250);

/// The way in which a kind of model predicts its samples.
pub trait Head {
    /// The output for one sample.
    type Output;

    /// Whether samples of the same row are pieces of one prediction.
    const JOINED: bool = false;

    /// Computes samples that all have the same columns. Fails without having counted anything, so that it can be called again
    /// with fewer.
    fn compute(&mut self, indices: &[usize], samples: &[Sample]) -> Result<Vec<Self::Output>, TrainerError>;

    /// The fields of one prediction: of one output, or of the pieces of a row.
    fn fields(pieces: Vec<Self::Output>) -> Fields;
}

pub struct Batches {
    pool: Arc<ThreadPool>,
    stop: Stop,
    batch: usize,
}

impl Batches {
    pub fn new(pool: Arc<ThreadPool>, stop: Stop, batch: usize) -> Self {
        Self { pool, stop, batch: batch.max(1) }
    }

    /// Samples of a batch now.
    pub fn batch(&self) -> usize {
        self.batch
    }

    /// Every sample of `source` through `head`. `progress` is told now and then how many are computed. `done` is given the outputs in the order of the samples, some at a time; all
    /// samples of a row come together.
    pub fn run<H: Head>(
        &mut self,
        source: &Arc<dyn Source>,
        head: &mut H,
        progress: impl Fn(u64),
        mut done: impl FnMut(Vec<(usize, H::Output)>) -> Result<(), TrainerError>,
    ) -> Result<(), TrainerError> {
        let mut reported = Instant::now();
        let mut start = 0;
        while start < source.len() {
            let range = start..self.end_of_chunk(source.as_ref(), start)?;
            let (indices, samples) = self.read(source.as_ref(), range.clone())?;
            let mut outputs = Vec::with_capacity(indices.len());
            while outputs.len() < indices.len() {
                self.check_stop()?;
                let part = outputs.len()..outputs.len() + self.part(&samples[outputs.len()..]);
                let computed = boundary::guard(|| head.compute(&indices[part.clone()], &samples[part.clone()]));
                match computed {
                    Ok(computed) => outputs.extend(computed),
                    Err(TrainerError::OutOfMemory { memory, .. }) if part.len() > 1 => self.shrink(part.len(), memory),
                    Err(error) => return Err(error),
                }
                if reported.elapsed() > PROGRESS_INTERVAL {
                    reported = Instant::now();
                    progress((start + outputs.len()) as u64);
                }
            }
            let mut outputs: Vec<(usize, H::Output)> = indices.into_iter().zip(outputs).collect();
            outputs.sort_by_key(|(index, _)| *index);
            done(outputs)?;
            start = range.end;
        }
        Ok(())
    }

    /// Several batches of texts, which are sorted by length; one of pictures, which are all the same size and large.
    fn end_of_chunk(&self, source: &dyn Source, start: usize) -> Result<usize, TrainerError> {
        let first = source.peek(start)?;
        let is_value = |(_, column): &(_, Column)| matches!(column, Column::Values { shape, .. } if shape.len() > 1);
        let has_values = first.is_some_and(|sample| sample.columns.iter().any(is_value));
        let batches = if has_values { 1 } else { SORTED_BATCHES };
        let mut end = (start + batches * self.batch).min(source.len());
        // The pieces of a row stay together.
        while end < source.len() && source.rows(end) == source.rows(end - 1) {
            end += 1;
        }
        Ok(end)
    }

    /// The samples that can be read, sorted by their columns and lengths.
    fn read(&self, source: &dyn Source, range: Range<usize>) -> Result<(Vec<usize>, Vec<Sample>), TrainerError> {
        let read = |index: usize| {
            let sample = source.sample(index)?;
            boundary::check_host_memory().map(|()| sample.map(|sample| (index, sample)))
        };
        let samples: Result<Vec<Option<(usize, Sample)>>, TrainerError> =
            self.pool.install(|| range.into_par_iter().map(read).collect());
        let mut samples: Vec<(usize, Sample)> = samples?.into_iter().flatten().collect();
        samples.sort_by_key(|(_, sample)| (columns(sample), sample.length()));
        Ok(samples.into_iter().unzip())
    }

    /// How many of the first samples are computed together.
    fn part(&self, samples: &[Sample]) -> usize {
        let first = columns(&samples[0]);
        samples.iter().take(self.batch).take_while(|sample| columns(sample) == first).count()
    }

    fn shrink(&mut self, failed: usize, memory: MemoryKind) {
        self.batch = failed.div_ceil(2);
        let memory = match memory {
            MemoryKind::Device => "device",
            MemoryKind::Host => "host",
        };
        let message = format!("out of {memory} memory with a batch of {failed}: continuing with {}", self.batch);
        print(&PredictEvent::Warning { message });
    }

    fn check_stop(&self) -> Result<(), TrainerError> {
        if self.stop.requested() {
            return Err(TrainerError::Stopped { step: 0 });
        }
        boundary::check_host_memory()
    }
}

/// The names of its columns.
fn columns(sample: &Sample) -> Vec<&'static str> {
    sample.columns.iter().map(|(name, _)| *name).collect()
}

/// The fields of a prediction, in the order in which they are written.
pub type Fields = Vec<(&'static str, Field)>;

/// Numbers of the model are written as short as fp32 allows.
#[derive(Clone, Debug)]
pub enum Field {
    Text(String),
    Whole(u64),
    Real(f32),
    Mean(f64),
    Reals(Vec<f32>),
    /// By name, such as the probability of each class.
    Named(Vec<(String, f32)>),
    Texts(Vec<String>),
    Spans(Vec<Span>),
}

/// A piece of a text that has a label. It begins and ends at these characters of the text.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Span {
    pub text: String,
    pub label: String,
    pub start: usize,
    pub end: usize,
    pub score: f32,
}

impl Serialize for Field {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Text(text) => text.serialize(serializer),
            Self::Whole(number) => number.serialize(serializer),
            Self::Real(number) => number.serialize(serializer),
            Self::Mean(number) => number.serialize(serializer),
            Self::Reals(numbers) => numbers.serialize(serializer),
            Self::Texts(texts) => texts.serialize(serializer),
            Self::Spans(spans) => spans.serialize(serializer),
            Self::Named(numbers) => serializer.collect_map(numbers.iter().map(|(name, number)| (name, number))),
        }
    }
}

struct Line {
    row: usize,
    first_row: Option<usize>,
    kept: Vec<(String, Value)>,
    fields: Fields,
}

impl Serialize for Line {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("row", &self.row)?;
        if let Some(first) = self.first_row {
            map.serialize_entry("first_row", &first)?;
        }
        // A name of the output wins over a column that is called the same.
        let is_taken =
            |name: &str| ["row", "first_row"].contains(&name) || self.fields.iter().any(|(field, _)| *field == name);
        for (name, value) in self.kept.iter().filter(|(name, _)| !is_taken(name)) {
            map.serialize_entry(name, value)?;
        }
        for (name, field) in &self.fields {
            map.serialize_entry(name, field)?;
        }
        map.end()
    }
}

pub struct Output {
    path: PathBuf,
    partial: PathBuf,
    file: BufWriter<File>,
    lines: u64,
}

impl Output {
    pub fn create(path: &Path) -> Result<Self, TrainerError> {
        let mut partial = path.as_os_str().to_owned();
        partial.push(".partial");
        let partial = PathBuf::from(partial);
        let file = File::create(&partial).map_err(|source| TrainerError::Io { path: partial.clone(), source })?;
        Ok(Self { path: path.to_owned(), partial, file: BufWriter::new(file), lines: 0 })
    }

    /// `first_row` where a prediction is of several rows.
    pub fn line(
        &mut self,
        row: usize,
        first_row: Option<usize>,
        kept: Vec<(String, Value)>,
        fields: Fields,
    ) -> Result<(), TrainerError> {
        let line = Line { row, first_row, kept, fields };
        let written = serde_json::to_writer(&mut self.file, &line).map_err(io::Error::from);
        written.and_then(|()| self.file.write_all(b"\n")).map_err(|source| self.fail(source))?;
        self.lines += 1;
        Ok(())
    }

    /// Gives the file its name. Returns how many lines it has.
    pub fn finish(mut self) -> Result<u64, TrainerError> {
        let done = self.file.flush().and_then(|()| self.file.get_ref().sync_all());
        done.and_then(|()| fs::rename(&self.partial, &self.path)).map_err(|source| self.fail(source))?;
        Ok(self.lines)
    }

    fn fail(&self, source: io::Error) -> TrainerError {
        TrainerError::Io { path: self.path.clone(), source }
    }
}

impl Drop for Output {
    /// Nothing half-written stays. After `finish` there is nothing under this name.
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.partial);
    }
}

/// Prints an event. Where nobody reads, the output is still written.
pub fn print(event: &PredictEvent) {
    let line = serde_json::to_string(event).expect("an event is plain data");
    let _ = writeln!(io::stdout(), "{line}");
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::data::workers;
    use crate::host::HostMemory;

    /// Samples of these lengths; one of length 0 cannot be read.
    struct Lengths(Vec<usize>);

    impl Source for Lengths {
        fn len(&self) -> usize {
            self.0.len()
        }

        fn sample(&self, index: usize) -> Result<Option<Sample>, TrainerError> {
            let ids = Column::Tokens(vec![7; self.0[index]]);
            Ok((self.0[index] > 0).then(|| Sample { columns: vec![("ids", ids)], targets: 1 }))
        }
    }

    /// Gives the length of each sample, and has no memory for more tokens than `room` with padding.
    struct Padded {
        room: usize,
        parts: Vec<Vec<usize>>,
    }

    impl Head for Padded {
        type Output = usize;

        fn compute(&mut self, _: &[usize], samples: &[Sample]) -> Result<Vec<usize>, TrainerError> {
            let lengths: Vec<usize> = samples.iter().map(Sample::length).collect();
            if lengths.iter().max().unwrap_or(&0) * lengths.len() > self.room {
                let (memory, message) = (MemoryKind::Device, String::new());
                return Err(TrainerError::OutOfMemory { memory, message, host: HostMemory::now() });
            }
            self.parts.push(lengths.clone());
            Ok(lengths)
        }

        fn fields(_: Vec<usize>) -> Fields {
            Vec::new()
        }
    }

    fn run(lengths: &[usize], batch: usize, room: usize) -> Result<(Vec<(usize, usize)>, Padded), TrainerError> {
        let mut batches = Batches::new(workers(2).unwrap(), Stop::default(), batch);
        let mut head = Padded { room, parts: Vec::new() };
        let source: Arc<dyn Source> = Arc::new(Lengths(lengths.to_vec()));
        let mut all = Vec::new();
        batches.run(
            &source,
            &mut head,
            |_| {},
            |outputs| {
                all.extend(outputs);
                Ok(())
            },
        )?;
        Ok((all, head))
    }

    #[test]
    fn samples_are_sorted_by_length_and_come_back_in_order() {
        let (outputs, head) = run(&[9, 2, 0, 8, 1], 2, 100).unwrap();
        assert_eq!(outputs, [(0, 9), (1, 2), (3, 8), (4, 1)]);
        assert_eq!(head.parts, [[1, 2], [8, 9]]);
    }

    #[test]
    fn an_out_of_memory_makes_the_batch_smaller() {
        let lengths = [3, 4, 4, 4, 4, 4, 4, 4];
        let (outputs, head) = run(&lengths, 8, 9).unwrap();
        assert_eq!(outputs, lengths.into_iter().enumerate().collect::<Vec<_>>());
        assert!(head.parts.iter().all(|part| part.len() == 2), "{:?}", head.parts);
        assert!(matches!(run(&lengths, 8, 3), Err(TrainerError::OutOfMemory { .. })));
    }

    #[test]
    fn a_line_is_one_object_in_order() {
        let fields = vec![
            ("label", Field::Text("b".to_owned())),
            ("score", Field::Real(0.1)),
            ("scores", Field::Named(vec![("b".to_owned(), 0.1), ("a".to_owned(), f32::NAN)])),
        ];
        let kept = vec![("id".to_owned(), json!([1])), ("label".to_owned(), json!("x"))];
        let line = Line { row: 7, first_row: Some(3), kept, fields };
        let want = r#"{"row":7,"first_row":3,"id":[1],"label":"b","score":0.1,"scores":{"b":0.1,"a":null}}"#;
        assert_eq!(serde_json::to_string(&line).unwrap(), want);
    }

    #[test]
    fn nothing_half_written_stays() {
        let path = std::env::temp_dir().join(format!("pipe-output-{}.jsonl", std::process::id()));
        let create = || {
            let mut output = Output::create(&path).unwrap();
            output.line(0, None, Vec::new(), Vec::new()).unwrap();
            output
        };
        drop(create());
        assert!(!path.exists() && !path.with_extension("jsonl.partial").exists());
        assert_eq!(create().finish().unwrap(), 1);
        assert!(!path.with_extension("jsonl.partial").exists());
        assert_eq!(fs::read_to_string(&path).unwrap(), "{\"row\":0}\n");
        fs::remove_file(path).unwrap();
    }
}
