//! Parquet files made on the fly: types that the fixtures lack, texts that are none, and the memory that reading takes.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;

use parquet::basic::{BrotliLevel, Compression, GzipLevel, ZstdLevel};
use parquet::data_type::{ByteArray, ByteArrayType, DataType, Int32Type, Int64Type, Int96, Int96Type};
use parquet::file::metadata::KeyValue;
use parquet::file::properties::{WriterProperties, WriterVersion};
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::parser::parse_message_type;
use pipe_spec::pipeline::{Data, Task};

use crate::compressed::{self, ReadError, RowSink, Stopped};
use crate::{ColumnSelection, ParquetTable};

/// Counts the bytes that this thread has on the heap: other tests run beside it.
struct Counting;

thread_local! {
    static HELD: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

// SAFETY: everything is passed on to the allocator of the system.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        HELD.set(HELD.get() + layout.size() as isize);
        PEAK.set(PEAK.get().max(HELD.get()));
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        HELD.set(HELD.get() - layout.size() as isize);
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Runs a function; returns its result, and the bytes that it had on the heap at most.
pub fn peak_of<T>(act: impl FnOnce() -> T) -> (T, isize) {
    let before = HELD.get();
    PEAK.set(before);
    let result = act();
    (result, PEAK.get() - before)
}

/// Rows in memory.
#[derive(Default)]
struct Lines {
    buffer: Vec<u8>,
    /// Whether rows are dropped as they come.
    drops: bool,
    dropped: usize,
}

impl RowSink for Lines {
    fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.buffer
    }

    fn row_done(&mut self) -> Result<(), Stopped> {
        if self.drops {
            self.dropped += self.buffer.len();
            self.buffer.clear();
        }
        Ok(())
    }

    fn file(&mut self, _folder: String, _name: String, _bytes: Vec<u8>) -> Result<(), Stopped> {
        Ok(())
    }
}

fn selection(source: &str, target: &str) -> ColumnSelection {
    let fields = format!("{{\"source\": {source:?}, \"target\": {target:?}}}");
    let data: Data = serde_json::from_str(&format!("{{\"train\": \"a\", \"fields\": {fields}}}")).unwrap();
    ColumnSelection::new(Task::Seq2Seq, &data)
}

fn write(path: &Path, schema: &str, fill: impl FnOnce(&mut SerializedRowGroupWriter<'_, std::fs::File>)) {
    let schema = Arc::new(parse_message_type(schema).unwrap());
    let properties = Arc::new(WriterProperties::builder().set_dictionary_enabled(false).build());
    let mut writer = SerializedFileWriter::new(std::fs::File::create(path).unwrap(), schema, properties).unwrap();
    let mut group = writer.next_row_group().unwrap();
    fill(&mut group);
    group.close().unwrap();
    writer.close().unwrap();
}

/// The next column, with its definition and repetition levels.
fn column<T: DataType>(
    group: &mut SerializedRowGroupWriter<'_, std::fs::File>,
    values: &[T::T],
    definitions: &[i16],
    repetitions: &[i16],
) {
    let mut column = group.next_column().unwrap().unwrap();
    let repetitions = (!repetitions.is_empty()).then_some(repetitions);
    column.typed::<T>().write_batch(values, Some(definitions), repetitions).unwrap();
    column.close().unwrap();
}

fn read(path: &Path, selection: &ColumnSelection) -> Result<String, String> {
    let table = ParquetTable::open(path, selection)?;
    let mut lines = Lines::default();
    let read = (0..table.groups()).try_for_each(|group| table.read(group, Path::new("/data"), &mut lines));
    if let Err(error) = read {
        let ReadError::File(message) = error else { panic!("nothing stops it") };
        return Err(message);
    }
    Ok(String::from_utf8(lines.buffer).unwrap())
}

#[test]
fn types_of_other_writers() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.parquet");
    let schema = "message schema {
        optional int96 old;
        optional int64 nanos (TIMESTAMP(NANOS, false));
        optional group plain (LIST) { repeated int32 array; }
        optional group pairs (LIST) { repeated group pairs_tuple { required int32 a; } }
        repeated binary bare (UTF8);
        optional group map (MAP) { repeated group key_value { required int32 key; optional binary value (UTF8); } }
    }";
    write(&path, schema, |group| {
        let mut old = Int96::new();
        old.set_data(123_456_789, 0, 2_440_589);
        // A day long before what nanoseconds since 1970 can count.
        let mut ancient = Int96::new();
        ancient.set_data(1, 0, 2_440_588 - 719_162);
        column::<Int96Type>(group, &[old, ancient], &[1, 0, 1], &[]);
        column::<Int64Type>(group, &[-1, 1_764_241_200_000_000_001], &[1, 0, 1], &[]);
        column::<Int32Type>(group, &[1, 2], &[2, 2, 0, 1], &[0, 1, 0, 0]);
        column::<Int32Type>(group, &[3, 4, 5], &[2, 2, 1, 2], &[0, 1, 0, 0]);
        let text = |text: &str| ByteArray::from(text);
        column::<ByteArrayType>(group, &[text("x"), text("y")], &[1, 1, 0, 0], &[0, 1, 0, 0]);
        column::<Int32Type>(group, &[7, 8], &[2, 2, 1, 0], &[0, 1, 0, 0]);
        column::<ByteArrayType>(group, &[text("seven")], &[3, 2, 1, 0], &[0, 1, 0, 0]);
    });
    let rows = |source: &str, target: &str| read(&path, &selection(source, target)).unwrap();
    assert_eq!(
        rows("old", "nanos"),
        r#"{"old":"1970-01-02T00:00:00.123456789","nanos":"1969-12-31T23:59:59.999999999"}
{"old":null,"nanos":null}
{"old":"0001-01-01T00:00:00.000000001","nanos":"2025-11-27T11:00:00.000000001"}
"#
    );
    assert_eq!(
        rows("plain", "pairs"),
        r#"{"plain":[1,2],"pairs":[{"a":3},{"a":4}]}
{"plain":null,"pairs":[]}
{"plain":[],"pairs":[{"a":5}]}
"#
    );
    assert_eq!(
        rows("bare", "map"),
        r#"{"bare":["x","y"],"map":{"7":"seven","8":null}}
{"bare":[],"map":{}}
{"bare":[],"map":null}
"#
    );
}

/// As the `datasets` library writes CoNLL: tags are numbers, and their names stand in the metadata.
#[test]
fn numbers_of_classes_in_lists_have_the_names_of_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.parquet");
    let list = "{\"feature\": {\"names\": [\"O\", \"B-PER\"], \"_type\": \"ClassLabel\"}, \"_type\": \"Sequence\"}";
    let text = format!("{{\"info\": {{\"features\": {{\"tags\": {list}, \"other\": {{\"_type\": \"Value\"}}}}}}}}");
    let metadata = vec![KeyValue::new("huggingface".to_owned(), text)];
    let schema = "message schema {
        optional group tags (LIST) { repeated group list { optional int64 element; } }
        optional int64 other;
    }";
    let schema = Arc::new(parse_message_type(schema).unwrap());
    let properties = Arc::new(WriterProperties::builder().set_key_value_metadata(Some(metadata)).build());
    let mut writer = SerializedFileWriter::new(std::fs::File::create(&path).unwrap(), schema, properties).unwrap();
    let mut group = writer.next_row_group().unwrap();
    column::<Int64Type>(&mut group, &[1, 0, -1], &[3, 3, 3, 1], &[0, 1, 1, 0]);
    column::<Int64Type>(&mut group, &[1], &[1, 0], &[]);
    group.close().unwrap();
    writer.close().unwrap();
    let rows = read(&path, &selection("tags", "other")).unwrap();
    assert_eq!(rows, "{\"tags\":[\"B-PER\",\"O\",-1],\"other\":1}\n{\"tags\":[],\"other\":null}\n");
    assert_eq!(crate::DataTable::read(&path).unwrap().rows[0][0], serde_json::json!(["B-PER", "O", -1]));
}

#[test]
fn what_is_no_text_is_named_with_its_row_and_column() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.parquet");
    write(&path, "message schema { optional binary a (UTF8); optional binary b; }", |group| {
        let bytes = |bytes: &[u8]| ByteArray::from(bytes.to_vec());
        column::<ByteArrayType>(group, &[bytes(b"x"), bytes(b"\xff")], &[1, 1], &[]);
        column::<ByteArrayType>(group, &[bytes(b"\xfe"), bytes(b"y")], &[1, 1], &[]);
    });
    let error = |source: &str, target: &str| read(&path, &selection(source, target)).unwrap_err();
    assert_eq!(error("a", "a"), "row 2: the column \"a\" holds bytes that are no text in UTF-8");
    assert_eq!(error("b", "b"), "row 1: the column \"b\" holds bytes that are no text in UTF-8");
}

/// A row group is read in batches of some MiB, however large it is.
#[test]
fn memory_is_bounded_whatever_the_row_group_holds() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.parquet");
    let rows = 6000;
    write(&path, "message schema { required binary a (UTF8); required binary b (UTF8); }", |group| {
        for _ in 0..2 {
            let mut column = group.next_column().unwrap().unwrap();
            for row in 0..rows {
                let text = ByteArray::from(format!("{row} {}", "long text ".repeat(1600)).as_str());
                column.typed::<ByteArrayType>().write_batch(&[text], None, None).unwrap();
            }
            column.close().unwrap();
        }
    });
    let table = ParquetTable::open(&path, &selection("a", "b")).unwrap();
    assert!(table.largest_group() > 180 << 20, "{}", table.largest_group());
    let mut lines = Lines { drops: true, ..Lines::default() };
    let (read, peak) = peak_of(|| table.read(0, Path::new("/data"), &mut lines));
    read.unwrap();
    println!("{} MiB at most", peak >> 20);
    assert!(peak < 24 << 20, "{} MiB", peak >> 20);
}

/// Memory for a page is taken by what its header says.
#[test]
fn a_page_that_promises_too_much_is_refused_by_its_header() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.parquet");
    write(&path, "message schema { required binary a (UTF8); }", |group| {
        let mut column = group.next_column().unwrap().unwrap();
        let text = ByteArray::from("a".repeat(1_200_000).as_str());
        column.typed::<ByteArrayType>().write_batch(&[text], None, None).unwrap();
        column.close().unwrap();
    });
    let mut bytes = std::fs::read(&path).unwrap();
    // After the name of the format: the kind of the page, and its size as a number in four bytes.
    assert_eq!((&bytes[4..7], bytes[10] & 0x80), (&[0x15, 0, 0x15][..], 0), "{:x?}", &bytes[..12]);
    bytes[7..11].copy_from_slice(&[0xff, 0xff, 0xff, 0x7e]);
    std::fs::write(&path, bytes).unwrap();
    let table = ParquetTable::open(&path, &selection("a", "a")).unwrap();
    let (read, peak) = peak_of(|| table.read(0, Path::new("/data"), &mut Lines::default()));
    let Err(ReadError::File(error)) = read else { panic!("read") };
    assert!(error.starts_with("row group 1: a page of 127"), "{error}");
    assert!(error.ends_with("allowed: at most 64.0 MiB; write it with smaller pages"), "{error}");
    assert!(peak < 1 << 20, "{peak} bytes");
}

/// Every way to compress, and both kinds of pages: the same rows; and a page whose header names a smaller size than it has.
#[test]
fn compressed_pages() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.parquet");
    let schema = Arc::new(parse_message_type("message schema { optional binary a (UTF8); }").unwrap());
    let text = "b".repeat(1_200_000);
    for codec in [
        Compression::UNCOMPRESSED,
        Compression::SNAPPY,
        Compression::ZSTD(ZstdLevel::default()),
        Compression::GZIP(GzipLevel::default()),
        Compression::BROTLI(BrotliLevel::default()),
        Compression::LZ4,
        Compression::LZ4_RAW,
    ] {
        for version in [WriterVersion::PARQUET_1_0, WriterVersion::PARQUET_2_0] {
            let properties = WriterProperties::builder().set_compression(codec).set_writer_version(version);
            let properties = Arc::new(properties.set_dictionary_enabled(false).build());
            let file = std::fs::File::create(&path).unwrap();
            let mut writer = SerializedFileWriter::new(file, Arc::clone(&schema), properties).unwrap();
            let mut group = writer.next_row_group().unwrap();
            column::<ByteArrayType>(&mut group, &[text.as_str().into(), "c".into()], &[1, 0, 1], &[]);
            group.close().unwrap();
            writer.close().unwrap();
            let expected = format!("{{\"a\":\"{text}\"}}\n{{\"a\":null}}\n{{\"a\":\"c\"}}\n");
            assert_eq!(read(&path, &selection("a", "a")).unwrap(), expected, "{codec} {version:?}");

            let mut bytes = std::fs::read(&path).unwrap();
            assert_eq!((bytes[4], bytes[6], bytes[10] & 0x80), (0x15, 0x15, 0), "{:x?}", &bytes[..12]);
            bytes[7..11].copy_from_slice(&[0x80, 0x80, 0x80, 0x01]);
            std::fs::write(&path, bytes).unwrap();
            if codec != Compression::UNCOMPRESSED {
                let error = read(&path, &selection("a", "a")).unwrap_err();
                assert!(error.starts_with("row group 1: a page "), "{codec} {version:?}: {error}");
            }
        }
    }
}

#[test]
fn a_page_that_differs_from_its_checksum_is_refused() {
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/data/checksums.parquet");
    let whole = read(&fixture, &selection("text", "text")).unwrap();
    assert!(whole.starts_with("{\"text\":\"text 0000\"}\n") && whole.lines().count() == 40, "{whole}");
    let mut bytes = std::fs::read(&fixture).unwrap();
    let at = bytes.windows(9).position(|text| text == b"text 0025").unwrap();
    bytes[at + 8] = b'6';
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("damaged.parquet");
    std::fs::write(&path, bytes).unwrap();
    let error = read(&path, &selection("text", "text")).unwrap_err();
    assert!(error.starts_with("row group 2: ") && error.contains("CRC"), "{error}");
}

#[test]
fn a_line_that_is_too_long_is_not_written_out() {
    let folder = tempfile::tempdir().unwrap();
    let copied = |name: &str, lines: &[usize]| {
        let path = folder.path().join(name);
        let file = std::fs::File::create(&path).unwrap();
        let mut file = zstd::stream::write::Encoder::new(file, 1).unwrap().auto_finish();
        for length in lines {
            file.write_all(&vec![b'a'; *length]).unwrap();
            file.write_all(b"\n").unwrap();
        }
        drop(file);
        let mut sink = Lines { drops: true, ..Lines::default() };
        let result = compressed::copy(&path, &|_| (), &mut sink);
        (result.map_err(|error| format!("{error:?}")), sink.dropped)
    };
    let long = 64 << 20;
    assert_eq!(copied("a.jsonl.zst", &[3, long, 5, long - 9]), (Ok(()), 2 * long + 3));
    let (result, bytes) = copied("b.jsonl.zst", &[3, 5, long + 1, 3 * long]);
    assert!(result.unwrap_err().contains("line 3: the row has more than 64.0 MiB"));
    assert!(bytes <= long + 10, "{bytes}");
    assert_eq!(copied("c.txt.zst", &[long + 1]).0, Ok(()));
}
