//! A `pipe` process in the background that runs a run after this process and its terminal end.

use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use pipe_spec::RunFolder;

use crate::error::Error;
use crate::run::{self, Owner};

/// How long the background process may take until it owns the run.
const START_TIMEOUT: Duration = Duration::from_secs(20);

/// Starts `pipe resume` in the background, and returns when it owns the run or has ended.
pub fn start_detached(folder: &RunFolder, set: &[String]) -> Result<(), Error> {
    let program = std::env::current_exe().map_err(|source| Error::Read { path: "this program".into(), source })?;
    let fail = |source| Error::Spawn { program: program.clone(), source };
    let log = std::fs::File::options().create(true).append(true).open(folder.driver_log()).map_err(fail)?;
    let mut command = Command::new(&program);
    command.arg("resume").arg(folder.path().file_name().unwrap_or_default()).arg("--quiet");
    set.iter().for_each(|set| {
        command.args(["--set", set]);
    });
    command
        .env("PIPE_RUNS", folder.path().parent().unwrap_or(folder.path()))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        // Its messages are in the journal. This log gets panics and the like.
        .stderr(log);
    // SAFETY: setsid is async-signal-safe and touches nothing of ours.
    unsafe {
        command.pre_exec(|| match libc::setsid() {
            -1 => Err(std::io::Error::last_os_error()),
            _ => Ok(()),
        });
    }
    let mut child = command.spawn().map_err(fail)?;
    let began = Instant::now();
    while !Owner::exists(folder) && began.elapsed() < START_TIMEOUT {
        if child.try_wait().map_err(fail)?.is_some() {
            return ended(folder);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// The background process has ended already: the run is over, or it could not start.
fn ended(folder: &RunFolder) -> Result<(), Error> {
    let status = run::Listed::read(folder.path()).map(|found| found.state.status);
    match status {
        Some(pipe_spec::Status::Orphaned) | None => Err(Error::NotDriven { log: folder.driver_log() }),
        Some(_) => Ok(()),
    }
}
