//! The block at the bottom of a terminal: a view of a run in a few lines, none of them wider than the terminal. Pure.

use std::time::Duration;

use console::{Style, measure_text_width, truncate_str};
use pipe_spec::event::Step;
use pipe_spec::run::StageStatus;
use pipe_spec::text::human_bytes;

use super::pace::{rate, span};
use super::view::{ChildLine, CommandMetrics, CurrentAttempt, Training, View};
use crate::report::grouped;

/// The terminal that the block is drawn on.
#[derive(Clone, Copy, Debug)]
pub struct TerminalSize {
    pub columns: usize,
    pub rows: usize,
    pub colours: bool,
}

/// The width of the names of lines, with the space after them.
const MARGIN: usize = 8;
const BAR: std::ops::RangeInclusive<usize> = 10..=40;
/// Without an event for this many steps and this long, the head line says so.
const SILENT_STEPS: f64 = 5.0;
const STALE_AFTER: Duration = Duration::from_secs(5);

/// `now` is in seconds since the Unix epoch.
pub fn lines(view: &View, now: f64, terminal: TerminalSize) -> Vec<String> {
    let painter = Painter { terminal, bar: bar_width(view, terminal) };
    // By how much they are missed where there are not enough rows.
    let mut lines = vec![(0, painter.head(view, now))];
    lines.extend(view.attempt.iter().flat_map(|attempt| painter.before(attempt)).map(|line| (5, line)));
    if let Some(training) = &view.training {
        lines.push((1, painter.gauge("step", share(training.done(), training.started.steps), &step_texts(training))));
        lines.extend(training.epochs().map(|epochs| (4, painter.epoch(training, epochs))));
        lines.extend(training.last.as_ref().map(|step| (2, painter.loss(view, step.loss, training.eval))));
        lines.extend(painter.memory(training).map(|line| (3, line)));
        lines.extend(painter.ranks(training).map(|line| (4, line)));
        lines.extend(painter.figures(training).map(|line| (4, line)));
    }
    lines.extend(view.facts.iter().map(|(name, text)| (1, painter.named(name, text))));
    let width = view.children.iter().map(|child| measure_text_width(&child.name)).max().unwrap_or(0).max(MARGIN);
    lines.extend(view.children.iter().map(|child| (1, painter.child(child, width))));
    if let Some(known) = &view.metrics {
        lines.push((1, painter.command_step(known)));
        lines.extend(known.values().map(|values| (2, painter.named("values", &values))));
    }
    // A row is left for what is above.
    while lines.len() > 1 && lines.len() >= terminal.rows {
        let least = lines.iter().map(|line| line.0).max();
        let index = lines.iter().rposition(|line| Some(line.0) == least).unwrap_or(0);
        lines.remove(index);
    }
    lines.into_iter().map(|(_, line)| line).collect()
}

/// The width that the text beside the steps leaves.
fn bar_width(view: &View, terminal: TerminalSize) -> usize {
    let beside = view.training.as_ref().map_or(30, |training| measure_text_width(&step_texts(training)[0]));
    // In fives, so that it does not change with every digit.
    (terminal.columns.saturating_sub(MARGIN + 2 + beside) / 5 * 5).clamp(*BAR.start(), *BAR.end())
}

/// The text beside the steps, the longest first.
fn step_texts(training: &Training) -> Vec<String> {
    let (done, steps) = (training.done(), training.started.steps);
    let percent = percent(share(done, steps));
    let rate = training.pace.step().map_or(String::new(), |seconds| format!("  {}", rate(seconds)));
    let left = match training.left().filter(|_| done < steps) {
        Some(left) => format!("  {} left", span(left)),
        None => String::new(),
    };
    let (done, steps) = (grouped(done), grouped(steps));
    vec![
        format!("{done} of {steps}  {percent}{rate}{left}"),
        format!("{done}/{steps}  {percent}{left}"),
        format!("{percent}{left}"),
        percent,
    ]
}

fn share(part: u64, whole: u64) -> f64 {
    part as f64 / whole.max(1) as f64
}

fn percent(share: f64) -> String {
    format!("{:.0}%", (share * 100.0).floor())
}

fn bar(share: f64, width: usize) -> String {
    let full = (share.clamp(0.0, 1.0) * width as f64).floor() as usize;
    format!("{}{}", "█".repeat(full), "░".repeat(width - full))
}

struct Painter {
    terminal: TerminalSize,
    bar: usize,
}

impl Painter {
    fn paint(&self, style: Style, text: &str) -> String {
        style.force_styling(self.terminal.colours).apply_to(text).to_string()
    }

    /// The first of these texts that fits; the last one shortened where none does.
    fn first_that_fits(&self, texts: &[String], columns: usize) -> String {
        let fits = texts.iter().find(|text| measure_text_width(text) <= columns);
        let text = fits.or(texts.last()).map_or("", String::as_str);
        truncate_str(text, columns, "…").into_owned()
    }

    /// A line with its name in the margin.
    fn named(&self, name: &str, text: &str) -> String {
        let name = self.paint(Style::new().dim(), &format!("{name:<MARGIN$}"));
        truncate_str(&format!("{name}{text}"), self.terminal.columns, "…").into_owned()
    }

    fn gauge(&self, name: &str, share: f64, texts: &[String]) -> String {
        self.beside(name, &self.paint(Style::new().cyan(), &bar(share, self.bar)), texts)
    }

    /// A line with a drawing as wide as a bar, and those of `texts` that fit beside it.
    fn beside(&self, name: &str, drawing: &str, texts: &[String]) -> String {
        let left = self.terminal.columns.saturating_sub(MARGIN + self.bar + 2);
        self.named(name, &format!("{drawing}  {}", self.first_that_fits(texts, left)))
    }

    /// A stage of a pipeline, or a trial: a mark, its name, and its progress.
    fn child(&self, child: &ChildLine, width: usize) -> String {
        let (mark, style) = match child.status {
            StageStatus::Waiting => ("·", Style::new().dim()),
            StageStatus::Running => ("▸", Style::new().cyan()),
            StageStatus::Finished | StageStatus::Unchanged => ("✓", Style::new().green()),
            StageStatus::LeftOut => ("-", Style::new().dim()),
            StageStatus::Failed => ("✗", Style::new().red()),
            StageStatus::Stopped => ("■", Style::new().yellow()),
        };
        let name = self.paint(style, &format!("{mark} {:<width$}", child.name));
        truncate_str(&format!("{name}  {}", child.text), self.terminal.columns, "…").into_owned()
    }

    fn command_step(&self, known: &CommandMetrics) -> String {
        match known.steps {
            Some(steps) => {
                let share = share(known.step, steps);
                let (done, steps) = (grouped(known.step), grouped(steps));
                self.gauge("step", share, &[format!("{done} of {steps}  {}", percent(share)), percent(share)])
            }
            None => self.named("step", &grouped(known.step)),
        }
    }

    fn head(&self, view: &View, now: f64) -> String {
        let mut stage = view.stage.clone();
        if let Some(silent) = view.training.as_ref().filter(|_| view.stage == "training").and_then(silence) {
            stage = format!("{stage}, no event for {}", span(silent.as_secs_f64()));
        } else if view.training.is_none() && view.since.elapsed() >= STALE_AFTER {
            stage = format!("{stage}, {}", span(view.since.elapsed().as_secs_f64()));
        }
        let strong = self.paint(Style::new().bold(), &stage);
        let texts = match &view.attempt {
            None => vec![strong],
            Some(CurrentAttempt { number, of, batch, began, .. }) => {
                let batch = if batch.is_empty() { String::new() } else { format!("   {batch}") };
                let took = if *began > 0.0 { format!("   {}", span(now - began)) } else { String::new() };
                vec![
                    format!("{strong}   attempt {number} of at most {of}{batch}{took}"),
                    format!("{strong}   attempt {number} of {of}{batch}{took}"),
                    format!("{strong}   attempt {number} of {of}{took}"),
                    format!("{strong}   {number} of {of}"),
                    strong,
                ]
            }
        };
        self.first_that_fits(&texts, self.terminal.columns)
    }

    /// Why there is another attempt: in one line where it fits, else in two.
    fn before(&self, attempt: &CurrentAttempt) -> Vec<String> {
        let texts: Vec<&str> = [&attempt.reason, &attempt.action].into_iter().flatten().map(String::as_str).collect();
        let paint = |text: &str| self.paint(Style::new().yellow(), text);
        let whole = texts.join("; ");
        if texts.is_empty() {
            return Vec::new();
        }
        if MARGIN + measure_text_width(&whole) <= self.terminal.columns {
            return vec![self.named("after", &paint(&whole))];
        }
        let line = |(name, text): (&str, &String)| self.named(name, &paint(text));
        let parts = [("after", &attempt.reason), ("now", &attempt.action)];
        parts.iter().filter_map(|(name, text)| text.as_ref().map(|text| line((name, text)))).collect()
    }

    fn epoch(&self, training: &Training, all: f64) -> String {
        let at = training.last.as_ref().map_or(0.0, |step| step.epoch);
        // A pass that has just ended is not the next one yet.
        let passes = (at - 1e-9).floor().clamp(0.0, all - 1.0);
        self.gauge(
            "epoch",
            (at - passes).min(1.0),
            &[format!("{:.0} of {all:.0}", passes + 1.0), format!("{:.0}/{all:.0}", passes + 1.0)],
        )
    }

    fn loss(&self, view: &View, loss: f64, eval: Option<(u64, f64)>) -> String {
        let curve = view.curve.draw(self.bar);
        let curve = format!("{curve}{}", " ".repeat(self.bar - measure_text_width(&curve)));
        let now = self.paint(Style::new().bold(), &format!("{loss:.4}"));
        let mut texts = vec![now.clone()];
        if let Some((step, eval)) = eval {
            let steps = [format!("{now}   eval {eval:.4} at step {}", grouped(step)), format!("{now}  eval {eval:.4}")];
            texts.splice(0..0, steps);
        }
        self.beside("loss", &self.paint(Style::new().green(), &curve), &texts)
    }

    fn memory(&self, training: &Training) -> Option<String> {
        let step = training.last.as_ref()?;
        let (peak, parts) = (step.peak, parts(step));
        let Some(capacity) = training.started.memory.capacity.filter(|capacity| *capacity > 0) else {
            return Some(self.named("memory", &format!("peak {}{parts}", human_bytes(peak))));
        };
        let share = share(peak, capacity);
        let style = match share {
            share if share >= 0.97 => Style::new().red(),
            share if share >= 0.9 => Style::new().yellow(),
            _ => Style::new().cyan(),
        };
        let (percent, of) = (percent(share), format!("{} of {}", human_bytes(peak), human_bytes(capacity)));
        let texts = [
            format!("{percent}   peak {of}{parts}"),
            format!("{percent}   peak {of}"),
            format!("{percent}  {of}"),
            percent,
        ];
        Some(self.beside("memory", &self.paint(style, &bar(share, self.bar)), &texts))
    }

    /// The peak memory of each of several ranks, and the slowest rank.
    fn ranks(&self, training: &Training) -> Option<String> {
        let ranks = &training.last.as_ref()?.ranks;
        let slowest = (0..ranks.len()).max_by(|a, b| ranks[*a].ms.total_cmp(&ranks[*b].ms))?;
        let peaks: Vec<String> = ranks.iter().map(|rank| human_bytes(rank.peak)).collect();
        let slow = format!("slowest {slowest}, {:.0} ms", ranks[slowest].ms);
        let texts = [format!("{}   {slow}", peaks.join("  ")), slow];
        let text = self.first_that_fits(&texts, self.terminal.columns.saturating_sub(MARGIN));
        Some(self.named("ranks", &text))
    }

    /// Learning rate, speed and last checkpoint, as many as fit.
    fn figures(&self, training: &Training) -> Option<String> {
        let step = training.last.as_ref()?;
        let mut texts = vec![format!("{:.1e}", step.lr)];
        texts.extend(training.speed());
        texts.extend(training.saved.map(|step| format!("saved at step {}", grouped(step))));
        while texts.len() > 1 && MARGIN + measure_text_width(&texts.join("   ")) > self.terminal.columns {
            texts.pop();
        }
        Some(self.named("lr", &texts.join("   ")))
    }
}

/// How the samples of a step were split, where that changes from step to step.
fn parts(step: &Step) -> String {
    let Some(filled) = step.filled else { return String::new() };
    let parts = if step.parts == 1 { "part" } else { "parts" };
    format!("   {} {parts}, {} full", step.parts, percent(filled))
}

/// For how long nothing was heard of a training, where that is longer than its steps take.
fn silence(training: &Training) -> Option<Duration> {
    let silent = training.heard.elapsed();
    let usual = training.pace.step().unwrap_or(0.0) * SILENT_STEPS;
    (silent >= STALE_AFTER && silent.as_secs_f64() >= usual).then_some(silent)
}

#[cfg(test)]
mod tests {
    use pipe_spec::event::{Checkpoint, Eval, Event, RankUse, Started, StartedMemory};
    use pipe_spec::{Attempt, EventKind, Outcome};

    use super::*;

    fn size(columns: usize) -> TerminalSize {
        TerminalSize { columns, rows: 24, colours: false }
    }

    fn event(ts: f64, kind: EventKind) -> Event {
        Event { seq: 1, ts, kind }
    }

    /// In its second attempt, after 1,234 of 5,000 steps.
    fn view() -> View {
        let mut view = View::default();
        let mut before = Attempt::new(1, 64, 2);
        before.outcome = Some(Outcome::Oom);
        before.reason = Some("the kernel killed it at its memory limit of 400.0 MiB\nmore".to_owned());
        before.action = Some("batch 32 instead of 64".to_owned());
        let mut attempt = Attempt::new(2, 32, 4);
        attempt.began = 1000.0;
        view.begin(&attempt, 7, "batch 32 x accum 4".to_owned(), Some(&before));
        let started = Started {
            device: "a card".to_owned(),
            memory: StartedMemory { capacity: Some(16 << 30), ..StartedMemory::default() },
            params: 1,
            batch: 32,
            accum: 4,
            effective_batch: 128,
            steps: 5000,
            samples: 1000,
            ..Started::default()
        };
        view.take(&event(1000.0, EventKind::Started(started)));
        for step in 1..=1234u64 {
            let kind = EventKind::Step(Step {
                step,
                epoch: step as f64 / 1000.0,
                samples: step * 128,
                loss: 4.0 - step as f64 / 1000.0,
                lr: 3e-4,
                grad_norm: 1.0,
                tokens: 4000,
                ms: 400.0,
                allocated: 1,
                reserved: 1,
                peak: 12 << 30,
                ..Step::default()
            });
            view.take(&event(1000.0 + 0.4 * step as f64, kind));
        }
        let eval = Eval { step: 1000, loss: 3.0, samples: 9, ms: 1.0, headline: None, scores: Default::default() };
        view.take(&event(0.0, EventKind::Eval(eval)));
        let saved = Checkpoint { step: 1000, path: String::new(), bytes: 1, ms: 1.0 };
        view.take(&event(0.0, EventKind::Checkpoint(saved)));
        view
    }

    #[test]
    fn wide() {
        let want = [
            "training   attempt 2 of at most 7   batch 32 x accum 4   8m20s",
            "after   the kernel killed it at its memory limit of 400.0 MiB; batch 32 instead of 64",
            "step    █████████░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░  1,234 of 5,000  24%  2.5 steps/s  25m06s left",
            "epoch   █████████░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░  2 of 5",
            "loss    ████▇▇▇▇▇▆▆▆▆▆▆▆▅▅▅▅▅▄▄▄▄▄▃▃▃▃▃▂▂▂▂▂▁▁▁▁  2.7660   eval 3.0000 at step 1,000",
            "memory  ██████████████████████████████░░░░░░░░░░  75%   peak 12.0 GiB of 16.0 GiB",
            "lr      3.0e-4   10,000 tokens/s   saved at step 1,000",
        ];
        let got = lines(&view(), 1500.0, size(120));
        assert_eq!(got.len(), want.len(), "{got:#?}");
        for (got, want) in got.iter().zip(want).filter(|(got, _)| !got.starts_with("loss")) {
            assert_eq!(got, want);
        }
        assert!(
            got[4].starts_with("loss    █") && got[4].ends_with("▁  2.7660   eval 3.0000 at step 1,000"),
            "{}",
            got[4]
        );
    }

    #[test]
    fn parts_that_are_filled() {
        let mut view = view();
        let step = Step { step: 1235, peak: 12 << 30, parts: 3, filled: Some(0.917), ..Step::default() };
        view.take(&event(1500.0, EventKind::Step(step)));
        let memory = |columns| lines(&view, 1500.0, size(columns)).into_iter().find(|line| line.starts_with("memory"));
        let wide = memory(120).unwrap();
        assert!(wide.ends_with("75%   peak 12.0 GiB of 16.0 GiB   3 parts, 91% full"), "{wide}");
        assert!(memory(80).unwrap().ends_with("of 16.0 GiB"), "{:?}", memory(80));
    }

    #[test]
    fn several_ranks() {
        let mut view = view();
        let rank = |gib: u64, ms: f64| RankUse { peak: gib << 30, ms, ..RankUse::default() };
        let ranks = vec![rank(11, 90.0), rank(12, 120.4), rank(10, 100.0)];
        view.take(&event(1500.0, EventKind::Step(Step { step: 1235, peak: 12 << 30, ranks, ..Step::default() })));
        let line = |columns| lines(&view, 1500.0, size(columns)).into_iter().find(|line| line.starts_with("ranks"));
        assert_eq!(line(120).as_deref(), Some("ranks   11.0 GiB  12.0 GiB  10.0 GiB   slowest 1, 120 ms"));
        assert_eq!(line(40).as_deref(), Some("ranks   slowest 1, 120 ms"));
    }

    #[test]
    fn narrow() {
        let want = [
            "training   attempt 2 of 7   8m20s",
            "after   the kernel killed it at its mem…",
            "now     batch 32 instead of 64",
            "step    ██░░░░░░░░  24%  25m06s left",
            "epoch   ██░░░░░░░░  2 of 5",
            "loss    ██▇▆▅▄▄▃▂▁  2.7660  eval 3.0000",
            "memory  ███████░░░  75%",
            "lr      3.0e-4   10,000 tokens/s",
        ];
        let got = lines(&view(), 1500.0, size(40));
        assert_eq!(got.len(), want.len(), "{got:#?}");
        for (got, want) in got.iter().zip(want).filter(|(got, _)| !got.starts_with("loss")) {
            assert_eq!(got, want);
        }
    }

    #[test]
    fn nothing_is_wider_or_higher_than_the_room() {
        let mut waiting = View::default();
        waiting.set_stage("waiting for a card that another process with a very long name uses");
        for view in [view(), waiting, View::default()] {
            for columns in 1..200 {
                for rows in [0, 1, 2, 4, 7, 50] {
                    let terminal = TerminalSize { columns, rows, colours: columns % 2 == 0 };
                    let lines = lines(&view, 1500.0, terminal);
                    assert!(lines.iter().all(|line| measure_text_width(line) <= columns), "{columns}: {lines:#?}");
                    assert!(lines.len() < rows.max(2), "{rows}: {lines:#?}");
                }
            }
        }
    }

    #[test]
    fn what_is_missed_most_stays() {
        let names = |rows: usize| -> Vec<String> {
            let lines = lines(&view(), 1500.0, TerminalSize { rows, ..size(100) });
            lines.iter().map(|line| line.split(' ').next().unwrap_or_default().to_owned()).collect()
        };
        assert_eq!(names(4), ["training", "step", "loss"]);
        assert_eq!(names(5), ["training", "step", "loss", "memory"]);
        assert_eq!(names(6), ["training", "step", "epoch", "loss", "memory"]);
    }

    #[test]
    fn colours_only_where_they_are_wanted() {
        let joined = |colours| lines(&view(), 1500.0, TerminalSize { colours, ..size(80) }).join("\n");
        assert!(joined(true).contains('\u{1b}') && !joined(false).contains('\u{1b}'));
    }

    #[test]
    fn bars() {
        for (share, want) in
            [(0.0, "░░░░"), (0.5, "██░░"), (0.99, "███░"), (1.0, "████"), (7.0, "████"), (f64::NAN, "░░░░")]
        {
            assert_eq!(bar(share, 4), want, "{share}");
        }
    }
}
