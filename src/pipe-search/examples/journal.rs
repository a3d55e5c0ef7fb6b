//! The journal from a command line, for tests beside the real Optuna (tests/optuna_study.py).
//!
//! usage: journal write|dump|claim PATH STUDY
//!        journal add PATH STUDY COUNT BYTES PAUSE
//!
//! `add` adds COUNT trials, each with an attribute of BYTES bytes, waits PAUSE milliseconds after each, and prints their numbers.

use std::collections::BTreeMap;
use std::error::Error;
use std::path::Path;
use std::thread;
use std::time::Duration;

use pipe_search::{Direction, Domain, Journal, Point, Trial, TrialState};
use serde_json::{Value, json};

/// When the trials of `write` begin.
const START: f64 = 1_753_000_000.123_456;

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args.as_slice() {
        ["write", path, study] => write(Path::new(path), study),
        ["dump", path, study] => dump(&Journal::read(Path::new(path), study)?),
        ["claim", path, study] => claim(Path::new(path), study),
        ["add", path, study, count, bytes, pause] => {
            add(Path::new(path), study, count.parse()?, bytes.parse()?, pause.parse()?)
        }
        _ => Err("usage: journal write|dump|claim PATH STUDY, journal add PATH STUDY COUNT BYTES PAUSE".into()),
    }
}

fn domains() -> BTreeMap<String, Domain> {
    let choices = vec![json!("adamw"), json!(1), json!(2.5), json!(true), json!(null), json!("größe \"x\"\n")];
    BTreeMap::from([
        ("train.optimizer".into(), Domain::Choices(choices)),
        ("train.lr".into(), Domain::Float { low: 1e-6, high: 0.1, log: true, step: None }),
        ("train.dropout".into(), Domain::Float { low: 0.0, high: 0.55, log: false, step: Some(0.1) }),
        ("train.decay".into(), Domain::Float { low: -1.0, high: 1.0, log: false, step: None }),
        ("model.layers".into(), Domain::Int { low: 2, high: 13, log: false, step: 4 }),
        ("model.width".into(), Domain::Int { low: 8, high: 4096, log: true, step: 1 }),
    ])
}

fn point(at: usize) -> Point {
    let domains = domains();
    let Domain::Choices(choices) = &domains["train.optimizer"] else { unreachable!() };
    BTreeMap::from([
        ("train.optimizer".into(), choices[at % choices.len()].clone()),
        ("train.lr".into(), json!(1e-6 * 1.7_f64.powi(at as i32 % 20))),
        ("train.dropout".into(), json!([0.0, 0.1, 0.2, 0.30000000000000004, 0.4, 0.5][at % 6])),
        ("train.decay".into(), json!((at as f64 / 3.0).sin())),
        ("model.layers".into(), json!([2, 6, 10][at % 3])),
        ("model.width".into(), json!(8 + at % 4000)),
    ])
}

fn trial(at: usize) -> Trial {
    Trial { domains: domains(), began: Some(START + at as f64), ..Trial::new(0, point(at)) }
}

/// A study with a trial of every kind.
fn write(path: &Path, study: &str) -> Result<(), Box<dyn Error>> {
    let mut journal = Journal::open(path, study, &[Direction::Minimize])?;
    journal.set_study_attr("pipeline", json!({"name": "größe", "steps": [1, 2.5, null, true]}))?;
    let feasible = |at: usize| Trial { constraints: vec![-1.0], ..trial(at) };

    for at in 0..4 {
        let number = journal.add(&feasible(at))?;
        journal.set_intermediate(number, &[(1, 2.0 - at as f64 / 10.0), (2, f64::NAN), (5, f64::NEG_INFINITY)])?;
        journal.set_attr(number, "checkpoint", json!({"path": format!("runs/{at}"), "bytes": 1e300}))?;
        journal.end(number, TrialState::Complete, &[1.5 - at as f64 / 7.0], START + 100.25)?;
    }
    // The best value of all, and not allowed.
    let number = journal.add(&Trial { constraints: vec![12.5, -1.0], ..trial(4) })?;
    journal.end(number, TrialState::Complete, &[-100.0], START + 100.0)?;

    let number = journal.add(&feasible(5))?;
    journal.set_intermediate(number, &[(1, 9.0)])?;
    journal.end(number, TrialState::Pruned, &[9.0], START + 101.0)?;
    // Never begun, because it cannot fit: one line.
    let mut never = Trial { constraints: vec![f64::INFINITY], state: TrialState::Pruned, ..trial(6) };
    never.ended = Some(START + 6.0);
    never.user_attrs.insert("reason".into(), json!("needs 90 GB"));
    journal.add(&never)?;

    let number = journal.add(&feasible(7))?;
    journal.end(number, TrialState::Failed, &[], START + 102.0)?;
    journal.end(number, TrialState::Complete, &[0.0], START + 103.0)?;
    // Parameters that have no value, and none of ours.
    let mut running = feasible(8);
    running.point.remove("train.dropout");
    running.user_attrs.insert("gpu".into(), json!([0, 1]));
    running.system_attrs.insert("pipe:seed".into(), json!(7));
    journal.add(&running)?;
    let mut waiting = Trial { state: TrialState::Waiting, ..Trial::new(0, Point::new()) };
    waiting.system_attrs.insert("fixed_params".into(), json!({"train.lr": 0.01}));
    journal.add(&waiting)?;
    let infinite = Trial { state: TrialState::Complete, values: vec![f64::INFINITY], ..feasible(10) };
    journal.add(&Trial { ended: Some(START + 110.0), ..infinite })?;
    write_pareto(path, &format!("{study}-pareto"))?;
    dump(&journal)
}

/// A second study in the same file, with two objectives.
fn write_pareto(path: &Path, study: &str) -> Result<(), Box<dyn Error>> {
    let mut journal = Journal::open(path, study, &[Direction::Minimize, Direction::Maximize])?;
    for (at, values) in [[1.0, 1.0], [2.0, 2.0], [3.0, 0.5]].into_iter().enumerate() {
        journal.add(&Trial { state: TrialState::Complete, values: values.into(), ..trial(at) })?;
    }
    let number = journal.add(&trial(3))?;
    journal.end(number, TrialState::Complete, &[0.5, 0.25], START + 4.0)?;
    Ok(())
}

fn add(path: &Path, study: &str, count: usize, bytes: usize, pause: u64) -> Result<(), Box<dyn Error>> {
    let mut journal = Journal::open(path, study, &[Direction::Minimize])?;
    for at in 0..count {
        let mut trial = trial(at);
        trial.constraints = vec![0.0];
        trial.user_attrs.insert("filler".into(), json!("x".repeat(bytes)));
        trial.user_attrs.insert("writer".into(), json!(std::process::id()));
        trial.user_attrs.insert("at".into(), json!(at));
        trial.user_attrs.insert("bytes".into(), json!(bytes));
        let number = journal.add(&trial)?;
        println!("{number}");
        journal.set_intermediate(number, &[(1, 0.5), (2, 0.25)])?;
        journal.end(number, TrialState::Complete, &[at as f64], START)?;
        thread::sleep(Duration::from_millis(pause));
    }
    Ok(())
}

/// Takes every trial that waits, with the values that were asked for.
fn claim(path: &Path, study: &str) -> Result<(), Box<dyn Error>> {
    let mut journal = Journal::open(path, study, &[Direction::Minimize])?;
    let waiting = journal.trials().iter().filter(|trial| trial.state == TrialState::Waiting);
    for Trial { number, system_attrs, .. } in waiting.cloned().collect::<Vec<_>>() {
        if !journal.claim(number)? {
            continue;
        }
        println!("{number}");
        let fixed = system_attrs.get("fixed_params").and_then(Value::as_object).cloned().unwrap_or_default();
        for (name, value) in fixed {
            journal.set_param(number, &name, &value, &domains()[&name])?;
        }
        journal.end(number, TrialState::Complete, &[0.125], START)?;
    }
    Ok(())
}

fn dump(journal: &Journal) -> Result<(), Box<dyn Error>> {
    let trials: Vec<Value> = journal.trials().iter().map(show).collect();
    println!("{}", json!({"directions": journal.directions(), "user_attrs": journal.user_attrs(), "trials": trials}));
    Ok(())
}

fn show(trial: &Trial) -> Value {
    let distributions: BTreeMap<&String, Value> =
        trial.domains.iter().map(|(name, domain)| (name, shape(domain))).collect();
    let steps: BTreeMap<String, Value> =
        trial.intermediate.iter().map(|(step, value)| (step.to_string(), number(value))).collect();
    json!({
        "number": trial.number,
        "state": trial.state,
        "params": trial.point,
        "distributions": distributions,
        "values": trial.values.iter().map(number).collect::<Vec<_>>(),
        "intermediate_values": steps,
        "constraints": trial.constraints.iter().map(number).collect::<Vec<_>>(),
        "user_attrs": trial.user_attrs,
        "system_attrs": trial.system_attrs,
        "began": trial.began,
        "ended": trial.ended,
    })
}

fn shape(domain: &Domain) -> Value {
    match domain {
        Domain::Choices(choices) => json!({"choices": choices}),
        Domain::Float { low, high, log, step } => json!({"low": low, "high": high, "log": log, "step": step}),
        Domain::Int { low, high, log, step } => json!({"low": low, "high": high, "log": log, "step": step}),
    }
}

/// JSON has no other numbers.
fn number(number: &f64) -> Value {
    if number.is_finite() { json!(number) } else { json!(number.to_string().to_lowercase()) }
}
