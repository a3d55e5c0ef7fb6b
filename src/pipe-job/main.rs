//! `pipe-job`, the first process of every job: it starts the program of the job, passes signals on to it, ends whatever the program
//! leaves behind, and writes down how it all ended. `pipe` carries this program inside itself, as a static one that runs in any image.
//!
//! `pipe-job [--output FILE] [--record FILE] [--signals leader|group] [--stop-timeout SECONDS] [--lock FILE] -- PROGRAM ARGS...`
//!
//! `--words FILE` in place of `-- PROGRAM ARGS...` reads them from a file, each with a zero byte behind it, as `--env FILE` reads variables. In a pod it also carries the
//! files of the job: `pipe-job await|receive|files|send`.

mod frames;
mod kept;
mod receive;
mod send;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, PipeReader, Read, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use libc::{SIGCHLD, SIGHUP, SIGINT, SIGKILL, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, c_int, pid_t};

/// How long the processes that a program left behind may go on, unless the job was asked to stop.
const REST_TIMEOUT: Duration = Duration::from_secs(5);

/// Between two looks at processes that have to end.
const INTERVAL: Duration = Duration::from_millis(20);

/// Between two tries to write output to a disk that is full.
const FULL_DISK_INTERVAL: Duration = Duration::from_millis(200);

/// How long its last output waits for room on a full disk once all processes of a job that was asked to stop have ended.
const FULL_DISK_TIMEOUT: Duration = Duration::from_secs(20);

/// How long output may still come once all processes of the job have ended.
const OUTPUT_TIMEOUT: Duration = Duration::from_secs(5);

/// The signals that are passed on. SIGQUIT is not: it ends all processes of the job at once.
const PASSED_ON: [c_int; 5] = [SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2];

/// The exit codes of a shell for a program that is not there, and for one that cannot be run.
const NOT_FOUND: u8 = 127;
const NOT_RUN: u8 = 126;

fn main() -> std::process::ExitCode {
    if let Some(code) = carry_files() {
        return code;
    }
    let Some(options) = Options::parse(std::env::args_os().skip(1)) else {
        eprintln!(
            "usage: pipe-job [--output FILE] [--record FILE] [--signals leader|group] [--stop-timeout SECONDS] -- PROGRAM ARGS..."
        );
        return 2.into();
    };
    // Held until this process ends.
    let _lock = options.lock.as_ref().map(|path| send::hold_lock(path));
    // On a volume there may be that of an earlier pod.
    let _ = options.record.as_ref().map(std::fs::remove_file);
    let kills_before = oom_kills();
    let record = match Job::start(&options) {
        Ok(job) => {
            let (code, stop_requested) = job.run_to_end();
            let oom_kills = oom_kills().zip(kills_before).map_or(0, |(now, before)| now.saturating_sub(before));
            Record { code, oom_kills, error: None, stop_requested }
        }
        Err(error) => {
            let code = if error.kind() == io::ErrorKind::NotFound { NOT_FOUND } else { NOT_RUN };
            eprintln!("cannot start {}: {error}", options.program.to_string_lossy());
            Record { code, oom_kills: 0, error: error.raw_os_error(), stop_requested: false }
        }
    };
    if let Some(path) = &options.record
        && let Err(error) = record.write(path)
    {
        eprintln!("cannot write {}: {error}", path.display());
    }
    record.code.into()
}

/// The modes that carry files; nothing where a program is to be run.
fn carry_files() -> Option<std::process::ExitCode> {
    let mut args = std::env::args_os().skip(1);
    let mode = match args.next()?.to_str()? {
        "await" => receive::wait,
        "receive" => receive::receive,
        "files" => send::stay,
        "send" => send::send,
        _ => return None,
    };
    Some(match frames::Flags::parse(args).and_then(|flags| mode(&flags)) {
        Ok(()) => 0.into(),
        Err(error) => {
            eprintln!("cannot carry the files of the job: {error}");
            1.into()
        }
    })
}

struct Options {
    /// The file that takes what the job writes to stdout and stderr; else they stay as they are.
    output: Option<PathBuf>,
    record: Option<PathBuf>,
    signals: Signals,
    /// How long the job may take to end after the first request; without it, as long as it likes.
    stop_timeout: Option<Duration>,
    /// The file that is locked for as long as this process lives.
    lock: Option<PathBuf>,
    /// Variables of the program, in place of those of this process where they have the same name.
    env: Vec<(OsString, OsString)>,
    program: OsString,
    args: Vec<OsString>,
}

/// Who gets the signals that arrive here.
enum Signals {
    Leader,
    /// The process group of the leader: it may be a shell that passes nothing on.
    Group,
}

impl Options {
    fn parse(mut args: impl Iterator<Item = OsString>) -> Option<Self> {
        let (mut output, mut record, mut signals, mut stop_timeout) = (None, None, Signals::Leader, None);
        let (mut lock, mut env) = (None, Vec::new());
        let mut words = loop {
            let flag = args.next()?;
            if flag == "--" {
                break args.collect::<Vec<_>>().into_iter();
            }
            let value = args.next()?;
            match flag.to_str()? {
                "--output" => output = Some(value.into()),
                "--record" => record = Some(value.into()),
                "--signals" => {
                    signals = match value.to_str()? {
                        "leader" => Signals::Leader,
                        "group" => Signals::Group,
                        _ => return None,
                    }
                }
                "--stop-timeout" => stop_timeout = Some(Duration::from_secs(value.to_str()?.parse().ok()?)),
                "--lock" => lock = Some(value.into()),
                "--env" => env = read_words(Path::new(&value))?.iter().filter_map(variable).collect(),
                "--words" => break read_words(Path::new(&value))?.into_iter(),
                _ => return None,
            }
        };
        Some(Self { output, record, signals, stop_timeout, lock, env, program: words.next()?, args: words.collect() })
    }
}

/// The words of a file, each with a zero byte behind it.
fn read_words(path: &Path) -> Option<Vec<OsString>> {
    let text = std::fs::read(path).ok()?;
    let words = text.split_inclusive(|byte| *byte == 0).filter_map(|word| word.strip_suffix(b"\0"));
    Some(words.map(|word| OsString::from_vec(word.to_vec())).collect())
}

/// A variable as `NAME=VALUE`.
fn variable(text: &OsString) -> Option<(OsString, OsString)> {
    let bytes = text.as_bytes();
    let at = bytes.iter().position(|byte| *byte == b'=')?;
    Some((OsString::from_vec(bytes[..at].to_vec()), OsString::from_vec(bytes[at + 1..].to_vec())))
}

struct Job<'a> {
    options: &'a Options,
    /// The process of the program itself.
    leader: pid_t,
    /// How the leader ended, and when.
    ended: Option<(u8, Instant)>,
    /// When the job was asked to stop while its leader ran. Later requests change nothing: what is left is ended soon anyway.
    stop_requested: Option<Instant>,
    /// Copies what the job writes to the file of its output.
    copier: Option<JoinHandle<()>>,
}

impl<'a> Job<'a> {
    /// From here on signals wait until they are read, and orphans of the job become children of this process.
    fn start(options: &'a Options) -> io::Result<Self> {
        block_signals();
        // SAFETY: prctl with these arguments touches no memory.
        unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) };
        let mut command = Command::new(&options.program);
        command.args(&options.args).envs(options.env.iter().map(|(name, value)| (name, value))).process_group(0);
        let mut output = None;
        if let Some(path) = &options.output {
            let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
            let file = File::options().create(true).append(true).custom_flags(flags).open(path)?;
            // A program that opens /dev/stderr must not empty the file: it gets a pipe.
            let (reader, writer) = io::pipe()?;
            command.stdout(writer.try_clone()?).stderr(writer);
            output = Some((reader, file));
            println!("the output of this job is in {}", path.display());
        }
        set_up_child(&mut command);
        // Dropped without waiting: `reap` takes all children.
        let child = command.spawn()?;
        // The command holds the other end of the pipe.
        drop(command);
        let copier = output.map(|(reader, file)| std::thread::spawn(move || copy(reader, file)));
        Ok(Self { options, leader: child.id().cast_signed(), ended: None, stop_requested: None, copier })
    }

    /// Waits for the leader and for what it leaves behind; returns the exit code of the leader, and whether it was asked to stop.
    fn run_to_end(mut self) -> (u8, bool) {
        while self.reap() && !self.is_overdue() {
            match self.next_signal() {
                Some(SIGQUIT) => break,
                Some(SIGCHLD) | None => {}
                Some(signal) => self.pass_on(signal),
            }
        }
        while self.reap() {
            kill_all();
            std::thread::sleep(INTERVAL);
        }
        let stop_requested = self.stop_requested.is_some();
        self.finish_output();
        (self.ended.map_or(128 + SIGKILL as u8, |(code, _)| code), stop_requested)
    }

    /// Waits until all output is in its file. A full disk is waited for; not for long once the job was asked to stop.
    fn finish_output(&mut self) {
        let Some(copier) = self.copier.take() else { return };
        let began = Instant::now();
        while !copier.is_finished() {
            let is_full = DISK_IS_FULL.load(Ordering::Relaxed);
            match self.next_signal() {
                Some(SIGQUIT) => return,
                Some(SIGTERM | SIGINT) => drop(self.stop_requested.get_or_insert_with(Instant::now)),
                _ => {}
            }
            let is_over = match self.stop_requested {
                _ if !is_full => began.elapsed() > OUTPUT_TIMEOUT,
                Some(at) => at.max(began).elapsed() > FULL_DISK_TIMEOUT,
                None => false,
            };
            if is_over {
                return;
            }
        }
    }

    /// Whether what is left of the job has had its time: after the request to stop, or after the end of the leader.
    fn is_overdue(&self) -> bool {
        match (self.stop_requested, self.ended) {
            (Some(at), _) => self.options.stop_timeout.is_some_and(|most| at.elapsed() > most),
            (None, Some((_, at))) => at.elapsed() > REST_TIMEOUT,
            (None, None) => false,
        }
    }

    /// Takes away all children that have ended; whether any are left.
    fn reap(&mut self) -> bool {
        loop {
            let mut status = 0;
            // SAFETY: waitpid writes to an integer of ours.
            match unsafe { libc::waitpid(-1, &raw mut status, libc::WNOHANG | libc::WUNTRACED) } {
                0 => return true,
                pid if pid > 0 && libc::WIFSTOPPED(status) => self.tell_of_stopped(pid),
                pid if pid == self.leader => {
                    self.ended = Some((exit_code(ExitStatus::from_raw(status)), Instant::now()))
                }
                pid if pid > 0 => {}
                _ => return false,
            }
        }
    }

    /// A program that a signal has stopped would be waited for without a word.
    fn tell_of_stopped(&self, pid: pid_t) {
        let Some(path) = self.options.output.as_ref().filter(|_| pid == self.leader) else { return };
        let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
        if let Ok(mut output) = File::options().append(true).custom_flags(flags).open(path) {
            let _ = writeln!(output, "warning: a signal stopped the program of this job; it continues after SIGCONT");
        }
    }

    /// A signal that arrived, or none for a while. Once only strays are left, or the job has to end, looks are frequent.
    fn next_signal(&self) -> Option<c_int> {
        let wait =
            if self.ended.is_some() || self.stop_requested.is_some() { INTERVAL } else { Duration::from_secs(1) };
        let timeout = libc::timespec { tv_sec: wait.as_secs() as _, tv_nsec: wait.subsec_nanos().into() };
        let set = signal_set();
        // SAFETY: the set and the timeout live as long as the call.
        let signal = unsafe { libc::sigtimedwait(&raw const set, std::ptr::null_mut(), &raw const timeout) };
        (signal > 0).then_some(signal)
    }

    fn pass_on(&mut self, signal: c_int) {
        self.reap();
        if matches!(signal, SIGTERM | SIGINT) && self.ended.is_none() {
            self.stop_requested.get_or_insert_with(Instant::now);
        }
        let target = match self.options.signals {
            Signals::Leader if self.ended.is_none() => self.leader,
            // The rest of the group may be asked too.
            Signals::Group => -self.leader,
            Signals::Leader => return,
        };
        // SAFETY: kill takes two integers. The leader's number is not free for others until `reap` has taken it, and its group's
        // number is not while a member of it lives; a group without members is nobody.
        // A stopped program hears a request to stop only once it continues.
        unsafe {
            libc::kill(target, signal);
            if self.stop_requested.is_some() {
                libc::kill(target, libc::SIGCONT);
            }
        }
    }
}

/// Whether output waits for room on its disk.
static DISK_IS_FULL: AtomicBool = AtomicBool::new(false);

/// Copies output until nobody can write any more. The job waits while its disk is full.
fn copy(mut reader: PipeReader, mut file: File) {
    let mut buffer = vec![0; 1 << 16];
    loop {
        let mut rest = match reader.read(&mut buffer) {
            Ok(0) => return,
            Ok(read) => &buffer[..read],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(_) => return,
        };
        while !rest.is_empty() {
            match file.write(rest) {
                Ok(written) => rest = &rest[written..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if matches!(error.raw_os_error(), Some(libc::ENOSPC | libc::EDQUOT)) => {
                    DISK_IS_FULL.store(true, Ordering::Relaxed);
                    std::thread::sleep(FULL_DISK_INTERVAL);
                    continue;
                }
                // Nobody can be told; the job goes on, and what it writes is taken away.
                Err(_) => rest = &[],
            }
            DISK_IS_FULL.store(false, Ordering::Relaxed);
        }
    }
}

/// The program starts with no signal blocked. The kernel kills it if this process is killed, so that nobody is left without a reaper.
fn set_up_child(command: &mut Command) {
    let (parent, set) = (std::process::id(), signal_set());
    // SAFETY: these calls are async-signal-safe and touch nothing of ours.
    unsafe {
        command.pre_exec(move || {
            libc::sigprocmask(libc::SIG_UNBLOCK, &raw const set, std::ptr::null_mut());
            if libc::prctl(libc::PR_SET_PDEATHSIG, SIGKILL) != 0 || libc::getppid().cast_unsigned() != parent {
                return Err(io::Error::last_os_error());
            }
            Ok(())
        });
    }
}

fn signal_set() -> libc::sigset_t {
    // SAFETY: a set is plain data that sigemptyset makes valid.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        for signal in PASSED_ON.into_iter().chain([SIGQUIT, SIGCHLD]) {
            libc::sigaddset(&raw mut set, signal);
        }
        set
    }
}

fn block_signals() {
    let set = signal_set();
    // SAFETY: the set is valid.
    unsafe { libc::sigprocmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) };
}

fn exit_code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(u8::MAX)
}

/// How a job ended, as `pipe_spec::run::JobEnd` reads it.
struct Record {
    code: u8,
    /// Kills by the kernel for want of memory, in the control group of this process, while the job ran.
    oom_kills: u64,
    /// Why the program could not be started.
    error: Option<i32>,
    /// Whether it was asked to stop before its program ended.
    stop_requested: bool,
}

impl Record {
    /// Written whole, under a temporary name first.
    fn write(&self, path: &Path) -> io::Result<()> {
        let error = self.error.map_or("null".to_owned(), |error| error.to_string());
        let Self { code, oom_kills, stop_requested, .. } = self;
        let text = format!(
            "{{\"exit_code\": {code}, \"oom_kills\": {oom_kills}, \"error\": {error}, \"stop_requested\": {stop_requested}}}\n"
        );
        let mut new = path.as_os_str().to_owned();
        new.push(".new");
        // The job may have put a link or a pipe there.
        let _ = std::fs::remove_file(&new);
        let mut file = File::options().write(true).create_new(true).open(&new)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&new, path)
    }
}

/// How often the kernel has killed for memory in the control group of this process (version 2 or 1).
fn oom_kills() -> Option<u64> {
    let groups = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    groups.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':');
        let (_, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
        let (root, file) = match controllers {
            "" => ("/sys/fs/cgroup", "memory.events"),
            _ if controllers.split(',').any(|name| name == "memory") => ("/sys/fs/cgroup/memory", "memory.oom_control"),
            _ => return None,
        };
        // Inside a container the path may not be visible; its own group is then mounted at the root.
        let nested = Path::new(root).join(path.trim_start_matches('/')).join(file);
        let text = std::fs::read_to_string(nested).or_else(|_| std::fs::read_to_string(Path::new(root).join(file)));
        text.ok()?.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok())
    })
}

/// Sends SIGKILL to every descendant of this process.
fn kill_all() {
    let own = std::process::id();
    if own == 1 {
        // All processes of the container but this one.
        kill(-1);
        return;
    }
    let parents = parents();
    let is_below = |mut id: u32| {
        // A chain that changes while it is read ends somewhere.
        for _ in 0..parents.len() {
            match parents.get(&id) {
                Some(parent) if *parent == own => return true,
                Some(parent) => id = *parent,
                None => return false,
            }
        }
        false
    };
    parents.keys().copied().filter(|id| is_below(*id)).for_each(|id| kill(id.cast_signed()));
}

fn kill(id: i32) {
    // SAFETY: kill takes two integers and has no memory effects.
    unsafe { libc::kill(id, libc::SIGKILL) };
}

/// The parent of each process.
fn parents() -> BTreeMap<u32, u32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let ids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    ids.filter_map(|id| Some((id, parent(&std::fs::read(format!("/proc/{id}/stat")).ok()?)?))).collect()
}

/// From the text of `/proc/ID/stat`: the second field after the name, which may hold anything.
fn parent(stat: &[u8]) -> Option<u32> {
    let name = stat.iter().rposition(|byte| *byte == b')')?;
    let rest = std::str::from_utf8(&stat[name + 1..]).ok()?;
    rest.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_hold_anything() {
        assert_eq!(parent(b"12 (a) S 7 (x) S 31 12 12"), Some(31));
        assert_eq!(parent(b"12 (sh) S 1 12 12 0"), Some(1));
        assert_eq!(parent(b"12 (sh"), None);
    }
}
