//! The queue for a card, in a folder that other users write to as well.

use std::fs::{File, Permissions};
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::Path;
use std::process::Command;

use crate::harness::{Folder, Needs, Running, Suite};
use crate::stand_ins::job;

pub fn tests(suite: &mut Suite) {
    suite.test("queue::planted_links_change_nothing", Needs::Nothing, planted);
    suite.test("queue::a_folder_that_is_a_link_is_not_used", Needs::Nothing, link);
    suite.test("queue::ctrl_c_ends_the_wait_for_a_held_lock", Needs::Nothing, held);
    suite.test("queue::users_wait_for_each_other", Needs::Root, users);
    suite.test("queue::a_folder_of_another_user_is_not_trusted", Needs::Root, foreign);
}

const RUN: [&str; 6] = ["run", "job.yaml", "--engine", "process", "--set", "container.gpus=1"];
const CARD: &str = "16384 16000";
/// A user who is not root.
const NOBODY: u32 = 65534;

fn folder(job: &str) -> Folder {
    let folder = job::on_card(job, "train: {batch: 8}\n", CARD);
    // Where the queue of this user alone would be.
    let place = folder.path().to_owned();
    folder.env("TMPDIR", place.display())
}

fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

fn mode(path: &Path) -> u32 {
    path.symlink_metadata().unwrap().permissions().mode() & 0o7777
}

fn make_queue(folder: &Folder) -> std::path::PathBuf {
    let queue = folder.path().join("queue");
    std::fs::create_dir(&queue).unwrap();
    set_mode(&queue, 0o1777);
    queue
}

fn planted() {
    let folder = folder("exit 0");
    let queue = make_queue(&folder);
    folder.write("victim", "precious");
    let victim = folder.path().join("victim");
    set_mode(&victim, 0o600);
    // As it was until now, and as it is.
    std::fs::create_dir(queue.join("gpu-0")).unwrap();
    for name in ["gpu-0/counter", "gpu-0/00000000", "counter", "gpu-0-00000000", "gpu-0-00000001", "gpu-0-99999998"] {
        symlink(&victim, queue.join(name)).unwrap();
    }
    std::fs::write(queue.join(format!("gpu-0/{}", u64::MAX)), "").unwrap();
    std::fs::write(queue.join(format!("gpu-0-{}", u64::MAX)), "").unwrap();
    Command::new("mkfifo").arg(queue.join("gpu-0-00000002")).status().unwrap();
    folder.pipe(&RUN).exits(0).says_not("warning");
    // No number is left.
    symlink(&victim, queue.join("gpu-0-99999999")).unwrap();
    folder.pipe(&RUN).exits(0).says("warning: the queue folder").says("gpu-0-99999999 leaves no room");
    assert_eq!((folder.read("victim").as_str(), mode(&victim), mode(&queue)), ("precious", 0o600, 0o1777));
}

fn link() {
    let folder = folder("exit 0");
    let elsewhere = folder.path().join("elsewhere");
    std::fs::create_dir(&elsewhere).unwrap();
    set_mode(&elsewhere, 0o755);
    symlink(&elsewhere, folder.path().join("queue")).unwrap();
    folder.pipe(&RUN).exits(0).says("is not used: it is not a folder");
    assert_eq!((mode(&elsewhere), std::fs::read_dir(&elsewhere).unwrap().count()), (0o755, 0));
}

fn held() {
    for signal in ["INT", "TERM"] {
        let folder = folder("exit 0");
        let queue = make_queue(&folder);
        let locked: Vec<File> = ["counter", "gpu-0-00000001"]
            .iter()
            .map(|name| {
                std::fs::write(queue.join(name), "a-run-\x1b[2J").unwrap();
                let file = File::open(queue.join(name)).unwrap();
                file.lock().unwrap();
                file
            })
            .collect();
        let running = folder.start(&RUN);
        wait_for(&folder, "waiting for gpu-0: run (without a name) has it");
        running.signal(signal);
        running.end().exits(130).says_not("\x1b");
        assert!(!queue.join("gpu-0-00000002").exists());
        drop(locked);
        folder.pipe(&RUN).exits(0).says_not("waiting for");
    }
}

fn wait_for(folder: &Folder, text: &str) {
    folder.wait_until(text, || {
        folder.state().is_some_and(|state| state["doing"].as_str().unwrap_or_default().contains(text))
    });
}

/// The same `pipe` as another user, in a folder of that user.
fn start_as_nobody(folder: &Folder, job: &str) -> Running {
    let place = folder.path().join("nobody");
    for name in ["job.yaml", "train.jsonl", "tokenizer.json", "image/job.Dockerfile"] {
        let to = place.join(name);
        std::fs::create_dir_all(to.parent().unwrap()).unwrap();
        std::fs::copy(folder.path().join(name), to).unwrap();
    }
    let text = std::fs::read_to_string(place.join("job.yaml")).unwrap();
    std::fs::write(place.join("job.yaml"), text.replace("JOB: exit 0", &format!("JOB: {job}"))).unwrap();
    chown(&place, Some(NOBODY), Some(NOBODY)).unwrap();
    let pipe = folder.command(&RUN);
    let mut command = Command::new("setpriv");
    command
        .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
        .arg(pipe.get_program())
        .args(pipe.get_args())
        .envs(pipe.get_envs().filter_map(|(name, value)| Some((name, value?))))
        .env("PIPE_LEDGER", place.join("ledger"))
        .current_dir(&place)
        .stdin(std::process::Stdio::null())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped());
    Running::new("pipe run as nobody".to_owned(), command.spawn().unwrap())
}

fn users() {
    let folder = folder("exit 0");
    // The other user is first, with a umask that hides new files.
    set_mode(folder.path(), 0o777);
    let other = start_as_nobody(&folder, "walk 40 400 8");
    let ticket = folder.path().join("queue/gpu-0-00000001");
    folder.wait_until("the other's ticket", || ticket.exists());
    assert_eq!((mode(&folder.path().join("queue")), mode(&ticket)), (0o1777, 0o644));
    let running = folder.start(&RUN);
    wait_for(&folder, "of the user nobody has it");
    // And the other user waits for root.
    running.signal("INT");
    running.end().exits(130);
    other.signal("INT");
    other.end();
    let locked = File::create(folder.path().join("queue/gpu-0-00000007")).unwrap();
    locked.lock().unwrap();
    let other = start_as_nobody(&folder, "exit 0");
    let waits = || {
        let runs = std::fs::read_dir(folder.path().join("nobody/runs")).into_iter().flatten().flatten();
        runs.map(|run| std::fs::read_to_string(run.path().join("run.json")).unwrap_or_default())
            .any(|state| state.contains("of the user root has it"))
    };
    folder.wait_until("the other to wait", waits);
    drop(locked);
    other.end().exits(0);
}

fn foreign() {
    let folder = folder("exit 0");
    folder.write("victim", "precious");
    let (queue, victim) = (folder.path().join("queue"), folder.path().join("victim"));
    set_mode(&victim, 0o600);
    std::fs::create_dir(&queue).unwrap();
    for name in ["counter", "gpu-0-00000000"] {
        symlink(&victim, queue.join(name)).unwrap();
    }
    for (bits, reason) in [(0o777, "it has no sticky bit"), (0o755, "it belongs to the user nobody")] {
        set_mode(&queue, bits);
        chown(&queue, Some(NOBODY), Some(NOBODY)).unwrap();
        folder.pipe(&RUN).exits(0).says("is not used").says(reason);
        assert_eq!((mode(&queue), std::fs::read_dir(&queue).unwrap().count()), (bits, 2));
    }
    // A sticky folder of the other user is used; the links in it are not.
    set_mode(&queue, 0o1777);
    folder.pipe(&RUN).exits(0).says_not("warning");
    assert_eq!((folder.read("victim").as_str(), mode(&victim)), ("precious", 0o600));
}
