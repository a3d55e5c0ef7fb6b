//! Pictures with a class, which change in every epoch: that the change depends on nothing but seed, epoch and row.

use std::fs;

use crate::support::{Bench, furthest, losses};
use image::{Rgb, RgbImage};
use serde_json::json;

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
        losses(&bench.train().expect(0))
    };
    let spread = |losses: &[f64]| furthest(losses, &[losses[0]; 3]);
    assert!(spread(&run("none", 1)) < 1e-6);
    for augment in ["crop", "flip"] {
        let found = run(augment, 1);
        assert!(spread(&found) > 1e-4, "{augment}: {found:?}");
        assert_eq!(found, run(augment, 1));
    }
}
