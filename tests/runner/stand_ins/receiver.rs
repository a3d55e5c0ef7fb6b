//! A web server for one test: it records requests and sends the answers that it was given.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::Value;

#[derive(Clone, Debug)]
pub struct Request {
    /// Method and path.
    pub line: String,
    pub headers: String,
    pub body: String,
}

/// It sends the answers one after the other, and then the last one again and again. `HANG` sends none.
pub struct Receiver {
    address: SocketAddr,
    requests: Arc<Mutex<Vec<Request>>>,
}

pub const OK: &str = "200 OK";
pub const HANG: &str = "hang";

impl Receiver {
    pub fn start(answers: &[&'static str]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let requests = Arc::new(Mutex::new(Vec::new()));
        let (theirs, answers) = (requests.clone(), answers.to_vec());
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (requests, answers) = (theirs.clone(), answers.clone());
                std::thread::spawn(move || serve(stream, &requests, &answers));
            }
        });
        Self { address, requests }
    }

    pub fn address(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn requests(&self) -> Vec<Request> {
        self.requests.lock().unwrap().clone()
    }

    /// The bodies, as JSON.
    pub fn messages(&self) -> Vec<Value> {
        self.requests().iter().map(|request| serde_json::from_str(&request.body).unwrap()).collect()
    }
}

/// An address without a listener.
pub fn closed_port() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    format!("http://{}", listener.local_addr().unwrap())
}

fn serve(mut stream: TcpStream, requests: &Mutex<Vec<Request>>, answers: &[&str]) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let (mut line, mut headers) = (String::new(), String::new());
    reader.read_line(&mut line).unwrap();
    while !headers.ends_with("\r\n\r\n") && headers != "\r\n" {
        if reader.read_line(&mut headers).unwrap() == 0 {
            return;
        }
    }
    let length = headers.lines().find_map(|header| {
        let (name, value) = header.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().unwrap())
    });
    let mut body = vec![0; length.unwrap_or(0)];
    reader.read_exact(&mut body).unwrap();
    let body = String::from_utf8(body).unwrap();
    let count = {
        let mut requests = requests.lock().unwrap();
        requests.push(Request { line: line.trim_end().to_owned(), headers, body });
        requests.len()
    };
    let answer = answers[(count - 1).min(answers.len() - 1)];
    if answer == HANG {
        std::thread::sleep(Duration::from_secs(600));
    }
    // The answer repeats the request, as a server may do.
    let body = format!("you asked for {}", line.trim_end());
    let text = format!("HTTP/1.1 {answer}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}", body.len());
    stream.write_all(text.as_bytes()).ok();
}
