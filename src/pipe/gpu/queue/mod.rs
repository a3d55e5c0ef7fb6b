//! Runs that want the same card queue for it: each has a ticket with a number, and the lowest number that a living process
//! holds has the card.
//!
//! A ticket is a file `<card>-<number>` that its process holds with a lock of the kernel (flock), so that the ticket of a
//! killed `pipe` is known to be dead. There is one folder for all users of the machine. Nothing here waits for a lock.

mod folder;

use std::collections::BTreeSet;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use folder::{Folder, TicketState};
use pipe_spec::pipeline::Gpus;
use rustix::process::geteuid;

use super::Card;
use crate::error::Error;
use crate::system::files::user;

/// The digits of a number, and the largest one.
const DIGITS: usize = 8;
const MAX_NUMBER: u32 = 99_999_999;
/// How often a number is taken that turns out to be too low.
const MAX_TRIES: usize = 1000;
/// How often to try again while another user creates the folder, and the time between two tries.
const CREATION_TRIES: usize = 50;
const CREATION_POLL: Duration = Duration::from_millis(10);

/// A ticket of the queue for a card, valid until it is dropped.
#[derive(Debug)]
pub struct Ticket {
    folder: Folder,
    card: String,
    number: u32,
    file: File,
}

/// A run that is ahead of this one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ahead {
    pub number: u32,
    pub run: String,
    /// The user it belongs to, where that is another one.
    pub user: Option<String>,
}

impl std::fmt::Display for Ahead {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.user {
            Some(user) => write!(f, "run {} of {user}", self.run),
            None => write!(f, "run {}", self.run),
        }
    }
}

impl Ticket {
    /// Takes a ticket for a card of `card_names`. Where the folder for all users cannot be used, the ticket is one of
    /// a folder of this user alone, with a warning that says why.
    pub fn take(card: &str, run: &str) -> Result<(Self, Option<String>), Error> {
        let [shared, own] = folders();
        Self::take_in(&shared, &own, card, run)
    }

    fn take_in(shared: &Path, own: &Path, card: &str, run: &str) -> Result<(Self, Option<String>), Error> {
        let mut tries = 0;
        let reason = loop {
            match Folder::shared(shared).and_then(|folder| Self::take_number(folder, card, run)) {
                Ok(ticket) => return Ok((ticket, None)),
                Err(_) if tries < CREATION_TRIES && folder::is_being_created(shared) => {
                    tries += 1;
                    std::thread::sleep(CREATION_POLL);
                }
                Err(reason) => break reason,
            }
        };
        let ticket = Folder::own(own)
            .and_then(|folder| Self::take_number(folder, card, run))
            .map_err(|reason| Error::NoQueue { folder: own.to_owned(), reason })?;
        let warning = format!(
            "warning: the queue folder {} is not used: {reason}. This run uses the queue in {}, which only runs of this user see",
            shared.display(),
            own.display()
        );
        Ok((ticket, Some(warning)))
    }

    fn take_number(folder: Folder, card: &str, run: &str) -> Result<Self, String> {
        let (name, file) = folder.create(run)?;
        let number = next_number(&folder, card, &name, &file);
        folder.remove(&name, &file);
        Ok(Self { number: number?, card: card.to_owned(), folder, file })
    }

    /// The runs ahead of this one, the one that has the card first. Tickets of dead processes are removed.
    pub fn ahead(&self) -> Result<Vec<Ahead>, Error> {
        let numbers = numbers(&self.folder, &self.card)
            .map_err(|reason| Error::NoQueue { folder: self.folder.path().to_owned(), reason })?;
        let before = numbers.into_iter().filter(|number| *number < self.number);
        Ok(before.filter_map(|number| living(&self.folder, &self.card, number)).collect())
    }
}

/// The folder for all users, and that of this user alone.
fn folders() -> [PathBuf; 2] {
    let temporary = std::env::temp_dir();
    let named = std::env::var_os("PIPE_QUEUE").filter(|path| !path.is_empty()).map(PathBuf::from);
    let shared = named.unwrap_or_else(|| temporary.join("pipe-gpu-queue"));
    [shared, temporary.join(format!("pipe-gpu-queue-{}", geteuid().as_raw()))]
}

/// The run with this number, if a process holds its ticket.
fn living(folder: &Folder, card: &str, number: u32) -> Option<Ahead> {
    let TicketState::Held { text, uid } = folder.look(&ticket_name(card, number)) else { return None };
    Some(Ahead { number, run: run_id(&text), user: (uid != geteuid().as_raw()).then(|| user(uid)) })
}

/// The runs that queue for a card, the one that has it first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CardQueue {
    /// Its name in the queue: `gpu-0`.
    pub card: String,
    pub runs: Vec<Ahead>,
}

/// The queues of all cards. Makes no folder; one that cannot be used has none.
pub fn queues() -> Vec<CardQueue> {
    let [shared, own] = folders();
    let open = |path: &Path, open: fn(&Path) -> Result<Folder, String>| path.is_dir().then(|| open(path).ok())?;
    [open(&shared, Folder::shared), open(&own, Folder::own)].iter().flatten().flat_map(queues_in).collect()
}

fn queues_in(folder: &Folder) -> Vec<CardQueue> {
    let names = folder.names().unwrap_or_default();
    let card = |name: &String| {
        let card = name.rsplit_once('-')?.0;
        number_of(name, card).map(|_| card.to_owned())
    };
    let cards: BTreeSet<String> = names.iter().filter_map(card).collect();
    let queue = |card: String| {
        let numbers = numbers(folder, &card).unwrap_or_default();
        CardQueue { runs: numbers.into_iter().filter_map(|number| living(folder, &card, number)).collect(), card }
    };
    cards.into_iter().map(queue).filter(|queue| !queue.runs.is_empty()).collect()
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.folder.remove(&ticket_name(&self.card, self.number), &self.file);
    }
}

/// Links `file`, which lies under `name`, to the number after the largest one.
fn next_number(folder: &Folder, card: &str, name: &str, file: &File) -> Result<u32, String> {
    let mut cleared = false;
    for _ in 0..MAX_TRIES {
        let largest = numbers(folder, card)?.last().copied().unwrap_or(0);
        let Some(number) = largest.checked_add(1).filter(|number| *number <= MAX_NUMBER) else {
            if !cleared {
                cleared = true;
                numbers(folder, card)?.into_iter().for_each(|number| drop(folder.look(&ticket_name(card, number))));
                continue;
            }
            return Err(format!("{} leaves no room for another number", ticket_name(card, largest)));
        };
        let ticket = ticket_name(card, number);
        if !folder.link(name, &ticket, file)? {
            continue;
        }
        // The list is old by now. Where a larger number was given away meanwhile, its run may have the card already, and
        // this number must not be before it.
        if numbers(folder, card)?.last() == Some(&number) {
            return Ok(number);
        }
        folder.remove(&ticket, file);
    }
    Err(format!("no number in {MAX_TRIES} tries"))
}

/// The numbers of the tickets for a card, living or dead, the lowest first.
fn numbers(folder: &Folder, card: &str) -> Result<Vec<u32>, String> {
    let names = folder.names()?;
    let mut numbers: Vec<u32> = names.iter().filter_map(|name| number_of(name, card)).collect();
    numbers.sort_unstable();
    Ok(numbers)
}

fn ticket_name(card: &str, number: u32) -> String {
    format!("{card}-{number:0DIGITS$}")
}

/// Nothing where the name is not exactly that of a ticket.
fn number_of(name: &str, card: &str) -> Option<u32> {
    let digits = name.strip_prefix(card)?.strip_prefix('-')?;
    let is_number = digits.len() == DIGITS && digits.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| digits.parse().ok()).flatten()
}

/// The text that another process wrote into its ticket, cut to what can be the id of a run.
fn run_id(text: &str) -> String {
    let id: String = text.trim().chars().take(200).collect();
    let is_id = !id.is_empty() && id.chars().all(|letter| letter.is_alphanumeric() || "-_.".contains(letter));
    if is_id { id } else { "(without a name)".to_owned() }
}

/// The names of the requested cards, in the order in which every run queues for them. A card that the driver knows, which is one of
/// `present`, has one name however a pipeline calls it.
pub fn card_names(gpus: &Gpus, present: &[Card]) -> BTreeSet<String> {
    let plain = |letter: char| if letter.is_ascii_alphanumeric() || "_.:-".contains(letter) { letter } else { '-' };
    let name = |id: &str| format!("gpu-{}", id.chars().take(100).map(plain).collect::<String>());
    let at = |position: u32| present.get(position as usize).map_or(position, |card| card.index);
    let first = |count: u32| (0..count.max(1)).map(|position| name(&at(position).to_string())).collect();
    match gpus {
        Gpus::Ids(ids) => {
            let card = |id: &String| present.iter().find(|card| card.is_called(id));
            ids.iter().map(|id| card(id).map_or_else(|| name(id), |card| name(&card.index.to_string()))).collect()
        }
        Gpus::Count(count) => first(*count),
        Gpus::Auto => first(1),
        Gpus::All => first(present.len() as u32),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{FileTypeExt, PermissionsExt, symlink};
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    /// A folder for queues, which is removed at the end.
    struct TestFolder(PathBuf);

    impl TestFolder {
        fn new() -> Self {
            static COUNT: AtomicU32 = AtomicU32::new(0);
            let name = format!("pipe-queue-test-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
            let path = std::env::temp_dir().join(name);
            std::fs::create_dir_all(&path).unwrap();
            Self(path)
        }

        fn shared(&self) -> PathBuf {
            self.0.join("shared")
        }

        fn take(&self, run: &str) -> (Ticket, Option<String>) {
            Ticket::take_in(&self.shared(), &self.0.join("own"), "gpu-0", run).unwrap()
        }

        /// A ticket of the folder for all users.
        fn ticket(&self, run: &str) -> Ticket {
            let (ticket, warning) = self.take(run);
            assert_eq!(warning, None);
            ticket
        }

        fn mode(&self, name: &str) -> u32 {
            self.0.join(name).symlink_metadata().unwrap().permissions().mode() & 0o7777
        }

        fn make_shared(&self) -> PathBuf {
            drop(self.ticket("first"));
            self.shared()
        }

        fn names(&self) -> Vec<String> {
            let entries = std::fs::read_dir(self.shared()).unwrap();
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
        }
    }

    impl Drop for TestFolder {
        fn drop(&mut self) {
            std::fs::remove_dir_all(&self.0).ok();
        }
    }

    fn ahead(ticket: &Ticket) -> Vec<String> {
        ticket.ahead().unwrap().into_iter().map(|one| one.run).collect()
    }

    #[test]
    fn tickets_are_served_in_order_and_given_back() {
        let folder = TestFolder::new();
        let (first, second, third) = (folder.ticket("a"), folder.ticket("b"), folder.ticket("c"));
        assert_eq!(folder.mode("shared"), 0o1777);
        assert_eq!(folder.mode("shared/gpu-0-00000002"), 0o644);
        assert!(first.ahead().unwrap().is_empty());
        assert_eq!(ahead(&third), ["a", "b"]);
        drop(second);
        assert_eq!(ahead(&third), ["a"]);
        drop(first);
        // The ticket of a killed process: the file is there, and no process holds it.
        std::fs::write(folder.shared().join("gpu-0-00000001"), "killed").unwrap();
        assert!(third.ahead().unwrap().is_empty());
        assert_eq!(folder.names(), ["gpu-0-00000003"]);
    }

    #[test]
    fn cards_do_not_wait_for_each_other() {
        let folder = TestFolder::new();
        let take = |card: &str| Ticket::take_in(&folder.shared(), &folder.0.join("own"), card, card).unwrap().0;
        let (_zero, _ten) = (take("gpu-0"), take("gpu-0-00000001"));
        assert!(take("gpu-1").ahead().unwrap().is_empty());
        assert_eq!(ahead(&take("gpu-0")), ["gpu-0"]);
    }

    #[test]
    fn all_queues() {
        let folder = TestFolder::new();
        let take =
            |card: &str, run: &str| Ticket::take_in(&folder.shared(), &folder.0.join("own"), card, run).unwrap().0;
        let (first, _second, _other) = (take("gpu-0", "a"), take("gpu-0", "b"), take("gpu-MIG-x", "c"));
        std::fs::write(folder.shared().join("gpu-7-00000001"), "killed").unwrap();
        std::fs::write(folder.shared().join("gpu-8"), "").unwrap();
        let seen = || {
            let queues = queues_in(&Folder::shared(&folder.shared()).unwrap());
            let text = |queue: CardQueue| {
                format!("{}:{}", queue.card, queue.runs.into_iter().map(|one| one.run).collect::<String>())
            };
            queues.into_iter().map(text).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(seen(), "gpu-0:ab gpu-MIG-x:c");
        drop(first);
        assert_eq!(seen(), "gpu-0:b gpu-MIG-x:c");
    }

    #[test]
    fn planted_links_are_not_followed() {
        let folder = TestFolder::new();
        let shared = folder.make_shared();
        let victim = folder.0.join("victim");
        std::fs::write(&victim, "precious").unwrap();
        std::fs::set_permissions(&victim, std::fs::Permissions::from_mode(0o600)).unwrap();
        for name in ["counter", "00000000", "gpu-0-00000000", "gpu-0-00000001", "gpu-0-00000005"] {
            symlink(&victim, shared.join(name)).unwrap();
        }
        let ticket = folder.ticket("a");
        assert_eq!(ticket.number, 6);
        assert!(ticket.ahead().unwrap().is_empty());
        drop(ticket);
        assert_eq!(std::fs::read_to_string(&victim).unwrap(), "precious");
        assert_eq!(folder.mode("victim"), 0o600);
        assert_eq!(folder.names().len(), 5);
    }

    #[test]
    fn a_folder_that_is_a_link_is_not_used() {
        let folder = TestFolder::new();
        let elsewhere = folder.0.join("elsewhere");
        std::fs::create_dir(&elsewhere).unwrap();
        std::fs::set_permissions(&elsewhere, std::fs::Permissions::from_mode(0o755)).unwrap();
        symlink(&elsewhere, folder.shared()).unwrap();
        let (ticket, warning) = folder.take("a");
        assert!(warning.unwrap().contains("is not used: it is not a folder"));
        assert_eq!(ticket.folder.path(), folder.0.join("own"));
        assert_eq!((folder.mode("own"), folder.mode("elsewhere")), (0o700, 0o755));
        assert_eq!(std::fs::read_dir(elsewhere).unwrap().count(), 0);
    }

    #[test]
    fn a_folder_without_a_sticky_bit_is_not_used_and_not_changed() {
        let folder = TestFolder::new();
        std::fs::create_dir(folder.shared()).unwrap();
        std::fs::set_permissions(folder.shared(), std::fs::Permissions::from_mode(0o777)).unwrap();
        let (_ticket, warning) = folder.take("a");
        assert!(warning.unwrap().contains("no sticky bit"));
        assert_eq!((folder.mode("shared"), folder.names().len()), (0o777, 0));
    }

    #[test]
    fn a_folder_of_this_user_alone_is_used_as_it_is() {
        let folder = TestFolder::new();
        std::fs::create_dir(folder.shared()).unwrap();
        std::fs::set_permissions(folder.shared(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let _ticket = folder.ticket("a");
        assert_eq!(folder.mode("shared"), 0o755);
    }

    #[test]
    fn an_own_folder_that_is_a_link_is_no_queue() {
        let folder = TestFolder::new();
        std::fs::write(folder.shared(), "").unwrap();
        symlink(&folder.0, folder.0.join("own")).unwrap();
        let refused = Ticket::take_in(&folder.shared(), &folder.0.join("own"), "gpu-0", "a").unwrap_err();
        assert!(refused.to_string().contains("it is not a folder"), "{refused}");
    }

    #[test]
    fn planted_numbers() {
        let folder = TestFolder::new();
        let shared = folder.make_shared();
        let planted = ["gpu-0-18446744073709551615", "gpu-0--0000001", "gpu-0-+0000001", "gpu-0-000000001", "gpu-0-"];
        planted.iter().for_each(|name| std::fs::write(shared.join(name), "").unwrap());
        assert_eq!(folder.ticket("a").number, 1);
        // The largest number, of a dead process: it is removed.
        std::fs::write(shared.join("gpu-0-99999999"), "").unwrap();
        assert_eq!(folder.ticket("a").number, 1);
        // One that cannot be removed so.
        symlink("/nowhere", shared.join("gpu-0-99999999")).unwrap();
        let (ticket, warning) = folder.take("a");
        assert!(warning.unwrap().contains("gpu-0-99999999 leaves no room for another number"));
        assert_eq!(ticket.folder.path(), folder.0.join("own"));
    }

    #[test]
    fn a_pipe_and_a_folder_are_no_tickets() {
        let folder = TestFolder::new();
        let shared = folder.make_shared();
        std::process::Command::new("mkfifo").arg(shared.join("gpu-0-00000001")).status().unwrap();
        std::fs::create_dir(shared.join("gpu-0-00000002")).unwrap();
        let ticket = folder.ticket("a");
        assert_eq!(ticket.number, 3);
        assert!(ticket.ahead().unwrap().is_empty());
        assert!(shared.join("gpu-0-00000001").symlink_metadata().unwrap().file_type().is_fifo());
    }

    #[test]
    fn a_lock_on_any_file_is_not_waited_for() {
        let folder = TestFolder::new();
        let shared = folder.make_shared();
        let hold = |name: &str, text: &[u8]| {
            std::fs::write(shared.join(name), text).unwrap();
            let file = File::open(shared.join(name)).unwrap();
            file.lock().unwrap();
            file
        };
        let _held =
            [hold("counter", b""), hold("gpu-0-00000001", b"\x1b]0;x\x07"), hold("gpu-0-00000002", &[b'x'; 100_000])];
        let ticket = folder.ticket("a");
        assert_eq!(ahead(&ticket), ["(without a name)".to_owned(), "x".repeat(200)]);
        let ahead = ticket.ahead().unwrap();
        assert_eq!(ahead[0].user, None);
    }

    #[test]
    fn files_under_random_names_are_cleared_when_they_are_old() {
        let folder = TestFolder::new();
        let shared = folder.make_shared();
        for (name, age) in [("new-a", 3600), ("new-b", 0)] {
            let file = File::create(shared.join(name)).unwrap();
            file.set_modified(std::time::SystemTime::now() - Duration::from_secs(age)).unwrap();
        }
        drop(folder.ticket("a"));
        assert_eq!(folder.names(), ["new-b"]);
    }

    #[test]
    fn of_many_at_once_one_is_first() {
        let folder = TestFolder::new();
        let (threads, rounds) = (8, 60);
        let (barrier, inside, most) = (Barrier::new(threads), AtomicU32::new(0), AtomicU32::new(0));
        std::thread::scope(|scope| {
            for thread in 0..threads {
                let (folder, barrier, inside, most) = (&folder, &barrier, &inside, &most);
                scope.spawn(move || {
                    barrier.wait();
                    for round in 0..rounds {
                        let ticket = folder.ticket(&format!("{thread}-{round}"));
                        while !ticket.ahead().unwrap().is_empty() {
                            std::thread::yield_now();
                        }
                        most.fetch_max(inside.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                        std::thread::yield_now();
                        inside.fetch_sub(1, Ordering::SeqCst);
                    }
                });
            }
        });
        assert_eq!(most.load(Ordering::SeqCst), 1);
        assert!(folder.names().is_empty());
    }

    #[test]
    fn one_name_for_a_card() {
        let ids = |ids: &[&str]| Gpus::Ids(ids.iter().map(|id| (*id).to_owned()).collect());
        let card = |index: u32| Card { uuid: Some(format!("GPU-{index}f")), ..Card::example(index) };
        let present: Vec<Card> = (0..3).map(card).collect();
        for (gpus, want) in [
            (Gpus::Auto, "gpu-0"),
            (Gpus::Count(1), "gpu-0"),
            (Gpus::Count(2), "gpu-0 gpu-1"),
            (Gpus::All, "gpu-0 gpu-1 gpu-2"),
            (ids(&["2", "0"]), "gpu-0 gpu-2"),
            (ids(&["GPU-2f", "1"]), "gpu-1 gpu-2"),
            (ids(&["MIG-x/1"]), "gpu-MIG-x-1"),
        ] {
            assert_eq!(card_names(&gpus, &present).into_iter().collect::<Vec<_>>().join(" "), want, "{gpus:?}");
        }
        // Without the driver's word.
        assert_eq!(card_names(&Gpus::All, &[]), BTreeSet::from(["gpu-0".to_owned()]));
        assert_eq!(card_names(&ids(&["GPU-2f"]), &[]), BTreeSet::from(["gpu-GPU-2f".to_owned()]));
    }
}
