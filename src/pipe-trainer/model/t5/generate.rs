//! Text generation: greedy, or by beam search, where the best answer is the one with the highest mean log probability of its tokens, as in
//! transformers with a length penalty of 1. One token at a time goes through the decoder: the keys and values of the tokens before are
//! kept, those of the source are computed once. Without dropout; called without gradients.

use tch::{Kind, Tensor};

use super::T5;
use super::layers::{Attention, Block, Rows};
use crate::data::Part;
use crate::error::TrainerError;
use crate::model::attention::{key_mask, padding_mask};
use crate::model::interface::{Generation, TextGenerator};
use crate::model::layers::Linear;
use crate::model::pass::Pass;

impl TextGenerator for T5 {
    /// The tokens of an answer to each source, its end token included unless `max_length` came first.
    fn generate(&self, part: &Part, limits: &Generation) -> Result<Vec<Vec<i64>>, TrainerError> {
        let _guard = tch::no_grad_guard();
        let mut decoder = Decoder::begin(self, part, limits.max_length)?;
        match limits.beams {
            0 | 1 => greedy(&mut decoder, limits.max_length),
            _ => search(&mut decoder, limits),
        }
    }
}

fn greedy(decoder: &mut Decoder<'_>, max_length: i64) -> Result<Vec<Vec<i64>>, TrainerError> {
    let end = decoder.end_token();
    let mut answers = vec![Vec::new(); decoder.sources() as usize];
    let mut tokens = decoder.start(decoder.sources())?;
    for _ in 0..max_length {
        tokens = decoder.step(&tokens)?.f_argmax(-1, false)?;
        let next = Vec::<i64>::try_from(&tokens)?;
        for (answer, token) in answers.iter_mut().zip(next) {
            if answer.last() != Some(&end) {
                answer.push(token);
            }
        }
        if answers.iter().all(|answer| answer.last() == Some(&end)) {
            break;
        }
    }
    Ok(answers)
}

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
    let (sums, indexes) = total.f_topk(2 * beams, -1, true, true)?;
    let (sums, indexes) =
        (Vec::<f32>::try_from(sums.f_reshape([-1])?)?, Vec::<i64>::try_from(indexes.f_reshape([-1])?)?);
    let candidate = |(sum, index): (f32, i64)| Candidate {
        parent: index / vocabulary,
        token: index % vocabulary,
        sum: f64::from(sum),
    };
    let mut all = sums.into_iter().zip(indexes).map(candidate);
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

    /// Texts that were truncated at the limit compete with those that have ended.
    fn best(mut self) -> Vec<i64> {
        if !self.done {
            for beginning in std::mem::take(&mut self.beginnings) {
                self.answer(beginning.sum, beginning.tokens);
            }
        }
        self.answers.into_iter().next().map(|(_, tokens)| tokens).unwrap_or_default()
    }
}

pub struct Decoder<'a> {
    model: &'a T5,
    layers: Vec<Layer<'a>>,
    /// [sources, 1, 1, source length]
    padding: Tensor,
    /// [1, heads, 1, max_length], of the last of `max_length` positions; its end is that of any position before.
    bias: Tensor,
    /// Tokens so far.
    length: i64,
}

impl<'a> Decoder<'a> {
    /// Reads the sources of `part`; up to `max_length` tokens can follow.
    pub fn begin(model: &'a T5, part: &Part, max_length: i64) -> Result<Self, TrainerError> {
        let pass = quiet(model);
        let padding = padding(part, pass)?;
        let key_mask = key_mask(part, pass.compute, model.config.d_kv)?;
        let rows = Rows::Each { padding: key_mask.as_ref() };
        let memory = model.encoder.forward(&model.embed(part.get("input_ids")?, pass)?, rows, None, pass)?;
        let stack = &model.decoder;
        let bias = stack.buckets.last_row(&stack.relative_attention_bias, max_length)?.f_to_kind(Kind::Float)?;
        let layers = stack.blocks.iter().map(|block| Layer::begin(block, &memory, pass)).collect::<Result<_, _>>()?;
        Ok(Self { model, layers, padding, bias, length: 0 })
    }

    pub fn sources(&self) -> i64 {
        self.padding.size()[0]
    }

    /// The token that every answer starts after, for each of `rows`.
    pub fn start(&self, rows: i64) -> Result<Tensor, TrainerError> {
        let token = self.model.config.decoder_start_token_id;
        Ok(Tensor::f_full([rows], token, (Kind::Int64, self.padding.device()))?)
    }

    pub fn end_token(&self) -> i64 {
        self.model.config.eos_token_id
    }

    /// The scores [rows, vocab_size] in fp32 of what follows `tokens` [rows]. Each source has as many rows as any other,
    /// one after the other.
    pub fn step(&mut self, tokens: &Tensor) -> Result<Tensor, TrainerError> {
        self.length += 1;
        let bias = self.bias.f_narrow(3, self.bias.size()[3] - self.length, self.length)?;
        let pass = quiet(self.model);
        let mut hidden = self.model.embed(&tokens.f_unsqueeze(1)?, pass)?;
        for layer in &mut self.layers {
            hidden = layer.step(&hidden, &bias, &self.padding, pass)?;
        }
        let mut hidden = self.model.decoder.final_layer_norm.forward(&hidden)?.f_squeeze_dim(1)?;
        if self.model.config.scale_decoder_outputs {
            hidden = hidden.f_mul_scalar((self.model.config.d_model as f64).powf(-0.5))?;
        }
        let head = &self.model.head;
        Ok(hidden.f_to_kind(head.kind())?.f_linear(head, None::<&Tensor>)?.f_to_kind(Kind::Float)?)
    }

    /// Goes on with row `rows[i]` in place of row `i`, which must be of the same source.
    pub fn reorder(&mut self, rows: &Tensor) -> Result<(), TrainerError> {
        for layer in &mut self.layers {
            if let Some(tokens) = &mut layer.tokens {
                tokens.keys = tokens.keys.f_index_select(0, rows)?;
                tokens.values = tokens.values.f_index_select(0, rows)?;
            }
        }
        Ok(())
    }
}

/// In the kind of the weights: nothing is saved here by computing in a narrower one. Those beside an adapter are narrow.
fn quiet(model: &T5) -> Pass {
    Pass::quiet(model.head.kind())
}

/// The mask that is added to the scores of attention to the source, [batch, 1, 1, length].
fn padding(part: &Part, pass: Pass) -> Result<Tensor, TrainerError> {
    match part.find("attention_mask") {
        Some(mask) => padding_mask(mask, pass.compute),
        None => {
            let ids = part.get("input_ids")?;
            let (batch, length) = ids.size2()?;
            Ok(Tensor::f_zeros([batch, 1, 1, length], (pass.compute, ids.device()))?)
        }
    }
}

/// A block with what it remembers.
struct Layer<'a> {
    block: &'a Block,
    /// Keys and values of the tokens so far, if there are any.
    tokens: Option<Remembered>,
    /// Keys and values of the source, in a decoder's block.
    memory: Option<(&'a Attention, Remembered)>,
}

/// Each [rows, heads, length, d_kv].
struct Remembered {
    keys: Tensor,
    values: Tensor,
}

impl<'a> Layer<'a> {
    fn begin(block: &'a Block, memory: &Tensor, pass: Pass) -> Result<Self, TrainerError> {
        let (sources, length, _) = memory.size3()?;
        let memory = match &block.cross_attention {
            Some(cross) => Some((cross, Remembered::new(cross, memory, [sources, length], pass)?)),
            None => None,
        };
        Ok(Self { block, tokens: None, memory })
    }

    /// `hidden` is [rows, 1, d_model].
    fn step(&mut self, hidden: &Tensor, bias: &Tensor, padding: &Tensor, pass: Pass) -> Result<Tensor, TrainerError> {
        let rows = hidden.size()[0];
        let attention = &self.block.attention;
        let normed = attention.layer_norm.forward(hidden)?;
        let new = Remembered::new(attention, &normed, [rows, 1], pass)?;
        let tokens = match &self.tokens {
            Some(before) => before.followed_by(&new)?,
            None => new,
        };
        let query = heads(attention, &normed, &attention.q, [rows, 1], pass)?;
        let mut hidden = added(attention, hidden, &tokens.attend(&query, bias)?, pass)?;
        self.tokens = Some(tokens);
        if let Some((cross, memory)) = &self.memory {
            // All rows of a source ask the same memory: they stand where the positions of a sequence would.
            let sources = memory.keys.size()[0];
            let normed = cross.layer_norm.forward(&hidden)?;
            let query = heads(cross, &normed, &cross.q, [sources, rows / sources], pass)?;
            hidden = added(cross, &hidden, &memory.attend(&query, padding)?, pass)?;
        }
        self.block.feed_forward.forward(&hidden, pass)
    }
}

impl Remembered {
    fn new(attention: &Attention, input: &Tensor, shape: [i64; 2], pass: Pass) -> Result<Self, TrainerError> {
        Ok(Self {
            keys: heads(attention, input, &attention.k, shape, pass)?,
            values: heads(attention, input, &attention.v, shape, pass)?,
        })
    }

    fn followed_by(&self, new: &Self) -> Result<Self, TrainerError> {
        Ok(Self {
            keys: Tensor::f_cat(&[&self.keys, &new.keys], 2)?,
            values: Tensor::f_cat(&[&self.values, &new.values], 2)?,
        })
    }

    /// T5 does not scale the scores: its initialisation does.
    fn attend(&self, query: &Tensor, bias: &Tensor) -> Result<Tensor, TrainerError> {
        let scores = query.f_matmul(&self.keys.f_transpose(2, 3)?)?.f_to_kind(Kind::Float)?.f_add(bias)?;
        Ok(scores.f_softmax(-1, None)?.f_to_kind(self.values.kind())?.f_matmul(&self.values)?)
    }
}

/// `input` projected, as [rows, heads, length, d_kv].
fn heads(
    attention: &Attention,
    input: &Tensor,
    projection: &Linear,
    [rows, length]: [i64; 2],
    pass: Pass,
) -> Result<Tensor, TrainerError> {
    let projected = projection.forward(input, pass)?;
    Ok(projected.f_view([rows, length, attention.heads, attention.d_kv])?.f_transpose(1, 2)?)
}

/// `attended` with its heads merged, projected and added to what came in.
fn added(attention: &Attention, hidden: &Tensor, attended: &Tensor, pass: Pass) -> Result<Tensor, TrainerError> {
    let inner = attention.heads * attention.d_kv;
    let merged = attended.f_transpose(1, 2)?.f_reshape([hidden.size()[0], 1, inner])?;
    Ok(hidden.f_add(&attention.o.forward(&merged, pass)?)?)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use pipe_spec::pipeline::Precision;
    use serde_json::json;
    use tch::{Device, Kind, Tensor};

    use super::*;
    use crate::model::pass::Kinds;
    use crate::model::t5::T5Config;
    use crate::model::{Mode, Model, Setup, Start};
    use crate::storage::TensorFiles;

    const LIMITS: Generation = Generation::greedy(24);

    fn golden() -> T5 {
        golden_in(Kinds::FP32)
    }

    fn golden_in(kinds: Kinds) -> T5 {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/t5-gated");
        let config = serde_json::from_slice(&std::fs::read(folder.join("config.json")).unwrap()).unwrap();
        let files = TensorFiles::open_folder(&folder).unwrap();
        let setup = Setup { kinds, ..Setup::plain() };
        T5::build(T5Config::read(&config).unwrap(), &Start::Tensors { files: &files, seed: 0 }, &setup).unwrap()
    }

    /// With tied embeddings, few buckets and a plain feed-forward layer. Large weights make its answers differ.
    fn random() -> T5 {
        let config = json!({
            "vocab_size": 50, "d_model": 16, "d_kv": 4, "d_ff": 32, "num_layers": 1, "num_decoder_layers": 3,
            "num_heads": 3, "relative_attention_num_buckets": 8, "relative_attention_max_distance": 12,
            "initializer_factor": 1.5,
        });
        let config = T5Config::read(config.as_object().unwrap()).unwrap();
        T5::build(config, &Start::Random { seed: 5 }, &Setup::plain()).unwrap()
    }

    fn sources() -> Part {
        let rows: [&[i64]; 5] =
            [&[7, 3, 22, 41, 9, 1], &[5, 1], &[30, 31, 32, 33, 34, 35, 36, 1], &[11, 1], &[2, 2, 48, 1]];
        let padded = |make: &dyn Fn(&[i64]) -> Vec<i64>| {
            let row = |row: &&[i64]| {
                let mut row = make(row);
                row.resize(8, 0);
                row
            };
            Tensor::from_slice(&rows.iter().flat_map(row).collect::<Vec<_>>()).reshape([rows.len() as i64, 8])
        };
        let labels = Tensor::zeros([rows.len() as i64, 1], (Kind::Int64, Device::Cpu));
        Part::default()
            .with("input_ids", padded(&|row| row.to_vec()))
            .with("attention_mask", padded(&|row| vec![1; row.len()]))
            .with("labels", labels)
    }

    /// [sources, answer length, vocab_size] in one pass over whole answers, which end in anything.
    fn log_probabilities(model: &T5, answers: &[Vec<i64>]) -> Tensor {
        let longest = answers.iter().map(Vec::len).max().unwrap();
        let row = |answer: &Vec<i64>| {
            let mut row = answer.clone();
            row.resize(longest, 0);
            row
        };
        let labels = Tensor::from_slice(&answers.iter().flat_map(row).collect::<Vec<_>>());
        let part = sources().with("labels", labels.reshape([answers.len() as i64, longest as i64]));
        tch::no_grad(|| model.logits(&part, Mode::Eval).unwrap().log_softmax(-1, Kind::Float))
    }

    /// The mean log probability of each answer's tokens.
    fn scores(model: &T5, answers: &[Vec<i64>]) -> Vec<f64> {
        let all = log_probabilities(model, answers);
        let score = |(row, answer): (usize, &Vec<i64>)| {
            let token = |(index, token): (usize, &i64)| all.double_value(&[row as i64, index as i64, *token]);
            answer.iter().enumerate().map(token).sum::<f64>() / answer.len() as f64
        };
        answers.iter().enumerate().map(score).collect()
    }

    fn recomputed(model: &T5) -> Vec<Vec<i64>> {
        let mut answers = vec![Vec::new(); sources().get("input_ids").unwrap().size()[0] as usize];
        for index in 0..LIMITS.max_length {
            let begun: Vec<Vec<i64>> =
                answers.iter().map(|answer: &Vec<i64>| [answer.as_slice(), &[0]].concat()).collect();
            let all = log_probabilities(model, &begun);
            for (row, answer) in answers.iter_mut().enumerate() {
                if answer.last() != Some(&model.config.eos_token_id) {
                    answer.push(all.get(row as i64).get(index).argmax(-1, false).int64_value(&[]));
                }
            }
        }
        answers
    }

    #[test]
    fn what_is_kept_gives_the_same_tokens_as_computing_it_again() {
        for model in [golden(), random()] {
            let answers = model.generate(&sources(), &LIMITS).unwrap();
            assert_eq!(answers, recomputed(&model));
            assert!(answers.iter().any(|answer| *answer != answers[0]), "{answers:?}");
        }
    }

    #[test]
    fn an_answer_ends_with_its_end_token_or_at_the_limit() {
        let mut model = golden();
        model.config.eos_token_id = model.generate(&sources(), &LIMITS).unwrap()[0][1];
        for beams in [1, 3] {
            let answers = model.generate(&sources(), &Generation { max_length: 6, beams, ..LIMITS }).unwrap();
            for answer in &answers {
                let ends = answer.iter().position(|token| *token == model.config.eos_token_id);
                assert_eq!(answer.len(), ends.map_or(6, |index| index + 1), "{answer:?}");
            }
            assert!(beams > 1 || answers[0].len() < 6, "{answers:?}");
        }
    }

    #[test]
    fn one_beam_is_greedy_and_four_are_no_worse() {
        for model in [golden(), random()] {
            let greedy = model.generate(&sources(), &LIMITS).unwrap();
            let mut decoder = Decoder::begin(&model, &sources(), LIMITS.max_length).unwrap();
            assert_eq!(tch::no_grad(|| search(&mut decoder, &LIMITS)).unwrap(), greedy);

            let four = model.generate(&sources(), &Generation { beams: 4, ..LIMITS }).unwrap();
            let (greedy, four) = (scores(&model, &greedy), scores(&model, &four));
            assert!(greedy.iter().zip(&four).all(|(greedy, four)| *four > greedy - 1e-5), "{greedy:?} {four:?}");
            assert!(greedy.iter().sum::<f64>() < four.iter().sum::<f64>() - 1e-3, "{greedy:?} {four:?}");
        }
    }

    /// Near ties fall differently, so the answers are compared in fp32.
    #[test]
    fn narrow_weights_answer_as_well() {
        let mean = |answers: &[Vec<i64>]| scores(&golden(), answers).iter().sum::<f64>() / answers.len() as f64;
        for beams in [1, 4] {
            let limits = Generation { beams, ..LIMITS };
            let narrow = golden_in(Kinds::of(Precision::Bf16)).generate(&sources(), &limits).unwrap();
            let wide = golden().generate(&sources(), &limits).unwrap();
            assert!((mean(&narrow) - mean(&wide)).abs() < 0.05, "{} and {}", mean(&narrow), mean(&wide));
        }
    }

    #[test]
    fn an_answer_does_not_depend_on_its_neighbours() {
        let model = golden();
        let all = sources();
        for beams in [1, 4] {
            let limits = Generation { beams, ..LIMITS };
            let together = model.generate(&all, &limits).unwrap();
            for row in 0..all.get("input_ids").unwrap().size()[0] {
                let one = |part: Part, name: &str| part.with(name, all.get(name).unwrap().narrow(0, row, 1));
                let alone = ["input_ids", "attention_mask", "labels"].into_iter().fold(Part::default(), one);
                assert_eq!(model.generate(&alone, &limits).unwrap(), together[row as usize..=row as usize]);
            }
        }
    }
}
