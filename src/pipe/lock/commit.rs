//! Which commit a folder is at, if git knows it.

use std::path::Path;
use std::process::{Command, Stdio};

use pipe_spec::lock::Commit;

/// Nothing where there is no git, no work tree, or no commit yet. Files that git does not know say nothing: data and runs
/// lie about in most work trees.
pub fn read_commit(folder: &Path) -> Option<Commit> {
    let id = ask(folder, &["rev-parse", "--verify", "HEAD"])?;
    let changed = ask(folder, &["status", "--porcelain", "--untracked-files=no"])?;
    Some(Commit { id, dirty: !changed.is_empty() })
}

fn ask(folder: &Path, question: &[&str]) -> Option<String> {
    let output = Command::new("git")
        .arg("-C")
        .arg(folder)
        .args(question)
        // Do not rewrite the index.
        .env("GIT_OPTIONAL_LOCKS", "0")
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output()
        .ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
