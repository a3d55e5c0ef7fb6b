//! The parameters of DeBERTa: names and shapes as in Hugging Face's files, initialised as in its `_init_weights`.

use super::DebertaConfig;
use crate::parameter::{Init, Listed, Parameter};

/// Every parameter in transformers' order. The encoder must be in a checkpoint; the head may be newly initialised.
pub fn parameters(config: &DebertaConfig) -> Vec<Parameter> {
    let DebertaConfig { hidden_size, intermediate_size, embedding_size, .. } = *config;
    let init = Init::Normal { std: config.initializer_range };
    let mut list = Listed::default();
    let positions = if config.position_biased_input { config.max_position_embeddings } else { 0 };
    for (name, rows) in [
        ("word_embeddings", config.vocab_size),
        ("position_embeddings", positions),
        ("token_type_embeddings", config.type_vocab_size),
    ] {
        if rows > 0 {
            list.push(&format!("deberta.embeddings.{name}.weight"), &[rows, embedding_size], init);
        }
    }
    if embedding_size != hidden_size {
        list.push("deberta.embeddings.embed_proj.weight", &[hidden_size, embedding_size], init);
    }
    list.norm("deberta.embeddings.LayerNorm", hidden_size);
    for layer in 0..config.num_hidden_layers {
        let path = format!("deberta.encoder.layer.{layer}");
        for name in projections(config) {
            list.linear(&format!("{path}.attention.self.{name}"), &[hidden_size, hidden_size], init);
        }
        list.linear(&format!("{path}.attention.output.dense"), &[hidden_size, hidden_size], init);
        list.norm(&format!("{path}.attention.output.LayerNorm"), hidden_size);
        list.linear(&format!("{path}.intermediate.dense"), &[intermediate_size, hidden_size], init);
        list.linear(&format!("{path}.output.dense"), &[hidden_size, intermediate_size], init);
        list.norm(&format!("{path}.output.LayerNorm"), hidden_size);
    }
    if let Some(relative) = config.relative {
        list.push("deberta.encoder.rel_embeddings.weight", &[2 * relative.span(), hidden_size], init);
    }
    if config.norms_relative {
        list.norm("deberta.encoder.LayerNorm", hidden_size);
    }
    if let Some(conv) = config.conv {
        let shape = [hidden_size, hidden_size / conv.groups, conv.kernel_size];
        list.push("deberta.encoder.conv.conv.weight", &shape, init);
        list.push("deberta.encoder.conv.conv.bias", &[hidden_size], Init::Constant(0.0));
        list.norm("deberta.encoder.conv.LayerNorm", hidden_size);
    }
    let encoder = list.0.len();
    if !config.labels_tokens {
        list.linear("pooler.dense", &[hidden_size, hidden_size], init);
    }
    list.linear("classifier", &[config.labels.count(), hidden_size], init);
    for (index, parameter) in list.0.iter_mut().enumerate() {
        parameter.may_be_missing = index >= encoder;
        // A file of the encoder alone leaves out the prefix.
        parameter.aliases = parameter.name.strip_prefix("deberta.").map(str::to_owned).into_iter().collect();
    }
    list.0
}

/// The linear layers of attention. Distances have their own where they do not share those of content.
fn projections(config: &DebertaConfig) -> Vec<&'static str> {
    let own = config.relative.is_some() && !config.share_att_key;
    let mut names = vec!["query_proj", "key_proj", "value_proj"];
    names.extend((own && config.c2p).then_some("pos_key_proj"));
    names.extend((own && config.p2c).then_some("pos_query_proj"));
    names
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn count(config: Value) -> i64 {
        let config = DebertaConfig::read(config.as_object().unwrap()).unwrap();
        parameters(&config).iter().map(|parameter| parameter.shape.iter().product::<i64>()).sum()
    }

    #[test]
    fn known_models_have_their_sizes() {
        let v3 = |hidden: i64, layers: i64, heads: i64| {
            json!({
                "hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads,
                "intermediate_size": 4 * hidden, "position_buckets": 256, "relative_attention": true,
                "pos_att_type": "p2c|c2p", "share_att_key": true, "norm_rel_ebd": "layer_norm",
                "position_biased_input": false, "type_vocab_size": 0,
            })
        };
        assert_eq!(count(v3(768, 12, 12)), 184_423_682);
        assert_eq!(count(v3(1024, 24, 16)), 435_063_810);
        let mut xlarge = v3(1536, 24, 24);
        xlarge["conv_kernel_size"] = json!(3);
        assert_eq!(count(xlarge), 886_957_058);
    }
}
