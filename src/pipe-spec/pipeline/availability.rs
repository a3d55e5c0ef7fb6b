//! What the pipeline file can say and this version cannot do. Refused by name, never ignored.

use super::{EngineKind, PipelineFile};

/// The path and the name of each feature in `file` that is not available.
pub(super) fn missing(file: &PipelineFile) -> Vec<(&'static str, String)> {
    let mut missing = Vec::new();
    let mut unless = |available: bool, path: &'static str, feature: String| {
        if !available {
            missing.push((path, feature));
        }
    };
    unless(
        file.engine != Some(EngineKind::Kubernetes),
        "engine",
        format!("the engine {}", file.engine.map_or("", EngineKind::name)),
    );
    missing
}
