//! Places in the queue: jobs that are submitted before the runs begin that they are for, several as an array. Such a job waits for a
//! file on the shared file system, which is what it runs.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use super::programs::{self, Failure};
use super::state::JobState;
use super::trainer_folder::unique;
use super::{REFUSED_HINT, SlurmEngine, script};
use crate::background;
use crate::engine::{KeptPlaces, Launch, Places, QueuePlaces, Several};
use crate::error::Error;
use crate::files::write_json;

/// What a place runs that is not needed.
const NOTHING: &str = "exit 0\n";

/// Ids that scancel is given at a time.
const IDS_AT_ONCE: usize = 500;

/// What is known of places that were kept together.
#[derive(Debug, Serialize, Deserialize)]
struct Kept {
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

struct Group {
    folder: PathBuf,
    kept: Kept,
}

/// One place of a group.
struct Place {
    /// The id of the job as the queue shows it.
    id: String,
    folder: PathBuf,
    /// Whether it is no job of an array, which depends on no other job.
    is_alone: bool,
}

impl Place {
    fn script(&self) -> PathBuf {
        self.folder.join("script")
    }

    fn is_free(&self) -> bool {
        !self.script().exists()
    }

    /// Who links a file to the name first has the place, the job itself included.
    fn take(&self, text: &str) -> bool {
        let own = self.folder.join(unique("script"));
        let linked = fs::create_dir_all(&self.folder)
            .and_then(|()| fs::write(&own, text))
            .and_then(|()| fs::hard_link(&own, self.script()));
        fs::remove_file(&own).ok();
        linked.is_ok()
    }
}

impl Group {
    fn read(folder: &Path) -> Option<Self> {
        let kept = serde_json::from_slice(&fs::read(folder.join("place.json")).ok()?).ok()?;
        Some(Self { folder: folder.to_owned(), kept })
    }

    /// All of a run, in their order.
    fn all(folder: &Path) -> Vec<Self> {
        let Ok(found) = fs::read_dir(folder) else { return Vec::new() };
        let mut folders: Vec<PathBuf> = found.flatten().map(|entry| entry.path()).collect();
        folders.sort();
        folders.iter().filter_map(|folder| Self::read(folder)).collect()
    }

    fn places(&self) -> impl Iterator<Item = Place> {
        (1..=self.kept.count.unwrap_or(1)).map(|number| Place {
            id: match self.kept.count {
                Some(_) => format!("{}_{number}", self.kept.job),
                None => self.kept.job.clone(),
            },
            folder: self.folder.join(number.to_string()),
            is_alone: self.kept.count.is_none(),
        })
    }

    fn free(&self) -> impl Iterator<Item = Place> {
        self.places().filter(Place::is_free)
    }

    fn fits(&self, launch: &Launch, options: &[String]) -> bool {
        self.kept.options == options && launch.variables.keys().all(|name| self.kept.variables.contains(name))
    }

    /// Nobody takes them any more, and those that nobody has taken end.
    fn give_up(&self) -> Result<(), Failure> {
        let ids: Vec<String> = self.free().filter(|place| place.take(NOTHING)).map(|place| place.id).collect();
        for ids in ids.chunks(IDS_AT_ONCE) {
            programs::scancel(&ids.iter().map(String::as_str).collect::<Vec<_>>())?;
        }
        Ok(())
    }
}

/// The place that a `pipe` which was killed has taken for an attempt.
pub fn taken_by(launch: &Launch) -> Option<String> {
    let heading = script::heading(launch);
    let is_own = |place: &Place| fs::read_to_string(place.script()).is_ok_and(|text| text.starts_with(&heading));
    Group::all(launch.places.as_deref()?).iter().flat_map(Group::places).find(is_own).map(|place| place.id)
}

async fn has_ended(id: &str) -> bool {
    let id = id.to_owned();
    let job = background::run(move || Ok(programs::job(&id))).await;
    !matches!(job, Ok(Ok(Some(job))) if !job.has_ended())
}

/// Changes a job that is in the queue.
async fn update(id: &str, change: String) -> Result<(), Failure> {
    let args = vec!["update".to_owned(), format!("JobId={id}"), change];
    let called = background::run(move || Ok(programs::call("scontrol", &args).map(drop))).await;
    called.unwrap_or_else(|error| Err(Failure::Refused { said: error.to_string() }))
}

impl SlurmEngine {
    /// The id of the job that was kept for this one, if there is one; `text` is what it is to run.
    pub(super) async fn take_place(&self, launch: &Launch, text: &str) -> Option<String> {
        let options = self.options(launch);
        let own = |group: &Group| group.kept.run.as_ref().is_none_or(|run| *run == launch.run_id);
        let groups: Vec<Group> = Group::all(launch.places.as_deref()?).into_iter().filter(own).collect();
        let (fitting, others): (Vec<_>, Vec<_>) = groups.into_iter().partition(|group| group.fits(launch, &options));
        for other in others.iter().filter(|group| group.kept.run.is_some()) {
            other.give_up().unwrap_or_else(|failure| tracing::debug!("{}", failure.said()));
        }
        let free: Vec<Place> = fitting.iter().flat_map(Group::free).collect();
        if free.is_empty() {
            return None;
        }
        let jobs = self.seen(Duration::ZERO).await.ok()?;
        let state = |place: &Place| jobs.iter().find(|job| job.id == place.id).map(|job| &job.state);
        let (mut free, ended): (Vec<_>, Vec<_>) =
            free.into_iter().partition(|place| state(place).is_some_and(|state| !state.has_ended()));
        for place in ended {
            place.take(NOTHING);
        }
        // One that waits for its run comes before one that waits in the queue.
        free.sort_by_key(|place| state(place).is_some_and(|state| state.is_pending()));
        for place in free {
            // What it had to wait for is over. One that waits for what will not come may end any moment.
            let depends = place.is_alone && state(&place).is_some_and(JobState::is_pending);
            if depends && update(&place.id, "Dependency=".to_owned()).await.is_err() && has_ended(&place.id).await {
                continue;
            }
            if place.take(text) {
                let name = script::name(&launch.run_id, launch.attempt);
                if let Err(failure) = update(&place.id, format!("JobName={name}")).await {
                    tracing::debug!("{}", failure.said());
                }
                return Some(place.id);
            }
        }
        None
    }
}

#[async_trait(?Send)]
impl QueuePlaces for SlurmEngine {
    async fn keep(&self, places: &Places<'_>) -> Result<KeptPlaces, Error> {
        let depends = |option: &&String| option.starts_with("--dependency") || option.starts_with("-d");
        if let Some(option) = self.settings.extra.iter().find(depends) {
            return Err(Failure::Refused { said: format!("slurm.extra has {option}") }.error(REFUSED_HINT));
        }
        let launch = Launch::example(places.container, places.nodes);
        let options = self.options(&launch);
        let several =
            places.several.map(|several| Several { count: several.count.min(self.config.largest_array), ..several });
        let folder = new_folder(&places.folder, places.part)?;
        let name = script::name_of_places(places.whole);
        let output = if several.is_some() { "%a.out" } else { "1.out" };
        let mut args = script::naming(&name, &folder, output);
        args.push("--parsable".to_owned());
        args.extend(options.iter().cloned());
        args.extend(several.map(|several| format!("--array=1-{}%{}", several.count, several.at_once)));
        if !places.after.is_empty() {
            args.push(format!("--dependency=afterok:{}", places.after.join(":")));
            // Whatever becomes of `pipe`, nothing stays in the queue.
            args.push("--kill-on-invalid-dep=yes".to_owned());
        }
        let text = script::text_of_place(&name, &folder, &places.variables);
        let submitted = background::run(move || Ok(programs::sbatch(&args, &text))).await?;
        let kept = Kept {
            job: submitted.map_err(|failure| failure.error(REFUSED_HINT))?,
            count: several.map(|several| several.count),
            run: several.is_none().then(|| places.part.to_owned()),
            options,
            variables: places.variables.keys().cloned().collect(),
        };
        write_json(&folder.join("place.json"), &kept)?;
        Ok(KeptPlaces { job: kept.job, folder })
    }

    fn free(&self, folder: &Path) -> u32 {
        Group::all(folder).iter().flat_map(Group::free).count() as u32
    }

    async fn give_up(&self, folder: &Path) -> Result<(), Error> {
        let mut groups = Group::all(folder);
        groups.extend(Group::read(folder));
        background::run(move || {
            groups.iter().try_for_each(Group::give_up).map_err(|failure| failure.error(REFUSED_HINT))
        })
        .await
    }
}

/// A folder of its own for each time that places are kept for a part.
fn new_folder(all: &Path, part: &str) -> Result<PathBuf, Error> {
    let failed = |source| Error::Write { path: all.to_owned(), source };
    fs::create_dir_all(all).map_err(failed)?;
    let mut folders = (1..).map(|number| all.join(format!("{part}-{number:03}")));
    let made = folders.find_map(|folder| match fs::create_dir(&folder) {
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => None,
        made => Some(made.map(|()| folder)),
    });
    made.unwrap_or_else(|| Ok(all.to_owned())).map_err(failed)
}
