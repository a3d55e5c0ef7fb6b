//! A Hugging Face hub for one test on loopback: repositories with commits, the endpoints that `huggingface_hub` uses,
//! contents on another port as the real hub has them on another host, and faults on demand.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use sha1::Sha1;
use sha2::{Digest, Sha256};

/// The files of a commit, by their paths.
pub type Files = BTreeMap<String, Vec<u8>>;

#[derive(Clone, Debug)]
pub struct Request {
    /// Whether it came to the port of the contents.
    pub is_content: bool,
    /// Method and path.
    pub line: String,
    /// In lower case.
    pub headers: String,
}

/// What goes wrong with the next `times` requests whose method and path hold `at`.
struct Fault {
    at: String,
    times: usize,
    what: What,
}

#[derive(Clone, Copy)]
pub enum What {
    /// A status, with headers.
    Answers(&'static str),
    /// So many bytes, then the connection ends.
    CutAfter(usize),
    /// So many bytes, then nothing.
    SilentAfter(usize),
    /// The last byte is another.
    Corrupt,
    /// The whole file, whatever range is asked for.
    NoRange,
}

#[derive(Default)]
struct State {
    repositories: BTreeMap<String, Repository>,
    faults: Vec<Fault>,
    requests: Vec<Request>,
    /// Answers without sizes and hashes, as a mirror may give them.
    is_terse: bool,
}

#[derive(Default)]
struct Repository {
    /// Branches and tags.
    names: BTreeMap<String, String>,
    commits: BTreeMap<String, Files>,
    /// Contents only for this token.
    gate: Option<&'static str>,
}

pub struct Hub {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
}

/// Files of this size and more are kept as Git LFS does.
const LFS: usize = 256;

impl Hub {
    pub fn start() -> Self {
        let state = Arc::new(Mutex::new(State::default()));
        let listen = |contents: Option<SocketAddr>| {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let address = listener.local_addr().unwrap();
            let state = state.clone();
            std::thread::spawn(move || {
                for stream in listener.incoming().flatten() {
                    let state = state.clone();
                    std::thread::spawn(move || serve(stream, &state, contents));
                }
            });
            address
        };
        let contents = listen(None);
        Self { address: listen(Some(contents)), state }
    }

    pub fn address(&self) -> String {
        format!("http://{}", self.address)
    }

    /// A new commit of `owner/name` or `datasets/owner/name`, which `revision` names from now on.
    pub fn push(&self, repository: &str, revision: &str, files: &[(&str, Vec<u8>)]) -> String {
        let files: Files = files.iter().map(|(name, bytes)| ((*name).to_owned(), bytes.clone())).collect();
        let mut state = self.state.lock().unwrap();
        let repository = state.repositories.entry(repository.to_owned()).or_default();
        let commit = hex(&Sha1::digest(format!("{} {revision} {files:?}", repository.commits.len())));
        repository.names.insert(revision.to_owned(), commit.clone());
        repository.commits.insert(commit.clone(), files);
        commit
    }

    pub fn gate(&self, repository: &str, token: &'static str) {
        self.state.lock().unwrap().repositories.get_mut(repository).unwrap().gate = Some(token);
    }

    pub fn be_terse(&self) {
        self.state.lock().unwrap().is_terse = true;
    }

    pub fn fault(&self, at: &str, times: usize, what: What) -> &Self {
        self.state.lock().unwrap().faults.push(Fault { at: at.to_owned(), times, what });
        self
    }

    pub fn mend(&self) {
        self.state.lock().unwrap().faults.clear();
    }

    pub fn requests(&self) -> Vec<Request> {
        self.state.lock().unwrap().requests.clone()
    }

    pub fn forget(&self) {
        self.state.lock().unwrap().requests.clear();
    }

    /// The files that were asked for, by the last part of their path.
    pub fn fetched(&self) -> Vec<String> {
        let lines = self.requests().into_iter().filter(|request| request.line.starts_with("GET /"));
        let paths = lines.filter_map(|request| {
            let path = request.line.split(' ').nth(1)?.split("/resolve/").nth(1)?.split_once('/')?.1.to_owned();
            Some(path)
        });
        let mut names: Vec<String> = paths.collect();
        names.sort();
        names.dedup();
        names
    }
}

/// The hash that git has for a content.
pub fn git_hash(bytes: &[u8]) -> String {
    hex(&Sha1::new_with_prefix(format!("blob {}\0", bytes.len())).chain_update(bytes).finalize())
}

pub fn sha256(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn serve(stream: TcpStream, state: &Mutex<State>, contents: Option<SocketAddr>) {
    let mut reader = BufReader::new(stream);
    let (mut line, mut headers) = (String::new(), String::new());
    reader.read_line(&mut line).ok();
    while !headers.ends_with("\r\n\r\n") && headers != "\r\n" {
        if reader.read_line(&mut headers).unwrap_or(0) == 0 {
            return;
        }
    }
    let line = line.rsplit_once(' ').map_or("", |line| line.0).to_owned();
    let request = Request { is_content: contents.is_none(), line, headers: headers.to_ascii_lowercase() };
    let (answer, fault) = {
        let mut state = state.lock().unwrap();
        state.requests.push(request.clone());
        let fault = state.faults.iter_mut().find(|fault| fault.times > 0 && request.line.contains(&fault.at));
        let fault = fault.map(|fault| {
            fault.times -= 1;
            fault.what
        });
        (state.answer(&request, contents), fault)
    };
    answer.send(reader.into_inner(), &request, fault);
}

#[derive(Default)]
struct Answer {
    status: &'static str,
    headers: Vec<(&'static str, String)>,
    body: Vec<u8>,
    has_ranges: bool,
}

impl Answer {
    fn new(status: &'static str) -> Self {
        Self { status, ..Self::default() }
    }

    fn with(mut self, name: &'static str, value: impl ToString) -> Self {
        self.headers.push((name, value.to_string()));
        self
    }

    fn error(status: &'static str, code: &'static str, message: &str) -> Self {
        let answer = Self::new(status).with("X-Error-Code", code).with("X-Error-Message", message);
        Self { body: json!({ "error": message }).to_string().into_bytes(), ..answer }
    }

    fn json(value: &Value) -> Self {
        let answer = Self::new("200 OK").with("Content-Type", "application/json; charset=utf-8");
        Self { body: value.to_string().into_bytes(), ..answer }
    }

    fn file(bytes: &[u8]) -> Self {
        let answer = Self::new("200 OK").with("Accept-Ranges", "bytes");
        Self { body: bytes.to_vec(), has_ranges: true, ..answer }
    }

    fn send(mut self, mut stream: TcpStream, request: &Request, fault: Option<What>) {
        if let Some(What::Answers(text)) = fault {
            stream
                .write_all(format!("HTTP/1.1 {text}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n").as_bytes())
                .ok();
            return;
        }
        if let (Some(What::Corrupt), Some(last)) = (fault, self.body.last_mut()) {
            *last ^= 1;
        }
        let range =
            request.header("range").and_then(|range| range.strip_prefix("bytes=")?.split('-').next()?.parse().ok());
        if let Some(from) = range.filter(|_| self.has_ranges && !matches!(fault, Some(What::NoRange))) {
            let from: usize = from;
            let whole = self.body.len();
            if from >= whole {
                self = Self::new("416 Range Not Satisfiable").with("Content-Range", format!("bytes */{whole}"));
            } else {
                self = self.with("Content-Range", format!("bytes {from}-{}/{whole}", whole - 1));
                (self.status, self.body) = ("206 Partial Content", self.body.split_off(from));
            }
        }
        let mut head =
            format!("HTTP/1.1 {}\r\nContent-Length: {}\r\nConnection: close\r\n", self.status, self.body.len());
        self.headers.iter().for_each(|(name, value)| head.push_str(&format!("{name}: {value}\r\n")));
        stream.write_all((head + "\r\n").as_bytes()).ok();
        if request.line.starts_with("HEAD ") {
            return;
        }
        let part = match fault {
            Some(What::CutAfter(count) | What::SilentAfter(count)) => &self.body[..count.min(self.body.len())],
            _ => &self.body,
        };
        stream.write_all(part).and_then(|()| stream.flush()).ok();
        if matches!(fault, Some(What::SilentAfter(_))) {
            std::thread::sleep(Duration::from_secs(600));
        }
    }
}

impl Request {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
    }
}

impl State {
    fn answer(&self, request: &Request, contents: Option<SocketAddr>) -> Answer {
        let path = request.line.split_once(' ').map_or("", |line| line.1);
        let (path, query) = path.split_once('?').unwrap_or((path, ""));
        let path = path.trim_start_matches('/').replace("%2F", "/");
        match contents {
            None => self.content(&path),
            Some(contents) => match path.strip_prefix("api/") {
                Some(path) => self.api(path, query),
                None => self.resolve(&path, request, contents),
            },
        }
    }

    fn content(&self, hash: &str) -> Answer {
        let files = self.repositories.values().flat_map(|one| one.commits.values()).flat_map(BTreeMap::values);
        let found = files.into_iter().find(|bytes| sha256(bytes) == hash);
        found.map_or_else(|| Answer::new("404 Not Found"), |bytes| Answer::file(bytes))
    }

    /// The repository and commit that `name` and `revision` name, or the hub's answer that there is none.
    fn find(&self, name: &str, revision: &str) -> Result<(&Repository, String, &Files), Answer> {
        let Some(repository) = self.repositories.get(name) else {
            return Err(Answer::error("401 Unauthorized", "RepoNotFound", "Repository not found"));
        };
        let commit = repository.names.get(revision).map_or(revision, String::as_str);
        match repository.commits.get(commit) {
            Some(files) => Ok((repository, commit.to_owned(), files)),
            None => Err(Answer::error("404 Not Found", "RevisionNotFound", &format!("Invalid rev id: {revision}"))),
        }
    }

    /// `models/owner/name/revision/main`, `datasets/owner/name/tree/main`.
    fn api(&self, path: &str, query: &str) -> Answer {
        let mut parts = path.splitn(5, '/');
        let mut part = || parts.next().unwrap_or_default();
        let (kind, owner, name, verb, revision) = (part(), part(), part(), part(), part());
        let id = format!("{owner}/{name}");
        let key = if kind == "datasets" { format!("datasets/{id}") } else { id.clone() };
        let (_, commit, files) = match self.find(&key, revision) {
            Ok(found) => found,
            Err(answer) => return answer,
        };
        let lfs = |bytes: &[u8]| json!({ "oid": sha256(bytes), "sha256": sha256(bytes), "size": bytes.len(), "pointerSize": 134 });
        if verb == "tree" {
            let entry = |(path, bytes): (&String, &Vec<u8>)| {
                let mut entry = json!({ "type": "file", "path": path, "size": bytes.len(), "oid": git_hash(bytes) });
                if bytes.len() >= LFS {
                    entry["lfs"] = lfs(bytes);
                }
                entry
            };
            return Answer::json(&files.iter().map(entry).collect());
        }
        let with_blobs = query.contains("blobs=true") && !self.is_terse;
        let sibling = |(path, bytes): (&String, &Vec<u8>)| {
            let mut sibling = json!({ "rfilename": path });
            if with_blobs {
                (sibling["size"], sibling["blobId"]) = (json!(bytes.len()), json!(git_hash(bytes)));
                if bytes.len() >= LFS {
                    sibling["lfs"] = lfs(bytes);
                }
            }
            sibling
        };
        Answer::json(&json!({
            "_id": "0", "id": id, "modelId": id, "sha": commit, "private": false, "gated": false, "disabled": false,
            "tags": [], "downloads": 0, "likes": 0, "lastModified": "2024-01-01T00:00:00.000Z",
            "createdAt": "2024-01-01T00:00:00.000Z", "siblings": files.iter().map(sibling).collect::<Vec<_>>(),
        }))
    }

    /// `owner/name/resolve/main/config.json`, `datasets/owner/name/resolve/...`.
    fn resolve(&self, path: &str, request: &Request, contents: SocketAddr) -> Answer {
        let Some((name, rest)) = path.split_once("/resolve/") else { return Answer::new("404 Not Found") };
        // A revision with a slash was escaped; the tests have none here.
        let (revision, file) = rest.split_once('/').unwrap_or((rest, ""));
        let (repository, commit, files) = match self.find(name, revision) {
            Ok(found) => found,
            Err(answer) => return answer,
        };
        let authorization = request.header("authorization");
        if let Some(token) = repository.gate
            && authorization != Some(&format!("bearer {token}"))
        {
            let status = if authorization.is_some() { "403 Forbidden" } else { "401 Unauthorized" };
            return Answer::error(status, "GatedRepo", "Access to this model is restricted.");
        }
        let file = file.replace("%20", " ");
        match files.get(&file) {
            None => Answer::error("404 Not Found", "EntryNotFound", "Entry not found").with("X-Repo-Commit", commit),
            Some(bytes) if bytes.len() >= LFS => Answer::new("302 Found")
                .with("Location", format!("http://{contents}/{}", sha256(bytes)))
                .with("X-Repo-Commit", commit)
                .with("X-Linked-Size", bytes.len())
                .with("X-Linked-ETag", format!("\"{}\"", sha256(bytes)))
                .with("ETag", format!("\"{}\"", git_hash(b"pointer"))),
            Some(bytes) => {
                Answer::file(bytes).with("X-Repo-Commit", commit).with("ETag", format!("\"{}\"", git_hash(bytes)))
            }
        }
    }
}
