//! Carries the files of a job to its pod.

use std::collections::BTreeMap;
use std::fs::Metadata;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use kube::api::AttachedProcess;
use rustix::fs::{SeekFrom, seek};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncSeekExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::watch;

use super::client::{Cluster, Failure};
use super::frames::{Frame, Kind};
use super::plan::Plan;
use super::pod;
use super::state::Stage;

/// Folders in folders that are followed.
pub const MAX_DEPTH: usize = 64;

/// How long a pod may take no bytes, or say nothing, before the connection is taken to be broken.
const SILENT_TIMEOUT: Duration = Duration::from_secs(300);

/// How long the last words of a process may take.
const WORDS_TIMEOUT: Duration = Duration::from_secs(2);

/// Between two signs of life while the pods of other nodes get their files.
const ALIVE_INTERVAL: Duration = Duration::from_secs(5);

/// How long a pod has its node before the reason is given why that may never end.
const HELD_TIMEOUT: Duration = Duration::from_secs(120);

/// Bytes that are read at once.
const PIECE: usize = 1 << 16;

/// A file or folder of this machine that a pod gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Carried {
    pub host: PathBuf,
    /// Below the folder of the run.
    pub path: String,
    pub size: u64,
    pub changed: i64,
    pub kind: Kind,
}

/// Everything that the pod of a job needs.
pub fn list(plan: &Plan) -> io::Result<Vec<Carried>> {
    let mut found = given(plan)?;
    for written in &plan.written {
        let path = format!("{}/{}", plan.attempt_folder(), written.name);
        found.push(folder(&written.host, &path));
    }
    for written in plan.carried().filter(|written| written.host.exists()) {
        let path = format!("{}/{}", plan.attempt_folder(), written.name);
        add(&written.host, &path, Links::Skip, 0, &mut found)?;
    }
    let own = format!("{}/", plan.attempt_folder());
    found.retain(|file| file.path.strip_prefix(&own).is_none_or(|path| !plan.is_of_machine(path)));
    Ok(found)
}

/// The data, models and mounts of a job.
pub fn given(plan: &Plan) -> io::Result<Vec<Carried>> {
    let mut found = Vec::new();
    for given in &plan.given {
        add(&given.host, &given.stored, Links::Follow, 0, &mut found)?;
    }
    Ok(found)
}

/// Models of the hub are folders of links. A link that a job has written may lead to anything of this machine.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Links {
    Follow,
    Skip,
}

fn folder(host: &Path, path: &str) -> Carried {
    Carried { host: host.to_owned(), path: path.to_owned(), size: 0, changed: 0, kind: Kind::Folder }
}

fn add(host: &Path, path: &str, links: Links, depth: usize, to: &mut Vec<Carried>) -> io::Result<()> {
    let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", host.display()));
    let meta = if links == Links::Follow { host.metadata() } else { host.symlink_metadata() }.map_err(named)?;
    if meta.is_file() {
        let kind = match meta.permissions().mode() & 0o100 {
            0 if meta.blocks().saturating_mul(512) < meta.len() => Kind::Sparse,
            0 => Kind::File,
            _ => Kind::Program,
        };
        to.push(Carried {
            host: host.to_owned(),
            path: path.to_owned(),
            size: meta.len(),
            changed: changed(&meta),
            kind,
        });
    } else if meta.is_dir() && depth < MAX_DEPTH {
        to.push(folder(host, path));
        for entry in std::fs::read_dir(host).map_err(named)? {
            let entry = entry.map_err(named)?;
            let Ok(name) = entry.file_name().into_string() else { continue };
            // A link to nothing is nothing.
            if entry.path().exists() {
                add(&entry.path(), &format!("{path}/{name}"), links, depth + 1, to)?;
            }
        }
    }
    Ok(())
}

/// The time of the last change in nanoseconds.
pub fn changed(meta: &Metadata) -> i64 {
    meta.mtime().saturating_mul(1_000_000_000).saturating_add(meta.mtime_nsec())
}

/// How far the pod of a node is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    Waits,
    /// It has a node, and none of its files.
    Takes,
    HasFiles,
}

/// The pods of a job, as the follower of one of them sees them.
#[derive(Clone)]
pub struct Together {
    pub node: u32,
    /// Whether they have one volume.
    has_volume: bool,
    began: Instant,
    all: Arc<watch::Sender<Vec<Place>>>,
}

impl Together {
    /// One for each node.
    pub fn new(nodes: u32, has_volume: bool) -> Vec<Self> {
        let nodes = nodes.max(1);
        let all = Arc::new(watch::Sender::new(vec![Place::Waits; nodes as usize]));
        let of = |node| Self { node, has_volume, began: Instant::now(), all: Arc::clone(&all) };
        (0..nodes).map(of).collect()
    }

    pub fn note(&self, stage: &Stage) {
        match stage {
            Stage::Waits { .. } | Stage::Stuck { .. } => {}
            Stage::Takes => self.reach(Place::Takes),
            Stage::Runs { .. } | Stage::Ended => self.reach(Place::HasFiles),
        }
    }

    /// Whether every pod has its files: then the job has begun.
    pub fn is_complete(&self) -> bool {
        have_files(&self.all.borrow())
    }

    fn reach(&self, place: Place) {
        self.all.send_if_modified(|all| {
            let own = &mut all[self.node as usize];
            let is_new = *own < place;
            *own = place.max(*own);
            is_new
        });
    }

    /// Whether this pod may get its files: every pod has a node, and only one at a time writes to an empty volume.
    pub fn may_carry(&self) -> bool {
        let all = self.all.borrow();
        let may_write = self.node == 0 || !self.has_volume || all[0] == Place::HasFiles;
        may_write && all.iter().all(|place| *place >= Place::Takes)
    }

    /// Why this pod gets no files yet.
    pub fn waits_for(&self) -> &'static str {
        match self.began.elapsed() > HELD_TIMEOUT {
            false => "has a node and waits for the other pods of the run",
            true => {
                "keeps its node and waits for the other pods of the run; two runs of which each keeps what the other \
                 one needs wait forever: stop one, or set kubernetes.queue where the cluster has queues"
            }
        }
    }

    /// This pod has its files. Waits until all have theirs, at most so long.
    pub async fn all_have_files(&self, most: Duration) -> bool {
        self.reach(Place::HasFiles);
        let mut all = self.all.subscribe();
        tokio::time::timeout(most, all.wait_for(|all| have_files(all))).await.is_ok()
    }
}

/// Whether every pod has its files.
fn have_files(all: &[Place]) -> bool {
    all.iter().all(|place| *place == Place::HasFiles)
}

/// Why files did not come to a pod.
pub enum NotCarried {
    /// A file of this machine cannot be read: another try does not help.
    Unreadable {
        said: String,
    },
    /// The process that takes them in the pod has failed: its words.
    Refused {
        said: String,
    },
    Failed {
        said: String,
    },
}

impl From<io::Error> for NotCarried {
    fn from(error: io::Error) -> Self {
        Self::Failed { said: error.to_string() }
    }
}

impl From<Failure> for NotCarried {
    fn from(failure: Failure) -> Self {
        Self::Failed { said: failure.said().to_owned() }
    }
}

/// Carries what the pod does not have yet. When it returns, the job of the pod begins.
pub async fn carry(cluster: Cluster, plan: Plan, together: Together) -> Result<(), NotCarried> {
    let listed = plan.clone();
    let files = tokio::task::spawn_blocking(move || list(&listed)).await.map_err(io::Error::other)?;
    let files = files.map_err(|error| NotCarried::Unreadable { said: error.to_string() })?;
    let started = cluster.exec(&plan.pod, pod::UPLOAD, plan.receive_words(&pod::program()));
    let mut process = soon(async { Ok(started.await) }).await??;
    match send_all(&files, &mut process, &together).await {
        Err(NotCarried::Failed { said }) => match last_words(&mut process).await {
            Some(said) => Err(NotCarried::Refused { said }),
            None => Err(NotCarried::Failed { said }),
        },
        sent => sent,
    }
}

/// The words that a process which has ended wrote to stderr.
pub async fn last_words(process: &mut AttachedProcess) -> Option<String> {
    let (mut stderr, mut words) = (process.stderr()?, Vec::new());
    tokio::time::timeout(WORDS_TIMEOUT, stderr.read_to_end(&mut words)).await.ok();
    let words = String::from_utf8_lossy(&words).trim().to_owned();
    (!words.is_empty()).then_some(words)
}

/// A connection may be dead without a word.
pub async fn soon<T>(answer: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    tokio::time::timeout(SILENT_TIMEOUT, answer)
        .await
        .map_err(|_| io::Error::other(format!("no sign of life for {} s", SILENT_TIMEOUT.as_secs())))?
}

async fn send_all(files: &[Carried], process: &mut AttachedProcess, together: &Together) -> Result<(), NotCarried> {
    let (Some(mut input), Some(mut output)) = (process.stdin(), process.stdout()) else {
        return Err(io::Error::from(io::ErrorKind::BrokenPipe).into());
    };
    let mut there = BTreeMap::new();
    loop {
        let frame = soon(Frame::read(&mut output)).await?;
        match frame.kind {
            Kind::Have => drop(there.insert(frame.path, (frame.size, frame.changed))),
            Kind::End => break,
            _ => {}
        }
    }
    for file in files.iter().filter(|file| there.get(&file.path) != Some(&(file.size, file.changed))) {
        let frame = Frame { size: file.size, changed: file.changed, ..Frame::of(file.kind, file.path.clone()) };
        match file.kind {
            Kind::Folder => soon(frame.write(&mut input)).await?,
            _ => send(&file.host, &frame, &mut input).await?,
        }
    }
    while !together.all_have_files(ALIVE_INTERVAL).await {
        soon(Frame::of(Kind::Alive, "").write(&mut input)).await?;
        soon(input.flush()).await?;
    }
    soon(Frame::of(Kind::End, "").write(&mut input)).await?;
    soon(input.flush()).await?;
    while soon(Frame::read(&mut output)).await?.kind != Kind::End {}
    Ok(())
}

async fn send(host: &Path, frame: &Frame, to: &mut (impl AsyncWrite + Unpin)) -> Result<(), NotCarried> {
    let unreadable = |error: io::Error| NotCarried::Unreadable { said: format!("{}: {error}", host.display()) };
    let file = std::fs::File::open(host).map_err(unreadable)?;
    let found = if frame.kind == Kind::Sparse { pieces(&file, frame.size) } else { Vec::new() };
    let mut file = tokio::fs::File::from_std(file);
    soon(frame.write(to)).await?;
    if frame.kind != Kind::Sparse {
        return copy(&mut file, frame.size, to, unreadable).await;
    }
    for (offset, size) in found {
        soon(to.write_all(&[offset.to_le_bytes(), size.to_le_bytes()].concat())).await?;
        file.seek(io::SeekFrom::Start(offset)).await.map_err(unreadable)?;
        copy(&mut file, size, to, unreadable).await?;
    }
    Ok(soon(to.write_all(&[0; 16])).await?)
}

/// Offset and size of what is not a hole. A file system that does not know holes has one piece.
fn pieces(file: &std::fs::File, end: u64) -> Vec<(u64, u64)> {
    let (mut found, mut at) = (Vec::new(), 0);
    while at < end {
        let start = match seek(file, SeekFrom::Data(at)) {
            Ok(start) => start,
            Err(rustix::io::Errno::NXIO) => break,
            Err(_) => at,
        };
        let stop = seek(file, SeekFrom::Hole(start)).unwrap_or(end).min(end);
        if start >= stop {
            break;
        }
        found.push((start, stop - start));
        at = stop;
    }
    // The position is common to all that read the file.
    seek(file, SeekFrom::Start(0)).ok();
    found
}

async fn copy(
    file: &mut (impl AsyncRead + Unpin),
    mut left: u64,
    to: &mut (impl AsyncWrite + Unpin),
    unreadable: impl Fn(io::Error) -> NotCarried,
) -> Result<(), NotCarried> {
    let mut piece = vec![0; PIECE];
    while left > 0 {
        let most = left.min(PIECE as u64) as usize;
        let read = file.read(&mut piece[..most]).await.map_err(&unreadable)?;
        if read == 0 {
            return Err(unreadable(io::Error::other("it became shorter while it was read")));
        }
        soon(to.write_all(&piece[..read])).await?;
        left -= read as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use pipe_spec::pipeline::Container;

    use super::*;
    use crate::engine::kubernetes::section::Pods;
    use crate::engine::{Launch, Mounts};

    #[test]
    fn no_pod_begins_before_all_can() {
        let pods = Together::new(2, false);
        pods[0].note(&Stage::Takes);
        assert!(!pods[0].may_carry());
        pods[1].note(&Stage::Takes);
        assert!(pods[0].may_carry() && pods[1].may_carry());
        // On one volume the first pod writes what all read.
        let pods = Together::new(2, true);
        pods.iter().for_each(|pod| pod.note(&Stage::Takes));
        assert!(pods[0].may_carry() && !pods[1].may_carry());
        pods[0].reach(Place::HasFiles);
        assert!(pods[1].may_carry());
    }

    #[tokio::test]
    async fn all_begin_when_the_last_has_its_files() {
        let pods = Together::new(2, false);
        assert!(!pods[0].all_have_files(Duration::from_millis(1)).await);
        assert!(pods[1].all_have_files(Duration::from_millis(1)).await);
        assert!(Together::new(1, false)[0].all_have_files(Duration::from_millis(1)).await);
    }

    #[test]
    fn links_are_followed_and_programs_stay_programs() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::create_dir_all(at("model/deep")).unwrap();
        std::fs::write(at("blob"), "12345").unwrap();
        symlink(at("blob"), at("model/config.json")).unwrap();
        symlink(at("nothing"), at("model/broken")).unwrap();
        std::fs::write(at("model/deep/run.sh"), "x").unwrap();
        std::fs::set_permissions(at("model/deep/run.sh"), std::fs::Permissions::from_mode(0o755)).unwrap();
        let mounts = Mounts { read_only: vec![(at("model"), "/data/model".into())], ..Mounts::default() };
        let launch = Launch { mounts, ..Launch::example(&Container::default(), 1) };
        let mut files = list(&Plan::new(&launch, &Pods::default())).unwrap();
        files.sort_by(|one, other| one.path.cmp(&other.path));
        let found: Vec<_> = files.iter().map(|file| (&file.path[23..], file.size, file.kind)).collect();
        assert_eq!(
            found,
            [
                ("", 0, Kind::Folder),
                ("/config.json", 5, Kind::File),
                ("/deep", 0, Kind::Folder),
                ("/deep/run.sh", 1, Kind::Program)
            ]
        );
    }

    #[test]
    fn of_what_jobs_have_written_no_link_is_carried_and_nothing_counts() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::create_dir_all(at("checkpoints/step-1")).unwrap();
        std::fs::write(at("checkpoints/step-1/model"), "weights").unwrap();
        std::fs::write(at("secret"), "x").unwrap();
        std::fs::write(at("rows"), "123").unwrap();
        symlink(at("secret"), at("checkpoints/step-1/planted")).unwrap();
        let mounts = Mounts {
            writable: vec![(at("checkpoints"), "/run/pipe/checkpoints".into())],
            read_only: vec![(at("rows"), "/data/rows".into())],
            ..Mounts::default()
        };
        let plan = Plan::new(&Launch { mounts, ..Launch::example(&Container::default(), 1) }, &Pods::default());
        let files = list(&plan).unwrap();
        let found: Vec<_> = files.iter().filter(|file| file.kind == Kind::File).map(|file| file.size).collect();
        assert_eq!(found, [3, 7]);
        // The limit is for what a user names.
        assert_eq!(given(&plan).unwrap().iter().map(|file| file.size).sum::<u64>(), 3);
    }

    #[test]
    fn holes_are_not_carried() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(1 << 40).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, b"x", 1 << 30).unwrap();
        let found = pieces(&file, 1 << 40);
        assert!(found.iter().map(|(_, size)| size).sum::<u64>() < 1 << 20, "{found:?}");
        assert!(found.iter().any(|(offset, size)| (*offset..offset + size).contains(&(1 << 30))), "{found:?}");
    }
}
