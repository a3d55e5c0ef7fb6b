//! What each rank of a training held, and how long it computed.

use pipe_spec::event::Step;
use serde::Serialize;

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct RankFigures {
    /// Bytes.
    pub peak: u64,
    /// Milliseconds of the median step, without waiting for the others.
    pub ms: f64,
}

/// Of each of several ranks in the steps of the last attempt that had as many; none of one.
pub fn figures(steps: &[Step]) -> Vec<RankFigures> {
    let count = steps.last().map_or(0, |step| step.ranks.len());
    let steps: Vec<&Step> = steps.iter().rev().take_while(|step| step.ranks.len() == count).collect();
    let of = |rank: usize| {
        let mut times: Vec<f64> = steps.iter().map(|step| step.ranks[rank].ms).collect();
        times.sort_by(f64::total_cmp);
        let peak = steps.iter().map(|step| step.ranks[rank].peak).max().unwrap_or(0);
        RankFigures { peak, ms: times[times.len() / 2] }
    };
    (0..count).map(of).collect()
}

/// The rank that took longest.
pub fn slowest(ranks: &[RankFigures]) -> Option<usize> {
    (0..ranks.len()).max_by(|a, b| ranks[*a].ms.total_cmp(&ranks[*b].ms))
}

#[cfg(test)]
mod tests {
    use pipe_spec::event::RankUse;

    use super::*;

    #[test]
    fn of_the_last_number_of_ranks() {
        let step = |ranks: &[(u64, f64)]| Step {
            ranks: ranks.iter().map(|(peak, ms)| RankUse { peak: *peak, ms: *ms, ..RankUse::default() }).collect(),
            ..Step::default()
        };
        assert_eq!((figures(&[]), figures(&[step(&[])])), (Vec::new(), Vec::new()));
        let steps =
            [step(&[(9, 9.0)]), step(&[(1, 5.0), (4, 2.0)]), step(&[(3, 1.0), (2, 2.0)]), step(&[(2, 4.0), (1, 3.0)])];
        let ranks = figures(&steps);
        assert_eq!(ranks, [RankFigures { peak: 3, ms: 4.0 }, RankFigures { peak: 4, ms: 2.0 }]);
        assert_eq!((slowest(&ranks), slowest(&[])), (Some(0), None));
    }
}
