//! Models that generate text: perplexity, and scores of the generated texts.

use pipe_spec::TrainerSpec;
use pipe_spec::event::{self, EventKind, Scores};
use pipe_spec::pipeline::Task;

use super::pass::{Measures, Pass};
use crate::error::TrainerError;
use crate::metrics;
use crate::model::Generation;
use crate::tokenizer::Tokens;

/// Texts that are scored, where any are generated and there is data for so many.
const SCORED: usize = 32;

pub fn evaluate(pass: &Pass<'_>) -> Result<Measures, TrainerError> {
    let loss = pass.loss()?;
    // By one rank: the texts are few.
    let texts = if pass.session.peers.leads() { write(pass)? } else { Vec::new() };
    let shown = pass.session.spec.evaluate.generate as usize;
    let mut scores = TextScores::default();
    if pass.task == Task::Seq2Seq {
        texts.iter().for_each(|text| scores.add(&text.target, &text.generated));
    }
    let scores = scores.scores(loss);
    texts.into_iter().take(shown).for_each(|text| pass.session.emit(EventKind::Sample(text)));
    Ok(Measures { loss, scores, ..Measures::default() })
}

/// How near generated texts are to those that were wanted.
#[derive(Default)]
pub struct TextScores {
    texts: u64,
    exact_match: f64,
    rouge_l: f64,
}

impl TextScores {
    pub fn add(&mut self, wanted: &str, generated: &str) {
        self.texts += 1;
        self.exact_match += f64::from(u8::from(metrics::exact_match(wanted, generated)));
        self.rouge_l += metrics::rouge_l(wanted, generated);
    }

    /// The means, and the perplexity of a loss.
    pub fn scores(&self, loss: f64) -> Scores {
        let mut scores = Scores::from([("perplexity".to_owned(), loss.exp())]);
        if self.texts > 0 {
            for (name, sum) in [("exact_match", self.exact_match), ("rouge_l", self.rouge_l)] {
                scores.insert(name.to_owned(), sum / self.texts as f64);
            }
        }
        scores
    }
}

/// How texts are generated, as a training's settings say.
pub fn generation(spec: &TrainerSpec, tokens: &Tokens) -> Generation {
    let max_length = match spec.model.arch.task() {
        Task::Language => spec.evaluate.max_tokens,
        _ => spec.data.max_target,
    };
    Generation {
        beams: i64::from(spec.evaluate.beams.get()),
        temperature: spec.evaluate.temperature,
        top_p: spec.evaluate.top_p,
        seed: spec.train.seed,
        end_token: tokens.end_token().map(i64::from),
        ..Generation::greedy(i64::from(max_length.get()))
    }
}

/// Lets the model write texts for the first rows.
fn write(pass: &Pass<'_>) -> Result<Vec<event::Sample>, TrainerError> {
    let spec = &pass.session.spec;
    let (Some(generator), Some(tokens)) = (pass.state.model.text_generator(), pass.tokens) else {
        return Ok(Vec::new());
    };
    let source = &pass.reader.source;
    let shown = spec.evaluate.generate as usize;
    let scored = if pass.task == Task::Seq2Seq { SCORED } else { 0 };
    let count = if shown == 0 { 0 } else { scored.max(shown).min(source.len()) };
    let limits = generation(spec, tokens);
    let (rows, prompts) = pass.prompts(0..count)?;
    // Every beam holds a text of its own.
    let room = (pass.splitter.room_for_answers(&prompts) as usize / limits.beams.max(1) as usize).max(pass.batch);
    let mut texts = Vec::with_capacity(count);
    for (rows, part) in rows.chunks(room).zip(prompts.chunks(room)) {
        let limits = Generation { first_row: texts.len() as u64, ..limits };
        pass.enter(part)?;
        let answers = generator.generate(&pass.splitter.shape().collate(part)?, &limits)?;
        for (row, answer) in rows.iter().zip(answers) {
            let (source, target) = source.reference_texts(*row)?;
            texts.push(event::Sample { step: pass.state.step, source, target, generated: tokens.decode(&answer)? });
        }
    }
    Ok(texts)
}
