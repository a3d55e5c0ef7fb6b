//! Mounts that would hand the job the socket of a container engine, and with it root on this machine.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::socket_search;

/// Sockets of engines at the places where they lie on Linux, whether they are there now or come later.
const SOCKETS: [&str; 10] = [
    "/var/run/docker.sock",
    "/run/docker.sock",
    "/run/podman/podman.sock",
    "/run/containerd/containerd.sock",
    "/run/docker/containerd/containerd.sock",
    "/run/k3s/containerd/containerd.sock",
    "/run/k0s/containerd.sock",
    "/run/cri-dockerd.sock",
    "/run/crio/crio.sock",
    "/run/buildkit/buildkitd.sock",
];

/// The same in the folder that XDG_RUNTIME_DIR names.
const OF_USER: [&str; 4] =
    ["docker.sock", "podman/podman.sock", "containerd/containerd.sock", "buildkit/buildkitd.sock"];

/// The same in the user's own folder, which is refused only if it exists: else users could not mount their home folder.
const OF_HOME: [&str; 3] = [".docker/run/docker.sock", ".docker/desktop/docker.sock", ".colima/default/docker.sock"];

/// The sockets that a job must not be handed.
pub struct EngineSockets {
    sockets: Vec<PathBuf>,
}

impl EngineSockets {
    /// Those of this machine, and that of the daemon that is used.
    pub fn find() -> Self {
        let folder = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let used = std::env::var("DOCKER_HOST").ok().and_then(|host| host.strip_prefix("unix://").map(PathBuf::from));
        let below = |folder: Option<PathBuf>, names: &[&str]| -> Vec<PathBuf> {
            folder.iter().flat_map(|folder| names.iter().map(|name| folder.join(name))).collect()
        };
        let mut sockets: Vec<PathBuf> = SOCKETS.iter().map(PathBuf::from).collect();
        sockets.extend(below(folder("XDG_RUNTIME_DIR"), &OF_USER));
        sockets.extend(below(folder("HOME"), &OF_HOME).into_iter().filter(|socket| socket.exists()));
        sockets.extend(used);
        Self { sockets }
    }

    /// The socket that a mount of `host` would hand to the job: itself, by path or as the same file, or one below it, also
    /// through what is mounted below `host`. /proc leads to the root folder of every process of the user. A socket at a path that
    /// nobody names is found by its answer.
    pub fn handed_by(&self, host: &Path) -> Option<PathBuf> {
        let real = canonical(host);
        let mounted = mount_points().into_iter().filter(|point| point.starts_with(&real));
        let same: Vec<(u64, u64)> = mounted.chain([host.to_owned()]).filter_map(|path| identity(&path)).collect();
        let is_handed = |socket: &&PathBuf| {
            let socket = canonical(socket);
            let is_same = |path: &Path| identity(path).is_some_and(|path| same.contains(&path));
            socket.starts_with(&real) || real.starts_with("/proc") || socket.ancestors().any(is_same)
        };
        self.sockets.iter().find(is_handed).cloned().or_else(|| socket_search::find_engine(&real))
    }
}

/// Where something is mounted on this machine.
fn mount_points() -> Vec<PathBuf> {
    let text = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
    let point = |line: &[u8]| {
        let field = line.split(|byte| *byte == b' ').nth(4)?;
        Some(PathBuf::from(OsString::from_vec(unescape(field))))
    };
    text.split(|byte| *byte == b'\n').filter_map(point).collect()
}

/// Blanks and the like are written as a backslash and three octal digits.
fn unescape(field: &[u8]) -> Vec<u8> {
    let (mut plain, mut rest) = (Vec::new(), field);
    while let [first, after @ ..] = rest {
        let digits = after.get(..3).filter(|_| *first == b'\\').and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                plain.push(byte);
                rest = &after[3..];
            }
            None => {
                plain.push(*first);
                rest = after;
            }
        }
    }
    plain
}

/// Device and inode.
fn identity(path: &Path) -> Option<(u64, u64)> {
    path.metadata().ok().map(|meta| (meta.dev(), meta.ino()))
}

/// Without links, as far as the path is there.
fn canonical(path: &Path) -> PathBuf {
    let path = crate::system::files::absolute(path);
    for folder in path.ancestors() {
        if let Ok(real) = folder.canonicalize() {
            return match path.strip_prefix(folder) {
                Ok(rest) if !rest.as_os_str().is_empty() => real.join(rest),
                _ => real,
            };
        }
    }
    path
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn proc_hands_every_socket_and_mount_points_are_read() {
        let sockets = EngineSockets { sockets: vec![PathBuf::from("/var/run/docker.sock")] };
        assert!(
            sockets.handed_by(Path::new("/proc")).is_some()
                && sockets.handed_by(Path::new("/proc/self/root")).is_some()
        );
        assert!(mount_points().contains(&PathBuf::from("/proc")));
        assert_eq!(unescape(br"/a\040b\134c\9"), br"/a b\c\9");
    }

    #[test]
    fn a_socket_is_found_however_it_is_named() {
        let folder = std::env::temp_dir().join(format!("pipe-socket-{}", std::process::id()));
        std::fs::remove_dir_all(&folder).ok();
        for name in ["run/engine", "links", "data"] {
            std::fs::create_dir_all(folder.join(name)).unwrap();
        }
        let socket = folder.join("run/engine/docker.sock");
        let _listener = UnixListener::bind(&socket).unwrap();
        symlink(&socket, folder.join("links/socket")).unwrap();
        symlink(folder.join("run"), folder.join("links/folder")).unwrap();
        std::fs::hard_link(&socket, folder.join("data/innocent")).unwrap();
        symlink("run", folder.join("links/dangling")).unwrap();
        let sockets = EngineSockets {
            sockets: vec![folder.join("nowhere/x.sock"), folder.join("links/folder/engine/docker.sock")],
        };
        let handed = |name: &str| sockets.handed_by(&folder.join(name)).is_some();
        for name in [
            "run/engine/docker.sock",
            "run/engine",
            "run",
            "",
            "links/socket",
            "links/folder",
            "data/../run",
            "data/innocent",
            "nowhere",
        ] {
            assert!(handed(name), "{name}");
        }
        for name in ["data", "links", "run/engine/docker.sock2", "run2", "now"] {
            assert!(!handed(name), "{name}");
        }
        assert!(sockets.handed_by(Path::new("/")).is_some());
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn the_usual_places() {
        let sockets = EngineSockets::find();
        for host in
            ["/", "/run", "/var/run", "/var/run/docker.sock", "/run/containerd", "/var", "/run/podman/podman.sock"]
        {
            let handed = sockets.handed_by(Path::new(host)).is_some();
            // Where /var/run is a link to /run, nothing of it lies below /var.
            assert!(handed || host == "/var", "{host}");
        }
        assert!(sockets.handed_by(Path::new("/usr")).is_none());
    }
}
