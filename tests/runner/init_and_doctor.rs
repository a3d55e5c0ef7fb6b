//! Before the first run: `pipe init` and `pipe doctor`.

use std::io::Write;
use std::process::Stdio;

use serde_json::Value;

use crate::harness::{Folder, Needs, Suite};
use crate::stand_ins::job;

pub fn tests(suite: &mut Suite) {
    let mut test = |name: &str, test: fn()| suite.test(&format!("init_and_doctor::{name}"), Needs::Nothing, test);
    test("a_pipeline_for_every_architecture", every_architecture);
    test("fields_are_guessed_from_the_data", guesses);
    test("what_is_not_clear_is_not_guessed", unclear);
    test("the_model_decides", model_decides);
    test("folders_of_pictures", picture_folders);
    test("what_was_found_is_written_down", findings);
    test("a_batch_for_the_card", batch_for_the_card);
    test("a_command_line", command_line);
    test("editors_find_the_schema", schema_line);
    test("without_a_terminal", without_terminal);
    test("no_file_is_overwritten", kept);
    test("answers_on_a_terminal", answers);
    test("doctor_without_docker", without_docker);
    test("doctor_without_anything", without_anything);
    test("doctor_where_nothing_can_be_written", unwritable);
    test("the_hints_of_doctor_fix_the_problem", hints);
    suite.test(
        "init_and_doctor::doctor_names_the_missing_gpu_passthrough",
        Needs::DockerWithoutGpu,
        card_without_a_way,
    );
    suite.each_daemon("init_and_doctor::doctor_of_a_daemon", true, daemon);
}

/// The pipeline of a command line runs it as it is, and with a smaller batch after an out-of-memory.
fn command_line() {
    let folder = Folder::new();
    folder.write(
        "train.sh",
        "echo \"$@\"\ntest $2 -gt 4 && { echo 'MemoryError' >&2; exit 1; }\necho x > \"$6/result\"\n",
    );
    folder
        .pipe(&["init", "--command", "sh train.sh --batch-size 8 --grad-accum 2 --out here"])
        .exits(0)
        .prints("train.yaml")
        .says("batch     --batch-size 8")
        .says("output    --out here")
        .says("engine    process: there is no Dockerfile here")
        .says("pipe run train.yaml");
    folder.pipe(&["check", "train.yaml"]).exits(0).prints("batch 8 x accum 2 = effective batch 16");
    folder
        .pipe(&["run", "train.yaml"])
        .exits(0)
        .says("--batch-size 8 --grad-accum 2")
        .says("--batch-size 4 --grad-accum 4");
    assert_eq!(folder.read_run("output/result"), "x\n");
    folder.pipe(&["init", "--command", "sh train.sh"]).exits(2).says("train.yaml already exists");
    folder.write("Dockerfile", "FROM scratch\n");
    let printed = folder.pipe(&["init", "--stdout", "--command", "sh train.sh"]).exits(0);
    assert!(printed.stdout.contains("image: Dockerfile") && !printed.stdout.contains("engine:"), "{}", printed.stdout);
    folder.pipe(&["init", "--command", "a 'b"]).exits(3).says("is not a command");
    folder.pipe(&["init", "--command", "a", "--data", "x"]).exits(2).says("cannot be used with");
}

/// The first line of a draft names a file that is there, with the schema of this version.
fn schema_line() {
    let folder = Folder::new();
    let folder = {
        let cache = folder.path().join("cache");
        folder.env("PIPE_CACHE", cache.display())
    };
    let text = folder.pipe(&["init", "--arch", "t5", "--data", "a.jsonl", "--stdout"]).exits(0).stdout;
    let path = text.lines().next().unwrap().strip_prefix("# yaml-language-server: $schema=").unwrap();
    let schema: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    assert_eq!(schema, folder.pipe(&["schema"]).exits(0).json());
}

const ARCHITECTURES: [(&str, &str, &str); 8] = [
    ("t5", "train.jsonl", "{\"question\": \"a\", \"answer\": \"b\"}\n"),
    ("bert", "train.jsonl", "{\"text\": \"a\", \"label\": 1}\n"),
    ("roberta", "train.jsonl", "{\"sentence\": \"a\", \"class\": 1}\n"),
    ("xlm-roberta", "train.csv", "text,label\na,1\n"),
    ("deberta-v3", "train.jsonl", "{\"premise\": \"a\", \"hypothesis\": \"b\", \"label\": 1}\n"),
    ("clip", "train.jsonl", "{\"file_name\": \"a.png\", \"caption\": \"b\"}\n"),
    ("hybrid-cnn-lstm", "train.csv", "time,a,b,label\n1,2,3,up\n2,2,3,down\n3,1,1,same\n"),
    ("mu-sota", "train.txt", "Once upon a time.\n"),
];

fn every_architecture() {
    for (arch, name, data) in ARCHITECTURES {
        let folder = Folder::new();
        let path = format!("my data/{name}");
        let args = ["init", "new.yaml", "--arch", arch, "--data", &path];
        // Whether the data is there or not.
        let answer =
            folder.pipe(&args).exits(0).says("pipe check new.yaml").says("pipe plan").says("pipe run new.yaml");
        assert_eq!(answer.stdout, "new.yaml\n");
        let checked = folder.pipe(&["check", "new.yaml"]).exits(3);
        assert!(checked.stderr.contains("data.train: cannot read"), "{arch}: {checked}");
        folder.pipe(&["plan", "new.yaml", "--memory", "80g"]).exits(0).prints(" parameters");

        folder.write(&path, data).write("my data/tokenizer.json", "{\"model\": {\"vocab\": {\"a\": 0, \"b\": 1}}}");
        folder.write(&format!("my data/{}", name.replace("train", "eval")), data);
        folder.pipe(&["init", "new.yaml", "--arch", arch, "--data", &path, "--force"]).exits(0);
        folder.pipe(&["check", "new.yaml", "--no-data"]).exits(0).prints("new.yaml is valid");
        let text = folder.read("new.yaml");
        assert!(text.contains("  eval: \"my data/eval."), "{text}");
        let comments = text.lines().filter(|line| line.contains("# ")).count();
        assert!(comments > 20 && text.lines().all(|line| line.trim_end() == line), "{text}");
        // From trained weights, which the pipeline names and nothing else.
        folder.pipe(&["init", "from.yaml", "--arch", arch, "--data", &path, "--model", "owner/name"]).exits(0);
        folder.pipe(&["check", "from.yaml"]).exits(4).says("owner/name is not in the hub cache");
    }
}

fn guesses() {
    for (name, data, wanted) in [
        (
            "train.jsonl",
            "{\"ingredients\": \"a\", \"directions\": \"b\"}\n",
            &["arch: t5", "fields: {source: ingredients, target: directions}"][..],
        ),
        (
            "train.jsonl",
            "{\"review\": \"a\", \"sentiment\": 1}\n",
            &["arch: bert", "fields: {text: review, label: sentiment}"],
        ),
        (
            "train.csv",
            "time,a,b,label\n1,2,3,up\n2,2,3,down\n3,1,1,same\n",
            &["arch: hybrid-cnn-lstm", "input_features: 2", "num_classes: 3", "eval_share: 0.3"],
        ),
        ("train.txt", "Once upon a time.\n", &["arch: mu-sota", "vocab_size: 4000"]),
    ] {
        let folder = Folder::new();
        folder.write(&format!("recipes/{name}"), data);
        let answer = folder.pipe(&["init", "--yes", "--data", &format!("recipes/{name}")]).exits(0);
        assert_eq!(answer.stdout, "recipes.yaml\n");
        let text = folder.read("recipes.yaml");
        wanted.iter().for_each(|wanted| assert!(text.contains(wanted), "no {wanted:?} in\n{text}"));
    }
    // Nothing is there at all.
    let answer = Folder::new().pipe(&["init", "--yes", "--stdout"]).exits(0);
    assert!(answer.stdout.contains("arch: t5") && answer.stderr.is_empty(), "{answer}");
}

/// Forty lines, each what `line` makes of its number.
fn forty(head: &str, line: impl Fn(usize) -> String) -> String {
    let lines: Vec<String> = (0..40).map(line).collect();
    format!("{head}{}\n", lines.join("\n"))
}

fn unclear() {
    let folder = Folder::new();
    let story = |number: usize| format!("a tale of {number} cities and a river");
    folder.write("a.csv", forty("note,length\n", |number| format!("{},{}.{number}", story(number), number % 7)));
    let init = ["init", "--yes", "--data", "a.csv"];
    let answer =
        folder.pipe(&init).exits(2).says("a.csv: cannot tell what to train on this data").says("numbers whose names");
    let answer =
        answer.says("COLUMN  LOOKS LIKE  EXAMPLE").says("length  number      0.0").says("--fields text=COLUMN");
    assert!(answer.stderr.lines().all(|line| line.chars().count() < 140), "{answer}");
    assert!(!folder.path().join("bert.yaml").exists());
    // Each of the ways that the hint names.
    folder.pipe(&[&init[..], &["one.yaml", "--arch", "mu-sota"]].concat()).exits(0);
    folder.pipe(&[&init[..], &["two.yaml", "--fields", "text=note,label=length"]].concat()).exits(0);
    assert!(folder.read("one.yaml").contains("fields: {text: note}"));
    let text = folder.read("two.yaml");
    assert!(text.contains("arch: bert") && text.contains("num_labels: 1"), "{text}");
    folder.pipe(&[&init[..], &["--fields", "text=nota"]].concat()).exits(2).says("there is no column \"nota\"");
    folder.pipe(&[&init[..], &["--fields", "note"]].concat()).exits(2).says("ROLE=COLUMN");
    folder.write("empty.csv", "a,b\n").write("a.xyz", "x\n");
    for (data, why) in [
        ("empty.csv", "there are no rows in it"),
        ("a.xyz", "pipe does not read .xyz files"),
        ("typo.csv", "no such file"),
    ] {
        let answer = folder.pipe(&["init", "--yes", "--data", data]).exits(2).says(&format!("{data}: {why}"));
        assert!(!answer.stderr.contains("--arch"), "{answer}");
    }
    folder
        .pipe(&["check", "a.csv"])
        .exits(3)
        .says("a.csv is a data file and no pipeline")
        .says("pipe init --data a.csv");
    folder
        .pipe(&[&init[..], &["--arch", "clip"]].concat())
        .exits(2)
        .says("clip needs paths of pictures (image) and a text");
}

fn model_decides() {
    let folder = Folder::new();
    let story = |number: usize| format!("a tale of {number} cities and a river");
    folder.write("texts.csv", forty("one,two\n", |number| format!("{},{}", story(number), story(number + 1))));
    folder.write("classes.csv", forty("note,kind\n", |number| format!("{},{}", story(number), ["x", "y"][number % 2])));
    for (name, config) in [
        ("xlm", "{\"model_type\": \"xlm-roberta\"}"),
        ("t5", "{\"architectures\": [\"T5ForConditionalGeneration\"]}"),
        ("gpt", "{\"model_type\": \"gpt2\"}"),
    ] {
        folder.write(&format!("{name}/config.json"), config);
    }
    folder.write("none/readme.md", "");
    let init = |data: &str, model: &str| {
        folder.pipe(&["init", "new.yaml", "--force", "--yes", "--data", data, "--model", model])
    };
    init("classes.csv", "xlm").exits(0);
    assert!(folder.read("new.yaml").contains("arch: xlm-roberta"));
    init("texts.csv", "t5").exits(0);
    let text = folder.read("new.yaml");
    assert!(text.contains("arch: t5") && text.contains("fields: {source: one, target: two}"), "{text}");
    init("texts.csv", "gpt").exits(2).says("gpt: its config.json has the model_type \"gpt2\"; pipe trains t5, bert");
    init("texts.csv", "none").exits(2).says("config.json");
    init("texts.csv", "xlm")
        .exits(2)
        .says("xlm-roberta needs a text or two (text, text_pair) and a label; texts.csv: no column looks like a label");
    folder
        .pipe(&["init", "--yes", "--data", "texts.csv", "--model", "t5", "--arch", "bert"])
        .exits(2)
        .says("t5 is a model of the architecture t5, and --arch says bert");
}

fn picture_folders() {
    let folder = Folder::new();
    for number in 0..4 {
        folder.write(&format!("animals/{}/{number}.png", ["fox", "polar_bear"][number % 2]), "");
    }
    // The folders are the classes, as they are.
    folder
        .pipe(&["init", "--yes", "--data", "animals"])
        .exits(0)
        .says("animals has 4 pictures: 2 folders are the classes");
    let text = folder.read("animals.yaml");
    assert!(text.contains("  train: animals ") && text.contains("arch: resnet"), "{text}");
    let as_texts = ["init", "--yes", "--force", "--data", "animals", "--arch", "clip"];
    let answer = folder.pipe(&as_texts).exits(0);
    answer.says("wrote animals/pictures.jsonl with 4 pictures").says("a photo of a fox");
    assert!(folder.read("animals/pictures.jsonl").contains("\"text\":\"a photo of a polar bear\""));
    let text = folder.read("animals.yaml");
    assert!(text.contains("train: animals/pictures.jsonl") && text.contains("arch: clip"), "{text}");
    // Somebody's own file stays as it is.
    folder.write("animals/pictures.jsonl", "{\"image\": \"fox/0.png\", \"text\": \"a vixen\"}\n");
    folder.pipe(&["init", "--yes", "--force", "--data", "animals"]).exits(0).says("exists already");
    assert!(folder.read("animals/pictures.jsonl").contains("a vixen"));
    folder.write("loose/1.png", "").write("loose/2.png", "");
    folder
        .pipe(&["init", "--yes", "--data", "loose"])
        .exits(2)
        .says("loose holds 2 pictures, and neither texts nor classes")
        .says(".txt");
}

fn findings() {
    let folder = Folder::new().env("PIPE_TRAINER", "/nowhere/trainer");
    let story = |number: usize| format!("a tale of {number} cities and a river");
    folder.write(
        "a.csv",
        forty("nr,note,kind\n", |number| format!("{number},{},{}", story(number), ["x", "y"][usize::from(number < 5)])),
    );
    folder.pipe(&["init", "a.yaml", "--yes", "--data", "a.csv"]).exits(0).says("label: kind, 2 classes: x 35, y 5");
    let text = folder.read("a.yaml");
    for wanted in [
        "  # found: 40 rows\n",
        "  #   text: note, 8 words on average, 95 % up to 8, longest 8\n",
        "  #   label: kind, 2 classes: x 35, y 5\n",
        "  #   not used: nr (an id)\n",
        "  max_length: 32 ",
        "  class_weights: balanced ",
        "warmup: 0.1}",
        "best: eval.macro_f1}",
        "one is trained on the texts",
    ] {
        assert!(text.contains(wanted), "no {wanted:?} in\n{text}");
    }
    // Many classes are not all listed.
    folder.write("b.csv", forty("note,kind\n", |number| format!("{},k{}", story(number), number % 10)));
    folder.pipe(&["init", "b.yaml", "--yes", "--data", "b.csv"]).exits(0);
    assert!(folder.read("b.yaml").contains("k7 4 and 2 more\n"), "{}", folder.read("b.yaml"));
}

fn batch_for_the_card() {
    let folder = Folder::new();
    let write = |memory: &str| {
        folder
            .pipe(&["init", "b.yaml", "--arch", "bert", "--data", "x.jsonl", "--gpu-memory", memory, "--force"])
            .exits(0);
        let plan = folder.pipe(&["plan", "b.yaml", "--memory", memory, "--json"]).exits(0).json();
        assert_eq!(plan["fits"], true, "{plan:#}");
        assert_eq!(plan["effective_batch"], 32);
        assert!(folder.read("b.yaml").contains(&format!("limit: {memory}")));
        plan["batch"].as_u64().unwrap()
    };
    let (small, large) = (write("3500m"), write("24g"));
    assert!(small < large && large == 32, "{small} {large}");
    // A number alone is in gigabytes.
    folder.pipe(&["init", "c.yaml", "--arch", "bert", "--data", "x.jsonl", "--gpu-memory", "24"]).exits(0);
    assert!(folder.read("c.yaml").contains("limit: 24g"));
}

fn without_terminal() {
    let folder = Folder::new();
    folder
        .pipe(&["init"])
        .exits(2)
        .says("--arch and --data not given")
        .says("hint: give them, or use all defaults with --yes");
    folder.pipe(&["init", "--arch", "bert"]).exits(2).says("--data not given");
    folder.pipe(&["init", "--arch", "bart", "--data", "x"]).exits(2).says("possible values: t5, bert");
    folder.pipe(&["init", "--arch", "t5", "--data", "x", "--name", "a b"]).exits(2).says("letters, digits");
    let downloads_nothing = |flags: &[&str], hint: &str| {
        let words = [&["init", "--yes"], flags].concat();
        folder.pipe(&words).exits(2).says("`pipe init` downloads nothing").says(hint);
    };
    downloads_nothing(
        &["--data", "s3://bucket/rows.jsonl"],
        "choose a model with --arch and its columns with --fields",
    );
    downloads_nothing(&["--model", "gs://bucket/model", "--data", "x"], "name its architecture with --arch");
    let address = ["init", "--yes", "--arch", "t5", "--data", "x", "s3://bucket/a.yaml"];
    folder.pipe(&address).exits(2).says("s3://bucket/a.yaml: a pipeline is written to this machine");
    assert!(std::fs::read_dir(folder.path()).unwrap().next().is_none());
}

fn kept() {
    let folder = Folder::new();
    folder.write("mine.yaml", "mine");
    let args = ["init", "mine.yaml", "--arch", "t5", "--data", "x.jsonl"];
    folder.pipe(&args).exits(2).says("mine.yaml already exists").says("--force");
    assert_eq!(folder.read("mine.yaml"), "mine");
    folder.pipe(&[&args[..], &["--force"]].concat()).exits(0);
    assert!(folder.read("mine.yaml").contains("arch: t5"));
    // The name decides where there is no file.
    folder.pipe(&["init", "--name", "mine", "--arch", "t5", "--data", "x.jsonl"]).exits(2).says("already exists");
    folder.pipe(&["init", "deep/new.yaml", "--arch", "t5", "--data", "x.jsonl"]).exits(0);
    // A file with data is never overwritten.
    let rows: String = (0..40).map(|row| format!("it is number {row},{}\n", ["Good", "good"][row % 2])).collect();
    folder.write("rows.csv", format!("text,label\n{rows}"));
    for force in [&[][..], &["--force"]] {
        let answer = folder.pipe(&[&["init", "rows.csv", "--yes"], force].concat()).exits(3);
        answer.says("rows.csv is a data file and no pipeline").says("did you mean `pipe init --data rows.csv`?");
    }
    assert_eq!(folder.read("rows.csv"), format!("text,label\n{rows}"));
    let answer = folder.pipe(&["init", "rows.yaml", "--yes", "--data", "rows.csv"]).exits(0);
    answer.says("note: Good and good are two labels, which differ only in capital letters");
}

/// What `pipe init` shows on a terminal with this typed input, which `script` gives it.
fn type_into_init(folder: &Folder, args: &str, typed: &str) -> String {
    let pipe = crate::harness::folder::pipe();
    let mut command = std::process::Command::new("script");
    command.args(["-qec", &format!("'{}' init {args}", pipe.display()), "/dev/null"]).current_dir(folder.path());
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(typed.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let seen = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() || seen.contains("error: "), "{seen}");
    seen
}

fn answers() {
    let folder = Folder::new();
    // A command that cannot accumulate: its effective batch may change or not.
    let seen = type_into_init(&folder, "c.yaml --command 'python t.py --batch-size 64'", "perhaps\nyes\n");
    assert!(seen.contains("may pipe use a smaller batch after out of memory") && seen.contains("yes or no"), "{seen}");
    assert!(folder.read("c.yaml").contains("on_oom: {then: [effective_batch]}"), "{}", folder.read("c.yaml"));

    folder.write("data/train.jsonl", "{\"review\": \"a\", \"sentiment\": 1}\n");
    // Data, architecture twice, columns twice, evaluation data, model, name twice, memory of the card.
    let seen = type_into_init(&folder, "", "\nbart\nroberta\ntext=no\n\n\n\na b\nmine\n12g\n");
    for text in [
        "training data [data/train.jsonl]:",
        "review     text            a",
        "architecture [bert]:",
        "one of the names above",
        "columns [text=review, label=sentiment]:",
        "there is no column \"no\"",
        "letters, digits",
    ] {
        assert!(seen.contains(text), "no {text:?} in\n{seen}");
    }
    let text = folder.read("mine.yaml");
    for wanted in ["arch: roberta", "fields: {text: review, label: sentiment}", "limit: 12g", "name: mine"] {
        assert!(text.contains(wanted), "no {wanted:?} in\n{text}");
    }

    // The kinds of the columns decide what is proposed where their names do not; nobody is asked for columns without an end.
    let told =
        |number: usize| format!("a tale of {number} cities and a river,{}.{number},{}.5", number % 5, number * number);
    folder.write("open.csv", forty("notiz,laenge,breite\n", told));
    let seen = type_into_init(&folder, "o.yaml --data open.csv", "\n\n\n\n\n\n");
    for text in ["architecture [bert]:", "columns, as text=COLUMN", "they are called as the roles [none]:"] {
        assert!(seen.contains(text), "no {text:?} in\n{seen}");
    }
    let text = folder.read("o.yaml");
    assert!(text.contains("arch: bert") && !text.contains("  fields: {text"), "{text}");
    let seen = type_into_init(&folder, "p.yaml --data open.csv", "\nlabel=no\nbreite\n\n\n\n\n");
    for text in [
        "there is no column \"no\"; the columns: notiz, laenge, breite",
        "write them as ROLE=COLUMN, ROLE=COLUMN; the columns",
        "error: ",
    ] {
        assert!(seen.contains(text), "no {text:?} in\n{seen}");
    }
}

/// What the doctor says of `name`: status, and all of it.
fn check(checks: &Value, name: &str) -> (String, String) {
    let found = checks.as_array().unwrap().iter().find(|check| check["name"] == name);
    let found = found.unwrap_or_else(|| panic!("no check {name} in {checks:#}"));
    (found["status"].as_str().unwrap().to_owned(), found.to_string())
}

const NOWHERE: &str = "unix:///nowhere/docker.sock";

fn without_docker() {
    let folder = job::folder("fit 1", "").env("DOCKER_HOST", NOWHERE);
    let checks = folder.pipe(&["doctor", "--json"]).exits(0).json();
    let (status, engine) = check(&checks, "engine");
    assert!(
        status == "note" && engine.contains("/nowhere/docker.sock") && engine.contains("--engine process"),
        "{engine}"
    );
    for name in ["trainer", "shm", "disk", "ledger", "cache"] {
        assert_eq!(check(&checks, name).0, "ok", "{checks:#}");
    }
    assert!(check(&checks, "shm").1.contains("container.shm"), "{checks:#}");
    let (status, libtorch) = check(&checks, "libtorch");
    assert!(status == "note" && libtorch.contains("the trainer does not load it"), "{libtorch}");
    for entry in checks.as_array().unwrap() {
        let mut keys: Vec<&String> = entry.as_object().unwrap().keys().collect();
        keys.sort();
        assert_eq!(keys, ["found", "hint", "name", "status"]);
    }
    folder.pipe(&["doctor"]).exits(0).prints("note     engine   no container engine answers").prints("hint: install");
}

fn without_anything() {
    let folder = Folder::new().env("DOCKER_HOST", NOWHERE).env("PIPE_TRAINER", "/nowhere/trainer");
    let answer = folder.pipe(&["doctor", "--json"]).exits(4).says("missing: engine, trainer");
    let checks = answer.json();
    assert_eq!((check(&checks, "engine").0.as_str(), check(&checks, "trainer").0.as_str()), ("missing", "missing"));
    folder.pipe(&["doctor"]).exits(4).prints("missing  trainer").prints("make build");
}

fn unwritable() {
    let folder = job::folder("fit 1", "").env("DOCKER_HOST", NOWHERE);
    folder.write("ledger/file", "");
    // No file can be created below a file.
    let folder = folder.env("PIPE_RUNS", "job.yaml/runs").env("PIPE_CACHE", "job.yaml/cache");
    let checks = folder.pipe(&["doctor", "--json"]).exits(4).says("missing: disk").json();
    let (status, disk) = check(&checks, "disk");
    assert!(status == "missing" && disk.contains("PIPE_RUNS"), "{disk}");
    for (name, word) in [("ledger", "PIPE_LEDGER"), ("cache", "PIPE_CACHE")] {
        let (status, found) = check(&checks, name);
        assert!(status == "note" && found.contains(word), "{found}");
    }
}

fn card_without_a_way() {
    let folder = job::on_card("card free", "", "16384 16384\n");
    let checks = folder.pipe(&["doctor", "--json"]).exits(4).says("missing: gpu").json();
    let (_, gpu) = check(&checks, "gpu");
    assert!(gpu.contains("Test Card was found, but containers cannot use it"), "{gpu}");
    for (name, word) in [("cdi", "CDI"), ("runtime", "nvidia-ctk runtime configure"), ("devices", "/dev/nvidiactl")] {
        let (status, found) = check(&checks, name);
        assert!(status == "note" && found.contains(word), "{found}");
    }
    // What its hint says: without containers.
    assert!(gpu.contains("--engine process"), "{gpu}");
    folder.pipe(&["run", "job.yaml", "--engine", "process", "--set", "container.gpus=1"]).exits(0);
}

/// Each variable that a hint names fixes the problem that the hint is about.
fn hints() {
    let folder = job::folder("fit 1", "").env("DOCKER_HOST", NOWHERE);
    folder.write("ledger/file", "");
    let trainer = job::program().display().to_string();
    let broken = [
        ("disk", "PIPE_RUNS", "job.yaml/runs", "good/runs"),
        ("cache", "PIPE_CACHE", "job.yaml/cache", "good/cache"),
        ("ledger", "PIPE_LEDGER", "ledger", "good/ledger"),
        ("trainer", "PIPE_TRAINER", "/nowhere/trainer", trainer.as_str()),
    ];
    let doctor = |changes: &[(&str, &str)]| {
        let output = folder.command(&["doctor", "--json"]).envs(changes.iter().copied()).output().unwrap();
        serde_json::from_slice::<Value>(&output.stdout).unwrap()
    };
    for (name, variable, bad, good) in broken {
        let (status, message) = check(&doctor(&[(variable, bad)]), name);
        assert!(status != "ok" && message.contains(variable), "{name}: {message}");
        let (status, message) = check(&doctor(&[(variable, good)]), name);
        assert_eq!(status, "ok", "{name}: {message}");
    }
    // No engine: the hint says that a run can do without one.
    let (_, engine) = check(&doctor(&[]), "engine");
    assert!(engine.contains("--engine process"), "{engine}");
    folder.pipe(&["run", "job.yaml", "--engine", "process", "--ignore-ledger"]).exits(0);
}

fn daemon() {
    let checks = job::folder("fit 1", "").pipe(&["doctor", "--json"]).json();
    let (_, engine) = check(&checks, "engine");
    let format = "{{(index .Server.Components 0).Name}} {{.Server.Version}}";
    let version = crate::harness::daemons::docker().args(["version", "--format", format]).output().unwrap();
    let version =
        String::from_utf8(version.stdout).unwrap().replace("Podman Engine", "podman").replace("Engine", "docker");
    assert!(engine.contains(&format!("\"{}, API 1.", version.trim())), "{engine} of {version}");
    let (_, images) = check(&checks, "images");
    assert!(images.contains(" free for images in /"), "{images}");
}
