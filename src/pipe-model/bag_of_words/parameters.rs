//! The parameters of a bag of words.

use super::BagOfWordsConfig;
use crate::{Init, Parameter};

pub fn parameters(config: &BagOfWordsConfig) -> Vec<Parameter> {
    let (hidden, labels) = (config.hidden_size, config.labels.count());
    let std = (hidden as f64).powf(-0.5);
    vec![
        Parameter::new("embedding.weight", &[config.vocab_size, hidden], Init::Normal { std }),
        Parameter {
            may_be_missing: true,
            ..Parameter::new("classifier.weight", &[labels, hidden], Init::Normal { std })
        },
        Parameter { may_be_missing: true, ..Parameter::new("classifier.bias", &[labels], Init::Constant(0.0)) },
    ]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_embedding_and_a_head() {
        let config = json!({"vocab_size": 100, "hidden_size": 16, "num_labels": 3});
        let config = BagOfWordsConfig::read(config.as_object().unwrap()).unwrap();
        assert_eq!(parameters(&config).iter().map(Parameter::count).sum::<u64>(), 100 * 16 + 3 * 16 + 3);
    }
}
