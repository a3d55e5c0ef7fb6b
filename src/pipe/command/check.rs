//! `pipe check`: is the pipeline good, and is what it names there?

use std::path::Path;

use serde_json::json;

use crate::error::Error;
use crate::hub::HubAccess;
use crate::input::load::{self, Request};
use crate::report::{Reporter, print, print_json};

pub fn run(file: &Path, set: &[String], as_json: bool) -> Result<(), Error> {
    let request = Request { file: file.to_owned(), set: set.to_vec(), access: HubAccess::Check, pins: Vec::new() };
    let result = load::load(&request, Reporter::new(as_json, false).fetch_progress());
    if as_json {
        match &result {
            Ok(_) => print_json(&json!({ "valid": true, "problems": [] })),
            Err(Error::Invalid { problems, .. }) => {
                let list: Vec<_> = problems
                    .0
                    .iter()
                    .map(|problem| json!({ "line": problem.line, "path": problem.path, "message": problem.message }))
                    .collect();
                print_json(&json!({ "valid": false, "problems": list }));
            }
            Err(_) => {}
        }
    }
    let loaded = result?;
    if !as_json {
        let train = &loaded.training()?.train;
        print(&format!(
            "{} is valid: batch {} x accum {} = effective batch {}",
            file.display(),
            train.batch(),
            train.accum(),
            train.effective_batch
        ));
    }
    Ok(())
}
