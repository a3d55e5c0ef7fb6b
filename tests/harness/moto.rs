//! An S3 server on this machine: moto's, from the packages of tests/moto.txt. And a proxy before it that cuts connections or answers
//! in its place.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::{Folder, suite};

/// The keys that tests use. No file may hold the second.
pub const KEY: &str = "AKIATESTTESTTESTTEST";
pub const SECRET: &str = "s3cret-of-the-bucket";

pub struct Moto {
    server: Child,
    pub port: u16,
}

/// How long the server may take to start: it imports a lot.
const START_LIMIT: Duration = Duration::from_secs(60);

impl Moto {
    /// With a bucket `data`. Keys are not checked.
    pub fn start() -> Self {
        let moto = Self::start_with(&[]);
        assert_eq!(moto.request("PUT", "/data", b"").0, 200);
        moto
    }

    /// The same, where none of the keys that tests have is known.
    pub fn strict() -> Self {
        Self::start_with(&[("INITIAL_NO_AUTH_ACTION_COUNT", "0")])
    }

    fn start_with(variables: &[(&str, &str)]) -> Self {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let server = Command::new("python3")
            .args(["-m", "moto.server", "-H", "127.0.0.1", "-p", &port.to_string()])
            .env("PYTHONPATH", suite::moto())
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .env_remove("AWS_PROFILE")
            .envs(variables.iter().copied())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let began = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(began.elapsed() < START_LIMIT, "moto does not start");
            std::thread::sleep(Duration::from_millis(50));
        }
        Self { server, port }
    }

    /// Status and body of the answer to a request with keys and a signature that nobody checks.
    pub fn request(&self, method: &str, path: &str, body: &[u8]) -> (u16, Vec<u8>) {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        let host = format!("127.0.0.1:{}", self.port);
        let keys = format!("Credential={KEY}/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0");
        let head = format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\nAuthorization: AWS4-HMAC-SHA256 {keys}\r\n");
        write!(stream, "{head}Connection: close\r\nContent-Length: {}\r\n\r\n", body.len()).unwrap();
        stream.write_all(body).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        let end = answer.windows(4).position(|four| four == b"\r\n\r\n").expect("a head") + 4;
        let status = String::from_utf8_lossy(&answer[9..12]).parse().unwrap();
        (status, answer[end..].to_vec())
    }

    pub fn put(&self, path: &str, bytes: impl AsRef<[u8]>) {
        assert_eq!(self.request("PUT", &format!("/data/{path}"), bytes.as_ref()).0, 200, "{path}");
    }

    pub fn get(&self, path: &str) -> Option<Vec<u8>> {
        let (status, body) = self.request("GET", &format!("/data/{path}"), b"");
        (status == 200).then_some(body)
    }

    pub fn remove(&self, path: &str) {
        assert_eq!(self.request("DELETE", &format!("/data/{path}"), b"").0, 204, "{path}");
    }

    /// The paths of all objects below a prefix.
    pub fn list(&self, prefix: &str) -> Vec<String> {
        let (status, body) = self.request("GET", &format!("/data?list-type=2&prefix={prefix}"), b"");
        assert_eq!(status, 200);
        let text = String::from_utf8(body).unwrap();
        text.split("<Key>").skip(1).map(|rest| rest.split("</Key>").next().unwrap().to_owned()).collect()
    }

    pub fn address(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// The folder with the variables for this server, and a cache of its own.
    pub fn known_to(&self, folder: Folder) -> Folder {
        with_keys(folder, &self.address())
    }
}

impl Drop for Moto {
    fn drop(&mut self) {
        self.server.kill().ok();
        self.server.wait().ok();
    }
}

/// The folder with keys and a cache of its own.
pub fn with_keys(folder: Folder, address: &str) -> Folder {
    let cache = folder.path().join("cache").display().to_string();
    folder
        .env("AWS_ENDPOINT_URL", address)
        .env("AWS_ACCESS_KEY_ID", KEY)
        .env("AWS_SECRET_ACCESS_KEY", SECRET)
        .env("AWS_SESSION_TOKEN", "")
        .env("AWS_PROFILE", "")
        .env("AWS_REGION", "us-east-1")
        .env("PIPE_CACHE", cache)
        .env("HF_HUB_OFFLINE", "")
}

/// Whether any file below holds the text, in any piece of it.
#[allow(dead_code)] // Each test program has tests with other needs.
pub fn holds(path: &std::path::Path, text: &str) -> bool {
    if path.is_dir() {
        return std::fs::read_dir(path).unwrap().any(|entry| holds(&entry.unwrap().path(), text));
    }
    std::fs::read(path).unwrap_or_default().windows(text.len()).any(|window| window == text.as_bytes())
}

/// Stands before a server: passes requests on, except as it is told.
pub struct Gate {
    pub port: u16,
    told: Arc<Mutex<Told>>,
}

#[derive(Default)]
struct Told {
    /// Answers whose content has more bytes than this are cut there, so often.
    cut: Option<(usize, u32)>,
    /// Answered to requests that begin with the word: a status and a code of S3.
    refuse: Option<(&'static str, u16, &'static str)>,
    /// Changes the last byte of what is answered to requests that hold this word.
    spoil: Option<&'static str>,
    closed: bool,
    requests: Vec<String>,
}

impl Gate {
    pub fn before(port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let own = listener.local_addr().unwrap().port();
        let told = Arc::new(Mutex::new(Told::default()));
        let shared = told.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let told = shared.clone();
                std::thread::spawn(move || pass(stream, port, &told));
            }
        });
        Self { port: own, told }
    }

    pub fn address(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    pub fn cut(&self, after: usize, times: u32) {
        self.told.lock().unwrap().cut = Some((after, times));
    }

    #[allow(dead_code)] // The runner's tests alone use it.
    pub fn refuse(&self, refuse: Option<(&'static str, u16, &'static str)>) {
        self.told.lock().unwrap().refuse = refuse;
    }

    #[allow(dead_code)] // The runner's tests alone use it.
    pub fn spoil(&self, word: &'static str, spoils: bool) {
        self.told.lock().unwrap().spoil = Some(word).filter(|_| spoils);
    }

    #[allow(dead_code)] // The runner's tests alone use it.
    pub fn close(&self, closed: bool) {
        self.told.lock().unwrap().closed = closed;
    }

    /// The first lines and ranges of the requests so far.
    pub fn requests(&self) -> Vec<String> {
        std::mem::take(&mut self.told.lock().unwrap().requests)
    }
}

/// One request and its answer; every connection has one alone.
fn pass(client: TcpStream, port: u16, told: &Mutex<Told>) -> Option<()> {
    let mut reader = BufReader::new(client.try_clone().ok()?);
    let (mut head, mut length, mut waits) = (Vec::new(), 0usize, false);
    let mut range = String::new();
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        let lower = line.to_ascii_lowercase();
        if let Some(value) = lower.strip_prefix("content-length:") {
            length = value.trim().parse().ok()?;
        }
        if let Some(value) = lower.strip_prefix("range:") {
            range = format!(" {}", value.trim());
        }
        waits |= lower.starts_with("expect:");
        let is_end = line == "\r\n";
        if is_end {
            head.extend_from_slice(b"Connection: close\r\n");
        }
        if !lower.starts_with("connection:") && !lower.starts_with("expect:") {
            head.extend_from_slice(line.as_bytes());
        }
        if is_end {
            break;
        }
    }
    let mut client = client;
    if waits {
        client.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").ok()?;
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    let first = String::from_utf8_lossy(&head).lines().next().unwrap_or_default().to_owned();
    let (refusal, closed) = {
        let mut told = told.lock().unwrap();
        told.requests.push(format!("{first}{range}"));
        (told.refuse.filter(|(word, ..)| first.starts_with(word)), told.closed)
    };
    if closed {
        client.shutdown(Shutdown::Both).ok();
        return None;
    }
    if let Some((_, status, code)) = refusal {
        let text = format!("<Error><Code>{code}</Code><AWSAccessKeyId>AKIA</AWSAccessKeyId></Error>");
        write!(
            client,
            "HTTP/1.1 {status} Refused\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{text}",
            text.len()
        )
        .ok()?;
        return None;
    }
    let mut server = TcpStream::connect(("127.0.0.1", port)).ok()?;
    server.write_all(&head).ok()?;
    server.write_all(&body).ok()?;
    let mut answer = Vec::new();
    server.read_to_end(&mut answer).ok()?;
    let start = answer.windows(4).position(|four| four == b"\r\n\r\n")? + 4;
    {
        let mut told = told.lock().unwrap();
        if let Some((after, times)) = told.cut.filter(|(after, times)| *times > 0 && answer.len() - start > *after) {
            told.cut = Some((after, times - 1));
            answer.truncate(start + after);
        }
    }
    let spoils = told.lock().unwrap().spoil.is_some_and(|word| first.contains(word) && !first.contains("list-type"));
    if let Some(last) = answer[start..].last_mut().filter(|_| spoils) {
        *last ^= 1;
    }
    client.write_all(&answer).ok()?;
    client.shutdown(Shutdown::Both).ok()
}
