//! Blocking work in a thread, so that Ctrl-C is handled meanwhile.

use crate::error::Error;
use crate::interrupt::Interrupts;

/// Waits for `work`. If the future is dropped, the thread continues until its work or the process ends.
pub async fn run<T: Send + 'static>(work: impl FnOnce() -> Result<T, Error> + Send + 'static) -> Result<T, Error> {
    let (send, receive) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || send.send(work()).ok());
    receive.await.unwrap_or(Err(Error::Interrupted))
}

/// The same until a signal comes.
pub async fn run_interruptibly<T: Send + 'static>(
    interrupts: &mut Interrupts,
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    tokio::select! {
        done = run(work) => done,
        () = interrupts.signal() => Err(Error::Interrupted),
    }
}
