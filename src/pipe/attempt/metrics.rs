//! What a command says of its steps in its log: JSON lines, the logs of common frameworks, or patterns of the pipeline. Pure.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use pipe_spec::event::Metrics;
use pipe_spec::pipeline::MetricsFormat;
use regex::Regex;
use serde_json::Value;

/// Values of a step that are kept at most.
const MOST_VALUES: usize = 32;

/// Reads the log of one attempt, line by line.
pub struct Reader {
    format: MetricsFormat,
    patterns: Vec<Regex>,
    /// Where a progress bar stands, and where it ends.
    bar: Option<(u64, u64)>,
    /// The epoch, counted from 0, and how many there are.
    epoch: (u64, Option<u64>),
    last: Option<Metrics>,
}

static BAR: LazyLock<Regex> = LazyLock::new(|| compiled(r"(\d+)/(\d+) \["));
static DICTIONARY: LazyLock<Regex> = LazyLock::new(|| compiled(r"\{'[^{}]*\}"));
static LIGHTNING: LazyLock<Regex> = LazyLock::new(|| compiled(r"Epoch (\d+):.*?(\d+)/(\d+) \[([^\]]*)\]?"));
static ASSIGNED: LazyLock<Regex> = LazyLock::new(|| compiled(r"([A-Za-z_][\w/.]*)=([-+\d.eE]+)(?:[,\]\s]|$)"));
static KERAS_EPOCH: LazyLock<Regex> = LazyLock::new(|| compiled(r"^\s*Epoch (\d+)/(\d+)"));
static KERAS: LazyLock<Regex> = LazyLock::new(|| compiled(r"^\s*(\d+)/(\d+) .*? - (.*)$"));
static NAMED: LazyLock<Regex> = LazyLock::new(|| compiled(r"([A-Za-z_]\w*): ([-+\d.eE]+)"));
static ULTRALYTICS: LazyLock<Regex> =
    LazyLock::new(|| compiled(r"^\s*(\d+)/(\d+)\s+[\d.]+G\s+([\d.]+)\s+([\d.]+)\s+([\d.]+)\s.*100%"));

fn compiled(text: &str) -> Regex {
    Regex::new(text).expect("it is written here, and tested")
}

impl Reader {
    pub fn new(format: &MetricsFormat) -> Self {
        let patterns = match format {
            MetricsFormat::Patterns(patterns) => patterns.iter().filter_map(|text| Regex::new(text).ok()).collect(),
            _ => Vec::new(),
        };
        Self { format: format.clone(), patterns, bar: None, epoch: (0, None), last: None }
    }

    /// What a line, or one state of a progress bar, says of a step.
    pub fn read(&mut self, text: &str) -> Option<Metrics> {
        let found = match &self.format {
            MetricsFormat::None => None,
            MetricsFormat::Json => json(text),
            MetricsFormat::Transformers => self.transformers(text),
            MetricsFormat::Lightning => lightning(text),
            MetricsFormat::Ultralytics => ultralytics(text),
            MetricsFormat::Keras => self.keras(text),
            MetricsFormat::Patterns(_) => self.patterns(text),
        };
        let found = found.filter(|found| !found.values.is_empty() && self.last.as_ref() != Some(found))?;
        self.last = Some(found.clone());
        Some(found)
    }

    /// The step that came before, and one more.
    fn next_step(&self) -> u64 {
        self.last.as_ref().map_or(1, |last| last.step.saturating_add(1))
    }

    /// Dictionaries of Python, whose step the progress bar tells.
    fn transformers(&mut self, text: &str) -> Option<Metrics> {
        if let Some(bar) = BAR.captures_iter(text).last() {
            // The bars of evaluations end elsewhere.
            let (at, end) = (number(&bar[1])?, number(&bar[2])?);
            if self.bar.is_none_or(|(_, known)| known == end) {
                self.bar = Some((at, end));
            }
        }
        let dictionary = DICTIONARY.find(text)?.as_str().replace('\'', "\"");
        let Value::Object(entries) = serde_json::from_str(&dictionary).ok()? else { return None };
        if entries.contains_key("train_runtime") {
            return None;
        }
        let value = |value: &Value| value.as_f64().or_else(|| value.as_str()?.parse().ok());
        let values = entries.iter().filter_map(|(name, of)| Some((named(name), value(of)?)));
        let is_evaluation = entries.contains_key("eval_loss");
        let next = if is_evaluation { self.next_step() - 1 } else { self.next_step() };
        Some(metrics(self.bar.map_or(next, |(at, _)| at), self.bar.map(|(_, end)| end), values))
    }

    fn keras(&mut self, text: &str) -> Option<Metrics> {
        if let Some(epoch) = KERAS_EPOCH.captures(text) {
            self.epoch = (number(&epoch[1])?.saturating_sub(1), number(&epoch[2]));
            return None;
        }
        let found = KERAS.captures(text)?;
        let (at, whole) = (number(&found[1])?, number(&found[2])?);
        let values = NAMED.captures_iter(&found[3]).filter_map(|pair| Some((named(&pair[1]), pair[2].parse().ok()?)));
        let step = self.epoch.0.checked_mul(whole)?.checked_add(at)?;
        // The time that is left is no metric.
        let values = values.filter(|(name, _)| name != "ETA");
        Some(metrics(step, self.epoch.1.and_then(|epochs| epochs.checked_mul(whole)), values))
    }

    fn patterns(&self, text: &str) -> Option<Metrics> {
        self.patterns.iter().find_map(|pattern| {
            let found = pattern.captures(text)?;
            let of = |name: &str| number(found.name(name)?.as_str());
            let names = pattern.capture_names().flatten().filter(|name| !["step", "steps"].contains(name));
            let values = names.filter_map(|name| Some((named(name), found.name(name)?.as_str().parse().ok()?)));
            Some(metrics(of("step").unwrap_or_else(|| self.next_step()), of("steps"), values))
        })
    }
}

fn json(text: &str) -> Option<Metrics> {
    let Value::Object(entries) = serde_json::from_str(text.trim()).ok()? else { return None };
    let whole = |names: &[&str]| names.iter().find_map(|name| entries.get(*name)?.as_u64());
    let step = whole(&["step", "global_step", "iteration", "iter"])?;
    let is_value = |name: &str| {
        let others = [
            "step",
            "global_step",
            "iteration",
            "iter",
            "steps",
            "total_steps",
            "max_steps",
            "ts",
            "time",
            "timestamp",
        ];
        !others.contains(&name)
    };
    let values = entries.iter().filter(|(name, _)| is_value(name));
    let values = values.filter_map(|(name, value)| Some((named(name), value.as_f64()?)));
    Some(metrics(step, whole(&["total_steps", "max_steps", "steps"]), values))
}

fn lightning(text: &str) -> Option<Metrics> {
    let found = LIGHTNING.captures(text)?;
    let (epoch, at, whole) = (number(&found[1])?, number(&found[2])?, number(&found[3])?);
    let values = ASSIGNED.captures_iter(&found[4]).filter_map(|pair| Some((named(&pair[1]), pair[2].parse().ok()?)));
    let values = values.filter(|(name, _)| name != "v_num");
    Some(metrics(epoch.checked_mul(whole)?.checked_add(at)?, None, values))
}

/// An epoch is a step.
fn ultralytics(text: &str) -> Option<Metrics> {
    let found = ULTRALYTICS.captures(text)?;
    let losses: Vec<f64> = (3..=5).filter_map(|at| found[at].parse().ok()).collect();
    let [box_loss, cls_loss, dfl_loss] = losses[..] else { return None };
    let values =
        [("box_loss", box_loss), ("cls_loss", cls_loss), ("dfl_loss", dfl_loss), ("loss", losses.iter().sum())];
    Some(metrics(
        number(&found[1])?,
        number(&found[2]),
        values.map(|(name, value)| (name.to_owned(), value)).into_iter(),
    ))
}

fn metrics(step: u64, steps: Option<u64>, values: impl Iterator<Item = (String, f64)>) -> Metrics {
    let values: BTreeMap<String, f64> = values.filter(|(_, value)| value.is_finite()).take(MOST_VALUES).collect();
    Metrics { step, steps, values }
}

fn number(text: &str) -> Option<u64> {
    text.parse().ok()
}

/// The names that the reports of `pipe` use.
fn named(name: &str) -> String {
    match name {
        "learning_rate" => "lr".to_owned(),
        "train_loss" | "train/loss" => "loss".to_owned(),
        _ => match name.strip_prefix("val_") {
            Some(rest) => format!("eval_{rest}"),
            None => name.to_owned(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is read of a log: `step/steps name=value ...` for each reading.
    fn read(format: MetricsFormat, log: &str) -> Vec<String> {
        let mut reader = Reader::new(&format);
        let states = log.split(['\n', '\r']).filter_map(|text| reader.read(text));
        let shown = |found: Metrics| {
            let values: Vec<String> = found.values.iter().map(|(name, value)| format!("{name}={value}")).collect();
            format!("{}/{} {}", found.step, found.steps.unwrap_or(0), values.join(" "))
        };
        states.map(shown).collect()
    }

    #[test]
    fn json_lines() {
        let log = "starting\n{\"step\": 1, \"loss\": 2.5, \"total_steps\": 9, \"note\": \"x\"}\n{\"loss\": 1}\n[1]\n{\"step\": 2, \"loss\": 2, \"learning_rate\": 0.1}\n";
        assert_eq!(read(MetricsFormat::Json, log), ["1/9 loss=2.5", "2/0 loss=2 lr=0.1"]);
        assert!(read(MetricsFormat::None, log).is_empty());
    }

    #[test]
    fn the_trainer_of_transformers() {
        let log = "  0%|          | 0/20 [00:00<?, ?it/s]\r 50%|#####     | 10/20 [00:05<00:05,  2.0it/s]\n\
                   {'loss': 2.3, 'grad_norm': 1.5, 'learning_rate': 5e-05, 'epoch': 0.5}\n\
                   \r  0%|          | 0/4 [00:00<?, ?it/s]\r100%|####| 4/4 [00:01<00:00]\n\
                   {'eval_loss': 2.0, 'eval_runtime': 1.0, 'epoch': 0.5}\n\
                   \r100%|##########| 20/20 [00:10<00:00,  2.0it/s]{'loss': '1.9', 'learning_rate': '0', 'epoch': '1'}\n\
                   {'train_runtime': 10.0, 'train_loss': 2.1, 'epoch': 1.0}\n";
        assert_eq!(
            read(MetricsFormat::Transformers, log),
            [
                "10/20 epoch=0.5 grad_norm=1.5 loss=2.3 lr=0.00005",
                "10/20 epoch=0.5 eval_loss=2 eval_runtime=1",
                "20/20 epoch=1 loss=1.9 lr=0",
            ]
        );
        // Without a bar every dictionary of the training is a step.
        let log = "{'loss': 2.0}\n{'loss': 1.0}\n{'eval_loss': 3.0}\n";
        assert_eq!(read(MetricsFormat::Transformers, log), ["1/0 loss=2", "2/0 loss=1", "2/0 eval_loss=3"]);
    }

    #[test]
    fn lightning_keras_and_ultralytics() {
        let log = "Epoch 0:  50%|#####     | 5/10 [00:01<00:01, 4.9it/s, v_num=3, train_loss=0.7]\r\
                   Epoch 1: 100%|##########| 10/10 [00:02<00:00, 4.9it/s, v_num=3, train_loss=0.5, val_loss=0.6]\n";
        assert_eq!(read(MetricsFormat::Lightning, log), ["5/0 loss=0.7", "20/0 eval_loss=0.6 loss=0.5"]);
        let log = "Epoch 1/2\n 5/10 [====>.....] - ETA: 0s - loss: 0.9 - accuracy: 0.5\r10/10 [======] - 1s 9ms/step - loss: 0.8 - accuracy: 0.6 - val_loss: 0.7\n\
                   Epoch 2/2\n10/10 ━━━━ 1s 9ms/step - accuracy: 0.7 - loss: 0.6\n";
        assert_eq!(
            read(MetricsFormat::Keras, log),
            ["5/20 accuracy=0.5 loss=0.9", "10/20 accuracy=0.6 eval_loss=0.7 loss=0.8", "20/20 accuracy=0.7 loss=0.6"]
        );
        let log = "      1/3      2.3G      1.5      2.5        1         23        640:  50%|#####     | 4/8 [00:01<00:01]\r\
                   \u{20}     1/3      2.3G      1.5      2.25       1         23        640: 100%|##########| 8/8 [00:02<00:00]\n";
        assert_eq!(read(MetricsFormat::Ultralytics, log), ["1/3 box_loss=1.5 cls_loss=2.25 dfl_loss=1 loss=4.75"]);
    }

    #[test]
    fn patterns_of_the_pipeline() {
        let patterns = [r"it (?P<step>\d+)/(?P<steps>\d+): l=(?P<loss>\S+)", r"^acc (?P<eval_accuracy>\S+)"];
        let format = MetricsFormat::Patterns(patterns.map(str::to_owned).to_vec());
        let log = "it 3/9: l=2.5\nit 4/9: l=nan\nacc 0.5\nother\nit 5/9: l=2.5\n";
        assert_eq!(read(format, log), ["3/9 loss=2.5", "4/0 eval_accuracy=0.5", "5/9 loss=2.5"]);
    }
}
