//! A run keeps to the commit that it began with.

use serde_json::Value;

use super::{MODEL, RUN, WEIGHTS, files, folder_with, hub_and_folder, lock, repository, text};
use crate::harness::Folder;
use crate::stand_ins::hub::Hub;

/// Pushes another commit, and leaves a cache that has only that one.
fn move_on(hub: &Hub, folder: &Folder) -> String {
    let other = [&files()[..1], &[("config.json", text("{\"a\": 2}"))], &files()[2..]].concat();
    let second = hub.push(MODEL, "main", &other);
    std::fs::remove_dir_all(folder.path().join("hub")).unwrap();
    folder.write("hub/models--some-org--tiny/refs/main", &second);
    second
}

pub fn commit_is_kept() {
    let hub = Hub::start();
    let first = hub.push(MODEL, "main", &files());
    let folder = folder_with(&hub, MODEL, "walk 200 20 99");
    let running = folder.start(&RUN);
    folder.wait_for_log(1, "step 1\n");
    running.signal("INT");
    running.end().exits(130);
    let second = move_on(&hub, &folder);
    hub.forget();
    let resuming = folder.start(&["resume"]);
    folder.wait_for_log(2, "step ");
    resuming.signal("INT");
    resuming.end().exits(130);
    assert_eq!(lock(&folder)["hub"][0]["commit"], first.as_str());
    assert!(hub.requests().iter().all(|request| !request.line.contains(&second)), "{:?}", hub.requests());
    assert!(repository(&folder).join("snapshots").join(&first).join(WEIGHTS).is_file());
    assert_eq!(std::fs::read_to_string(repository(&folder).join("refs/main")).unwrap(), second);
}

pub fn reproduced() {
    let (hub, folder, first) = hub_and_folder(&files());
    folder.pipe(&RUN).exits(0);
    let second = move_on(&hub, &folder);
    let run = folder.run_folder();
    let id = run.file_name().unwrap().to_str().unwrap();
    folder.pipe(&["reproduce", id]).exits(0).prints("reproduces");
    for run in std::fs::read_dir(folder.path().join("runs")).unwrap() {
        let lock: Value =
            serde_json::from_slice(&std::fs::read(run.unwrap().path().join("lock.json")).unwrap()).unwrap();
        assert_eq!(lock["hub"][0]["commit"], first.as_str());
    }
    // A new run uses the commit that main names now, and reports the difference.
    folder.pipe(&RUN).exits(0);
    folder.pipe(&["diff", id, "latest"]).exits(0).prints(MODEL).prints(&second[..12]);
}
