//! The log of an attempt: its end, or the lines that hold a text, read within bounds.

use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

use pipe_spec::{Event, RunFolder, RunState};

use super::index::Row;
use super::request::Params;
use crate::report::html::markup::escape;
use crate::report::{bounded, visible};
use crate::system::files;

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

#[cfg(test)]
mod tests {
    use super::*;

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
}
