//! Which batches fit on a card: measurements of earlier runs (the ledger), and expectations (the forecast).

pub mod forecast;
pub mod ledger;
