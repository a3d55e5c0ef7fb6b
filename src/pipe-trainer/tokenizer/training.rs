//! Trains a tokenizer on texts, with the algorithm and the special tokens that the published models of an architecture
//! have. The same texts give the same tokenizer.

use std::collections::{BTreeMap, BTreeSet};

use pipe_model::{Algorithm, Template, TrainedTokenizer, architecture};
use pipe_spec::pipeline::Arch;
use serde_json::{Value, json};
use tokenizers::models::bpe::{BPE, BpeTrainer};
use tokenizers::models::unigram::{Unigram, UnigramTrainer};
use tokenizers::models::wordpiece::{WordPiece, WordPieceTrainer};
use tokenizers::normalizer::Range;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::{
    AddedToken, NormalizedString, Normalizer, OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer,
    Tokenizer, Trainer,
};

use super::sentencepiece::{
    Built, byte_level, classify, clip_normalizer, clip_pre_tokenizer, decode, metaspace, normalize, number,
    pre_tokenize, surround, surround_as_roberta,
};

/// A tokenizer for an architecture with at most `size` tokens.
pub fn train(arch: Arch, size: u32, texts: &[String]) -> Built {
    let tokenization = architecture(arch).tokenization.ok_or_else(|| format!("{} reads no text", arch.name()))?;
    let TrainedTokenizer { algorithm, special, template } = tokenization.trained;
    let special: Vec<AddedToken> = special.iter().map(|token| AddedToken::from(*token, true)).collect();
    let mut tokenizer = match algorithm {
        Algorithm::WordPiece => word_piece(size, &special, texts)?,
        Algorithm::ByteLevelBpe => byte_pairs(algorithm, size, &special, None, texts)?,
        Algorithm::WordEndBpe => byte_pairs(algorithm, size, &special, Some("</w>"), texts)?,
        Algorithm::Unigram { unknown } => unigram(algorithm, size, &special, unknown, texts)?,
    };
    tokenizer.add_special_tokens(special).map_err(|error| error.to_string())?;
    decode(&mut tokenizer, &decoder(algorithm))?;
    enclose(&mut tokenizer, algorithm, template)?;
    let known = tokenizer.get_vocab_size(true);
    if known > size as usize {
        return Err(format!("{known} tokens are the fewest that these texts need; allowed are {size}"));
    }
    Ok(tokenizer)
}

/// Splits texts as the algorithm does, and knows no token yet.
fn empty<M: Into<tokenizers::ModelWrapper>>(algorithm: Algorithm, model: tokenizers::Result<M>) -> Built {
    let mut tokenizer = Tokenizer::new(model.map_err(|error| error.to_string())?);
    if let Some(normalizer) = normalizer(algorithm) {
        normalize(&mut tokenizer, &normalizer)?;
    }
    pre_tokenize(&mut tokenizer, &pre_tokenizer(algorithm))?;
    Ok(tokenizer)
}

fn normalizer(algorithm: Algorithm) -> Option<Value> {
    let spaces = json!({ "type": "Replace", "pattern": { "Regex": r"\s+" }, "content": " " });
    match algorithm {
        Algorithm::WordPiece => Some(json!({
            "type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true, "strip_accents": null, "lowercase": true,
        })),
        Algorithm::WordEndBpe => Some(clip_normalizer()),
        Algorithm::Unigram { .. } => Some(json!({ "type": "Sequence", "normalizers": [{ "type": "NFKC" }, spaces] })),
        Algorithm::ByteLevelBpe => None,
    }
}

fn pre_tokenizer(algorithm: Algorithm) -> Value {
    match algorithm {
        Algorithm::WordPiece => json!({ "type": "BertPreTokenizer" }),
        Algorithm::WordEndBpe => clip_pre_tokenizer(),
        Algorithm::Unigram { .. } => metaspace("always"),
        Algorithm::ByteLevelBpe => byte_level(false),
    }
}

/// How tokens become text again.
fn decoder(algorithm: Algorithm) -> Value {
    match algorithm {
        Algorithm::WordPiece => json!({ "type": "WordPiece", "prefix": "##", "cleanup": true }),
        Algorithm::ByteLevelBpe | Algorithm::WordEndBpe => byte_level(true),
        Algorithm::Unigram { .. } => metaspace("always"),
    }
}

/// Adds the special tokens around texts.
fn enclose(tokenizer: &mut Tokenizer, algorithm: Algorithm, template: Template) -> Result<(), String> {
    let token = |id: &str| json!({ "SpecialToken": { "id": id, "type_id": 0 } });
    let text = |id: &str| json!({ "Sequence": { "id": id, "type_id": 0 } });
    match template {
        Template::Bare => Ok(()),
        Template::Ended { end } => {
            let known = [(end, number(tokenizer, end)?)];
            surround(tokenizer, &[text("A"), token(end)], &[text("B"), token(end)], &known)
        }
        Template::Typed { start, end } => classify(tokenizer, start, end),
        Template::Enclosed { start, end } => match algorithm {
            Algorithm::ByteLevelBpe => surround_as_roberta(tokenizer, start, end, true, false),
            Algorithm::WordEndBpe => surround_as_roberta(tokenizer, start, end, false, false),
            Algorithm::WordPiece | Algorithm::Unigram { .. } => {
                let known = [(start, number(tokenizer, start)?), (end, number(tokenizer, end)?)];
                let (start, end) = (token(start), token(end));
                surround(tokenizer, &[start, text("A"), end.clone()], &[end.clone(), text("B"), end], &known)
            }
        },
    }
}

/// How often each word occurs.
fn counted(splitter: &Tokenizer, texts: &[String]) -> Result<BTreeMap<String, u32>, String> {
    let mut words: BTreeMap<String, u32> = BTreeMap::new();
    for text in texts {
        for word in split(splitter, text)? {
            let count = words.entry(word).or_default();
            *count = count.saturating_add(1);
        }
    }
    Ok(words)
}

/// The trainer numbers the letters inside words in the order that it meets them, which is another one each time. So they are
/// numbered here, as if they were special tokens.
fn word_piece(size: u32, special: &[AddedToken], texts: &[String]) -> Built {
    let model = || WordPiece::builder().unk_token("[UNK]".to_owned()).build();
    let splitter = empty(Algorithm::WordPiece, model())?;
    let letters: BTreeSet<char> = counted(&splitter, texts)?.keys().flat_map(|word| word.chars()).collect();
    let inside = letters.iter().map(|letter| AddedToken::from(format!("##{letter}"), false));
    let mut trainer = WordPieceTrainer::builder()
        .vocab_size(size as usize)
        .show_progress(false)
        .special_tokens(special.iter().cloned().chain(inside).collect())
        .build();
    let fail = |error: tokenizers::Error| error.to_string();
    trainer.feed(texts.iter(), |text| split(&splitter, text).map_err(Into::into)).map_err(fail)?;
    let mut trained = model().map_err(fail)?;
    trainer.train(&mut trained).map_err(fail)?;
    empty(Algorithm::WordPiece, Ok(trained))
}

/// The same for the letters that end a word.
fn byte_pairs(
    algorithm: Algorithm,
    size: u32,
    special: &[AddedToken],
    word_end: Option<&str>,
    texts: &[String],
) -> Built {
    let model = || BPE::builder().end_of_word_suffix(word_end.unwrap_or_default().to_owned()).build();
    let splitter = empty(algorithm, model())?;
    let letters: BTreeSet<char> = ByteLevel::alphabet().into_iter().collect();
    let ends = |end: &str| letters.iter().map(|letter| AddedToken::from(format!("{letter}{end}"), false)).collect();
    let ends: Vec<AddedToken> = word_end.map(ends).unwrap_or_default();
    let mut builder = BpeTrainer::builder()
        .vocab_size(size as usize)
        .show_progress(false)
        .special_tokens(special.iter().cloned().chain(ends).collect())
        .initial_alphabet(letters.iter().copied().collect());
    if let Some(end) = word_end {
        builder = builder.end_of_word_suffix(end.to_owned());
    }
    let (mut trainer, fail) = (builder.build(), |error: tokenizers::Error| error.to_string());
    trainer.feed(texts.iter(), |text| split(&splitter, text).map_err(Into::into)).map_err(fail)?;
    let mut trained = model().map_err(fail)?;
    trainer.train(&mut trained).map_err(fail)?;
    empty(algorithm, Ok(trained))
}

/// The trainer's own way of counting words gives them in another order each time, and so other sums and other pieces.
fn unigram(algorithm: Algorithm, size: u32, special: &[AddedToken], unknown: &str, texts: &[String]) -> Built {
    let new = || empty(algorithm, Ok::<_, tokenizers::Error>(Unigram::default()));
    let mut words = counted(&new()?, texts)?;
    let split_digits = are_mostly_numbers(&words);
    if split_digits {
        let mut splitter = new()?;
        pre_tokenize(&mut splitter, &digits_apart(algorithm))?;
        words = counted(&splitter, texts)?;
    }
    let trainer = UnigramTrainer::builder()
        .show_progress(false)
        .vocab_size(size)
        .special_tokens(special.to_vec())
        .unk_token(Some(unknown.to_owned()))
        .build()
        .map_err(|error| error.to_string())?;
    // One thread, because the number of threads decides the order of sums.
    let alone = rayon::ThreadPoolBuilder::new().num_threads(1).build().map_err(|error| error.to_string())?;
    let mut model = Unigram::default();
    let words = words.into_iter().flat_map(with_two_ends).collect();
    alone.install(|| trainer.do_train(words, &mut model)).map_err(|error| error.to_string())?;
    let special = special.len();
    let pieces: Vec<(String, f64)> = model.iter().cloned().collect();
    let unknown = pieces.iter().position(|(piece, _)| piece == unknown);
    let mut tokenizer = empty(algorithm, Unigram::from(in_order(pieces, special), unknown, false))?;
    if split_digits {
        pre_tokenize(&mut tokenizer, &digits_apart(algorithm))?;
    }
    Ok(tokenizer)
}

/// Whether most of the different words have digits: dates, amounts, codes. As words they would all be tokens of their own, which
/// come once and teach nothing.
fn are_mostly_numbers(words: &BTreeMap<String, u32>) -> bool {
    let has_digit = |word: &&String| word.contains(|letter: char| letter.is_ascii_digit());
    words.keys().filter(has_digit).count() * 2 > words.len()
}

/// As the algorithm splits texts, and every digit by itself.
fn digits_apart(algorithm: Algorithm) -> Value {
    let digits = json!({ "type": "Digits", "individual_digits": true });
    json!({ "type": "Sequence", "pretokenizers": [pre_tokenizer(algorithm), digits] })
}

/// The trainer adds letters that have become no piece at the lowest score, each a little above the one before, in an order of its
/// own. Here they are in the order of the alphabet, and all pieces in that of their scores. The first `special` pieces stay.
fn in_order(mut pieces: Vec<(String, f64)>, special: usize) -> Vec<(String, f64)> {
    const APART: f64 = 0.0001;
    let trained = &mut pieces[special..];
    let lowest = trained.iter().map(|(_, score)| *score).fold(f64::INFINITY, f64::min);
    trained.sort_by(|(a, first), (b, second)| first.total_cmp(second).then_with(|| a.cmp(b)));
    let is_letter = |piece: &str| piece.chars().count() == 1;
    let letters = trained.iter().filter(|(piece, _)| is_letter(piece)).zip(1..);
    let added = letters.take_while(|((_, score), number)| *score < lowest + APART * f64::from(*number)).count();
    let mut names: Vec<String> =
        trained.iter().map(|(piece, _)| piece).filter(|piece| is_letter(piece)).take(added).cloned().collect();
    names.sort_unstable();
    let slots = trained.iter_mut().filter(|(piece, _)| is_letter(piece)).take(added);
    for ((piece, score), (name, number)) in slots.zip(names.into_iter().zip(0..)) {
        *piece = name;
        *score = lowest + APART * f64::from(number);
    }
    trained.sort_by(|(a, first), (b, second)| second.total_cmp(first).then_with(|| a.cmp(b)));
    pieces
}

/// The trainer looks for pieces among the strings of its list that are followed by different letters, so that a word alone would
/// never be one. Listed once more with another letter behind it, and a count of 0, it can be.
fn with_two_ends((word, count): (String, u32)) -> [(String, u32); 2] {
    [(format!("{word}▁"), 0), (word, count)]
}

/// The words of a text, as the model is given them.
fn split(tokenizer: &Tokenizer, text: &str) -> Result<Vec<String>, String> {
    let mut normalized = NormalizedString::from(text);
    if let Some(normalizer) = tokenizer.get_normalizer() {
        normalizer.normalize(&mut normalized).map_err(|error| error.to_string())?;
    }
    let mut parts = PreTokenizedString::from(normalized.get_range(Range::Normalized(..)).unwrap_or_default());
    if let Some(pre_tokenizer) = tokenizer.get_pre_tokenizer() {
        pre_tokenizer.pre_tokenize(&mut parts).map_err(|error| error.to_string())?;
    }
    let splits = parts.get_splits(OffsetReferential::Original, OffsetType::Byte);
    Ok(splits.into_iter().map(|(word, _, _)| word.to_owned()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts() -> Vec<String> {
        let dishes = ["boil the stock", "toss the lettuce", "bake the flour and the eggs", "simmer, then serve hot"];
        (0..200).map(|number| format!("{} {}", dishes[number % 4], ["twice", "slowly", "Now!"][number % 3])).collect()
    }

    #[test]
    fn every_architecture_that_reads_text_gets_one() {
        for arch in Arch::ALL.iter().copied() {
            let Some(tokenization) = architecture(arch).tokenization else { continue };
            let tokenizer = train(arch, 600, &texts()).unwrap_or_else(|error| panic!("{}: {error}", arch.name()));
            for (number, token) in tokenization.trained.special.iter().enumerate() {
                assert_eq!(tokenizer.token_to_id(token), Some(number as u32), "{} {token}", arch.name());
            }
            let encoded = tokenizer.encode("boil the lettuce slowly", true).unwrap();
            let decoded = tokenizer.decode(encoded.get_ids(), true).unwrap();
            // CLIP's tokenizer marks where words end, and writes no text.
            assert_eq!(decoded.replace("</w>", " ").trim(), "boil the lettuce slowly", "{}", arch.name());
            assert!(encoded.get_ids().len() < 12, "{}: {:?}", arch.name(), encoded.get_tokens());
            let same = train(arch, 600, &texts()).unwrap();
            assert_eq!(tokenizer.to_string(false).unwrap(), same.to_string(false).unwrap(), "{}", arch.name());
        }
    }

    #[test]
    fn digits_are_apart_where_most_words_are_numbers() {
        let date = |day: u32| format!("{:04}-{:02}-{:02} on day {day}", 1950 + day % 97, day % 12 + 1, day % 28 + 1);
        let dates: Vec<String> = (0..500).map(date).collect();
        let tokenizer = train(Arch::T5, 4000, &dates).unwrap();
        assert!(tokenizer.get_vocab_size(true) < 60, "{}", tokenizer.get_vocab_size(true));
        let encoded = tokenizer.encode("2019-03-05 on day 7", true).unwrap();
        let tokens = encoded.get_tokens();
        assert!(["2", "0", "1", "9"].iter().all(|digit| tokens.iter().any(|token| token == digit)), "{tokens:?}");
        assert_eq!(tokenizer.decode(encoded.get_ids(), true).unwrap(), "2019-03-05 on day 7");
        let word = texts();
        assert!(!train(Arch::T5, 600, &word).unwrap().to_string(false).unwrap().contains("Digits"));
    }

    #[test]
    fn what_cannot_be_trained_is_said() {
        assert_eq!(train(Arch::HybridCnnLstm, 400, &texts()).unwrap_err(), "hybrid-cnn-lstm reads no text");
        let error = train(Arch::Roberta, 100, &texts()).unwrap_err();
        assert!(error.ends_with("allowed are 100"), "{error}");
    }
}
