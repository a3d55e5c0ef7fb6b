//! The text sections of the page of one run: heading, warnings, settings.

use std::fmt::Write;

use time::OffsetDateTime;

use super::escape::escape;
use super::results::results;
use crate::report::duration;
use crate::run::Record;

pub fn heading(run: &Record) -> String {
    let mut html = format!("<header><p class=\"kind\">pipe run</p><h1>{}</h1>", escape(&run.id));
    if let Some(state) = &run.state {
        let status = state.status.name();
        write!(html, "<p><span class=\"tag {status}\">{status}</span> ").ok();
        let mut facts = vec![format!("engine {}", escape(&state.engine))];
        facts.extend(began(state.created).map(|when| format!("began {when}")));
        facts.extend(run.seconds().map(|seconds| format!("took {}", duration(seconds))));
        facts.extend((state.stages().is_empty()).then(|| format!("effective batch {}", state.effective_batch())));
        if let Some((_, started)) = run.history.started.last() {
            facts.push(format!("{} parameters on {}", crate::report::grouped(started.params), escape(&started.device)));
        }
        write!(html, "{}</p>", facts.join(" &middot; ")).ok();
        if let Some(why) = state.result().and_then(|result| result.stopped_early.as_ref()) {
            write!(html, "<p class=\"note\">stopped early: {}</p>", escape(why)).ok();
        }
        if let Some(error) = &state.error {
            write!(html, "<p class=\"error\">{}</p>", escape(error)).ok();
        }
    }
    html.push_str(&missing(run));
    let tiles: String = results(run)
        .iter()
        .map(|(name, value)| format!("<div><dt>{}</dt><dd>{}</dd></div>", escape(name), escape(value)))
        .collect();
    writeln!(html, "<dl class=\"tiles\">{tiles}</dl></header>").ok();
    html
}

/// What could not be read, if anything.
pub fn missing(run: &Record) -> String {
    if run.missing.is_empty() {
        return String::new();
    }
    let items: String = run.missing.iter().map(|what| format!("<li>{}</li>", escape(what))).collect();
    format!("<div class=\"missing\"><b>This page is not complete.</b><ul>{items}</ul></div>")
}

/// A moment of Unix time, in UTC.
fn began(seconds: f64) -> Option<String> {
    let at = OffsetDateTime::from_unix_timestamp(seconds as i64).ok().filter(|_| seconds > 0.0)?;
    let (date, clock) = (at.date(), at.time());
    let day = format!("{:04}-{:02}-{:02}", date.year(), u8::from(date.month()), date.day());
    Some(format!("{day} {:02}:{:02} UTC", clock.hour(), clock.minute()))
}

/// Warnings, each text once, with the attempts that gave it.
pub fn warnings(run: &Record) -> String {
    let mut texts: Vec<(&str, Vec<String>)> = Vec::new();
    for (attempt, text) in &run.history.warnings {
        let attempt = attempt.to_string();
        match texts.iter_mut().find(|known| known.0 == text) {
            Some((_, attempts)) if attempts.contains(&attempt) => {}
            Some((_, attempts)) => attempts.push(attempt),
            None => texts.push((text, vec![attempt])),
        }
    }
    if texts.is_empty() {
        return String::new();
    }
    let items: String = texts
        .iter()
        .map(|(text, attempts)| {
            let noun = if attempts.len() == 1 { "attempt" } else { "attempts" };
            format!("<li>{} <small>{noun} {}</small></li>", escape(text), attempts.join(", "))
        })
        .collect();
    format!("<section id=\"warnings\"><h2>Warnings</h2><ul class=\"warnings\">{items}</ul></section>\n")
}

/// Whole files, folded away.
pub fn files(run: &Record) -> String {
    let file = |name: &str, what: &str, text: &Option<String>| {
        let Some(text) = text else { return String::new() };
        let text = escape(text.trim_end());
        format!("<details><summary>{what} <small>{name}</small></summary><pre>{text}</pre></details>")
    };
    let settings = run.resolved.as_deref().map(without_addresses);
    let (settings, lock) =
        (file("resolved.yaml", "All settings", &settings), file("lock.json", "What it ran on", &run.lock));
    format!("<section id=\"files\">{settings}{lock}</section>\n")
}

/// A page is shown to others, and an address that messages are sent to is often a secret.
fn without_addresses(settings: &str) -> String {
    let line = |line: &str| {
        let key = line.trim_start_matches([' ', '-']);
        let is_address = ["discord:", "webhook:", "mlflow:"].iter().any(|name| key.starts_with(name));
        match line.split_once(": ").filter(|(_, value)| is_address && !value.contains("${")) {
            Some((key, _)) => format!("{key}: (not shown)\n"),
            None => format!("{line}\n"),
        }
    };
    settings.lines().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_not_shown() {
        let settings = "name: x\nnotify:\n- discord: https://a/b\n  on: []\n- webhook: \"${HOOK}\"\ntrack:\n  mlflow: http://u:p@h\n";
        let want = "name: x\nnotify:\n- discord: (not shown)\n  on: []\n- webhook: \"${HOOK}\"\ntrack:\n  mlflow: (not shown)\n";
        assert_eq!(without_addresses(settings), want);
    }
}
