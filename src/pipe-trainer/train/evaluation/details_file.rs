//! Writes what an evaluation has shown beside its scores, for the report. Each file is replaced whole by the next evaluation.

use std::path::Path;

use pipe_spec::evaluation::EvaluationDetails;

use crate::spec::job_folder;
use crate::storage::durable;
use crate::train::session::Session;

/// Writes the details of the latest evaluation, and again as those of the best where it is. A training does not end because
/// they cannot be written.
pub fn write(session: &Session, details: &EvaluationDetails, is_best: bool) {
    if details.is_empty() {
        return;
    }
    let folder = job_folder(&session.spec);
    let json = serde_json::to_vec(details).expect("details are plain data");
    let write = |path: &Path| {
        let written = std::fs::create_dir_all(folder.path()).and_then(|()| durable::write_whole(path, &json));
        if let Err(error) = written {
            session.warn(format!("cannot write {}: {error}", path.display()));
        }
    };
    write(&folder.evaluation());
    if is_best {
        write(&folder.best_evaluation());
    }
}
