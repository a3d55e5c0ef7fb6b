//! Runs that want the same card take their turns: each draws a number, and the lowest of the living has the card.
//!
//! A number is a file that its owner holds with a lock of the kernel's, so that a `pipe` that is killed gives its place back.

use std::fs::{File, TryLockError};
use std::io::Write;
use std::path::{Path, PathBuf};

use pipe_spec::pipeline::Gpus;

use crate::error::Error;

/// A place in the queue for a card, held until it is dropped.
pub struct Place {
    folder: PathBuf,
    number: u64,
    _locked: File,
}

/// Somebody who is before us.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Before {
    pub number: u64,
    pub run: String,
}

impl Place {
    /// Draws the next number for the card that `gpus` names.
    pub fn draw(gpus: &Gpus, run: &str) -> Result<Self, Error> {
        Self::draw_in(queue_folder().join(card_name(gpus)), run)
    }

    fn draw_in(folder: PathBuf, run: &str) -> Result<Self, Error> {
        let fail = |source| Error::Write { path: folder.clone(), source };
        create_for_all(&folder).map_err(fail)?;
        // One at a time, or two could draw the same number.
        let counter = open_for_all(&folder.join("counter")).map_err(fail)?;
        counter.lock().map_err(fail)?;
        let number = numbers(&folder).last().map_or(1, |last| last + 1);
        let mut file = open_for_all(&path(&folder, number)).map_err(fail)?;
        file.lock().map_err(fail)?;
        file.set_len(0).and_then(|()| file.write_all(run.as_bytes())).map_err(fail)?;
        Ok(Self { folder, number, _locked: file })
    }

    /// Who is before us, the one that has the card first. Numbers of the dead are cleared away.
    pub fn before(&self) -> Vec<Before> {
        let mut before = Vec::new();
        // Nobody draws meanwhile: a number that was just made is not taken for one of the dead.
        let counter = open_for_all(&self.folder.join("counter"));
        let _held = counter.inspect(|counter| drop(counter.lock()));
        for number in numbers(&self.folder).into_iter().filter(|number| *number < self.number) {
            let path = path(&self.folder, number);
            let Ok(file) = File::open(&path) else { continue };
            match file.try_lock() {
                Err(TryLockError::WouldBlock) => {
                    let run = std::fs::read_to_string(&path).unwrap_or_default();
                    before.push(Before { number, run });
                }
                Ok(()) => {
                    std::fs::remove_file(&path).ok();
                }
                Err(TryLockError::Error(error)) => tracing::debug!("{}: {error}", path.display()),
            }
        }
        before
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        std::fs::remove_file(path(&self.folder, self.number)).ok();
    }
}

/// The name of the card that is asked for, where several runs ask for it.
pub fn card_name(gpus: &Gpus) -> String {
    match gpus {
        Gpus::Ids(ids) => format!("gpu-{}", ids.first().map_or("0", String::as_str).replace('/', "-")),
        Gpus::Auto | Gpus::All | Gpus::Count(_) => "gpu-0".to_owned(),
    }
}

/// `PIPE_QUEUE`, or one folder for all users of the machine.
fn queue_folder() -> PathBuf {
    let named = std::env::var_os("PIPE_QUEUE").filter(|path| !path.is_empty()).map(PathBuf::from);
    named.unwrap_or_else(|| std::env::temp_dir().join("pipe-queue"))
}

fn path(folder: &Path, number: u64) -> PathBuf {
    folder.join(format!("{number:08}"))
}

fn numbers(folder: &Path) -> Vec<u64> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut numbers: Vec<u64> = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    numbers.sort_unstable();
    numbers
}

/// A folder that every user may draw in.
fn create_for_all(folder: &Path) -> std::io::Result<()> {
    if !folder.is_dir() {
        std::fs::create_dir_all(folder)?;
        allow_all(folder, 0o777);
        folder.parent().iter().for_each(|parent| allow_all(parent, 0o777));
    }
    Ok(())
}

fn open_for_all(path: &Path) -> std::io::Result<File> {
    let file = File::options().create(true).truncate(false).write(true).read(true).open(path)?;
    allow_all(path, 0o666);
    Ok(file)
}

/// What belongs to another user is as he made it.
fn allow_all(path: &Path, mode: u32) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).ok();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_are_taken_in_order_and_given_back() {
        let folder = std::env::temp_dir().join(format!("pipe-queue-{}", std::process::id()));
        let draw = |run: &str| Place::draw_in(folder.clone(), run).unwrap();
        let before = |place: &Place| place.before().into_iter().map(|one| one.run).collect::<Vec<_>>();
        let (first, second, third) = (draw("a"), draw("b"), draw("c"));
        assert!(first.before().is_empty());
        assert_eq!(before(&third), ["a", "b"]);
        drop(second);
        assert_eq!(before(&third), ["a"]);
        // One who was killed: his file is there, and nobody holds it.
        drop(first);
        std::fs::write(path(&folder, 1), "killed").unwrap();
        assert!(third.before().is_empty());
        assert!(!path(&folder, 1).exists());
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
