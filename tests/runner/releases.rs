//! The wheel and the files of a release: what tests/wheel.py and tests/release.py check, and the shell lines of the workflow that makes a
//! release of a tag.

use std::process::Command;

use crate::harness::ci::{Runner, steps};
use crate::harness::folder::{binaries, repository};
use crate::harness::{Answer, Folder, Needs, Suite};

pub fn tests(suite: &mut Suite) {
    suite.test("releases::the_wheel", Needs::Hatchling, || python("wheel.py", &ON_ONE_PYTHON));
    suite.thorough("releases::the_wheel_in_every_python", Needs::Hatchling, || python("wheel.py", &[]));
    suite.thorough("releases::the_files_of_a_release", Needs::Hatchling, || python("release.py", &[]));
    suite.test("releases::the_workflow_of_a_tag", Needs::Nothing, workflow);
    suite.test("releases::the_workflow_refuses_another_version", Needs::Nothing, other_version);
}

/// Those of tests/wheel.py that need no more than the Python that runs it.
const ON_ONE_PYTHON: [&str; 4] = [
    "Wheel.test_another_version_of_torch",
    "Wheel.test_no_torch",
    "Wheel.test_links_to_the_programs",
    "Wheel.test_versions_agree",
];

fn python(script: &str, tests: &[&str]) {
    let path = repository().join("tests").join(script);
    let output = Command::new("python3").arg(path).arg(binaries()).args(tests).output().unwrap();
    Answer::new(script.to_owned(), output).exits(0).says("OK");
}

/// A checkout of a tag, in which neither programs are compiled nor a release is published.
fn checkout(tag: &str, heading: &str) -> Runner {
    let folder = Folder::new();
    let read = |name: &str| std::fs::read_to_string(repository().join(name)).unwrap();
    folder.write("Cargo.toml", read("Cargo.toml")).write("docker/version", read("docker/version"));
    folder.write("CHANGELOG.md", format!("# Changelog\n\n## {heading}\nThe first version.\n"));
    let chmod = Command::new("chmod").arg("+x").arg(folder.path().join("docker/version")).status();
    assert!(chmod.unwrap().success());
    let runner = Runner::new(folder, "none.yaml").with_tag(tag);
    // What `make release` makes, and a Python that installs it.
    runner.stub("make", "mkdir -p target/dist/release && cd target/dist/release && echo > pipe_train-1.whl && sha256sum *.whl > SHA256SUMS");
    runner.stub("python3", "mkdir -p $3/bin && for name in pip pipe; do cp stubs/tool $3/bin/$name; done");
    runner.stub("tool", "");
    runner
}

fn version() -> &'static str {
    env!("CARGO_PKG_VERSION")
}

fn workflow() {
    let version = version();
    let runner = checkout(&format!("v{version}"), &format!("{version}, 2030-01-02"));
    for step in steps(".github/workflows/release.yml") {
        runner.run(&step.name, &step.script).exits(0);
    }
    let calls = runner.read("stubs/calls");
    let publish = calls.lines().last().unwrap();
    assert!(calls.contains("make release\n") && calls.contains("tool doctor\n"), "{calls}");
    assert!(publish.starts_with(&format!("gh release create v{version} --verify-tag")), "{calls}");
    assert!(publish.contains("--notes-file target/dist/release/NOTES.md target/dist/release/SHA256SUMS"), "{calls}");
}

fn other_version() {
    let version = version();
    let steps = steps(".github/workflows/release.yml");
    let first = &steps[0];
    assert_eq!(first.name, "Version");
    for (tag, heading, says) in [
        ("v9.9.9".to_owned(), format!("{version}, 2030-01-02"), "::error file=Cargo.toml::the tag is v9.9.9"),
        (format!("v{version}"), format!("{version}, unreleased"), "::error file=CHANGELOG.md::no entry with a date"),
    ] {
        checkout(&tag, &heading).run("Version", &first.script).exits(1).prints(says);
    }
}
