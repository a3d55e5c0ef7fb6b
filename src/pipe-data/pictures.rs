//! Pictures in folders: those of a class lie in a folder of its name.

use std::io;
use std::path::{Path, PathBuf};

use pipe_spec::pipeline::Paths;

use crate::row::DataError;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ListedPicture {
    pub path: PathBuf,
    /// Its path within the folder that was listed.
    pub name: String,
    /// The name of the folder there that it lies in, if it lies in one.
    pub class: Option<String>,
}

/// By the ending of the name.
pub fn is_picture(path: &str) -> bool {
    let ending = Path::new(path).extension().and_then(|ending| ending.to_str()).map(str::to_ascii_lowercase);
    ending.is_some_and(|ending| ["jpg", "jpeg", "png", "webp"].contains(&ending.as_str()))
}

/// The pictures of folders, and pictures by themselves. Nothing where the paths are files with rows.
pub fn open_pictures(paths: &Paths) -> Result<Option<Vec<ListedPicture>>, DataError> {
    let are_pictures = |path: &&String| Path::new(path).is_dir() || is_picture(path);
    let count = paths.0.iter().filter(are_pictures).count();
    if count == 0 {
        return Ok(None);
    }
    if let Some(other) = paths.0.iter().find(|path| !are_pictures(path)) {
        let message = "beside folders of pictures; give either folders or files with rows";
        return Err(DataError::new(Path::new(other), None, message));
    }
    let mut all = Vec::new();
    for path in paths.0.iter().map(Path::new) {
        if !path.is_dir() {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            all.push(ListedPicture { path: path.to_owned(), name, class: None });
            continue;
        }
        let found = list_pictures(path).map_err(|error| DataError::new(path, None, error))?;
        if found.is_empty() {
            return Err(DataError::new(path, None, "no pictures in it, nor in the folders in it"));
        }
        all.extend(found);
    }
    Ok(Some(all))
}

/// The pictures of a folder and of the folders directly in it, in order. Hidden files and folders are left out.
pub fn list_pictures(folder: &Path) -> io::Result<Vec<ListedPicture>> {
    let names = |folder: &Path| -> io::Result<Vec<String>> {
        let names = std::fs::read_dir(folder)?
            .map(|entry| entry.map(|entry| entry.file_name().to_string_lossy().into_owned()))
            .collect::<io::Result<Vec<_>>>()?;
        Ok(names.into_iter().filter(|name| !name.starts_with('.')).collect())
    };
    let mut found = Vec::new();
    for name in names(folder)? {
        if !folder.join(&name).is_dir() {
            found.push(ListedPicture { path: folder.join(&name), name, class: None });
            continue;
        }
        for inner in names(&folder.join(&name))? {
            let inner = format!("{name}/{inner}");
            found.push(ListedPicture { path: folder.join(&inner), name: inner, class: Some(name.clone()) });
        }
    }
    found.retain(|picture| is_picture(&picture.name) && picture.path.is_file());
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_are_classes() {
        let folder = tempfile::tempdir().unwrap();
        let names =
            ["b/2.PNG", "a/x.jpeg", "a/notes.txt", "a/deeper/3.png", "c.webp", ".hidden/4.png", "b/._2.png", "r.csv"];
        for name in names {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "").unwrap();
        }
        let paths =
            |names: &[&str]| Paths(names.iter().map(|name| folder.path().join(name).display().to_string()).collect());
        let open = |names: &[&str]| open_pictures(&paths(names)).map_err(|error| error.message);
        let listed = open(&["", "c.webp"]).unwrap().unwrap();
        let found: Vec<_> = listed.iter().map(|one| (one.name.as_str(), one.class.as_deref())).collect();
        assert_eq!(found, [("a/x.jpeg", Some("a")), ("b/2.PNG", Some("b")), ("c.webp", None), ("c.webp", None)]);
        assert_eq!(open(&["r.csv"]), Ok(None));
        assert!(open(&["", "r.csv"]).unwrap_err().starts_with("beside folders of pictures"));
        assert!(open(&["a/deeper", ".hidden"]).is_ok() && open(&["a/deeper/nowhere"]) == Ok(None));
    }
}
