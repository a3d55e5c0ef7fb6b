//! Follows a job to its end: its output by the file in the run folder, its state by asking the cluster, ever less often.
//!
//! All jobs of this user at one moment. The `pipe` processes of a user share it, so that two hundred runs ask the controller as often as
//! one.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use pipe_spec::run::LogPosition;

use super::job::{JobFiles, OUTPUT, Refusal};
use super::programs::{self, Failure, SeenJob};
use super::state::JobState;
use crate::engine::{Closed, Line, LineSender, Output, Source};
use crate::system::digests::cache_folder;
use crate::system::files::write_whole;

/// Between two looks into the run folder.
const FOLDER_INTERVAL: Duration = Duration::from_millis(300);

/// Between two questions to the cluster: at first, and at most.
const FIRST_INTERVAL: Duration = Duration::from_secs(1);
const LAST_INTERVAL: Duration = Duration::from_secs(30);

/// How long the last lines of a job may take to appear on another machine.
const LAST_LINES: Duration = Duration::from_secs(1);

pub struct Follower {
    pub cluster: String,
    pub id: String,
    pub files: JobFiles,
    pub refused: Refusal,
    output: Output,
    said: String,
    state: String,
    is_away: bool,
}

impl Follower {
    pub fn new(cluster: &str, id: String, files: JobFiles, refused: Refusal, read: Option<&LogPosition>) -> Self {
        let output = Output::new(files.folder().to_owned(), OUTPUT, read);
        Self {
            cluster: cluster.to_owned(),
            id,
            files,
            refused,
            output,
            said: String::new(),
            state: String::new(),
            is_away: false,
        }
    }

    pub async fn follow(mut self, to: LineSender) {
        self.until_end(&to).await.ok();
    }

    async fn until_end(&mut self, to: &LineSender) -> Result<(), Closed> {
        let mut interval = FIRST_INTERVAL;
        let mut asked = Instant::now();
        let mut missing = 0;
        loop {
            self.output.send(to).await?;
            if self.files.ended().exists() {
                break;
            }
            if asked.elapsed() >= interval {
                asked = Instant::now();
                // Others may have asked just now.
                let (cluster, oldest) = (self.cluster.clone(), interval / 2);
                interval = (interval * 3 / 2).min(LAST_INTERVAL);
                let jobs = tokio::task::spawn_blocking(move || jobs(&cluster, oldest)).await;
                let Ok(jobs) = jobs else { return Ok(()) };
                // Where two were submitted, the other one does it.
                self.id = self.files.job_id().unwrap_or_else(|| self.id.clone());
                match jobs.map(|jobs| jobs.into_iter().find(|job| job.id == self.id)) {
                    Err(failure) => self.note_absence(&failure, to).await?,
                    Ok(Some(job)) => {
                        (missing, self.is_away) = (0, false);
                        if self.note_state(&job.state, &job.nodes, to).await? {
                            interval = FIRST_INTERVAL;
                        }
                        if self.is_refused(&job.state) || job.state.has_ended() {
                            break;
                        }
                    }
                    // One that was just submitted may not be there yet; one that is unknown twice is over.
                    Ok(None) if missing < 2 => missing += 1,
                    Ok(None) => break,
                }
            }
            tokio::time::sleep(FOLDER_INTERVAL).await;
        }
        // Output that was written on another machine may come a moment later.
        let began = Instant::now();
        while began.elapsed() < LAST_LINES {
            tokio::time::sleep(FOLDER_INTERVAL).await;
            self.output.send(to).await?;
        }
        self.output.send_rest(to).await
    }

    /// A job that cannot ever start is taken out of the queue.
    fn is_refused(&mut self, state: &JobState) -> bool {
        let Some(reason) = state.never_starts() else { return false };
        let said = format!("the job can never start: {reason}");
        *self.refused.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(said);
        if let Err(failure) = programs::scancel(&[&self.id]) {
            tracing::warn!("cannot cancel job {}: {}", self.id, failure.said());
        }
        true
    }

    /// Says where the job stands, when that has changed.
    async fn note_state(&mut self, state: &JobState, nodes: &str, to: &LineSender) -> Result<bool, Closed> {
        let (source, text) = match state.state.as_str() {
            "PENDING" if state.reason.is_empty() => (Source::Queue, format!("job {} waits in the queue", self.id)),
            "PENDING" => (Source::Queue, format!("job {} waits in the queue ({})", self.id, state.reason)),
            "SUSPENDED" => (Source::Queue, format!("job {} is suspended", self.id)),
            "RUNNING" => (Source::Engine, format!("job {} runs on {nodes}", self.id)),
            _ => return Ok(false),
        };
        if text == self.said {
            return Ok(false);
        }
        self.said.clone_from(&text);
        self.note(source, text, to).await?;
        // Another reason to wait is no reason to ask more often.
        Ok(std::mem::replace(&mut self.state, state.state.clone()) != state.state)
    }

    async fn note_absence(&mut self, failure: &Failure, to: &LineSender) -> Result<(), Closed> {
        if std::mem::replace(&mut self.is_away, true) {
            return Ok(());
        }
        let said = failure.said();
        let first = said.lines().next().unwrap_or_default();
        self.said.clear();
        self.note(
            Source::Queue,
            format!("the cluster does not answer ({first}); the job goes on and is watched by its files"),
            to,
        )
        .await
    }

    async fn note(&self, source: Source, text: String, to: &LineSender) -> Result<(), Closed> {
        to.send(Line::new(source, text)).await
    }
}

/// The jobs as they were at most so long ago.
pub fn jobs(cluster: &str, oldest: Duration) -> Result<Vec<SeenJob>, Failure> {
    let name: String = cluster.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    // Two clusters may have one name.
    let conf = std::env::var_os("SLURM_CONF").unwrap_or_default();
    let name = format!("{name}-{}-{}", programs::user(), &blake3::hash(conf.as_encoded_bytes()).to_hex()[..8]);
    let shared = cache_folder().map(|folder| folder.join("cluster").join(name));
    let text = match shared.and_then(|folder| Shared::open(&folder)) {
        Some(shared) => shared.read(oldest)?,
        // Without a folder for it everyone asks for himself.
        None => programs::squeue()?,
    };
    Ok(programs::read_squeue(&text))
}

/// The last answer of `squeue`. Who finds it too old asks again, and the others wait for that.
struct Shared {
    file: PathBuf,
    _locked: File,
}

impl Shared {
    fn open(folder: &Path) -> Option<Self> {
        std::fs::create_dir_all(folder).ok()?;
        let locked = File::options().create(true).truncate(false).write(true).open(folder.join("squeue.lock")).ok()?;
        locked.lock().ok()?;
        Some(Self { file: folder.join("squeue"), _locked: locked })
    }

    fn read(&self, oldest: Duration) -> Result<String, Failure> {
        let age =
            std::fs::metadata(&self.file).and_then(|found| found.modified()).ok().and_then(|at| at.elapsed().ok());
        if let Some(text) = age.filter(|age| *age <= oldest).and_then(|_| std::fs::read_to_string(&self.file).ok()) {
            return Ok(text);
        }
        let text = programs::squeue()?;
        write_whole(&self.file, text.as_bytes()).ok();
        Ok(text)
    }
}
