//! Carries notices between nodes that share no folder: every launcher is connected to that of the first node. What one of them finds in
//! its folder, all have soon.

use std::collections::BTreeSet;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use pipe_spec::trainer::FIRST_NODE_VARIABLE;

use super::notices::{Ended, Notices};
use crate::error::TrainerError;
use crate::session::Node;

/// Between two signs of life, and how long none may come before the other node is given up.
const ALIVE_INTERVAL: Duration = Duration::from_secs(5);
const SILENCE_TIMEOUT: Duration = Duration::from_secs(60);

/// How long the last notices may take.
const FINISH_TIMEOUT: Duration = Duration::from_secs(5);

/// Bytes of a line.
const MAX_LINE: u64 = 1 << 20;

/// The name of a line that is no notice: the launcher has ended as it should. An empty one is a sign of life.
const END: &str = "end";

/// Where nodes that share no folder find the first one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FirstNode {
    pub host: String,
    port: u16,
}

impl FirstNode {
    /// Nothing where all nodes see one folder.
    pub fn of_environment() -> Result<Option<Self>, TrainerError> {
        match std::env::var(FIRST_NODE_VARIABLE) {
            Ok(text) if !text.is_empty() => Self::parse(&text).map(Some),
            _ => Ok(None),
        }
    }

    fn parse(text: &str) -> Result<Self, TrainerError> {
        let parts = text.rsplit_once(':').and_then(|(host, port)| Some((host, port.parse::<u16>().ok()?)));
        match parts {
            Some((host, port)) if !host.is_empty() && port < u16::MAX => Ok(Self { host: host.to_owned(), port }),
            _ => Err(TrainerError::NoAddress {
                of: format!("{FIRST_NODE_VARIABLE} {text:?}"),
                message: "allowed: HOST:PORT".to_owned(),
            }),
        }
    }

    /// The port where ranks find each other; launchers use the one before.
    pub fn rendezvous_port(&self) -> u16 {
        self.port + 1
    }
}

/// The connections of a launcher.
pub struct Exchange {
    ends: Arc<AtomicBool>,
    /// Closed when all connections are.
    closed: Receiver<()>,
}

impl Exchange {
    /// Begins to carry notices, where nodes share no folder.
    pub fn start(notices: &Arc<Mutex<Notices>>, node: Node) -> Result<Option<Self>, TrainerError> {
        let Some(first) = FirstNode::of_environment()? else { return Ok(None) };
        let ends = Arc::new(AtomicBool::new(false));
        let (open, closed) = channel();
        let link = Link { notices: Arc::clone(notices), node, ends: Arc::clone(&ends), _open: open };
        if node.index == 0 {
            let any =
                [SocketAddr::from((Ipv6Addr::UNSPECIFIED, first.port)), (Ipv4Addr::UNSPECIFIED, first.port).into()];
            let listener = TcpListener::bind(&any[..]).map_err(|error| TrainerError::NoAddress {
                of: format!("port {}", first.port),
                message: error.to_string(),
            })?;
            thread::spawn(move || link.accept(&listener));
        } else {
            thread::spawn(move || link.connect(&first));
        }
        Ok(Some(Self { ends, closed }))
    }

    /// Gives the other nodes the last notices.
    pub fn finish(self) {
        self.ends.store(true, Ordering::Relaxed);
        let _ = self.closed.recv_timeout(FINISH_TIMEOUT);
    }
}

#[derive(Clone)]
struct Link {
    notices: Arc<Mutex<Notices>>,
    node: Node,
    ends: Arc<AtomicBool>,
    /// Dropped with the last connection.
    _open: Sender<()>,
}

impl Link {
    fn notices(&self) -> MutexGuard<'_, Notices> {
        self.notices.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pause(&self) {
        let interval = self.notices().poll_interval();
        thread::sleep(interval);
    }

    fn ends(&self) -> bool {
        self.ends.load(Ordering::Relaxed)
    }

    /// The first node takes a connection of each other one.
    fn accept(self, listener: &TcpListener) {
        if listener.set_nonblocking(true).is_err() {
            return;
        }
        while !self.ends() {
            match listener.accept() {
                Ok((stream, _)) => {
                    let link = self.clone();
                    thread::spawn(move || link.talk(&stream));
                }
                Err(_) => self.pause(),
            }
        }
    }

    /// The other nodes try until the first one is there.
    fn connect(self, first: &FirstNode) {
        while !self.ends() {
            match TcpStream::connect((first.host.as_str(), first.port)) {
                Ok(stream) => return self.talk(&stream),
                Err(error) => tracing::debug!("{}:{}: {error}", first.host, first.port),
            }
            self.pause();
        }
    }

    fn talk(self, stream: &TcpStream) {
        let known = Arc::new(Mutex::new(BTreeSet::new()));
        let reader = stream.set_nonblocking(false).and_then(|()| {
            stream.set_read_timeout(Some(SILENCE_TIMEOUT))?;
            stream.set_write_timeout(Some(SILENCE_TIMEOUT))?;
            let (own, link, known) = (stream.try_clone()?, self.clone(), Arc::clone(&known));
            Ok(thread::spawn(move || link.read(own, &known)))
        });
        if let Err(error) = self.write(stream, &known) {
            tracing::debug!("cannot send notices: {error}");
        }
        if let Ok(reader) = reader {
            let _ = reader.join();
        }
    }

    /// Takes the notices of the other side until it ends; one that is gone before is lost.
    fn read(self, stream: TcpStream, known: &Known) {
        let mut from = BufReader::new(stream);
        loop {
            let message = match next(&mut from) {
                Ok((name, _)) if name == END => return,
                Ok((name, _)) if name.is_empty() => continue,
                Ok((name, text)) => {
                    self.notices().take(&name, &text);
                    known.lock().unwrap_or_else(PoisonError::into_inner).insert((name, text));
                    continue;
                }
                Err(error) => error.to_string(),
            };
            if !self.ends() {
                let lost = TrainerError::NodeLost { message };
                self.notices().leave_for_node(&Ended::by(self.node.ranks().start, &lost));
            }
            return;
        }
    }

    /// Sends what the other side does not have, until this launcher ends.
    fn write(&self, to: &TcpStream, known: &Known) -> io::Result<()> {
        let mut written = Instant::now();
        loop {
            let is_last = self.ends();
            let present = self.notices().all();
            for notice in present {
                if known.lock().unwrap_or_else(PoisonError::into_inner).insert(notice.clone()) {
                    send(to, &notice.0, &notice.1)?;
                }
            }
            if is_last {
                send(to, END, "")?;
                return to.shutdown(Shutdown::Write);
            }
            if written.elapsed() > ALIVE_INTERVAL {
                send(to, "", "")?;
                written = Instant::now();
            }
            self.pause();
        }
    }
}

/// The notices that both sides have.
type Known = Mutex<BTreeSet<(String, String)>>;

fn send(mut to: &TcpStream, name: &str, text: &str) -> io::Result<()> {
    let mut line = serde_json::to_vec(&(name, text))?;
    line.push(b'\n');
    to.write_all(&line)
}

fn next(from: &mut impl BufRead) -> io::Result<(String, String)> {
    let mut line = String::new();
    from.take(MAX_LINE).read_line(&mut line)?;
    if line.is_empty() {
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it closed the connection"));
    }
    Ok(serde_json::from_str(&line)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_a_port() {
        let first = FirstNode::parse("a-0.a:29400").unwrap();
        assert_eq!((first.host.as_str(), first.port, first.rendezvous_port()), ("a-0.a", 29400, 29401));
        for text in ["a", "a:", ":1", "a:65535", "a:x"] {
            assert!(FirstNode::parse(text).is_err(), "{text}");
        }
    }
}
