//! The tokenizer of a model from scratch for which none is named: trained once by the trainer, on the texts of the training
//! data, and kept in the cache by what it is made of.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use pipe_spec::TrainerExit;
use pipe_spec::model_folder::TOKENIZER_JSON;
use pipe_spec::trainer::{LEASE_ON_STDIN, LEASE_VARIABLE, error_message};

use super::entry::{Cache, EntryGuard, KEY_LENGTH, Manifest};
use crate::error::Error;
use crate::image;
use crate::input::{Input, TOKENIZER_FOLDER, TokenizerTraining};
use crate::system::digests::Digests;
use crate::system::interrupt::Watch;

/// Raised whenever another tokenizer comes out of the same texts.
const VERSION: u32 = 2;
/// Between two looks at the trainer.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// A tokenizer that is to be there, with what it is known by.
pub struct TrainedTokenizer<'a> {
    training: &'a TokenizerTraining,
    data: &'a [Input],
    pub key: String,
}

impl<'a> TrainedTokenizer<'a> {
    pub fn new(training: &'a TokenizerTraining, data: &'a [Input], digests: &mut Digests) -> Result<Self, Error> {
        let contents: Vec<String> = data.iter().map(|input| digests.hash(&input.host)).collect::<Result<_, _>>()?;
        let key = blake3::hash(format!("tokenizer {VERSION}\n{training:?}\n{contents:?}").as_bytes());
        Ok(Self { training, data, key: key.to_hex()[..KEY_LENGTH].to_owned() })
    }

    /// Its entry of the cache, trained if it is not there.
    pub fn get(&self, cache: &Cache, watch: &Watch, wait: impl Fn()) -> Result<(Input, EntryGuard), Error> {
        let held = cache.get(&self.key, watch, wait, |folder| self.train(folder, watch))?;
        let host = held.folder.join(TOKENIZER_JSON);
        let mounted = Path::new(TOKENIZER_FOLDER).join(TOKENIZER_JSON);
        Ok((Input { written: host.clone(), host, mounted, mount: None, prepared: None }, held))
    }

    fn train(&self, folder: &Path, watch: &Watch) -> Result<Manifest, Error> {
        let trainer = image::find_trainer()?;
        let file = folder.join(TOKENIZER_JSON);
        let cannot = |source| Error::Spawn { program: trainer.clone(), source };
        let fail = |source| Error::DataCache { path: folder.to_owned(), source };
        let said_file = folder.join("said.txt");
        let said = std::fs::File::create(&said_file).map_err(fail)?;
        let mut command = self.command(&trainer, &file);
        // It ends with this process.
        command.env(LEASE_VARIABLE, LEASE_ON_STDIN).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(said);
        let mut child = Killed(command.spawn().map_err(cannot)?);
        let status = loop {
            watch.check()?;
            match child.0.try_wait().map_err(cannot)? {
                Some(status) => break status,
                None => std::thread::sleep(POLL_INTERVAL),
            }
        };
        let said = std::fs::read(&said_file).map_err(fail)?;
        std::fs::remove_file(&said_file).map_err(fail)?;
        if !status.success() {
            let said = String::from_utf8_lossy(&said);
            let message = error_message(&said).to_owned();
            let is_input =
                status.code().and_then(|code| TrainerExit::from_code(code.into())) == Some(TrainerExit::BadInput);
            return Err(Error::NoTokenizer { message, is_input });
        }
        let size = std::fs::metadata(&file).map_err(fail)?.len();
        let source = self.data.iter().map(|input| input.written.display().to_string()).collect::<Vec<_>>().join(", ");
        Ok(Manifest { source, file: TOKENIZER_JSON.to_owned(), size, bytes: size })
    }

    fn command(&self, trainer: &Path, file: &Path) -> Command {
        let TokenizerTraining { arch, vocabulary, fields } = self.training;
        let mut command = Command::new(trainer);
        command.args(["tokenizer", "train", "--arch", arch.name(), "--out"]).arg(file);
        for input in self.data {
            command.arg("--data").arg(readable(input));
        }
        for (role, column) in fields {
            command.args(["--field", &format!("{role}={column}")]);
        }
        if let Some(size) = vocabulary {
            command.args(["--vocab-size", &size.to_string()]);
        }
        command
    }
}

/// Where the trainer reads it on this machine.
fn readable(input: &Input) -> PathBuf {
    match &input.prepared {
        Some(prepared) => prepared.folder.join(&prepared.file),
        None => input.host.clone(),
    }
}

/// A process that does not outlive this.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        if matches!(self.0.try_wait(), Ok(None)) {
            self.0.kill().and_then(|()| self.0.wait()).ok();
        }
    }
}
