//! Buckets of S3, Google Cloud Storage and Azure: lists, reads and writes objects, and says what to do where a service refuses.
//!
//! The crate `object_store` speaks the protocols; its requests go through `connector`. `credentials` finds keys. `mirror` copies a
//! run to a bucket while it trains, `restore` brings that copy (`run_copy`) back, and `copies` shows it elsewhere. Knows nothing of
//! pipelines: `input::hub` reads data and models.

mod connector;
mod credentials;
pub mod mirror;
pub mod restore;
mod run_copy;

use std::future::Future;
use std::io::{self, Read};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use connector::{Encrypted, NoAnswer, ServerTime};
use futures_util::StreamExt;
use object_store::list::PaginatedListOptions;
use object_store::path::Path;
use object_store::{
    GetOptions, GetResult, ObjectMeta, ObjectStoreExt, PutMode, PutOptions, PutPayload, RetryConfig, UpdateVersion,
};
use pipe_spec::Variables;
use pipe_spec::bucket::{BucketAddress, Scheme};
use tokio::runtime::{Builder, Handle};

use crate::error::Error;

/// The crate tries a request again this often, and this long.
const RETRIES: usize = 3;
const RETRY_TIMEOUT: Duration = Duration::from_secs(30);

/// Pieces of a content that may wait for who reads it.
const WAITING: usize = 4;

/// The runtime of all requests, in a thread of its own: who waits for them may or may not be in one.
fn runtime() -> &'static Handle {
    static RUNTIME: OnceLock<Handle> = OnceLock::new();
    RUNTIME.get_or_init(|| {
        let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime without a system limit");
        let handle = runtime.handle().clone();
        std::thread::spawn(move || runtime.block_on(std::future::pending::<()>()));
        handle
    })
}

/// Starts a request; its answer comes over the channel.
fn start<T: Send + 'static>(
    work: impl Future<Output = object_store::Result<T>> + Send + 'static,
) -> Receiver<object_store::Result<T>> {
    let (send, receive) = std::sync::mpsc::sync_channel(1);
    runtime().spawn(async move { send.send(work.await).ok() });
    receive
}

/// The answer to a request. None comes where the crate panics, as it does for a key that no header can hold.
fn answer<T>(receive: &Receiver<object_store::Result<T>>) -> object_store::Result<T> {
    let reason = "the request could not be made; are its keys and tokens complete, each on one line?".to_owned();
    let error = object_store::Error::Generic { store: "bucket", source: Box::new(NoAnswer(reason)) };
    receive.recv().unwrap_or(Err(error))
}

fn wait<T: Send + 'static>(
    work: impl Future<Output = object_store::Result<T>> + Send + 'static,
) -> object_store::Result<T> {
    answer(&start(work))
}

#[derive(Clone)]
pub struct Bucket {
    address: BucketAddress,
    store: Arc<credentials::Store>,
}

impl std::fmt::Debug for Bucket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Bucket({})", self.address.at(""))
    }
}

/// An object as a list has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Object {
    /// Its path in the bucket.
    pub path: String,
    pub size: u64,
    /// Without quotes.
    pub etag: Option<String>,
}

impl From<ObjectMeta> for Object {
    fn from(meta: ObjectMeta) -> Self {
        Self { path: meta.location.to_string(), size: meta.size, etag: meta.e_tag }
    }
}

/// One state of an object, which a later write can ask for.
#[derive(Clone, Debug)]
pub struct Version(UpdateVersion);

/// An object that was read as a whole.
pub struct Content {
    pub bytes: Vec<u8>,
    pub version: Version,
    /// How long ago it was written, by the clock of the service.
    pub age: Option<Duration>,
}

/// The content of an object, as it comes.
pub struct Body {
    /// Whether its ETag says nothing of the content.
    pub is_encrypted: bool,
    pieces: tokio::sync::mpsc::Receiver<object_store::Result<Bytes>>,
    rest: Bytes,
}

impl Read for Body {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        while self.rest.is_empty() {
            match self.pieces.blocking_recv() {
                None => return Ok(0),
                Some(Ok(piece)) => self.rest = piece,
                Some(Err(error)) => return Err(io::Error::new(io::ErrorKind::ConnectionAborted, plain(&error))),
            }
        }
        let count = into.len().min(self.rest.len());
        into[..count].copy_from_slice(&self.rest.split_to(count));
        Ok(count)
    }
}

/// A condition for the writing of an object.
pub enum Condition {
    Always,
    /// There is none of this name.
    New,
    /// It is as it was read or written last.
    Is(Version),
}

impl Bucket {
    /// Opens the bucket of an address. Sends no request.
    pub fn open(address: &BucketAddress, known: &Variables) -> Result<Self, Failure> {
        let retry = RetryConfig { max_retries: RETRIES, retry_timeout: RETRY_TIMEOUT, ..RetryConfig::default() };
        let address = address.at("");
        match credentials::open(&address, known, retry) {
            Ok(store) => Ok(Self { address, store: Arc::new(store) }),
            Err(why) => Err(Failure::Refused(format!("{address}: {why}"))),
        }
    }

    fn path(&self, name: &str) -> Result<Path, Failure> {
        Path::parse(name).map_err(|_| Failure::Refused(format!("{} is no path of an object", self.address.at(name))))
    }

    /// The objects whose path begins with `prefix`; without `deep` those alone whose path goes on without a slash. With `most`,
    /// the first ones alone.
    pub fn list(&self, prefix: &str, deep: bool, most: Option<usize>) -> Result<Vec<Object>, Failure> {
        Ok(self.listed(prefix, deep, most)?.0)
    }

    /// The names of what has objects below it, directly below `prefix`, which ends with a slash or is empty.
    pub fn folders(&self, prefix: &str) -> Result<Vec<String>, Failure> {
        let (_, found) = self.listed(prefix, false, None)?;
        Ok(found.iter().filter_map(|folder| folder.filename().map(str::to_owned)).collect())
    }

    /// Objects and folders.
    fn listed(&self, prefix: &str, deep: bool, most: Option<usize>) -> Result<(Vec<Object>, Vec<Path>), Failure> {
        let (store, text) = (self.store.clone(), prefix.to_owned());
        let found = wait(async move {
            let (mut objects, mut folders, mut page_token) = (Vec::new(), Vec::new(), None);
            loop {
                let delimiter = (!deep).then(|| "/".into());
                let options = PaginatedListOptions { delimiter, page_token, max_keys: most, ..Default::default() };
                let prefix = Some(text.as_str()).filter(|prefix| !prefix.is_empty());
                let page = store.lists.list_paginated(prefix, options).await?;
                objects.extend(page.result.objects.into_iter().map(Object::from));
                folders.extend(page.result.common_prefixes);
                page_token = page.page_token;
                if page_token.is_none() || most.is_some() {
                    return Ok((objects, folders));
                }
            }
        });
        found.map_err(|error| self.failure(&error, prefix))
    }

    /// The object of this path, where the bucket has it.
    pub fn find(&self, path: &str) -> Result<Option<Object>, Failure> {
        let (store, at) = (self.store.clone(), self.path(path)?);
        match wait(async move { store.objects.head(&at).await }) {
            Ok(meta) => Ok(Some(meta.into())),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(self.failure(&error, path)),
        }
    }

    /// The content of an object from byte `from` on, if it still has this ETag.
    pub fn get(&self, path: &str, from: u64, etag: Option<&str>) -> Result<Body, Failure> {
        let (store, at) = (self.store.clone(), self.path(path)?);
        let mut options = GetOptions::default().with_if_match(etag.map(|etag| format!("\"{etag}\"")));
        if from > 0 {
            options = options.with_range(Some(from..));
        }
        let got = wait(async move { store.objects.get_opts(&at, options).await });
        let got = got.map_err(|error| self.failure(&error, path))?;
        let is_encrypted = got.extensions.get::<Encrypted>().is_some();
        let (send, pieces) = tokio::sync::mpsc::channel(WAITING);
        let mut stream = got.into_stream();
        runtime().spawn(async move {
            while let Some(piece) = stream.next().await {
                let is_broken = piece.is_err();
                if send.send(piece).await.is_err() || is_broken {
                    return;
                }
            }
        });
        Ok(Body { is_encrypted, pieces, rest: Bytes::new() })
    }

    /// All of an object that is no larger than `limit`; nothing where the bucket does not have it.
    pub fn read(&self, path: &str, limit: u64) -> Result<Option<Content>, Failure> {
        let (store, at) = (self.store.clone(), self.path(path)?);
        let read = async move {
            let got = store.objects.get_opts(&at, GetOptions::default()).await?;
            let (age, version) = (age(&got), Version(version(&got.meta)));
            if got.meta.size > limit {
                return Ok(None);
            }
            got.bytes().await.map(|bytes| Some(Content { bytes: bytes.into(), version, age }))
        };
        match wait(read) {
            Ok(Some(content)) => Ok(Some(content)),
            Ok(None) => Err(Failure::Refused(format!("{} is larger than {limit} bytes", self.address.at(path)))),
            Err(error @ object_store::Error::NotFound { .. }) if !ServiceAnswer::read(&error).is_of_bucket() => {
                Ok(None)
            }
            Err(error) => Err(self.failure(&error, path)),
        }
    }

    pub fn put(&self, path: &str, bytes: Vec<u8>, condition: Condition) -> Result<Version, Failure> {
        let (store, at) = (self.store.clone(), self.path(path)?);
        let mode = match condition {
            Condition::Always => PutMode::Overwrite,
            Condition::New => PutMode::Create,
            Condition::Is(version) => PutMode::Update(version.0),
        };
        let options = PutOptions { mode, ..PutOptions::default() };
        let put = wait(async move { store.objects.put_opts(&at, bytes.into(), options).await });
        let put = put.map_err(|error| self.failure(&error, path))?;
        Ok(Version(UpdateVersion { e_tag: put.e_tag, version: put.version }))
    }

    /// Writes an object in parts of `part` bytes, which `next` fills. It is there as a whole or not at all.
    pub fn upload<E: From<Failure> + Send + 'static>(
        &self,
        path: &str,
        part: usize,
        mut next: impl FnMut(&mut Vec<u8>, usize) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut first = Vec::new();
        next(&mut first, part)?;
        if first.len() < part {
            return Ok(self.put(path, first, Condition::Always).map(drop)?);
        }
        let (store, at) = (self.store.clone(), self.path(path)?);
        let begun = wait(async move { store.objects.put_multipart(&at).await });
        let mut upload = begun.map_err(|error| self.failure(&error, path))?;
        let mut bytes = first;
        let sent = loop {
            if bytes.is_empty() {
                break Ok(());
            }
            let sending = start(upload.put_part(PutPayload::from(std::mem::take(&mut bytes))));
            // The next part is read while this one is on its way.
            let read = next(&mut bytes, part);
            let sent = answer(&sending);
            if let Err(error) = read.and_then(|()| Ok(sent.map_err(|error| self.failure(&error, path))?)) {
                break Err(error);
            }
        };
        if let Err(error) = sent {
            wait(async move { upload.abort().await }).ok();
            return Err(error);
        }
        let ended = wait(async move { upload.complete().await });
        Ok(ended.map(drop).map_err(|error| self.failure(&error, path))?)
    }

    /// Removes objects. One that is not there is fine.
    pub fn remove(&self, paths: &[String]) -> Result<(), Failure> {
        for path in paths {
            let (store, at) = (self.store.clone(), self.path(path)?);
            match wait(async move { store.objects.delete(&at).await }) {
                Ok(()) | Err(object_store::Error::NotFound { .. }) => {}
                Err(error) => return Err(self.failure(&error, path)),
            }
        }
        Ok(())
    }

    /// The meaning of a failed request for `path`.
    fn failure(&self, error: &object_store::Error, path: &str) -> Failure {
        let answer = ServiceAnswer::read(error);
        let what = self.address.at(path);
        let bucket = self.address.at("");
        let scheme = self.address.scheme;
        match answer.code.as_str() {
            "NoSuchBucket" | "ContainerNotFound" => {
                return Failure::Missing(format!("there is no bucket {bucket}: check its name, and {}", place(scheme)));
            }
            "InvalidAccessKeyId" => {
                return Failure::Refused(format!(
                    "{what}: {} does not know the access key: check AWS_ACCESS_KEY_ID or the profile",
                    scheme.service()
                ));
            }
            "SignatureDoesNotMatch" => {
                let text =
                    "the secret key does not belong to the access key: check AWS_SECRET_ACCESS_KEY or the profile";
                return Failure::Refused(format!("{what}: {text}"));
            }
            "ExpiredToken" | "InvalidToken" | "TokenRefreshRequired" => {
                return Failure::Refused(format!("{what}: the keys have expired: log in again, and set the new ones"));
            }
            "RequestTimeTooSkewed" | "RequestExpired" => {
                let text = "the clock of this machine is off, so that its requests are refused: set it (`timedatectl`), and try again";
                return Failure::Refused(format!("{what}: {text}"));
            }
            "PermanentRedirect" | "AuthorizationHeaderMalformed" | "IllegalLocationConstraintException" => {
                return Failure::Refused(format!("{what}: the bucket is in another region: set AWS_REGION to it"));
            }
            _ => {}
        }
        match (error, answer.status) {
            (object_store::Error::Precondition { .. } | object_store::Error::AlreadyExists { .. }, _)
            | (_, Some(409 | 412)) => Failure::Changed(format!("{what} has changed")),
            (object_store::Error::NotFound { .. }, _) => Failure::Missing(format!("there is no {what}")),
            (_, Some(401 | 403)) => {
                Failure::Refused(format!("{what}: your keys do not allow this: {}", rights(scheme)))
            }
            (_, Some(301 | 307 | 400)) if scheme == Scheme::S3 && answer.code.is_empty() => {
                Failure::Refused(format!("{what}: {} refuses the request: check {}", scheme.service(), place(scheme)))
            }
            (_, Some(status)) if status < 500 && status != 429 && status != 408 => {
                Failure::Refused(format!("{what}: {} answered {status} {}", scheme.service(), answer.code))
            }
            _ => Failure::Unavailable(format!("{what}: {}", plain(error))),
        }
    }
}

/// The settings that decide where a bucket is looked for.
fn place(scheme: Scheme) -> &'static str {
    match scheme {
        Scheme::S3 => "AWS_REGION and AWS_ENDPOINT_URL",
        Scheme::Gs => "the project of your keys",
        Scheme::Az => "AZURE_STORAGE_ACCOUNT",
    }
}

fn rights(scheme: Scheme) -> &'static str {
    match scheme {
        Scheme::S3 => "reading needs s3:ListBucket and s3:GetObject, save.to s3:PutObject and s3:DeleteObject as well",
        Scheme::Gs => "reading needs the role Storage Object Viewer, save.to Storage Object User",
        Scheme::Az => "reading needs the role Storage Blob Data Reader, save.to Storage Blob Data Contributor",
    }
}

fn version(meta: &ObjectMeta) -> UpdateVersion {
    UpdateVersion { e_tag: meta.e_tag.clone(), version: meta.version.clone() }
}

fn age(got: &GetResult) -> Option<Duration> {
    let now = got.extensions.get::<ServerTime>()?.0;
    Some(Duration::from_secs(now.saturating_sub(got.meta.last_modified.timestamp()).max(0).cast_unsigned()))
}

/// A service's own words about a request that failed.
struct ServiceAnswer {
    status: Option<u16>,
    /// A word of the service's own, such as `NoSuchBucket`.
    code: String,
}

impl ServiceAnswer {
    fn read(error: &object_store::Error) -> Self {
        let sources = std::iter::successors(std::error::Error::source(error), |error| error.source());
        let text = sources.fold(error.to_string(), |text, source| format!("{text}\n{source}"));
        let word = |text: &str| -> String { text.chars().take_while(char::is_ascii_alphanumeric).take(60).collect() };
        let after = |mark: &str| text.split_once(mark).map(|(_, rest)| rest);
        let status = after("status code: ").and_then(|rest| word(rest).parse().ok());
        // A redirect to another region without its address has no answer of the service's.
        let redirect = text.contains("redirect without LOCATION").then(|| "PermanentRedirect".to_owned());
        let code = after("<Code>").map(word).or(redirect).unwrap_or_default();
        Self { status, code }
    }

    /// Whether the whole bucket is not there.
    fn is_of_bucket(&self) -> bool {
        ["NoSuchBucket", "ContainerNotFound"].contains(&self.code.as_str())
    }
}

/// A failure without the address and without what the service answered, both of which may hold secrets.
fn plain(error: &object_store::Error) -> String {
    let mut source = std::error::Error::source(error);
    while let Some(inner) = source {
        if let Some(NoAnswer(reason)) = inner.downcast_ref() {
            return reason.clone();
        }
        source = inner.source();
    }
    let ServiceAnswer { status, code } = ServiceAnswer::read(error);
    match status {
        Some(status) => format!("it answered {status} {code}").trim_end().to_owned(),
        None => "its answer cannot be used".to_owned(),
    }
}

/// Why something cannot be done with a bucket, as a sentence for a person.
#[derive(Clone, Debug)]
pub enum Failure {
    /// There is no such bucket or object.
    Missing(String),
    /// Somebody else has written the object meanwhile.
    Changed(String),
    /// Another try would not help.
    Refused(String),
    /// It may succeed later.
    Unavailable(String),
}

impl Failure {
    pub fn said(&self) -> &str {
        match self {
            Self::Missing(said) | Self::Changed(said) | Self::Refused(said) | Self::Unavailable(said) => said,
        }
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Unavailable(reason) => Self::Bucket { reason },
            Failure::Missing(reason) | Failure::Changed(reason) | Failure::Refused(reason) => {
                Self::BucketRefused { reason }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(status: &str, body: &str) -> Failure {
        let address = BucketAddress::parse("s3://data").unwrap();
        let known = Variables::new(None, [("AWS_SKIP_SIGNATURE".to_owned(), "1".to_owned())].into_iter());
        let bucket = Bucket::open(&address, &known).unwrap();
        let text = format!(
            "Error performing GET http://s3cret/ in 1ms - Server returned non-2xx status code: {status}: {body}"
        );
        bucket.failure(&object_store::Error::Generic { store: "S3", source: text.into() }, "a/b")
    }

    #[test]
    fn refusals_say_what_to_do_and_repeat_nothing() {
        let code = |code: &str| format!("<Error><Code>{code}</Code><AWSAccessKeyId>s3cret</AWSAccessKeyId></Error>");
        for (status, body, want) in [
            ("404 Not Found", code("NoSuchBucket"), "there is no bucket s3://data: check its name, and AWS_REGION"),
            ("403 Forbidden", code("InvalidAccessKeyId"), "check AWS_ACCESS_KEY_ID"),
            ("403 Forbidden", code("SignatureDoesNotMatch"), "check AWS_SECRET_ACCESS_KEY"),
            ("400 Bad Request", code("ExpiredToken"), "log in again"),
            ("403 Forbidden", code("RequestTimeTooSkewed"), "the clock of this machine is off"),
            ("301 Moved", code("PermanentRedirect"), "set AWS_REGION"),
            ("403 Forbidden", code("AccessDenied"), "reading needs s3:ListBucket"),
            ("403 Forbidden", String::new(), "reading needs s3:ListBucket"),
            ("412 Precondition Failed", code("PreconditionFailed"), "has changed"),
            ("503 Service Unavailable", code("SlowDown"), "it answered 503 SlowDown"),
            ("418 Teapot", "s3cret".to_owned(), "S3 answered 418"),
        ] {
            let said = failure(status, &body);
            assert!(said.said().contains(want) && !said.said().contains("s3cret"), "{status} {said:?}");
            assert_eq!(matches!(said, Failure::Unavailable(_)), status.starts_with('5'), "{status}");
        }
    }
}
