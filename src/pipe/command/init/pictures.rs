//! A folder of pictures: a file with one row for each picture is written into it, which `clip` is trained on.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use pipe_data::DataTable;
use serde_json::json;

use super::column::{ColumnKind, is_picture};
use super::survey::Survey;
use crate::error::Error;
use crate::system::files;

/// The file that names the pictures of a folder.
const FILE: &str = "pictures.jsonl";
/// Bytes of a text beside a picture that are read at most.
const CAPTION_BYTES: u64 = 64 << 10;

/// The file that lists the pictures of a folder.
pub struct PictureList {
    pub file: PathBuf,
    /// A sentence about the file, for people.
    pub note: String,
}

/// Nothing where there are no pictures in the folder.
pub fn list(folder: &Path) -> Result<Option<PictureList>, Error> {
    let pictures = pictures(folder);
    if pictures.is_empty() {
        return Ok(None);
    }
    pictures.iter().try_for_each(|path| files::check_utf8("the name of the picture", &folder.join(path)))?;
    let file = folder.join(FILE);
    if file.is_file() {
        let note = format!("{} exists already and is used as it is", file.display());
        return Ok(Some(PictureList { file, note }));
    }
    if let Some(file) = table_of_pictures(folder) {
        let note = format!("{} names the pictures of {}", file.display(), folder.display());
        return Ok(Some(PictureList { file, note }));
    }
    let Some((rows, what)) = rows(folder, &pictures) else {
        // Pictures that only lie beside the data are none of its rows.
        return match DataTable::read(folder) {
            Some(_) => Ok(None),
            None => Err(Error::NoCaptions { folder: folder.to_owned(), pictures: pictures.len() }),
        };
    };
    let text: String =
        rows.iter().map(|(image, text)| format!("{}\n", json!({"image": image, "text": text}))).collect();
    std::fs::write(&file, text).map_err(|source| Error::Write { path: file.clone(), source })?;
    let note = format!("wrote {} with {} pictures: {what}", file.display(), rows.len());
    Ok(Some(PictureList { file, note }))
}

/// Paths within the folder and within the folders directly in it, in order.
fn pictures(folder: &Path) -> BTreeSet<PathBuf> {
    let names = |folder: &Path| -> Vec<PathBuf> {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        entries.map(|entry| PathBuf::from(entry.file_name())).collect()
    };
    let mut found = BTreeSet::new();
    for name in names(folder) {
        if folder.join(&name).is_dir() {
            found.extend(names(&folder.join(&name)).into_iter().map(|inner| name.join(inner)));
        } else {
            found.insert(name);
        }
    }
    found.retain(|path| is_picture(&path.to_string_lossy()) && folder.join(path).is_file());
    found
}

/// A table in the folder with a column of paths that lead to pictures.
fn table_of_pictures(folder: &Path) -> Option<PathBuf> {
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder).ok()?.flatten().map(|entry| entry.path()).collect();
    files.retain(|path| path.is_file() && path.extension().is_some_and(|ending| ending != "txt"));
    files.sort();
    files.into_iter().find(|file| {
        let columns = DataTable::read(file).map(|table| Survey::of(&table).columns).unwrap_or_default();
        columns
            .iter()
            .any(|column| column.kind == ColumnKind::Picture && column.missing == 0 && !column.example.is_empty())
    })
}

/// A text for each picture, and where the texts come from; nothing where there are none.
fn rows(folder: &Path, pictures: &BTreeSet<PathBuf>) -> Option<(Vec<(String, String)>, String)> {
    let named = |path: &Path, text: String| (path.to_string_lossy().into_owned(), text);
    let captions: Vec<(String, String)> =
        pictures.iter().filter_map(|path| caption(&folder.join(path)).map(|text| named(path, text))).collect();
    if captions.len() * 2 > pictures.len() {
        let without = match pictures.len() - captions.len() {
            0 => String::new(),
            left => format!("; {left} pictures have no .txt and are skipped"),
        };
        return Some((captions, format!("the text of a picture is in the .txt beside it{without}")));
    }
    let class =
        |path: &PathBuf| path.parent().and_then(Path::to_str).filter(|name| !name.is_empty()).map(str::to_owned);
    let classes: BTreeSet<String> = pictures.iter().filter_map(class).collect();
    if classes.len() < 2 {
        return None;
    }
    let text = |class: &str| format!("a photo of a {}", singular(&class.replace(['_', '-'], " ")));
    let rows: Vec<(String, String)> =
        pictures.iter().filter_map(|path| class(path).map(|class| named(path, text(&class)))).collect();
    let example = rows.first().map_or(String::new(), |(_, text)| format!("{text:?}"));
    Some((rows, format!("{} folders are the classes, the text of a picture is {example} and so on", classes.len())))
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

    fn listed(files: &[(&str, &str)]) -> (String, String) {
        let folder = folder(files);
        let found = list(folder.path()).unwrap().unwrap();
        let name = found.file.file_name().unwrap().to_string_lossy().into_owned();
        (name, std::fs::read_to_string(found.file).unwrap())
    }

    #[test]
    fn captions_and_classes() {
        let captions =
            [("b.png", ""), ("a.jpg", ""), ("a.txt", "a red\nfox \n"), ("b.txt", "two cats"), ("note.md", "")];
        let want = "{\"image\":\"a.jpg\",\"text\":\"a red fox\"}\n{\"image\":\"b.png\",\"text\":\"two cats\"}\n";
        assert_eq!(listed(&captions), (FILE.to_owned(), want.to_owned()));
        let classes = [("polar_bear/1.jpg", ""), ("fox/2.JPG", "")];
        let want = "{\"image\":\"fox/2.JPG\",\"text\":\"a photo of a fox\"}\n\
                    {\"image\":\"polar_bear/1.jpg\",\"text\":\"a photo of a polar bear\"}\n";
        assert_eq!(listed(&classes), (FILE.to_owned(), want.to_owned()));
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
        assert_eq!(listed(&table).0, "meta.csv");
        let written = [("a.png", ""), ("a.txt", "new"), (FILE, "mine\n")];
        assert_eq!(listed(&written), (FILE.to_owned(), "mine\n".to_owned()));
    }

    #[test]
    fn no_pictures_and_no_texts() {
        assert!(list(folder(&[("a.csv", "a,b\n")]).path()).unwrap().is_none());
        assert!(list(folder(&[("a.csv", "a,b\n1,2\n"), ("logo.png", "")]).path()).unwrap().is_none());
        let error = list(folder(&[("a.png", ""), ("b.png", "")]).path()).err().unwrap();
        assert!(error.to_string().contains("2 pictures"), "{error}");
    }
}
