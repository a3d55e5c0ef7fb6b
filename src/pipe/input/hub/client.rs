//! Requests to the hub. The token goes to the hub's own address and to no other, wherever a redirect leads.
//!
//! Refusals of the hub as messages that say what to do.

use std::io::Read;
use std::time::Duration;

use pipe_spec::text::human_bytes;
use ureq::http::header::{ACCEPT_ENCODING, AUTHORIZATION, CONTENT_ENCODING, LOCATION, RANGE, RETRY_AFTER};
use ureq::http::{HeaderMap, Method, Request, Response, Uri};
use ureq::tls::TlsConfig;
use ureq::{Agent, Body};

use super::address::{Address, Settings, Token};
use crate::bucket::{self, Bucket};
use crate::error::Error;
use crate::system::http;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// For the head of an answer, and for each piece of its body: a connection that is silent for so long counts as broken.
const READ_TIMEOUT: Duration = Duration::from_secs(30);
const MAX_REDIRECTS: usize = 8;
/// The most that is read of an answer which is not a file: the list of a repository's files can be long.
const ANSWER_BYTES: u64 = 256 << 20;
/// The longest wait that the hub may ask for.
const LONGEST_WAIT: Duration = Duration::from_secs(300);

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Client({})", self.host())
    }
}

pub struct Client {
    agent: Agent,
    endpoint: String,
    token: Option<Token>,
}

/// Why a request failed.
#[derive(Debug)]
pub enum RequestError {
    /// The refusal of a bucket; another try would not change it.
    Bucket(bucket::Failure),
    /// It may succeed later, after the given time if the hub sent one.
    Transient {
        reason: String,
        after: Option<Duration>,
    },
    Refused(Refusal),
    /// An answer that another try would not change.
    Unusable(String),
}

impl Client {
    pub fn new(settings: &Settings) -> Self {
        let config = Agent::config_builder()
            .timeout_connect(Some(CONNECT_TIMEOUT))
            .timeout_recv_response(Some(READ_TIMEOUT))
            .timeout_per_read(Some(READ_TIMEOUT))
            .http_status_as_error(false)
            // Followed here, where it is decided what each address is sent.
            .max_redirects(0)
            .max_redirects_will_error(false)
            .tls_config(TlsConfig::builder().root_certs(http::trusted()).build())
            .user_agent(concat!("pipe/", env!("CARGO_PKG_VERSION")))
            .build();
        Self { agent: config.into(), endpoint: settings.endpoint.clone(), token: settings.token.clone() }
    }

    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// The hub's host, for messages: an endpoint may have a password in it.
    pub fn host(&self) -> String {
        let host = self.endpoint.parse::<Uri>().ok().and_then(|uri| uri.host().map(str::to_owned));
        host.unwrap_or_else(|| "HF_ENDPOINT".to_owned())
    }

    pub fn has_token(&self) -> bool {
        self.token.is_some()
    }

    /// The body of an answer that is not a file.
    pub fn text(&self, path: &str) -> Result<Vec<u8>, RequestError> {
        self.with_retries(|| {
            let mut answer = self.send(&Method::GET, path, 0)?;
            // The limit counts bytes as they come. `ureq` is built without decoders, which would make more of them.
            let encoding = answer.headers().get(CONTENT_ENCODING).is_some_and(|encoding| encoding != "identity");
            if encoding {
                return Err(RequestError::Unusable("its answer is compressed, which was not asked for".to_owned()));
            }
            answer.body_mut().with_config().limit(ANSWER_BYTES).read_to_vec().map_err(|error| transient(&error))
        })
    }

    /// The hub's headers for a file: those of its own answer, before any redirect to where the content lies.
    pub fn head(&self, path: &str) -> Result<HeaderMap, RequestError> {
        self.with_retries(|| Ok(self.send(&Method::HEAD, path, 0)?.into_parts().0.headers))
    }

    /// The content of a file from byte `from` on. `true` where the answer begins there, `false` where it is the whole file.
    pub fn open(&self, path: &str, from: u64) -> Result<(bool, impl Read + use<>), RequestError> {
        let answer = self.send(&Method::GET, path, from)?;
        let (head, body) = answer.into_parts();
        let range = head.headers.get("content-range").and_then(|value| value.to_str().ok());
        let begins = range.is_some_and(|range| range.trim().starts_with(&format!("bytes {from}-")));
        Ok((from == 0 || (head.status.as_u16() == 206 && begins), body.into_reader()))
    }

    fn send(&self, method: &Method, path: &str, from: u64) -> Result<Response<Body>, RequestError> {
        let mut address = format!("{}/{path}", self.endpoint);
        for _ in 0..=MAX_REDIRECTS {
            let mut request = Request::builder().method(method).uri(&address).header(ACCEPT_ENCODING, "identity");
            if from > 0 {
                request = request.header(RANGE, format!("bytes={from}-"));
            }
            if let Some(token) = self.token.as_ref().filter(|_| origin(&address) == origin(&self.endpoint)) {
                request = request.header(AUTHORIZATION, token.authorization());
            }
            let request = request.body(()).map_err(|_| unreadable("the address is not valid"))?;
            let answer = self.agent.run(request).map_err(|error| transient(&error))?;
            let status = answer.status();
            if status.is_success() || (status.is_redirection() && method == Method::HEAD && is_about_file(&answer)) {
                return Ok(answer);
            }
            if !status.is_redirection() {
                return Err(refused(&answer));
            }
            let location = answer.headers().get(LOCATION).and_then(|location| location.to_str().ok());
            address = location
                .and_then(|location| join(&address, location))
                .ok_or_else(|| unreadable("a redirect to nowhere"))?;
        }
        Err(unreadable("too many redirects"))
    }

    /// Asks again where that may help.
    fn with_retries<T>(&self, mut ask: impl FnMut() -> Result<T, RequestError>) -> Result<T, RequestError> {
        let mut retries = Retries::of_questions();
        loop {
            match ask() {
                Err(error) => match retries.wait(&error) {
                    Some(wait) => std::thread::sleep(wait),
                    None => return Err(error),
                },
                done => return done,
            }
        }
    }
}

/// How often something is tried again, and after how long.
pub struct Retries {
    done: u32,
    most: u32,
}

impl Retries {
    /// The retries of short requests.
    pub fn of_questions() -> Self {
        Self { done: 0, most: 3 }
    }

    /// For transfers, which continue at the byte where they broke.
    pub fn of_transfers() -> Self {
        Self { done: 0, most: 8 }
    }

    /// Something came: a new break is a first one.
    pub fn reset(&mut self) {
        self.done = 0;
    }

    /// How long to wait before the next try; nothing where there is none.
    pub fn wait(&mut self, error: &RequestError) -> Option<Duration> {
        let RequestError::Transient { after, .. } = error else { return None };
        if self.done >= self.most {
            return None;
        }
        self.done += 1;
        let doubled = Duration::from_millis(250 << self.done.min(7));
        Some(after.unwrap_or(doubled).min(LONGEST_WAIT))
    }
}

pub fn transient(error: &ureq::Error) -> RequestError {
    RequestError::Transient { reason: http::describe(error), after: None }
}

fn unreadable(reason: &str) -> RequestError {
    RequestError::Transient { reason: format!("its answer cannot be used: {reason}"), after: None }
}

fn refused(answer: &Response<Body>) -> RequestError {
    let header = |name: &str| answer.headers().get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let status = answer.status();
    if http::is_transient(status) {
        let after = http::seconds(header(RETRY_AFTER.as_str()));
        return RequestError::Transient { reason: format!("it answered {status}"), after };
    }
    RequestError::Refused(Refusal {
        status: status.as_u16(),
        code: header("x-error-code").to_owned(),
        message: header("x-error-message").to_owned(),
    })
}

/// Whether a redirect has the size and hash of the file: it leads to the content.
fn is_about_file(answer: &Response<Body>) -> bool {
    answer.headers().contains_key("x-linked-etag")
}

/// Scheme, host and port.
fn origin(address: &str) -> Option<(String, String, Option<u16>)> {
    let uri: Uri = address.parse().ok()?;
    let port = uri.port_u16().or(match uri.scheme_str()? {
        "https" => Some(443),
        "http" => Some(80),
        _ => None,
    });
    Some((uri.scheme_str()?.to_owned(), uri.host()?.to_ascii_lowercase(), port))
}

/// Where a redirect from `address` leads.
fn join(address: &str, location: &str) -> Option<String> {
    if location.starts_with("http://") || location.starts_with("https://") {
        return Some(location.to_owned());
    }
    let uri: Uri = address.parse().ok()?;
    if !location.starts_with('/') || location.starts_with("//") {
        return None;
    }
    Some(format!("{}://{}{location}", uri.scheme_str()?, uri.authority()?))
}

/// Where files are fetched from: the hub, or a bucket, which is a source like it.
#[derive(Debug)]
pub enum Remote {
    Hub(Client),
    Bucket(Bucket),
}

/// The content of a file, as it comes.
pub struct Opened {
    /// Whether it begins where it was asked to; otherwise it is the whole file.
    pub continues: bool,
    /// Whether the hash that is known is not that of the content.
    pub is_unhashed: bool,
    pub body: Box<dyn Read>,
}

impl Remote {
    /// The content of a file from byte `from` on, if it still has this ETag.
    pub fn open(&self, path: &str, etag: Option<&str>, from: u64) -> Result<Opened, RequestError> {
        match self {
            Self::Hub(client) => {
                let (continues, body) = client.open(path, from)?;
                Ok(Opened { continues, is_unhashed: false, body: Box::new(body) })
            }
            Self::Bucket(bucket) => {
                let body = bucket.get(path, from, etag).map_err(|failure| match failure {
                    bucket::Failure::Unavailable(reason) => RequestError::Transient { reason, after: None },
                    failure => RequestError::Bucket(failure),
                })?;
                Ok(Opened { continues: true, is_unhashed: body.is_encrypted, body: Box::new(body) })
            }
        }
    }
}

/// Why something cannot be read from the hub.
#[derive(Debug)]
pub enum Failure {
    /// The pipeline names what the hub does not have or does not give: a problem of the file.
    Named(String),
    /// Not the pipeline's fault.
    Error(Error),
}

impl From<bucket::Failure> for Failure {
    fn from(failure: bucket::Failure) -> Self {
        match failure {
            bucket::Failure::Unavailable(reason) => Self::Error(Error::Bucket { reason }),
            failure => Self::Named(failure.said().to_owned()),
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}

/// An answer that is no content.
#[derive(Debug)]
pub struct Refusal {
    pub status: u16,
    /// The value of the header `X-Error-Code`.
    pub code: String,
    /// The value of the header `X-Error-Message`.
    pub message: String,
}

/// The failure of a request for `file` of a repository, or for the repository itself.
pub fn failure(error: RequestError, remote: &Remote, address: &Address, file: Option<&str>) -> Failure {
    match (error, remote) {
        (RequestError::Bucket(bucket::Failure::Changed(said)), _) => {
            Failure::Named(format!("{said} since {address} was read; a new `pipe run` takes it as it is now"))
        }
        (RequestError::Bucket(failure), _) => failure.into(),
        (RequestError::Transient { reason, .. } | RequestError::Unusable(reason), Remote::Hub(client)) => {
            unavailable(client, &reason)
        }
        (RequestError::Transient { reason, .. } | RequestError::Unusable(reason), Remote::Bucket(_)) => {
            Failure::Error(Error::Bucket { reason: format!("{address}: {reason}") })
        }
        (RequestError::Refused(refusal), Remote::Hub(client)) => refused_file(&refusal, client, address, file),
        (RequestError::Refused(refusal), Remote::Bucket(_)) => {
            Failure::Named(format!("{address}: it answered {}", refusal.status))
        }
    }
}

fn unavailable(client: &Client, reason: &str) -> Failure {
    Failure::Error(Error::Hub { host: client.host(), reason: reason.to_owned() })
}

fn refused_file(refusal: &Refusal, client: &Client, address: &Address, file: Option<&str>) -> Failure {
    let (kind, id, revision) = (address.kind(), &address.id, &address.revision);
    let page = format!("{}/{}", client.endpoint(), address.name());
    let Refusal { status, code, message } = refusal;
    let text = match (code.as_str(), status) {
        ("GatedRepo", _) if client.has_token() => format!(
            "the {kind} {id} is gated, and the account of your token (HF_TOKEN) has no access: accept its terms at {page}"
        ),
        ("GatedRepo", _) => {
            format!("the {kind} {id} is gated: accept its terms at {page}, and set HF_TOKEN to a token of that account")
        }
        ("RevisionNotFound", _) => format!(
            "the {kind} {id} has no revision {revision:?}; its branches and tags are listed at {page}/tree/main"
        ),
        ("EntryNotFound", _) => format!("the {kind} {address} has no file {:?}", file.unwrap_or_default()),
        (_, 401) if message.starts_with("Invalid credentials") => {
            "the hub does not accept your token: make another in the settings of your account, and set HF_TOKEN to it"
                .into()
        }
        ("RepoNotFound", _) | (_, 401 | 404) => {
            let private = if client.has_token() {
                "or it is private and your token (HF_TOKEN) may not read it"
            } else {
                "or it is private: set HF_TOKEN to a token that may read it"
            };
            format!("the hub has no {kind} {id} (looked at {page}), {private}")
        }
        (_, 403) => format!("the hub does not let you read the {kind} {id}: {}", plain(message)),
        _ => return unavailable(client, &format!("it answered {status} for the {kind} {id}")),
    };
    Failure::Named(text)
}

/// A message of the hub without what a terminal would obey.
fn plain(message: &str) -> String {
    let text: String = message.chars().filter(|letter| !letter.is_control()).take(200).collect();
    if text.is_empty() { "no reason is given; is HF_TOKEN a token that may read it?".to_owned() } else { text }
}

/// The error where the disk has too little space for a download.
pub fn no_space(folder: &std::path::Path, needed: u64, free: u64) -> Error {
    Error::NoSpace { folder: folder.to_owned(), needed: human_bytes(needed), free: human_bytes(free) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_same_scheme_host_and_port_are_the_hub() {
        let cases = [
            ("https://hub.example/a", "https://HUB.example:443/b", true),
            ("https://hub.example", "http://hub.example/", false),
            ("https://hub.example", "https://cdn.hub.example/", false),
            ("http://127.0.0.1:80", "http://127.0.0.1:81", false),
            ("https://hub.example", "https://hub.example@evil.example/", false),
        ];
        for (one, other, same) in cases {
            assert!(origin(one).is_some() && origin(other).is_some(), "{one} {other}");
            assert_eq!(origin(one) == origin(other), same, "{one} {other}");
        }
    }

    #[test]
    fn redirects() {
        let cases = [
            ("/b?c=d", Some("https://hub.example/b?c=d")),
            ("https://cdn.example/x", Some("https://cdn.example/x")),
            ("//cdn.example/x", None),
            ("file:///etc/passwd", None),
            ("b", None),
        ];
        for (location, want) in cases {
            assert_eq!(join("https://hub.example/a", location).as_deref(), want, "{location}");
        }
    }

    #[test]
    fn waits_grow_and_end_and_follow_the_hub() {
        let error = |after: Option<u64>| RequestError::Transient {
            reason: String::new(),
            after: after.map(Duration::from_secs),
        };
        let mut retries = Retries::of_questions();
        let waits: Vec<_> = std::iter::from_fn(|| retries.wait(&error(None))).map(|wait| wait.as_millis()).collect();
        assert_eq!(waits, [500, 1000, 2000]);
        retries.reset();
        assert_eq!(retries.wait(&error(Some(7))), Some(Duration::from_secs(7)));
        assert_eq!(retries.wait(&error(Some(7200))), Some(LONGEST_WAIT));
        let refused = RequestError::Refused(Refusal { status: 404, code: String::new(), message: String::new() });
        assert_eq!(retries.wait(&refused), None);
    }
}
