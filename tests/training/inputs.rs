//! Data, tokenizer and model that cannot be used: the file and the line are named, and the exit code is 3.

use crate::harness::{Needs, Suite};
use crate::small_t5::{folder, run_trainer};

pub fn tests(suite: &mut Suite) {
    suite.any_engine("inputs::bad_rows_are_named", bad_rows);
    suite.test("inputs::broken_tokenizer", Needs::Nothing, broken_tokenizer);
    suite.test("inputs::incomplete_config", Needs::Nothing, incomplete_config);
    suite.test("inputs::variables_in_paths_are_not_saved", Needs::Nothing, variables_in_paths);
    suite.test("inputs::recipes_are_deterministic", Needs::Nothing, recipes);
}

fn bad_rows(engine: &str) {
    let good = r#"{"ingredients": "salt", "directions": "chop the salt."}"#;
    let cases = [
        ("{\"ingredients\": \"salt\"".to_owned(), "train.jsonl line 2"),
        (r#"{"ingredients": "salt"}"#.to_owned(), "directions"),
        (r#"{"ingredients": 5, "directions": "x"}"#.to_owned(), "ingredients"),
        ("[1, 2]".to_owned(), "train.jsonl line 2"),
    ];
    for (row, text) in cases {
        let folder = folder("container: {gpus: 0, cpus: 1}\n");
        folder.write("data/train.jsonl", format!("{good}\n{row}\n{good}\n"));
        let here = folder.path().join("data/train.jsonl").display().to_string();
        folder.pipe(&["run", "t5.yaml", "--engine", engine]).exits(3).says(text).says(&format!("{here} line 2"));
    }
}

fn broken_tokenizer() {
    let folder = folder("container: {gpus: 0, cpus: 1}\n");
    folder.write("data/tokenizer.json", "{");
    folder.pipe(&["run", "t5.yaml", "--engine", "process"]).exits(3).says("tokenizer.json");
}

fn incomplete_config() {
    let folder = folder("container: {gpus: 0, cpus: 1}\n");
    folder.write("t5.yaml", folder.read("t5.yaml").replace("d_model: 32", "d_model: 0"));
    folder.pipe(&["run", "t5.yaml", "--engine", "process"]).exits(3).says("d_model");
}

fn variables_in_paths() {
    let folder = folder("train: {steps: 2}\ncontainer: {gpus: 0, cpus: 1}\n");
    let secret = folder.path().join("secret-place");
    std::fs::rename(folder.path().join("data"), &secret).unwrap();
    folder.write("t5.yaml", folder.read("t5.yaml").replace("data/train", "${PLACE}/train"));
    let folder = folder.env("PLACE", secret.display());
    folder.pipe(&["run", "t5.yaml", "--engine", "process"]).exits(0);
    let output =
        std::process::Command::new("grep").args(["-rl", "secret-place"]).arg(folder.run_folder()).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "");
}

fn recipes() {
    let make = |seed: &str| run_trainer(&["data", "recipes", "--rows", "50", "--seed", seed]).exits(0).stdout;
    assert_eq!(make("5"), make("5"));
    assert_ne!(make("5"), make("6"));
    assert_eq!(make("5").lines().count(), 50);
    for line in make("5").lines() {
        let row: serde_json::Value = serde_json::from_str(line).unwrap();
        assert!(row["ingredients"].is_string() && row["directions"].is_string(), "{line}");
    }
}
