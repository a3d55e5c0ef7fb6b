//! Texts concatenated and cut into rows of equal length: no padding, and no token is lost except at the end.

use std::sync::Arc;

use rayon::ThreadPool;
use rayon::iter::{IntoParallelIterator, ParallelIterator};

use super::rows::{during, open_documents, text_of};
use super::{Column, Sample, Source};
use crate::error::TrainerError;
use crate::tokenizer::Tokens;

/// Documents that are tokenised before their tokens are joined.
const DOCUMENTS_AT_A_TIME: usize = 4096;

/// The length of a prompt: this many tokens at most, and at most half of the row.
const PROMPT: usize = 32;

/// Row `i` reads tokens `i * length` and on, and predicts the ones after them: every token is read once and predicted once.
pub struct PackedRows {
    stream: Vec<u32>,
    length: usize,
    tokens: Arc<Tokens>,
    /// The end token after each document.
    end: Option<u32>,
    /// Tokens after the prompt that are shown.
    shown: usize,
}

/// How long rows are, and what is shown of them.
#[derive(Clone, Copy)]
pub struct RowShape {
    pub length: usize,
    pub shown: usize,
}

impl RowShape {
    pub fn prompt(self) -> usize {
        PROMPT.min(self.length / 2).max(1)
    }
}

impl PackedRows {
    pub fn open(
        paths: &[String],
        column: &str,
        pool: &ThreadPool,
        tokens: &Arc<Tokens>,
        shape: RowShape,
        skip_bad: bool,
    ) -> Result<Self, TrainerError> {
        let end = tokens.end_token();
        let mut stream = Vec::new();
        for path in paths {
            let documents = open_documents(path, column)?;
            for start in (0..documents.len()).step_by(DOCUMENTS_AT_A_TIME) {
                let range = start..documents.len().min(start + DOCUMENTS_AT_A_TIME);
                let read = |index| {
                    let encode = || tokens.encode_plain(&text_of(&documents, index, skip_bad)?);
                    during(documents.place(index), encode)
                };
                let read: Vec<_> = pool.install(|| range.into_par_iter().map(read).collect());
                for document in read {
                    join(&mut stream, &document?, end);
                }
            }
        }
        if stream.len() <= shape.length {
            let message = format!(
                "{} tokens, and a row takes {} with the one after it; give more text, or a smaller data.max_length",
                stream.len(),
                shape.length + 1
            );
            return Err(TrainerError::Data { path: paths.join(", ").into(), line: None, message });
        }
        stream.shrink_to_fit();
        Ok(Self { stream, length: shape.length, tokens: Arc::clone(tokens), end, shown: shape.shown })
    }

    fn shape(&self) -> RowShape {
        RowShape { length: self.length, shown: self.shown }
    }

    /// The tokens of a row and the one after them.
    fn row(&self, index: usize) -> &[u32] {
        &self.stream[index * self.length..=(index + 1) * self.length]
    }
}

fn join(stream: &mut Vec<u32>, document: &[u32], end: Option<u32>) {
    if !document.is_empty() {
        stream.extend_from_slice(document);
        stream.extend(end);
    }
}

impl Source for PackedRows {
    fn len(&self) -> usize {
        (self.stream.len() - 1) / self.length
    }

    fn sample(&self, index: usize) -> Result<Option<Sample>, TrainerError> {
        let row = numbers(self.row(index));
        let ids = row[..self.length].to_vec();
        let columns = vec![("ids", Column::Tokens(ids)), ("labels", Column::Tokens(row))];
        Ok(Some(Sample { columns, targets: self.length as u64 }))
    }

    fn prompt(&self, index: usize) -> Result<Option<Sample>, TrainerError> {
        let prompt = numbers(&self.row(index)[..self.shape().prompt()]);
        Ok(Some(Sample { columns: vec![("prompt", Column::Tokens(prompt))], targets: 0 }))
    }

    /// The prompt, and what follows it up to the end of its document.
    fn reference_texts(&self, index: usize) -> Result<(String, String), TrainerError> {
        let (prompt, rest) = self.row(index).split_at(self.shape().prompt());
        let rest = &rest[..rest.len().min(self.shown)];
        let ends = rest.iter().position(|token| Some(*token) == self.end).unwrap_or(rest.len());
        Ok((self.tokens.decode(&numbers(prompt))?, self.tokens.decode(&numbers(&rest[..ends]))?))
    }
}

fn numbers(tokens: &[u32]) -> Vec<i64> {
    tokens.iter().map(|token| i64::from(*token)).collect()
}

#[cfg(test)]
mod tests {
    use pipe_spec::pipeline::Arch;

    use super::*;
    use crate::data::workers;

    const TEXT: &str =
        "chop the salt.\n\nstir the egg for 2 minutes.\n\nboil the rice for 20 minutes. rest the rice.\n";

    /// A folder with a tokenizer and TEXT, gone with the test.
    struct Folder(std::path::PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let folder = std::env::temp_dir().join(format!("pipe-packed-{name}-{}", std::process::id()));
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(folder.join("tokenizer.json"), crate::synthetic::RECIPES.tokenizer()).unwrap();
            std::fs::write(folder.join("a.txt"), TEXT).unwrap();
            Self(folder)
        }

        fn path(&self, name: &str) -> String {
            self.0.join(name).display().to_string()
        }

        fn open(&self, names: &[&str], length: usize, threads: u32) -> Result<PackedRows, TrainerError> {
            let tokens = Arc::new(Tokens::whole(&self.0.join("tokenizer.json"), Arch::MuSota).unwrap());
            let paths: Vec<String> = names.iter().map(|name| self.path(name)).collect();
            let shape = RowShape { length, shown: 5 };
            PackedRows::open(&paths, "text", &workers(threads).unwrap(), &tokens, shape, false)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn column(sample: &Sample, name: &str) -> Vec<i64> {
        let column = sample.columns.iter().find(|(column, _)| *column == name).unwrap();
        let Column::Tokens(tokens) = &column.1 else { panic!("{name} holds no tokens") };
        tokens.clone()
    }

    #[test]
    fn every_token_is_read_once_and_predicted_once() {
        let folder = Folder::new("once");
        let rows = folder.open(&["a.txt"], 4, 2).unwrap();
        let tokens = Tokens::whole(&folder.0.join("tokenizer.json"), Arch::MuSota).unwrap();
        let mut stream: Vec<i64> = Vec::new();
        for document in TEXT.split("\n\n") {
            stream.extend(tokens.encode(document.trim_end()).unwrap()); // ends with </s> by itself
        }
        let (mut read, mut predicted) = (Vec::<i64>::new(), Vec::<i64>::new());
        for index in 0..rows.len() {
            let sample = rows.sample(index).unwrap().unwrap();
            let (ids, labels) = (column(&sample, "ids"), column(&sample, "labels"));
            assert_eq!((ids.len(), labels.len(), sample.targets, &labels[..4]), (4, 5, 4, &ids[..]));
            read.extend(ids);
            predicted.extend(&labels[1..]);
        }
        assert_eq!(read, stream[..read.len()]);
        assert_eq!(predicted, stream[1..=predicted.len()]);
        assert!(read.len() + 4 >= stream.len() && read.len() < stream.len(), "{} of {}", read.len(), stream.len());
    }

    #[test]
    fn rows_do_not_depend_on_threads_and_files_follow_one_another() {
        let folder = Folder::new("order");
        let jsonl = "{\"text\": \"slice the leek.\"}\n{\"text\": \"\"}\n{\"text\": \"fry the egg.\"}\n";
        std::fs::write(folder.path("b.jsonl"), jsonl).unwrap();
        std::fs::write(folder.path("c.csv"), "n,text\n1,\"boil the pasta.\"\n").unwrap();
        let stream = |names: &[&str], threads| folder.open(names, 3, threads).unwrap().stream;
        let all = stream(&["a.txt", "b.jsonl", "c.csv"], 3);
        assert_eq!(all, stream(&["a.txt", "b.jsonl", "c.csv"], 1));
        let each = [stream(&["a.txt"], 1), stream(&["b.jsonl"], 1), stream(&["c.csv"], 1)].concat();
        assert_eq!(all, each);
        assert_eq!(all.iter().filter(|token| **token == 1).count(), 3 + 2 + 1, "an end behind each text");
    }

    #[test]
    fn a_prompt_is_followed_by_the_rest_of_its_text() {
        let folder = Folder::new("words");
        let rows = folder.open(&["a.txt"], 8, 1).unwrap();
        // chop the salt . </s> stir the egg: half of them are the prompt.
        assert_eq!(rows.reference_texts(0).unwrap(), ("chop the salt.".to_owned(), String::new()));
        let prompt = rows.prompt(0).unwrap().unwrap();
        assert_eq!(column(&prompt, "prompt"), column(&rows.sample(0).unwrap().unwrap(), "ids")[..4]);
        assert_eq!(rows.reference_texts(1).unwrap(), ("for 2 minutes.".to_owned(), String::new()));
    }

    #[test]
    fn what_is_too_short_or_no_text_is_named() {
        let folder = Folder::new("bad");
        std::fs::write(folder.path("bytes.txt"), b"one\ntwo\n\nthree \xff\n").unwrap();
        std::fs::write(folder.path("blank.txt"), "\n \n").unwrap();
        std::fs::write(folder.path("column.jsonl"), "{\"text\": \"a\"}\n{\"words\": \"b\"}\n").unwrap();
        let cases = [
            ("a.txt", "a.txt: 25 tokens, and a row takes 1001"),
            ("bytes.txt", "bytes.txt line 4: not UTF-8"),
            ("blank.txt", "blank.txt: the file has no text"),
            ("column.jsonl", "column.jsonl line 2: no field \"text\"; it has: words"),
            ("none.txt", "none.txt: No such file"),
        ];
        for (name, want) in cases {
            let error = folder.open(&[name], 1000, 2).err().unwrap().to_string();
            assert!(error.contains(want), "{error}");
        }
    }
}
