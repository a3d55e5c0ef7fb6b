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
