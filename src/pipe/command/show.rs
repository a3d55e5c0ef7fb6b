//! `pipe show`: one run in full.

use pipe_spec::Status;

use crate::error::Error;
use crate::report::{attempts_table, print, print_json};
use crate::run;

pub fn run(wanted: &str, json: bool) -> Result<(), Error> {
    let mut found = [run::find(wanted)?];
    super::ls::find_left_behind(&mut found)?;
    let [found] = found;
    if json {
        print_json(&found);
        return Ok(());
    }
    let state = &found.state;
    print(&format!("run      {}", state.id));
    print(&format!("status   {}", state.status.name()));
    if let Some(error) = &state.error {
        print(&format!("error    {}", error.replace('\n', "\n         ")));
    }
    if let Some(doing) = state.doing.as_ref().filter(|_| state.status == Status::Running) {
        print(&format!("doing    {doing}"));
    }
    print(&format!("engine   {}", state.engine));
    print(&format!("folder   {}", found.folder));
    if !found.left_behind.is_empty() {
        print(&format!("left     {} (`pipe attach` continues the run)", found.left_behind.join(", ")));
    }
    if !state.attempts.is_empty() {
        print(&format!("\n{}", attempts_table(&state.attempts)));
    }
    Ok(())
}
