//! What fits on a card: what earlier runs measured (the ledger), and what is expected (the forecast).

pub mod forecast;
pub mod ledger;
