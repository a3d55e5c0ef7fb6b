//! The records of a `.wandb` file, as W&B's `wandb_internal.proto` has them: the fields that `wandb sync` reads.

use serde_json::{Map, Value};

use super::identity::Identity;
use crate::track::protobuf::Message;

/// Fields of `Record`: one of them beside its number.
#[derive(Clone, Copy)]
pub enum Kind {
    History = 2,
    Summary = 3,
    Config = 5,
    Files = 6,
    Run = 17,
    Exit = 18,
    Header = 21,
}

/// Record number `number` of a file; they count from 1.
pub fn record(number: u64, kind: Kind, content: &Message) -> Message {
    let mut record = Message::default();
    record.number(1, number).message(kind as u64, content);
    record
}

/// Which program wrote the file.
pub fn header() -> Message {
    let (mut version, mut header) = (Message::default(), Message::default());
    version.text(1, concat!("pipe-", env!("CARGO_PKG_VERSION")));
    header.message(1, &version);
    header
}

/// What the run is called, where it belongs, and its settings.
pub fn run(identity: &Identity, config: &Map<String, Value>) -> Message {
    let mut run = Message::default();
    run.text(1, &identity.id).text(2, &identity.labels.entity).text(3, &identity.project);
    run.message(4, &updates(config)).text(6, &identity.labels.group).text(8, &identity.name);
    run.text(9, &identity.labels.notes);
    for tag in &identity.labels.tags {
        run.text(10, tag);
    }
    run.text(13, &identity.host).message(17, &timestamp(identity.created));
    run
}

/// A file of the folder `files` that is uploaded with the run, among W&B's own.
pub fn file(name: &str) -> Message {
    let (mut item, mut files) = (Message::default(), Message::default());
    item.text(1, name).number(3, 1);
    files.message(1, &item);
    files
}

/// The values of one step.
pub fn history(step: u64, values: &Map<String, Value>) -> Message {
    let (mut history, mut number) = (updates(values), Message::default());
    number.number(1, step);
    history.message(2, &number);
    history
}

/// New values for keys of the config or of the summary; the items of a history record have the same fields.
pub fn updates(values: &Map<String, Value>) -> Message {
    let mut updates = Message::default();
    for (key, value) in values {
        let mut item = Message::default();
        item.text(1, key).text(16, &value.to_string());
        updates.message(1, &item);
    }
    updates
}

pub fn exit(code: u64, seconds: f64) -> Message {
    let mut exit = Message::default();
    exit.number(1, code).number(2, seconds as u64);
    exit
}

fn timestamp(seconds: f64) -> Message {
    let mut timestamp = Message::default();
    timestamp.number(1, seconds as u64).number(2, (seconds.fract() * 1e9) as u64);
    timestamp
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_row_is_a_numbered_history_record() {
        let row = record(3, Kind::History, &history(7, &Map::from_iter([("a".to_owned(), json!(1))])));
        let item = [0x0a, 3 + 4, 0x0a, 1, b'a', 0x82, 0x01, 1, b'1'];
        let step = [0x12, 2, 0x08, 7];
        let want = [&[0x08, 3, 0x12, 13][..], &item, &step].concat();
        assert_eq!(row.encoded(), want);
    }
}
