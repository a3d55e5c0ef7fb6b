//! Pictures with texts on every engine: files beside the data are found, and a smaller batch keeps all negatives.

use crate::harness::{Folder, Needs, Suite};
use crate::small_t5::{curve, events, generate, same_curve};

pub fn tests(suite: &mut Suite) {
    suite.any_engine("clip::pictures_beside_the_data", beside);
    suite.test("clip::smaller_batches_keep_the_negatives::process", Needs::Nothing, smaller_batches);
}

/// A folder with pictures of cars and `clip.yaml`; `more` is added to the pipeline.
fn folder(layers: u32, width: u32, more: &str) -> Folder {
    let folder = Folder::new();
    generate(&["pictures", "--rows", "200", "--eval-rows", "20", "--seed", "3", "--size", "32"], &folder);
    let tower = format!(
        "hidden_size: {width}, intermediate_size: {}, num_hidden_layers: {layers}, num_attention_heads: 4",
        4 * width
    );
    folder.write(
        "clip.yaml",
        format!(
            "version: 1\nname: clip\nmodel:\n  arch: clip\n  config:\n    projection_dim: 32\n    \
             text_config: {{{tower}, vocab_size: 96, max_position_embeddings: 16, eos_token_id: 1, pad_token_id: 1}}\n    \
             vision_config: {{{tower}, image_size: 32, patch_size: 8}}\n\
             data: {{train: data/train.jsonl, eval: data/eval.jsonl, pad: max}}\n{more}"
        ),
    );
    folder
}

fn beside(engine: &str) {
    let folder = folder(1, 32, "train: {steps: 3, batch: 8, effective_batch: 16}\ncontainer: {gpus: 0, cpus: 1}\n");
    folder.pipe(&["run", "clip.yaml", "--engine", engine]).exits(0);
    assert_eq!(curve(&folder.run_folder()).len(), 3);
    let events = events(&folder.run_folder());
    let eval = events.iter().find(|event| event["type"] == "eval").unwrap();
    assert_eq!(eval["samples"], 20);
    for name in ["text_recall_1", "text_recall_5", "image_recall_1", "image_recall_5"] {
        assert!((0.0..=1.0).contains(&eval[name].as_f64().unwrap()), "{eval}");
    }

    // The report has pictures with texts, as the trainer wrote them.
    let page = folder.read_run("report.html");
    assert_eq!(page.matches("<img alt=\"").count(), 8, "{}", page.len());
    assert!(page.contains("id=\"figure-metric-text-recall-1\""));

    // A missing file is named by its path on the host.
    std::fs::remove_file(folder.path().join("data/pictures/train-000004.png")).unwrap();
    std::fs::remove_dir_all(folder.path().join("runs")).unwrap();
    let here = folder.path().join("data/train.jsonl").display().to_string();
    let named = folder.path().join("data/pictures/train-000004.png").display().to_string();
    let answer =
        folder.pipe(&["run", "clip.yaml", "--engine", engine]).exits(3).says(&format!("{here} line 5: the picture"));
    answer.says(&named);
}

/// The batch does not fit. The result is still a training with a contrastive loss over 64 samples.
fn smaller_batches() {
    let train = "train: {steps: 6, batch: 64, effective_batch: 64, optimizer: {lr: 1.0e-3}}\n";
    let limited = folder(6, 128, &format!("{train}memory: {{limit: 190m}}\ncontainer: {{gpus: 0, cpus: 1}}\n"));
    limited.pipe(&["run", "clip.yaml", "--engine", "process"]).exits(0);
    let run = limited.show();
    let attempts = run["attempts"].as_array().unwrap();
    assert!(attempts.len() >= 2, "the first batch was to be too large: {run:#}");
    let free = folder(6, 128, &format!("{train}container: {{gpus: 0, cpus: 1}}\n"));
    free.pipe(&["run", "clip.yaml", "--engine", "process"]).exits(0);
    same_curve(&curve(&limited.run_folder()), &curve(&free.run_folder()), 64, 1e-5);
}
