//! The metrics of a command from its log: JSON lines, the logs of common frameworks, or patterns of the pipeline. Pure.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use pipe_spec::event::Metrics;
use pipe_spec::pipeline::MetricsFormat;
use regex::Regex;
use serde_json::Value;

/// Values of a step that are kept at most.
const MOST_VALUES: usize = 32;

/// Figures that the Trainer of transformers prints with every evaluation, and which say nothing of the model.
const SPEEDS: [&str; 4] =
    ["eval_runtime", "eval_samples_per_second", "eval_steps_per_second", "eval_model_preparation_time"];

/// Reads the log of one attempt, line by line.
pub struct Reader {
    format: MetricsFormat,
    patterns: Vec<Regex>,
    /// Where a progress bar stands, and where it ends.
    bar: Option<(u64, u64)>,
    /// Metrics of a step that may not be over.
    held: Option<Metrics>,
    /// The epoch, counted from 0, and how many there are.
    epoch: (u64, Option<u64>),
    last: Option<Metrics>,
}

/// Colours and movements of the cursor, and characters that are taken back.
static CONTROL: LazyLock<Regex> = LazyLock::new(|| compiled("\u{1b}\\[[0-9;?]*[A-Za-z]|\u{8}"));
/// A bar without a name before it, as the Trainer of transformers has it.
static BAR: LazyLock<Regex> = LazyLock::new(|| compiled(r"^\s*\d+%\|[^|]*\| (\d+)/(\d+) \["));
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
        Self { format: format.clone(), patterns, bar: None, held: None, epoch: (0, None), last: None }
    }

    /// The metrics of a step in a line, or in one state of a progress bar.
    pub fn read(&mut self, text: &str) -> Option<Metrics> {
        // A bar below another one ends with a movement back up to it.
        let is_inner = text.trim_end().ends_with("\u{1b}[A");
        let plain = CONTROL.replace_all(text, "");
        let text = plain.as_ref();
        let found = match &self.format {
            MetricsFormat::None => None,
            MetricsFormat::Json => json(text),
            MetricsFormat::Transformers if is_inner => None,
            MetricsFormat::Transformers => self.transformers(text),
            MetricsFormat::Lightning => lightning(text).and_then(|found| self.hold(found)),
            MetricsFormat::Ultralytics => ultralytics(text),
            MetricsFormat::Keras => self.keras(text),
            MetricsFormat::Patterns(_) => self.patterns(text),
        };
        self.keep(found)
    }

    /// The metrics that were held back when the log ended.
    pub fn end(&mut self) -> Option<Metrics> {
        let held = self.held.take();
        self.keep(held)
    }

    /// Each thing is told once.
    fn keep(&mut self, found: Option<Metrics>) -> Option<Metrics> {
        let found = found.filter(|found| !found.values.is_empty() && self.last.as_ref() != Some(found))?;
        self.last = Some(found.clone());
        Some(found)
    }

    /// Holds what is said of a step until another one is spoken of: a bar moves on before its values do.
    fn hold(&mut self, found: Metrics) -> Option<Metrics> {
        // At the end of an epoch the bar starts over for a moment.
        if self.held.as_ref().is_some_and(|held| found.step < held.step) {
            return None;
        }
        let before = self.held.replace(found);
        before.filter(|before| self.held.as_ref().is_some_and(|held| held.step != before.step))
    }

    /// The step that came before, and one more.
    fn next_step(&self) -> u64 {
        self.last.as_ref().map_or(1, |last| last.step.saturating_add(1))
    }

    /// Dictionaries of Python. The progress bar is drawn anew after each, and then tells its step.
    fn transformers(&mut self, text: &str) -> Option<Metrics> {
        let mut told = None;
        if let Some(bar) = BAR.captures(text) {
            let (at, end) = (number(&bar[1])?, number(&bar[2])?);
            // The bars of evaluations end elsewhere.
            if self.bar.is_none_or(|(_, known)| known == end) {
                self.bar = Some((at, end));
                told = self.held.take().map(|held| Metrics { step: at, steps: Some(end), ..held });
            }
        }
        let Some(dictionary) = DICTIONARY.find(text) else { return told };
        let dictionary = dictionary.as_str().replace('\'', "\"");
        let Ok(Value::Object(entries)) = serde_json::from_str(&dictionary) else { return told };
        if entries.contains_key("train_runtime") {
            return told;
        }
        let value = |value: &Value| value.as_f64().or_else(|| value.as_str()?.parse().ok());
        let values = entries.iter().filter(|(name, _)| !SPEEDS.contains(&name.as_str()));
        let values = values.filter_map(|(name, of)| Some((named(name), value(of)?)));
        let Some((at, end)) = self.bar else {
            // Without a bar every dictionary of the training is a step.
            let next = if entries.contains_key("eval_loss") { self.next_step() - 1 } else { self.next_step() };
            return Some(metrics(next, None, values));
        };
        // If no bar was drawn between two metrics, the first is of the step before.
        let before = self.held.replace(metrics(at, Some(end), values));
        told.or(before)
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

    /// The readings of a log, each as `step/steps name=value ...`.
    fn read(format: MetricsFormat, log: &str) -> Vec<String> {
        let mut reader = Reader::new(&format);
        let mut states: Vec<Metrics> = log.split(['\n', '\r']).filter_map(|text| reader.read(text)).collect();
        states.extend(reader.end());
        let shown = |found: Metrics| {
            let values: Vec<String> = found.values.iter().map(|(name, value)| format!("{name}={value}")).collect();
            format!("{}/{} {}", found.step, found.steps.unwrap_or(0), values.join(" "))
        };
        states.into_iter().map(shown).collect()
    }

    #[test]
    fn json_lines() {
        let log = "starting\n{\"step\": 1, \"loss\": 2.5, \"total_steps\": 9, \"note\": \"x\"}\n{\"loss\": 1}\n[1]\n{\"step\": 2, \"loss\": 2, \"learning_rate\": 0.1}\n";
        assert_eq!(read(MetricsFormat::Json, log), ["1/9 loss=2.5", "2/0 loss=2 lr=0.1"]);
        assert!(read(MetricsFormat::None, log).is_empty());
    }

    /// The logs of the real programs, with what they themselves say that they did: tests/fixtures/training_logs.
    #[test]
    fn logs_of_real_programs() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/training_logs");
        let truth: Value = serde_json::from_slice(&std::fs::read(folder.join("truth.json")).unwrap()).unwrap();
        for (name, format, has_total) in [
            ("transformers.txt", MetricsFormat::Transformers, true),
            ("transformers-same-total.txt", MetricsFormat::Transformers, true),
            ("lightning.txt", MetricsFormat::Lightning, false),
            ("keras.txt", MetricsFormat::Keras, true),
            ("keras-2.txt", MetricsFormat::Keras, true),
            ("ultralytics.txt", MetricsFormat::Ultralytics, true),
            ("ultralytics-8.2.txt", MetricsFormat::Ultralytics, true),
        ] {
            let log = String::from_utf8_lossy(&std::fs::read(folder.join(name)).unwrap()).into_owned();
            let mut reader = Reader::new(&format);
            let mut found: Vec<Metrics> = log.split(['\n', '\r']).filter_map(|text| reader.read(text)).collect();
            found.extend(reader.end());
            let rows = truth[name]["rows"].as_array().unwrap();
            let total = truth[name]["total_steps"].as_u64();
            for row in rows {
                let step = row["step"].as_u64().unwrap();
                let of_step: Vec<&Metrics> = found.iter().filter(|one| one.step == step).collect();
                assert!(of_step.iter().all(|one| one.steps == total.filter(|_| has_total)), "{name}: {of_step:?}");
                for (key, value) in row.as_object().unwrap().iter().filter(|(key, _)| *key != "step") {
                    let told = of_step.iter().filter_map(|one| one.values.get(&named(key)));
                    // Logs have few digits.
                    let near = |told: &f64| (told - value.as_f64().unwrap()).abs() <= 0.006 * told.abs().max(0.01);
                    assert!(
                        told.clone().any(near),
                        "{name}: {key} of step {step} is {value}: {:?}",
                        told.collect::<Vec<_>>()
                    );
                }
            }
            assert!(found.iter().all(|one| Some(one.step) <= total), "{name}: {found:?}");
            if !name.starts_with("keras") {
                assert_eq!(found.len(), rows.len(), "{name}: {found:#?}");
            }
        }
    }

    #[test]
    fn the_trainer_of_transformers_without_a_bar() {
        let log =
            "{'loss': 2.0}\nWriting model shards: 100%|####| 1/1 [00:00<00:00]\n{'loss': 1.0}\n{'eval_loss': 3.0}\n";
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
