//! Brings back what a job writes, while it runs. A connection that breaks is made again, and continues where it was.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, UNIX_EPOCH};

use pipe_spec::run::JobFolder;
use rustix::fs::OFlags;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::client::Cluster;
use super::frames::{Frame, Kind};
use super::plan::{INCOMING, Plan};
use super::pod;
use super::upload::{MAX_DEPTH, changed, last_words, soon};

/// The files that grow: those of the first process and the trainer.
const STREAMS: [&str; 2] = [JobFolder::OUTPUT, JobFolder::EVENTS];

/// A connection that gives no sign of life for so long is broken: its other end gives one every 5 seconds.
const ALIVE_TIMEOUT: Duration = Duration::from_secs(20);

/// Between two tries to connect: at first, and at most.
const FIRST_INTERVAL: Duration = Duration::from_millis(500);
const LAST_INTERVAL: Duration = Duration::from_secs(5);

const PIECE: usize = 1 << 16;

/// How far the files of a job have come.
#[derive(Debug, Default)]
pub struct Progress {
    /// Whether there is a connection.
    is_connected: AtomicBool,
    /// Whether all files are here.
    is_complete: AtomicBool,
    /// Why the last connection broke.
    problem: Mutex<String>,
}

impl Progress {
    pub fn is_connected(&self) -> bool {
        self.is_connected.load(Ordering::Relaxed)
    }

    pub fn is_complete(&self) -> bool {
        self.is_complete.load(Ordering::Relaxed)
    }

    pub fn problem(&self) -> String {
        self.problem.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Fetches until all is here. `name` is the pod that has the files; `is_over` where it is not that of the job.
pub async fn fetch(cluster: Cluster, plan: Plan, name: String, is_over: bool, progress: Arc<Progress>) {
    let mut interval = FIRST_INTERVAL;
    loop {
        let fetched = connection(&cluster, &plan, &name, is_over, &progress).await;
        let was_connected = progress.is_connected.swap(false, Ordering::Relaxed);
        match fetched {
            Ok(()) => {
                progress.is_complete.store(true, Ordering::Relaxed);
                return;
            }
            Err(error) => {
                tracing::debug!("fetching the files of {name}: {error}");
                *progress.problem.lock().unwrap_or_else(PoisonError::into_inner) = error.to_string();
            }
        }
        interval = if was_connected { FIRST_INTERVAL } else { (interval * 2).min(LAST_INTERVAL) };
        tokio::time::sleep(interval).await;
    }
}

async fn connection(cluster: &Cluster, plan: &Plan, name: &str, is_over: bool, progress: &Progress) -> io::Result<()> {
    let words = plan.send_words(&pod::program(), &STREAMS, is_over);
    let failed = |said: &str| io::Error::other(said.to_owned());
    let process = tokio::time::timeout(ALIVE_TIMEOUT, cluster.exec(name, pod::FILES, words)).await;
    let mut process = process.map_err(io::Error::other)?.map_err(|failure| failed(failure.said()))?;
    let (Some(mut input), Some(mut output)) = (process.stdin(), process.stdout()) else {
        return Err(io::ErrorKind::BrokenPipe.into());
    };
    let taken = take_all(plan, &mut input, &mut output, progress).await;
    match taken {
        Err(error) => Err(last_words(&mut process).await.map_or(error, io::Error::other)),
        taken => taken,
    }
}

async fn take_all(
    plan: &Plan,
    input: &mut (impl AsyncWrite + Unpin),
    output: &mut (impl AsyncRead + Unpin),
    progress: &Progress,
) -> io::Result<()> {
    soon(async {
        for frame in present(plan) {
            frame.write(input).await?;
        }
        Frame::of(Kind::End, "").write(input).await?;
        input.flush().await
    })
    .await?;
    loop {
        let frame = tokio::time::timeout(ALIVE_TIMEOUT, Frame::read(output)).await.map_err(io::Error::other)??;
        progress.is_connected.store(true, Ordering::Relaxed);
        if frame.kind == Kind::End {
            break;
        }
        take(plan, &frame, output).await?;
    }
    // With this the pod may go.
    soon(async {
        Frame::of(Kind::End, "").write(input).await?;
        input.flush().await
    })
    .await?;
    let mut rest = Vec::new();
    tokio::time::timeout(ALIVE_TIMEOUT, output.read_to_end(&mut rest)).await.ok();
    Ok(())
}

/// The files that are here already. What came only in part before is removed.
fn present(plan: &Plan) -> Vec<Frame> {
    let mut frames = Vec::new();
    for written in &plan.written {
        below(&written.host, &written.name, 0, &mut frames);
    }
    frames.retain(|frame| !plan.is_of_machine(&frame.path));
    for frame in frames.iter_mut().filter(|frame| plan.is_growing(&frame.path)) {
        frame.size = plan.local(&frame.path).map_or(0, |(_, path)| whole_lines(&path, frame.size));
    }
    frames
}

/// The size of a file without half a line at its end: another `pipe` may end that line in another way.
fn whole_lines(path: &Path, size: u64) -> u64 {
    let read = || {
        let mut file = File::open(path)?;
        let mut end = size;
        let mut piece = vec![0; PIECE];
        while end > 0 {
            let begin = end.saturating_sub(PIECE as u64);
            let piece = &mut piece[..(end - begin) as usize];
            file.seek(SeekFrom::Start(begin))?;
            file.read_exact(piece)?;
            if let Some(last) = piece.iter().rposition(|byte| *byte == b'\n') {
                return Ok(begin + last as u64 + 1);
            }
            end = begin;
        }
        io::Result::Ok(0)
    };
    read().unwrap_or(0)
}

fn below(folder: &Path, path: &str, depth: usize, to: &mut Vec<Frame>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let (Ok(name), Ok(meta)) = (entry.file_name().into_string(), entry.metadata()) else { continue };
        let path = format!("{path}/{name}");
        if name.ends_with(INCOMING) {
            let removed =
                if meta.is_dir() { std::fs::remove_dir_all(entry.path()) } else { std::fs::remove_file(entry.path()) };
            removed.unwrap_or_else(|error| tracing::debug!("{}: {error}", entry.path().display()));
        } else if meta.is_dir() && depth < MAX_DEPTH {
            below(&entry.path(), &path, depth + 1, to);
        } else if meta.is_file() {
            to.push(Frame { size: meta.len(), changed: changed(&meta), ..Frame::of(Kind::Have, path) });
        }
    }
}

/// Where files of a folder lie until all of them are here.
fn staged(folder: &Path) -> PathBuf {
    let name = folder.file_name().unwrap_or_default().to_string_lossy();
    folder.with_file_name(format!(".{name}{INCOMING}"))
}

/// Takes a frame and its data.
async fn take(plan: &Plan, frame: &Frame, from: &mut (impl AsyncRead + Unpin)) -> io::Result<()> {
    if frame.kind == Kind::Alive {
        return Ok(());
    }
    let found = plan.local(&frame.path).filter(|_| frame.is_inside() && !plan.is_of_machine(&frame.path));
    let (written, path) = found.ok_or_else(|| io::Error::other(format!("unexpected file {}", frame.path)))?;
    let base = &written.host;
    match frame.kind {
        Kind::Append => append(frame, &real(base, &path)?, from).await,
        Kind::File | Kind::Program | Kind::Sparse => {
            // Complete or not there.
            let checkpoint = plan.checkpoint_of(&frame.path).and_then(|name| Some(plan.local(name)?.1));
            let rest = checkpoint.as_ref().and_then(|folder| path.strip_prefix(folder).ok());
            let path = checkpoint.as_ref().zip(rest).map_or(path.clone(), |(folder, rest)| staged(folder).join(rest));
            whole(frame, &real(base, &path)?, from).await
        }
        Kind::Complete => complete(&real(base, &path)?),
        Kind::Removed => {
            let path = real(base, &path)?;
            std::fs::remove_dir_all(staged(&path))
                .or_else(|error| if is_no_folder(&error) { Ok(()) } else { Err(error) })?;
            match path.symlink_metadata() {
                Ok(meta) if meta.is_dir() => std::fs::remove_dir_all(&path),
                _ => std::fs::remove_file(&path).or_else(absent),
            }
        }
        Kind::Folder => std::fs::create_dir_all(real(base, &path)?),
        Kind::Have | Kind::End | Kind::Alive => Ok(()),
    }
}

fn is_no_folder(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

/// The path of something below `base`, whose folder is there. A link that a job of another engine has left on the way gives way to a
/// folder: the pod has one.
fn real(base: &Path, path: &Path) -> io::Result<PathBuf> {
    std::fs::create_dir_all(base)?;
    let below = path.strip_prefix(base).ok().and_then(Path::parent).unwrap_or(Path::new(""));
    let mut folder = base.to_owned();
    for part in below.components() {
        folder.push(part);
        match folder.symlink_metadata() {
            Ok(meta) if meta.is_dir() => {}
            found => {
                if found.is_ok() {
                    std::fs::remove_file(&folder)?;
                }
                std::fs::create_dir(&folder)?;
            }
        }
    }
    Ok(path.to_owned())
}

fn absent(error: io::Error) -> io::Result<()> {
    if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) }
}

/// A folder all of whose files are here.
fn complete(path: &Path) -> io::Result<()> {
    match path.symlink_metadata() {
        Ok(meta) if meta.is_dir() => std::fs::remove_dir_all(path)?,
        Ok(_) => std::fs::remove_file(path)?,
        Err(_) => {}
    }
    std::fs::rename(staged(path), path)?;
    File::open(path.parent().unwrap_or(path))?.sync_all()
}

async fn append(frame: &Frame, path: &Path, from: &mut (impl AsyncRead + Unpin)) -> io::Result<()> {
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
    let mut file = File::options().create(true).truncate(false).write(true).custom_flags(flags).open(path)?;
    if frame.offset < file.metadata()?.len() {
        file.set_len(frame.offset)?;
    }
    file.seek(SeekFrom::Start(frame.offset))?;
    copy(frame.size, from, &mut file).await
}

async fn whole(frame: &Frame, path: &Path, from: &mut (impl AsyncRead + Unpin)) -> io::Result<()> {
    let new = staged(path);
    std::fs::remove_file(&new).or_else(absent)?;
    let mut file = File::create_new(&new)?;
    match frame.kind {
        Kind::Sparse => pieces(frame.size, from, &mut file).await?,
        _ => copy(frame.size, from, &mut file).await?,
    }
    let changed = u64::try_from(frame.changed).unwrap_or(0);
    file.set_modified(UNIX_EPOCH + Duration::from_nanos(changed))?;
    file.sync_all()?;
    std::fs::rename(new, path)
}

/// The pieces of a file with holes.
async fn pieces(end: u64, from: &mut (impl AsyncRead + Unpin), to: &mut File) -> io::Result<()> {
    loop {
        let mut numbers = [[0; 8]; 2];
        let read = from.read_exact(numbers.as_flattened_mut());
        tokio::time::timeout(ALIVE_TIMEOUT, read).await.map_err(io::Error::other)??;
        let [offset, size] = numbers.map(u64::from_le_bytes);
        if size == 0 {
            return to.set_len(end);
        }
        if offset.checked_add(size).is_none_or(|stop| stop > end) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        to.seek(SeekFrom::Start(offset))?;
        copy(size, from, to).await?;
    }
}

async fn copy(mut left: u64, from: &mut (impl AsyncRead + Unpin), to: &mut File) -> io::Result<()> {
    let mut piece = vec![0; PIECE];
    while left > 0 {
        let most = left.min(PIECE as u64) as usize;
        let read =
            tokio::time::timeout(ALIVE_TIMEOUT, from.read(&mut piece[..most])).await.map_err(io::Error::other)??;
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        to.write_all(&piece[..read])?;
        left -= read as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::process::Stdio;

    use pipe_spec::pipeline::Container;

    use super::*;
    use crate::engine::kubernetes::plan::{CONTROL, DATA};
    use crate::engine::kubernetes::section::Pods;
    use crate::engine::{Launch, Mounts, first_process};

    fn plan(folder: &Path) -> Plan {
        let pair = |name: &str| (folder.join(name), PathBuf::from("/run/pipe").join(name));
        let mounts = Mounts { writable: vec![pair("checkpoints"), pair("job")], ..Mounts::default() };
        Plan::new(
            &Launch { job_folder: pair("job"), mounts, ..Launch::example(&Container::default(), 1) },
            &Pods::default(),
        )
    }

    async fn give(plan: &Plan, kind: Kind, path: &str, offset: u64, text: &str) -> io::Result<()> {
        let frame = Frame { size: text.len() as u64, offset, ..Frame::of(kind, path) };
        take(plan, &frame, &mut text.as_bytes()).await
    }

    #[tokio::test]
    async fn a_checkpoint_is_complete_or_not_there() {
        let folder = tempfile::tempdir().unwrap();
        let plan = plan(folder.path());
        give(&plan, Kind::File, "checkpoints/step-1/a/b", 0, "12").await.unwrap();
        let checkpoint = folder.path().join("checkpoints/step-1");
        assert!(!checkpoint.exists());
        give(&plan, Kind::Complete, "checkpoints/step-1", 0, "").await.unwrap();
        assert_eq!(std::fs::read(checkpoint.join("a/b")).unwrap(), b"12");
        assert_eq!(present(&plan).len(), 1);
        give(&plan, Kind::Removed, "checkpoints/step-1", 0, "").await.unwrap();
        assert!(!checkpoint.exists());
    }

    #[tokio::test]
    async fn links_that_another_job_has_left_are_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let (plan, outside) = (plan(folder.path()), folder.path().join("outside"));
        std::fs::create_dir_all(&outside).unwrap();
        std::fs::write(outside.join("output"), "own").unwrap();
        std::fs::create_dir_all(folder.path().join("job")).unwrap();
        symlink(&outside, folder.path().join("job/deep")).unwrap();
        symlink(outside.join("output"), folder.path().join("job/output")).unwrap();
        give(&plan, Kind::File, "job/deep/x", 0, "12").await.unwrap();
        assert_eq!(std::fs::read(folder.path().join("job/deep/x")).unwrap(), b"12");
        assert!(give(&plan, Kind::Append, "job/output", 0, "x").await.is_err());
        let left: Vec<_> = std::fs::read_dir(&outside).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, ["output"]);
        assert_eq!(std::fs::read(outside.join("output")).unwrap(), b"own");
    }

    /// A command that has ended, in folders that stand for the volumes of its pod.
    struct Ended {
        folder: tempfile::TempDir,
        plan: Plan,
    }

    impl Ended {
        fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            let pair = |name: &str| (folder.path().join("here").join(name), PathBuf::from("/run/pipe").join(name));
            let mounts = Mounts { writable: vec![pair("output"), pair("job")], ..Mounts::default() };
            let launch = Launch {
                job_folder: pair("job"),
                mounts,
                checkpoints: Some((".".to_owned(), "checkpoint-*".to_owned())),
                ..Launch::example(&Container::default(), 1)
            };
            Self::of(folder, &launch)
        }

        /// A job that has supervised a run.
        fn supervisor() -> Self {
            let folder = tempfile::tempdir().unwrap();
            let here = folder.path().join("here/run");
            let job_folder = (here.join(".supervisor/job"), PathBuf::from("/run/pipe/job"));
            let mounts = Mounts { writable: vec![(here.clone(), here), job_folder.clone()], ..Mounts::default() };
            let launch = Launch {
                attempt: 0,
                job_folder,
                mounts,
                checkpoints: Some(("checkpoints".to_owned(), "*".to_owned())),
                ..Launch::example(&Container::default(), 1)
            };
            Self::of(folder, &launch)
        }

        fn of(folder: tempfile::TempDir, launch: &Launch) -> Self {
            let ended = Self { plan: Plan::new(launch, &Pods::default()), folder };
            std::fs::create_dir_all(ended.folder.path().join("control")).unwrap();
            std::fs::write(ended.folder.path().join("control/lock"), "").unwrap();
            ended
        }

        fn there(&self, path: &str) -> PathBuf {
            self.folder.path().join("data").join(&self.plan.folder).join(self.plan.attempt_folder()).join(path)
        }

        fn here(&self, path: &str) -> PathBuf {
            self.folder.path().join("here").join(path)
        }

        fn write(&self, path: &str) {
            std::fs::create_dir_all(self.there(path).parent().unwrap()).unwrap();
            std::fs::write(self.there(path), path).unwrap();
        }

        /// The real process of the pod.
        fn send(&self) -> tokio::process::Child {
            let program = first_process::program(self.folder.path()).unwrap();
            let words = self.plan.send_words(program.to_str().unwrap(), &STREAMS, false);
            let local = |word: &String| {
                let at = |name: &str| self.folder.path().join(name).display().to_string();
                word.replace(DATA, &at("data")).replace(CONTROL, &at("control"))
            };
            let words: Vec<String> = words.iter().map(local).collect();
            let mut command = tokio::process::Command::new(&words[0]);
            command.args(&words[1..]).kill_on_drop(true).stdin(Stdio::piped()).stdout(Stdio::piped());
            first_process::start(|| command.spawn()).unwrap()
        }

        async fn fetch(&self) -> io::Result<()> {
            let mut process = self.send();
            let (mut input, mut output) = (process.stdin.take().unwrap(), process.stdout.take().unwrap());
            take_all(&self.plan, &mut input, &mut output, &Progress::default()).await
        }
    }

    #[tokio::test]
    async fn everything_comes_and_what_was_removed_goes() {
        let job = Ended::new();
        for path in
            ["output/a", "output/old", "output/checkpoint-5/weights", "output/checkpoint-5/state", "job/end.json"]
        {
            job.write(path);
        }
        symlink("/etc/passwd", job.there("output/checkpoint-5/planted")).unwrap();
        job.fetch().await.unwrap();
        assert_eq!(
            std::fs::read_to_string(job.here("output/checkpoint-5/state")).unwrap(),
            "output/checkpoint-5/state"
        );
        assert!(job.folder.path().join("control/fetched").exists());
        // The same again after a connection that broke, with what has changed since.
        for path in ["output/old", "output/checkpoint-5/state"] {
            std::fs::remove_file(job.there(path)).unwrap();
        }
        job.write("output/checkpoint-6/weights");
        job.fetch().await.unwrap();
        let mut left: Vec<_> = present(&job.plan).into_iter().map(|frame| frame.path).collect();
        left.sort();
        let wanted = ["job/end.json", "output/a", "output/checkpoint-5/weights", "output/checkpoint-6/weights"];
        assert_eq!(left, wanted);
    }

    #[tokio::test]
    async fn of_a_supervised_run_everything_comes_but_what_each_machine_has_for_itself() {
        let job = Ended::supervisor();
        for path in ["run/run.json", "run/checkpoints/step-1/a", "run/.owner", "run/notes.json", "job/end.json"] {
            job.write(path);
        }
        job.write("run/track/events.out");
        std::fs::write(job.there("run/events.jsonl"), "one\ntwo\n").unwrap();
        let own = |path: &str, text: &str| {
            std::fs::create_dir_all(job.here(path).parent().unwrap()).unwrap();
            std::fs::write(job.here(path), text).unwrap();
        };
        own("run/.owner", "me");
        own("run/.supervisor/pipe.log", "following\n");
        own("run/notes.json", "mine");
        own("run/old.json", "gone since");
        // Half a line of a `pipe` that was killed.
        own("run/events.jsonl", "one\ntw");
        let inode = std::os::unix::fs::MetadataExt::ino(&job.here("run/events.jsonl").metadata().unwrap());
        job.fetch().await.unwrap();
        let read = |path: &str| std::fs::read_to_string(job.here(path)).unwrap();
        assert_eq!((read("run/.owner"), read("run/notes.json")), ("me".to_owned(), "mine".to_owned()));
        assert_eq!(read("run/events.jsonl"), "one\ntwo\n");
        assert_eq!(std::os::unix::fs::MetadataExt::ino(&job.here("run/events.jsonl").metadata().unwrap()), inode);
        assert_eq!((read("run/run.json"), read("run/checkpoints/step-1/a").len()), ("run/run.json".to_owned(), 24));
        assert_eq!(read("run/.supervisor/job/end.json"), "job/end.json");
        assert!(!job.here("run/old.json").exists() && job.here("run/track/events.out").exists());
        assert!(job.here("run/.supervisor/pipe.log").exists());
        // The next job gets the rest.
        let carried: Vec<_> = crate::engine::kubernetes::upload::list(&job.plan).unwrap();
        assert!(carried.iter().all(|file| !file.path.contains("/run/.") && !file.path.ends_with("notes.json")));
        assert!(carried.iter().any(|file| file.path.ends_with("run/checkpoints/step-1/a")));
    }

    /// So that nothing is taken for finished whose files broke off.
    #[tokio::test]
    async fn a_checkpoint_is_told_complete_and_the_record_of_the_end_comes_last() {
        let job = Ended::new();
        for path in
            ["output/config.json", "output/weights", "output/checkpoint-5/a", "output/checkpoint-5/b", "job/end.json"]
        {
            job.write(path);
        }
        let mut process = job.send();
        let (mut input, mut output) = (process.stdin.take().unwrap(), process.stdout.take().unwrap());
        Frame::of(Kind::End, "").write(&mut input).await.unwrap();
        let mut told = Vec::new();
        loop {
            let frame = Frame::read(&mut output).await.unwrap();
            let mut data = vec![0; frame.size as usize];
            output.read_exact(&mut data).await.unwrap();
            told.push((frame.kind, frame.path));
            if frame.kind == Kind::End {
                break;
            }
        }
        let end: Vec<_> = told[told.len() - 3..].iter().map(|(kind, path)| (*kind, path.as_str())).collect();
        let wanted = [(Kind::Complete, "output/checkpoint-5"), (Kind::File, "job/end.json"), (Kind::End, "")];
        assert_eq!(end, wanted, "{told:?}");
        // Without the word of `pipe` the pod keeps its files.
        drop(input);
        assert!(!process.wait().await.unwrap().success());
        assert!(!job.folder.path().join("control/fetched").exists());
    }

    #[tokio::test]
    async fn holes_take_no_room() {
        let folder = tempfile::tempdir().unwrap();
        let plan = plan(folder.path());
        let frame = Frame { size: 1 << 40, ..Frame::of(Kind::Sparse, "job/a") };
        let piece = |offset: u64, text: &str| {
            [&offset.to_le_bytes()[..], &(text.len() as u64).to_le_bytes(), text.as_bytes()].concat()
        };
        let bytes = [piece(1 << 30, "x"), piece(0, "")].concat();
        take(&plan, &frame, &mut bytes.as_slice()).await.unwrap();
        assert_eq!(folder.path().join("job/a").metadata().unwrap().len(), 1 << 40);
        let outside = [piece(1 << 40, "x"), piece(0, "")].concat();
        assert!(take(&plan, &frame, &mut outside.as_slice()).await.is_err());
    }

    #[tokio::test]
    async fn a_file_that_grows_continues_where_it_was() {
        let folder = tempfile::tempdir().unwrap();
        let plan = plan(folder.path());
        for (offset, text) in [(0, "one\n"), (4, "two\n"), (4, "2\n")] {
            give(&plan, Kind::Append, "job/output", offset, text).await.unwrap();
        }
        assert_eq!(std::fs::read(folder.path().join("job/output")).unwrap(), b"one\n2\n");
        for path in ["../x", "job/../../x", "other/x", "job"] {
            assert!(give(&plan, Kind::File, path, 0, "x").await.is_err(), "{path}");
        }
        // A file that ends early is not taken.
        let frame = Frame { size: 9, ..Frame::of(Kind::File, "job/end.json") };
        assert!(take(&plan, &frame, &mut b"short".as_slice()).await.is_err());
        assert!(!folder.path().join("job/end.json").exists());
    }
}
