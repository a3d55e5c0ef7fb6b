//! The commands, one a file; `pipe ui` is all in `ui/`.

pub mod attach;
pub mod check;
pub mod diff;
pub mod doctor;
pub mod image;
pub mod init;
pub mod ledger;
pub mod logs;
pub mod ls;
pub mod plan;
pub mod predict;
pub mod prune;
pub mod report;
pub mod reproduce;
pub mod resume;
pub mod rm;
pub mod run;
pub mod show;
pub mod stop;
pub mod tune;

use pipe_spec::event::Fitted;
use pipe_spec::text::human_bytes;
use serde_json::json;

use crate::error::Error;
use crate::execute::single::driver::FoundBatch;
use crate::report::{Output, print, print_json, say, times_ranks};
use crate::ui::{self, UiOptions};

/// A runtime for what talks to a daemon or watches a child; the other commands do without.
pub fn runtime() -> Result<tokio::runtime::Runtime, Error> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|source| Error::Read { path: "the event loop".into(), source })
}

/// Prints the id of a run in the background, and the commands for it.
pub fn print_detached(id: &str, folder: &str, output: Output) {
    if output.is_json() {
        print_json(&json!({ "id": id, "folder": folder }));
        return;
    }
    print(id);
    if output == Output::Text {
        say(&format!("it runs in the background: `pipe attach {id}` watches it, `pipe stop {id}` stops it"));
    }
}

/// Prints the largest batch that a search has found; nothing after a training.
pub fn print_found(found: Option<&FoundBatch>, json: bool) {
    if let Some(found) = found.filter(|_| !json) {
        print(&batch_line(found));
    }
}

/// The result as a line of YAML.
fn batch_line(found: &FoundBatch) -> String {
    let FoundBatch { fitted, ranks } = found;
    let ranks = *ranks;
    let Fitted { batch, accum, effective_batch, peak, .. } = fitted;
    let of = fitted.capacity.map_or(String::new(), |capacity| format!(" of {}", human_bytes(capacity)));
    let result = match fitted.is_whole_step() {
        true if ranks > 1 => format!("{batch} fits, and it is all that a rank has of a step; larger was not tried"),
        true => format!("{batch} fits, and it is the whole effective batch; larger was not tried"),
        false => format!("x accum {accum}{} = {effective_batch}", times_ranks(ranks)),
    };
    format!("train.batch: {batch}   # {result}; peak {}{of} on {}", human_bytes(*peak), fitted.device)
}

/// `pipe ui`.
pub fn ui(options: UiOptions) -> Result<(), Error> {
    runtime()?.block_on(ui::serve(options))
}
