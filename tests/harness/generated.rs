//! Data that the trainer generates. The same arguments give the same files, so a test program generates them once and keeps them.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

/// Paths below the folder, with their bytes.
type Files = Vec<(PathBuf, Vec<u8>)>;

/// Writes the files of `pipe-trainer data` with these arguments into `folder`.
pub fn generate(mut trainer: Command, args: &[&str], folder: &Path) {
    static GENERATED: Mutex<BTreeMap<String, Files>> = Mutex::new(BTreeMap::new());
    let mut generated = GENERATED.lock().unwrap_or_else(PoisonError::into_inner);
    let files: &Files = generated.entry(args.join(" ")).or_insert_with(|| {
        let status = trainer.arg("data").args(args).arg("--out").arg(folder).status().unwrap();
        assert!(status.success(), "pipe-trainer data {args:?}: {status}");
        files_below(folder)
    });
    for (name, bytes) in files {
        let path = folder.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }
}

fn files_below(folder: &Path) -> Files {
    let (mut files, mut folders) = (Files::new(), vec![folder.to_owned()]);
    while let Some(inner) = folders.pop() {
        for path in fs::read_dir(inner).unwrap().map(|entry| entry.unwrap().path()) {
            if path.is_dir() {
                folders.push(path);
            } else {
                files.push((path.strip_prefix(folder).unwrap().to_owned(), fs::read(&path).unwrap()));
            }
        }
    }
    files
}
