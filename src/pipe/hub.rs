//! Models of the Hugging Face hub, in the cache that its own tools fill. Never asks the network.

use std::path::{Path, PathBuf};

use pipe_spec::Variables;

use crate::run::absolute;

/// The cache: a folder `models--owner--name` for each model.
pub struct Hub {
    cache: PathBuf,
}

/// One version of a model. Its files are links to what lies elsewhere in the model's folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// `models--owner--name`, which holds all of it.
    pub repository: PathBuf,
    /// The version's folder, relative to `repository`.
    pub path: PathBuf,
}

impl Hub {
    /// Where the hub's own tools keep their cache.
    pub fn from_environment(known: &Variables) -> Self {
        let set = |name: &str| known.get(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let cache = set("HF_HUB_CACHE")
            .or_else(|| Some(set("HF_HOME")?.join("hub")))
            .or_else(|| Some(set("XDG_CACHE_HOME")?.join("huggingface/hub")))
            .unwrap_or_else(|| set("HOME").unwrap_or_default().join(".cache/huggingface/hub"));
        Self { cache: absolute(&cache) }
    }

    /// The newest version that was fetched of the model `id`, or what is missing and how to get it.
    pub fn find(&self, id: &str) -> Result<Snapshot, String> {
        let repository = self.cache.join(format!("models--{}", id.replace('/', "--")));
        if !repository.is_dir() {
            let cache = self.cache.display();
            return Err(format!("nor is it in the hub cache {cache}; `hf download {id}` would fetch it"));
        }
        let incomplete = || format!("its copy in {} is incomplete; `hf download {id}` mends it", repository.display());
        let commit = std::fs::read_to_string(repository.join("refs/main")).map_err(|_| incomplete())?;
        let commit = Some(commit.trim()).filter(|commit| is_name(commit)).ok_or_else(incomplete)?;
        let path = Path::new("snapshots").join(commit);
        if repository.join(&path).is_dir() { Ok(Snapshot { repository, path }) } else { Err(incomplete()) }
    }
}

/// Whether `text` has the form of a hub id: owner/name.
pub fn is_id(text: &str) -> bool {
    text.split_once('/').is_some_and(|(owner, name)| is_name(owner) && is_name(name))
}

fn is_name(text: &str) -> bool {
    let allowed = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
    text.starts_with(|first: char| first.is_ascii_alphanumeric()) && text.chars().all(allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variables(pairs: &[(&str, &str)]) -> Variables {
        Variables::new(None, pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())))
    }

    #[test]
    fn the_cache_is_where_the_hub_says() {
        let cases: [(&[(&str, &str)], &str); 5] = [
            (&[("HF_HUB_CACHE", "/a"), ("HF_HOME", "/b"), ("HOME", "/h")], "/a"),
            (&[("HF_HUB_CACHE", ""), ("HF_HOME", "/b"), ("HOME", "/h")], "/b/hub"),
            (&[("HF_HOME", "/b"), ("XDG_CACHE_HOME", "/x")], "/b/hub"),
            (&[("XDG_CACHE_HOME", "/x"), ("HOME", "/h")], "/x/huggingface/hub"),
            (&[("HOME", "/h")], "/h/.cache/huggingface/hub"),
        ];
        for (pairs, want) in cases {
            assert_eq!(Hub::from_environment(&variables(pairs)).cache, Path::new(want), "{pairs:?}");
        }
    }

    #[test]
    fn ids_are_told_from_paths() {
        for id in ["google/flan-t5-xl", "some-org/tiny_t5.1", "a/b"] {
            assert!(is_id(id), "{id}");
        }
        for path in ["", "t5", "/model", "./model", "../model", "a/b/c", "a/", "a/..", "a/b c", "${A}/b"] {
            assert!(!is_id(path), "{path}");
        }
    }

    #[test]
    fn the_version_that_main_names_is_found() {
        let cache = std::env::temp_dir().join(format!("pipe-hub-{}", std::process::id()));
        let repository = cache.join("models--some-org--tiny");
        let hub = Hub { cache: cache.clone() };
        let missing = hub.find("some-org/tiny").unwrap_err();
        assert!(
            missing.contains(cache.to_str().unwrap()) && missing.contains("hf download some-org/tiny"),
            "{missing}"
        );

        std::fs::create_dir_all(repository.join("refs")).unwrap();
        assert!(hub.find("some-org/tiny").unwrap_err().contains("incomplete"));
        for (commit, whole) in [("0abc\n", false), ("../..", false), ("1def", true)] {
            std::fs::write(repository.join("refs/main"), commit).unwrap();
            std::fs::create_dir_all(repository.join("snapshots/1def")).unwrap();
            assert_eq!(hub.find("some-org/tiny").is_ok(), whole, "{commit}");
        }
        let want = Snapshot { repository, path: "snapshots/1def".into() };
        assert_eq!(hub.find("some-org/tiny"), Ok(want));
        std::fs::remove_dir_all(cache).unwrap();
    }
}
