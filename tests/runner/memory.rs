//! `pipe plan`, out-of-memory on a card, and the ledger.

use std::thread;
use std::time::Duration;

use serde_json::Value;

use crate::harness::{Answer, Folder, Needs, Suite};
use crate::stand_ins::job;

pub fn tests(suite: &mut Suite) {
    let mut test = |name: &str, test: fn()| suite.test(&format!("memory::{name}"), Needs::Nothing, test);
    test("a_plan_adds_up", plan_adds_up);
    test("a_plan_for_every_architecture", plan_for_all);
    test("a_plan_says_what_would_fit", plan_says_what_fits);
    test("a_plan_that_cannot_be_made", no_plan);
    test("a_retry_starts_with_a_batch_that_fits", capacity);
    test("fragmentation", fragments);
    test("waits_for_another_process", neighbour);
    test("another_process_that_stays", neighbour_stays);
    test("settings_that_change_the_result_come_last", then);
    test("no_change_left", no_change_left);
    test("the_second_run_starts_where_it_fits", remembered);
    test("ignore_ledger_records_nothing", ignored);
    test("another_card_is_a_hint", elsewhere);
    test("without_the_other_process_the_batch_is_the_first_again", grown_back);
    test("many_runs_share_a_ledger", shared);
    test("forgetting", forgetting);
    test("doctor_names_the_processes_on_the_card", doctor);
    test("a_failed_search_keeps_its_folder", failed_search);
}

const FREE: &str = "16384 16384\n";

fn run(folder: &Folder, more: &[&str], code: i32) -> (Answer, Value) {
    let mut args = vec!["run", "job.yaml", "--engine", "process", "--set", "container.gpus=1"];
    args.extend(more);
    let answer = folder.pipe(&args).exits(code);
    (answer, folder.show())
}

/// Batch and cause of each attempt.
fn attempts(run: &Value) -> Vec<(u64, Option<&str>)> {
    let list = run["attempts"].as_array().unwrap();
    list.iter().map(|attempt| (attempt["batch"].as_u64().unwrap(), attempt["cause"].as_str())).collect()
}

const XL: &str = "version: 1\nname: xl\nmodel: {arch: t5, config: {d_model: 2048, d_ff: 5120, d_kv: 64, num_layers: 24, \
                  num_heads: 32, vocab_size: 32128, feed_forward_proj: gated-gelu, tie_word_embeddings: false}}\n\
                  data: {train: nowhere.jsonl, max_source: 512, max_target: 256}\n\
                  train: {batch: 8, accum: 16, precision: bf16}\n";

const AGAIN: [&str; 2] = ["--set", "train.checkpointing=true"];

fn plan_adds_up() {
    let folder = Folder::new();
    folder.write("xl.yaml", XL);
    let plan = folder.pipe(&["plan", "xl.yaml", "--gpu", "5090", "--json", AGAIN[0], AGAIN[1]]).exits(0).json();
    assert_eq!(plan["params"], 2_849_757_184u64);
    let parts = plan["breakdown"].as_object().unwrap();
    let sum: u64 = parts.values().map(|part| part.as_u64().unwrap()).sum();
    assert_eq!(plan["peak"], sum);
    assert_eq!((parts["weights"].as_u64(), parts["optimizer"].as_u64()), (Some(5_699_514_368), Some(11_399_028_736)));
    assert_eq!((&plan["capacity"], &plan["fits"]), (&Value::from(32_607u64 << 20), &Value::from(true)));
    let table = plan["table"].as_array().unwrap();
    let sizes: Vec<u64> = table.iter().map(|row| row["gib"].as_u64().unwrap()).collect();
    assert_eq!(sizes, [8, 12, 16, 24, 32, 48, 80]);
    let batches: Vec<u64> = table.iter().map(|row| row["batch"].as_u64().unwrap_or(0)).collect();
    assert!(batches.is_sorted() && batches[0] == 0 && batches[6] > 32, "{batches:?}");
    for row in table.iter().filter(|row| !row["batch"].is_null()) {
        let number = |key: &str| row[key].as_u64().unwrap();
        assert_eq!(number("accum"), 128u64.div_ceil(number("batch")));
        assert!(number("peak") < number("gib") << 30);
    }
    let shown = folder.pipe(&["plan", "xl.yaml", "--gpu", "5090", AGAIN[0], AGAIN[1]]).exits(0);
    shown.prints("2,849,757,184 parameters").prints("(RTX 5090): fits");
    folder.pipe(&["plan", "xl.yaml"]).exits(0).prints("No GPU found");
}

fn plan_for_all() {
    let folder = Folder::new();
    let models = [
        ("bert", "{num_labels: 3}", 109_484_547),
        ("roberta", "{vocab_size: 50265, max_position_embeddings: 514, type_vocab_size: 1}", 124_647_170),
        ("xlm-roberta", "{vocab_size: 250002, max_position_embeddings: 514, type_vocab_size: 1}", 278_045_186),
        ("clip", "{}", 151_277_313),
        ("mu-sota", "{}", 26_873_024),
        ("hybrid-cnn-lstm", "{input_features: 32, num_classes: 3}", 987_715),
    ];
    for (arch, config, params) in models {
        let text = format!(
            "version: 1\nname: x\nmodel: {{arch: {arch}, config: {config}}}\ndata: {{train: x}}\ntrain: {{batch: 4, accum: 8}}\n"
        );
        folder.write("x.yaml", text);
        let plan = |words: &[&str]| {
            let args = [&["plan", "x.yaml", "--memory", "24g", "--json"], words].concat();
            folder.pipe(&args).exits(0).json()
        };
        let plain = plan(&[]);
        assert_eq!(plain["params"], params, "{arch}");
        assert_eq!(plain["fits"], true, "{arch}");
        let peak = |plan: &Value| plan["allocated"].as_u64().unwrap();
        let smaller =
            [["--set", "train.precision=bf16"], ["--set", "train.checkpointing=true"], ["--set", "train.batch=1"]];
        for change in smaller {
            assert!(peak(&plan(&change)) < peak(&plain), "{arch} {change:?}");
        }
    }
}

fn plan_says_what_fits() {
    let folder = Folder::new();
    folder.write("xl.yaml", XL);
    let changes = |memory: &str| -> Vec<String> {
        let kept = ["--set", "train.checkpointing=false"];
        let plan = folder.pipe(&["plan", "xl.yaml", "--memory", memory, "--json", kept[0], kept[1]]).exits(0).json();
        assert_eq!(plan["fits"], false);
        plan["changes"].as_array().unwrap().iter().map(|one| one["change"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(changes("28g")[..2], ["train.batch: 4".to_owned(), "train.checkpointing: true".to_owned()]);
    assert_eq!(changes("20g"), ["train.optimizer.kind: adafactor"]);
    assert!(changes("8g").is_empty());
    folder.pipe(&["plan", "xl.yaml", "--memory", "8g"]).exits(0).prints("no single change that pipe knows would help");
    let limited = folder.pipe(&["plan", "xl.yaml", "--set", "memory.limit=20g", "--gpu", "5090", "--json"]).json();
    assert_eq!((&limited["fits"], limited["capacity"].as_u64()), (&Value::from(false), Some((20 << 30) + (768 << 20))));
    // With `auto`, which is the default, all is kept where it fits, and computed again elsewhere.
    let peak = |memory: &str, checkpointing: &str| {
        let set = format!("train.checkpointing={checkpointing}");
        let plan = folder.pipe(&["plan", "xl.yaml", "--memory", memory, "--json", "--set", &set]).exits(0).json();
        plan["peak"].as_u64().unwrap()
    };
    assert_eq!(peak("80g", "auto"), peak("80g", "false"));
    assert!(peak("28g", "true") < peak("28g", "false"));
    // Shorter samples fill what is left.
    let auto = peak("28g", "auto");
    assert!(peak("28g", "true") < auto && auto < 27 << 30, "{auto}");
    folder.write("xl.yaml", XL.replace("batch: 8,", "batch: 8, split: fixed,"));
    assert_eq!(peak("28g", "auto"), peak("28g", "true"));
}

fn no_plan() {
    let folder = Folder::new();
    folder.write("xl.yaml", XL);
    folder.pipe(&["plan", "xl.yaml", "--gpu", "voodoo"]).exits(3).says("unknown card \"voodoo\"; known cards");
    folder.pipe(&["plan", "xl.yaml", "--memory", "much"]).exits(2).says("a size such as 512m");
    folder.pipe(&["plan", "xl.yaml", "--set", "model.config.num_heads=0"]).exits(3).says("num_heads: found 0");
    folder.pipe(&["plan", "nowhere.yaml"]).exits(1).says("cannot read nowhere.yaml");
}

fn capacity() {
    let folder = job::on_card("card free", "train: {batch: 200, effective_batch: 400}\n", FREE);
    let (answer, run) = run(&folder, &[], 0);
    answer.says("batch 139 instead of 200, which fits according to smaller batches");
    assert_eq!(attempts(&run), [(200, Some("capacity")), (139, None)]);
}

fn fragments() {
    let folder = job::on_card("card fragmented", "train: {batch: 40, effective_batch: 80}\n", FREE);
    let (answer, run) = run(&folder, &[], 0);
    answer.says("same batch, expandable_segments on");
    assert_eq!(attempts(&run), [(40, Some("fragmented")), (40, None)]);
}

/// A folder with another process that holds 12 GiB while the file `there` exists.
fn crowded(more: &str) -> Folder {
    let there = std::env::temp_dir().join(format!("pipe-crowded-{}-{:?}", std::process::id(), thread::current().id()));
    std::fs::write(&there, "").unwrap();
    let card = format!("16384 4096\n{} 12288\n", std::process::id());
    job::on_card(&format!("card crowded {}", there.display()), more, &card)
}

fn leave(folder: &Folder) {
    let there = folder.read("job.yaml").split("crowded ").nth(1).unwrap().split('}').next().unwrap().to_owned();
    std::fs::remove_file(there).unwrap();
    folder.write("card", FREE);
}

fn neighbour() {
    let folder = crowded("train: {batch: 40, effective_batch: 80}\non_oom: {wait: 60}\n");
    let running = folder.start(&["run", "job.yaml", "--engine", "process", "--set", "container.gpus=1"]);
    folder.wait_until("the first attempt", || {
        let runs = std::fs::read_dir(folder.path().join("runs")).into_iter().flatten().flatten();
        runs.map(|run| run.path().join("attempts/01/outcome.json")).any(|outcome| outcome.exists())
    });
    thread::sleep(Duration::from_millis(500));
    assert!(folder.show()["attempts"].as_array().unwrap().len() == 1, "it did not wait");
    leave(&folder);
    let own = std::process::id().to_string();
    running.end().exits(0).says("waiting for the card, at most 60s, held by").says(&own).says("the card is free again");
    let run = folder.show();
    assert_eq!(attempts(&run), [(40, Some("neighbour")), (40, None)]);
    let reason = run["attempts"][0]["reason"].as_str().unwrap();
    assert!(reason.contains("12.0 GiB of the card held by") && reason.contains(&own), "{reason}");
}

fn neighbour_stays() {
    let folder = crowded("train: {batch: 40, effective_batch: 80}\non_oom: {wait: 1, retries: 2}\n");
    let (answer, run) = run(&folder, &[], 7);
    answer.says("the card is still in use after on_oom.wait: trying once more").says("batch 20 instead of 40");
    assert_eq!(attempts(&run), [(40, Some("neighbour")), (40, Some("neighbour")), (20, Some("neighbour"))]);
    leave(&folder);
}

fn grown_back() {
    let folder = crowded("train: {batch: 40, effective_batch: 80}\non_oom: {wait: 0, retries: 1}\n");
    let (_, crowded) = run(&folder, &[], 7);
    assert_eq!(attempts(&crowded), [(40, Some("neighbour")), (20, Some("neighbour"))]);
    leave(&folder);
    let (_, alone) = run(&folder, &[], 0);
    assert_eq!(attempts(&alone), [(40, None)]);
}

fn then() {
    let more = "train: {batch: 8}\non_oom: {then: [checkpointing, precision=bf16]}\n";
    let folder = job::on_card("card model", more, FREE);
    let (answer, run) = run(&folder, &[], 0);
    answer
        .says("retrying: checkpointing (changes the training result)")
        .says("retrying: precision=bf16 (changes the training result)");
    assert_eq!(attempts(&run), [(8, Some("model")), (8, Some("model")), (8, None)]);
    let changes = |index: usize| run["attempts"][index]["changes"].clone();
    assert_eq!(changes(0), Value::Null);
    assert_eq!(changes(2), serde_json::json!(["checkpointing", "precision=bf16"]));
    let spec = folder.run_folder().join("attempts/03/spec.json");
    let spec: Value = serde_json::from_slice(&std::fs::read(spec).unwrap()).unwrap();
    assert_eq!(
        (&spec["train"]["checkpointing"], &spec["train"]["precision"]),
        (&Value::from(true), &Value::from("bf16"))
    );
    assert_eq!(spec["maths_changed"], true);
}

fn no_change_left() {
    let folder = job::on_card("card model", "train: {batch: 8}\non_oom: {then: [checkpointing]}\n", FREE);
    let (answer, run) = run(&folder, &[], 7);
    answer.says("the model itself does not fit (it ran out in load)");
    assert_eq!(attempts(&run), [(8, Some("model")), (8, Some("model"))]);
}

fn remembered() {
    let folder = job::on_card("card free", "train: {batch: 200, effective_batch: 400}\n", FREE);
    run(&folder, &[], 0);
    let (answer, second) = run(&folder, &[], 0);
    answer.says("ledger: a batch of 200 did not fit in 16.0 GiB: starting at 139, which is known to fit");
    assert_eq!(attempts(&second), [(139, None)]);
    // Another precision is another entry of the ledger.
    let (_, other) = run(&folder, &["--set", "train.precision=bf16"], 0);
    assert_eq!(attempts(&other)[0].0, 200);
    let known = folder.pipe(&["ledger", "ls", "--json"]).exits(0).json();
    assert_eq!(known.as_array().unwrap().len(), 2);
    let listed = folder.pipe(&["ledger", "ls"]).exits(0);
    listed.prints("Test Card").prints("batch 139 fits (peak 15.6 GiB), 200 does not fit in 16.0 GiB");
}

fn ignored() {
    let folder = job::on_card("card free", "train: {batch: 200, effective_batch: 400}\n", FREE);
    run(&folder, &["--ignore-ledger"], 0);
    assert_eq!(folder.pipe(&["ledger", "ls", "--json"]).exits(0).json(), serde_json::json!([]));
    run(&folder, &[], 0);
    let (_, again) = run(&folder, &["--ignore-ledger"], 0);
    assert_eq!(attempts(&again)[0], (200, Some("capacity")));
}

fn elsewhere() {
    let folder = job::on_card("card free", "train: {batch: 200, effective_batch: 400}\n", FREE);
    run(&folder, &[], 0);
    // Without the card the same pipeline runs on the CPU, for which the ledger has nothing.
    let answer = folder.pipe(&["run", "job.yaml", "--engine", "process", "--set", "container.gpus=0"]);
    let answer = answer.says("ledger: on Test Card: batch 139 fits").says_not("starting at");
    assert_eq!(answer.code, Some(0), "{answer}");
    assert_eq!(attempts(&folder.show())[0].0, 200);
}

fn shared() {
    let folder = job::on_card("card free", "train: {batch: 200, effective_batch: 400}\n", FREE);
    // The longest row is known after the first run, so that all of the others ask.
    run(&folder, &["--set", "train.batch=1"], 0);
    let batches: Vec<u32> = (2..10).collect();
    let running: Vec<_> = batches
        .iter()
        .map(|batch| {
            let set = format!("train.batch={batch}");
            folder.start(&["run", "job.yaml", "--engine", "process", "--set", "container.gpus=1", "--set", &set])
        })
        .collect();
    running.into_iter().for_each(|running| drop(running.end().exits(0).says_not("warning")));
    let lines = folder.pipe(&["ledger", "export"]).exits(0).json_lines();
    assert_eq!(lines.len(), 1);
    let recorded: Vec<u64> =
        lines[0]["facts"].as_array().unwrap().iter().map(|fact| fact["batch"].as_u64().unwrap()).collect();
    assert_eq!(recorded, (1..10).collect::<Vec<u64>>());
}

fn forgetting() {
    let folder = job::on_card("card free", "train: {batch: 200, effective_batch: 400}\n", FREE);
    folder.pipe(&["ledger", "ls"]).exits(0);
    folder.pipe(&["ledger", "show", "abc"]).exits(2).says("the ledger has no entry \"abc\"");
    run(&folder, &[], 0);
    let known = folder.pipe(&["ledger", "ls", "--json"]).exits(0).json();
    let id = known[0]["id"].as_str().unwrap().to_owned();
    folder.pipe(&["ledger", "show", &id[..6]]).exits(0).prints("\"batch\": 139");
    folder.pipe(&["ledger", "forget", &id]).exits(0).prints("removed 1 entry");
    let (_, again) = run(&folder, &[], 0);
    assert_eq!(attempts(&again)[0], (200, Some("capacity")));
    folder.pipe(&["ledger", "forget", "--all"]).exits(0).prints("removed 1 entry");
    folder.pipe(&["ledger", "forget"]).exits(2);
}

fn doctor() {
    let card = format!("16384 4096\n{} 12288\n", std::process::id());
    let folder = job::on_card("card free", "", &card).env("DOCKER_HOST", "unix:///nowhere/docker.sock");
    let checks = folder.pipe(&["doctor", "--json"]).exits(0).json();
    let card = checks.as_array().unwrap().iter().find(|check| check["name"] == "card").unwrap().clone();
    assert_eq!(card["found"], "Test Card, driver 1.2.3, 4.0 GiB free of 16.0 GiB");
    assert!(card["hint"].as_str().unwrap().contains(&format!("({}, 12.0 GiB)", std::process::id())), "{card:#}");
}

fn failed_search() {
    let folder = job::on_card("exit 42", "", FREE);
    folder
        .pipe(&["fit", "job.yaml", "--engine", "process", "--set", "container.gpus=1"])
        .exits(7)
        .says("out of memory")
        .says("hint: `pipe plan` says what would make it fit");
    assert_eq!(folder.show()["status"], "failed");
}
