//! `pipe predict`: the rows of a file through a trained model.

use std::num::NonZeroU32;
use std::path::PathBuf;

use pipe_spec::trainer::Predicted;
use serde_json::json;

use crate::engine::registry;
use crate::error::Error;
use crate::execute::predict::{Destination, Job, Rows, Subject, work_folder};
use crate::report::{Output, Reporter, figure, grouped, print_json};
use crate::system::interrupt::Interrupts;

pub struct PredictOptions {
    /// A run, or the folder of a model.
    pub subject: String,
    pub data: Vec<String>,
    /// Absent for stdout.
    pub out: Option<PathBuf>,
    pub fields: Vec<(String, String)>,
    pub keep: Vec<String>,
    pub skip_bad: bool,
    pub batch: Option<NonZeroU32>,
    pub max_length: Option<NonZeroU32>,
    pub beams: Option<NonZeroU32>,
    pub cpu: bool,
    pub engine: Option<String>,
    pub no_queue: bool,
    pub output: Output,
}

pub fn run(options: &PredictOptions) -> Result<(), Error> {
    if options.output.is_json() && options.out.is_none() {
        return Err(Error::NoSummaryPlace);
    }
    let mut subject = Subject::find(&options.subject)?;
    change(&mut subject, options)?;
    super::runtime()?.block_on(predict(subject, options))
}

/// Replaces settings of the training by those of the command line.
fn change(subject: &mut Subject, options: &PredictOptions) -> Result<(), Error> {
    for (role, column) in &options.fields {
        subject.set_field(role, column)?;
    }
    let settings = &mut subject.settings;
    settings.data.skip_bad |= options.skip_bad;
    settings.evaluate.batch = options.batch.or(settings.evaluate.batch);
    if let Some(length) = options.max_length {
        (settings.data.max_target, settings.evaluate.max_tokens) = (length, length);
    }
    if let Some(beams) = options.beams {
        settings.evaluate.beams = beams;
    }
    Ok(())
}

async fn predict(subject: Subject, options: &PredictOptions) -> Result<(), Error> {
    let mut interrupts = Interrupts::listen()?;
    let mut reporter = Reporter::new(options.output);
    let destination = Destination::find(options.out.as_deref())?;
    let folder = work_folder(&destination)?;
    let rows =
        Rows::find(&options.data, &subject, &options.keep, folder.path(), &mut reporter, &mut interrupts).await?;
    let wanted = options.engine.as_deref().or(subject.engine.as_deref());
    let engine = registry::choose(wanted, &subject.engine_request, &reporter).await?;
    let job = Job { subject: &subject, rows: &rows, keep: &options.keep, folder: folder.path() };
    let predicted = job.run(engine.as_ref(), options.cpu, options.no_queue, &mut reporter, &mut interrupts).await?;
    destination.take(&job.output())?;
    if options.output.is_json() {
        print_json(&json!({
            "model": subject.model, "run": subject.run, "engine": engine.name(), "out": options.out, "predicted": predicted,
        }));
    }
    summary(&predicted, &destination).iter().for_each(|line| reporter.note(line));
    Ok(())
}

/// A summary for people: the number of predictions, and the evaluation where rows have labels.
fn summary(predicted: &Predicted, destination: &Destination) -> Vec<String> {
    let skipped = match predicted.skipped {
        0 => String::new(),
        count => format!(", {} skipped", grouped(count)),
    };
    let noun = if predicted.predictions == 1 { "prediction" } else { "predictions" };
    let (count, seconds) = (grouped(predicted.predictions), predicted.ms / 1000.0);
    let device = &predicted.device;
    let mut lines = vec![format!("{count} {noun}{skipped} on {device} in {seconds:.1}s{}", destination.suffix())];
    if let Some(evaluation) = &predicted.evaluation {
        let noun = if evaluation.rows == 1 { "row" } else { "rows" };
        lines.push(format!("evaluation on {} {noun}", grouped(evaluation.rows)));
        let has_macro_f1 = evaluation.metrics.contains_key("macro_f1");
        let mut metrics: Vec<_> =
            evaluation.metrics.iter().filter(|(name, _)| !(has_macro_f1 && *name == "f1")).collect();
        metrics.sort_by_key(|(name, _)| *name != "loss");
        let line = |(name, value): (&String, &f64)| {
            // A squared error is not in the unit of the label.
            let root = if name == "mse" { format!(" (root {})", figure(value.sqrt())) } else { String::new() };
            format!("  {:<22} {}{root}", format!("eval.{name}"), figure(*value))
        };
        lines.extend(metrics.into_iter().map(line));
    }
    lines
}
