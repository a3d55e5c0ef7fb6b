//! The page of one run: the answer first, curves that grow, attempts and why, examples, its note and tags, the commands, and the log of an
//! attempt: its end, or the lines that hold a text, read within bounds.

use std::io::{Read, Seek, SeekFrom};
use std::path::Path;
use std::sync::Arc;

use pipe_spec::pipeline::{CommandLine, WorkKind};
use pipe_spec::{Event, RunFolder, RunState, Status};

use super::door::secret;
use super::folders::key_beside;
use super::index::Row;
use super::page::{NotFound, Page, Params, Parts, encode, meter, run_address};
use super::{Ui, acts, predict_page};
use crate::execute::study::OpenedStudy;
use crate::report::html::curve::{Smoothing, View};
use crate::report::html::markup::escape;
use crate::report::html::{classes, examples, figures, run, stages};
use crate::report::{bounded, duration, grouped, span, visible};
use crate::run::{Listed, MAX_NOTE, NoteText, Record, Tag};
use crate::system::files;

pub fn page(ui: &Ui, key: &str, params: &Params, parts: Parts) -> Result<String, NotFound> {
    let row = ui.row(key)?;
    let attempt = row.attempts as u32;
    if attempt > 0 {
        ui.changes.watch_attempt(key, pipe_spec::RunFolder::new(&row.path).attempt(attempt).path());
    }
    Ok(ui.opened.with(&row.path, |record| render(ui, &row, record, params, parts)))
}

fn render(ui: &Ui, row: &Row, record: &Record, params: &Params, mut parts: Parts) -> String {
    let view = view(params);
    let state = record.state.as_ref();
    parts.fixed(|| "<p class=\"crumb\"><a href=\"./\">All runs</a></p>".to_owned());
    let is_study = row.work == WorkKind::Study;
    parts.live("head", || if is_study { study(row) } else { run::heading(record) + &now(row, state) });
    parts.live("acts", || predict_page::link(ui, row) + &acts::buttons(ui, row));
    parts.fixed(|| form(ui, row));
    if let Some(state) = state.filter(|state| !state.stages().is_empty()) {
        parts.live("steps", || stages::section(state, &record.stage_answers, beside(row)));
    } else if !is_study {
        of_training(ui, record, params, &view, &mut parts);
        parts.live("log", || section(row, state, params));
    }
    parts.live("files", || run::files(record));
    parts.fixed(|| commands(ui, row));
    let events = Some(format!("?run={}", encode(&row.key)));
    Page { title: &row.key, entry: "", events }.render(ui, parts)
}

fn of_training(ui: &Ui, record: &Record, params: &Params, view: &View, parts: &mut Parts) {
    parts.fixed(|| controls(params));
    parts.live("curves", || figures::section(record, view));
    parts.live("attempts", || record.state.as_ref().map_or(String::new(), run::attempts));
    parts.live("examples", || {
        [classes::section(record), examples::mistakes(record), examples::retrieved(record), examples::generated(record)]
            .concat()
    });
    parts.live("machine", || {
        [
            run::ranks(record),
            figures::memory_section(record, &ui.variables),
            run::machine(record),
            run::warnings(record),
        ]
        .concat()
    });
}

/// The view that the address asks for.
pub fn view(params: &Params) -> View {
    let steps = params.number("from").or(params.number("to")).map(|_| {
        let from = params.number("from").unwrap_or(0.0).clamp(0.0, 1e14);
        (from, params.number("to").unwrap_or(f64::MAX).clamp(from + 1.0, 1e15))
    });
    let smoothing = smoothing(params).map_or(Smoothing::Mean, Smoothing::Exponential);
    View { steps, smoothing, values: true }
}

/// The weight of the exponential mean; absent for the usual curves.
fn smoothing(params: &Params) -> Option<f64> {
    params.number("smooth").map(|weight| weight.clamp(0.0, Smoothing::MOST))
}

/// The choice of steps and smoothing; with a script, a stretch can be drawn with the pointer too.
pub fn controls(params: &Params) -> String {
    let smooth = smoothing(params).map_or(String::new(), |weight| weight.to_string());
    let slider = if smooth.is_empty() { "0" } else { smooth.as_str() };
    let number = |name: &str| params.number(name).map_or(String::new(), |number| format!("{number:.0}"));
    let hidden: String = params
        .all("run")
        .map(|run| format!("<input type=\"hidden\" name=\"run\" value=\"{}\">", escape(run)))
        .collect();
    format!(
        "<form class=\"filter view\" method=\"get\" data-auto data-here>{hidden}\
         <label>From step <input type=\"number\" name=\"from\" min=\"0\" value=\"{1}\"></label>\
         <label>to step <input type=\"number\" name=\"to\" min=\"0\" value=\"{2}\"></label>\
         <label>Smoothing <input type=\"number\" name=\"smooth\" min=\"0\" max=\"{0}\" step=\"any\" value=\"{smooth}\" \
         placeholder=\"auto\" title=\"0: off; closer to 1: smoother; empty: a running mean over long curves\">\
         <input type=\"range\" class=\"with-script\" data-sets=\"smooth\" min=\"0\" max=\"{0}\" step=\"0.001\" value=\"{slider}\" \
         aria-label=\"Smoothing\"></label>\
         <button type=\"submit\">Show</button> <small class=\"with-script\">Drag over a curve to zoom; double-click shows all. \
         With the keyboard: arrows move, + and - zoom, 0 shows all.</small></form>",
        Smoothing::MOST,
        number("from"),
        number("to")
    )
}

/// How far a run is that has not ended.
fn now(row: &Row, state: Option<&RunState>) -> String {
    let Some(state) = state.filter(|state| state.status == Status::Running) else { return String::new() };
    let found = &row.progress;
    let doing =
        state.doing.as_deref().map_or(String::new(), |doing| format!("<p class=\"doing\">{}</p>", escape(doing)));
    let (Some(steps), step) = (found.steps, found.step.unwrap_or(0)) else { return doing };
    let label = format!("step {} of {}", grouped(step), grouped(steps));
    let left = found.left.map_or(String::new(), |left| format!(" &middot; {} left", span(left)));
    let ran = duration(found.seconds);
    format!(
        "{doing}<p class=\"now\">{}<span>{label}{left} &middot; {ran} so far</span></p>",
        meter(step as f64 / steps.max(1) as f64, "wide", &label)
    )
}

/// The addresses of the pages of runs beside this one.
fn beside(row: &Row) -> impl Fn(&str) -> String {
    |run| run_address(&key_beside(&row.key, run))
}

/// Bytes of the storage of a study that is read.
const MAX_STORAGE: u64 = 64 << 20;

/// History, importances, parallel coordinates, fronts, memory and trials of a study.
fn study(row: &Row) -> String {
    let found = Listed::read(&row.path).ok_or_else(|| "its folder cannot be read".to_owned());
    let opened = found.and_then(|found| OpenedStudy::open_up_to(MAX_STORAGE, found).map_err(|error| error.to_string()));
    match opened {
        Ok(opened) => opened.view().body(&beside(row), row.notes.clone()),
        Err(why) => format!("<header><h1>{}</h1></header><p class=\"missing\">{}</p>", escape(&row.key), escape(&why)),
    }
}

/// The commands for this run.
fn commands(ui: &Ui, row: &Row) -> String {
    if !row.is_own {
        let why = "Its folder has another name than the run in it, so that commands do not find it.";
        return format!("<p class=\"missing\">{why}</p>");
    }
    if let Some(address) = &row.bucket {
        let command = format!("pipe resume {}", CommandLine::quoted(address));
        return format!(
            "<details><summary>Commands <small>takes the run over, where it has stopped</small></summary><pre>{}</pre></details>",
            escape(&command)
        );
    }
    let id = row.id();
    let commands = [
        format!("pipe show {id}"),
        format!("pipe logs {id} --follow"),
        format!("pipe resume {id}"),
        format!("pipe reproduce {id}"),
        format!("pipe predict {id} --data rows.jsonl --out predictions.jsonl"),
        format!("pipe report {id} --out report.html"),
    ];
    let environment = acts::environment(ui, row);
    let commands = commands.map(|command| format!("{environment}{command}"));
    let text = escape(&commands.join("\n"));
    format!("<details><summary>Commands <small>for a terminal</small></summary><pre>{text}</pre></details>")
}

/// Bytes of the end of a log that are read, and that are searched.
const TAIL: u64 = 512 << 10;
const SEARCHED: u64 = 16 << 20;
/// Lines that are shown, and characters of a line.
const LINES: usize = 400;
const LINE: usize = 1000;

/// The section.
pub fn section(row: &Row, state: Option<&RunState>, params: &Params) -> String {
    let numbers: Vec<u32> = state.iter().flat_map(|state| state.attempts()).map(|attempt| attempt.number).collect();
    let Some(last) = numbers.last().copied() else { return String::new() };
    let asked = params.number("attempt").map(|number| number as u32).filter(|number| numbers.contains(number));
    let (number, find) = (asked.unwrap_or(last), params.get("find"));
    let folder = RunFolder::new(&row.path);
    let found = read(&folder.attempt(number).log(), find);
    let note = match (&found, find) {
        (Err(error), _) => format!("The log cannot be read: {error}."),
        (Ok(found), Some(_)) => format!("{} of the last {} MiB match.", lines(found.matches), SEARCHED >> 20),
        (Ok(found), None) if found.is_cut => format!("The last {LINES} lines. `pipe logs {}` prints all.", row.id()),
        (Ok(found), None) if found.lines.is_empty() => "Nothing was written yet.".to_owned(),
        (Ok(_), None) => String::new(),
    };
    let text: Vec<String> = found.map(|found| found.lines).unwrap_or_default();
    let option = |one: &u32| {
        let chosen = if *one == number { " selected" } else { "" };
        // The last one is followed by the next.
        let value = if *one == last { String::new() } else { one.to_string() };
        format!("<option value=\"{value}\"{chosen}>{one}</option>")
    };
    let options: String = numbers.iter().map(option).collect();
    let others = ["from", "to", "smooth"].into_iter().filter_map(|name| Some((name, params.get(name)?)));
    let hidden: String = others
        .map(|(name, value)| format!("<input type=\"hidden\" name=\"{name}\" value=\"{}\">", escape(value)))
        .collect();
    format!(
        "<section id=\"log\"><h2>Log</h2><form class=\"filter\" method=\"get\" data-auto data-here>{hidden}\
         <label>Attempt <select name=\"attempt\">{options}</select></label>\
         <label class=\"grow\">Find <input type=\"search\" name=\"find\" id=\"find\" value=\"{}\" placeholder=\"text in a line\"></label>\
         <button type=\"submit\">Show</button></form><p class=\"note\">{}</p>\
         <pre class=\"log\" id=\"log-lines\" tabindex=\"0\" aria-label=\"log of attempt {number}\" data-follow>{}</pre></section>\n",
        escape(find.unwrap_or_default()),
        escape(&note),
        escape(&text.join("\n"))
    )
}

fn lines(count: usize) -> String {
    pipe_spec::text::count(count, "line")
}

struct Found {
    lines: Vec<String>,
    matches: usize,
    /// Whether there is more before them.
    is_cut: bool,
}

/// The last lines of a log; with `find`, the last of those that hold it.
fn read(path: &Path, find: Option<&str>) -> std::io::Result<Found> {
    let most = if find.is_some() { SEARCHED } else { TAIL };
    let mut file = match files::open_own(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Ok(Found { lines: Vec::new(), matches: 0, is_cut: false });
        }
        Err(error) => return Err(error),
    };
    let size = file.metadata()?.len();
    let begin = size.saturating_sub(most);
    file.seek(SeekFrom::Start(begin))?;
    let mut bytes = Vec::new();
    file.take(most).read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    let needle = find.map(str::to_lowercase);
    let has_text = |line: &str| needle.as_ref().is_none_or(|needle| line.to_lowercase().contains(needle));
    // The curves show the events.
    let is_event = |line: &str| line.starts_with('{') && Event::parse(line).is_some();
    let wants = |line: &&str| has_text(line) && !is_event(line);
    // The first line may be a part of one.
    let all: Vec<&str> = text.lines().skip(usize::from(begin > 0)).filter(wants).collect();
    let shown = all.iter().skip(all.len().saturating_sub(LINES));
    // A progress bar is one line, with its last state.
    let last_state = |line: &&str| line.trim_end_matches('\r').rsplit('\r').next().unwrap_or_default().to_owned();
    Ok(Found {
        lines: shown.map(last_state).map(|line| bounded(&visible(&line), LINE)).collect(),
        matches: all.len(),
        is_cut: begin > 0 || all.len() > LINES,
    })
}

/// The form; empty where nothing can be done to the run.
pub fn form(ui: &Ui, row: &Row) -> String {
    let (Ok(form), Ok(())) = (secret(8), acts::check_own(ui, row)) else { return String::new() };
    let tags = escape(&row.notes.tags.join(" "));
    let note = escape(&row.notes.note);
    format!(
        "<details id=\"notes\"><summary>Edit the note and the tags</summary>\
         <form class=\"start\" method=\"post\" action=\"note\"><input type=\"hidden\" name=\"form\" value=\"{form}\">\
         <input type=\"hidden\" name=\"run\" value=\"{}\"><input type=\"hidden\" name=\"had\" value=\"{tags}\">\
         <input type=\"hidden\" name=\"was\" value=\"{}\">\
         <label>Tags, with spaces between them <input name=\"tags\" value=\"{tags}\" autocomplete=\"off\"></label>\
         <label>Note <textarea name=\"note\" rows=\"3\" maxlength=\"{MAX_NOTE}\">\n{note}</textarea></label>\
         <p class=\"acts\"><button type=\"submit\">Save</button></p></form></details>",
        escape(&row.key),
        fingerprint(&row.notes.note)
    )
}

/// The same for the same text.
fn fingerprint(text: &str) -> String {
    blake3::hash(text.as_bytes()).to_hex()[..16].to_owned()
}

/// Carries out what a form asks for, once however often it is sent; the number of the act.
pub fn change_notes(ui: &Arc<Ui>, params: &Params) -> Result<u64, String> {
    let row = ui.row(params.get("run").unwrap_or_default()).map_err(|why| why.0)?;
    acts::check_own(ui, &row)?;
    let arguments = arguments(row.id(), params)?;
    let form = params.get("form").ok_or("The form is not complete.")?;
    // The same form with another text is another act.
    let form = format!("{form} {}", fingerprint(&arguments.join("\n")));
    let words: Vec<String> = arguments.iter().map(|word| CommandLine::quoted(word)).collect();
    let command = format!("{}pipe {}", acts::environment(ui, &row), words.join(" "));
    acts::start(ui, &form, Some(&row), command, arguments)
}

/// The changes in the form, as arguments. Those that others have made since it was shown stay.
fn arguments(id: &str, params: &Params) -> Result<Vec<String>, String> {
    let words = |name| params.get(name).unwrap_or_default().split([' ', ',', '\n', '\r', '\t']).map(str::to_owned);
    let tags = |name| words(name).filter(|word| !word.is_empty()).collect::<Vec<String>>();
    let (had, wanted) = (tags("had"), tags("tags"));
    let added = wanted.iter().filter(|tag| !had.contains(tag));
    let removed = had.iter().filter(|tag| !wanted.contains(tag));
    let mut arguments = vec!["note".to_owned()];
    arguments.extend(added.map(|tag| format!("--tag={tag}")));
    arguments.extend(removed.map(|tag| format!("--untag={tag}")));
    if let Some(tag) = wanted.iter().find(|tag| tag.parse::<Tag>().is_err()) {
        return Err(format!("{tag:?} is no tag; {}.", tag.parse::<Tag>().err().unwrap_or_default()));
    }
    let note = params.get("note").unwrap_or_default().replace("\r\n", "\n");
    let note: NoteText = note.parse().map_err(|why| format!("The note is too long: {why}."))?;
    let is_new = params.get("was") != Some(fingerprint(&note.0).as_str());
    if arguments.len() == 1 && !is_new {
        return Err("Neither the note nor the tags are changed.".to_owned());
    }
    arguments.extend(["--".to_owned(), id.to_owned()]);
    arguments.extend(is_new.then_some(note.0));
    Ok(arguments)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn views_of_an_address() {
        let steps = |query: &str| view(&Params::read(query)).steps;
        assert_eq!(steps(""), None);
        assert_eq!(steps("from=10&to=20"), Some((10.0, 20.0)));
        assert_eq!(steps("to=20"), Some((0.0, 20.0)));
        assert_eq!(steps("from=20&to=10"), Some((20.0, 21.0)));
        assert_eq!(steps("from=-5&to=NaN"), Some((0.0, 1e15)));
        let smoothing = |query: &str| view(&Params::read(query)).smoothing;
        assert_eq!((smoothing(""), smoothing("smooth=much")), (Smoothing::Mean, Smoothing::Mean));
        assert_eq!(
            (smoothing("smooth=0.9"), smoothing("smooth=7")),
            (Smoothing::Exponential(0.9), Smoothing::Exponential(0.999))
        );
    }

    #[test]
    fn the_end_of_a_log() {
        let path = std::env::temp_dir().join(format!("pipe-ui-log-{}", std::process::id()));
        assert!(read(&path, None).unwrap().lines.is_empty());
        let text: String = (0..100_000).map(|line| format!("line {line}\n")).collect();
        std::fs::write(&path, text + "  1 %\r 50 %\r100 %\n\u{1b}[1mdone\n").unwrap();
        let found = read(&path, None).unwrap();
        assert_eq!((found.lines.len(), found.is_cut), (LINES, true));
        assert_eq!(found.lines[LINES - 3..], ["line 99999", "100 %", "\\x1b[1mdone"]);
        let found = read(&path, Some("LINE 4242")).unwrap();
        assert_eq!((found.lines.len(), found.lines[0].as_str()), (11, "line 4242"));
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn a_form_is_a_command() {
        let was = fingerprint("old");
        let of = |form: &str| arguments("r1", &Params::read(&format!("{form}&was={was}"))).map(|words| words.join(" "));
        assert_eq!(of("note=old&tags=a+b&had=b+c").unwrap(), "note --tag=a --untag=c -- r1");
        assert_eq!(of("note=--new%0D%0Aline&tags=a&had=a").unwrap(), "note -- r1 --new\nline");
        assert_eq!(of("note=&tags=").unwrap(), "note -- r1 ");
        for wrong in ["note=old&tags=a&had=a", "note=old&tags=%3Cb%3E", "note=old&tags=-a", &"note=x".repeat(999)] {
            assert!(of(wrong).is_err(), "{wrong}");
        }
    }
}
