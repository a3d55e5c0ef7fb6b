//! The commands of `pipe-trainer-bench`. Those of this file time training steps on random data: the steps of a training, without its
//! data.

mod parity;
mod workload;

use std::time::Instant;

use pipe_spec::TrainerSpec;
use pipe_spec::pipeline::{Adapter, Checkpointing, Quantize};
use serde_json::{Map, Value, json};
use tch::Tensor;

use self::workload::{Bench, Repeated, StandIn, Workload};
use crate::boundary;
use crate::cli::{BenchArgs, BenchCommand};
use crate::data::Part;
use crate::device::Hardware;
use crate::error::TrainerError;
use crate::model::{Definition, Drawn, Mode, Model, Setup, Start};
use crate::optim::{Optimizer, Share};
use crate::torch::{self, CardMemory};
use crate::train::{Graphs, clip_factor, contrastive_backward};

const WARM_UP: usize = 5;

pub fn run(command: &BenchCommand) -> Result<(), TrainerError> {
    boundary::guard(|| match command {
        BenchCommand::Parity(args) => parity::parity(args),
        BenchCommand::DropoutMasks(args) => parity::dropout_masks(args),
        BenchCommand::QuantizedWeights(args) => parity::quantized_weights(args),
        BenchCommand::QuantizedProducts => parity::quantized_products(),
        BenchCommand::Steps(args) => time_steps(args),
    })
}

fn time_steps(args: &BenchArgs) -> Result<(), TrainerError> {
    let bench = Bench::asked(args)?;
    let spec = spec(args, &bench)?;
    let hardware = Hardware::prepare(&spec)?;
    let device = hardware.device;
    let dropout = args.model.lora_dropout;
    let adapter = args.model.lora.map(|rank| Adapter { rank, dropout, ..Adapter::default() });
    let definition = Definition::from_spec(&spec.model)?.with_adapter(adapter.as_ref())?;
    let definition = definition.with_quantized(quantize(args.model.quantize.as_deref())?);
    let model = definition.build(&Start::Random { seed: 1 }, &Setup::of(&spec.train, device))?;
    let optimizer = Optimizer::new(&spec.train, model.weights(), &Share::of(&spec.train, spec.rank, model.weights()))?;
    let stand_in = match (args.sums.rate, device) {
        (Some(gigabytes), tch::Device::Cuda(card)) => Some(StandIn::new(model.as_ref(), card, gigabytes, args)?),
        _ => None,
    };
    let workloads = Workload::all(args, &definition.task_data()?, model.as_ref(), device)?;
    let name = format!("pipe {} {}", args.model.name.as_deref().unwrap_or(&bench.arch), args.precision);
    let mut steps = Steps {
        model: model.as_ref(),
        optimizer,
        part: Part::default(),
        spec: &spec,
        graphs: None,
        stand_in,
        sums_after: args.sums.after,
    };
    for workload in workloads {
        steps.part = workload.part;
        let mut measured = steps.measure(args, &hardware)?;
        let what = json!({ "what": &name, "device": &hardware.name, "params": model.weights().count() });
        let tokens = (workload.tokens * args.accum) as f64 * 1000.0 / measured["ms"].as_f64().unwrap_or(f64::NAN);
        let rows = json!({ "rows": workload.rows, "padding": workload.padding, "tokens_per_s": tokens });
        for more in [what, rows] {
            measured.extend(more.as_object().cloned().unwrap_or_default());
        }
        println!("{}", Value::Object(measured));
    }
    Ok(())
}

/// How weights are kept, by its name in a pipeline.
fn quantize(name: Option<&str>) -> Result<Quantize, TrainerError> {
    let Some(name) = name else { return Ok(Quantize::None) };
    serde_json::from_value(name.into()).map_err(|error| TrainerError::config("--quantize", error.to_string()))
}

fn bytes(tensor: &Tensor) -> u64 {
    (tensor.numel() * tensor.kind().elt_size_in_bytes()) as u64
}

/// Everything that a timed step needs.
struct Steps<'a> {
    model: &'a dyn Model,
    optimizer: Optimizer,
    part: Part,
    spec: &'a TrainerSpec,
    graphs: Option<Graphs<'a>>,
    stand_in: Option<StandIn>,
    /// Whether the last part is a graph too, and all is summed after it.
    sums_after: bool,
}

/// The phases of a step, in order.
const FORWARD: usize = 0;
const BACKWARD: usize = 1;
const UPDATE: usize = 2;

impl<'a> Steps<'a> {
    /// Times steps, and takes one more apart.
    fn measure(&mut self, args: &BenchArgs, hardware: &'a Hardware) -> Result<Map<String, Value>, TrainerError> {
        if hardware.device.is_cuda() {
            torch::empty_cache()?;
            hardware.reset_peaks()?;
        }
        self.graphs = if args.no_graphs { None } else { Graphs::new(hardware, self.model)? };
        let mut times = Vec::new();
        for step in 1..=(WARM_UP + args.steps) as u64 {
            let clock = Instant::now();
            let loss = self.one(step, &mut |_| Ok(()))?;
            if !loss.is_finite() {
                return Err(TrainerError::NotFinite { step, what: "loss", value: loss });
            }
            times.push(clock.elapsed().as_secs_f64() * 1000.0);
        }
        let whole = hardware.card_memory()?;
        if let Some(path) = &args.trace {
            torch::trace_begin()?;
            self.one(2, &mut |_| Ok(()))?;
            torch::trace_end(path)?;
        }
        // Once more kernel by kernel with a wait after each phase, to see where time and memory go.
        self.graphs = None;
        self.model.weights().forget_gradients()?;
        let mut phases = Phases::begin(hardware)?;
        self.one(1, &mut |phase| phases.ended(phase))?;
        self.model.weights().forget_gradients()?;
        let mut measured = times.split_off(WARM_UP);
        measured.sort_by(f64::total_cmp);
        let ms = measured[measured.len() / 2];
        Ok(self.figures(args, ms, &whole, &phases).as_object().cloned().unwrap_or_default())
    }

    fn figures(&self, args: &BenchArgs, ms: f64, whole: &CardMemory, phases: &Phases<'_>) -> Value {
        let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
        let [forward, backward, update] = phases.all;
        let sums =
            self.stand_in.as_ref().map(|stand_in| json!({ "buckets": stand_in.buckets(), "early": stand_in.early }));
        json!({
            "ms": ms,
            "peak_allocated": gib(whole.peak_allocated),
            "peak_reserved": gib(whole.peak_reserved),
            "samples_per_s": (args.batch * args.accum) as f64 * 1000.0 / ms,
            "forward_ms": forward.ms,
            "backward_ms": backward.ms,
            "optimizer_ms": update.ms,
            "sums": sums,
            // Bytes: of the training's state, held between steps, held after each phase, and the most in each.
            "memory": {
                "weights": self.model.weights().bytes(),
                "optimizer": self.optimizer.tensors().iter().map(|(_, tensor)| bytes(tensor)).sum::<u64>(),
                "between": phases.between,
                "after_forward": forward.held,
                "after_backward": backward.held,
                "forward": forward.peak,
                "backward": backward.peak,
                "update": update.peak,
                "peak": whole.peak_allocated,
                "reserved": whole.peak_reserved,
            },
        })
    }

    /// One step, which calls `after` at the end of each phase.
    fn one(
        &mut self,
        step: u64,
        after: &mut impl FnMut(usize) -> Result<(), TrainerError>,
    ) -> Result<f64, TrainerError> {
        let Self { model, optimizer, part, spec, graphs, stand_in, sums_after } = self;
        let train = &spec.train;
        if let Some(stand_in) = stand_in {
            stand_in.begin(model.weights())?;
        }
        match graphs {
            Some(graphs) => graphs.begin_step(model.weights(), train.accum() as usize, stand_in.is_some())?,
            None if stand_in.is_some() => {}
            None => model.weights().forget_gradients()?,
        }
        let drawn = Drawn::new(step, 0);
        let mode = Mode::Train(drawn);
        let parts = Repeated { part, count: train.accum() as usize, mode };
        let mut losses = Vec::new();
        match model.contrastive() {
            Some(contrastive) => {
                let mean = contrastive_backward(contrastive, &parts, 1.0)?;
                after(BACKWARD)?;
                losses.push(mean);
            }
            None => {
                let targets = (part.get("labels")?.numel() * parts.count) as f64;
                for index in 0..parts.count {
                    let watched = stand_in.as_ref().filter(|_| index + 1 == parts.count && !*sums_after);
                    let launched = graphs
                        .as_ref()
                        .filter(|_| watched.is_none())
                        .map(|graphs| graphs.launch(*model, part, drawn, 1.0 / targets));
                    let sum = match launched.transpose()?.flatten() {
                        Some(sum) => sum,
                        None => {
                            let sum = model.loss_sum(part, mode)?;
                            after(FORWARD)?;
                            watched
                                .map_or(Ok(()), |stand_in| stand_in.watch(train.checkpointing == Checkpointing::On))?;
                            sum.f_mul_scalar(1.0 / targets)?.f_backward()?;
                            after(BACKWARD)?;
                            sum
                        }
                    };
                    losses.push(sum.f_detach()?.f_div_scalar(targets)?);
                }
                if let Some(why) = graphs.as_ref().and_then(Graphs::take_refusal) {
                    tracing::warn!("no CUDA graphs: {why}");
                }
            }
        }
        if let Some(stand_in) = stand_in {
            stand_in.finish()?;
        }
        let gradients = model.weights().gradients()?;
        let norm = torch::total_norm(&gradients)?;
        let scale = clip_factor(&norm, train.clip)?;
        optimizer.update(model.weights(), &gradients, &scale, train.optimizer.lr, step)?;
        if let Some(graphs) = graphs {
            graphs.forget_used(model.weights())?;
        }
        after(UPDATE)?;
        losses.iter().map(|loss| Ok(loss.f_double_value(&[])?)).sum()
    }
}

/// Time and memory of the phases of one step.
struct Phases<'a> {
    hardware: &'a Hardware,
    clock: Instant,
    between: u64,
    all: [PhaseCost; 3],
}

#[derive(Clone, Copy, Default)]
struct PhaseCost {
    ms: f64,
    held: u64,
    peak: u64,
}

impl<'a> Phases<'a> {
    fn begin(hardware: &'a Hardware) -> Result<Self, TrainerError> {
        let mut begun = Self { hardware, clock: Instant::now(), between: 0, all: [PhaseCost::default(); 3] };
        if hardware.device.is_cuda() {
            hardware.synchronize();
            begun.between = hardware.card_memory()?.allocated;
            hardware.reset_peaks()?;
        }
        Ok(begun)
    }

    fn ended(&mut self, phase: usize) -> Result<(), TrainerError> {
        let cost = &mut self.all[phase];
        if self.hardware.device.is_cuda() {
            self.hardware.synchronize();
            let card = self.hardware.card_memory()?;
            cost.held = card.allocated;
            cost.peak = cost.peak.max(card.peak_allocated);
            self.hardware.reset_peaks()?;
        }
        cost.ms += self.clock.elapsed().as_secs_f64() * 1000.0;
        self.clock = Instant::now();
        Ok(())
    }
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
            "steps": 1, "batch": args.batch, "effective_batch": args.batch * args.accum, "precision": args.precision,
            "optimizer": { "kind": args.optimizer }, "schedule": {}, "clip": 1.0, "checkpointing": args.checkpointing, "dropout": bench.dropout,
            "seed": 1, "deterministic": false,
        },
        "memory": memory, "evaluate": {}, "save": {},
    });
    serde_json::from_value(spec).map_err(|error| TrainerError::config("bench", error.to_string()))
}
