//! Folders in which the trainer is the stand-in of `tests/job`.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use crate::harness::Folder;
use crate::harness::folder::{binaries, repository};

/// A folder with a pipeline whose job does what `job` says; `more` is added to the pipeline.
pub fn folder(job: &str, more: &str) -> Folder {
    let folder = Folder::new().env("PIPE_TRAINER", program().display());
    let text = format!(
        "version: 1\nname: job\nmodel: {{arch: t5, config: {{}}}}\ndata: {{train: train.jsonl}}\n\
         container:\n  gpus: 0\n  memory: 64m\n  image: image/job.Dockerfile\n  env: {{JOB: {job}}}\n{more}"
    );
    folder
        .write("job.yaml", text)
        .write("train.jsonl", "{\"source\": \"a\", \"target\": \"b\"}\n")
        .write("tokenizer.json", "{}")
        .write("image/job.Dockerfile", "FROM scratch\nCOPY job /job\nENTRYPOINT [\"/job\"]\n");
    std::fs::copy(program(), folder.path().join("image/job")).unwrap();
    folder
}

/// Copies a run, each copy with a name of its own.
pub fn copy_run(run: &Path, count: u32) {
    let id = run.file_name().unwrap().to_str().unwrap();
    let state = std::fs::read_to_string(run.join("run.json")).unwrap();
    for index in 0..count {
        let name = format!("copy-20260101-0000{:02}-{index:04}", index % 60);
        let copy = run.with_file_name(&name);
        let copied = Command::new("cp").arg("-a").args([run, &copy]).status().unwrap();
        assert!(copied.success(), "cp -a {id} {name}");
        std::fs::write(copy.join("run.json"), state.replace(id, &name)).unwrap();
    }
}

/// The same on a card, which is what `card` says, as tests/nvml.rs reads it.
pub fn on_card(job: &str, more: &str, card: &str) -> Folder {
    let folder = folder(job, more);
    folder.write("card", card);
    let place = folder.path().join("card");
    folder.env("TEST_CARD", place.display()).env("LD_LIBRARY_PATH", library().display())
}

/// The folder of the stand-in for NVIDIA's management library, compiled once.
pub fn library() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("nvml");
        std::fs::create_dir_all(&folder).unwrap();
        let compiled = Command::new("rustc")
            .args(["--edition", "2024", "--crate-type", "cdylib", "-o"])
            .arg(folder.join("libnvidia-ml.so.1"))
            .arg(repository().join("tests/nvml.rs"))
            .status()
            .unwrap();
        assert!(compiled.success(), "tests/nvml.rs does not compile");
        folder
    })
}

/// The stand-in, compiled once.
pub fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("job");
        let compiled =
            Command::new(repository().join("tests/compile-job")).arg(binaries()).arg(&program).status().unwrap();
        assert!(compiled.success(), "tests/job does not compile");
        program
    })
}
