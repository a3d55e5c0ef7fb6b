//! Reads the keys of a config.json; a wrong one is named.

use serde_json::{Map, Value};

use crate::ConfigError;

pub struct ConfigKeys<'a>(pub &'a Map<String, Value>);

impl<'a> ConfigKeys<'a> {
    pub fn required_size(&self, key: &str) -> Result<i64, ConfigError> {
        self.size(key)?.ok_or_else(|| fail(key, "missing".to_owned()))
    }

    /// A whole number above 0.
    pub fn size(&self, key: &str) -> Result<Option<i64>, ConfigError> {
        match self.whole(key)? {
            Some(0) => Err(fail(key, "found 0; allowed: a whole number above 0".to_owned())),
            other => Ok(other),
        }
    }

    /// A whole number that is not negative.
    pub fn whole(&self, key: &str) -> Result<Option<i64>, ConfigError> {
        let whole = |value: &Value| value.as_i64().filter(|number| (0..=i64::from(i32::MAX)).contains(number));
        self.read(key, "a whole number", whole)
    }

    /// A whole number that may be negative.
    pub fn signed(&self, key: &str) -> Result<Option<i64>, ConfigError> {
        let signed = |value: &Value| value.as_i64().filter(|number| i32::try_from(*number).is_ok());
        self.read(key, "a whole number", signed)
    }

    /// Whole numbers above 0.
    pub fn sizes(&self, key: &str) -> Result<Option<Vec<i64>>, ConfigError> {
        let size = |value: &Value| value.as_i64().filter(|number| (1..=i64::from(i32::MAX)).contains(number));
        self.list(key, "a list of whole numbers above 0", size)
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

fn fail(key: &str, message: String) -> ConfigError {
    ConfigError { key: key.to_owned(), message }
}
