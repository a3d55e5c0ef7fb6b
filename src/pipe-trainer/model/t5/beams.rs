//! Beam search. The best answer is the one with the
//! highest mean log probability of its tokens, as in transformers with a length penalty of 1.

use tch::{Kind, Tensor};

use super::decode::Decoder;
use crate::error::TrainerError;
use crate::model::generation::Generation;

pub fn search(decoder: &mut Decoder<'_>, limits: &Generation) -> Result<Vec<Vec<i64>>, TrainerError> {
    let (beams, end) = (limits.beams, decoder.end_token());
    let rows = decoder.sources() * beams;
    let mut searches: Vec<Search> = (0..decoder.sources()).map(|_| Search::new(beams as usize)).collect();
    let mut tokens = decoder.start(rows)?;
    for _ in 0..limits.max_length {
        let candidates = candidates(&decoder.step(&tokens)?, &searches, beams)?;
        for (search, candidates) in searches.iter_mut().zip(&candidates) {
            search.advance(candidates, end);
        }
        if searches.iter().all(|search| search.done) {
            break;
        }
        let beginnings = || searches.iter().flat_map(|search| &search.beginnings);
        let first_row = |row: usize| row as i64 / beams * beams;
        let parents: Vec<i64> = beginnings().enumerate().map(|(row, beam)| first_row(row) + beam.parent).collect();
        let last: Vec<i64> = beginnings().map(Beginning::last_token).collect();
        decoder.reorder(&Tensor::f_from_slice(&parents)?.f_to_device(tokens.device())?)?;
        tokens = Tensor::f_from_slice(&last)?.f_to_device(tokens.device())?;
    }
    Ok(searches.into_iter().map(Search::best).collect())
}

/// A token that could follow one of the beams.
struct Candidate {
    parent: i64,
    token: i64,
    /// The sum of log probabilities with it.
    sum: f64,
}

/// For each source the best continuations, best first: twice as many as beams, so that enough are left when some end.
fn candidates(logits: &Tensor, searches: &[Search], beams: i64) -> Result<Vec<Vec<Candidate>>, TrainerError> {
    let vocabulary = logits.size()[1];
    let sums: Vec<f32> = searches.iter().flat_map(|search| &search.beginnings).map(|beam| beam.sum as f32).collect();
    let sums = Tensor::f_from_slice(&sums)?.f_to_device(logits.device())?.f_unsqueeze(1)?;
    let total = logits.f_log_softmax(-1, Kind::Float)?.f_add(&sums)?.f_view([-1, beams * vocabulary])?;
    let (sums, places) = total.f_topk(2 * beams, -1, true, true)?;
    let (sums, places) = (Vec::<f32>::try_from(sums.f_reshape([-1])?)?, Vec::<i64>::try_from(places.f_reshape([-1])?)?);
    let candidate = |(sum, index): (f32, i64)| Candidate {
        parent: index / vocabulary,
        token: index % vocabulary,
        sum: f64::from(sum),
    };
    let mut all = sums.into_iter().zip(places).map(candidate);
    Ok(searches.iter().map(|_| all.by_ref().take(2 * beams as usize).collect()).collect())
}

/// The search for the answer to one source.
struct Search {
    beams: usize,
    /// Those that have not ended, as many as beams.
    beginnings: Vec<Beginning>,
    /// The best that have ended, each with its score, best first.
    answers: Vec<(f64, Vec<i64>)>,
    /// Whether no open beam can become better than the answers.
    done: bool,
}

#[derive(Clone)]
struct Beginning {
    tokens: Vec<i64>,
    sum: f64,
    /// Which beam of the previous step it continues.
    parent: i64,
}

impl Beginning {
    fn last_token(&self) -> i64 {
        self.tokens.last().copied().unwrap_or_default()
    }
}

impl Search {
    fn new(beams: usize) -> Self {
        // All beams start equal: only the first is continued, or all would stay equal.
        let beginning = |beam| Beginning { tokens: Vec::new(), sum: if beam == 0 { 0.0 } else { -1e9 }, parent: 0 };
        Self { beams, beginnings: (0..beams).map(beginning).collect(), answers: Vec::new(), done: false }
    }

    fn advance(&mut self, candidates: &[Candidate], end: i64) {
        let mut next = Vec::with_capacity(self.beams);
        for (rank, Candidate { parent, token, sum }) in candidates.iter().enumerate() {
            let before = &self.beginnings[*parent as usize].tokens;
            let tokens = [before.as_slice(), &[*token]].concat();
            if *token != end {
                next.push(Beginning { tokens, sum: *sum, parent: *parent });
            } else if rank < self.beams && !self.done {
                self.answer(*sum, tokens);
            }
            if next.len() == self.beams {
                break;
            }
        }
        self.beginnings = next;
        let (best, length) = (self.beginnings[0].sum, self.beginnings[0].tokens.len());
        let worst = self.answers.last().map_or(f64::NEG_INFINITY, |(score, _)| *score);
        self.done |= self.answers.len() == self.beams && worst >= best / length as f64;
    }

    fn answer(&mut self, sum: f64, tokens: Vec<i64>) {
        let score = sum / tokens.len() as f64;
        let index = self.answers.partition_point(|(other, _)| *other >= score);
        self.answers.insert(index, (score, tokens));
        self.answers.truncate(self.beams);
    }

    /// What was cut off at the limit competes with what has ended.
    fn best(mut self) -> Vec<i64> {
        if !self.done {
            for beginning in std::mem::take(&mut self.beginnings) {
                self.answer(beginning.sum, beginning.tokens);
            }
        }
        self.answers.into_iter().next().map(|(_, tokens)| tokens).unwrap_or_default()
    }
}
