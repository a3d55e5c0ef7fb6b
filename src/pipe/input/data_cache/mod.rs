//! Data files that cannot be read at random (Parquet, gzip, zstd) are written out once as files that can, in a cache folder:
//! JSON lines, CSV or plain text. The trainer reads these; the lock and the user's messages name the original. A tokenizer that
//! is trained on data lies there too.
//!
//! Knows nothing of engines and containers.

mod entry;
mod output;
mod source;

pub use entry::{entries, is_used, remove_entry};
pub use pipe_data::{ColumnSelection, Format, check, full_ending};
pub use source::{PreparedInputs, needs_preparation, prepare_inputs};

#[cfg(test)]
mod tests {
    //! The fixtures of tests/fixtures/data, and rubbish made of them.

    use std::path::{Path, PathBuf};
    use std::sync::atomic::{AtomicU32, Ordering};

    use pipe_data::{ColumnSelection, check};
    use pipe_spec::pipeline::{Data, Task};
    use serde_json::Value;

    use super::entry::Cache;
    use super::source::Source;
    use crate::error::Error;
    use crate::input::Input;
    use crate::system::digests::Digests;
    use crate::system::interrupt::Watch;

    const RECIPES: &str = r#"{"source": "ingredients", "target": "directions"}"#;

    fn fixture(name: &str) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/data").join(name).canonicalize().unwrap()
    }

    fn read(name: &str) -> Vec<u8> {
        std::fs::read(fixture(name)).unwrap()
    }

    fn selection(task: Task, fields: &str) -> ColumnSelection {
        let data: Data = serde_json::from_str(&format!("{{\"train\": \"a\", \"fields\": {fields}}}")).unwrap();
        ColumnSelection::new(task, &data)
    }

    /// A folder with a cache of its own, removed in the end.
    struct TestFolder(PathBuf);

    impl TestFolder {
        fn new() -> Self {
            static COUNT: AtomicU32 = AtomicU32::new(0);
            let number = COUNT.fetch_add(1, Ordering::Relaxed);
            let path = std::env::temp_dir().join(format!("pipe-data-{}-{number}", std::process::id()));
            std::fs::create_dir_all(&path).unwrap();
            Self(path)
        }

        fn write(&self, name: &str, bytes: &[u8]) -> PathBuf {
            let path = self.0.join(name);
            std::fs::write(&path, bytes).unwrap();
            path
        }

        /// The folder of the entry and what its rows are.
        fn prepare(&self, path: &Path, selection: &ColumnSelection) -> Result<(PathBuf, Vec<u8>), Error> {
            let (host, written) = (path.to_owned(), PathBuf::from(path.file_name().unwrap()));
            let input = Input { host, written, mounted: PathBuf::new(), mount: None, prepared: None };
            let source =
                Source::from_input(&input, selection, &mut Digests::default())?.expect("it has to be prepared");
            let cache = Cache::at(&self.0.join("cache"));
            let (prepared, _held) = source.prepare(&cache, selection, &Watch::default(), 0, || {})?;
            let rows = std::fs::read(prepared.folder.join(&prepared.file)).unwrap();
            Ok((prepared.folder, rows))
        }

        /// The entries in the cache.
        fn left(&self) -> Vec<String> {
            let entries = std::fs::read_dir(self.0.join("cache")).into_iter().flatten();
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
        }
    }

    impl Drop for TestFolder {
        fn drop(&mut self) {
            std::fs::remove_dir_all(&self.0).ok();
        }
    }

    fn rows(bytes: &[u8]) -> Vec<Value> {
        std::str::from_utf8(bytes).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    #[test]
    fn every_writer_and_codec_gives_the_same_rows() {
        let (folder, want) = (TestFolder::new(), rows(&read("rows.jsonl")));
        for name in [
            "plain",
            "snappy",
            "zstd",
            "gzip",
            "brotli",
            "lz4",
            "large",
            "categories",
            "fastparquet",
            "polars",
            "duckdb",
        ] {
            let file = fixture(&format!("{name}.parquet"));
            let selection = selection(Task::Seq2Seq, RECIPES);
            check(&file, &selection).unwrap_or_else(|why| panic!("{name}: {why}"));
            let (_, got) = folder.prepare(&file, &selection).unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_eq!(rows(&got), want, "{name}");
        }
        for name in ["rows.jsonl.gz", "rows.jsonl.zst"] {
            let (_, got) = folder.prepare(&fixture(name), &selection(Task::Seq2Seq, RECIPES)).unwrap();
            assert!(got == read("rows.jsonl"), "{name}");
        }
        assert_eq!(folder.left().len(), 2 * 13, "an entry and its lock for each");
    }

    #[test]
    fn values_of_every_kind() {
        let (folder, want) = (TestFolder::new(), rows(&read("kinds.jsonl")));
        let names: Vec<String> = want[0].as_object().unwrap().keys().cloned().collect();
        for name in names {
            // One column at a time, among rows that have it beside another.
            let fields = format!("{{\"source\": {name:?}, \"target\": \"required\"}}");
            let (_, got) = folder.prepare(&fixture("kinds.parquet"), &selection(Task::Seq2Seq, &fields)).unwrap();
            for (number, (got, want)) in rows(&got).iter().zip(&want).enumerate() {
                assert_eq!(got["required"], want["required"]);
                assert_eq!(got[&name], want[&name], "{name}, row {}", number + 1);
            }
        }
    }

    #[test]
    fn pictures_become_files() {
        let folder = TestFolder::new();
        let (folder, got) = folder.prepare(&fixture("pictures.parquet"), &selection(Task::Contrastive, "{}")).unwrap();
        let got = rows(&got);
        assert_eq!(got.len(), 12);
        assert_eq!(got[0]["image"], "pictures/0000/00000001.png");
        assert_eq!(got[1]["image"], "pictures/0000/00000002.jpg");
        assert_eq!(got[11]["image"], "pictures/0000/00000012.webp");
        assert_eq!(got[4]["text"], "green car");
        for row in got {
            let bytes = std::fs::read(folder.join(row["image"].as_str().unwrap())).unwrap();
            assert!(pipe_data::compressed::ending(&bytes).is_some());
        }
    }

    /// Rows that name pictures beside their file have the whole paths of these.
    #[test]
    fn paths_of_pictures() {
        let folder = TestFolder::new();
        let rows_of = |name: &str, text: &str| {
            let path = folder.write(name, &zstd::encode_all(text.as_bytes(), 3).unwrap());
            let prepared = folder.prepare(&path, &selection(Task::Contrastive, "{}"));
            prepared.map(|(_, rows)| String::from_utf8(rows).unwrap()).map_err(|error| error.to_string())
        };
        let here = folder.0.display().to_string();
        assert_eq!(
            rows_of("a.jsonl.zst", "{\"image\": \"p/1.png\", \"text\": \"x\"}\nbad\n\n{\"image\": \"/2.png\"}")
                .unwrap(),
            format!("{{\"image\":\"{here}/p/1.png\",\"text\":\"x\"}}\nbad\n\n{{\"image\":\"/2.png\"}}\n")
        );
        assert_eq!(
            rows_of("a.csv.zst", "text,image\n\"a, b\",1.png\n").unwrap(),
            format!("text,image\n\"a, b\",{here}/1.png\n")
        );
        for (name, text, line) in [("b.jsonl.zst", "{}\n{\"image\": 7}\n", 2), ("b.csv.zst", "image,text\n7,x\n", 2)] {
            let error = rows_of(name, text).unwrap_err();
            assert!(error.starts_with(&format!("{name}: line {line}: a picture by its number")), "{error}");
        }
    }

    #[test]
    fn time_series_become_csv() {
        let folder = TestFolder::new();
        let (_, got) = folder.prepare(&fixture("series.parquet"), &selection(Task::TimeSeries, "{}")).unwrap();
        let numbers = |text: &[u8]| -> Vec<Vec<String>> {
            let lines = std::str::from_utf8(text).unwrap().lines().skip(1);
            let cell = |cell: &str| cell.parse::<f64>().map_or(cell.to_owned(), |number| number.to_string());
            lines.map(|line| line.split(',').map(cell).collect()).collect()
        };
        assert_eq!(got.split(|byte| *byte == b'\n').next(), read("series.csv").split(|byte| *byte == b'\n').next());
        assert_eq!(numbers(&got), numbers(&read("series.csv")));
        let nested = check(&fixture("kinds.parquet"), &selection(Task::TimeSeries, r#"{"label": "text"}"#));
        assert_eq!(nested.unwrap_err(), "the column \"list\" is nested; a time series has plain columns");
    }

    #[test]
    fn what_a_look_finds() {
        let seq2seq = selection(Task::Seq2Seq, "{}");
        let of = |name: &str| check(&fixture(name), &seq2seq).unwrap_err();
        assert_eq!(
            of("snappy.parquet"),
            r#"no columns "source", "target"; it has: id, ingredients, tags, directions, note"#
        );
        assert!(of("encrypted.parquet").starts_with("it is encrypted"), "{}", of("encrypted.parquet"));
        let folder = TestFolder::new();
        let (gzip, zstd) = (read("rows.jsonl.gz"), read("rows.jsonl.zst"));
        for (name, bytes, want) in [
            ("a.jsonl", &gzip[..], "by its name plain text, by its first bytes a gzip file; its name would end in .gz"),
            (
                "a.jsonl.zst",
                &gzip,
                "by its name a zstd file, by its first bytes a gzip file; its name would end in .gz",
            ),
            ("a.csv.gz", b"a,b\n1,2\n", "by its name a gzip file, by its first bytes something else"),
            (
                "a.parquet",
                &zstd,
                "by its name a Parquet file, by its first bytes a zstd file; its name would end in .zst",
            ),
            ("b.jsonl.gz", &gzip[..12], "it ends in the middle of its compressed data: it is truncated"),
            ("c.jsonl.gz", &[0x1f, 0x8b, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9], "its compressed data is damaged"),
            ("d.parquet", b"PAR1", "not a Parquet file that can be read"),
            ("e.parquet", b"PAR1 and then nothing of the kind PAR1", "not a Parquet file that can be read"),
        ] {
            let why = check(&folder.write(name, bytes), &seq2seq).unwrap_err();
            assert!(why.starts_with(want), "{name}: {why}");
        }
        let nothing = zstd::encode_all(&b""[..], 3).unwrap();
        assert_eq!(check(&folder.write("f.txt.zst", &nothing), &seq2seq).unwrap_err(), "it holds nothing");
    }

    #[test]
    fn columns_can_be_encrypted_alone() {
        let folder = TestFolder::new();
        let file = fixture("encrypted-columns.parquet");
        let error = folder.prepare(&file, &selection(Task::Seq2Seq, RECIPES)).unwrap_err();
        assert_eq!(error.exit_code(), pipe_spec::PipeExit::Invalid);
        assert!(folder.left().is_empty());
    }

    /// A file that was cut off is an error, wherever, and leaves nothing.
    #[test]
    fn truncated_files() {
        let folder = TestFolder::new();
        for (name, task, fields) in [
            ("rows.jsonl.gz", Task::Seq2Seq, RECIPES),
            ("rows.jsonl.zst", Task::Seq2Seq, RECIPES),
            ("zstd.parquet", Task::Seq2Seq, RECIPES),
            ("pictures.parquet", Task::Contrastive, "{}"),
        ] {
            let (bytes, selection) = (read(name), selection(task, fields));
            // Between two members or frames a stream is whole; what is cut off there cannot be missed.
            let mut whole = 0;
            for length in (0..bytes.len()).step_by(bytes.len() / 97 + 1).chain([bytes.len() - 1]) {
                let path = folder.write(name, &bytes[..length]);
                match folder.prepare(&path, &selection) {
                    Ok(_) => whole += 1,
                    Err(error) => {
                        assert_eq!(error.exit_code(), pipe_spec::PipeExit::Invalid, "{name} {length}: {error}");
                        assert!(error.to_string().starts_with(&format!("{name}: ")), "{error}");
                    }
                }
            }
            assert!(whole <= 1, "{name}: {whole} parts were taken for the whole");
            assert!(folder.left().len() <= 2 * whole, "{name}: {:?}", folder.left());
            std::fs::remove_dir_all(folder.0.join("cache")).unwrap();
        }
    }

    /// Bytes that were changed: an error or other rows, never a panic, and nothing left where it is an error.
    #[test]
    fn damaged_files() {
        let folder = TestFolder::new();
        let mut random = 0x9e37_79b9_7f4a_7c15_u64;
        let mut next = move || {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random as usize
        };
        let tasks = [
            ("kinds.parquet", Task::Seq2Seq, r#"{"source": "structs", "target": "lists"}"#),
            ("kinds.parquet", Task::Seq2Seq, r#"{"source": "map", "target": "decimal"}"#),
            ("gzip.parquet", Task::Seq2Seq, RECIPES),
            ("pictures.parquet", Task::Contrastive, "{}"),
            ("series.parquet", Task::TimeSeries, "{}"),
            ("rows.jsonl.gz", Task::Seq2Seq, RECIPES),
            ("rows.jsonl.zst", Task::Seq2Seq, RECIPES),
        ];
        for round in 0..700 {
            let (name, task, fields) = tasks[round % tasks.len()];
            let mut bytes = read(name);
            // Half of them in the footer, where everything is decided.
            let from = if round % 2 == 0 { bytes.len().saturating_sub(2000) } else { 4 };
            for _ in 0..1 + next() % 4 {
                let at = from + next() % (bytes.len() - from);
                bytes[at] = next() as u8;
            }
            let path = folder.write(name, &bytes);
            let selection = selection(task, fields);
            let looked = check(&path, &selection);
            match folder.prepare(&path, &selection) {
                Ok(_) => assert!(looked.is_ok(), "{name}: {looked:?}"),
                Err(error) => {
                    assert_eq!(error.exit_code(), pipe_spec::PipeExit::Invalid, "{name}: {error}");
                    assert!(folder.left().is_empty(), "{error}: {:?}", folder.left());
                }
            }
            std::fs::remove_dir_all(folder.0.join("cache")).unwrap();
        }
        for round in 0..100 {
            let mut bytes: Vec<u8> = (0..next() % 4000).map(|_| next() as u8).collect();
            let (name, magic) =
                [("x.parquet", *b"PAR1"), ("x.jsonl.gz", [0x1f, 0x8b, 8, 0]), ("x.txt.zst", [0x28, 0xb5, 0x2f, 0xfd])]
                    [round % 3];
            bytes.splice(0..0, magic);
            bytes.extend_from_slice(b"\x40\0\0\0PAR1");
            let path = folder.write(name, &bytes);
            assert!(folder.prepare(&path, &selection(Task::Language, "{}")).is_err(), "{name}");
            assert!(folder.left().is_empty());
        }
    }

    #[test]
    fn cancelled() {
        let folder = TestFolder::new();
        let selection = selection(Task::Seq2Seq, RECIPES);
        let host = fixture("snappy.parquet");
        let input = Input { written: host.clone(), host, mounted: PathBuf::new(), mount: None, prepared: None };
        let source = Source::from_input(&input, &selection, &mut Digests::default()).unwrap().unwrap();
        let watch = Watch::default();
        watch.cancel();
        let cache = Cache::at(&folder.0.join("cache"));
        let error = source.prepare(&cache, &selection, &watch, 0, || {}).unwrap_err();
        assert!(matches!(error, Error::Interrupted) && folder.left().is_empty());
    }
}
