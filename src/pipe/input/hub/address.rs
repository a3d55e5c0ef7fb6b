//! How a pipeline names a repository of the hub: `owner/name@revision`, `hf://datasets/owner/name@revision/path`.
//!
//! Which files of a repository a path of a pipeline means.

use hf_hub::{Repo, RepoType};

const DATASETS: &str = "hf://datasets/";
const DEFAULT_REVISION: &str = "main";

/// A repository of models or of data, at a branch, tag or commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// `owner/name`.
    pub id: String,
    pub revision: String,
    pub is_data: bool,
}

/// Files of a repository of data: a file, a pattern such as `data/train-*.parquet`, or a folder; the empty path is all of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataAddress {
    pub repository: Address,
    pub path: String,
}

impl Address {
    /// `owner/name` or `owner/name@revision`, of a model. Nothing for any other text, which is the path of a folder.
    pub fn of_model(text: &str) -> Option<Self> {
        Self::parse(text, false)
    }

    fn parse(text: &str, is_data: bool) -> Option<Self> {
        let (id, revision) = text.split_once('@').unwrap_or((text, DEFAULT_REVISION));
        let (owner, name) = id.split_once('/')?;
        (is_name(owner) && is_name(name) && is_revision(revision)).then(|| Self {
            id: id.to_owned(),
            revision: revision.to_owned(),
            is_data,
        })
    }

    /// The repository as `hf-hub` knows it, for the names of folders and addresses.
    pub fn repo(&self, revision: &str) -> Repo {
        let kind = if self.is_data { RepoType::Dataset } else { RepoType::Model };
        Repo::with_revision(self.id.clone(), kind, revision.to_owned())
    }

    /// Its path on the hub's site: `owner/name`, `datasets/owner/name`.
    pub fn name(&self) -> String {
        self.repo(&self.revision).url()
    }

    pub fn kind(&self) -> &'static str {
        if self.is_data { "data set" } else { "model" }
    }

    /// The command that fetches it with the hub's own tool.
    pub fn download_command(&self) -> String {
        format!("hf download {}{}", if self.is_data { "--repo-type dataset " } else { "" }, self.id)
    }
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.revision.as_str() {
            DEFAULT_REVISION => f.write_str(&self.id),
            revision => write!(f, "{}@{revision}", self.id),
        }
    }
}

impl DataAddress {
    /// Whether `text` begins as the address of data on the hub does.
    pub fn is_meant(text: &str) -> bool {
        text.starts_with("hf://")
    }

    /// `hf://datasets/owner/name[@revision][/path]`. A slash in the revision is written as `%2F`.
    pub fn parse(text: &str) -> Option<Self> {
        let rest = text.strip_prefix(DATASETS)?;
        let (owner, rest) = rest.split_once('/')?;
        let (name, path) = rest.split_once('/').unwrap_or((rest, ""));
        let path = path.trim_end_matches('/');
        let repository = Address::parse(&format!("{owner}/{}", name.replace("%2F", "/")), true)?;
        (path.is_empty() || is_inside(path)).then(|| Self { repository, path: path.to_owned() })
    }
}

/// Whether a path of a repository stays below the folder that it is put into.
pub fn is_inside(path: &str) -> bool {
    !path.contains(['\\', '\0']) && path.split('/').all(|part| !matches!(part, "" | "." | ".."))
}

/// Whether `text` is the full name of a commit.
pub fn is_commit(text: &str) -> bool {
    text.len() == 40 && is_hex(text)
}

pub fn is_hex(text: &str) -> bool {
    text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

fn is_name(text: &str) -> bool {
    let allowed = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
    text.starts_with(|first: char| first.is_ascii_alphanumeric()) && text.chars().all(allowed)
}

fn is_revision(text: &str) -> bool {
    text.split('/').all(|part| is_name(part) && !part.contains(".."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_told_from_paths() {
        let cases = [
            ("google/flan-t5-xl", Some(("google/flan-t5-xl", "main"))),
            ("some-org/tiny_t5.1@v1.0", Some(("some-org/tiny_t5.1", "v1.0"))),
            ("a/b@refs/pr/1", Some(("a/b", "refs/pr/1"))),
            ("", None),
            ("t5", None),
            ("/model", None),
            ("./model", None),
            ("../model", None),
            ("a/b/c", None),
            ("a/", None),
            ("a/..", None),
            ("a/b c", None),
            ("${A}/b", None),
            ("a/b@", None),
            ("a/b@../c", None),
            ("a/b@c/../../d", None),
            ("a/b@c//d", None),
        ];
        for (text, want) in cases {
            let found = Address::of_model(text);
            let found = found.as_ref().map(|address| (address.id.as_str(), address.revision.as_str()));
            assert_eq!(found, want, "{text}");
        }
    }

    #[test]
    fn addresses_of_data() {
        let cases = [
            ("hf://datasets/o/n/data/train-*.parquet", Some(("datasets/o/n", "main", "data/train-*.parquet"))),
            ("hf://datasets/o/n@v2/a.jsonl", Some(("datasets/o/n", "v2", "a.jsonl"))),
            ("hf://datasets/o/n@refs%2Fconvert%2Fparquet/d/", Some(("datasets/o/n", "refs/convert/parquet", "d"))),
            ("hf://datasets/o/n", Some(("datasets/o/n", "main", ""))),
            ("hf://datasets/o", None),
            ("hf://o/n/a.jsonl", None),
            ("hf://datasets/o/n/../a.jsonl", None),
            ("hf://datasets/o/n//a.jsonl", None),
            ("data/train.jsonl", None),
        ];
        for (text, want) in cases {
            let found = DataAddress::parse(text).map(|data| {
                let name = data.repository.name();
                (name, data.repository.revision, data.path)
            });
            let want = want.map(|(name, revision, path)| (name.to_owned(), revision.to_owned(), path.to_owned()));
            assert_eq!(found, want, "{text}");
        }
    }

    #[test]
    fn addresses_are_written_as_they_are_read() {
        for text in ["a/b", "a/b@v1"] {
            assert_eq!(Address::of_model(text).unwrap().to_string(), text);
        }
    }
}

/// Whether `path` is more than the name of one file or folder.
pub fn is_pattern(path: &str) -> bool {
    path.contains(['*', '?'])
}

/// Whether `path` matches: `*` is any text without a slash, `?` one letter of it, `**` any text.
pub fn matches(pattern: &str, path: &str) -> bool {
    let (mut letters, mut rest) = (pattern.chars(), path.chars());
    loop {
        let before = letters.clone();
        match letters.next() {
            None => return rest.next().is_none(),
            Some('*') => {
                let deep = before.as_str().starts_with("**");
                let after = before.as_str().trim_start_matches('*');
                // `a/**/b` is also a/b.
                let after_slash = after.strip_prefix('/').filter(|_| deep);
                if after_slash.is_some_and(|after| matches(after, rest.as_str())) {
                    return true;
                }
                return star(after, rest.as_str(), deep);
            }
            Some('?') => match rest.next() {
                Some(letter) if letter != '/' => {}
                _ => return false,
            },
            Some(letter) => {
                if rest.next() != Some(letter) {
                    return false;
                }
            }
        }
    }
}

fn star(after: &str, path: &str, deep: bool) -> bool {
    let end = if deep { path.len() } else { path.find('/').unwrap_or(path.len()) };
    let mut places = path.char_indices().map(|(at, _)| at).chain([path.len()]).take_while(|at| *at <= end);
    places.any(|at| matches(after, &path[at..]))
}

/// Whether `path` lies in `folder` itself, not in a folder of it. The empty folder is the whole repository.
pub fn is_in(folder: &str, path: &str) -> bool {
    let inside = match folder {
        "" => Some(path),
        _ => path.strip_prefix(folder).and_then(|rest| rest.strip_prefix('/')),
    };
    inside.is_some_and(|name| !name.is_empty() && !name.contains('/'))
}

#[cfg(test)]
mod pattern_tests {
    use super::*;

    #[test]
    fn patterns() {
        let cases = [
            ("data/train-*.parquet", "data/train-00000-of-00002.parquet", true),
            ("data/train-*.parquet", "data/eval-00000.parquet", false),
            ("data/train-*.parquet", "data/train-a/b.parquet", false),
            ("*.jsonl", "a.jsonl", true),
            ("*.jsonl", "a/b.jsonl", false),
            ("**.jsonl", "a/b.jsonl", true),
            ("a/**/b.csv", "a/b.csv", true),
            ("a/**/b.csv", "a/x/y/b.csv", true),
            ("a/**/b.csv", "a/xb.csv", false),
            ("part-?.csv", "part-1.csv", true),
            ("part-?.csv", "part-12.csv", false),
            ("part?x.csv", "part/x.csv", false),
            ("*", "", true),
            ("é*", "étude.csv", true),
        ];
        for (pattern, path, want) in cases {
            assert_eq!(matches(pattern, path), want, "{pattern} {path}");
        }
    }

    #[test]
    fn folders_without_theirs() {
        let cases = [
            ("data", "data/a.csv", true),
            ("data", "data/b/a.csv", false),
            ("data", "database/a.csv", false),
            ("", "a.csv", true),
            ("", "b/a.csv", false),
        ];
        for (folder, path, want) in cases {
            assert_eq!(is_in(folder, path), want, "{folder} {path}");
        }
    }
}
