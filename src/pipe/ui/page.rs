//! The frame of every page with its parts that are replaced when something changes, and what a request for one says: the names and values
//! of an address or a form.

use std::fmt::Write;
use std::sync::{Mutex, MutexGuard, PoisonError};

use percent_encoding::percent_decode_str;

use super::Ui;
use crate::report::html::markup::escape;

/// Why there is no page.
pub struct NotFound(pub String);

/// The parts of a page, in order.
pub struct Parts {
    /// The names of those that are asked for; all, and what stands between them, where nothing is.
    wanted: Option<Vec<String>>,
    html: String,
}

impl Parts {
    /// `wanted` is what a script asks for: names with commas between them, or `*` for every part.
    pub fn new(wanted: Option<&str>) -> Self {
        let wanted = wanted.map(|names| names.split(',').map(|name| name.trim().to_owned()).collect());
        Self { wanted, html: String::new() }
    }

    /// A part that changes. It is made only where it is asked for.
    pub fn live(&mut self, name: &str, make: impl FnOnce() -> String) {
        let is_wanted = |wanted: &Vec<String>| wanted.iter().any(|one| one == name || one == "*");
        if self.wanted.as_ref().is_none_or(is_wanted) {
            writeln!(self.html, "<div id=\"part-{name}\" data-live>{}</div>", make()).ok();
        }
    }

    /// Adds HTML that does not change.
    pub fn fixed(&mut self, make: impl FnOnce() -> String) {
        if self.wanted.is_none() {
            self.html.push_str(&make());
        }
    }
}

/// A page, or the parts of it that a script asks for.
pub struct Page<'a> {
    pub title: &'a str,
    /// The entry of the menu that it belongs to.
    pub entry: &'a str,
    /// The query of `events`, which names the runs of the page; absent for a page that does not change.
    pub events: Option<String>,
}

/// The entries of the menu: address, name.
const MENU: [(&str, &str); 3] = [("./", "Runs"), ("machine", "Machine"), ("start", START)];
/// The one that is missing where nothing can be done.
const START: &str = "Start a run";

impl Page<'_> {
    pub fn render(&self, ui: &Ui, parts: Parts) -> String {
        if parts.wanted.is_some() {
            return parts.html;
        }
        let entry = |(address, name): &(&str, &str)| {
            let current = if *name == self.entry { " aria-current=\"page\"" } else { "" };
            format!("<a href=\"{address}\"{current}>{name}</a>")
        };
        let menu: String = MENU.iter().filter(|(_, name)| !ui.read_only || *name != START).map(entry).collect();
        let events =
            self.events.as_ref().map_or(String::new(), |query| format!(" data-events=\"events{}\"", escape(query)));
        let read_only = if ui.read_only { "<span class=\"tag\">read only</span>" } else { "" };
        let unseen = match ui.changes.sees_all() {
            true => "",
            false => {
                "<p class=\"missing\">Not every run can be watched (fs.inotify.max_user_watches): reload the page to see \
                 changes of the others.</p>"
            }
        };
        format!(
            "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<base href=\"{}\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <meta name=\"color-scheme\" content=\"light dark\">\n<link rel=\"icon\" href=\"data:,\">\n\
             <title>{} - pipe</title>\n<link rel=\"stylesheet\" href=\"style.css\">\n\
             <script src=\"script.js\" defer></script>\n</head>\n<body{events}>\n\
             <div class=\"bar\"><a class=\"brand\" href=\"./\">pipe</a><nav aria-label=\"Pages\">{menu}</nav>{read_only}\
             <span id=\"live\" role=\"status\"></span></div>\n<main>{unseen}\n{}</main>\n\
             <footer>pipe {} &middot; {}</footer>\n</body>\n</html>\n",
            escape(&ui.base),
            escape(self.title),
            parts.html,
            env!("CARGO_PKG_VERSION"),
            escape(&ui.runs.display().to_string()),
        )
    }
}

/// A page that says what went wrong.
pub fn problem(ui: &Ui, title: &str, why: &str) -> String {
    let mut parts = Parts::new(None);
    parts.fixed(|| {
        format!(
            "<header><h1>{}</h1></header><p class=\"error\">{}</p><p><a href=\"./\">All runs</a></p>",
            escape(title),
            escape(why)
        )
    });
    Page { title, entry: "", events: None }.render(ui, parts)
}

/// The address of the page of a run.
pub fn run_address(key: &str) -> String {
    format!("run/{}", encode(key))
}

/// A share of something as a bar, with what it says to those who cannot see it.
pub fn meter(share: f64, class: &str, label: &str) -> String {
    let percent = if share.is_finite() { (share * 100.0).clamp(0.0, 100.0) } else { 0.0 };
    format!(
        "<span class=\"meter {class}\" style=\"--share:{percent:.1}%\" role=\"img\" aria-label=\"{0}\" title=\"{0}\"></span>",
        escape(label)
    )
}

/// Names and values that are read, at most.
const MAX_PAIRS: usize = 200;

/// The names and values of a query, or of a form.
#[derive(Clone, Debug, Default)]
pub struct Params(Vec<(String, String)>);

impl Params {
    pub fn read(text: &str) -> Self {
        let decode = |text: &str| percent_decode_str(&text.replace('+', " ")).decode_utf8_lossy().into_owned();
        let pairs = text.split('&').filter(|pair| !pair.is_empty()).take(MAX_PAIRS);
        Self(
            pairs.map(|pair| pair.split_once('=').unwrap_or((pair, ""))).map(|(a, b)| (decode(a), decode(b))).collect(),
        )
    }

    /// The first value of this name; nothing where it is empty.
    pub fn get(&self, name: &str) -> Option<&str> {
        let found = self.0.iter().find(|pair| pair.0 == name && !pair.1.is_empty());
        found.map(|pair| pair.1.as_str())
    }

    pub fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |pair| pair.0 == name && !pair.1.is_empty()).map(|pair| pair.1.as_str())
    }

    pub fn number(&self, name: &str) -> Option<f64> {
        self.get(name)?.trim().parse().ok().filter(|number: &f64| number.is_finite())
    }

    /// The same as an address, with one value replaced, or left out where it is empty.
    pub fn with(&self, name: &str, value: &str) -> String {
        let kept = self.0.iter().filter(|pair| pair.0 != name && !pair.1.is_empty());
        let new = (name.to_owned(), value.to_owned());
        let pairs = kept.chain([&new].into_iter().filter(|new| !new.1.is_empty()));
        let text: Vec<String> = pairs.map(|(name, value)| format!("{}={}", encode(name), encode(value))).collect();
        format!("?{}", text.join("&"))
    }
}

/// The newest `MOST` requests of forms, each with a number. A form that is sent twice asks once.
pub struct Asked<T, const MOST: usize>(Mutex<Vec<OfForm<T>>>);

struct OfForm<T> {
    number: u64,
    form: String,
    what: T,
}

impl<T, const MOST: usize> Default for Asked<T, MOST> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T: Clone, const MOST: usize> Asked<T, MOST> {
    pub fn number_of(&self, form: &str) -> Option<u64> {
        self.lock().iter().find(|known| known.form == form).map(|known| known.number)
    }

    /// Its number, and whether it is new. `refusal` says why it has to wait for another one.
    pub fn add(&self, form: &str, what: T, refusal: impl Fn(&T) -> Option<String>) -> Result<(u64, bool), String> {
        let mut all = self.lock();
        if let Some(known) = all.iter().find(|known| known.form == form) {
            return Ok((known.number, false));
        }
        if let Some(why) = all.iter().find_map(|known| refusal(&known.what)) {
            return Err(why);
        }
        let number = all.last().map_or(1, |last| last.number + 1);
        all.push(OfForm { number, form: form.to_owned(), what });
        let many = all.len().saturating_sub(MOST);
        all.drain(..many);
        Ok((number, true))
    }

    pub fn get(&self, number: u64) -> Option<T> {
        self.lock().iter().find(|known| known.number == number).map(|known| known.what.clone())
    }

    pub fn change(&self, number: u64, change: impl Fn(&mut T)) {
        self.lock().iter_mut().filter(|known| known.number == number).for_each(|known| change(&mut known.what));
    }

    fn lock(&self) -> MutexGuard<'_, Vec<OfForm<T>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A form with files, as `multipart/form-data`.
pub struct Upload {
    fields: Vec<(String, Vec<u8>)>,
    content: Vec<u8>,
}

impl Upload {
    /// `kind` is the content type. Nothing where this is no such form.
    pub fn read(kind: &str, content: Vec<u8>) -> Option<Self> {
        let boundary = kind.strip_prefix("multipart/form-data")?.split_once("boundary=")?.1;
        let boundary = format!("\r\n--{}", boundary.split(';').next()?.trim().trim_matches('"'));
        // The first boundary has no line end before it.
        let body = [b"\r\n", content.as_slice()].concat();
        let mut fields = Vec::new();
        let mut rest = &body[position(&body, boundary.as_bytes())? + boundary.len()..];
        while let Some(end) = position(rest, boundary.as_bytes()).filter(|_| fields.len() < MAX_PAIRS) {
            let part = &rest[..end];
            let head = position(part, b"\r\n\r\n")?;
            let names = String::from_utf8_lossy(&part[..head]).into_owned();
            let name = names.split_once(" name=\"")?.1.split('"').next()?;
            fields.push((name.to_owned(), part[head + 4..].to_vec()));
            rest = &rest[end + boundary.len()..];
        }
        Some(Self { fields, content })
    }

    /// The content of a field; of several of this name, the first.
    pub fn bytes(&self, name: &str) -> Option<&[u8]> {
        self.fields.iter().find(|field| field.0 == name).map(|field| field.1.as_slice())
    }

    /// The same as text, which is empty where there is none.
    pub fn text(&self, name: &str) -> String {
        String::from_utf8_lossy(self.bytes(name).unwrap_or_default()).into_owned()
    }

    /// All that was sent.
    pub fn content(&self) -> &[u8] {
        &self.content
    }

    /// For tests.
    #[cfg(test)]
    pub fn of(fields: Vec<(String, Vec<u8>)>) -> Self {
        Self { fields, content: Vec::new() }
    }
}

fn position(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    bytes.windows(wanted.len()).position(|found| found == wanted)
}

/// A text as a part of an address.
pub fn encode(text: &str) -> String {
    percent_encoding::utf8_percent_encode(text, percent_encoding::NON_ALPHANUMERIC).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_with_files() {
        let kind = "multipart/form-data; boundary=----x";
        let body = "------x\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\none\r\ntwo\r\n------x\r\n\
                    Content-Disposition: form-data; name=\"f\"; filename=\"p.png\"\r\nContent-Type: image/png\r\n\r\n\u{1}\0--x\r\n------x--\r\n";
        let read = |body: &str| Upload::read(kind, body.as_bytes().to_vec());
        let form = read(body).unwrap();
        assert_eq!(
            (form.text("a"), form.bytes("f"), form.bytes("p.png")),
            ("one\r\ntwo".to_owned(), Some(&b"\x01\0--x"[..]), None)
        );
        // A part without its end is none; a body without parts is no form.
        assert!(read(&body[..60]).unwrap().bytes("a").is_none());
        assert!(read("a=b").is_none() && read("").is_none() && Upload::read("text/plain", Vec::new()).is_none());
        assert!(read("------x\r\nno head\r\n------x--").is_none());
        for end in 0..body.len() {
            read(&body[..end]);
        }
    }

    #[test]
    fn what_is_read_is_written_again() {
        let params = Params::read("q=a+b%26c&run=1&run=2&empty=&page=3");
        assert_eq!((params.get("q"), params.get("empty"), params.number("page")), (Some("a b&c"), None, Some(3.0)));
        assert_eq!(params.all("run").collect::<Vec<_>>(), ["1", "2"]);
        assert_eq!(params.with("page", "4"), "?q=a%20b%26c&run=1&run=2&page=4");
        assert_eq!(params.with("q", ""), "?run=1&run=2&page=3");
        assert_eq!(Params::read(&"a=b&".repeat(1000)).0.len(), MAX_PAIRS);
    }
}
