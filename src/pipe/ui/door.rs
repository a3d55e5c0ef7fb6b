//! Who is let in: a secret in the address that becomes a cookie, and requests that name this server and come from its own pages.
//!
//! Cookies do not know ports. Therefore all pages lie in a folder with a random name, and the cookie is sent for that folder alone:
//! a server of another user on this machine does not get it.

use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::{
    CACHE_CONTROL, CONNECTION, CONTENT_SECURITY_POLICY, CONTENT_TYPE, COOKIE, HOST, HeaderName, ORIGIN,
    REFERRER_POLICY, SET_COOKIE, X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode};
use axum::middleware::Next;
use axum::response::Response;
use axum::serve::Listener;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::time::{Instant, Sleep};

use super::page::Params;
use crate::error::Error;
use crate::report::html::markup::escape;

/// The style of a drawing may stand in its elements; a script may not.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; style-src-attr 'unsafe-inline'; \
                      img-src 'self' data:; connect-src 'self'; form-action 'self'; base-uri 'self'; frame-ancestors 'none'";

static HEADERS: [(HeaderName, &str); 7] = [
    (CONTENT_SECURITY_POLICY, POLICY),
    (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (X_FRAME_OPTIONS, "DENY"),
    (REFERRER_POLICY, "same-origin"),
    (CACHE_CONTROL, "no-store"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
];

/// Headers in which a browser describes the page that a request comes from.
const FETCH_SITE: &str = "sec-fetch-site";
const FETCH_DEST: &str = "sec-fetch-dest";

pub struct Door {
    /// The folder of all pages: `/3f9c2a1b0d4e5f60/`.
    pub base: String,
    token: String,
    session: String,
    /// The hosts that a request may name, and the origins that it may come from.
    hosts: Vec<String>,
    origins: Vec<String>,
    /// The address without a path.
    site: String,
}

impl Door {
    /// The door of a server at `address`, or behind a proxy whose address is `proxy`.
    pub fn new(address: SocketAddr, proxy: Option<&str>) -> Result<Self, Error> {
        let port = address.port();
        let mut hosts = vec![format!("127.0.0.1:{port}"), format!("localhost:{port}"), format!("[::1]:{port}")];
        if address.ip().is_loopback() && !hosts.contains(&address.to_string()) {
            hosts.push(address.to_string());
        }
        let site = if address.ip().is_loopback() { address.to_string() } else { hosts[0].clone() };
        let mut site = format!("http://{site}");
        let mut origins: Vec<String> = hosts.iter().map(|host| format!("http://{host}")).collect();
        if let Some(proxy) = proxy {
            let host = proxy.strip_prefix("https://").map(|host| host.trim_end_matches('/'));
            let plain = |host: &&str| {
                !host.is_empty() && host.chars().all(|c| c.is_ascii_alphanumeric() || ".-:[]".contains(c))
            };
            let Some(host) = host.filter(plain) else { return Err(Error::ProxyAddress { address: proxy.to_owned() }) };
            let host = host.to_ascii_lowercase();
            site = format!("https://{host}");
            hosts.push(host);
            origins.push(site.clone());
        }
        Ok(Self { base: format!("/{}/", secret(8)?), token: secret(20)?, session: secret(20)?, hosts, origins, site })
    }

    /// The address that lets a browser in.
    pub fn address(&self) -> String {
        format!("{}{}?token={}", self.site, self.base, self.token)
    }

    fn is_known(headers: &HeaderMap, name: &HeaderName, known: &[String]) -> Option<bool> {
        let mut values = headers.get_all(name).iter();
        let value = values.next()?;
        let is_known = value.to_str().is_ok_and(|value| known.iter().any(|known| known.eq_ignore_ascii_case(value)));
        Some(is_known && values.next().is_none())
    }

    /// Why a request is refused whoever sends it.
    fn refusal(&self, request: &Request) -> Option<&'static str> {
        let headers = request.headers();
        if Self::is_known(headers, &HOST, &self.hosts) != Some(true) {
            return Some("This request names another host. Open the address that pipe ui printed.");
        }
        let acts = !matches!(*request.method(), Method::GET | Method::HEAD);
        let origin = Self::is_known(headers, &ORIGIN, &self.origins);
        if origin == Some(false) || (acts && origin.is_none()) {
            return Some("This request comes from a page of another server.");
        }
        let says = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let is_own = matches!(says(FETCH_SITE), None | Some("same-origin" | "none"));
        let is_page = !acts && says(FETCH_DEST) == Some("document");
        (!is_own && !is_page).then_some("This request comes from a page of another server.")
    }

    fn has_session(&self, headers: &HeaderMap) -> bool {
        let cookies = headers.get_all(COOKIE).iter().filter_map(|value| value.to_str().ok());
        let mut pairs = cookies.flat_map(|value| value.split(';')).filter_map(|pair| pair.trim().split_once('='));
        pairs.any(|(name, value)| name == Self::COOKIE && is_same(value, &self.session))
    }

    const COOKIE: &str = "pipe-ui";

    fn cookie(&self) -> String {
        let secure = if self.site.starts_with("https://") { "; Secure" } else { "" };
        format!("{}={}; Path={}; HttpOnly; SameSite=Strict{secure}", Self::COOKIE, self.session, self.base)
    }

    /// A page that brings the browser to the first page. A redirect would not carry a strict cookie where a page of another
    /// server linked here.
    fn welcome(&self) -> Response {
        let mut response = html(StatusCode::OK, page_to(&self.base));
        if let Ok(cookie) = HeaderValue::from_str(&self.cookie()) {
            response.headers_mut().insert(SET_COOKIE, cookie);
        }
        response
    }
}

/// A page that leads to an address of this server.
pub fn page_to(address: &str) -> String {
    format!(
        "<!DOCTYPE html><html lang=\"en\"><meta charset=\"utf-8\"><link rel=\"icon\" href=\"data:,\"><meta http-equiv=\"refresh\" content=\"0;url={0}\">\
         <title>pipe</title><p><a href=\"{0}\">Continue</a></p></html>",
        escape(address)
    )
}

/// Lets a request through, or answers it.
pub async fn guard(State(door): State<Arc<Door>>, request: Request, next: Next) -> Response {
    let mut response = answer(&door, request, next).await;
    for (name, value) in &HEADERS {
        response.headers_mut().insert(name.clone(), HeaderValue::from_static(value));
    }
    response
}

async fn answer(door: &Door, request: Request, next: Next) -> Response {
    if let Some(why) = door.refusal(&request) {
        return refuse(why);
    }
    if door.has_session(request.headers()) && request.uri().path().starts_with(&door.base) {
        let has_token = Params::read(request.uri().query().unwrap_or_default()).get("token").is_some();
        return if has_token { door.welcome() } else { next.run(request).await };
    }
    let params = Params::read(request.uri().query().unwrap_or_default());
    let is_known = params.get("token").is_some_and(|token| is_same(token, &door.token));
    match is_known && *request.method() == Method::GET && request.uri().path() == door.base {
        true => door.welcome(),
        false => {
            refuse("This server shows its pages to one person. Open the address that pipe ui printed, with its token.")
        }
    }
}

fn refuse(why: &str) -> Response {
    let page = format!(
        "<!DOCTYPE html><html lang=\"en\"><meta charset=\"utf-8\"><link rel=\"icon\" href=\"data:,\"><meta name=\"color-scheme\" content=\"light dark\">\
         <title>Not let in - pipe</title><h1>Not let in</h1><p>{}</p></html>",
        escape(why)
    );
    let mut response = html(StatusCode::FORBIDDEN, page);
    // Who is not let in does not keep a connection.
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    response
}

pub fn html(status: StatusCode, page: String) -> Response {
    let mut response = Response::new(Body::from(page));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
    response
}

/// Whether two texts are the same, in a time that does not tell where they differ.
fn is_same(one: &str, other: &str) -> bool {
    blake3::hash(one.as_bytes()) == blake3::hash(other.as_bytes())
}

/// So many random bytes, in hexadecimal digits.
pub fn secret(bytes: usize) -> Result<String, Error> {
    let mut random = vec![0; bytes];
    let mut filled = 0;
    while filled < bytes {
        let found = rustix::rand::getrandom(&mut random[filled..], rustix::rand::GetRandomFlags::empty());
        filled += found.map_err(|error| Error::Read { path: "random bytes".into(), source: error.into() })?;
    }
    Ok(random.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// How long a client may take to send the head of a request, or to take more of an answer.
const SLOW_TIMEOUT: Duration = Duration::from_secs(60);

/// Connections that have not asked for anything yet. For one more the oldest is closed, so that nobody can use up all files.
const MAX_SILENT: usize = 128;

/// Closes connections of clients that are slower, and of those that are too many.
pub struct TimedListener {
    listener: TcpListener,
    /// Dropping one of these closes its connection.
    silent: VecDeque<oneshot::Sender<()>>,
}

impl TimedListener {
    pub fn new(listener: TcpListener) -> Self {
        Self { listener, silent: VecDeque::new() }
    }
}

impl Listener for TimedListener {
    type Io = TimedStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, SocketAddr) {
        let (stream, address) = Listener::accept(&mut self.listener).await;
        self.silent.retain(|connection| !connection.is_closed());
        if self.silent.len() >= MAX_SILENT {
            self.silent.pop_front();
        }
        let (connection, closed) = oneshot::channel();
        self.silent.push_back(connection);
        (TimedStream { closed: Some(closed), ..TimedStream::new(stream, SLOW_TIMEOUT) }, address)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

pub struct TimedStream<S> {
    stream: S,
    most: Duration,
    timer: Pin<Box<Sleep>>,
    /// How many bytes of the end of a head have come; all of them where an answer is awaited.
    matched: usize,
    has_begun: bool,
    /// Says that others need this place. Only who has not asked for anything yet gives it up.
    closed: Option<oneshot::Receiver<()>>,
}

const END_OF_HEAD: &[u8] = b"\r\n\r\n";

impl<S> TimedStream<S> {
    fn new(stream: S, most: Duration) -> Self {
        Self { stream, most, timer: Box::pin(tokio::time::sleep(most)), matched: 0, has_begun: false, closed: None }
    }

    fn note(&mut self, bytes: &[u8]) {
        for byte in bytes {
            // Empty lines before a request are no request.
            if !self.has_begun && b"\r\n".contains(byte) {
                continue;
            }
            self.has_begun = true;
            self.matched = match self.matched {
                matched if matched == END_OF_HEAD.len() => matched,
                matched if *byte == END_OF_HEAD[matched] => matched + 1,
                _ => usize::from(*byte == END_OF_HEAD[0]),
            };
        }
        if self.matched == END_OF_HEAD.len() {
            self.closed = None;
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for TimedStream<S> {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, to: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = to.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, to);
        self.note(&to.filled()[before..]);
        let is_late = self.matched < END_OF_HEAD.len() && self.timer.as_mut().poll(context).is_ready();
        let is_given_up = self.closed.as_mut().is_some_and(|closed| Pin::new(closed).poll(context).is_ready());
        if is_late || is_given_up { Poll::Ready(Err(io::ErrorKind::TimedOut.into())) } else { read }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for TimedStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        if written.is_ready() {
            let until = Instant::now() + self.most;
            self.timer.as_mut().reset(until);
            (self.matched, self.has_begun) = (0, false);
        }
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    fn door(proxy: Option<&str>) -> Door {
        Door::new("127.0.0.1:7000".parse().unwrap(), proxy).unwrap()
    }

    fn request(method: Method, headers: &[(&str, &str)]) -> Request {
        let mut request = Request::builder().method(method).uri("/");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(Body::empty()).unwrap()
    }

    /// A request by its method and headers, and whether it is let in.
    type Case = (Method, &'static [(&'static str, &'static str)], bool);

    #[test]
    fn requests_of_other_pages_are_refused() {
        let door = door(None);
        const OWN: (&str, &str) = ("host", "127.0.0.1:7000");
        let cases: [Case; 13] = [
            (Method::GET, &[OWN], true),
            (Method::GET, &[("host", "localhost:7000")], true),
            (Method::GET, &[("host", "evil.example:7000")], false),
            (Method::GET, &[("host", "127.0.0.1")], false),
            (Method::GET, &[], false),
            (Method::GET, &[OWN, ("host", "evil.example")], false),
            (Method::POST, &[OWN], false),
            (Method::POST, &[OWN, ("origin", "http://127.0.0.1:7000")], true),
            (Method::POST, &[OWN, ("origin", "http://127.0.0.1:7001")], false),
            (Method::POST, &[OWN, ("origin", "null")], false),
            (Method::GET, &[OWN, ("origin", "http://evil.example")], false),
            (Method::GET, &[OWN, (FETCH_SITE, "same-site"), (FETCH_DEST, "empty")], false),
            (Method::GET, &[OWN, (FETCH_SITE, "cross-site"), (FETCH_DEST, "document")], true),
        ];
        for (method, headers, is_let_in) in cases {
            let found = door.refusal(&request(method.clone(), headers));
            assert_eq!(found.is_none(), is_let_in, "{method} {headers:?}: {found:?}");
        }
    }

    #[test]
    fn a_proxy_has_an_address() {
        let behind = door(Some("https://Pipe.example.org/"));
        assert!(behind.address().starts_with("https://pipe.example.org/") && behind.cookie().contains("; Secure"));
        assert!(behind.refusal(&request(Method::GET, &[("host", "pipe.example.org")])).is_none());
        for wrong in ["http://pipe.example.org", "https://", "https://a/b", "https://a\nb"] {
            assert!(Door::new("0.0.0.0:7000".parse().unwrap(), Some(wrong)).is_err(), "{wrong}");
        }
    }

    #[tokio::test]
    async fn a_client_that_sends_no_whole_request_is_not_waited_for() {
        let (mut client, server) = tokio::io::duplex(64);
        let mut stream = TimedStream::new(server, Duration::from_millis(20));
        let mut buffer = [0; 64];
        client.write_all(b"GET / HTTP/1.1\r\n").await.unwrap();
        assert_eq!(stream.read(&mut buffer).await.unwrap(), 16);
        assert_eq!(stream.read(&mut buffer).await.unwrap_err().kind(), io::ErrorKind::TimedOut);
        let (mut client, server) = tokio::io::duplex(64);
        let mut stream = TimedStream::new(server, Duration::from_millis(20));
        client.write_all(b"\r\n\r\n").await.unwrap();
        assert_eq!(stream.read(&mut buffer).await.unwrap(), 4);
        assert_eq!(stream.read(&mut buffer).await.unwrap_err().kind(), io::ErrorKind::TimedOut);
        // An answer takes as long as it takes.
        let (mut client, server) = tokio::io::duplex(64);
        let mut stream = TimedStream::new(server, Duration::from_millis(20));
        client.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
        assert_ne!(stream.read(&mut buffer).await.unwrap(), 0);
        assert!(tokio::time::timeout(Duration::from_millis(100), stream.read(&mut buffer)).await.is_err());
        stream.write_all(b"HTTP/1.1 200 OK").await.unwrap();
        assert_eq!(stream.read(&mut buffer).await.unwrap_err().kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test]
    async fn silent_clients_make_room() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut listener = TimedListener::new(listener);
        let mut clients = Vec::new();
        let mut streams = Vec::new();
        for number in 0..MAX_SILENT + 2 {
            let mut client = TcpStream::connect(address).await.unwrap();
            let (mut stream, _) = listener.accept().await;
            if number == 0 {
                client.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
                assert_ne!(stream.read(&mut [0; 64]).await.unwrap(), 0);
            }
            clients.push(client);
            streams.push(stream);
        }
        let mut buffer = [0; 8];
        assert_eq!(streams[1].read(&mut buffer).await.unwrap_err().kind(), io::ErrorKind::TimedOut);
        for kept in [0, 2, MAX_SILENT + 1] {
            let read = tokio::time::timeout(Duration::from_millis(20), streams[kept].read(&mut buffer)).await;
            assert!(read.is_err(), "{kept}: {read:?}");
        }
    }

    #[test]
    fn secrets_differ() {
        let (one, other) = (door(None), door(None));
        assert!(
            one.token != other.token && one.base != other.base && one.session != one.token && one.token.len() == 40
        );
        let header = |cookie: &str| request(Method::GET, &[("cookie", cookie)]).headers().clone();
        assert!(one.has_session(&header(&format!("a=b; pipe-ui={}", one.session))));
        for wrong in ["pipe-ui=", "pipe-ui", &format!("pipe-ui={}", one.token), &format!("pipe-uj={}", one.session)] {
            assert!(!one.has_session(&header(wrong)), "{wrong}");
        }
    }
}
