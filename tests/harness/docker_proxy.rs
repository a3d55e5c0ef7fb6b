//! A socket that leads to the machine's Docker daemon and changes what it answers, in as many bytes.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

const DAEMON: &str = "/var/run/docker.sock";

/// Listens at `socket` until the test program ends. In the first `times` answers that have it, `from` becomes `to`.
pub fn listen(socket: &Path, times: usize, from: &'static str, to: &'static str) {
    let left = Arc::new(AtomicUsize::new(times));
    assert_eq!(from.len(), to.len(), "the lengths that the daemon tells must stay true");
    let listener = UnixListener::bind(socket).unwrap();
    std::thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let left = left.clone();
            std::thread::spawn(move || serve(client, &left, from, to));
        }
    });
}

fn serve(client: UnixStream, left: &AtomicUsize, from: &str, to: &str) {
    let daemon = UnixStream::connect(DAEMON).unwrap();
    let (asking, answered) = (client.try_clone().unwrap(), daemon.try_clone().unwrap());
    std::thread::spawn(move || copy(asking, daemon, |bytes| bytes));
    copy(answered, client, |bytes| replace(bytes, left, from.as_bytes(), to.as_bytes()));
}

fn copy(mut source: UnixStream, mut target: UnixStream, change: impl Fn(Vec<u8>) -> Vec<u8>) {
    // Larger than the answer that is changed, which the daemon writes at once.
    let mut buffer = vec![0; 1 << 20];
    while let Ok(count @ 1..) = source.read(&mut buffer) {
        if target.write_all(&change(buffer[..count].to_vec())).is_err() {
            break;
        }
    }
    target.shutdown(std::net::Shutdown::Write).ok();
}

fn replace(mut bytes: Vec<u8>, left: &AtomicUsize, from: &[u8], to: &[u8]) -> Vec<u8> {
    let found = bytes.windows(from.len()).position(|window| window == from);
    let is_left = || left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_ok();
    if let Some(at) = found.filter(|_| is_left()) {
        bytes[at..at + to.len()].copy_from_slice(to);
    }
    bytes
}
