//! Models and data sets of the hub: fetched, resumed, checked, cached; and the errors where they cannot be fetched.

mod commits;
mod data;
mod downloads;
mod interrupted_transfers;
mod python_client;
mod refusals;

use std::path::PathBuf;

use serde_json::Value;

use crate::harness::{Folder, Needs, Suite};
use crate::stand_ins::hub::{Hub, sha256};
use crate::stand_ins::job;

pub fn tests(suite: &mut Suite) {
    let mut test = |name: &str, test: fn()| suite.test(&format!("hub::{name}"), Needs::Nothing, test);
    test("a_model_is_fetched_and_found_again", downloads::fetched);
    test("a_model_in_several_files", downloads::sharded);
    test("a_model_in_another_format", downloads::pickled);
    test("at_a_revision", downloads::revision);
    test("from_a_mirror_with_fewer_headers", downloads::terse);
    test("a_broken_transfer_is_resumed", interrupted_transfers::broken);
    test("the_next_run_resumes_a_broken_transfer", interrupted_transfers::broken_for_good);
    test("an_interrupt_keeps_the_part", interrupted_transfers::interrupted);
    test("a_server_without_ranges", interrupted_transfers::no_ranges);
    test("a_wrong_content_is_removed", interrupted_transfers::corrupt);
    test("a_damaged_part_is_fetched_again", interrupted_transfers::damaged);
    test("two_at_once_fetch_once", downloads::two_at_once);
    test("config_alone_for_plan_and_check", downloads::config_alone);
    test("problems_are_reported_before_any_download", downloads::problems_first);
    test("what_the_hub_refuses", refusals::refusals);
    test("a_hub_that_is_busy_or_down", refusals::unavailable);
    test("without_a_network", refusals::offline);
    test("the_token_stays_with_the_hub", refusals::token);
    test("a_run_keeps_its_commit", commits::commit_is_kept);
    test("a_run_is_reproduced_at_its_commit", commits::reproduced);
    test("data_sets", data::data);
    test("data_sets_that_are_not_there", data::no_data);
    suite.test("hub::in_a_container", Needs::Docker, data::contained);
    suite.test("hub::a_cache_that_is_full", Needs::Root, interrupted_transfers::full);
    suite.test("hub::huggingface_hub_finds_our_downloads", Needs::Mlflow, python_client::tool_finds);
    suite.test("hub::downloads_of_huggingface_hub_are_found", Needs::Mlflow, python_client::tool_fetched);
}

const RUN: [&str; 4] = ["run", "job.yaml", "--engine", "process"];
const MODEL: &str = "some-org/tiny";
const WEIGHTS: &str = "model.safetensors";
const CONFIG: &str = r#"{"vocab_size": 256, "d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2}"#;

/// Large enough to lie where large files do, and to come in several pieces.
fn weights() -> Vec<u8> {
    (0..1_000_000_u32).flat_map(|number| number.wrapping_mul(2_654_435_761).to_le_bytes()).take(3_000_000).collect()
}

fn text(text: &str) -> Vec<u8> {
    text.as_bytes().to_vec()
}

fn files() -> Vec<(&'static str, Vec<u8>)> {
    vec![
        ("README.md", text("what it is")),
        ("config.json", text(CONFIG)),
        ("tokenizer.json", text("{}")),
        ("tokenizer_config.json", text("{\"a\": 1}")),
        (WEIGHTS, weights()),
        ("pytorch_model.bin", text(&"another format".repeat(100))),
        ("tf_model.h5", text(&"a third".repeat(100))),
    ]
}

/// A folder whose pipeline has `model` as its model, with a hub of its own and an empty cache.
fn folder_with(hub: &Hub, model: &str, job: &str) -> Folder {
    let folder = job::folder(job, "");
    let pipeline = folder.read("job.yaml").replace("config: {}", &format!("from: {model}"));
    folder.write("job.yaml", pipeline);
    std::fs::remove_file(folder.path().join("tokenizer.json")).unwrap();
    let [cache, home, own] = ["hub", "home", "cache"].map(|name| folder.path().join(name));
    folder
        .env("HF_ENDPOINT", hub.address())
        .env("HF_HUB_CACHE", cache.display())
        .env("HF_HOME", home.display())
        .env("PIPE_CACHE", own.display())
        .env("HF_TOKEN", "")
        .env("HF_HUB_OFFLINE", "")
}

fn hub_and_folder(files: &[(&str, Vec<u8>)]) -> (Hub, Folder, String) {
    let hub = Hub::start();
    let commit = hub.push(MODEL, "main", files);
    let folder = folder_with(&hub, MODEL, "fit 9");
    (hub, folder, commit)
}

fn repository(folder: &Folder) -> PathBuf {
    folder.path().join("hub/models--some-org--tiny")
}

fn blob(folder: &Folder, bytes: &[u8]) -> PathBuf {
    repository(folder).join("blobs").join(sha256(bytes))
}

fn incomplete(folder: &Folder) -> PathBuf {
    blob(folder, &weights()).with_extension("incomplete")
}

fn lock(folder: &Folder) -> Value {
    serde_json::from_str(&folder.read_run("lock.json")).unwrap()
}
