//! The environment in which transformers renders chat templates, for minijinja: Python's methods, its JSON, and limits on the
//! work, because templates come with downloaded models.

use std::fmt;

use minijinja::value::{Kwargs, Value, ValueKind, from_args};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, State, UndefinedBehavior};
use minijinja_contrib::pycompat;
use serde_json::Value as Json;

use super::marks;

/// Instructions of one rendering at most: a long conversation takes some 100,000.
const FUEL: u64 = 20_000_000;
const DEEPEST_CALL: usize = 100;
/// Lists in lists that a value may be. JSON of conversations has up to 128.
const DEEPEST_VALUE: usize = 200;
/// Values inside of one, each as often as it is written: a list of twice the same list doubles with each turn of a loop.
const MOST_VALUES: usize = 1_000_000;

/// `raise_exception` of a template.
#[derive(Debug)]
pub struct Raised(pub String);

impl fmt::Display for Raised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Raised {}

pub fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_trim_blocks(true);
    environment.set_lstrip_blocks(true);
    environment.set_undefined_behavior(UndefinedBehavior::Lenient);
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_fuel(Some(FUEL));
    environment.set_recursion_limit(DEEPEST_CALL);
    environment.set_unknown_method_callback(call_method);
    environment.set_formatter(|out, _, value| write!(out, "{}", text_of(value)).map_err(Error::from));
    environment.add_filter(marks::FILTER, marks::filter);
    environment.add_filter(marks::SHALLOW, shallow);
    environment.add_filter(marks::SHALLOW_MEMBER, shallow_member);
    environment.add_filter("tojson", to_json);
    environment.add_filter("trim", |value: Value, chars: Option<String>| {
        strip(&text_of(&value), chars.as_deref(), [true, true]).to_owned()
    });
    environment.add_filter("string", |value: Value| text_of(&value));
    environment.add_filter("length", length);
    environment.add_filter("count", length);
    // Texts and mappings are sequences to jinja2.
    environment.add_test("sequence", |value: Value| {
        matches!(value.kind(), ValueKind::Seq | ValueKind::String | ValueKind::Map | ValueKind::Undefined)
    });
    environment.add_test("iterable", |value: Value| !value.is_none() && value.try_iter().is_ok());
    // It would show the template its surroundings, and jinja2 has none.
    environment.remove_global("debug");
    environment.add_function("raise_exception", |message: Value| -> Result<Value, Error> {
        let message = text_of(&message);
        Err(Error::new(ErrorKind::InvalidOperation, message.clone()).with_source(Raised(message)))
    });
    environment.add_function("strftime_now", |format: &str| strftime(format));
    environment
}

fn invalid(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, message.into())
}

/// The value of an assignment, which a loop can wrap again and again. Values are dropped, compared and written by functions that call themselves for what
/// is inside. What is only computed as it is read, such as a slice, becomes a list, as in jinja2.
fn shallow(value: Value) -> Result<Value, Error> {
    let value = match value.kind() {
        ValueKind::Iterable => value.try_iter()?.collect(),
        _ => value,
    };
    Inside { left: MOST_VALUES, may_be_namespaces: true }.check(&value, DEEPEST_VALUE)?;
    Ok(value)
}

/// The same for what a namespace keeps, which would have no end if that were the namespace itself.
fn shallow_member(value: Value) -> Result<Value, Error> {
    let value = shallow(value)?;
    Inside { left: MOST_VALUES, may_be_namespaces: false }.check(&value, DEEPEST_VALUE)?;
    Ok(value)
}

/// The limits on what is inside of a value.
struct Inside {
    left: usize,
    may_be_namespaces: bool,
}

impl Inside {
    fn check(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        let Some(left) = self.left.checked_sub(1) else {
            return Err(invalid(format!("a value has more than {MOST_VALUES} others inside")));
        };
        self.left = left;
        let is_map = value.kind() == ValueKind::Map;
        if !is_map && !matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable) {
            return Ok(());
        }
        if !self.may_be_namespaces
            && value.as_object().is_some_and(|object| object.type_name().ends_with("::Namespace"))
        {
            return Err(invalid("a namespace cannot be kept in a namespace"));
        }
        let Some(depth) = depth.checked_sub(1) else {
            return Err(invalid(format!("a value is nested more than {DEEPEST_VALUE} deep")));
        };
        let Ok(mut all) = value.try_iter() else { return Ok(()) };
        all.try_for_each(|one| match is_map {
            true => value.get_item(&one).map_or(Ok(()), |found| self.check(&found, depth)),
            false => self.check(&one, depth),
        })
    }
}

/// `str(value)`.
fn text_of(value: &Value) -> String {
    let is_float = value.is_number() && !value.is_integer();
    let json = match value.kind() {
        ValueKind::Seq | ValueKind::Map => serde_json::to_value(value).ok(),
        ValueKind::Number if is_float => serde_json::to_value(value).ok(),
        _ => None,
    };
    let Some(json) = json else { return value.to_string() };
    let mut text = String::new();
    Layout { is_python: true, ..Layout::default() }.write(&json, 0, &mut text);
    text
}

fn length(value: Value) -> Result<usize, Error> {
    match value.len() {
        Some(length) => Ok(length),
        None if value.is_undefined() => Ok(0),
        None => Err(invalid(format!("{} has no length", value.kind()))),
    }
}

/// Python's methods that minijinja lacks, or has with counts of bytes or other white space; then those that it has.
fn call_method(state: &State, value: &Value, method: &str, args: &[Value]) -> Result<Value, Error> {
    let Some(text) = value.as_str() else { return pycompat::unknown_method_callback(state, value, method, args) };
    match method {
        "strip" | "lstrip" | "rstrip" => {
            let (chars,): (Option<&str>,) = from_args(args)?;
            Ok(Value::from(strip(text, chars, [method != "rstrip", method != "lstrip"])))
        }
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(args)?;
            Ok(Value::from(text.strip_prefix(prefix).unwrap_or(text)))
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(args)?;
            Ok(Value::from(text.strip_suffix(suffix).unwrap_or(text)))
        }
        "find" | "rfind" => {
            let (part,): (&str,) = from_args(args)?;
            let at = if method == "find" { text.find(part) } else { text.rfind(part) };
            Ok(Value::from(at.map_or(-1, |at| text[..at].chars().count() as i64)))
        }
        "count" => {
            let (part,): (&str,) = from_args(args)?;
            Ok(Value::from(text.matches(part).count()))
        }
        "rsplit" => {
            let (separator, most): (&str, Option<i64>) = from_args(args)?;
            let most = most.and_then(|most| usize::try_from(most).ok()).map_or(usize::MAX, |most| most + 1);
            let mut parts: Vec<&str> = text.rsplitn(most, separator).collect();
            parts.reverse();
            Ok(parts.into_iter().map(Value::from).collect())
        }
        "split" if matches!(args.first().and_then(Value::as_str), Some("")) => Err(invalid("empty separator")),
        _ => pycompat::unknown_method_callback(state, value, method, args),
    }
}

/// Without these characters at the beginning, at the end; without blanks where none are given.
fn strip<'a>(text: &'a str, chars: Option<&str>, [start, end]: [bool; 2]) -> &'a str {
    let is_stripped = |c: char| match chars {
        Some(chars) => chars.contains(c),
        // Python takes four separators for blanks that Unicode does not.
        None => c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c),
    };
    let text = if start { text.trim_start_matches(is_stripped) } else { text };
    if end { text.trim_end_matches(is_stripped) } else { text }
}

/// `json.dumps` as transformers has it: without escapes for HTML.
fn to_json(value: Value, kwargs: Kwargs) -> Result<String, Error> {
    let ensure_ascii: Option<bool> = kwargs.get("ensure_ascii")?;
    let indent: Option<Value> = kwargs.get("indent")?;
    let separators: Option<Vec<String>> = kwargs.get("separators")?;
    let sort_keys: Option<bool> = kwargs.get("sort_keys")?;
    kwargs.assert_all_used()?;
    if value.is_undefined() {
        return Err(invalid("an undefined value has no JSON"));
    }
    let indent = match indent.filter(|indent| !indent.is_none()) {
        None => None,
        Some(indent) => match (indent.as_usize(), indent.as_str()) {
            (Some(width), _) if width <= 80 => Some(" ".repeat(width)),
            (_, Some(text)) => Some(text.to_owned()),
            _ => return Err(invalid(format!("indent is {indent}; allowed: 0 to 80"))),
        },
    };
    let mut layout = Layout { is_ascii: ensure_ascii.unwrap_or(false), indent, ..Layout::default() };
    if layout.indent.is_some() {
        layout.between = ",".to_owned();
    }
    match separators.as_deref() {
        None => {}
        Some([between, colon]) => (layout.between, layout.colon) = (between.clone(), colon.clone()),
        Some(_) => return Err(invalid("separators are two texts")),
    }
    let mut json = serde_json::to_value(&value).map_err(|error| invalid(error.to_string()))?;
    if sort_keys.unwrap_or(false) {
        json.sort_all_objects();
    }
    let mut text = String::new();
    layout.write(&json, 0, &mut text);
    Ok(text)
}

/// How Python writes lists and mappings.
struct Layout {
    /// As `repr` writes them, not as JSON.
    is_python: bool,
    is_ascii: bool,
    indent: Option<String>,
    between: String,
    colon: String,
}

impl Default for Layout {
    fn default() -> Self {
        Self { is_python: false, is_ascii: false, indent: None, between: ", ".to_owned(), colon: ": ".to_owned() }
    }
}

impl Layout {
    fn write(&self, value: &Json, depth: usize, out: &mut String) {
        match value {
            Json::Null => out.push_str(if self.is_python { "None" } else { "null" }),
            Json::Bool(flag) => out.push_str(match (flag, self.is_python) {
                (true, true) => "True",
                (false, true) => "False",
                (true, false) => "true",
                (false, false) => "false",
            }),
            Json::Number(number) => match number.as_f64().filter(|_| number.is_f64()) {
                Some(float) => out.push_str(&python_float(float)),
                None => out.push_str(&number.to_string()),
            },
            Json::String(text) => self.write_text(text, out),
            Json::Array(list) => {
                self.write_list("[]", list.iter(), depth, out, |value, out| self.write(value, depth + 1, out))
            }
            Json::Object(keys) => self.write_list("{}", keys.iter(), depth, out, |(key, value), out| {
                self.write_text(key, out);
                out.push_str(&self.colon);
                self.write(value, depth + 1, out);
            }),
        }
    }

    fn write_list<T>(
        &self,
        brackets: &str,
        values: impl ExactSizeIterator<Item = T>,
        depth: usize,
        out: &mut String,
        write: impl Fn(T, &mut String),
    ) {
        let (open, close) = brackets.split_at(1);
        out.push_str(open);
        let is_empty = values.len() == 0;
        let new_line = |depth: usize, out: &mut String| {
            if let Some(indent) = self.indent.as_ref().filter(|_| !is_empty) {
                out.push('\n');
                (0..depth).for_each(|_| out.push_str(indent));
            }
        };
        for (at, value) in values.enumerate() {
            if at > 0 {
                out.push_str(&self.between);
            }
            new_line(depth + 1, out);
            write(value, out);
        }
        new_line(depth, out);
        out.push_str(close);
    }

    fn write_text(&self, text: &str, out: &mut String) {
        let quote = if self.is_python && (!text.contains('\'') || text.contains('"')) { '\'' } else { '"' };
        out.push(quote);
        for c in text.chars() {
            match c {
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\\' => out.push_str("\\\\"),
                c if c == quote => out.extend(['\\', c]),
                '\u{8}' if !self.is_python => out.push_str("\\b"),
                '\u{c}' if !self.is_python => out.push_str("\\f"),
                c if self.is_python && c.is_control() => out.push_str(&format!("\\x{:02x}", u32::from(c))),
                c if c < ' ' || (self.is_ascii && c > '~') => {
                    let mut units = [0; 2];
                    c.encode_utf16(&mut units).iter().for_each(|unit| out.push_str(&format!("\\u{unit:04x}")));
                }
                c => out.push(c),
            }
        }
        out.push(quote);
    }
}

/// Python writes the exponent with a sign and two digits.
fn python_float(float: f64) -> String {
    let text = format!("{float:?}");
    match text.split_once('e') {
        None => text,
        Some((digits, exponent)) => match exponent.strip_prefix('-') {
            Some(exponent) => format!("{digits}e-{exponent:0>2}"),
            None => format!("{digits}e+{exponent:0>2}"),
        },
    }
}

/// The date of `strftime_now`: a training must not depend on the day on which it runs. Llama 3's templates write the same date
/// where they know none.
fn strftime(format: &str) -> Result<String, Error> {
    let mut text = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            text.push(c);
            continue;
        }
        text.push_str(match chars.next() {
            Some('d' | 'e') => "26",
            Some('b' | 'h') => "Jul",
            Some('B') => "July",
            Some('m') => "07",
            Some('Y') => "2024",
            Some('y') => "24",
            Some('a') => "Fri",
            Some('A') => "Friday",
            Some('j') => "208",
            Some('F') => "2024-07-26",
            Some('H' | 'M' | 'S') => "00",
            Some('I') => "12",
            Some('p') => "AM",
            Some('T') => "00:00:00",
            Some('%') => "%",
            Some('-') => match chars.next() {
                Some('d') => "26",
                Some('m') => "7",
                other => return Err(invalid(format!("strftime_now does not know %-{}", other.unwrap_or(' ')))),
            },
            other => return Err(invalid(format!("strftime_now does not know %{}", other.unwrap_or(' ')))),
        });
    }
    Ok(text)
}
