//! All data files of a run, prepared by a thread of their own, while this one reports and hears Ctrl-C.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pipe_data::{ColumnSelection, Format};
use pipe_spec::text::human_bytes;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

use super::entry::{Cache, EntryGuard};
use super::source::{Source, TrainedTokenizer};
use crate::error::Error;
use crate::input::{Input, Inputs};
use crate::report::Reporter;
use crate::system::digests::Digests;
use crate::system::interrupt::{Interrupts, Watch};

/// How often progress is looked at.
const POLL_INTERVAL: Duration = Duration::from_millis(250);
/// How long a cancelled preparation may take to clean up. One that only hashes has nothing to clean up.
const CLEANUP_TIMEOUT: Duration = Duration::from_secs(10);
/// From so many bytes on it is said that they are hashed.
const LARGE_BYTES: u64 = 1 << 30;

/// The inputs of a run with its data prepared. The cache keeps the data while this lives.
#[derive(Debug)]
pub struct PreparedInputs {
    pub inputs: Inputs,
    held: Vec<EntryGuard>,
}

impl PreparedInputs {
    /// Those of a job that reads its own.
    pub fn unchanged(inputs: &Inputs) -> Self {
        Self { inputs: inputs.clone(), held: Vec::new() }
    }
}

/// Events of the thread.
enum PrepareEvent {
    Hashing {
        bytes: u64,
    },
    /// These are not in the cache yet.
    Begun {
        files: usize,
        first: String,
        bytes: u64,
    },
    TrainingTokenizer,
    TokenizerTrained {
        path: PathBuf,
    },
    Waiting {
        name: String,
    },
    Ended(Box<Result<PreparedInputs, Error>>),
}

/// The entries that were begun.
struct Begun {
    what: String,
    bytes: u64,
    at: Instant,
    folder: PathBuf,
}

/// Whether anything has to be prepared.
pub fn needs_preparation(inputs: &Inputs) -> bool {
    let is_plain = |input: &Input| Format::of_file(&input.host) == Format::Plain;
    inputs.tokenizer_training.is_some() || !inputs.train.iter().chain(&inputs.eval).all(is_plain)
}

/// Prepares what the trainer cannot read as it is.
pub async fn prepare_inputs(
    inputs: &Inputs,
    selection: ColumnSelection,
    reporter: &mut Reporter,
    interrupts: &mut Interrupts,
) -> Result<PreparedInputs, Error> {
    let inputs = inputs.clone();
    for input in inputs.train.iter().chain(&inputs.eval) {
        let name = input.written.file_name().unwrap_or_default().to_string_lossy();
        pipe_data::notes(&input.host).iter().for_each(|note| reporter.note(&format!("{name}: {note}")));
    }
    if !needs_preparation(&inputs) {
        return Ok(PreparedInputs { inputs, held: Vec::new() });
    }
    let cache = Cache::find()?;
    let folder = cache.folder().to_owned();
    let watch = Arc::new(Watch::default());
    let (sender, mut events) = unbounded_channel();
    {
        let watch = watch.clone();
        let work = move || {
            let result = prepare(inputs, &selection, &cache, &watch, &sender);
            sender.send(PrepareEvent::Ended(Box::new(result))).ok();
        };
        let spawned = std::thread::Builder::new().name("prepare".to_owned()).spawn(work);
        spawned.map_err(|source| Error::DataCache { path: folder.clone(), source })?;
    }
    let mut begun: Option<Begun> = None;
    let mut progress = reporter.data_progress();
    loop {
        tokio::select! {
            event = events.recv() => match event {
                Some(PrepareEvent::Hashing { bytes }) => progress.note(&format!("hashing {} of data, once", human_bytes(bytes))),
                Some(PrepareEvent::Begun { files, first, bytes }) => {
                    let what = if files == 1 { first } else { format!("{files} data files") };
                    progress.begin(&what, bytes);
                    begun = Some(Begun { what, bytes, at: Instant::now(), folder: folder.clone() });
                }
                Some(PrepareEvent::TrainingTokenizer) => {
                    progress.note("no tokenizer is named: training one on the texts of data.train, once");
                }
                Some(PrepareEvent::TokenizerTrained { path }) => progress.note(&format!("tokenizer: {}", path.display())),
                Some(PrepareEvent::Waiting { name }) => progress.note(&format!("waiting for another pipe that prepares {name}")),
                Some(PrepareEvent::Ended(result)) => {
                    if let (Ok(ready), Some(begun)) = (result.as_ref(), &begun) {
                        progress.end(&begun.summary(ready));
                    }
                    return *result;
                }
                None => return Err(Error::DataCache { path: folder, source: std::io::Error::other("the thread ended") }),
            },
            () = tokio::time::sleep(POLL_INTERVAL) => progress.set(watch.done()),
            () = interrupts.signal() => {
                watch.cancel();
                if begun.is_some() {
                    let end = async { while !matches!(events.recv().await, Some(PrepareEvent::Ended(_)) | None) {} };
                    tokio::time::timeout(CLEANUP_TIMEOUT, end).await.ok();
                }
                return Err(Error::Interrupted);
            }
        }
    }
}

impl Begun {
    fn summary(&self, ready: &PreparedInputs) -> String {
        let bytes = ready.held.iter().map(|held| held.manifest.bytes).sum();
        let Self { what, bytes: from, at, folder } = self;
        let (from, to, took) = (human_bytes(*from), human_bytes(bytes), at.elapsed().as_secs_f64());
        format!("prepared {what}: {from} became {to} in {}, {took:.1}s", folder.display())
    }
}

fn prepare(
    mut inputs: Inputs,
    selection: &ColumnSelection,
    cache: &Cache,
    watch: &Watch,
    sender: &UnboundedSender<PrepareEvent>,
) -> Result<PreparedInputs, Error> {
    let say = |event: PrepareEvent| drop(sender.send(event));
    let mut digests = Digests::load();
    let to_read: u64 = inputs.train.iter().chain(&inputs.eval).map(|input| digests.to_read(&input.host)).sum();
    if to_read >= LARGE_BYTES {
        say(PrepareEvent::Hashing { bytes: to_read });
    }
    let mut sources = Vec::new();
    for input in inputs.train.iter().chain(&inputs.eval) {
        watch.check()?;
        sources.push(Source::from_input(input, selection, &mut digests)?);
    }
    digests.save();
    let missing: Vec<&Source> = sources.iter().flatten().filter(|source| !cache.has(&source.key)).collect();
    if let [first, ..] = missing.as_slice() {
        let bytes = missing.iter().map(|source| source.size).sum();
        say(PrepareEvent::Begun { files: missing.len(), first: first.name(), bytes });
    }
    let (mut held, mut before) = (Vec::new(), 0);
    for (input, source) in inputs.train.iter_mut().chain(&mut inputs.eval).zip(&sources) {
        let Some(source) = source else { continue };
        let is_new = !cache.has(&source.key);
        let wait = || say(PrepareEvent::Waiting { name: source.name() });
        let (prepared, entry) = source.prepare(cache, selection, watch, before, wait)?;
        before += if is_new { source.size } else { 0 };
        input.prepared = Some(prepared);
        held.push(entry);
    }
    held.extend(train_tokenizer(&mut inputs, cache, watch, &say)?);
    Ok(PreparedInputs { inputs, held })
}

/// The tokenizer, where there is none: the files of `inputs` are prepared.
fn train_tokenizer(
    inputs: &mut Inputs,
    cache: &Cache,
    watch: &Watch,
    say: &impl Fn(PrepareEvent),
) -> Result<Option<EntryGuard>, Error> {
    let Some(training) = inputs.tokenizer_training.take() else { return Ok(None) };
    let mut digests = Digests::load();
    let trained = TrainedTokenizer::new(&training, &inputs.train, &mut digests)?;
    digests.save();
    let is_new = !cache.has(&trained.key);
    if is_new {
        say(PrepareEvent::TrainingTokenizer);
    }
    let wait = || say(PrepareEvent::Waiting { name: "the tokenizer".to_owned() });
    let named = |error| match error {
        Error::NoTokenizer { message, is_input } => {
            Error::NoTokenizer { message: inputs.with_host_paths(&message), is_input }
        }
        other => other,
    };
    let (tokenizer, held) = trained.get(cache, watch, wait).map_err(named)?;
    if is_new {
        say(PrepareEvent::TokenizerTrained { path: tokenizer.host.clone() });
    }
    inputs.tokenizer = vec![tokenizer];
    Ok(Some(held))
}
