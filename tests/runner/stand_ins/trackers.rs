//! Trackers of experiments that read a run back: a real MLflow server, through its REST interface, and the real `wandb sync`, which
//! uploads to a server of the test.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::harness::folder::repository;
use crate::harness::{Answer, suite};

pub struct Mlflow {
    child: Child,
    port: u16,
    log: PathBuf,
}

impl Mlflow {
    pub fn start(folder: &Path) -> Self {
        let folder = folder.join("mlflow");
        std::fs::create_dir_all(&folder).unwrap();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let log = folder.join("log");
        let file = std::fs::File::create(&log).unwrap();
        let child = Command::new("python3")
            .args(["-m", "mlflow", "server", "--host", "127.0.0.1", "--workers", "1", "--port", &port.to_string()])
            .args(["--backend-store-uri", &format!("file://{}", folder.join("store").display())])
            .args(["--artifacts-destination", &folder.join("artifacts").display().to_string()])
            .current_dir(&folder)
            .env("PYTHONPATH", suite::mlflow())
            .env("HOME", &folder)
            .stdin(Stdio::null())
            .stdout(file.try_clone().unwrap())
            .stderr(file)
            // Its child processes end with it.
            .process_group(0)
            .spawn()
            .unwrap();
        let server = Self { child, port, log };
        let began = Instant::now();
        while server.ask("GET", "/health", "").is_none_or(|answer| answer.trim() != "OK") {
            let text = || std::fs::read_to_string(&server.log).unwrap_or_default();
            assert!(began.elapsed() < Duration::from_secs(300), "the server did not start:\n{}", text());
            std::thread::sleep(Duration::from_millis(200));
        }
        server
    }

    pub fn address(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    #[track_caller]
    pub fn get(&self, path: &str) -> Value {
        self.json("GET", path, "")
    }

    #[track_caller]
    pub fn post(&self, path: &str, body: &Value) -> Value {
        self.json("POST", path, &body.to_string())
    }

    #[track_caller]
    fn json(&self, method: &str, path: &str, body: &str) -> Value {
        let answer = self.ask(method, &format!("/api/2.0/mlflow/{path}"), body).expect("the server answers");
        serde_json::from_str(&answer).unwrap_or_else(|error| panic!("{path}: {error}: {answer}"))
    }

    /// The body of the answer.
    fn ask(&self, method: &str, path: &str, body: &str) -> Option<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).ok()?;
        let length = body.len();
        let head =
            format!("{method} {path} HTTP/1.0\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n");
        stream.write_all((head + body).as_bytes()).ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned())
    }
}

impl Drop for Mlflow {
    fn drop(&mut self) {
        Command::new("kill").args(["-KILL", "--", &format!("-{}", self.child.id())]).status().ok();
        self.child.wait().ok();
    }
}

/// The offline run in the folder of a run; the only one.
pub fn offline_run(run: &Path) -> PathBuf {
    let found = std::fs::read_dir(run.join("wandb")).unwrap().map(|entry| entry.unwrap().path());
    let is_run = |path: &PathBuf| path.file_name().unwrap().to_string_lossy().starts_with("offline-run-");
    let found: Vec<PathBuf> = found.filter(is_run).collect();
    assert_eq!(found.len(), 1, "{found:?}");
    found[0].clone()
}

/// What `wandb sync` uploads of an offline run, as tests/wandb_sync.py prints it; none where there is nothing to upload.
pub fn sync(offline: &Path) -> Option<Value> {
    let mut python = Command::new("python3");
    // It writes files of its own; they go into the test's folder.
    let home = offline.ancestors().nth(4).unwrap();
    python.arg(repository().join("tests/wandb_sync.py")).arg(offline).current_dir(home);
    let output = python.env("PYTHONPATH", suite::wandb()).env("HOME", home).output().unwrap();
    let answer = Answer::new("wandb sync".to_owned(), output).exits(0);
    let uploads = answer.json();
    let uploads = uploads.as_object().unwrap();
    assert!(uploads.len() <= 1, "{answer}");
    uploads.values().next().cloned()
}
