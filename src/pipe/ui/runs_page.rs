//! The page of all runs: search, filters, order, a row for each.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;

use pipe_spec::Status;
use pipe_spec::pipeline::{Metric, WorkKind};
use pipe_spec::text::{self, human_bytes};

use super::Ui;
use super::folders::RunsFolder;
use super::index::{Figures, Row};
use super::page::{Page, Params, Parts, encode, meter, run_address};
use crate::report::html::markup::escape;
use crate::report::{bounded, duration, figure, grouped, span};
use crate::system::clock::minutes_utc;

/// Rows of a page.
const ROWS: usize = 100;
/// Characters of the first line of a note.
const NOTE: usize = 120;

/// The orders, with their names.
const ORDERS: [(&str, &str); 5] = [
    ("", "newest first"),
    ("metric", "best metric first"),
    ("name", "name"),
    ("time", "longest first"),
    ("left", "time left"),
];

pub fn page(ui: &Ui, params: &Params, mut parts: Parts) -> String {
    let all = ui.rows();
    let wanted = select(&all, params);
    let first = (params.number("page").unwrap_or(1.0).max(1.0) as usize - 1).min(wanted.len().saturating_sub(1) / ROWS);
    let shown = &wanted[(first * ROWS).min(wanted.len())..((first + 1) * ROWS).min(wanted.len())];
    parts.fixed(|| format!("<header><h1>Runs</h1>{}</header>", folders(ui)));
    parts.live("counts", || counts(&all, params));
    parts.fixed(|| form(params));
    parts.fixed(|| "<form action=\"compare\" method=\"get\" id=\"compare\">".to_owned());
    parts.live("runs", || match shown.is_empty() {
        true => nothing(ui, all.is_empty()),
        false => table(shown),
    });
    parts.live("pages", || pages(params, first, wanted.len()));
    parts.fixed(|| {
        "<p class=\"acts\"><button type=\"submit\">Compare the selected runs</button> \
         <small>two to twenty</small></p></form>"
            .to_owned()
    });
    Page { title: "Runs", entry: "Runs", events: Some(String::new()) }.render(ui, parts)
}

/// The folders beside `PIPE_RUNS`, each a filter.
fn folders(ui: &Ui) -> String {
    let line = |RunsFolder { label, path, bucket }: &RunsFolder| {
        let place = bucket.as_ref().map_or_else(|| path.display().to_string(), ToString::to_string);
        let (address, path) = (encode(&format!("{label}/")), escape(&place));
        format!("<li><a href=\"./?q={address}\">{}/</a> {path}</li>", escape(label))
    };
    let lines: String = ui.folders.iter().filter(|folder| !folder.label.is_empty()).map(line).collect();
    if lines.is_empty() { lines } else { format!("<ul class=\"links note\">{lines}</ul>") }
}

/// Whether a run is a part of another that is in the list.
fn is_part(row: &Row) -> bool {
    row.part_of.is_some()
}

fn select(all: &[Arc<Row>], params: &Params) -> Vec<Arc<Row>> {
    let words: Vec<String> = params.get("q").unwrap_or_default().split_whitespace().map(str::to_lowercase).collect();
    let (status, tag) = (params.get("status"), params.get("tag"));
    let with_parts = params.get("parts").is_some();
    let wants = |row: &&Arc<Row>| {
        let has_status = status.is_none_or(|status| row.status.name() == status);
        let has_tag = tag.is_none_or(|tag| row.notes.has_tag(tag));
        has_status && has_tag && (with_parts || !is_part(row)) && words.iter().all(|word| has_word(row, word))
    };
    let mut wanted: Vec<Arc<Row>> = all.iter().filter(wants).cloned().collect();
    match params.get("sort").unwrap_or_default() {
        "metric" => wanted.sort_by(|a, b| by_metric(a, b)),
        "name" => wanted.sort_by(|a, b| a.key.cmp(&b.key)),
        "time" => wanted.sort_by(|a, b| b.progress.seconds.total_cmp(&a.progress.seconds)),
        "left" => wanted.sort_by(|a, b| {
            let left = |row: &Row| row.progress.left.unwrap_or(f64::INFINITY);
            left(a).total_cmp(&left(b))
        }),
        _ => {}
    }
    wanted
}

fn has_word(row: &Row, word: &str) -> bool {
    let device = row.progress.device.as_deref().unwrap_or_default();
    [row.key.as_str(), &row.name, row.status.name(), &row.engine, device, &row.remark, &row.notes.note]
        .into_iter()
        .chain(row.notes.tags.iter().map(String::as_str))
        .any(|text| text.to_lowercase().contains(word))
}

/// Runs of one metric together, the best of them first; runs without one last.
fn by_metric(a: &Row, b: &Row) -> Ordering {
    match (&a.progress.metric, &b.progress.metric) {
        (Some((first, one)), Some((second, other))) => first
            .cmp(second)
            .then_with(|| if Metric::less_is_better(first) { one.total_cmp(other) } else { other.total_cmp(one) }),
        (one, other) => other.is_some().cmp(&one.is_some()),
    }
}

/// How many runs have which status, each a filter.
fn counts(all: &[Arc<Row>], params: &Params) -> String {
    let with_parts = params.get("parts").is_some();
    let rows: Vec<&Arc<Row>> = all.iter().filter(|row| with_parts || !is_part(row)).collect();
    let chip = |name: &str, value: &str, count: usize| {
        let current = if params.get("status").unwrap_or_default() == value { " aria-current=\"true\"" } else { "" };
        let address = filter_address(params, "status", value);
        format!("<a class=\"chip {value}\" href=\"./{address}\"{current}>{name} <b>{}</b></a>", grouped(count as u64))
    };
    let mut html = format!("<nav class=\"chips\" aria-label=\"Filter by status\">{}", chip("all", "", rows.len()));
    for status in Status::ALL {
        let count = rows.iter().filter(|row| row.status == status).count();
        if count > 0 || params.get("status") == Some(status.name()) {
            html.push_str(&chip(status.name(), status.name(), count));
        }
    }
    html + "</nav>" + &tags(&rows, params)
}

/// Tags that are filters, at most: those of the most runs.
const TAGS: usize = 20;

/// How many runs have which tag, each a filter that a second click removes.
fn tags(rows: &[&Arc<Row>], params: &Params) -> String {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    rows.iter().flat_map(|row| &row.notes.tags).for_each(|tag| *counts.entry(tag).or_default() += 1);
    let wanted = params.get("tag");
    if let Some(tag) = wanted {
        counts.entry(tag).or_default();
    }
    let mut counts: Vec<(&str, usize)> = counts.into_iter().collect();
    counts.sort_by_key(|(tag, count)| (wanted != Some(*tag), std::cmp::Reverse(*count)));
    let chip = |(tag, count): &(&str, usize)| {
        let (next, current) = if wanted == Some(*tag) { ("", " aria-current=\"true\"") } else { (*tag, "") };
        let address = filter_address(params, "tag", next);
        format!(
            "<a class=\"topic\" href=\"./{address}\"{current}>{} <b>{}</b></a>",
            escape(tag),
            grouped(*count as u64)
        )
    };
    let chips: String = counts.iter().take(TAGS).map(chip).collect();
    if chips.is_empty() { chips } else { format!("<nav class=\"chips\" aria-label=\"Filter by tag\">{chips}</nav>") }
}

/// The address with another filter, which begins at its first page.
fn filter_address(params: &Params, name: &str, value: &str) -> String {
    escape(&Params::read(params.with(name, value).trim_start_matches('?')).with("page", ""))
}

fn form(params: &Params) -> String {
    let sort = params.get("sort").unwrap_or_default();
    let order = |(value, name): &(&str, &str)| {
        let chosen = if *value == sort { " selected" } else { "" };
        format!("<option value=\"{value}\"{chosen}>{name}</option>")
    };
    let orders: String = ORDERS.iter().map(order).collect();
    let parts = if params.get("parts").is_some() { " checked" } else { "" };
    format!(
        "<form class=\"filter\" method=\"get\" action=\"./\" role=\"search\" data-auto>\
         <label class=\"grow\">Search <input type=\"search\" name=\"q\" value=\"{}\" placeholder=\"name, status, card, error, tag, note\"></label>\
         <label>Order <select name=\"sort\">{orders}</select></label>\
         <label class=\"check\"><input type=\"checkbox\" name=\"parts\" value=\"1\"{parts}> steps and trials too</label>\
         <input type=\"hidden\" name=\"status\" value=\"{}\"><input type=\"hidden\" name=\"tag\" value=\"{}\"><button type=\"submit\">Show</button></form>",
        escape(params.get("q").unwrap_or_default()),
        escape(params.get("status").unwrap_or_default()),
        escape(params.get("tag").unwrap_or_default())
    )
}

fn nothing(ui: &Ui, none_at_all: bool) -> String {
    match none_at_all {
        true => format!(
            "<p class=\"none\">There is no run in {} yet. <code>pipe run FILE</code> starts one.</p>",
            escape(&ui.runs.display().to_string())
        ),
        false => "<p class=\"none\">No run matches. <a href=\"./\">Show all</a></p>".to_owned(),
    }
}

fn table(rows: &[Arc<Row>]) -> String {
    let body: String = rows.iter().map(|row| table_row(row)).collect();
    format!(
        "<div class=\"table\"><table class=\"runs\"><thead><tr><th scope=\"col\"><span class=\"unseen\">select</span></th>\
         <th scope=\"col\">run</th><th scope=\"col\">status</th><th scope=\"col\">progress</th>\
         <th scope=\"col\">metric</th><th scope=\"col\">memory</th><th scope=\"col\">time</th></tr></thead>\
         <tbody data-keyed>{body}</tbody></table></div>"
    )
}

fn table_row(row: &Row) -> String {
    let (key, status) = (escape(&row.key), row.status.name());
    let mut about: Vec<String> = Vec::new();
    about.extend(minutes_utc(row.created));
    about.extend(match row.work {
        WorkKind::Training | WorkKind::Command => (row.attempts > 1).then(|| text::count(row.attempts, "attempt")),
        WorkKind::Stages => Some("several steps".to_owned()),
        WorkKind::Study => Some("study".to_owned()),
    });
    let remark = match row.remark.as_str() {
        "" => String::new(),
        remark => format!("<p class=\"remark\">{}</p>", escape(remark)),
    };
    let topic =
        |tag: &String| format!("<a class=\"topic\" href=\"./?tag={}\">{}</a> ", escape(&encode(tag)), escape(tag));
    let tags: String = row.notes.tags.iter().map(topic).collect();
    let note = escape(&bounded(row.notes.first_line(), NOTE));
    let notes = if row.notes.is_empty() { String::new() } else { format!("<p class=\"noted\">{tags}{note}</p>") };
    format!(
        "<tr id=\"row-{key}\" class=\"{status}\"><td class=\"pick\"><input type=\"checkbox\" name=\"run\" value=\"{key}\" \
         aria-label=\"Compare {key}\"></td><th scope=\"row\"><a href=\"{}\">{key}</a><small>{}</small>{remark}{notes}</th>\
         <td><span class=\"tag {status}\">{status}</span></td><td data-name=\"progress\">{}</td>\
         <td data-name=\"metric\">{}</td><td data-name=\"memory\">{}</td><td data-name=\"time\">{}</td></tr>",
        escape(&run_address(&row.key)),
        escape(&about.join(", ")),
        progress(&row.progress),
        metric(&row.progress),
        memory(&row.progress),
        duration(row.progress.seconds),
    )
}

fn progress(found: &Figures) -> String {
    let (Some(step), Some(steps)) = (found.step.or(found.steps.map(|_| 0)), found.steps) else {
        return found.step.map_or("-".to_owned(), |step| format!("step {}", grouped(step)));
    };
    let left = found.left.map_or(String::new(), |left| format!("<small>{} left</small>", span(left)));
    let label = format!("step {step} of {steps}");
    let bar = meter(step as f64 / steps as f64, "", &label);
    format!("{bar}<span>{} of {}</span>{left}", grouped(step), grouped(steps))
}

fn metric(found: &Figures) -> String {
    let Some((name, value)) = &found.metric else { return "-".to_owned() };
    let best = found.best.filter(|best| best != value);
    let best = best.map_or(String::new(), |best| format!("<small>best {}</small>", figure(best)));
    format!("<span>{}</span><small>{}</small>{best}", figure(*value), escape(name.trim_start_matches("eval.")))
}

fn memory(found: &Figures) -> String {
    let device = found.device.as_deref().map_or(String::new(), |device| format!("<small>{}</small>", escape(device)));
    match (found.peak, found.capacity) {
        // A limit on what a trainer allocates itself does not count its libraries, and says nothing of all that it holds.
        (Some(peak), Some(capacity)) if capacity > 0 && peak <= capacity => {
            let label = format!("{} of {}", human_bytes(peak), human_bytes(capacity));
            let share = peak as f64 / capacity as f64;
            let bar = meter(share, if share > 0.95 { "full" } else { "" }, &label);
            format!("{bar}<span>{label}</span>{device}")
        }
        (Some(peak), _) => format!("<span>{}</span>{device}", human_bytes(peak)),
        (None, _) if device.is_empty() => "-".to_owned(),
        (None, _) => device,
    }
}

fn pages(params: &Params, first: usize, count: usize) -> String {
    if count <= ROWS {
        return String::new();
    }
    let mut html = "<nav class=\"pages\" aria-label=\"Pages of runs\">".to_owned();
    let link = |page: usize, name: &str| {
        format!("<a href=\"./{}\">{name}</a> ", escape(&params.with("page", &page.to_string())))
    };
    if first > 0 {
        html.push_str(&link(first, "Newer"));
    }
    let last = ((first + 1) * ROWS).min(count);
    write!(html, "<span>{} to {} of {}</span> ", first * ROWS + 1, last, grouped(count as u64)).ok();
    if last < count {
        html.push_str(&link(first + 2, "Older"));
    }
    html + "</nav>"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::Notes;

    fn row(key: &str, status: Status, metric: Option<f64>) -> Arc<Row> {
        Arc::new(Row {
            key: key.to_owned(),
            path: std::path::PathBuf::new(),
            is_own: true,
            bucket: None,
            name: "recipes".to_owned(),
            status,
            created: 0.0,
            engine: "process".to_owned(),
            work: WorkKind::Training,
            part_of: key.contains('.').then(|| "whole".to_owned()),
            attempts: 1,
            progress: Figures { metric: metric.map(|value| ("eval.accuracy".to_owned(), value)), ..Figures::default() },
            remark: "the Disk is full".to_owned(),
            notes: Notes { note: format!("noted-{key}\nmore"), tags: vec![key.to_owned(), "shared".to_owned()] },
        })
    }

    #[test]
    fn rows_are_selected_and_sorted() {
        let all = [
            row("b", Status::Failed, Some(0.5)),
            row("a", Status::Finished, Some(0.9)),
            row("whole.part", Status::Finished, None),
            row("c", Status::Finished, None),
        ];
        let keys =
            |query: &str| select(&all, &Params::read(query)).iter().map(|row| row.key.clone()).collect::<Vec<_>>();
        assert_eq!(keys(""), ["b", "a", "c"]);
        assert_eq!(keys("parts=1"), ["b", "a", "whole.part", "c"]);
        assert_eq!(keys("status=finished"), ["a", "c"]);
        assert_eq!(keys("q=disk+FAILED"), ["b"]);
        assert_eq!(keys("sort=metric"), ["a", "b", "c"]);
        assert_eq!(keys("sort=name"), ["a", "b", "c"]);
        assert_eq!(keys("q=nothing"), [""; 0]);
        assert_eq!(
            (keys("tag=a"), keys("tag=shared&status=failed"), keys("tag=A")),
            (vec!["a".to_owned()], vec!["b".to_owned()], vec![])
        );
        assert_eq!((keys("q=noted-C"), keys("q=shared").len()), (vec!["c".to_owned()], 3));
        let html = counts(&all, &Params::read("tag=a&page=2&q=x"));
        assert!(
            html.contains("?q=x\" aria-current=\"true\">a <b>1</b>") && html.contains(">shared <b>3</b>"),
            "{html}"
        );
    }

    #[test]
    fn hostile_names_are_text() {
        let html = table_row(&row("<img src=x onerror=alert(1)>\"'", Status::Unknown, None));
        assert!(!html.contains("<img") && html.contains("&lt;img") && html.contains("run/%3Cimg%20src"), "{html}");
    }
}
