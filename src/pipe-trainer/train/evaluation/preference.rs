//! Pairs of answers: the loss, how often the better answer has the larger reward, and by how much.

use pipe_spec::event::{Headline, Scores};

use super::pass::{Measures, Pass};
use crate::data::Sample;
use crate::error::TrainerError;
use crate::metrics::rounded;
use crate::model::{PairFigures, Pairs};

pub fn evaluate(pass: &Pass<'_>, pairs: &dyn Pairs) -> Result<Measures, TrainerError> {
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
