//! Transfers that break, are interrupted, or bring something wrong.

use super::{RUN, WEIGHTS, blob, files, hub_and_folder, incomplete, repository, weights};
use crate::harness::Tmpfs;
use crate::stand_ins::hub::{Hub, What, sha256};

/// The ranges that the contents were asked for.
pub fn ranges(hub: &Hub) -> Vec<String> {
    let contents = hub.requests().into_iter().filter(|request| request.is_content);
    contents.map(|request| request.header("range").unwrap_or_default().to_owned()).collect()
}

pub fn broken() {
    let (hub, folder, _) = hub_and_folder(&files());
    let at = &sha256(&weights());
    hub.fault(at, 1, What::CutAfter(1_000_000)).fault(at, 1, What::CutAfter(500_000));
    folder.pipe(&RUN).exits(0).says("model.safetensors: ").says("; trying again in 0.5 s");
    assert_eq!(ranges(&hub), ["", "bytes=1000000-", "bytes=1500000-"]);
    assert!(!incomplete(&folder).exists());
}

pub fn broken_for_good() {
    let (hub, folder, commit) = hub_and_folder(&files());
    let at = &sha256(&weights());
    hub.fault(at, 1, What::CutAfter(1_000_000));
    hub.fault(at, 99, What::Answers("503 Service Unavailable\r\nRetry-After: 0"));
    folder.pipe(&RUN).exits(4).says("the Hugging Face hub (127.0.0.1) is not available: it answered 503");
    assert!(!folder.has_runs());
    assert_eq!(std::fs::metadata(incomplete(&folder)).unwrap().len(), 1_000_000);
    assert!(!repository(&folder).join("snapshots").join(&commit).join(WEIGHTS).exists());
    hub.mend();
    hub.forget();
    folder.pipe(&RUN).exits(0).says("976.6 KiB of them here already");
    assert_eq!(ranges(&hub), ["bytes=1000000-"]);
    assert_eq!(std::fs::read(blob(&folder, &weights())).unwrap(), weights());
}

pub fn interrupted() {
    let (hub, folder, _) = hub_and_folder(&files());
    hub.fault(&sha256(&weights()), 1, What::SilentAfter(1_000_000));
    let running = folder.start(&RUN);
    let length = || std::fs::metadata(incomplete(&folder)).map_or(0, |meta| meta.len());
    folder.wait_until("the first part", || length() == 1_000_000);
    running.signal("INT");
    running.end().exits(130);
    assert!(!folder.has_runs());
    assert_eq!(length(), 1_000_000);
    hub.forget();
    folder.pipe(&RUN).exits(0);
    assert_eq!(ranges(&hub), ["bytes=1000000-"]);
}

pub fn no_ranges() {
    let (hub, folder, _) = hub_and_folder(&files());
    let at = &sha256(&weights());
    hub.fault(at, 1, What::CutAfter(1_000_000)).fault(at, 1, What::NoRange);
    folder.pipe(&RUN).exits(0);
    assert_eq!(ranges(&hub), ["", "bytes=1000000-"]);
    assert_eq!(std::fs::read(blob(&folder, &weights())).unwrap(), weights());
}

pub fn corrupt() {
    let (hub, folder, commit) = hub_and_folder(&files());
    hub.fault(&sha256(&weights()), 1, What::Corrupt);
    folder
        .pipe(&RUN)
        .exits(4)
        .says("model.safetensors of some-org/tiny does not match the hash of the hub: expected ")
        .says("it was removed");
    let blob = blob(&folder, &weights());
    let snapshot = repository(&folder).join("snapshots").join(commit);
    assert!(!blob.exists() && !incomplete(&folder).exists() && !snapshot.join(WEIGHTS).exists());
    folder.pipe(&RUN).exits(0);
    // A small file is checked as git would.
    let (hub, folder, _) = hub_and_folder(&files());
    hub.fault("GET /some-org/tiny/resolve/", 1, What::Corrupt);
    folder.pipe(&["plan", "job.yaml"]).exits(4).says("config.json of some-org/tiny does not match the hash of the hub");
}

pub fn damaged() {
    let (hub, folder, _) = hub_and_folder(&files());
    let part = incomplete(&folder);
    std::fs::create_dir_all(part.parent().unwrap()).unwrap();
    std::fs::write(&part, vec![7; 2_000_000]).unwrap();
    folder.pipe(&RUN).exits(0).says("did not match its hash; fetching it again from its beginning");
    assert_eq!(ranges(&hub), ["bytes=2000000-", ""]);
    assert_eq!(std::fs::read(blob(&folder, &weights())).unwrap(), weights());
}

pub fn full() {
    let (hub, folder, _) = hub_and_folder(&files());
    let folder = &folder;
    {
        let _disk = Tmpfs::mount(folder.path().join("hub"), "1m");
        let said = format!("2.9 MiB have to be fetched into the hub cache {}/hub, but only ", folder.path().display());
        folder.pipe(&RUN).exits(1).says(&said).says("HF_HUB_CACHE");
        assert!(!incomplete(folder).exists() && !folder.has_runs());
    }
    // Others write to the same disk in the meantime.
    let at = &sha256(&weights());
    hub.fault(at, 1, What::CutAfter(1_000_000)).fault(at, 1, What::Answers("503 Slow Down\r\nRetry-After: 2"));
    {
        let _disk = Tmpfs::mount(folder.path().join("hub"), "4m");
        let running = folder.start(&RUN);
        let length = || std::fs::metadata(incomplete(folder)).map_or(0, |meta| meta.len());
        folder.wait_until("the first part", || length() == 1_000_000);
        let mut filler = std::fs::File::create(folder.path().join("hub/filler")).unwrap();
        while std::io::Write::write_all(&mut filler, &[0; 4096]).is_ok() {}
        drop(filler);
        running.end().exits(1).says("have to be fetched into the hub cache ").says("free some space");
        assert!(length() >= 1_000_000 && !folder.has_runs());
        std::fs::remove_file(folder.path().join("hub/filler")).unwrap();
        folder.pipe(&RUN).exits(0);
    }
    let folder = hub_and_folder(&files()).1;
    // Nor can anyone create a folder below a file.
    let place = folder.path().join("train.jsonl/hub");
    let folder = folder.env("HF_HUB_CACHE", place.display());
    folder.pipe(&RUN).exits(1).says("of the hub cache: ").says("choose another folder with HF_HUB_CACHE");
}
