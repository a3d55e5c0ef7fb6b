//! `lock.json`: the inputs and the environment of a run, to compare them with those of another.

use serde::{Deserialize, Serialize};

use crate::event::Started;

/// Unknown values are absent: a lock of an earlier version has less in it and can be read all the same. Hashes are
/// BLAKE3 of the content. Values of variables are never written down, only their names.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Lock {
    /// The version of `pipe`.
    pub pipe: String,
    /// Hash of the pipeline file, byte for byte.
    pub pipeline: String,
    /// Hash of the same with every default, without its name.
    pub resolved: Option<String>,
    /// The same before the last `pipe resume --set`, which may not have come to write the file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resolved_before: Option<String>,
    /// The variables that the pipeline names.
    pub variables: Vec<String>,
    pub seed: Option<u64>,
    pub on: Program,
    /// The pictures that a file names are not hashed themselves.
    pub train: Vec<LockedFile>,
    pub eval: Vec<LockedFile>,
    /// The file that names it.
    pub tokenizer: Option<LockedFile>,
    /// The others that define it, where it is no tokenizer.json.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tokenizer_files: Vec<LockedFile>,
    /// Files of `model.from` that the trainer reads.
    pub model: Vec<LockedFile>,
    /// The repositories of the Hugging Face hub that any of these files came from.
    pub hub: Vec<LockedRepository>,
    pub commit: Option<Commit>,
    #[serde(flatten)]
    pub machine: LockedMachine,
}

/// The machine that a run computed on. Its keys stand beside those of the lock.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LockedMachine {
    /// The version of libtorch, as the trainer reports it.
    pub libtorch: Option<String>,
    /// `cpu`, or the name of the card.
    pub device: Option<String>,
    pub card: Option<LockedCard>,
    /// All of several cards.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub cards: Vec<LockedCard>,
    pub cpu: Option<Cpu>,
    /// Threads for computation.
    pub threads: Option<u32>,
    /// Trainer processes that share a step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ranks: Option<u32>,
}

/// The program that computes: an image, or without a container the trainer and the libraries that it loads.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Program {
    pub engine: String,
    pub engine_version: Option<String>,
    /// Named by its content, or pinned by a digest.
    pub image: Option<String>,
    pub image_id: Option<String>,
    /// Hash of the trainer, where there is no image.
    pub trainer: Option<String>,
    /// Hash of all that the trainer loads, libtorch and the system's libraries.
    pub libraries: Option<String>,
}

impl Program {
    /// The key in the ledger: the image, or without one the engine and the hash of the trainer.
    pub fn identity(&self) -> String {
        match (&self.image, &self.trainer) {
            (Some(image), _) => image.clone(),
            (None, Some(trainer)) => format!("{}:{}", self.engine, &trainer[..trainer.len().min(16)]),
            (None, None) => self.engine.clone(),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockedFile {
    /// Its path, with variables in place of their values.
    pub name: String,
    pub hash: String,
    /// Bytes.
    pub size: u64,
}

/// A repository of the hub, and the commit that its revision named when the run began.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockedRepository {
    /// `owner/name` of a model, `datasets/owner/name` of a data set.
    pub name: String,
    /// The branch, tag or commit that the pipeline names.
    pub revision: String,
    pub commit: String,
}

/// The git commit of the work tree that the run was started in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Commit {
    pub id: String,
    /// Whether files that git knows were changed since.
    pub dirty: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LockedCard {
    pub name: String,
    pub driver: Option<String>,
    /// The compute capability, such as 12.0.
    pub capability: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cpu {
    pub model: String,
    /// Those that this process may use.
    pub count: u32,
}

impl Lock {
    /// Takes in what only the trainer knows. What it says of the card counts: it is the one that computes there.
    pub fn record_started(&mut self, started: &Started) {
        let machine = &mut self.machine;
        machine.libtorch = Some(started.libtorch.clone());
        machine.device = Some(started.device.clone());
        if started.device == "cpu" {
            machine.card = None;
            machine.cards.clear();
            return;
        }
        let card = machine.card.get_or_insert_default();
        if card.name != started.device {
            *card = LockedCard { name: started.device.clone(), ..LockedCard::default() };
        }
        if started.driver.is_some() {
            card.driver = started.driver.clone();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn started(device: &str, driver: Option<&str>) -> Started {
        Started {
            device: device.to_owned(),
            driver: driver.map(str::to_owned),
            libtorch: "2.11.0".to_owned(),
            ..Started::default()
        }
    }

    #[test]
    fn an_older_lock_can_be_read() {
        let text = r#"{"pipe": "0.1.0", "pipeline": "ab", "on": {"engine": "docker", "image": "x", "image_id": null}}"#;
        let lock: Lock = serde_json::from_str(text).unwrap();
        assert_eq!((lock.on.engine.as_str(), lock.on.image.as_deref()), ("docker", Some("x")));
        assert_eq!((lock.resolved, lock.train.len(), lock.machine.cpu), (None, 0, None));
    }

    #[test]
    fn a_lock_reads_back() {
        let mut lock = Lock { pipe: "0.1.0".to_owned(), seed: Some(42), ..Lock::default() };
        lock.train.push(LockedFile { name: "a".to_owned(), hash: "b".to_owned(), size: 3 });
        lock.record_started(&started("H200", Some("580")));
        let text = serde_json::to_string(&lock).unwrap();
        assert_eq!(serde_json::from_str::<Lock>(&text).unwrap(), lock);
    }

    #[test]
    fn the_trainer_knows_best() {
        let known = LockedCard { name: "H200".into(), driver: Some("1".into()), capability: Some("9.0".into()) };
        let mut lock = Lock::default();
        lock.machine.card = Some(known.clone());
        lock.record_started(&started("H200", None));
        assert_eq!((lock.machine.card.as_ref(), lock.machine.libtorch.as_deref()), (Some(&known), Some("2.11.0")));
        lock.record_started(&started("RTX 5090", Some("2")));
        let other = LockedCard { name: "RTX 5090".into(), driver: Some("2".into()), capability: None };
        assert_eq!((lock.machine.card.as_ref(), lock.machine.device.as_deref()), (Some(&other), Some("RTX 5090")));
        lock.record_started(&started("cpu", None));
        assert_eq!((lock.machine.card, lock.machine.device.as_deref()), (None, Some("cpu")));
    }
}
