//! How a model turns text into tokens, as values: the trainer builds, trains and exports tokenizers from them.

/// The tokenizer of an architecture.
#[derive(Clone, Copy, Debug)]
pub struct Tokenization {
    /// The format of the vocabulary files that published models have. Absent: they have tokenizer.json alone.
    pub vocabulary: Option<VocabularyFormat>,
    /// The tokenizer that is trained for a model from scratch.
    pub trained: TrainedTokenizer,
    /// Whether the model takes the type of each token: which of two texts it belongs to.
    pub token_types: bool,
    /// Rows of the position embeddings that no token of a text has.
    pub reserved_positions: u64,
}

impl Tokenization {
    /// A tokenizer that is all in tokenizer.json, for a model without token types.
    pub const fn json(trained: TrainedTokenizer) -> Self {
        Self { vocabulary: None, trained, token_types: false, reserved_positions: 0 }
    }

    /// Special tokens by role, as the tokenizer class of transformers has them by default. Empty where there is no such class.
    pub fn roles(&self) -> Roles {
        self.vocabulary.map_or(&[], VocabularyFormat::roles)
    }
}

/// Special tokens: role, such as `pad_token`, and token.
pub type Roles = &'static [(&'static str, &'static str)];

/// A format of vocabulary files, named after the model that introduced it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VocabularyFormat {
    /// `spiece.model`: sentencepiece with sentinel tokens behind it.
    T5,
    /// `sentencepiece.bpe.model`: sentencepiece with the special tokens of fairseq.
    XlmRoberta,
    /// `spm.model`: sentencepiece, normalized to NFC.
    DebertaV3,
    /// `vocab.txt`: WordPiece.
    Bert,
    /// `vocab.json` and `merges.txt`: byte-level BPE.
    Roberta,
    /// `vocab.json` and `merges.txt`: BPE of lower-case words that end with `</w>`.
    Clip,
}

impl VocabularyFormat {
    /// The special tokens of the format by role.
    pub fn roles(self) -> Roles {
        match self {
            Self::T5 => &[("eos_token", "</s>"), ("unk_token", "<unk>"), ("pad_token", "<pad>")],
            Self::Bert => &[
                ("unk_token", "[UNK]"),
                ("sep_token", "[SEP]"),
                ("pad_token", "[PAD]"),
                ("cls_token", "[CLS]"),
                ("mask_token", "[MASK]"),
            ],
            Self::Roberta | Self::XlmRoberta => &[
                ("bos_token", "<s>"),
                ("pad_token", "<pad>"),
                ("eos_token", "</s>"),
                ("unk_token", "<unk>"),
                ("mask_token", "<mask>"),
                ("sep_token", "</s>"),
                ("cls_token", "<s>"),
            ],
            Self::DebertaV3 => &[
                ("bos_token", "[CLS]"),
                ("eos_token", "[SEP]"),
                ("unk_token", "[UNK]"),
                ("sep_token", "[SEP]"),
                ("pad_token", "[PAD]"),
                ("cls_token", "[CLS]"),
                ("mask_token", "[MASK]"),
            ],
            Self::Clip => &[
                ("bos_token", "<|startoftext|>"),
                ("eos_token", "<|endoftext|>"),
                ("unk_token", "<|endoftext|>"),
                ("pad_token", "<|endoftext|>"),
            ],
        }
    }
}

/// A tokenizer that is trained on texts.
#[derive(Clone, Copy, Debug)]
pub struct TrainedTokenizer {
    pub algorithm: Algorithm,
    /// Its special tokens, numbered from 0.
    pub special: &'static [&'static str],
    pub template: Template,
}

/// How texts are normalized, split into words and divided into tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// Lower-case words, divided by WordPiece.
    WordPiece,
    /// Byte-level BPE.
    ByteLevelBpe,
    /// Byte-level BPE of lower-case words; their last tokens end with `</w>`.
    WordEndBpe,
    /// A unigram model. `unknown` is the token for what no piece fits.
    Unigram { unknown: &'static str },
}

/// The special tokens around a text A, and around a text B that follows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Template {
    /// `A B`
    Bare,
    /// `A end B end`
    Ended { end: &'static str },
    /// `start A end end B end`
    Enclosed { start: &'static str, end: &'static str },
    /// `start A end B end`, where the tokens of B and its end have type 1.
    Typed { start: &'static str, end: &'static str },
}
