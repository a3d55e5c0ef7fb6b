//! The largest batch that fits, found by the real trainer where it will train.

use std::sync::OnceLock;

use serde_json::Value;

use crate::harness::{Folder, Needs, Suite};
use crate::small_t5::{curve, folder, same_curve};

const EFFECTIVE: u64 = 48;

pub fn tests(suite: &mut Suite) {
    suite.thorough("memory::fit_names_a_batch_that_runs::process", Needs::Nothing, || fit("process"));
    suite.thorough("memory::fit_names_a_batch_that_runs::docker", Needs::Docker, || fit("docker"));
    suite.any_engine("memory::auto_finds_it_in_the_same_attempt", auto);
    suite.other_daemons("memory::auto_finds_it_in_the_same_attempt", false, || auto("docker"));
    suite.any_engine("memory::a_killed_fit_is_resumed_as_a_fit", killed_fit);
}

fn limits(engine: &str) -> &'static str {
    match engine {
        "process" => "memory: {limit: 400m}\ncontainer: {gpus: 0, cpus: 1}\n",
        // Here the kernel kills what does not fit.
        _ => "container: {gpus: 0, cpus: 1, memory: 400m}\n",
    }
}

fn train(batch: &str) -> String {
    format!("train: {{steps: 4, batch: {batch}, effective_batch: {EFFECTIVE}, optimizer: {{lr: 2.0e-3}}}}\n")
}

/// A model that needs more memory than the program itself.
fn larger(more: &str) -> Folder {
    let folder = folder(more);
    let yaml = folder.read("t5.yaml").replace("d_model: 32, d_kv: 16, d_ff: 64", "d_model: 128, d_kv: 32, d_ff: 256");
    folder.write("t5.yaml", yaml);
    folder
}

fn fit(engine: &str) {
    let folder = larger(&format!("{}{}", train("1"), limits(engine)));
    let lines = folder.pipe(&["fit", "t5.yaml", "--engine", engine, "--json"]).exits(0).json_lines();
    let of = |kind: &str| lines.iter().filter(|line| line["type"] == kind).collect::<Vec<&Value>>();
    let [fitted] = of("fitted")[..] else { panic!("{lines:#?}") };
    let batch = fitted["batch"].as_u64().unwrap();
    assert!((2..EFFECTIVE).contains(&batch), "{fitted:#}");
    assert!(of("measured").len() >= 2, "{lines:#?}");
    assert!(std::fs::read_dir(folder.path().join("runs")).unwrap().next().is_none(), "a search leaves no run");
    // The ledger has it from now on.
    let known = folder.pipe(&["ledger", "ls", "--json"]).exits(0).json();
    let facts = known[0]["facts"].as_array().unwrap();
    assert!(facts.iter().any(|fact| fact["batch"] == batch && fact["largest"] == true), "{known:#}");
    let set = format!("train.batch={batch}");
    folder.pipe(&["run", "t5.yaml", "--engine", engine, "--set", &set]).exits(0);
    let run = folder.show();
    assert_eq!(run["attempts"].as_array().unwrap().len(), 1, "{run:#}");
    let auto = ["run", "t5.yaml", "--engine", engine, "--set", "train.batch=auto"];
    folder.pipe(&auto).exits(0).says("was found to be the largest that fits").says_not("measured batch");
}

/// The search starts again and trains nothing.
fn killed_fit(engine: &str) {
    let folder = larger(&format!("{}{}", train("1"), limits(engine)));
    let running = folder.start(&["fit", "t5.yaml", "--engine", engine]);
    folder.wait_for_log(1, "fits");
    running.kill_alive();
    assert_eq!((&folder.show()["job"], &folder.show()["work"]), (&Value::from("fit"), &Value::from("training")));
    folder.pipe(&["resume"]).exits(0).prints("train.batch: ");
    assert!(std::fs::read_dir(folder.path().join("runs")).unwrap().next().is_none(), "a search leaves no run");
    assert!(folder.containers().is_empty(), "the container of the killed search is left");
}

fn auto(engine: &str) {
    static WANT: OnceLock<Vec<(u64, u64, f64)>> = OnceLock::new();
    let folder = larger(&format!("{}{}", train("auto"), limits(engine)));
    folder.pipe(&["run", "t5.yaml", "--engine", engine]).exits(0).says("looking for the largest batch");
    let run = folder.show();
    let attempts = run["attempts"].as_array().unwrap();
    assert_eq!(attempts.len(), 1, "{run:#}");
    let batch = attempts[0]["batch"].as_u64().unwrap();
    assert!((2..EFFECTIVE).contains(&batch), "{run:#}");
    let want = WANT.get_or_init(|| {
        let other = larger(&format!("{}container: {{gpus: 0, cpus: 1}}\n", train("3")));
        other.pipe(&["run", "t5.yaml", "--engine", "process"]).exits(0);
        curve(&other.run_folder())
    });
    same_curve(&curve(&folder.run_folder()), want, EFFECTIVE, 1e-5);
}
