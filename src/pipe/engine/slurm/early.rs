//! WaitingJob jobs: one that depends on others for a step of a pipeline, an array for the trials of a study. Such a job waits for a file on the
//! shared file system, which is what it runs.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use super::files::JobFiles;
use super::programs::{self, Failure};
use super::state::JobState;
use super::trainer_folder::unique;
use super::{REFUSED_HINT, SlurmEngine, script};
use crate::background;
use crate::engine::{EarlyArray, EarlyJob, EarlyQueue, Launch, SubmittedEarly};
use crate::error::Error;
use crate::files::{write_json, write_whole};

/// What an early job runs that is not needed. It fails, so that those which depend on it leave the queue.
const UNNEEDED_SCRIPT: &str = "exit 1\n";

/// Ids that scancel is given at a time.
const IDS_AT_ONCE: usize = 500;

/// How often a job that was taken is renamed.
const RENAME_TRIES: u32 = 3;
const RENAME_INTERVAL: Duration = Duration::from_secs(1);

/// An array that the next trial is to submit, and why the cluster refused one.
const ARRAY_REQUEST: &str = "array.json";
const REFUSAL: &str = "refused.txt";

/// What is known of jobs that were submitted together.
#[derive(Debug, Serialize, Deserialize)]
struct Record {
    job: String,
    /// How many; one is no array.
    count: Option<u32>,
    /// The run that may take it; any part of the whole where it says nothing.
    run: Option<String>,
    /// What the jobs ask for, as options of sbatch.
    options: Vec<String>,
    /// The names of the variables whose values they have.
    variables: BTreeSet<String>,
}

/// Jobs that were submitted together.
struct Submission {
    folder: PathBuf,
    record: Record,
}

/// One job of a submission.
struct WaitingJob {
    /// The id of the job as the queue shows it.
    id: String,
    folder: PathBuf,
    /// Whether it may depend on other jobs. Those of an array do not.
    depends: bool,
}

impl WaitingJob {
    fn script(&self) -> PathBuf {
        self.folder.join("script")
    }

    fn is_untaken(&self) -> bool {
        !self.script().exists()
    }

    /// Who links a file to the name first has the job, the job itself included.
    fn take(&self, text: &str) -> io::Result<()> {
        let own = self.folder.join(unique("script"));
        let linked = fs::create_dir_all(&self.folder)
            .and_then(|()| fs::write(&own, text))
            .and_then(|()| fs::hard_link(&own, self.script()));
        fs::remove_file(&own).ok();
        linked
    }

    /// Whether the queue knows it under its new name: one that has the old name may be withdrawn with others.
    async fn rename(&self, name: &str) -> bool {
        for _ in 0..RENAME_TRIES {
            if update(&self.id, format!("JobName={name}")).await.is_ok() {
                return true;
            }
            if has_ended(&self.id).await {
                return false;
            }
            tokio::time::sleep(RENAME_INTERVAL).await;
        }
        true
    }
}

impl Submission {
    fn read(folder: &Path) -> Option<Self> {
        let record = serde_json::from_slice(&fs::read(folder.join("submission.json")).ok()?).ok()?;
        Some(Self { folder: folder.to_owned(), record })
    }

    /// All of a run, in their order.
    fn all(folder: &Path) -> Vec<Self> {
        let Ok(found) = fs::read_dir(folder) else { return Vec::new() };
        let mut folders: Vec<PathBuf> = found.flatten().map(|entry| entry.path()).collect();
        folders.sort();
        folders.iter().filter_map(|folder| Self::read(folder)).collect()
    }

    fn jobs(&self) -> impl Iterator<Item = WaitingJob> {
        (1..=self.record.count.unwrap_or(1)).map(|number| WaitingJob {
            id: match self.record.count {
                Some(_) => format!("{}_{number}", self.record.job),
                None => self.record.job.clone(),
            },
            folder: self.folder.join(number.to_string()),
            depends: self.record.count.is_none(),
        })
    }

    fn untaken(&self) -> impl Iterator<Item = WaitingJob> {
        self.jobs().filter(WaitingJob::is_untaken)
    }

    fn fits(&self, launch: &Launch, options: &[String]) -> bool {
        self.record.options == options && launch.variables.keys().all(|name| self.record.variables.contains(name))
    }

    /// Those that nobody has taken end, and nobody takes them any more.
    fn withdraw(&self) -> Result<(), Failure> {
        let is_taken = |job: &WaitingJob| {
            let taken = job.take(UNNEEDED_SCRIPT);
            taken.is_err_and(|error| error.kind() == ErrorKind::AlreadyExists)
        };
        let ids: Vec<String> = self.untaken().filter(|job| !is_taken(job)).map(|job| job.id).collect();
        for ids in ids.chunks(IDS_AT_ONCE) {
            programs::scancel(&ids.iter().map(String::as_str).collect::<Vec<_>>())?;
        }
        Ok(())
    }
}

/// The job that a `pipe` which was killed has taken for an attempt.
pub fn taken_by(launch: &Launch) -> Option<String> {
    let heading = script::heading(launch, &JobFiles::of(launch).key()?);
    let is_own = |job: &WaitingJob| fs::read_to_string(job.script()).is_ok_and(|text| text.starts_with(&heading));
    Submission::all(launch.early_jobs.as_deref()?).iter().flat_map(Submission::jobs).find(is_own).map(|job| job.id)
}

async fn has_ended(id: &str) -> bool {
    let id = id.to_owned();
    let job = background::run(move || Ok(programs::job(&id))).await;
    matches!(job, Ok(Ok(None))) || matches!(job, Ok(Ok(Some(job))) if job.has_ended())
}

/// Changes a job that is in the queue.
async fn update(id: &str, change: String) -> Result<(), Failure> {
    let args = vec!["update".to_owned(), format!("JobId={id}"), change];
    let called = background::run(move || Ok(programs::call("scontrol", &args).map(drop))).await;
    called.unwrap_or_else(|error| Err(Failure::Refused { said: error.to_string() }))
}

/// One trial at a time looks for an early job.
async fn lock(folder: &Path) -> Option<File> {
    let path = folder.join("lock");
    let locked = background::run(move || {
        let file = File::options().create(true).truncate(false).write(true).open(&path);
        let failed = |source| Error::Write { path, source };
        file.and_then(|file| file.lock().map(|()| file)).map_err(failed)
    });
    locked.await.ok()
}

impl SlurmEngine {
    /// The id of an early job that runs `text` now, if there was one.
    pub(super) async fn take_early_job(&self, launch: &Launch, text: &str) -> Option<String> {
        let folder = launch.early_jobs.as_deref()?;
        let _lock = lock(folder).await?;
        let taken = self.take_submitted(launch, folder, text).await;
        if taken.is_some() || !self.submit_requested_array(launch, folder).await {
            return taken;
        }
        self.take_submitted(launch, folder, text).await
    }

    async fn take_submitted(&self, launch: &Launch, folder: &Path, text: &str) -> Option<String> {
        let options = self.options(launch);
        let own = |submission: &Submission| submission.record.run.as_ref().is_none_or(|run| *run == launch.run_id);
        let submissions: Vec<Submission> = Submission::all(folder).into_iter().filter(own).collect();
        let (fitting, others): (Vec<_>, Vec<_>) =
            submissions.into_iter().partition(|submission| submission.fits(launch, &options));
        for other in others.iter().filter(|submission| submission.record.run.is_some()) {
            other.withdraw().unwrap_or_else(|failure| tracing::debug!("{}", failure.said()));
        }
        let untaken: Vec<WaitingJob> = fitting.iter().flat_map(Submission::untaken).collect();
        if untaken.is_empty() {
            return None;
        }
        let jobs = self.seen(Duration::ZERO).await.ok()?;
        let state = |job: &WaitingJob| jobs.iter().find(|seen| seen.id == job.id).map(|seen| &seen.state);
        let is_usable = |state: &JobState| state.is_pending() || state.state == "RUNNING";
        let (mut usable, ended): (Vec<_>, Vec<_>) =
            untaken.into_iter().partition(|job| state(job).is_some_and(is_usable));
        for job in ended {
            job.take(UNNEEDED_SCRIPT).ok();
        }
        // One that has its nodes comes before one that waits for them.
        usable.sort_by_key(|job| state(job).is_some_and(JobState::is_pending));
        for job in usable {
            // What it had to wait for is over. One that waits for what will not come may end any moment.
            let depends = job.depends && state(&job).is_some_and(JobState::is_pending);
            if depends && update(&job.id, "Dependency=".to_owned()).await.is_err() && has_ended(&job.id).await {
                continue;
            }
            if job.take(text).is_err() {
                continue;
            }
            if job.rename(&script::name(&launch.run_id, launch.attempt)).await {
                return Some(job.id);
            }
            // It had ended by then.
            write_whole(&job.script(), UNNEEDED_SCRIPT.as_bytes()).ok();
        }
        None
    }

    /// Submits the array that the study of a trial wants, now that the trial has something to run.
    async fn submit_requested_array(&self, launch: &Launch, folder: &Path) -> bool {
        let request = folder.join(ARRAY_REQUEST);
        let array = fs::read(&request).ok().and_then(|text| serde_json::from_slice::<EarlyArray>(&text).ok());
        let Some(array) = array else { return false };
        fs::remove_file(&request).ok();
        let wanted = Wanted {
            whole: &array.whole,
            folder,
            run: None,
            variables: &launch.variables,
            array: Some(&array),
            after: &[],
        };
        let submitted = self.submit_early(launch, &wanted).await;
        if let Err(error) = &submitted {
            write_whole(&folder.join(REFUSAL), error.to_string().as_bytes()).ok();
        }
        submitted.is_ok()
    }

    async fn submit_early(&self, launch: &Launch, wanted: &Wanted<'_>) -> Result<SubmittedEarly, Error> {
        let options = self.options(launch);
        let count = wanted.array.map(|array| array.count.min(self.config.largest_array));
        let folder = new_folder(wanted.folder, wanted.run.unwrap_or("array"))?;
        let name = script::name_of_early_jobs(wanted.whole);
        let mut args = script::naming(&name, &folder, if count.is_some() { "%a.out" } else { "1.out" });
        args.push("--parsable".to_owned());
        args.extend(options.iter().cloned());
        args.extend(wanted.array.zip(count).map(|(array, count)| format!("--array=1-{count}%{}", array.at_once)));
        if !wanted.after.is_empty() {
            args.push(format!("--dependency=afterok:{}", wanted.after.join(":")));
            // Whatever becomes of `pipe`, nothing stays in the queue.
            args.push("--kill-on-invalid-dep=yes".to_owned());
        }
        let text = script::text_of_early_job(&name, &folder, wanted.variables, script::RUN_TIMEOUT);
        let submitted = background::run(move || Ok(programs::sbatch(&args, &text))).await?;
        let record = Record {
            job: submitted.map_err(|failure| failure.error(REFUSED_HINT))?,
            count,
            run: wanted.run.map(str::to_owned),
            options,
            variables: wanted.variables.keys().cloned().collect(),
        };
        write_json(&folder.join("submission.json"), &record)?;
        Ok(SubmittedEarly { job: record.job, folder })
    }
}

/// WaitingJob jobs that are submitted together.
struct Wanted<'a> {
    whole: &'a str,
    folder: &'a Path,
    run: Option<&'a str>,
    variables: &'a BTreeMap<String, String>,
    array: Option<&'a EarlyArray>,
    after: &'a [String],
}

#[async_trait(?Send)]
impl EarlyQueue for SlurmEngine {
    async fn submit(&self, job: &EarlyJob<'_>) -> Result<SubmittedEarly, Error> {
        let wanted = Wanted {
            whole: job.whole,
            folder: &job.folder,
            run: Some(job.run),
            variables: &job.variables,
            array: None,
            after: &job.after,
        };
        self.submit_early(&Launch::example(job.container, job.nodes), &wanted).await
    }

    fn request_array(&self, folder: &Path, array: &EarlyArray) -> Result<(), Error> {
        // One that was requested for more trials is enough for fewer.
        if folder.join(ARRAY_REQUEST).exists() {
            return Ok(());
        }
        fs::create_dir_all(folder).map_err(|source| Error::Write { path: folder.to_owned(), source })?;
        write_json(&folder.join(ARRAY_REQUEST), array)
    }

    fn refusal(&self, folder: &Path) -> Option<String> {
        fs::read_to_string(folder.join(REFUSAL)).ok()
    }

    fn untaken(&self, folder: &Path) -> u32 {
        Submission::all(folder).iter().flat_map(Submission::untaken).count() as u32
    }

    async fn withdraw(&self, folder: &Path) -> Result<(), Error> {
        for file in [ARRAY_REQUEST, REFUSAL] {
            fs::remove_file(folder.join(file)).ok();
        }
        let mut submissions = Submission::all(folder);
        submissions.extend(Submission::read(folder));
        background::run(move || {
            submissions.iter().try_for_each(Submission::withdraw).map_err(|failure| failure.error(REFUSED_HINT))
        })
        .await
    }
}

/// A folder of its own for all that are submitted together.
fn new_folder(all: &Path, name: &str) -> Result<PathBuf, Error> {
    let failed = |source| Error::Write { path: all.to_owned(), source };
    fs::create_dir_all(all).map_err(failed)?;
    let mut folders = (1..).map(|number| all.join(format!("{name}-{number:03}")));
    let made = folders.find_map(|folder| match fs::create_dir(&folder) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => None,
        made => Some(made.map(|()| folder)),
    });
    made.unwrap_or_else(|| Ok(all.to_owned())).map_err(failed)
}
