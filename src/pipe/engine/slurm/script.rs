//! The batch script of a job, and the options that it is submitted with. Pure.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;
use std::time::Duration;

use pipe_spec::pipeline::Gpus;
use pipe_spec::trainer::NODE_VARIABLE;

use super::job::{JobFiles, NODE_END};
use super::section::Cluster;
use crate::engine::{Launch, first_process};

/// The exit code of a job that was told to stop.
const STOPPED: u32 = 128 + 15;

/// Seconds that the processes of other nodes may take to end when that of one has.
const NODES_WAIT: u32 = 90;

/// The command that the script runs on every node.
pub struct Program {
    pub words: Vec<String>,
    /// Options of srun that run it in a container.
    pub srun: Vec<String>,
    /// Variables that the script exports.
    pub env: BTreeMap<String, String>,
}

/// The name of a job, by which it is found again.
pub fn name(run: &str, attempt: u32) -> String {
    format!("{NAME_PREFIX}{run}:{attempt}")
}

const NAME_PREFIX: &str = "pipe:";

/// The run and the attempt of a job with this name.
pub fn of_name(name: &str) -> Option<(String, u32)> {
    let (run, attempt) = name.strip_prefix(NAME_PREFIX)?.rsplit_once(':')?;
    Some((run.to_owned(), attempt.parse().ok()?))
}

/// The options of sbatch that say which job it is.
pub fn naming(name: &str, folder: &Path, output: &str) -> Vec<String> {
    // A % begins a pattern.
    let folder = folder.display().to_string().replace('%', "%%");
    vec![format!("--job-name={name}"), format!("--output={folder}/{output}")]
}

/// The options of sbatch that say what it needs.
pub fn options(launch: &Launch, cluster: &Cluster, cards: u32, save_before: Duration) -> Vec<String> {
    let mut options = vec![
        format!("--nodes={}", launch.resources.nodes),
        format!("--ntasks={}", launch.resources.nodes),
        "--ntasks-per-node=1".to_owned(),
        // pipe submits the next job itself, with what is known by then.
        "--no-requeue".to_owned(),
        "--open-mode=append".to_owned(),
        format!("--signal=B:USR1@{}", save_before.as_secs()),
    ];
    let given = [
        ("partition", cluster.partition.clone()),
        ("account", cluster.account.clone()),
        ("qos", cluster.qos.clone()),
        ("time", cluster.time.as_ref().map(|time| time.as_str().to_owned())),
        ("constraint", cluster.constraint.clone()),
        ("mem", launch.resources.memory.map(|bytes| format!("{}M", bytes.div_ceil(1 << 20)))),
        ("cpus-per-task", launch.resources.cpus.map(|cpus| format!("{}", cpus.ceil()))),
        ("gres", (cards > 0).then(|| format!("gpu:{cards}"))),
    ];
    options.extend(given.into_iter().filter_map(|(name, value)| Some(format!("--{name}={}", value?))));
    options.extend(cluster.extra.iter().cloned());
    options
}

/// How many cards of a node a job asks for.
pub fn cards(gpus: &Gpus, present: Option<u32>) -> u32 {
    match gpus {
        Gpus::Count(count) => *count,
        Gpus::Ids(ids) => ids.len() as u32,
        Gpus::All => present.unwrap_or(0),
        Gpus::Auto => present.unwrap_or(0).min(1),
    }
}

/// Variables that srun and the runtime would heed: they are set for the program alone.
pub const OF_PROGRAM: [&str; 3] = ["PATH", "LD_LIBRARY_PATH", "LD_PRELOAD"];

/// The part of the script before the variables. Of two jobs that were submitted for one attempt the first does it. USR1 comes before
/// the time limit, TERM when a person ends the job; srun would kill its tasks if it got a signal.
const BEGIN: &str = r#"note() { echo "$2" > "$folder/$1.new" && mv "$folder/$1.new" "$folder/$1"; }
mkdir "$folder/job.claim" || { [ -e "$folder/job.claim" ] && exit 0; exit 1; }
ask() { again=1; touch "$folder/job.stop"; scancel --signal=TERM "$id"; }
trap 'note job.time "$id"; ask' USR1
trap ask TERM
note job.started "$id"
export USER="${USER:-$(id -un)}"
"#;

/// The lines after the program. A signal ends the wait, and the job goes on.
const END: &str = r#" &
child=$!
again=1
while [ -n "$again" ]; do
  again=
  wait "$child"
  code=$?
done
note job.ended "$code"
exit "$code"
"#;

/// The variable in which Slurm tells each task the number of its node.
const SLURM_NODE_VARIABLE: &str = "SLURM_NODEID";

/// The batch script. `first` is the first process of a job, `folder` where the job starts.
pub fn text(launch: &Launch, program: &Program, first: &Path, folder: &Path) -> String {
    let path = |path: &Path| quoted(&path.to_string_lossy());
    let mut text = format!("#!/bin/bash\n# Attempt {} of {}, submitted by pipe.\n", launch.attempt, launch.run_id);
    let _ = writeln!(text, "id=$SLURM_JOB_ID\nfolder={}", path(JobFiles::of(launch).folder()));
    text.push_str(BEGIN);
    let mut restored = String::new();
    for (name, value) in &program.env {
        let is_deferred = OF_PROGRAM.contains(&name.as_str());
        let own = if is_deferred { format!("PIPE_JOB_{name}") } else { name.clone() };
        let _ = writeln!(text, "export {own}={}", quoted(value));
        if is_deferred {
            let _ = write!(restored, "export {name}=\"${own}\"; ");
        }
    }
    let words = program.words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" ");
    let options = program.srun.iter().map(|option| format!(" {}", quoted(option))).collect::<String>();
    let cpus = launch.resources.cpus.map_or(String::new(), |cpus| format!(" --cpus-per-task={}", cpus.ceil()));
    let nodes = launch.resources.nodes;
    let (signals, timeout) = (first_process::signals(launch), first_process::stop_timeout(launch));
    // A stop that came before there was a task to be told. There is no shell in a container that srun itself starts. The cluster sends
    // its signals to the first process of a task.
    let wrapper = match program.srun.is_empty() {
        true => format!(
            "bash -c '[ ! -e \"$0/job.stop\" ] || exit {STOPPED}; export {NODE_VARIABLE}=${SLURM_NODE_VARIABLE}; {restored}\
             exec \"$1\" --signals {signals} --stop-timeout {timeout} --record \"$0/{NODE_END}${SLURM_NODE_VARIABLE}\" -- \"${{@:2}}\"' \"$folder\" {} ",
            path(first)
        ),
        false => {
            let _ = writeln!(text, "export {NODE_VARIABLE}='${{{SLURM_NODE_VARIABLE}}}'");
            String::new()
        }
    };
    // Also on one node: a cluster that needs its place tells the tasks of srun so in advance, and nobody else.
    let _ = write!(
        text,
        "cd {} || exit 1\nsrun --nodes={nodes} --ntasks={nodes} --ntasks-per-node=1 --export=ALL --kill-on-bad-exit=0 \
         --wait={NODES_WAIT}{cpus}{options} \\\n  {wrapper}{words}{END}",
        path(folder)
    );
    text
}

/// One word of a shell.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        assert_eq!(
            of_name(&name("demo-20261115-014500-abcd.step", 12)),
            Some(("demo-20261115-014500-abcd.step".to_owned(), 12))
        );
        assert_eq!(of_name("pipe"), None);
        assert_eq!(of_name("pipe:x"), None);
    }

    #[test]
    fn words_stay_words() {
        assert_eq!(quoted("a b"), "'a b'");
        assert_eq!(quoted("it's $HOME"), r"'it'\''s $HOME'");
    }
}
