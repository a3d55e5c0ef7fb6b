//! Images: named by their content, built once, and a failing build that says where.

use crate::harness::{Needs, Suite, job};

pub fn tests(suite: &mut Suite) {
    suite.test("images::unchanged_is_not_sent_again", Needs::Docker, unchanged);
    suite.test("images::failing_step_is_named", Needs::Docker, failing_step);
    suite.test("images::dockerfile_syntax", Needs::Docker, dockerfile_syntax);
    suite.test("images::missing_dockerfile", Needs::Nothing, missing_dockerfile);
    suite.test("images::pinned_and_not_there", Needs::Docker, pinned);
}

fn unchanged() {
    let folder = job::folder("exit 0", "");
    folder.write("image/mark", format!("{:?}", std::time::SystemTime::now()));
    let build = || folder.pipe(&["image", "build", "image/job.Dockerfile", "--json"]).exits(0).json();
    let (first, second) = (build(), build());
    assert_eq!((first["built"].as_bool(), second["built"].as_bool()), (Some(true), Some(false)));
    assert_eq!(first["hash"], second["hash"]);
    assert_eq!(first["id"], second["id"]);
    folder.pipe(&["run", "job.yaml"]).exits(0).says("(unchanged)").says_not("building the image");
    let name = first["image"].as_str().unwrap();
    folder.pipe(&["image", "ls"]).exits(0).prints(name);
    folder.write("image/mark", "another");
    assert_ne!(build()["hash"], first["hash"]);
}

fn failing_step() {
    let folder = job::folder("exit 0", "");
    folder.write("image/job.Dockerfile", "FROM scratch\nCOPY job /job\nRUN [\"/job\", \"nonsense\"]\n");
    folder
        .pipe(&["run", "job.yaml"])
        .exits(5)
        .says("Step 2/")
        .says("the image could not be built at step 3/")
        .says("(RUN [\"/job\", \"nonsense\"])");
    let run = folder.show();
    assert_eq!((run["status"].as_str(), run["exit_code"].as_u64()), (Some("failed"), Some(5)));
    assert_eq!(run["attempts"], serde_json::json!([]));
}

fn dockerfile_syntax() {
    let folder = job::folder("exit 0", "");
    folder.write("image/job.Dockerfile", "FROM scratch\nCOPPY job /job\n");
    folder
        .pipe(&["image", "build", "image/job.Dockerfile"])
        .exits(5)
        .says("the image could not be built")
        .says("COPPY");
}

fn missing_dockerfile() {
    let folder = job::folder("exit 0", "");
    std::fs::remove_file(folder.path().join("image/job.Dockerfile")).unwrap();
    folder.pipe(&["run", "job.yaml"]).exits(3).says("container.image: no such file: image/job.Dockerfile");
}

fn pinned() {
    let folder = job::folder("exit 0", "");
    let image = format!("container.image=nowhere@sha256:{}", "0".repeat(64));
    folder
        .pipe(&["run", "job.yaml", "--set", &image])
        .exits(5)
        .says("the engine does not have the image nowhere@sha256:");
}
