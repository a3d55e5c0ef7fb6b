//! A folder of pictures: folders of classes are read as they are; for captions a file with one row for each picture is written into
//! it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use pipe_data::{DataTable, ListedPicture, list_pictures};
use serde_json::json;

use super::column::ColumnKind;
use super::survey::Survey;
use crate::error::Error;
use crate::system::files;

/// The file that names the pictures of a folder.
const FILE: &str = "pictures.jsonl";
/// Bytes of a text beside a picture that are read at most.
const CAPTION_BYTES: u64 = 64 << 10;

/// The training data in a folder of pictures.
pub struct PictureList {
    /// A file that names them, or the folder of the folders of classes.
    pub path: PathBuf,
    /// A sentence about it, for people.
    pub note: String,
}

/// Nothing where there are no pictures in the folder. `as_texts`: the name of a class becomes a text.
pub fn list(folder: &Path, as_texts: bool) -> Result<Option<PictureList>, Error> {
    let pictures = list_pictures(folder).unwrap_or_default();
    if pictures.is_empty() {
        // The data for training may have a folder of its own.
        let inner = folder.join("train");
        return if inner.is_dir() { list(&inner, as_texts) } else { Ok(None) };
    }
    pictures.iter().try_for_each(|picture| files::check_utf8("the name of the picture", &picture.path))?;
    let path = folder.join(FILE);
    if path.is_file() {
        let note = format!("{} exists already and is used as it is", path.display());
        return Ok(Some(PictureList { path, note }));
    }
    if let Some(path) = table_of_pictures(folder) {
        let note = format!("{} names the pictures of {}", path.display(), folder.display());
        return Ok(Some(PictureList { path, note }));
    }
    let has_rows = || DataTable::read(folder).is_some_and(|table| table.names != ["image", "label"]);
    let Some((role, rows, what)) = captions(&pictures).or_else(|| classes(&pictures, as_texts)) else {
        // Pictures that only lie beside the data are none of its rows.
        return match has_rows() {
            true => Ok(None),
            false => Err(Error::NoCaptions { folder: folder.to_owned(), pictures: pictures.len() }),
        };
    };
    if role == "label" && rows.len() == pictures.len() && !has_rows() {
        let note = format!("{} has {} pictures: {what}", folder.display(), rows.len());
        return Ok(Some(PictureList { path: folder.to_owned(), note }));
    }
    let text: String =
        rows.iter().map(|(image, value)| format!("{}\n", json!({"image": image, role: value}))).collect();
    std::fs::write(&path, text).map_err(|source| Error::Write { path: path.clone(), source })?;
    let note = format!("wrote {} with {} pictures: {what}", path.display(), rows.len());
    Ok(Some(PictureList { path, note }))
}

/// A table in the folder with a column of paths that lead to pictures.
fn table_of_pictures(folder: &Path) -> Option<PathBuf> {
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder).ok()?.flatten().map(|entry| entry.path()).collect();
    files.retain(|path| path.is_file() && path.extension().is_some_and(|ending| ending != "txt"));
    files.sort();
    files.into_iter().find(|file| {
        let columns = DataTable::read(file).map(|table| Survey::of(&table).columns).unwrap_or_default();
        columns.iter().any(|column| {
            column.kind == ColumnKind::Picture && column.pictures.missing == 0 && !column.example.is_empty()
        })
    })
}

/// The role beside the pictures, its value for each picture, and where it comes from.
type Listed = (&'static str, Vec<(String, String)>, String);

/// The texts beside most of the pictures; nothing where there are none.
fn captions(pictures: &[ListedPicture]) -> Option<Listed> {
    let named = |picture: &ListedPicture| caption(&picture.path).map(|text| (picture.name.clone(), text));
    let captions: Vec<(String, String)> = pictures.iter().filter_map(named).collect();
    if captions.len() * 2 <= pictures.len() {
        return None;
    }
    let without = match pictures.len() - captions.len() {
        0 => String::new(),
        left => format!("; {left} pictures have no .txt and are skipped"),
    };
    Some(("text", captions, format!("the text of a picture is in the .txt beside it{without}")))
}

/// The folders that pictures lie in; nothing where there are not two.
fn classes(pictures: &[ListedPicture], as_texts: bool) -> Option<Listed> {
    let class = |picture: &ListedPicture| picture.class.clone().map(|class| (picture.name.clone(), class));
    let rows: Vec<(String, String)> = pictures.iter().filter_map(class).collect();
    let count = rows.iter().map(|(_, class)| class).collect::<BTreeSet<_>>().len();
    if count < 2 {
        return None;
    }
    let without = match pictures.len() - rows.len() {
        0 => String::new(),
        left => format!("; {left} pictures are in none and are skipped"),
    };
    let what = format!("{count} folders are the classes{without}");
    if !as_texts {
        return Some(("label", rows, what));
    }
    let text = |class: &str| format!("a photo of a {}", singular(&class.replace(['_', '-'], " ")));
    let rows: Vec<_> = rows.into_iter().map(|(name, class)| (name, text(&class))).collect();
    let example = rows.first().map_or(String::new(), |(_, text)| format!("{text:?}"));
    Some(("text", rows, format!("{what}, the text of a picture is {example} and so on")))
}

/// The name of a class without the ending of a plural: `cats` is `cat`, `berries` is `berry`; `glass` and `bus` stay.
fn singular(class: &str) -> String {
    let ends = |endings: &[&str]| endings.iter().any(|ending| class.ends_with(ending));
    match class.strip_suffix('s') {
        Some(stem) if ends(&["ies"]) && stem.len() > 3 => format!("{}y", &stem[..stem.len() - 2]),
        Some(stem) if ends(&["ches", "shes", "xes", "sses"]) => stem[..stem.len() - 1].to_owned(),
        Some(stem) if stem.len() > 2 && !ends(&["ss", "us", "is", "ies"]) => stem.to_owned(),
        _ => class.to_owned(),
    }
}

/// The text in the file of the same name, on one line.
fn caption(picture: &Path) -> Option<String> {
    let text = files::read(&picture.with_extension("txt"), CAPTION_BYTES).ok()?;
    let text =
        String::from_utf8_lossy(&text).trim_start_matches('\u{feff}').split_whitespace().collect::<Vec<_>>().join(" ");
    (!text.is_empty()).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        folder
    }

    fn listed(files: &[(&str, &str)], as_texts: bool) -> (String, String) {
        let folder = folder(files);
        let found = list(folder.path(), as_texts).unwrap().unwrap();
        let name = found.path.strip_prefix(folder.path()).unwrap().to_string_lossy().into_owned();
        (name, std::fs::read_to_string(found.path).unwrap_or_default())
    }

    #[test]
    fn captions_and_classes() {
        let captions =
            [("b.png", ""), ("a.jpg", ""), ("a.txt", "a red\nfox \n"), ("b.txt", "two cats"), ("note.md", "")];
        let want = "{\"image\":\"a.jpg\",\"text\":\"a red fox\"}\n{\"image\":\"b.png\",\"text\":\"two cats\"}\n";
        assert_eq!(listed(&captions, false), (FILE.to_owned(), want.to_owned()));
        let classes = [("polar_bear/1.jpg", ""), ("fox/2.JPG", "")];
        let want = "{\"image\":\"fox/2.JPG\",\"text\":\"a photo of a fox\"}\n\
                    {\"image\":\"polar_bear/1.jpg\",\"text\":\"a photo of a polar bear\"}\n";
        assert_eq!(listed(&classes, true), (FILE.to_owned(), want.to_owned()));
        // Nothing is written where the folders say it all.
        assert_eq!(listed(&classes, false), (String::new(), String::new()));
        let split = [("train/fox/1.png", ""), ("train/bear/2.png", ""), ("test/fox/3.png", "")];
        assert_eq!(listed(&split, false).0, "train");
        let stray = [("fox/1.png", ""), ("bear/2.png", ""), ("cover.png", ""), ("notes.csv", "a,b\n1,2\n")];
        let want = "{\"image\":\"bear/2.png\",\"label\":\"bear\"}\n{\"image\":\"fox/1.png\",\"label\":\"fox\"}\n";
        assert_eq!(listed(&stray, false), (FILE.to_owned(), want.to_owned()));
    }

    #[test]
    fn classes_are_named_in_the_singular() {
        for (class, want) in [
            ("cats", "cat"),
            ("polar bears", "polar bear"),
            ("berries", "berry"),
            ("foxes", "fox"),
            ("glass", "glass"),
            ("bus", "bus"),
            ("fox", "fox"),
            ("7s", "7s"),
        ] {
            assert_eq!(singular(class), want);
        }
    }

    #[test]
    fn what_is_there_is_used() {
        let table = [("a.png", ""), ("b.png", ""), ("meta.csv", "file,what\na.png,a fox\nb.png,a cat\n")];
        assert_eq!(listed(&table, false).0, "meta.csv");
        let written = [("a.png", ""), ("a.txt", "new"), (FILE, "mine\n")];
        assert_eq!(listed(&written, false), (FILE.to_owned(), "mine\n".to_owned()));
    }

    #[test]
    fn no_pictures_and_no_texts() {
        assert!(list(folder(&[("a.csv", "a,b\n")]).path(), false).unwrap().is_none());
        assert!(list(folder(&[("a.csv", "a,b\n1,2\n"), ("logo.png", "")]).path(), false).unwrap().is_none());
        let error = list(folder(&[("a.png", ""), ("b.png", "")]).path(), false).err().unwrap();
        assert!(error.to_string().contains("2 pictures"), "{error}");
    }
}
