//! Runs that want the same card queue for it: each has a ticket with a number, and the lowest number that a living process
//! holds has the card.
//!
//! A ticket is a file `<card>-<number>` that its process holds with a lock of the kernel (flock), so that the ticket of a
//! killed `pipe` is known to be dead. There is one folder for all users of the machine. Nothing here waits for a lock.

mod folder;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use folder::{Folder, TicketState};
use pipe_spec::pipeline::Gpus;
use rustix::process::geteuid;

use super::Card;
use crate::error::Error;
use crate::system::files::user;

/// The digits of a number, and the largest one.
const DIGITS: usize = 8;
const MAX_NUMBER: u32 = 99_999_999;
/// How often a number is taken that turns out to be too low.
const MAX_TRIES: usize = 1000;
/// How often to try again while another user creates the folder, and the time between two tries.
const CREATION_TRIES: usize = 50;
const CREATION_POLL: Duration = Duration::from_millis(10);

/// A ticket of the queue for a card, valid until it is dropped.
#[derive(Debug)]
pub struct Ticket {
    folder: Folder,
    card: String,
    number: u32,
    file: File,
}

/// A run that is ahead of this one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ahead {
    pub number: u32,
    pub run: String,
    /// The user it belongs to, where that is another one.
    pub user: Option<String>,
}

impl std::fmt::Display for Ahead {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.user {
            Some(user) => write!(f, "run {} of {user}", self.run),
            None => write!(f, "run {}", self.run),
        }
    }
}

impl Ticket {
    /// Takes a ticket for a card of `card_names`. Where the folder for all users cannot be used, the ticket is one of
    /// a folder of this user alone, with a warning that says why.
    pub fn take(card: &str, run: &str) -> Result<(Self, Option<String>), Error> {
        let temporary = std::env::temp_dir();
        let named = std::env::var_os("PIPE_QUEUE").filter(|path| !path.is_empty()).map(PathBuf::from);
        let shared = named.unwrap_or_else(|| temporary.join("pipe-gpu-queue"));
        let own = temporary.join(format!("pipe-gpu-queue-{}", geteuid().as_raw()));
        Self::take_in(&shared, &own, card, run)
    }

    fn take_in(shared: &Path, own: &Path, card: &str, run: &str) -> Result<(Self, Option<String>), Error> {
        let mut tries = 0;
        let reason = loop {
            match Folder::shared(shared).and_then(|folder| Self::take_number(folder, card, run)) {
                Ok(ticket) => return Ok((ticket, None)),
                Err(_) if tries < CREATION_TRIES && folder::is_being_created(shared) => {
                    tries += 1;
                    std::thread::sleep(CREATION_POLL);
                }
                Err(reason) => break reason,
            }
        };
        let ticket = Folder::own(own)
            .and_then(|folder| Self::take_number(folder, card, run))
            .map_err(|reason| Error::NoQueue { folder: own.to_owned(), reason })?;
        let warning = format!(
            "warning: the queue folder {} is not used: {reason}. This run uses the queue in {}, which only runs of this user see",
            shared.display(),
            own.display()
        );
        Ok((ticket, Some(warning)))
    }

    fn take_number(folder: Folder, card: &str, run: &str) -> Result<Self, String> {
        let (name, file) = folder.create(run)?;
        let number = next_number(&folder, card, &name, &file);
        folder.remove(&name, &file);
        Ok(Self { number: number?, card: card.to_owned(), folder, file })
    }

    /// The runs ahead of this one, the one that has the card first. Tickets of dead processes are removed.
    pub fn ahead(&self) -> Result<Vec<Ahead>, Error> {
        let numbers = numbers(&self.folder, &self.card)
            .map_err(|reason| Error::NoQueue { folder: self.folder.path().to_owned(), reason })?;
        let mut ahead = Vec::new();
        for number in numbers.into_iter().filter(|number| *number < self.number) {
            if let TicketState::Held { text, uid } = self.folder.look(&ticket_name(&self.card, number)) {
                let user = (uid != geteuid().as_raw()).then(|| user(uid));
                ahead.push(Ahead { number, run: run_id(&text), user });
            }
        }
        Ok(ahead)
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.folder.remove(&ticket_name(&self.card, self.number), &self.file);
    }
}

/// Links `file`, which lies under `name`, to the number after the largest one.
fn next_number(folder: &Folder, card: &str, name: &str, file: &File) -> Result<u32, String> {
    let mut cleared = false;
    for _ in 0..MAX_TRIES {
        let largest = numbers(folder, card)?.last().copied().unwrap_or(0);
        let Some(number) = largest.checked_add(1).filter(|number| *number <= MAX_NUMBER) else {
            if !cleared {
                cleared = true;
                numbers(folder, card)?.into_iter().for_each(|number| drop(folder.look(&ticket_name(card, number))));
                continue;
            }
            return Err(format!("{} leaves no room for another number", ticket_name(card, largest)));
        };
        let ticket = ticket_name(card, number);
        if !folder.link(name, &ticket, file)? {
            continue;
        }
        // The list is old by now. Where a larger number was given away meanwhile, its run may have the card already, and
        // this number must not be before it.
        if numbers(folder, card)?.last() == Some(&number) {
            return Ok(number);
        }
        folder.remove(&ticket, file);
    }
    Err(format!("no number in {MAX_TRIES} tries"))
}

/// The numbers of the tickets for a card, living or dead, the lowest first.
fn numbers(folder: &Folder, card: &str) -> Result<Vec<u32>, String> {
    let names = folder.names()?;
    let mut numbers: Vec<u32> = names.iter().filter_map(|name| number_of(name, card)).collect();
    numbers.sort_unstable();
    Ok(numbers)
}

fn ticket_name(card: &str, number: u32) -> String {
    format!("{card}-{number:0DIGITS$}")
}

/// Nothing where the name is not exactly that of a ticket.
fn number_of(name: &str, card: &str) -> Option<u32> {
    let digits = name.strip_prefix(card)?.strip_prefix('-')?;
    let is_number = digits.len() == DIGITS && digits.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| digits.parse().ok()).flatten()
}

/// The text that another process wrote into its ticket, cut to what can be the id of a run.
fn run_id(text: &str) -> String {
    let id: String = text.trim().chars().take(200).collect();
    let is_id = !id.is_empty() && id.chars().all(|letter| letter.is_alphanumeric() || "-_.".contains(letter));
    if is_id { id } else { "(without a name)".to_owned() }
}

/// The names of the requested cards, in the order in which every run queues for them. A card that the driver knows, which is one of
/// `present`, has one name however a pipeline calls it.
pub fn card_names(gpus: &Gpus, present: &[Card]) -> BTreeSet<String> {
    let plain = |letter: char| if letter.is_ascii_alphanumeric() || "_.:-".contains(letter) { letter } else { '-' };
    let name = |id: &str| format!("gpu-{}", id.chars().take(100).map(plain).collect::<String>());
    let at = |position: u32| present.get(position as usize).map_or(position, |card| card.index);
    let first = |count: u32| (0..count.max(1)).map(|position| name(&at(position).to_string())).collect();
    match gpus {
        Gpus::Ids(ids) => {
            let card = |id: &String| present.iter().find(|card| card.is_called(id));
            ids.iter().map(|id| card(id).map_or_else(|| name(id), |card| name(&card.index.to_string()))).collect()
        }
        Gpus::Count(count) => first(*count),
        Gpus::Auto => first(1),
        Gpus::All => first(present.len() as u32),
    }
}
