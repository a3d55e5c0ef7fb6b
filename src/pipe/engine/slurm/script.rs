//! The batch script of a job, and the options that it is submitted with. Pure.

use std::fmt::Write;
use std::path::Path;
use std::time::Duration;

use pipe_spec::pipeline::{Cluster, Gpus};
use pipe_spec::trainer::NODE_VARIABLE;

use super::files::JobFiles;
use crate::engine::Launch;

/// Seconds that the processes of other nodes may take to end when that of one has.
const NODES_WAIT: u32 = 90;

/// What the script runs on every node.
pub struct Program {
    pub words: Vec<String>,
    /// Options of srun that run it in a container.
    pub srun: Vec<String>,
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

/// The options of sbatch.
pub fn options(launch: &Launch, cluster: &Cluster, cards: u32, save_before: Duration) -> Vec<String> {
    let mut options = vec![
        format!("--job-name={}", name(&launch.run_id, launch.attempt)),
        format!("--nodes={}", launch.nodes),
        format!("--ntasks={}", launch.nodes),
        "--ntasks-per-node=1".to_owned(),
        // pipe submits the next job itself, with what is known by then.
        "--no-requeue".to_owned(),
        "--open-mode=append".to_owned(),
        format!("--signal=B:USR1@{}", save_before.as_secs()),
    ];
    let files = JobFiles::of(launch);
    // A % begins a pattern.
    options.push(format!("--output={}", files.output().display().to_string().replace('%', "%%")));
    let given = [
        ("partition", cluster.partition.clone()),
        ("account", cluster.account.clone()),
        ("qos", cluster.qos.clone()),
        ("time", cluster.time.as_ref().map(|time| time.as_str().to_owned())),
        ("constraint", cluster.constraint.clone()),
        ("mem", launch.memory.map(|bytes| format!("{}M", bytes.div_ceil(1 << 20)))),
        ("cpus-per-task", launch.cpus.map(|cpus| format!("{}", cpus.ceil()))),
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

pub fn text(launch: &Launch, program: &Program, folder: &Path) -> String {
    let files = JobFiles::of(launch);
    let path = |path: &Path| quoted(&path.to_string_lossy());
    let mut text = format!(
        "#!/bin/bash\n# Attempt {} of {}, written by pipe.\n\nnote() {{ echo \"$2\" > \"$1.new\" && mv \"$1.new\" \"$1\"; }}\n\n",
        launch.attempt, launch.run_id
    );
    let _ = writeln!(text, "note {} \"$SLURM_JOB_ID\"", path(&files.started()));
    // Which some container runtimes want.
    text.push_str("export USER=\"${USER:-$(id -un)}\"\n");
    for (name, value) in &launch.env {
        let _ = writeln!(text, "export {name}={}", quoted(value));
    }
    let _ = writeln!(text, "cd {} || exit 1\n", path(folder));
    // USR1 comes before the time limit, TERM when a person ends the job. srun would kill its tasks if it got a signal.
    let _ = write!(
        text,
        "time_is_up={}\nask() {{ again=1; scancel --signal=TERM \"$SLURM_JOB_ID\"; }}\n\
         trap 'note \"$time_is_up\" \"$SLURM_JOB_ID\"; ask' USR1\ntrap ask TERM\n\n",
        path(&files.time_was_up()),
    );
    let words = program.words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" ");
    let options = program.srun.iter().map(|option| format!(" {}", quoted(option))).collect::<String>();
    let cpus = launch.cpus.map_or(String::new(), |cpus| format!(" --cpus-per-task={}", cpus.ceil()));
    let nodes = launch.nodes;
    // Also on one node: a cluster that needs its place tells the tasks of srun so in advance, and nobody else.
    let started = format!(
        "srun --nodes={nodes} --ntasks={nodes} --ntasks-per-node=1 --export=ALL --kill-on-bad-exit=0 \
         --wait={NODES_WAIT}{cpus}{options} \\\n  bash -c 'export {NODE_VARIABLE}=$SLURM_NODEID; exec \"$@\"' pipe {words}"
    );
    // A signal ends the wait, and the job goes on.
    let _ = write!(
        text,
        "{started} &\nchild=$!\nagain=1\nwhile [ -n \"$again\" ]; do\n  again=\n  wait \"$child\"\n  code=$?\ndone\n\
         note {} \"$code\"\nexit \"$code\"\n",
        path(&files.ended()),
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
