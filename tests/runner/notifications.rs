//! Notifications about a run, and MLflow. Whatever happens to a message, the run is unchanged.

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::harness::{Answer, Folder, Needs, Suite};
use crate::stand_ins::job;
use crate::stand_ins::receiver::{HANG, OK, Receiver, closed_port};
use crate::stand_ins::trackers::Mlflow;

pub fn tests(suite: &mut Suite) {
    let mut test = |name: &str, test: fn()| suite.test(&format!("notifications::{name}"), Needs::Nothing, test);
    test("a_webhook_gets_a_retry", retried);
    test("a_webhook_gets_a_failure", failed);
    test("discord_gets_the_chosen_events", discord);
    test("a_stop_sends_no_message", stopped);
    test("a_busy_receiver_gets_a_retry", busy);
    test("receivers_that_fail_change_nothing", failing_receivers);
    test("secrets_are_nowhere", secrets);
    test("a_secret_in_the_file_is_a_warning", laid_open);
    suite.test("notifications::mlflow_has_the_whole_run", Needs::Mlflow, mlflow);
}

/// A folder whose requests go to no proxy, with what `more` adds to the pipeline.
fn folder(job: &str, more: &str) -> Folder {
    job::folder(job, more).env("NO_PROXY", "127.0.0.1").env("no_proxy", "127.0.0.1")
}

fn run(folder: &Folder, more: &[&str]) -> Answer {
    let args = ["run", "job.yaml", "--engine", "process"].iter().chain(more).copied();
    folder.pipe(&args.collect::<Vec<_>>())
}

const RETRIED: &str = "train: {batch: 10}\n";

fn types(messages: &[Value]) -> Vec<&str> {
    messages.iter().map(|message| message["type"].as_str().unwrap()).collect()
}

fn retried() {
    let receiver = Receiver::start(&[OK]);
    let folder = folder("fit 5", &format!("{RETRIED}notify: [{{webhook: \"{}/hook\"}}]\n", receiver.address()));
    run(&folder, &[]).exits(0).says_not("warning");
    let messages = receiver.messages();
    assert_eq!(types(&messages), ["started", "oom", "retried", "finished"]);
    let id = folder.show()["id"].clone();
    assert!(messages.iter().all(|message| message["run"] == id && message["name"] == "job"), "{messages:#?}");
    let [started, oom, again, finished] = messages.as_slice() else { panic!() };
    assert_eq!((&started["status"], &started["attempt"]), (&json!("running"), &Value::Null));
    assert_eq!((&oom["attempt"], &oom["batch"], &oom["accum"]), (&json!(1), &json!(10), &json!(1)));
    assert_eq!((&oom["cause"], &oom["reason"]), (&json!("host_memory"), &json!("the host's memory ran out")));
    assert_eq!((&oom["action"], &again["action"]), (&Value::Null, &json!("batch 5 instead of 10")));
    assert_eq!((&finished["status"], &finished["attempt"]), (&json!("finished"), &json!(2)));
    assert_eq!((&finished["step"], &finished["steps"], &finished["batch"]), (&json!(3), &json!(3), &json!(5)));
    assert!((finished["loss"].as_f64().unwrap() - 10.0 / 3.0).abs() < 1e-9 && finished["seconds"].as_f64() > Some(0.0));
    let request = &receiver.requests()[0];
    assert!(request.line.starts_with("POST /hook ") && request.headers.contains("application/json"), "{request:?}");
}

fn failed() {
    let receiver = Receiver::start(&[OK]);
    let folder = folder("exit 1", &format!("notify: [{{webhook: \"{}\", on: []}}]\n", receiver.address()));
    run(&folder, &[]).exits(6);
    let messages = receiver.messages();
    assert_eq!(types(&messages), ["started", "failed"]);
    assert_eq!((&messages[1]["status"], &messages[1]["cause"]), (&json!("failed"), &json!("trainer")));
    assert!(messages[1]["error"].as_str().unwrap().contains("the job was told to exit"), "{messages:#?}");
}

fn discord() {
    let receiver = Receiver::start(&["204 No Content"]);
    let address = format!("{}/api/webhooks/1/s3cret", receiver.address());
    let notify = "notify: [{discord: \"${DISCORD_WEBHOOK}\", on: [oom, finished]}]\n";
    let folder = folder("fit 5", &format!("{RETRIED}{notify}")).env("DISCORD_WEBHOOK", address);
    run(&folder, &[]).exits(0).says_not("warning");
    let messages = receiver.messages();
    let titles: Vec<&Value> = messages.iter().map(|message| &message["embeds"][0]["title"]).collect();
    assert_eq!(titles, ["job is out of memory", "job has finished"]);
    let fields = messages[1]["embeds"][0]["fields"].as_array().unwrap();
    let field = |name: &str| fields.iter().find(|field| field["name"] == name).map(|field| &field["value"]);
    assert_eq!((field("Batch x accum"), field("Step")), (Some(&json!("5 x 2")), Some(&json!("3 of 3"))));
    assert_ne!(messages[0]["embeds"][0]["color"], messages[1]["embeds"][0]["color"]);
}

fn stopped() {
    let receiver = Receiver::start(&[OK]);
    let folder = folder("sleep", &format!("notify: [{{webhook: \"{}\"}}]\n", receiver.address()));
    let running = folder.start(&["run", "job.yaml", "--engine", "process"]);
    folder.wait_for_log(1, "sleeping");
    running.signal("INT");
    running.end().exits(130);
    assert_eq!(types(&receiver.messages()), ["started"]);
}

fn busy() {
    let answers = ["429 Too Many Requests\r\nretry-after: 0", "503 Service Unavailable\r\nretry-after: 0.1", OK];
    let receiver = Receiver::start(&answers);
    let folder = folder("fit 5", &format!("{RETRIED}notify: [{{webhook: \"{}\"}}]\n", receiver.address()));
    run(&folder, &[]).exits(0).says_not("warning");
    assert_eq!(types(&receiver.messages()), ["started", "started", "started", "oom", "retried", "finished"]);
}

/// One receiver that hangs, one that is broken, one that refuses, a closed port, and an MLflow that hangs: one warning each. The
/// receiver that works gets every message.
fn failing_receivers() {
    let plain = folder("fit 5", RETRIED);
    run(&plain, &[]).exits(0);
    let hangs = Receiver::start(&[HANG]);
    let one = folder("fit 5", &format!("{RETRIED}notify: [{{webhook: \"{}\"}}]\n", hangs.address()));
    let one = std::thread::spawn(move || timed(|| run(&one, &[]).exits(0)).1);
    let broken = Receiver::start(&["500 Internal Server Error"]);
    let refuses = Receiver::start(&["404 Not Found"]);
    let listens = Receiver::start(&[OK]);
    let addresses = [hangs.address(), broken.address(), refuses.address(), closed_port(), listens.address()];
    let notify: String = addresses.iter().map(|address| format!("  - webhook: \"{address}\"\n")).collect();
    let track = format!("track: {{mlflow: \"{}\"}}\n", hangs.address());
    let notified = folder("fit 5", &format!("{RETRIED}notify:\n{notify}{track}"));
    let (answer, waited) = timed(|| run(&notified, &[]).exits(0));

    let same = |run: Value| -> Vec<Value> {
        let attempts = run["attempts"].as_array().unwrap().iter();
        attempts.map(|one| json!([one["batch"], one["accum"], one["outcome"], one["last_loss"]])).collect()
    };
    assert_eq!(same(notified.show()), same(plain.show()));
    for (who, why) in [
        ("notify[0] (webhook)", "it did not answer in time"),
        ("notify[1] (webhook)", "it answered 500 Internal Server Error"),
        ("notify[2] (webhook)", "it answered 404 Not Found"),
        ("notify[3] (webhook)", "connection refused"),
        ("track.mlflow", "it did not answer in time"),
    ] {
        let lines: Vec<&str> = answer.stderr.lines().filter(|line| line.contains(who)).collect();
        assert_eq!(lines, [format!("warning: {who} could not be notified: {why}")], "{answer}");
    }
    assert!(!answer.stderr.contains("notify[4]"), "{answer}");
    assert_eq!(types(&listens.messages()), ["started", "oom", "retried", "finished"]);
    assert_eq!(refuses.requests().len(), 4, "what is refused is not sent again");
    // Several that do not answer take no longer than one.
    let one = one.join().unwrap();
    assert!(waited < one * 2, "{waited:?}, and {one:?} with one that does not answer");
}

fn timed<T>(what: impl FnOnce() -> T) -> (T, Duration) {
    let began = Instant::now();
    let result = what();
    (result, began.elapsed())
}

const SECRETS: [&str; 6] = [
    "s3cret-hook",
    "s3cret-file",
    "s3cret-user",
    "s3cret-password",
    "s3cret-token",
    "czNjcmV0LXVzZXI6czNjcmV0LXBhc3N3b3Jk",
];

fn secrets() {
    let broken = Receiver::start(&["500 Internal Server Error"]);
    let refuses = Receiver::start(&["403 Forbidden"]);
    let mlflow = refuses.address().replace("://", "://s3cret-user:s3cret-password@");
    let more = "notify:\n  - discord: \"${HOOK}\"\n  - webhook: \"${FILE_HOOK}\"\n  - discord: \"${NOBODY}\"\n\
                track: {mlflow: \"${MLFLOW}\"}\n";
    let folder = folder("fit 5", &format!("{RETRIED}{more}"))
        .env("HOOK", format!("{}/s3cret-hook", broken.address()))
        .env("NOBODY", format!("{}/s3cret-hook", closed_port()))
        .env("MLFLOW", mlflow)
        .env("MLFLOW_TRACKING_TOKEN", "s3cret-token")
        .env("RUST_LOG", "trace");
    folder.write(".env", format!("FILE_HOOK={}/s3cret-file\n", refuses.address()));
    let mut answers = vec![run(&folder, &["-vv"]).exits(0)];
    answers.push(folder.pipe(&["check", "job.yaml", "--json"]));
    for command in ["show", "logs", "ls"] {
        answers.push(folder.pipe(&[command]).exits(0));
        answers.push(folder.pipe(&[command, "--json"]).exits(0));
    }
    answers.push(folder.pipe(&["report", "--out", "-"]).exits(0));
    answers.push(folder.pipe(&["run", "job.yaml", "--engine", "process", "--dry-run"]).exits(0));

    // They were used, or their absence would prove nothing.
    let sent = format!("{:?}{:?}", broken.requests(), refuses.requests());
    for secret in ["s3cret-hook", "s3cret-file", SECRETS[5]] {
        assert!(sent.contains(secret), "{secret} was not used: {sent}");
    }
    for answer in &answers {
        for secret in SECRETS {
            assert!(!format!("{}{}", answer.stdout, answer.stderr).contains(secret), "{secret} in {answer}");
        }
    }
    let count = search(&folder.path().join("runs"));
    assert!(count >= 10, "only {count} files were searched");
    search(&folder.path().join("ledger"));
    assert!(folder.read(".env").contains("s3cret"), "the search can find something");
}

/// How many files there are, none with a secret.
fn search(path: &Path) -> usize {
    if path.is_dir() {
        return std::fs::read_dir(path).unwrap().map(|entry| search(&entry.unwrap().path())).sum();
    }
    let text = String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()).into_owned();
    for secret in SECRETS {
        assert!(!text.contains(secret), "{secret} in {}", path.display());
    }
    1
}

fn laid_open() {
    let receiver = Receiver::start(&[OK]);
    let notify = format!("notify: [{{discord: \"{}\", on: [failed]}}]\n", receiver.address());
    let answer = run(&folder("fit 5", &notify), &[]).exits(0);
    answer.says("warning: notify[0] (discord): a secret stands in the pipeline").says("${DISCORD_WEBHOOK}");
}

/// What the server has of the only run in a folder.
fn tracked(server: &Mlflow, folder: &Folder) -> Value {
    let kept: Value = serde_json::from_slice(&std::fs::read(folder.run_folder().join("mlflow.json")).unwrap()).unwrap();
    server.get(&format!("runs/get?run_id={}", kept["run_id"].as_str().unwrap()))["run"].clone()
}

fn history(server: &Mlflow, run: &Value, metric: &str) -> Vec<(u64, f64)> {
    let id = run["info"]["run_id"].as_str().unwrap();
    let answer = server.get(&format!("metrics/get-history?run_id={id}&metric_key={metric}"));
    let mut points: Vec<(u64, f64)> = answer["metrics"]
        .as_array()
        .unwrap_or_else(|| panic!("no {metric}: {answer:#}"))
        .iter()
        .map(|metric| (metric["step"].as_u64().unwrap(), metric["value"].as_f64().unwrap()))
        .collect();
    points.sort_by_key(|point| point.0);
    points
}

/// A parameter or tag of a run.
fn value(run: &Value, kind: &str, key: &str) -> Option<String> {
    let all = run["data"][kind].as_array().unwrap();
    all.iter().find(|one| one["key"] == key).and_then(|one| one["value"].as_str()).map(str::to_owned)
}

/// One server for all, because its start takes longer than everything else.
fn mlflow() {
    let place = Folder::new();
    let server = Mlflow::start(place.path());
    let tracking = |job: &str, more: &str| {
        folder(job, &format!("track: {{mlflow: \"${{MLFLOW_TRACKING_URI}}\"}}\n{more}"))
            .env("MLFLOW_TRACKING_URI", server.address())
    };

    let retried = tracking("fit 5", RETRIED);
    run(&retried, &[]).exits(0).says_not("warning");
    let tracked_run = tracked(&server, &retried);
    let info = &tracked_run["info"];
    assert_eq!((&info["status"], &info["run_name"]), (&json!("FINISHED"), &retried.show()["id"]));
    let losses = history(&server, &tracked_run, "train/loss");
    assert_eq!(losses, [(1, 10.0), (2, 5.0), (3, 10.0 / 3.0)]);
    for metric in ["train/lr", "train/grad_norm", "speed/tokens_per_second", "memory/peak_bytes"] {
        assert_eq!(history(&server, &tracked_run, metric).len(), 3, "{metric}");
    }
    let param = |key: &str| value(&tracked_run, "params", key);
    assert_eq!((param("train.batch").as_deref(), param("model.arch").as_deref()), (Some("10"), Some("t5")));
    assert_eq!(param("track.mlflow"), None);
    let tag = |key: &str| value(&tracked_run, "tags", key);
    assert_eq!(tag("pipe.retry.1").as_deref(), Some("batch 5 instead of 10: the host's memory ran out"));
    assert_eq!((tag("pipe.attempts").as_deref(), tag("pipe.device").as_deref()), (Some("2"), Some("cpu")));
    let id = info["run_id"].as_str().unwrap();
    let files = server.get(&format!("artifacts/list?run_id={id}"));
    let files: Vec<&str> = files["files"].as_array().unwrap().iter().filter_map(|file| file["path"].as_str()).collect();
    assert_eq!(files, ["lock.json", "report.html", "resolved.yaml", "run.json"]);

    // An experiment that was deleted is there again.
    let experiment = info["experiment_id"].as_str().unwrap();
    server.post("experiments/delete", &json!({ "experiment_id": experiment }));
    let failed = tracking("exit 1", "");
    run(&failed, &[]).exits(6);
    let failed_run = tracked(&server, &failed);
    assert_eq!(
        (&failed_run["info"]["status"], &failed_run["info"]["experiment_id"]),
        (&json!("FAILED"), &json!(experiment))
    );
    assert!(value(&failed_run, "tags", "pipe.error").unwrap().contains("the job was told to exit"));

    let stopped = tracking("sleep", "");
    let running = stopped.start(&["run", "job.yaml", "--engine", "process"]);
    stopped.wait_for_log(1, "sleeping");
    running.signal("INT");
    running.end().exits(130);
    assert_eq!(tracked(&server, &stopped)["info"]["status"], "KILLED");

    // The next pipe continues the same MLflow run, and sends what the killed one had not sent.
    let left = tracking("walk 40 50 4", "train: {batch: 8}\n");
    let running = left.start(&["run", "job.yaml", "--engine", "process"]);
    left.wait_for_log(2, "\"step\":25,");
    left.wait_until("the server to know of it", || left.run_folder().join("mlflow.json").is_file());
    let first = tracked(&server, &left)["info"]["run_id"].clone();
    running.kill_alive();
    left.pipe(&["resume"]).exits(0).says_not("warning: track");
    let run = tracked(&server, &left);
    assert_eq!((&run["info"]["run_id"], &run["info"]["status"]), (&first, &json!("FINISHED")));
    let steps: Vec<u64> = history(&server, &run, "train/loss").iter().map(|point| point.0).collect();
    assert_eq!(steps, (1..=40).collect::<Vec<u64>>());
}
