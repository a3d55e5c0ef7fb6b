//! The CUDA libraries: a run that wants a card and lacks them is refused before it starts, and the hint brings them. The card is
//! the stand-in of `tests/nvml.rs`, the libraries the empty ones of `tests/libtorch_stand_in.py`.

use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

use crate::harness::{Answer, Folder, Needs, Suite, folder::repository};
use crate::stand_ins::job;

pub fn tests(suite: &mut Suite) {
    let mut test = |name: &str, test: fn()| suite.test(&format!("cuda::{name}"), Needs::Nothing, test);
    test("a_run_on_a_card_without_its_libraries_is_refused", refused);
    test("the_hint_is_followed_and_helps", hint);
    test("an_installed_pipe_names_its_archive", installed);
    suite.thorough("cuda::a_missing_part_of_a_library_is_reported", Needs::Nothing, parts);
    suite.thorough("cuda::fetching", Needs::Nothing, fetching);
}

/// A folder with a card and a source tree of pipe in `tree`, in which libtorch was fetched CPU only.
fn with_tree() -> Folder {
    let folder = job::on_card("card free", "", "16384 16384 120\n");
    let tree = folder.path().join("tree");
    python(&["libtorch_stand_in.py", tree.to_str().unwrap()]).exits(0);
    make(&folder, &["-C", tree.to_str().unwrap(), "libtorch", "CUDA=0"]).exits(0);
    folder.env("PIPE_TRAINER", tree.join("target/debug/pipe-trainer").display())
}

fn python(args: &[&str]) -> Answer {
    let output = Command::new("python3").args(args).current_dir(repository().join("tests")).output().unwrap();
    Answer::new(format!("python3 {}", args.join(" ")), output)
}

/// The wheels of the tree are the whole index.
fn make(folder: &Folder, args: &[&str]) -> Answer {
    let wheels = folder.path().join("tree/wheels");
    let output = Command::new("make")
        .args(args)
        .env("PIP_NO_INDEX", "1")
        .env("PIP_FIND_LINKS", wheels)
        .env_remove("MAKEFLAGS")
        .env_remove("CUDA")
        .output()
        .unwrap();
    Answer::new(format!("make {}", args.join(" ")), output)
}

fn run(folder: &Folder, gpus: &str) -> Answer {
    let gpus = format!("container.gpus={gpus}");
    folder.pipe(&["run", "job.yaml", "--engine", "process", "--set", &gpus])
}

fn libtorch_check(folder: &Folder) -> Value {
    let output = folder.command(&["doctor", "--json"]).output().unwrap();
    let checks: Value = serde_json::from_slice(&output.stdout).unwrap();
    checks.as_array().unwrap().iter().find(|check| check["name"] == "libtorch").unwrap().clone()
}

/// The command that a hint puts between backquotes.
fn command_of(hint: &str) -> Vec<String> {
    hint.split('`').nth(1).unwrap_or_else(|| panic!("no command in {hint:?}")).split(' ').map(str::to_owned).collect()
}

fn refused() {
    let folder = with_tree();
    for gpus in ["1", "auto"] {
        run(&folder, gpus)
            .exits(4)
            .says("lacks CUDA libraries: libcublas.so.13, libcudnn.so.9, libnvrtc.so.13")
            .says("libtorch CUDA=1`");
    }
    assert!(!folder.has_runs());
    // A run without a card does not need them.
    let answer = run(&folder, "0");
    assert!(!answer.stderr.contains("CUDA libraries"), "{answer}");
}

fn hint() {
    let folder = with_tree();
    let before = libtorch_check(&folder);
    assert_eq!(before["status"], "missing", "{before:#}");
    assert!(before["found"].as_str().unwrap().contains("missing: libcublas.so.13, libcudnn.so.9, libnvrtc.so.13"));
    let asked = run(&folder, "1").exits(4);
    let hinted = command_of(&asked.stderr);
    assert_eq!(command_of(before["hint"].as_str().unwrap()), hinted, "the doctor and the run say the same");

    let (program, args) = hinted.split_first().unwrap();
    assert_eq!(program, "make");
    make(&folder, &args.iter().map(String::as_str).collect::<Vec<_>>()).exits(0);

    let after = libtorch_check(&folder);
    assert!(after["found"].as_str().unwrap().contains("CUDA 13.0"), "{after:#}");
    let answer = run(&folder, "1");
    assert!(!answer.stderr.contains("CUDA libraries") && folder.has_runs(), "{answer}");
    let files = folder.pipe(&["image", "files", "--json"]).exits(0).json();
    assert_eq!(files["missing"], serde_json::json!([]));
    let names: Vec<&str> =
        files["files"].as_array().unwrap().iter().map(|file| file["path"].as_str().unwrap()).collect();
    for name in ["libcublasLt.so.13", "libcudnn_ops.so.9", "libnvrtc-builtins.so.13.0", "libtorch_cuda_linalg.so"] {
        assert!(names.iter().any(|path| *path == format!("/opt/pipe/libtorch/lib/{name}")), "{name} in {names:?}");
    }
}

/// Where the programs were installed, the hint names what was not.
fn installed() {
    let folder = with_tree();
    let (tree, root) = (folder.path().join("tree/target"), folder.path().join("root"));
    std::fs::create_dir_all(root.join("lib")).unwrap();
    std::fs::create_dir_all(root.join("bin")).unwrap();
    std::fs::rename(tree.join("libtorch/lib"), root.join("lib/pipe")).unwrap();
    // The stand-in looks for its libraries in ../libtorch/lib.
    std::fs::create_dir_all(root.join("libtorch")).unwrap();
    std::os::unix::fs::symlink("../lib/pipe", root.join("libtorch/lib")).unwrap();
    let program: PathBuf = root.join("bin/pipe-trainer");
    std::fs::copy(tree.join("debug/pipe-trainer"), &program).unwrap();
    let folder = folder.env("PIPE_TRAINER", program.display());
    run(&folder, "1").exits(4).says("install the archive of pipe whose name ends in -cuda");
}

/// A library that is opened by name is reported as missing, like one that is linked.
fn parts() {
    let folder = with_tree();
    let tree = folder.path().join("tree");
    make(&folder, &["-C", tree.to_str().unwrap(), "libtorch", "CUDA=1"]).exits(0);
    for name in ["libcudnn_graph.so.9", "libnvrtc-builtins.so.13.0", "libcublasLt.so.13"] {
        let (path, away) = (tree.join("target/libtorch/lib").join(name), tree.join("away"));
        std::fs::rename(&path, &away).unwrap();
        let missed = name.split(".so").next().unwrap();
        run(&folder, "1").exits(4).says(&format!("CUDA libraries: {missed}"));
        std::fs::rename(&away, &path).unwrap();
    }
}

fn fetching() {
    python(&["fetch_libtorch.py"]).exits(0).says("OK");
}
