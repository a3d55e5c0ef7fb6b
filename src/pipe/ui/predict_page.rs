//! Trying the model of a run: a form with the fields of its data, and the model's answer.

use std::fmt::Write;
use std::path::Path;
use std::sync::Arc;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use pipe_data::compressed::ending;
use pipe_model::{FeatureKind, TaskData, read_config};
use pipe_spec::model_folder::CONFIG;
use pipe_spec::pipeline::{COMPLETION, CONTEXT, CONVERSATION, Data, PROMPT, Task, WorkKind};
use serde_json::{Map, Value, json};

use super::door::secret;
use super::index::Row;
use super::page::{NotFound, Page, Parts, Upload, encode, run_address};
use super::predictions::{self, End, Files, Prediction};
use super::{Ui, acts};
use crate::execute::predict::Subject;
use crate::input::read_config as read_config_file;
use crate::report::html::markup::{escape, number, plain_setting};

/// Bytes of what is sent: a picture, and texts.
pub const MAX_BODY: usize = 10 << 20;
const MAX_TEXT: usize = 64 << 10;
/// Bytes of a picture that is shown beside the answer.
const MAX_SHOWN: usize = 512 << 10;
/// Predictions that are shown, and classes of one.
const SHOWN: usize = 20;
const CLASSES: usize = 10;
/// Values of a category that are suggested.
const SUGGESTED: usize = 200;

/// A field of the form.
#[derive(Clone, Debug, PartialEq)]
struct Field {
    /// The column that it fills.
    column: String,
    kind: Kind,
}

#[derive(Clone, Debug, PartialEq)]
enum Kind {
    Text,
    /// The question of a conversation.
    Question,
    /// A cell of a table, with values that were trained on.
    Cell(Vec<String>),
    Picture,
    /// Lines of comma-separated values, the first with the names.
    Lines,
}

/// The link to the form, for a run with a model.
pub fn link(ui: &Ui, row: &Row) -> String {
    let has_model = row.work == WorkKind::Training && row.path.join("model").join(CONFIG).is_file();
    if !has_model || acts::check_own(ui, row).is_err() {
        return String::new();
    }
    format!(
        "<p class=\"acts\"><a class=\"button\" href=\"predict?run={}\">Try the model</a></p>",
        escape(&encode(&row.key))
    )
}

/// The fields that the model needs.
fn fields(subject: &Subject) -> Vec<Field> {
    let (task, data) = (subject.task(), &subject.settings.data);
    match task {
        Task::Table => cells(subject).unwrap_or_default(),
        Task::TimeSeries => vec![Field { column: "rows".to_owned(), kind: Kind::Lines }],
        _ => of_roles(task, data),
    }
}

fn of_roles(task: Task, data: &Data) -> Vec<Field> {
    let field = |role: &str, kind| Field { column: data.field(role).to_owned(), kind };
    let text = |role: &str| field(role, Kind::Text);
    let named = |role: &str| data.fields.contains_key(role).then(|| text(role));
    match task {
        Task::Seq2Seq | Task::Language if data.fields.contains_key(CONVERSATION) => {
            vec![field(CONVERSATION, Kind::Question)]
        }
        Task::Seq2Seq => std::iter::once(text("source")).chain(named(CONTEXT)).collect(),
        Task::Language if data.fields.contains_key(COMPLETION) => {
            std::iter::once(text(PROMPT)).chain(named(CONTEXT)).collect()
        }
        Task::Language | Task::Preference => vec![text(PROMPT)],
        Task::Classification => std::iter::once(text("text")).chain(named("text_pair")).collect(),
        Task::Contrastive => vec![field("image", Kind::Picture), text("text")],
        Task::PictureClasses => vec![field("image", Kind::Picture)],
        Task::TokenLabels => vec![text("text")],
        Task::Table | Task::TimeSeries => Vec::new(),
    }
}

/// The columns of a table that the model reads, as its config has them.
fn cells(subject: &Subject) -> Option<Vec<Field>> {
    let config = read_config(subject.settings.model.arch, &read_config_file(&subject.model)?).ok()?;
    let TaskData::Table { columns, .. } = config.task_data(None) else { return None };
    let cell = |feature: pipe_model::Feature| {
        let values = match feature.kind {
            FeatureKind::Category { values } => values,
            FeatureKind::Number { .. } => Vec::new(),
        };
        Field { column: feature.name, kind: Kind::Cell(values) }
    };
    Some(columns?.features.into_iter().map(cell).collect())
}

/// The empty form.
pub fn form(ui: &Ui, run: &str, parts: Parts) -> Result<String, NotFound> {
    let (row, subject) = find(ui, run).map_err(NotFound)?;
    Ok(page(ui, parts, &row, &subject, None))
}

fn find(ui: &Ui, run: &str) -> Result<(Arc<Row>, Subject), String> {
    let row = ui.row(run).map_err(|why| why.0)?;
    acts::check_own(ui, &row)?;
    let subject = Subject::find(&row.path.display().to_string()).map_err(|error| error.to_string())?;
    Ok((row, subject))
}

/// A prediction, with the form for the next one.
pub fn answer_page(ui: &Ui, number: u64, parts: Parts) -> Result<String, NotFound> {
    let none = || NotFound("There is no prediction with this number.".to_owned());
    let prediction = ui.predictions.get(number).ok_or_else(none)?;
    let (row, subject) = find(ui, &prediction.run).map_err(NotFound)?;
    Ok(page(ui, parts, &row, &subject, Some((number, &prediction))))
}

fn page(ui: &Ui, mut parts: Parts, row: &Row, subject: &Subject, asked: Option<(u64, &Prediction)>) -> String {
    let fields = fields(subject);
    parts.fixed(|| {
        let (address, key) = (escape(&run_address(&row.key)), escape(&row.key));
        format!(
            "<p class=\"crumb\"><a href=\"{address}\">{key}</a></p><header><h1>Try the model</h1>\
             <p class=\"note\">Task: {}. <code>pipe predict</code> computes the answer.</p></header>{}",
            subject.task().name(),
            fields_form(row, &fields, asked.map(|(_, asked)| asked))
        )
    });
    parts.live("answer", || asked.map_or(String::new(), |(number, asked)| answer(number, asked)));
    let events = asked.map(|(number, _)| format!("?run={}", encode(&format!("prediction {number}"))));
    Page { title: "Try the model", entry: "Runs", events }.render(ui, parts)
}

fn fields_form(row: &Row, fields: &[Field], asked: Option<&Prediction>) -> String {
    let Ok(form) = secret(8) else { return String::new() };
    let value = |index: usize| asked.and_then(|asked| asked.values.get(index)).map_or("", String::as_str);
    let inputs: String = fields.iter().enumerate().map(|(index, field)| input(index, field, value(index))).collect();
    let on_cpu = if asked.is_some_and(|asked| asked.on_cpu) { " checked" } else { "" };
    format!(
        "<form class=\"start\" method=\"post\" action=\"predict\" enctype=\"multipart/form-data\">\
         <input type=\"hidden\" name=\"form\" value=\"{form}\"><input type=\"hidden\" name=\"run\" value=\"{}\">\
         <div class=\"fields\">{inputs}</div>\
         <label class=\"check\"><input type=\"checkbox\" name=\"cpu\" value=\"1\"{on_cpu}> on the processor, without a wait \
         for a card</label><p class=\"acts\"><button type=\"submit\">Predict</button></p></form>",
        escape(&row.key)
    )
}

fn input(index: usize, field: &Field, value: &str) -> String {
    let (column, text) = (escape(&field.column), escape(value));
    match &field.kind {
        Kind::Text | Kind::Question => format!(
            "<label class=\"whole\">{column} <textarea name=\"f{index}\" rows=\"4\" maxlength=\"{MAX_TEXT}\">\n{text}</textarea></label>"
        ),
        Kind::Lines => format!(
            "<label class=\"whole\">Comma-separated values, the first line with the names of the columns \
             <textarea name=\"f{index}\" rows=\"8\" maxlength=\"{MAX_TEXT}\">\n{text}</textarea></label>"
        ),
        Kind::Picture => format!(
            "<label class=\"whole\">{column}: drop a picture here, or choose one (JPEG, PNG, WebP) \
             <input type=\"file\" name=\"f{index}\" accept=\"image/jpeg,image/png,image/webp\" data-preview></label>"
        ),
        Kind::Cell(values) => {
            let option = |value: &String| format!("<option value=\"{}\">", escape(value));
            let options: String = values.iter().take(SUGGESTED).map(option).collect();
            format!(
                "<label>{column} <input name=\"f{index}\" value=\"{text}\" list=\"values-{index}\" autocomplete=\"off\">\
                 </label><datalist id=\"values-{index}\">{options}</datalist>"
            )
        }
    }
}

/// Starts a prediction of what was sent; its number.
pub fn begin(ui: &Arc<Ui>, sent: &Upload) -> Result<u64, String> {
    let (row, subject) = find(ui, &sent.text("run"))?;
    let fields = fields(&subject);
    let files = tempfile::Builder::new().prefix("pipe-try-").tempdir().map_err(|error| error.to_string())?;
    let (data, values, text) = write_row(&fields, sent, files.path())?;
    let form = format!("{} {}", sent.text("form"), blake3::hash(sent.content()).to_hex());
    let mut new = Prediction::new(row.key.clone(), values, !sent.text("cpu").is_empty(), text);
    new.picture = picture_address(&fields, sent);
    predictions::start(ui, &form, &row.path, Files { folder: files, data }, new)
}

/// The picture that was sent, as the address of an image.
fn picture_address(fields: &[Field], sent: &Upload) -> Option<String> {
    let index = fields.iter().position(|field| field.kind == Kind::Picture)?;
    let picture = sent.bytes(&format!("f{index}")).filter(|picture| picture.len() <= MAX_SHOWN)?;
    let kind = ending(picture)?.replace("jpg", "jpeg");
    Some(format!("data:image/{kind};base64,{}", BASE64_STANDARD.encode(picture)))
}

/// Writes the row, and the picture that it names, into this folder: the name of the file, the values for the form, the row.
fn write_row(fields: &[Field], sent: &Upload, folder: &Path) -> Result<(&'static str, Vec<String>, String), String> {
    let (mut object, mut values, mut lines) = (Map::new(), Vec::new(), None);
    for (index, field) in fields.iter().enumerate() {
        let name = format!("f{index}");
        if field.kind == Kind::Picture {
            values.push(String::new());
            if let Some(picture) = sent.bytes(&name).filter(|bytes| !bytes.is_empty()) {
                let known = ending(picture).filter(|ending| ["jpg", "png", "webp"].contains(ending));
                let file = format!("picture.{}", known.ok_or("The picture is no JPEG, PNG or WebP file.")?);
                std::fs::write(folder.join(&file), picture).map_err(|error| error.to_string())?;
                object.insert(field.column.clone(), json!(file));
            }
            continue;
        }
        let text = sent.text(&name).replace("\r\n", "\n");
        if text.len() > MAX_TEXT {
            return Err(format!("{:?} is longer than {MAX_TEXT} bytes.", field.column));
        }
        values.push(text.clone());
        match &field.kind {
            Kind::Lines => lines = Some(text.clone()).filter(|text| !text.trim().is_empty()),
            _ if text.trim().is_empty() => {}
            kind => drop(object.insert(field.column.clone(), cell(kind, text))),
        }
    }
    let (data, text) = match lines {
        Some(lines) => ("rows.csv", lines),
        None if object.is_empty() => return Err("Nothing was given: fill in a field.".to_owned()),
        None => ("rows.jsonl", Value::Object(object).to_string()),
    };
    std::fs::write(folder.join(data), format!("{}\n", text.trim_end())).map_err(|error| error.to_string())?;
    Ok((data, values, text))
}

fn cell(kind: &Kind, text: String) -> Value {
    let number = |text: &str| text.trim().parse::<f64>().ok().filter(|number| number.is_finite());
    match kind {
        Kind::Question => json!([{ "role": "user", "content": text }]),
        Kind::Cell(values) if values.is_empty() => number(&text).map_or_else(|| json!(text), |number| json!(number)),
        _ => json!(text),
    }
}

/// The answer, why there is none, or that it is not there yet.
fn answer(number: u64, asked: &Prediction) -> String {
    let content = match &asked.end {
        None => format!(
            "<h2>Working ...</h2><form method=\"post\" action=\"cancel\"><input type=\"hidden\" name=\"number\" value=\"{number}\">\
             <p class=\"acts\"><button type=\"submit\">Cancel</button></p></form>"
        ),
        Some(End::Failed(why)) => {
            format!("<h2>No answer</h2><pre class=\"command failed\">{}</pre>", escape(why))
        }
        Some(End::Answer(lines)) => {
            let values = lines.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
            let shown: String = values.take(SHOWN).map(|value| prediction(&value)).collect();
            let json = escape(lines.trim());
            format!(
                "<h2>Answer</h2>{shown}<details><summary>As JSON</summary><pre class=\"wrapped\">{json}</pre></details>"
            )
        }
    };
    let picture = asked.picture.as_ref().map_or(String::new(), |picture| {
        format!("<p><img class=\"asked\" src=\"{}\" alt=\"the picture that was sent\"></p>", escape(picture))
    });
    format!(
        "<section id=\"answer\">{picture}{content}<details><summary>Command and row</summary><pre class=\"wrapped\">{}\n\n{}</pre></details>\
         </section>",
        escape(&asked.command),
        escape(&asked.row)
    )
}

/// One prediction: a sentence, and bars for the classes.
fn prediction(value: &Value) -> String {
    let mut html = "<div class=\"hero\">".to_owned();
    let text = |value: &Value| escape(&plain_setting(value, MAX_TEXT));
    for key in ["text", "label", "value"] {
        if let Some(found) = value.get(key) {
            write!(html, "<p class=\"{}\">{}</p>", if key == "text" { "said" } else { "sentence" }, text(found)).ok();
        }
    }
    if let Some(labels) = value.get("labels").and_then(Value::as_array) {
        let labels: Vec<String> = labels.iter().map(text).collect();
        let labels = if labels.is_empty() { "no label".to_owned() } else { labels.join(", ") };
        write!(html, "<p class=\"sentence\">{labels}</p>").ok();
    }
    if let Some(spans) = value.get("spans").and_then(Value::as_array) {
        let span = |span: &Value| format!("<li>{}: <b>{}</b></li>", text(&span["text"]), text(&span["label"]));
        let spans: String = spans.iter().map(span).collect();
        html.push_str(&if spans.is_empty() { "<p>no labels</p>".to_owned() } else { format!("<ul>{spans}</ul>") });
    }
    if let Some(embedding) = value.get("embedding").and_then(Value::as_array) {
        write!(html, "<p>An embedding of {} numbers.</p>", embedding.len()).ok();
    }
    html.push_str(&scores(value));
    let has_scores = value.get("scores").is_some();
    for key in ["score", "loss", "perplexity", "tokens"] {
        if let Some(found) = value.get(key).and_then(Value::as_f64).filter(|_| !has_scores) {
            write!(html, "<p>{key}: {}</p>", number(found)).ok();
        }
    }
    html + "</div>"
}

fn scores(value: &Value) -> String {
    let Some(scores) = value.get("scores").and_then(Value::as_object) else { return String::new() };
    let mut scores: Vec<(&String, f64)> =
        scores.iter().filter_map(|(name, score)| Some((name, score.as_f64()?))).collect();
    scores.sort_by(|a, b| b.1.total_cmp(&a.1));
    let bar = |(name, score): &(&String, f64)| {
        let share = (score * 100.0).clamp(0.0, 100.0);
        format!(
            "<div class=\"against own\" style=\"--share:{share:.1}%\"><span>{}</span><i></i><b>{share:.1} %</b></div>",
            escape(name)
        )
    };
    scores.iter().take(CLASSES).map(bar).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(fields: &[(&str, &str)]) -> Data {
        let mut data = Data::new(pipe_spec::pipeline::Paths(Vec::new()));
        data.fields = fields.iter().map(|(role, column)| ((*role).to_owned(), (*column).to_owned())).collect();
        data
    }

    #[test]
    fn fields_of_tasks() {
        let columns = |task, named: &[(&str, &str)]| {
            let fields = of_roles(task, &data(named));
            fields.into_iter().map(|field| format!("{}:{:?}", field.column, field.kind)).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(columns(Task::Seq2Seq, &[("source", "dish")]), "dish:Text");
        assert_eq!(columns(Task::Seq2Seq, &[("messages", "talk")]), "talk:Question");
        assert_eq!(columns(Task::Language, &[("prompt", "q"), ("completion", "a"), ("context", "c")]), "q:Text c:Text");
        assert_eq!(columns(Task::Language, &[]), "prompt:Text");
        assert_eq!(columns(Task::Classification, &[("text_pair", "b")]), "text:Text b:Text");
        assert_eq!(columns(Task::Contrastive, &[]), "image:Picture text:Text");
    }

    #[test]
    fn a_row_is_written() {
        let folder = tempfile::tempdir().unwrap();
        let field = |column: &str, kind| Field { column: column.to_owned(), kind };
        let fields = [
            field("a b", Kind::Cell(Vec::new())),
            field("c", Kind::Cell(vec!["1".to_owned()])),
            field("p", Kind::Picture),
        ];
        let sent = |parts: &[(&str, &[u8])]| {
            let parts = parts.iter().map(|(name, bytes)| ((*name).to_owned(), bytes.to_vec())).collect();
            write_row(&fields, &Upload::of(parts), folder.path()).map(|(data, _, text)| format!("{data} {text}"))
        };
        assert_eq!(sent(&[("f0", b"1.5"), ("f1", b"1")]).unwrap(), "rows.jsonl {\"a b\":1.5,\"c\":\"1\"}");
        assert_eq!(
            sent(&[("f0", b"x"), ("f2", b"\x89PNG..")]).unwrap(),
            "rows.jsonl {\"a b\":\"x\",\"p\":\"picture.png\"}"
        );
        assert!(folder.path().join("picture.png").is_file());
        let upload = Upload::of(vec![("f2".to_owned(), b"\x89PNG..".to_vec())]);
        assert_eq!(picture_address(&fields, &upload).as_deref(), Some("data:image/png;base64,iVBORy4u"));
        assert!(sent(&[("f0", b" ")]).is_err() && sent(&[("f2", b"<svg>")]).is_err());
        assert!(sent(&[("f0", &[b'x'; MAX_TEXT + 1])]).is_err());
        assert_eq!(cell(&Kind::Question, "hi".to_owned()), json!([{ "role": "user", "content": "hi" }]));
    }

    #[test]
    fn answers_are_text() {
        let html = prediction(&json!({ "label": "<b>", "score": 0.9, "scores": { "<b>": 0.9, "other": 0.1 } }));
        assert!(html.contains("sentence\">&lt;b&gt;<") && html.contains("90.0 %") && !html.contains("<b><"), "{html}");
        let html = prediction(&json!({ "text": "<img src=x>\nline", "spans": [{ "text": "<i>", "label": "PER" }] }));
        assert!(!html.contains("<img") && !html.contains("<i>"), "{html}");
        assert!(prediction(&json!({ "loss": 2.5, "perplexity": 12.0 })).contains("perplexity: 12"));
    }
}
