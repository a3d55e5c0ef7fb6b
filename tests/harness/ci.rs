//! The jobs in docs/ci and .github/workflows, run as they stand there.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::folder::{binaries, pipe, repository};
use super::{Answer, Folder, Running};

/// A step of a job: its name, when it is run, and its shell lines.
#[derive(Debug)]
pub struct Step {
    pub name: String,
    pub condition: Option<String>,
    pub script: String,
}

/// The file of a job.
fn job(path: &str) -> String {
    std::fs::read_to_string(repository().join(path)).unwrap()
}

fn indent(line: &str) -> usize {
    line.len() - line.trim_start().len()
}

/// The lines below `at` that are indented more, without their indentation.
fn nested(lines: &[&str], at: usize) -> String {
    let inner: Vec<&str> =
        lines[at + 1..].iter().take_while(|line| indent(line) > indent(lines[at])).copied().collect();
    let margin = inner.iter().map(|line| indent(line)).min().unwrap_or(0);
    inner.iter().map(|line| format!("{}\n", &line[margin..])).collect()
}

/// The steps of the GitHub workflow in docs/ci that are shell, in order.
pub fn github() -> Vec<Step> {
    steps("docs/ci/github.yml")
}

/// The steps of a GitHub workflow that are shell, in order.
pub fn steps(path: &str) -> Vec<Step> {
    let text = job(path);
    let lines: Vec<&str> = text.lines().collect();
    let starts: Vec<usize> = (0..lines.len()).filter(|at| lines[*at].trim_start().starts_with("- name: ")).collect();
    let step = |at: usize| {
        let body = nested(&lines, at);
        let inner: Vec<&str> = body.lines().collect();
        let value = |key: &str| inner.iter().position(|line| line.starts_with(key));
        let run = value("run: ").expect("a step that is named has shell lines");
        let script = match inner[run] {
            "run: |" => nested(&inner, run),
            line => line["run: ".len()..].to_owned() + "\n",
        };
        Step {
            name: lines[at].trim_start()["- name: ".len()..].to_owned(),
            condition: value("if: ").map(|at| inner[at]["if: ".len()..].to_owned()),
            script,
        }
    };
    starts.into_iter().map(step).collect()
}

/// The lines of the GitLab job under a key, `script` or `after_script`.
#[allow(dead_code)] // The runner's tests alone use it.
pub fn gitlab(key: &str) -> String {
    let text = job("docs/ci/gitlab.yml");
    let lines: Vec<&str> = text.lines().collect();
    let at = lines.iter().position(|line| line.trim() == format!("{key}:")).unwrap();
    nested(&lines, at).lines().map(|line| format!("{}\n", line.strip_prefix("- ").unwrap())).collect()
}

/// A checkout on a runner whose runs outlive the job.
pub struct Runner {
    pub folder: Folder,
    pipeline: String,
    time_limit: String,
    /// The branch or tag that the job is of.
    reference: String,
}

impl Runner {
    pub fn new(folder: Folder, pipeline: &str) -> Self {
        let (pipeline, time_limit) = (pipeline.to_owned(), "1h".to_owned());
        let runner = Self { folder, pipeline, time_limit, reference: "main".to_owned() };
        // A test can neither build again nor call GitHub.
        ["make", "gh"].into_iter().for_each(|program| runner.stub(program, ""));
        runner
    }

    /// A program that writes down how it was called, and then runs a line of shell.
    pub fn stub(&self, program: &str, line: &str) {
        let text = format!("#!/bin/sh\necho {program} \"$@\" >> stubs/calls\n{line}\n");
        self.folder.write(&format!("stubs/{program}"), text);
        let chmod = Command::new("chmod").arg("+x").arg(self.folder.path().join("stubs").join(program)).status();
        assert!(chmod.unwrap().success());
    }

    #[allow(dead_code)] // The runner's tests alone use it.
    pub fn with_tag(mut self, tag: &str) -> Self {
        self.reference = tag.to_owned();
        self
    }

    #[allow(dead_code)] // The runner's tests alone use it.
    pub fn with_time_limit(mut self, limit: &str) -> Self {
        self.time_limit = limit.to_owned();
        self
    }

    #[allow(dead_code)] // The runner's tests alone use it.
    pub fn set_time_limit(&mut self, limit: &str) {
        self.time_limit = limit.to_owned();
    }

    /// Starts shell lines as the CI system does, in a process group of their own.
    pub fn start(&self, name: &str, script: &str) -> Running {
        use std::os::unix::process::CommandExt;
        let at = |name: &str| self.folder.path().join(name);
        self.folder.write(&format!("scripts/{name}.sh"), script);
        let path = std::env::var("PATH").unwrap();
        let own = [at("stubs"), pipe().parent().unwrap().to_owned(), binaries()];
        let own: Vec<String> = own.iter().map(|path: &PathBuf| path.display().to_string()).collect();
        let mut shell = Command::new("bash");
        shell
            .args(["--noprofile", "--norc", "-eo", "pipefail"])
            .arg(at(&format!("scripts/{name}.sh")))
            // The environment of `pipe` in tests.
            .envs(self.folder.command(&[]).get_envs().filter_map(|(name, value)| Some((name, value?))))
            .env("PATH", format!("{}:{path}", own.join(":")))
            .env("PIPELINE", &self.pipeline)
            .env("PIPE_RUNS", at("runs"))
            .env("TIME_LIMIT", &self.time_limit)
            .env("GITHUB_STEP_SUMMARY", at("summary.md"))
            .env("GITHUB_OUTPUT", at("output"))
            .env("GITHUB_PATH", at("path"))
            .env("GITHUB_REF_NAME", &self.reference)
            .current_dir(self.folder.path())
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        Running::new(format!("step {name}"), shell.spawn().unwrap())
    }

    pub fn run(&self, name: &str, script: &str) -> Answer {
        self.start(name, script).end()
    }

    /// The runner is lost: every process of a step is killed.
    pub fn lose(&self, step: Running) {
        let group = format!("-{}", step.id());
        Command::new("kill").args(["-KILL", "--", &group]).status().unwrap();
        step.end();
    }

    /// Runs the GitHub job to its end. Returns the first step that failed, and its output.
    pub fn github_job(&self) -> (Option<String>, Answer) {
        let mut failed: Option<(String, Answer)> = None;
        let mut last = None;
        for step in github() {
            let is_unfinished = || self.read("output").contains("unfinished=true");
            let runs = match step.condition.as_deref() {
                None => failed.is_none(),
                Some("always()") => true,
                Some("steps.train.outputs.unfinished == 'true'") => failed.is_none() && is_unfinished(),
                Some(other) => panic!("when is {other:?}?"),
            };
            if !runs {
                continue;
            }
            let answer = self.run(&step.name, &step.script);
            match answer.code {
                Some(0) => last = Some(answer),
                _ if failed.is_none() => failed = Some((step.name, answer)),
                _ => {}
            }
        }
        match failed {
            Some((name, answer)) => (Some(name), answer),
            None => (None, last.expect("the job has steps")),
        }
    }

    /// A file of the checkout, if it is there.
    pub fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.folder.path().join(name)).unwrap_or_default()
    }

    pub fn has(&self, name: impl AsRef<Path>) -> bool {
        self.folder.path().join(name).exists()
    }
}
