//! The keys of a config.json: numbers, texts and lists with their bounds, names of activations, and what can be wrong.

use serde_json::{Map, Value};
use thiserror::Error;

/// The largest value of a key: far above every known model, and small enough that a typing error neither fills the memory nor
/// overflows a product.
fn most(key: &str) -> i64 {
    match key {
        "depths" | "num_layers" | "num_decoder_layers" | "num_hidden_layers" | "n_layers" | "lstm_layers" => 1 << 12,
        "vocab_size" => 1 << 26,
        "max_position_embeddings" | "max_relative_positions" | "max_seq_len" | "sequence_length" => 1 << 24,
        "image_size" => 1 << 14,
        "kernel_size" | "conv_kernel_size" => 1 << 10,
        _ => 1 << 20,
    }
}

/// The most entries of a list of sizes.
const LONGEST_LIST: usize = 64;

pub struct ConfigKeys<'a>(pub &'a Map<String, Value>);

impl<'a> ConfigKeys<'a> {
    pub fn required_size(&self, key: &str) -> Result<i64, ConfigError> {
        self.size(key)?.ok_or_else(|| fail(key, ConfigError::MISSING.to_owned()))
    }

    /// A whole number above 0 that a model can be built with.
    pub fn size(&self, key: &str) -> Result<Option<i64>, ConfigError> {
        match self.count(key)? {
            Some(0) => Err(fail(key, "found 0; allowed: a whole number above 0".to_owned())),
            other => Ok(other),
        }
    }

    /// The same, where there may be none.
    pub fn count(&self, key: &str) -> Result<Option<i64>, ConfigError> {
        let count = self.read(key, "a whole number", |value| value.as_i64().filter(|number| *number >= 0))?;
        count.map(|count| bounded(key, count, most(key))).transpose()
    }

    /// A whole number that is not negative, such as the number of a token.
    pub fn whole(&self, key: &str) -> Result<Option<i64>, ConfigError> {
        let whole = |value: &Value| value.as_i64().filter(|number| (0..=i64::from(i32::MAX)).contains(number));
        self.read(key, "a whole number", whole)
    }

    /// A size; a negative one means none.
    pub fn signed(&self, key: &str) -> Result<Option<i64>, ConfigError> {
        let signed = self.read(key, "a whole number", Value::as_i64)?;
        signed.map(|number| bounded(key, number.max(-1), most(key))).transpose()
    }

    /// Whole numbers above 0.
    pub fn sizes(&self, key: &str) -> Result<Option<Vec<i64>>, ConfigError> {
        let size = |value: &Value| value.as_i64().filter(|number| *number > 0);
        let Some(sizes) = self.list(key, "a list of whole numbers above 0", size)? else { return Ok(None) };
        if sizes.len() > LONGEST_LIST {
            return Err(fail(key, format!("found {} entries; allowed: at most {LONGEST_LIST}", sizes.len())));
        }
        sizes.into_iter().map(|size| bounded(key, size, most(key))).collect::<Result<_, _>>().map(Some)
    }

    pub fn list<T>(
        &self,
        key: &str,
        allowed: &str,
        convert: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<Vec<T>>, ConfigError> {
        self.read(key, allowed, |value| value.as_array().and_then(|list| list.iter().map(&convert).collect()))
    }

    pub fn number(&self, key: &str) -> Result<Option<f64>, ConfigError> {
        self.read(key, "a number", Value::as_f64)
    }

    /// A share that is dropped.
    pub fn dropout(&self, key: &str) -> Result<Option<f64>, ConfigError> {
        match self.number(key)? {
            Some(share) if !(0.0..1.0).contains(&share) => {
                Err(fail(key, format!("found {share}; allowed: at least 0 and below 1")))
            }
            share => Ok(share),
        }
    }

    pub fn truth(&self, key: &str) -> Result<Option<bool>, ConfigError> {
        self.read(key, "true or false", Value::as_bool)
    }

    pub fn text(&self, key: &str) -> Result<Option<&'a str>, ConfigError> {
        self.read(key, "a text", Value::as_str)
    }

    /// `null` counts as absent, as it does in transformers.
    fn read<T>(
        &self,
        key: &str,
        allowed: &str,
        convert: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, ConfigError> {
        match self.0.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => match convert(value) {
                Some(converted) => Ok(Some(converted)),
                None => Err(fail(key, format!("found {value}; allowed: {allowed}"))),
            },
        }
    }
}

/// `product` is of the sizes that `key` names, which together are a width.
pub(crate) fn bounded_width(key: &str, product: Option<i64>) -> Result<(), ConfigError> {
    let most = most("");
    match product {
        Some(width) => bounded(key, width, most).map(drop),
        None => Err(fail(key, format!("the product is too large; allowed: at most {most}"))),
    }
}

fn bounded(key: &str, found: i64, most: i64) -> Result<i64, ConfigError> {
    if found <= most { Ok(found) } else { Err(fail(key, format!("found {found}; allowed: at most {most}"))) }
}

pub(crate) fn fail(key: &str, message: String) -> ConfigError {
    ConfigError { key: key.to_owned(), message }
}

/// The keys that were given, with every default filled in.
pub(crate) fn extended(given: &Map<String, Value>, filled: Value) -> Map<String, Value> {
    let mut config = given.clone();
    if let Value::Object(filled) = filled {
        config.extend(filled);
    }
    config
}

#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("model config: {key}: {message}")]
pub struct ConfigError {
    pub key: String,
    pub message: String,
}

impl ConfigError {
    pub(crate) const MISSING: &str = "missing";

    /// Whether the config lacks a key, rather than saying something wrong.
    pub fn is_missing(&self) -> bool {
        self.message == Self::MISSING
    }
}

/// In the order of `Kind` in torch/functions.hpp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    Relu,
    Gelu,
    GeluTanh,
    /// x * sigmoid(1.702 x)
    QuickGelu,
    Silu,
    Tanh,
    Sigmoid,
    Mish,
    LeakyRelu,
    Relu6,
    /// relu(x)^2
    SquaredRelu,
    /// x itself
    Linear,
}

impl Activation {
    /// `key` is the key of config.json that says `name`.
    pub fn parse(key: &str, name: &str) -> Result<Self, ConfigError> {
        Ok(match name {
            "relu" => Self::Relu,
            "gelu" | "gelu_python" => Self::Gelu,
            "gelu_new" | "gelu_fast" | "gelu_accurate" | "gelu_pytorch_tanh" | "gelu_python_tanh" => Self::GeluTanh,
            "quick_gelu" => Self::QuickGelu,
            "silu" | "swish" => Self::Silu,
            "tanh" => Self::Tanh,
            "sigmoid" => Self::Sigmoid,
            "mish" => Self::Mish,
            "leaky_relu" => Self::LeakyRelu,
            "relu6" => Self::Relu6,
            "relu2" => Self::SquaredRelu,
            "linear" => Self::Linear,
            _ => {
                let message = format!(
                    "found {name:?}; allowed: relu, gelu, gelu_new, quick_gelu, silu, tanh, sigmoid, mish, leaky_relu, \
                     relu6, relu2, linear"
                );
                return Err(ConfigError { key: key.to_owned(), message });
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn absurd_sizes_are_refused_by_name() {
        let read = |config: Value| {
            let keys = config.as_object().unwrap().clone();
            let (key, _) = keys.iter().next().unwrap();
            ConfigKeys(&keys).size(key).map_err(|error| error.to_string())
        };
        assert_eq!(read(json!({"num_layers": 4096})), Ok(Some(4096)));
        let cases = [
            (json!({"num_layers": 10_000_000}), "num_layers: found 10000000; allowed: at most 4096"),
            (json!({"num_hidden_layers": 4097}), "num_hidden_layers: found 4097; allowed: at most 4096"),
            (json!({"vocab_size": 1u64 << 31}), "vocab_size: found 2147483648; allowed: at most 67108864"),
            (json!({"d_ff": i64::MAX}), "d_ff: found 9223372036854775807; allowed: at most 1048576"),
            (json!({"d_ff": u64::MAX}), "d_ff: found 18446744073709551615; allowed: a whole number"),
            (json!({"num_layers": 1e8}), "num_layers: found 100000000.0; allowed: a whole number"),
        ];
        for (config, want) in cases {
            let error = read(config).unwrap_err();
            assert!(error.ends_with(want), "{error}");
        }
        let keys = json!({"conv_channels": vec![1; 65], "kernels": [1 << 21]});
        let keys = ConfigKeys(keys.as_object().unwrap());
        assert!(keys.sizes("conv_channels").unwrap_err().to_string().contains("found 65 entries; allowed: at most 64"));
        assert!(keys.sizes("kernels").unwrap_err().to_string().contains("found 2097152; allowed: at most 1048576"));
    }
}
