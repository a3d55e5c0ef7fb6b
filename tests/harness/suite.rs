//! Tests that know what they need. What cannot run is reported as ignored, by name. Where the variable of a need is 1, such as
//! PIPE_REQUIRE_DOCKER, it fails instead.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use libtest_mimic::{Arguments, Failed, Trial};

use super::folder::repository;
use super::watchdog::watch;

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Needs {
    Nothing,
    /// The machine's daemon and the `docker` command.
    Docker,
    /// To be root, for mounts and other users.
    Root,
    /// The packages of tests/transformers.txt, or a python3 that has them.
    Transformers,
    /// The daemon, and the packages of tests/python.txt and tests/python-transformers.txt.
    Python,
    /// The packages of tests/mlflow.txt.
    Mlflow,
    /// The packages of tests/wandb.txt.
    Wandb,
    /// The packages of tests/optuna.txt and tests/optuna4.txt.
    Optuna,
    /// The daemon, on a machine without a GPU.
    DockerWithoutGpu,
    /// The model that tests/fetch-minilm fetches.
    MiniLm,
    /// A Chromium or Chrome.
    Chromium,
    /// To be root and have `dockerd`, to start a daemon of the test's own.
    OwnDaemon,
    /// To be root, and the packages that tests/slurm/cluster installs.
    Slurm,
    /// The same, and a daemon on this machine.
    SlurmAndDocker,
    /// The daemon, and to be root of a Debian, whose packages a base system is made of.
    BaseSystem,
}

impl Needs {
    fn missing(self) -> Option<&'static str> {
        match self {
            Self::Nothing => None,
            Self::Docker => (!docker()).then_some("no Docker daemon answers"),
            Self::DockerWithoutGpu if gpu() => Some("this machine has a GPU"),
            Self::DockerWithoutGpu => Self::Docker.missing(),
            Self::Transformers => {
                (!has_transformers()).then_some("no transformers; make test-transformers fetches them")
            }
            Self::Python => {
                Self::Docker.missing().or((!python()).then_some("target/python is not there; make python fetches it"))
            }
            Self::Mlflow => {
                (!mlflow().join("complete").is_file()).then_some("target/mlflow is not there; make mlflow fetches it")
            }
            Self::Optuna => {
                let is_there = |version: u32| optuna(version).join("complete").is_file();
                (!(is_there(4) && is_there(5))).then_some("target/optuna5 is not there; make optuna fetches it")
            }
            Self::Wandb => {
                (!wandb().join("complete").is_file()).then_some("target/wandb is not there; make wandb fetches it")
            }
            Self::MiniLm => {
                (!minilm().join("complete").is_file()).then_some("target/minilm is not there; make minilm fetches it")
            }
            Self::Chromium => chromium().is_none().then_some("no Chromium"),
            Self::Root => (!root()).then_some("not root"),
            Self::Slurm => {
                (!root() || !slurm()).then_some("not root, or no Slurm; `tests/slurm/cluster install` installs it")
            }
            Self::SlurmAndDocker => Self::Slurm.missing().or(Self::Docker.missing()),
            Self::BaseSystem => {
                Self::Docker.missing().or((!root() || !dpkg()).then_some("not root, or no Debian packages"))
            }
            Self::OwnDaemon => (!root() || !dockerd()).then_some("not root, or no dockerd"),
        }
    }

    /// The variable that forbids to skip it.
    fn variable(self) -> Option<&'static str> {
        match self {
            Self::Nothing | Self::Docker | Self::Root | Self::MiniLm | Self::OwnDaemon => Some("PIPE_REQUIRE_DOCKER"),
            Self::DockerWithoutGpu => (!gpu()).then_some("PIPE_REQUIRE_DOCKER"),
            Self::BaseSystem => dpkg().then_some("PIPE_REQUIRE_DOCKER"),
            Self::Chromium => Some("PIPE_REQUIRE_BROWSER"),
            Self::Slurm | Self::SlurmAndDocker => Some("PIPE_REQUIRE_SLURM"),
            Self::Transformers => Some("PIPE_REQUIRE_TRANSFORMERS"),
            Self::Mlflow | Self::Wandb | Self::Optuna | Self::Python => None,
        }
    }
}

fn docker() -> bool {
    static ANSWERS: OnceLock<bool> = OnceLock::new();
    *ANSWERS.get_or_init(|| succeeds(Command::new("docker").args(["version", "--format", "{{.Server.Version}}"])))
}

fn slurm() -> bool {
    let here = |program: &str| {
        ["/usr/sbin", "/usr/bin", "/sbin", "/bin"]
            .iter()
            .any(|folder| std::path::Path::new(folder).join(program).is_file())
    };
    ["slurmctld", "slurmd", "slurmdbd", "munged", "mariadbd", "sbatch"].iter().all(|program| here(program))
}

fn gpu() -> bool {
    std::path::Path::new("/dev/nvidiactl").exists()
}

fn has_transformers() -> bool {
    static FOUND: OnceLock<bool> = OnceLock::new();
    *FOUND.get_or_init(|| succeeds(transformers().args(["-c", "import torch, transformers, safetensors"])))
}

/// A python3 that finds the packages of tests/transformers.txt where they were fetched.
pub fn transformers() -> Command {
    let packages = repository().join("target/transformers");
    let mut python = Command::new("python3");
    if packages.join("complete").is_file() {
        python.env("PYTHONPATH", packages);
    }
    python
}

fn python() -> bool {
    ["python", "python-transformers"]
        .iter()
        .all(|name| repository().join("target").join(name).join("complete").is_file())
}

/// Where the packages of tests/mlflow.txt lie.
pub fn mlflow() -> PathBuf {
    repository().join("target/mlflow")
}

/// Where the packages of tests/wandb.txt lie.
pub fn wandb() -> PathBuf {
    repository().join("target/wandb")
}

/// The packages of one version of Optuna. What both need is with the fifth.
pub fn optuna(version: u32) -> PathBuf {
    repository().join(format!("target/optuna{version}"))
}

/// Where tests/fetch-minilm puts its model.
pub fn minilm() -> PathBuf {
    repository().join("target/minilm")
}

/// The browser, by whichever name it has here.
pub fn chromium() -> Option<&'static str> {
    static FOUND: OnceLock<Option<&'static str>> = OnceLock::new();
    let names = ["chromium", "chromium-browser", "google-chrome"];
    *FOUND.get_or_init(|| names.into_iter().find(|name| succeeds(Command::new(name).arg("--version"))))
}

fn dpkg() -> bool {
    succeeds(Command::new("dpkg-query").arg("--version"))
}

fn dockerd() -> bool {
    succeeds(Command::new("dockerd").arg("--version"))
}

fn succeeds(command: &mut Command) -> bool {
    command.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
}

pub fn root() -> bool {
    unsafe extern "C" {
        fn geteuid() -> u32;
    }
    // SAFETY: it cannot fail and touches no memory.
    unsafe { geteuid() == 0 }
}

/// Whether a test has run that may have built Docker images.
static MAY_BUILD_IMAGES: AtomicBool = AtomicBool::new(false);

#[derive(Default)]
pub struct Suite {
    trials: Vec<Trial>,
}

impl Suite {
    pub fn test(&mut self, name: &str, needs: Needs, test: impl FnOnce() + Send + 'static) {
        let missing = needs.missing();
        let is_set = |name: &&str| std::env::var(name).is_ok_and(|value| value == "1");
        let required = needs.variable().filter(is_set);
        let own_name = name.to_owned();
        let run = move || match (missing, required) {
            (Some(what), Some(variable)) => Err(Failed::from(format!("{variable} is set, and {what}"))),
            _ => {
                // Those of clusters build none, and run beside programs that do.
                if needs != Needs::Slurm {
                    MAY_BUILD_IMAGES.store(true, Ordering::Relaxed);
                }
                let _watched = watch(&own_name);
                let began = Instant::now();
                test();
                note_time(&own_name, began);
                Ok(())
            }
        };
        let skipped = missing.filter(|_| required.is_none());
        let kind = skipped.map_or(String::new(), |what| format!("skipped, {what}"));
        let ignored = skipped.is_some();
        self.trials.push(Trial::test(name, run).with_kind(kind).with_ignored_flag(ignored));
    }

    /// Runs everything, then removes the Docker images that the tests built.
    pub fn run(self) -> ExitCode {
        let mut arguments = Arguments::from_args();
        // Most of them wait for a process or a daemon half of their time.
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        arguments.test_threads.get_or_insert(processors.div_ceil(2) * 3);
        let before = if docker() { images() } else { Vec::new() };
        let conclusion = libtest_mimic::run(&arguments, self.trials);
        if docker() && MAY_BUILD_IMAGES.load(Ordering::Relaxed) {
            for image in images().into_iter().filter(|image| !before.contains(image)) {
                succeeds(Command::new("docker").args(["image", "rm", "--force", &image]));
            }
        }
        conclusion.exit_code()
    }
}

/// Adds a line with the seconds of a test to the file that PIPE_TEST_TIMES names.
fn note_time(name: &str, began: Instant) {
    let Some(path) = std::env::var_os("PIPE_TEST_TIMES") else { return };
    let file = std::fs::File::options().create(true).append(true).open(path);
    file.and_then(|mut file| writeln!(file, "{:8.2} {name}", began.elapsed().as_secs_f64())).ok();
}

fn images() -> Vec<String> {
    let list = Command::new("docker")
        .args(["image", "ls", "--filter", "label=pipe.image", "--format", "{{.Repository}}:{{.Tag}}"])
        .output();
    list.map(|output| String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect()).unwrap_or_default()
}
