//! MU-SOTA: what its plain definition computes, and a run of a pipeline from a plain text to the texts that it writes.

use crate::golden::{compare, expected, fixture};
use crate::harness::{Folder, Needs, Suite};
use crate::small_t5::{curve, events, generate, run_trainer};

pub fn tests(suite: &mut Suite) {
    for name in ["mu-sota", "mu-sota-uneven"] {
        let test = move || drop(compare(name, &fixture(name)));
        suite.test(&format!("mu_sota::logits_and_gradients::{name}"), Needs::Nothing, test);
    }
    for batch in [6, 3, 4] {
        suite.test(&format!("mu_sota::loss_curve_at_batch_{batch}"), Needs::Nothing, move || loss_curve(batch));
    }
    suite.test("mu_sota::text_is_written_after_each_epoch", Needs::Nothing, epochs);
    suite.test("mu_sota::out_of_memory_leaves_the_same_curve", Needs::Nothing, out_of_memory);
    suite.test("mu_sota::bad_input_is_named", Needs::Nothing, bad_input);
}

/// The rows of three batches, one after the other and from the start again.
fn loss_curve(batch: u32) {
    let (fixture, expected) = (fixture("mu-sota"), expected("mu-sota"));
    let (hyper, optimizer) = (&expected["hyper"], &expected["optimizer"]);
    let files =
        ["batch", "batch-1", "batch-2"].map(|name| fixture.join(format!("{name}.safetensors")).display().to_string());
    let folder = Folder::new();
    folder.write(
        "golden.yaml",
        format!(
            "version: 1\nname: golden\nmodel: {{arch: mu-sota, from: {}}}\ndata: {{train: [{}], shuffle: false}}\n\
             train:\n  steps: {}\n  batch: {batch}\n  effective_batch: {}\n  clip: {}\n  \
             optimizer: {{lr: {}, weight_decay: {}, decay: all}}\ncontainer: {{gpus: 0, cpus: 1}}\n",
            fixture.display(),
            files.join(", "),
            hyper["steps"],
            hyper["effective_batch"],
            hyper["clip"],
            optimizer["lr"],
            optimizer["weight_decay"],
        ),
    );
    folder.pipe(&["run", "golden.yaml", "--engine", "process"]).exits(0);
    let got = curve(&folder.run_folder());
    let want = expected["curve"].as_array().unwrap();
    assert_eq!(got.len(), want.len());
    for ((step, _, loss), want) in got.iter().zip(want) {
        let want = want.as_f64().unwrap();
        assert!((loss - want).abs() < 1e-3, "step {step}: {loss} and {want}");
    }
}

/// A folder with stories and `mu.yaml`; `more` is added to the pipeline.
fn stories(more: &str) -> Folder {
    let folder = Folder::new();
    generate(&["stories", "--rows", "120", "--seed", "3"], &folder);
    folder.write(
        "mu.yaml",
        format!(
            "version: 1\nname: mu\nmodel:\n  arch: mu-sota\n  config: {{vocab_size: 160, n_layers: 2, n_blocks: 4, block_dim: 4, \
             block_heads: 2, cross_heads: 4, ffn_dim: 256, max_seq_len: 128}}\n\
             data: {{train: data/train.txt, eval: data/eval.txt, max_length: 64}}\n{more}"
        ),
    );
    folder
}

fn epochs() {
    let folder = stories(
        "train: {epochs: 3, batch: 8, optimizer: {lr: 3.0e-3}}\n\
         evaluate: {every: epoch, generate: 3, max_tokens: 12, temperature: 0.7, top_p: 0.9}\ncontainer: {gpus: 0, cpus: 1}\n",
    );
    folder.pipe(&["run", "mu.yaml", "--engine", "process"]).exits(0);
    let run = folder.run_folder();
    let events = events(&run);
    let of = |kind: &str| events.iter().filter(|event| event["type"] == kind).collect::<Vec<_>>();
    let (evals, samples, steps) = (of("eval"), of("sample"), of("step"));
    assert_eq!((evals.len(), samples.len()), (3, 9));
    // Every epoch ends in the step that takes its last row.
    for (epoch, eval) in (1..).zip(&evals) {
        let step = steps.iter().find(|step| step["epoch"].as_f64().unwrap() >= f64::from(epoch)).unwrap();
        assert_eq!(eval["step"], step["step"]);
    }
    let perplexities: Vec<f64> = evals.iter().map(|eval| eval["perplexity"].as_f64().unwrap()).collect();
    assert!(perplexities.is_sorted_by(|a, b| a > b), "{perplexities:?}");
    let eval = folder.read("data/eval.txt").replace("\n\n", " ");
    for sample in &samples {
        let text = |key: &str| sample[key].as_str().unwrap();
        assert!(eval.contains(text("source")) && eval.contains(text("target")), "{sample}");
        assert!(text("generated").split_whitespace().count() <= 12, "{sample}");
    }
    // The rows are the same each time, what is written for them is not.
    assert_eq!(samples[0]["source"], samples[6]["source"]);
    assert!(samples[..3].iter().zip(&samples[6..]).any(|(a, b)| a["generated"] != b["generated"]));

    let model = run.join("model").display().to_string();
    let write = |more: &[&str]| {
        let args = [&["generate", "--model", &model, "--prompt", "once upon a time", "--tokens", "20"], more].concat();
        run_trainer(&args).exits(0).stdout
    };
    let text = write(&["--seed", "5"]);
    assert!(text.starts_with("once upon a time ") && text.len() > 40, "{text}");
    assert_eq!(text, write(&["--seed", "5"]));
    assert_ne!(text, write(&["--seed", "6"]));
    assert_eq!(write(&["--temperature", "0", "--seed", "1"]), write(&["--temperature", "0", "--seed", "2"]));
}

/// The first batch does not fit; the steps are those of a run that has all the memory.
fn out_of_memory() {
    let pipeline = |more: &str| {
        format!(
            "train: {{steps: 8, batch: 128, effective_batch: 128, optimizer: {{lr: 2.0e-3}}}}\nsave: {{every: 5}}\n\
             container: {{gpus: 0, cpus: 1}}\n{more}"
        )
    };
    let wide = |folder: Folder| {
        folder.write("mu.yaml", folder.read("mu.yaml").replace("n_layers: 2", "n_layers: 6"));
        folder.pipe(&["run", "mu.yaml", "--engine", "process"]).exits(0);
        folder
    };
    let folder = wide(stories(&pipeline("memory: {limit: 115m}\n")));
    let attempts = folder.show()["attempts"].as_array().unwrap().len();
    assert!(attempts >= 2, "the first batch was to be too large: {:#}", folder.show());
    let undisturbed = wide(stories(&pipeline("")));
    let (got, want) = (curve(&folder.run_folder()), curve(&undisturbed.run_folder()));
    crate::small_t5::same_curve(&got, &want, 128, 1e-5);
}

fn bad_input() {
    let short = stories("train: {steps: 1}\ncontainer: {gpus: 0, cpus: 1}\n");
    short.write("data/eval.txt", "once upon a time\n");
    let here = short.path().join("data/eval.txt").display().to_string();
    let want = format!("{here}: 5 tokens, and a row takes 65 with the one after it");
    short.pipe(&["run", "mu.yaml", "--engine", "process"]).exits(3).says(&want);

    let narrow = stories("train: {steps: 1}\ncontainer: {gpus: 0, cpus: 1}\n");
    narrow.write("mu.yaml", narrow.read("mu.yaml").replace("vocab_size: 160", "vocab_size: 20"));
    narrow.pipe(&["run", "mu.yaml", "--engine", "process"]).exits(3).says("the model's vocab_size is 20");

    let folder = Folder::new();
    let fixture = fixture("mu-sota");
    let config = std::fs::read_to_string(fixture.join("config.json")).unwrap();
    let yaml = |config: &str, data: &str| {
        let data = fixture.join(data).display().to_string();
        folder.write(
            "ready.yaml",
            format!(
                "version: 1\nname: ready\nmodel: {{arch: mu-sota, config: {config}}}\ndata: {{train: {data}}}\n\
                 train: {{steps: 1}}\ncontainer: {{gpus: 0, cpus: 1}}\n"
            ),
        );
        folder.pipe(&["run", "ready.yaml", "--engine", "process"]).exits(3)
    };
    let flat = config.replace('\n', "");
    yaml(&flat.replace("\"max_seq_len\": 32", "\"max_seq_len\": 20"), "batch.safetensors")
        .says("batch.safetensors: row 1: ids are 24 tokens, the model's max_seq_len is 20");
    yaml(&flat.replace("\"vocab_size\": 97", "\"vocab_size\": 50"), "batch.safetensors")
        .says("batch.safetensors: row 1: ids have the token ")
        .says("; allowed: 0 to 49, below vocab_size");
    yaml(&flat, "expect.safetensors").says("expect.safetensors: no samples");
}
