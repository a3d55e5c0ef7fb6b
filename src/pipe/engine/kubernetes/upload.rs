//! Carries the files of a job to its pod.

use std::collections::BTreeMap;
use std::fs::Metadata;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::watch;

use super::client::{Cluster, Failure};
use super::frames::{Frame, Kind};
use super::plan::Plan;
use super::pod;
use super::state::Stage;

/// Folders in folders that are followed.
const MAX_DEPTH: usize = 64;

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

/// Everything that the pod of a job needs. Links are followed: models of the hub are folders of links.
pub fn list(plan: &Plan) -> io::Result<Vec<Carried>> {
    let mut found = Vec::new();
    for given in &plan.given {
        add(&given.host, &given.stored, 0, &mut found)?;
    }
    for written in &plan.written {
        let path = format!("{}/{}", plan.attempt_folder(), written.name);
        found.push(folder(&written.host, &path));
    }
    for written in plan.carried().filter(|written| written.host.exists()) {
        let path = format!("{}/{}", plan.attempt_folder(), written.name);
        add(&written.host, &path, 0, &mut found)?;
    }
    Ok(found)
}

fn folder(host: &Path, path: &str) -> Carried {
    Carried { host: host.to_owned(), path: path.to_owned(), size: 0, changed: 0, kind: Kind::Folder }
}

fn add(host: &Path, path: &str, depth: usize, to: &mut Vec<Carried>) -> io::Result<()> {
    let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", host.display()));
    let meta = host.metadata().map_err(named)?;
    if meta.is_file() {
        let kind = if meta.permissions().mode() & 0o100 == 0 { Kind::File } else { Kind::Program };
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
                add(&entry.path(), &format!("{path}/{name}"), depth + 1, to)?;
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
    let mut process = cluster.exec(&plan.pod, pod::UPLOAD, plan.receive_words(&pod::program())).await?;
    let (Some(mut input), Some(mut output)) = (process.stdin(), process.stdout()) else {
        return Err(io::Error::from(io::ErrorKind::BrokenPipe).into());
    };
    let mut there = BTreeMap::new();
    loop {
        let frame = Frame::read(&mut output).await?;
        match frame.kind {
            Kind::Have => drop(there.insert(frame.path, (frame.size, frame.changed))),
            Kind::End => break,
            _ => {}
        }
    }
    for file in files.iter().filter(|file| there.get(&file.path) != Some(&(file.size, file.changed))) {
        let frame = Frame { size: file.size, changed: file.changed, ..Frame::of(file.kind, file.path.clone()) };
        match file.kind {
            Kind::Folder => frame.write(&mut input).await?,
            _ => send(&file.host, &frame, &mut input).await?,
        }
    }
    while !together.all_have_files(ALIVE_INTERVAL).await {
        Frame::of(Kind::Alive, "").write(&mut input).await?;
        input.flush().await?;
    }
    Frame::of(Kind::End, "").write(&mut input).await?;
    input.flush().await?;
    while Frame::read(&mut output).await?.kind != Kind::End {}
    Ok(())
}

async fn send(host: &Path, frame: &Frame, to: &mut (impl AsyncWrite + Unpin)) -> Result<(), NotCarried> {
    let unreadable = |error: io::Error| NotCarried::Unreadable { said: format!("{}: {error}", host.display()) };
    let mut file = tokio::fs::File::open(host).await.map_err(unreadable)?;
    frame.write(to).await?;
    let (mut left, mut piece) = (frame.size, vec![0; PIECE]);
    while left > 0 {
        let most = left.min(PIECE as u64) as usize;
        let read = file.read(&mut piece[..most]).await.map_err(unreadable)?;
        if read == 0 {
            return Err(unreadable(io::Error::other("it became shorter while it was read")));
        }
        to.write_all(&piece[..read]).await?;
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
}
