//! `pipe-job`, the first process of every job, as engines start it: where its program lies, how it is called, and what it leaves in
//! the folder of the job.

use std::fs::{File, Permissions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use pipe_spec::run::{JobEnd, JobFolder, LogPosition};
use rustix::fs::{CWD, FallocateFlags, Mode, OFlags, fallocate};
use tokio::sync::mpsc;

use super::{JobProgram, Launch, Line, LineSplitter, Source};
use crate::error::Error;
use crate::run::job_file;
use crate::system::digests::cache_folder;

/// The program itself, which runs in any image.
const PROGRAM: &[u8] = include_bytes!(env!("PIPE_JOB_PROGRAM"));

/// Where a container has it.
pub const IN_CONTAINER: &str = "/run/pipe-job";

/// Between two looks at what a job has written.
pub const OUTPUT_INTERVAL: Duration = Duration::from_millis(100);

/// Bytes of output that are read at once.
const PIECE: u64 = 1 << 20;

/// Bytes of the record of an end.
const RECORD_LIMIT: u64 = 4096;

/// Seconds after the timeout of `pipe` itself at which the first process ends a job that does not end.
const STOP_GRACE: u32 = 2;

/// Makes the program of the first process and the file for the job's output ready; returns the path of the program.
pub fn prepare(launch: &Launch) -> Result<PathBuf, Error> {
    let output = launch.job_folder.0.join(JobFolder::OUTPUT);
    let created = File::options().create(true).append(true).open(&output);
    created.map_err(|source| Error::Write { path: output, source })?;
    program(&launch.run_folder)
}

/// The path of the program: in the cache, or in the run folder where there is none.
pub fn program(run_folder: &Path) -> Result<PathBuf, Error> {
    let name = format!("pipe-job-{}", &blake3::hash(PROGRAM).to_hex()[..16]);
    let cached = cache_folder().and_then(|folder| write_program(&folder.join("pipe-job"), &name).ok());
    match cached {
        Some(path) => Ok(path),
        None => {
            let failed = |source| Error::Write { path: run_folder.join(&name), source };
            write_program(run_folder, &name).map_err(failed)
        }
    }
}

fn write_program(folder: &Path, name: &str) -> std::io::Result<PathBuf> {
    let path = std::path::absolute(folder)?.join(name);
    if std::fs::read(&path).is_ok_and(|found| found == PROGRAM) {
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

/// The output of a job, read from its file.
pub struct Output {
    folder: PathBuf,
    name: &'static str,
    offset: u64,
    splitter: LineSplitter,
    /// Whether it was said that the file cannot be read.
    is_unreadable: bool,
}

/// Nobody listens to the lines any more.
pub struct Closed;

impl Output {
    /// The output of a launch, after what was read of it before.
    pub fn of(launch: &Launch, read: Option<&LogPosition>) -> Self {
        Self::new(launch.job_folder.0.clone(), JobFolder::OUTPUT, read)
    }

    pub fn new(folder: PathBuf, name: &'static str, read: Option<&LogPosition>) -> Self {
        let offset = read.map_or(0, |read| read.output);
        Self { folder, name, offset, splitter: LineSplitter::new(), is_unreadable: false }
    }

    /// Sends the lines that were written since the last time.
    pub async fn send(&mut self, to: &mpsc::Sender<Line>) -> Result<(), Closed> {
        loop {
            let lines = self.next();
            if lines.is_empty() {
                return Ok(());
            }
            for line in lines {
                to.send(line).await.map_err(|_| Closed)?;
            }
        }
    }

    /// Sends what was written until the job ended, and the last line if it has no end.
    pub async fn send_rest(&mut self, to: &mpsc::Sender<Line>) -> Result<(), Closed> {
        self.send(to).await?;
        match self.last_line() {
            Some(line) => to.send(line).await.map_err(|_| Closed),
            None => Ok(()),
        }
    }

    /// The last line, if it has no end; it comes after all others.
    pub fn last_line(&mut self) -> Option<Line> {
        self.splitter.end()
    }

    /// The next lines, some at a time; none where no line was added. Each knows where it ends in the file, so that another `pipe`
    /// can go on from there.
    pub fn next(&mut self) -> Vec<Line> {
        let mut lines = Vec::new();
        while lines.is_empty() {
            let bytes = match self.read() {
                Ok(bytes) => bytes,
                Err(error) if self.is_unreadable || error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
                Err(error) => {
                    self.is_unreadable = true;
                    let path = self.folder.join(self.name);
                    let text = format!("warning: cannot read the output of the job in {}: {error}", path.display());
                    return vec![Line { source: Source::Engine, text, end: None }];
                }
            };
            if bytes.is_empty() {
                break;
            }
            for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
                self.offset += piece.len() as u64;
                let end = Some(self.offset);
                lines.extend(self.splitter.push(piece).into_iter().map(|line| Line { end, ..line }));
            }
        }
        lines
    }

    fn read(&self) -> std::io::Result<Vec<u8>> {
        let mut file = job_file::open(&self.folder, self.name)?;
        file.seek(SeekFrom::Start(self.offset))?;
        let mut bytes = Vec::new();
        file.take(PIECE).read_to_end(&mut bytes)?;
        Ok(bytes)
    }
}

/// Gives the disk back what was read of an output, where the file system can: it is in the log.
pub fn release(folder: &Path, read: u64) {
    let flags = OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    if let Ok(file) = rustix::fs::openat(CWD, folder.join(JobFolder::OUTPUT), flags, Mode::empty())
        && read > 0
    {
        fallocate(&file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0, read).ok();
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};
    use std::time::Instant;

    use super::*;

    /// Runs a shell script under the real first process; its exit code, its output and its record.
    fn run(options: &[&str], script: &str) -> (Option<i32>, String, JobEnd) {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).display().to_string();
        let status = Command::new(program(folder.path()).unwrap())
            .args(["--output", &path(JobFolder::OUTPUT), "--record", &path(JobFolder::END)])
            .args(options)
            .args(["--", "sh", "-c", script])
            .env("FOLDER", folder.path())
            .stdout(Stdio::null())
            .status()
            .unwrap();
        let mut output = Output::new(folder.path().to_owned(), JobFolder::OUTPUT, None);
        let mut lines = output.next();
        lines.extend(output.splitter.end());
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
    fn the_record_does_not_wait_for_a_pipe_of_the_job() {
        let (code, _, end) = run(&[], "mkfifo \"$FOLDER/end.json.new\"; exit 3");
        assert_eq!((code, end.exit_code), (Some(3), 3));
    }

    #[test]
    fn a_job_is_recorded() {
        let (code, text, end) = run(&[], "echo one; echo two >&2; printf three; exit 7");
        assert_eq!((code, text.as_str()), (Some(7), "one|two|three"));
        assert_eq!(end, JobEnd { exit_code: 7, oom_kills: 0, error: None });
        assert_eq!(run(&[], "kill -9 $$").0, Some(137));
    }

    #[test]
    fn a_program_that_is_not_there_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let record = folder.path().join(JobFolder::END);
        let mut command = Command::new(program(folder.path()).unwrap());
        let status =
            command.arg("--record").arg(&record).args(["--", "/no/such"]).stderr(Stdio::null()).status().unwrap();
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
    fn a_job_that_does_not_end_is_ended() {
        let script = "trap '' TERM; kill -TERM $PPID; while sleep 0.1; do :; done";
        assert_eq!(run(&["--signals", "group", "--stop-timeout", "1"], script).0, Some(137));
        // A signal reaches a leader that has not set itself up for it.
        assert_eq!(run(&["--signals", "leader"], "kill -TERM $PPID; exec sleep 5").0, Some(143));
    }

    #[test]
    fn what_was_read_is_given_back() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join(JobFolder::OUTPUT), "one\ntwo\n").unwrap();
        release(folder.path(), 4);
        let read = LogPosition { output: 4, ..LogPosition::default() };
        let mut output = Output::new(folder.path().to_owned(), JobFolder::OUTPUT, Some(&read));
        assert_eq!(output.next(), [Line { source: Source::Job, text: "two".to_owned(), end: Some(8) }]);
        assert_eq!(output.next(), []);
    }
}
