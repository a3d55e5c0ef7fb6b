//! `pipe-job`, the first process of every job, as engines start it: where its program lies, how it is called, and what it leaves in
//! the folder of the job.

use std::fs::{File, Permissions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use pipe_spec::run::{JobEnd, JobFolder};
use rustix::fs::StatVfsMountFlags;

use super::{JobProgram, Launch};
use crate::error::Error;
use crate::run::job_file;
use crate::system::digests::cache_folder;

/// The program itself, which runs in any image.
pub const PROGRAM: &[u8] = include_bytes!(env!("PIPE_JOB_PROGRAM"));

/// Joins the parts of that program, where one place cannot hold it.
pub const JOIN: &[u8] = include_bytes!(env!("PIPE_JOB_JOIN"));

/// The name of its file.
pub const NAME: &str = "pipe-job";

/// Where a container has it.
pub const IN_CONTAINER: &str = "/run/pipe-job";

/// How the line begins that it adds to the output of a job whose program a signal has stopped.
pub const STOPPED_WARNING: &str = "warning: a signal stopped the program of this job";

/// Bytes of the record of an end.
const RECORD_LIMIT: u64 = 4096;

/// Seconds after the timeout of `pipe` itself at which the first process ends a job that does not end.
const STOP_GRACE: u32 = 2;

/// How long a program that was just written may be busy.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// Makes the program of the first process and the file for the job's output ready; returns the path of the program.
pub fn prepare(launch: &Launch) -> Result<PathBuf, Error> {
    let output = launch.job_folder.0.join(JobFolder::OUTPUT);
    let created = File::options().create(true).append(true).open(&output);
    created.map_err(|source| Error::Write { path: output, source })?;
    program(&launch.run_folder)
}

/// The path of the program: in the cache, or in the run folder where the cache is missing or can hold no programs.
pub fn program(run_folder: &Path) -> Result<PathBuf, Error> {
    let name = format!("pipe-job-{}", &blake3::hash(PROGRAM).to_hex()[..16]);
    let cached = cache_folder().and_then(|folder| write_program(&folder.join("pipe-job"), &name).ok());
    if let Some(path) = cached.filter(|path| is_executable(path)) {
        return Ok(path);
    }
    let failed = |source| Error::Write { path: run_folder.join(&name), source };
    let path = write_program(run_folder, &name).map_err(failed)?;
    if is_executable(&path) { Ok(path) } else { Err(Error::NotExecutable { folder: run_folder.to_owned() }) }
}

/// Starts the program. While another thread of this process starts a program of its own, that one may hold a file open which was just
/// written here: the kernel refuses to run such a file, for a moment.
pub fn start<T>(mut spawn: impl FnMut() -> std::io::Result<T>) -> std::io::Result<T> {
    let began = Instant::now();
    loop {
        match spawn() {
            Err(error) if error.kind() == ErrorKind::ExecutableFileBusy && began.elapsed() < BUSY_TIMEOUT => {
                std::thread::sleep(Duration::from_millis(5));
            }
            ended => return ended,
        }
    }
}

/// Whether a file can be started as a program: it has the permission, and so has the file system that it is on.
fn is_executable(path: &Path) -> bool {
    let has_permission = path.metadata().is_ok_and(|meta| meta.permissions().mode() & 0o111 != 0);
    let is_noexec = rustix::fs::statvfs(path).is_ok_and(|stat| stat.f_flag.contains(StatVfsMountFlags::NOEXEC));
    has_permission && !is_noexec
}

fn write_program(folder: &Path, name: &str) -> std::io::Result<PathBuf> {
    let path = std::path::absolute(folder)?.join(name);
    if std::fs::read(&path).is_ok_and(|found| found == PROGRAM) && is_executable(&path) {
        return Ok(path);
    }
    std::fs::create_dir_all(folder)?;
    let mode = Permissions::from_mode(0o755);
    let mut file = tempfile::Builder::new().prefix(".pipe-job.").permissions(mode).tempfile_in(folder)?;
    file.write_all(PROGRAM)?;
    file.as_file().sync_all()?;
    // It must be closed before it is run.
    file.into_temp_path().persist(&path)?;
    Ok(path)
}

/// The words before the program of a job, with the first process at `program` as the job sees it.
pub fn words(launch: &Launch, program: &Path) -> Vec<String> {
    let text = |path: PathBuf| path.to_string_lossy().into_owned();
    let seen = |name: &str| text(launch.job_folder.1.join(name));
    vec![
        text(program.to_owned()),
        "--output".to_owned(),
        seen(JobFolder::OUTPUT),
        "--record".to_owned(),
        seen(JobFolder::END),
        "--signals".to_owned(),
        signals(launch).to_owned(),
        "--stop-timeout".to_owned(),
        stop_timeout(launch).to_string(),
        "--".to_owned(),
    ]
}

/// Who gets the signals that arrive at the first process: a command may be a shell that passes none on.
pub fn signals(launch: &Launch) -> &'static str {
    if launch.program == JobProgram::Trainer { "leader" } else { "group" }
}

/// Seconds after which the first process ends a job that was asked to stop.
pub fn stop_timeout(launch: &Launch) -> u32 {
    launch.stop_timeout.saturating_add(STOP_GRACE)
}

/// How a job ended, as its first process says. Nothing where that was killed.
pub fn end(folder: &Path, name: &str) -> Option<JobEnd> {
    serde_json::from_slice(&job_file::read(folder, name, RECORD_LIMIT).ok()?).ok()
}

/// The error of a program that could not be started.
pub fn spawn_error(end: Option<&JobEnd>, launch_program: &Path) -> Option<Error> {
    let source = std::io::Error::from_raw_os_error(end?.error?);
    Some(Error::Spawn { program: launch_program.to_owned(), source })
}

/// Whether the kernel killed the job for want of memory. A trainer ends as if it had been killed itself when one of its processes was;
/// a command may say so in any way, but only a job with a control group of its own can be told from others in the group.
pub fn is_oom_killed(oom_kills: u64, exit_code: Option<i64>, is_trainer: bool, has_own_group: bool) -> bool {
    oom_kills > 0 && (exit_code == Some(KILLED) || (!is_trainer && has_own_group && exit_code != Some(0)))
}

/// The exit code of a job that SIGKILL ended.
pub const KILLED: i64 = 128 + 9;

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;
    use crate::engine::Output;

    /// Runs a shell script under the real first process; its exit code, its output and its record.
    fn run(options: &[&str], script: &str) -> (Option<i32>, String, JobEnd) {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).display().to_string();
        let mut command = Command::new(program(folder.path()).unwrap());
        command
            .args(["--output", &path(JobFolder::OUTPUT), "--record", &path(JobFolder::END)])
            .args(options)
            .args(["--", "sh", "-c", script])
            .env("FOLDER", folder.path())
            .stdout(Stdio::null());
        let status = start(|| command.status()).unwrap();
        let mut output = Output::new(folder.path().to_owned(), JobFolder::OUTPUT, None);
        let lines = output.rest();
        let text = lines.iter().map(|line| line.text.as_str()).collect::<Vec<_>>().join("|");
        (status.code(), text, end(folder.path(), JobFolder::END).unwrap())
    }

    #[test]
    fn a_job_that_opens_its_own_output_keeps_it() {
        let (_, text, _) =
            run(&[], "echo one; echo two > /dev/stderr; echo three | tee /dev/stderr > /dev/null; echo four");
        assert_eq!(text, "one|two|three|four");
    }

    #[test]
    fn a_program_that_somebody_still_holds_for_writing_is_started() {
        let folder = tempfile::tempdir().unwrap();
        let path = write_program(folder.path(), "job").unwrap();
        let writer = File::options().append(true).open(&path).unwrap();
        assert_eq!(Command::new(&path).status().unwrap_err().kind(), ErrorKind::ExecutableFileBusy);
        let closes = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(200));
            drop(writer);
        });
        let mut command = Command::new(&path);
        assert!(start(|| command.stderr(Stdio::null()).status()).is_ok());
        closes.join().unwrap();
    }

    #[test]
    fn the_record_does_not_wait_for_a_pipe_of_the_job() {
        let (code, _, end) = run(&[], "mkfifo \"$FOLDER/end.json.new\"; exit 3");
        assert_eq!((code, end.exit_code), (Some(3), 3));
    }

    #[test]
    fn a_program_without_its_permission_is_written_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = write_program(folder.path(), "job").unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        assert!(!is_executable(&path));
        assert!(is_executable(&write_program(folder.path(), "job").unwrap()));
    }

    #[test]
    fn a_job_is_recorded() {
        let (code, text, end) = run(&[], "echo one; echo two >&2; printf three; exit 7");
        assert_eq!((code, text.as_str()), (Some(7), "one|two|three"));
        assert_eq!(end, JobEnd { exit_code: 7, oom_kills: 0, error: None, stop_requested: Some(false) });
        assert_eq!(run(&[], "kill -9 $$").0, Some(137));
    }

    #[test]
    fn a_program_that_is_stopped_is_named_and_goes_on() {
        let (code, text, _) = run(&[], "(sleep 1; kill -CONT $$) & kill -STOP $$; echo on; wait; exit 4");
        assert_eq!(code, Some(4));
        assert!(text.starts_with(STOPPED_WARNING) && text.ends_with("|on"), "{text}");
    }

    #[test]
    fn a_program_that_is_not_there_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let record = folder.path().join(JobFolder::END);
        let mut command = Command::new(program(folder.path()).unwrap());
        command.arg("--record").arg(&record).args(["--", "/no/such"]).stderr(Stdio::null());
        let status = start(|| command.status()).unwrap();
        assert_eq!(status.code(), Some(127));
        let error = spawn_error(end(folder.path(), JobFolder::END).as_ref(), Path::new("/no/such")).unwrap();
        assert!(error.to_string().contains("/no/such"), "{error}");
    }

    #[test]
    fn what_a_job_leaves_behind_is_ended() {
        // With another environment and a session of its own; both its files are closed.
        let stray =
            "setsid env -i sh -c 'while sleep 0.1; do :; done' < /dev/null > /dev/null 2>&1 & echo $!; sleep 0.2";
        let began = Instant::now();
        let (code, text, _) = run(&[], stray);
        assert_eq!(code, Some(0));
        assert!(began.elapsed() > Duration::from_secs(5));
        let id: u32 = text.parse().unwrap();
        assert!(!Path::new(&format!("/proc/{id}")).exists(), "{id} lives");
    }

    #[test]
    fn a_stop_after_the_end_of_the_program_changes_nothing() {
        // The request comes while a process that the program left behind is waited for.
        let script = "(setsid sh -c 'sleep 1; kill -TERM '$PPID'; exec sleep 60' > /dev/null 2>&1 &); exit 0";
        let began = Instant::now();
        let (code, _, end) = run(&["--stop-timeout", "60"], script);
        assert_eq!(code, Some(0));
        assert!(end.is_completed(), "{end:?}");
        assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
        let (_, _, end) = run(&["--stop-timeout", "60"], "trap 'exit 0' TERM; kill -TERM $PPID; sleep 5 & wait");
        assert_eq!((end.exit_code, end.stop_requested), (0, Some(true)));
    }

    #[test]
    fn a_job_that_does_not_end_is_ended() {
        let script = "trap '' TERM; kill -TERM $PPID; while sleep 0.1; do :; done";
        assert_eq!(run(&["--signals", "group", "--stop-timeout", "1"], script).0, Some(137));
        // A signal reaches a leader that has not set itself up for it.
        assert_eq!(run(&["--signals", "leader"], "kill -TERM $PPID; exec sleep 5").0, Some(143));
    }
}
