//! The files beside a vocabulary: `tokenizer_config.json`, `special_tokens_map.json`, `added_tokens.json`. They are
//! read and merged in the order of transformers' `PreTrainedTokenizerBase._from_pretrained`, so that added tokens get
//! the same numbers. An export writes the first two for a tokenizer that came without them.

use std::collections::BTreeMap;
use std::path::Path;

use pipe_model::Roles;
use serde_json::{Map, Value, json};
use tokenizers::{AddedToken, Tokenizer};

use crate::storage::{self, LARGEST_TOKENIZER};

/// The special tokens that every tokenizer may have, in the order in which they are added.
pub const NAMED: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

#[derive(Debug, Default)]
pub struct Settings {
    config: Map<String, Value>,
    named: BTreeMap<String, Special>,
    /// Tokens with a name that only this model has.
    others: Vec<Special>,
    /// Special tokens without a name; absent where the files do not name any.
    extra: Option<Vec<Special>>,
    /// The same by its old name, in special_tokens_map.json.
    additional: Vec<Special>,
    /// By the number they had when they were written down.
    added: BTreeMap<u64, AddedToken>,
}

/// A token that is given as a text or with all that belongs to it.
#[derive(Clone, Debug, PartialEq)]
pub enum Special {
    Plain(String),
    Token(AddedToken),
}

impl Special {
    pub fn content(&self) -> &str {
        match self {
            Self::Plain(content) => content,
            Self::Token(token) => &token.content,
        }
    }

    /// Nothing for what is no token.
    fn read(value: &Value) -> Option<Self> {
        match value {
            Value::String(text) => Some(Self::Plain(text.clone())),
            Value::Object(keys) => added_token(keys, true).map(Self::Token),
            _ => None,
        }
    }

    fn list(value: &Value) -> Vec<Self> {
        value.as_array().into_iter().flatten().filter_map(Self::read).collect()
    }
}

impl Settings {
    /// Those beside the vocabulary at `path`.
    pub fn read(path: &Path) -> Result<Self, String> {
        let config = object(path, "tokenizer_config.json")?;
        let mut settings = Self::of_config(config);
        if let Some(Value::Object(decoder)) = settings.config.get("added_tokens_decoder") {
            for (number, token) in decoder {
                let number = number.parse().map_err(|_| format!("added_tokens_decoder has the number {number:?}"))?;
                let token = token.as_object().and_then(|keys| added_token(keys, false));
                settings.added.insert(number, token.ok_or("added_tokens_decoder has an entry that is no token")?);
            }
            return Ok(settings);
        }
        // Tokens that the config wrote out with all that belongs to them do not count here.
        let plain = |special: &Special| matches!(special, Special::Plain(_));
        let mut known: Vec<String> = settings
            .named
            .values()
            .filter(|special| plain(special))
            .map(|special| special.content().to_owned())
            .collect();
        for (name, value) in object(path, "special_tokens_map.json")? {
            match Special::read(&value) {
                Some(special) if NAMED.contains(&name.as_str()) => {
                    known.push(special.content().to_owned());
                    settings.named.insert(name, special);
                }
                None if name == "extra_special_tokens" && value.is_array() => {
                    let extra = settings.extra.get_or_insert_default();
                    for special in Special::list(&value) {
                        if !extra.contains(&special) {
                            extra.push(special);
                        }
                    }
                }
                None if name == "additional_special_tokens" => settings.additional = Special::list(&value),
                _ => {}
            }
        }
        known.extend(settings.extra.iter().flatten().map(|special| special.content().to_owned()));
        for (content, number) in object(path, "added_tokens.json")? {
            let number = number.as_u64().ok_or_else(|| format!("added_tokens.json: {content:?} has no number"))?;
            let special = known.contains(&content);
            settings.added.insert(number, AddedToken::from(content, special));
        }
        Ok(settings)
    }

    fn of_config(config: Map<String, Value>) -> Self {
        let mut settings = Self::default();
        let filled = |key: &str| config.get(key).filter(|value| !value.as_array().is_some_and(Vec::is_empty));
        let extra = filled("extra_special_tokens").or_else(|| config.get("additional_special_tokens"));
        settings.extra = extra.filter(|value| value.is_array()).map(Special::list);
        for (name, value) in &config {
            match Special::read(value) {
                Some(special) if NAMED.contains(&name.as_str()) => drop(settings.named.insert(name.clone(), special)),
                Some(special @ Special::Plain(_)) if name.ends_with("_token") => settings.others.push(special),
                _ => {}
            }
        }
        let dict = extra.and_then(Value::as_object).into_iter().flatten();
        settings.others.extend(dict.filter_map(|(_, value)| Special::read(value)));
        settings.config = config;
        settings
    }

    pub fn flag(&self, key: &str) -> Option<bool> {
        self.config.get(key).and_then(Value::as_bool)
    }

    pub fn number(&self, key: &str) -> Option<u64> {
        self.config.get(key).and_then(Value::as_u64)
    }

    /// The special token `name`, or what the family calls it.
    pub fn token(&self, name: &str, default: &str) -> String {
        self.named.get(name).map_or(default, Special::content).to_owned()
    }

    /// The special tokens beside the named ones of a vocabulary that has none of its own.
    pub fn additional(&self) -> Vec<Special> {
        self.additional.clone()
    }

    /// Adds every special and every added token. `defaults` are the names of the family's own; `extra` are those without a name,
    /// where the files do not name any.
    pub fn add_tokens(
        &self,
        tokenizer: &mut Tokenizer,
        defaults: &[(&str, &str)],
        extra: Vec<Special>,
    ) -> Result<(), String> {
        let default = |name: &&str| defaults.iter().find(|(own, _)| own == name);
        let named = NAMED.iter().filter_map(|name| {
            let plain = || default(name).map(|(_, content)| Special::Plain((*content).to_owned()));
            self.named.get(*name).cloned().or_else(plain)
        });
        let named: Vec<Special> =
            named.chain(self.others.iter().cloned()).map(|special| self.as_added(special)).collect();
        let mut tokens: Vec<Special> = self.added.values().cloned().map(Special::Token).collect();
        for special in named.iter().cloned().chain(self.extra.clone().unwrap_or(extra)) {
            let is_added = self.added.values().any(|token| token.content == special.content());
            if !is_added && !tokens.contains(&special) {
                tokens.push(special);
            }
        }
        let added = tokens.into_iter().map(|special| match special {
            Special::Plain(content) => AddedToken::from(content, true),
            Special::Token(token) => {
                let special = token.special || named.iter().any(|named| named.content() == token.content);
                token.special(special)
            }
        });
        tokenizer.add_tokens(added).map(drop).map_err(|error| error.to_string())
    }

    /// A named token is the added token of the same text, if there is one.
    fn as_added(&self, special: Special) -> Special {
        let added = self.added.values().find(|token| token.content == special.content());
        added.map_or(special, |token| Special::Token(token.clone()))
    }
}

/// A token from its keys; `special` where they do not say it.
fn added_token(keys: &Map<String, Value>, special: bool) -> Option<AddedToken> {
    let content = keys.get("content")?.as_str()?;
    let flag = |key: &str| keys.get(key).and_then(Value::as_bool);
    let special = flag("special").unwrap_or(special);
    let token = AddedToken::from(content, special);
    let normalized = flag("normalized").unwrap_or(token.normalized);
    let off = |key: &str| flag(key).unwrap_or(false);
    Some(token.normalized(normalized).lstrip(off("lstrip")).rstrip(off("rstrip")).single_word(off("single_word")))
}

/// The keys of a JSON file beside `path`; none where there is no such file.
fn object(path: &Path, name: &str) -> Result<Map<String, Value>, String> {
    let file = path.with_file_name(name);
    if !file.exists() {
        return Ok(Map::new());
    }
    let bytes = storage::read(&file, LARGEST_TOKENIZER).map_err(|error| format!("{name}: {error}"))?;
    serde_json::from_slice(&bytes).map_err(|error| format!("{name}: {error}"))
}

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
