//! Pictures with a class: what transformers computes for ViT and ResNet, and a model from folders of pictures to predictions.

use std::path::Path;

use image::{Rgb, RgbImage};
use safetensors::SafeTensors;
use serde_json::Value;

use crate::golden::{compare, expected, fixture, floats};
use crate::harness::folder::repository;
use crate::harness::suite::transformers;
use crate::harness::{Folder, Needs, Suite};
use crate::small_t5::{curve, run_parity};

pub fn tests(suite: &mut Suite) {
    for (name, arch, batches) in MODELS {
        suite.test(&format!("golden::logits_and_gradients::{name}"), Needs::Nothing, || {
            drop(compare(name, &fixture(name)));
        });
        for batch in *batches {
            let test = move || drop(trained(name, arch, *batch));
            suite.test(&format!("golden::loss_curve::{name}::batch_{batch}"), Needs::Nothing, test);
        }
        suite.test(&format!("golden::export_loads_in_transformers::{name}"), Needs::Transformers, || {
            in_transformers(name, arch);
        });
    }
    suite.test("golden::logits_and_gradients::vit-lora", Needs::Nothing, || {
        drop(compare("vit-lora", &fixture("vit-lora")));
    });
    suite.test("pictures::a_new_head_for_other_classes", Needs::Nothing, new_head);
    suite.test("pictures::folders_of_classes_to_predictions", Needs::Nothing, || shapes(96, 6, 0.0));
    suite.thorough("pictures::shapes_are_told_apart", Needs::Nothing, || shapes(360, 45, 0.9));
}

/// Fixtures, and batches of 6 samples: batch norm allows no smaller one.
const MODELS: &[(&str, &str, &[u32])] = &[
    ("vit", "vit", &[6, 4]),
    ("vit-plain", "vit", &[6]),
    ("resnet-basic", "resnet", &[6]),
    ("resnet-bottleneck", "resnet", &[6]),
];

/// Trains a fixture as transformers was, and compares each loss and the logits in the end.
fn trained(name: &str, arch: &str, batch: u32) -> Folder {
    let (folder, from, expected) = (Folder::new(), fixture(name).display().to_string(), expected(name));
    let (hyper, optimizer) = (&expected["hyper"], &expected["optimizer"]);
    folder.write(
        "golden.yaml",
        format!(
            "version: 1\nname: golden\nmodel: {{arch: {arch}, from: {from}}}\n\
             data: {{train: {from}/batch.safetensors, shuffle: false}}\n\
             train: {{steps: {}, batch: {batch}, effective_batch: {}, clip: {}, \
             optimizer: {{lr: {}, weight_decay: {}, eps: {}, decay: all}}}}\ncontainer: {{gpus: 0, cpus: 1}}\n",
            hyper["steps"],
            hyper["effective_batch"],
            hyper["clip"],
            optimizer["lr"],
            optimizer["weight_decay"],
            optimizer["eps"],
        ),
    );
    folder.pipe(&["run", "golden.yaml", "--engine", "process"]).exits(0);
    let (got, want) = (curve(&folder.run_folder()), expected["curve"].as_array().unwrap());
    assert_eq!(got.len(), want.len());
    for ((step, _, loss), want) in got.iter().zip(want) {
        let want = want.as_f64().unwrap();
        assert!((loss - want).abs() < 1e-4, "step {step}: {loss} and {want}");
    }
    let out = folder.path().join("out.safetensors");
    logits(&folder.run_folder().join("model"), name, &out);
    let (got, want) = (std::fs::read(&out).unwrap(), std::fs::read(fixture(name).join("expect.safetensors")).unwrap());
    let (got, want) = (SafeTensors::deserialize(&got).unwrap(), SafeTensors::deserialize(&want).unwrap());
    let (got, want) = (floats(&got.tensor("logits").unwrap()), floats(&want.tensor("trained").unwrap()));
    assert!(got.iter().zip(&want).all(|(got, want)| (got - want).abs() < 1e-3), "{got:?} {want:?}");
    folder
}

/// What an exported model computes for the batch of a fixture.
fn logits(model: &Path, name: &str, out: &Path) {
    let batch = fixture(name).join("batch.safetensors");
    run_parity(model.to_str().unwrap(), batch.to_str().unwrap(), out.to_str().unwrap()).exits(0);
}

fn in_transformers(name: &str, arch: &str) {
    let folder = trained(name, arch, 6);
    let output = transformers()
        .arg(repository().join("tests/export_check.py"))
        .arg(folder.run_folder().join("model"))
        .arg(fixture(name).join("batch.safetensors"))
        .arg(folder.path().join("out.safetensors"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Draws pictures of different sizes in folders of classes: shapes in any colour, on paper with noise.
fn draw(folder: &Folder, count: u32) {
    for number in 0..count {
        let class = number as usize % CLASSES.len();
        let mut random = number.wrapping_mul(2_654_435_761) | 1;
        let mut below = |bound: u32| {
            random ^= random << 13;
            random ^= random >> 17;
            random ^= random << 5;
            random % bound
        };
        let (width, height) = (48 + below(48), 48 + below(48));
        let radius = f64::from(12 + below(8));
        let [x0, y0] = [width, height].map(|side| f64::from(22 + below(side - 43)));
        let (colour, paper) = ([below(140), below(140), below(140)], 170 + below(60));
        let picture = RgbImage::from_fn(width, height, |x, y| {
            let (x, y) = ((f64::from(x) - x0) / radius, (f64::from(y) - y0) / radius);
            let is_inside = match class {
                0 => x * x + y * y < 1.0,
                1 => x.abs().max(y.abs()) < 0.9,
                2 => x.abs().min(y.abs()) < 0.3 && x.abs().max(y.abs()) < 1.0,
                _ => (0.45..1.0).contains(&(x * x + y * y)),
            };
            let noise = below(24);
            Rgb(colour.map(|part| (if is_inside { part } else { paper } + noise).min(255) as u8))
        });
        let path = folder.path().join(format!("shapes/{}/{number:03}.png", CLASSES[class]));
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        picture.save(path).unwrap();
    }
}

const CLASSES: [&str; 4] = ["circle", "square", "cross", "ring"];

fn evaluations(folder: &Folder) -> Vec<f64> {
    let events = crate::small_t5::events(&folder.run_folder());
    let evaluations = events.iter().filter(|event| event["type"] == "eval");
    evaluations.map(|event| event["accuracy"].as_f64().unwrap()).collect()
}

/// `init`, `check`, `run` and `predict`, and nothing edited but how long it takes.
fn shapes(count: u32, epochs: u32, least: f64) {
    let folder = Folder::new();
    draw(&folder, count);
    folder.pipe(&["init", "mine.yaml", "--yes", "--data", "shapes"]).exits(0);
    let draft = folder.read("mine.yaml");
    for wanted in ["arch: resnet", "train: shapes ", "augment: crop", "4 classes: circle", "best: eval.macro_f1"] {
        assert!(draft.replace("  #", "\n").contains(wanted), "no {wanted:?} in\n{draft}");
    }
    let checked = folder.pipe(&["check", "mine.yaml", "--json"]).exits(0).json();
    assert_eq!(checked["warnings"], Value::Array(Vec::new()), "{draft}");
    let set = format!("train.epochs={epochs}");
    folder.pipe(&["run", "mine.yaml", "--engine", "process", "--set", &set]).exits(0);
    let best = evaluations(&folder).into_iter().fold(0.0, f64::max);
    assert!(best >= least, "accuracy {best}");
    let config: Value =
        serde_json::from_slice(&std::fs::read(folder.run_folder().join("model/config.json")).unwrap()).unwrap();
    assert_eq!(config["id2label"], serde_json::json!({"0": "circle", "1": "cross", "2": "ring", "3": "square"}));
    assert!(folder.run_folder().join("model/preprocessor_config.json").is_file());

    let rows = folder.pipe(&["predict", "latest", "--data", "shapes"]).exits(0).json_lines();
    assert_eq!(rows.len(), count as usize);
    let right = rows.iter().filter(|row| row["label"] == row["expected"]).count();
    assert!(right as f64 >= least * rows.len() as f64, "{right} of {count}");
    assert!(rows.iter().all(|row| row["image"].as_str().unwrap().split('/').next() == row["expected"].as_str()));
    let one = folder.pipe(&["predict", "latest", "--data", "shapes/ring/003.png"]).exits(0).json();
    let same = rows.iter().find(|row| row["image"] == "ring/003.png").unwrap();
    assert_eq!((&one["image"], &one["label"]), (&Value::from("003.png"), &same["label"]));
}

/// The trained classes of the fixture are not those of the data.
fn new_head() {
    let folder = Folder::new();
    draw(&folder, 16);
    let from = fixture("resnet-basic").display().to_string();
    let rows: String =
        (0..16).map(|number| format!("shapes/{0}/{number:03}.png,{0}\n", CLASSES[number % CLASSES.len()])).collect();
    folder.write("rows.csv", format!("image,label\n{rows}"));
    let pipeline = |label: &str| {
        format!(
            "version: 1\nname: head\nmodel: {{arch: resnet, from: {from}}}\n\
             data: {{train: rows.csv, eval_share: 0.25, fields: {{label: {label}}}}}\n\
             train: {{steps: 2, batch: 8}}\ncontainer: {{gpus: 0, cpus: 1}}\n"
        )
    };
    folder.write("head.yaml", pipeline("label"));
    let answer = folder.pipe(&["run", "head.yaml", "--engine", "process"]).exits(0);
    answer
        .says("a new head is trained for 4 classes")
        .says("newly initialised: classifier.1.weight, classifier.1.bias");
    let exported = folder.run_folder().join("model");
    let config: Value = serde_json::from_slice(&std::fs::read(exported.join("config.json")).unwrap()).unwrap();
    assert_eq!(config["id2label"].as_object().unwrap().len(), 4);
    folder.write("head.yaml", pipeline("nothing"));
    folder.pipe(&["check", "head.yaml"]).exits(3).says("nothing");
}
