//! How many samples a part has room for: no more than hold what `batch` samples of full length would.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use super::part_sizes::{Layout, Lengths, PART_COST, PartTotals, part_sizes, parts, rounded_tokens};
use crate::adapter::Lora;
use crate::architecture::ModelConfig;
use crate::estimate::{Estimate, Work};
use crate::parameter::Parameter;

/// Lengths of padded rows are rounded up to a multiple of this: there are fewer rooms to compute, and a part holds a little less than it may.
const LENGTH_STEP: u32 = 4;

/// Whether parts are computed again for the backward pass, instead of being kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recompute {
    Never,
    Always,
    /// Only in parts that would hold more than so many bytes otherwise.
    Beyond(u64),
}

/// Splits steps into parts that hold at most what `batch` samples of full length would.
#[derive(Clone)]
pub struct PartBudget {
    config: Rc<dyn ModelConfig>,
    parameters: Rc<[Parameter]>,
    /// The work of a part of `batch` samples of full length.
    work: Work,
    layout: Layout,
    asked: Recompute,
    /// As `asked`, but never where `batch` samples of full length hold little enough.
    recompute: Recompute,
    /// The most that a part may hold.
    limit: Held,
    /// Bytes of `batch` samples of full length beside the state of the model, however parts are computed.
    full: u64,
    /// Samples in a step.
    step: u32,
    /// The most samples of a part by their lengths, and by whether it is computed again. Filled as they are asked for.
    rooms: RefCell<HashMap<(Lengths, bool), u32>>,
}

/// Bytes that a part holds.
#[derive(Clone, Copy)]
struct Held {
    /// Kept from the forward to the backward pass. It grows with every sample.
    kept: u64,
    /// Held at the worst moment, with gradients.
    peak: u64,
    /// The part of the peak that is not the state of the model.
    passing: u64,
}

impl PartBudget {
    /// `work` is that of a part of `batch` samples of full length, in steps of `step` samples; `recompute` decides whether it is
    /// computed again.
    pub fn new(
        config: Box<dyn ModelConfig>,
        adapter: Option<&Lora>,
        work: Work,
        layout: Layout,
        recompute: Recompute,
        step: u32,
    ) -> Self {
        let own = config.parameters();
        let parameters = adapter.map_or_else(|| own.clone(), |adapter| adapter.parameters(&own)).into();
        Self::of(config.into(), parameters, work, layout, recompute, step)
    }

    fn of(
        config: Rc<dyn ModelConfig>,
        parameters: Rc<[Parameter]>,
        work: Work,
        layout: Layout,
        asked: Recompute,
        step: u32,
    ) -> Self {
        let whole = |again: bool| held(&*config, &parameters, &Work { checkpointing: again, ..work });
        let kept = whole(false);
        let (recompute, limit, full) = match asked {
            Recompute::Never => (asked, kept, kept.passing),
            Recompute::Always => (asked, whole(true), whole(true).passing),
            Recompute::Beyond(most) if kept.peak <= most || config.step_memory().is_none() => {
                (Recompute::Never, kept, kept.passing)
            }
            // At least what the same samples hold when they are computed again: the batch was asked for.
            Recompute::Beyond(most) => {
                let peak = most.max(whole(true).peak);
                let passing = peak.saturating_sub(kept.peak - kept.passing);
                (asked, Held { kept: u64::MAX, peak, passing }, kept.passing)
            }
        };
        let rooms = RefCell::default();
        Self { config, parameters, work, layout, asked, recompute, limit, full, step: step.max(1), rooms }
    }

    /// The same for another batch, in steps of so many samples.
    pub fn with_batch(&self, batch: u32, step: u32) -> Self {
        self.changed(batch, self.asked, step)
    }

    /// The same for passes without gradients, which keep nothing that could be computed again.
    pub fn without_gradients(&self, batch: u32, step: u32) -> Self {
        self.changed(batch, Recompute::Never, step)
    }

    fn changed(&self, batch: u32, recompute: Recompute, step: u32) -> Self {
        let work = Work { batch: batch.into(), accum: step.div_ceil(batch).into(), ..self.work };
        Self::of(Rc::clone(&self.config), Rc::clone(&self.parameters), work, self.layout, recompute, step)
    }

    /// Sizes of the parts that samples in this order become, for so many ranks: as few parts as there is room for and as give
    /// each rank the same number, and of those the ones whose work is most alike. Where parts may be computed again, they are if
    /// that is less work than parts that are not.
    pub fn part_sizes(&self, samples: &[Lengths], ranks: u32) -> Vec<usize> {
        let room = |again: bool| move |lengths| self.room_for(lengths, again) as usize;
        let sizes = |again: bool| part_sizes(samples, ranks, self.layout, room(again));
        match self.recompute {
            Recompute::Never => sizes(false),
            Recompute::Always => sizes(true),
            Recompute::Beyond(_) => {
                let (kept, again) = (sizes(false), sizes(true));
                if self.cost(samples, &again) < self.cost(samples, &kept) { again } else { kept }
            }
        }
    }

    /// The work of all parts in tokens.
    fn cost(&self, samples: &[Lengths], sizes: &[usize]) -> u64 {
        let cost = |part: &[Lengths]| {
            let totals = PartTotals::of(part);
            let tokens = totals.tokens(self.layout);
            // The forward pass is a third of the work.
            let again = self.recomputes(part.len() as u32, totals.lengths(self.layout));
            tokens + if again { tokens / 3 } else { 0 } + PART_COST
        };
        parts(samples, sizes).map(cost).sum()
    }

    /// Whether a part of so many samples of such lengths is computed again for its gradient.
    pub fn recomputes(&self, samples: u32, lengths: Lengths) -> bool {
        match self.recompute {
            Recompute::Never => false,
            Recompute::Always => true,
            Recompute::Beyond(_) => self.held(samples, lengths, false).peak > self.limit.peak,
        }
    }

    /// How many samples of such lengths a part may have; at least one, and no more than a step has.
    pub fn room(&self, lengths: Lengths) -> u32 {
        self.room_for(lengths, self.recompute != Recompute::Never)
    }

    fn room_for(&self, lengths: Lengths, again: bool) -> u32 {
        let rounded = |length: u32, full: u128| match u128::from(length) < full && self.layout == Layout::Padded {
            true => length.next_multiple_of(LENGTH_STEP).min(full as u32),
            false => length,
        };
        let lengths = Lengths {
            source: rounded(lengths.source, self.work.source),
            target: rounded(lengths.target, self.work.target),
        };
        *self.rooms.borrow_mut().entry((lengths, again)).or_insert_with(|| {
            let (mut fitting, mut beyond) = (1, self.step + 1);
            while beyond - fitting > 1 {
                let middle = fitting + (beyond - fitting) / 2;
                let Held { kept, peak, .. } = self.held(middle, lengths, again);
                if kept <= self.limit.kept && peak <= self.limit.peak { fitting = middle } else { beyond = middle }
            }
            fitting
        })
    }

    /// How much of what the batch allows is held by a part of so many samples of such lengths.
    pub fn filled(&self, samples: u32, lengths: Lengths) -> f64 {
        let held = self.held(samples, lengths, self.recomputes(samples, lengths));
        match self.recompute {
            Recompute::Beyond(_) => held.passing as f64 / self.full.max(1) as f64,
            Recompute::Never | Recompute::Always => held.kept as f64 / self.limit.kept.max(1) as f64,
        }
    }

    /// Bytes that a part may hold beside the state of the model. Absent where the model has no estimate.
    pub fn part_bytes(&self) -> Option<u64> {
        self.config.step_memory().map(|_| self.limit.passing)
    }

    fn held(&self, samples: u32, lengths: Lengths, again: bool) -> Held {
        let samples = u128::from(samples);
        // Packed samples are rounded up to one of few numbers of tokens.
        let each = |length: u32, full: u128| match self.layout {
            Layout::Padded => length.into(),
            Layout::Packed => {
                let number = |tokens: u128| u64::try_from(tokens).unwrap_or(u64::MAX);
                let tokens = rounded_tokens(number(samples * u128::from(length)), number(self.work.batch * full));
                u128::from(tokens).div_ceil(samples.max(1))
            }
        };
        let (source, target) = (each(lengths.source, self.work.source), each(lengths.target, self.work.target));
        let target = if lengths.target == 0 { 0 } else { target };
        let work = Work { batch: samples, source, target, checkpointing: again, ..self.work };
        held(&*self.config, &self.parameters, &work)
    }
}

/// Bytes that a part holds; tokens where the model has no estimate.
fn held(config: &dyn ModelConfig, parameters: &[Parameter], work: &Work) -> Held {
    let bytes = |number: u128| u64::try_from(number).unwrap_or(u64::MAX);
    let Some(memory) = config.step_memory() else {
        let tokens = bytes(work.batch * (work.source + work.target).max(1));
        return Held { kept: tokens, peak: tokens, passing: tokens };
    };
    let stages = memory.stages(work);
    let kept = stages.iter().map(|stage| stage.kept).sum::<u128>()
        + stages.iter().map(|stage| stage.logits).max().unwrap_or(0);
    let estimate = Estimate::of(parameters, &stages, work);
    let passing = estimate.activations.saturating_add(estimate.logits);
    Held { kept: bytes(kept), peak: estimate.allocated(), passing }
}

#[cfg(test)]
mod tests {
    use pipe_spec::pipeline::{Arch, OptimizerKind, Precision};
    use serde_json::json;

    use super::*;
    use crate::registry::read_config;

    fn of(source: u32, target: u32) -> Lengths {
        Lengths { source, target }
    }

    const WORK: Work = Work {
        precision: Precision::Bf16Mixed,
        optimizer: OptimizerKind::Adafactor,
        checkpointing: false,
        batch: 7,
        accum: 9,
        ranks: 1,
        sharded: false,
        source: 77,
        target: 64,
        padded: true,
        drops: true,
        adapter: None,
    };

    fn budget(arch: Arch, work: Work, recompute: Recompute) -> PartBudget {
        let config = json!({
            "d_model": 512, "d_ff": 1024, "d_kv": 64, "num_heads": 8, "num_layers": 6, "hidden_size": 768,
            "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072, "vocab_size": 250_002,
            "max_position_embeddings": 514,
        });
        let config = read_config(arch, config.as_object().unwrap()).unwrap();
        PartBudget::new(config, None, work, Layout::Padded, recompute, 99)
    }

    /// So many samples of full length, not more, and half of them with half the batch, however large the state of the model is.
    #[test]
    fn a_part_of_full_length_has_the_batch() {
        for arch in [Arch::T5, Arch::Bert, Arch::XlmRoberta, Arch::DebertaV3, Arch::BagOfWords] {
            for (recompute, batch) in [(Recompute::Never, 7), (Recompute::Always, 12), (Recompute::Beyond(u64::MAX), 7)]
            {
                let budget = budget(arch, Work { batch, ..WORK }, recompute);
                let (full, batch, name) = (of(77, 64), batch as u32, format!("{arch:?} {recompute:?}"));
                assert_eq!(budget.room(full), batch, "{name}");
                assert_eq!(budget.with_batch(batch / 2, 99).room(full), batch / 2, "{name}");
                assert!((budget.filled(batch, full) - 1.0).abs() < 1e-9, "{name}");
                assert!(budget.room(of(8, 8)) > 3 * batch, "{name}: {}", budget.room(of(8, 8)));
                assert_eq!(budget.recomputes(batch, full), recompute == Recompute::Always, "{name}");
            }
        }
    }

    /// Where a batch of full length would hold too much, parts are computed again or are small enough to be kept, whichever is less
    /// work; and a smaller batch allows less after all.
    #[test]
    fn what_does_not_fit_is_computed_again() {
        let work = Work { batch: 60, source: 512, target: 128, ..WORK };
        let whole = budget(Arch::T5, work, Recompute::Never).limit.peak;
        let again = budget(Arch::T5, work, Recompute::Always).limit.peak;
        let most = again + (whole - again) / 2;
        let budget = budget(Arch::T5, work, Recompute::Beyond(most));
        let (long, short) = (of(512, 128), of(32, 32));
        assert!(budget.recomputes(60, long) && !budget.recomputes(20, long) && !budget.recomputes(60, short));
        // Two parts that are kept are less work than one that is computed again.
        assert_eq!(budget.part_sizes(&[long; 60], 1), [32, 28]);
        assert_eq!(budget.part_sizes(&[short; 60], 1), [60]);
        let mixed: Vec<Lengths> = [[long; 33].as_slice(), &[short; 27]].concat();
        let sizes = budget.part_sizes(&mixed, 1);
        for part in parts(&mixed, &sizes) {
            let (size, longest) = (part.len() as u32, PartTotals::of(part).lengths(Layout::Padded));
            let held = budget.held(size, longest, budget.recomputes(size, longest));
            assert!(held.peak <= most, "{sizes:?}");
        }
        // A retry halves what the fullest part held, as a share of the batch.
        let held = (60.0 * budget.filled(60, long)).ceil() as u32;
        let less = budget.with_batch(held / 2, 99);
        assert!(held < 60 && less.limit.peak < most, "{held}");
        // Less than it takes when computed again is not on offer: the batch was asked for.
        assert_eq!(self::budget(Arch::T5, work, Recompute::Beyond(0)).room(long), 60);
    }
}
