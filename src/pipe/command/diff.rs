//! `pipe diff`: two runs beside each other. That they differ is an answer and no error.

use crate::error::Error;
use crate::report::compare::{Comparison, Files};
use crate::report::{Table, print, print_json};
use crate::run;
use crate::run::lock::Effect;

pub fn run(first: &str, second: &str, json: bool) -> Result<(), Error> {
    let comparison = Comparison::read(&run::find_single(first)?.folder(), &run::find_single(second)?.folder());
    if json {
        print_json(&comparison);
        return Ok(());
    }
    let [one, other] = &comparison.runs;
    let table = |head: &str| Table::comparing(&[head, one, other]);
    section("settings", "no resolved.yaml that can be read", comparison.settings.as_ref(), |settings| {
        let mut rows = table("setting");
        for setting in settings {
            let value = |value: &Option<String>| value.clone().unwrap_or_else(|| "-".to_owned());
            rows.row(vec![setting.path.clone(), value(&setting.first), value(&setting.second)]);
        }
        rows
    });
    section("lock", "no lock.json that can be read", comparison.lock.as_ref(), |differences| {
        let mut rows = Table::comparing(&["lock", one, other, ""]);
        for found in differences {
            let effect = match found.effect {
                Effect::Forbids => "another computation",
                Effect::Rounding => "other rounding",
                Effect::None => "",
            };
            rows.row(vec![found.what.clone(), found.first.clone(), found.second.clone(), effect.to_owned()]);
        }
        rows
    });
    let differing = results(&comparison);
    section("results", "", Some(&differing), |differing| {
        let mut rows = table("result");
        differing.iter().for_each(|row| rows.row(row.clone()));
        rows
    });
    print(&comparison.curves.sentence());
    print(&Files::sentence(comparison.model.as_ref()));
    Ok(())
}

/// A table of what differs, or a line that nothing does.
fn section<T>(name: &str, missing: &str, found: Option<&Vec<T>>, table: impl Fn(&[T]) -> Table) {
    match found {
        None => print(&format!("{name}: unknown, because there is {missing}\n")),
        Some(none) if none.is_empty() => print(&format!("{name}: the same\n")),
        Some(some) => print(&format!("{}\n", table(some).on_stdout())),
    }
}

/// Name and both values of every result that differs.
fn results(comparison: &Comparison) -> Vec<Vec<String>> {
    let [first, second] = comparison.results.each_ref().map(|results| results.rows());
    let value = |rows: &[(String, String)], name: &str| {
        rows.iter().find(|row| row.0 == name).map_or("-".to_owned(), |row| row.1.clone())
    };
    let mut names: Vec<&String> = Vec::new();
    for (name, _) in first.iter().chain(&second) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let rows = names.into_iter().map(|name| vec![name.clone(), value(&first, name), value(&second, name)]);
    rows.filter(|row| row[1] != row[2]).collect()
}
