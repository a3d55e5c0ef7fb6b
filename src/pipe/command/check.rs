//! `pipe check`: checks the pipeline file, the files that it names, and whether the data fits the model.

use std::path::{Path, PathBuf};

use pipe_spec::Inspection;
use pipe_spec::pipeline::{Command, EffectiveBatch, Pipeline, Stage, accum, share};
use pipe_spec::study::Study;
use pipe_spec::text::count;
use serde_json::{Value, json};

use super::tune;
use crate::error::Error;
use crate::execute::inspect::{self, ExpectedTime, Opened};
use crate::execute::launch::expected_ranks;
use crate::execute::launch::workload::retries_of_command;
use crate::execute::stages;
use crate::input::hub::HubAccess;
use crate::input::load::{self, Loaded, ParsedStages, Request};
use crate::report::{Output, Reporter, bounded, duration, print, print_json, times_ranks};
use crate::system::interrupt::Interrupts;

pub struct CheckOptions {
    pub file: PathBuf,
    pub set: Vec<String>,
    /// Leave the data closed.
    pub no_data: bool,
    pub output: Output,
}

pub fn run(options: &CheckOptions) -> Result<(), Error> {
    if let Some(parsed) = load::parse_study(&options.file, &options.set)? {
        load::check_study(&parsed, &options.file)?;
        return check_study(options, &parsed.study);
    }
    // The problems of a file of steps are reported as those of any other file.
    let steps = load::parse_stages(&options.file, &options.set).ok().flatten();
    let checked = match steps.as_ref().map(|parsed| stages::check_inputs(parsed, &options.file)) {
        Some(Ok(())) => return check_stages(options, &steps.expect("it was read")),
        Some(Err(error)) => Err(error),
        None => super::runtime()?.block_on(check(options)),
    };
    if options.output.is_json() {
        match &checked {
            Ok(Checked { inspection, time, warnings, .. }) => {
                print_json(&json!({
                    "valid": true, "problems": [], "warnings": warnings, "data": inspection, "time": time,
                }));
            }
            Err(Error::Invalid { problems, .. }) => {
                let problem = |problem: &pipe_spec::Problem| -> Value {
                    json!({ "line": problem.line, "path": problem.path, "message": problem.message })
                };
                let problems: Vec<Value> = problems.0.iter().map(problem).collect();
                print_json(&json!({ "valid": false, "problems": problems }));
            }
            Err(_) => {}
        }
    }
    let checked = checked?;
    if !options.output.is_json() {
        print_checked(&options.file, &checked);
    }
    Ok(())
}

fn check_study(options: &CheckOptions, study: &Study) -> Result<(), Error> {
    tune::check_space(study, &options.file)?;
    let lines = tune::describe(study);
    if options.output.is_json() {
        let settings: Vec<&str> = study.parameters.iter().map(|parameter| parameter.name.as_str()).collect();
        print_json(&json!({ "valid": true, "problems": [], "warnings": [], "settings": settings, "notes": lines }));
        return Ok(());
    }
    print(&format!("{} is valid: {}", options.file.display(), lines[0]));
    lines[1..].iter().for_each(|line| print(&format!("  {line}")));
    Ok(())
}

/// Lists the stages, each with those before it. Their inputs are looked for when they begin: other stages may write them.
fn check_stages(options: &CheckOptions, parsed: &ParsedStages) -> Result<(), Error> {
    let stages = &parsed.graph.stages;
    // A step without a batch has nothing to change in a retry.
    let has_batch = |stage: &&Stage| stage.pipeline.command().is_some_and(Command::has_batch);
    let warning = |stage: &Stage| Some(format!("{}: {}", stage.name, effective_batch_warning(&stage.pipeline)?));
    let warnings: Vec<String> = stages.iter().filter(has_batch).filter_map(warning).collect();
    if options.output.is_json() {
        let stages: Vec<Value> =
            stages.iter().map(|stage| json!({ "name": stage.name, "needs": stage.needs })).collect();
        print_json(&json!({ "valid": true, "problems": [], "warnings": warnings, "steps": stages }));
        return Ok(());
    }
    print(&format!("{} is valid: {}", options.file.display(), count(stages.len(), "step")));
    for stage in stages {
        let after = if stage.needs.is_empty() { String::new() } else { format!(", after {}", stage.needs.join(", ")) };
        let what = match (stage.pipeline.training(), stage.pipeline.command()) {
            (Some(training), _) => format!("trains {}", training.model.arch.name()),
            (None, Some(command)) => bounded(&command.line.0.join(" "), COMMAND),
            (None, None) => String::new(),
        };
        print(&format!("  {}: {what}{after}", stage.name));
    }
    warnings.iter().for_each(|warning| print(&format!("  warning: {warning}")));
    Ok(())
}

/// That a command cannot keep its effective batch after out of memory.
fn effective_batch_warning(pipeline: &Pipeline) -> Option<String> {
    let rule = pipeline.effective_batch_rule();
    (rule != EffectiveBatch::Kept).then(|| retries_of_command(rule).to_owned())
}

/// Characters of a command that are shown.
const COMMAND: usize = 100;

/// A valid pipeline, and a summary of its data.
struct Checked {
    loaded: Loaded,
    inspection: Option<Inspection>,
    time: Option<ExpectedTime>,
    warnings: Vec<String>,
}

async fn check(options: &CheckOptions) -> Result<Checked, Error> {
    let mut interrupts = Interrupts::listen()?;
    let mut reporter = Reporter::new(options.output);
    let CheckOptions { file, set, .. } = options;
    load::parse_stages(file, set)?;
    let request = Request { file: file.clone(), set: set.clone(), access: HubAccess::Check, pins: Vec::new() };
    let loaded = load::load_interruptibly(request, &reporter, &mut interrupts).await?;
    if options.no_data || loaded.pipeline.command().is_some() {
        let warnings = effective_batch_warning(&loaded.pipeline).into_iter().collect();
        return Ok(Checked { loaded, inspection: None, time: None, warnings });
    }
    Ok(match inspect::inspect(file, &loaded, &mut reporter, &mut interrupts).await? {
        Opened::Data(inspection, time) => {
            let training = loaded.training()?;
            let mut warnings = loaded.inputs.evaluated_and_trained(&training.data);
            warnings.extend(inspect::warnings(training, &inspection));
            Checked { loaded, inspection: Some(*inspection), time, warnings }
        }
        Opened::Not { why } => {
            Checked { loaded, inspection: None, time: None, warnings: vec![format!("data: not opened: {why}")] }
        }
    })
}

fn print_checked(file: &Path, checked: &Checked) {
    let work = &checked.loaded.pipeline.work;
    let effective_batch = work.effective_batch();
    let ranks = expected_ranks(&checked.loaded.pipeline);
    let batch = work.batch().min(share(effective_batch, ranks));
    let (accum, ranks) = (accum(effective_batch, batch, ranks), times_ranks(ranks));
    print(&format!(
        "{} is valid: batch {batch} x accum {accum}{ranks} = effective batch {effective_batch}",
        file.display()
    ));
    let lines = checked.inspection.as_ref().map(inspect::summary).unwrap_or_default();
    lines.iter().for_each(|line| print(&format!("  {line}")));
    if let Some(ExpectedTime { seconds, device, run }) = &checked.time {
        print(&format!("  time   about {} on {device}, as fast as {run}", duration(*seconds)));
    }
    checked.warnings.iter().for_each(|warning| print(&format!("  warning: {warning}")));
}
