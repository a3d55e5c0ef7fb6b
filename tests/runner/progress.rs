//! The progress of a run: on a real terminal, and in a pipe.

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::{Child, Command, Stdio};

use crate::harness::{Folder, Needs, Suite};
use crate::stand_ins::job;

pub fn tests(suite: &mut Suite) {
    let mut test = |name: &str, test: fn()| suite.test(&format!("progress::{name}"), Needs::Nothing, test);
    test("on_80_columns", wide);
    test("on_40_columns", narrow);
    test("a_terminal_that_grows", grows);
    test("colours", colours);
    test("a_terminal_without_a_cursor_gets_lines", dumb);
    test("a_pipe_gets_lines", lines);
    test("ci_gets_lines", ci);
    test("a_classifier_is_counted_in_samples", samples);
    test("tables_fit_80_columns", tables);
    test("the_steps_of_a_pipeline", steps);
}

/// 200 steps, of which the first attempts do none.
const MORE: &str = "train: {batch: 20, effective_batch: 40}\n";

fn folder() -> Folder {
    job::folder("long 200 20 5", MORE)
}

fn command(folder: &Folder) -> Command {
    let mut command = folder.command(&["run", "job.yaml", "--engine", "process"]);
    command.env("TERM", "xterm-256color").env_remove("CI").env_remove("CLICOLOR_FORCE");
    command
}

/// A terminal of our own, as wide as it was asked for.
struct Terminal {
    master: File,
    child: Child,
    parser: vt100::Parser,
    bytes: Vec<u8>,
}

const ROWS: u16 = 40;

impl Terminal {
    fn start(mut command: Command, columns: u16) -> Self {
        let (mut master, mut slave) = (0, 0);
        let size = size(columns);
        // SAFETY: both descriptors and the size are ours; name and settings may be absent.
        let opened = unsafe { libc::openpty(&mut master, &mut slave, std::ptr::null_mut(), std::ptr::null(), &size) };
        assert_eq!(opened, 0, "no terminal: {}", std::io::Error::last_os_error());
        // SAFETY: they were just opened, and nothing else owns them.
        let (master, slave) = unsafe { (File::from_raw_fd(master), OwnedFd::from_raw_fd(slave)) };
        let child = command
            .stdin(Stdio::from(slave.try_clone().unwrap()))
            .stdout(Stdio::from(slave.try_clone().unwrap()))
            .stderr(Stdio::from(slave))
            .spawn()
            .unwrap();
        // The command holds the other end open as well.
        drop(command);
        Self { master, child, parser: vt100::Parser::new(ROWS, columns, 0), bytes: Vec::new() }
    }

    /// Takes in what is written until the screen holds `text` in a block that is whole; fails if that never comes. A read may
    /// end in the middle of a block, whose last line begins with `lr`.
    #[track_caller]
    fn watch_block(&mut self, text: &str) {
        let is_whole = |screen: &str| screen.find(text).is_some_and(|at| screen[at..].contains("\nlr  "));
        assert!(self.watch(is_whole), "no {text:?} in\n{}", self.screen());
    }

    fn watch_to_the_end(&mut self) {
        self.watch(|_| false);
    }

    /// Takes in what is written until the screen is as it is waited for, or to the end; whether it came.
    fn watch(&mut self, is_reached: impl Fn(&str) -> bool) -> bool {
        let mut buffer = [0; 4096];
        while !is_reached(&self.screen()) {
            // Reading a terminal without a writer is an error.
            let Ok(count @ 1..) = self.master.read(&mut buffer) else { return false };
            self.parser.process(&buffer[..count]);
            self.bytes.extend(&buffer[..count]);
        }
        true
    }

    fn screen(&self) -> String {
        self.parser.screen().contents()
    }

    fn resize(&mut self, columns: u16) {
        let size = size(columns);
        // SAFETY: the terminal is open, and the size is only read.
        let done = unsafe { libc::ioctl(self.master.as_raw_fd(), libc::TIOCSWINSZ, &size) };
        assert_eq!(done, 0);
        self.parser.screen_mut().set_size(ROWS, columns);
    }

    /// The last screen, and everything that was written.
    fn end(mut self) -> (String, String) {
        self.watch_to_the_end();
        assert_eq!(self.child.wait().unwrap().code(), Some(0), "{}", self.screen());
        (self.screen(), String::from_utf8_lossy(&self.bytes).into_owned())
    }
}

fn size(columns: u16) -> libc::winsize {
    libc::winsize { ws_row: ROWS, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }
}

/// The lines of the block, from the one that says what the run is at.
#[track_caller]
fn block(screen: &str) -> Vec<&str> {
    let lines: Vec<&str> = screen.lines().collect();
    let begins: Vec<usize> =
        (0..lines.len()).filter(|index| lines[*index].starts_with("training   attempt 3")).collect();
    assert_eq!(begins.len(), 1, "one block, in\n{screen}");
    lines[begins[0]..].iter().map(|line| line.trim_end()).filter(|line| !line.is_empty()).collect()
}

#[track_caller]
fn names(block: &[&str]) -> Vec<String> {
    block.iter().map(|line| line.split(' ').next().unwrap_or_default().to_owned()).collect()
}

fn wide() {
    let folder = folder();
    let mut terminal = Terminal::start(command(&folder), 80);
    // It stands in the last line.
    assert!(terminal.watch(|screen| screen.contains("saved at step ")), "{}", terminal.screen());
    let screen = terminal.screen();
    let block = block(&screen);
    assert_eq!(names(&block), ["training", "after", "step", "epoch", "loss", "memory", "lr"], "{screen}");
    assert!(block[0].starts_with("training   attempt 3 of at most 7   batch 5 x accum 8"), "{screen}");
    assert!(block[1].ends_with("the host's memory ran out; batch 5 instead of 10"), "{screen}");
    assert!(block[2].contains(" of 200  ") && block[2].ends_with("s left") && block[2].contains("█░"), "{screen}");
    assert!(block[3].ends_with(" of 4"), "{screen}");
    assert!(block[4].starts_with("loss    █") && block[4].contains("eval 1.2500 at step "), "{screen}");
    assert!(block[5].ends_with("75%   peak 48.0 MiB of 64.0 MiB"), "{screen}");
    assert!(block[6].contains(" tokens/s"), "{screen}");
    // Messages stay above the block.
    assert!(
        screen.contains("retrying: batch 5 instead of 10") && screen.contains("step 50: eval loss 1.2500"),
        "{screen}"
    );
    let (last, bytes) = terminal.end();
    assert!(!last.contains('█') && !last.contains("tokens/s"), "the block is still there:\n{last}");
    assert!(last.contains("finished  1-200"), "{last}");
    // NO_COLOR is set: the cursor moves, and nothing is coloured.
    assert!(!colour(&bytes), "{bytes:?}");
}

/// Whether a text has an escape sequence that sets a colour or weight.
fn colour(bytes: &str) -> bool {
    bytes.split("\u{1b}[").skip(1).any(|rest| {
        let end = rest.find(|c: char| c.is_ascii_alphabetic());
        end.is_some_and(|end| rest.as_bytes()[end] == b'm')
    })
}

fn narrow() {
    let folder = folder();
    let mut terminal = Terminal::start(command(&folder), 40);
    terminal.watch_block("eval 1.2500");
    let screen = terminal.screen();
    let block = block(&screen);
    assert_eq!(names(&block), ["training", "after", "now", "step", "epoch", "loss", "memory", "lr"], "{screen}");
    assert!(block[0].starts_with("training   attempt 3 of 7"), "{screen}");
    assert!(block[2] == "now     batch 5 instead of 10" && block[3].ends_with("left"), "{screen}");
    let (last, _) = terminal.end();
    assert!(!last.contains('█'), "the block is still there:\n{last}");
}

fn steps() {
    let folder = crate::steps::folder("process", 700);
    let mut command = folder.command(&["run", "steps.yaml"]);
    command.env("TERM", "xterm-256color").env_remove("CI").env_remove("CLICOLOR_FORCE");
    let mut terminal = Terminal::start(command, 80);
    let is_reached = |screen: &str| {
        screen
            .find("▸ right")
            .is_some_and(|at| screen.contains("▸ left") && screen[at..].contains("· end       after left, right"))
    };
    assert!(terminal.watch(is_reached), "{}", terminal.screen());
    let screen = terminal.screen();
    assert!(screen.contains("1 of 4 steps done") && screen.contains("✓ first     finished in "), "{screen}");
    assert!(screen.contains("[first] joined first"), "{screen}");
    let (last, _) = terminal.end();
    assert!(!last.contains('✓') && last.contains("end    finished"), "{last}");
}

fn grows() {
    let folder = folder();
    let mut terminal = Terminal::start(command(&folder), 40);
    terminal.watch_block("eval 1.2500");
    terminal.resize(100);
    terminal.watch_block("peak 48.0 MiB of 64.0 MiB");
    let screen = terminal.screen();
    let block = block(&screen);
    assert_eq!(names(&block), ["training", "after", "step", "epoch", "loss", "memory", "lr"], "{screen}");
    terminal.end();
}

fn colours() {
    let folder = folder();
    let mut command = command(&folder);
    command.env_remove("NO_COLOR");
    let (_, bytes) = Terminal::start(command, 80).end();
    assert!(colour(&bytes), "{bytes:?}");
}

#[track_caller]
fn is_plain(text: &str) {
    assert!(!text.contains('\u{1b}') && !text.contains('█'), "{text:?}");
    for line in ["step 1/200: loss 4.1", "step 50: eval loss 1.2500", "step 200/200: loss", "finished  1-200"] {
        assert!(text.contains(line), "no {line:?} in\n{text}");
    }
    // Not one for every step.
    let steps = text.lines().filter(|line| line.starts_with("step ") && line.contains("/200: ")).count();
    assert!((2..100).contains(&steps), "{text}");
}

fn dumb() {
    let folder = folder();
    let mut command = command(&folder);
    command.env("TERM", "dumb");
    is_plain(&Terminal::start(command, 80).end().1);
}

fn ci() {
    let folder = folder();
    let mut command = command(&folder);
    command.env("CI", "true");
    is_plain(&Terminal::start(command, 80).end().1);
}

fn lines() {
    let folder = folder();
    let answer = folder.pipe(&["run", "job.yaml", "--engine", "process"]).exits(0);
    is_plain(&format!("{}{}", answer.stderr, answer.stdout));
    assert!(!answer.stdout.contains("step 1/200"), "{answer}");
}

/// On the terminal, in `show`, in JSON and in the report, also where the last step has fewer samples.
fn samples() {
    let folder = job::folder("classes", "train: {batch: 4, effective_batch: 4}\n");
    let text =
        folder.read("job.yaml").replace("model: {arch: t5, config: {}}", "model: {arch: bag-of-words, config: {}}");
    folder.write("job.yaml", text).write("train.jsonl", "{\"text\": \"a\", \"label\": \"b\"}\n");
    let run = folder.pipe(&["run", "job.yaml", "--engine", "process"]).exits(0);
    assert!(run.stderr.contains("step 3/3: ") && run.stderr.contains(" samples/s"), "{run}");
    let run = run.says_not("tokens/s");
    drop(run);
    folder.pipe(&["show"]).exits(0).prints("speed    40.0 samples/s");
    assert_eq!(folder.show()["throughput"], serde_json::json!({ "per_second": 40.0, "unit": "samples" }));
    let report = std::fs::read_to_string(folder.run_folder().join("report.html")).unwrap();
    assert!(report.contains("samples per second") && report.contains("Throughput, samples per second"));
    assert!(!report.contains("tokens per second") && !report.contains("tokens (or samples)"));
    let diff = folder.pipe(&["diff", "latest", "latest", "--json"]).exits(0).json();
    assert_eq!(diff["results"][0]["unit"], "samples", "{diff:#}");
    folder.pipe(&["attach"]).exits(0).says_not("tokens/s");
}

/// Every table on a terminal of 80 columns, and uncut in a pipe.
fn tables() {
    let folder = job::folder("fit 5", "train: {batch: 20, effective_batch: 40}\n");
    let name = "a-pipeline-with-a-name-that-is-rather-long-for-a-table";
    let run = ["run", "job.yaml", "--engine", "process", "--name", name];
    folder.pipe(&run).exits(0);
    let other =
        ["--set", "data.max_source=99", "--set", "container.env.LONG=some-words-that-make-a-long-value-of-a-setting"];
    folder.pipe(&[&run[..], &other].concat()).exits(0);
    let runs: Vec<String> = folder.pipe(&["ls", "-q"]).exits(0).stdout.lines().map(str::to_owned).collect();
    for args in [
        &["ls"][..],
        &["show"],
        &["plan", "job.yaml"],
        &["ledger", "ls"],
        &["doctor"],
        &["diff", &runs[0], &runs[1]],
        &["image", "ls"],
    ] {
        let mut command = folder.command(args);
        command.env("TERM", "xterm-256color");
        let mut terminal = Terminal::start(command, 80);
        terminal.watch_to_the_end();
        let shown = String::from_utf8_lossy(&terminal.bytes).into_owned();
        terminal.child.wait().unwrap();
        let is_prose = |line: &str| {
            ["run      ", "error", "hint", "folder", "model", "report", "use", "note", "left"]
                .iter()
                .any(|word| line.starts_with(word))
        };
        let wide: Vec<&str> =
            shown.lines().filter(|line| line.trim_end().chars().count() > 80 && !is_prose(line)).collect();
        assert!(wide.is_empty(), "{args:?}: {wide:#?}");
    }
    // In a pipe a row is a line.
    let listed = folder.pipe(&["ls"]).exits(0).stdout;
    assert_eq!(listed.lines().count(), 3, "{listed}");
    assert!(runs.iter().all(|run| listed.contains(run.as_str())), "{listed}");
    let shown = folder.pipe(&["show"]).exits(0).stdout;
    assert!(shown.lines().any(|line| line.contains("oom") && line.ends_with("batch 10 instead of 20")), "{shown}");
}
