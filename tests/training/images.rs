//! The trainer image: the same tree gives the same hash, and what is unchanged is not sent again.

use crate::harness::{Needs, Suite};
use crate::small_t5::folder;

pub fn tests(suite: &mut Suite) {
    suite.test("images::trainer_image_is_built_once", Needs::Docker, built_once);
}

fn built_once() {
    let folder = folder("train: {steps: 2, batch: 4}\ncontainer: {gpus: 0, cpus: 1}\n");
    let build = || folder.pipe(&["image", "build", "--json"]).exits(0).json();
    let (first, second) = (build(), build());
    assert_eq!((first["hash"].as_str(), first["id"].as_str()), (second["hash"].as_str(), second["id"].as_str()));
    assert_eq!(second["built"], false);
    folder.pipe(&["run", "t5.yaml", "--engine", "docker"]).exits(0).says("(unchanged)").says_not("building the image");
    let output = std::process::Command::new("docker")
        .args(["history", "--no-trunc", "--format", "{{.CreatedBy}}", first["image"].as_str().unwrap()])
        .output()
        .unwrap();
    let layers = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        layers.lines().any(|layer| layer.contains("/opt/pipe/libtorch")),
        "libtorch has no layer of its own:\n{layers}"
    );
}
