//! Everything that can go wrong in `pipe`, its wording and its exit codes.

use std::path::PathBuf;

use pipe_spec::text::human_bytes;
use pipe_spec::{PipeExit, Problems};

use crate::capability::{Architecture, Capability};

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot read {path}: {source}", path = path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("cannot write {path}: {source}", path = path.display())]
    Write { path: PathBuf, source: std::io::Error },
    #[error("{path} is {size} bytes; a pipeline file holds at most {limit}", path = path.display())]
    PipelineTooLarge { path: PathBuf, size: u64, limit: u64 },
    #[error("{}", invalid_text(path, problems))]
    Invalid { path: PathBuf, problems: Problems },

    #[error("the Hugging Face hub ({host}) gives no usable answer: {reason}")]
    Hub { host: String, reason: String },
    #[error("{what} is not in the hub cache {cache}, or not all of it, and {variable} forbids to fetch it", cache = cache.display())]
    HubOffline { what: String, cache: PathBuf, variable: &'static str, command: String },
    #[error(
        "{file} of {repository} is not what the hub says it is: its hash should be {expected}, and is {found}; it was removed"
    )]
    WrongContent { file: String, repository: String, expected: String, found: String },
    #[error("cannot write {path} of the hub cache: {source}", path = path.display())]
    HubCache { path: PathBuf, source: std::io::Error },
    #[error("{needed} are to be fetched into the hub cache {folder}, and {free} are free there", folder = folder.display())]
    NoSpace { folder: PathBuf, needed: String, free: String },
    #[error("{path}: {message}", path = path.display())]
    Data { path: PathBuf, message: String },
    #[error("no room to prepare {path}: {}{} free in {folder}, of which some are kept free", needed.map(|bytes| format!("it needs {}, ", human_bytes(bytes))).unwrap_or_default(), human_bytes(*free), path = path.display(), folder = folder.display())]
    NoRoom { path: PathBuf, folder: PathBuf, needed: Option<u64>, free: u64 },
    #[error("the data cache {path} cannot be used: {source}", path = path.display())]
    DataCache { path: PathBuf, source: std::io::Error },
    #[error("there is no folder for prepared data: neither PIPE_CACHE, XDG_CACHE_HOME nor HOME is set")]
    NoCache,

    #[error("no container engine answers: {reason}")]
    NoEngine { reason: String, hint: String },
    #[error("{engine} said: {source}")]
    Engine { engine: &'static str, source: Box<bollard::errors::Error> },
    #[error("a GPU was asked for and cannot be passed through:\n{}", reasons.join("\n"))]
    NoGpu { reasons: Vec<String> },
    #[error("{card} has compute capability {capability}, and the libtorch that would use it was built for {}", built_for.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "))]
    Capability { card: String, capability: Capability, built_for: Vec<Architecture> },
    #[error("a GPU is asked for, and libtorch in {} lacks CUDA libraries: {}", folder.display(), libraries.join(", "))]
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
    #[error("the run {id} is being driven by another pipe")]
    RunBusy { id: String },
    #[error("the run {id} cannot go on: {}", damage.join(", "))]
    Damaged { id: String, damage: Vec<String> },
    #[error("no pipe could be started that drives the run; see {log}", log = log.display())]
    NotDriven { log: PathBuf },
    #[error("the trainer of the pipe that was killed still runs, as process {pid}")]
    StillRuns { pid: String },
    #[error("what the run was begun with has changed:\n{}", changes.iter().map(|change| format!("  {change}")).collect::<Vec<_>>().join("\n"))]
    InputsChanged { changes: Vec<String> },
    #[error("a run that goes on keeps its {key}")]
    NotChangeable { key: String, allowed: String },
    #[error("{reason}")]
    RunEnded { reason: String, code: PipeExit },

    #[error("the run {id} cannot be reproduced here:\n{}", indented(reasons))]
    NotReproducible { id: String, reasons: Vec<String> },
    #[error("the run {again} does not reproduce {id}:\n{}", indented(reasons))]
    NotReproduced { id: String, again: String, reasons: Vec<String> },

    #[error("the ledger {path} cannot be used: {reason}", path = path.display())]
    Ledger { path: PathBuf, reason: String },
    #[error("nothing in the ledger is called {wanted:?}")]
    NoEntry { wanted: String },
    #[error("{reason}")]
    NoPlan { reason: String },
    #[error("a report of several runs belongs to none of their folders")]
    NoPlace,
    #[error("{path} is there already", path = path.display())]
    Exists { path: PathBuf },
    #[error("there is no terminal to ask on, and {} not given", missing.join(" and "))]
    NobodyToAsk { missing: Vec<&'static str> },
    #[error("missing: {}", missing.join(", "))]
    Unwell { missing: Vec<String> },
    #[error("pipe has no command {wanted:?}")]
    NoCommand { wanted: String },

    #[error("training failed: {reason}")]
    TrainingFailed { reason: String, bad_input: bool },
    #[error("out of memory, and nothing left to try: {reason}")]
    OutOfMemory { reason: String, hint: String },
    #[error("the engine was lost while the job ran: {reason}")]
    EngineLost { reason: String },
    #[error("stopped on request")]
    Interrupted,
}

impl Error {
    pub fn exit_code(&self) -> PipeExit {
        match self {
            Self::Invalid { .. } | Self::PipelineTooLarge { .. } | Self::InputsChanged { .. } => PipeExit::Invalid,
            Self::NoEngine { .. } | Self::Engine { .. } | Self::NoGpu { .. } | Self::EngineLost { .. } => {
                PipeExit::Unavailable
            }
            Self::NoTrainer { .. } | Self::Spawn { .. } | Self::Capability { .. } | Self::Unwell { .. } => {
                PipeExit::Unavailable
            }
            Self::NoCuda { .. } | Self::Hub { .. } | Self::HubOffline { .. } | Self::WrongContent { .. } => {
                PipeExit::Unavailable
            }
            Self::NotReproducible { .. } => PipeExit::Invalid,
            Self::NotReproduced { .. } => PipeExit::TrainingFailed,
            Self::MissingLibrary { .. } | Self::NotElf { .. } | Self::ImageBuild { .. } | Self::NoImage { .. } => {
                PipeExit::ImageBuild
            }
            Self::TrainingFailed { bad_input: true, .. } => PipeExit::Invalid,
            Self::TrainingFailed { bad_input: false, .. } => PipeExit::TrainingFailed,
            Self::OutOfMemory { .. } => PipeExit::OutOfMemory,
            Self::Interrupted => PipeExit::Interrupted,
            Self::NoRun { .. } | Self::AmbiguousRun { .. } | Self::NoEntry { .. } | Self::NoCommand { .. } => {
                PipeExit::Usage
            }
            Self::NoPlace | Self::NotChangeable { .. } | Self::Exists { .. } | Self::NobodyToAsk { .. } => {
                PipeExit::Usage
            }
            Self::RunEnded { code, .. } => *code,
            Self::Damaged { .. } | Self::NotDriven { .. } | Self::StillRuns { .. } => PipeExit::Unexpected,
            Self::NoPlan { .. } | Self::Data { .. } | Self::NoRoom { .. } => PipeExit::Invalid,
            Self::DataCache { .. } | Self::NoCache | Self::NoSpace { .. } | Self::HubCache { .. } => {
                PipeExit::Unexpected
            }
            Self::Read { .. } | Self::Write { .. } | Self::RunBusy { .. } | Self::Ledger { .. } => PipeExit::Unexpected,
        }
    }

    /// What the user can do about it.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::NoEngine { hint, .. } | Self::OutOfMemory { hint, .. } => Some(hint.clone()),
            Self::Engine { source, .. } if is_refused(source) => {
                Some("a setting under `container` is not one that this machine or its engine can give".to_owned())
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
                "try again; if it stays so, what lies between you and the hub (a proxy, a mirror in HF_ENDPOINT) changes files"
                    .to_owned(),
            ),
            Self::NoSpace { .. } => Some(
                "free some space, or choose another folder with HF_HUB_CACHE; what was fetched so far is kept".to_owned(),
            ),
            Self::HubCache { .. } => Some("make it writable, or choose another folder with HF_HUB_CACHE".to_owned()),
            Self::NoGpu { .. } => Some("mend one of these, or set container.gpus to 0 or auto".to_owned()),
            Self::Capability { .. } => Some(
                "build the trainer with a libtorch for this card and name it in PIPE_TRAINER, take another card, or train on \
                 the CPU: --set container.gpus=0"
                    .to_owned(),
            ),
            Self::NoCuda { folder, .. } => {
                Some(format!("{}, or train on the CPU: --set container.gpus=0", fetch_cuda(folder)))
            }
            Self::NotReproducible { .. } => {
                Some("bring back what has changed, or go on all the same with --anyway".to_owned())
            }
            Self::NotReproduced { id, again, .. } => Some(format!("`pipe diff {id} {again}` shows all that differs")),
            Self::NoTrainer { .. } => {
                Some("build it with `make build`, or name it in the variable PIPE_TRAINER".to_owned())
            }
            Self::MissingLibrary { .. } => Some("run `make libtorch` in the source tree of pipe, or install pipe again".to_owned()),
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
            Self::DataCache { .. } | Self::NoCache => Some("name a folder with PIPE_CACHE".to_owned()),
            Self::EngineLost { .. } => Some("start the engine again; `pipe resume` then goes on".to_owned()),
            Self::RunBusy { id } => Some(format!("`pipe attach {id}` watches it, `pipe stop {id}` stops it")),
            Self::Damaged { id, .. } => Some(format!(
                "its checkpoints and logs are still there; start it anew with `pipe run` and its pipeline.yaml, or `pipe rm {id}`"
            )),
            Self::InputsChanged { .. } => Some("put it back as it was, or start a new run with `pipe run`".to_owned()),
            Self::StillRuns { pid } => Some(format!("wait for it to save and end, or end it: kill {pid}")),
            Self::NotChangeable { allowed, .. } => {
                Some(format!("what may change: {allowed}; for anything else start a new run"))
            }
            Self::Ledger { .. } => {
                Some("move it away, name another with PIPE_LEDGER, or go on without: --ignore-ledger".to_owned())
            }
            Self::NoPlace => Some("say where to write it: --out FILE, or --out - to print it".to_owned()),
            Self::NoCommand { .. } => Some("`pipe help` lists them".to_owned()),
            Self::Exists { .. } => Some("choose another name, or write over it: --force".to_owned()),
            Self::NobodyToAsk { .. } => Some("give them, or take all defaults: --yes".to_owned()),
            Self::Unwell { .. } => Some("what to do is said beside each of them".to_owned()),
            Self::NoEntry { .. } => Some("`pipe ledger ls` lists what there is".to_owned()),
            Self::Read { .. }
            | Self::Write { .. }
            | Self::NoPlan { .. }
            | Self::PipelineTooLarge { .. }
            | Self::Invalid { .. }
            | Self::Data { .. }
            | Self::NotDriven { .. }
            | Self::RunEnded { .. }
            | Self::Engine { .. }
            | Self::Spawn { .. }
            | Self::NotElf { .. }
            | Self::ImageBuild { .. }
            | Self::TrainingFailed { .. }
            | Self::Interrupted => None,
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

fn no_run_text(wanted: &str, runs: &std::path::Path) -> String {
    match wanted {
        "latest" => format!("there are no runs in {}", runs.display()),
        _ => format!("no run {wanted:?} in {}", runs.display()),
    }
}

fn invalid_text(path: &std::path::Path, problems: &Problems) -> String {
    let count = problems.0.len();
    let noun = if count == 1 { "problem" } else { "problems" };
    let lines: Vec<String> = problems.0.iter().map(|problem| format!("  {problem}")).collect();
    format!("{} has {count} {noun}\n{}", path.display(), lines.join("\n"))
}

fn indented(lines: &[String]) -> String {
    lines.iter().map(|line| format!("  {line}")).collect::<Vec<_>>().join("\n")
}

/// Whether the engine says that it was asked for something that cannot be.
fn is_refused(source: &bollard::errors::Error) -> bool {
    matches!(source, bollard::errors::Error::DockerResponseServerError { status_code: 400, .. })
}
