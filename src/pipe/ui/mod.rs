//! `pipe ui`: every run in a browser, live. One process serves pages that it writes itself; a small script keeps them up to date.
//!
//! It reads what lies in run folders, and carries acts out as `pipe` commands of their own. It knows no engines.

mod acts;
mod compare;
mod door;
mod folders;
mod index;
mod machine;
mod opened;
mod page;
mod predict_page;
mod predictions;
mod run_page;
mod runs_page;
mod start;

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{DefaultBodyLimit, Path as PathOf, RawQuery, State};
use axum::http::header::{CONTENT_TYPE, LOCATION};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use folders::{Changes, What};
use futures_util::stream;
use page::{Params, Upload};
use pipe_spec::Variables;
use pipe_spec::bucket::BucketAddress;
use tempfile::NamedTempFile;
use tokio::sync::{Semaphore, broadcast};

use self::door::{Door, html};
use self::folders::Folders;
use self::index::{Index, Row};
use self::opened::OpenedRuns;
use self::page::{NotFound, Parts};
use crate::error::Error;
use crate::report::{print, say};
use crate::system::digests::cache_folder;
use crate::system::interrupt::{self, Interrupts};

/// Where the server listens unless it is told, if nothing else does.
const DEFAULT_PORT: u16 = 7473;
/// Pages that are made at once, and browsers that are told of changes, at most.
const READERS: usize = 2;
const LISTENERS: usize = 64;
/// Bytes of a form.
const MAX_FORM: usize = 64 << 10;
/// Changes that come within this time are told together.
const GATHER: Duration = Duration::from_millis(80);
/// How often a browser hears that the server still runs.
const KEEP_ALIVE: Duration = Duration::from_secs(20);

pub struct UiOptions {
    /// The address to listen at; absent for the usual one.
    pub listen: Option<SocketAddr>,
    /// The address of a proxy that speaks TLS.
    pub proxy: Option<String>,
    /// Whether nothing can be done to runs.
    pub read_only: bool,
    /// Whether a browser is opened.
    pub open: bool,
    /// The folder of the runs.
    pub runs: PathBuf,
    /// More folders, here or in buckets, whose runs are shown too.
    pub others: Vec<String>,
    /// Those that pipelines may name. No value of one is shown.
    pub variables: Variables,
}

/// The server, as its pages see it.
pub struct Ui {
    runs: PathBuf,
    folders: Arc<Folders>,
    base: String,
    read_only: bool,
    variables: Variables,
    index: Mutex<Index>,
    changes: Changes,
    opened: OpenedRuns,
    acts: acts::Acts,
    predictions: predictions::Predictions,
    readers: Semaphore,
    listeners: Arc<Semaphore>,
}

/// Serves until a signal comes.
pub async fn serve(options: UiOptions) -> Result<(), Error> {
    let mut interrupts = Interrupts::listen()?;
    let listener = listen(&options).await?;
    let address = listener.local_addr().map_err(|source| Error::Read { path: "the listener".into(), source })?;
    let door = Arc::new(Door::new(address, options.proxy.as_deref())?);
    if !options.read_only {
        std::fs::create_dir_all(&options.runs).map_err(|source| Error::Write { path: options.runs.clone(), source })?;
    }
    // Removed when the server ends.
    let has_bucket = options.others.iter().any(|text| BucketAddress::is_meant(text));
    let copies = has_bucket.then(|| tempfile::Builder::new().prefix("pipe-ui-").tempdir()).transpose();
    let copies = copies.map_err(|source| Error::Write { path: std::env::temp_dir(), source })?;
    let kept = copies.as_ref().map_or(PathBuf::new(), |folder| folder.path().to_owned());
    let (given, variables) = (options.others, options.variables.clone());
    let open = move || given.iter().map(|text| folders::open(text, &kept, &variables)).collect::<Result<Vec<_>, _>>();
    let others = interrupt::run_interruptibly(&mut interrupts, open).await?;
    let folders = Arc::new(Folders::new(&options.runs, others));
    let ui = Arc::new(Ui {
        index: Mutex::new(Index::new(folders.clone())),
        changes: Changes::new(folders.clone()),
        folders,
        runs: options.runs,
        base: door.base.clone(),
        read_only: options.read_only,
        variables: options.variables,
        opened: OpenedRuns::default(),
        acts: acts::Acts::default(),
        predictions: predictions::Predictions::default(),
        readers: Semaphore::new(READERS),
        listeners: Arc::new(Semaphore::new(LISTENERS)),
    });
    print(&door.address());
    say("Open this address in a browser; Ctrl-C ends the server, and the runs continue.");
    // Kept until the server ends: a browser may be slow to open it.
    let _page = options.open.then(|| open_browser(&door.address()));
    let app = routes(ui.clone(), door);
    // The first page does not wait until all runs are read.
    tokio::spawn(read_first(ui.clone()));
    tokio::select! {
        served = axum::serve(door::TimedListener::new(listener), app) => served.map_err(|source| Error::Read { path: "the network".into(), source }),
        () = ui.changes.read() => Ok(()),
        () = tell_changes(ui.clone()) => Ok(()),
        () = interrupts.signal() => Ok(()),
    }
}

/// Refuses to send the token in plain text over a network.
async fn listen(options: &UiOptions) -> Result<tokio::net::TcpListener, Error> {
    let address = options.listen.unwrap_or(SocketAddr::from(([127, 0, 0, 1], DEFAULT_PORT)));
    if !address.ip().is_loopback() && options.proxy.is_none() {
        return Err(Error::ListensOpenly { address: address.to_string(), port: address.port() });
    }
    match tokio::net::TcpListener::bind(address).await {
        // Somebody else's server, or an earlier one of ours.
        Err(error) if error.kind() == std::io::ErrorKind::AddrInUse && options.listen.is_none() => {
            let any = SocketAddr::from(([127, 0, 0, 1], 0));
            tokio::net::TcpListener::bind(any)
                .await
                .map_err(|source| Error::Listen { address: any.to_string(), source })
        }
        bound => bound.map_err(|source| Error::Listen { address: address.to_string(), source }),
    }
}

/// Opens a browser on a file that leads to the address. Arguments of programs are open to all users, and the address has the token.
fn open_browser(address: &str) -> Option<NamedTempFile> {
    let none = Stdio::null;
    let opened = private_page(address).and_then(|page| {
        let browser = Command::new("xdg-open").arg(page.path()).stdin(none()).stdout(none()).stderr(none()).spawn()?;
        Ok((page, browser))
    });
    match opened {
        Ok((page, mut browser)) => {
            std::thread::spawn(move || browser.wait());
            Some(page)
        }
        Err(error) => {
            say(&format!("no browser could be opened (xdg-open): {error}"));
            None
        }
    }
}

/// A page for this user alone, in a folder that confined browsers may read.
fn private_page(address: &str) -> std::io::Result<NamedTempFile> {
    let folder = cache_folder().unwrap_or_else(std::env::temp_dir);
    std::fs::create_dir_all(&folder)?;
    // Only its owner may read such a file.
    let mut page = tempfile::Builder::new().prefix("pipe-ui-").suffix(".html").tempfile_in(&folder)?;
    page.write_all(door::page_to(address).as_bytes())?;
    Ok(page)
}

fn routes(ui: Arc<Ui>, door: Arc<Door>) -> Router {
    let at = |path: &str| format!("{}{path}", door.base);
    Router::new()
        .route(&at(""), get(runs))
        .route(&at("run/{key}"), get(run))
        .route(&at("compare"), get(compare))
        .route(&at("machine"), get(machine))
        .route(&at("start"), get(start_form).post(start))
        .route(&at("act"), get(ask).post(act))
        .route(&at("note"), post(note))
        .route(&at("predict"), get(predict_form).post(predict).layer(DefaultBodyLimit::max(predict_page::MAX_BODY)))
        .route(&at("prediction/{number}"), get(prediction))
        .route(&at("cancel"), post(cancel))
        .route(&at("done/{number}"), get(done))
        .route(&at("events"), get(events))
        .route(&at("style.css"), get(style))
        .route(&at("script.js"), get(script))
        .with_state(ui)
        .layer(DefaultBodyLimit::max(MAX_FORM))
        .layer(axum::middleware::from_fn_with_state(door, door::guard))
}

async fn read_first(ui: Arc<Ui>) {
    tokio::task::spawn_blocking(move || ui.rows()).await.ok();
}

/// Reads what has changed while somebody looks, and tells it.
async fn tell_changes(ui: Arc<Ui>) {
    loop {
        ui.changes.wake.notified().await;
        tokio::time::sleep(GATHER).await;
        if ui.changes.news.receiver_count() > 0 {
            read_first(ui.clone()).await;
        }
    }
}

impl Ui {
    /// All rows, as they are now. Tells every browser what has changed.
    fn rows(&self) -> Arc<[Arc<Row>]> {
        let mut index = self.index.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let changed = index.update(&self.changes);
        if !changed.is_empty() {
            self.changes.news.send(Arc::new(changed)).ok();
        }
        index.rows()
    }

    fn row(&self, key: &str) -> Result<Arc<Row>, NotFound> {
        self.rows();
        let index = self.index.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        index.row(key).ok_or_else(|| NotFound(format!("There is no run {key}.")))
    }

    /// Makes a page in a thread of its own: reading may take long, and a panic ends this page alone.
    async fn page(self: Arc<Self>, make: impl FnOnce(&Self) -> Result<String, NotFound> + Send + 'static) -> Response {
        let Ok(_permit) = self.readers.acquire().await else { return StatusCode::SERVICE_UNAVAILABLE.into_response() };
        let ui = self.clone();
        match tokio::task::spawn_blocking(move || make(&ui)).await {
            Ok(Ok(page)) => html(StatusCode::OK, page),
            Ok(Err(NotFound(why))) => html(StatusCode::NOT_FOUND, page::problem(&self, "Not found", &why)),
            Err(_) => {
                let why = "This page could not be made: a file of the run folder is not what pipe writes.";
                html(StatusCode::INTERNAL_SERVER_ERROR, page::problem(&self, "Not readable", why))
            }
        }
    }
}

/// The parts that a script asks for; all of a page where no script does.
const PARTS: &str = "x-pipe-parts";

fn parts_of(headers: &HeaderMap) -> Parts {
    Parts::new(headers.get(PARTS).and_then(|value| value.to_str().ok()))
}

fn params_of(query: Option<String>) -> Params {
    Params::read(query.as_deref().unwrap_or_default())
}

type Shared = State<Arc<Ui>>;

async fn runs(State(ui): Shared, RawQuery(query): RawQuery, headers: HeaderMap) -> Response {
    let (params, parts) = (params_of(query), parts_of(&headers));
    ui.page(move |ui| Ok(runs_page::page(ui, &params, parts))).await
}

async fn run(
    State(ui): Shared,
    PathOf(key): PathOf<String>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Response {
    let (params, parts) = (params_of(query), parts_of(&headers));
    ui.page(move |ui| run_page::page(ui, &key, &params, parts)).await
}

async fn compare(State(ui): Shared, RawQuery(query): RawQuery, headers: HeaderMap) -> Response {
    let (params, parts) = (params_of(query), parts_of(&headers));
    ui.page(move |ui| compare::page(ui, &params, parts)).await
}

async fn machine(State(ui): Shared, headers: HeaderMap) -> Response {
    let parts = parts_of(&headers);
    ui.page(move |ui| Ok(machine::page(ui, parts))).await
}

async fn start_form(State(ui): Shared, headers: HeaderMap) -> Response {
    let parts = parts_of(&headers);
    ui.page(move |ui| start::form(ui, parts)).await
}

async fn start(State(ui): Shared, form: Bytes) -> Response {
    let params = Params::read(&String::from_utf8_lossy(&form));
    match start::begin(&ui, &params).await {
        Ok(start::Answer::Page(page)) => html(StatusCode::OK, page),
        Ok(start::Answer::Act(number)) => see_other(&ui, number),
        Err(why) => html(StatusCode::CONFLICT, page::problem(&ui, "Not started", &why)),
    }
}

async fn ask(State(ui): Shared, RawQuery(query): RawQuery) -> Response {
    let params = params_of(query);
    ui.page(move |ui| acts::ask(ui, &params)).await
}

async fn act(State(ui): Shared, form: Bytes) -> Response {
    let params = Params::read(&String::from_utf8_lossy(&form));
    match acts::begin(&ui, &params).await {
        Ok(number) => see_other(&ui, number),
        Err(why) => html(StatusCode::CONFLICT, page::problem(&ui, "Not done", &why)),
    }
}

async fn note(State(ui): Shared, form: Bytes) -> Response {
    let params = Params::read(&String::from_utf8_lossy(&form));
    match run_page::change_notes(&ui, &params) {
        Ok(number) => see_other(&ui, number),
        Err(why) => html(StatusCode::CONFLICT, page::problem(&ui, "Not saved", &why)),
    }
}

async fn predict_form(State(ui): Shared, RawQuery(query): RawQuery, headers: HeaderMap) -> Response {
    let (params, parts) = (params_of(query), parts_of(&headers));
    ui.page(move |ui| predict_page::form(ui, params.get("run").unwrap_or_default(), parts)).await
}

async fn predict(State(ui): Shared, headers: HeaderMap, body: Bytes) -> Response {
    let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default().to_owned();
    let own = ui.clone();
    let begun = tokio::task::spawn_blocking(move || {
        let sent = Upload::read(&kind, body.into()).ok_or("The form is not complete.")?;
        predict_page::begin(&own, &sent)
    });
    match begun.await.unwrap_or_else(|_| Err("The model of this run cannot be read.".to_owned())) {
        Ok(number) => redirect(&ui, &format!("prediction/{number}")),
        Err(why) => html(StatusCode::CONFLICT, page::problem(&ui, "No prediction", &why)),
    }
}

async fn prediction(State(ui): Shared, PathOf(number): PathOf<u64>, headers: HeaderMap) -> Response {
    let parts = parts_of(&headers);
    ui.page(move |ui| predict_page::answer_page(ui, number, parts)).await
}

async fn cancel(State(ui): Shared, form: Bytes) -> Response {
    let params = Params::read(&String::from_utf8_lossy(&form));
    let number = params.number("number").unwrap_or_default() as u64;
    ui.predictions.change(number, |asked| asked.cancel());
    redirect(&ui, &format!("prediction/{number}"))
}

fn see_other(ui: &Ui, number: u64) -> Response {
    redirect(ui, &format!("done/{number}"))
}

fn redirect(ui: &Ui, path: &str) -> Response {
    let mut response = StatusCode::SEE_OTHER.into_response();
    if let Ok(place) = HeaderValue::from_str(&format!("{}{path}", ui.base)) {
        response.headers_mut().insert(LOCATION, place);
    }
    response
}

async fn done(State(ui): Shared, PathOf(number): PathOf<u64>, headers: HeaderMap) -> Response {
    let parts = parts_of(&headers);
    ui.page(move |ui| acts::done(ui, number, parts)).await
}

/// Tells a browser that what it shows has changed.
async fn events(State(ui): Shared, RawQuery(query): RawQuery) -> Response {
    let Ok(permit) = ui.listeners.clone().try_acquire_owned() else {
        return StatusCode::TOO_MANY_REQUESTS.into_response();
    };
    let runs: Vec<String> = params_of(query).all("run").map(str::to_owned).collect();
    let news = ui.changes.news.subscribe();
    // The first message brings the changes since the page was made.
    let first = Some(What::Run);
    let stream = stream::unfold((news, first, runs, permit), |(mut news, mut first, runs, permit)| async move {
        loop {
            let what = match first.take() {
                Some(what) => Some(what),
                None => match news.recv().await {
                    Ok(changed) => concerns(&changed, &runs),
                    Err(broadcast::error::RecvError::Lagged(_)) => Some(What::Run),
                    Err(broadcast::error::RecvError::Closed) => return None,
                },
            };
            if let Some(what) = what {
                let data = if what == What::Log { "log" } else { "run" };
                return Some((Ok::<_, Infallible>(Event::default().data(data)), (news, None, runs, permit)));
            }
        }
    });
    Sse::new(stream).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)).into_response()
}

/// The change of these runs or their parts; of any run where none is named.
fn concerns(changed: &BTreeMap<String, What>, runs: &[String]) -> Option<What> {
    let is_part =
        |key: &str, run: &str| key.strip_prefix(run).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
    let concerned = changed.iter().filter(|(key, _)| runs.is_empty() || runs.iter().any(|run| is_part(key, run)));
    concerned.map(|(_, what)| *what).max().filter(|what| !runs.is_empty() || *what == What::Run)
}

async fn style() -> Response {
    let style = format!("{}{}", crate::report::html::STYLE, include_str!("ui.css"));
    file("text/css; charset=utf-8", style)
}

async fn script() -> Response {
    file("text/javascript; charset=utf-8", include_str!("ui.js").to_owned())
}

fn file(kind: &'static str, text: String) -> Response {
    let mut response = Response::new(Body::from(text));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_browser_is_told_what_it_shows() {
        let changed: BTreeMap<String, What> =
            [("a", What::Log), ("b", What::Run), ("c.one", What::Run)].map(|(key, what)| (key.to_owned(), what)).into();
        let of = |runs: &[&str]| concerns(&changed, &runs.iter().map(|run| (*run).to_owned()).collect::<Vec<_>>());
        assert_eq!((of(&[]), of(&["a"]), of(&["b"])), (Some(What::Run), Some(What::Log), Some(What::Run)));
        assert_eq!(
            (of(&["c"]), of(&["c.on"]), of(&["d"]), of(&["a", "d"])),
            (Some(What::Run), None, None, Some(What::Log))
        );
        assert_eq!(concerns(&[("a".to_owned(), What::Log)].into(), &[]), None);
    }
}
