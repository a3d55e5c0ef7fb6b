//! What the evaluations of a run have shown beside their scores, from the files that its jobs wrote.

use pipe_spec::evaluation::EvaluationDetails;
use pipe_spec::run::JobFolder;
use pipe_spec::{RunFolder, RunState};

use super::record::History;
use super::{job_file, result};

/// Bytes that are read of a file: pictures included, one has a tenth of that.
const LIMIT: u64 = 8 << 20;

/// Those of the evaluation of the exported model: the best by `save.best`, else the last. Absent where no attempt wrote any.
/// The events say which is the best: of a run that has not ended, the state does not know it yet.
pub fn of_model(folder: &RunFolder, state: &RunState, history: &History) -> Option<EvaluationDetails> {
    let known = state.result.as_ref().filter(|known| known.save_best.is_some());
    let best = known.and_then(|known| result(history, known).best);
    let best = best.and_then(|best| newest(folder, state, JobFolder::BEST_EVALUATION, Some(best.step)));
    best.or_else(|| newest(folder, state, JobFolder::EVALUATION, None))
}

/// Of the last attempt that has such a file, of the evaluation after `step` where one is given.
fn newest(folder: &RunFolder, state: &RunState, name: &str, step: Option<u64>) -> Option<EvaluationDetails> {
    let mut attempts = state.attempts.iter().rev();
    attempts.find_map(|attempt| {
        let bytes = job_file::read(folder.attempt(attempt.number).job().path(), name, LIMIT).ok()?;
        let details: EvaluationDetails = serde_json::from_slice(&bytes).ok()?;
        (!details.is_empty() && step.is_none_or(|step| step == details.step)).then_some(details)
    })
}

#[cfg(test)]
mod tests {
    use pipe_spec::Attempt;
    use pipe_spec::evaluation::ClassDetails;
    use pipe_spec::event::{Eval, Scores};
    use pipe_spec::pipeline::Metric;
    use pipe_spec::run::RunResult;

    use super::*;

    fn write(folder: &RunFolder, attempt: u32, name: &str, step: u64) {
        let job = folder.attempt(attempt).job();
        std::fs::create_dir_all(job.path()).unwrap();
        let classes = Some(ClassDetails::default());
        let details = EvaluationDetails { step, classes, ..EvaluationDetails::default() };
        std::fs::write(job.path().join(name), serde_json::to_string(&details).unwrap()).unwrap();
    }

    #[test]
    fn the_last_attempt_that_has_it() {
        let folder = RunFolder::new(std::env::temp_dir().join(format!("pipe-evaluation-{}", std::process::id())));
        let mut state = RunState::new("a", "a", "process");
        state.attempts = (1..=3).map(|number| Attempt::new(number, 1, 1)).collect();
        let mut history = History::default();
        let step = |state: &RunState, history: &History| of_model(&folder, state, history).map(|details| details.step);
        assert_eq!(step(&state, &history), None);
        write(&folder, 1, JobFolder::EVALUATION, 4);
        write(&folder, 1, JobFolder::BEST_EVALUATION, 4);
        write(&folder, 2, JobFolder::EVALUATION, 8);
        assert_eq!(step(&state, &history), Some(8));
        std::fs::create_dir_all(folder.attempt(3).job().path()).unwrap();
        std::fs::write(folder.attempt(3).job().evaluation(), "{\"step\": ").unwrap();
        assert_eq!(step(&state, &history), Some(8));

        let eval = |step, loss| Eval { step, loss, samples: 1, ms: 0.0, scores: Scores::new() };
        history.evals = vec![eval(4, 0.5), eval(8, 0.6)];
        assert_eq!(step(&state, &history), Some(8));
        state.result = Some(RunResult { save_best: Some(Metric::loss()), ..RunResult::default() });
        assert_eq!(step(&state, &history), Some(4));
        // A file of another evaluation than the best one is not taken for it.
        history.evals.push(eval(6, 0.4));
        assert_eq!(step(&state, &history), Some(8));
        std::fs::remove_dir_all(folder.path()).unwrap();
    }
}
