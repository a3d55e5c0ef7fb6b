//! The findings of `pipe doctor --engine slurm` about the cluster.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::programs::{self, Failure, NodeGroup};
use super::script;
use super::section::ContainerRuntime;
use crate::engine::{Check, Host};
use crate::system::digests::cache_folder;
use crate::system::interrupt;

/// How long the test job may wait for a node.
const PROBE_TIMEOUT: Duration = Duration::from_secs(60);

pub async fn checks(host: &Host) -> Vec<Check> {
    let runs = host.runs.clone();
    interrupt::run(move || Ok(look(&runs))).await.unwrap_or_default()
}

fn look(runs: &Path) -> Vec<Check> {
    let config = match programs::config() {
        Ok(config) => config,
        Err(failure) => return vec![not_there(&failure)],
    };
    let memory = match config.limits_memory {
        true => Check::ok("memory", "jobs are held to container.memory (ConstrainRAMSpace)"),
        false => Check::note("memory", "the cluster does not hold jobs to their memory (ConstrainRAMSpace is off)")
            .hint("the trainer limits its own allocations to container.memory"),
    };
    let mut checks = vec![Check::ok("slurm", format!("{}, cluster {}", config.version, config.cluster)), memory];
    match programs::node_groups() {
        Ok(groups) => checks.extend([partitions(&groups), cards(&groups)]),
        Err(failure) => checks.push(Check::missing("nodes", failure.said())),
    }
    let runtime = script::choose(None);
    checks.push(match runtime {
        ContainerRuntime::None => {
            Check::note("runtime", "no pyxis, apptainer or charliecloud here: the trainer runs as it is")
        }
        runtime => Check::ok("runtime", format!("{} is here", runtime.name())),
    });
    checks.push(probe(runs, runtime));
    checks
}

fn not_there(failure: &Failure) -> Check {
    let hint = match failure {
        Failure::Absent { .. } => "run it on a login node of the cluster",
        _ => "`scontrol ping` tells whether the controller is up, and `munge -n` whether munged is",
    };
    Check::missing("slurm", failure.said()).hint(hint)
}

fn partitions(groups: &[NodeGroup]) -> Check {
    let mut names: Vec<&str> = groups.iter().map(|group| group.partition.as_str()).collect();
    names.dedup();
    let describe = |name: &&str| {
        let own = || groups.iter().filter(|group| group.partition == *name);
        let total: u32 = own().map(|group| group.nodes).sum();
        let usable: u32 = own().filter(|group| group.is_usable()).map(|group| group.nodes).sum();
        let first = own().next();
        let default = if first.is_some_and(|group| group.is_default) { " (default)" } else { "" };
        let limit = first.map_or("", |group| group.time_limit.as_str());
        format!("{name}{default}: {usable} of {total} nodes up, time limit {limit}")
    };
    let found = names.iter().map(describe).collect::<Vec<_>>().join("; ");
    match groups.iter().any(NodeGroup::is_usable) {
        true => Check::ok("nodes", found),
        false => Check::missing("nodes", found).hint("`sinfo -R` says why nodes are down"),
    }
}

fn cards(groups: &[NodeGroup]) -> Check {
    match groups.iter().map(|group| group.cards).max() {
        None | Some(0) => Check::note("gres", "no node has GPUs: trainings run on CPUs"),
        Some(most) => Check::ok("gres", format!("nodes have up to {most} GPUs")),
    }
}

/// A folder with a file that only who sees the folder itself finds.
struct Marked {
    folder: PathBuf,
    file: PathBuf,
}

impl Marked {
    fn new(folder: PathBuf) -> std::io::Result<Self> {
        let file = folder.join(format!(".pipe-doctor-{}", std::process::id()));
        std::fs::create_dir_all(&folder).and_then(|()| std::fs::write(&file, ""))?;
        Ok(Self { folder, file })
    }
}

impl Drop for Marked {
    fn drop(&mut self) {
        std::fs::remove_file(&self.file).ok();
    }
}

/// A job that looks whether a compute node sees the folders, and what is installed there.
fn probe(runs: &Path, runtime: ContainerRuntime) -> Check {
    // That of the runs may not be there yet.
    let runs = runs.ancestors().find(|folder| folder.is_dir()).map(Path::to_owned);
    let folders = [runs, cache_folder()];
    let mut marked = Vec::new();
    for folder in folders.into_iter().flatten() {
        match Marked::new(folder.clone()) {
            Ok(folder) => marked.push(folder),
            Err(error) => {
                return Check::missing("job", format!("cannot write to {}: {error}", folder.display()))
                    .hint("choose other folders with PIPE_RUNS and PIPE_CACHE");
            }
        }
    }
    let folders = marked;
    let names = folders.iter().map(|marked| marked.folder.display().to_string()).collect::<Vec<_>>().join(" and ");
    let program = match runtime {
        ContainerRuntime::Charliecloud => "ch-run",
        ContainerRuntime::Apptainer => "apptainer",
        ContainerRuntime::Pyxis | ContainerRuntime::None => "bash",
    };
    let script = "missing=; for file in \"${@:2}\"; do [ -f \"$file\" ] || missing=\"$missing $(dirname \"$file\")\"; done; \
                  command -v \"$1\" > /dev/null || missing=\"$missing $1\"; echo \"$(hostname):$missing\"";
    let mut args: Vec<String> =
        ["--quiet", "--nodes=1", "--ntasks=1", "--time=1", "--job-name=pipe-doctor", "--chdir=/"]
            .map(str::to_owned)
            .into();
    args.push(format!("--immediate={}", PROBE_TIMEOUT.as_secs()));
    args.extend(["bash", "-c", script, "pipe", program].map(str::to_owned));
    args.extend(folders.iter().map(|marked| marked.file.display().to_string()));
    match programs::call("srun", &args) {
        Err(failure) => Check::note("job", format!("a test job did not run: {}", failure.said()))
            .hint("`srun hostname` tries it by hand; `squeue` shows what has the nodes, should they be busy"),
        Ok(said) => {
            let (node, missing) = said.trim().split_once(':').unwrap_or((said.trim(), ""));
            match missing.trim() {
                "" => Check::ok("job", format!("{node} sees {names}, and has {program}")),
                missing => Check::missing("job", format!("{node} does not see {missing}"))
                    .hint("run pipe in a folder that all nodes see, and set PIPE_CACHE to one"),
            }
        }
    }
}
