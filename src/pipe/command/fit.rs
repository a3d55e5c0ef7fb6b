//! `pipe fit`: the largest batch that fits, measured where the training would run.

use crate::error::Error;
use crate::plan::Job;

use super::run::Options;

pub fn run(options: Options) -> Result<(), Error> {
    super::run::run(Options { job: Job::Fit, ..options })
}
