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
const VOCABULARY: i64 = 32128;

pub fn bench(args: &BenchArgs) -> Result<(), TrainerError> {
    let spec = spec(args)?;
    let hardware = Hardware::prepare(&spec)?;
    let device = hardware.device;
    let definition = Definition::from_spec(&spec.model)?;
    let model = definition.build(&Start::Random { seed: 1 }, &Setup::of(&spec.train, device))?;
    let mut optimizer = Optimizer::new(&spec.train, model.weights())?;
    let part = random_part(args, device)?;

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
            "what": format!("pipe {} {}", args.size, args.precision),
            "ms": ms,
            "peak_allocated": gib(card.peak_allocated),
            "peak_reserved": gib(card.peak_reserved),
            "tokens_per_s": (args.batch * (args.source + args.target)) as f64 * 1000.0 / ms,
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
    let tokens = part.get("labels")?.numel() as f64;
    let loss = model.loss_sum(part, Mode::Train { seed: step })?.f_div_scalar(tokens)?;
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

fn random_part(args: &BenchArgs, device: Device) -> Result<Part, TrainerError> {
    tch::manual_seed(1);
    let words = |length: i64| {
        Tensor::f_randint_low(2, VOCABULARY, [args.batch, length], (Kind::Int64, Device::Cpu))?.f_to_device(device)
    };
    let input_ids = words(args.source)?;
    Ok(Part::default()
        .with("attention_mask", input_ids.f_ones_like()?)
        .with("input_ids", input_ids)
        .with("labels", words(args.target)?))
}

/// The spec of a training that would take these steps.
fn spec(args: &BenchArgs) -> Result<TrainerSpec, TrainerError> {
    let device = if args.cpu { "cpu" } else { "cuda" };
    let memory = match &args.limit {
        Some(limit) => json!({ "limit": limit, "allocator": { "expandable_segments": true } }),
        None => json!({ "allocator": { "expandable_segments": true } }),
    };
    let spec = json!({
        "version": TrainerSpec::VERSION, "run": "", "attempt": 1, "device": device, "threads": null,
        "model": { "arch": "t5", "config": config(&args.size)? },
        "data": { "train": "" },
        "train": {
            "steps": 1, "batch": args.batch, "effective_batch": args.batch, "precision": args.precision,
            "optimizer": {}, "schedule": {}, "clip": 1.0, "checkpointing": args.checkpointing, "dropout": 0.1,
            "seed": 1, "deterministic": false,
        },
        "memory": memory, "evaluate": {}, "save": {},
    });
    serde_json::from_value(spec)
        .map_err(|error| TrainerError::Config { key: "bench".to_owned(), message: error.to_string() })
}

/// The published sizes of T5 1.1.
fn config(size: &str) -> Result<Value, TrainerError> {
    let (d_model, d_ff, layers, heads) = match size {
        "small" => (512, 1024, 8, 6),
        "base" => (768, 2048, 12, 12),
        "large" => (1024, 2816, 24, 16),
        "xl" => (2048, 5120, 24, 32),
        _ => {
            let message = format!("found {size:?}; allowed: small, base, large, xl");
            return Err(TrainerError::Config { key: "--size".to_owned(), message });
        }
    };
    Ok(json!({
        "d_model": d_model, "d_ff": d_ff, "d_kv": 64, "num_layers": layers, "num_heads": heads, "vocab_size": 32128,
        "feed_forward_proj": "gated-gelu", "tie_word_embeddings": false,
    }))
}
