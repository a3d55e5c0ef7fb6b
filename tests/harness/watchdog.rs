//! Ends a test program one of whose tests waits for something that never comes, and says which and for what: without it, only the
//! limit of the whole build would. Writes down how long every test takes.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::sync::{LazyLock, Mutex};
use std::time::{Duration, Instant};

/// More than ten times what the longest test takes on two processors; thorough ones take longer.
const LIMIT: Duration = Duration::from_secs(600);
const THOROUGH_LIMIT: Duration = Duration::from_secs(1800);

/// What runs now, and since when.
static RUNNING: LazyLock<Mutex<Vec<(String, Instant)>>> = LazyLock::new(|| {
    std::thread::spawn(look);
    Mutex::default()
});

/// A test that runs until this is dropped.
pub struct Watched(Instant);

pub fn watch(name: &str) -> Watched {
    let began = Instant::now();
    RUNNING.lock().unwrap().push((name.to_owned(), began));
    Watched(began)
}

impl Drop for Watched {
    fn drop(&mut self) {
        let mut running = RUNNING.lock().unwrap();
        let at = running.iter().position(|(_, began)| *began == self.0).expect("it was watched until now");
        let (name, began) = running.swap_remove(at);
        drop(running);
        note_time(&name, began.elapsed());
    }
}

/// Adds a line with the seconds of a test to the file that PIPE_TEST_TIMES names.
fn note_time(name: &str, time: Duration) {
    let Some(path) = std::env::var_os("PIPE_TEST_TIMES") else { return };
    let line = format!("{:8.2} {name}\n", time.as_secs_f64());
    let file = fs::File::options().create(true).append(true).open(path);
    file.and_then(|mut file| file.write_all(line.as_bytes())).ok();
}

fn look() {
    let is_thorough = std::env::var("PIPE_TEST_ALL").is_ok_and(|value| value == "1");
    let limit = if is_thorough { THOROUGH_LIMIT } else { LIMIT };
    loop {
        std::thread::sleep(Duration::from_secs(5));
        let running = RUNNING.lock().unwrap();
        if let Some((name, _)) = running.iter().find(|(_, began)| began.elapsed() > limit) {
            let processes = processes_below(std::process::id(), 1);
            // Not a macro: what those print is kept for the end of the test, which never comes.
            let text = format!("\nerror: the test {name} has not ended after {limit:?}; what still runs:\n{processes}");
            std::io::stderr().write_all(text.as_bytes()).ok();
            std::process::exit(1);
        }
    }
}

/// The descendants of a process, with what each of their threads waits for.
fn processes_below(parent: u32, depth: usize) -> String {
    let is_child = |pid: &u32| status_field(*pid, "PPid:").is_some_and(|id| id == parent.to_string());
    let mut pids: Vec<u32> = numbers_in(Path::new("/proc")).into_iter().filter(is_child).collect();
    pids.sort_unstable();
    pids.into_iter().map(|pid| format!("{}{}", process(pid, depth), processes_below(pid, depth + 1))).collect()
}

fn process(pid: u32, depth: usize) -> String {
    let indent = "  ".repeat(depth);
    let command =
        String::from_utf8_lossy(&fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default()).replace('\0', " ");
    let state = status_field(pid, "State:").unwrap_or_default();
    let mut text = format!("{indent}{pid} {state} {command}\n");
    let tasks = format!("/proc/{pid}/task");
    for thread in numbers_in(Path::new(&tasks)) {
        let read = |name: &str| fs::read_to_string(format!("{tasks}/{thread}/{name}")).unwrap_or_default();
        let (name, waits, call) = (read("comm"), read("wchan"), read("syscall"));
        text += &format!("{indent}  thread {thread} {}: {} {}\n", name.trim(), waits.trim(), call.trim());
    }
    text
}

fn status_field(pid: u32, name: &str) -> Option<String> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix(name)).map(|value| value.trim().to_owned())
}

fn numbers_in(folder: &Path) -> Vec<u32> {
    let names = fs::read_dir(folder).into_iter().flatten().flatten();
    names.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}
