//! Everything that can go wrong in `pipe`, its wording and its exit codes.

use std::path::PathBuf;

use pipe_spec::text::{count, human_bytes};
use pipe_spec::{PipeExit, Problems};

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot read {path}: {source}", path = path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("cannot write {path}: {source}", path = path.display())]
    Write { path: PathBuf, source: std::io::Error },
    #[error("{path} is {size} bytes; the limit for such a file is {limit} bytes", path = path.display())]
    TooLarge { path: PathBuf, size: u64, limit: u64 },
    #[error("{path} is {what}, not a file", path = path.display())]
    NotAFile { path: PathBuf, what: &'static str },
    #[error("{}", invalid_text(path, problems))]
    Invalid { path: PathBuf, problems: Problems },

    #[error("the Hugging Face hub ({host}) is not available: {reason}")]
    Hub { host: String, reason: String },
    #[error("{what} is not in the hub cache {cache}, or is incomplete there, and {variable} forbids downloads", cache = cache.display())]
    HubOffline { what: String, cache: PathBuf, variable: &'static str, command: String },
    #[error(
        "{file} of {repository} does not match the hash of the hub: expected {expected}, found {found}; it was removed"
    )]
    WrongContent { file: String, repository: String, expected: String, found: String },
    #[error("cannot write {path} of the hub cache: {source}", path = path.display())]
    HubCache { path: PathBuf, source: std::io::Error },
    #[error("{needed} have to be fetched into the hub cache {folder}, but only {free} are free", folder = folder.display())]
    NoSpace { folder: PathBuf, needed: String, free: String },
    #[error("{path}: {message}", path = path.display())]
    Data { path: PathBuf, message: String },
    #[error("not enough disk space to prepare {path}: {}{} free in {folder}, of which a reserve is kept", needed.map(|bytes| format!("it needs {}, ", human_bytes(bytes))).unwrap_or_default(), human_bytes(*free), path = path.display(), folder = folder.display())]
    NoRoom { path: PathBuf, folder: PathBuf, needed: Option<u64>, free: u64 },
    #[error("the data cache {path} cannot be used: {source}", path = path.display())]
    DataCache { path: PathBuf, source: std::io::Error },
    #[error("there is no folder for prepared data: neither PIPE_CACHE, XDG_CACHE_HOME nor HOME is set")]
    NoCache,

    #[error("no container engine answers: {reason}")]
    NoEngine { reason: String, hint: String },
    #[error("{engine} said: {source}")]
    Engine {
        engine: &'static str,
        /// Whether the engine refused a setting.
        refused: bool,
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    #[error("{engine} refused the job: {said}")]
    JobRefused { engine: &'static str, said: String, hint: String },
    #[error("{reason}")]
    TimeTooShort { reason: String, hint: &'static str },
    #[error("unknown engine {name:?}")]
    UnknownEngine { name: String, known: Vec<String> },
    #[error("a GPU was requested, but none is available:\n{}", reasons.join("\n"))]
    NoGpu { reasons: Vec<String> },
    #[error("container.gpus asks for {asked} GPUs; this machine has {present}")]
    TooFewGpus { asked: u32, present: u32 },
    #[error("container.gpus names {}; this machine has {}", gpu_names(ids), gpu_range(*present))]
    NoSuchGpu { ids: Vec<String>, present: u32 },
    #[error("container.gpus names one GPU twice: {first} and {second}")]
    GpuTwice { first: String, second: String },
    #[error("container.gpus is all, but the driver does not tell how many GPUs there are")]
    UncountedGpus,
    #[error("train.ranks is {ranks}, but container.gpus gives {cards} GPUs: every GPU has at least one rank")]
    IdleGpus { ranks: u32, cards: u32 },
    #[error(
        "{ranks} ranks share a step of {effective_batch} samples (train.effective_batch): every rank has at least one sample"
    )]
    IdleRanks { ranks: u32, effective_batch: u32 },
    #[error("{card} has compute capability {capability}, but this libtorch was built for {}", built_for.join(" "))]
    Capability { card: String, capability: String, built_for: Vec<String> },
    #[error("a GPU was requested, but libtorch in {} lacks CUDA libraries: {}", folder.display(), libraries.join(", "))]
    NoCuda { folder: PathBuf, libraries: Vec<String> },
    #[error("the trainer program was not found: {}", looked.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", "))]
    NoTrainer { looked: Vec<PathBuf> },
    #[error("cannot start {program}: {source}", program = program.display())]
    Spawn { program: PathBuf, source: std::io::Error },

    #[error("{name}, which {needed_by} needs, was not found", needed_by = needed_by.display())]
    MissingLibrary { name: String, needed_by: PathBuf },
    #[error("{path} is not a program or library for this system: {reason}", path = path.display())]
    NotElf { path: PathBuf, reason: String },
    #[error("the image could not be built{}: {message}", step.as_ref().map(|step| format!(" at {step}")).unwrap_or_default())]
    ImageBuild { step: Option<String>, message: String },
    #[error("the engine does not have the image {image}")]
    NoImage { image: String },

    #[error("{}", no_run_text(wanted, runs))]
    NoRun { wanted: String, runs: PathBuf },
    #[error("{wanted:?} names several runs: {}", matches.join(", "))]
    AmbiguousRun { wanted: String, matches: Vec<String> },
    #[error("the run {id} was not removed: its engine does not answer and may still have a container of it: {reason}")]
    ContainersUnknown { id: String, reason: String },
    #[error("the run {id} is still running")]
    RunBusy { id: String },
    #[error("the run {id} is still running, as process {pid} on the host {host}")]
    RunElsewhere { id: String, host: String, pid: i32 },
    #[error("this pipeline runs a command, not a training")]
    NotATraining,
    #[error("{line:?} is not a command: there is no program in it, or a quote is left open")]
    NotACommand { line: String },
    #[error("container.image is missing: a command runs in an image of yours")]
    CommandWithoutImage { other: &'static str },
    #[error("the pipe process {pid} of the run {id} does not stop")]
    DriverStuck { id: String, pid: i32 },
    #[error("the run {id} cannot continue: {}", damage.join(", "))]
    Damaged { id: String, damage: Vec<String> },
    #[error("could not start a pipe process for the run; see {log}", log = log.display())]
    NotDriven { log: PathBuf },
    #[error("the trainer of the killed pipe process is still running, as process {pid}")]
    StillRuns { pid: String },
    #[error("inputs of the run have changed since it started:\n{}", changes.iter().map(|change| format!("  {change}")).collect::<Vec<_>>().join("\n"))]
    InputsChanged { changes: Vec<String> },
    #[error("{key} cannot change when a run is resumed")]
    NotChangeable { key: String, allowed: String },
    #[error("{reason}")]
    RunEnded { reason: String, code: PipeExit },
    #[error("there is no step {name:?}; steps: {}", steps.join(", "))]
    NoStep { name: String, steps: Vec<String> },
    #[error("{only} needs {step}, which has not finished in any run that is still here")]
    StepNotDone { step: String, only: String },
    #[error("the step {step} has not written its output {output}: {path} is not there", path = path.display())]
    NoOutput { step: String, output: String, path: PathBuf },
    #[error("its run cannot be read: {}; `pipe rm {id}` removes it, and it begins anew", damage.join(", "))]
    DamagedPart { id: String, damage: Vec<String> },
    #[error("{path} is a link that leads out of the output of its step", path = path.display())]
    LinkedOutput { path: PathBuf },
    #[error("{}", reasons.join("\n"))]
    StepsFailed { id: String, reasons: Vec<String>, code: PipeExit },
    #[error("{by}, which has not finished, reads what {id} has written")]
    RunInUse { id: String, by: String },
    #[error("{id} has several steps, each of which is a run: {}", runs.join(", "))]
    HasSteps { id: String, runs: Vec<String> },
    #[error("{id} is a study, each trial of which is a run: {id}.0 is the first")]
    HasTrials { id: String },
    #[error("{file} has no steps", file = file.display())]
    NotSteps { file: PathBuf },

    #[error("{why}")]
    KnownNotToFit { why: String },
    #[error(transparent)]
    Journal(#[from] pipe_search::JournalError),
    #[error("{file} is a study: settings to be tried, not a pipeline to be run", file = file.display())]
    IsStudy { file: PathBuf },
    #[error("{file} is not a study: it has no `tune`", file = file.display())]
    NotStudy { file: PathBuf },
    #[error("{id} is not a study")]
    NotStudyRun { id: String },
    #[error("{id} has no trial {number}; it has {trials}")]
    NoTrial { id: String, number: u64, trials: u64 },
    #[error("no trial of {id} has come to its end with {objective}{}", why.as_ref().map_or(String::new(), |why| format!("; the last one: {why}")))]
    NoBest { id: String, objective: String, why: Option<String> },
    #[error("{times} trials in a row have failed, the last one (trial {number}) with: {reason}")]
    TrialsFail { id: String, times: u64, number: u64, reason: String },
    #[error("nothing in the space fits: {tried} settings were asked for, and the smallest of them needs {} of {}", human_bytes(*least), human_bytes(*capacity))]
    NothingFits { tried: u64, least: u64, capacity: u64 },

    #[error("the run {id} cannot be reproduced here:\n{}", indented(reasons))]
    NotReproducible { id: String, reasons: Vec<String> },
    #[error("the run {again} does not reproduce {id}:\n{}", indented(reasons))]
    NotReproduced { id: String, again: String, reasons: Vec<String> },

    #[error("cannot use the queue for cards in {folder}: {reason}", folder = folder.display())]
    NoQueue { folder: PathBuf, reason: String },
    #[error("the ledger {path} cannot be used: {reason}", path = path.display())]
    Ledger { path: PathBuf, reason: String },
    #[error("the ledger has no entry {wanted:?}")]
    NoEntry { wanted: String },
    #[error("{reason}")]
    NoPlan { reason: String },
    #[error("a report of several runs needs an output file")]
    NoReportPath,
    #[error("{path} already exists", path = path.display())]
    Exists { path: PathBuf },
    #[error("stdin is not a terminal, and {} not given", missing.join(" and "))]
    NoTerminal { missing: Vec<&'static str> },
    #[error("{data}: cannot tell what to train on this data: {why}{columns}")]
    UnclearData { data: String, why: String, columns: String },
    #[error("{arch} needs {wants}; {data}: {why}{columns}")]
    OtherData { arch: &'static str, wants: &'static str, data: String, why: String, columns: String },
    #[error("{model}: {reason}")]
    BaseModel { model: String, reason: String },
    #[error("{model} is a model of the architecture {found}, and --arch says {asked}")]
    OtherArchitecture { model: String, found: &'static str, asked: &'static str },
    #[error("{folder} holds {pictures} pictures, and no texts for them", folder = folder.display())]
    NoCaptions { folder: PathBuf, pictures: usize },
    #[error("missing: {}", missing.join(", "))]
    DoctorFailed { missing: Vec<String> },
    #[error("pipe has no command {wanted:?}")]
    NoCommand { wanted: String },

    #[error("{what}")]
    NoModel { what: String, hint: String },
    #[error("{message}")]
    Rows { message: String },
    #[error("no role {role:?} for {task}; allowed: {allowed}")]
    UnknownRole { role: String, task: &'static str, allowed: String },
    #[error("--json prints a summary to stdout, where the predictions go")]
    NoSummaryPlace,
    #[error("cannot write to {path}: {source}", path = path.display())]
    Output { path: PathBuf, source: std::io::Error },
    #[error("the prediction failed: {reason}")]
    PredictionFailed { reason: String },
    #[error("the data could not be opened, the trainer ended with {status}: {message}")]
    Inspection { status: String, message: String },
    #[error("no tokenizer could be trained on data.train: {message}")]
    NoTokenizer { message: String, is_input: bool },
    #[error("training failed: {reason}")]
    TrainingFailed { reason: String, bad_input: bool },
    #[error("out of memory, and nothing left to try: {reason}")]
    OutOfMemory { reason: String, hint: String },
    #[error("the connection to the engine was lost while the job was running: {reason}")]
    EngineLost { reason: String },
    #[error("stopped on request")]
    Interrupted,
    #[error("{reason}")]
    Cancelled { reason: String },
}

impl Error {
    pub fn exit_code(&self) -> PipeExit {
        match self {
            Self::Invalid { .. } | Self::TooLarge { .. } | Self::NotAFile { .. } | Self::InputsChanged { .. } => {
                PipeExit::Invalid
            }
            Self::NoEngine { .. } | Self::Engine { .. } | Self::UnknownEngine { .. } | Self::NoGpu { .. } => {
                PipeExit::Unavailable
            }
            Self::EngineLost { .. } | Self::JobRefused { .. } | Self::TimeTooShort { .. } => PipeExit::Unavailable,
            Self::TooFewGpus { .. } | Self::NoSuchGpu { .. } | Self::UncountedGpus => PipeExit::Unavailable,
            Self::GpuTwice { .. } | Self::IdleGpus { .. } | Self::IdleRanks { .. } => PipeExit::Invalid,
            Self::NoTrainer { .. } | Self::Spawn { .. } | Self::Capability { .. } | Self::DoctorFailed { .. } => {
                PipeExit::Unavailable
            }
            Self::NoCuda { .. } | Self::Hub { .. } | Self::HubOffline { .. } | Self::WrongContent { .. } => {
                PipeExit::Unavailable
            }
            Self::ContainersUnknown { .. } => PipeExit::Unavailable,
            Self::NotReproducible { .. } => PipeExit::Invalid,
            Self::NotReproduced { .. } => PipeExit::TrainingFailed,
            Self::MissingLibrary { .. } | Self::NotElf { .. } | Self::ImageBuild { .. } | Self::NoImage { .. } => {
                PipeExit::ImageBuild
            }
            Self::TrainingFailed { bad_input: true, .. } | Self::NoTokenizer { is_input: true, .. } => {
                PipeExit::Invalid
            }
            Self::NoModel { .. } | Self::Rows { .. } => PipeExit::Invalid,
            Self::TrainingFailed { bad_input: false, .. } | Self::Inspection { .. } | Self::NoTokenizer { .. } => {
                PipeExit::TrainingFailed
            }
            Self::PredictionFailed { .. } => PipeExit::TrainingFailed,
            Self::UnknownRole { .. } | Self::NoSummaryPlace => PipeExit::Usage,
            Self::OutOfMemory { .. } => PipeExit::OutOfMemory,
            Self::Interrupted | Self::Cancelled { .. } => PipeExit::Interrupted,
            Self::NoRun { .. } | Self::AmbiguousRun { .. } | Self::NoEntry { .. } | Self::NoCommand { .. } => {
                PipeExit::Usage
            }
            Self::NoReportPath | Self::NotChangeable { .. } | Self::Exists { .. } | Self::NoTerminal { .. } => {
                PipeExit::Usage
            }
            Self::UnclearData { .. }
            | Self::OtherData { .. }
            | Self::BaseModel { .. }
            | Self::OtherArchitecture { .. }
            | Self::NoCaptions { .. } => PipeExit::Usage,
            Self::RunEnded { code, .. } | Self::StepsFailed { code, .. } => *code,
            Self::NoStep { .. }
            | Self::StepNotDone { .. }
            | Self::HasSteps { .. }
            | Self::HasTrials { .. }
            | Self::NotSteps { .. } => PipeExit::Usage,
            Self::NoOutput { .. } | Self::LinkedOutput { .. } => PipeExit::TrainingFailed,
            Self::RunInUse { .. } => PipeExit::Usage,
            Self::KnownNotToFit { .. } | Self::NothingFits { .. } => PipeExit::OutOfMemory,
            Self::IsStudy { .. } | Self::NotStudy { .. } | Self::NotStudyRun { .. } | Self::NoTrial { .. } => {
                PipeExit::Usage
            }
            Self::Journal(_) => PipeExit::Unexpected,
            Self::NoBest { .. } | Self::TrialsFail { .. } => PipeExit::TrainingFailed,
            Self::DamagedPart { .. } => PipeExit::Unexpected,
            Self::Damaged { .. } | Self::NotDriven { .. } | Self::StillRuns { .. } | Self::NoQueue { .. } => {
                PipeExit::Unexpected
            }
            Self::NotATraining
            | Self::NotACommand { .. }
            | Self::CommandWithoutImage { .. }
            | Self::NoPlan { .. }
            | Self::Data { .. }
            | Self::NoRoom { .. } => PipeExit::Invalid,
            Self::DataCache { .. } | Self::NoCache | Self::NoSpace { .. } | Self::HubCache { .. } => {
                PipeExit::Unexpected
            }
            Self::Read { .. }
            | Self::Write { .. }
            | Self::Output { .. }
            | Self::RunBusy { .. }
            | Self::RunElsewhere { .. }
            | Self::DriverStuck { .. }
            | Self::Ledger { .. } => PipeExit::Unexpected,
        }
    }

    /// What the user can do about it.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::NoEngine { hint, .. }
            | Self::OutOfMemory { hint, .. }
            | Self::NoModel { hint, .. }
            | Self::JobRefused { hint, .. } => Some(hint.clone()),
            Self::TimeTooShort { hint, .. } => Some((*hint).to_owned()),
            Self::UnknownRole { .. } => Some("--field takes ROLE=COLUMN, such as text=review".to_owned()),
            Self::Rows { message } if message.contains("no field ") || message.contains("no column") => {
                Some("--field ROLE=COLUMN names the column that feeds a role, such as --field text=review".to_owned())
            }
            Self::NoSummaryPlace => Some("write the predictions to a file: --out FILE".to_owned()),
            Self::Engine { refused: true, .. } => {
                Some("this machine or its engine cannot provide a setting of `container`".to_owned())
            }
            Self::Hub { .. } => Some(
                "try again later: the next run continues with what was fetched; behind a proxy set HTTPS_PROXY, for a mirror \
                 HF_ENDPOINT"
                    .to_owned(),
            ),
            Self::HubOffline { variable, command, .. } => {
                Some(format!("unset {variable}, or fetch it where there is a network: {command}"))
            }
            Self::WrongContent { .. } => Some(
                "try again; if it happens again, a proxy or a mirror in HF_ENDPOINT changes the files"
                    .to_owned(),
            ),
            Self::NoSpace { .. } => Some(
                "free some space, or choose another folder with HF_HUB_CACHE; what was fetched so far is kept".to_owned(),
            ),
            Self::HubCache { .. } => Some("make it writable, or choose another folder with HF_HUB_CACHE".to_owned()),
            Self::NoGpu { .. } => Some("fix one of these, or set container.gpus to 0 or auto".to_owned()),
            Self::TooFewGpus { present, .. } => Some(format!(
                "--set container.gpus={present}, or all: the training is the same on any number of GPUs"
            )),
            Self::NoSuchGpu { .. } => Some("`nvidia-smi -L` lists those that there are".to_owned()),
            Self::UncountedGpus => Some("give their number: --set container.gpus=2".to_owned()),
            Self::IdleGpus { .. } => Some("leave out train.ranks, or set container.gpus".to_owned()),
            Self::IdleRanks { .. } => Some("use fewer GPUs: --set container.gpus=1".to_owned()),
            Self::Capability { .. } => Some(
                "build the trainer with a libtorch for this card and name it in PIPE_TRAINER, use another card, or train on \
                 the CPU: --set container.gpus=0"
                    .to_owned(),
            ),
            Self::NoCuda { folder, .. } => {
                Some(format!("{}, or train on the CPU: --set container.gpus=0", fetch_cuda(folder)))
            }
            Self::NotReproducible { .. } => {
                Some("restore what has changed, or run it with --anyway".to_owned())
            }
            Self::NotReproduced { id, again, .. } => Some(format!("`pipe diff {id} {again}` shows all that differs")),
            Self::NoTrainer { .. } => {
                Some("build it with `make build`, or name it in the variable PIPE_TRAINER".to_owned())
            }
            Self::MissingLibrary { .. } => Some("run `make libtorch` in the source tree of pipe, or install pipe again".to_owned()),
            Self::CommandWithoutImage { other } => Some(format!(
                "give a Dockerfile or the name of an image as container.image, or run it without a container: --engine {other}"
            )),
            Self::StepNotDone { step, only } => {
                Some(format!("run all of them once without --only, or those from {step} on: --from {step}; then --only {only}"))
            }
            Self::StepsFailed { id, .. } => Some(format!(
                "`pipe resume {id}` goes on with the steps that have not finished; `pipe run` begins anew, without what has not changed"
            )),
            Self::HasSteps { .. } => Some("name one of them".to_owned()),
            Self::HasTrials { id } => Some(format!("name one of them; `pipe tune status {id}` lists them")),
            Self::NoOutput { .. } => Some(
                "write it below {run}, or correct `outputs`; a training writes its model with save.export: true".to_owned(),
            ),
            Self::LinkedOutput { .. } => Some("write the files themselves below {run}".to_owned()),
            Self::RunInUse { .. } => Some("wait for it, or stop it; --force removes the run all the same".to_owned()),
            Self::NotSteps { .. } => Some("leave --only and --from out".to_owned()),
            Self::IsStudy { file } => Some(format!("`pipe tune run {}` runs it", file.display())),
            Self::NotStudy { file } => Some(format!("`pipe run {}` runs a pipeline", file.display())),
            Self::NotStudyRun { id } => Some(format!("`pipe show {id}` shows it; `pipe tune run FILE` begins a study")),
            Self::NoTrial { id, .. } => Some(format!("`pipe tune status {id}` lists them")),
            Self::NoBest { id, .. } => Some(format!("`pipe tune status {id}` shows how far it has come")),
            Self::TrialsFail { id, number, .. } => Some(format!(
                "`pipe logs {id}.{number}` shows the log of the last one; `pipe tune resume {id}` goes on"
            )),
            Self::NothingFits { .. } => {
                Some("allow smaller batches, shorter rows or smaller models in `space`, or more memory".to_owned())
            }
            Self::NoImage { .. } => Some("pull it first, or give a Dockerfile as container.image".to_owned()),
            Self::NoRun { .. } | Self::AmbiguousRun { .. } => Some("`pipe ls` lists the runs".to_owned()),
            Self::Write { source, .. } if source.kind() == std::io::ErrorKind::PermissionDenied => {
                Some("make it writable, or choose another folder for runs with PIPE_RUNS".to_owned())
            }
            Self::Write { source, .. } if source.kind() == std::io::ErrorKind::StorageFull => {
                Some("free some space, or choose another folder for runs with PIPE_RUNS".to_owned())
            }
            Self::NoRoom { .. } => {
                Some("free some space, or choose another folder for prepared data with PIPE_CACHE".to_owned())
            }
            Self::DataCache { .. } | Self::NoCache => Some("choose a folder with PIPE_CACHE".to_owned()),
            Self::EngineLost { .. } => Some("start the engine again, then continue with `pipe resume`".to_owned()),
            Self::DriverStuck { id, pid } => Some(format!(
                "if the process is suspended, `kill -CONT {pid}` continues it; `kill -9 {pid}` and then `pipe stop {id}` end the run"
            )),
            Self::RunElsewhere { id, host, .. } => Some(format!("`pipe attach {id}` watches it, `pipe stop {id}` stops it; if {host} is down, it counts as gone within a minute")),
            Self::RunBusy { id } => Some(format!("`pipe attach {id}` watches it, `pipe stop {id}` stops it")),
            Self::Damaged { id, .. } => Some(format!(
                "its checkpoints and logs are kept; start a new run from its pipeline.yaml with `pipe run`, or remove it with `pipe rm {id}`"
            )),
            Self::InputsChanged { .. } => Some("restore them, or start a new run with `pipe run`".to_owned()),
            Self::StillRuns { pid } => Some(format!("wait for it to save and end, or end it: kill {pid}")),
            Self::NotChangeable { allowed, .. } => {
                Some(format!("these settings may change: {allowed}; for others start a new run"))
            }
            Self::Ledger { .. } => {
                Some("move it, choose another file with PIPE_LEDGER, or run without it: --ignore-ledger".to_owned())
            }
            Self::NoReportPath => Some("use --out FILE to write it, or --out - to print it".to_owned()),
            Self::NoCommand { .. } => Some("`pipe help` lists them".to_owned()),
            Self::Exists { .. } => Some("choose another name, or overwrite it with --force".to_owned()),
            Self::NoTerminal { .. } => Some("give them, or use all defaults with --yes".to_owned()),
            Self::UnclearData { .. } => Some(
                "choose a model with --arch, or name the columns, as in `--fields text=COLUMN,label=COLUMN` or `--fields \
                 source=COLUMN,target=COLUMN`"
                    .to_owned(),
            ),
            Self::OtherData { .. } => Some(
                "name the columns, as in `--fields ROLE=COLUMN,ROLE=COLUMN`, or choose another model with --arch or --model"
                    .to_owned(),
            ),
            Self::BaseModel { .. } => Some("give a folder in Hugging Face layout, or a hub id, as --model".to_owned()),
            Self::OtherArchitecture { .. } => Some("leave --arch out, or choose another --model".to_owned()),
            Self::NoCaptions { .. } => Some(
                "put a .txt of the same name beside each picture, or a folder of pictures for each class, or a table with \
                 the paths and the texts"
                    .to_owned(),
            ),
            Self::DoctorFailed { .. } => Some("see the hint of each check above".to_owned()),
            Self::ContainersUnknown { id, .. } => Some(format!(
                "start the engine and try again; if it is gone for good: `pipe rm --force {id}`"
            )),
            Self::UnknownEngine { known, .. } => Some(format!("engines of this version of pipe: {}", known.join(", "))),
            Self::NoQueue { .. } => Some("choose another folder with PIPE_QUEUE".to_owned()),
            Self::NoEntry { .. } => Some("`pipe ledger ls` lists what there is".to_owned()),
            Self::NoTokenizer { .. } => Some("name a tokenizer of yours as data.tokenizer".to_owned()),
            Self::Inspection { .. } => Some("`pipe check --no-data` checks the pipeline file alone".to_owned()),
            Self::Read { .. }
            | Self::Write { .. }
            | Self::NotATraining
            | Self::NotACommand { .. }
            | Self::NoPlan { .. }
            | Self::TooLarge { .. }
            | Self::NotAFile { .. }
            | Self::Invalid { .. }
            | Self::Data { .. }
            | Self::NotDriven { .. }
            | Self::RunEnded { .. }
            | Self::NoStep { .. }
            | Self::DamagedPart { .. }
            | Self::KnownNotToFit { .. }
            | Self::GpuTwice { .. }
            | Self::Journal(_)
            | Self::Engine { .. }
            | Self::Spawn { .. }
            | Self::NotElf { .. }
            | Self::ImageBuild { .. }
            | Self::TrainingFailed { .. }
            | Self::Rows { .. }
            | Self::Output { .. }
            | Self::PredictionFailed { .. }
            | Self::Interrupted
            | Self::Cancelled { .. } => None,
        }
    }
}

/// How the CUDA libraries get into `folder`, where libtorch lies.
pub fn fetch_cuda(folder: &std::path::Path) -> String {
    let fetched = folder.parent().filter(|libtorch| libtorch.join("packages.json").is_file());
    match fetched.and_then(|libtorch| libtorch.parent()?.parent()) {
        // target/libtorch of a source tree.
        Some(tree) => format!("fetch them: `make -C {} libtorch CUDA=1`", tree.display()),
        None if folder.ends_with("lib/pipe") => {
            "install the archive of pipe whose name ends in -cuda (`make dist CUDA=1` makes it)".to_owned()
        }
        None => format!("put them into {}", folder.display()),
    }
}

/// Ids of cards as text: a number is one of the driver's.
fn gpu_names(ids: &[String]) -> String {
    let name = |id: &String| if id.parse::<u32>().is_ok() { format!("GPU {id}") } else { id.clone() };
    ids.iter().map(name).collect::<Vec<_>>().join(" and ")
}

fn gpu_range(present: u32) -> String {
    match present {
        1 => "GPU 0".to_owned(),
        present => format!("GPUs 0 to {}", present.saturating_sub(1)),
    }
}

fn no_run_text(wanted: &str, runs: &std::path::Path) -> String {
    match wanted {
        "latest" => format!("there are no runs in {}", runs.display()),
        _ => format!("no run {wanted:?} in {}", runs.display()),
    }
}

fn invalid_text(path: &std::path::Path, problems: &Problems) -> String {
    let lines: Vec<String> = problems.0.iter().map(|problem| format!("  {problem}")).collect();
    format!("{} has {}\n{}", path.display(), count(lines.len(), "problem"), lines.join("\n"))
}

fn indented(lines: &[String]) -> String {
    lines.iter().map(|line| format!("  {line}")).collect::<Vec<_>>().join("\n")
}
