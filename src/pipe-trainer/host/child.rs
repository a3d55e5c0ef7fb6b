//! Other processes of this program that it starts itself.

use std::fs;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// The kernel kills the other process when this one dies.
pub fn die_with_this_process(command: &mut Command) {
    let parent = std::process::id();
    // SAFETY: prctl and getppid are async-signal-safe and touch nothing of ours.
    unsafe {
        command.pre_exec(move || {
            if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) != 0 {
                return Err(io::Error::last_os_error());
            }
            // This process may have died before the call.
            if libc::getppid().cast_unsigned() != parent {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            Ok(())
        });
    }
}

/// Clock ticks that all threads of a process have computed for; fields 14 and 15 of proc(5).
pub fn cpu_time(process: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The name of the program may have spaces and parentheses.
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace().skip(11);
    let (user, system): (u64, u64) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    Some(user + system)
}

/// Bytes that a process has read and written, files and sockets alike.
pub fn bytes_moved(process: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{process}/io")).ok()?;
    let number = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<u64>().ok());
    Some(number("rchar:")? + number("wchar:")?)
}
