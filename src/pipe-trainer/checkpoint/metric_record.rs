//! The record of a metric over the evaluations of a run: saved with every checkpoint, so that a resumed run knows
//! it.

use pipe_spec::event::{BestEval, Eval};
use pipe_spec::pipeline::Metric;
use serde::{Deserialize, Serialize};

/// The records of `save.best` and of `train.early_stop`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MetricRecords {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub save_best: Option<MetricRecord>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub early_stop: Option<MetricRecord>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MetricRecord {
    pub metric: Metric,
    /// Where the metric was best; absent before the first evaluation that has a value.
    pub best: Option<Best>,
    /// Evaluations in a row, up to the last, that brought no improvement.
    pub without_improvement: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Best {
    pub step: u64,
    pub value: f64,
}

impl MetricRecords {
    /// Empty records of the metrics that a pipeline names.
    pub fn new(save_best: Option<&Metric>, early_stop: Option<&Metric>) -> Self {
        Self { save_best: save_best.map(MetricRecord::new), early_stop: early_stop.map(MetricRecord::new) }
    }

    /// The same metrics with what `saved` knows about them.
    pub fn resumed_from(self, saved: &Self) -> Self {
        let resume = |new: Option<MetricRecord>, saved: &Option<MetricRecord>| {
            new.map(|new| saved.clone().filter(|saved| saved.metric == new.metric).unwrap_or(new))
        };
        Self {
            save_best: resume(self.save_best, &saved.save_best),
            early_stop: resume(self.early_stop, &saved.early_stop),
        }
    }

    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    pub fn add(&mut self, eval: &Eval) {
        self.save_best.iter_mut().chain(&mut self.early_stop).for_each(|record| record.add(eval));
    }

    /// The step whose checkpoint is kept because it is the best.
    pub fn best_step(&self) -> Option<u64> {
        self.save_best.as_ref()?.best.map(|best| best.step)
    }

    /// The best evaluation by `save.best`.
    pub fn best_eval(&self) -> Option<BestEval> {
        let MetricRecord { metric, best, .. } = self.save_best.as_ref()?;
        best.map(|best| BestEval { metric: metric.clone(), step: best.step, value: best.value })
    }
}

impl MetricRecord {
    fn new(metric: &Metric) -> Self {
        Self { metric: metric.clone(), best: None, without_improvement: 0 }
    }

    /// An evaluation without the metric, or where it is not finite, brings no improvement.
    fn add(&mut self, eval: &Eval) {
        let value = eval.value(&self.metric).filter(|value| value.is_finite());
        match value.filter(|value| self.metric.is_better(*value, self.best.map(|best| best.value))) {
            Some(value) => {
                self.best = Some(Best { step: eval.step, value });
                self.without_improvement = 0;
            }
            None => self.without_improvement = self.without_improvement.saturating_add(1),
        }
    }
}

#[cfg(test)]
mod tests {
    use pipe_spec::event::Scores;

    use super::*;

    fn record(values: &[f64]) -> MetricRecord {
        let mut record = MetricRecord::new(&Metric::named("accuracy"));
        for (index, value) in values.iter().enumerate() {
            let scores = Scores::from([("accuracy".to_owned(), *value)]);
            record.add(&Eval { step: 10 * (index as u64 + 1), loss: 1.0, samples: 1, ms: 0.0, headline: None, scores });
        }
        record
    }

    #[test]
    fn only_a_strictly_better_value_is_an_improvement() {
        type Case = (&'static [f64], Option<(u64, f64)>, u32);
        let cases: [Case; 5] = [
            (&[], None, 0),
            (&[0.5, 0.5, 0.4], Some((10, 0.5)), 2),
            (&[0.5, 0.4, 0.6], Some((30, 0.6)), 0),
            (&[f64::NAN, f64::INFINITY], None, 2),
            (&[f64::NAN, 0.5, f64::NAN], Some((20, 0.5)), 1),
        ];
        for (values, best, without_improvement) in cases {
            let record = record(values);
            assert_eq!(record.best.map(|best| (best.step, best.value)), best, "{values:?}");
            assert_eq!(record.without_improvement, without_improvement, "{values:?}");
            let read: MetricRecord = serde_json::from_str(&serde_json::to_string(&record).unwrap()).unwrap();
            assert_eq!(read, record);
        }
    }

    #[test]
    fn a_resumed_run_takes_over_what_is_known_about_its_metrics() {
        let saved = MetricRecords { save_best: Some(record(&[0.5, 0.4])), early_stop: None };
        let (accuracy, loss) = (Metric::named("accuracy"), Metric::loss());
        let resumed = MetricRecords::new(Some(&accuracy), Some(&loss)).resumed_from(&saved);
        assert_eq!(resumed.best_step(), Some(10));
        assert_eq!(resumed.early_stop, Some(MetricRecord::new(&loss)));
        assert_eq!(MetricRecords::new(Some(&loss), None).resumed_from(&saved).best_step(), None);
        assert!(MetricRecords::new(None, None).resumed_from(&saved).is_empty());
    }
}
