//! Rotary positions (Su et al., 2021) in the forms of transformers' `modeling_rope_utils`: how fast each pair of features turns with the
//! position, and a factor for the attention. Configs of transformers 5 have them in `rope_parameters`, older ones in `rope_theta` and
//! `rope_scaling`.

use std::f64::consts::TAU;

use serde_json::{Map, Value};

use crate::config_keys::{ConfigError, ConfigKeys, fail};

const THETA: f64 = 10_000.0;

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rope {
    pub theta: f64,
    pub form: RopeForm,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RopeForm {
    Default,
    /// All positions are nearer to each other.
    Linear {
        factor: f64,
    },
    /// As `Default` up to `max_position_embeddings`. No row is longer: beyond it the frequencies would depend on the longest row of a part.
    Dynamic,
    /// Slow pairs are slowed down, fast ones are not (Llama 3.1).
    Llama3 {
        factor: f64,
        low: f64,
        high: f64,
        original: f64,
    },
    /// The same by another ramp, with a factor for the attention (Peng et al., 2023).
    Yarn(Yarn),
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Yarn {
    factor: f64,
    original: f64,
    beta_fast: f64,
    beta_slow: f64,
    truncate: bool,
    attention_factor: f64,
}

impl Rope {
    /// `positions` is `max_position_embeddings`.
    pub fn read(given: &Map<String, Value>, positions: i64) -> Result<Self, ConfigError> {
        let nothing = Map::new();
        let scaling = ["rope_parameters", "rope_scaling"]
            .into_iter()
            .find_map(|key| given.get(key).filter(|value| !value.is_null()).map(|value| (key, value)));
        let parameters = match scaling {
            None => &nothing,
            Some((_, Value::Object(parameters))) => parameters,
            Some((key, other)) => return Err(fail(key, format!("found {other}; allowed: an object"))),
        };
        let keys = ConfigKeys(parameters);
        let theta = match keys.number("rope_theta")? {
            Some(theta) => theta,
            None => ConfigKeys(given).number("rope_theta")?.unwrap_or(THETA),
        };
        if !(theta.is_finite() && theta > 1.0) {
            return Err(fail("rope_theta", format!("found {theta}; allowed: above 1")));
        }
        let name = match keys.text("rope_type")? {
            Some(name) => name,
            None => keys.text("type")?.unwrap_or("default"),
        };
        let original = match ConfigKeys(given).size("original_max_position_embeddings")? {
            Some(original) => original,
            None => keys.size("original_max_position_embeddings")?.unwrap_or(positions),
        } as f64;
        let needed = |key: &str| match keys.number(key)? {
            Some(number) if number.is_finite() && number > 0.0 => Ok(number),
            Some(number) => Err(fail(key, format!("found {number}; allowed: above 0"))),
            None => Err(fail(key, format!("missing; {name} positions need it"))),
        };
        let form = match name {
            "default" => RopeForm::Default,
            "linear" => RopeForm::Linear { factor: needed("factor")? },
            "dynamic" => RopeForm::Dynamic,
            "llama3" => RopeForm::Llama3 {
                factor: needed("factor")?,
                low: needed("low_freq_factor")?,
                high: needed("high_freq_factor")?,
                original,
            },
            "yarn" => RopeForm::Yarn(Yarn::read(&keys, positions as f64, original)?),
            other => {
                let message = format!("found {other:?}; allowed: default, linear, dynamic, llama3, yarn");
                return Err(fail("rope_type", message));
            }
        };
        Ok(Self { theta, form })
    }

    /// Radians that each pair of features turns from one position to the next, for heads of `width` features.
    pub fn frequencies(&self, width: i64) -> Vec<f64> {
        let pair = |index: i64| self.theta.powf(-(2 * index) as f64 / width as f64);
        let plain: Vec<f64> = (0..width / 2).map(pair).collect();
        match self.form {
            RopeForm::Default | RopeForm::Dynamic => plain,
            RopeForm::Linear { factor } => plain.iter().map(|frequency| frequency / factor).collect(),
            RopeForm::Llama3 { factor, low, high, original } => {
                plain.iter().map(|frequency| llama3(*frequency, factor, [low, high], original)).collect()
            }
            RopeForm::Yarn(yarn) => yarn.frequencies(&plain, self.theta, width),
        }
    }

    /// Cosines and sines are multiplied by this.
    pub fn attention_factor(&self) -> f64 {
        match self.form {
            RopeForm::Yarn(yarn) => yarn.attention_factor,
            _ => 1.0,
        }
    }
}

/// Waves shorter than `original / high` stay, those longer than `original / low` are divided, and between the two there is a ramp.
fn llama3(frequency: f64, factor: f64, [low, high]: [f64; 2], original: f64) -> f64 {
    let wave = TAU / frequency;
    if wave < original / high {
        frequency
    } else if wave > original / low {
        frequency / factor
    } else {
        let smooth = (original / wave - low) / (high - low);
        (1.0 - smooth) * frequency / factor + smooth * frequency
    }
}

impl Yarn {
    fn read(keys: &ConfigKeys<'_>, positions: f64, original: f64) -> Result<Self, ConfigError> {
        let number = |key: &str| Ok::<_, ConfigError>(keys.number(key)?.filter(|number| *number != 0.0));
        let factor = keys.number("factor")?.unwrap_or(positions / original);
        let scale = |by: f64| if factor <= 1.0 { 1.0 } else { 0.1 * by * factor.ln() + 1.0 };
        let attention_factor = match (keys.number("attention_factor")?, number("mscale")?, number("mscale_all_dim")?) {
            (Some(given), _, _) => given,
            (None, Some(one), Some(all)) => scale(one) / scale(all),
            (None, _, _) => scale(1.0),
        };
        Ok(Self {
            factor,
            original,
            beta_fast: number("beta_fast")?.unwrap_or(32.0),
            beta_slow: number("beta_slow")?.unwrap_or(1.0),
            truncate: keys.truth("truncate")?.unwrap_or(true),
            attention_factor,
        })
    }

    fn frequencies(&self, plain: &[f64], theta: f64, width: i64) -> Vec<f64> {
        let width = width as f64;
        // The feature that turns so often within the original length.
        let feature = |turns: f64| width * (self.original / (turns * TAU)).ln() / (2.0 * theta.ln());
        let (mut low, mut high) = (feature(self.beta_fast), feature(self.beta_slow));
        if self.truncate {
            (low, high) = (low.floor(), high.ceil());
        }
        (low, high) = (low.max(0.0), high.min(width - 1.0));
        if low == high {
            high += 0.001;
        }
        let mixed = |(index, frequency): (usize, &f64)| {
            let slowed = ((index as f64 - low) / (high - low)).clamp(0.0, 1.0);
            frequency / self.factor * slowed + frequency * (1.0 - slowed)
        };
        plain.iter().enumerate().map(mixed).collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn rope(config: Value) -> Result<Rope, String> {
        Rope::read(config.as_object().unwrap(), 128).map_err(|error| error.to_string())
    }

    #[test]
    fn old_and_new_configs_say_the_same() {
        let new = rope(json!({"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 5e5}})).unwrap();
        let old = rope(json!({"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 4.0}})).unwrap();
        assert_eq!(new, old);
        assert_eq!(rope(json!({})).unwrap(), Rope { theta: 1e4, form: RopeForm::Default });
        assert_eq!(new.frequencies(4), [0.25, 0.25 * 5e5f64.powf(-0.5)]);
    }

    #[test]
    fn a_wrong_form_is_named() {
        let cases = [
            (json!({"rope_scaling": {"type": "longrope"}}), "rope_type: found \"longrope\"; allowed: default, linear"),
            (json!({"rope_scaling": {"type": "linear"}}), "factor: missing; linear positions need it"),
            (json!({"rope_scaling": {"type": "linear", "factor": 0}}), "factor: found 0; allowed: above 0"),
            (json!({"rope_parameters": 3}), "rope_parameters: found 3; allowed: an object"),
            (json!({"rope_theta": 1}), "rope_theta: found 1; allowed: above 1"),
        ];
        for (config, want) in cases {
            let error = rope(config).unwrap_err();
            assert!(error.contains(want), "{error}");
        }
    }

    /// Slow pairs are slowed down by the factor, fast ones keep their frequency.
    #[test]
    fn scaled_forms_touch_slow_pairs_alone() {
        let plain = rope(json!({})).unwrap().frequencies(16);
        for scaling in [
            json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                   "original_max_position_embeddings": 64}),
            json!({"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 64}),
        ] {
            let rope = rope(json!({"rope_parameters": scaling})).unwrap();
            let scaled = rope.frequencies(16);
            assert!((scaled[0] - plain[0]).abs() < 1e-12 && (scaled[7] - plain[7] / 8.0).abs() < 1e-12, "{scaled:?}");
            assert!(scaled.windows(2).all(|pair| pair[0] > pair[1]), "{scaled:?}");
        }
    }
}
