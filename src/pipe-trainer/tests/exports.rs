//! The files of an exported model beside its weights.

use std::fs;
use std::io::Read;
use std::path::PathBuf;

use crate::support::Bench;
use flate2::read::GzDecoder;
use pipe_spec::event::EventKind;
use serde_json::{Value, json};

fn exported(bench: &Bench, name: &str) -> Value {
    let path = bench.run_folder().model().join(name);
    serde_json::from_slice(&fs::read(&path).unwrap_or_else(|error| panic!("{name}: {error}"))).unwrap()
}

fn card(bench: &Bench) -> String {
    fs::read_to_string(bench.run_folder().model().join("README.md")).unwrap()
}

/// The files of the tokenizers of these names, in one folder.
fn unpacked(bench: &Bench, names: &[&str]) -> PathBuf {
    let folder = bench.path("tokenizer");
    fs::create_dir_all(&folder).unwrap();
    for name in names {
        for entry in fs::read_dir(crate::support::fixture().join("../tokenizers").join(name)).unwrap().flatten() {
            let mut bytes = Vec::new();
            GzDecoder::new(&fs::read(entry.path()).unwrap()[..]).read_to_end(&mut bytes).unwrap();
            fs::write(folder.join(entry.path().file_stem().unwrap()), bytes).unwrap();
        }
    }
    folder
}

/// A classifier from scratch, with the tokenizer of these folders, whose vocabulary is a file `name`.
fn classifier(arch: &str, folders: &[&str], name: &str) -> (Bench, PathBuf) {
    let mut bench = Bench::golden();
    let (path, folder) = (bench.path("rows.csv"), unpacked(&bench, folders));
    fs::write(&path, "text,label\nboil the stock,soup\nbake the flour,cake\n").unwrap();
    let config = json!({
        "vocab_size": 70000, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16,
        "max_position_embeddings": 40,
    });
    bench
        .set("/model", json!({ "arch": arch, "config": config }))
        .set("/tokenizer", json!(folder.join(name)))
        .set("/data", json!({ "train": path, "max_length": 16 }))
        .set("/train/steps", json!(1));
    (bench, folder)
}

#[test]
fn an_exported_t5_has_what_transformers_reads_and_a_card() {
    let mut bench = Bench::golden();
    let golden = crate::support::fixture();
    bench.set("/data/eval", json!(golden.join("train.jsonl"))).set("/train/steps", json!(2));
    let ended = bench.train().expect(0);
    let tokens = json!({ "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>" });
    let (config, map) = (exported(&bench, "tokenizer_config.json"), exported(&bench, "special_tokens_map.json"));
    for (role, token) in tokens.as_object().unwrap() {
        assert_eq!((&config[role], &map[role]), (token, token), "{role}");
    }
    assert_eq!(config["tokenizer_class"], "PreTrainedTokenizerFast");
    let (model, generation) = (exported(&bench, "config.json"), exported(&bench, "generation_config.json"));
    for key in ["decoder_start_token_id", "eos_token_id", "pad_token_id"] {
        assert!(generation[key].is_u64() && generation[key] == model[key], "{key}: {generation} {model}");
    }
    let card = card(&bench);
    let loss =
        ended.events.iter().find_map(|event| if let EventKind::Eval(eval) = event { Some(eval.loss) } else { None });
    for want in [
        "| architecture | t5 |".to_owned(),
        "| weights from | the folder `t5-gated` |".to_owned(),
        "| trained on | `train.jsonl` |".to_owned(),
        "| learning rate | 0.002 |".to_owned(),
        "| after step | 2 |".to_owned(),
        format!("| loss | {:.4} |", loss.unwrap()),
    ] {
        assert!(card.contains(&want), "{want}\n{card}");
    }
    // A folder's own is carried over, as it is.
    let folder = bench.path("own");
    fs::create_dir_all(&folder).unwrap();
    for name in ["config.json", "model.safetensors", "tokenizer.json"] {
        fs::copy(golden.join(name), folder.join(name)).unwrap();
    }
    let own = "{\"max_new_tokens\":  7}";
    fs::write(folder.join("generation_config.json"), own).unwrap();
    fs::remove_dir_all(bench.run_folder().path()).unwrap();
    bench.set("/model/from", json!(folder)).train().expect(0);
    assert_eq!(fs::read_to_string(bench.run_folder().model().join("generation_config.json")).unwrap(), own);
}

#[test]
fn the_card_is_the_same_after_a_resume() {
    let mut bench = Bench::recipes();
    bench.set("/train/steps", json!(4)).set("/save", json!({ "every": 2, "keep": 3 }));
    bench.train().expect(0);
    let whole = card(&bench);
    assert!(whole.contains("| perplexity | "), "{whole}");
    // All is done but the export.
    fs::remove_dir_all(bench.run_folder().model()).unwrap();
    bench.train().expect(0);
    assert_eq!(card(&bench), whole);
    fs::remove_dir_all(bench.run_folder().model()).unwrap();
    bench.remove_checkpoints_after(2);
    bench.set("/train/batch", json!(8)).train().expect(0);
    assert_eq!(card(&bench), whole);
}

#[test]
fn settings_and_vocabularies_are_carried_over() {
    for (arch, folders, files) in [
        ("bert", &["bert"][..], &["vocab.txt"][..]),
        ("bert", &["bert-cased"], &["vocab.txt", "tokenizer_config.json"]),
        (
            "roberta",
            &["roberta", "roberta-settings"],
            &["vocab.json", "merges.txt", "tokenizer_config.json", "special_tokens_map.json"],
        ),
    ] {
        let (bench, folder) = classifier(arch, folders, files[0]);
        assert_eq!(bench.train().expect(0).warnings(), [] as [&str; 0]);
        for name in files {
            let copied = fs::read(bench.run_folder().model().join(name)).unwrap();
            assert!(copied == fs::read(folder.join(name)).unwrap(), "{arch} {name}");
        }
        let (config, map) = (exported(&bench, "tokenizer_config.json"), exported(&bench, "special_tokens_map.json"));
        let token = |value: &Value| value.as_str().or(value["content"].as_str()).map(str::to_owned);
        for role in ["pad_token", "cls_token", "sep_token", "unk_token", "mask_token"] {
            let (one, other) = (token(&config[role]), token(&map[role]));
            // A map that was carried over need not name all of them.
            let written = !files.contains(&"special_tokens_map.json");
            assert!(other.is_some() || !written, "{arch} {role}: {map}");
            assert!(one.is_none() || other.is_none() || one == other, "{arch} {role}: {config} {map}");
        }
    }
}

#[test]
fn what_is_no_json_is_not_carried_over() {
    let mut bench = Bench::golden();
    for name in ["config.json", "model.safetensors", "tokenizer.json"] {
        fs::create_dir_all(bench.path("own")).unwrap();
        fs::copy(crate::support::fixture().join(name), bench.path("own").join(name)).unwrap();
    }
    let folder = bench.path("own");
    for name in ["tokenizer_config.json", "special_tokens_map.json", "generation_config.json"] {
        fs::write(folder.join(name), "[no object").unwrap();
    }
    bench.set("/model/from", json!(folder)).set("/tokenizer", json!(folder.join("tokenizer.json")));
    let ended = bench.set("/train/steps", json!(1)).train().expect(0);
    assert_eq!(ended.warnings().len(), 3, "{:?}", ended.warnings());
    assert!(ended.warnings().iter().all(|warning| warning.ends_with("it is not part of the exported model")));
    assert_eq!(exported(&bench, "tokenizer_config.json")["eos_token"], "</s>");
    assert_eq!(exported(&bench, "generation_config.json")["_from_model_config"], true);
}
