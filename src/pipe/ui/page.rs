//! The frame of every page, and its parts that are replaced when something changes.

use std::fmt::Write;

use super::Ui;
use super::request::encode;
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
