//! `${VAR}` in a pipeline: read from the environment or a `.env` file, put in only where the value is used, so that what
//! stands behind a variable is never written to disk.

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::ffi::OsString;

/// The variables that a pipeline may name.
#[derive(Clone, Debug, Default)]
pub struct Variables {
    known: BTreeMap<String, String>,
    /// Those that the `.env` file alone has set.
    from_file: BTreeSet<String>,
    /// Those of the environment whose values are not UTF-8.
    unreadable: BTreeSet<String>,
}

/// Names of variables, with commas between them, that the `.env` file of the process had which passes them on.
pub const FROM_FILE_VARIABLE: &str = "PIPE_VARIABLES_OF_ENV_FILE";

impl Variables {
    /// The process environment over the lines of a `.env` file: what is set by hand wins.
    pub fn new(env_file: Option<&str>, environment: impl Iterator<Item = (String, String)>) -> Self {
        let known: BTreeMap<String, String> = env_file.map(parse_env_file).unwrap_or_default();
        let from_file = known.keys().cloned().collect();
        let mut all = Self { known, from_file, unreadable: BTreeSet::new() };
        for (name, value) in environment {
            all.from_file.remove(&name);
            all.known.insert(name, value);
        }
        all
    }

    /// The same with the environment of this process. A value that is not UTF-8 is an error only where it is used.
    pub fn of_process(env_file: Option<&str>) -> Self {
        let mut variables = Self::new(env_file, std::iter::empty());
        env::vars_os().for_each(|(name, value)| variables.take_os(name, value));
        let passed_on = variables.known.get(FROM_FILE_VARIABLE).cloned().unwrap_or_default();
        let passed_on = passed_on.split(',').filter(|name| variables.known.contains_key(*name)).map(str::to_owned);
        variables.from_file.extend(passed_on.collect::<Vec<_>>());
        variables
    }

    /// Those that the `.env` file alone has set.
    pub fn of_file(&self) -> Self {
        let is_of_file = |(name, _): &(&String, &String)| self.from_file.contains(*name);
        let known = self.known.iter().filter(is_of_file).map(|(name, value)| (name.clone(), value.clone())).collect();
        Self { known, from_file: self.from_file.clone(), unreadable: BTreeSet::new() }
    }

    fn take_os(&mut self, name: OsString, value: OsString) {
        let Ok(name) = name.into_string() else { return };
        self.from_file.remove(&name);
        match value.into_string() {
            Ok(value) => drop(self.known.insert(name, value)),
            Err(_) => {
                self.known.remove(&name);
                self.unreadable.insert(name);
            }
        }
    }

    pub fn get(&self, name: &str) -> Option<&str> {
        self.known.get(name).map(String::as_str)
    }

    /// Whether the `.env` file of the working directory has set it, which may be somebody else's, and not the user.
    pub fn is_from_file(&self, name: &str) -> bool {
        self.from_file.contains(name)
    }

    /// The variables whose names begin like this.
    pub fn beginning_with<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = (&'a str, &'a str)> {
        let all = self.known.iter().filter(move |(name, _)| name.starts_with(prefix));
        all.map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// Why a variable has no value that can be used.
    pub fn reason(&self, name: &str) -> String {
        match self.unreadable.contains(name) {
            true => format!("the value of the variable ${{{name}}} is not valid UTF-8"),
            false => format!("the variable ${{{name}}} is not set"),
        }
    }

    /// `text` with every variable replaced by its value, `$$` by a dollar sign. The error names the missing variable.
    pub fn expand(&self, text: &str) -> Result<String, String> {
        let mut out = String::with_capacity(text.len());
        for part in parts(text) {
            match part {
                Part::Text(text) => out.push_str(text),
                Part::Variable(name) => out.push_str(self.get(name).ok_or_else(|| name.to_owned())?),
            }
        }
        Ok(out)
    }

    /// The values of the variables that `text` names, by name.
    pub fn used<'a>(&'a self, text: &'a str) -> impl Iterator<Item = (&'a str, &'a str)> {
        names(text).filter_map(|name| Some((name, self.get(name)?)))
    }
}

/// The variables that `text` names.
pub fn names(text: &str) -> impl Iterator<Item = &str> {
    parts(text).filter_map(|part| match part {
        Part::Variable(name) => Some(name),
        Part::Text(_) => None,
    })
}

enum Part<'a> {
    Text(&'a str),
    Variable(&'a str),
}

fn parts(text: &str) -> impl Iterator<Item = Part<'_>> {
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        if let Some(after) = rest.strip_prefix("$$") {
            rest = after;
            return Some(Part::Text("$"));
        }
        if let Some((name, after)) = rest.strip_prefix("${").and_then(|inner| inner.split_once('}')) {
            rest = after;
            return Some(Part::Variable(name.trim()));
        }
        let first = rest.chars().next().map_or(0, char::len_utf8);
        let end = rest[first..].find('$').map_or(rest.len(), |at| at + first);
        let (text, after) = rest.split_at(end);
        rest = after;
        Some(Part::Text(text))
    })
}

fn parse_env_file(text: &str) -> BTreeMap<String, String> {
    text.lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .filter_map(|line| line.strip_prefix("export ").unwrap_or(line).split_once('='))
        .map(|(name, value)| (name.trim().to_owned(), unquote(value.trim()).to_owned()))
        .collect()
}

fn unquote(value: &str) -> &str {
    let quoted = |quote| value.strip_prefix(quote).and_then(|inner: &str| inner.strip_suffix(quote));
    quoted('"').or_else(|| quoted('\'')).unwrap_or(value)
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    use super::*;

    fn variables() -> Variables {
        let file = "# secrets\nexport A=from file\nB='quoted'\n\nbroken line\n";
        Variables::new(Some(file), [("A".to_owned(), "set".to_owned())].into_iter())
    }

    #[test]
    fn expands_and_prefers_the_environment() {
        let cases = [
            ("plain", "plain"),
            ("${A}/${B}", "set/quoted"),
            ("a $ b $$ ${ A }", "a $ b $ set"),
            ("${unclosed", "${unclosed"),
            ("é${A}é", "éseté"),
        ];
        for (text, want) in cases {
            assert_eq!(variables().expand(text).unwrap(), want, "{text}");
        }
    }

    #[test]
    fn a_value_that_is_no_text_is_an_error_where_it_is_used() {
        let mut variables = variables();
        variables.take_os("A".into(), OsStr::from_bytes(b"\xff").to_owned());
        variables.take_os(OsStr::from_bytes(b"\xff").to_owned(), "x".into());
        assert_eq!(variables.expand("${B}").as_deref(), Ok("quoted"));
        assert_eq!(variables.expand("${A}"), Err("A".to_owned()));
        assert_eq!(variables.reason("A"), "the value of the variable ${A} is not valid UTF-8");
        assert_eq!(variables.reason("C"), "the variable ${C} is not set");
    }

    #[test]
    fn names_what_is_missing() {
        assert_eq!(variables().expand("${A}${NOPE}"), Err("NOPE".to_owned()));
        assert_eq!(names("${A}${NOPE}").collect::<Vec<_>>(), ["A", "NOPE"]);
    }
}
