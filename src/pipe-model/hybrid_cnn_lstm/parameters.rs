//! Its parameters: names and shapes as torch's modules have them, initialised as in their `reset_parameters`.

use super::config::{HybridConfig, NormKind};
use crate::{Init, Parameter};

pub fn parameters(config: &HybridConfig) -> Vec<Parameter> {
    let mut list = List(Vec::new());
    // 8 bytes each: in front, so that they begin at whole 8 bytes of a file.
    if config.norm == NormKind::Batch {
        for index in 0..config.conv_channels.len() {
            list.remember(&format!("norm.{index}.num_batches_tracked"), &[], Init::Count);
        }
    }
    let mut input = config.input_features;
    for (index, channels) in config.conv_channels.iter().copied().enumerate() {
        let bound = root(input * config.kernel_size);
        list.uniform(&format!("conv.{index}.weight"), &[channels, input, config.kernel_size], bound);
        list.uniform(&format!("conv.{index}.bias"), &[channels], bound);
        input = channels;
    }
    for (index, channels) in config.conv_channels.iter().copied().enumerate() {
        list.norm(&format!("norm.{index}"), channels);
        if config.norm == NormKind::Batch {
            list.remember(&format!("norm.{index}.running_mean"), &[channels], Init::Constant(0.0));
            list.remember(&format!("norm.{index}.running_var"), &[channels], Init::Constant(1.0));
        }
    }
    list.lstm(config, input);
    let width = config.width();
    list.linear("attn.qkv", 3 * width, width);
    list.linear("attn.out", width, width);
    list.norm("attn_norm", width);
    list.linear("head.0", width / 2, width);
    list.linear("head.1", config.num_classes, width / 2);
    list.0
}

/// What torch calls the ends of the names of an LSTM's parameters, layer by layer and direction by direction.
pub fn lstm_suffixes(config: &HybridConfig) -> Vec<String> {
    let directions: &[&str] = if config.bidirectional { &["", "_reverse"] } else { &[""] };
    (0..config.lstm_layers)
        .flat_map(|layer| directions.iter().map(move |direction| format!("l{layer}{direction}")))
        .collect()
}

struct List(Vec<Parameter>);

impl List {
    fn lstm(&mut self, config: &HybridConfig, input: i64) {
        let hidden = config.lstm_hidden;
        let bound = root(hidden);
        for suffix in lstm_suffixes(config) {
            let input = if suffix.starts_with("l0") { input } else { config.width() };
            self.uniform(&format!("lstm.weight_ih_{suffix}"), &[4 * hidden, input], bound);
            self.uniform(&format!("lstm.weight_hh_{suffix}"), &[4 * hidden, hidden], bound);
            self.uniform(&format!("lstm.bias_ih_{suffix}"), &[4 * hidden], bound);
            self.uniform(&format!("lstm.bias_hh_{suffix}"), &[4 * hidden], bound);
        }
    }

    fn linear(&mut self, path: &str, output: i64, input: i64) {
        self.uniform(&format!("{path}.weight"), &[output, input], root(input));
        self.uniform(&format!("{path}.bias"), &[output], root(input));
    }

    fn norm(&mut self, path: &str, width: i64) {
        self.0.push(Parameter::new(format!("{path}.weight"), &[width], Init::Constant(1.0)));
        self.0.push(Parameter::new(format!("{path}.bias"), &[width], Init::Constant(0.0)));
    }

    fn uniform(&mut self, name: &str, shape: &[i64], bound: f64) {
        self.0.push(Parameter::new(name, shape, Init::Uniform { bound }));
    }

    fn remember(&mut self, name: &str, shape: &[i64], init: Init) {
        self.0.push(Parameter { trained: false, ..Parameter::new(name, shape, init) });
    }
}

/// size^-0.5
fn root(size: i64) -> f64 {
    (size as f64).powf(-0.5)
}

#[cfg(test)]
mod tests {
    use pipe_spec::Variables;
    use pipe_spec::pipeline::{Engines, Pipeline};

    use super::*;

    #[test]
    fn the_model_of_the_pipeline_has_500_megabytes() {
        let file = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../pipelines/hybrid-cnn-lstm.yaml");
        let text = std::fs::read_to_string(file).unwrap();
        let pipeline = Pipeline::parse(&text, &[], &Variables::new(None, std::iter::empty()), Engines::NONE).unwrap();
        let config = HybridConfig::read(&pipeline.training().unwrap().model.config.clone().unwrap()).unwrap();
        let count: i64 = parameters(&config).iter().map(|parameter| parameter.shape.iter().product::<i64>()).sum();
        // 497 MB in fp32.
        assert_eq!(count, 124_259_139);
    }
}
