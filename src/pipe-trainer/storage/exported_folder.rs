//! The folder of an exported model. In a container it is a mount of its own and cannot be renamed, so files are written to a
//! folder inside it and then renamed one by one, `config.json` last: a folder without it is not complete.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use pipe_spec::model_folder::CONFIG;

use super::durable;

/// Where the files lie until all are written.
const STAGED: &str = ".new";

pub struct ExportedFolder {
    target: PathBuf,
    staged: PathBuf,
}

impl ExportedFolder {
    pub fn create(target: &Path) -> io::Result<Self> {
        let staged = target.join(STAGED);
        durable::remove_folder(&staged)?;
        fs::create_dir_all(&staged)?;
        Ok(Self { target: target.to_owned(), staged })
    }

    /// Where the file `name` is to be written.
    pub fn path(&self, name: &str) -> PathBuf {
        self.staged.join(name)
    }

    /// Puts the files in their places, instead of those that may be there.
    pub fn commit(self) -> io::Result<()> {
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.staged)? {
            names.push(entry?.file_name());
        }
        match fs::remove_file(self.target.join(CONFIG)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => File::open(&self.target)?.sync_all()?,
        }
        names.sort_by_key(|name| name == CONFIG);
        for name in names {
            if name == CONFIG {
                File::open(&self.target)?.sync_all()?;
            }
            fs::rename(self.staged.join(&name), self.target.join(&name))?;
        }
        File::open(&self.target)?.sync_all()?;
        // In a container the folder around it is not to be written.
        let _ = durable::sync_parent(&self.target);
        Ok(())
    }
}

impl Drop for ExportedFolder {
    fn drop(&mut self) {
        let _ = durable::remove_folder(&self.staged);
        // An empty folder would look like a model.
        let _ = fs::remove_dir(&self.target);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_is_complete_or_has_no_config() {
        let root = std::env::temp_dir().join(format!("pipe-exported-{}", std::process::id()));
        let target = root.join("model");
        let abandoned = ExportedFolder::create(&target).unwrap();
        fs::write(abandoned.path(CONFIG), "1").unwrap();
        drop(abandoned);
        assert!(!target.exists());
        for content in ["first", "second"] {
            let exported = ExportedFolder::create(&target).unwrap();
            fs::write(exported.path("model.safetensors"), content).unwrap();
            fs::write(exported.path(CONFIG), content).unwrap();
            exported.commit().unwrap();
            assert_eq!(fs::read_to_string(target.join(CONFIG)).unwrap(), content);
            assert_eq!(fs::read_dir(&target).unwrap().count(), 2);
        }
        // Weights that cannot be put in place: the older config does not stand for them.
        let broken = ExportedFolder::create(&target).unwrap();
        fs::write(broken.path(CONFIG), "third").unwrap();
        fs::write(broken.path("model.safetensors"), "third").unwrap();
        fs::remove_file(target.join("model.safetensors")).unwrap();
        fs::create_dir_all(target.join("model.safetensors/in the way")).unwrap();
        assert!(broken.commit().is_err());
        assert!(!target.join(CONFIG).exists());
        fs::remove_dir_all(root).unwrap();
    }
}
