//! Ranks on several nodes, here two: the same training as one rank, and nothing lost to a node that is gone. Both are this machine, each
//! with a launcher of its own.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdout};
use std::sync::OnceLock;
use std::thread::{self, JoinHandle};

use crate::ranks::{last_saved, long_bench, processes, ranks};
use crate::support::{Bench, Ended, furthest, losses, step_line, wait_for};
use pipe_spec::EventKind;
use pipe_spec::event::OomRecord;
use serde_json::json;

const NODES: u32 = 2;

fn nodes(bench: &mut Bench, count: u32) -> &mut Bench {
    ranks(bench, count).set("/nodes", json!(NODES))
}

/// The next attempt, with one rank and so on one node.
fn alone(bench: &mut Bench) -> &mut Bench {
    ranks(bench, 1).set("/nodes", json!(1)).set("/attempt", json!(2))
}

/// Two launchers that run.
struct Running {
    launchers: Vec<Child>,
    /// Lines of the first node that were read already.
    written: Vec<String>,
    lines: std::io::Lines<BufReader<ChildStdout>>,
}

impl Running {
    fn start(bench: &Bench) -> Self {
        let launcher = |node: u32| bench.command("train").env("PIPE_NODE", node.to_string()).spawn().unwrap();
        Self::of((0..NODES).map(launcher).collect())
    }

    /// Each node has a folder of its own, and is told where the first one is.
    fn start_apart(benches: &[Bench; 2]) -> Self {
        // It and the one after it are below those that the kernel gives to connections.
        let port = 10_000 + std::process::id() % 10_000 * 2;
        let launcher = |(node, bench): (usize, &Bench)| {
            let mut command = bench.command("train");
            command.env("PIPE_NODE", node.to_string()).env("PIPE_FIRST_NODE", format!("127.0.0.1:{port}"));
            command.spawn().unwrap()
        };
        Self::of(benches.iter().enumerate().map(launcher).collect())
    }

    fn of(mut launchers: Vec<Child>) -> Self {
        let lines = BufReader::new(launchers[0].stdout.take().unwrap()).lines();
        Self { launchers, written: Vec::new(), lines }
    }

    /// Until a step is written.
    fn until(mut self, step: u64) -> Self {
        for line in self.lines.by_ref() {
            self.written.push(line.unwrap());
            if self.written.last().unwrap().contains(&step_line(step)) {
                break;
            }
        }
        self
    }

    fn rank(&self, rank: u32) -> u32 {
        let found = self.launchers.iter().find_map(|launcher| processes(launcher).get(&rank).copied());
        found.expect("the rank runs")
    }

    fn signal(&self, process: u32, signal: i32) {
        // SAFETY: kill takes two integers, and the process is a child or a grandchild.
        unsafe { libc::kill(process.cast_signed(), signal) };
    }

    /// A launcher and its ranks.
    fn signal_node(&self, node: usize, signal: i32) {
        let launcher = &self.launchers[node];
        for process in processes(launcher).into_values().chain([launcher.id()]) {
            self.signal(process, signal);
        }
    }

    /// Waits for the end of each launcher.
    fn end(mut self) -> [Ended; 2] {
        let started: Vec<u32> = self.launchers.iter().flat_map(|launcher| processes(launcher).into_values()).collect();
        let readers: Vec<JoinHandle<String>> =
            self.launchers.iter_mut().map(|launcher| read(launcher.stderr.take())).collect();
        let rest: Vec<String> = self.lines.map_while(Result::ok).collect();
        let written: Vec<String> = self.written.into_iter().chain(rest).collect();
        let silent = read(self.launchers[1].stdout.take()).join().unwrap();
        assert_eq!(silent, "", "only the first node writes events");
        let codes: Vec<Option<i32>> =
            self.launchers.iter_mut().map(|launcher| launcher.wait().unwrap().code()).collect();
        for process in started {
            wait_for("the end of every rank", || fs::metadata(format!("/proc/{process}/fd")).is_err().then_some(()));
        }
        let mut stderr = readers.into_iter().map(|reader| reader.join().unwrap());
        let mut ended = |node: usize, written: &[String]| Ended {
            code: codes[node],
            stderr: stderr.next().unwrap(),
            events: written.iter().filter_map(|line| pipe_spec::Event::parse(line)).map(|event| event.kind).collect(),
        };
        [ended(0, &written), ended(1, &[])]
    }
}

fn read(from: Option<impl Read + Send + 'static>) -> JoinHandle<String> {
    thread::spawn(move || {
        let mut text = String::new();
        from.unwrap().read_to_string(&mut text).unwrap();
        text
    })
}

#[track_caller]
fn expect_both(ended: [Ended; 2], code: i32) -> Ended {
    let [first, second] = ended;
    assert_eq!(second.code, Some(code), "{}\n{}", second.stderr, first.stderr);
    first.expect(code)
}

/// The rest of the training gives the rest of the curve.
#[track_caller]
fn expect_the_rest(bench: &mut Bench, whole: &[f64]) {
    let rest = losses(&alone(bench).train().expect(0));
    let apart = furthest(&whole[whole.len() - rest.len()..], &rest);
    assert!(apart < 1e-5, "{apart}\n{whole:?}\n{rest:?}");
}

fn bench() -> Bench {
    let mut bench = long_bench();
    bench.set("/train/dropout", json!(0.2)).set("/train/optimizer/eps", json!(1e-6));
    nodes(&mut bench, 2);
    bench
}

fn undisturbed() -> &'static [f64] {
    static LOSSES: OnceLock<Vec<f64>> = OnceLock::new();
    LOSSES.get_or_init(|| losses(&alone(&mut bench()).train().expect(0)))
}

#[test]
fn nodes_are_one_training() {
    expect_one_training(2, "optimizer", 1);
}

#[test]
#[ignore = "test-all"]
fn nodes_with_several_ranks_are_one_training() {
    expect_one_training(2, "none", 2);
    expect_one_training(4, "optimizer", 2);
}

/// The curve of one rank; and the same bits, however often it is repeated.
#[track_caller]
fn expect_one_training(count: u32, shard: &str, times: u32) {
    let whole = undisturbed();
    let run = || {
        let mut bench = bench();
        bench.set("/train/deterministic", json!(true)).set("/train/shard", json!(shard));
        nodes(&mut bench, count).set("/evaluate/every", json!(20));
        let ended = expect_both(Running::start(&bench).end(), 0);
        let events = fs::read_to_string(bench.run_folder().attempt(1).job().events()).unwrap();
        assert_eq!(events.lines().count(), ended.events.len(), "the file has the events of one rank");
        assert!(ended.events.iter().any(|event| matches!(event, EventKind::Eval(_))), "{:?}", ended.events);
        (ended.curve(), losses(&ended), bench.checkpoint_digests(40))
    };
    let first = run();
    let apart = furthest(whole, &first.1);
    assert!(apart < 1e-5, "{count} ranks: {apart}\n{whole:?}\n{:?}", first.1);
    for _ in 1..times {
        assert_eq!(run(), first, "{count} ranks");
    }
}

/// Nothing is shared: the batch, the reason of an end and the last step come by the network.
#[test]
fn nodes_without_a_shared_folder_are_one_training() {
    let whole = undisturbed();
    let own = apart();
    let ended = expect_both(Running::start_apart(&own).end(), 0);
    let difference = furthest(whole, &losses(&ended));
    assert!(difference < 1e-5, "{difference}\n{whole:?}\n{:?}", losses(&ended));
    assert_eq!(last_saved(&own[0]), 40);
    assert_eq!(last_saved(&own[1]), 0);
}

/// Two nodes, each with a folder of its own.
fn apart() -> [Bench; 2] {
    [bench(), bench()].map(|mut bench| {
        bench.set("/train/batch", json!("auto"));
        bench
    })
}

#[test]
#[ignore = "test-all"]
fn nodes_without_a_shared_folder_lose_a_rank_and_a_node() {
    // A rank is killed: the node of the other one says why it ends.
    let own = apart();
    let running = Running::start_apart(&own).until(5);
    running.signal(running.rank(1), libc::SIGKILL);
    let first = expect_both(running.end(), 137);
    assert!(first.stderr.contains("error: rank 1: it was killed by signal 9"), "{}", first.stderr);
    assert_eq!(last_saved(&own[0]), first.curve().len() as u64, "{}", first.stderr);
    // A node is gone without a word.
    let mut own = apart();
    let running = Running::start_apart(&own).until(5);
    running.signal_node(1, libc::SIGKILL);
    let [first, _] = running.end();
    assert_eq!(first.code, Some(1), "{}", first.stderr);
    assert!(first.stderr.contains("the connection to ranks of another node is lost"), "{}", first.stderr);
    assert_eq!(last_saved(&own[0]), first.curve().len() as u64, "{}", first.stderr);
    expect_the_rest(own[0].set("/train/batch", json!(8)), undisturbed());
}

/// One of the launchers, or a rank, is told to stop: all stop after the same step, which is saved.
#[test]
fn a_stop_of_one_node_stops_all() {
    expect_a_stop_of_all(1, 2, "optimizer");
}

#[test]
#[ignore = "test-all"]
fn a_stop_of_one_node_with_two_ranks_stops_all() {
    expect_a_stop_of_all(1, 4, "none");
    expect_a_stop_of_all(0, 4, "optimizer");
}

#[track_caller]
fn expect_a_stop_of_all(node: usize, count: u32, shard: &str) {
    let whole = undisturbed();
    let mut bench = bench();
    nodes(&mut bench, count).set("/train/shard", json!(shard));
    let running = Running::start(&bench).until(4);
    running.signal(running.launchers[node].id(), libc::SIGTERM);
    let stopped = expect_both(running.end(), 143);
    let done = stopped.curve().len();
    assert!((4..40).contains(&done), "{done}");
    assert_eq!(last_saved(&bench), done as u64, "node {node}: {}", stopped.stderr);
    expect_the_rest(&mut bench, whole);
}

/// A node that is told to stop before the other has come does not wait for it, and the other stops when it comes.
#[test]
fn a_stop_does_not_wait_for_other_nodes() {
    let bench = bench();
    let mut second = bench.command("train").env("PIPE_NODE", "1").spawn().unwrap();
    wait_for("the rank", || processes(&second).get(&1).copied());
    // SAFETY: kill takes two integers; the child has not been waited for.
    unsafe { libc::kill(second.id().cast_signed(), libc::SIGTERM) };
    assert_eq!(second.wait().unwrap().code(), Some(143));
    let first = bench.command("train").env("PIPE_NODE", "0").output().unwrap();
    assert_eq!(Ended::from(first).expect(143).curve(), []);
}

/// A node is gone without a word: the other ends, and where it has the first rank, it saves the last completed step.
#[test]
fn a_node_that_is_gone_costs_nothing() {
    expect_nothing_lost_to(1, 2);
}

#[test]
#[ignore = "test-all"]
fn neither_node_that_is_gone_costs_anything() {
    expect_nothing_lost_to(1, 4);
    expect_nothing_lost_to(0, 2);
}

#[track_caller]
fn expect_nothing_lost_to(gone: usize, count: u32) {
    let whole = undisturbed();
    let mut bench = bench();
    nodes(&mut bench, count);
    let running = Running::start(&bench).until(5);
    running.signal_node(gone, libc::SIGKILL);
    let ended = running.end();
    let left = &ended[1 - gone];
    assert_eq!(left.code, Some(1), "node {gone}: {}", left.stderr);
    assert!(left.stderr.contains("the connection to ranks of another node is lost"), "{}", left.stderr);
    let done = ended[0].curve().len() as u64;
    assert_eq!(last_saved(&bench), if gone == 1 { done } else { done / 10 * 10 }, "node {gone}: {}", left.stderr);
    expect_the_rest(&mut bench, whole);
}

/// A rank is killed, and its launcher is not: both launchers say so.
#[test]
fn a_rank_that_is_killed_is_named_on_every_node() {
    let whole = undisturbed();
    let mut bench = bench();
    let running = Running::start(&bench).until(5);
    running.signal(running.rank(1), libc::SIGKILL);
    let ended = running.end();
    for ended in &ended {
        assert!(ended.stderr.contains("error: rank 1: it was killed by signal 9"), "{}", ended.stderr);
    }
    let first = expect_both(ended, 137);
    assert_eq!(last_saved(&bench), first.curve().len() as u64, "{}", first.stderr);
    expect_the_rest(&mut bench, whole);
}

/// A rank that hangs is named by its own launcher; a node that hangs as a whole is given up by the others.
#[test]
fn a_rank_that_hangs_is_found() {
    expect_what_hangs_to_be_found(false, "error: rank 1: it did nothing in phase ");
}

#[test]
#[ignore = "test-all"]
fn a_node_that_hangs_is_found() {
    let message = "error: rank 0: all ranks of node 0 have waited for those of other nodes for ";
    expect_what_hangs_to_be_found(true, message);
}

#[track_caller]
fn expect_what_hangs_to_be_found(all: bool, message: &str) {
    let whole = undisturbed();
    let mut bench = bench();
    bench.set("/train/rank_timeout", json!(20));
    let running = Running::start(&bench).until(3);
    let (launcher, rank) = (running.launchers[1].id(), running.rank(1));
    let stopped = if all { vec![launcher, rank] } else { vec![rank] };
    stopped.iter().for_each(|process| running.signal(*process, libc::SIGSTOP));
    if all {
        wait_for("a notice", || {
            bench.run_folder().attempt(1).job().ranks().join("ended-node-0.json").exists().then_some(())
        });
        stopped.iter().for_each(|process| running.signal(*process, libc::SIGCONT));
    }
    let ended = running.end();
    for ended in &ended {
        assert!(ended.stderr.contains(message), "{}", ended.stderr);
    }
    let first = expect_both(ended, 1);
    assert_eq!(last_saved(&bench), first.curve().len() as u64, "{}", first.stderr);
    expect_the_rest(&mut bench, whole);
}

/// Memory runs out on one node: it is the out-of-memory of the attempt, on both.
#[test]
fn an_out_of_memory_of_one_node_is_that_of_all() {
    let mut bench = bench();
    bench.set("/train/batch", json!(64)).set("/train/effective_batch", json!(64)).set("/data/pad", json!("max"));
    bench.set("/memory/limit", json!("2g"));
    let running = Running::start(&bench).until(3);
    // Nothing more can be allocated on that rank, until it is given the reserve.
    let limit = libc::rlimit { rlim_cur: 1, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: the limit is valid for a read, and nothing is written.
    let set = unsafe {
        libc::prlimit(running.rank(1).cast_signed(), libc::RLIMIT_DATA, &raw const limit, std::ptr::null_mut())
    };
    assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
    let first = expect_both(running.end(), 43);
    let file = fs::read(bench.run_folder().attempt(1).job().oom()).unwrap();
    let record: OomRecord = serde_json::from_slice(&file).unwrap();
    assert_eq!(record.rank, 1, "{record:?}");
    assert!(matches!(first.events.last(), Some(EventKind::Oom(oom)) if oom.rank == 1), "{:?}", first.events.last());
    assert_eq!(last_saved(&bench), first.curve().len() as u64, "{}", first.stderr);
}

#[test]
fn the_first_node_finds_the_batch_for_all() {
    let mut bench = bench();
    bench.set("/train/batch", json!("auto")).set("/train/steps", json!(3));
    let ended = expect_both(Running::start(&bench).end(), 0);
    let fitted = ended.events.iter().filter(|event| matches!(event, EventKind::Fitted(_))).count();
    assert_eq!((fitted, ended.curve().len()), (1, 3), "{:?}", ended.events);
}

#[test]
fn what_is_wrong_on_one_node_ends_all() {
    let mut bench = bench();
    bench.set("/data/train", json!("${PIPE_TEST_DATA}/train.jsonl"));
    let launcher = |node: &str, data: &str| {
        bench.command("train").env("PIPE_NODE", node).env("PIPE_TEST_DATA", data).spawn().unwrap()
    };
    let data = bench.path("data");
    let first = launcher("0", data.to_str().unwrap());
    let second = launcher("1", "/nowhere");
    for launcher in [first, second] {
        let ended = Ended::from(launcher.wait_with_output().unwrap()).expect(3);
        assert!(ended.stderr.contains("error: rank 1: /nowhere/train.jsonl"), "{}", ended.stderr);
    }
}

#[test]
fn an_address_that_is_none_is_refused() {
    let bench = bench();
    let launchers: Vec<Child> = ["0", "1"]
        .map(|node| {
            bench.command("train").env("PIPE_NODE", node).env("PIPE_ADDRESS", "nowhere.invalid").spawn().unwrap()
        })
        .into();
    for launcher in launchers {
        let ended = Ended::from(launcher.wait_with_output().unwrap()).expect(1);
        assert!(
            ended.stderr.contains("ranks of other nodes cannot connect to this one: nowhere.invalid"),
            "{}",
            ended.stderr
        );
        assert!(ended.stderr.contains("hint: set PIPE_ADDRESS"), "{}", ended.stderr);
    }
}

#[test]
fn a_bad_number_of_a_node_is_refused() {
    let mut bench = bench();
    for (node, want) in [
        (None, "the variable PIPE_NODE is not set; allowed: 0 to 1"),
        (Some("2"), "the variable PIPE_NODE: found \"2\"; allowed: 0 to 1"),
        (Some("first"), "the variable PIPE_NODE: found \"first\"; allowed: 0 to 1"),
    ] {
        let mut command = bench.command("train");
        command.env_remove("PIPE_NODE").envs(node.map(|node| ("PIPE_NODE", node)));
        let ended = Ended::from(command.output().unwrap()).expect(3);
        assert!(ended.stderr.contains(want), "{}", ended.stderr);
    }
    let ended = nodes(&mut bench, 3).train().expect(3);
    assert!(ended.stderr.contains("nodes: 3 ranks are not as many on each of 2 nodes"), "{}", ended.stderr);
}
