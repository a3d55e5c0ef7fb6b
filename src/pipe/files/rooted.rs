//! Paths below a folder that is the root of a container: its symbolic links lead to places in the folder, never out of it.

use std::ffi::OsString;
use std::io;
use std::path::{Component, Path, PathBuf};

/// As many links as the kernel follows.
const MAX_LINKS: u32 = 40;

/// Where `path` lies, for who has `root` as the root. What is not there yet is taken as it is written.
pub fn inside(root: &Path, path: &Path) -> io::Result<PathBuf> {
    let mut left = parts(path);
    let (mut found, mut links) = (PathBuf::new(), 0);
    while let Some(part) = left.pop() {
        if part == ".." {
            found.pop();
            continue;
        }
        match std::fs::read_link(root.join(&found).join(&part)) {
            Ok(_) if links == MAX_LINKS => return Err(io::Error::other("too many symbolic links")),
            Ok(target) => {
                links += 1;
                if target.is_absolute() {
                    found.clear();
                }
                left.extend(parts(&target));
            }
            // It is no link, or not there.
            Err(_) => found.push(part),
        }
    }
    Ok(root.join(found))
}

/// The parts of a path, the last one first.
fn parts(path: &Path) -> Vec<OsString> {
    let named = |part: &Component<'_>| matches!(part, Component::Normal(_) | Component::ParentDir);
    path.components().rev().filter(named).map(|part| part.as_os_str().to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn links_stay_in_the_root() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        std::fs::create_dir_all(root.join("var/real")).unwrap();
        for (link, target) in
            [("absolute", "/var/real"), ("var/up", "../../../etc"), ("chain", "var/up/x"), ("loop", "loop")]
        {
            symlink(target, root.join(link)).unwrap();
        }
        for (path, want) in [
            ("/var/real/new", "var/real/new"),
            ("absolute/new", "var/real/new"),
            ("var/up/passwd", "etc/passwd"),
            ("/chain/y", "etc/x/y"),
            ("../../etc", "etc"),
            ("/", ""),
        ] {
            assert_eq!(inside(root, Path::new(path)).unwrap(), root.join(want), "{path}");
        }
        assert!(inside(root, Path::new("loop")).is_err());
    }
}
