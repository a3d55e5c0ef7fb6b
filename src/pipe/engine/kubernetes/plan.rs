//! The files that are carried to the pod of a job and back, and where it lies there. Pure.

use std::path::{Component, Path, PathBuf};

use pipe_spec::run::JobFolder;

use super::section::{Pods, Volume};
use crate::engine::{JobProgram, Launch};
use crate::system::files::Pattern;

/// Where the containers that carry files have the volume.
pub const DATA: &str = "/run/pipe-data";

/// The folder that the containers of a pod share.
pub const CONTROL: &str = "/run/pipe-control";

/// The names of pods and labels are no longer than this.
const MAX_NAME: usize = 40;

/// The names of a run in the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunName {
    /// Begins like the id of the run, and is another one for each run.
    pub short: String,
    pub hash: String,
}

impl RunName {
    pub fn of(run: &str) -> Self {
        let hash = blake3::hash(run.as_bytes()).to_hex()[..8].to_owned();
        let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
        let begin: String = run.chars().map(plain).take(MAX_NAME).collect();
        Self { short: format!("{}-{hash}", begin.trim_matches('-')), hash }
    }

    pub fn pod(&self, attempt: u32) -> String {
        format!("pipe-{}-{attempt:02}", self.short)
    }
}

/// A file or folder that a job only reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Given {
    pub host: PathBuf,
    pub mounted: PathBuf,
    /// Below the folder of the run.
    pub stored: String,
}

/// A folder that a job writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    pub host: PathBuf,
    pub mounted: PathBuf,
    /// Below the folder of the attempt.
    pub name: String,
    pub kind: WrittenKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WrittenKind {
    /// That of the first process, with the files that grow.
    Job,
    /// With folders that are complete when they are there.
    Checkpoints,
    /// The run folder, for the job that supervises the run.
    Run,
    Plain,
}

/// The name of that folder below the one of the attempt.
const RUN: &str = "run";

/// Files of a run folder that each machine has for itself: locks and the like, and the notes of people.
const OF_MACHINE: [&str; 2] = [".*", "notes.json"];

/// The file of a run folder that says how the run ended, which comes after all others.
const STATE: &str = "run.json";

/// The end of the name of what is not here as a whole: readers of the run folder skip it.
pub const INCOMING: &str = ".incoming.tmp";

/// The files of a run folder that are only added to.
const GROWING: [&str; 5] =
    ["events.jsonl", "pipe.log", "attempts/*/log.txt", "attempts/*/job/output", "attempts/*/job/events.jsonl"];

#[derive(Clone, Debug)]
pub struct Plan {
    pub run: RunName,
    pub pod: String,
    /// That of the first node.
    pub first_pod: String,
    /// From 0.
    pub node: u32,
    pub nodes: u32,
    pub attempt: u32,
    /// The folder of the run on the volume.
    pub folder: String,
    pub given: Vec<Given>,
    pub written: Vec<Written>,
    /// Whether checkpoints stay on a volume that outlives the pod.
    pub keeps_checkpoints: bool,
    /// The folder of the attempt that has checkpoints, and the pattern of their names.
    checkpoints: Option<(String, String)>,
}

impl Plan {
    pub fn new(launch: &Launch, settings: &Pods) -> Self {
        Self::of_node(launch, settings, 0)
    }

    /// That of the pod of a node.
    pub fn of_node(launch: &Launch, settings: &Pods, node: u32) -> Self {
        let run = RunName::of(&launch.run_id);
        let volume = settings.volume();
        let given = launch.mounts.read_only.iter().map(|(host, mounted)| Given {
            host: host.clone(),
            mounted: mounted.clone(),
            stored: format!("inputs/{}", &blake3::hash(mounted.to_string_lossy().as_bytes()).to_hex()[..16]),
        });
        let written = launch.mounts.writable.iter().map(|(host, mounted)| {
            let mut name = mounted.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let kind = match name.as_str() {
                _ if *mounted == launch.job_folder.1 => WrittenKind::Job,
                _ if launch.supervises() => WrittenKind::Run,
                "checkpoints" => WrittenKind::Checkpoints,
                _ => WrittenKind::Plain,
            };
            match kind {
                WrittenKind::Job if node > 0 => name = format!("{name}-{node}"),
                WrittenKind::Run => RUN.clone_into(&mut name),
                _ => {}
            }
            Written { host: host.clone(), mounted: mounted.clone(), name, kind }
        });
        let first_pod = run.pod(launch.attempt);
        let above = volume.as_ref().map_or("", Volume::folder);
        let folder =
            if above.is_empty() { format!("pipe/{}", run.short) } else { format!("{above}/pipe/{}", run.short) };
        Self {
            pod: if node == 0 { first_pod.clone() } else { format!("{first_pod}-{node}") },
            first_pod,
            node,
            nodes: launch.resources.nodes,
            run,
            attempt: launch.attempt,
            folder,
            given: given.collect(),
            written: written.collect(),
            keeps_checkpoints: volume.is_some() && launch.program == JobProgram::Trainer,
            checkpoints: None,
        }
        .with_checkpoints(launch)
    }

    fn with_checkpoints(self, launch: &Launch) -> Self {
        let named = |kind: WrittenKind| self.written.iter().find(|written| written.kind == kind);
        let of_trainer = named(WrittenKind::Checkpoints).map(|written| (written.name.clone(), "*".to_owned()));
        let of_command = || {
            let written = named(WrittenKind::Plain).or_else(|| named(WrittenKind::Run));
            let ((folder, pattern), written) = launch.checkpoints.as_ref().zip(written)?;
            let parts = Path::new(folder).components().filter(|part| *part != Component::CurDir);
            let folder: PathBuf = [Component::Normal(written.name.as_ref())].into_iter().chain(parts).collect();
            Some((folder.to_str()?.to_owned(), pattern.clone()))
        };
        Self { checkpoints: of_trainer.filter(|_| !self.keeps_checkpoints).or_else(of_command), ..self }
    }

    /// The checkpoint that a file of the attempt belongs to.
    pub fn checkpoint_of<'a>(&self, path: &'a str) -> Option<&'a str> {
        let (folder, pattern) = self.checkpoints.as_ref()?;
        let rest = path.strip_prefix(folder.as_str())?.strip_prefix('/')?;
        let (name, _) = rest.split_once('/')?;
        Pattern::new(pattern).matches(name).then(|| &path[..folder.len() + 1 + name.len()])
    }

    /// The folder of the attempt below that of the run.
    pub fn attempt_folder(&self) -> String {
        format!("attempts/{:02}", self.attempt)
    }

    /// The path of the folder of the run, where containers that carry files have it.
    fn root(&self) -> String {
        format!("{DATA}/{}", self.folder)
    }

    /// The folders that begin with what the attempt before left on the volume.
    fn kept(&self) -> Vec<&str> {
        // On a volume all pods have those of the first one.
        let is_kept = |written: &&Written| self.keeps_checkpoints && self.node == 0 && written.kind != WrittenKind::Job;
        self.written.iter().filter(is_kept).map(|written| written.name.as_str()).collect()
    }

    /// The folders whose files are carried to the pod: those that the volume does not have.
    pub fn carried(&self) -> impl Iterator<Item = &Written> {
        self.written.iter().filter(|written| written.kind != WrittenKind::Job && !self.keeps_checkpoints)
    }

    /// The process that takes the files for the pod.
    pub fn receive_words(&self, program: &str) -> Vec<String> {
        let (root, ready) = (self.root(), ready());
        let (attempt, kept) = (self.attempt_folder(), self.kept().join(","));
        let words = [program, "receive", "--root", &root, "--attempt", &attempt, "--keep", &kept, "--ready", &ready];
        words.map(str::to_owned).into()
    }

    /// The process that gives the files of the job back; `is_over` where its pod is gone and a volume has them.
    pub fn send_words(&self, program: &str, streams: &[&str], is_over: bool) -> Vec<String> {
        let of = |kinds: &[WrittenKind]| {
            // The first rank writes what all have.
            let is_own = |written: &Written| self.node == 0 || written.kind == WrittenKind::Job;
            let wanted = self.written.iter().filter(|written| kinds.contains(&written.kind) && is_own(written));
            wanted.map(|written| written.name.as_str()).collect::<Vec<_>>().join(",")
        };
        let (checkpoints, pattern) = self.checkpoints.clone().unwrap_or_default();
        let job = self.written.iter().find(|written| written.kind == WrittenKind::Job).map_or("job", |job| &job.name);
        let streams: Vec<String> = streams.iter().map(|name| format!("{job}/{name}")).collect();
        let in_run = |names: &[&str]| names.iter().map(|name| format!("{RUN}/{name}")).collect::<Vec<_>>();
        let has_run = self.written.iter().any(|written| written.kind == WrittenKind::Run);
        let (growing, mut without) = if has_run { (in_run(&GROWING), in_run(&OF_MACHINE)) } else { Default::default() };
        without.extend(has_run.then(|| format!("*{INCOMING}*")));
        let after = if has_run { format!("{RUN}/{STATE}") } else { String::new() };
        [
            program,
            "send",
            "--folder",
            &format!("{}/{}", self.root(), self.attempt_folder()),
            "--control",
            CONTROL,
            "--streams",
            &streams.join(","),
            "--whole",
            &of(&[WrittenKind::Job, WrittenKind::Run, WrittenKind::Plain]),
            "--checkpoints",
            &checkpoints,
            "--pattern",
            &pattern,
            "--last",
            &format!("{job}/{}", JobFolder::END),
            "--keep",
            &self.kept().join(","),
            "--over",
            if is_over { "yes" } else { "no" },
            "--growing",
            &growing.join(","),
            "--without",
            &without.join(","),
            "--after",
            &after,
        ]
        .map(str::to_owned)
        .into()
    }

    /// Where a file that the job wrote lies on this machine, with the folder that it belongs to.
    pub fn local(&self, path: &str) -> Option<(&Written, PathBuf)> {
        let (name, rest) = path.split_once('/')?;
        let written = self.written.iter().find(|written| written.name == name)?;
        Some((written, written.host.join(rest)))
    }

    /// Whether a file of the run folder belongs to this machine and travels neither way. `path` begins with the name of the folder.
    pub fn is_of_machine(&self, path: &str) -> bool {
        let first = self.in_run(path).and_then(|path| path.split('/').next());
        first.is_some_and(|first| OF_MACHINE.iter().any(|name| Pattern::new(name).matches(first)))
    }

    /// Whether a file is only added to.
    pub fn is_growing(&self, path: &str) -> bool {
        self.in_run(path).is_some_and(|path| GROWING.iter().any(|name| Pattern::new(name).matches(path)))
    }

    fn in_run<'a>(&self, path: &'a str) -> Option<&'a str> {
        let has_run = self.written.iter().any(|written| written.kind == WrittenKind::Run);
        path.strip_prefix(RUN)?.strip_prefix('/').filter(|_| has_run)
    }

    /// The path that containers mount for something that lies below the folder of the run.
    pub fn below(&self, path: &str) -> String {
        Path::new(&self.folder).join(path).to_string_lossy().into_owned()
    }
}

/// The file that says that a pod has all of its files.
pub fn ready() -> String {
    format!("{CONTROL}/ready")
}

#[cfg(test)]
mod tests {
    use pipe_spec::pipeline::Container;

    use super::*;
    use crate::engine::Mounts;

    pub fn launch() -> Launch {
        let pair = |host: &str, mounted: &str| (PathBuf::from(host), PathBuf::from(mounted));
        Launch {
            run_id: "Demo_run-20261119-014500-abcd.prepare".to_owned(),
            attempt: 2,
            program: JobProgram::Trainer,
            job_folder: pair("/r/attempts/02/job", "/run/pipe/attempts/02/job"),
            mounts: Mounts {
                writable: vec![
                    pair("/r/checkpoints", "/run/pipe/checkpoints"),
                    pair("/r/model", "/run/pipe/model"),
                    pair("/r/attempts/02/job", "/run/pipe/attempts/02/job"),
                ],
                read_only: vec![pair("/r/attempts/02/spec.json", "/run/pipe/attempts/02/spec.json")],
                ..Mounts::default()
            },
            ..Launch::example(&Container::default(), 1)
        }
    }

    #[test]
    fn names_are_those_that_a_cluster_takes() {
        let name = RunName::of(&launch().run_id);
        assert!(name.pod(2).starts_with("pipe-demo-run-20261119-014500-abcd-prepare-") && name.pod(2).ends_with("-02"));
        let long = RunName::of(&format!("{}.x", "a".repeat(200)));
        assert!(long.pod(99).len() <= 63, "{}", long.pod(99));
        assert_ne!(RunName::of("a.b").short, RunName::of("a-b").short);
    }

    #[test]
    fn a_volume_keeps_checkpoints_and_the_pod_does_not() {
        let volume = Pods { volume: Some("claim/c/team".to_owned()), ..Pods::default() };
        let plan = Plan::new(&launch(), &volume);
        assert!(plan.folder.starts_with("team/pipe/demo-run"));
        assert_eq!((plan.kept(), plan.carried().count()), (vec!["checkpoints", "model"], 0));
        let words = plan.send_words("/p", &["output"], false).join(" ");
        assert!(
            words.contains(
                "--streams job/output --whole model,job --checkpoints  --pattern  --last job/end.json --keep checkpoints,model --over no"
            ),
            "{words}"
        );
        let plan = Plan::new(&launch(), &Pods::default());
        assert_eq!((plan.kept().len(), plan.carried().count()), (0, 2));
        assert!(plan.send_words("/p", &["output"], false).join(" ").contains("--checkpoints checkpoints --pattern * "));
        // A command keeps nothing on a volume that the next attempt could not be told of.
        let command = Launch { program: JobProgram::Command("x".to_owned()), ..launch() };
        assert!(!Plan::new(&command, &volume).keeps_checkpoints);
    }

    #[test]
    fn the_checkpoints_of_a_command_are_whole_too() {
        let output = (PathBuf::from("/r/output"), PathBuf::from("/run/pipe/output"));
        let of = |folder: &str| {
            let launch = Launch {
                program: JobProgram::Command("x".to_owned()),
                mounts: Mounts { writable: vec![output.clone(), launch().job_folder], ..Mounts::default() },
                checkpoints: Some((folder.to_owned(), "checkpoint-*".to_owned())),
                ..launch()
            };
            Plan::new(&launch, &Pods::default())
        };
        assert_eq!(of(".").checkpoint_of("output/checkpoint-5/a/b"), Some("output/checkpoint-5"));
        assert_eq!(of("./out").checkpoint_of("output/out/checkpoint-5/a"), Some("output/out/checkpoint-5"));
        for path in ["output/out/log", "output/out/runs/a", "output/checkpoint-5/a", "output/out/checkpoint-5"] {
            assert_eq!(of("out").checkpoint_of(path), None, "{path}");
        }
    }

    #[test]
    fn the_run_folder_of_a_job_that_supervises() {
        let own = (PathBuf::from("/home/me/runs/demo"), PathBuf::from("/home/me/runs/demo"));
        let of_command = Some(("output/./out".to_owned(), "step*".to_owned()));
        for (checkpoints, path, want) in [
            (Some(("checkpoints".to_owned(), "*".to_owned())), "run/checkpoints/step-1/a", "run/checkpoints/step-1"),
            (of_command, "run/output/out/step1/a", "run/output/out/step1"),
        ] {
            let launch = Launch {
                attempt: 0,
                program: JobProgram::Command("pipe".to_owned()),
                mounts: Mounts { writable: vec![own.clone(), launch().job_folder], ..Mounts::default() },
                checkpoints,
                ..launch()
            };
            let plan = Plan::new(&launch, &Pods::default());
            assert_eq!(plan.checkpoint_of(path), Some(want));
            assert_eq!(plan.local("run/run.json").unwrap().1, Path::new("/home/me/runs/demo/run.json"));
            for path in ["run/.owner", "run/.supervisor/job/output", "run/notes.json"] {
                assert!(plan.is_of_machine(path), "{path}");
            }
            assert!(!plan.is_of_machine("run/attempts/01/.x") && !plan.is_of_machine("job/.x"));
            assert!(plan.is_growing("run/attempts/01/log.txt") && !plan.is_growing("run/output/log.txt"));
            let words = plan.send_words("/p", &[], false).join(" ");
            assert!(words.ends_with("--without run/.*,run/notes.json,*.incoming.tmp* --after run/run.json"), "{words}");
        }
        let plan = Plan::new(&launch(), &Pods::default());
        assert!(plan.send_words("/p", &[], false).join(" ").ends_with("--growing  --without  --after "));
        assert!(!plan.is_of_machine("run/.owner") && !plan.is_growing("run/events.jsonl"));
    }

    #[test]
    fn what_comes_back_has_its_place() {
        let plan = Plan::new(&launch(), &Pods::default());
        assert_eq!(plan.local("job/output").unwrap().1, Path::new("/r/attempts/02/job/output"));
        assert_eq!(plan.local("checkpoints/step-1/a").unwrap().0.kind, WrittenKind::Checkpoints);
        assert!(plan.local("spec.json").is_none() && plan.local("attempts/x").is_none());
    }
}
