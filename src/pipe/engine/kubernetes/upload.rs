//! Carries the files of a job to its pod.

use std::collections::BTreeMap;
use std::fs::Metadata;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use tokio::io::{AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::client::{Cluster, Failure};
use super::frames::{Frame, Kind};
use super::plan::Plan;
use super::pod;

/// Folders in folders that are followed.
const MAX_DEPTH: usize = 64;

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
pub async fn carry(cluster: Cluster, plan: Plan) -> Result<(), NotCarried> {
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
