//! `pipe reproduce`: runs the pipeline of a run again with the same inputs, and compares the results.

use pipe_spec::lock::LockedRepository;
use pipe_spec::{Job, Lock, RunFolder, Status};
use serde_json::json;

use crate::engine::registry;
use crate::error::Error;
use crate::execute::launch::environment;
use crate::execute::launch::template::JobTemplate;
use crate::execute::stages::Selection;
use crate::input::hub::HubAccess;
use crate::input::load::{self, Loaded, Request};
use crate::report::compare::{Comparison, ComputeMode, judge};
use crate::report::{Output, Reporter, print, print_json};
use crate::run::lock::{self, Difference, Effect};
use crate::run::{self, Listed, Record, RunChoices};
use crate::system::interrupt::Interrupts;

/// `anyway`: run even if data, model, program or settings differ.
pub fn run(wanted: &str, anyway: bool, output: Output) -> Result<(), Error> {
    let first = run::find_single(wanted)?;
    if first.is_owned() {
        return Err(Error::RunBusy { id: first.state.id });
    }
    if !first.damage.is_empty() {
        return Err(Error::Damaged { id: first.state.id, damage: first.damage });
    }
    let folder = first.folder();
    let record = Record::read(&folder);
    load::enter_folder(&first.state.cwd)?;
    let reporter = Reporter::new(output);
    let engine = first.state.engine.as_str();
    let then = lock::read(&folder);
    let pins = load::pins(then.as_ref());
    let request = Request { file: folder.resolved(), set: Vec::new(), access: HubAccess::Fetch, pins };
    let (loaded, now) = super::runtime()?.block_on(async {
        let mut interrupts = Interrupts::listen()?;
        let loaded = load::load_interruptibly(request, &reporter, &mut interrupts).await?;
        let now = lock_now(&loaded, &folder, engine, &reporter, &mut interrupts).await?;
        Ok::<_, Error>((loaded, now))
    })?;
    if !now.variables.is_empty() {
        let names = now.variables.join(", ");
        reporter.note(&format!("variables have their current values, because a lock does not store them: {names}"));
    }
    let differences = then.as_ref().map(|then| lock::differences(then, &now));
    let refused = refuse(&first, &record, then.as_ref(), differences.as_deref(), anyway, &reporter);
    if output.is_json()
        && let Err(Error::NotReproducible { id, reasons }) = &refused
    {
        print_json(&json!({ "run": id, "again": null, "refused": reasons, "lock": differences }));
    }
    refused?;

    let again = rerun(&first, engine, load::pins(then.as_ref()), output)?;
    let comparison = Comparison::read(&folder, &again.folder());
    let mode = ComputeMode {
        deterministic: loaded.training()?.train.deterministic,
        on_card: record.history.started.last().is_some_and(|(_, started)| started.device != "cpu"),
    };
    let mut verdict = judge(&comparison, mode);
    // Differences that only the trainer reports.
    if !anyway {
        let late = comparison.lock.iter().flatten().filter(|difference| difference.effect == Effect::Forbids);
        verdict.reasons.extend(late.map(ToString::to_string));
        verdict.reproduced = verdict.reasons.is_empty();
    }
    let summary = verdict.summary(&comparison);
    if output.is_json() {
        let [id, new] = &comparison.runs;
        print_json(&json!({
            "run": id, "again": new, "verdict": verdict, "lock": comparison.lock, "curves": comparison.curves,
            "model": comparison.model,
        }));
    } else if verdict.reproduced {
        print(&format!("{} reproduces {}: {summary}", again.state.id, first.state.id));
    }
    if verdict.reproduced {
        return Ok(());
    }
    Err(Error::NotReproduced { id: first.state.id, again: again.state.id, reasons: verdict.reasons })
}

/// The lock that the run would have if it were started now. Builds nothing.
async fn lock_now(
    loaded: &Loaded,
    folder: &RunFolder,
    engine: &str,
    reporter: &Reporter,
    interrupts: &mut Interrupts,
) -> Result<Lock, Error> {
    let Loaded { pipeline, inputs, .. } = loaded;
    let engine = registry::connect_for(engine, &pipeline.engine_request()).await?;
    let program = tokio::select! {
        program = engine.program(pipeline.container.image.as_ref()) => program?,
        () = interrupts.signal() => return Err(Error::Interrupted),
    };
    let template = JobTemplate::new(loaded, inputs, engine.as_ref(), &program, Job::Train)?;
    environment::collect(program, engine.as_ref(), folder, &template, reporter, interrupts).await
}

/// Prints the differences, and refuses those that change the computation.
fn refuse(
    first: &Listed,
    record: &Record,
    then: Option<&Lock>,
    differences: Option<&[Difference]>,
    anyway: bool,
    reporter: &Reporter,
) -> Result<(), Error> {
    let found = differences.unwrap_or_default();
    let of = |effect: Effect| found.iter().filter(move |difference| difference.effect == effect);
    let mut reasons: Vec<String> = of(Effect::Forbids).map(ToString::to_string).collect();
    match then {
        None => reasons.push("its lock.json is missing or damaged: its inputs are not known".to_owned()),
        Some(then) if then.resolved.is_none() => {
            reporter
                .note("its lock.json was written by an earlier pipe, without data, tokenizer and model: these may have changed");
        }
        Some(_) => {}
    }
    if record.history.steps.is_empty() {
        reasons.push("it has no steps to compare with".to_owned());
    }
    of(Effect::Rounding).for_each(|one| reporter.note(&format!("{one} (rounds differently)")));
    of(Effect::None).for_each(|one| reporter.note(&one.to_string()));
    if !anyway && !reasons.is_empty() {
        return Err(Error::NotReproducible { id: first.state.id.clone(), reasons });
    }
    reasons.iter().for_each(|reason| reporter.note(&format!("continuing although {reason}")));
    Ok(())
}

/// The same pipeline as a new run, from its first settings: what the ledger has learned since is not asked.
fn rerun(first: &Listed, engine: &str, pins: Vec<LockedRepository>, output: Output) -> Result<Listed, Error> {
    let mut created = None;
    let options = super::run::RunOptions {
        file: first.folder().resolved(),
        engine: Some(engine.to_owned()),
        set: Vec::new(),
        name: None,
        dry_run: false,
        resume: false,
        detach: false,
        selection: Selection::default(),
        choices: RunChoices { ignore_ledger: true, no_queue: first.state.choices.no_queue, ..RunChoices::default() },
        pins,
        // stdout is for the verdict alone.
        output: if output == Output::Text { output } else { Output::Quiet },
    };
    let result = super::run::run_and_name(options, &mut created);
    let again = created.map(|id| run::find_single(&id)).transpose()?;
    match (result, again) {
        (Ok(()), Some(again)) => Ok(again),
        (Ok(()), None) => Err(Error::NoRun { wanted: first.state.name.clone(), runs: run::runs_folder() }),
        // A run that failed is reproduced by one that fails.
        (Err(Error::TrainingFailed { .. } | Error::CommandFailed { .. } | Error::OutOfMemory { .. }), Some(again))
            if first.state.status == Status::Failed =>
        {
            Ok(again)
        }
        (Err(error), _) => Err(error),
    }
}
