//! `pipe prune`: removes images and files of the cache that were not used for long. A later run makes them again.

use std::fs::{File, TryLockError};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use pipe_spec::text::{count, human_bytes};
use pipe_spec::{Lock, Status};
use serde_json::{Value, json};

use super::init::Dialog;
use crate::engine::{BuiltImage, registry};
use crate::error::Error;
use crate::input::data_cache;
use crate::input::hub::Address;
use crate::report::{Table, print, print_json, say};
use crate::run::{self, lock};
use crate::system::digests::cache_folder;

pub struct PruneOptions {
    /// Files used since then stay; nothing where all goes.
    pub older_than: Option<Duration>,
    pub dry_run: bool,
    pub yes: bool,
    pub json: bool,
}

/// Files that a later run makes again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LeftoverKind {
    Image,
    PreparedData,
    TrainerFolder,
    ImageFolder,
    RepositoryList,
    BucketFiles,
    ClusterState,
    JobProgram,
    Digests,
}

impl LeftoverKind {
    fn name(self) -> &'static str {
        match self {
            Self::Image => "image",
            Self::PreparedData => "prepared data",
            Self::TrainerFolder => "trainer folder",
            Self::ImageFolder => "image folder",
            Self::RepositoryList => "list of a repository",
            Self::BucketFiles => "files of a bucket",
            Self::ClusterState => "state of a cluster",
            Self::JobProgram => "program of jobs",
            Self::Digests => "hashes of files",
        }
    }
}

struct Leftover {
    kind: LeftoverKind,
    name: String,
    bytes: u64,
    /// When an image was built.
    used: SystemTime,
    /// Where it lies; of prepared data its key, of an image what the engine knows it by.
    path: PathBuf,
}

/// The folders of the cache whose entries stand for themselves.
const FOLDERS: [(&str, LeftoverKind); 6] = [
    ("trainers", LeftoverKind::TrainerFolder),
    ("images", LeftoverKind::ImageFolder),
    ("hub", LeftoverKind::RepositoryList),
    ("buckets", LeftoverKind::BucketFiles),
    ("cluster", LeftoverKind::ClusterState),
    ("pipe-job", LeftoverKind::JobProgram),
];

/// The folder of the cache of buckets with the locks of what is fetched.
const LOCKS: &str = ".locks";

/// The file with the hashes of files.
const DIGESTS: &str = "digests.json";

impl Leftover {
    fn age(&self) -> Duration {
        self.used.elapsed().unwrap_or_default()
    }

    fn row(&self) -> Vec<String> {
        let age = match self.age().as_secs() / DAY.as_secs() {
            0 => "today".to_owned(),
            days => count(days, "day"),
        };
        vec![self.kind.name().to_owned(), self.name.clone(), age, human_bytes(self.bytes)]
    }

    fn to_json(&self) -> Value {
        json!({ "what": self.kind.name(), "name": self.name, "age_seconds": self.age().as_secs(), "size": self.bytes })
    }

    /// False where something uses it after all.
    fn remove(&self) -> Result<bool, Error> {
        match self.kind {
            LeftoverKind::Image => super::runtime()?.block_on(async {
                let engine = registry::connect_for_images().await?;
                super::image::image_store(engine.as_ref())?.remove_image(&self.key()).await
            }),
            LeftoverKind::PreparedData => data_cache::remove_entry(&self.key()),
            _ => remove_path(&self.path).map(|()| true),
        }
    }

    fn key(&self) -> String {
        self.path.to_string_lossy().into_owned()
    }
}

/// Under another name first, so that half of it never looks whole.
fn remove_path(path: &Path) -> Result<(), Error> {
    let fail = |source| Error::Write { path: path.to_owned(), source };
    if !path.is_dir() {
        return std::fs::remove_file(path).map_err(fail);
    }
    let own = path.with_extension(format!("removed-{}", std::process::id()));
    std::fs::rename(path, &own).and_then(|()| std::fs::remove_dir_all(&own)).map_err(fail)
}

pub fn run(options: &PruneOptions) -> Result<(), Error> {
    let users = Users::find()?;
    let mut failure = None;
    let mut found = images();
    found.extend(data_cache::entries().into_iter().map(|entry| Leftover {
        kind: LeftoverKind::PreparedData,
        name: entry.source,
        bytes: entry.bytes,
        used: entry.used,
        path: entry.key.into(),
    }));
    found.extend(cache_folder().into_iter().flat_map(|cache| in_cache(&cache)));
    found.retain(|one| options.older_than.is_none_or(|least| one.age() >= least));
    found.retain(|one| match users.of(one) {
        Some(by) => {
            say(&format!("kept {} {}: {by}", one.kind.name(), one.name));
            false
        }
        None => true,
    });
    found.sort_by_key(|one| std::cmp::Reverse(one.bytes));
    if !options.json {
        print_leftovers(&found);
    }
    if !options.dry_run && !found.is_empty() {
        confirm(options.yes)?;
        // A file that cannot be removed keeps no other from being removed.
        found.retain(|one| match one.remove() {
            Ok(true) => true,
            Ok(false) => {
                say(&format!("kept {} {}: it is in use", one.kind.name(), one.name));
                false
            }
            Err(error) => {
                say(&format!("kept {} {}: {error}", one.kind.name(), one.name));
                failure.get_or_insert(error);
                false
            }
        });
        if !options.json {
            print(&format!("removed {}", sum(&found)));
        }
    }
    if options.json {
        let bytes: u64 = found.iter().map(|one| one.bytes).sum();
        let entries: Vec<Value> = found.iter().map(Leftover::to_json).collect();
        print_json(&json!({ "removed": !options.dry_run, "entries": entries, "size": bytes }));
    }
    failure.map_or(Ok(()), Err)
}

fn print_leftovers(found: &[Leftover]) {
    if found.is_empty() {
        return print("nothing to remove");
    }
    let mut table = Table::new(&["what", "name", "unused for", "size"]);
    found.iter().for_each(|one| table.row(one.row()));
    print(&table.on_stdout());
    print(&sum(found));
}

fn sum(found: &[Leftover]) -> String {
    format!("{}, {}", count(found.len(), "entry"), human_bytes(found.iter().map(|one| one.bytes).sum()))
}

/// Asks on a terminal.
fn confirm(yes: bool) -> Result<(), Error> {
    let read = |answer: &str| match answer {
        "y" | "yes" => Ok(true),
        "n" | "no" => Ok(false),
        _ => Err("yes or no".to_owned()),
    };
    match Dialog::find(yes) {
        Dialog::Defaults => Ok(()),
        dialog => match dialog.ask("remove them", "no", read)? {
            Some(true) => Ok(()),
            Some(false) => Err(Error::Interrupted),
            None => Err(Error::PruneUnconfirmed),
        },
    }
}

/// Those that `pipe` has built. Without an engine there are none.
fn images() -> Vec<Leftover> {
    let built = super::runtime().and_then(|runtime| {
        runtime.block_on(async {
            let engine = registry::connect_for_images().await?;
            super::image::image_store(engine.as_ref())?.built_images().await
        })
    });
    let built = built.unwrap_or_else(|error| {
        say(&format!("images are not looked at: {error}"));
        Vec::new()
    });
    let image = |image: BuiltImage| {
        let used = SystemTime::UNIX_EPOCH + Duration::from_secs(u64::try_from(image.created).unwrap_or(0));
        let bytes = u64::try_from(image.size).unwrap_or(0);
        if image.name != NO_NAME {
            return Some(Leftover {
                kind: LeftoverKind::Image,
                bytes,
                used,
                path: image.name.clone().into(),
                name: image.name,
            });
        }
        // A build that is under way may have made one that is younger.
        let is_left = used.elapsed().is_ok_and(|age| age > DAY);
        let name = image.id.trim_start_matches("sha256:").chars().take(12).collect();
        is_left.then(|| Leftover { kind: LeftoverKind::Image, bytes, used, path: image.id.into(), name })
    };
    built.into_iter().filter_map(image).collect()
}

/// The name that a daemon gives an image whose own name another one took.
const NO_NAME: &str = "<none>:<none>";
const DAY: Duration = Duration::from_secs(24 * 3600);

/// The content of the cache, besides prepared data.
fn in_cache(cache: &Path) -> Vec<Leftover> {
    let paths = |folder: &str| std::fs::read_dir(cache.join(folder)).into_iter().flatten().flatten();
    let entries = FOLDERS.iter().flat_map(|(folder, kind)| paths(folder).map(|entry| (*kind, entry.path())));
    let entries = entries.filter(|(_, path)| !path.ends_with(LOCKS));
    let digests = Some((LeftoverKind::Digests, cache.join(DIGESTS))).filter(|(_, path)| path.is_file());
    let leftover = |(kind, path): (LeftoverKind, PathBuf)| {
        let (bytes, used) = size_and_use(&path);
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Leftover { kind, name, bytes, used, path }
    };
    entries.chain(digests).map(leftover).collect()
}

/// Bytes of all files, and when one of them was last read or written: as far as the disk notes that.
fn size_and_use(path: &Path) -> (u64, SystemTime) {
    let Ok(meta) = path.symlink_metadata() else { return (0, SystemTime::now()) };
    let modified = meta.modified().unwrap_or_else(|_| SystemTime::now());
    if !meta.is_dir() {
        // A folder is read to list it.
        return (meta.blocks() * 512, modified.max(meta.accessed().unwrap_or(modified)));
    }
    let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
    entries.map(|entry| size_and_use(&entry.path())).fold((0, modified), |all, one| (all.0 + one.0, all.1.max(one.1)))
}

/// Who needs what is there.
struct Users {
    /// The runs that have not finished, with their locks.
    runs: Vec<(String, Lock)>,
    /// A job on another machine, of any run.
    job: Option<String>,
}

impl Users {
    fn find() -> Result<Self, Error> {
        let unfinished = run::list()?.into_iter().filter(|run| run.state.status != Status::Finished);
        let runs = unfinished.filter_map(|run| Some((run.state.id.clone(), lock::read(&run.folder())?))).collect();
        Ok(Self { runs, job: super::runtime()?.block_on(remote_job()) })
    }

    /// Why something stays.
    fn of(&self, one: &Leftover) -> Option<String> {
        let needs = |lock: &Lock| {
            let on = &lock.on;
            // The name of a file begins with its kind; an archive or a part of one is its own file.
            let stem = one.name.split('.').next().unwrap_or_default();
            match one.kind {
                LeftoverKind::Image => on.image.as_ref() == Some(&one.name),
                LeftoverKind::ImageFolder => {
                    on.image_id.as_ref().is_some_and(|id| !stem.is_empty() && id.contains(stem))
                }
                LeftoverKind::TrainerFolder => on.image.is_none() && registry::keeps_jobs(&on.engine),
                LeftoverKind::RepositoryList => lock.hub.iter().any(|repository| {
                    let id = repository.name.trim_start_matches("datasets/").replace('/', "--");
                    one.name.ends_with(&format!("--{id}"))
                }),
                LeftoverKind::BucketFiles => lock.hub.iter().any(|repository| {
                    Address::of_model(&repository.name).is_some_and(|folder| folder.folder_name() == one.name)
                }),
                LeftoverKind::PreparedData
                | LeftoverKind::ClusterState
                | LeftoverKind::JobProgram
                | LeftoverKind::Digests => false,
            }
        };
        let by_run = self.runs.iter().find(|(_, lock)| needs(lock)).map(|(id, _)| format!("{id} has not finished"));
        let on_nodes = matches!(one.kind, LeftoverKind::ImageFolder | LeftoverKind::TrainerFolder);
        let by_job = || self.job.as_ref().filter(|_| on_nodes).map(|run| format!("a job of {run} may use it"));
        let by_process = || {
            let is_used = match one.kind {
                LeftoverKind::PreparedData => data_cache::is_used(&one.key()),
                LeftoverKind::BucketFiles => is_fetched_now(&one.path),
                _ => false,
            };
            is_used.then(|| "it is in use".to_owned())
        };
        by_run.or_else(by_job).or_else(by_process)
    }
}

/// Whether a process is filling a folder of the cache of buckets: it holds a lock beside it.
fn is_fetched_now(folder: &Path) -> bool {
    let Some(locks) = folder.parent().zip(folder.file_name()).map(|(cache, name)| cache.join(LOCKS).join(name)) else {
        return false;
    };
    let is_held =
        |path: PathBuf| File::open(path).is_ok_and(|file| matches!(file.try_lock(), Err(TryLockError::WouldBlock)));
    std::fs::read_dir(locks).into_iter().flatten().flatten().any(|entry| is_held(entry.path()))
}

/// The run of a job that another machine does, where an engine has one. It may be in another folder for runs.
async fn remote_job() -> Option<String> {
    for name in registry::names().filter(|name| registry::keeps_jobs(name)) {
        let Ok(engine) = registry::connect(name, None).await else { continue };
        if engine.is_here() {
            continue;
        }
        match engine.jobs().await {
            Ok(jobs) if jobs.is_empty() => {}
            Ok(mut jobs) => return jobs.pop().map(|job| job.run),
            Err(error) => return Some(format!("{name} ({error})")),
        }
    }
    None
}
