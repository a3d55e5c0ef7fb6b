//! Models that generate text: perplexity, and scores of the generated texts.

use pipe_spec::event::{self, EventKind, Scores};
use pipe_spec::pipeline::Task;

use super::pass::Pass;
use crate::error::TrainerError;
use crate::metrics;
use crate::model::Generation;

/// Texts that are scored, where any are generated and there is data for so many.
const SCORED: usize = 32;

pub fn evaluate(pass: &Pass<'_>) -> Result<(f64, Scores), TrainerError> {
    let loss = pass.loss()?;
    let mut scores = Scores::from([("perplexity".to_owned(), loss.exp())]);
    let texts = write(pass)?;
    let shown = pass.session.spec.evaluate.generate as usize;
    if pass.task == Task::Seq2Seq && !texts.is_empty() {
        let mut mean = |name: &str, score: &dyn Fn(&event::Sample) -> f64| {
            scores.insert(name.to_owned(), texts.iter().map(score).sum::<f64>() / texts.len() as f64);
        };
        mean("exact_match", &|text| f64::from(u8::from(metrics::exact_match(&text.target, &text.generated))));
        mean("rouge_l", &|text| metrics::rouge_l(&text.target, &text.generated));
    }
    texts.into_iter().take(shown).for_each(|text| pass.session.emit(EventKind::Sample(text)));
    Ok((loss, scores))
}

/// What the model writes for the first rows.
fn write(pass: &Pass<'_>) -> Result<Vec<event::Sample>, TrainerError> {
    let spec = &pass.session.spec;
    let (Some(generator), Some(tokens)) = (pass.state.model.text_generator(), pass.tokens) else {
        return Ok(Vec::new());
    };
    let source = &pass.reader.source;
    let shown = spec.evaluate.generate as usize;
    let scored = if pass.task == Task::Seq2Seq { SCORED } else { 0 };
    let count = if shown == 0 { 0 } else { scored.max(shown).min(source.len()) };
    let max_length = match pass.task {
        Task::Language => spec.evaluate.max_tokens,
        _ => spec.data.max_target,
    };
    let limits = Generation {
        beams: i64::from(spec.evaluate.beams.get()),
        temperature: spec.evaluate.temperature,
        top_p: spec.evaluate.top_p,
        seed: spec.train.seed,
        end_token: tokens.end_token().map(i64::from),
        ..Generation::greedy(i64::from(max_length.get()))
    };
    let indices: Vec<usize> = (0..count).collect();
    let mut texts = Vec::with_capacity(count);
    for part in indices.chunks(pass.batch) {
        let limits = Generation { first_row: part[0] as u64, ..limits };
        let answers = generator.generate(&pass.shape.collate(&pass.prompts(part)?)?, &limits)?;
        for (index, answer) in part.iter().zip(answers) {
            let (source, target) = source.reference_texts(*index)?;
            texts.push(event::Sample { step: pass.state.step, source, target, generated: tokens.decode(&answer)? });
        }
    }
    Ok(texts)
}
