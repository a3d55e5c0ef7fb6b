//! Several cards, one training: how many ranks there are, what a job is given, the queue, and the errors. The cards are those of
//! `tests/nvml.rs`.

use serde_json::{Value, json};

use crate::harness::{Folder, Needs, Running, Suite};
use crate::stand_ins::job;

pub fn tests(suite: &mut Suite) {
    let mut test = |name: &str, test: fn()| suite.test(&format!("several_cards::{name}"), Needs::Nothing, test);
    test("a_rank_for_each_card", ranks);
    test("ranks_on_the_cpu", on_cpu);
    test("what_is_not_there_is_refused_before_there_is_a_run", refused);
    test("what_a_job_sees_of_the_cards", visible);
    test("a_command_has_the_cards_and_no_ranks", command);
    test("runs_that_want_two_cards_each_wait_for_each_other", queue);
    test("a_card_has_one_name_in_the_queue", names);
    test("out_of_memory_of_a_rank", out_of_memory);
    test("a_card_that_others_hold_is_waited_for", crowded);
    test("a_rank_that_is_lost", lost);
    test("resumed_with_another_number", resumed);
    test("two_numbers_are_one_training", compared);
    test("the_largest_batch_of_a_rank", fit);
    test("a_plan_for_each_card", plan);
    test("what_is_shown", shown);
    test("what_fitted_is_known_by_ranks", ledger);
    test("trials_with_cards_of_their_own", tune);
    test("doctor", doctor);
    suite.test("several_cards::shared_memory_of_a_container", Needs::Docker, shared_memory);
    suite.test("several_cards::the_kernel_kills_a_rank", Needs::Docker, killed_by_kernel);
}

/// So many cards, each of 16 GiB.
fn cards(count: usize) -> String {
    vec!["16384 16000\n"; count].join("\n")
}

/// A training with an effective batch of 16 on a machine with so many cards.
fn folder(job: &str, count: usize) -> Folder {
    job::on_card(job, "train: {batch: 2, accum: 8}\non_oom: {reduce: halve, wait: 1}\n", &cards(count))
}

fn run<'a>(more: &[&'a str]) -> Vec<&'a str> {
    let mut words = vec!["run", "job.yaml", "--engine", "process"];
    more.iter().for_each(|set| words.extend(["--set", set]));
    words
}

fn spec(folder: &Folder, attempt: u32) -> Value {
    let path = folder.run_folder().join(format!("attempts/{attempt:02}/spec.json"));
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn lock(folder: &Folder) -> Value {
    serde_json::from_str(&folder.read_run("lock.json")).unwrap()
}

/// `container.gpus`, more settings, and then ranks, cards and batches of a rank.
fn ranks() {
    for (gpus, more, ranks, cards, accum) in [
        ("2", "", 2, 2, 4),
        ("all", "", 4, 4, 2),
        ("[1, 3]", "", 2, 2, 4),
        ("[GPU-00000003, 0]", "", 2, 2, 4),
        ("auto", "", 1, 1, 8),
        ("1", "", 1, 1, 8),
        // They share the card.
        ("1", "train.ranks=2", 2, 1, 4),
        ("2", "train.ranks=4", 4, 2, 2),
        ("3", "", 3, 3, 3),
    ] {
        let folder = folder("card free", 4);
        let gpus = format!("container.gpus={gpus}");
        let sets: Vec<&str> = [gpus.as_str(), more].into_iter().filter(|set| !set.is_empty()).collect();
        let answer = folder.pipe(&run(&sets)).exits(0);
        let spec = spec(&folder, 1);
        let count = if ranks == 1 { Value::Null } else { json!({ "index": 0, "count": ranks }) };
        assert_eq!(spec["rank"], count, "{gpus} {more}");
        assert_eq!(spec["train"]["ranks"], ranks, "{gpus} {more}: {spec:#}");
        assert_eq!(spec["cards"].as_u64().unwrap_or(1), cards, "{gpus} {more}");
        assert_eq!(spec["train"]["effective_batch"], 16);
        let lock = lock(&folder);
        assert_eq!(lock["ranks"], ranks, "{gpus} {more}");
        assert_eq!(lock["cards"].as_array().map_or(1, Vec::len) as u64, cards, "{lock:#}");
        let state = folder.show();
        assert_eq!(state["attempts"][0]["accum"], accum, "{gpus} {more}");
        assert_eq!(state["attempts"][0]["ranks"].as_u64().unwrap_or(1), ranks);
        let times = if ranks == 1 { String::new() } else { format!(" x {ranks} ranks") };
        answer.says(&format!("attempt 1 of at most 7: batch 2 x accum {accum}{times}\n"));
        // What was asked for is written down, not what it came to here.
        let resolved = folder.read_run("resolved.yaml");
        assert_eq!(resolved.contains("ranks:"), !more.is_empty(), "{resolved}");
    }
    // A batch is no larger than what a rank has of a step.
    let folder = folder("card free", 4);
    let whole = ["container.gpus=4", "train.batch=16", "train.accum=1"];
    folder.pipe(&run(&whole)).exits(0).says("batch 4 x accum 1 x 4 ranks\n");
    assert_eq!(
        (&spec(&folder, 1)["train"]["batch"], &spec(&folder, 1)["train"]["effective_batch"]),
        (&json!(4), &json!(16))
    );
}

fn on_cpu() {
    let folder = job::folder("fit 8", "train: {batch: 2, accum: 8, ranks: 4}\n");
    folder
        .pipe(&run(&["container.cpus=6"]))
        .exits(0)
        .says("each of 4 ranks limits its own allocations to its share")
        .says("(16m)");
    let first = spec(&folder, 1);
    assert_eq!(
        (&first["rank"]["count"], &first["threads"], &first["memory"]["limit"]),
        (&json!(4), &json!(2), &json!("16m"))
    );
    assert_eq!((&first["cards"], &first["device"]), (&Value::Null, &json!("cpu")));
    // A limit of the pipeline's own is one rank's.
    let folder = job::folder("fit 8", "train: {batch: 2, accum: 8, ranks: 4}\nmemory: {limit: 32m}\n");
    folder.pipe(&run(&[])).exits(0);
    let second = spec(&folder, 1);
    assert_eq!(second["memory"]["limit"], "32m");
    let cores = std::thread::available_parallelism().unwrap().get() as u64;
    assert_eq!(second["threads"], (cores / 4).max(1));
    // Where there is no card, `auto` is one rank.
    let folder = job::folder("fit 8", "train: {batch: 2, accum: 8}\n");
    folder.pipe(&run(&["container.gpus=auto"])).exits(0);
    assert_eq!((&spec(&folder, 1)["rank"], &spec(&folder, 1)["train"]["ranks"]), (&Value::Null, &json!(1)));
}

fn refused() {
    for (count, sets, code, said) in [
        (1, &["container.gpus=4"][..], 4, "container.gpus asks for 4 GPUs; this machine has 1"),
        (2, &["container.gpus=[0, 2]"], 4, "container.gpus names GPU 2; this machine has GPUs 0 to 1"),
        (2, &["container.gpus=[GPU-77]"], 4, "container.gpus names GPU-77; this machine has GPUs 0 to 1"),
        (2, &["container.gpus=[1, GPU-00000001-test]"], 3, "names one GPU twice: 1 and GPU-00000001-test"),
        (4, &["container.gpus=all", "train.ranks=2"], 3, "train.ranks is 2, but container.gpus gives 4 GPUs"),
        (4, &["container.gpus=all", "train.accum=1"], 3, "4 ranks share a step of 2 samples"),
        (4, &["container.gpus=4", "train.accum=1"], 3, "at most the effective batch, which is 2"),
        (4, &["container.gpus=4", "train.ranks=2"], 3, "at least 4, one for each GPU of container.gpus"),
    ] {
        let folder = folder("card free", count);
        folder.pipe(&run(sets)).exits(code).says(said);
        assert!(!folder.has_runs(), "{sets:?}");
    }
    let without = job::folder("card free", "train: {batch: 2, accum: 8}\n");
    without.pipe(&run(&["container.gpus=2"])).exits(4).says("a GPU was requested, but none is available");
}

fn visible() {
    for (gpus, of_pipe, want) in [
        ("1", None, "0"),
        ("2", None, "0,1"),
        ("[3, 1]", None, "1,3"),
        ("[GPU-00000002-test]", None, "GPU-00000002-test"),
        ("all", None, ""),
        ("1", Some("2,3"), "2"),
        ("2", Some("2,3"), "2,3"),
        ("all", Some("2,3"), "2,3"),
    ] {
        let mut folder = folder("env CUDA_VISIBLE_DEVICES CUDA_DEVICE_ORDER", 4);
        if let Some(listed) = of_pipe {
            folder = folder.env("CUDA_VISIBLE_DEVICES", listed);
        }
        folder.pipe(&run(&[&format!("container.gpus={gpus}")])).exits(0);
        let log = folder.read_run("attempts/01/log.txt");
        assert!(log.contains(&format!("CUDA_VISIBLE_DEVICES={want}\n")), "{gpus} {of_pipe:?}: {log}");
        assert!(log.contains("CUDA_DEVICE_ORDER=PCI_BUS_ID\n"), "{log}");
    }
    let folder = folder("card free", 4).env("CUDA_VISIBLE_DEVICES", "1,2");
    folder.pipe(&run(&["container.gpus=3"])).exits(4).says("container.gpus asks for 3 GPUs; this machine has 2");
}

fn command() {
    let folder = folder("", 4);
    let program = folder.path().join("image/job").display().to_string();
    folder.write(
        "command.yaml",
        format!(
            "version: 1\nname: command\nengine: process\ncommand: {program} command exit 0\ncontainer: {{gpus: 3}}\n"
        ),
    );
    folder.pipe(&["run", "command.yaml"]).exits(0);
    assert_eq!(lock(&folder)["ranks"], 1);
    folder.pipe(&["run", "command.yaml", "--set", "container.gpus=5"]).exits(4).says("asks for 5 GPUs");
}

/// A second folder with the same queue.
fn beside(first: &Folder, job: &str, count: usize) -> Folder {
    let queue = first.path().join("queue");
    folder(job, count).env("PIPE_QUEUE", queue.display())
}

fn wait_for(folder: &Folder, text: &str) {
    folder.wait_until(text, || {
        folder.state().is_some_and(|state| state["doing"].as_str().unwrap_or_default().contains(text))
    });
}

fn start(folder: &Folder, gpus: &str) -> Running {
    folder.start(&run(&[&format!("container.gpus={gpus}")]))
}

fn queue() {
    let first = folder("walk 10 100 8", 4);
    let (second, third) = (beside(&first, "walk 3 20 8", 4), beside(&first, "walk 3 20 8", 4));
    let running = start(&first, "2");
    first.wait_for_log(1, "step 1");
    // One that wants the second card alone, and one that wants that and another.
    let other = start(&second, "[1, 2]");
    wait_for(&second, "waiting for gpu-1: run job-");
    wait_for(&second, "has it; this run wants gpu-1, gpu-2");
    let last = start(&third, "2");
    wait_for(&third, "waiting for gpu-0: run job-");
    wait_for(&third, "; this run wants gpu-0, gpu-1");
    running.end().exits(0);
    other.end().exits(0);
    last.end().exits(0);
    // In any order, many times, nobody waits forever.
    let folders: Vec<Folder> = (0..6).map(|_| beside(&first, "walk 2 10 8", 4)).collect();
    let wanted = ["[0, 1]", "[1, 0]", "2", "[1, 2]", "[2, 0]", "all"];
    let all: Vec<Running> = folders.iter().zip(wanted).map(|(folder, gpus)| start(folder, gpus)).collect();
    all.into_iter().for_each(|running| drop(running.end().exits(0)));
}

fn names() {
    for (held, wanted, card) in [
        ("[GPU-00000001-test]", "[1]", "gpu-1"),
        ("[1]", "[GPU-00000001]", "gpu-1"),
        ("[GPU-00000000-test]", "1", "gpu-0"),
        ("auto", "[0]", "gpu-0"),
        ("all", "[3]", "gpu-3"),
    ] {
        let first = folder("sleep", 4);
        let second = beside(&first, "fit 8", 4);
        let running = start(&first, held);
        first.wait_for_log(1, "sleeping");
        let waiting = start(&second, wanted);
        wait_for(&second, &format!("waiting for {card}: run job-"));
        running.signal("INT");
        running.end().exits(130);
        waiting.end().exits(0);
    }
}

fn out_of_memory() {
    // 256 samples do not fit, 128 do; the third rank is the one that finds out.
    let folder = job::on_card("card free", "train: {batch: 256, accum: 6}\non_oom: {reduce: halve}\n", &cards(3));
    let answer = folder.pipe(&run(&["container.gpus=3"])).exits(0);
    answer.says("rank 2 ran out of memory on its card in backward of step 1: 600.0 MiB requested");
    let state = folder.show();
    let attempts: Vec<(u64, u64)> = state["attempts"]
        .as_array()
        .unwrap()
        .iter()
        .map(|attempt| (attempt["batch"].as_u64().unwrap(), attempt["accum"].as_u64().unwrap()))
        .collect();
    assert_eq!(attempts, [(256, 2), (128, 4)]);
    assert_eq!(spec(&folder, 2)["train"]["effective_batch"], 1536);
    let record: Value = serde_json::from_str(&folder.read_run("attempts/01/oom.json")).unwrap();
    assert_eq!(record["rank"], 2);
}

/// The card of the rank that ran out, and not the first one, is the one that is held and waited for.
fn crowded() {
    let folder = job::on_card("card crowded", "train: {batch: 8}\non_oom: {wait: 60}\n", "");
    let busy = folder.path().join("busy");
    let text = folder.read("job.yaml").replace("card crowded", &format!("card crowded {}", busy.display()));
    folder.write("job.yaml", text).write("busy", "");
    folder.write("card", format!("{}\n16384 300\n{} 12000\n", cards(1), std::process::id()));
    let running = folder.start(&run(&["container.gpus=2"]));
    wait_for(&folder, "waiting for the card 1");
    folder.wait_until("the card to be looked at", || folder.read_run("pipe.log").contains("at most 60s"));
    std::fs::remove_file(&busy).unwrap();
    folder.write("card", cards(2));
    let answer = running.end().exits(0);
    answer.says("of the card held by").says("waiting for the card 1, at most 60s").says("the card 1 is free again");
}

fn lost() {
    let folder = folder("lost 1", 2);
    folder.pipe(&run(&["container.gpus=2"])).exits(6).says("training failed: rank 1 was killed by SIGKILL");
    assert_eq!(folder.show()["attempts"][0]["cause"], "trainer");
    let killed = self::folder("lost 137", 2);
    let said = "training failed: rank 1 was killed by SIGKILL (exit code 137), not because of memory";
    killed.pipe(&run(&["container.gpus=2"])).exits(6).says(said);
    assert_eq!(killed.show()["attempts"][0]["cause"], "killed");
}

/// The job ends as its rank did, and the daemon knows why.
fn killed_by_kernel() {
    let folder = job::folder("rank-eats 2", "train: {batch: 4, accum: 4, ranks: 2}\non_oom: {reduce: halve}\n");
    let answer = folder.pipe(&["run", "job.yaml", "--engine", "docker"]).exits(0);
    answer.says("the kernel killed it at its memory limit of 64.0 MiB; rank 1 ended with signal: 9");
    let state = folder.show();
    assert_eq!(
        (&state["attempts"][0]["outcome"], &state["attempts"][0]["cause"]),
        (&json!("oom"), &json!("host_memory"))
    );
    assert_eq!(state["attempts"].as_array().unwrap().last().unwrap()["batch"], 2);
}

fn resumed() {
    let folder = folder("walk 30 40 8", 4);
    let running = start(&folder, "2");
    folder.wait_for_log(1, "step 3");
    running.signal("INT");
    running.end().exits(130);
    assert_eq!(spec(&folder, 1)["rank"]["count"], 2);
    let resume = |set: &str| folder.start(&["resume", "latest", "--set", set]);
    for (attempt, set, ranks) in [(2, "container.gpus=4", 4), (3, "container.gpus=1", 1), (4, "train.ranks=2", 2)] {
        let running = resume(set);
        folder.wait_for_log(attempt, "step ");
        running.signal("INT");
        let answer = running.end().exits(130);
        let said = format!("changed since the run started: ranks: was 2, is {ranks}");
        assert_eq!(answer.stderr.contains(&said), ranks != 2, "{answer}");
        assert_eq!(spec(&folder, attempt)["rank"]["count"].as_u64().unwrap_or(1), ranks, "{set}");
        assert_eq!(spec(&folder, attempt)["train"]["effective_batch"], 16);
    }
    resume("train.shard=optimizer").end().exits(0);
    assert_eq!(spec(&folder, 5)["train"]["shard"], "optimizer");
}

fn compared() {
    let folder = folder("card free", 4);
    let run = |name: &str, sets: &[&str]| folder.pipe(&[&run(sets)[..], &["--name", name]].concat()).exits(0);
    run("one", &["container.gpus=1"]);
    run("two", &["container.gpus=2"]);
    run("four", &["container.gpus=all", "train.shard=optimizer"]);
    run("other", &["container.gpus=1", "train.seed=9"]);
    let effects = |second: &str| -> Vec<(String, String)> {
        let found = folder.pipe(&["diff", "one", second, "--json"]).exits(0).json();
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let lock = found["lock"].as_array().unwrap().iter();
        lock.map(|one| (text(&one["what"]), text(&one["effect"]))).filter(|(_, effect)| effect != "none").collect()
    };
    let rounding = |what: &str| (what.to_owned(), "rounding".to_owned());
    for second in ["two", "four"] {
        assert!(effects(second).contains(&rounding("settings")), "{:?}", effects(second));
        assert!(effects(second).contains(&rounding("ranks")), "{:?}", effects(second));
        assert!(effects(second).iter().all(|(_, effect)| effect == "rounding"), "{:?}", effects(second));
    }
    assert!(effects("other").contains(&("settings".to_owned(), "forbids".to_owned())), "{:?}", effects("other"));
}

fn fit() {
    let folder = folder("search 3", 2);
    let fit = ["fit", "job.yaml", "--engine", "process", "--set", "container.gpus=2"];
    folder.pipe(&fit).exits(0).prints("train.batch: 3   # x accum 3 x 2 ranks = 16; ");
    let folder = self::folder("search 64", 2);
    folder.pipe(&fit).exits(0).prints("# 8 fits, and it is all that a rank has of a step; larger was not tried");
}

const PLANNED: &str = "version: 1\nname: planned\nmodel: {arch: bert, config: {vocab_size: 30522, hidden_size: 768, \
     num_hidden_layers: 12, num_attention_heads: 12, intermediate_size: 3072, num_labels: 2}}\n\
     data: {train: train.jsonl, max_length: 512}\ntrain: {batch: 8, effective_batch: 64, checkpointing: true}\n";

fn plan() {
    let folder = Folder::new();
    folder.write("planned.yaml", PLANNED);
    let plan = |more: &[&str]| folder.pipe(&[&["plan", "planned.yaml", "--gpu", "4090"][..], more].concat()).exits(0);
    let json = |more: &[&str]| plan(&[&["--json"][..], more].concat()).json();
    let one = plan(&[]);
    assert!(!one.stdout.contains("each of") && !one.stdout.contains("ranks"), "{one}");
    let two = plan(&["--set", "container.gpus=2"]);
    two.prints("batch 8 x accum 4 x 2 ranks\n")
        .prints(" on each of 2 cards: fits\n")
        .prints("the largest batch on each of 2 cards for an effective batch of 64:");
    let (one, two) = (json(&[]), json(&["--set", "container.gpus=2"]));
    assert_eq!((&one["ranks"], &two["ranks"], &two["accum"]), (&json!(1), &json!(2), &json!(4)));
    let sharded = json(&["--ranks", "4", "--set", "train.shard=optimizer"]);
    let optimizer = |plan: &Value| plan["breakdown"]["optimizer"].as_u64().unwrap();
    assert!(optimizer(&sharded) * 3 < optimizer(&one) && optimizer(&sharded) * 5 > optimizer(&one), "{sharded:#}");
    assert_eq!(optimizer(&one), optimizer(&two));
    // A rank has no more of a step than its share.
    let rows = |plan: &Value| plan["table"].as_array().unwrap().iter().filter_map(|row| row["batch"].as_u64()).max();
    assert_eq!((rows(&one), rows(&json(&["--ranks", "4"]))), (Some(64), Some(16)));
    folder.pipe(&["plan", "planned.yaml", "--ranks", "65"]).exits(3).says("65 ranks share a step of 64 samples");
    // Without the driver's word there is nothing to count.
    assert_eq!(json(&["--set", "container.gpus=all"])["ranks"], 1);
    let with_cards = self::folder("card free", 4);
    with_cards.write("planned.yaml", PLANNED);
    let all = with_cards.pipe(&["plan", "planned.yaml", "--set", "container.gpus=all", "--json"]).exits(0).json();
    assert_eq!((&all["ranks"], &all["card"]["name"]), (&json!(4), &json!("Test Card")));
    let check = ["check", "job.yaml", "--no-data", "--set", "container.gpus=all"];
    with_cards.pipe(&check).exits(0).prints("batch 2 x accum 2 x 4 ranks = effective batch 16");
}

fn shown() {
    let folder = folder("card free", 2);
    let answer = folder.pipe(&run(&["container.gpus=2"])).exits(0);
    answer.says("on Test Card with 16.0 GiB, 2 ranks (gloo): 3 steps of 16 samples");
    folder
        .pipe(&["show"])
        .exits(0)
        .prints("2 x 4 x 2 ranks")
        .prints("rank  peak       time of a step")
        .prints("1     200.0 MiB  20 ms, the slowest");
    let shown = folder.show();
    assert_eq!(shown["ranks"], json!([{ "peak": 100 << 20, "ms": 10.0 }, { "peak": 200 << 20, "ms": 20.0 }]));
    folder.pipe(&["ls"]).exits(0).prints("2 ranks");
    let page = folder.read_run("report.html");
    assert!(page.contains("2 &times; 4 &times; 2 ranks") && page.contains("<h2>Ranks</h2>"), "{page}");
    assert!(page.contains("200.0 MiB"), "{page}");
    // One rank has none of it.
    let one = self::folder("card free", 2);
    one.pipe(&run(&["container.gpus=1"])).exits(0).says_not("rank");
    let shown = one.pipe(&["show"]).exits(0);
    assert!(!shown.stdout.contains("rank"), "{shown}");
    assert!(!one.read_run("report.html").contains("<h2>Ranks</h2>"));
}

fn ledger() {
    let folder = job::on_card("card free", "train: {batch: 256, accum: 6}\non_oom: {reduce: halve}\n", &cards(3));
    folder.pipe(&run(&["container.gpus=3"])).exits(0).says("rank 2 ran out of memory");
    // Known now, but not for another number of ranks, and not for shared out state.
    folder.pipe(&run(&["container.gpus=3"])).exits(0).says("ledger: ").says_not("ran out of memory");
    folder.pipe(&run(&["container.gpus=2"])).exits(0).says_not("ledger: ").says("rank 1 ran out of memory");
    let sharded = ["container.gpus=3", "train.shard=optimizer"];
    folder.pipe(&run(&sharded)).exits(0).says_not("ledger: ").says("rank 2 ran out of memory");
}

fn tune() {
    let folder = folder("", 4);
    let program = folder.path().join("image/job").display().to_string();
    folder.write(
        "score.yaml",
        format!(
            "version: 1\nname: score\nengine: process\ncommand: {program} command score 3 --x {{vars.x}} --batch {{batch}} --millis 200\n\
             vars: {{x: 0}}\ntrain: {{batch: 1}}\nmetrics: json\ncontainer: {{gpus: 2}}\n"
        ),
    );
    folder.write(
        "study.yaml",
        "version: 1\ntune: search\npipeline: score.yaml\nobjective: {metric: score, direction: minimize}\n\
         space:\n  vars.x: {low: -2.0, high: 1.8}\nbudget: {trials: 2, parallel: 2}\n",
    );
    folder.pipe(&["tune", "run", "study.yaml"]).exits(0);
    let runs = std::fs::read_dir(folder.path().join("runs")).unwrap().map(|run| run.unwrap().path());
    let resolved = runs.filter_map(|run| std::fs::read_to_string(run.join("resolved.yaml")).ok());
    let mut gpus: Vec<String> = resolved
        .filter(|text| text.contains("command:") && !text.contains("tune:"))
        .map(|text| text.split("gpus:").nth(1).unwrap().chars().filter(char::is_ascii_digit).take(2).collect())
        .collect();
    gpus.sort();
    assert_eq!(gpus, ["01", "23"]);
}

fn doctor() {
    let checks = |folder: &Folder| -> Vec<Value> {
        let output = folder.command(&["doctor", "--json"]).output().unwrap();
        serde_json::from_slice::<Value>(&output.stdout).unwrap().as_array().unwrap().clone()
    };
    let found = |checks: &[Value], name: &str| checks.iter().find(|check| check["name"] == name).cloned();
    let one = checks(&folder("", 1));
    assert!(found(&one, "links").is_none() && found(&one, "nccl").is_none(), "{one:#?}");
    let two = folder("", 2);
    two.write(
        "bin/nvidia-smi",
        "#!/bin/sh\ncat <<END\n\t\u{1b}[4mGPU0\tGPU1\tCPU Affinity\u{1b}[0m\nGPU0\t X \tNV18\t0-15\nGPU1\tNV18\t X \t0-15\n\nLegend:\nEND\n",
    );
    let script = two.path().join("bin/nvidia-smi");
    std::process::Command::new("chmod").arg("+x").arg(&script).status().unwrap();
    let path = format!("{}:{}", two.path().join("bin").display(), std::env::var("PATH").unwrap());
    let two = two.env("PATH", path);
    let known = checks(&two);
    let links = found(&known, "links").unwrap();
    assert_eq!(links["found"], "2 cards: NVLink between all of them", "{links:#}");
    assert!(found(&known, "nccl").is_some() && found(&known, "shm").is_some());
    let absent = two.env("PATH", "/nowhere");
    let links = found(&checks(&absent), "links").unwrap();
    assert!(links["found"].as_str().unwrap().contains("nvidia-smi"), "{links:#}");
}

fn shared_memory() {
    let folder = job::folder("sleep", "train: {batch: 2, accum: 8, ranks: 2}\n");
    let running = folder.start(&["run", "job.yaml", "--engine", "docker"]);
    folder.wait_for_log(1, "sleeping");
    let id = folder.containers()[0].clone();
    let output = std::process::Command::new("docker").args(["inspect", &id]).output().unwrap();
    running.signal("INT");
    running.end().exits(130);
    let inspected: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(inspected[0]["HostConfig"]["ShmSize"], 1u64 << 30);
    assert_eq!(spec(&folder, 1)["memory"]["limit"], "32m");
}
