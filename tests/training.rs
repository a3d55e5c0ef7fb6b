//! Training from outside: the real `pipe`, the real trainer, real memory that really runs out.

#[path = "training/adapters.rs"]
mod adapters;
#[path = "training/buckets.rs"]
mod buckets;
#[path = "training/check_data.rs"]
mod check_data;
#[path = "training/checkpoints.rs"]
mod checkpoints;
#[path = "training/clip.rs"]
mod clip;
#[path = "training/cluster_queue.rs"]
mod cluster_queue;
#[path = "training/clusters.rs"]
mod clusters;
#[path = "training/data_files.rs"]
mod data_files;
#[path = "training/decoders.rs"]
mod decoders;
#[path = "training/detach_and_resume.rs"]
mod detach_and_resume;
#[path = "training/exactness.rs"]
mod exactness;
#[path = "training/first_hour.rs"]
mod first_hour;
#[path = "harness/generated.rs"]
mod generated;
#[path = "training/golden.rs"]
mod golden;
mod harness;
#[path = "training/hub.rs"]
mod hub;
#[path = "training/hybrid.rs"]
mod hybrid;
#[path = "training/inputs.rs"]
mod inputs;
#[path = "training/installing.rs"]
mod installing;
#[path = "training/kubernetes.rs"]
mod kubernetes;
#[path = "training/kubernetes_ends.rs"]
mod kubernetes_ends;
#[path = "training/kubernetes_runs.rs"]
mod kubernetes_runs;
#[path = "training/kubernetes_supervised.rs"]
mod kubernetes_supervised;
#[path = "training/labels.rs"]
mod labels;
#[path = "training/memory.rs"]
mod memory;
#[path = "training/minilm.rs"]
mod minilm;
#[path = "training/mu_sota.rs"]
mod mu_sota;
#[path = "training/pictures.rs"]
mod pictures;
#[path = "training/predict.rs"]
mod predict;
#[path = "training/preferences.rs"]
mod preferences;
#[path = "training/quantized.rs"]
mod quantized;
#[path = "training/ranks.rs"]
mod ranks;
#[path = "training/reproducing.rs"]
mod reproducing;
#[path = "training/slurm.rs"]
mod slurm;
#[path = "training/small_t5.rs"]
mod small_t5;
#[path = "training/tune.rs"]
mod tune;
#[path = "training/undisturbed.rs"]
mod undisturbed;
#[path = "training/weights.rs"]
mod weights;

use std::process::ExitCode;

fn main() -> ExitCode {
    let mut suite = harness::Suite::default();
    // The slowest come first, so that none of them is waited for alone at the end.
    memory::tests(&mut suite);
    clusters::tests(&mut suite);
    kubernetes_ends::tests(&mut suite);
    kubernetes_runs::tests(&mut suite);
    kubernetes_supervised::tests(&mut suite);
    cluster_queue::tests(&mut suite);
    first_hour::tests(&mut suite);
    labels::tests(&mut suite);
    ranks::tests(&mut suite);
    golden::tests(&mut suite);
    decoders::tests(&mut suite);
    minilm::tests(&mut suite);
    mu_sota::tests(&mut suite);
    hybrid::tests(&mut suite);
    inputs::tests(&mut suite);
    adapters::tests(&mut suite);
    buckets::tests(&mut suite);
    preferences::tests(&mut suite);
    check_data::tests(&mut suite);
    data_files::tests(&mut suite);
    hub::tests(&mut suite);
    weights::tests(&mut suite);
    installing::tests(&mut suite);
    checkpoints::tests(&mut suite);
    exactness::tests(&mut suite);
    detach_and_resume::tests(&mut suite);
    clip::tests(&mut suite);
    pictures::tests(&mut suite);
    tune::tests(&mut suite);
    predict::tests(&mut suite);
    quantized::tests(&mut suite);
    reproducing::tests(&mut suite);
    let code = suite.run();
    slurm::Shared::lock().stop();
    kubernetes::stop();
    code
}
