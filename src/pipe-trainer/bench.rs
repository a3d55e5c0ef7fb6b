//! Training steps on random tokens, timed: `pipe-trainer bench`. The steps are those of a training, without its data.

use std::time::Instant;

use pipe_spec::TrainerSpec;
use serde_json::{Value, json};
use tch::{Device, Kind, Tensor};

use crate::cli::BenchArgs;
use crate::data::Part;
use crate::device::Hardware;
use crate::error::TrainerError;
use crate::model::{Definition, Mode, Model, Setup, Start};
use crate::optimizer::Optimizer;
use crate::torch;
use crate::train::clip_factor;

const WARM_UP: usize = 5;

pub fn bench(args: &BenchArgs) -> Result<(), TrainerError> {
    let bench = Bench::named(&args.model)?;
    let spec = spec(args, &bench)?;
    let hardware = Hardware::prepare(&spec)?;
    let device = hardware.device;
    let definition = Definition::from_spec(&spec.model)?;
    let model = definition.build(&Start::Random { seed: 1 }, &Setup::of(&spec.train, device))?;
    let mut optimizer = Optimizer::new(&spec.train, model.weights())?;
    let part = random_part(args, &bench, device)?;

    let mut times = Vec::new();
    let mut phases = [0.0; 3];
    for step in 1..=(WARM_UP + args.steps) as u64 {
        let clock = Instant::now();
        let loss = one_step(model.as_ref(), &mut optimizer, &part, &spec, step, &mut |_| ())?;
        if !loss.is_finite() {
            return Err(TrainerError::NotFinite { step, what: "loss", value: loss });
        }
        times.push(clock.elapsed().as_secs_f64() * 1000.0);
    }
    // Once more with a wait after each phase, to see where the time goes.
    let mut clock = Instant::now();
    one_step(model.as_ref(), &mut optimizer, &part, &spec, 1, &mut |phase| {
        if device.is_cuda() {
            tch::Cuda::synchronize(0);
        }
        phases[phase] = clock.elapsed().as_secs_f64() * 1000.0;
        clock = Instant::now();
    })?;
    if let Some(path) = &args.trace {
        torch::trace_begin()?;
        one_step(model.as_ref(), &mut optimizer, &part, &spec, 2, &mut |_| ())?;
        torch::trace_end(path)?;
    }
    let mut measured = times.split_off(WARM_UP);
    measured.sort_by(f64::total_cmp);
    let ms = measured[measured.len() / 2];
    let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
    let card = if device.is_cuda() { torch::card_memory()? } else { torch::CardMemory::default() };
    println!(
        "{}",
        json!({
            "what": format!("pipe {} {}", args.model, args.precision),
            "ms": ms,
            "peak_allocated": gib(card.peak_allocated),
            "peak_reserved": gib(card.peak_reserved),
            "samples_per_s": args.batch as f64 * 1000.0 / ms,
            "forward_ms": phases[0],
            "backward_ms": phases[1],
            "optimizer_ms": phases[2],
            "params": model.weights().count(),
            "device": hardware.name,
        })
    );
    Ok(())
}

fn one_step(
    model: &dyn Model,
    optimizer: &mut Optimizer,
    part: &Part,
    spec: &TrainerSpec,
    step: u64,
    after: &mut impl FnMut(usize),
) -> Result<f64, TrainerError> {
    model.weights().forget_gradients()?;
    let mode = Mode::Train { seed: step };
    let loss = match model.contrast() {
        Some(contrast) => contrast.loss(&contrast.embed(part, mode)?)?,
        None => model.loss_sum(part, mode)?.f_div_scalar(part.get("labels")?.numel() as f64)?,
    };
    after(0);
    loss.f_backward()?;
    after(1);
    let gradients = model.weights().gradients()?;
    let norm = torch::total_norm(&gradients)?;
    let scale = clip_factor(&norm, spec.train.clip)?;
    optimizer.update(model.weights(), &gradients, &scale, spec.train.optimizer.lr, step)?;
    after(2);
    Ok(loss.f_double_value(&[])?)
}

/// Random tokens, pictures and labels.
fn random_part(args: &BenchArgs, bench: &Bench, device: Device) -> Result<Part, TrainerError> {
    tch::manual_seed(1);
    let words = |length: i64| {
        Tensor::f_randint_low(2, bench.vocabulary, [args.batch, length], (Kind::Int64, Device::Cpu))?
            .f_to_device(device)
    };
    let part = Part::default();
    Ok(match bench.arch {
        "t5" => {
            let input_ids = words(args.source)?;
            part.with("input_ids", input_ids).with("labels", words(args.target)?)
        }
        "clip" => {
            let pixels = Tensor::f_randn([args.batch, 3, 224, 224], (Kind::Float, device))?;
            part.with("input_ids", words(77)?).with("pixel_values", pixels)
        }
        "mu-sota" => {
            let ids = words(args.source)?;
            part.with("labels", ids.shallow_clone()).with("ids", ids)
        }
        _ => {
            let labels = Tensor::f_randint_low(0, 2, [args.batch], (Kind::Int64, Device::Cpu))?.f_to_device(device)?;
            part.with("input_ids", words(args.source)?).with("labels", labels)
        }
    })
}

/// The spec of a training that would take these steps.
fn spec(args: &BenchArgs, bench: &Bench) -> Result<TrainerSpec, TrainerError> {
    let device = if args.cpu { "cpu" } else { "cuda" };
    let memory = match &args.limit {
        Some(limit) => json!({ "limit": limit, "allocator": { "expandable_segments": true } }),
        None => json!({ "allocator": { "expandable_segments": true } }),
    };
    let spec = json!({
        "version": TrainerSpec::VERSION, "run": "", "attempt": 1, "device": device, "threads": null,
        "model": { "arch": bench.arch, "config": bench.config },
        "data": { "train": "" },
        "train": {
            "steps": 1, "batch": args.batch, "effective_batch": args.batch, "precision": args.precision,
            "optimizer": {}, "schedule": {}, "clip": 1.0, "checkpointing": args.checkpointing, "dropout": bench.dropout,
            "seed": 1, "deterministic": false,
        },
        "memory": memory, "evaluate": {}, "save": {},
    });
    serde_json::from_value(spec)
        .map_err(|error| TrainerError::Config { key: "bench".to_owned(), message: error.to_string() })
}

/// A model of a published size.
struct Bench {
    arch: &'static str,
    config: Value,
    vocabulary: i64,
    dropout: f64,
}

const MODELS: &str = "t5-small, t5-base, t5-large, t5-xl, bert-base, bert-large, clip-vit-b-32, mu-sota";

impl Bench {
    fn named(name: &str) -> Result<Self, TrainerError> {
        let t5 = |d_model: i64, d_ff: i64, layers: i64, heads: i64| Self {
            arch: "t5",
            // Version 1.1.
            config: json!({
                "d_model": d_model, "d_ff": d_ff, "d_kv": 64, "num_layers": layers, "num_heads": heads,
                "vocab_size": 32128, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": false,
            }),
            vocabulary: 32128,
            dropout: 0.1,
        };
        let bert = |width: i64, layers: i64, heads: i64| Self {
            arch: "bert",
            config: json!({
                "hidden_size": width, "intermediate_size": 4 * width, "num_hidden_layers": layers,
                "num_attention_heads": heads, "vocab_size": 30522,
            }),
            vocabulary: 30522,
            dropout: 0.1,
        };
        Ok(match name {
            "t5-small" => t5(512, 1024, 8, 6),
            "t5-base" => t5(768, 2048, 12, 12),
            "t5-large" => t5(1024, 2816, 24, 16),
            "t5-xl" => t5(2048, 5120, 24, 32),
            "bert-base" => bert(768, 12, 12),
            "bert-large" => bert(1024, 24, 16),
            // The defaults of its config are this size; it drops nothing.
            "clip-vit-b-32" => Self { arch: "clip", config: json!({}), vocabulary: 49408, dropout: 0.0 },
            "mu-sota" => Self { arch: "mu-sota", config: json!({}), vocabulary: 50257, dropout: 0.1 },
            _ => {
                let message = format!("found {name:?}; allowed: {MODELS}");
                return Err(TrainerError::Config { key: "--model".to_owned(), message });
            }
        })
    }
}
