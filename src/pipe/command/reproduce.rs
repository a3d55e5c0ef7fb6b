//! `pipe reproduce`: a run once more, where all that it stood on is the same, and whether the same comes of it.

use std::collections::BTreeSet;

use pipe_spec::lock::LockedRepository;
use pipe_spec::pipeline::{EngineKind, Image, Pipeline};
use pipe_spec::{Lock, RunFolder, Status};
use serde_json::{Value, json};

use crate::compare::{Comparison, Promise, judge};
use crate::drive::Chosen;
use crate::engine::docker::DockerEngine;
use crate::error::Error;
use crate::hub::Reach;
use crate::image;
use crate::interrupt::Interrupts;
use crate::load::{self, Loaded, Request};
use crate::lock::{self, Difference, Effect};
use crate::plan::{Job, Plan};
use crate::report::{Reporter, print, print_json};
use crate::run::{self, Choices, Listed, Record};

pub struct Options {
    pub run: String,
    pub anyway: bool,
    pub json: bool,
    pub quiet: bool,
}

pub fn run(options: &Options) -> Result<(), Error> {
    let first = run::find(&options.run)?;
    if first.is_owned() {
        return Err(Error::RunBusy { id: first.state.id });
    }
    if !first.damage.is_empty() {
        return Err(Error::Damaged { id: first.state.id, damage: first.damage });
    }
    let folder = first.folder();
    let record = Record::read(&folder);
    load::go_to(&first.state.cwd)?;
    let reporter = Reporter::new(options.json, options.quiet);
    let engine = if first.state.engine == "process" { EngineKind::Process } else { EngineKind::Docker };
    let then = lock::read(&folder);
    let pins = load::pins(then.as_ref());
    let request = Request { file: folder.resolved(), set: Vec::new(), reach: Reach::All, pins };
    let (loaded, now) = super::runtime()?.block_on(async {
        let loaded = load::load_interruptibly(request, &reporter, &mut Interrupts::listen()?).await?;
        let now = lock_now(&loaded, &folder, engine, &reporter).await?;
        Ok::<_, Error>((loaded, now))
    })?;
    if !now.variables.is_empty() {
        let names = now.variables.join(", ");
        reporter.note(&format!("variables are read as they are now, a lock has no values of them: {names}"));
    }
    let differences = then.as_ref().map(|then| lock::differences(then, &now));
    let refused = refuse(&first, &record, then.as_ref(), differences.as_deref(), options.anyway, &reporter);
    if options.json
        && let Err(Error::NotReproducible { id, reasons }) = &refused
    {
        print_json(&json!({ "run": id, "again": null, "refused": reasons, "lock": differences }));
    }
    refused?;

    let again = rerun(&first, engine, load::pins(then.as_ref()), options)?;
    let comparison = Comparison::of(&folder, &again.folder());
    let promise = Promise {
        deterministic: loaded.pipeline.train.deterministic,
        on_card: record.history.started.last().is_some_and(|(_, started)| started.device != "cpu"),
    };
    let mut verdict = judge(&comparison, promise);
    // What only the trainer could tell.
    if !options.anyway {
        let late = comparison.lock.iter().flatten().filter(|difference| difference.effect == Effect::Forbids);
        verdict.reasons.extend(late.map(ToString::to_string));
        verdict.reproduced = verdict.reasons.is_empty();
    }
    let words = verdict.words(&comparison);
    if options.json {
        let [id, new] = &comparison.runs;
        print_json(&json!({
            "run": id, "again": new, "verdict": verdict, "lock": comparison.lock, "curves": comparison.curves,
            "model": comparison.model,
        }));
    } else if verdict.reproduced {
        print(&format!("{} reproduces {}: {words}", again.state.id, first.state.id));
    }
    if verdict.reproduced {
        return Ok(());
    }
    Err(Error::NotReproduced { id: first.state.id, again: again.state.id, reasons: verdict.reasons })
}

/// The lock that the run would have if it were started now. Builds nothing.
async fn lock_now(loaded: &Loaded, folder: &RunFolder, wanted: EngineKind, reporter: &Reporter) -> Result<Lock, Error> {
    let Loaded { pipeline, variables, inputs, .. } = loaded;
    // The run itself says which engine it has.
    let engine = Chosen::choose(Some(wanted), &Reporter::new(false, true)).await?;
    let device = engine.device(&pipeline.container.gpus)?;
    let on = match &engine {
        Chosen::Process(_) => json!({ "engine": "process" }),
        Chosen::Docker(engine) => in_docker(engine, pipeline).await?,
    };
    let plan = Plan { pipeline, inputs, variables, device, job: Job::Train };
    lock::collect(&on, folder, &plan, reporter)
}

async fn in_docker(engine: &DockerEngine, pipeline: &Pipeline) -> Result<Value, Error> {
    let name = match &pipeline.container.image {
        Some(Image::Pinned(name)) => name.clone(),
        image => image::recipe(image::dockerfile(image.as_ref()))?.name,
    };
    let id = engine.image_id(&name).await?;
    Ok(json!({ "engine": "docker", "engine_version": engine.info().version, "image": name, "image_id": id }))
}

/// Says what differs, and refuses where the same cannot come of it.
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
        None => reasons.push("its lock.json is missing or damaged: what it stood on is not known".to_owned()),
        Some(then) if then.resolved.is_none() => {
            reporter
                .note("its lock.json is of an earlier pipe, without data, tokenizer and model: these may be others");
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
    reasons.iter().for_each(|reason| reporter.note(&format!("going on although {reason}")));
    Ok(())
}

/// The same pipeline as a new run, from its first settings: what the ledger has learned since is not asked.
fn rerun(first: &Listed, engine: EngineKind, pins: Vec<LockedRepository>, options: &Options) -> Result<Listed, Error> {
    let before: BTreeSet<String> = run::list()?.into_iter().map(|listed| listed.state.id).collect();
    let result = super::run::run(super::run::Options {
        job: Job::Train,
        file: first.folder().resolved(),
        engine: Some(engine),
        set: Vec::new(),
        name: None,
        dry_run: false,
        resume: false,
        detach: false,
        choices: Choices { ignore_ledger: true, no_queue: first.state.no_queue },
        pins,
        json: false,
        // stdout is for the verdict alone.
        quiet: options.quiet || options.json,
    });
    let is_new = |listed: &Listed| listed.state.name == first.state.name && !before.contains(&listed.state.id);
    let again = run::list()?.into_iter().find(is_new);
    match (result, again) {
        (Ok(()), Some(again)) => Ok(again),
        (Ok(()), None) => Err(Error::NoRun { wanted: first.state.name.clone(), runs: run::runs_folder() }),
        // A run that failed is reproduced by one that fails.
        (Err(Error::TrainingFailed { .. } | Error::OutOfMemory { .. }), Some(again))
            if first.state.status == Status::Failed =>
        {
            Ok(again)
        }
        (Err(error), _) => Err(error),
    }
}
