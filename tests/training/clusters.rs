//! The engine for clusters on a real Slurm: every way in which a cluster ends a job, each with the curve of a run that nothing
//! happened to.

use serde_json::Value;

use crate::harness::{Folder, Needs, Suite};
use crate::slurm::{Slurm, on_cluster};
use crate::small_t5::{curve, folder, make_rows_longer, same_curve};
use crate::undisturbed::{
    EFFECTIVE, STEPS, attempts, curve_once, ends_by, is_undisturbed, prepared, train, train_with, undisturbed,
};

/// Of trainings that run out of memory.
const WIDE_EFFECTIVE: u64 = 48;

pub fn tests(suite: &mut Suite) {
    // Their own clusters run beside the shared one.
    suite.test("clusters::lost_nodes", Needs::Slurm, lost_nodes);
    suite.test("clusters::a_folder_that_nodes_do_not_see", Needs::Slurm, unseen_folder);
    let mut test = |name: &str, test: fn(&Slurm)| on_cluster(suite, &format!("clusters::{name}"), Needs::Slurm, test);
    test("a_chain_of_one_minute_jobs", chain);
    test("in_a_container_and_without", containers);
    test("out_of_memory", |slurm| out_of_memory(slurm, "container: {gpus: 0, cpus: 1, memory: 155m}\n"));
    test("another_job", preempted);
    test("stopped_killed_and_cancelled", stopped_killed_and_cancelled);
    test("two_nodes", two_nodes);
    test("what_the_cluster_refuses_and_doctor", refused);
    on_cluster(suite, "clusters::many_runs_ask_as_often_as_one", Needs::Slurm, many_runs);
    suite.last_is_thorough();
    on_cluster(suite, "clusters::a_restarted_controller", Needs::Slurm, restarted_controller);
    suite.last_is_thorough();
    let limit = |slurm: &Slurm| out_of_memory(slurm, "container: {gpus: 0, cpus: 1}\nmemory: {limit: 270m}\n");
    on_cluster(suite, "clusters::out_of_memory_of_a_limit", Needs::Slurm, limit);
    suite.last_is_thorough();
    on_cluster(suite, "clusters::an_image_in_a_folder", Needs::SlurmAndDocker, built_image);
}

const SMALL: &str = "container: {gpus: 0, cpus: 1, memory: 700m}\nengine: slurm\n";

fn containers(slurm: &Slurm) {
    for (runtime, says) in
        [("charliecloud", "containers by charliecloud"), ("none", "no containers: the trainer runs as it is")]
    {
        let folder = slurm.with(prepared(&format!("{}{SMALL}slurm: {{containers: {runtime}}}\n", train(STEPS))));
        folder.pipe(&["run", "t5.yaml"]).exits(0).says(says);
        is_undisturbed(&folder);
    }
    assert_eq!(slurm.queue(), [""; 0]);
}

/// The kernel kills at the limit of the job; with a limit of its own the trainer says so itself.
fn out_of_memory(slurm: &Slurm, limits: &str) {
    let wide = |more: &str| {
        let folder = folder(&format!("{}{more}", train_with(STEPS / 2, WIDE_EFFECTIVE, 1e-3)));
        make_rows_longer(&folder, "d_ff: 2048");
        folder
    };
    let alone = wide("container: {gpus: 0, cpus: 1}\n");
    alone.pipe(&["run", "t5.yaml", "--engine", "process"]).exits(0);
    let folder = slurm.with(wide(&format!("{limits}engine: slurm\n")));
    folder.pipe(&["run", "t5.yaml", "--set", "memory.worst_first=false"]).exits(0);
    let attempts = attempts(&folder);
    ends_by(&attempts, "host_memory");
    assert_eq!(attempts[0]["outcome"], "oom", "{attempts:#?}");
    // Parts of other sizes are rounded otherwise, which a small eps of the optimizer would make larger.
    same_curve(&curve_once(&folder), &curve(&alone.run_folder()), WIDE_EFFECTIVE, 1e-4);
}

fn chain(slurm: &Slurm) {
    time_limit(slurm);
    // As the cluster tells a job that its time is almost over, five times.
    let folder = slurm.with(prepared(&format!("{}{SMALL}", train(STEPS))));
    let running = folder.start(&["run", "t5.yaml"]);
    for attempt in 1..=5 {
        folder.wait_for_log(attempt, "\"type\":\"step\"");
        let job = slurm.queue()[0].split(' ').next().unwrap().to_owned();
        slurm.call("scancel", &["--batch", "--signal=USR1", &job]);
    }
    running.end().exits(0);
    let attempts = attempts(&folder);
    ends_by(&attempts, "time_limit");
    assert!(attempts.len() >= 6, "{attempts:#?}");
    same_curve(&curve(&folder.run_folder()), undisturbed(), EFFECTIVE, 1e-5);
}

/// A training that takes longer than a partition allows: the next job goes on where the last one was told to save.
fn time_limit(slurm: &Slurm) {
    let settings = "slurm: {partition: short, time: 1, save_before: 45}\n";
    let folder = slurm.with(prepared(&format!("{}{SMALL}{settings}", train(100 * STEPS))));
    folder.pipe(&["run", "t5.yaml", "--detach"]).exits(0);
    folder.wait_for_log(2, "\"type\":\"step\"");
    folder.pipe(&["stop", "t5"]).exits(0).prints("stopped");
    let attempts = attempts(&folder);
    assert_eq!(attempts[0]["cause"], "time_limit", "{attempts:#?}");
    assert!(attempts[0]["reason"].as_str().unwrap().contains("saved"), "{attempts:#?}");
    let steps = curve(&folder.run_folder());
    assert!(steps.iter().zip(1..).all(|((step, ..), number)| *step == number), "each step once: {steps:?}");
}

fn lost_nodes() {
    let slurm = Slurm::start(2, &[]);
    lost_node_of_two(&slurm);
    slurm.ask("regain", &["n2"]);
    let folder = slurm.with(prepared(&format!("{}{SMALL}", train(STEPS))));
    let running = folder.start(&["run", "t5.yaml"]);
    folder.wait_for_log(1, "\"step\":6,");
    let node = slurm.queue()[0].split(' ').next_back().unwrap().to_owned();
    slurm.ask("lose", &[&node]);
    running.end().exits(0);
    ends_by(&attempts(&folder), "node_lost");
    is_undisturbed(&folder);
    taken_node(&slurm);
}

/// The node is only said to be down: srun ends with 0 then.
fn taken_node(slurm: &Slurm) {
    let folder = slurm.with(prepared(&format!("{}{SMALL}", train(STEPS))));
    let running = folder.start(&["run", "t5.yaml"]);
    folder.wait_for_log(1, "\"step\":6,");
    let node = slurm.queue()[0].split(' ').next_back().unwrap().to_owned();
    slurm.call("scontrol", &["update", &format!("NodeName={node}"), "State=DOWN", "Reason=test"]);
    folder.wait_until("the end of the attempt", || {
        folder.state().is_some_and(|run| run["attempts"][0]["outcome"] != Value::Null)
    });
    slurm.ask("regain", &[&node]);
    running.end().exits(0);
    ends_by(&attempts(&folder), "node_lost");
    is_undisturbed(&folder);
}

fn lost_node_of_two(slurm: &Slurm) {
    let folder = slurm.with(prepared(&format!("{}{SMALL}slurm: {{nodes: 2, min_nodes: 1}}\n", train(STEPS))));
    let running = folder.start(&["run", "t5.yaml"]);
    folder.wait_for_log(1, "\"step\":6,");
    slurm.ask("lose", &["n2"]);
    running.end().exits(0).says("going on with 1 of 2 nodes");
    let attempts = attempts(&folder);
    ends_by(&attempts, "node_lost");
    assert_eq!((attempts[0]["ranks"].as_u64(), attempts.last().unwrap()["ranks"].as_u64().unwrap_or(1)), (Some(2), 1));
    is_undisturbed(&folder);
}

fn preempted(slurm: &Slurm) {
    let folder = slurm.with(prepared(&format!("{}{SMALL}", train(STEPS))));
    let running = folder.start(&["run", "t5.yaml"]);
    folder.wait_for_log(1, "\"step\":6,");
    slurm.call("sbatch", &["--partition=hi", "--exclusive", "--nodes=2", "--output=/dev/null", "--wrap=sleep 5"]);
    running.end().exits(0);
    ends_by(&attempts(&folder), "preempted");
    is_undisturbed(&folder);
}

fn restarted_controller(slurm: &Slurm) {
    let folder = slurm.with(prepared(&format!("{}{SMALL}", train(STEPS))));
    let running = folder.start(&["run", "t5.yaml"]);
    folder.wait_for_log(1, "\"step\":4,");
    slurm.ask("restart-controller", &[]);
    running.end().exits(0);
    assert_eq!(attempts(&folder).len(), 1);
    is_undisturbed(&folder);
}

fn two_nodes(slurm: &Slurm) {
    let folder = slurm.with(prepared(&format!("{}{SMALL}slurm: {{nodes: 2}}\n", train(STEPS))));
    folder.pipe(&["run", "t5.yaml"]).exits(0);
    let attempts = attempts(&folder);
    assert_eq!((attempts.len(), attempts[0]["ranks"].as_u64()), (1, Some(2)), "{attempts:#?}");
    is_undisturbed(&folder);
}

fn stopped_killed_and_cancelled(slurm: &Slurm) {
    commands(slurm);
    stopped(slurm);
    killed_pipe(slurm);
    let folder = slurm.with(prepared(&format!("{}{SMALL}", train(STEPS))));
    let running = folder.start(&["run", "t5.yaml"]);
    folder.wait_for_log(1, "\"step\":6,");
    slurm.call("scancel", &["--user=root"]);
    running.end().exits(130);
    let attempts = attempts(&folder);
    assert_eq!(attempts[0]["cause"], "cancelled", "{attempts:#?}");
    folder.pipe(&["resume"]).exits(0);
    is_undisturbed(&folder);
}

fn stopped(slurm: &Slurm) {
    let folder = slurm.with(prepared(&format!("{}{SMALL}", train(STEPS))));
    folder.pipe(&["run", "t5.yaml", "--detach"]).exits(0);
    folder.wait_for_log(1, "\"step\":6,");
    folder.pipe(&["stop", "t5"]).exits(0).prints("stopped");
    assert_eq!(slurm.queue(), [""; 0]);
    // While another job has the nodes the next one waits; it is stopped there too.
    slurm.call("sbatch", &["--exclusive", "--nodes=2", "--output=/dev/null", "--wrap=sleep 300"]);
    folder.pipe(&["resume", "--detach"]).exits(0);
    folder.wait_until("a job in the queue", || slurm.queue().len() == 2);
    folder.pipe(&["stop", "t5"]).exits(0).prints("stopped");
    assert_eq!(slurm.queue().len(), 1);
    slurm.call("scancel", &["--user=root"]);
    folder.pipe(&["resume"]).exits(0);
    // What was saved was not done again.
    same_curve(&curve(&folder.run_folder()), undisturbed(), EFFECTIVE, 1e-5);
}

/// A command that ends with 0 when it is told to stop is not done; one that is only starting is told too.
fn commands(slurm: &Slurm) {
    let folder = slurm.with(Folder::new());
    let command = "trap 'echo told; exit 0' TERM; echo begun; for i in $(seq 600); do sleep 0.1; done";
    let settings = "container: {gpus: 0, memory: 200m}\nengine: slurm\n";
    folder.write("job.yaml", format!("version: 1\nname: job\ncommand: [bash, -c, \"{command}\"]\n{settings}"));
    let running = folder.start(&["run", "job.yaml"]);
    folder.wait_for_log(1, "begun");
    slurm.cancel_as_operator();
    running.end().exits(130).says("error: the user 65534 cancelled the job");
    assert_eq!(attempts(&folder)[0]["cause"], "cancelled");
    folder.pipe(&["resume", "--detach"]).exits(0);
    let started = folder.run_folder().join("attempts/02/job.started");
    folder.wait_until("the job", || started.exists());
    folder.pipe(&["stop", "job"]).exits(0).prints("stopped");
    assert_eq!(slurm.queue(), [""; 0]);
}

fn killed_pipe(slurm: &Slurm) {
    let folder = slurm.with(prepared(&format!("{}{SMALL}", train(STEPS))));
    let running = folder.start(&["run", "t5.yaml"]);
    folder.wait_for_log(1, "\"step\":4,");
    running.kill_alive();
    folder.pipe(&["ls", "--json"]).exits(0);
    folder.pipe(&["resume"]).exits(0);
    assert_eq!(attempts(&folder).len(), 1, "the job went on");
    same_curve(&curve(&folder.run_folder()), undisturbed(), EFFECTIVE, 1e-5);
}

fn refused(slurm: &Slurm) {
    doctor(slurm);
    for (setting, says) in [
        ("slurm.partition=nope", "there is no partition nope; partitions: p, short, hi, single"),
        ("slurm.account=nope", "Invalid account"),
        ("slurm.qos=nope", "Invalid qos"),
        ("slurm.time=1-00:00:00", "Requested time limit is invalid"),
        ("slurm.nodes=9", "slurm.nodes asks for 9 nodes; the partition has 2"),
        ("container.memory=90g", ": container.memory is 92160 MiB, a node has at most "),
        ("container.gpus=1", "with Charliecloud there are no GPUs in a container"),
        ("slurm.constraint=nope", "Invalid feature specification"),
        ("slurm.extra=[--nodelist=nope]", "Invalid node name"),
        // The cluster takes it, and would let it wait for ever.
        ("slurm.account=empty", "the job can never start: AssocGrpCPUMinutesLimit"),
    ] {
        let folder = slurm.with(prepared(&format!("{}{SMALL}", train(STEPS))));
        folder.pipe(&["run", "t5.yaml", "--set", setting]).exits(4).says(says).says("hint: ");
        assert_eq!(slurm.queue(), [""; 0], "{setting}");
    }
}

fn unseen_folder() {
    let folder = prepared(&format!("{}{SMALL}", train(STEPS)));
    let slurm = Slurm::start(1, &["--blind", folder.path().to_str().unwrap()]);
    let folder = slurm.with(folder);
    folder.pipe(&["run", "t5.yaml"]).exits(4).says("the job failed before its script began").says("must see");
    folder.pipe(&["doctor", "--engine", "slurm"]).exits(4).prints("does not see");
    assert_eq!(slurm.queue(), [""; 0]);
}

fn doctor(slurm: &Slurm) {
    let folder = slurm.with(Folder::new());
    let answer = folder.pipe(&["doctor", "--engine", "slurm"]).exits(0);
    answer.prints("p (default): 2 of 2 nodes up, time limit 10:00").prints("sees");
    let folder = Folder::new().env("SLURM_CONF", "/nowhere/slurm.conf");
    folder.pipe(&["doctor", "--engine", "slurm"]).exits(4);
}

/// A squeue that counts how often it is called stands before the real one.
fn many_runs(slurm: &Slurm) {
    let folder = slurm.with(prepared(&format!("{}{SMALL}", train(STEPS))));
    let path = format!("{}/bin:{}", folder.path().display(), std::env::var("PATH").unwrap());
    let cache = folder.path().join("cache").display().to_string();
    let folder = folder.env("PATH", path).env("PIPE_CACHE", cache);
    folder.write("bin/squeue", "#!/bin/sh\necho >> \"$COUNTED\"\nexec /usr/bin/squeue \"$@\"\n");
    let made = std::process::Command::new("chmod").arg("+x").arg(folder.path().join("bin/squeue")).status().unwrap();
    assert!(made.success());
    let counted = folder.path().join("counted");
    let folder = folder.env("COUNTED", counted.display());
    slurm.call("sbatch", &["--exclusive", "--nodes=2", "--output=/dev/null", "--wrap=sleep 300"]);
    let runs = 5;
    for _ in 0..runs {
        folder.pipe(&["run", "t5.yaml", "--detach"]).exits(0);
    }
    folder.wait_until("all jobs in the queue", || slurm.queue().len() == runs + 1);
    let calls = || std::fs::read_to_string(&counted).map_or(0, |text| text.lines().count());
    let (before, began) = (calls(), std::time::Instant::now());
    std::thread::sleep(std::time::Duration::from_secs(15));
    // Each of them asks once a second at first, and ever less often.
    let most = began.elapsed().as_secs() as usize + 1;
    assert!(calls() - before <= most, "{} calls of squeue in {most} s", calls() - before);
    let before = calls();
    folder.pipe(&["ls"]).exits(0);
    assert!(calls() - before <= 1);
    let listed = folder.pipe(&["ls", "--json"]).exits(0).json();
    let ids: Vec<String> =
        listed.as_array().unwrap().iter().map(|run| run["id"].as_str().unwrap().to_owned()).collect();
    let mut stop = vec!["stop"];
    stop.extend(ids.iter().map(String::as_str));
    folder.pipe(&stop).exits(0);
    slurm.call("scancel", &["--user=root"]);
}

/// A command in an image that is built and exported here sees its files, variables and folder.
fn built_image(slurm: &Slurm) {
    let folder = slurm.with(Folder::new());
    let cache = folder.path().join("cache").display().to_string();
    let folder = folder.env("PIPE_CACHE", cache);
    write_shell_image(&folder);
    let command = r#"read -r line < file; echo \"$line, $GREETING, $LEVEL, $(pwd)\""#;
    let container = "{gpus: 0, memory: 200m, image: image/shell.Dockerfile, env: {LEVEL: pipeline}}";
    folder.write(
        "job.yaml",
        format!(
            "version: 1\nname: job\ncommand: [sh, -c, \"{command}\"]\ncontainer: {container}\nengine: slurm\n\
             slurm: {{containers: charliecloud}}\n"
        ),
    );
    let sees = "a file, it's = here, pipeline, /work";
    folder.pipe(&["run", "job.yaml"]).exits(0).says("exporting pipe-shell:").says(sees);
    let lock: Value = serde_json::from_str(&folder.read_run("lock.json")).unwrap();
    let on = |name: &str| lock["on"][name].as_str().unwrap_or_default().to_owned();
    assert!(on("image").starts_with("pipe-shell:") && on("image_id").starts_with("sha256:"), "{lock:#}");
    folder.pipe(&["run", "job.yaml"]).exits(0).says("(unchanged)").says_not("exporting").says(sees);
    let unknown = "container.image=nobody/nothing:1";
    folder.pipe(&["run", "job.yaml", "--set", unknown]).exits(4).says("does not have nobody/nothing:1").says("hint: ");
    // Without a daemon what was exported can be used, and nothing else.
    let folder = folder.env("DOCKER_HOST", "unix:///nowhere/docker.sock");
    folder.pipe(&["run", "job.yaml"]).exits(0).says(sees);
    folder.write("image/file", "another file\n");
    folder.pipe(&["run", "job.yaml"]).exits(4).says("shell.Dockerfile cannot be built").says("hint: ");
    assert_eq!(slurm.queue(), [""; 0]);
}

/// An image with nothing but a shell of this machine.
fn write_shell_image(folder: &Folder) {
    let root = folder.path().join("image/root");
    let loaded = std::process::Command::new("ldd").arg("/bin/sh").output().unwrap();
    let loaded = String::from_utf8(loaded.stdout).unwrap();
    let libraries = loaded.split_whitespace().filter(|word| word.starts_with('/')).map(|path| (path, &path[1..]));
    for (from, to) in libraries.chain([("/bin/sh", "tools/sh")]) {
        let to = root.join(to);
        std::fs::create_dir_all(to.parent().unwrap()).unwrap();
        std::fs::copy(from, to).unwrap();
    }
    folder.write("image/file", "a file\n").write(
        "image/shell.Dockerfile",
        "FROM scratch\nCOPY root /\nCOPY file /work/file\nENV PATH=/tools LEVEL=image GREETING=\"it's = here\"\nWORKDIR /work\n",
    );
}
