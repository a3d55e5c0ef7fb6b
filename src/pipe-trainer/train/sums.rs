//! The common work of several ranks: the sum of their gradients, how the last part is launched, and whether one is slower.
//!
//! The optimizer's state of all ranks, for one checkpoint. Each rank hands in its share as a file: so it can, too, when nothing is summed
//! any more.

use std::cell::{Cell, RefCell};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{fs, thread};

use pipe_spec::event::RankUse;
use tch::{Device, Kind, Tensor};

use super::session::Session;
use crate::error::TrainerError;
use crate::model::Weights;
use crate::optim::{Optimizer, Share};
use crate::ranks::Peers;
use crate::session::job_folder;
use crate::storage::{TensorFiles, tensor_files};
use crate::torch::{self, BucketSums};

pub struct Sums {
    buckets: BucketSums,
    /// Not any more where a gradient came later than expected.
    overlaps: Cell<bool>,
    /// Whether a sum of this step may have begun.
    begun: Cell<bool>,
    last_part: RefCell<LastPart>,
}

impl Sums {
    /// Absent where there is one rank.
    pub fn new(
        session: &Session,
        gradients: Option<&FlatGradients>,
        weights: &Weights,
        overlaps: bool,
    ) -> Result<Option<Self>, TrainerError> {
        let Some(gradients) = gradients else { return Ok(None) };
        if session.peers.is_nobody() {
            return Ok(None);
        }
        let parameters: Vec<_> = weights.trained().map(|(_, parameter)| parameter).collect();
        let buckets: Vec<_> = gradients.buckets.iter().collect();
        let link = session.peers.link(session.hardware.device);
        let buckets = BucketSums::new(link, &buckets, &parameters, &gradients.bucket_of)?;
        Ok(Some(Self {
            buckets,
            overlaps: Cell::new(overlaps),
            begun: Cell::new(false),
            last_part: RefCell::default(),
        }))
    }

    /// A new step. Whatever was watched is not any more.
    pub fn begin_step(&self) -> Result<(), TrainerError> {
        self.begun.set(false);
        Ok(self.buckets.forget()?)
    }

    /// Before the backward pass of the last part.
    pub fn watch(&self, recomputes: bool) -> Result<(), TrainerError> {
        self.begun.set(true);
        Ok(self.buckets.watch(recomputes, self.overlaps.get())?)
    }

    /// After the last part, or where there is none. Whether the sum will be right: a gradient may have come when its bucket was being
    /// summed already. That is so once at most.
    pub fn finish(&self) -> Result<bool, TrainerError> {
        self.begun.set(true);
        Ok(self.buckets.finish()?.is_some())
    }

    /// Whether the last part may be launched as a graph, and summed afterwards.
    pub fn last_part_is_a_graph(&self) -> bool {
        self.last_part.borrow().way() == Way::Graph
    }

    /// The slowest rank took so long for a step of so many tokens.
    pub fn step_took(&self, ms: f64, tokens: u64) {
        self.last_part.borrow_mut().took(ms, tokens);
    }

    pub fn stop_overlapping(&self) {
        self.overlaps.set(false);
    }

    /// Whether the parts of this step can still be computed again.
    pub fn have_begun(&self) -> bool {
        self.begun.get()
    }
}

/// Gradients begin at multiples of so many elements, as kernels want them.
const ALIGNED: i64 = 16;

/// Bytes of a bucket that is summed at a time, at most: large enough for the whole of a link, and several of them, so that the first
/// are summed while the last are computed.
const BUCKET_BYTES: usize = 25 << 20;
const LEAST_BUCKETS: usize = 8;

pub struct FlatGradients {
    whole: Tensor,
    /// By parameter, in their order.
    each: Vec<Tensor>,
    /// Each bucket is summed at a time. The gradients of the last parameters, which are complete first, come first.
    pub buckets: Vec<Tensor>,
    /// The bucket of each parameter.
    pub bucket_of: Vec<usize>,
}

impl FlatGradients {
    pub fn of(weights: &Weights) -> Result<Self, TrainerError> {
        let all: Vec<&Tensor> = weights.trained().map(|(_, tensor)| tensor).collect();
        let Some(first) = all.first() else { return Err(TrainerError::Panic { message: "nothing is trained".into() }) };
        let room = |tensor: &Tensor| (tensor.numel() as i64 + ALIGNED - 1) / ALIGNED * ALIGNED;
        let total = all.iter().map(|tensor| room(tensor)).sum::<i64>();
        let whole = Tensor::f_zeros([total], (first.kind(), first.device()))?;
        let bytes = |elements: i64| elements as usize * first.kind().elt_size_in_bytes();
        let most = BUCKET_BYTES.min(bytes(total).div_ceil(LEAST_BUCKETS));
        let mut flat = Self { whole, each: Vec::new(), buckets: Vec::new(), bucket_of: vec![0; all.len()] };
        let (mut start, mut begun) = (0, 0);
        for (index, tensor) in all.iter().enumerate().rev() {
            flat.each.push(flat.whole.f_narrow(0, start, tensor.numel() as i64)?.f_view(&tensor.size()[..])?);
            flat.bucket_of[index] = flat.buckets.len();
            start += room(tensor);
            if bytes(start - begun) >= most || index == 0 {
                flat.buckets.push(flat.whole.f_narrow(0, begun, start - begun)?);
                begun = start;
            }
        }
        flat.each.reverse();
        Ok(flat)
    }

    /// Makes them zero and those of the parameters.
    pub fn begin(&self, weights: &Weights) -> Result<(), TrainerError> {
        let _ = self.whole.shallow_clone().f_zero_()?;
        for ((_, parameter), gradient) in weights.trained().zip(&self.each) {
            torch::set_gradient(parameter, Some(gradient))?;
        }
        Ok(())
    }
}

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

/// One rank's report to the others about its share of a step.
pub struct RankStep {
    /// Samples of the whole step, which all ranks must agree on.
    pub samples: f64,
    /// Targets of the whole step, which all ranks must agree on.
    pub targets: f64,
    /// The divisor of losses, which all ranks must agree on.
    pub divisor: f64,
    /// The sum of this rank's own losses.
    pub loss: f64,
    /// Whether a gradient came too late for its sum.
    pub must_repeat: bool,
    /// Milliseconds from the first part until all gradients were summed.
    pub took: f64,
    pub used: RankUse,
}

impl RankStep {
    /// Ranks exchange doubles, which hold every count of these exactly.
    pub fn to_numbers(&self) -> [f64; 11] {
        let Self { samples, targets, divisor, loss, must_repeat, took, used } = self;
        let RankUse { allocated, reserved, peak, ms, parts } = used;
        let must_repeat = f64::from(u8::from(*must_repeat));
        let [allocated, reserved, peak] = [*allocated as f64, *reserved as f64, *peak as f64];
        [*samples, *targets, *divisor, *loss, must_repeat, *took, allocated, reserved, peak, *ms, f64::from(*parts)]
    }

    pub fn from_numbers(numbers: &[f64]) -> Self {
        let [samples, targets, divisor, loss, must_repeat, took, allocated, reserved, peak, ms, parts] =
            numbers.try_into().expect("a rank sends as many numbers as it is sent");
        let [allocated, reserved, peak] = [allocated as u64, reserved as u64, peak as u64];
        let used = RankUse { allocated, reserved, peak, ms, parts: parts as u32 };
        Self { samples, targets, divisor, loss, must_repeat: must_repeat > 0.0, took, used }
    }

    pub fn is_of_same_samples(&self, other: &Self) -> bool {
        (self.samples, self.targets, self.divisor) == (other.samples, other.targets, other.divisor)
    }
}

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
    /// The warning that a rank falls behind, once.
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

/// All rows in fp32, [count, width]: each rank has some of them, given with where they begin, and no row is of two ranks. Rows of none
/// are zero.
pub fn exchange_rows(
    peers: &Peers,
    count: i64,
    own: &[(i64, &Tensor)],
    device: Device,
) -> Result<Tensor, TrainerError> {
    let _guard = tch::no_grad_guard();
    let width = own.first().map_or(0, |(_, rows)| rows.size()[1]);
    let widths = peers.gather(&[width as f64])?;
    let width = widths.iter().map(|row| row[0] as i64).max().unwrap_or(0);
    let all = Tensor::f_zeros([count, width], (Kind::Float, device))?;
    for (start, rows) in own {
        all.f_narrow(0, *start, rows.size()[0])?.f_copy_(rows)?;
    }
    peers.sum(&all)?;
    Ok(all)
}

/// How long the leading rank waits while nothing is written of the shares of others that end too.
const AWAIT_TIMEOUT: Duration = Duration::from_secs(60);

/// A file that is not whole yet.
const PART: &str = "part";

/// Exit codes above this are of a process that was killed by a signal.
const KILLED: i32 = 128;

const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Files of other ranks, beginning with rank 1; none where every rank has all of it.
pub struct OptimizerShares {
    files: Vec<PathBuf>,
}

/// The tensors in these files, mapped.
pub struct ReadShares {
    pub tensors: Vec<(String, Tensor)>,
    _files: Vec<TensorFiles>,
}

/// Writes this rank's share, unless it is the one that saves.
pub fn hand_in(
    session: &Session,
    share: &Share,
    optimizer: &Optimizer,
    step: u64,
) -> Result<OptimizerShares, TrainerError> {
    if session.peers.is_nobody() || share.owners().is_none() {
        return Ok(OptimizerShares { files: Vec::new() });
    }
    let folder = job_folder(&session.spec).ranks();
    let file = |rank: u32| folder.join(format!("optimizer-{step}-{rank}.safetensors"));
    let rank = session.peers.rank;
    if !session.peers.leads() {
        let path = file(rank.index);
        let part = path.with_extension(PART);
        let written = tensor_files::write(&part, &optimizer.tensors()).and_then(|_| fs::rename(&part, &path));
        written.map_err(|source| {
            let last = session.store.newest_path();
            TrainerError::Save { path, source, last }
        })?;
    }
    Ok(OptimizerShares { files: (1..rank.count).map(file).collect() })
}

impl OptimizerShares {
    /// Whether all come. Not of a rank that was killed.
    pub fn await_all(&self, peers: &Peers) -> bool {
        let written = || {
            let size = |path: &Path| fs::metadata(path).map_or(0, |found| found.len());
            self.files.iter().map(|file| size(file) + size(&file.with_extension(PART))).sum::<u64>()
        };
        let mut progress = (written(), Instant::now());
        loop {
            let missing: Vec<u32> =
                (1..).zip(&self.files).filter(|(_, file)| !file.is_file()).map(|(rank, _)| rank).collect();
            if missing.is_empty() {
                return true;
            }
            let is_killed = |rank: &u32| peers.ended(*rank).is_some_and(|ended| ended.exit > KILLED);
            if missing.iter().any(is_killed) || progress.1.elapsed() > AWAIT_TIMEOUT {
                return false;
            }
            let now = written();
            if now != progress.0 {
                progress = (now, Instant::now());
            }
            thread::sleep(POLL_INTERVAL);
        }
    }

    /// Nothing of them is copied. Their names are gone afterwards.
    pub fn read(self) -> Result<ReadShares, TrainerError> {
        let mut read = ReadShares { tensors: Vec::new(), _files: Vec::new() };
        for path in self.files {
            let file = TensorFiles::open_file(&path)?;
            read.tensors.extend(file.views()?);
            read._files.push(file);
            let _ = fs::remove_file(&path);
        }
        Ok(read)
    }
}

#[cfg(test)]
mod last_part_tests {
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

#[cfg(test)]
mod pace_tests {
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
