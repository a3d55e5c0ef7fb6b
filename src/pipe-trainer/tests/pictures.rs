//! Pictures, with texts or with a class: what is read, what is left out, and what must not change what is learned. What changes a picture in
//! every epoch depends on nothing but seed, epoch and row.

use std::fs;
use std::path::Path;

use image::{Rgb, RgbImage};
use pipe_spec::event::{Eval, EventKind};
use serde_json::{Value, json};

use crate::support::{Bench, Ended, furthest, generate, trainer};

/// A small CLIP on generated pictures of cars.
pub fn bench(rows: u32, eval_rows: u32) -> Bench {
    let mut bench = Bench::golden();
    let data = bench.path("data");
    let (rows, eval_rows) = (rows.to_string(), eval_rows.to_string());
    generate(&["pictures", "--rows", &rows, "--eval-rows", &eval_rows, "--seed", "1", "--size", "32"], &data);
    let tower = json!({
        "hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
        "vocab_size": 96, "max_position_embeddings": 16, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1,
        "image_size": 32, "patch_size": 8,
    });
    let config = json!({ "projection_dim": 32, "text_config": tower, "vision_config": tower });
    bench.set("/model", json!({ "arch": "clip", "config": config }));
    bench.set("/tokenizer", json!(data.join("tokenizer.json")));
    bench.set("/data", json!({ "train": data.join("train.jsonl"), "eval": data.join("eval.jsonl") }));
    bench.set("/train/steps", json!(8)).set("/train/batch", json!(12)).set("/train/effective_batch", json!(12));
    bench
}

/// From here on it begins from nothing, in another run folder.
fn afresh(bench: &mut Bench, run: &str) {
    let run = bench.path(run);
    bench.set("/run", json!(run));
}

fn losses(bench: &Bench) -> Vec<f64> {
    crate::support::losses(&bench.train().expect(0))
}

fn evals(ended: &Ended) -> Vec<&Eval> {
    let mut evals = Vec::new();
    for event in &ended.events {
        if let EventKind::Eval(eval) = event {
            evals.push(eval);
        }
    }
    evals
}

#[test]
fn every_precision_learns_and_stays_near_fp32() {
    let mut bench = bench(60, 5);
    bench.set("/train/steps", json!(20)).set("/train/batch", json!(5));
    let mut run = |precision: &str| {
        bench.set("/train/precision", json!(precision));
        afresh(&mut bench, precision);
        losses(&bench)
    };
    let reference = run("fp32");
    assert!(reference[19] < 0.7 * reference[0], "{reference:?}");
    for (precision, near) in [("bf16-mixed", 0.05), ("fp16-mixed", 0.02), ("bf16", 0.1)] {
        let losses = run(precision);
        let apart = furthest(&losses, &reference);
        assert!(apart > 0.0, "{precision} computes in fp32");
        assert!(apart < near * reference[0], "{precision} is {apart} from fp32: {losses:?} {reference:?}");
    }
}

#[test]
fn checkpointing_gives_the_same_training_with_dropout_on() {
    let mut bench = bench(60, 5);
    bench.set("/train/batch", json!(5)).set("/train/dropout", json!(0.2));
    let plain = losses(&bench);
    bench.set("/train/checkpointing", json!(true));
    afresh(&mut bench, "checkpointing");
    assert!(furthest(&plain, &losses(&bench)) < 1e-6);
    bench.set("/train/dropout", json!(0.0));
    afresh(&mut bench, "without");
    assert!(furthest(&plain, &losses(&bench)) > 1e-3, "nothing was dropped");
}

#[test]
fn going_on_from_a_checkpoint_ends_with_the_same_bits() {
    for (optimizer, precision) in [("adamw", "fp32"), ("adamw", "bf16"), ("adamw", "fp16-mixed"), ("adafactor", "bf16")]
    {
        let mut bench = bench(40, 5);
        bench.set("/train/precision", json!(precision)).set("/train/optimizer/kind", json!(optimizer));
        bench.set("/train/dropout", json!(0.1)).set("/train/batch", json!(5)).set("/save/every", json!(3));
        bench.expect_the_same_bits_from(3);
    }
}

/// Chance finds 1 of 60. Within 150 steps the model finds the text of more than 4 in 10 pictures it has never seen, and 9 in
/// 10 times it is among five.
#[test]
fn a_small_model_learns_which_text_belongs_to_which_picture() {
    let mut bench = bench(1500, 60);
    bench.set("/train/steps", json!(100)).set("/train/batch", json!(32)).set("/train/effective_batch", json!(64));
    bench.set("/train/schedule", json!({ "kind": "cosine", "warmup": 10 })).set("/evaluate", json!({ "every": 1000 }));
    let ended = bench.train().expect(0);
    let scores = &evals(&ended)[0].scores;
    for name in ["text", "image"] {
        let recall = |among: u32| scores[&format!("{name}_recall_{among}")];
        assert!(recall(1) > 0.4 && recall(5) > 0.9, "{scores:?}");
    }
}

#[test]
fn an_evaluation_does_not_depend_on_its_batch() {
    let mut bench = bench(40, 31);
    bench.set("/train/steps", json!(1)).set("/train/optimizer/lr", json!(0.0)).set("/evaluate", json!({ "batch": 4 }));
    let ended = bench.train().expect(0);
    let small = evals(&ended)[0];
    bench.set("/evaluate/batch", json!(31));
    afresh(&mut bench, "again");
    let ended = bench.train().expect(0);
    let large = evals(&ended)[0];
    assert_eq!((small.samples, &small.scores), (31, &large.scores));
    assert!((small.loss - large.loss).abs() < 1e-6, "{small:?} {large:?}");
    // Compared with 30 others and not with 11, a sample is harder to find.
    bench.set("/train/effective_batch", json!(31));
    afresh(&mut bench, "together");
    let ended = bench.train().expect(0);
    let together = evals(&ended)[0];
    assert!((0.5..1.5).contains(&(together.loss - small.loss)), "{small:?} {together:?}");
    assert_eq!(together.scores, small.scores);
}

#[test]
fn memory_is_that_of_a_part() {
    let mut bench = bench(64, 1);
    for tower in ["text", "vision"] {
        let pointer = format!("/model/config/{tower}_config");
        bench.set(&format!("{pointer}/num_hidden_layers"), json!(6));
        bench
            .set(&format!("{pointer}/hidden_size"), json!(128))
            .set(&format!("{pointer}/intermediate_size"), json!(512));
    }
    bench.set("/train/steps", json!(2)).set("/train/batch", json!(64)).set("/train/effective_batch", json!(64));
    bench.set("/memory/limit", json!("190m")).train().expect(43);
    let ended = bench.set("/train/batch", json!(4)).set("/attempt", json!(2)).train().expect(0);
    assert_eq!(ended.curve().len(), 2);
}

#[test]
fn broken_pictures_are_named() {
    let cases: [(&str, &str); 3] = [
        ("missing.png", "missing.png: No such file"),
        ("cut.png", "cut.png: "),
        ("words.jpg", "words.jpg: Format error decoding Jpeg"),
    ];
    for (name, want) in cases {
        let mut bench = bench(20, 1);
        let folder = bench.path("data");
        let whole = fs::read(folder.join("pictures/train-000000.png")).unwrap();
        fs::write(folder.join("cut.png"), &whole[..whole.len() / 2]).unwrap();
        fs::write(folder.join("words.jpg"), "these are words").unwrap();
        let rows = fs::read_to_string(folder.join("train.jsonl")).unwrap();
        fs::write(folder.join("train.jsonl"), rows.replace("pictures/train-000007.png", name)).unwrap();
        let ended = bench.train().expect(3);
        let place = format!("{} line 8: the picture {}", folder.join("train.jsonl").display(), folder.display());
        assert!(ended.stderr.contains(&place) && ended.stderr.contains(want), "{}", ended.stderr);
        // A missing picture is noticed before the first step.
        assert!(name != "missing.png" || ended.events.is_empty(), "{:?}", ended.events);

        // Three passes over the data meet the sample three times and count it once.
        bench.set("/data/skip_bad", json!(true)).set("/train/steps", json!(null)).set("/train/epochs", json!(3));
        bench.set("/data/eval", json!(folder.join("train.jsonl")));
        let ended = bench.train().expect(0);
        assert_eq!(ended.warnings(), ["1 sample could not be read so far, and was left out"]);
        assert_eq!(evals(&ended)[0].samples, 19);
    }
}

/// However many threads read, and however far ahead.
#[test]
fn skipped_samples_are_reported_at_the_same_step_every_time() {
    let run = |workers: u32, prefetch: u32| {
        let mut bench = bench(48, 1);
        for row in [2, 14, 40] {
            let path = bench.path(&format!("data/pictures/train-{row:06}.png"));
            fs::write(path, "no picture").unwrap();
        }
        bench.set("/data/workers", json!(workers)).set("/data/prefetch", json!(prefetch));
        bench.set("/data/skip_bad", json!(true)).set("/data/shuffle", json!(false));
        let story = |event: &EventKind| match event {
            EventKind::Warning(warning) => Some(warning.message.clone()),
            EventKind::Step(step) => Some(format!("{} of {}", step.loss, step.tokens)),
            _ => None,
        };
        bench.train().expect(0).events.iter().filter_map(story).collect::<Vec<String>>()
    };
    let first = run(1, 0);
    let count = |text: &str| first.iter().position(|line| line.starts_with(text)).unwrap();
    // Said of the first, and of all at the end of the first pass; the second is no news.
    assert_eq!((count("1 sample "), count("3 samples")), (0, 4), "{first:?}");
    assert!(!first.iter().any(|line| line.starts_with("2 samples")), "{first:?}");
    assert_eq!(first, run(3, 4));
}

#[test]
fn rows_that_are_no_pairs_are_named() {
    let mut bench = bench(12, 1);
    let data = bench.path("data");
    let write = |name: &str, text: &str| {
        fs::write(data.join(name), text).unwrap();
        json!(data.join(name))
    };
    let good = r#"{"image": "pictures/train-000000.png", "text": "a car"}"#;
    let other = crate::support::fixture().with_file_name("clip").join("tokenizer.json");
    let cases = [
        (
            "/data/train",
            write("a.jsonl", &format!("{good}\n{{\"image\": 3, \"text\": \"x\"}}")),
            "a.jsonl line 2: a picture by its number, and no images.safetensors in",
        ),
        (
            "/data/train",
            write("b.jsonl", &format!("{good}\n{{\"image\": [], \"text\": \"x\"}}")),
            "b.jsonl line 2: field \"image\" holds a list, not a path or the number of a picture",
        ),
        (
            "/data/train",
            write("c.jsonl", &format!("{good}\n{{\"text\": \"x\"}}")),
            "c.jsonl line 2: no field \"image\"; it has: text",
        ),
        (
            "/data/train",
            write("d.csv", "image,text\npictures/train-000000.png,x\nnowhere.png,y\n"),
            "d.csv line 3: the picture",
        ),
        ("/data/max_length", json!(1), "max_length 1 has no room for its 2 special tokens"),
        (
            "/model/config/text_config/eos_token_id",
            json!(50),
            "its texts have no token 50, which is the model's eos_token_id",
        ),
        (
            "/model/config/vision_config/num_channels",
            json!(1),
            "vision_config.num_channels: found 1; allowed where pictures are read: 3",
        ),
        ("/tokenizer", json!(other), "it has 400 tokens, the model's vocab_size is 96"),
    ];
    let spec = bench.spec.clone();
    for (pointer, value, want) in cases {
        bench.spec = spec.clone();
        let ended = bench.set(pointer, value).train().expect(3);
        assert!(ended.stderr.contains(want), "{}", ended.stderr);
    }
}

/// The fixture's pictures by number, its batch as a file of tensors, and what does not fit the model.
#[test]
fn prepared_pictures_are_found_by_number_or_ready_in_tensors() {
    let golden = crate::support::fixture().with_file_name("clip");
    let mut bench = Bench::golden();
    bench
        .set("/model", json!({ "arch": "clip", "from": golden }))
        .set("/tokenizer", json!(golden.join("tokenizer.json")));
    let train = |bench: &mut Bench, file: Value, run: &str| {
        bench.set("/data", json!({ "train": file, "shuffle": false }));
        afresh(bench, run);
        bench.set("/train/steps", json!(1));
        bench.train()
    };
    let want: Value = serde_json::from_slice(&fs::read(golden.join("expect.json")).unwrap()).unwrap();
    let csv: String = fs::read_to_string(golden.join("train.jsonl"))
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap())
        .map(|row| format!("{},{}\n", row["image"], row["text"]))
        .collect();
    let folder = bench.path("beside");
    fs::create_dir(&folder).unwrap();
    fs::copy(golden.join("images.safetensors"), folder.join("images.safetensors")).unwrap();
    fs::write(folder.join("rows.csv"), format!("image,text\n{csv}")).unwrap();
    fs::write(folder.join("far.csv"), "image,text\n0,a\n32,b\n").unwrap();
    fs::copy(golden.join("batch.safetensors"), folder.join("wrong.safetensors")).unwrap();
    for (run, file) in [
        ("numbers", golden.join("train.jsonl")),
        ("csv", folder.join("rows.csv")),
        ("ready", golden.join("batch.safetensors")),
    ] {
        let loss = train(&mut bench, json!(file), run).expect(0).curve()[0].1;
        assert!((loss - want["loss"].as_f64().unwrap()).abs() < 1e-5, "{run}: {loss}");
    }
    let far = train(&mut bench, json!(folder.join("far.csv")), "far").expect(3);
    assert!(
        far.stderr.contains("far.csv line 3: the picture 32: ") && far.stderr.contains("has 32 pictures"),
        "{}",
        far.stderr
    );

    let tower = json!({ "vocab_size": 400, "eos_token_id": 1, "max_position_embeddings": 19, "image_size": 64 });
    bench.set("/model", json!({ "arch": "clip", "config": { "text_config": tower, "vision_config": tower } }));
    let sizes = train(&mut bench, json!(golden.join("train.jsonl")), "sizes").expect(3);
    let want = "images.safetensors: pixel_values is F32 [32, 3, 32, 32]; the model wants F32 [pictures, 3, 64, 64]";
    assert!(sizes.stderr.contains(want), "{}", sizes.stderr);
    let length = train(&mut bench, json!(golden.join("batch.safetensors")), "length").expect(3);
    let want = "batch.safetensors: input_ids has 32 tokens a text; allowed: at most 19";
    assert!(length.stderr.contains(want), "{}", length.stderr);
}

#[test]
fn generated_pictures_are_the_same_every_time() {
    let bench = Bench::golden();
    let folders = [bench.path("a"), bench.path("b")];
    for folder in &folders {
        let args = ["data", "pictures", "--rows", "20", "--eval-rows", "2", "--seed", "1", "--size", "32", "--out"];
        assert!(trainer().args(args).arg(folder).status().unwrap().success());
    }
    let names = |folder: &Path| {
        let mut names: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    };
    assert_eq!(names(&folders[0]), ["eval.jsonl", "pictures", "tokenizer.json", "train.jsonl"]);
    let made = names(&folders[0].join("pictures"));
    assert_eq!((made.len(), names(&folders[1].join("pictures"))), (22, made.clone()));
    let files =
        made.iter().map(|name| Path::new("pictures").join(name)).chain(["train.jsonl".into(), "eval.jsonl".into()]);
    for file in files {
        assert!(
            fs::read(folders[0].join(&file)).unwrap() == fs::read(folders[1].join(&file)).unwrap(),
            "{}",
            file.display()
        );
    }
}

#[test]
fn a_share_of_the_rows_is_kept_for_evaluation() {
    let mut bench = bench(24, 1);
    bench.set("/data/eval", json!(null)).set("/data/eval_share", json!(0.25)).set("/data/skip_bad", json!(true));
    bench.set("/train/steps", json!(null)).set("/train/epochs", json!(1));
    let ended = bench.train().expect(0);
    assert_eq!(evals(&ended)[0].samples, 6);
    // A picture that cannot be read is missing on its own side alone.
    for entry in fs::read_dir(bench.path("data/pictures")).unwrap().flatten() {
        let name = entry.file_name().into_string().unwrap();
        if name.starts_with("train-") && name.contains('3') {
            fs::write(entry.path(), "no picture").unwrap();
        }
    }
    afresh(&mut bench, "again");
    let ended = bench.train().expect(0);
    let left_out: u64 = ended.warnings().last().map_or(0, |said| said.split(' ').next().unwrap().parse().unwrap());
    // 3, 13 and 23 of the 24.
    assert_eq!(left_out + 6 - evals(&ended)[0].samples, 3, "{:?}", ended.warnings());
}

/// Twenty pictures in two folders of classes; eight steps pass over them more than once.
fn pictures(arch: &str, config: serde_json::Value) -> Bench {
    let mut bench = Bench::golden();
    let data = bench.path("data");
    for number in 0..20u32 {
        let class = ["dawn", "dusk"][number as usize % 2];
        let path = data.join(format!("{class}/{number}.png"));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let level = |x: u32, y: u32| (x * (5 + number % 7) + y * 3 + 60 * (number % 2)) as u8;
        RgbImage::from_fn(24 + number, 30, |x, y| Rgb([level(x, y), level(y, x), 90])).save(path).unwrap();
    }
    bench.set("/tokenizer", json!(null)).set("/model", json!({ "arch": arch, "config": config }));
    bench.set("/data", json!({ "train": data, "eval": data, "augment": "crop-flip", "workers": 2 }));
    bench.set("/train/batch", json!(4)).set("/train/effective_batch", json!(4)).set("/train/steps", json!(8));
    bench
}

pub fn vit() -> Bench {
    let sizes = json!({
        "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24, "image_size": 16,
        "patch_size": 8,
    });
    let mut bench = pictures("vit", sizes);
    // As BERT: at twice the rate rounding has grown to 2e-5 after 30 steps.
    bench.set("/train/optimizer/lr", json!(1e-3));
    bench
}

pub fn resnet() -> Bench {
    let sizes = json!({
        "embedding_size": 4, "hidden_sizes": [4, 8], "depths": [1, 1], "layer_type": "basic", "image_size": 32,
    });
    pictures("resnet", sizes)
}

#[test]
fn a_resumed_run_ends_with_the_same_bits() {
    for mut bench in [vit(), resnet()] {
        bench.set("/save", json!({ "every": 3, "keep": 4 }));
        // The checkpoint lies in an epoch, and behind it is another one.
        bench.expect_the_same_bits_from(3);
    }
}

#[test]
fn an_epoch_sees_other_pictures_and_an_evaluation_does_not() {
    let run = |augment: &str, seed: u64| {
        let mut bench = resnet();
        // Twenty samples a step: each is an epoch. Without learning, only pictures can change the loss.
        bench.set("/train/batch", json!(20)).set("/train/effective_batch", json!(20)).set("/train/steps", json!(3));
        bench.set("/train/optimizer", json!({ "lr": 0.0 })).set("/data/augment", json!(augment));
        bench.set("/train/seed", json!(seed)).set("/data/shuffle", json!(false));
        crate::support::losses(&bench.train().expect(0))
    };
    let spread = |losses: &[f64]| furthest(losses, &[losses[0]; 3]);
    assert!(spread(&run("none", 1)) < 1e-6);
    for augment in ["crop", "flip"] {
        let found = run(augment, 1);
        assert!(spread(&found) > 1e-4, "{augment}: {found:?}");
        assert_eq!(found, run(augment, 1));
    }
}
