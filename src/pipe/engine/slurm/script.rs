//! The batch script of a job, and the options that it is submitted with. Pure.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;
use std::time::Duration;

use pipe_spec::pipeline::{Cluster, Gpus};
use pipe_spec::trainer::NODE_VARIABLE;

use super::files::JobFiles;
use crate::engine::Launch;

/// The exit code of a job that was told to stop.
const STOPPED: u32 = 128 + 15;

/// Seconds that the processes of other nodes may take to end when that of one has.
const NODES_WAIT: u32 = 90;

/// What the script runs on every node.
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

/// The name of early jobs for parts of a run, until one of them takes it.
pub fn name_of_early_jobs(run: &str) -> String {
    format!("{NAME_PREFIX}{run}:early")
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
        format!("--nodes={}", launch.nodes),
        format!("--ntasks={}", launch.nodes),
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

/// Variables that srun and the runtime would heed: they are set for the program alone.
pub const OF_PROGRAM: [&str; 3] = ["PATH", "LD_LIBRARY_PATH", "LD_PRELOAD"];

/// The id of the job as the queue shows it. SLURM_JOB_ID of one job of an array stands for all of them.
const ID: &str = r#"${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_}${SLURM_ARRAY_TASK_ID:-$SLURM_JOB_ID}"#;

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

/// What comes after the program. A signal ends the wait, and the job goes on.
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

/// The first lines of the script, by which it is known whose it is.
pub fn heading(launch: &Launch, key: &str) -> String {
    format!("#!/bin/bash\n# Attempt {} of {}, submitted by pipe. {key}\n", launch.attempt, launch.run_id)
}

/// Where the job of an attempt runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Submitted {
    /// In a job of its own, whose script nobody else sees.
    ByItself,
    /// In an early job, by a file: it names variables where their values were.
    Early,
}

pub fn text(launch: &Launch, key: &str, program: &Program, folder: &Path, submitted: Submitted) -> String {
    let none = BTreeMap::new();
    let is_early = submitted == Submitted::Early;
    let hidden = if is_early { &launch.variables } else { &none };
    let quoted = |word: &str| quoted_without(word, hidden);
    let path = |path: &Path| quoted(&path.to_string_lossy());
    let mut text = heading(launch, key);
    let _ = writeln!(text, "id={ID}\nfolder={}", path(JobFiles::of(launch).folder()));
    if is_early {
        text.push_str("exec >> \"$folder/job.out\" 2>&1\n");
    }
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
    let cpus = launch.cpus.map_or(String::new(), |cpus| format!(" --cpus-per-task={}", cpus.ceil()));
    let nodes = launch.nodes;
    // A stop that came before there was a task to be told. There is no shell in a container that srun itself starts.
    let wrapper = match program.srun.is_empty() {
        true => format!(
            "bash -c '[ ! -e \"$0\" ] || exit {STOPPED}; export {NODE_VARIABLE}=${SLURM_NODE_VARIABLE}; {restored}exec \"$@\"' \"$folder/job.stop\" "
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

/// Seconds that an early job with its nodes waits for its run.
pub const RUN_TIMEOUT: u32 = 120;

/// What an early job does before it has a run. A file that appears under the name `script` is what it runs; who puts one there first has the
/// job. Where one waits in vain the `pipe` that submitted it is gone, so that all others which wait in the queue leave it. It fails: jobs
/// that depend on it must not start.
const WAIT_FOR_RUN: &str = r#"
for ((i = 0; ; i++)); do
  ls "$early" > /dev/null 2>&1
  [ ! -e "$early/script" ] || break
  if [ "$i" -ge "$limit" ]; then
    mkdir -p "$early"
    echo 'exit 1' > "$early/unused"
    scancel --state=PENDING --name="$name" "${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}"
    if ln "$early/unused" "$early/script"; then exit 1; fi
    [ -e "$early/script" ] || exit 1
  fi
  sleep 0.2
done
. "$early/script"
"#;

/// The script of early jobs, which wait so many seconds for a run. The values of variables stay in it.
pub fn text_of_early_job(name: &str, folder: &Path, variables: &BTreeMap<String, String>, timeout: u32) -> String {
    let mut text = "#!/bin/bash\n# Submitted early by pipe, for a run that is to begin.\n".to_owned();
    for (name, value) in variables {
        let _ = writeln!(text, "{}={}", hidden_name(name), quoted(value));
    }
    let (limit, folder) = (timeout * 5, quoted(&folder.to_string_lossy()));
    let name = quoted(name);
    let _ = write!(text, "name={name}\nlimit={limit}\nearly={folder}/\"${{SLURM_ARRAY_TASK_ID:-1}}\"{WAIT_FOR_RUN}");
    text
}

/// How the script of an early job names the value of a variable. Not every name of a variable is one for a shell.
fn hidden_name(variable: &str) -> String {
    let letter = |byte: u8| match byte.is_ascii_alphanumeric() {
        true => char::from(byte).to_string(),
        false => format!("_{byte:02X}"),
    };
    format!("pipe_value_{}", variable.bytes().map(letter).collect::<String>())
}

/// One word of a shell that names variables where it has their values.
fn quoted_without(word: &str, hidden: &BTreeMap<String, String>) -> String {
    // The longest first: one value may be part of another.
    let held = hidden.iter().filter(|(_, value)| !value.is_empty() && word.contains(value.as_str()));
    let Some((name, value)) = held.max_by_key(|(_, value)| value.len()) else { return quoted(word) };
    let parts: Vec<String> = word.split(value.as_str()).map(|part| quoted_without(part, hidden)).collect();
    parts.join(&format!("\"${{{}}}\"", hidden_name(name)))
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
    fn values_of_variables_are_named() {
        let hidden = [("HOME", "/home/a"), ("my-token", "s3cret"), ("LONG_1", "s3cret-2"), ("EMPTY", "")];
        let hidden = hidden.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        assert_eq!(quoted_without("plain", &hidden), "'plain'");
        assert_eq!(
            quoted_without("/home/a/x?s3cret-2&s3cret", &hidden),
            r#"''"${pipe_value_HOME}"'/x?'"${pipe_value_LONG_5F1}"'&'"${pipe_value_my_2Dtoken}"''"#
        );
    }

    /// Runs an early job; `scancel` writes its arguments to a file.
    fn run_early(folder: &Path, timeout: u32) -> (Option<i32>, String) {
        let variables = [("my-token".to_owned(), "it's secret".to_owned())].into();
        let text = text_of_early_job("pipe:a:early", folder, &variables, timeout);
        std::fs::write(folder.join("scancel"), "#!/bin/sh\necho \"$@\" > \"$(dirname \"$0\")/cancelled\"\n").unwrap();
        std::fs::write(folder.join("job"), text).unwrap();
        let script =
            "chmod +x scancel; PATH=$PWD:$PATH SLURM_ARRAY_JOB_ID=7 SLURM_ARRAY_TASK_ID=3 SLURM_JOB_ID=9 bash job";
        let output = std::process::Command::new("bash").args(["-c", script]).current_dir(folder).output().unwrap();
        (output.status.code(), String::from_utf8(output.stdout).unwrap())
    }

    #[test]
    fn an_early_job_runs_what_it_is_given() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("3")).unwrap();
        std::fs::write(folder.path().join("3/script"), "echo \"${pipe_value_my_2Dtoken}\"; exit 7\n").unwrap();
        assert_eq!(run_early(folder.path(), 120), (Some(7), "it's secret\n".to_owned()));
        assert!(!folder.path().join("cancelled").exists());
    }

    #[test]
    fn an_early_job_without_a_run_ends_with_the_others() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(run_early(folder.path(), 0), (Some(1), String::new()));
        let cancelled = std::fs::read_to_string(folder.path().join("cancelled")).unwrap();
        assert_eq!(cancelled, "--state=PENDING --name=pipe:a:early 7\n");
        // Nobody takes it any more.
        assert_eq!(std::fs::read_to_string(folder.path().join("3/script")).unwrap(), "exit 1\n");
    }

    #[test]
    fn words_stay_words() {
        assert_eq!(quoted("a b"), "'a b'");
        assert_eq!(quoted("it's $HOME"), r"'it'\''s $HOME'");
    }
}
