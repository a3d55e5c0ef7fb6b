//! Trainings that take their time.

use std::fs;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use pipe_spec::event::{BestEval, Eval, Finished, Fitted, Headline, Measured, Step, StoppedEarly};
use pipe_spec::pipeline::{BatchSetting, Metric, accum};
use pipe_spec::{EventKind, RunFolder, TrainerExit, TrainerSpec};

use crate::events::{Events, MIB, checkpoint, eval, rehearsed, started, step};
use crate::on_sigterm;

static STOP: AtomicBool = AtomicBool::new(false);

extern "C" fn on_stop(_: i32) {
    STOP.store(true, Ordering::Relaxed);
}

/// A training that can be interrupted anywhere: so many steps, milliseconds for each, and the batch that fits (one that does not
/// runs out of memory in the middle). Every step depends on all before it, and the state is saved after each.
pub fn walk(spec: &TrainerSpec, events: &mut Events, numbers: &[u64]) {
    on_sigterm(on_stop);
    let [steps, pause, fits] = numbers[..] else { panic!("walk STEPS MILLISECONDS BATCH") };
    let run = RunFolder::new(&spec.run);
    let path = run.checkpoints().join("at");
    let saved = fs::read_to_string(&path).unwrap_or_default();
    let mut saved = saved.split(' ').filter_map(|word| word.parse::<u64>().ok());
    let (mut at, mut state) = (saved.next().unwrap_or(0), saved.next().unwrap_or(1));
    while at < steps {
        std::thread::sleep(Duration::from_millis(pause));
        at += 1;
        if u64::from(spec.train.batch()) > fits && at > steps / 2 {
            crate::exit(TrainerExit::HostOutOfMemory);
        }
        state = state.wrapping_mul(31).wrapping_add(at) % 1_000_003;
        events.emit(EventKind::Step(Step { ms: pause as f64, ..step(at, state as f64) }));
        eprintln!("step {at}");
        let temporary = path.with_extension("new");
        fs::write(&temporary, format!("{at} {state}")).expect("the checkpoint");
        fs::rename(&temporary, &path).expect("the checkpoint");
        if STOP.load(Ordering::Relaxed) {
            eprintln!("saved");
            crate::exit(TrainerExit::Stopped);
        }
    }
    fs::create_dir_all(run.model()).expect("the model");
    fs::write(run.model().join("weights"), state.to_string()).expect("the model");
}

/// Four of six steps, each with an evaluation, the second being the best; then an early end and a model of the best step.
pub fn learn(spec: &TrainerSpec, events: &mut Events) {
    let losses = [0.9, 0.5, 0.6, 0.75];
    for (number, loss) in (1..).zip(losses) {
        events.emit(EventKind::Step(step(number, loss)));
        let scores = [("perplexity".to_owned(), loss.exp())].into();
        let headline = Some(Headline::new("perplexity", 400).against("guessing by token frequency", 5.0));
        events.emit(EventKind::Eval(Eval { step: number, loss, samples: 20, ms: 1.0, headline, scores }));
    }
    let model = RunFolder::new(&spec.run).model();
    fs::create_dir_all(&model).expect("the model");
    fs::write(model.join("config.json"), "{}").expect("the model");
    events.emit(EventKind::Finished(Finished {
        step: 4,
        samples: 4,
        model: Some("model".to_owned()),
        model_step: Some(2),
        best: Some(BestEval { metric: Metric::loss(), step: 2, value: 0.5 }),
        stopped_early: Some(StoppedEarly { metric: Metric::loss(), patience: 2, best_step: Some(2), best: Some(0.5) }),
        graphs: None,
    }));
}

/// Searches for the largest batch where none is given; batches up to `most` fit. Then it trains, unless it was started to
/// search alone.
pub fn search(mut spec: TrainerSpec, events: &mut Events, most: u32) {
    let longest = || "64".to_owned();
    if spec.train.batch == BatchSetting::Auto || is_fit() {
        let effective_batch = spec.train.effective_batch;
        let share = effective_batch.div_ceil(spec.rank.count);
        let batch = most.min(share);
        for (batch, fits) in [(batch, true), (batch + 1, false)] {
            let peak = fits.then_some(MIB);
            if batch <= share {
                let measured = Measured { batch, fits, peak, reserved: peak, longest: longest(), ms: 1.0 };
                events.emit(EventKind::Measured(measured));
            }
        }
        events.emit(EventKind::Fitted(Fitted {
            batch,
            accum: accum(effective_batch, batch, spec.rank.count),
            effective_batch,
            peak: MIB,
            capacity: Some(64 * MIB),
            device: "cpu".to_owned(),
            driver: None,
            longest: longest(),
        }));
        spec.train.batch = BatchSetting::Fixed(NonZeroU32::new(batch).expect("a batch that fits"));
    }
    if !is_fit() {
        events.emit(EventKind::Started(started(&spec, 3)));
        events.emit(rehearsed(spec.train.batch(), MIB));
        (1..=3).for_each(|number| events.emit(EventKind::Step(step(number, 1.0))));
    }
}

fn is_fit() -> bool {
    std::env::args().nth(1).is_some_and(|command| command == "fit")
}

/// A classifier whose last step has fewer samples than the others.
pub fn classes(spec: &TrainerSpec, events: &mut Events) {
    let whole = u64::from(spec.train.effective_batch);
    for (number, samples) in [(1, whole), (2, whole), (3, 1)] {
        events.emit(EventKind::Step(Step { tokens: samples, ms: 100.0, ..step(number, 1.0) }));
    }
}

/// Steps with evaluations and checkpoints, in four passes over the data.
pub fn long(events: &mut Events, count: u64, pause: Duration) {
    for number in 1..=count {
        std::thread::sleep(pause);
        let done = number as f64 / count as f64;
        let loss = 1.0 + 3.0 / number as f64 + 0.1 * (number % 3) as f64;
        events.emit(EventKind::Step(Step {
            epoch: 4.0 * done,
            lr: 3e-4 * (1.0 - done),
            grad_norm: 1.0,
            tokens: 4096,
            ms: pause.as_millis() as f64,
            peak: 48 * MIB,
            ..step(number, loss)
        }));
        if number % (count / 4).max(1) == 0 {
            events.emit(eval(number));
            events.emit(checkpoint(number));
        }
    }
}
