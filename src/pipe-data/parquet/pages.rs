//! The pages of a column: the file that threads read them from, and their decompression within limits. The crate's own decompression
//! of gzip, brotli and LZ4 takes memory for whatever comes out, so that it is given every page as if it were not compressed.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use parquet::basic::CompressionCodec;
use parquet::bloom_filter::Sbbf;
use parquet::column::page::{Page, PageMetadata, PageReader};
use parquet::errors::ParquetError;
use parquet::file::metadata::{ParquetMetaData, ParquetMetaDataReader, RowGroupMetaData};
use parquet::file::reader::{ChunkReader, Length, RowGroupReader};
use parquet::file::serialized_reader::SerializedPageReader;
use parquet::record::reader::RowIter;
use parquet::schema::types::Type;
use pipe_spec::text::human_bytes;

/// A page has no more bytes, and where the file says that all of its pages are smaller than the second, no more than that: four
/// threads hold a page of each column.
const PAGE_BYTES: u64 = 256 << 20;
const USUAL_PAGE_BYTES: u64 = 64 << 20;

/// The first words of the error of a page that is too large.
pub const LARGE_PAGE: &str = "a page of ";

/// An open file and its metadata.
pub struct ParquetFile {
    file: SharedFile,
    pub metadata: ParquetMetaData,
    /// Bytes of a page at most.
    largest_page: u64,
}

impl ParquetFile {
    pub fn open(path: &Path) -> Result<Self, ParquetError> {
        let file = File::open(path)?;
        let file = SharedFile { length: file.metadata()?.len(), file: Arc::new(file) };
        let metadata = ParquetMetaDataReader::new().parse_and_finish(&file)?;
        let columns = metadata.row_groups().iter().flat_map(RowGroupMetaData::columns);
        let largest = columns.map(|column| u64::try_from(column.uncompressed_size()).unwrap_or(0)).max();
        let largest_page = largest.unwrap_or(0).clamp(USUAL_PAGE_BYTES, PAGE_BYTES);
        Ok(Self { file, metadata, largest_page })
    }

    pub fn group(&self, index: usize) -> RowGroup<'_> {
        RowGroup { file: self, metadata: self.metadata.row_group(index) }
    }
}

/// A row group whose pages are decompressed within limits.
pub struct RowGroup<'a> {
    file: &'a ParquetFile,
    metadata: &'a RowGroupMetaData,
}

impl RowGroupReader for RowGroup<'_> {
    fn metadata(&self) -> &RowGroupMetaData {
        self.metadata
    }

    fn num_columns(&self) -> usize {
        self.metadata.num_columns()
    }

    fn get_column_page_reader(&self, index: usize) -> Result<Box<dyn PageReader>, ParquetError> {
        let column = self.metadata.column(index);
        let plain = column.clone().into_builder().set_compression_codec(CompressionCodec::UNCOMPRESSED).build()?;
        let file = self.file.file.clone();
        let chunk = Arc::new(ColumnChunk { file, largest_page: self.file.largest_page, page_size: Arc::default() });
        let rows = usize::try_from(self.metadata.num_rows())?;
        let page_size = Arc::clone(&chunk.page_size);
        let pages = SerializedPageReader::new(chunk, &plain, rows, None)?;
        Ok(Box::new(Pages { pages, codec: column.compression_codec(), page_size }))
    }

    fn get_column_bloom_filter(&self, _index: usize) -> Option<&Sbbf> {
        None
    }

    fn get_row_iter(&self, projection: Option<Type>) -> Result<RowIter<'_>, ParquetError> {
        RowIter::from_row_group(projection, self)
    }
}

/// The pages of one column in one row group, decompressed.
struct Pages {
    pages: SerializedPageReader<ColumnChunk>,
    codec: CompressionCodec,
    /// The size that the last header gave its page.
    page_size: Arc<AtomicU64>,
}

impl Pages {
    /// The content of a page, of which the first `plain` bytes are not compressed.
    fn decompress(&self, data: &Bytes, plain: usize) -> Result<Bytes, ParquetError> {
        let size = self.page_size.load(Ordering::Relaxed) as usize;
        if plain > size.min(data.len()) {
            return Err(ParquetError::General("a page is smaller than its levels".to_owned()));
        }
        let mut content = decompress(self.codec, &data[plain..], size - plain).map_err(|error| {
            ParquetError::General(format!("a page cannot be decompressed ({}): {error}", self.codec))
        })?;
        if content.len() != size - plain {
            return Err(ParquetError::General(format!("a page does not have the {size} bytes that its header says")));
        }
        content.splice(..0, data[..plain].iter().copied());
        Ok(content.into())
    }
}

/// At most one byte more than `size`.
fn decompress(codec: CompressionCodec, data: &[u8], size: usize) -> io::Result<Vec<u8>> {
    // A page without values may have no bytes at all.
    if size == 0 {
        return Ok(Vec::new());
    }
    let read = |decoder: &mut dyn Read| {
        let mut content = Vec::with_capacity(size);
        decoder.take(size as u64 + 1).read_to_end(&mut content).map(|_| content)
    };
    match codec {
        CompressionCodec::UNCOMPRESSED => Ok(data.to_vec()),
        CompressionCodec::SNAPPY => {
            let mut content = vec![0; size];
            let length = snap::raw::Decoder::new().decompress(data, &mut content)?;
            content.truncate(length);
            Ok(content)
        }
        CompressionCodec::ZSTD => zstd::bulk::decompress(data, size),
        CompressionCodec::GZIP => read(&mut flate2::read::MultiGzDecoder::new(data)),
        // The extension with windows of up to 1 GiB, which begins like this, is not part of the format.
        CompressionCodec::BROTLI if data.first().is_some_and(|first| first & 0x7f == 0x11) => {
            Err(io::Error::other("a window that is too large"))
        }
        CompressionCodec::BROTLI => read(&mut brotli::Decompressor::new(data, size.min(64 << 10))),
        CompressionCodec::LZ4_RAW => lz4_block(data, size),
        // As Hadoop writes it; older versions of Arrow wrote frames, or a block.
        CompressionCodec::LZ4 => lz4_hadoop(data, size)
            .or_else(|_| read(&mut lz4_flex::frame::FrameDecoder::new(data)))
            .or_else(|_| lz4_block(data, size)),
        CompressionCodec::LZO => Err(io::Error::other("pipe cannot read LZO")),
    }
}

fn lz4_block(data: &[u8], size: usize) -> io::Result<Vec<u8>> {
    let mut content = vec![0; size];
    let length = lz4_flex::decompress_into(data, &mut content).map_err(io::Error::other)?;
    content.truncate(length);
    Ok(content)
}

/// Blocks, each after its size and its compressed size.
fn lz4_hadoop(mut data: &[u8], size: usize) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    while !data.is_empty() {
        let (sizes, rest) = data.split_at_checked(8).ok_or(io::ErrorKind::InvalidData)?;
        let number = |bytes: &[u8]| bytes.iter().fold(0, |number, byte| number << 8 | usize::from(*byte));
        let (length, compressed) = (number(&sizes[..4]), number(&sizes[4..]));
        let (block, rest) = rest.split_at_checked(compressed).ok_or(io::ErrorKind::InvalidData)?;
        if length > size - content.len() {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let block = lz4_block(block, length)?;
        if block.len() != length {
            return Err(io::ErrorKind::InvalidData.into());
        }
        content.extend(block);
        data = rest;
    }
    Ok(content)
}

impl Iterator for Pages {
    type Item = Result<Page, ParquetError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.get_next_page().transpose()
    }
}

impl PageReader for Pages {
    fn get_next_page(&mut self) -> Result<Option<Page>, ParquetError> {
        let Some(mut page) = self.pages.get_next_page()? else { return Ok(None) };
        match &mut page {
            _ if self.codec == CompressionCodec::UNCOMPRESSED => {}
            Page::DataPage { buf, .. } | Page::DictionaryPage { buf, .. } => *buf = self.decompress(buf, 0)?,
            Page::DataPageV2 { is_compressed: false, .. } => {}
            Page::DataPageV2 { buf, def_levels_byte_len, rep_levels_byte_len, .. } => {
                let levels = u64::from(*def_levels_byte_len) + u64::from(*rep_levels_byte_len);
                *buf = self.decompress(buf, usize::try_from(levels)?)?;
            }
        }
        Ok(Some(page))
    }

    fn peek_next_page(&mut self) -> Result<Option<PageMetadata>, ParquetError> {
        self.pages.peek_next_page()
    }

    fn skip_next_page(&mut self) -> Result<(), ParquetError> {
        self.pages.skip_next_page()
    }
}

/// A file that several threads read at once, each where it wants. An open file of the standard library has one place for all.
#[derive(Clone)]
struct SharedFile {
    file: Arc<File>,
    length: u64,
}

impl Length for SharedFile {
    fn len(&self) -> u64 {
        self.length
    }
}

impl ChunkReader for SharedFile {
    type T = BufReader<FileCursor>;

    fn get_read(&self, start: u64) -> Result<Self::T, ParquetError> {
        Ok(BufReader::new(FileCursor { file: Arc::clone(&self.file), next: start, page: None }))
    }

    /// A length in a damaged file that is beyond the file itself is not given memory.
    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes, ParquetError> {
        let end = start.checked_add(length as u64).filter(|end| *end <= self.length);
        if end.is_none() {
            let message = format!("{length} bytes at {start}, and the file has {}", self.length);
            return Err(ParquetError::EOF(message));
        }
        let mut bytes = vec![0; length];
        self.file.read_exact_at(&mut bytes, start)?;
        Ok(bytes.into())
    }
}

/// A column of a row group: headers of pages are read through a reader, and what follows them as bytes.
struct ColumnChunk {
    file: SharedFile,
    largest_page: u64,
    page_size: Arc<AtomicU64>,
}

impl Length for ColumnChunk {
    fn len(&self) -> u64 {
        self.file.length
    }
}

impl ChunkReader for ColumnChunk {
    type T = BufReader<FileCursor>;

    fn get_read(&self, start: u64) -> Result<Self::T, ParquetError> {
        let page = Some((self.largest_page, Arc::clone(&self.page_size)));
        Ok(BufReader::new(FileCursor { file: Arc::clone(&self.file.file), next: start, page }))
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes, ParquetError> {
        self.file.get_bytes(start, length)
    }
}

/// A reader with a position of its own.
struct FileCursor {
    file: Arc<File>,
    next: u64,
    /// Where a header of a page is next: the largest size that it may have, and where its size is kept.
    page: Option<(u64, Arc<AtomicU64>)>,
}

impl Read for FileCursor {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read_at(buffer, self.next)?;
        if let Some((largest, size)) = self.page.take() {
            size.store(check_page(&buffer[..count], largest)?, Ordering::Relaxed);
        }
        self.next += count as u64;
        Ok(count)
    }
}

/// The size of a page by the first bytes of its header; or an error where it is too large: memory is taken for it. Writers put the
/// fields in the order of their numbers: the kind, the size, the compressed size.
fn check_page(header: &[u8], largest: u64) -> io::Result<u64> {
    let mut rest = header.iter();
    let mut next = || -> Option<u64> {
        // The next field by number, a whole number, in thrift's compact form.
        rest.next().filter(|kind| **kind == 0x15)?;
        let mut number = 0u64;
        for shift in (0..35).step_by(7) {
            let byte = u64::from(*rest.next()?);
            number |= (byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(number >> 1);
            }
        }
        None
    };
    let (_, Some(size), Some(compressed)) = (next(), next(), next()) else {
        return Err(io::Error::other("a page begins with no header"));
    };
    if size.max(compressed) <= largest {
        return Ok(size);
    }
    let (size, largest) = (human_bytes(size.max(compressed)), human_bytes(largest));
    Err(io::Error::other(format!("{LARGE_PAGE}{size}; allowed: at most {largest}; write it with smaller pages")))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;
    use crate::tests::peak_of;

    fn compress(codec: CompressionCodec, data: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        match codec {
            CompressionCodec::UNCOMPRESSED | CompressionCodec::LZO => unreachable!("not compressed here"),
            CompressionCodec::SNAPPY => out = snap::raw::Encoder::new().compress_vec(data).unwrap(),
            CompressionCodec::ZSTD => out = zstd::bulk::compress(data, 1).unwrap(),
            CompressionCodec::GZIP => {
                flate2::write::GzEncoder::new(&mut out, flate2::Compression::fast()).write_all(data).unwrap();
            }
            CompressionCodec::BROTLI => {
                brotli::CompressorWriter::new(&mut out, 4096, 1, 22).write_all(data).unwrap();
            }
            CompressionCodec::LZ4_RAW => out = lz4_flex::compress(data),
            CompressionCodec::LZ4 => {
                let mut frame = lz4_flex::frame::FrameEncoder::new(&mut out);
                frame.write_all(data).unwrap();
                frame.finish().unwrap();
            }
        }
        out
    }

    #[test]
    fn decompression_takes_no_more_memory_than_the_header_of_the_page_says() {
        let (data, size) = (vec![b'a'; 64 << 20], 1 << 20);
        for codec in [
            CompressionCodec::SNAPPY,
            CompressionCodec::ZSTD,
            CompressionCodec::GZIP,
            CompressionCodec::BROTLI,
            CompressionCodec::LZ4_RAW,
            CompressionCodec::LZ4,
        ] {
            let compressed = compress(codec, &data);
            assert_eq!(decompress(codec, &compressed, data.len()).unwrap(), data, "{codec}");
            let (lied, peak) = peak_of(|| decompress(codec, &compressed, size));
            assert!(lied.map_or(true, |content| content.len() == size + 1), "{codec}");
            // Brotli and LZ4 have a window of up to 16 MiB beside it.
            assert!(peak < 24 << 20, "{codec}: {} MiB", peak >> 20);
            let more = decompress(codec, &compressed, data.len() + 1);
            assert!(more.map_or(true, |content| content.len() == data.len()), "{codec}");
        }
        // Blocks as Hadoop writes them.
        let block = lz4_flex::compress(&data[..1000]);
        let number = |number: usize| (number as u32).to_be_bytes();
        let blocks = [&number(1000)[..], &number(block.len()), &block].concat().repeat(2);
        assert_eq!(decompress(CompressionCodec::LZ4, &blocks, 2000).unwrap(), data[..2000]);
        assert!(decompress(CompressionCodec::LZ4, &blocks, 1999).is_err());
        assert!(decompress(CompressionCodec::BROTLI, &[0x11, 30, 0, 0], 9).unwrap_err().to_string().contains("window"));
    }
}
