//! The memory of a run as `pipe plan` predicts it, and as it was measured.

use std::fmt::Write;
use std::num::NonZeroU32;

use pipe_spec::Variables;
use pipe_spec::pipeline::{BatchSetting, Limit};
use pipe_spec::text::{ByteSize, human_bytes};

use super::markup::{escape, table};
use crate::engine::registry;
use crate::fit::{Forecast, Forecaster};
use crate::run::Record;

/// The section; nothing where no prediction can be made. On the CPU none is: what `pipe plan` predicts is tensors on a card,
/// and what is measured is the whole process.
pub fn section(run: &Record, variables: &Variables) -> String {
    if on_cpu(run) {
        return String::new();
    }
    let Some(forecast) = forecast(run, variables) else { return String::new() };
    let measured = run.peak_memory();
    let capacity = run.history.capacity();
    let mut html = "<section id=\"memory\"><h2>Memory, predicted and measured</h2>".to_owned();
    let ranks = match forecast.ranks {
        1 => String::new(),
        ranks => format!(" &times; {ranks} ranks, on each card"),
    };
    let batch = format!("batch {} &times; accum {}{ranks}", forecast.batch, forecast.accum);
    let limit =
        capacity.map_or(String::new(), |bytes| format!(" The dashed line is the capacity, {}.", human_bytes(bytes)));
    let moment = escape(&forecast.moment);
    write!(html, "<p>What <code>pipe plan</code> predicts for {batch}; peak memory is in the {moment}.{limit}</p>")
        .ok();
    html.push_str(&bars(&forecast, measured, capacity));
    let mut rows: Vec<Vec<String>> =
        parts(&forecast).iter().enumerate().map(|(index, (name, bytes))| row(index, name, *bytes)).collect();
    rows.push(vec!["<b>predicted peak</b>".to_owned(), format!("<b>{}</b>", human_bytes(forecast.allocated))]);
    if let Some(measured) = measured {
        let off = (measured as f64 / forecast.allocated.max(1) as f64 - 1.0) * 100.0;
        let off = if off.abs() < 1000.0 { format!(" ({off:+.1}%)") } else { String::new() };
        rows.push(vec!["<b>measured peak</b>".to_owned(), format!("<b>{}</b>{off}", human_bytes(measured))]);
    }
    html.push_str(&table(&["part", "memory"], &rows));
    for note in notes(run, &forecast) {
        write!(html, "<p class=\"note\">{}</p>", escape(&note)).ok();
    }
    html.push_str("</section>\n");
    html
}

/// The forecast for the batch that the run ended with.
fn forecast(run: &Record, variables: &Variables) -> Option<Forecast> {
    let mut pipeline = registry::parse_pipeline(run.resolved.as_ref()?, &[], variables).ok()?;
    let training = pipeline.training_mut()?;
    let config = training.model.config.clone().or_else(|| run.config.clone())?;
    let last = run.state.as_ref().and_then(|state| state.attempts().last());
    if let Some(batch) = last.and_then(|attempt| NonZeroU32::new(attempt.batch)) {
        training.train.batch = BatchSetting::Fixed(batch);
    }
    // `checkpointing: auto` depends on the capacity.
    training.memory.limit = run.history.capacity().map(|bytes| Limit::Size(ByteSize(bytes)));
    let ranks = run.history.started.last().map_or(1, |(_, started)| started.ranks.max(1));
    Forecaster::new(training, &config).with_ranks(ranks).forecast(None).ok()
}

fn parts(forecast: &Forecast) -> [(&'static str, u64); 6] {
    let parts = &forecast.breakdown;
    [
        ("weights", parts.weights),
        ("gradients", parts.gradients),
        ("optimizer", parts.optimizer),
        ("activations", parts.activations),
        ("logits", parts.logits),
        ("workspace", parts.workspace),
    ]
}

fn row(index: usize, name: &str, bytes: u64) -> Vec<String> {
    vec![format!("<span class=\"swatch f{index}\"></span>{name}"), human_bytes(bytes)]
}

/// Two bars, one made of parts, and a line where the device ends.
fn bars(forecast: &Forecast, measured: Option<u64>, capacity: Option<u64>) -> String {
    const LEFT: f64 = 84.0;
    const WIDTH: f64 = 640.0 - LEFT - 6.0;
    let longest = [forecast.allocated, measured.unwrap_or(0), capacity.unwrap_or(0)].into_iter().max().unwrap_or(0);
    let wide = |bytes: u64| bytes as f64 / longest.max(1) as f64 * WIDTH;
    let mut svg = "<svg class=\"bars\" viewBox=\"0 0 640 86\" role=\"img\">".to_owned();
    svg.push_str("<title>Predicted and measured peak memory</title>");
    svg.push_str("<text class=\"end\" x=\"76\" y=\"27\">predicted</text>");
    let mut x = LEFT;
    for (index, (name, bytes)) in parts(forecast).iter().enumerate() {
        let width = wide(*bytes);
        write!(svg, "<rect class=\"f{index}\" x=\"{x:.1}\" y=\"10\" width=\"{width:.1}\" height=\"26\">").ok();
        write!(svg, "<title>{name}: {}</title></rect>", human_bytes(*bytes)).ok();
        x += width;
    }
    if let Some(measured) = measured {
        let width = wide(measured);
        svg.push_str("<text class=\"end\" x=\"76\" y=\"65\">measured</text>");
        write!(svg, "<rect class=\"measured\" x=\"{LEFT}\" y=\"48\" width=\"{width:.1}\" height=\"26\">").ok();
        write!(svg, "<title>measured: {}</title></rect>", human_bytes(measured)).ok();
    }
    if let Some(capacity) = capacity {
        let x = LEFT + wide(capacity);
        write!(svg, "<g class=\"level\"><title>capacity: {}</title>", human_bytes(capacity)).ok();
        write!(svg, "<path d=\"M{x:.1} 2V82\"/></g>").ok();
    }
    svg.push_str("</svg>");
    svg
}

fn notes(run: &Record, forecast: &Forecast) -> Vec<String> {
    let context = human_bytes(forecast.breakdown.context);
    let mut notes = vec![format!(
        "Both are what torch's allocator hands out; the process holds about {context} of the card beside it."
    )];
    let changed = run.state.iter().flat_map(|state| state.attempts().last()).flat_map(|attempt| &attempt.changes);
    let changed: Vec<&str> = changed.map(String::as_str).collect();
    if !changed.is_empty() {
        notes.push(format!(
            "Predicted for the pipeline as it was asked for; the run had changed: {}.",
            changed.join(", ")
        ));
    }
    notes.extend(forecast.notes.iter().map(|note| format!("Note: {note}.")));
    notes
}

fn on_cpu(run: &Record) -> bool {
    run.history.started.last().is_some_and(|(_, started)| started.device == "cpu")
}
