//! The note and the tags of a run: a form that carries out `pipe note`.

use std::sync::Arc;

use pipe_spec::pipeline::CommandLine;

use super::Ui;
use super::acts;
use super::door::secret;
use super::index::Row;
use super::request::Params;
use crate::report::html::markup::escape;
use crate::run::{MAX_NOTE, NoteText, Tag};

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
pub fn begin(ui: &Arc<Ui>, params: &Params) -> Result<u64, String> {
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
