//! A run as a page: `report.html` and `pipe report`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use pipe_spec::event::{Eval, RecordedEvent, Sample, Warning};
use pipe_spec::{Event, EventKind};
use serde_json::{Value, json};

use crate::harness::suite::chromium;
use crate::harness::{Folder, Needs, Suite};
use crate::stand_ins::job;

pub fn tests(suite: &mut Suite) {
    let mut test = |name: &str, test: fn()| suite.test(&format!("reports::{name}"), Needs::Nothing, test);
    test("every_run_leaves_a_page", page_of_a_run);
    test("a_failed_run_has_a_page", failed);
    test("a_damaged_folder", damaged);
    test("text_is_escaped", escaped);
    test("what_was_learned", learned);
    test("hostile_details", hostile);
    test("several_runs", several);
    test("where_it_is_written", places);
    test("a_page_that_cannot_be_written_fails_no_run", unwritable);
    suite.test("reports::in_a_browser", Needs::Chromium, in_a_browser);
}

const FIGURES: [&str; 6] = ["loss", "lr", "norm", "throughput", "memory", "waiting"];

const MODEL: [&str; 6] = ["d_model=64", "d_ff=128", "d_kv=16", "num_layers=2", "num_heads=4", "vocab_size=256"];

/// A run of three attempts.
fn trained() -> (Folder, PathBuf) {
    let folder = job::folder("fit 5", "train: {batch: 20, effective_batch: 40}\n");
    let model: Vec<String> = MODEL.iter().map(|pair| format!("--set=model.config.{pair}")).collect();
    let args = ["run", "job.yaml", "--engine", "process"].into_iter().chain(model.iter().map(String::as_str));
    folder.pipe(&args.collect::<Vec<_>>()).exits(0);
    let run = folder.run_folder();
    (folder, run)
}

/// The part of a page that is a figure.
fn figure<'a>(page: &'a str, key: &str) -> &'a str {
    let begin =
        page.find(&format!("<figure id=\"figure-{key}\"")).unwrap_or_else(|| panic!("no figure {key}:\n{page}"));
    let end = page[begin..].find("</figure>").unwrap();
    &page[begin..begin + end]
}

#[track_caller]
fn needs_nothing(page: &str) {
    assert!(page.starts_with("<!DOCTYPE html>") && page.trim_end().ends_with("</html>"), "{page}");
    // Pictures are in the page itself, and nothing else may be loaded.
    assert!(page.contains("content=\"default-src 'none'; style-src 'unsafe-inline'; img-src data:\""), "{page}");
    let page = page.replace("http://www.w3.org/2000/svg", "").replace("http-equiv", "");
    let page = page.replace(" src=\"data:image/png;base64,", "");
    for word in ["http", "<script", "javascript:", "@import", "url(", " src=", "NaN"] {
        assert!(!page.contains(word), "the page has {word:?}");
    }
}

/// Writes the page again and reads it.
#[track_caller]
fn again(folder: &Folder, run: &Path) -> String {
    let id = run.file_name().unwrap().to_string_lossy();
    folder.pipe(&["report", &id]).exits(0);
    let page = fs::read_to_string(run.join("report.html")).unwrap();
    needs_nothing(&page);
    page
}

fn page_of_a_run() {
    let (folder, run) = trained();
    let page = fs::read_to_string(run.join("report.html")).unwrap();
    needs_nothing(&page);
    for key in FIGURES {
        let figure = figure(&page, key);
        assert!(figure.contains("<svg") && figure.contains("<title>") && figure.contains("<polyline"), "{figure}");
        assert!(figure.contains("class=\"mark\"") && figure.contains(">1-3</text>"), "{figure}");
    }
    assert!(figure(&page, "memory").contains("capacity: 64.0 MiB"));
    let at = |text: &str| page.find(text).unwrap_or_else(|| panic!("no {text:?} in\n{page}"));
    let order = ["<p class=\"sentence\">", "id=\"figure-loss\"", "id=\"attempts\"", "id=\"machine\"", "id=\"files\""];
    assert!(order.map(at).is_sorted(), "{page}");
    for text in
        ["20 &times; 2", "10 &times; 4", "5 &times; 8", "the host&#39;s memory ran out", "batch 10 instead of 20"]
    {
        assert!(page.contains(text), "no {text:?} in\n{page}");
    }
    let id = run.file_name().unwrap().to_string_lossy();
    assert!(
        page.contains(&format!("<h1>{id}</h1>")) && page.contains("3 of 3") && page.contains("effective_batch: 40")
    );
    assert!(!page.contains("This page is not complete"));
    assert_eq!(again(&folder, &run), page);
    // What is predicted is the memory of a card.
    assert!(!page.contains("predicted peak"), "{page}");
    on_a_card(&run);
    assert!(again(&folder, &run).contains("predicted peak"));
}

/// As if the run had been on a card.
fn on_a_card(run: &Path) {
    let events = fs::read_to_string(run.join("events.jsonl")).unwrap();
    fs::write(run.join("events.jsonl"), events.replace("\"device\":\"cpu\"", "\"device\":\"NVIDIA H200\"")).unwrap();
}

fn failed() {
    let folder = job::folder("exit 1", "");
    folder.pipe(&["run", "job.yaml", "--engine", "process"]).exits(6);
    let page = fs::read_to_string(folder.run_folder().join("report.html")).unwrap();
    needs_nothing(&page);
    assert!(page.contains("class=\"tag failed\"") && page.contains("training failed"), "{page}");
    assert!(figure(&page, "loss").contains("Nothing was recorded"));
    assert_eq!(page.matches("Nothing was recorded").count(), 1, "{page}");
}

fn damaged() {
    let (folder, run) = trained();
    on_a_card(&run);
    assert!(again(&folder, &run).contains("predicted peak"));
    let events = fs::read(run.join("events.jsonl")).unwrap();
    fs::write(run.join("events.jsonl"), &events[..events.len() - 40]).unwrap();
    let page = again(&folder, &run);
    assert!(
        page.contains("events.jsonl: skipped 1 line that cannot be read")
            && figure(&page, "loss").contains("<polyline")
    );
    fs::write(run.join("events.jsonl"), [&[0xff, 0, b'\n'][..], b"{}\n[]\n\n", &events].concat()).unwrap();
    assert!(again(&folder, &run).contains("events.jsonl: skipped 3 lines that cannot be read"));

    fs::remove_file(run.join("resolved.yaml")).unwrap();
    let page = again(&folder, &run);
    assert!(page.contains("resolved.yaml is missing") && !page.contains("predicted peak"));
    fs::write(run.join("resolved.yaml"), "version: [").unwrap();
    assert!(!again(&folder, &run).contains("predicted peak"));

    for file in ["events.jsonl", "resolved.yaml", "lock.json"] {
        fs::remove_file(run.join(file)).unwrap();
    }
    let page = again(&folder, &run);
    for text in ["events.jsonl is missing", "lock.json is missing", "Nothing was recorded", "5 &times; 8"] {
        assert!(page.contains(text), "no {text:?} in\n{page}");
    }
    fs::write(run.join("run.json"), "{\"id\": ").unwrap();
    assert!(again(&folder, &run).contains("run.json is damaged"));
}

fn escaped() {
    let (folder, run) = trained();
    let bad = r#"<b>&"</style></title><img onerror='x'>"#;
    let text = || bad.to_owned();
    let mut events = fs::read_to_string(run.join("events.jsonl")).unwrap();
    let warning = EventKind::Warning(Warning { message: text() });
    let sample = EventKind::Sample(Sample { step: 3, source: text(), target: text(), generated: text() });
    for (seq, kind) in (90..).zip([warning, sample]) {
        let recorded = RecordedEvent { attempt: 1, event: Event { seq, ts: 0.0, kind } };
        events.push_str(&format!("{}\n", serde_json::to_string(&recorded).unwrap()));
    }
    fs::write(run.join("events.jsonl"), events).unwrap();
    fs::write(run.join("lock.json"), "{\"on\": \"</pre><b>\"}").unwrap();
    let state = fs::read_to_string(run.join("run.json")).unwrap();
    fs::write(run.join("run.json"), state.replace("\"process\"", &serde_json::to_string(bad).unwrap())).unwrap();
    let strange = run.with_file_name("a<b>&\"c");
    fs::rename(&run, &strange).unwrap();
    let page = folder.pipe(&["report", strange.to_str().unwrap(), "--out", "-"]).exits(0).stdout;
    needs_nothing(&page);
    for text in ["<b>&", "<img", "</pre><b>", "a<b>"] {
        assert!(!page.contains(text), "{text:?} is not escaped in\n{page}");
    }
    assert!(page.matches("&lt;b&gt;&amp;&quot;&lt;/style&gt;").count() >= 5, "{page}");
    assert!(page.contains("<h1>a&lt;b&gt;&amp;&quot;c</h1>"), "{page}");
    let name = strange.to_str().unwrap();
    folder.pipe(&["run", "job.yaml", "--engine", "process"]).exits(0);
    let page = folder.pipe(&["report", name, "latest", "--out", "-"]).exits(0).stdout;
    assert!(page.contains("a&lt;b&gt;&amp;&quot;c") && !page.contains("a<b>"), "{page}");
}

/// A picture of one pixel.
const PICTURE: &str = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGP4z8AAAAMBAQDJ/pLvAAAAAElFTkSuQmCC";

/// Adds events to those of a run.
fn add_events(run: &Path, kinds: Vec<EventKind>) {
    let mut events = fs::read_to_string(run.join("events.jsonl")).unwrap();
    for (seq, kind) in (90..).zip(kinds) {
        let recorded = RecordedEvent { attempt: 3, event: Event { seq, ts: 0.0, kind } };
        events.push_str(&format!("{}\n", serde_json::to_string(&recorded).unwrap()));
    }
    fs::write(run.join("events.jsonl"), events).unwrap();
}

fn eval(step: u64, scores: &[(&str, f64)]) -> EventKind {
    let scores = scores.iter().map(|(name, score)| ((*name).to_owned(), *score)).collect();
    EventKind::Eval(Eval { step, loss: 1.0, samples: 8, ms: 1.0, headline: None, scores })
}

fn sample(step: u64, generated: &str) -> EventKind {
    let (source, target) = ("flour and eggs".to_owned(), "bake a cake".to_owned());
    EventKind::Sample(Sample { step, source, target, generated: generated.to_owned() })
}

/// What the trainer writes at an evaluation, of its last attempt.
fn details(name: &str, picture: &str) -> Value {
    json!({
        "step": 3,
        "classes": {
            "count": 2,
            "scores": [
                { "class": 0, "name": name, "rows": 5, "predicted": 4, "precision": 1.0, "recall": 0.8, "f1": 0.8889 },
                { "class": 1, "name": "salad", "rows": 3, "predicted": 4, "precision": 0.75, "recall": 1.0, "f1": 0.8571 },
            ],
            "confusion": [
                { "class": 0, "predicted": 0, "rows": 4 }, { "class": 0, "predicted": 1, "rows": 1 },
                { "class": 1, "predicted": 1, "rows": 3 },
            ],
            "calibration": { "error": 0.125, "bins": [
                { "rows": 2, "confidence": 0.4, "accuracy": 0.5 }, { "rows": 6, "confidence": 0.9, "accuracy": 1.0 },
            ]},
        },
        "mistakes": [{
            "rows": [7, 7], "text": name, "picture": picture, "class": name, "predicted": "salad", "confidence": 0.875,
        }],
        "retrieval": [{
            "picture": picture, "caption": name, "rank": 9, "score": 0.25,
            "best": [{ "caption": name, "score": 0.75, "right": false }],
        }],
    })
}

fn write_details(run: &Path, details: &Value) {
    fs::write(run.join("attempts/03/job/evaluation.json"), details.to_string()).unwrap();
}

fn learned() {
    let (folder, run) = trained();
    add_events(
        &run,
        vec![
            sample(1, "cake cake cake"),
            eval(1, &[("accuracy", 0.5), ("macro_f1", 0.4), ("f1", 0.4)]),
            sample(3, "bake  a cake"),
            eval(3, &[("accuracy", 0.75), ("macro_f1", 0.7), ("f1", 0.7)]),
        ],
    );
    write_details(&run, &details("soup", PICTURE));
    let page = again(&folder, &run);
    for name in ["accuracy", "macro-f1"] {
        let figure = figure(&page, &format!("metric-{name}"));
        assert!(figure.matches("<circle").count() == 2 && figure.contains("<polyline"), "{figure}");
    }
    // The older name of the same figure is left out.
    assert!(!page.contains("figure-metric-f1") && !page.contains("eval f1"), "{page}");
    assert!(page.contains("<td>soup</td><td>5</td><td>4</td><td>1.000</td><td>0.800</td><td>0.889</td>"), "{page}");
    assert!(figure(&page, "confusion").contains("soup taken for salad: 1, 20%"), "{page}");
    let mistake = "salad <small>88 %</small></span> instead of soup</h3><p>soup</p>";
    assert!(page.contains(mistake) && page.contains("row 7 of the data"), "{page}");
    let order = ["id=\"figure-confusion\"", "<th scope=\"col\">precision", "id=\"mistakes\"", "id=\"curves\""];
    assert!(order.map(|text| page.find(text).unwrap()).is_sorted(), "{page}");
    let calibration = figure(&page, "calibration");
    assert!(calibration.matches("<rect").count() == 2 && calibration.contains("error 0.125"), "{calibration}");
    for text in ["<h3>written after step 1</h3><p>cake cake cake</p>", "written after step 3 <span", "as expected"] {
        assert!(page.contains(text), "no {text:?} in\n{page}");
    }
    assert!(page.contains(&format!("<img alt=\"soup\" src=\"data:image/png;base64,{PICTURE}\">")), "{page}");
    assert!(page.contains("Its own text ranks 9th (0.25)."), "{page}");

    let id = run.file_name().unwrap().to_string_lossy();
    folder.pipe(&["run", "job.yaml", "--engine", "process", "--set", "train.batch=5", "--name", "other"]).exits(0);
    let page = folder.pipe(&["report", &id, "latest", "--out", "-"]).exits(0).stdout;
    assert!(figure(&page, "metric-accuracy").contains("curve c0 d0"), "{page}");
}

/// What a job writes neither breaks out of the page nor makes it large.
fn hostile() {
    let (folder, run) = trained();
    let bad = r#"<b>&"</style></title><img onerror='x'>"#;
    let before = again(&folder, &run).len();
    write_details(&run, &details(bad, &format!("AAAA\"><script>{bad}")));
    let page = again(&folder, &run);
    assert!(page.contains("&lt;b&gt;&amp;&quot;&lt;/style&gt;"), "{page}");
    for text in ["<b>&", "<img", "<script", "onerror='"] {
        assert!(!page.contains(text), "{text:?} is not escaped in\n{page}");
    }
    let mut large = details(&"x".repeat(100_000), &"A".repeat(200_000));
    let example = large["retrieval"][0].clone();
    large["retrieval"] = json!(vec![example; 20]);
    large["mistakes"] = json!(vec![large["mistakes"][0].clone(); 20]);
    let class = |number: u64| json!({ "class": number, "name": "y".repeat(1000), "rows": u64::MAX, "f1": 1e300 });
    large["classes"]["scores"] = (0..3000).map(class).collect();
    write_details(&run, &large);
    let page = again(&folder, &run);
    assert!(page.len() < before + 200_000, "{} and {before}", page.len());
    // No link is followed, and nothing that is too large is read.
    fs::remove_file(run.join("attempts/03/job/evaluation.json")).unwrap();
    folder.write("secret.json", details("secret", PICTURE).to_string());
    std::os::unix::fs::symlink(folder.path().join("secret.json"), run.join("attempts/03/job/evaluation.json")).unwrap();
    assert!(!again(&folder, &run).contains("secret"));
}

fn several() {
    let (folder, first) = trained();
    folder.pipe(&["run", "job.yaml", "--engine", "process", "--set", "train.batch=5", "--name", "other"]).exits(0);
    let id = first.file_name().unwrap().to_string_lossy();
    folder.pipe(&["report", &id, "latest"]).exits(2).says("--out FILE");
    folder.pipe(&["report", &id, "latest", "--out", "both.html"]).exits(0).prints("both.html");
    let page = folder.read("both.html");
    needs_nothing(&page);
    for key in FIGURES {
        let figure = figure(&page, key);
        assert_eq!(figure.matches("<polyline").count(), 2, "{figure}");
        assert!(figure.contains("curve c0 d0") && figure.contains("curve c1 d1"), "{figure}");
        // The first run was retried, the other was not.
        assert!(figure.contains("class=\"mark own c0 d0\"") && figure.contains(">1-3</text>"), "{figure}");
        assert!(!figure.contains("mark own c1"), "{figure}");
    }
    assert!(page.contains("class=\"legend\"") && page.contains("2 runs compared"));
    assert!(page.contains("<code>train.batch</code></td><td>20</td><td>5</td>"), "{page}");
    assert!(page.contains("<code>name</code>") && !page.contains("<code>train.effective_batch</code>"), "{page}");
    // The same run twice is one run.
    folder.pipe(&["report", &id, &id]).exits(0);
}

fn places() {
    let (folder, run) = trained();
    fs::remove_file(run.join("report.html")).unwrap();
    let answer = folder.pipe(&["report"]).exits(0);
    assert_eq!(answer.stdout.trim_end(), run.join("report.html").display().to_string());
    let page = fs::read_to_string(run.join("report.html")).unwrap();
    folder.pipe(&["report", "--out", "page.html"]).exits(0).prints("page.html");
    assert_eq!(folder.read("page.html"), page);
    assert_eq!(folder.pipe(&["report", "--out", "-"]).exits(0).stdout, page);
    folder.pipe(&["report", "nope"]).exits(2).says("no run \"nope\"");
    folder.pipe(&["report", "--out", "no/such/folder.html"]).exits(1).says("cannot write no/such/folder.html");
}

fn unwritable() {
    let folder = job::folder("sleep", "");
    let running = folder.start(&["run", "job.yaml", "--engine", "process"]);
    folder.wait_for_log(1, "sleeping");
    // Nothing can be renamed onto a folder that holds something.
    fs::create_dir_all(folder.run_folder().join("report.html/x")).unwrap();
    running.signal("INT");
    running.end().exits(130).says("warning: cannot write");
    assert_eq!(folder.show()["status"], "stopped");
}

/// How a browser rendered a page.
struct Seen {
    dom: String,
    /// The URLs that the page requested.
    requests: Vec<String>,
    /// The errors on its console.
    complaints: Vec<String>,
}

/// Opens a page in a browser without a window.
fn browse(folder: &Folder, page: &Path) -> Seen {
    let (log, profile) = (folder.path().join("net.json"), folder.path().join("profile"));
    let output = Command::new(chromium().unwrap())
        .args(["--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--enable-logging=stderr"])
        .arg(format!("--user-data-dir={}", profile.display()))
        .arg(format!("--log-net-log={}", log.display()))
        .arg("--dump-dom")
        .arg(format!("file://{}", page.display()))
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{errors}");
    let log: Value = serde_json::from_slice(&fs::read(log).unwrap()).unwrap();
    // A browser makes requests of its own; those of a page name their origin.
    let of_page =
        |event: &&Value| event["params"]["network_isolation_key"].as_str().is_some_and(|key| key.contains("file://"));
    let url = |event: &Value| event["params"]["url"].as_str().map(str::to_owned);
    Seen {
        dom: String::from_utf8_lossy(&output.stdout).into_owned(),
        requests: log["events"].as_array().unwrap().iter().filter(of_page).filter_map(url).collect(),
        complaints: errors.lines().filter(|line| line.contains(":CONSOLE:")).map(str::to_owned).collect(),
    }
}

fn in_a_browser() {
    let (folder, run) = trained();
    // A page with a request and an error, to show that both would be found.
    folder.write(
        "bad.html",
        "<!DOCTYPE html><img src=\"http://127.0.0.1:9/x.png\"><script>console.error('ouch')</script>",
    );
    let seen = browse(&folder, &folder.path().join("bad.html"));
    assert_eq!(seen.requests.first().map(String::as_str), Some("http://127.0.0.1:9/x.png"), "{:?}", seen.requests);
    assert!(seen.complaints.iter().any(|line| line.contains("ouch")), "{:?}", seen.complaints);

    folder.pipe(&["run", "job.yaml", "--engine", "process", "--set", "train.batch=5", "--name", "other"]).exits(0);
    let id = run.file_name().unwrap().to_string_lossy();
    folder.pipe(&["report", &id, "latest", "--out", "both.html"]).exits(0);
    for (page, curves) in [(run.join("report.html"), 1), (folder.path().join("both.html"), 2)] {
        let seen = browse(&folder, &page);
        assert!(seen.requests.is_empty() && seen.complaints.is_empty(), "{:?} {:?}", seen.requests, seen.complaints);
        assert!(seen.dom.starts_with("<!DOCTYPE html>") && seen.dom.contains("</footer>"), "{}", seen.dom);
        for key in FIGURES {
            let figure = figure(&seen.dom, key);
            assert_eq!(figure.matches("<polyline").count(), curves, "{figure}");
            assert!(figure.contains("<svg") && figure.contains("class=\"mark"), "{figure}");
        }
    }
}
