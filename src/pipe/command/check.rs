//! `pipe check`: is the pipeline good, is what it names there, and is the data what the model wants?

use std::path::{Path, PathBuf};

use pipe_spec::Inspection;
use serde_json::{Value, json};

use crate::error::Error;
use crate::hub::HubAccess;
use crate::input::load::{self, Loaded, Request};
use crate::inspect::{self, Opened};
use crate::interrupt::Interrupts;
use crate::report::{Reporter, print, print_json};

pub struct Options {
    pub file: PathBuf,
    pub set: Vec<String>,
    /// Leave the data closed.
    pub no_data: bool,
    pub json: bool,
}

pub fn run(options: &Options) -> Result<(), Error> {
    let checked = super::runtime()?.block_on(check(options));
    if options.json {
        match &checked {
            Ok((_, inspection, warnings)) => {
                print_json(&json!({ "valid": true, "problems": [], "warnings": warnings, "data": inspection }));
            }
            Err(Error::Invalid { problems, .. }) => {
                let problem = |problem: &pipe_spec::Problem| -> Value {
                    json!({ "line": problem.line, "path": problem.path, "message": problem.message })
                };
                let problems: Vec<Value> = problems.0.iter().map(problem).collect();
                print_json(&json!({ "valid": false, "problems": problems }));
            }
            Err(_) => {}
        }
    }
    let (loaded, inspection, warnings) = checked?;
    if !options.json {
        print_checked(&options.file, &loaded, inspection.as_ref(), &warnings)?;
    }
    Ok(())
}

async fn check(options: &Options) -> Result<(Loaded, Option<Inspection>, Vec<String>), Error> {
    let mut interrupts = Interrupts::listen()?;
    let mut reporter = Reporter::new(options.json, false);
    let Options { file, set, .. } = options;
    let request = Request { file: file.clone(), set: set.clone(), access: HubAccess::Check, pins: Vec::new() };
    let loaded = load::load_interruptibly(request, &reporter, &mut interrupts).await?;
    if options.no_data {
        return Ok((loaded, None, Vec::new()));
    }
    Ok(match inspect::inspect(file, &loaded, &mut reporter, &mut interrupts).await? {
        Opened::Data(inspection) => {
            let warnings = inspect::warnings(loaded.training()?, &inspection);
            (loaded, Some(inspection), warnings)
        }
        Opened::Not { why } => (loaded, None, vec![format!("data: not opened: {why}")]),
    })
}

fn print_checked(
    file: &Path,
    loaded: &Loaded,
    inspection: Option<&Inspection>,
    warnings: &[String],
) -> Result<(), Error> {
    let train = &loaded.training()?.train;
    print(&format!(
        "{} is valid: batch {} x accum {} = effective batch {}",
        file.display(),
        train.batch(),
        train.accum(),
        train.effective_batch
    ));
    inspection.map(inspect::summary).unwrap_or_default().iter().for_each(|line| print(&format!("  {line}")));
    warnings.iter().for_each(|warning| print(&format!("  warning: {warning}")));
    Ok(())
}
