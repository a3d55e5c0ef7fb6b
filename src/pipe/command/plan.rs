//! `pipe plan`: computes the memory of a training before anything is started.

use std::num::NonZeroU32;
use std::path::PathBuf;

use pipe_spec::pipeline::Pipeline;
use pipe_spec::text::{ByteSize, human_bytes};
use serde_json::json;

use crate::error::Error;
use crate::execute::launch::expected_ranks;
use crate::fit::{self, Forecast, Forecaster, NoForecast, Target};
use crate::gpu::Card;
use crate::input::load;
use crate::report::{Output, Reporter, Table, grouped, print, print_json, times_ranks};

pub struct PlanOptions {
    pub file: PathBuf,
    pub set: Vec<String>,
    pub gpu: Option<String>,
    pub memory: Option<ByteSize>,
    /// Trainer processes, each with such a card.
    pub ranks: Option<NonZeroU32>,
    pub output: Output,
}

pub fn run(options: &PlanOptions) -> Result<(), Error> {
    let parsed = load::parse(&options.file, &options.set)?;
    let config = load::planned_config(&parsed, Reporter::new(options.output).fetch_progress())?;
    let card = target(options, &parsed.pipeline)?;
    let training = parsed.pipeline.training().ok_or(Error::NotATraining)?;
    let ranks = options.ranks.map_or_else(|| expected_ranks(&parsed.pipeline), u32::from);
    let effective_batch = training.train.effective_batch;
    if ranks > effective_batch {
        return Err(Error::IdleRanks { ranks, effective_batch });
    }
    let forecast = match Forecaster::new(training, &config).with_ranks(ranks).forecast(card) {
        Ok(forecast) => forecast,
        Err(NoForecast::Config(error)) => return Err(Error::NoPlan { reason: error.to_string() }),
        Err(none @ NoForecast::NoEstimate { .. }) => {
            let text = none.to_string();
            if options.output.is_json() {
                print_json(&json!({ "estimate": null, "reason": text }))
            } else {
                print(&text)
            }
            return Ok(());
        }
    };
    if options.output.is_json() {
        print_json(&forecast);
    } else {
        show(&parsed.pipeline, &forecast);
    }
    Ok(())
}

/// The card that is named, or the one that is here.
fn target(options: &PlanOptions, pipeline: &Pipeline) -> Result<Option<Target>, Error> {
    let named = match &options.gpu {
        None => None,
        Some(name) => Some(fit::find(name).ok_or_else(|| Error::NoPlan {
            reason: format!("unknown card {name:?}; known cards: {}; --memory takes any size", fit::names()),
        })?),
    };
    Ok(match (named, options.memory) {
        (Some((name, _)), Some(size)) => Some(Target { name: name.to_owned(), total: size.0 }),
        (Some((name, total)), None) => Some(Target { name: name.to_owned(), total }),
        (None, Some(size)) => Some(Target { name: format!("a card of {}", human_bytes(size.0)), total: size.0 }),
        (None, None) => Card::read(&pipeline.container.gpus)
            .into_iter()
            // The smallest of several cards decides.
            .min_by_key(|card| card.total)
            .map(|card| Target { name: card.name, total: card.total }),
    })
}

fn show(pipeline: &Pipeline, forecast: &Forecast) {
    let Forecast { params, batch, accum, peak, breakdown, .. } = forecast;
    let (name, params, on_ranks) = (&pipeline.name, grouped(*params), times_ranks(forecast.ranks));
    print(&format!("{name}: {params} parameters, batch {batch} x accum {accum}{on_ranks}"));
    let mut parts = Table::new(&["part", "memory"]);
    for (name, bytes) in [
        ("weights", breakdown.weights),
        ("gradients", breakdown.gradients),
        ("optimizer", breakdown.optimizer),
        ("activations", breakdown.activations),
        ("logits", breakdown.logits),
        ("workspace", breakdown.workspace),
        ("context", breakdown.context),
        ("peak", *peak),
    ] {
        parts.row(vec![name.to_owned(), human_bytes(bytes)]);
    }
    print(&format!("\n{}\n\npeak memory is in the {}", parts.on_stdout(), forecast.moment));
    print(&verdict(forecast));
    for change in &forecast.changes {
        let accum = pipe_spec::pipeline::accum(forecast.effective_batch, change.batch, forecast.ranks);
        let what = format!("batch {} x accum {accum}{on_ranks}, peak {}", change.batch, human_bytes(change.peak));
        print(&format!("  it would fit with {} ({what})", change.change));
    }
    forecast.notes.iter().for_each(|note| print(&format!("note: {note}")));
    let mut table = Table::new(&["card", "batch", "accum", "peak"]);
    for row in &forecast.table {
        let number = |number: Option<u32>| number.map_or("-".to_owned(), |number| number.to_string());
        let peak = match row.batch {
            Some(_) => human_bytes(row.peak),
            None => format!("{} with a single sample", human_bytes(row.peak)),
        };
        table.row(vec![format!("{} GB", row.gib), number(row.batch), number(row.accum), peak]);
    }
    let table = table.on_stdout();
    let each = match forecast.ranks {
        1 => String::new(),
        ranks => format!(" on each of {ranks} cards"),
    };
    print(&format!("\nthe largest batch{each} for an effective batch of {}:\n{table}", forecast.effective_batch));
}

fn verdict(forecast: &Forecast) -> String {
    let (Some(capacity), Some(fits)) = (forecast.capacity, forecast.fits) else {
        return "No GPU found. Use --gpu or --memory to test a size.".to_owned();
    };
    let limited = |total: u64| if capacity < total { ", by memory.limit" } else { "" };
    let card = forecast
        .card
        .as_ref()
        .map_or("by memory.limit".to_owned(), |card| format!("{}{}", card.name, limited(card.total)));
    let each = match forecast.ranks {
        1 => String::new(),
        ranks => format!(" on each of {ranks} cards"),
    };
    let of = format!("{} of {} ({card}){each}", human_bytes(forecast.peak), human_bytes(capacity));
    match (fits, forecast.changes.is_empty()) {
        (true, _) => format!("{of}: fits"),
        (false, false) => format!("{of}: does not fit"),
        (false, true) => format!("{of}: does not fit, and no single change that pipe knows would help"),
    }
}
