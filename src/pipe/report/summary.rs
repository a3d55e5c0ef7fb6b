//! A run in Markdown, for the page that GitHub shows of a job: where `GITHUB_STEP_SUMMARY` names a file, it is added there.

use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;

use pipe_spec::text::human_bytes;
use pipe_spec::{Attempt, Outcome, RunState};

use super::table::{duration, losses, steps};

/// Adds the run to the job's summary, if there is one.
pub fn add(state: &RunState) -> io::Result<()> {
    let Some(path) = std::env::var_os("GITHUB_STEP_SUMMARY").filter(|path| !path.is_empty()) else { return Ok(()) };
    let mut file = File::options().create(true).append(true).open(PathBuf::from(path))?;
    file.write_all(markdown(state).as_bytes())
}

fn markdown(state: &RunState) -> String {
    let mut text = format!("### pipe: {} {}\n\n", cell(&state.id), state.status.name());
    if let Some(error) = &state.error {
        text.push_str(&format!("> {}\n\n", cell(error)));
    }
    text.push_str("| attempt | batch x accum | outcome | steps | loss | peak | time | why |\n");
    text.push_str("|---|---|---|---|---|---|---|---|\n");
    state.attempts.iter().for_each(|attempt| text.push_str(&row(attempt)));
    text.push('\n');
    text
}

fn row(attempt: &Attempt) -> String {
    let why: Vec<&str> = [&attempt.reason, &attempt.action].into_iter().flatten().map(String::as_str).collect();
    format!(
        "| {} | {} x {} | {} | {} | {} | {} | {} | {} |\n",
        attempt.number,
        attempt.batch,
        attempt.accum,
        attempt.outcome.map_or("running", Outcome::name),
        steps(attempt),
        losses(attempt),
        attempt.peak_memory.map_or("-".to_owned(), human_bytes),
        duration(attempt.seconds),
        cell(&why.join("; then "))
    )
}

/// A text that stays within its cell.
fn cell(text: &str) -> String {
    text.lines().map(str::trim).collect::<Vec<_>>().join(" ").replace('|', "\\|")
}

#[cfg(test)]
mod tests {
    use pipe_spec::Status;

    use super::*;

    #[test]
    fn a_run_as_a_table() {
        let mut failed = Attempt::new(1, 64, 2);
        failed.outcome = Some(Outcome::Oom);
        failed.reason = Some("a | b\nc".to_owned());
        failed.action = Some("batch 32 instead of 64".to_owned());
        failed.seconds = 4.25;
        let mut done = Attempt::new(2, 32, 4);
        done.outcome = Some(Outcome::Finished);
        (done.first_step, done.last_step, done.first_loss, done.last_loss) = (Some(1), Some(9), Some(2.0), Some(0.5));
        done.peak_memory = Some(3 << 30);
        let state = RunState {
            status: Status::Finished,
            steps: Some(9),
            attempts: vec![failed, done],
            ..RunState::new("demo-1", "demo", "test")
        };
        let want = "### pipe: demo-1 finished\n\n\
            | attempt | batch x accum | outcome | steps | loss | peak | time | why |\n|---|---|---|---|---|---|---|---|\n\
            | 1 | 64 x 2 | oom | - | - | - | 4.2s | a \\| b c; then batch 32 instead of 64 |\n\
            | 2 | 32 x 4 | finished | 1-9 | 2.000 to 0.500 | 3.0 GiB | 0.0s |  |\n\n";
        assert_eq!(markdown(&state), want);
    }
}
