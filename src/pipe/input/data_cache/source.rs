//! From a data file to an entry of the cache.
//!
//! The tokenizer of a model from scratch for which none is named: trained once by the trainer, on the texts of the training
//! data, and kept in the cache by what it is made of.
//!
//! All data files of a run, prepared by a thread of their own, while this one reports and hears Ctrl-C.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use pipe_data::{ColumnSelection, Compression, Format, ParquetTable, compressed, guarded, tables};
use pipe_spec::TrainerExit;
use pipe_spec::model_folder::TOKENIZER_JSON;
use pipe_spec::text::human_bytes;
use pipe_spec::trainer::{LEASE_ON_STDIN, LEASE_VARIABLE, error_message};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

use super::entry::{Cache, EntryGuard, KEY_LENGTH, Manifest};
use super::output::{self, Conversion, Output, Piece, Pieces};
use crate::error::Error;
use crate::image;
use crate::input::{Input, Inputs, Numbering, Prepared, TOKENIZER_FOLDER, TokenizerTraining};
use crate::report::Reporter;
use crate::system::digests::{Digests, Stamp};
use crate::system::interrupt::{Interrupts, Watch};

/// Raised whenever other files come out of the same sources.
const VERSION: u32 = 2;

/// A data file with what it is known by.
pub struct Source {
    host: PathBuf,
    /// As the pipeline names it.
    named: PathBuf,
    format: Format,
    pub key: String,
    pub size: u64,
    /// Metadata that changes when the file is written.
    stamp: Stamp,
    /// Where relative paths in it begin.
    folder: PathBuf,
}

impl Source {
    /// Nothing for a file that the trainer can read as it is.
    pub fn from_input(
        input: &Input,
        selection: &ColumnSelection,
        digests: &mut Digests,
    ) -> Result<Option<Self>, Error> {
        let format = Format::of_file(&input.host);
        if format == Format::Plain {
            return Ok(None);
        }
        let stamp = stamp(&input.host)?;
        let folder = input.host.parent().unwrap_or(Path::new("/")).to_owned();
        let digest = digests.hash(&input.host)?;
        // Paths of pictures are written as whole paths, which begin in the folder of the source.
        let pictures = selection.pictures.as_ref().map(|column| format!("{column} in {}", folder.display()));
        let what = match format {
            Format::Parquet => selection.key(),
            Format::Json | Format::Workbook => format!("csv {}", selection.as_csv()),
            Format::Encoded(_) => format!("{:?}", pipe_data::text_ending(&input.host)),
            Format::Plain | Format::Compressed(_) => format!("{:?}", pipe_data::inner_ending(&input.host)),
        };
        let key = blake3::hash(format!("{VERSION}\n{digest}\n{format:?}\n{what}\n{pictures:?}").as_bytes());
        Ok(Some(Self {
            host: input.host.clone(),
            named: input.written.clone(),
            format,
            key: key.to_hex()[..KEY_LENGTH].to_owned(),
            size: stamp.size,
            stamp,
            folder,
        }))
    }

    pub fn name(&self) -> String {
        self.named.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// Whether its rows are written anew, and not its text as it is.
    fn is_table(&self) -> bool {
        matches!(self.format, Format::Parquet | Format::Json | Format::Workbook)
    }

    /// The name of the file that is written.
    fn file(&self, selection: &ColumnSelection) -> String {
        let ending = match self.is_table() {
            true if selection.as_csv() => "csv",
            true => "jsonl",
            false => pipe_data::text_ending(&self.host).unwrap_or("jsonl"),
        };
        format!("data.{ending}")
    }

    /// Its entry of the cache, written if it is not there. `before` bytes of other sources were prepared already.
    pub fn prepare(
        &self,
        cache: &Cache,
        selection: &ColumnSelection,
        watch: &Watch,
        before: u64,
        wait: impl Fn(),
    ) -> Result<(Prepared, EntryGuard), Error> {
        let job = Conversion { host: &self.host, named: &self.named, watch, before };
        let held = cache.get(&self.key, watch, wait, |folder| {
            guarded(|| self.write(job, selection, folder)).unwrap_or_else(|damage| Err(job.fail(damage)))
        })?;
        let prepared = Prepared {
            folder: held.folder.clone(),
            file: held.manifest.file.clone(),
            mounted: Path::new("/pipe/prepared").join(&self.key),
            // The root of the host cannot be the root of a container.
            beside: Some(self.folder.clone())
                .filter(|folder| selection.pictures.is_some() && folder.parent().is_some()),
            numbering: match self.is_table() {
                true if selection.as_csv() => Numbering::RowsAfterHeader,
                true => Numbering::Rows,
                false => Numbering::SameLines,
            },
        };
        Ok((prepared, held))
    }

    fn write(&self, job: Conversion<'_>, selection: &ColumnSelection, folder: &Path) -> Result<Manifest, Error> {
        let file = self.file(selection);
        let output = match self.format {
            Format::Parquet => self.write_table(job, selection, folder, &file)?,
            Format::Compressed(_) | Format::Encoded(_) | Format::Json | Format::Workbook => {
                let needed = match self.format {
                    Format::Compressed(Compression::Zstd) => pipe_data::content_size(&self.host),
                    _ => None,
                };
                let mut output = Output::create(job, folder, &file, needed)?;
                let progress = |bytes| job.set_done(bytes);
                let read = |_: usize, pieces: &mut Pieces| match &selection.pictures {
                    _ if self.is_table() => tables::write(job.host, selection, &self.folder, &progress, pieces),
                    Some(column) => {
                        let pictures = (column.as_str(), self.folder.as_path());
                        compressed::copy_with_pictures(job.host, &progress, pieces, pictures)
                    }
                    None => compressed::copy(job.host, &progress, pieces),
                };
                output::transfer(1, 1, read, |damage| job.fail(damage), |piece| output.take(piece))?;
                output
            }
            Format::Plain => return Err(job.fail("it needs no preparation")),
        };
        let written = output.finish()?;
        // The bytes that were read must be those that were hashed.
        if stamp(&self.host)? != self.stamp {
            return Err(job.fail("it was changed while it was read"));
        }
        let source = self.named.display().to_string();
        Ok(Manifest { source, file, size: written.rows, bytes: written.bytes })
    }

    fn write_table<'a>(
        &self,
        job: Conversion<'a>,
        selection: &ColumnSelection,
        folder: &Path,
        file: &str,
    ) -> Result<Output<'a>, Error> {
        let table = ParquetTable::open(&self.host, selection).map_err(|why| job.fail(why))?;
        let mut output = Output::create(job, folder, file, Some(table.bytes()))?;
        let read = |group: usize, pieces: &mut Pieces| table.read(group, &self.folder, pieces);
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let readers = processors.min(READERS).min((AT_ONCE / table.largest_group().max(1)) as usize);
        let mut done = 0;
        let write = |piece: Piece| {
            done += if let Piece::Rows { rows, .. } = &piece { *rows } else { 0 };
            job.set_done((u128::from(self.size) * u128::from(done) / u128::from(table.rows().max(1))) as u64);
            output.take(piece)
        };
        output::transfer(readers, table.groups(), read, |damage| job.fail(damage), write)?;
        Ok(output)
    }
}

/// Threads that read row groups, at most, and what the row groups that they read at once may hold.
const READERS: usize = 4;
const AT_ONCE: u64 = 512 << 20;

fn stamp(path: &Path) -> Result<Stamp, Error> {
    let meta = std::fs::metadata(path).map_err(|source| Error::Read { path: path.to_owned(), source })?;
    Ok(Stamp::of(&meta))
}

/// Raised whenever another tokenizer comes out of the same texts.
const TOKENIZER_VERSION: u32 = 2;
/// Between two looks at the trainer.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// A tokenizer that is to be there, with what it is known by.
pub struct TrainedTokenizer<'a> {
    training: &'a TokenizerTraining,
    data: &'a [Input],
    pub key: String,
}

impl<'a> TrainedTokenizer<'a> {
    pub fn new(training: &'a TokenizerTraining, data: &'a [Input], digests: &mut Digests) -> Result<Self, Error> {
        let contents: Vec<String> = data.iter().map(|input| digests.hash(&input.host)).collect::<Result<_, _>>()?;
        let key = blake3::hash(format!("tokenizer {TOKENIZER_VERSION}\n{training:?}\n{contents:?}").as_bytes());
        Ok(Self { training, data, key: key.to_hex()[..KEY_LENGTH].to_owned() })
    }

    /// Its entry of the cache, trained if it is not there.
    pub fn get(&self, cache: &Cache, watch: &Watch, wait: impl Fn()) -> Result<(Input, EntryGuard), Error> {
        let held = cache.get(&self.key, watch, wait, |folder| self.train(folder, watch))?;
        let host = held.folder.join(TOKENIZER_JSON);
        let mounted = Path::new(TOKENIZER_FOLDER).join(TOKENIZER_JSON);
        Ok((Input { written: host.clone(), host, mounted, mount: None, prepared: None }, held))
    }

    fn train(&self, folder: &Path, watch: &Watch) -> Result<Manifest, Error> {
        image::check_libtorch()?;
        let trainer = image::find_trainer()?;
        let file = folder.join(TOKENIZER_JSON);
        let cannot = |source| Error::Spawn { program: trainer.clone(), source };
        let fail = |source| Error::DataCache { path: folder.to_owned(), source };
        let said_file = folder.join("said.txt");
        let said = std::fs::File::create(&said_file).map_err(fail)?;
        let mut command = self.command(&trainer, &file);
        command.envs(image::trainer_variable(None));
        // It ends with this process.
        command.env(LEASE_VARIABLE, LEASE_ON_STDIN).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(said);
        let mut child = Killed(command.spawn().map_err(cannot)?);
        let status = loop {
            watch.check()?;
            match child.0.try_wait().map_err(cannot)? {
                Some(status) => break status,
                None => std::thread::sleep(POLL_INTERVAL),
            }
        };
        let said = std::fs::read(&said_file).map_err(fail)?;
        std::fs::remove_file(&said_file).map_err(fail)?;
        if !status.success() {
            let said = String::from_utf8_lossy(&said);
            let message = error_message(&said).to_owned();
            let is_input =
                status.code().and_then(|code| TrainerExit::from_code(code.into())) == Some(TrainerExit::BadInput);
            return Err(Error::NoTokenizer { message, is_input });
        }
        let size = std::fs::metadata(&file).map_err(fail)?.len();
        let source = self.data.iter().map(|input| input.written.display().to_string()).collect::<Vec<_>>().join(", ");
        Ok(Manifest { source, file: TOKENIZER_JSON.to_owned(), size, bytes: size })
    }

    fn command(&self, trainer: &Path, file: &Path) -> Command {
        let TokenizerTraining { arch, vocabulary, fields } = self.training;
        let mut command = Command::new(trainer);
        command.args(["tokenizer", "train", "--arch", arch.name(), "--out"]).arg(file);
        for input in self.data {
            command.arg("--data").arg(readable(input));
        }
        for (role, column) in fields {
            command.args(["--field", &format!("{role}={column}")]);
        }
        if let Some(size) = vocabulary {
            command.args(["--vocab-size", &size.to_string()]);
        }
        command
    }
}

/// Where the trainer reads it on this machine.
fn readable(input: &Input) -> PathBuf {
    match &input.prepared {
        Some(prepared) => prepared.folder.join(&prepared.file),
        None => input.host.clone(),
    }
}

/// A process that does not outlive this.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        if matches!(self.0.try_wait(), Ok(None)) {
            self.0.kill().and_then(|()| self.0.wait()).ok();
        }
    }
}

/// How often progress is looked at.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(250);
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
            () = tokio::time::sleep(PROGRESS_INTERVAL) => progress.set(watch.done()),
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
