//! Checkpoints: folders that are complete or absent, each file with its checksum. Saves, finds the newest that is whole, and removes old
//! ones.

mod manifest;

use std::path::{Path, PathBuf};
use std::{fs, io};

use manifest::Manifest;
use pipe_spec::RunFolder;
use pipe_spec::run::checkpoint_name;
use tch::{TchError, Tensor};

use crate::error::TrainerError;
use crate::storage::tensor_files::{self, Written};
use crate::storage::{self, StagedFolder, TensorFiles};

pub use manifest::{Identity, MetricRecords, SavedState};

const MODEL: &str = "model.safetensors";
const OPTIMIZER: &str = "optimizer.safetensors";
const STATE: &str = "state.json";

pub struct Store {
    folder: PathBuf,
    keep: usize,
}

/// A checkpoint that was found whole.
pub struct Checkpoint {
    pub state: SavedState,
    pub model: TensorFiles,
    pub optimizer: TensorFiles,
}

impl Store {
    /// Who `saves` removes incomplete folders of a killed trainer.
    pub fn open(run: &RunFolder, keep: u32, saves: bool) -> Result<Self, TrainerError> {
        let folder = run.checkpoints();
        let fail = |source| TrainerError::Io { path: folder.clone(), source };
        fs::create_dir_all(&folder).map_err(fail)?;
        for entry in fs::read_dir(&folder).map_err(fail)?.filter(|_| saves) {
            let entry = entry.map_err(fail)?;
            if storage::is_temporary(&entry.file_name().to_string_lossy()) {
                fs::remove_dir_all(entry.path()).map_err(fail)?;
            }
        }
        Ok(Self { folder, keep: keep as usize })
    }

    pub fn path(&self, step: u64) -> PathBuf {
        self.folder.join(checkpoint_name(step))
    }

    /// The newest checkpoint that is there.
    pub fn newest_path(&self) -> Option<PathBuf> {
        self.steps().last().map(|step| self.path(*step))
    }

    /// Steps of the checkpoints that are there, oldest first.
    fn steps(&self) -> Vec<u64> {
        let step =
            |entry: io::Result<fs::DirEntry>| entry.ok()?.file_name().to_str()?.strip_prefix("step-")?.parse().ok();
        let mut steps: Vec<u64> = fs::read_dir(&self.folder).into_iter().flatten().filter_map(step).collect();
        steps.sort_unstable();
        steps
    }

    /// The newest checkpoint that is whole; `warn` is called for damaged ones. A checkpoint of another training is an
    /// error, unless `on_oom.then` changed the settings.
    pub fn newest(
        &self,
        run: &Identity,
        maths_changed: bool,
        mut warn: impl FnMut(String),
    ) -> Result<Option<Checkpoint>, TrainerError> {
        for step in self.steps().into_iter().rev() {
            let path = self.path(step);
            match self.read(&path) {
                Ok(checkpoint) => {
                    return match checkpoint.state.identity.difference(run, maths_changed) {
                        Some(message) => Err(TrainerError::Checkpoint { path, message }),
                        None => Ok(Some(checkpoint)),
                    };
                }
                Err(damage) => {
                    warn(format!("the checkpoint {} is damaged ({damage}); going back to one before", path.display()));
                }
            }
        }
        Ok(None)
    }

    fn read(&self, path: &Path) -> Result<Checkpoint, String> {
        Manifest::verify(path, &[MODEL, OPTIMIZER, STATE])?;
        let text = fs::read(path.join(STATE)).map_err(|error| format!("{STATE}: {error}"))?;
        let state: SavedState = serde_json::from_slice(&text).map_err(|error| format!("{STATE}: {error}"))?;
        if state.version != SavedState::VERSION {
            return Err(format!("{STATE} has version {}", state.version));
        }
        let open = |name| TensorFiles::open_file(&path.join(name)).map_err(|error| error.to_string());
        Ok(Checkpoint { state, model: open(MODEL)?, optimizer: open(OPTIMIZER)? })
    }

    /// The weights in the checkpoint of `step`, where all of it is whole; otherwise what is damaged.
    pub fn model_file(&self, step: u64) -> Result<PathBuf, String> {
        let path = self.path(step);
        Manifest::verify(&path, &[MODEL, OPTIMIZER, STATE])?;
        Ok(path.join(MODEL))
    }

    /// Saves, then removes what is too old and not the best. Returns the bytes written.
    pub fn save(
        &self,
        state: &SavedState,
        model: &[(String, &Tensor)],
        optimizer: &[(String, &Tensor)],
    ) -> Result<u64, TrainerError> {
        let path = self.path(state.step);
        let bytes = self.write(&path, state, model, optimizer).map_err(|error| self.save_error(&path, error))?;
        self.prune(state.step, state.metrics.best_step());
        Ok(bytes)
    }

    fn write(
        &self,
        path: &Path,
        state: &SavedState,
        model: &[(String, &Tensor)],
        optimizer: &[(String, &Tensor)],
    ) -> io::Result<u64> {
        let staged = StagedFolder::create(path)?;
        let mut manifest = Manifest::default();
        manifest.add(MODEL, tensor_files::write(&staged.path(MODEL), model)?);
        manifest.add(OPTIMIZER, tensor_files::write(&staged.path(OPTIMIZER), optimizer)?);
        let json = serde_json::to_vec_pretty(state)?;
        storage::write_synced(&staged.path(STATE), &json)?;
        manifest.add(STATE, Written::of(&json));
        storage::write_synced(&staged.path(manifest::NAME), &serde_json::to_vec_pretty(&manifest)?)?;
        staged.commit()?;
        Ok(manifest.bytes())
    }

    fn save_error(&self, path: &Path, error: io::Error) -> TrainerError {
        match error.downcast::<TchError>() {
            Ok(torch) => torch.into(),
            Err(source) => TrainerError::Save { path: path.to_owned(), source, last: self.newest_path() },
        }
    }

    /// An old checkpoint that cannot be removed does not stop the training.
    fn prune(&self, newest: u64, best: Option<u64>) {
        let older: Vec<u64> = self.steps().into_iter().filter(|step| *step <= newest).collect();
        for step in older.iter().rev().skip(self.keep).filter(|step| Some(**step) != best) {
            if let Err(error) = fs::remove_dir_all(self.path(*step)) {
                tracing::warn!("cannot remove the checkpoint {}: {error}", self.path(*step).display());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use pipe_spec::pipeline::{ClassWeights, OptimizerKind, Precision};

    use super::*;

    fn identity() -> Identity {
        let (precision, optimizer) = (Precision::Fp32, OptimizerKind::Adamw);
        let class_weights = ClassWeights::None;
        Identity {
            seed: 1,
            effective_batch: 8,
            shuffle: true,
            precision,
            optimizer,
            rows: 100,
            class_weights,
            preference: None,
        }
    }

    fn state(step: u64) -> SavedState {
        let (version, identity) = (SavedState::VERSION, identity());
        SavedState {
            version,
            step,
            evaluated: 0,
            last_eval: None,
            samples: step * 8,
            total_steps: 9,
            batch: 4,
            loss_scale: None,
            metrics: MetricRecords::default(),
            identity,
        }
    }

    fn store(name: &str) -> (Store, PathBuf) {
        let root = std::env::temp_dir().join(format!("pipe-store-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        (Store::open(&RunFolder::new(&root), 2, true).unwrap(), root)
    }

    fn save(store: &Store, step: u64) {
        let (weight, moment) = (Tensor::from_slice(&[step as f32, 2.5]), Tensor::from_slice(&[0.5f32]));
        store.save(&state(step), &[("w".to_owned(), &weight)], &[("exp_avg.w".to_owned(), &moment)]).unwrap();
    }

    #[test]
    fn a_checkpoint_reads_back_and_old_ones_go() {
        let (store, root) = store("round");
        assert!(store.newest(&identity(), false, |_| ()).unwrap().is_none());
        (1..=3).for_each(|step| save(&store, step));
        assert_eq!(store.steps(), [2, 3]);
        let found = store.newest(&identity(), false, |message| panic!("{message}")).unwrap().unwrap();
        assert_eq!(found.state, state(3));
        assert_eq!(Vec::<f32>::try_from(found.model.read("w").unwrap()).unwrap(), [3.0, 2.5]);
        assert_eq!(Vec::<f32>::try_from(found.optimizer.read("exp_avg.w").unwrap()).unwrap(), [0.5]);
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn the_best_checkpoint_is_never_too_old() {
        let (store, root) = store("best");
        for step in 1..=5 {
            let best = r#"{"save_best":{"metric":"eval.loss","best":{"step":1,"value":0.5},"without_improvement":1}}"#;
            let state = SavedState { metrics: serde_json::from_str(best).unwrap(), ..state(step) };
            store.save(&state, &[], &[]).unwrap();
        }
        assert_eq!(store.steps(), [1, 4, 5]);
        assert_eq!(store.model_file(1).unwrap(), store.path(1).join(MODEL));
        fs::write(store.path(1).join(STATE), "{}").unwrap();
        assert!(store.model_file(1).unwrap_err().starts_with("state.json has 2 bytes instead of "));
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn a_damaged_checkpoint_is_passed_over_with_a_warning() {
        let (store, root) = store("damage");
        (1..=2).for_each(|step| save(&store, step));
        let file = store.path(2).join(MODEL);
        let mut bytes = fs::read(&file).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        fs::write(&file, bytes).unwrap();
        let mut warnings = Vec::new();
        let found = store.newest(&identity(), false, |message| warnings.push(message)).unwrap().unwrap();
        assert_eq!(found.state.step, 1);
        assert!(warnings[0].contains("model.safetensors has another checksum"), "{warnings:?}");
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn another_training_is_refused_and_half_written_folders_go() {
        let (store, root) = store("refuse");
        save(&store, 1);
        fs::create_dir(root.join("checkpoints/.step-00000002.tmp")).unwrap();
        let other = Identity { effective_batch: 16, ..identity() };
        let error = Store::open(&RunFolder::new(&root), 2, true).unwrap().newest(&other, false, |_| ()).err().unwrap();
        assert!(error.to_string().ends_with("it was made with effective batch 8, this run has 16"), "{error}");
        assert_eq!(fs::read_dir(root.join("checkpoints")).unwrap().count(), 1);
        fs::remove_dir_all(root).unwrap();
    }
}
