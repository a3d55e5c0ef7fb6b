//! Models that generate text: perplexity, and scores of the generated texts.
//!
//! Pairs of answers: the loss, how often the better answer has the larger reward, and by how much.

use pipe_spec::TrainerSpec;
use pipe_spec::event::{self, EventKind, Headline, Scores};
use pipe_spec::pipeline::Task;

use super::{Measures, Pass};
use crate::data::Sample;
use crate::error::TrainerError;
use crate::metrics::{self, rounded};
use crate::model::{Generation, PairFigures, Pairs};
use crate::tokenizer::Tokens;

/// Texts that are scored, where any are generated and there is data for so many.
const SCORED: usize = 32;

pub fn evaluate(pass: &Pass<'_>) -> Result<Measures, TrainerError> {
    let (loss, tokens) = pass.loss_and_tokens()?;
    // By one rank: the texts are few.
    let texts = if pass.session.peers.leads() { write(pass)? } else { Vec::new() };
    let shown = pass.session.spec.evaluate.generate as usize;
    let mut scores = TextScores::default();
    if pass.task == Task::Seq2Seq {
        texts.iter().for_each(|text| scores.add(&text.target, &text.generated));
    }
    let scores = scores.scores(loss);
    let targets: Vec<&str> = texts.iter().map(|text| text.target.as_str()).collect();
    let headline = match pass.task {
        Task::Seq2Seq if !targets.is_empty() => of_texts(&targets),
        _ => {
            let mut counts: Vec<u64> = tokens.into_values().collect();
            // Their sum is then the same in each run.
            counts.sort_unstable();
            let by_frequency = metrics::unigram_perplexity(&counts);
            Headline::new("perplexity", counts.iter().sum()).against("guessing by token frequency", by_frequency)
        }
    };
    texts.into_iter().take(shown).for_each(|text| pass.session.emit(EventKind::Sample(text)));
    Ok(Measures { loss, scores, headline: Some(headline), ..Measures::default() })
}

/// Words of a text, on average, up to which it can be expected to be written exactly as it was wanted.
const SHORT: usize = 12;

/// Short texts are right or wrong; long ones are compared word by word.
fn of_texts(targets: &[&str]) -> Headline {
    let count = targets.len();
    let words: usize = targets.iter().map(|text| text.split_whitespace().count()).sum();
    if words > SHORT * count {
        let other = |(index, text): (usize, &&str)| metrics::rouge_l(text, targets[(index + 1) % count]);
        let mean = targets.iter().enumerate().map(other).sum::<f64>() / count as f64;
        return Headline::new("rouge_l", count as u64).against("answering with the text of another row", mean);
    }
    let same = |text: &&str| targets.iter().filter(|other| metrics::exact_match(text, other)).count();
    let headline = Headline::new("exact_match", count as u64);
    match targets.iter().map(same).max().unwrap_or(0) {
        0 | 1 => headline,
        most => headline.against("always giving the most frequent answer", most as f64 / count as f64),
    }
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
    let max_length = match spec.model.task() {
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
        let answers = generator.generate(&pass.splitter.shape().clone().padded().collate(part)?, &limits)?;
        for (row, answer) in rows.iter().zip(answers) {
            let (source, target) = source.reference_texts(*row)?;
            texts.push(event::Sample { step: pass.state.step, source, target, generated: tokens.decode(&answer)? });
        }
    }
    Ok(texts)
}

pub fn evaluate_pairs(pass: &Pass<'_>, pairs: &dyn Pairs) -> Result<Measures, TrainerError> {
    let mut all = PairFigures::default();
    let compute = |samples: &[Sample]| {
        let PairFigures { pairs, loss, right, margin } = pairs.figures(&pass.splitter.shape().collate(samples)?)?;
        Ok(vec![pairs, loss, right, margin])
    };
    pass.for_each_part(
        |_| 4,
        compute,
        |_, numbers| {
            all.pairs += numbers[0];
            all.loss += numbers[1];
            all.right += numbers[2];
            all.margin += numbers[3];
        },
    )?;
    let mean = |sum: f64| sum / all.pairs.max(1.0);
    let scores = Scores::from([
        ("reward_accuracy".to_owned(), rounded(mean(all.right))),
        ("reward_margin".to_owned(), rounded(mean(all.margin))),
    ]);
    let headline = Headline::new("reward_accuracy", all.pairs as u64).against("guessing", 0.5);
    let samples = Some(all.pairs as u64);
    Ok(Measures { loss: mean(all.loss), scores, headline: Some(headline), samples, ..Measures::default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_answer_without_reading_would_score() {
        let headline = |targets: &[&str]| {
            let Headline { metric, rows, baseline, .. } = of_texts(targets);
            (metric, rows, baseline.map(|baseline| (baseline.name, baseline.value)))
        };
        assert_eq!(headline(&["2019-03-05", "2020-01-01"]), ("exact_match".to_owned(), 2, None));
        let most = "always giving the most frequent answer".to_owned();
        assert_eq!(headline(&["yes", "no", " yes", "yes"]), ("exact_match".to_owned(), 4, Some((most, 0.75))));
        let long = "a b c d e f g h i j k l m n";
        let other = "answering with the text of another row".to_owned();
        assert_eq!(headline(&[long, "z", long]).0, "exact_match");
        assert_eq!(headline(&[long, long]), ("rouge_l".to_owned(), 2, Some((other, 1.0))));
    }
}
