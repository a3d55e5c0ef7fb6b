//! The files of an image, from an archive into a folder that belongs to the user.

use std::fs::{self, Permissions};
use std::io::{self, Read};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Component, Path, PathBuf};

use tar::{Archive, Entry, EntryType};

use crate::system::files::inside;

/// Writes the files of a tar archive into `folder`, and nothing beside it.
pub fn unpack(archive: impl Read, folder: &Path) -> io::Result<()> {
    for entry in Archive::new(archive).entries()? {
        let mut entry = entry?;
        let kind = entry.header().entry_type();
        // Only root can make devices, and what runs a container gives it its own.
        if kind.is_block_special() || kind.is_character_special() || kind.is_fifo() {
            continue;
        }
        if kind.is_hard_link() && unpack_linked_link(&entry, folder)? {
            continue;
        }
        let path = entry.path()?.into_owned();
        if !entry.unpack_in(folder)? {
            return Err(io::Error::other(format!("{} leads out of the image", path.display())));
        }
        // The owner is the user and no longer root: he must be able to read all of it, and to remove it.
        match kind {
            EntryType::Directory => allow(&below(folder, &path), 0o700)?,
            EntryType::Regular => allow(&below(folder, &path), 0o400)?,
            _ => {}
        }
    }
    Ok(())
}

/// A second name for a symbolic link. `tar` would follow the link to see whether it stays in the folder.
fn unpack_linked_link(entry: &Entry<'_, impl Read>, folder: &Path) -> io::Result<bool> {
    let Some(first) = entry.link_name()? else { return Ok(false) };
    let Ok(target) = fs::read_link(unresolved(folder, &first)?) else { return Ok(false) };
    let link = unresolved(folder, &entry.path()?)?;
    if let Some(parent) = link.parent() {
        fs::create_dir_all(parent)?;
    }
    symlink(target, link).map(|()| true)
}

/// Where a file lies in the folder, which may be a link itself.
fn unresolved(folder: &Path, path: &Path) -> io::Result<PathBuf> {
    let parent = inside(folder, path.parent().unwrap_or(Path::new("")))?;
    Ok(parent.join(path.file_name().unwrap_or_default()))
}

fn below(folder: &Path, path: &Path) -> PathBuf {
    let named = path.components().filter(|part| matches!(part, Component::Normal(_)));
    folder.join(named.collect::<PathBuf>())
}

fn allow(path: &Path, bits: u32) -> io::Result<()> {
    let mode = fs::metadata(path)?.permissions().mode();
    if mode & bits == bits { Ok(()) } else { fs::set_permissions(path, Permissions::from_mode(mode | bits)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An archive of entries: kind, name, target of a link.
    fn archive(entries: &[(EntryType, &str, &str)]) -> Vec<u8> {
        let mut archive = tar::Builder::new(Vec::new());
        for (kind, name, target) in entries {
            let mut header = tar::Header::new_gnu();
            header.set_entry_type(*kind);
            header.set_mode(0o050);
            let content: &[u8] = if *kind == EntryType::Regular { b"content" } else { b"" };
            header.set_size(content.len() as u64);
            // As they are written: `set_path` and `set_link_name` refuse what leads out.
            header.as_gnu_mut().unwrap().name[..name.len()].copy_from_slice(name.as_bytes());
            header.as_gnu_mut().unwrap().linkname[..target.len()].copy_from_slice(target.as_bytes());
            header.set_cksum();
            archive.append(&header, content).unwrap();
        }
        archive.into_inner().unwrap()
    }

    fn unpacked(entries: &[(EntryType, &str, &str)]) -> (tempfile::TempDir, io::Result<()>) {
        let outer = tempfile::tempdir().unwrap();
        let root = outer.path().join("root");
        fs::create_dir(&root).unwrap();
        let result = unpack(&archive(entries)[..], &root);
        (outer, result)
    }

    #[test]
    fn links_are_kept_and_devices_left_out() {
        let (outer, result) = unpacked(&[
            (EntryType::Directory, "bin/", ""),
            (EntryType::Regular, "bin/tool", ""),
            (EntryType::Link, "bin/same", "bin/tool"),
            (EntryType::Symlink, "bin/link", "/etc/not/there"),
            (EntryType::Link, "more/link", "bin/link"),
            (EntryType::Char, "dev/null", ""),
            (EntryType::Block, "dev/sda", ""),
            (EntryType::Fifo, "fifo", ""),
        ]);
        result.unwrap();
        let root = outer.path().join("root");
        assert_eq!(fs::read_to_string(root.join("bin/same")).unwrap(), "content");
        for link in ["bin/link", "more/link"] {
            assert_eq!(fs::read_link(root.join(link)).unwrap(), Path::new("/etc/not/there"), "{link}");
        }
        assert!(!root.join("dev/null").exists() && !root.join("dev/sda").exists() && !root.join("fifo").exists());
        let mode = |name: &str| fs::metadata(root.join(name)).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode("bin"), mode("bin/tool")), (0o750, 0o450));
    }

    #[test]
    fn nothing_is_written_beside_the_folder() {
        for entries in [
            &[(EntryType::Regular, "../beside", "")][..],
            &[(EntryType::Symlink, "out", ".."), (EntryType::Regular, "out/beside", "")],
            &[(EntryType::Symlink, "out", "/proc/self/cwd"), (EntryType::Regular, "out/beside", "")],
            &[(EntryType::Link, "passwd", "/etc/passwd")],
            &[(EntryType::Link, "passwd", "../../../../../etc/passwd")],
        ] {
            let (outer, result) = unpacked(entries);
            assert!(result.is_err(), "{entries:?}");
            assert_eq!(fs::read_dir(outer.path()).unwrap().count(), 1, "{entries:?}");
            assert!(!outer.path().join("root/passwd").exists(), "{entries:?}");
        }
    }
}
