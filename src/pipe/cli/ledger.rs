//! Arguments of `pipe ledger`.

use clap::Subcommand;

#[derive(Subcommand)]
pub enum LedgerCommand {
    /// List the entries
    Ls {
        /// Print an array as JSON
        #[arg(long)]
        json: bool,
    },
    /// Show an entry with every measurement, as JSON
    Show {
        /// The beginning of an id
        id: String,
    },
    /// Remove entries: the next run measures again
    Forget {
        /// The beginnings of ids
        #[arg(required_unless_present = "all")]
        ids: Vec<String>,
        /// Remove all entries
        #[arg(long, conflicts_with = "ids")]
        all: bool,
    },
    /// Print every entry as a line of JSON
    Export,
}
