//! What the pipeline file can say and this version cannot do. Refused by name, never ignored.

use super::{EngineKind, Gpus, PipelineFile};

/// The path and the name of each feature in `file` that is not available.
pub(super) fn missing(file: &PipelineFile) -> Vec<(&'static str, String)> {
    let mut missing = Vec::new();
    let mut unless = |available: bool, path: &'static str, feature: String| {
        if !available {
            missing.push((path, feature));
        }
    };
    let one_gpu = match &file.container.gpus {
        Gpus::Auto | Gpus::Count(0 | 1) => true,
        Gpus::Ids(ids) => ids.len() == 1,
        Gpus::Count(_) | Gpus::All => false,
    };
    unless(one_gpu, "container.gpus", "training on several GPUs".into());
    unless(file.train.ranks.count() == 1, "train.ranks", "training with several ranks".into());
    unless(
        !matches!(file.engine, Some(EngineKind::Slurm | EngineKind::Kubernetes)),
        "engine",
        format!("the engine {}", file.engine.map_or("", EngineKind::name)),
    );
    missing
}
