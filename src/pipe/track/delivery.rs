//! A thread that delivers items, so that the sender never waits.

use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::system::http::Failure;

/// At the end of a run: how long to wait for a sign of life, and how long at most.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(2);
const FINISH_TIMEOUT: Duration = Duration::from_secs(10);

/// Tries before there is a warning.
const MAX_TRIES: u32 = 4;

/// Between two tries. A receiver that asks for a longer wait is not tried again.
const FIRST_BACKOFF: Duration = Duration::from_millis(500);
const MAX_BACKOFF: Duration = Duration::from_secs(30);

/// What is delivered, and how.
pub trait Deliver: Send + 'static {
    type Item: Send + 'static;

    fn take(&mut self, item: Self::Item);

    /// How much is not delivered yet.
    fn left(&self) -> usize;

    /// Delivers what is first in line. What can never be delivered is dropped.
    fn deliver(&mut self) -> Result<(), Failure>;

    /// It was tried often enough: drops what is first in line, if waiting longer is of no use.
    fn give_up(&mut self);

    /// How long to gather items before the next delivery.
    fn pause(&self) -> Duration {
        Duration::ZERO
    }
}

pub struct DeliveryThread<T> {
    /// The name of the receiver, without secrets.
    receiver: String,
    queue: SyncSender<T>,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    progress: Mutex<Progress>,
    changed: Condvar,
}

#[derive(Default)]
struct Progress {
    queued: usize,
    /// What the delivery has not delivered yet.
    left: usize,
    /// When something was delivered or refused.
    moved: Option<Instant>,
    /// What went wrong last.
    last_error: Option<String>,
    /// Whether something is lost, or late.
    serious: bool,
    warned: bool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, change: impl FnOnce(&mut Progress)) {
        change(&mut self.lock());
        self.changed.notify_all();
    }
}

impl<T: Send + 'static> DeliveryThread<T> {
    /// `capacity` items wait in its queue, at most, and as many again with the delivery.
    pub fn start<E: Deliver<Item = T>>(receiver: String, capacity: usize, delivery: E) -> io::Result<Self> {
        let (queue, items) = sync_channel(capacity);
        let shared = Arc::new(Shared::default());
        let thread_shared = shared.clone();
        thread::Builder::new()
            .name("delivery".to_owned())
            .spawn(move || work(delivery, &items, capacity, &thread_shared))?;
        Ok(Self { receiver, queue, shared })
    }

    /// Never waits: items beyond the capacity are lost.
    pub fn send(&self, item: T) {
        let mut progress = self.shared.lock();
        match self.queue.try_send(item) {
            Ok(()) => progress.queued += 1,
            Err(_) => progress.serious = true,
        }
    }

    /// Waits until everything is delivered, up to the two timeouts.
    pub fn finish(&self, ended: Instant) {
        let mut progress = self.shared.lock();
        while progress.queued + progress.left > 0 {
            let heard = progress.moved.map_or(ended, |moved| moved.max(ended));
            let rest = (heard + SILENCE_TIMEOUT).min(ended + FINISH_TIMEOUT).saturating_duration_since(Instant::now());
            if rest.is_zero() {
                progress.serious = true;
                return;
            }
            progress = self.shared.changed.wait_timeout(progress, rest).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// What went wrong, once.
    pub fn warning(&self) -> Option<String> {
        let mut progress = self.shared.lock();
        if !progress.serious || progress.warned {
            return None;
        }
        progress.warned = true;
        let why = progress.last_error.as_deref().unwrap_or("it did not answer in time");
        Some(format!("{} could not be notified: {why}", self.receiver))
    }
}

fn work<E: Deliver>(mut delivery: E, items: &Receiver<E::Item>, capacity: usize, shared: &Shared) {
    let (mut tries, mut wait, mut tried) = (0, Duration::ZERO, Instant::now());
    loop {
        let rest = (tried + wait.max(delivery.pause())).saturating_duration_since(Instant::now());
        let item = match delivery.left() {
            0 => items.recv().map_err(|_| RecvTimeoutError::Disconnected),
            left if left < capacity => items.recv_timeout(rest),
            _ => {
                thread::sleep(rest);
                Err(RecvTimeoutError::Timeout)
            }
        };
        match item {
            Ok(item) => {
                delivery.take(item);
                shared.note(|progress| {
                    progress.queued -= 1;
                    progress.left = delivery.left();
                });
                continue;
            }
            Err(RecvTimeoutError::Disconnected) if delivery.left() == 0 => return,
            Err(RecvTimeoutError::Disconnected) => thread::sleep(rest),
            Err(RecvTimeoutError::Timeout) => {}
        }
        let delivered = delivery.deliver();
        (tries, wait) = match &delivered {
            Err(Failure::Later { after, .. }) => (tries + 1, after.unwrap_or_else(|| backoff(tries))),
            Ok(()) | Err(Failure::Never { .. }) => (0, Duration::ZERO),
        };
        let hopeless = tries >= MAX_TRIES || wait > MAX_BACKOFF;
        if hopeless {
            let before = delivery.left();
            delivery.give_up();
            if delivery.left() < before {
                (tries, wait) = (0, Duration::ZERO);
            }
            wait = wait.min(MAX_BACKOFF);
        }
        tried = Instant::now();
        shared.note(|progress| {
            progress.left = delivery.left();
            match delivered {
                Ok(()) => progress.moved = Some(tried),
                Err(Failure::Never { reason, .. }) => {
                    (progress.moved, progress.last_error, progress.serious) = (Some(tried), Some(reason), true);
                }
                Err(Failure::Later { reason, .. }) => {
                    progress.last_error = Some(reason);
                    progress.serious |= hopeless;
                }
            }
        });
    }
}

/// After so many tries before.
fn backoff(tries: u32) -> Duration {
    FIRST_BACKOFF.saturating_mul(2u32.saturating_pow(tries)).min(MAX_BACKOFF)
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::sync::mpsc::{Sender, channel};

    use super::*;

    /// Fails with the given failures, and sends what it has delivered.
    struct Fake {
        waiting: VecDeque<u32>,
        failures: VecDeque<Failure>,
        delivered: Sender<u32>,
    }

    impl Deliver for Fake {
        type Item = u32;

        fn take(&mut self, item: u32) {
            self.waiting.push_back(item);
        }

        fn left(&self) -> usize {
            self.waiting.len()
        }

        fn deliver(&mut self) -> Result<(), Failure> {
            match self.failures.pop_front() {
                Some(failure) => {
                    if let Failure::Never { .. } = failure {
                        self.give_up();
                    }
                    Err(failure)
                }
                None => {
                    self.delivered.send(self.waiting.pop_front().unwrap()).unwrap();
                    Ok(())
                }
            }
        }

        fn give_up(&mut self) {
            self.waiting.pop_front();
        }
    }

    /// What of 1, 2 and 3 is delivered, and the warning.
    fn delivered(failures: Vec<Failure>) -> (Vec<u32>, Option<String>) {
        let (delivered, seen) = channel();
        let fake = Fake { waiting: VecDeque::new(), failures: failures.into(), delivered };
        let delivery = DeliveryThread::start("a receiver".to_owned(), 8, fake).unwrap();
        (1..=3).for_each(|item| delivery.send(item));
        delivery.finish(Instant::now());
        let warning = delivery.warning();
        assert_eq!(delivery.warning(), None);
        drop(delivery);
        (seen.try_iter().collect(), warning)
    }

    fn later(milliseconds: u64) -> Failure {
        Failure::Later { reason: "busy".to_owned(), after: Some(Duration::from_millis(milliseconds)) }
    }

    #[test]
    fn everything_arrives_in_order() {
        assert_eq!(delivered(Vec::new()), (vec![1, 2, 3], None));
        assert_eq!(delivered(vec![later(1), later(1), later(1)]), (vec![1, 2, 3], None));
    }

    #[test]
    fn what_is_refused_or_tried_too_often_is_dropped_and_said_once() {
        let never = Failure::Never { reason: "no".to_owned(), body: Vec::new() };
        assert_eq!(delivered(vec![never]), (vec![2, 3], Some("a receiver could not be notified: no".to_owned())));
        let busy = Some("a receiver could not be notified: busy".to_owned());
        assert_eq!(delivered((0..4).map(|_| later(1)).collect()), (vec![2, 3], busy.clone()));
        assert_eq!(delivered(vec![later(3_600_000)]), (vec![2, 3], busy));
    }

    #[test]
    fn the_end_does_not_wait_long() {
        let (began, asked) = (Instant::now(), 29_000);
        let (seen, warning) = delivered(vec![later(asked)]);
        assert!(seen.is_empty() && warning.is_some());
        assert!(began.elapsed() < Duration::from_millis(asked), "{:?}", began.elapsed());
    }

    #[test]
    fn tries_are_further_and_further_apart() {
        assert_eq!(backoff(0), FIRST_BACKOFF);
        assert_eq!(backoff(2), FIRST_BACKOFF * 4);
        assert_eq!(backoff(99), MAX_BACKOFF);
    }
}
