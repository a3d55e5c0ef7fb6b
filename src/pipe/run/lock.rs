//! The lock of a run as it lies in its folder: read, changed and compared with another.

use pipe_spec::event::Started;
use pipe_spec::lock::{Commit, LockedFile, LockedRepository, Program};
use pipe_spec::pipeline::Pipeline;
use pipe_spec::text::count;
use pipe_spec::{Lock, RunFolder};
use serde::Serialize;

use crate::error::Error;
use crate::system::files::{self, write_json};

/// The lock of a run; nothing where it cannot be read.
pub fn read(folder: &RunFolder) -> Option<Lock> {
    serde_json::from_slice(&files::read_own(&folder.lock()).ok()?).ok()
}

/// Adds what the trainer reports to the lock of a run. A failure does not stop the training.
pub fn record_started(folder: &RunFolder, started: &Started) {
    change(folder, |lock| lock.record_started(started)).unwrap_or_else(|error| tracing::debug!("{error}"));
}

/// Records that a run is resumed with other settings, none of which changes the training result.
pub fn record_settings(folder: &RunFolder, pipeline: &Pipeline) -> Result<(), Error> {
    change(folder, |lock| {
        let now = Some(hash(settings(pipeline).as_bytes()));
        if lock.resolved != now {
            lock.resolved_before = std::mem::replace(&mut lock.resolved, now);
        }
    })
}

/// Whether `resolved.yaml` is as `pipe` has written it. Where nothing was written down, nothing can be said against it.
pub fn has_own_settings(folder: &RunFolder) -> bool {
    let Some(lock) = read(folder).filter(|lock| lock.resolved.is_some()) else { return true };
    let text = files::read_own_text(&folder.resolved()).unwrap_or_default();
    let found = Some(hash(without_name(&text).as_bytes()));
    found == lock.resolved || found == lock.resolved_before
}

fn change(folder: &RunFolder, change: impl FnOnce(&mut Lock)) -> Result<(), Error> {
    let Some(before) = read(folder) else { return Ok(()) };
    let mut lock = before.clone();
    change(&mut lock);
    if lock == before { Ok(()) } else { write_json(&folder.lock(), &lock) }
}

/// Every setting. What a run is called is none.
pub fn settings(pipeline: &Pipeline) -> String {
    without_name(&pipeline.to_yaml())
}

fn without_name(yaml: &str) -> String {
    yaml.lines().filter(|line| !line.starts_with("name:")).map(|line| format!("{line}\n")).collect()
}

pub fn hash(bytes: &[u8]) -> String {
    blake3::hash(bytes).to_hex().to_string()
}

/// The effect of a difference on the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Effect {
    /// Another computation.
    Forbids,
    /// The same computation with other rounding.
    Rounding,
    /// Nothing that is known of.
    None,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Difference {
    pub what: String,
    pub first: String,
    pub second: String,
    pub effect: Effect,
}

/// The differences of two locks, the gravest first. Values that one of the two lacks are not compared.
pub fn differences(first: &Lock, second: &Lock) -> Vec<Difference> {
    let mut found = Differences(Vec::new());
    found.known("settings", Effect::Forbids, &first.resolved, &second.resolved, |hash| short(hash));
    found.known("seed", Effect::Forbids, &first.seed, &second.seed, ToString::to_string);
    // An earlier version of pipe did not write down which files there were.
    if first.resolved.is_some() && second.resolved.is_some() {
        found.files("data.train", &first.train, &second.train);
        found.files("data.eval", &first.eval, &second.eval);
        let tokenizer = |lock: &Lock| [lock.tokenizer.as_slice(), &lock.tokenizer_files].concat();
        found.files("tokenizer", &tokenizer(first), &tokenizer(second));
        found.files("model", &first.model, &second.model);
    }
    for one in &first.hub {
        let same = |other: &&LockedRepository| other.name == one.name && other.revision == one.revision;
        let other = second.hub.iter().find(same).map(|other| &other.commit);
        // Its files are compared by content.
        found.known(&one.name, Effect::None, &Some(&one.commit), &other, |commit| short(commit));
    }
    found.program(&first.on, &second.on);
    found.known("libtorch", Effect::Forbids, &first.machine.libtorch, &second.machine.libtorch, Clone::clone);
    found.known("device", Effect::Rounding, &first.machine.device, &second.machine.device, Clone::clone);
    if let (Some(one), Some(other)) = (&first.machine.card, &second.machine.card) {
        found.known("driver", Effect::Rounding, &one.driver, &other.driver, Clone::clone);
        found.known("compute capability", Effect::Rounding, &one.capability, &other.capability, Clone::clone);
    }
    let names = |lock: &Lock| lock.machine.cards.iter().map(|card| card.name.clone()).collect::<Vec<_>>();
    let several = |lock: &Lock| Some(names(lock)).filter(|names| !names.is_empty());
    found.known("cards", Effect::Rounding, &several(first), &several(second), |names| names.join(", "));
    found.known("cpu", Effect::Rounding, &first.machine.cpu, &second.machine.cpu, |cpu| {
        format!("{} x {}", cpu.count, cpu.model)
    });
    let threads = |lock: &Lock| lock.resolved.is_some().then_some(lock.machine.threads);
    let number = |threads: &Option<u32>| threads.map_or("default of libtorch".to_owned(), |count| count.to_string());
    found.known("threads", Effect::Rounding, &threads(first), &threads(second), number);
    found.known("ranks", Effect::Rounding, &first.machine.ranks, &second.machine.ranks, ToString::to_string);
    found.known("pipe", Effect::None, &Some(&first.pipe), &Some(&second.pipe), ToString::to_string);
    found.known("pipeline file", Effect::None, &Some(&first.pipeline), &Some(&second.pipeline), |hash| short(hash));
    let commit = |commit: &Commit| format!("{}{}", short(&commit.id), if commit.dirty { " with changes" } else { "" });
    found.known("commit", Effect::None, &first.commit, &second.commit, commit);
    found.0.sort_by_key(|difference| difference.effect);
    found.0
}

struct Differences(Vec<Difference>);

impl Differences {
    fn add(&mut self, what: &str, effect: Effect, first: String, second: String) {
        self.0.push(Difference { what: what.to_owned(), first, second, effect });
    }

    /// Something that both locks hold.
    fn known<T: PartialEq>(
        &mut self,
        what: &str,
        effect: Effect,
        first: &Option<T>,
        second: &Option<T>,
        text: impl Fn(&T) -> String,
    ) {
        if let (Some(first), Some(second)) = (first, second)
            && first != second
        {
            self.add(what, effect, text(first), text(second));
        }
    }

    /// Files count by their content and their order, wherever they lie.
    fn files(&mut self, what: &str, first: &[LockedFile], second: &[LockedFile]) {
        if first.len() != second.len() {
            let describe = |files: &[LockedFile]| match files {
                [] => "none".to_owned(),
                [one] => one.name.clone(),
                many => count(many.len(), "file"),
            };
            return self.add(what, Effect::Forbids, describe(first), describe(second));
        }
        for (one, other) in first.iter().zip(second).filter(|(one, other)| one.hash != other.hash) {
            let second = if one.name == other.name { short(&other.hash) } else { file_text(other) };
            self.add(what, Effect::Forbids, file_text(one), second);
        }
    }

    fn program(&mut self, first: &Program, second: &Program) {
        match (&first.image, &second.image) {
            (Some(one), Some(other)) if one != other => {
                self.add("image", Effect::Forbids, one.clone(), other.clone());
            }
            // Its content is named by its name, but what a Dockerfile runs may give something else every time.
            (Some(_), Some(_)) => {
                self.known("image id", Effect::Rounding, &first.image_id, &second.image_id, |id| short(id));
            }
            (None, None) => {
                self.known("trainer", Effect::Forbids, &first.trainer, &second.trainer, |hash| short(hash));
                self.known("libraries", Effect::Forbids, &first.libraries, &second.libraries, |hash| short(hash));
            }
            _ => self.add("program", Effect::Forbids, program_text(first), program_text(second)),
        }
        let engine = |program: &Program| {
            let version = program.engine_version.as_deref().unwrap_or_default();
            Some(format!("{} {version}", program.engine).trim_end().to_owned())
        };
        self.known("engine", Effect::None, &engine(first), &engine(second), Clone::clone);
    }
}

fn program_text(program: &Program) -> String {
    match (&program.image, &program.trainer) {
        (Some(image), _) => image.clone(),
        (None, Some(trainer)) => format!("trainer {}", short(trainer)),
        (None, None) => "trainer".to_owned(),
    }
}

fn file_text(file: &LockedFile) -> String {
    format!("{} {}", file.name, short(&file.hash))
}

/// The beginning of a hash, as much as a person compares.
fn short(hash: &str) -> String {
    hash.trim_start_matches("sha256:").chars().take(12).collect()
}

impl std::fmt::Display for Difference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: was {}, is {}", self.what, self.first, self.second)
    }
}

#[cfg(test)]
mod difference_tests {
    use pipe_spec::lock::{Cpu, LockedCard, LockedMachine};

    use super::*;

    fn file(name: &str, hash: &str) -> LockedFile {
        LockedFile { name: name.to_owned(), hash: hash.to_owned(), size: 1 }
    }

    fn lock() -> Lock {
        let text = |text: &str| Some(text.to_owned());
        Lock {
            pipe: "0.1.0".to_owned(),
            pipeline: "text".to_owned(),
            resolved: text("resolved"),
            variables: vec!["A".to_owned()],
            seed: Some(1),
            on: Program { engine: "test".to_owned(), trainer: text("t"), libraries: text("l"), ..Program::default() },
            train: vec![file("/a/one", "1"), file("/a/two", "2")],
            eval: vec![file("/a/eval", "3")],
            tokenizer: Some(file("/a/tokenizer.json", "4")),
            model: vec![file("/m/config.json", "5"), file("/m/model.safetensors", "6")],
            hub: vec![LockedRepository { name: "o/n".into(), revision: "main".into(), commit: "1".repeat(40) }],
            commit: Some(Commit { id: "c0ffee".to_owned(), dirty: false }),
            machine: LockedMachine {
                libtorch: text("2.11.0"),
                device: text("H200"),
                card: Some(LockedCard { name: "H200".to_owned(), driver: text("580"), capability: text("9.0") }),
                cards: ["H200", "H100"]
                    .map(|name| LockedCard { name: name.to_owned(), ..LockedCard::default() })
                    .to_vec(),
                cpu: Some(Cpu { model: "Abacus".to_owned(), count: 4 }),
                threads: Some(2),
                ranks: Some(1),
            },
            ..Lock::default()
        }
    }

    fn changed(change: impl Fn(&mut Lock)) -> Vec<(String, Effect)> {
        let mut other = lock();
        change(&mut other);
        differences(&lock(), &other).into_iter().map(|found| (found.what, found.effect)).collect()
    }

    #[test]
    fn each_difference_has_its_effect() {
        use Effect::{Forbids, None as Nothing, Rounding};
        type Change = fn(&mut Lock);
        let cases: [(Change, &str, Effect); 24] = [
            (|lock| lock.machine.ranks = Some(2), "ranks", Rounding),
            (|lock| lock.machine.cards.reverse(), "cards", Rounding),
            (|lock| lock.resolved = Some("x".into()), "settings", Forbids),
            (|lock| lock.seed = Some(2), "seed", Forbids),
            (|lock| lock.train[1].hash = "x".into(), "data.train", Forbids),
            (|lock| lock.train.swap(0, 1), "data.train", Forbids),
            (|lock| drop(lock.train.pop()), "data.train", Forbids),
            (|lock| lock.eval.clear(), "data.eval", Forbids),
            (|lock| lock.tokenizer = None, "tokenizer", Forbids),
            (|lock| lock.tokenizer_files = vec![file("/a/merges.txt", "9")], "tokenizer", Forbids),
            (|lock| lock.model[0].hash = "x".into(), "model", Forbids),
            (|lock| lock.hub[0].commit = "2".repeat(40), "o/n", Nothing),
            (|lock| lock.on.trainer = Some("x".into()), "trainer", Forbids),
            (|lock| lock.on.libraries = Some("x".into()), "libraries", Forbids),
            (|lock| lock.on.image = Some("x".into()), "program", Forbids),
            (|lock| lock.machine.libtorch = Some("2.12.0".into()), "libtorch", Forbids),
            (|lock| lock.machine.device = Some("cpu".into()), "device", Rounding),
            (|lock| lock.machine.card.as_mut().unwrap().driver = Some("590".into()), "driver", Rounding),
            (
                |lock| lock.machine.card.as_mut().unwrap().capability = Some("9.1".into()),
                "compute capability",
                Rounding,
            ),
            (|lock| lock.machine.cpu.as_mut().unwrap().count = 8, "cpu", Rounding),
            (|lock| lock.machine.threads = None, "threads", Rounding),
            (|lock| lock.pipe = "0.2.0".into(), "pipe", Nothing),
            (|lock| lock.commit.as_mut().unwrap().dirty = true, "commit", Nothing),
            (|lock| lock.on.engine_version = Some("1".into()), "engine", Nothing),
        ];
        for (change, what, effect) in cases {
            let found = changed(change);
            assert!(
                !found.is_empty() && found.iter().all(|one| *one == (what.to_owned(), effect)),
                "{what}: {found:?}"
            );
        }
    }

    #[test]
    fn what_lies_elsewhere_is_the_same() {
        assert_eq!(changed(|lock| lock.train[0].name = "/b/one".into()), []);
    }

    #[test]
    fn images_are_told_by_name_before_id() {
        let contained = |image: &str, id: &str| {
            let on = Program { image: Some(image.into()), image_id: Some(id.into()), ..Program::default() };
            Lock { on, ..lock() }
        };
        let found = |first: Lock, second: Lock| {
            let found = differences(&first, &second);
            found.into_iter().map(|one| (one.what, one.effect)).collect::<Vec<_>>()
        };
        assert_eq!(found(contained("a", "1"), contained("b", "2")), [("image".to_owned(), Effect::Forbids)]);
        assert_eq!(found(contained("a", "1"), contained("a", "2")), [("image id".to_owned(), Effect::Rounding)]);
    }

    #[test]
    fn an_older_lock_is_compared_as_far_as_it_goes() {
        let older = Lock { pipe: "0.1.0".into(), pipeline: "text".into(), on: lock().on, ..Lock::default() };
        assert_eq!(differences(&older, &lock()), []);
        assert_eq!(differences(&lock(), &older), []);
    }

    #[test]
    fn the_gravest_comes_first() {
        let found = changed(|lock| {
            lock.pipe = "0.2.0".into();
            lock.machine.threads = Some(9);
            lock.eval[0].hash = "x".into();
        });
        let effects: Vec<Effect> = found.into_iter().map(|one| one.1).collect();
        assert_eq!(effects, [Effect::Forbids, Effect::Rounding, Effect::None]);
    }
}
