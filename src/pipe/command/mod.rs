//! The commands, one a file.

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
pub mod report;
pub mod reproduce;
pub mod resume;
pub mod rm;
pub mod run;
pub mod show;
pub mod stop;
pub mod tune;

use crate::error::Error;

/// A runtime for what talks to a daemon or watches a child; the other commands do without.
pub fn runtime() -> Result<tokio::runtime::Runtime, Error> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|source| Error::Read { path: "the event loop".into(), source })
}
