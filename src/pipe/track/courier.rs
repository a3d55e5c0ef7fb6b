//! A thread that delivers what it is handed, so that whoever hands it over never waits.

use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::web::Failure;

/// At the end of a run: how long to wait for a sign of life, and how long at most.
const QUIET: Duration = Duration::from_secs(2);
const LONGEST: Duration = Duration::from_secs(10);

/// How often something is tried before that is worth a word.
const TRIES: u32 = 4;

/// Between two tries. Whoever asks for more patience than this is not tried again.
const FIRST_WAIT: Duration = Duration::from_millis(500);
const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// What is delivered, and how.
pub trait Errand: Send + 'static {
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

pub struct Courier<T> {
    /// Who is told, in words that are no secret.
    who: String,
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
    /// What the errand has not delivered yet.
    left: usize,
    /// When something was delivered or refused.
    moved: Option<Instant>,
    /// What went wrong last.
    trouble: Option<String>,
    /// Whether something is lost, or late.
    serious: bool,
    told: bool,
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

impl<T: Send + 'static> Courier<T> {
    /// `room` items wait in its queue, at most, and as many again with the errand.
    pub fn start<E: Errand<Item = T>>(who: String, room: usize, errand: E) -> io::Result<Self> {
        let (queue, items) = sync_channel(room);
        let shared = Arc::new(Shared::default());
        let theirs = shared.clone();
        thread::Builder::new().name("courier".to_owned()).spawn(move || work(errand, &items, room, &theirs))?;
        Ok(Self { who, queue, shared })
    }

    /// Never waits: what there is no room for is lost.
    pub fn send(&self, item: T) {
        let mut progress = self.shared.lock();
        match self.queue.try_send(item) {
            Ok(()) => progress.queued += 1,
            Err(_) => progress.serious = true,
        }
    }

    /// Waits until all is delivered, but not for somebody from whom nothing is heard, and not for long.
    pub fn finish(&self, ended: Instant) {
        let mut progress = self.shared.lock();
        while progress.queued + progress.left > 0 {
            let heard = progress.moved.map_or(ended, |moved| moved.max(ended));
            let rest = (heard + QUIET).min(ended + LONGEST).saturating_duration_since(Instant::now());
            if rest.is_zero() {
                progress.serious = true;
                return;
            }
            progress = self.shared.changed.wait_timeout(progress, rest).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// What went wrong, once.
    pub fn complaint(&self) -> Option<String> {
        let mut progress = self.shared.lock();
        if !progress.serious || progress.told {
            return None;
        }
        progress.told = true;
        let why = progress.trouble.as_deref().unwrap_or("it did not answer in time");
        Some(format!("{} could not be told: {why}", self.who))
    }
}

fn work<E: Errand>(mut errand: E, items: &Receiver<E::Item>, room: usize, shared: &Shared) {
    let (mut tries, mut wait, mut tried) = (0, Duration::ZERO, Instant::now());
    loop {
        let rest = (tried + wait.max(errand.pause())).saturating_duration_since(Instant::now());
        let item = match errand.left() {
            0 => items.recv().map_err(|_| RecvTimeoutError::Disconnected),
            left if left < room => items.recv_timeout(rest),
            _ => {
                thread::sleep(rest);
                Err(RecvTimeoutError::Timeout)
            }
        };
        match item {
            Ok(item) => {
                errand.take(item);
                shared.note(|progress| {
                    progress.queued -= 1;
                    progress.left = errand.left();
                });
                continue;
            }
            Err(RecvTimeoutError::Disconnected) if errand.left() == 0 => return,
            Err(RecvTimeoutError::Disconnected) => thread::sleep(rest),
            Err(RecvTimeoutError::Timeout) => {}
        }
        let delivered = errand.deliver();
        (tries, wait) = match &delivered {
            Err(Failure::Later { after, .. }) => (tries + 1, after.unwrap_or_else(|| backoff(tries))),
            Ok(()) | Err(Failure::Never { .. }) => (0, Duration::ZERO),
        };
        let hopeless = tries >= TRIES || wait > LONGEST_WAIT;
        if hopeless {
            let before = errand.left();
            errand.give_up();
            if errand.left() < before {
                (tries, wait) = (0, Duration::ZERO);
            }
            wait = wait.min(LONGEST_WAIT);
        }
        tried = Instant::now();
        shared.note(|progress| {
            progress.left = errand.left();
            match delivered {
                Ok(()) => progress.moved = Some(tried),
                Err(Failure::Never { reason, .. }) => {
                    (progress.moved, progress.trouble, progress.serious) = (Some(tried), Some(reason), true);
                }
                Err(Failure::Later { reason, .. }) => {
                    progress.trouble = Some(reason);
                    progress.serious |= hopeless;
                }
            }
        });
    }
}

/// After so many tries before.
fn backoff(tries: u32) -> Duration {
    FIRST_WAIT.saturating_mul(2u32.saturating_pow(tries)).min(LONGEST_WAIT)
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::sync::mpsc::{Sender, channel};

    use super::*;

    /// Fails as often as it is told, and says what it has delivered.
    struct Fake {
        waiting: VecDeque<u32>,
        failures: VecDeque<Failure>,
        delivered: Sender<u32>,
    }

    impl Errand for Fake {
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

    /// What of 1, 2 and 3 is delivered, and the complaint.
    fn delivered(failures: Vec<Failure>) -> (Vec<u32>, Option<String>) {
        let (delivered, seen) = channel();
        let fake = Fake { waiting: VecDeque::new(), failures: failures.into(), delivered };
        let courier = Courier::start("somebody".to_owned(), 8, fake).unwrap();
        (1..=3).for_each(|item| courier.send(item));
        courier.finish(Instant::now());
        let complaint = courier.complaint();
        assert_eq!(courier.complaint(), None);
        drop(courier);
        (seen.try_iter().collect(), complaint)
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
        assert_eq!(delivered(vec![never]), (vec![2, 3], Some("somebody could not be told: no".to_owned())));
        let busy = Some("somebody could not be told: busy".to_owned());
        assert_eq!(delivered((0..4).map(|_| later(1)).collect()), (vec![2, 3], busy.clone()));
        assert_eq!(delivered(vec![later(3_600_000)]), (vec![2, 3], busy));
    }

    #[test]
    fn nobody_waits_for_long() {
        let began = Instant::now();
        let (seen, complaint) = delivered(vec![later(29_000)]);
        assert!(seen.is_empty() && complaint.is_some());
        assert!(began.elapsed() < LONGEST, "{:?}", began.elapsed());
    }

    #[test]
    fn tries_are_further_and_further_apart() {
        assert_eq!(backoff(0), FIRST_WAIT);
        assert_eq!(backoff(2), FIRST_WAIT * 4);
        assert_eq!(backoff(99), LONGEST_WAIT);
    }
}
