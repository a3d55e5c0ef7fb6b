//! The files that a pod gets before its job starts: `pipe-job await` is the process that waits for it, and `pipe-job receive`, which `pipe`
//! starts beside it, takes the files from stdin.
//!
//! `receive --root FOLDER --attempt FOLDER --keep NAMES --ready FILE`: both folders of `--keep`, with commas between them, begin with
//! what the attempt before left in them.

use std::io::{self, BufReader, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::frames::{Frame, Kind, changed, files_below, is_absent};
use super::kept::keep;
use super::send::{ALIVE_INTERVAL, heed_requests, is_asked_to_end, mark};
use crate::frames::Flags;

/// Between two looks for the file that says that all is there.
const INTERVAL: Duration = Duration::from_millis(100);

/// Waits until the file is there.
pub fn wait(flags: &Flags) -> io::Result<()> {
    let ready = flags.path("--ready")?;
    heed_requests();
    while !ready.exists() {
        if is_asked_to_end() {
            return Err(io::ErrorKind::Interrupted.into());
        }
        std::thread::sleep(INTERVAL);
    }
    Ok(())
}

pub fn receive(flags: &Flags) -> io::Result<()> {
    let (root, attempt) = (flags.path("--root")?, flags.text("--attempt")?);
    std::fs::create_dir_all(root.join(attempt))?;
    while_alive(|| {
        flags.text("--keep")?.split(',').filter(|name| !name.is_empty()).try_for_each(|name| keep(&root, attempt, name))
    })?;
    let (mut input, mut output) = (BufReader::with_capacity(1 << 16, io::stdin().lock()), io::stdout().lock());
    let mut have = Vec::new();
    for folder in ["inputs", attempt] {
        let found = files_below(&root, folder, &mut |path, meta| {
            have.push(Frame { size: meta.len(), changed: changed(&meta), ..Frame::of(Kind::Have, &path) });
        });
        found.or_else(|error| if is_absent(&error) { Ok(()) } else { Err(error) })?;
    }
    have.iter().try_for_each(|frame| frame.write(&mut output))?;
    Frame::of(Kind::End, "").write(&mut output)?;
    output.flush()?;
    loop {
        let frame = Frame::read(&mut input)?;
        let path = root.join(&frame.path);
        match frame.kind {
            Kind::End => break,
            Kind::Alive => continue,
            _ if !frame.is_inside() => return Err(io::ErrorKind::InvalidInput.into()),
            Kind::Folder => std::fs::create_dir_all(path)?,
            Kind::File | Kind::Program | Kind::Sparse => {
                path.parent().map_or(Ok(()), std::fs::create_dir_all)?;
                frame.take_file(&mut input, &path)?;
            }
            _ => return Err(io::ErrorKind::InvalidData.into()),
        }
    }
    mark(&flags.path("--ready")?)?;
    Frame::of(Kind::End, "").write(&mut output)?;
    output.flush()
}

/// Does what may take long, and gives signs of life meanwhile.
fn while_alive(work: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let alive = scope.spawn(|| {
            while !is_done.load(Ordering::Relaxed) {
                let mut output = io::stdout().lock();
                Frame::of(Kind::Alive, "").write(&mut output)?;
                output.flush()?;
                drop(output);
                std::thread::park_timeout(ALIVE_INTERVAL);
            }
            io::Result::Ok(())
        });
        let done = work();
        is_done.store(true, Ordering::Relaxed);
        alive.thread().unpark();
        done
    })
}
