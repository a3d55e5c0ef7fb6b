//! Lines of a log in which the trainer says for people what the event beside them says: steps and evaluations. `pipe logs`
//! prints the event.

use pipe_spec::EventKind;

/// Finds such lines in the log of one attempt.
pub struct Repeated {
    /// Whether the job is our trainer. A command of the user may write what it likes.
    is_trainer: bool,
    /// Whether the trainer has begun to send events.
    has_events: bool,
    /// Lines that came before its first event: stderr may overtake stdout.
    held: Vec<u8>,
}

impl Repeated {
    pub fn new(is_trainer: bool) -> Self {
        Self { is_trainer, has_events: false, held: Vec::new() }
    }

    pub fn begin_attempt(&mut self) {
        *self = Self::new(self.is_trainer);
    }

    /// Whether the line is not printed, because an event says the same.
    pub fn takes(&mut self, line: &[u8]) -> bool {
        let repeats = self.is_trainer && std::str::from_utf8(line).is_ok_and(repeats_an_event);
        if repeats && !self.has_events {
            self.held.extend_from_slice(line);
        }
        repeats
    }

    pub fn see(&mut self, event: &EventKind) {
        if let EventKind::Started(_) = event {
            self.has_events = true;
            self.held.clear();
        }
    }

    /// Lines that were held back, and no event says the same.
    pub fn untold(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.held)
    }
}

/// `INFO step 3/10 loss 1.2500 lr 1.000e-4 grad norm 0.500`, or `INFO step 3 evaluation loss 1.2500`, and nothing else.
fn repeats_an_event(line: &str) -> bool {
    let words: Vec<&str> = line.split_whitespace().collect();
    let is_number = |word: &str| word.parse::<f64>().is_ok();
    let is_step = |word: &str| !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit());
    match words[..] {
        ["INFO", "step", step, "loss", loss, "lr", lr, "grad", "norm", norm] => {
            step.split_once('/').is_some_and(|(step, steps)| is_step(step) && is_step(steps))
                && [loss, lr, norm].into_iter().all(is_number)
        }
        ["INFO", "step", step, "evaluation", "loss", loss] => is_step(step) && is_number(loss),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_an_event_says() {
        for (line, want) in [
            (" INFO step 3/10 loss 1.2500 lr 1.000e-4 grad norm 0.500\n", true),
            (" INFO step 3 evaluation loss 1.2500\n", true),
            (" INFO step 3 evaluation loss NaN", true),
            (" INFO step 3/10 loss 1.2500 lr 1.000e-4 grad norm 0.500 and more", false),
            (" WARN step 3/10 loss 1.2500 lr 1.000e-4 grad norm 0.500", false),
            (" INFO step three/10 loss 1.2500 lr 1.000e-4 grad norm 0.500", false),
            (" INFO stopped early at step 3: eval.loss did not improve", false),
            ("step 3/10: loss 1.2500", false),
            ("", false),
        ] {
            assert_eq!(repeats_an_event(line), want, "{line}");
        }
    }

    #[test]
    fn lines_without_events_stay() {
        let line = b" INFO step 3 evaluation loss 1.2500\n";
        let mut repeated = Repeated::new(true);
        assert!(repeated.takes(line) && !repeated.takes(b"other\n"));
        assert_eq!(repeated.untold(), line);
        assert!(repeated.untold().is_empty());
        assert!(!Repeated::new(false).takes(line));
    }
}
