//! How a pipeline names objects of a bucket: `s3://bucket/path`, `gs://bucket/path`, `az://container/path`.

/// The variables that the keys of buckets are read from. Trainers do not get them.
pub const SECRET_VARIABLES: [&str; 12] = [
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "GOOGLE_SERVICE_ACCOUNT_KEY",
    "AZURE_STORAGE_ACCOUNT_KEY",
    "AZURE_STORAGE_ACCESS_KEY",
    "AZURE_STORAGE_KEY",
    "AZURE_STORAGE_SAS_TOKEN",
    "AZURE_STORAGE_SAS_KEY",
    "AZURE_STORAGE_CONNECTION_STRING",
    "AZURE_STORAGE_CLIENT_SECRET",
    "AZURE_CLIENT_SECRET",
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    S3,
    Gs,
    Az,
}

impl Scheme {
    pub const ALL: [Self; 3] = [Self::S3, Self::Gs, Self::Az];

    pub fn name(self) -> &'static str {
        match self {
            Self::S3 => "s3",
            Self::Gs => "gs",
            Self::Az => "az",
        }
    }

    /// The service, for messages.
    pub fn service(self) -> &'static str {
        match self {
            Self::S3 => "S3",
            Self::Gs => "Google Cloud Storage",
            Self::Az => "Azure Blob Storage",
        }
    }
}

/// A bucket, and a path in it without slashes at its ends; the empty path is the whole bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BucketAddress {
    pub scheme: Scheme,
    pub bucket: String,
    pub path: String,
}

impl BucketAddress {
    /// The forms that are allowed, for messages.
    pub const ALLOWED: &str = "s3://bucket/path, gs://bucket/path or az://container/path, without variables";

    /// Whether `text` begins as such an address does.
    pub fn is_meant(text: &str) -> bool {
        Self::split(text).is_some()
    }

    fn split(text: &str) -> Option<(Scheme, &str)> {
        let (name, rest) = text.split_once("://")?;
        Some((Scheme::ALL.into_iter().find(|scheme| scheme.name() == name)?, rest))
    }

    pub fn parse(text: &str) -> Option<Self> {
        let (scheme, rest) = Self::split(text)?;
        let (bucket, path) = rest.split_once('/').unwrap_or((rest, ""));
        let path = path.trim_end_matches('/');
        let allowed = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
        let is_bucket = (3..=63).contains(&bucket.len())
            && bucket.chars().all(allowed)
            && bucket.starts_with(|first: char| first.is_ascii_alphanumeric());
        let is_part = |part: &str| !matches!(part, "" | "." | "..");
        let is_path = path.is_empty() || path.split('/').all(is_part);
        let is_plain = !path.contains(['\\', '$']) && !path.contains(char::is_control);
        (is_bucket && is_path && is_plain).then(|| Self { scheme, bucket: bucket.to_owned(), path: path.to_owned() })
    }

    /// The same bucket with another path.
    pub fn at(&self, path: &str) -> Self {
        Self { path: path.to_owned(), ..self.clone() }
    }

    /// The path of `name` below this one.
    pub fn join(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_owned() } else { format!("{}/{name}", self.path) }
    }

    /// The folder that the path lies in, and its last part.
    pub fn parent(&self) -> (Self, &str) {
        let (folder, name) = self.path.rsplit_once('/').unwrap_or(("", &self.path));
        (self.at(folder), name)
    }
}

impl std::fmt::Display for BucketAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}://{}", self.scheme.name(), self.bucket)?;
        if self.path.is_empty() { Ok(()) } else { write!(f, "/{}", self.path) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        let cases = [
            ("s3://data/train.jsonl", Some(("data", "train.jsonl"))),
            ("s3://data/a b/train-*.jsonl", Some(("data", "a b/train-*.jsonl"))),
            ("gs://my_data/runs/", Some(("my_data", "runs"))),
            ("az://box", Some(("box", ""))),
            ("az://box/", Some(("box", ""))),
            ("s3://ab/x", None),
            ("s3://", None),
            ("s3:///x", None),
            ("s3://data//x", None),
            ("s3://data/../x", None),
            ("s3://data/a/./x", None),
            ("s3://${BUCKET}/x", None),
            ("s3://data/${NAME}", None),
            ("s3://key:secret@data/x", None),
            ("hf://datasets/o/n", None),
            ("data/train.jsonl", None),
        ];
        for (text, want) in cases {
            let found = BucketAddress::parse(text);
            let found = found.as_ref().map(|address| (address.bucket.as_str(), address.path.as_str()));
            assert_eq!(found, want, "{text}");
        }
        assert!(BucketAddress::is_meant("s3://") && !BucketAddress::is_meant("s3:/x"));
    }

    #[test]
    fn paths_below_an_address() {
        let address = BucketAddress::parse("s3://data/a/b/").unwrap();
        assert_eq!((address.to_string().as_str(), address.join("c").as_str()), ("s3://data/a/b", "a/b/c"));
        let (folder, name) = address.parent();
        assert_eq!((folder.to_string().as_str(), name), ("s3://data/a", "b"));
        let root = BucketAddress::parse("s3://data/b").unwrap();
        assert_eq!((root.parent().0.to_string().as_str(), root.at("").join("c").as_str()), ("s3://data", "c"));
    }
}
