//! `pipe resume`: continues a run from its last checkpoint, here or from the copy in a bucket.

use pipe_spec::Status;
use pipe_spec::bucket::BucketAddress;
use pipe_spec::pipeline::WorkKind;

use super::{print_detached, print_found, runtime};
use crate::bucket::restore::restore;
use crate::error::Error;
use crate::execute::{children, copy_finished, resume, supervised};
use crate::input::load;
use crate::report::compare::{changeable_settings, may_change};
use crate::report::{Output, Reporter, print};
use crate::run;
use crate::system::interrupt::Interrupts;

pub struct ResumeOptions {
    pub run: String,
    pub set: Vec<String>,
    pub detach: bool,
    pub output: Output,
}

/// The settings that may change when a study is resumed.
const OF_STUDIES: [&str; 1] = ["budget"];

pub fn run(options: &ResumeOptions) -> Result<(), Error> {
    let restored = match BucketAddress::is_meant(&options.run) {
        true => {
            let progress = Reporter::new(options.output).fetch_progress();
            Some(restore(&options.run, &run::runs_folder(), &load::variables(), &progress)?)
        }
        false => None,
    };
    let wanted = restored.as_ref().unwrap_or(&options.run);
    let found = match wanted.as_str() {
        run::LATEST => run::latest(run::Listed::is_own)?
            .ok_or_else(|| Error::NoRun { wanted: wanted.to_owned(), runs: run::runs_folder() })?,
        _ => run::find(wanted)?,
    };
    // Root may write to it, and would execute what another user has written.
    if let Some(user) = found.other_user() {
        return Err(Error::NotYours { id: found.state.id, user });
    }
    let is_study = found.state.work() == WorkKind::Study;
    // A study that has spent its budget may be given more.
    if found.state.status == Status::Finished && (!is_study || options.set.is_empty()) {
        print(&format!("run {} has finished: {}", found.state.id, found.folder));
        load::enter_folder(&found.state.cwd)?;
        return runtime()?.block_on(async {
            let mut interrupts = Interrupts::listen()?;
            copy_finished(&found, &mut Reporter::new(options.output), &mut interrupts).await
        });
    }
    options
        .set
        .iter()
        .try_for_each(|set| is_changeable(set, &if is_study { OF_STUDIES.to_vec() } else { changeable_settings() }))?;
    if options.detach {
        let is_supervised = supervised::begin_detached(&found)?;
        children::start_detached(&found.folder(), &options.set)?;
        if is_supervised {
            let reporter = Reporter::new(options.output);
            runtime()?.block_on(supervised::handed_over(&found.folder(), &reporter))?;
        }
        print_detached(&found.state.id, &found.folder, options.output);
        return Ok(());
    }
    supervised::enter_folder(&found.state)?;
    runtime()?.block_on(async {
        let mut interrupts = Interrupts::listen()?;
        let mut reporter = Reporter::new(options.output);
        let batch = resume(&found, &options.set, &mut reporter, &mut interrupts).await?;
        print_found(batch.as_ref(), options.output.is_json());
        Ok(())
    })
}

fn is_changeable(set: &str, allowed: &[&str]) -> Result<(), Error> {
    let key = set.split('=').next().unwrap_or_default().trim();
    match may_change(key, allowed) {
        true => Ok(()),
        false => Err(Error::NotChangeable { key: key.to_owned(), allowed: allowed.join(", ") }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_that_change_the_result_are_refused() {
        for set in [
            "on_oom.retries=9",
            "container.memory=8g",
            "memory.limit=0.5",
            "evaluate.batch=2",
            "track.tensorboard=true",
            "container.gpus=2",
            "train.ranks=4",
            "train.shard=optimizer",
            "checkpoints.pattern=ckpt-*.pt",
        ] {
            assert!(is_changeable(set, &changeable_settings()).is_ok(), "{set}");
        }
        for set in
            ["train.seed=1", "train.batch=4", "memoryx=1", "container.image=x", "data.train=x", "evaluate.every=1", ""]
        {
            assert!(is_changeable(set, &changeable_settings()).is_err(), "{set}");
        }
    }
}
