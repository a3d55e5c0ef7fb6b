//! The lengths of the texts in tokens: the trainer opens the data of a draft, as it does for `pipe check`.

use pipe_spec::Inspection;

use super::draft::Draft;
use super::limits::Limits;
use crate::error::Error;
use crate::execute::inspect::{self, Opened};
use crate::input::hub::HubAccess;
use crate::input::load::{self, Request};
use crate::report::Reporter;
use crate::system::interrupt::Interrupts;

/// Nothing where the data cannot be opened here: `pipe check` says why. No text is cut.
pub fn inspect(draft: &Draft) -> Result<Option<Inspection>, Error> {
    let limits = Limits::unknown(draft.arch.task()).longest();
    let text = Draft { limits, ..draft.clone() }.yaml();
    let fail = |source| Error::Write { path: "a temporary folder".into(), source };
    let folder = tempfile::tempdir().map_err(fail)?;
    let file = folder.path().join("draft.yaml");
    std::fs::write(&file, text).map_err(fail)?;
    match crate::command::runtime()?.block_on(open(file)) {
        Ok(Opened::Data(inspection, _)) => Ok(Some(*inspection)),
        Ok(Opened::Not { why }) => {
            tracing::debug!("{why}");
            Ok(None)
        }
        Err(Error::Interrupted) => Err(Error::Interrupted),
        Err(error) => {
            tracing::debug!("{error}");
            Ok(None)
        }
    }
}

async fn open(file: std::path::PathBuf) -> Result<Opened, Error> {
    let mut interrupts = Interrupts::listen()?;
    let mut reporter = Reporter::new(false, true);
    let request = Request { file: file.clone(), set: Vec::new(), access: HubAccess::CacheOnly, pins: Vec::new() };
    let loaded = load::load_interruptibly(request, &reporter, &mut interrupts).await?;
    inspect::inspect(&file, &loaded, &mut reporter, &mut interrupts).await
}
