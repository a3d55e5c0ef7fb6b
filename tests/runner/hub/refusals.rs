//! Errors where the hub refuses a file, and which hosts get the token.

use std::process::Command;

use super::data::{ROW, data_folder};
use super::{MODEL, RUN, files, folder_with, hub_and_folder, text};
use crate::harness::Answer;
use crate::stand_ins::hub::{Hub, What};
use crate::stand_ins::job;
use crate::stand_ins::receiver::closed_port;

pub fn refusals() {
    let hub = Hub::start();
    hub.push(MODEL, "main", &files());
    hub.push("some-org/gated", "main", &files());
    hub.gate("some-org/gated", "good");
    hub.push("some-org/bare", "main", &files()[4..5]);
    let page = |name: &str| format!("{}/{name}", hub.address());
    let cases = [
        (
            "some-org/nope",
            "",
            format!(
                "the hub has no model some-org/nope (looked at {}), or it is private: set HF_TOKEN",
                page("some-org/nope")
            ),
        ),
        ("some-org/nope", "bad", "or it is private and your token (HF_TOKEN) may not read it".to_owned()),
        ("some-org/tiny@v9", "", "the model some-org/tiny has no revision \"v9\"".to_owned()),
        ("some-org/gated", "", format!("is gated: accept its terms at {}, and set HF_TOKEN", page("some-org/gated"))),
        (
            "some-org/gated",
            "bad",
            format!(
                "the account of your token (HF_TOKEN) has no access: accept its terms at {}",
                page("some-org/gated")
            ),
        ),
        ("some-org/bare", "", "some-org/bare has no config.json".to_owned()),
        ("nowhere", "", "no such folder: nowhere; give a folder in Hugging Face layout, or a hub id".to_owned()),
        ("\"${HOME}/x\"", "", "a hub id has no variables in it".to_owned()),
    ];
    for (model, token, want) in cases {
        let folder = folder_with(&hub, model, "fit 9").env("HF_TOKEN", token);
        for command in [&RUN[..], &["check", "job.yaml"]] {
            folder.pipe(command).exits(3).says("job.yaml has 1 problem").says("model.from: ").says(&want);
        }
        folder.pipe(&["plan", "job.yaml"]).exits(3).says(&want);
        assert!(!folder.has_runs());
    }
    let folder = folder_with(&hub, "some-org/gated", "fit 9").env("HF_TOKEN", "good");
    folder.pipe(&RUN).exits(0);
    hub.push("datasets/o/gated", "main", &[("a.jsonl", text(ROW))]);
    hub.gate("datasets/o/gated", "good");
    let folder = data_folder(&hub, "hf://datasets/o/gated/a.jsonl", "train.jsonl", "fit 9");
    folder.pipe(&RUN).exits(3).says("  data: the data set o/gated is gated").says_not("model.from");
}

pub fn unavailable() {
    let (hub, folder, _) = hub_and_folder(&files());
    hub.fault("GET /api/", 1, What::Answers("429 Too Many Requests\r\nRetry-After: 0"));
    hub.fault("GET /some-org", 2, What::Answers("500 Internal Server Error\r\nRetry-After: 0"));
    folder.pipe(&RUN).exits(0).says("config.json: it answered 500 Internal Server Error; trying again in 0.0 s");
    for status in ["429 Too Many Requests\r\nRetry-After: 0", "502 Bad Gateway\r\nRetry-After: 0"] {
        let (hub, folder, _) = hub_and_folder(&files());
        hub.fault("GET /api/", 99, What::Answers(status));
        let said = format!("it answered {}", status.lines().next().unwrap());
        folder.pipe(&RUN).exits(4).says(&said).says("hint: try again later");
        assert_eq!(hub.requests().len(), 4);
        assert!(!folder.has_runs());
    }
    // What is small as it comes may be large when it is decoded.
    let (hub, folder, _) = hub_and_folder(&files());
    hub.fault("GET /api/", 99, What::Answers("200 OK\r\nContent-Encoding: gzip"));
    folder.pipe(&RUN).exits(4).says("its answer is compressed, which was not asked for");
    assert_eq!(hub.requests().len(), 1);
    let folder = folder_with(&hub, MODEL, "fit 9").env("HF_ENDPOINT", closed_port());
    folder.pipe(&["check", "job.yaml"]).exits(4).says("the Hugging Face hub (127.0.0.1) is not available");
}

pub fn offline() {
    let (hub, folder, _) = hub_and_folder(&files());
    folder.write(".env", "HF_HUB_OFFLINE=1\n");
    // An empty variable of the environment counts as set; the folder has one.
    let folder = folder.env("HF_HUB_OFFLINE", "yes");
    for command in [&RUN[..], &["check", "job.yaml"], &["plan", "job.yaml"]] {
        let cache = folder.path().join("hub").display().to_string();
        folder
            .pipe(command)
            .exits(4)
            .says(&format!(
                "some-org/tiny is not in the hub cache {cache}, or is incomplete there, and HF_HUB_OFFLINE forbids"
            ))
            .says("hf download some-org/tiny");
    }
    assert!(hub.requests().is_empty());
    let folder = folder.env("HF_HUB_OFFLINE", "0");
    folder.pipe(&RUN).exits(0);
    hub.forget();
    let folder = folder.env("HF_HUB_OFFLINE", "1");
    folder.pipe(&RUN).exits(0);
    assert!(hub.requests().is_empty());
}

pub fn token() {
    let secret = "hf_secretsecretsecret";
    let (hub, folder, _) = hub_and_folder(&files());
    let folder = folder.env("HF_TOKEN", secret).env("RUST_LOG", "trace");
    let answer = folder.pipe(&RUN).exits(0);
    assert!(!answer.stderr.contains(secret) && !answer.stdout.contains(secret), "{answer}");
    for request in hub.requests() {
        let sent = request.header("authorization");
        let want = format!("bearer {secret}");
        assert_eq!(sent, Some(want.as_str()).filter(|_| !request.is_content), "{request:?}");
    }
    assert!(hub.requests().iter().any(|request| request.is_content));
    let mut search = Command::new("grep");
    search.args(["--recursive", "--files-with-matches", secret, "."]).current_dir(folder.path());
    let output = search.output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "");
    // From a file, where the hub's own tools keep it, and from .env.
    for (name, content) in [("home/token", format!("{secret}\n")), (".env", format!("HF_TOKEN={secret}\n"))] {
        let hub = Hub::start();
        hub.push(MODEL, "main", &files());
        let folder = job::folder("fit 9", "");
        let pipeline = folder.read("job.yaml").replace("config: {}", &format!("from: {MODEL}"));
        folder.write("job.yaml", pipeline).write(name, content);
        let (home, own) = (folder.path().join("home"), folder.path().join("cache"));
        let folder = folder
            .env("HF_ENDPOINT", hub.address())
            .env("HF_HOME", home.display())
            .env("PIPE_CACHE", own.display())
            .env("HF_HUB_OFFLINE", "");
        let mut command = folder.command(&["plan", "job.yaml"]);
        let output = command.env_remove("HF_HUB_CACHE").output().unwrap();
        Answer::new("pipe plan".to_owned(), output).exits(0);
        assert!(hub.requests().iter().all(|request| request.header("authorization").is_some()), "{name}");
        assert!(home.join("hub/models--some-org--tiny/refs/main").is_file());
    }
}
