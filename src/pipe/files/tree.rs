//! The content of a file or of a whole folder, as one hash.

use std::collections::BTreeSet;
use std::path::Path;

use super::digests::Digests;
use crate::error::Error;

/// What is done about links in a folder.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Links {
    /// Those of the user.
    Followed,
    /// Those of a job, which must not lead out of the folder.
    Kept,
}

/// The content of a file, or of all that is in a folder.
pub fn hash_tree(digests: &mut Digests, path: &Path, links: Links) -> Result<String, Error> {
    let read = |source| Error::Read { path: path.to_owned(), source };
    if !std::fs::metadata(path).map_err(read)?.is_dir() {
        return digests.hash(path);
    }
    let root = path.canonicalize().map_err(read)?;
    let mut seen = BTreeSet::from([root.clone()]);
    let mut folders = vec![path.to_owned()];
    let mut entries = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).map_err(read)? {
            let place = entry.map_err(read)?.path();
            let is_link = place.symlink_metadata().map_err(read)?.is_symlink();
            let target = place.canonicalize();
            if let (true, Links::Kept, Ok(target)) = (is_link, links, &target)
                && !target.starts_with(&root)
            {
                return Err(Error::LinkedOutput { path: place });
            }
            let follows = !is_link || links == Links::Followed;
            if follows && place.is_dir() && target.is_ok_and(|target| seen.insert(target)) {
                folders.push(place.clone());
            }
            entries.push((place, follows));
        }
    }
    entries.sort();
    let mut hasher = blake3::Hasher::new();
    for (place, follows) in entries {
        let content = match follows {
            true if place.is_file() => digests.hash(&place)?,
            true => String::new(),
            false => std::fs::read_link(&place).map_err(read)?.to_string_lossy().into_owned(),
        };
        let name = place.strip_prefix(path).unwrap_or(&place).to_string_lossy().into_owned();
        for text in [name, content] {
            hasher.update(&(text.len() as u64).to_le_bytes());
            hasher.update(text.as_bytes());
        }
    }
    Ok(hasher.finalize().to_hex().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_content_of_a_folder() {
        let folder = std::env::temp_dir().join(format!("pipe-content-{}", std::process::id()));
        let write = |name: &str, text: &str| {
            let path = folder.join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        let now = || hash_tree(&mut Digests::default(), &folder, Links::Followed).unwrap();
        write("a/b", "1");
        write("c", "2");
        let first = now();
        assert_eq!(first, now());
        write("c", "3");
        let changed = now();
        write("c", "2");
        assert!(changed != first && now() == first);
        std::fs::rename(folder.join("c"), folder.join("d")).unwrap();
        let renamed = now();
        let of_job = || hash_tree(&mut Digests::default(), &folder, Links::Kept);
        std::os::unix::fs::symlink("d", folder.join("inside")).unwrap();
        assert!(renamed != first && now() != renamed && of_job().is_ok());
        // A link of the user counts as what it leads to; one of a job must not lead out.
        let outside = folder.with_extension("outside");
        std::fs::write(&outside, "1").unwrap();
        std::os::unix::fs::symlink(&outside, folder.join("outside")).unwrap();
        let one = now();
        std::fs::write(&outside, "2").unwrap();
        assert!(now() != one && matches!(of_job(), Err(Error::LinkedOutput { .. })));
        std::os::unix::fs::symlink(".", folder.join("circle")).unwrap();
        now();
        assert!(hash_tree(&mut Digests::default(), &folder.join("nothing"), Links::Followed).is_err());
        std::fs::remove_file(outside).unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
