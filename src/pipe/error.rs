//! Everything that can go wrong in `pipe`: one table with the exit code, the message and the hint of each error.

use std::io;
use std::path::{Path, PathBuf};

use pipe_spec::text::{count, human_bytes};
use pipe_spec::{LIBTORCH, PipeExit, Problems};

/// Makes `Error` from a table. A row is `Name { fields } => exit code, [message]`, and where the user can do something
/// `hint [text]`, or `hint (expression)` for an optional hint. Message and text are written as for `format!`.
macro_rules! errors {
    ($(
        $name:ident $({ $($(#[$note:meta])* $field:ident: $type:ty),* $(,)? })? => $exit:expr,
            [$($message:tt)*] $(hint $hint:tt)?;
    )*) => {
        #[derive(Debug, thiserror::Error)]
        pub enum Error {
            $(#[error($($message)*)] $name $({ $($(#[$note])* $field: $type),* })?,)*
        }

        #[expect(unused_variables, reason = "most rows do not use all of their fields")]
        impl Error {
            pub fn exit_code(&self) -> PipeExit {
                use PipeExit::{ImageBuild, Interrupted, Invalid, OutOfMemory};
                use PipeExit::{TrainingFailed, Unavailable, Unexpected, Usage};
                match self {
                    $(Self::$name $({ $($field),* })? => $exit,)*
                }
            }

            /// An action that helps the user.
            pub fn hint(&self) -> Option<String> {
                match self {
                    $(Self::$name $({ $($field),* })? => hint!($($hint)?),)*
                }
            }
        }
    };
}

macro_rules! hint {
    () => { None };
    ([$($text:tt)*]) => { Some(format!($($text)*)) };
    (($hint:expr)) => { $hint };
}

errors! {
    Read { path: PathBuf, source: io::Error } => Unexpected,
        ["cannot read {path}: {source}", path = path.display()];
    Write { path: PathBuf, source: io::Error } => Unexpected,
        ["cannot write {path}: {source}", path = path.display()]
        hint (write_hint(source));
    Panicked => Unexpected,
        ["pipe has an error of its own, which is printed above"]
        hint ["report it with what was printed; a run that had started continues with `pipe resume`"];
    TooLarge { path: PathBuf, size: u64, limit: u64 } => Invalid,
        ["{path} is {size} bytes; the limit for such a file is {limit} bytes", path = path.display()];
    NotAFile { path: PathBuf, what: &'static str } => Invalid,
        ["{path} is {what}, not a file", path = path.display()];
    OutputFormat { path: PathBuf } => Usage,
        ["predictions cannot be written as {path}", path = path.display()]
        hint ["allowed: .jsonl (one JSON object per line), .csv, .tsv"];
    NotAnInput { path: PathBuf, what: &'static str } => Invalid,
        ["{path} is {what}; only files and folders can be inputs", path = path.display()];
    PruneUnconfirmed => Usage,
        ["nothing is removed without a terminal to ask on"]
        hint ["--yes removes without a question, --dry-run only lists"];
    NotUtf8 { what: &'static str, path: PathBuf } => Usage,
        ["{what} {path} is not valid UTF-8", path = path.display()]
        hint ["rename it, or use another"];
    Invalid { path: PathBuf, problems: Problems } => Invalid,
        ["{}", invalid_text(path, problems)];

    Hub { host: String, reason: String } => Unavailable,
        ["the Hugging Face hub ({host}) is not available: {reason}"]
        hint ["try again later: the next run continues the download; behind a proxy set HTTPS_PROXY, for a mirror \
          HF_ENDPOINT"];
    HubOffline { what: String, cache: PathBuf, variable: &'static str, command: String } => Unavailable,
        ["{what} is not in the hub cache {cache}, or is incomplete there, and {variable} forbids downloads",
         cache = cache.display()]
        hint ["unset {variable}, or download it where there is a network: {command}"];
    WrongContent { of: &'static str, file: String, repository: String, expected: String, found: String } => Unavailable,
        ["{file} of {repository} does not match the hash of {of}: expected {expected}, found {found}; it was \
          removed"]
        hint ["try again; if it happens again, a proxy or a mirror in HF_ENDPOINT changes the files"];
    HubFileTooLarge { name: String, size: String, most: String } => Unavailable,
        ["{name} has {size}; allowed: at most {most} for such a file"]
        hint ["it is no model that pipe can read; is the address right?"];
    HubCache { path: PathBuf, source: io::Error } => Unexpected,
        ["cannot write {path} of the hub cache: {source}", path = path.display()]
        hint ["make it writable, or choose another folder with HF_HUB_CACHE (for buckets PIPE_CACHE)"];
    NoSpace { folder: PathBuf, needed: String, free: String } => Unexpected,
        ["{needed} have to be fetched into the hub cache {folder}, but only {free} are free", folder = folder.display()]
        hint ["free some space, or choose another folder with HF_HUB_CACHE (for buckets PIPE_CACHE); the finished part \
          of the download is kept"];
    Bucket { reason: String } => Unavailable,
        ["{reason}"]
        hint ["try again later: what was transferred is kept; behind a proxy set HTTPS_PROXY"];
    BucketRefused { reason: String } => Invalid,
        ["{reason}"];
    NoBucketRun { address: String } => Usage,
        ["there is no run in {address}"]
        hint ["its last part is the id of a run, as in s3://bucket/prefix/RUN"];
    RunIsHere { id: String, folder: PathBuf, is_newest: bool } => Usage,
        ["the run {id} is here already, {}: {folder}", run_age(*is_newest), folder = folder.display()]
        hint ["{}", run_here_hint(id, *is_newest)];
    RunHeld { id: String, host: String, pid: u32, seconds: u64 } => Unexpected,
        ["the run {id} is still running on the host {host}, as process {pid}: it wrote to the bucket {seconds} s ago"]
        hint ["stop it there; if {host} is down, the run counts as free two minutes after its last sign of life"];
    RunMoved { id: String, address: String } => Unexpected,
        ["the run {id} was continued on another machine: {address} is newer than the folder here"]
        hint ["`pipe rm {id}` and `pipe resume {address}` bring it here"];
    NotCopied { id: String, address: String, reason: String } => Unavailable,
        ["the run is not wholly in {address}: {reason}"]
        hint ["it is whole on this machine; `pipe resume {id}` sends the rest"];
    NoRunSpace { folder: PathBuf, needed: String, free: String } => Unexpected,
        ["{needed} have to be fetched into {folder}, but only {free} are free", folder = folder.display()]
        hint ["free some space, or choose another folder for runs with PIPE_RUNS"];
    Data { path: PathBuf, message: String } => Invalid,
        ["{path}: {message}", path = path.display()];
    NoRoom { path: PathBuf, folder: PathBuf, needed: Option<u64>, free: u64 } => Invalid,
        ["not enough disk space to prepare {path}: {}{} free in {folder}, of which a reserve is kept",
         needed_text(*needed), human_bytes(*free), path = path.display(), folder = folder.display()]
        hint ["free some space, or choose another folder for prepared data with PIPE_CACHE"];
    DataCache { path: PathBuf, source: io::Error } => Unexpected,
        ["the data cache {path} cannot be used: {source}", path = path.display()]
        hint ["choose a folder with PIPE_CACHE"];
    NoCache => Unexpected,
        ["there is no folder for prepared data: none of PIPE_CACHE, XDG_CACHE_HOME and HOME is set, or others could \
          exchange what is in that folder"]
        hint ["choose a folder of your own with PIPE_CACHE"];

    ListensOpenly { address: String, port: u16 } => Usage,
        ["pipe ui sends its pages and its token unencrypted, and {address} is reached over the network"]
        hint ["leave out --listen and use an SSH tunnel: `ssh -L {port}:127.0.0.1:{port} HOST`; or put a proxy with TLS \
          in front and name its address: --proxy https://NAME"];
    ProxyAddress { address: String } => Usage,
        ["{address:?} is not the address of a proxy with TLS"]
        hint ["use https:// and a host, without a path: --proxy https://pipe.example.org"];
    Listen { address: String, source: io::Error } => Unavailable,
        ["cannot listen at {address}: {source}"]
        hint ["choose another address with --listen, such as 127.0.0.1:0 for any free port"];
    NoEngine { reason: String, hint: String } => Unavailable,
        ["no container engine answers: {reason}"]
        hint ["{hint}"];
    Engine {
        engine: &'static str,
        /// Whether the engine refused a setting.
        refused: bool,
        source: Box<dyn std::error::Error + Send + Sync>,
    } => Unavailable,
        ["{engine} said: {source}"]
        hint (refused.then(|| "this machine or its engine cannot provide a setting of `container`".to_owned()));
    JobRefused { engine: &'static str, said: String, hint: String } => Unavailable,
        ["{engine} refused the job: {said}"]
        hint ["{hint}"];
    TimeTooShort { reason: String, hint: &'static str } => Unavailable,
        ["{reason}"]
        hint ["{hint}"];
    UnknownEngine { name: String, known: Vec<String> } => Unavailable,
        ["unknown engine {name:?}"]
        hint ["engines of this version of pipe: {}", known.join(", ")];
    NoGpu { reasons: Vec<String> } => Unavailable,
        ["a GPU was requested, but none is available:\n{}", reasons.join("\n")]
        hint ["fix one of these, or set container.gpus to 0 or auto"];
    TooFewGpus { asked: u32, present: u32 } => Unavailable,
        ["container.gpus asks for {asked} GPUs; this machine has {present}"]
        hint ["--set container.gpus={present}, or all: the training is the same on any number of GPUs"];
    NoSuchGpu { ids: Vec<String>, present: u32 } => Unavailable,
        ["container.gpus names {}; this machine has {}", gpu_names(ids), gpu_range(*present)]
        hint ["`nvidia-smi -L` lists them"];
    GpuTwice { first: String, second: String } => Invalid,
        ["container.gpus names one GPU twice: {first} and {second}"];
    UncountedGpus => Unavailable,
        ["container.gpus is all, but the driver does not tell how many GPUs there are"]
        hint ["give their number: --set container.gpus=2"];
    IdleGpus { ranks: u32, cards: u32 } => Invalid,
        ["train.ranks is {ranks}, but container.gpus gives {cards} GPUs: every GPU has at least one rank"]
        hint ["leave out train.ranks, or set container.gpus"];
    IdleRanks { ranks: u32, effective_batch: u32 } => Invalid,
        ["{ranks} ranks share a step of {effective_batch} samples (train.effective_batch): every rank has at least \
          one sample"]
        hint ["use fewer GPUs: --set container.gpus=1"];
    Capability { card: String, capability: String, built_for: Vec<String> } => Unavailable,
        ["{card} has compute capability {capability}, but this libtorch was built for {}", built_for.join(" ")]
        hint ["build the trainer with a libtorch for this card and name it in PIPE_TRAINER, use another card, or \
          train on the CPU: --set container.gpus=0"];
    NoCuda { folder: PathBuf, libraries: Vec<String>, fetch: String } => Unavailable,
        ["a GPU was requested, but libtorch in {} lacks CUDA libraries: {}", folder.display(), libraries.join(", ")]
        hint ["{fetch}, or train on the CPU: --set container.gpus=0"];
    OtherTorch { version: String, folder: PathBuf, command: String } => Unavailable,
        ["the trainer needs torch {LIBTORCH}; {} belongs to torch {version}", folder.display()]
        hint ["install it: `{command}`"];
    NoTorch { command: String } => Unavailable,
        ["the trainer needs torch {LIBTORCH}; the Python of this pipe has no torch"]
        hint ["install it: `{command}`"];
    NoTrainer { looked: Vec<PathBuf> } => Unavailable,
        ["the trainer program was not found: {}", paths(looked)]
        hint ["build it with `make build`, or name it in the variable PIPE_TRAINER"];
    Spawn { program: PathBuf, source: io::Error } => Unavailable,
        ["cannot start {program}: {source}", program = program.display()];

    NotExecutable { folder: PathBuf } => Unavailable,
        ["cannot start programs from {folder}: its file system is mounted with noexec", folder = folder.display()]
        hint ["set PIPE_CACHE to a folder on a file system that allows programs, such as your home folder"];

    MissingLibrary { name: String, needed_by: PathBuf } => ImageBuild,
        ["{name}, which {needed_by} needs, was not found", needed_by = needed_by.display()]
        hint ["run `make libtorch` in the source tree of pipe, or install pipe again"];
    NotElf { path: PathBuf, reason: String } => ImageBuild,
        ["{path} is not a program or library for this system: {reason}", path = path.display()];
    ImageBuild { step: Option<String>, message: String } => ImageBuild,
        ["the image could not be built{}: {message}",
         step.as_ref().map(|step| format!(" at {step}")).unwrap_or_default()];
    ContextChanged { path: PathBuf } => ImageBuild,
        ["{path} changed while the image was built from it", path = path.display()]
        hint ["try again; name a file that changes all the time in a .dockerignore beside the Dockerfile"];
    ImageReplaced { image: String } => ImageBuild,
        ["{image} is another image than the one that the run began with, which the engine no longer has"]
        hint ["`pipe resume` continues with the image that has this name now"];
    ImagePush { image: String, message: String, hint: String } => Unavailable,
        ["cannot push {image}: {message}"]
        hint ["{hint}"];
    NoRepository => Usage,
        ["there is no repository to push to"]
        hint ["name one without a digest: pipe image push registry.lab/pipe; or a pipeline whose engine pulls images from one: --pipeline FILE"];
    NoImage { image: String } => ImageBuild,
        ["the engine does not have the image {image}"]
        hint ["pull it first, or give a Dockerfile as container.image"];

    NoRun { wanted: String, runs: PathBuf } => Usage,
        ["{}", no_run_text(wanted, runs)]
        hint ["`pipe ls` lists the runs"];
    AmbiguousRun { wanted: String, matches: Vec<String> } => Usage,
        ["{wanted:?} names several runs: {}", matches.join(", ")]
        hint ["`pipe ls` lists the runs"];
    TooManyTags { count: usize, most: usize } => Usage,
        ["{count} tags; a run has at most {most}"]
        hint ["remove some of them: --untag TAG"];
    ContainersUnknown { id: String, reason: String } => Unavailable,
        ["the run {id} was not removed: its engine does not answer and may still have a container of it: {reason}"]
        hint ["start the engine and try again; if it is gone for good: `pipe rm --force {id}`"];
    RunBusy { id: String } => Unexpected,
        ["the run {id} is still running"]
        hint ["`pipe attach {id}` watches it, `pipe stop {id}` stops it"];
    RunLocked { id: String, pid: u32, user: String } => Unexpected,
        ["the run {id} is not running, but process {pid} of {user} has locked it"]
        hint ["it is free when that process ends; from now on other users cannot lock it"];
    NotYours { id: String, user: String } => Unexpected,
        ["the run {id} belongs to {user}"]
        hint ["run this command as {user}"];
    CopyOfRun { folder: PathBuf, original: PathBuf } => Unexpected,
        ["{} is a copy of the run in {}", folder.display(), original.display()]
        hint ["use that one; once it has stopped, a copy can be used in another PIPE_RUNS, in a folder with the id as its name"];
    RunElsewhere { id: String, host: String, pid: i32 } => Unexpected,
        ["the run {id} is still running, as process {pid} on the host {host}"]
        hint ["`pipe attach {id}` watches it, `pipe stop {id}` stops it; if {host} is down, it counts as gone within \
          a minute"];
    NotATraining => Invalid,
        ["this pipeline runs a command, not a training"];
    NotACommand { line: String } => Invalid,
        ["{line:?} is not a command: there is no program in it, or a quote is left open"];
    CommandWithoutImage { other: &'static str } => Invalid,
        ["container.image is missing: a command runs in an image of yours"]
        hint ["give a Dockerfile or the name of an image as container.image, or run it without a container: --engine \
          {other}"];
    DriverStuck { id: String, pid: i32 } => Unexpected,
        ["the pipe process {pid} of the run {id} does not stop"]
        hint ["if the process is suspended, `kill -CONT {pid}` continues it; `kill -9 {pid}` and then `pipe stop \
          {id}` end the run"];
    Damaged { id: String, damage: Vec<String> } => Unexpected,
        ["the run {id} cannot continue: {}", damage.join(", ")]
        hint ["its checkpoints and logs are kept; start a new run from its pipeline.yaml with `pipe run`, or remove \
          it with `pipe rm {id}`"];
    NotDriven { log: PathBuf } => Unexpected,
        ["could not start a pipe process for the run; see {log}", log = log.display()];
    InputsChanged { changes: Vec<String> } => Invalid,
        ["inputs of the run have changed since it started:\n{}", indented(changes)]
        hint ["restore them, or start a new run with `pipe run`"];
    NotChangeable { key: String, allowed: String } => Usage,
        ["{key} cannot change when a run is resumed"]
        hint ["these settings may change: {allowed}; for others start a new run"];
    RunEnded { reason: String, code: PipeExit } => *code,
        ["{reason}"];
    NoStage { name: String, stages: Vec<String> } => Usage,
        ["there is no step {name:?}; steps: {}", stages.join(", ")];
    StageNotDone { stage: String, only: String } => Usage,
        ["{only} needs {stage}, which has not finished in any run that is still here"]
        hint ["run all of them once without --only, or those from {stage} on: --from {stage}; then --only {only}"];
    NoOutput { stage: String, output: String, path: PathBuf } => TrainingFailed,
        ["the step {stage} has not written its output {output}: {path} is not there", path = path.display()]
        hint ["write it below {{run}}, or correct `outputs`; a training writes its model with save.export: true"];
    DamagedPart { id: String, damage: Vec<String> } => Unexpected,
        ["its run cannot be read: {}; `pipe rm {id}` removes it, and the step starts over", damage.join(", ")];
    LinkedOutput { path: PathBuf } => TrainingFailed,
        ["{path} is a link that leads out of the output of its step", path = path.display()]
        hint ["write the files themselves below {{run}}"];
    SpecialOutput { stage: String, path: PathBuf, what: &'static str } => TrainingFailed,
        ["an output of the step {stage} is {what}, not a file or folder: {path}", path = path.display()]
        hint ["write regular files below {{run}}"];
    StagesFailed { id: String, reasons: Vec<String>, code: PipeExit } => *code,
        ["{}", reasons.join("\n")]
        hint ["`pipe resume {id}` continues the unfinished steps; `pipe run` starts over and skips unchanged steps"];
    RunInUse { id: String, by: String } => Usage,
        ["{by}, which has not finished, reads what {id} has written"]
        hint ["wait for it, or stop it; --force removes the run anyway"];
    HasStages { id: String, runs: Vec<String> } => Usage,
        ["{id} has several steps, each of which is a run: {}", runs.join(", ")]
        hint ["name one of them"];
    HasTrials { id: String } => Usage,
        ["{id} is a study, each trial of which is a run: {id}.0 is the first"]
        hint ["name one of them; `pipe tune status {id}` lists them"];
    NotStages { file: PathBuf } => Usage,
        ["{file} has no steps", file = file.display()]
        hint ["leave --only and --from out"];

    KnownNotToFit { why: String } => OutOfMemory,
        ["{why}"];
    Journal { #[from] source: pipe_search::JournalError } => Unexpected,
        ["{source}"]
        hint (matches!(source, pipe_search::JournalError::Line { .. })
            .then(|| "bring back a copy of that file from before; or move it away, and the study begins again".to_owned()));
    IsStudy { file: PathBuf } => Usage,
        ["{file} is a study (settings to try), not a pipeline", file = file.display()]
        hint ["`pipe tune run {}` runs it", file.display()];
    NotStudy { file: PathBuf } => Usage,
        ["{file} is not a study: it has no `tune`", file = file.display()]
        hint ["`pipe run {}` runs a pipeline", file.display()];
    NotStudyRun { id: String } => Usage,
        ["{id} is not a study"]
        hint ["`pipe show {id}` shows it; `pipe tune run FILE` starts a study"];
    NoTrial { id: String, number: u64, trials: u64 } => Usage,
        ["{id} has no trial {number}; it has {trials}"]
        hint ["`pipe tune status {id}` lists them"];
    NoBest { id: String, objective: String, why: Option<String> } => TrainingFailed,
        ["no trial of {id} has finished with {objective}{}", why.as_ref().map_or(String::new(),
         |why| format!("; the last one: {why}"))]
        hint ["`pipe tune status {id}` shows its progress"];
    TrialsFail { id: String, times: u64, number: u64, reason: String } => TrainingFailed,
        ["{times} trials in a row have failed, the last one (trial {number}) with: {reason}"]
        hint ["`pipe logs {id}.{number}` shows the log of the last one; `pipe tune resume {id}` continues the study"];
    StudyHalted { id: String, number: u64, reason: String, code: PipeExit } => *code,
        ["this machine could not run trial {number}: {reason}"]
        hint ["that is no result of its settings: mend it, then `pipe tune resume {id}` runs the trial and continues"];
    NothingFits { tried: u64, least: u64, capacity: u64 } => OutOfMemory,
        ["nothing in the space fits: {tried} settings were asked for, and the smallest of them needs {} of {}",
         human_bytes(*least), human_bytes(*capacity)]
        hint ["allow smaller batches, shorter rows or smaller models in `space`, or more memory"];

    NotReproducible { id: String, reasons: Vec<String> } => Invalid,
        ["the run {id} cannot be reproduced here:\n{}", indented(reasons)]
        hint ["restore what has changed, or run it with --anyway"];
    NotReproduced { id: String, again: String, reasons: Vec<String> } => TrainingFailed,
        ["the run {again} does not reproduce {id}:\n{}", indented(reasons)]
        hint ["`pipe diff {id} {again}` shows all that differs"];

    NoQueue { folder: PathBuf, reason: String } => Unexpected,
        ["cannot use the queue for cards in {folder}: {reason}", folder = folder.display()]
        hint ["choose another folder with PIPE_QUEUE"];
    Ledger { path: PathBuf, reason: String } => Unexpected,
        ["the ledger {path} cannot be used: {reason}", path = path.display()]
        hint ["move it, choose another file with PIPE_LEDGER, or run without it: --ignore-ledger"];
    NoEntry { wanted: String } => Usage,
        ["the ledger has no entry {wanted:?}"]
        hint ["`pipe ledger ls` lists the entries"];
    NoPlan { reason: String } => Invalid,
        ["{reason}"];
    NoReportPath => Usage,
        ["a report of several runs needs an output file"]
        hint ["use --out FILE to write it, or --out - to print it"];
    Exists { path: PathBuf } => Usage,
        ["{path} already exists", path = path.display()]
        hint ["choose another name, or overwrite it with --force"];
    NoTerminal { missing: Vec<&'static str> } => Usage,
        ["stdin is not a terminal, and {} not given", missing.join(" and ")]
        hint ["give them, or use all defaults with --yes"];
    DataFile { path: PathBuf } => Invalid,
        ["{path} is a data file and no pipeline", path = path.display()]
        hint ["did you mean `pipe init --data {path}`?", path = path.display()];
    UnreadData { data: String, why: String, how: String } => Usage,
        ["{data}: {why}"]
        hint ["{how}"];
    UnclearData { data: String, why: String, columns: String } => Usage,
        ["{data}: cannot tell what to train on this data: {why}{columns}"]
        hint ["choose a model with --arch, or name the columns, as in `--fields text=COLUMN,label=COLUMN` or \
          `--fields source=COLUMN,target=COLUMN`"];
    OtherData { arch: &'static str, wants: &'static str, data: String, why: String, columns: String } => Usage,
        ["{arch} needs {wants}; {data}: {why}{columns}"]
        hint ["name the columns, as in `--fields ROLE=COLUMN,ROLE=COLUMN`, or choose another model with --arch or \
          --model"];
    NoScript { data: String, why: String } => Usage,
        ["{data}: `pipe init --python` has no script for this data: {why}"]
        hint ["leave --python out: pipe's own trainer takes more kinds of data"];
    BaseModel { model: String, reason: String } => Usage,
        ["{model}: {reason}"]
        hint ["give a folder in Hugging Face layout, or a hub id, as --model"];
    OtherArchitecture { model: String, found: &'static str, asked: &'static str } => Usage,
        ["{model} is a model of the architecture {found}, and --arch says {asked}"]
        hint ["leave --arch out, or choose another --model"];
    NoCaptions { folder: PathBuf, pictures: usize } => Usage,
        ["{folder} holds {pictures} pictures, and neither texts nor classes for them", folder = folder.display()]
        hint ["put a .txt of the same name beside each picture, or a folder of pictures for each class, or a table \
          with the paths and the texts or labels"];
    DoctorFailed { missing: Vec<String> } => Unavailable,
        ["missing: {}", missing.join(", ")]
        hint ["see the hint of each check above"];
    NoCommand { wanted: String } => Usage,
        ["pipe has no command {wanted:?}"]
        hint ["`pipe help` lists them"];

    NoModel { what: String, hint: String } => Invalid,
        ["{what}"]
        hint ["{hint}"];
    Rows { message: String } => Invalid,
        ["{message}"]
        hint (rows_hint(message));
    UnknownRole { role: String, task: &'static str, allowed: String } => Usage,
        ["no role {role:?} for {task}; allowed: {allowed}"]
        hint ["--field takes ROLE=COLUMN, such as text=review"];
    NoSummaryPlace => Usage,
        ["--json prints a summary to stdout, where the predictions go"]
        hint ["write the predictions to a file: --out FILE"];
    Output { path: PathBuf, source: io::Error } => Unexpected,
        ["cannot write to {path}: {source}", path = path.display()];
    PredictionFailed { reason: String } => TrainingFailed,
        ["the prediction failed: {reason}"];
    Inspection { status: String, message: String } => TrainingFailed,
        ["the data could not be opened, the trainer ended with {status}: {message}"]
        hint ["`pipe check --no-data` checks the pipeline file alone"];
    NoTokenizer { message: String, is_input: bool } => if *is_input { Invalid } else { TrainingFailed },
        ["no tokenizer could be trained on data.train: {message}"]
        hint ["name a tokenizer of yours as data.tokenizer"];
    TrainingFailed { reason: String, bad_input: bool } => if *bad_input { Invalid } else { TrainingFailed },
        ["training failed: {reason}"];
    CommandFailed { reason: String } => TrainingFailed,
        ["{}", command_failure(reason)];
    OutOfMemory { reason: String, hint: String } => OutOfMemory,
        ["out of memory, and nothing left to try: {reason}"]
        hint ["{hint}"];
    JobElsewhere { id: String, engine: String } => Unavailable,
        ["the last attempt of {id} has not ended where it began, and that is not {engine}"]
        hint ["end it first, without the changed settings: `pipe stop {id}`"];
    EngineLost { reason: String } => Unavailable,
        ["the connection to the engine was lost: {reason}"]
        hint ["start the engine again, then continue with `pipe resume`"];
    JobStays { seconds: u64 } => Unavailable,
        ["the job did not end within {seconds} s of being killed"]
        hint ["see what holds its processes (`ps` shows D for one that waits for a disk), then continue with `pipe resume`"];
    CutOff { reason: String } => Unavailable,
        ["the job does not come to its end: {reason}"]
        hint ["find out what ends it, then continue with `pipe resume`"];
    Interrupted => Interrupted,
        ["stopped"];
    Stopped { id: String } => Interrupted,
        ["stopped; continue with `pipe resume {id}`"];
    Cancelled { reason: String } => Interrupted,
        ["{reason}"];
}

impl Error {
    /// Whether the job ran and failed.
    pub fn is_of_job(&self) -> bool {
        matches!(self, Self::TrainingFailed { .. } | Self::CommandFailed { .. })
    }

    /// Whether the machine failed, and not what was asked of it: the same may succeed another time.
    pub fn is_of_machine(&self) -> bool {
        match self {
            Self::Read { .. } | Self::Write { .. } | Self::Spawn { .. } => tells_of_machine(&self.to_string()),
            Self::DataCache { .. } | Self::HubCache { .. } => tells_of_machine(&self.to_string()),
            // The last lines of the job's log are in it.
            Self::TrainingFailed { reason, .. } | Self::CommandFailed { reason } => tells_of_machine(reason),
            Self::Engine { refused, .. } => !refused,
            Self::NoRoom { .. } | Self::NoSpace { .. } | Self::Hub { .. } | Self::Bucket { .. } => true,
            Self::NoEngine { .. } | Self::EngineLost { .. } | Self::JobStays { .. } | Self::CutOff { .. } => true,
            Self::NoGpu { .. } | Self::UncountedGpus | Self::NoTrainer { .. } => true,
            Self::NoQueue { .. } | Self::Journal { .. } | Self::Ledger { .. } => true,
            _ => false,
        }
    }
}

/// Whether an error tells of a disk that is full, broken or read-only, or of file handles that have run out.
fn tells_of_machine(text: &str) -> bool {
    const ERRORS: [&str; 8] = [
        "No space left on device",
        "Disk quota exceeded",
        "Read-only file system",
        "Input/output error",
        "Stale file handle",
        "Too many open files",
        "Resource temporarily unavailable",
        "Transport endpoint is not connected",
    ];
    ERRORS.iter().any(|error| text.contains(error))
}

fn write_hint(source: &io::Error) -> Option<String> {
    let action = match source.kind() {
        io::ErrorKind::PermissionDenied => "make it writable",
        io::ErrorKind::StorageFull => "free some space",
        _ => return None,
    };
    Some(format!("{action}, or choose another folder for runs with PIPE_RUNS"))
}

/// A reason that does not name the command gets its name.
fn command_failure(reason: &str) -> String {
    match reason.starts_with("the command") {
        true => reason.to_owned(),
        false => format!("the command failed: {reason}"),
    }
}

fn rows_hint(message: &str) -> Option<String> {
    let is_column = message.contains("no field ") || message.contains("no column");
    is_column.then(|| "--field ROLE=COLUMN names the column that feeds a role, such as --field text=review".to_owned())
}

fn run_age(is_newest: bool) -> &'static str {
    if is_newest { "and not older than in the bucket" } else { "and older than in the bucket" }
}

fn run_here_hint(id: &str, is_newest: bool) -> String {
    match is_newest {
        true => format!("`pipe resume {id}` continues it"),
        false => format!("remove it with `pipe rm {id}`, or choose another folder for runs with PIPE_RUNS"),
    }
}

fn needed_text(bytes: Option<u64>) -> String {
    bytes.map_or(String::new(), |bytes| format!("it needs {}, ", human_bytes(bytes)))
}

fn paths(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
}

/// Ids of cards as text. A number is an index of the driver.
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

fn no_run_text(wanted: &str, runs: &Path) -> String {
    match wanted {
        "latest" => format!("there are no runs in {}", runs.display()),
        _ => format!("no run {wanted:?} in {}", runs.display()),
    }
}

fn invalid_text(path: &Path, problems: &Problems) -> String {
    format!("{} has {}\n{}", path.display(), count(problems.0.len(), "problem"), indented(&problems.0))
}

fn indented(lines: &[impl std::fmt::Display]) -> String {
    lines.iter().map(|line| format!("  {line}")).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_of_the_machine() {
        let write = |code| Error::Write { path: "x".into(), source: io::Error::from_raw_os_error(code) };
        let failed = |reason: &str| Error::TrainingFailed { reason: reason.to_owned(), bad_input: false };
        for (error, want) in [
            (write(28), true),
            (write(24), true),
            (write(122), true),
            (write(5), true),
            (write(13), false),
            (failed("the command ended with exit code 1\nOSError: [Errno 28] No space left on device: 'x'"), true),
            (failed("the loss is not finite"), false),
            (Error::EngineLost { reason: String::new() }, true),
            (Error::OutOfMemory { reason: String::new(), hint: String::new() }, false),
            (Error::TooFewGpus { asked: 2, present: 1 }, false),
        ] {
            assert_eq!(error.is_of_machine(), want, "{error}");
        }
    }
}
