//! How a pipeline names a repository of the hub: `owner/name@revision`, `hf://datasets/owner/name@revision/path`; and the
//! names that the hub and its cache have for it. A folder of a bucket is such a repository too: `s3://bucket/folder`.
//!
//! The environment variables of the hub's own tools: cache, endpoint and token.

use std::path::PathBuf;

use pipe_spec::Variables;
use pipe_spec::bucket::{BucketAddress, Scheme};

use crate::system::files::{Pattern, absolute};

const DATASETS: &str = "hf://datasets/";
const DEFAULT_REVISION: &str = "main";

/// A repository of models or of data, at a branch, tag or commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// `owner/name`, or the address of a folder of a bucket.
    pub id: String,
    /// In a bucket, the objects that are meant: a name, a folder or a pattern; all of a model.
    pub revision: String,
    pub is_data: bool,
    /// Where it is no repository of the hub.
    pub bucket: Option<BucketAddress>,
}

/// Files of a repository of data: a file, a pattern such as `data/train-*.parquet`, or a folder; the empty path is all of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataAddress {
    pub repository: Address,
    pub path: String,
}

impl Address {
    /// `owner/name`, `owner/name@revision` or a folder of a bucket, of a model. Nothing for any other text, which is the path of a
    /// folder.
    pub fn of_model(text: &str) -> Option<Self> {
        let of_bucket = || BucketAddress::parse(text).map(|folder| Self::of_bucket(folder, String::new(), false));
        Self::parse(text, false).or_else(of_bucket)
    }

    fn of_bucket(folder: BucketAddress, revision: String, is_data: bool) -> Self {
        Self { id: folder.to_string(), revision, is_data, bucket: Some(folder) }
    }

    fn parse(text: &str, is_data: bool) -> Option<Self> {
        let (id, revision) = text.split_once('@').unwrap_or((text, DEFAULT_REVISION));
        let (owner, name) = id.split_once('/')?;
        (is_name(owner) && is_name(name) && is_revision(revision)).then(|| Self {
            id: id.to_owned(),
            revision: revision.to_owned(),
            is_data,
            bucket: None,
        })
    }

    /// The path of the repository on the hub's site: `owner/name`, `datasets/owner/name`; or the folder of a bucket.
    pub fn name(&self) -> String {
        if self.is_data && self.bucket.is_none() { format!("datasets/{}", self.id) } else { self.id.clone() }
    }

    /// The folder of the repository in a cache: `models--owner--name`.
    pub fn folder_name(&self) -> String {
        if let Some(folder) = &self.bucket {
            return format!("{}--{}--{}", folder.scheme.name(), folder.bucket, short_hash(&self.id));
        }
        format!("{}--{}", self.group(), self.id.replace('/', "--"))
    }

    /// The path of one revision below the hub's `api/`.
    pub fn api_path(&self, revision: &str) -> String {
        format!("{}/{}/revision/{}", self.group(), self.id, revision.replace('/', "%2F"))
    }

    fn group(&self) -> &'static str {
        if self.is_data { "datasets" } else { "models" }
    }

    /// The word for the repository in messages.
    pub fn kind(&self) -> &'static str {
        if self.is_data { "data set" } else { "model" }
    }

    /// The command that fetches it into the cache.
    pub fn download_command(&self) -> String {
        match &self.bucket {
            None => format!("hf download {}{}", if self.is_data { "--repo-type dataset " } else { "" }, self.id),
            Some(_) => "`pipe run`, into the same PIPE_CACHE".to_owned(),
        }
    }

    /// The command that fetches all of it into a folder.
    pub fn copy_command(&self) -> String {
        match self.bucket.as_ref().map(|folder| folder.scheme) {
            None => format!("{} --local-dir DIR", self.download_command()),
            Some(Scheme::S3) => format!("aws s3 sync {} DIR", self.id),
            Some(Scheme::Gs) => format!("gcloud storage rsync -r {} DIR", self.id),
            Some(Scheme::Az) => "azcopy copy --recursive".to_owned(),
        }
    }

    /// The name of a file for what is known of the revision.
    pub fn reference_name(&self) -> String {
        if self.bucket.is_some() { short_hash(&self.revision) } else { self.revision.clone() }
    }
}

fn short_hash(text: &str) -> String {
    blake3::hash(text.as_bytes()).to_hex()[..16].to_owned()
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.revision.as_str() {
            "" => f.write_str(&self.id),
            revision if self.bucket.is_some() => write!(f, "{}/{revision}", self.id.trim_end_matches('/')),
            DEFAULT_REVISION => f.write_str(&self.id),
            revision => write!(f, "{}@{revision}", self.id),
        }
    }
}

impl DataAddress {
    /// Whether `text` begins as the address of data on the hub or in a bucket does.
    pub fn is_meant(text: &str) -> bool {
        text.starts_with("hf://") || BucketAddress::is_meant(text)
    }

    /// The forms that are allowed where `text` is meant as one of them.
    pub fn allowed(text: &str) -> &'static str {
        match BucketAddress::is_meant(text) {
            true => BucketAddress::ALLOWED,
            false => "hf://datasets/owner/name/path or hf://datasets/owner/name@revision/path, without variables",
        }
    }

    /// The folder before the last part, or before the first pattern, and what is meant in it.
    fn of_bucket(text: &str) -> Option<Self> {
        let address = BucketAddress::parse(text)?;
        let parts: Vec<&str> = address.path.split('/').collect();
        let is_plain = |part: &&&str| !Pattern::is_meant(part);
        let length = parts.iter().take_while(is_plain).count().min(parts.len() - 1);
        let (folder, path) = (address.at(&parts[..length].join("/")), parts[length..].join("/"));
        Some(Self { repository: Address::of_bucket(folder, path.clone(), true), path })
    }

    /// `hf://datasets/owner/name[@revision][/path]`. A slash in the revision is written as `%2F`.
    pub fn parse(text: &str) -> Option<Self> {
        if BucketAddress::is_meant(text) {
            return Self::of_bucket(text);
        }
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

/// Whether `path` lies in `folder` itself, not in a folder of it. The empty folder is the whole repository.
pub fn is_in(folder: &str, path: &str) -> bool {
    let inside = match folder {
        "" => Some(path),
        _ => path.strip_prefix(folder).and_then(|rest| rest.strip_prefix('/')),
    };
    inside.is_some_and(|name| !name.is_empty() && !name.contains('/'))
}

const ENDPOINT: &str = "https://huggingface.co";

pub struct Settings {
    /// A folder for each repository.
    pub cache: PathBuf,
    /// Without a slash at its end.
    pub endpoint: String,
    pub token: Option<Token>,
    /// Which variable forbids the network.
    pub offline: Option<&'static str>,
}

/// A secret. It is sent to the hub and printed nowhere.
#[derive(Clone)]
pub struct Token(String);

impl Token {
    pub fn authorization(&self) -> String {
        format!("Bearer {}", self.0)
    }
}

impl Settings {
    pub fn read(known: &Variables) -> Self {
        let set = |name: &str| known.get(name).map(str::trim).filter(|value| !value.is_empty());
        let user = set("HOME").map(PathBuf::from).unwrap_or_default();
        let path = |name: &str| {
            let text = set(name)?;
            Some(text.strip_prefix("~/").map_or_else(|| PathBuf::from(text), |rest| user.join(rest)))
        };
        let home = path("HF_HOME")
            .or_else(|| Some(path("XDG_CACHE_HOME")?.join("huggingface")))
            .unwrap_or_else(|| user.join(".cache/huggingface"));
        let cache = path("HF_HUB_CACHE").or_else(|| path("HUGGINGFACE_HUB_CACHE")).unwrap_or_else(|| home.join("hub"));
        let is_on = |name: &&str| set(name).is_some_and(is_true);
        // Where a file of the folder chooses the hub, that hub gets a token of that file, and none of the user's own.
        let is_foreign = known.is_from_file("HF_ENDPOINT");
        let token = || {
            if is_foreign {
                return set("HF_TOKEN").filter(|_| known.is_from_file("HF_TOKEN")).map(str::to_owned);
            }
            let file = path("HF_TOKEN_PATH").unwrap_or_else(|| home.join("token"));
            let stored = || std::fs::read_to_string(file).ok().filter(|_| !is_on(&"HF_HUB_DISABLE_IMPLICIT_TOKEN"));
            set("HF_TOKEN").or_else(|| set("HUGGING_FACE_HUB_TOKEN")).map(str::to_owned).or_else(stored)
        };
        // A token must be valid in a header.
        let token = token().map(|token| token.trim().to_owned());
        let token = token.filter(|token| !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_graphic()));
        Self {
            cache: absolute(&cache),
            endpoint: set("HF_ENDPOINT").unwrap_or(ENDPOINT).trim_end_matches('/').to_owned(),
            token: token.map(Token),
            offline: ["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"].into_iter().find(is_on),
        }
    }
}

fn is_true(value: &str) -> bool {
    ["1", "on", "yes", "true"].iter().any(|word| value.eq_ignore_ascii_case(word))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

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
    fn folders_of_buckets() {
        let cases = [
            ("s3://data/a/b/train.jsonl", "s3://data/a/b", "train.jsonl"),
            ("s3://data/a/b/", "s3://data/a", "b"),
            ("s3://data/train.jsonl", "s3://data", "train.jsonl"),
            ("s3://data", "s3://data", ""),
            ("gs://data/a/**/t-*.csv", "gs://data/a", "**/t-*.csv"),
            ("az://data/t-?.csv", "az://data", "t-?.csv"),
        ];
        for (text, folder, path) in cases {
            let found = DataAddress::parse(text).unwrap();
            assert_eq!((found.repository.name().as_str(), found.path.as_str()), (folder, path), "{text}");
            assert_eq!(found.repository.to_string(), text.trim_end_matches('/'));
        }
        let name = |text: &str| DataAddress::parse(text).unwrap().repository.folder_name();
        assert!(name("s3://data/a/b").starts_with("s3--data--") && name("s3://data/a/b") != name("s3://data/a-b/c"));
        assert_eq!(DataAddress::parse("s3://data/${X}"), None);
    }

    #[test]
    fn addresses_are_written_as_they_are_read() {
        for text in ["a/b", "a/b@v1", "s3://data/models/t5"] {
            assert_eq!(Address::of_model(text).unwrap().to_string(), text);
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

    type Pairs<'a> = &'a [(&'a str, &'a str)];

    fn settings(pairs: Pairs) -> Settings {
        let pairs = pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        Settings::read(&Variables::new(None, pairs))
    }

    #[test]
    fn the_cache_is_where_the_hub_says() {
        let cases: [(Pairs, &str); 6] = [
            (&[("HF_HUB_CACHE", "/a"), ("HF_HOME", "/b"), ("HOME", "/h")], "/a"),
            (&[("HF_HUB_CACHE", ""), ("HF_HOME", "/b"), ("HOME", "/h")], "/b/hub"),
            (&[("HF_HOME", "/b"), ("XDG_CACHE_HOME", "/x")], "/b/hub"),
            (&[("XDG_CACHE_HOME", "/x"), ("HOME", "/h")], "/x/huggingface/hub"),
            (&[("HOME", "/h")], "/h/.cache/huggingface/hub"),
            (&[("HF_HUB_CACHE", "~/c"), ("HOME", "/h")], "/h/c"),
        ];
        for (pairs, want) in cases {
            assert_eq!(settings(pairs).cache, Path::new(want), "{pairs:?}");
        }
    }

    #[test]
    fn offline_and_endpoint() {
        let found = settings(&[("HF_ENDPOINT", "https://mirror.example/"), ("HF_HUB_OFFLINE", "on")]);
        assert_eq!((found.endpoint.as_str(), found.offline), ("https://mirror.example", Some("HF_HUB_OFFLINE")));
        let found = settings(&[("HF_HUB_OFFLINE", "0"), ("HF_ENDPOINT", "")]);
        assert_eq!((found.endpoint.as_str(), found.offline), (ENDPOINT, None));
    }

    #[test]
    fn a_hub_that_a_folder_chooses_gets_no_token_of_the_user() {
        let own = |name: &str| (name.to_owned(), "own".to_owned());
        for (file, environment, want) in [
            ("HF_ENDPOINT=https://foreign.example\n", vec![own("HF_TOKEN")], None),
            ("HF_ENDPOINT=https://foreign.example\nHF_TOKEN=theirs\n", vec![], Some("Bearer theirs")),
            ("HF_ENDPOINT=https://foreign.example\nHF_TOKEN=theirs\n", vec![own("HF_TOKEN")], None),
            ("HF_ENDPOINT=https://foreign.example\n", vec![own("HF_TOKEN"), own("HF_ENDPOINT")], Some("Bearer own")),
            ("A=b\n", vec![own("HF_TOKEN")], Some("Bearer own")),
        ] {
            let found = Settings::read(&Variables::new(Some(file), environment.into_iter())).token;
            assert_eq!(found.map(|token| token.authorization()).as_deref(), want, "{file}");
        }
    }

    #[test]
    fn the_token_is_that_of_the_variable_before_that_of_the_file() {
        let folder = std::env::temp_dir().join(format!("pipe-token-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let home = folder.to_str().unwrap();
        let authorization = |pairs: Pairs| settings(pairs).token.map(|token| token.authorization());
        assert_eq!(authorization(&[("HF_HOME", home)]), None);
        std::fs::write(folder.join("token"), " stored\n").unwrap();
        let cases: [(Pairs, Option<&str>); 5] = [
            (&[("HF_HOME", home)], Some("Bearer stored")),
            (&[("HF_HOME", home), ("HF_TOKEN", "own")], Some("Bearer own")),
            (&[("HF_HOME", "/nowhere"), ("HF_TOKEN_PATH", &format!("{home}/token"))], Some("Bearer stored")),
            (&[("HF_HOME", home), ("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1")], None),
            (&[("HF_TOKEN", "two\nlines")], None),
        ];
        for (pairs, want) in cases {
            assert_eq!(authorization(pairs).as_deref(), want, "{pairs:?}");
        }
        std::fs::remove_dir_all(folder).unwrap();
    }
}
