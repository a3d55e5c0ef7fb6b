//! Mounts that would hand the job the socket of a container engine, and with it root on this machine.
//!
//! Sockets of container engines at paths that nobody names: a bounded search below a mounted folder, which asks every socket that it
//! finds whether it is one.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::io::{Read, Write};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::{Duration, Instant};

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
        self.sockets.iter().find(is_handed).cloned().or_else(|| find_engine(&real))
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

/// Files and folders that are looked at below a folder, and the time for that.
const MAX_ENTRIES: usize = 20_000;
const SEARCH_TIMEOUT: Duration = Duration::from_secs(2);

/// Sockets that are asked.
const MAX_SOCKETS: usize = 64;

/// How long a socket may take to answer. All are asked at the same time.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);

/// Bytes of an answer that are read.
const MAX_ANSWER: usize = 4096;

/// The socket at `path`, or the first one below it, that answers as a container engine.
pub fn find_engine(path: &Path) -> Option<PathBuf> {
    let (answered, answers) = mpsc::channel();
    for socket in sockets_below(path) {
        for is_engine in [answers_http, answers_grpc] {
            let (answered, socket) = (answered.clone(), socket.clone());
            // A socket whose queue is full holds up its own thread alone.
            std::thread::spawn(move || is_engine(&socket).is_some().then(|| answered.send(socket)));
        }
    }
    drop(answered);
    answers.recv_timeout(ANSWER_TIMEOUT).ok()
}

/// The sockets at and below a path, those near the top first. Links are not followed: a mount does not lead where they lead.
fn sockets_below(path: &Path) -> Vec<PathBuf> {
    let Ok(top) = path.canonicalize() else { return Vec::new() };
    if top.metadata().is_ok_and(|meta| meta.file_type().is_socket()) {
        return vec![top];
    }
    let (mut sockets, mut folders, mut seen) = (Vec::new(), VecDeque::from([top]), 0);
    let deadline = Instant::now() + SEARCH_TIMEOUT;
    while let Some(folder) = folders.pop_front() {
        for entry in std::fs::read_dir(&folder).into_iter().flatten().flatten() {
            seen += 1;
            if seen > MAX_ENTRIES || sockets.len() == MAX_SOCKETS || Instant::now() > deadline {
                return sockets;
            }
            match entry.file_type() {
                Ok(kind) if kind.is_socket() => sockets.push(entry.path()),
                Ok(kind) if kind.is_dir() => folders.push_back(entry.path()),
                _ => {}
            }
        }
    }
    sockets
}

/// Asks a socket, and reads until the answer is one of an engine.
fn ask(socket: &Path, request: &[u8], is_of_engine: fn(&[u8]) -> bool) -> Option<()> {
    let mut stream = UnixStream::connect(socket).ok()?;
    stream.set_read_timeout(Some(ANSWER_TIMEOUT)).ok()?;
    stream.set_write_timeout(Some(ANSWER_TIMEOUT)).ok()?;
    stream.write_all(request).ok()?;
    let (mut answer, mut buffer) = (Vec::new(), [0; MAX_ANSWER]);
    while answer.len() < MAX_ANSWER && !is_of_engine(&answer) {
        match stream.read(&mut buffer).ok()? {
            0 => break,
            read => answer.extend_from_slice(&buffer[..read]),
        }
    }
    is_of_engine(&answer).then_some(())
}

/// Asks a socket as a client of Docker or Podman would.
fn answers_http(socket: &Path) -> Option<()> {
    ask(socket, b"GET /_ping HTTP/1.0\r\nHost: localhost\r\n\r\n", is_of_engine)
}

/// Requests without arguments that containerd, CRI-O and every other runtime of Kubernetes, and BuildKit answer.
const GRPC_METHODS: [&str; 4] = [
    "/containerd.services.version.v1.Version/Version",
    "/runtime.v1.RuntimeService/Version",
    "/runtime.v1alpha2.RuntimeService/Version",
    "/moby.buildkit.v1.Control/ListWorkers",
];

/// Asks a socket as a client of the engines that speak gRPC would.
fn answers_grpc(socket: &Path) -> Option<()> {
    ask(socket, &grpc_requests(), has_grpc_message)
}

/// The types of the frames of HTTP/2 that are sent or looked for (RFC 9113).
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;

/// A connection of HTTP/2 with a request for each method.
fn grpc_requests() -> Vec<u8> {
    let mut request = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    let mut frame = |kind: u8, flags: u8, stream: u8, content: &[u8]| {
        request.extend([0, 0, content.len() as u8, kind, flags, 0, 0, 0, stream]);
        request.extend(content);
    };
    frame(SETTINGS, 0, 0, &[]);
    for (index, method) in GRPC_METHODS.iter().enumerate() {
        let stream = 2 * index as u8 + 1;
        // By their numbers in the table of RFC 7541: method POST, scheme http, and the names of the others.
        let mut headers = vec![0x83, 0x86];
        let others: [(&[u8], &str); 4] =
            [(&[0x04], method), (&[0x01], "localhost"), (&[0x0f, 0x10], "application/grpc"), (b"\0\x02te", "trailers")];
        for (name, value) in others {
            headers.extend(name);
            headers.push(value.len() as u8);
            headers.extend(value.as_bytes());
        }
        const END_STREAM: u8 = 1;
        const END_HEADERS: u8 = 4;
        frame(HEADERS, END_HEADERS, stream, &headers);
        // A message of no bytes, not compressed.
        frame(DATA, END_STREAM, stream, &[0; 5]);
    }
    request
}

/// Whether an answer has a message: a server that does not know a method sends headers alone.
fn has_grpc_message(mut answer: &[u8]) -> bool {
    while let [a, b, c, kind, _, _, _, _, _, rest @ ..] = answer {
        if *kind == DATA {
            return true;
        }
        let length = usize::from(*a) << 16 | usize::from(*b) << 8 | usize::from(*c);
        answer = rest.get(length..).unwrap_or_default();
    }
    false
}

/// Whether this is an engine's answer to `/_ping`: OK, or anything with the version of its interface.
fn is_of_engine(answer: &[u8]) -> bool {
    let text = String::from_utf8_lossy(answer).to_ascii_lowercase();
    let Some((head, body)) = text.split_once("\r\n\r\n") else { return false };
    let mut lines = head.split("\r\n");
    let status = lines.next().unwrap_or_default();
    let has_version = lines.any(|line| line.starts_with("api-version:") || line.starts_with("libpod-api-version:"));
    status.starts_with("http/1.") && (has_version || (status.contains(" 200") && body.trim() == "ok"))
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

    /// Answers every request at a socket in the same way.
    fn answer(path: &Path, text: &'static str) {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        let listener = UnixListener::bind(path).unwrap();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let _ = stream.read(&mut [0; 1024]);
                stream.write_all(text.as_bytes()).ok();
            }
        });
    }

    #[test]
    fn only_a_socket_that_answers_as_an_engine_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().canonicalize().unwrap().join(name);
        answer(&path("page"), "HTTP/1.0 404 Not Found\r\n\r\nnothing");
        answer(&path("agent"), "what?\n");
        // One that nobody serves, and one whose server has ended.
        let _silent = UnixListener::bind(path("silent")).unwrap();
        drop(UnixListener::bind(path("dead")).unwrap());
        let began = Instant::now();
        assert_eq!(find_engine(folder.path()), None);
        assert!(began.elapsed() < 2 * ANSWER_TIMEOUT);
        answer(&path("a/b/c"), "HTTP/1.1 200 OK\r\nApi-Version: 1.44\r\n\r\nOK");
        assert_eq!(find_engine(folder.path()), Some(path("a/b/c")));
        assert_eq!(find_engine(&path("a/b/c")), Some(path("a/b/c")));
        std::os::unix::fs::symlink(path("a"), path("link")).unwrap();
        assert_eq!(find_engine(&path("link/b")), Some(path("a/b/c")));
        assert_eq!(find_engine(&path("page")), None);
    }

    #[test]
    fn a_server_of_grpc_is_an_engine_if_it_knows_a_method_of_one() {
        // Settings, and a window: what every server sends first.
        let first =
            [&[0, 0, 6, SETTINGS, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0x40, 0][..], &[0, 0, 4, 8, 0, 0, 0, 0, 0, 0, 0, 0, 1]];
        let headers = [0, 0, 1, HEADERS, 4, 0, 0, 0, 3, 0x88];
        let unknown = [0, 0, 1, HEADERS, 5, 0, 0, 0, 1, 0x88];
        let message = [0, 0, 7, DATA, 0, 0, 0, 0, 3, 0, 0, 0, 0, 2, 10, 0];
        let answer = |frames: &[&[u8]]| [&first.concat(), &frames.concat()[..]].concat();
        assert!(has_grpc_message(&answer(&[&unknown, &headers, &message])));
        assert!(!has_grpc_message(&answer(&[&unknown, &headers])));
        assert!(!has_grpc_message(b"HTTP/1.1 400 Bad Request\r\n\r\n") && !has_grpc_message(&[]));
        assert!(GRPC_METHODS.iter().all(|method| method.len() < 64), "the lengths above are single bytes");
    }

    #[test]
    fn answers() {
        for (answer, want) in [
            ("HTTP/1.0 200 OK\r\n\r\nOK", true),
            ("HTTP/1.0 200 OK\r\nLibpod-API-Version: 4.0\r\n\r\n", true),
            ("HTTP/1.1 500 Oops\r\nApi-Version: 1.40\r\n\r\n", true),
            ("HTTP/1.1 200 OK\r\n\r\nhello", false),
            ("HTTP/1.1 200 OK\r\nApi-Version: 1.40", false),
            ("SSH-2.0\r\n\r\nOK", false),
        ] {
            assert_eq!(is_of_engine(answer.as_bytes()), want, "{answer}");
        }
    }
}
