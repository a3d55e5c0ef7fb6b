//! The special tokens of a tokenizer by their roles, and the settings files that tell transformers of them.

use pipe_model::Roles;
use serde_json::{Map, Value, json};
use tokenizers::Tokenizer;

use super::settings::NAMED;

/// Usual names of special tokens, for tokenizers without a class of their own. The first one that a tokenizer has counts.
const COMMON: Roles = &[
    ("bos_token", "<s>"),
    ("bos_token", "<|startoftext|>"),
    ("bos_token", "<bos>"),
    ("eos_token", "</s>"),
    ("eos_token", "<|endoftext|>"),
    ("eos_token", "<eos>"),
    ("unk_token", "<unk>"),
    ("unk_token", "[UNK]"),
    ("sep_token", "[SEP]"),
    ("pad_token", "<pad>"),
    ("pad_token", "[PAD]"),
    ("cls_token", "[CLS]"),
    ("mask_token", "[MASK]"),
    ("mask_token", "<mask>"),
];

pub struct SpecialTokens {
    named: Vec<(String, String)>,
    /// Special tokens without a role.
    additional: Vec<String>,
}

impl SpecialTokens {
    /// Those that `settings` (tokenizer_config.json, special_tokens_map.json) name, else those of the architecture (`own`; any
    /// usual ones where it has none), as far as the tokenizer has them.
    pub fn of(tokenizer: &Tokenizer, own: Roles, settings: &[&Map<String, Value>]) -> Self {
        let mut named: Vec<(String, String)> = Vec::new();
        let known = |token: &str| tokenizer.token_to_id(token).is_some();
        let has_role = |role: &str| own.is_empty() || own.iter().any(|(one, _)| *one == role);
        let common = COMMON.iter().filter(|(role, _)| has_role(role));
        for role in NAMED {
            let given = settings.iter().find_map(|settings| content(settings.get(role)?));
            let default = || own.iter().chain(common.clone()).find(|(one, token)| *one == role && known(token));
            if let Some(token) = given.or_else(|| default().map(|(_, token)| *token)) {
                named.push((role.to_owned(), token.to_owned()));
            }
        }
        let mut additional: Vec<(u32, String)> = tokenizer
            .get_added_tokens_decoder()
            .into_iter()
            .filter(|(_, token)| token.special && named.iter().all(|(_, content)| *content != token.content))
            .map(|(number, token)| (number, token.content))
            .collect();
        additional.sort_unstable();
        Self { named, additional: additional.into_iter().map(|(_, content)| content).collect() }
    }

    /// `special_tokens_map.json`.
    pub fn map(&self) -> Map<String, Value> {
        let mut map: Map<String, Value> = self.named.iter().map(|(role, token)| (role.clone(), json!(token))).collect();
        if !self.additional.is_empty() {
            map.insert("additional_special_tokens".to_owned(), json!(self.additional));
        }
        map
    }

    /// `tokenizer_config.json` for a tokenizer that is all in tokenizer.json: the classes of the architectures would put their
    /// own normalization in its place.
    pub fn tokenizer_config(&self, token_types: bool, max_length: Option<u64>) -> Map<String, Value> {
        let mut config = self.map();
        config.insert("tokenizer_class".to_owned(), json!("PreTrainedTokenizerFast"));
        config.insert("clean_up_tokenization_spaces".to_owned(), json!(false));
        let mut inputs = vec!["input_ids", "attention_mask"];
        if token_types {
            inputs.insert(1, "token_type_ids");
        }
        config.insert("model_input_names".to_owned(), json!(inputs));
        if let Some(length) = max_length {
            config.insert("model_max_length".to_owned(), json!(length));
        }
        config
    }
}

/// A token is given as a text, or with all that belongs to it.
fn content(value: &Value) -> Option<&str> {
    value.as_str().or_else(|| value.get("content")?.as_str())
}

#[cfg(test)]
mod tests {
    use pipe_model::VocabularyFormat;

    use super::*;

    fn tokenizer(tokens: &[&str], plain: &str) -> Tokenizer {
        let mut vocabulary: Map<String, Value> = Map::from_iter([(plain.to_owned(), json!(0))]);
        let mut added = Vec::new();
        for (number, token) in (1..).zip(tokens) {
            vocabulary.insert((*token).to_owned(), json!(number));
            added.push(json!({ "id": number, "content": token, "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": true }));
        }
        let model = json!({ "type": "WordLevel", "vocab": vocabulary, "unk_token": plain });
        let json = json!({ "version": "1.0", "added_tokens": added, "model": model });
        Tokenizer::from_bytes(json.to_string()).unwrap()
    }

    #[test]
    fn roles_are_those_of_the_files_then_of_the_architecture() {
        let bert = tokenizer(&["[PAD]", "[CLS]", "[SEP]", "[NEW]"], "[UNK]");
        let own = VocabularyFormat::Bert.roles();
        let map = SpecialTokens::of(&bert, own, &[]).map();
        let want = json!({ "pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]", "unk_token": "[UNK]",
            "additional_special_tokens": ["[NEW]"] });
        assert_eq!(Value::Object(map), want);
        let config = json!({ "pad_token": { "content": "[NEW]" }, "cls_token": null });
        let map = SpecialTokens::of(&bert, own, &[config.as_object().unwrap()]).map();
        assert_eq!((&map["pad_token"], &map["cls_token"]), (&json!("[NEW]"), &json!("[CLS]")));
        let story = tokenizer(&["<unk>", "</s>"], "a");
        let map = SpecialTokens::of(&story, &[], &[]).map();
        assert_eq!(Value::Object(map), json!({ "eos_token": "</s>", "unk_token": "<unk>" }));
    }

    #[test]
    fn only_models_with_token_types_are_given_them() {
        let t5 = tokenizer(&["<pad>", "</s>"], "<unk>");
        let config = SpecialTokens::of(&t5, VocabularyFormat::T5.roles(), &[]).tokenizer_config(false, Some(512));
        assert_eq!(config["model_input_names"], json!(["input_ids", "attention_mask"]));
        assert_eq!((&config["model_max_length"], &config["eos_token"]), (&json!(512), &json!("</s>")));
    }
}
