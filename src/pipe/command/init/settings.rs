//! Settings with which a first training learns something: how long, how fast, in which steps, how many tokens of a text. Pure.

use pipe_model::{ModelSize, Starter};
use pipe_spec::Inspection;
use pipe_spec::pipeline::{CHOSEN, COMPLETION, CONTEXT, CONVERSATION, PROMPT, Task};

use super::column::{Column, ColumnKind};
use super::survey::{Field, Survey};
use super::texts::Lengths;

/// Rows that are kept for evaluation, at least, and the share that this may be.
const EVAL_ROWS: f64 = 20.0;
const EVAL_SHARE: f64 = 0.1;
const MOST_EVAL_SHARE: f64 = 0.3;
/// Steps in an epoch at least, and samples in a step at least.
const STEPS_IN_EPOCH: u64 = 10;
const LEAST_BATCH: u32 = 4;
/// Passes over the data at most, and steps after which one pass is enough.
const MOST_EPOCHS: u64 = 60;
const MOST_STEPS: u64 = 100_000;
/// Evaluations in a training.
const EVALUATIONS: u64 = 8;
/// Classes are weighted where the largest has more than this many times the rows of the smallest.
const UNEVEN: usize = 4;
/// Rows of a window of a time series.
const WINDOW: std::ops::RangeInclusive<u64> = 8..=60;

/// Tokens of a text where nothing is known of the data, and at most.
const UNKNOWN: u32 = 512;
/// Tokens of a text while they are counted.
const LONGEST: u32 = 4096;
/// Limits are multiples of this.
const STEP: usize = 16;
/// Tokens that mark the beginning and the end of a text.
const MARKS: usize = 3;

/// Facts about the data that decide the settings.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    pub task: Task,
    /// Samples to train with and to evaluate with, where they are known.
    pub samples: Option<u64>,
    pub has_eval: bool,
    pub from_weights: bool,
    pub size: ModelSize,
    /// Whether a number is predicted.
    pub is_number: bool,
    /// Whether a text can have several labels.
    pub is_several: bool,
    /// Whether the labels of tokens are numbers without names.
    pub has_numbered_tags: bool,
    /// Rows of each class.
    pub classes: &'a [(String, usize)],
    /// Rows of a window of a time series.
    pub window: u32,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    pub epochs: u64,
    pub effective_batch: u32,
    pub lr: f64,
    /// 0 where there is evaluation data.
    pub eval_share: f64,
    /// Steps between two evaluations; nothing where an epoch is between them.
    pub evaluate_every: Option<u64>,
    pub balanced: bool,
    /// The metric of the evaluation by which the best model is kept.
    pub best: &'static str,
}

impl Settings {
    pub fn new(starter: &Starter, facts: &Facts<'_>) -> Self {
        let training = if facts.from_weights { starter.fine_tuning } else { starter.scratch };
        let lr = two_digits(if facts.from_weights { training.lr } else { starter.scratch_lr(facts.size) });
        let eval_share = if facts.has_eval { 0.0 } else { eval_share(facts) };
        let mut settings = Self {
            epochs: u64::from(training.epochs),
            effective_batch: starter.effective_batch,
            lr,
            eval_share,
            evaluate_every: None,
            balanced: facts.task.classifies() && is_uneven(facts.classes),
            best: best(facts),
        };
        if let Some(samples) = facts.samples {
            let trained = ((samples as f64 * (1.0 - eval_share)) as u64).max(1);
            settings.effective_batch = effective_batch(starter.effective_batch, trained);
            let steps = trained.div_ceil(u64::from(settings.effective_batch));
            let enough = u64::from(training.steps).div_ceil(steps).min(MOST_EPOCHS);
            settings.epochs = enough.max(settings.epochs).min((MOST_STEPS / steps).max(1));
            settings.evaluate_every = evaluate_every(settings.epochs, steps);
        }
        settings
    }
}

/// A number that people can read: 2.2e-4 for 2.236e-4.
fn two_digits(number: f64) -> f64 {
    format!("{number:.1e}").parse().unwrap_or(number)
}

/// The rows of a window, in a table of `rows` rows.
pub fn window(rows: u64) -> u32 {
    (rows / 40).clamp(*WINDOW.start(), *WINDOW.end()) as u32
}

/// A tenth, or more where that is only a few rows. The end of a time series must hold a window and more.
fn eval_share(facts: &Facts<'_>) -> f64 {
    let Some(samples) = facts.samples.filter(|samples| *samples > 0) else { return EVAL_SHARE };
    let rows = if facts.task == Task::TimeSeries { EVAL_ROWS + f64::from(facts.window) } else { EVAL_ROWS };
    let share = (rows / samples as f64).clamp(EVAL_SHARE, MOST_EVAL_SHARE);
    (share * 100.0).ceil() / 100.0
}

/// A power of two.
fn effective_batch(most: u32, samples: u64) -> u32 {
    let room = (samples / STEPS_IN_EPOCH).max(1);
    let power = 1u32 << room.ilog2().min(16);
    power.clamp(LEAST_BATCH.min(most), most)
}

fn evaluate_every(epochs: u64, steps: u64) -> Option<u64> {
    match epochs {
        5..=10 => None,
        _ => Some((epochs * steps / EVALUATIONS).max(1)),
    }
}

fn is_uneven(classes: &[(String, usize)]) -> bool {
    let rows = || classes.iter().map(|(_, rows)| *rows);
    rows().max().unwrap_or(0) > UNEVEN * rows().min().unwrap_or(0)
}

fn best(facts: &Facts<'_>) -> &'static str {
    match facts.task {
        Task::Classification | Task::Table if facts.is_number => "mse",
        Task::Classification if facts.is_several => "micro_f1",
        // Which numbers begin an entity is not known.
        Task::TokenLabels if facts.has_numbered_tags => "token_macro_f1",
        Task::TokenLabels => "entity_f1",
        Task::Classification | Task::TimeSeries | Task::Table | Task::PictureClasses => "macro_f1",
        Task::Contrastive => "text_recall_1",
        Task::Preference => "reward_accuracy",
        Task::Seq2Seq | Task::Language => "loss",
    }
}

/// Whether rows are conversations, or questions with their answers.
pub fn is_chat(fields: &[Field]) -> bool {
    fields.iter().any(|(role, _)| [CONVERSATION, COMPLETION].contains(&role.as_str()))
}

/// The samples that steps count: rows, windows, or sequences of tokens.
pub fn samples(task: Task, survey: &Survey, fields: &[Field], limits: Limits, window: u32) -> u64 {
    match task {
        Task::TimeSeries => survey.rows.saturating_sub(u64::from(window)),
        Task::Language if is_chat(fields) => survey.rows,
        Task::Language => {
            let texts = || survey.columns.iter().filter(|column| column.kind == ColumnKind::Text);
            let column = survey.fed(fields, "text").or_else(|| texts().next());
            // Limits are on the safe side; the usual token has four bytes, and not three.
            column.map_or(0, |column| survey.rows * column.tokens.mean as u64 * 3 / 4) / u64::from(limits.length)
        }
        Task::Seq2Seq
        | Task::Classification
        | Task::Contrastive
        | Task::TokenLabels
        | Task::Table
        | Task::PictureClasses
        | Task::Preference => survey.rows,
    }
    .max(1)
}

/// Tokens beyond those that are counted: special ones, parts of words, letters of rows that were not looked at.
const MORE_TOKENS: usize = 64;
const UNSEEN_TOKENS: usize = 1000;

/// The size of a vocabulary that is trained on the texts: their letters, and their words that come often. A token that comes
/// once teaches nothing.
pub fn vocabulary(survey: &Survey, fields: &[Field]) -> u64 {
    let known = survey.vocabulary(fields) * 5 / 4 + MORE_TOKENS;
    let unseen = if survey.rows > survey.looked_at as u64 { UNSEEN_TOKENS } else { 0 };
    (known + unseen).next_multiple_of(8) as u64
}

/// Numbers from 0 are the classes themselves.
pub fn classes(label: &Column) -> usize {
    let count = match label.range {
        Some((_, high)) if label.whole => high as usize + 1,
        _ => label.classes.len(),
    };
    count.max(2)
}

/// How many tokens of a text are read: as many as nearly all texts have, so that no memory is spent on padding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    pub source: u32,
    pub target: u32,
    /// Tokens of a sample in tasks with a single sequence.
    pub length: u32,
}

impl Limits {
    /// The limits for data that could not be read.
    pub fn unknown(task: Task) -> Self {
        let length = match task {
            Task::Classification | Task::TokenLabels => 256,
            Task::Contrastive => 77,
            _ => UNKNOWN,
        };
        Self { source: UNKNOWN, target: 256, length }
    }

    /// Limits that cut next to nothing.
    pub fn longest(self) -> Self {
        Self { source: LONGEST, target: LONGEST, length: self.length.max(UNKNOWN) }
    }

    /// The limits for the lengths that the trainer has counted.
    pub fn of_tokens(inspection: &Inspection) -> Option<Self> {
        let of = |column: &str| {
            let found = inspection.train.lengths.iter().find(|lengths| lengths.column == column)?;
            let (p95, longest) = (found.p95 as usize, found.longest as usize);
            // The marks are counted already.
            Some(limit(Lengths { mean: 0, p95, longest: longest.saturating_sub(MARKS) }))
        };
        match (of("source"), of("target"), of("text").or(of("tokens")).or(of(CHOSEN))) {
            (Some(source), Some(target), _) => Some(Self { source, target, length: UNKNOWN }),
            (_, _, Some(length)) => Some(Self { source: UNKNOWN, target: UNKNOWN, length }),
            _ => None,
        }
    }

    /// The limits for the lengths that the columns suggest.
    pub fn of(task: Task, survey: &Survey, fields: &[Field], is_small: bool) -> Self {
        let of = |role: &str| survey.fed(fields, role).map_or(Lengths::default(), |column| column.tokens);
        let mut limits = Self::unknown(task);
        match (task, survey.fed(fields, "messages")) {
            (Task::Seq2Seq, Some(column)) if column.kind == ColumnKind::Messages => {
                (limits.source, limits.target) = (limit(column.tokens), limit(column.answer_tokens));
            }
            (Task::Seq2Seq, _) => {
                (limits.source, limits.target) = (limit(of("source").and(of(CONTEXT))), limit(of("target")));
            }
            (Task::Classification, _) => limits.length = limit(of("text").and(of("text_pair"))),
            (Task::Contrastive, _) => limits.length = limit(of("text")).min(77),
            (Task::TokenLabels, _) => limits.length = limit(of("tokens")),
            (Task::Preference, _) => {
                let chosen = survey.fed(fields, CHOSEN).map(|column| column.tokens.and(column.answer_tokens));
                limits.length = limit(chosen.unwrap_or_default().and(of(PROMPT)));
            }
            (Task::Language, Some(column)) if column.kind == ColumnKind::Messages => {
                limits.length = limit(column.tokens.and(column.answer_tokens));
            }
            (Task::Language, _) if is_chat(fields) => {
                limits.length = limit(of(PROMPT).and(of(COMPLETION)).and(of(CONTEXT)));
            }
            (Task::Language, _) if is_small => limits.length = 128,
            (Task::Language | Task::TimeSeries | Task::Table | Task::PictureClasses, _) => {}
        }
        limits
    }
}

/// The longest text fits, unless it is far longer than the others.
fn limit(lengths: Lengths) -> u32 {
    let longest = if lengths.longest <= 2 * lengths.p95 { lengths.longest } else { lengths.p95 };
    ((longest + MARKS).next_multiple_of(STEP) as u32).clamp(STEP as u32 * 2, UNKNOWN)
}

#[cfg(test)]
mod tests {
    use pipe_spec::pipeline::Arch;

    use super::*;

    fn facts(samples: u64) -> Facts<'static> {
        Facts {
            task: Task::Classification,
            samples: Some(samples),
            has_eval: false,
            from_weights: false,
            size: ModelSize::for_rows(samples),
            is_number: false,
            is_several: false,
            has_numbered_tags: false,
            classes: &[],
            window: 0,
        }
    }

    fn settings(facts: &Facts<'_>) -> Settings {
        Settings::new(&pipe_model::starter(Arch::Bert), facts)
    }

    #[test]
    fn few_rows_are_passed_often_in_small_steps() {
        for (samples, epochs, batch, share) in
            [(60, 42, 4, 0.3), (200, 32, 16, 0.1), (2000, 9, 32, 0.1), (50_000, 5, 32, 0.1), (50_000_000, 1, 32, 0.1)]
        {
            let found = settings(&facts(samples));
            let seen = (found.epochs, found.effective_batch, found.eval_share);
            // Bounds, so that a measurement may change the middle.
            assert!(seen.0 >= 1 && seen.0 <= MOST_EPOCHS, "{samples}: {seen:?}");
            assert_eq!((seen.1, seen.2), (batch, share), "{samples} {epochs}: {seen:?}");
        }
        let steps = |samples: u64| {
            let found = settings(&facts(samples));
            found.epochs * samples / u64::from(found.effective_batch)
        };
        assert!(steps(200) >= 400 && steps(50_000_000) <= 2_000_000, "{} {}", steps(200), steps(50_000_000));
    }

    #[test]
    fn trained_weights_need_few_epochs_and_a_small_rate() {
        let tuned = settings(&Facts { from_weights: true, ..facts(2000) });
        assert_eq!((tuned.epochs, tuned.lr), (3, 2.0e-5));
        assert!(settings(&facts(2000)).lr > 10.0 * tuned.lr);
    }

    #[test]
    fn five_to_ten_evaluations() {
        for samples in [60, 200, 2000, 9000, 50_000] {
            let found = settings(&facts(samples));
            let trained = (samples as f64 * (1.0 - found.eval_share)) as u64;
            let steps = trained.div_ceil(u64::from(found.effective_batch)) * found.epochs;
            let evaluations = found.evaluate_every.map_or(found.epochs, |every| steps / every);
            assert!((5..=10).contains(&evaluations), "{samples}: {evaluations}");
        }
    }

    #[test]
    fn uneven_classes_are_weighted() {
        let classes = |counts: [usize; 2]| counts.map(|rows| (rows.to_string(), rows));
        let balanced = |counts| settings(&Facts { classes: &classes(counts), ..facts(200) }).balanced;
        assert!(balanced([90, 20]) && !balanced([80, 20]) && !settings(&facts(200)).balanced);
    }

    #[test]
    fn the_end_of_a_series_holds_windows() {
        let series = Facts { task: Task::TimeSeries, window: window(400), ..facts(400) };
        assert_eq!((window(400), window(100_000), window(10)), (10, 60, 8));
        assert!(settings(&series).eval_share * 400.0 >= 30.0 - 1.0e-9);
    }

    #[test]
    fn a_text_that_is_far_longer_than_the_others_is_cut() {
        let of = |p95, longest| limit(Lengths { mean: 5, p95, longest });
        assert_eq!((of(40, 61), of(40, 600), of(2, 2), of(900, 900)), (64, 48, 32, 512));
    }
}
