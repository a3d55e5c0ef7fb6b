//! `pipe ui`: every run in a browser, live.

use crate::error::Error;
use crate::ui::{self, UiOptions};

pub fn run(options: UiOptions) -> Result<(), Error> {
    super::runtime()?.block_on(ui::serve(options))
}
