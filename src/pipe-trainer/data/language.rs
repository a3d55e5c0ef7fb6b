//! Texts packed to full rows.

use super::source::{Opener, Sources};
use crate::error::TrainerError;
use crate::model::Expects;

pub fn open(_opener: &Opener<'_>, expects: &Expects) -> Result<Sources, TrainerError> {
    Err(TrainerError::NotAvailable { what: format!("{expects:?}") })
}
