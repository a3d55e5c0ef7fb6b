//! The events of a run, by kind, in bounded memory: of a very long run only some of the steps are kept, with the lowest and the
//! highest values among them.

use std::collections::BTreeMap;

use pipe_spec::EventKind;
use pipe_spec::event::{Eval, Finished, Metrics, RecordedEvent, Sample, Started, Step};

/// The most that a curve holds, in units of about 100 bytes.
const MAX_WEIGHT: usize = 1 << 18;
/// Kept steps among which the lowest and the highest values are kept too.
const STRETCH: u64 = 256;
/// Different warnings, and bytes of generated texts, that are kept.
const MAX_WARNINGS: usize = 200;
const MAX_TEXTS: usize = 32 << 20;

/// The events, by kind, without those that a report has no use for.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// With the attempt that it belongs to.
    pub started: Vec<(u32, Started)>,
    pub steps: Vec<Step>,
    pub evals: Vec<Eval>,
    /// Metrics that a command printed.
    pub metrics: Vec<Metrics>,
    /// The first evaluation and the last.
    pub samples: Vec<Sample>,
    /// With the attempt that it belongs to.
    pub warnings: Vec<(u32, String)>,
    pub finished: Option<Finished>,
    pub(super) counts: StepCounts,
    /// How much each of the curves is thinned.
    pub(super) thinning: [Thinning; 3],
}

/// The steps that have come, and those that have not.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct StepCounts {
    steps: u64,
    /// The last step.
    last: u64,
    missing: u64,
    /// The first and the last that is missing.
    gaps: Option<(u64, u64)>,
}

impl History {
    pub fn add(&mut self, recorded: RecordedEvent) {
        let attempt = recorded.attempt;
        match recorded.event.kind {
            EventKind::Started(started) => {
                self.started.pop_if(|(last, _)| *last == attempt);
                self.started.push((attempt, started));
            }
            EventKind::Step(step) => {
                self.counts.add(step.step);
                self.thinning[0].add(&mut self.steps, step);
            }
            EventKind::Eval(eval) => self.thinning[1].add(&mut self.evals, eval),
            EventKind::Metrics(metrics) => self.thinning[2].add(&mut self.metrics, metrics),
            EventKind::Sample(sample) => self.add_sample(sample),
            EventKind::Warning(warning) => {
                let warning = (attempt, warning.message);
                if self.warnings.len() < MAX_WARNINGS && !self.warnings.contains(&warning) {
                    self.warnings.push(warning);
                }
            }
            EventKind::Measured(_)
            | EventKind::Fitted(_)
            | EventKind::Rehearsed(_)
            | EventKind::Checkpoint(_)
            | EventKind::Oom(_) => {}
            EventKind::Finished(finished) => self.finished = Some(finished),
        }
    }

    /// To be called after the last event: all of a curve is as dense as its beginning.
    pub fn complete(&mut self) {
        self.thinning[0].thin(&mut self.steps);
        self.thinning[1].thin(&mut self.evals);
        self.thinning[2].thin(&mut self.metrics);
    }

    fn add_sample(&mut self, sample: Sample) {
        if self.samples.last().is_some_and(|last| last.step != sample.step) {
            let steps = self.samples.iter().map(|sample| sample.step);
            let (first, last) = (steps.clone().min(), steps.chain([sample.step]).max());
            self.samples.retain(|sample| Some(sample.step) == first || Some(sample.step) == last);
        }
        let bytes = |sample: &Sample| sample.source.len() + sample.target.len() + sample.generated.len();
        if self.samples.iter().map(bytes).sum::<usize>() < MAX_TEXTS {
            self.samples.push(sample);
        }
    }

    /// Steps that have come, whether they are kept or not.
    pub fn step_count(&self) -> u64 {
        self.counts.steps.max(self.steps.len() as u64)
    }

    /// Whether all steps are kept.
    pub fn has_all_steps(&self) -> bool {
        self.step_count() == self.steps.len() as u64
    }

    /// The last step of a trainer or of a command.
    pub fn last_step(&self) -> Option<u64> {
        let of_command = || self.metrics.iter().map(|metrics| metrics.step).max();
        self.steps.last().map(|step| step.step).or_else(of_command)
    }

    /// The last loss of a trainer or of a command.
    pub fn last_loss(&self) -> Option<f64> {
        let of_command = || self.metrics.iter().rev().find_map(Metrics::loss);
        self.steps.last().map(|step| step.loss).or_else(of_command)
    }

    /// The steps whose events are missing, as text.
    pub fn missing_steps(&self) -> Option<String> {
        let ((first, last), missing) = (self.counts.gaps?, self.counts.missing);
        Some(match missing {
            1 => format!("events.jsonl: step {first} is missing"),
            _ => format!("events.jsonl: {missing} of the steps {first} to {last} are missing"),
        })
    }

    /// Bytes that the device may hold, as the last attempt saw it.
    pub fn capacity(&self) -> Option<u64> {
        self.started.iter().rev().find_map(|(_, started)| started.memory.capacity)
    }
}

impl StepCounts {
    fn add(&mut self, step: u64) {
        let next = self.last.saturating_add(1);
        if step > next {
            self.missing = self.missing.saturating_add(step - next);
            self.gaps = Some((self.gaps.map_or(next, |gaps| gaps.0), step - 1));
        }
        self.last = self.last.max(step);
        self.steps += 1;
    }
}

/// A point of several curves.
trait CurvePoint {
    /// Its size, in units of about 100 bytes.
    fn weight(&self) -> usize;

    /// Its height in each curve, by name.
    fn heights(&self) -> impl Iterator<Item = (&str, f64)>;
}

impl CurvePoint for Step {
    fn weight(&self) -> usize {
        2 + self.ranks.len()
    }

    fn heights(&self) -> impl Iterator<Item = (&str, f64)> {
        let numbers = [self.loss, self.lr, self.grad_norm, self.tokens_per_second(), self.peak as f64, self.data_ms];
        ["loss", "lr", "norm", "speed", "peak", "waiting"].into_iter().zip(numbers)
    }
}

impl CurvePoint for Eval {
    fn weight(&self) -> usize {
        weight_of(&self.scores)
    }

    fn heights(&self) -> impl Iterator<Item = (&str, f64)> {
        std::iter::once(("loss", self.loss)).chain(self.scores.iter().map(|(name, score)| (name.as_str(), *score)))
    }
}

impl CurvePoint for Metrics {
    fn weight(&self) -> usize {
        weight_of(&self.values)
    }

    fn heights(&self) -> impl Iterator<Item = (&str, f64)> {
        self.values.iter().map(|(name, value)| (name.as_str(), *value))
    }
}

fn weight_of(values: &BTreeMap<String, f64>) -> usize {
    // A map has room for eleven.
    5 + values.keys().map(|name| 1 + name.len() / 64).sum::<usize>()
}

/// One of this many points is kept: 2 to the power of `halvings`.
#[derive(Clone, Debug, Default)]
pub(super) struct Thinning {
    halvings: u32,
    weight: usize,
    /// How many points came before each that is kept, and before the next.
    numbers: Vec<u64>,
    next: u64,
    /// As many of the first points are thinned as much as they have to be.
    settled: usize,
}

impl Thinning {
    fn add<T: CurvePoint>(&mut self, points: &mut Vec<T>, point: T) {
        self.weight += point.weight();
        points.push(point);
        self.numbers.push(self.next);
        self.next += 1;
        if self.weight > MAX_WEIGHT {
            self.thin(points);
            while self.weight > MAX_WEIGHT / 4 * 3 && self.halvings < 63 {
                (self.halvings, self.settled) = (self.halvings + 1, 0);
                self.thin(points);
            }
        }
    }

    fn thin<T: CurvePoint>(&mut self, points: &mut Vec<T>) {
        if self.halvings == 0 {
            return;
        }
        let every = 1u64 << self.halvings;
        let stretch = every.saturating_mul(STRETCH);
        let (numbers, tail) = (self.numbers.split_off(self.settled), points.split_off(self.settled));
        let mut kept: Vec<bool> = numbers.iter().map(|number| number % every == 0).collect();
        let mut begin = 0;
        for same in numbers.chunk_by(|one, next| one / stretch == next / stretch) {
            let end = begin + same.len();
            extremes(&tail[begin..end]).for_each(|index| kept[begin + index] = true);
            begin = end;
        }
        if let Some(last) = kept.last_mut() {
            *last = true;
        }
        for ((point, number), stays) in tail.into_iter().zip(numbers).zip(kept) {
            if stays {
                points.push(point);
                self.numbers.push(number);
            } else {
                self.weight -= point.weight();
            }
        }
        // The last stretch may go on.
        let last = self.numbers.last().map(|number| number / stretch);
        let is_before = |number: &u64| Some(number / stretch) != last;
        self.settled = self.numbers.iter().rposition(is_before).map_or(0, |index| index + 1);
    }
}

/// Curves whose lowest and highest values are kept, at most: there may be a new name in every line.
const MAX_CURVES: usize = 64;

/// Where each curve is lowest, highest and last.
fn extremes<T: CurvePoint>(points: &[T]) -> impl Iterator<Item = usize> {
    let mut found: BTreeMap<&str, [(usize, f64); 3]> = BTreeMap::new();
    for (index, point) in points.iter().enumerate() {
        for (name, height) in point.heights().filter(|(_, height)| !height.is_nan()) {
            if found.len() == MAX_CURVES && !found.contains_key(name) {
                continue;
            }
            let [low, high, last] = found.entry(name).or_insert([(index, height); 3]);
            if height < low.1 {
                *low = (index, height);
            }
            if height > high.1 {
                *high = (index, height);
            }
            *last = (index, height);
        }
    }
    found.into_values().flat_map(|places| places.map(|(index, _)| index))
}

#[cfg(test)]
mod tests {
    use pipe_spec::Event;

    use super::*;

    fn recorded(kind: EventKind) -> RecordedEvent {
        RecordedEvent { attempt: 1, event: Event { seq: 1, ts: 0.0, kind } }
    }

    #[test]
    fn a_long_curve_keeps_its_ends_and_its_spikes() {
        let mut history = History::default();
        let loss = |step: u64| match step {
            31_337 => 900.0,
            277_777 => -900.0,
            step => (step % 17) as f64,
        };
        let last = 400_003;
        for step in (1..=last).filter(|step| !(5..=7).contains(step)) {
            let step = Step { step, loss: loss(step), tokens: 1, ms: 1.0, ..Step::default() };
            history.add(recorded(EventKind::Step(step)));
        }
        history.complete();
        assert!((20_000..140_000).contains(&history.steps.len()), "{}", history.steps.len());
        let steps: Vec<(u64, f64)> = history.steps.iter().map(|step| (step.step, step.loss)).collect();
        assert!(steps.is_sorted_by(|one, next| one.0 < next.0));
        assert_eq!((steps.first().unwrap().0, steps.last().unwrap().0), (1, last));
        assert!(steps.contains(&(31_337, 900.0)) && steps.contains(&(277_777, -900.0)));
        assert!(steps.windows(2).all(|pair| pair[1].0 - pair[0].0 <= 64));
        assert_eq!((history.step_count(), history.last_step()), (last - 3, Some(last)));
        assert_eq!(history.missing_steps().unwrap(), "events.jsonl: 3 of the steps 5 to 7 are missing");
        assert!(!history.has_all_steps());
    }

    #[test]
    fn metrics_of_any_names_are_bounded() {
        let mut history = History::default();
        for step in 0..20_000u64 {
            let values = (0..20).map(|name| (format!("{name} of {}", step % 3), step as f64)).collect();
            let steps = None;
            history.add(recorded(EventKind::Metrics(Metrics { step, steps, values })));
        }
        let weight: usize = history.metrics.iter().map(CurvePoint::weight).sum();
        assert!(weight <= MAX_WEIGHT && history.metrics.len() > 1000, "{weight} of {}", history.metrics.len());
        assert_eq!(history.last_step(), Some(19_999));
        // Names that never come again.
        for step in 0..50_000u64 {
            let values = [(step.to_string(), 1.0)].into();
            history.add(recorded(EventKind::Metrics(Metrics { step: 0, steps: None, values })));
        }
        let weight: usize = history.metrics.iter().map(CurvePoint::weight).sum();
        assert!(weight <= MAX_WEIGHT, "{weight}");
    }

    #[test]
    fn texts_of_the_first_and_the_last_evaluation() {
        let mut history = History::default();
        for step in [2, 4, 6, 4, 6, 8] {
            for row in 0..2 {
                let source = row.to_string();
                let sample = Sample { step, source, target: String::new(), generated: String::new() };
                history.add(recorded(EventKind::Sample(sample)));
            }
        }
        let steps: Vec<u64> = history.samples.iter().map(|sample| sample.step).collect();
        assert_eq!(steps, [2, 2, 8, 8]);
        for _ in 0..9 {
            let message = "again".to_owned();
            history.add(recorded(EventKind::Warning(pipe_spec::event::Warning { message })));
        }
        assert_eq!(history.warnings.len(), 1);
    }
}
