//! Pictures: where rows say they lie, and files for those that came inside the data.

use std::path::Path;

/// Files in one folder at most.
const FILES_PER_FOLDER: u64 = 10_000;

/// What a text in the column of pictures is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PictureRef {
    Path,
    /// The number of a picture in `images.safetensors`.
    Number,
}

pub fn picture_ref(text: &str) -> PictureRef {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if is_number { PictureRef::Number } else { PictureRef::Path }
}

/// The path of a picture that a file in `folder` names.
pub fn whole_path(folder: &Path, path: &str) -> String {
    match path.is_empty() {
        true => String::new(),
        false => folder.join(path).to_string_lossy().into_owned(),
    }
}

/// The folder and the name of the file for the picture of row `number`.
pub fn file_of(number: u64, bytes: &[u8]) -> (String, String) {
    (format!("pictures/{:04}", number / FILES_PER_FOLDER), format!("{number:08}.{}", ending(bytes).unwrap_or("bin")))
}

/// The ending that the first bytes of a picture call for.
pub fn ending(bytes: &[u8]) -> Option<&'static str> {
    match bytes {
        [0xff, 0xd8, 0xff, ..] => Some("jpg"),
        [0x89, b'P', b'N', b'G', ..] => Some("png"),
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => Some("webp"),
        [b'G', b'I', b'F', b'8', ..] => Some("gif"),
        [b'B', b'M', ..] if bytes.len() > 26 => Some("bmp"),
        [b'I', b'I', 0x2a, 0, ..] | [b'M', b'M', 0, 0x2a, ..] => Some("tiff"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_named_by_row_and_content() {
        assert_eq!(file_of(17, b"\xff\xd8\xff\xe0..."), ("pictures/0000".to_owned(), "00000017.jpg".to_owned()));
        assert_eq!(file_of(20_001, b"RIFF....WEBPVP8 "), ("pictures/0002".to_owned(), "00020001.webp".to_owned()));
        assert_eq!(file_of(3, b"nothing known").1, "00000003.bin");
    }

    #[test]
    fn paths_begin_in_the_folder_of_the_source() {
        let folder = Path::new("/data");
        for (path, want) in [("a/b.png", "/data/a/b.png"), ("/x/y.png", "/x/y.png"), ("", "")] {
            assert_eq!(whole_path(folder, path), want);
        }
        assert_eq!(
            (picture_ref("12"), picture_ref("12.png"), picture_ref("")),
            (PictureRef::Number, PictureRef::Path, PictureRef::Path)
        );
    }
}
