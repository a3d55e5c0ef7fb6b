//! `make install`, `make dist` and `make wheel`: what they make works from any place, on a system that has neither Rust nor pip nor this
//! tree. The trainer image: the same tree gives the same hash, and what is unchanged is not sent again.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::harness::folder::{binaries, repository};
use crate::harness::{Answer, Folder, Needs, Suite};
use crate::small_t5;

pub fn tests(suite: &mut Suite) {
    suite.test("images::trainer_image_is_built_once", Needs::Docker, built_once);
    suite.test("installing::every_cuda_library_has_a_package", Needs::Nothing, packages);
    suite.thorough("installing::an_archive_trains_on_a_bare_system", Needs::BaseSystem, bare_system);
    suite.thorough("installing::a_wheel_trains_beside_a_torch", Needs::BasePython, wheel);
}

fn built_once() {
    let folder = small_t5::folder("train: {steps: 2, batch: 4}\ncontainer: {gpus: 0, cpus: 1}\n");
    let build = || folder.pipe(&["image", "build", "--json"]).exits(0).json();
    let (first, second) = (build(), build());
    assert_eq!((first["hash"].as_str(), first["id"].as_str()), (second["hash"].as_str(), second["id"].as_str()));
    assert_eq!(second["built"], false);
    folder.pipe(&["run", "t5.yaml", "--engine", "docker"]).exits(0).says("(unchanged)").says_not("building the image");
    let output = Command::new("docker")
        .args(["history", "--no-trunc", "--format", "{{.CreatedBy}}", first["image"].as_str().unwrap()])
        .output()
        .unwrap();
    let layers = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        layers.lines().any(|layer| layer.contains("/opt/pipe/libtorch")),
        "libtorch has no layer of its own:\n{layers}"
    );
}

/// docker/libraries.txt, a library and its package a line.
fn listed(path: &Path) -> Vec<(String, String)> {
    let text = std::fs::read_to_string(path).unwrap();
    let pair = |line: &str| line.split_once(' ').map(|(name, package)| (name.to_owned(), package.to_owned())).unwrap();
    text.lines().map(pair).collect()
}

fn packages() {
    let docker = repository().join("docker");
    let list = listed(&docker.join("libraries.txt"));
    let read = |name: &str| std::fs::read_to_string(docker.join(name)).unwrap();
    let pinned = read("libtorch.txt") + &read("libtorch-cuda.txt");
    for (library, package) in &list {
        assert!(pinned.contains(&format!("\n{package} --hash=sha256:")), "{library}: {package} is in no list");
    }
    let files = Folder::new().pipe(&["image", "files", "--json"]).exits(0).json();
    let missing: Vec<&str> = files["missing"].as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect();
    for name in &missing {
        assert!(list.iter().any(|(library, _)| library == name), "{name} is needed and in no package");
    }
    // Where the libraries for cards were fetched, they are those of the list, and nothing is missing.
    let fetched = listed(&repository().join("target/libtorch/libraries.txt"));
    if fetched.iter().any(|(name, _)| name.starts_with("libcublas")) {
        assert_eq!((fetched, missing), (list, vec![]));
    } else {
        assert!(missing.len() >= 12, "{missing:?}");
        assert!(fetched.iter().all(|entry| list.contains(entry)), "{fetched:?}");
    }
}

/// Unpacks what `docker/dist` makes.
fn unpacked(folder: &Folder) -> PathBuf {
    let output = Command::new(repository().join("docker/dist"))
        .arg(folder.path().join("dist"))
        .env("COMPRESS", "gzip -1")
        .env("PROGRAMS", binaries())
        .output()
        .unwrap();
    let answer = Answer::new("docker/dist".to_owned(), output).exits(0);
    let archive = PathBuf::from(answer.stdout.trim());
    let place = folder.path().join("some where");
    std::fs::create_dir(&place).unwrap();
    let done = Command::new("tar").arg("-xzf").arg(&archive).arg("-C").arg(&place).status().unwrap();
    assert!(done.success());
    let name = archive.file_name().unwrap().to_str().unwrap().trim_end_matches(".tar.gz").to_owned();
    place.join(name)
}

/// An image with nothing but a base system, removed with the test.
struct Base(String);

impl Base {
    fn import(packages: &[&str]) -> Self {
        let name = format!("pipe-test-base{}:{}", packages.join("-"), std::process::id());
        let mut root = Command::new("python3")
            .arg(repository().join("tests/base_root.py"))
            .args(packages)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let import =
            Command::new("docker").args(["import", "-", &name]).stdin(root.stdout.take().unwrap()).output().unwrap();
        assert!(root.wait().unwrap().success() && import.status.success(), "{import:?}");
        Self(name)
    }

    /// Runs a script as a user without a name, without a network, with `folder` at /home and `prefix` at /opt/pipe.
    fn sh(&self, folder: &Path, prefix: &Path, script: &str) -> Answer {
        let mount = |path: &Path, target: &str| format!("type=bind,source={},target={target}", path.display());
        let output = Command::new("docker")
            .args(["run", "--rm", "--network", "none", "--user", "1234:1234", "--workdir", "/home"])
            .args(["--env", "HOME=/home", "--env", "PATH=/usr/bin:/opt/pipe/bin"])
            .args(["--mount", &mount(folder, "/home"), "--mount", &(mount(prefix, "/opt/pipe") + ",readonly")])
            .args([&self.0, "/bin/sh", "-c", script])
            .output()
            .unwrap();
        Answer::new(script.to_owned(), output)
    }
}

impl Drop for Base {
    fn drop(&mut self) {
        let _ = Command::new("docker").args(["image", "rm", "--force", &self.0]).output();
    }
}

fn bare_system() {
    let folder = Folder::new();
    let prefix = unpacked(&folder);
    let there = |path: &str| assert!(prefix.join(path).is_file(), "{path}");
    [
        "bin/pipe",
        "bin/pipe-trainer",
        "lib/pipe/libtorch_cpu.so",
        "share/bash-completion/completions/pipe",
        "share/zsh/site-functions/_pipe",
        "share/fish/vendor_completions.d/pipe.fish",
        "share/man/man1/pipe.1",
        "share/man/man1/pipe-image-build.1",
        "share/pipe/pipelines/demo.yaml",
        "share/pipe/pipelines/python-train/train.py",
        "share/pipe/pipelines/prepare-train-evaluate/score.py",
        "share/doc/pipe/README.md",
    ]
    .into_iter()
    .for_each(there);

    let base = Base::import(&[]);
    let home = folder.path().join("home");
    std::fs::create_dir(&home).unwrap();
    std::os::unix::fs::chown(&home, Some(1234), Some(1234)).unwrap();
    let sh = |script: &str| base.sh(&home, &prefix, script);
    // It is as bare as it should be.
    sh("! command -v python3 && ! command -v cc && ! command -v cargo").exits(0);
    sh("pipe doctor").exits(0).prints("/opt/pipe/bin/pipe-trainer").prints("libtorch /opt/pipe/lib/pipe");
    sh("pipe-trainer data recipes --rows 200 --seed 7 --out data/demo && \
        pipe run /opt/pipe/share/pipe/pipelines/demo.yaml --set train.steps=3 --set container.memory=4g --set train.batch=16")
    .exits(0)
    .says("engine: process");
    sh("test -f runs/*/model/model.safetensors && test -f runs/*/report.html").exits(0);
    // The image that the installed pipe builds holds what was installed.
    let output = Command::new(prefix.join("bin/pipe")).args(["image", "build"]).current_dir(&home).output().unwrap();
    Answer::new("pipe image build".to_owned(), output).exits(0).prints("pipe-trainer:");
}

/// The wheel as the system's Python has it, beside the torch of tests/python.txt, without the libraries for cards.
fn wheel() {
    let folder = Folder::new();
    let (programs, site, home) =
        (folder.path().join("programs"), folder.path().join("site"), folder.path().join("home"));
    std::fs::create_dir(&programs).unwrap();
    for program in ["pipe", "pipe-trainer"] {
        run(Command::new("strip").arg("-o").arg(programs.join(program)).arg(binaries().join(program)));
    }
    let mut build = Command::new(repository().join("docker/wheel"));
    // Programs of the profile dev are larger.
    let built = run(build.arg(folder.path()).env("PROGRAMS", &programs).env("LIMIT", "30000000"));
    let pip =
        ["-m", "pip", "--python", "/usr/bin/python3", "install", "--quiet", "--no-index", "--no-deps", "--target"];
    run(Command::new("python3").args(pip).arg(&site).arg(built.stdout.trim()));
    let packages = repository().join("target/python");
    run(Command::new("cp").arg("-al").args([packages.join("torch"), packages.join("nvidia")]).arg(&site));

    let base = Base::import(&["python3"]);
    std::fs::create_dir(&home).unwrap();
    std::os::unix::fs::chown(&home, Some(1234), Some(1234)).unwrap();
    let sh = |script: &str| base.sh(&home, &site, &format!("export PYTHONPATH=/opt/pipe; {script}"));
    sh("! command -v pip && ! command -v cc && ! command -v cargo").exits(0);
    sh("pipe doctor")
        .exits(0)
        .prints("/opt/pipe/pipe_train/bin/pipe-trainer")
        .prints("libtorch /opt/pipe/torch/lib, 2.11.0+cu130, CPU only");
    sh("pipe-trainer data recipes --rows 200 --seed 7 --out data/demo && \
        pipe run /opt/pipe/share/pipe/pipelines/demo.yaml --set train.steps=3 --set container.memory=4g --set train.batch=16")
    .exits(0)
    .says("engine: process");
    sh("test -f runs/*/model/model.safetensors && test -f runs/*/report.html").exits(0);
}

fn run(command: &mut Command) -> Answer {
    Answer::new(format!("{command:?}"), command.output().unwrap()).exits(0)
}
