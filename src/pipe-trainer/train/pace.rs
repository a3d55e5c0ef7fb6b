//! Whether one rank is slower than the others, so that all wait for it in every step.

use pipe_spec::event::RankUse;

/// A rank that takes so many times as long as the others falls behind.
const BEHIND: f64 = 2.0;

/// In so many steps in a row.
const STEPS: u32 = 20;

/// Less is noise, in milliseconds.
const LEAST_MS: f64 = 20.0;

#[derive(Default)]
pub struct Pace {
    slowest: usize,
    /// Steps in a row in which it was behind.
    steps: u32,
    said: bool,
}

impl Pace {
    /// What to say about it, once.
    pub fn falls_behind(&mut self, ranks: &[RankUse]) -> Option<String> {
        let of =
            |ranks: &[RankUse]| ranks.iter().enumerate().max_by(|a, b| a.1.ms.total_cmp(&b.1.ms)).map(|(at, _)| at);
        let slowest = of(ranks).filter(|_| ranks.len() > 1)?;
        let mut others: Vec<f64> = ranks.iter().map(|rank| rank.ms).collect();
        let ms = others.remove(slowest);
        others.sort_by(f64::total_cmp);
        let usual = others[others.len() / 2];
        let behind = ms > BEHIND * usual && ms - usual > LEAST_MS;
        self.steps = match behind {
            true if slowest == self.slowest => self.steps + 1,
            true => 1,
            false => 0,
        };
        self.slowest = slowest;
        if self.said || self.steps < STEPS {
            return None;
        }
        self.said = true;
        Some(format!(
            "rank {slowest} takes {:.1} times as long as the others ({ms:.0} ms of a step, they {usual:.0} ms), and all wait for it: \
             is its card or its cores in use by something else?",
            ms / usual
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranks(ms: &[f64]) -> Vec<RankUse> {
        ms.iter().map(|ms| RankUse { ms: *ms, ..RankUse::default() }).collect()
    }

    #[test]
    fn the_same_rank_must_be_behind_for_a_while() {
        let mut pace = Pace::default();
        let says = |pace: &mut Pace, ms: &[f64], times: usize| (0..times).find_map(|_| pace.falls_behind(&ranks(ms)));
        assert_eq!(says(&mut pace, &[100.0, 90.0, 190.0], 100), None, "not twice");
        assert_eq!(says(&mut pace, &[100.0, 90.0, 400.0], 19), None);
        assert_eq!(says(&mut pace, &[400.0, 90.0, 100.0], 19), None, "another one");
        let said = says(&mut pace, &[100.0, 90.0, 400.0], 20).unwrap();
        assert!(
            said.starts_with("rank 2 takes 4.0 times as long as the others (400 ms of a step, they 100 ms)"),
            "{said}"
        );
        assert_eq!(says(&mut pace, &[100.0, 90.0, 400.0], 40), None, "said once");
        assert_eq!(says(&mut Pace::default(), &[1.0, 9.0], 40), None, "noise");
        assert_eq!(says(&mut Pace::default(), &[900.0], 40), None, "one rank");
    }
}
