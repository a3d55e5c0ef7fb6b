//! The page of the machine: its cards and who uses them, the queue for each, and what fits on them.

use pipe_spec::RunFolder;
use pipe_spec::Status;
use pipe_spec::pipeline::Gpus;
use pipe_spec::text::human_bytes;

use super::Ui;
use super::page::{Page, Parts, meter, run_address};
use crate::fit::ledger::{Ledger, LedgerEntry};
use crate::gpu::queue::{Ahead, CardQueue, queues};
use crate::gpu::{Card, Holder};
use crate::report::grouped;
use crate::report::html::markup::{escape, table};
use crate::run::Owner;
use crate::system::files::{Space, nearest};

/// Seconds between two looks at cards and queue.
const INTERVAL: u32 = 3;
/// Entries of the ledger that are shown, those of the cards of this machine first.
const MAX_ENTRIES: usize = 200;
/// Processes between that which computes and the `pipe` of its run, at most.
const MAX_DEPTH: usize = 32;
/// Running runs whose owners are looked up, at most.
const MAX_OWNERS: usize = 100;

pub fn page(ui: &Ui, mut parts: Parts) -> String {
    let cards = Card::read(&Gpus::All);
    parts.fixed(|| format!("<header data-every=\"{INTERVAL}\" data-parts=\"cards,queue\"><h1>Machine</h1></header>"));
    parts.live("cards", || format!("{}{}", of_cards(ui, &cards), host(ui)));
    parts.live("queue", || queue(ui, &cards, queues()));
    parts.live("ledger", || ledger(&cards));
    Page { title: "Machine", entry: "Machine", events: Some(String::new()) }.render(ui, parts)
}

/// The cards as the driver sees them.
fn of_cards(ui: &Ui, cards: &[Card]) -> String {
    let owners = if cards.iter().any(|card| !card.holders.is_empty()) { owners(ui) } else { Vec::new() };
    let content = match cards.is_empty() {
        true => {
            "<p class=\"none\">There is no NVIDIA card with a driver on this machine. Trainings run on the processor here; \
             the cards of a cluster are not shown.</p>"
                .to_owned()
        }
        false => cards.iter().map(|card| of_card(ui, card, &owners)).collect(),
    };
    format!("<section id=\"cards\"><h2>Cards</h2>{content}</section>")
}

fn of_card(ui: &Ui, card: &Card, owners: &[(u32, String)]) -> String {
    let label = format!("{} of {} in use", human_bytes(card.used()), human_bytes(card.total));
    let share = card.used() as f64 / card.total.max(1) as f64;
    let capability = card.capability.map_or(String::new(), |found| format!(", compute capability {found}"));
    let holder = |holder: &Holder| {
        let run = run_of(holder.pid, owners).map_or(String::new(), |key| format!("{}: ", run_link(ui, key)));
        format!("<li>{run}{}</li>", escape(&holder.to_string()))
    };
    let holders: String = card.holders.iter().map(holder).collect();
    let holders = match holders.is_empty() {
        true => "<p class=\"none\">The driver lists no process that computes on it.</p>".to_owned(),
        false => format!("<ul>{holders}</ul>"),
    };
    format!(
        "<div class=\"device\"><h3>Card {}: {}</h3><p class=\"now\">{}<span>{label}</span></p>\
         <p class=\"note\">driver {}{capability}</p>{holders}</div>",
        card.index,
        escape(&card.name),
        meter(share, if share > 0.95 { "wide full" } else { "wide" }, &label),
        escape(&card.driver),
    )
}

/// Processors, memory and disk.
fn host(ui: &Ui) -> String {
    let used = |name: &str, space: Option<Space>| {
        let Some(Space { free, total }) = space else { return String::new() };
        let used = total.saturating_sub(free);
        let label = format!("{} of {}", human_bytes(used), human_bytes(total));
        let share = used as f64 / total.max(1) as f64;
        let class = if share > 0.95 { "full" } else { "" };
        format!("<div><dt>{name}</dt><dd>{label}</dd><dd>{}</dd></div>", meter(share, class, &label))
    };
    let count = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    format!(
        "<dl class=\"tiles\"><div><dt>processors</dt><dd>{}</dd></div>{}{}</dl>",
        grouped(count as u64),
        used("memory in use", Space::of_memory()),
        used("disk in use", Space::at(nearest(&ui.runs)))
    )
}

/// The `pipe` processes of running runs on this machine, with their runs.
fn owners(ui: &Ui) -> Vec<(u32, String)> {
    let rows = ui.rows();
    let running = rows.iter().filter(|row| row.status == Status::Running).take(MAX_OWNERS);
    let owner = |row: &std::sync::Arc<super::index::Row>| {
        let owner = Owner::process(&RunFolder::new(&row.path)).filter(|owner| owner.is_here())?;
        Some((u32::try_from(owner.pid).ok()?, row.key.clone()))
    };
    running.filter_map(owner).collect()
}

/// The run whose `pipe` is this process, or started it.
fn run_of(mut pid: u32, owners: &[(u32, String)]) -> Option<&str> {
    for _ in 0..MAX_DEPTH {
        if let Some((_, key)) = owners.iter().find(|owner| owner.0 == pid) {
            return Some(key);
        }
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name of the program, in parentheses, can hold anything.
        pid = stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()?;
    }
    None
}

/// A run by its name, with a link where it is in the list.
fn run_link(ui: &Ui, id: &str) -> String {
    match ui.row(id) {
        Ok(_) => format!("<a href=\"{}\">{}</a>", escape(&run_address(id)), escape(id)),
        Err(_) => escape(id),
    }
}

/// Who has each card, and who waits for whom.
fn queue(ui: &Ui, cards: &[Card], queues: Vec<CardQueue>) -> String {
    let runs: String = queues.iter().map(|queue| of_queue(ui, cards, queue)).collect();
    let runs = match runs.is_empty() {
        true => "<p class=\"none\">No run holds a card or waits for one.</p>".to_owned(),
        false => runs,
    };
    format!("<section id=\"queue\"><h2>Queue</h2>{runs}</section>")
}

fn of_queue(ui: &Ui, cards: &[Card], queue: &CardQueue) -> String {
    let card = cards.iter().find(|card| queue.card == format!("gpu-{}", card.index));
    let name = card.map_or(queue.card.clone(), |card| format!("Card {}: {}", card.index, card.name));
    let run = |one: &Ahead| {
        let user = one.user.as_ref().map_or(String::new(), |user| format!(" of {}", escape(user)));
        format!("{}{user}", run_link(ui, &one.run))
    };
    let line = |(position, one): (usize, &Ahead)| {
        let says = match position {
            0 => "has the card".to_owned(),
            1 => format!("waits for {}", run(&queue.runs[0])),
            _ => format!("waits for {} and {} more", run(&queue.runs[0]), position - 1),
        };
        format!("<li>{}: {says}</li>", run(one))
    };
    let lines: String = queue.runs.iter().enumerate().map(line).collect();
    format!("<div class=\"device\"><h3>{}</h3><ol>{lines}</ol></div>", escape(&name))
}

/// The measurements of earlier runs.
fn ledger(cards: &[Card]) -> String {
    let entries = Ledger::find().map_or(Ok(Vec::new()), |ledger| ledger.entries());
    let content = match entries {
        Err(error) => format!("<p class=\"missing\">{}</p>", escape(&error.to_string())),
        Ok(entries) if entries.is_empty() => {
            "<p class=\"none\">Nothing is known yet. Every run on a card, <code>pipe fit</code> and <code>batch: auto</code> \
             record here which batch fits.</p>"
                .to_owned()
        }
        Ok(mut entries) => {
            let is_elsewhere = |entry: &LedgerEntry| !cards.iter().any(|card| card.name == entry.key.gpu);
            entries.sort_by_key(is_elsewhere);
            let row = |entry: &LedgerEntry| entry.cells().iter().map(|cell| escape(cell)).collect();
            let rows: Vec<Vec<String>> = entries.iter().take(MAX_ENTRIES).map(row).collect();
            let more = entries.len().saturating_sub(MAX_ENTRIES);
            let more = match more {
                0 => String::new(),
                _ => format!("<p class=\"note\">{} more: <code>pipe ledger ls</code></p>", grouped(more as u64)),
            };
            table(&LedgerEntry::HEAD, &rows) + &more
        }
    };
    format!("<section id=\"ledger\"><h2>What fits</h2>{content}</section>")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_belongs_to_the_run_that_started_it() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let owners = [(std::process::id(), "a".to_owned())];
        assert_eq!(run_of(child.id(), &owners), Some("a"));
        assert_eq!(run_of(1, &owners), None);
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
