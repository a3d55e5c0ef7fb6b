//! The requests of `object_store` over the one HTTP and TLS stack that `pipe` has. No error names an address, which may be a
//! secret, or anything that was answered.

use std::io::{ErrorKind, Read};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http_body::{Body, Frame};
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpResponseBody, HttpService,
};
use tokio::sync::{mpsc, oneshot};
use ureq::http::header::{CONTENT_LENGTH, DATE};
use ureq::http::{Method, Request, Response};
use ureq::tls::TlsConfig;
use ureq::{Agent, SendBody};

use crate::system::http;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// For the head of an answer: a service may take its time to put together what was sent in parts.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(60);
/// For each piece of an answer: a connection that is silent for so long counts as broken.
const READ_TIMEOUT: Duration = Duration::from_secs(30);
/// For what one request sends, which is a part of a file at most.
const SEND_TIMEOUT: Duration = Duration::from_secs(600);

/// Bytes of an answer that are handed over at once, and how many such pieces may wait.
const PIECE: usize = 256 << 10;
const WAITING: usize = 4;

/// When the service answered, by its own clock: seconds since the Unix epoch. An extension of the answer.
#[derive(Clone, Copy, Debug)]
pub struct ServerTime(pub i64);

/// Marks an answer whose content was encrypted with a key of its own, so that its ETag is no hash of it.
#[derive(Clone, Copy, Debug)]
pub struct Encrypted;

/// Why a request brought no answer.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0}")]
pub struct NoAnswer(pub String);

#[derive(Debug)]
pub struct Connector;

impl HttpConnector for Connector {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        let config = Agent::config_builder()
            .timeout_connect(Some(CONNECT_TIMEOUT))
            .timeout_send_body(Some(SEND_TIMEOUT))
            .timeout_recv_response(Some(RESPONSE_TIMEOUT))
            .timeout_per_read(Some(READ_TIMEOUT))
            .http_status_as_error(false)
            // A signed request is for one address.
            .max_redirects(0)
            .max_redirects_will_error(false)
            .tls_config(TlsConfig::builder().root_certs(http::trusted()).build())
            .user_agent(concat!("pipe/", env!("CARGO_PKG_VERSION")))
            .build();
        Ok(HttpClient::new(Service { agent: config.into() }))
    }
}

#[derive(Debug)]
struct Service {
    agent: Agent,
}

#[async_trait]
impl HttpService for Service {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let (head, mut body) = request.into_parts();
        let mut sent = Vec::with_capacity(body.content_length());
        while let Some(frame) = std::future::poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
            sent.extend_from_slice(&frame?.into_data().unwrap_or_default());
        }
        let (answer, answered) = oneshot::channel();
        let agent = self.agent.clone();
        tokio::task::spawn_blocking(move || exchange(&agent, Request::from_parts(head, sent), answer));
        answered.await.unwrap_or_else(|_| Err(broken(HttpErrorKind::Unknown, "the request was given up")))
    }
}

/// Sends a request, then its answer to who waits for it, and the content of the answer piece by piece.
fn exchange(agent: &Agent, request: Request<Vec<u8>>, answer: oneshot::Sender<Result<HttpResponse, HttpError>>) {
    let has_content = request.method() != Method::HEAD;
    let response = match send(agent, request) {
        Ok(response) => response,
        Err(error) => return drop(answer.send(Err(failure(&error)))),
    };
    let (mut head, body) = response.into_parts();
    let header = |name: &str| head.headers.get(name).and_then(|value| value.to_str().ok());
    let time = header(DATE.as_str()).and_then(|date| jiff::fmt::rfc2822::parse(date).ok());
    let kms = header("x-amz-server-side-encryption").is_some_and(|kind| kind.starts_with("aws:"));
    let is_encrypted = kms || header("x-amz-server-side-encryption-customer-algorithm").is_some();
    let length: Option<u64> = header(CONTENT_LENGTH.as_str()).and_then(|length| length.parse().ok());
    head.extensions
        .extend(time.map(|time| ServerTime(time.timestamp().as_second())).map(extension).unwrap_or_default());
    if is_encrypted {
        head.extensions.insert(Encrypted);
    }
    let (pieces, received) = mpsc::channel(WAITING);
    let whole = HttpResponse::from_parts(head, HttpResponseBody::new(Received(received)));
    if answer.send(Ok(whole)).is_err() || !has_content {
        return;
    }
    let (mut reader, mut count) = (body.into_reader(), 0);
    loop {
        let piece = read_piece(&mut reader);
        let is_last = !matches!(&piece, Ok(bytes) if !bytes.is_empty());
        count += piece.as_ref().map_or(0, |bytes| bytes.len() as u64);
        let piece = match piece {
            Ok(bytes) if bytes.is_empty() && length.is_some_and(|length| count < length) => {
                Err(broken(HttpErrorKind::Interrupted, "the connection ended too early"))
            }
            Ok(bytes) if bytes.is_empty() => return,
            piece => piece,
        };
        if pieces.blocking_send(piece).is_err() || is_last {
            return;
        }
    }
}

fn extension(time: ServerTime) -> ureq::http::Extensions {
    let mut extensions = ureq::http::Extensions::new();
    extensions.insert(time);
    extensions
}

fn send(agent: &Agent, request: Request<Vec<u8>>) -> Result<Response<ureq::Body>, ureq::Error> {
    let is_bare = request.body().is_empty() && !matches!(*request.method(), Method::PUT | Method::POST);
    let (head, body) = request.into_parts();
    match is_bare {
        true => agent.run(Request::from_parts(head, SendBody::none())),
        false => agent.run(Request::from_parts(head, body)),
    }
}

/// The next piece of an answer; an empty one at its end.
fn read_piece(reader: &mut impl Read) -> Result<Bytes, HttpError> {
    let mut piece = vec![0; PIECE];
    loop {
        match reader.read(&mut piece) {
            Ok(count) => {
                piece.truncate(count);
                return Ok(piece.into());
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::TimedOut => {
                return Err(broken(HttpErrorKind::Timeout, "nothing came for too long"));
            }
            Err(_) => return Err(broken(HttpErrorKind::Interrupted, "the connection broke")),
        }
    }
}

fn broken(kind: HttpErrorKind, reason: &str) -> HttpError {
    HttpError::new(kind, NoAnswer(reason.to_owned()))
}

fn failure(error: &ureq::Error) -> HttpError {
    let kind = match error {
        ureq::Error::Timeout(_) => HttpErrorKind::Timeout,
        ureq::Error::HostNotFound | ureq::Error::ConnectionFailed => HttpErrorKind::Connect,
        ureq::Error::Io(error) if error.kind() == ErrorKind::ConnectionRefused => HttpErrorKind::Connect,
        ureq::Error::Io(error) if error.kind() == ErrorKind::InvalidData => HttpErrorKind::Unknown,
        ureq::Error::Io(_) => HttpErrorKind::Interrupted,
        _ => HttpErrorKind::Unknown,
    };
    broken(kind, &http::describe(error))
}

/// The content of an answer, as a thread reads it.
struct Received(mpsc::Receiver<Result<Bytes, HttpError>>);

impl Body for Received {
    type Data = Bytes;
    type Error = HttpError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, HttpError>>> {
        self.0.poll_recv(context).map(|piece| piece.map(|piece| piece.map(Frame::data)))
    }
}
