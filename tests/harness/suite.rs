//! Tests that know what they need. What cannot run is reported as ignored, by name. Where the variable of a need is 1, such as
//! PIPE_REQUIRE_DOCKER, it fails instead. A thorough test runs only in `make test-all`, which sets PIPE_TEST_ALL; `make test` reports
//! it as ignored and counts it at the end.

use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::sync::OnceLock;

use libtest_mimic::{Arguments, Failed, Trial};

use super::daemons;
use super::folder::repository;
use super::watchdog::watch;

#[derive(Clone, Copy)]
#[allow(dead_code)] // Each test program has tests with other needs.
pub enum Needs {
    Nothing,
    /// The machine's daemon and the `docker` command.
    Docker,
    /// To be root, for mounts and other users.
    Root,
    /// The same, and the freezer of control groups of version 1: what it has frozen cannot be killed.
    Freezer,
    /// To be root and have `mkfs.ext4`.
    Ext4,
    /// The packages of tests/transformers.txt, or a python3 that has them.
    Transformers,
    /// The daemon, and the packages of tests/python.txt, tests/python-transformers.txt and tests/python-package.txt.
    Python,
    /// The packages of docker/hatchling.txt.
    Hatchling,
    /// The packages alone.
    PythonPackages,
    /// The packages of tests/mlflow.txt.
    Mlflow,
    /// The packages of tests/moto.txt.
    Moto,
    /// The same, and the daemon.
    MotoAndDocker,
    /// The same without the daemon, and to be root.
    MotoAndRoot,
    /// The packages of tests/wandb.txt.
    Wandb,
    /// The packages of tests/optuna.txt.
    Optuna,
    /// The same, and those of tests/optuna4.txt.
    Optuna4,
    /// The daemon, on a machine without a GPU.
    DockerWithoutGpu,
    /// The model that tests/fetch-minilm fetches.
    MiniLm,
    /// A Chromium or Chrome.
    Chromium,
    /// To be root and have `dockerd`, to start a daemon of the test's own.
    OwnDaemon,
    /// To be root, and what tests/engines/daemon installs for Podman.
    Podman,
    /// The same for Docker 26.
    Docker26,
    /// To be root, and the packages that tests/slurm/cluster installs.
    Slurm,
    /// The same, and a daemon on this machine.
    SlurmAndDocker,
    /// To be root, with a daemon, and what tests/kubernetes/cluster installs.
    Kubernetes,
    /// The daemon, and to be root of a Debian, whose packages a base system is made of.
    BaseSystem,
    /// The same with the Python of the system, and the packages of tests/python.txt and docker/hatchling.txt.
    BasePython,
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
            Self::Hatchling => (!repository().join("target/hatchling/complete").is_file())
                .then_some("target/hatchling is not there; make hatchling fetches it"),
            Self::Python => Self::Docker.missing().or(Self::PythonPackages.missing()),
            Self::PythonPackages => (!python()).then_some("target/python is not there; make python fetches it"),
            Self::Mlflow => {
                (!mlflow().join("complete").is_file()).then_some("target/mlflow is not there; make mlflow fetches it")
            }
            Self::Moto => {
                (!moto().join("complete").is_file()).then_some("target/moto is not there; make moto fetches it")
            }
            Self::MotoAndDocker => Self::Moto.missing().or(Self::Docker.missing()),
            Self::MotoAndRoot => Self::Moto.missing().or(Self::Root.missing()),
            Self::Optuna => {
                (!optuna(5).join("complete").is_file()).then_some("target/optuna5 is not there; make optuna fetches it")
            }
            Self::Optuna4 => Self::Optuna.missing().or((!optuna(4).join("complete").is_file())
                .then_some("target/optuna4 is not there; make optuna4 fetches it")),
            Self::Wandb => {
                (!wandb().join("complete").is_file()).then_some("target/wandb is not there; make wandb fetches it")
            }
            Self::MiniLm => {
                (!minilm().join("complete").is_file()).then_some("target/minilm is not there; make minilm fetches it")
            }
            Self::Chromium => chromium().is_none().then_some("no Chromium"),
            Self::Root => (!root()).then_some("not root"),
            Self::Ext4 => {
                (!root() || !succeeds(Command::new("mkfs.ext4").arg("-V"))).then_some("not root, or no mkfs.ext4")
            }
            Self::Freezer => {
                let freezer = std::path::Path::new("/sys/fs/cgroup/freezer/cgroup.procs").is_file();
                (!root() || !freezer).then_some("not root, or no freezer of control groups")
            }
            Self::Slurm => {
                (!root() || !slurm()).then_some("not root, or no Slurm; `tests/slurm/cluster install` installs it")
            }
            Self::SlurmAndDocker => Self::Slurm.missing().or(Self::Docker.missing()),
            Self::Kubernetes => (!kubernetes())
                .then_some("no Kubernetes can be started here; `tests/kubernetes/cluster install` builds it"),
            Self::BaseSystem => {
                Self::Docker.missing().or((!root() || !dpkg()).then_some("not root, or no Debian packages"))
            }
            Self::BasePython => Self::BaseSystem.missing().or(Self::Python.missing()).or(Self::Hatchling.missing()),
            Self::Podman => (!root() || !succeeds(Command::new("podman").arg("--version")))
                .then_some("not root, or no Podman; `tests/engines/daemon install podman` installs it"),
            Self::Docker26 => (!root() || !repository().join("target/docker26/dockerd").is_file())
                .then_some("not root, or no Docker 26; `tests/engines/daemon install docker26` fetches it"),
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
            Self::Podman => Some("PIPE_REQUIRE_PODMAN"),
            Self::Docker26 => Some("PIPE_REQUIRE_DOCKER26"),
            Self::Slurm | Self::SlurmAndDocker => Some("PIPE_REQUIRE_SLURM"),
            Self::Kubernetes => Some("PIPE_REQUIRE_KUBERNETES"),
            Self::Transformers => Some("PIPE_REQUIRE_TRANSFORMERS"),
            Self::Freezer
            | Self::Ext4
            | Self::Hatchling
            | Self::BasePython
            | Self::Mlflow
            | Self::Wandb
            | Self::Optuna
            | Self::Optuna4
            | Self::Python
            | Self::PythonPackages
            | Self::Moto
            | Self::MotoAndDocker
            | Self::MotoAndRoot => None,
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

fn kubernetes() -> bool {
    static FOUND: OnceLock<bool> = OnceLock::new();
    *FOUND.get_or_init(|| succeeds(Command::new(repository().join("tests/kubernetes/cluster")).arg("check")))
}

pub fn gpu() -> bool {
    std::path::Path::new("/dev/nvidiactl").exists()
}

fn has_transformers() -> bool {
    static FOUND: OnceLock<bool> = OnceLock::new();
    *FOUND.get_or_init(|| succeeds(transformers().args(["-c", "import torch, transformers, peft, safetensors"])))
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
    ["python", "python-transformers", "python-package"]
        .iter()
        .all(|name| repository().join("target").join(name).join("complete").is_file())
}

/// Where the packages of tests/mlflow.txt lie.
pub fn mlflow() -> PathBuf {
    repository().join("target/mlflow")
}

/// Where the packages of tests/moto.txt lie.
pub fn moto() -> PathBuf {
    repository().join("target/moto")
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

/// Both engines, with what each of them needs.
const ENGINES: [(&str, Needs); 2] = [("process", Needs::Nothing), ("docker", Needs::Docker)];

/// The container engines beside the machine's own, with what each of them needs.
const DAEMONS: [(&str, Needs); 2] = [("podman", Needs::Podman), ("docker26", Needs::Docker26)];

/// The kind that marks a thorough test in the list of tests.
const THOROUGH: &str = "test-all";

#[derive(Default)]
pub struct Suite {
    trials: Vec<Trial>,
}

impl Suite {
    pub fn test(&mut self, name: &str, needs: Needs, test: impl FnOnce() + Send + 'static) {
        self.test_after(name, needs, || (), move |()| test());
    }

    /// A test that gets what it waits for; the time that it waits is not part of its own.
    pub fn test_after<T>(
        &mut self,
        name: &str,
        needs: Needs,
        wait: impl FnOnce() -> T + Send + 'static,
        test: impl FnOnce(T) + Send + 'static,
    ) {
        let missing = needs.missing();
        let required = needs.variable().filter(|name| is_set(name));
        let own_name = name.to_owned();
        let run = move || match (missing, required) {
            (Some(what), Some(variable)) => Err(Failed::from(format!("{variable} is set, and {what}"))),
            _ => {
                let got = wait();
                let _watched = watch(&own_name);
                test(got);
                Ok(())
            }
        };
        let skipped = missing.filter(|_| required.is_none());
        let kind = skipped.map_or(String::new(), |what| format!("skipped, {what}"));
        let ignored = skipped.is_some();
        self.trials.push(Trial::test(name, run).with_kind(kind).with_ignored_flag(ignored));
    }

    /// A test that repeats another under other conditions, or that takes long for what it shows.
    pub fn thorough(&mut self, name: &str, needs: Needs, test: impl FnOnce() + Send + 'static) {
        self.test(name, needs, test);
        self.last_is_thorough();
    }

    /// Makes a thorough test of the one that was added last.
    pub fn last_is_thorough(&mut self) {
        if !is_set("PIPE_TEST_ALL") {
            let trial = self.trials.pop().expect("one was added");
            self.trials.push(trial.with_kind(THOROUGH).with_ignored_flag(true));
        }
    }

    /// A test of something that the engines do differently: one for each engine.
    pub fn each_engine(&mut self, name: &str, test: impl Fn(&str) + Clone + Send + 'static) {
        for (engine, needs) in ENGINES {
            let test = test.clone();
            self.test(&format!("{name}::{engine}"), needs, move || test(engine));
        }
    }

    /// A test of something above the engines: without a container, and thorough in one.
    pub fn any_engine(&mut self, name: &str, test: impl Fn(&str) + Clone + Send + 'static) {
        let [(process, needs), (docker, needs_docker)] = ENGINES;
        let in_docker = test.clone();
        self.test(&format!("{name}::{process}"), needs, move || test(process));
        self.thorough(&format!("{name}::{docker}"), needs_docker, move || in_docker(docker));
    }

    /// A test of what container engines do differently: on the machine's own daemon, and on the others.
    #[allow(dead_code)] // The runner's tests alone use it.
    pub fn each_daemon(&mut self, name: &str, often: bool, test: impl Fn() + Clone + Send + 'static) {
        self.test(&format!("{name}::docker"), Needs::Docker, test.clone());
        self.other_daemons(name, often, test);
    }

    /// A test in containers, again on the daemons that are not the machine's own; in `make test` where it is to run `often`.
    pub fn other_daemons(&mut self, name: &str, often: bool, test: impl Fn() + Clone + Send + 'static) {
        for (daemon, needs) in DAEMONS {
            let test = test.clone();
            self.on_daemon(name, daemon, needs, test);
            if !often {
                self.last_is_thorough();
            }
        }
    }

    /// A test in containers of a daemon that tests/engines/daemon starts.
    pub fn on_daemon(&mut self, name: &str, daemon: &'static str, needs: Needs, test: impl FnOnce() + Send + 'static) {
        let name = format!("{name}::{daemon}");
        self.test_after(&name, needs, move || daemons::start(daemon), |address| daemons::run_on(address, test));
    }

    /// Runs everything, then removes the Docker images that the tests built, unless PIPE_KEEP_IMAGES leaves that to the caller.
    pub fn run(self) -> ExitCode {
        let mut arguments = Arguments::from_args();
        // Most of them wait for a process or a daemon half of their time.
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        arguments.test_threads.get_or_insert(processors.div_ceil(2) * 3);
        let chosen = |trial: &&Trial| {
            let matches = |word: &String| trial.name().contains(word.as_str());
            trial.kind() == THOROUGH && arguments.filter.iter().all(matches) && !arguments.skip.iter().any(matches)
        };
        let left_out = self.trials.iter().filter(chosen).count();
        let removes_images = docker() && !is_set("PIPE_KEEP_IMAGES");
        let before = if removes_images { images() } else { Vec::new() };
        let conclusion = libtest_mimic::run(&arguments, self.trials);
        daemons::stop_all();
        if removes_images {
            for image in images().into_iter().filter(|image| !before.contains(image)) {
                succeeds(Command::new("docker").args(["image", "rm", "--force", &image]));
            }
        }
        if left_out > 0 {
            println!("{left_out} tests run only in `make test-all`\n");
        }
        conclusion.exit_code()
    }
}

pub fn is_set(variable: &str) -> bool {
    std::env::var(variable).is_ok_and(|value| value == "1")
}

fn images() -> Vec<String> {
    let list = Command::new("docker")
        .args(["image", "ls", "--filter", "label=pipe.image", "--format", "{{.Repository}}:{{.Tag}}"])
        .output();
    list.map(|output| String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect()).unwrap_or_default()
}
