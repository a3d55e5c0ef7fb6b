//! Journals from outside: what is written comes back, whatever others do to the file.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};
use std::{env, thread};

use serde_json::{Value, json};
use tempfile::TempDir;

use super::{Journal, JournalError};
use crate::axis::Domain;
use crate::trial::{Direction, Trial, TrialState};

const MINIMIZE: &[Direction] = &[Direction::Minimize];
const START: f64 = 1_753_000_000.25;

struct Fixture {
    _folder: TempDir,
    path: PathBuf,
}

impl Fixture {
    fn new(text: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("study.journal");
        fs::write(&path, text).unwrap();
        Self { _folder: folder, path }
    }

    fn open(&self) -> Journal {
        Journal::open(&self.path, "s", MINIMIZE).unwrap()
    }

    fn read(&self) -> Journal {
        Journal::read(&self.path, "s").unwrap()
    }

    fn append(&self, text: &str) {
        OpenOptions::new().append(true).open(&self.path).unwrap().write_all(text.as_bytes()).unwrap();
    }

    fn text(&self) -> String {
        fs::read_to_string(&self.path).unwrap()
    }
}

fn trial() -> Trial {
    let mut trial = Trial::new(0, BTreeMap::from([("lr".into(), json!(0.01)), ("kind".into(), json!("b"))]));
    trial.domains = BTreeMap::from([
        ("lr".into(), Domain::Float { low: 1e-5, high: 0.1, log: true, step: None }),
        ("kind".into(), Domain::Choices(vec![json!("a"), json!("b"), json!(null)])),
    ]);
    trial.began = Some(START);
    trial
}

fn line(fields: &Value) -> String {
    format!("{fields}\n")
}

fn optuna(code: u64, fields: &Value) -> String {
    let fields = fields.to_string();
    let more = if fields == "{}" { "" } else { "," };
    format!("{{\"op_code\":{code},\"worker_id\":\"another\"{more}{}\n", &fields[1..])
}

fn create(name: &str) -> String {
    optuna(0, &json!({"study_name": name, "directions": [1]}))
}

fn create_trial(study: u64) -> String {
    optuna(4, &json!({"study_id": study, "datetime_start": "2026-01-31T12:00:00.000000"}))
}

#[test]
fn what_is_written_comes_back() {
    let fixture = Fixture::new("");
    let mut journal = fixture.open();
    let mut whole = trial();
    whole.state = TrialState::Pruned;
    whole.values = vec![f64::INFINITY];
    whole.intermediate = BTreeMap::from([(3, 0.1 + 0.2), (9, f64::NEG_INFINITY)]);
    whole.user_attrs = BTreeMap::from([("any".into(), json!({"ö\n\u{2028}": [null, 1e300, -7, "NaN"]}))]);
    whole.constraints = vec![-1.0, 12.75];
    whole.ended = Some(START + 0.5);
    assert_eq!(journal.add(&whole).unwrap(), 0);
    let running = trial();
    assert_eq!(journal.add(&running).unwrap(), 1);
    assert!(journal.set_intermediate(1, &[(1, 0.5), (2, f64::NAN)]).unwrap());
    assert!(journal.set_attr(1, "gpu", json!([0])).unwrap());
    assert!(journal.end(1, TrialState::Complete, &[0.1], START + 9.0).unwrap());
    journal.set_study_attr("pipeline", json!("x")).unwrap();

    let read = fixture.read();
    assert_eq!(read.directions(), MINIMIZE);
    assert_eq!(read.user_attrs()["pipeline"], json!("x"));
    let [first, second] = read.trials() else { panic!() };
    whole.system_attrs = first.system_attrs.clone();
    assert_eq!(*first, whole);
    assert_eq!(first.system_attrs["constraints"], json!([-1.0, 12.75]));
    assert_eq!(
        (second.state, second.values.as_slice(), second.ended),
        (TrialState::Complete, &[0.1][..], Some(START + 9.0))
    );
    assert_eq!(second.point, running.point);
    assert!(second.intermediate[&2].is_nan());
    assert_eq!(second.user_attrs["gpu"], json!([0]));
}

#[test]
fn an_end_is_the_end() {
    let fixture = Fixture::new("");
    let mut journal = fixture.open();
    journal.add(&trial()).unwrap();
    assert!(journal.end(0, TrialState::Failed, &[], START).unwrap());
    let before = fixture.text();
    assert!(!journal.end(0, TrialState::Complete, &[1.0], START).unwrap());
    assert!(!journal.set_attr(0, "late", json!(1)).unwrap());
    assert!(!journal.set_intermediate(0, &[(1, 1.0)]).unwrap());
    assert!(!journal.claim(0).unwrap());
    assert_eq!(fixture.text(), before);
    assert_eq!(journal.trials()[0].state, TrialState::Failed);
}

#[test]
fn what_optuna_could_not_read_is_not_written() {
    let fixture = Fixture::new("");
    let mut journal = fixture.open();
    journal.add(&trial()).unwrap();
    let before = fixture.text();
    for values in [&[][..], &[1.0, 2.0], &[f64::NAN]] {
        assert!(matches!(journal.end(0, TrialState::Complete, values, START), Err(JournalError::Values { .. })));
    }
    assert!(matches!(journal.end(0, TrialState::Running, &[], START), Err(JournalError::Values { .. })));
    assert!(matches!(journal.end(7, TrialState::Failed, &[], START), Err(JournalError::NoTrial { number: 7 })));
    let other = Domain::Choices(vec![json!("a")]);
    assert!(matches!(journal.set_param(0, "kind", &json!("a"), &other), Err(JournalError::Parameter { .. })));
    let mut without = trial();
    without.domains.remove("lr");
    assert!(matches!(journal.add(&without), Err(JournalError::Parameter { .. })));
    let mut outside = trial();
    outside.point.insert("kind".into(), json!("c"));
    assert!(matches!(journal.add(&outside), Err(JournalError::Parameter { .. })));
    assert_eq!(fixture.text(), before);
}

#[test]
fn a_trial_that_waits_is_claimed_once() {
    let fixture = Fixture::new("");
    let mut journal = fixture.open();
    let mut waiting = Trial { state: TrialState::Waiting, ..Trial::new(0, BTreeMap::new()) };
    waiting.system_attrs.insert("fixed_params".into(), json!({"lr": 0.01}));
    journal.add(&waiting).unwrap();
    assert_eq!(journal.trials()[0].began, None);
    let mut other = fixture.open();
    assert!(journal.claim(0).unwrap());
    assert!(!other.claim(0).unwrap());
    let domain = Domain::Float { low: 1e-5, high: 0.1, log: true, step: None };
    assert!(journal.set_param(0, "lr", &json!(0.01), &domain).unwrap());
    other.refresh().unwrap();
    let trial = &other.trials()[0];
    assert_eq!((trial.state, &trial.point["lr"], &trial.domains["lr"]), (TrialState::Running, &json!(0.01), &domain));
    assert!(trial.began.is_some());
}

#[test]
fn only_the_study_of_the_name_counts() {
    let mut text = create("other") + &create_trial(0) + &create("s") + &create("s") + &create_trial(1);
    text += &create_trial(0);
    // Its trial has the id 3; the one of a study that is not there has none.
    text += &(create_trial(9) + &create_trial(1));
    text += &optuna(8, &json!({"trial_id": 3, "user_attr": {"mine": true}}));
    text += &optuna(8, &json!({"trial_id": 2, "user_attr": {"mine": false}}));
    let fixture = Fixture::new(&text);
    let mut journal = fixture.open();
    assert_eq!(journal.trials().len(), 2);
    assert!(journal.trials()[0].user_attrs.is_empty());
    assert_eq!(journal.trials()[1].user_attrs["mine"], json!(true));
    assert_eq!(journal.add(&trial()).unwrap(), 2);
    journal.set_attr(2, "mine", json!(2)).unwrap();
    assert!(fixture.text().lines().last().unwrap().contains("\"trial_id\":4"));

    fixture.append(&optuna(1, &json!({"study_id": 1})));
    assert!(matches!(journal.refresh(), Err(JournalError::Deleted { .. })));
    assert!(
        matches!(Journal::read_if_there(&fixture.path, "s"), Err(JournalError::NoStudy { others, .. }) if others == ["other"])
    );
    fixture.append(&create("s"));
    assert!(matches!(journal.add(&trial()), Err(JournalError::Deleted { .. })));
    assert_eq!(fixture.open().add(&trial()).unwrap(), 0);
    assert!(fixture.read().trials()[0].user_attrs.is_empty());
}

#[test]
fn a_study_with_other_directions_is_not_opened() {
    let fixture = Fixture::new(&create("s"));
    let failed = Journal::open(&fixture.path, "s", &[Direction::Maximize, Direction::Minimize]).unwrap_err();
    let text = failed.to_string();
    assert!(text.ends_with("has the directions minimize and not maximize, minimize"), "{text}");
}

#[test]
fn what_optuna_ignores_is_ignored() {
    let float =
        json!({"name": "FloatDistribution", "attributes": {"step": null, "low": 0.0, "high": 1.0, "log": false}});
    let int = json!({"name": "IntDistribution", "attributes": {"log": false, "step": 1, "low": 0, "high": 9}});
    let param = |trial: u64, kept: Value, distribution: &Value| {
        let distribution = distribution.to_string();
        optuna(
            5,
            &json!({"trial_id": trial, "param_name": "x", "param_value_internal": kept, "distribution": distribution}),
        )
    };
    let mut text = create("s") + &create_trial(0) + &create_trial(0);
    text += &param(0, json!(0.5), &float);
    // A distribution of another kind than in trial 0.
    text += &param(1, json!(3.0), &int);
    text += &optuna(6, &json!({"trial_id": 0, "state": 0, "values": null, "datetime_start": "2030-01-01T00:00:00"}));
    text += &optuna(
        6,
        &json!({"trial_id": 0, "state": 1, "values": [null], "datetime_complete": "2026-01-31T12:00:09+00:00"}),
    );
    text += &optuna(6, &json!({"trial_id": 0, "state": 3, "values": null, "datetime_complete": "2031-01-01T00:00:00"}));
    text += &optuna(9, &json!({"trial_id": 1, "system_attr": {"constraints:memory": 3.0}}));
    text += &optuna(9, &json!({"trial_id": 1, "system_attr": {"constraints": [-1.0]}}));
    text += &optuna(10, &json!({"study_id": 0, "trials": [0]}));
    text += &optuna(99, &json!({}));
    text += &optuna(7, &json!({"trial_id": 1, "step": -4, "intermediate_value": 0.5}));
    text += &optuna(7, &json!({"trial_id": 77, "step": 4, "intermediate_value": 0.5}));
    let fixture = Fixture::new(&text);
    let journal = fixture.read();
    let [first, second] = journal.trials() else { panic!() };
    assert_eq!((first.state, first.point["x"].clone()), (TrialState::Complete, json!(0.5)));
    assert!(first.values[0].is_nan());
    assert_eq!(first.ended, Some(1_769_860_809.0));
    assert!(second.point.is_empty() && second.intermediate.is_empty());
    assert_eq!(second.constraints, [-1.0, 3.0]);
    fixture.open().add(&trial()).unwrap();
    assert!(fixture.text().starts_with(&text));
}

#[test]
fn a_last_line_without_its_end_is_removed_by_the_next_writer() {
    let whole = create("s") + &create_trial(0);
    let fixture = Fixture::new(&whole);
    let torn = create_trial(0);
    for length in [1, 20, torn.len() - 1] {
        let before = fixture.text();
        fixture.append(&torn[..length]);
        assert_eq!(fixture.read().trials().len(), 1);
        assert_eq!(fixture.text().len(), before.len() + length);
        drop(fixture.open());
        assert_eq!(fixture.text(), before);
    }
    let mut journal = fixture.open();
    fixture.append(&torn[..30]);
    journal.refresh().unwrap();
    assert_eq!(journal.add(&trial()).unwrap(), 1);
    assert_eq!(fixture.read().trials().len(), 2);
}

#[test]
fn a_line_after_one_without_its_end_is_saved() {
    let torn = create_trial(0);
    let fixture = Fixture::new(&(create("s") + &torn[..40] + &create_trial(0) + &create_trial(0)));
    assert_eq!(fixture.read().trials().len(), 2);
    let length = fixture.text().len();
    drop(fixture.open());
    assert_eq!(fixture.text().len(), length);
    for line in fixture.text().lines() {
        serde_json::from_str::<Value>(line).unwrap();
    }
    assert_eq!(fixture.read().trials().len(), 2);
}

#[test]
fn a_line_that_cannot_be_read_is_named() {
    let distribution = r#"{"name":"Unknown"}"#;
    let bad = [
        "garbage\n".to_string(),
        "\n".into(),
        "[]\n".into(),
        line(&json!({"op_code": "4"})),
        optuna(0, &json!({"study_name": "s"})),
        optuna(4, &json!({})),
        optuna(4, &json!({"study_id": 0, "state": 9})),
        optuna(4, &json!({"study_id": 0, "params": {"x": 1}})),
        optuna(5, &json!({"trial_id": 0, "param_name": "x", "param_value_internal": 1, "distribution": distribution})),
        optuna(6, &json!({"trial_id": 0, "state": 1, "values": ["x"]})),
    ];
    for bad in bad {
        let text = create("s") + &create_trial(0) + &bad + &create_trial(0);
        let fixture = Fixture::new(&text);
        for failed in [Journal::read(&fixture.path, "s"), Journal::open(&fixture.path, "s", MINIMIZE)] {
            assert!(matches!(failed, Err(JournalError::Line { line: 3, .. })), "{bad}");
        }
        assert_eq!(fixture.text(), text);
    }
}

#[test]
fn foreign_bytes_never_panic() {
    let fixture = Fixture::new("");
    let mut journal = fixture.open();
    journal.add(&trial()).unwrap();
    journal.set_intermediate(0, &[(1, f64::NAN)]).unwrap();
    journal.end(0, TrialState::Complete, &[1.0], START).unwrap();
    let whole = fs::read(&fixture.path).unwrap();
    let mut seed: u64 = 1;
    let mut random = |below: usize| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) as usize % below
    };
    for _ in 0..1000 {
        let mut bytes = whole.clone();
        for _ in 0..=random(3) {
            let at = random(bytes.len());
            match random(3) {
                0 => bytes[at] = random(256) as u8,
                1 => bytes.truncate(at.max(1)),
                _ => drop(bytes.splice(at..at, b"\"{}[]:,-9\n\\u"[random(12)..].iter().copied())),
            }
        }
        fs::write(&fixture.path, &bytes).unwrap();
        let _ = Journal::read(&fixture.path, "s");
    }
}

#[test]
fn a_file_that_was_replaced_is_read_again() {
    let fixture = Fixture::new(&(create("s") + &create_trial(0)));
    let mut journal = fixture.read();
    fs::remove_file(&fixture.path).unwrap();
    fs::write(&fixture.path, create("s") + &create_trial(0) + &create_trial(0) + &create_trial(0)).unwrap();
    journal.refresh().unwrap();
    assert_eq!(journal.trials().len(), 3);
}

#[test]
fn reading_writes_nothing() {
    let fixture = Fixture::new(&(create("s") + "{\"op"));
    let before = fixture.text();
    symlink(&fixture.path, fixture.path.with_extension("journal.lock")).unwrap();
    let mut journal = fixture.read();
    journal.refresh().unwrap();
    assert!(matches!(journal.add(&trial()), Err(JournalError::ReadOnly { .. })));
    assert_eq!(fixture.text(), before);
    let missing = fixture.path.with_extension("missing");
    assert!(matches!(Journal::read(&missing, "s"), Err(JournalError::Io { .. })));
    assert!(!missing.exists());
}

/// Adds trials with the numbers that it was told, each of which must be its own.
fn add_many(path: &Path, writer: u64, count: u64) -> Vec<u64> {
    let mut journal = Journal::open(path, "s", MINIMIZE).unwrap();
    let mut numbers = Vec::new();
    for at in 0..count {
        let mut trial = trial();
        trial.user_attrs = BTreeMap::from([("writer".into(), json!([writer, at]))]);
        let number = journal.add(&trial).unwrap();
        assert_eq!(journal.trials()[number as usize].user_attrs, trial.user_attrs);
        assert!(journal.end(number, TrialState::Complete, &[at as f64], START).unwrap());
        numbers.push(number);
    }
    numbers
}

#[test]
fn threads_write_at_once() {
    let fixture = Fixture::new("");
    let numbers: Vec<u64> = thread::scope(|scope| {
        let path = &fixture.path;
        let writers: Vec<_> = (0..4).map(|writer| scope.spawn(move || add_many(path, writer, 25))).collect();
        writers.into_iter().flat_map(|writer| writer.join().unwrap()).collect()
    });
    assert_eq!(numbers.iter().copied().collect::<BTreeSet<_>>(), (0..100).collect());
    assert!(fixture.read().trials().iter().all(|trial| trial.state == TrialState::Complete));
}

/// Not a test by itself: what the children of the tests below do.
#[test]
fn child() {
    let Some(path) = env::var_os("PIPE_JOURNAL_CHILD").map(PathBuf::from) else { return };
    match env::var("PIPE_JOURNAL_LIMIT").ok().map(|limit| limit.parse().unwrap()) {
        None => drop(add_many(&path, u64::from(std::process::id()), 20)),
        Some(limit) => {
            let limit = libc::rlimit { rlim_cur: limit, rlim_max: limit };
            // SAFETY: the pointer is valid for the call; the limit ends with this process.
            unsafe {
                libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
                assert_eq!(libc::setrlimit(libc::RLIMIT_FSIZE, &limit), 0);
            }
            let mut journal = Journal::open(&path, "s", MINIMIZE).unwrap();
            let failed = journal.add(&trial()).unwrap_err();
            assert!(matches!(failed, JournalError::Io { action: "write", .. }), "{failed}");
            assert!(journal.trials().is_empty());
        }
    }
}

fn start_child(path: &Path, limit: Option<usize>) -> Child {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", "journal::tests::child", "--quiet"]).env("PIPE_JOURNAL_CHILD", path);
    if let Some(limit) = limit {
        command.env("PIPE_JOURNAL_LIMIT", limit.to_string());
    }
    command.stdout(std::process::Stdio::null()).spawn().unwrap()
}

#[test]
fn processes_write_at_once() {
    let fixture = Fixture::new("");
    let children: Vec<Child> = (0..3).map(|_| start_child(&fixture.path, None)).collect();
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }
    let journal = fixture.read();
    assert_eq!(journal.trials().len(), 60);
    let writers: BTreeSet<String> =
        journal.trials().iter().map(|trial| trial.user_attrs["writer"].to_string()).collect();
    assert_eq!(writers.len(), 60);
}

#[test]
fn a_process_that_is_killed_leaves_whole_trials() {
    let fixture = Fixture::new("");
    drop(fixture.open());
    for wait in [5, 10, 15, 20, 25, 30] {
        let mut child = start_child(&fixture.path, None);
        thread::sleep(Duration::from_millis(wait));
        let _ = child.kill();
        child.wait().unwrap();
        let began = Instant::now();
        fixture.open().add(&trial()).unwrap();
        assert!(began.elapsed() < Duration::from_secs(10));
        assert!(fixture.read().trials().iter().all(|trial| trial.point.len() == 2));
    }
}

#[test]
fn a_full_disk_leaves_the_file_as_it_was() {
    let fixture = Fixture::new(&create("s"));
    let before = fixture.text();
    for more in [0, 1, 100] {
        let mut child = start_child(&fixture.path, Some(before.len() + more));
        assert!(child.wait().unwrap().success());
        assert_eq!(fixture.text(), before);
    }
    assert!(!fixture.path.with_extension("journal.lock").exists());
}
