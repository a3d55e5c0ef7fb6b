//! The batch script of a job, and the options that it is submitted with. Pure.
//!
//! The runtimes that run containers on the nodes, and how the script calls them.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use pipe_spec::pipeline::Gpus;
use pipe_spec::trainer::NODE_VARIABLE;

use super::image::{self, ImageFolder};
use super::job::{JobFiles, NODE_END};
use super::programs;
use super::section::{Cluster, ContainerRuntime};
use super::trainer_folder::{self, TRAINER};
use crate::engine::{JobProgram, Launch, first_process};
use crate::error::Error;
use crate::image::ImageConfig;

/// The exit code of a job that was told to stop.
const STOPPED: u32 = 128 + 15;

/// Seconds that the processes of other nodes may take to end when that of one has.
const NODES_WAIT: u32 = 90;

/// The command that the script runs on every node.
pub struct Program {
    pub words: Vec<String>,
    /// Options of srun that run it in a container.
    pub srun: Vec<String>,
    /// Variables that the script exports.
    pub env: BTreeMap<String, String>,
}

/// The name of a job, by which it is found again.
pub fn name(run: &str, attempt: u32) -> String {
    format!("{NAME_PREFIX}{run}:{attempt}")
}

const NAME_PREFIX: &str = "pipe:";

/// The run and the attempt of a job with this name.
pub fn of_name(name: &str) -> Option<(String, u32)> {
    let (run, attempt) = name.strip_prefix(NAME_PREFIX)?.rsplit_once(':')?;
    Some((run.to_owned(), attempt.parse().ok()?))
}

/// The options of sbatch that say which job it is.
pub fn naming(name: &str, folder: &Path, output: &str) -> Vec<String> {
    // A % begins a pattern.
    let folder = folder.display().to_string().replace('%', "%%");
    vec![format!("--job-name={name}"), format!("--output={folder}/{output}")]
}

/// The options of sbatch that say what it needs.
pub fn options(launch: &Launch, cluster: &Cluster, cards: u32, save_before: Duration) -> Vec<String> {
    let mut options = vec![
        format!("--nodes={}", launch.resources.nodes),
        format!("--ntasks={}", launch.resources.nodes),
        "--ntasks-per-node=1".to_owned(),
        // pipe submits the next job itself, with what is known by then.
        "--no-requeue".to_owned(),
        "--open-mode=append".to_owned(),
        format!("--signal=B:USR1@{}", save_before.as_secs()),
    ];
    let given = [
        ("partition", cluster.partition.clone()),
        ("account", cluster.account.clone()),
        ("qos", cluster.qos.clone()),
        ("time", cluster.time.as_ref().map(|time| time.as_str().to_owned())),
        ("constraint", cluster.constraint.clone()),
        ("mem", launch.resources.memory.map(|bytes| format!("{}M", bytes.div_ceil(1 << 20)))),
        ("cpus-per-task", launch.resources.cpus.map(|cpus| format!("{}", cpus.ceil()))),
        ("gres", (cards > 0).then(|| format!("gpu:{cards}"))),
    ];
    options.extend(given.into_iter().filter_map(|(name, value)| Some(format!("--{name}={}", value?))));
    options.extend(cluster.extra.iter().cloned());
    options
}

/// How many cards of a node a job asks for.
pub fn cards(gpus: &Gpus, present: Option<u32>) -> u32 {
    match gpus {
        Gpus::Count(count) => *count,
        Gpus::Ids(ids) => ids.len() as u32,
        Gpus::All => present.unwrap_or(0),
        Gpus::Auto => present.unwrap_or(0).min(1),
    }
}

/// Variables that srun and the runtime would heed: they are set for the program alone.
pub const OF_PROGRAM: [&str; 3] = ["PATH", "LD_LIBRARY_PATH", "LD_PRELOAD"];

/// The part of the script before the variables. Of two jobs that were submitted for one attempt the first does it. USR1 comes before
/// the time limit, TERM when a person ends the job; srun would kill its tasks if it got a signal.
const BEGIN: &str = r#"note() { echo "$2" > "$folder/$1.new" && mv "$folder/$1.new" "$folder/$1"; }
mkdir "$folder/job.claim" || { [ -e "$folder/job.claim" ] && exit 0; exit 1; }
ask() { again=1; touch "$folder/job.stop"; scancel --signal=TERM "$id"; }
trap 'note job.time "$id"; ask' USR1
trap ask TERM
note job.started "$id"
export USER="${USER:-$(id -un)}"
"#;

/// The lines after the program. A signal ends the wait, and the job goes on.
const END: &str = r#" &
child=$!
again=1
while [ -n "$again" ]; do
  again=
  wait "$child"
  code=$?
done
note job.ended "$code"
exit "$code"
"#;

/// The variable in which Slurm tells each task the number of its node.
const SLURM_NODE_VARIABLE: &str = "SLURM_NODEID";

/// The batch script. `first` is the first process of a job, `folder` where the job starts.
pub fn text(launch: &Launch, program: &Program, first: &Path, folder: &Path) -> String {
    let path = |path: &Path| quoted(&path.to_string_lossy());
    let mut text = format!("#!/bin/bash\n# Attempt {} of {}, submitted by pipe.\n", launch.attempt, launch.run_id);
    let _ = writeln!(text, "id=$SLURM_JOB_ID\nfolder={}", path(JobFiles::of(launch).folder()));
    text.push_str(BEGIN);
    let mut restored = String::new();
    for (name, value) in &program.env {
        let is_deferred = OF_PROGRAM.contains(&name.as_str());
        let own = if is_deferred { format!("PIPE_JOB_{name}") } else { name.clone() };
        let _ = writeln!(text, "export {own}={}", quoted(value));
        if is_deferred {
            let _ = write!(restored, "export {name}=\"${own}\"; ");
        }
    }
    let words = program.words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" ");
    let options = program.srun.iter().map(|option| format!(" {}", quoted(option))).collect::<String>();
    let cpus = launch.resources.cpus.map_or(String::new(), |cpus| format!(" --cpus-per-task={}", cpus.ceil()));
    let nodes = launch.resources.nodes;
    let (signals, timeout) = (first_process::signals(launch), first_process::stop_timeout(launch));
    // A stop that came before there was a task to be told. There is no shell in a container that srun itself starts. The cluster sends
    // its signals to the first process of a task.
    let wrapper = match program.srun.is_empty() {
        true => format!(
            "bash -c '[ ! -e \"$0/job.stop\" ] || exit {STOPPED}; export {NODE_VARIABLE}=${SLURM_NODE_VARIABLE}; {restored}\
             exec \"$1\" --signals {signals} --stop-timeout {timeout} --record \"$0/{NODE_END}${SLURM_NODE_VARIABLE}\" -- \"${{@:2}}\"' \"$folder\" {} ",
            path(first)
        ),
        false => {
            let _ = writeln!(text, "export {NODE_VARIABLE}='${{{SLURM_NODE_VARIABLE}}}'");
            String::new()
        }
    };
    // Also on one node: a cluster that needs its place tells the tasks of srun so in advance, and nobody else.
    let _ = write!(
        text,
        "cd {} || exit 1\nsrun --nodes={nodes} --ntasks={nodes} --ntasks-per-node=1 --export=ALL --kill-on-bad-exit=0 \
         --wait={NODES_WAIT}{cpus}{options} \\\n  {wrapper}{words}{END}",
        path(folder)
    );
    text
}

/// One word of a shell.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// The first that is here, unless the pipeline names one.
pub fn choose(wanted: Option<ContainerRuntime>) -> ContainerRuntime {
    if let Some(wanted) = wanted {
        return wanted;
    }
    match () {
        () if has_pyxis() => ContainerRuntime::Pyxis,
        () if here("apptainer") || here("singularity") => ContainerRuntime::Apptainer,
        () if here("ch-run") => ContainerRuntime::Charliecloud,
        () => ContainerRuntime::None,
    }
}

fn here(program: &str) -> bool {
    let folders = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&folders).any(|folder| folder.join(program).is_file())
}

/// The plugin adds options to srun.
fn has_pyxis() -> bool {
    programs::call("srun", &["--help".to_owned()]).is_ok_and(|help| help.contains("--container-image"))
}

/// The runtime, image or folder that a job runs in.
pub struct Root {
    pub runtime: ContainerRuntime,
    pub files: RootFiles,
}

/// The files that a job sees.
pub enum RootFiles {
    /// Those of the node: a command without a container.
    OfNode,
    /// The folder of the trainer.
    Trainer(PathBuf),
    /// An image that was exported.
    Image(ImageFolder),
    /// An image that the nodes pull by its name.
    Pulled(String),
}

impl RootFiles {
    fn folder(&self) -> Option<&Path> {
        match self {
            Self::Trainer(folder) | Self::Image(ImageFolder { root: folder, .. }) => Some(folder),
            Self::OfNode | Self::Pulled(_) => None,
        }
    }

    /// As `apptainer` and `ch-run` take it.
    fn argument(&self) -> String {
        match self {
            Self::Pulled(name) => format!("docker://{name}"),
            files => files.folder().unwrap_or(Path::new("")).display().to_string(),
        }
    }

    fn config(&self) -> ImageConfig {
        match self {
            Self::Image(image) => image.config.clone(),
            Self::OfNode | Self::Trainer(_) | Self::Pulled(_) => ImageConfig::default(),
        }
    }
}

/// Where programs are looked for in an image that does not say so: as Docker has it.
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The program of a job as the script starts it.
pub fn program(root: &Root, launch: &Launch) -> Result<Program, Error> {
    let pairs = || launch.mounts.read_only.iter().chain(&launch.mounts.writable);
    if let Some((host, _)) = pairs().find(|(host, _)| has_separator(host) && root.runtime != ContainerRuntime::None) {
        return Err(Error::JobRefused {
            engine: super::NAME,
            said: format!("{} has a colon or a comma in its name, which cannot be mounted", host.display()),
            hint: "rename it, or run without a container: --set slurm.containers=none".to_owned(),
        });
    }
    // Mounts that are only read cannot be written.
    let binds = |flag: &str| {
        let bind = |(host, mounted): &(PathBuf, PathBuf)| format!("{flag}{}:{}", host.display(), mounted.display());
        let read = launch.mounts.read_only.iter().map(|pair| format!("{}:ro", bind(pair)));
        read.chain(launch.mounts.writable.iter().map(bind)).collect::<Vec<_>>()
    };
    let config = root.files.config();
    let work_folder = launch.work_folder.as_deref().or(config.work_folder.as_deref());
    let work_folder = |flag: &str| work_folder.map(|folder| format!("{flag}{}", folder.display()));
    let (mut words, mut srun, mut env) = (Vec::new(), Vec::new(), launch.env.clone());
    match root.runtime {
        ContainerRuntime::None => {}
        ContainerRuntime::Charliecloud => {
            words.extend(["ch-run", "--unset-env=LD_LIBRARY_PATH", "--unset-env=LD_PRELOAD"].map(str::to_owned));
            words.extend(["--env-no-expand", "--private-tmp"].map(str::to_owned));
            let mut inner = inner_env(&root.files, launch);
            if let (RootFiles::Image(_), JobProgram::Command(_)) = (&root.files, &launch.program)
                && !launch.env.contains_key("HOME")
            {
                // That of the user is not there.
                inner.insert("HOME".to_owned(), "/tmp".to_owned());
            }
            env.retain(|name, _| !inner.contains_key(name));
            // ch-run takes one pair of quotes away, and nothing else.
            words.extend(inner.iter().map(|(name, value)| format!("--set-env={name}='{value}'")));
            let folder = root.files.folder().unwrap_or(Path::new("/"));
            for (host, mounted) in pairs() {
                let place = trainer_folder::make_mount_point(folder, host, mounted)?;
                words.push(format!("--bind={}:{}", host.display(), place.display()));
            }
            words.extend(work_folder("--cd="));
            words.extend([root.files.argument(), "--".to_owned()]);
        }
        ContainerRuntime::Apptainer => {
            let is_apptainer = here("apptainer") || !here("singularity");
            let (program, prefix) =
                if is_apptainer { ("apptainer", "APPTAINERENV_") } else { ("singularity", "SINGULARITYENV_") };
            let mut inner = inner_env(&root.files, launch);
            // It refuses to be told.
            inner.remove("HOME");
            env.retain(|name, _| !inner.contains_key(name));
            env.extend(inner.into_iter().map(|(name, value)| (format!("{prefix}{name}"), value)));
            words.extend([program, "exec", "--contain", "--no-home", "--nv"].map(str::to_owned));
            words.extend(binds("--bind="));
            words.extend(work_folder("--pwd="));
            words.push(root.files.argument());
        }
        ContainerRuntime::Pyxis => {
            srun.push(format!("--container-image={}", archive_or_name(&root.files)?));
            srun.push(format!("--container-mounts={}", binds("").join(",")));
            srun.extend(work_folder("--container-workdir="));
            // Else the variables of an image come before ours.
            let both = launch.env.keys().filter(|name| config.env.contains_key(*name));
            let both: Vec<&str> = both.map(String::as_str).filter(|name| !OF_PROGRAM.contains(name)).collect();
            srun.extend((!both.is_empty()).then(|| format!("--container-env={}", both.join(","))));
        }
    }
    words.extend(own_words(root, launch));
    Ok(Program { words, srun, env })
}

/// The program and its arguments, as Docker would start them: what the pipeline names stands in place of the entry point.
fn own_words(root: &Root, launch: &Launch) -> Vec<String> {
    let mut words = match (&launch.program, &root.files) {
        (JobProgram::Command(program), _) => vec![program.clone()],
        (JobProgram::Trainer, RootFiles::Image(image)) => image.config.entrypoint.clone(),
        (JobProgram::Trainer, RootFiles::Trainer(folder)) if root.runtime == ContainerRuntime::None => {
            vec![folder.join(TRAINER).display().to_string()]
        }
        (JobProgram::Trainer, _) => vec![format!("/{TRAINER}")],
    };
    words.extend(launch.args.iter().cloned());
    words
}

/// The variables that are set inside of the container: those of the image, unless the pipeline has them, and what the runtime itself
/// would heed outside.
fn inner_env(files: &RootFiles, launch: &Launch) -> BTreeMap<String, String> {
    let mut env = files.config().env;
    if let RootFiles::Image(_) = files {
        env.entry("PATH".to_owned()).or_insert_with(|| DEFAULT_PATH.to_owned());
    }
    env.retain(|name, _| !launch.env.contains_key(name));
    let of_program = launch.env.iter().filter(|(name, _)| OF_PROGRAM.contains(&name.as_str()));
    env.extend(of_program.map(|(name, value)| (name.clone(), value.clone())));
    env
}

fn has_separator(path: &Path) -> bool {
    path.to_string_lossy().contains([':', ','])
}

/// Pyxis takes an image by name, or an archive.
fn archive_or_name(files: &RootFiles) -> Result<String, Error> {
    let archive = match files {
        RootFiles::Pulled(name) => return Ok(name.clone()),
        RootFiles::OfNode => return Ok(String::new()),
        RootFiles::Trainer(folder) => trainer_folder::archive(folder)?,
        RootFiles::Image(image) => image::archive(image)?,
    };
    Ok(archive.display().to_string())
}

#[cfg(test)]
mod tests {
    use pipe_spec::pipeline::Container;

    use super::*;

    #[test]
    fn names_are_read_back() {
        assert_eq!(
            of_name(&name("demo-20261115-014500-abcd.step", 12)),
            Some(("demo-20261115-014500-abcd.step".to_owned(), 12))
        );
        assert_eq!(of_name("pipe"), None);
        assert_eq!(of_name("pipe:x"), None);
    }

    #[test]
    fn words_stay_words() {
        assert_eq!(quoted("a b"), "'a b'");
        assert_eq!(quoted("it's $HOME"), r"'it'\''s $HOME'");
    }

    fn variables(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    fn image(root: &Path) -> RootFiles {
        let config = ImageConfig {
            entrypoint: vec!["/tool".to_owned(), "-v".to_owned()],
            cmd: vec!["unused".to_owned()],
            env: variables(&[("GREETING", "it's"), ("LEVEL", "image")]),
            work_folder: Some("/work".into()),
            user: None,
        };
        RootFiles::Image(ImageFolder { root: root.to_owned(), config })
    }

    fn launch(program: JobProgram) -> Launch {
        let env = variables(&[("LEVEL", "pipeline"), ("LD_LIBRARY_PATH", "/opt")]);
        Launch { program, args: vec!["x".to_owned()], env, ..Launch::example(&Container::default(), 1) }
    }

    #[test]
    fn charliecloud_runs_what_docker_would() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().display().to_string();
        let root = Root { runtime: ContainerRuntime::Charliecloud, files: image(folder.path()) };
        let command = program(&root, &launch(JobProgram::Command("python".to_owned()))).unwrap();
        assert_eq!(
            command.words[5..],
            [
                "--set-env=GREETING='it's'",
                "--set-env=HOME='/tmp'",
                "--set-env=LD_LIBRARY_PATH='/opt'",
                &format!("--set-env=PATH='{DEFAULT_PATH}'"),
                "--cd=/work",
                &place,
                "--",
                "python",
                "x"
            ]
        );
        assert_eq!(command.env, variables(&[("LEVEL", "pipeline")]));
        let mut trainer = launch(JobProgram::Trainer);
        trainer.work_folder = Some("/run/pipe".into());
        let trainer = program(&root, &trainer).unwrap();
        assert_eq!(trainer.words[trainer.words.len() - 6..], ["--cd=/run/pipe", &place, "--", "/tool", "-v", "x"]);
    }

    #[test]
    fn apptainer_gets_variables_by_their_prefix() {
        let root = Root { runtime: ContainerRuntime::Apptainer, files: image(Path::new("/images/1/root")) };
        let program = program(&root, &launch(JobProgram::Trainer)).unwrap();
        assert_eq!(program.words[5..], ["--pwd=/work", "/images/1/root", "/tool", "-v", "x"]);
        let names: Vec<&str> =
            program.env.keys().filter_map(|name| name.split_once("ENV_").map(|(_, name)| name)).collect();
        assert_eq!(names, ["GREETING", "LD_LIBRARY_PATH", "PATH"]);
        assert_eq!(program.env["LEVEL"], "pipeline");
        let files = RootFiles::Pulled("x:1".to_owned());
        assert_eq!(files.argument(), "docker://x:1");
    }
}
