//! Requests over HTTP, bounded in time. An address is often a secret: no error names one, or anything that was answered.

use std::io::ErrorKind;
use std::time::Duration;

use ureq::http::header::RETRY_AFTER;
use ureq::http::{Response, StatusCode};
use ureq::tls::{PemItem, RootCerts, TlsConfig, parse_pem};
use ureq::{Agent, Body};

/// For a connection, and for a request from its beginning to the end of its answer.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// The most that is read of an answer.
const ANSWER_BYTES: u64 = 1 << 20;

/// Why a request failed.
#[derive(Debug, PartialEq)]
pub enum Failure {
    /// It may succeed later, after the given time if the server sent one.
    Later { reason: String, after: Option<Duration> },
    /// It was refused, with a status and what the body says about it.
    Never { reason: String, body: Vec<u8> },
}

pub enum Method {
    Get,
    Post,
    Put,
}

pub struct Web {
    agent: Agent,
    /// Sent with every request.
    authorization: Option<String>,
}

impl Web {
    pub fn new(authorization: Option<String>) -> Self {
        let config = Agent::config_builder()
            .timeout_connect(Some(CONNECT_TIMEOUT))
            .timeout_global(Some(REQUEST_TIMEOUT))
            .http_status_as_error(false)
            // What is meant for one address is not sent to another.
            .max_redirects(0)
            .max_redirects_will_error(false)
            .tls_config(TlsConfig::builder().root_certs(trusted()).build())
            .user_agent(concat!("pipe/", env!("CARGO_PKG_VERSION")))
            .build();
        Self { agent: config.into(), authorization }
    }

    /// The body of the answer.
    pub fn request(&self, method: Method, address: &str, kind: &str, body: &[u8]) -> Result<Vec<u8>, Failure> {
        let authorization = self.authorization.as_deref().map(|value| ("authorization", value));
        let answer = match method {
            Method::Get => {
                authorization.into_iter().fold(self.agent.get(address), |r, (name, value)| r.header(name, value)).call()
            }
            Method::Post | Method::Put => {
                let request = match method {
                    Method::Put => self.agent.put(address),
                    Method::Post | Method::Get => self.agent.post(address),
                };
                let headers = authorization.into_iter().chain([("content-type", kind)]);
                headers.fold(request, |request, (name, value)| request.header(name, value)).send(body)
            }
        };
        read(answer.map_err(|error| failure(&error))?)
    }
}

/// The authorities of SSL_CERT_FILE, where it names a file with any; else those that browsers trust.
pub fn trusted() -> RootCerts {
    let file = std::env::var_os("SSL_CERT_FILE").and_then(|path| std::fs::read(path).ok()).unwrap_or_default();
    let own: Vec<_> = parse_pem(&file)
        .filter_map(|item| match item {
            Ok(PemItem::Certificate(certificate)) => Some(certificate),
            _ => None,
        })
        .collect();
    if own.is_empty() { RootCerts::WebPki } else { RootCerts::new_with_certs(&own) }
}

fn read(mut answer: Response<Body>) -> Result<Vec<u8>, Failure> {
    let status = answer.status();
    let after = answer.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok()).and_then(seconds);
    let body = answer.body_mut().with_config().limit(ANSWER_BYTES).read_to_vec();
    if status.is_success() {
        return body.map_err(|error| failure(&error));
    }
    let reason = format!("it answered {status}");
    if is_transient(status) {
        return Err(Failure::Later { reason, after });
    }
    Err(Failure::Never { reason, body: body.unwrap_or_default() })
}

/// Whether another time may bring another answer.
pub fn is_transient(status: StatusCode) -> bool {
    status.is_server_error()
        || [StatusCode::TOO_MANY_REQUESTS, StatusCode::REQUEST_TIMEOUT, StatusCode::TOO_EARLY].contains(&status)
}

/// `Retry-After` in seconds; its other form, a date, is not read.
pub fn seconds(value: &str) -> Option<Duration> {
    value.trim().parse().ok().and_then(|seconds: f64| Duration::try_from_secs_f64(seconds).ok())
}

fn failure(error: &ureq::Error) -> Failure {
    match error {
        ureq::Error::Http(_) | ureq::Error::BadUri(_) => Failure::Never { reason: describe(error), body: Vec::new() },
        _ => Failure::Later { reason: describe(error), after: None },
    }
}

/// Describes an error without the address, which may be a secret.
pub fn describe(error: &ureq::Error) -> String {
    match error {
        ureq::Error::Timeout(_) => "it did not answer in time".to_owned(),
        ureq::Error::HostNotFound => "its host was not found".to_owned(),
        // What it says of a certificate that is not trusted.
        ureq::Error::Io(error) if error.kind() == ErrorKind::InvalidData => {
            "no secure connection could be made".to_owned()
        }
        // The standard library has no kind for it.
        ureq::Error::Io(error) if error.to_string().starts_with("failed to lookup address") => {
            "its host was not found".to_owned()
        }
        ureq::Error::Io(error) => error.kind().to_string(),
        ureq::Error::ConnectionFailed => "it cannot be connected to".to_owned(),
        ureq::Error::Tls(_) | ureq::Error::Rustls(_) => "no secure connection could be made".to_owned(),
        ureq::Error::InvalidProxyUrl | ureq::Error::ConnectProxyFailed(_) => {
            "the proxy does not let it through".to_owned()
        }
        ureq::Error::Http(_) | ureq::Error::BadUri(_) => "the address is not valid".to_owned(),
        _ => "its answer is not HTTP".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_to_wait_is_read() {
        let cases = [("2", Some(2.0)), (" 0.5 ", Some(0.5)), ("-1", None), ("nan", None), ("Fri, 31 Dec 1999", None)];
        for (value, want) in cases {
            assert_eq!(seconds(value), want.map(Duration::from_secs_f64), "{value}");
        }
    }

    #[test]
    fn errors_have_no_address() {
        let address = "https://s3cret.example/s3cret";
        let errors = [
            ureq::Error::BadUri(address.to_owned()),
            ureq::Error::ConnectProxyFailed(address.to_owned()),
            ureq::Error::RequireHttpsOnly(address.to_owned()),
            ureq::Error::Io(std::io::Error::other(address)),
            ureq::Error::Other(address.into()),
        ];
        for error in errors {
            let said = format!("{:?}", failure(&error));
            assert!(!said.contains("s3cret"), "{said}");
        }
    }
}
