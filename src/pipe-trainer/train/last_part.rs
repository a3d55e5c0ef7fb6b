//! How the last part of a rank's step is launched on a card: kernel by kernel, so that its gradients are summed as they come; or as one CUDA
//! graph, and all is summed afterwards. Which is faster depends on the card, the link and the shapes. The result is the same.

/// Steps until shapes that come up again are recorded.
const BEFORE: u64 = 16;

/// Steps in which both are tried in turns.
const TRIED: u64 = 32;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Sums begin during the backward pass.
    Overlapped,
    /// As one graph.
    Graph,
}

/// All ranks see the same times, and so choose the same.
#[derive(Default)]
pub struct LastPart {
    steps: u64,
    /// Milliseconds a token, of both ways.
    tried: [Vec<f64>; 2],
}

impl LastPart {
    /// For the step that comes next.
    pub fn way(&self) -> Way {
        match self.steps {
            0..BEFORE => Way::Graph,
            step if step < BEFORE + TRIED => {
                if step.is_multiple_of(2) {
                    Way::Overlapped
                } else {
                    Way::Graph
                }
            }
            _ => {
                let [overlapped, graph] = self.tried.each_ref().map(|times| median(times));
                if graph < overlapped { Way::Graph } else { Way::Overlapped }
            }
        }
    }

    /// The slowest rank took so long for the step that has ended, in which all together had so many tokens.
    pub fn took(&mut self, ms: f64, tokens: u64) {
        if (BEFORE..BEFORE + TRIED).contains(&self.steps) {
            self.tried[self.way() as usize].push(ms / tokens.max(1) as f64);
        }
        self.steps += 1;
    }
}

fn median(times: &[f64]) -> f64 {
    let mut times = times.to_vec();
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_faster_one_is_kept() {
        for (overlapped, graph, want) in [(3.0, 2.0, Way::Graph), (2.0, 3.0, Way::Overlapped)] {
            let mut last = LastPart::default();
            let mut ways = Vec::new();
            for step in 0..200 {
                let way = last.way();
                ways.push(way);
                // A recording now and then takes long.
                let each = if step % 11 == 0 {
                    50.0
                } else if way == Way::Graph {
                    graph
                } else {
                    overlapped
                };
                last.took(each * 100.0, 100);
            }
            assert!(ways[..16].iter().all(|way| *way == Way::Graph));
            assert_eq!(ways[16..48].iter().filter(|way| **way == Way::Graph).count(), 16);
            assert!(ways[48..].iter().all(|way| *way == want), "{overlapped} and {graph}");
        }
    }
}
