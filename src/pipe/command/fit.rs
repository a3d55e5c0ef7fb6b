//! `pipe fit`: the largest batch that fits, measured where the training would run.

use pipe_spec::Job;

use crate::error::Error;
use crate::run::Choices;

use super::run::Options;

pub fn fit(options: Options) -> Result<(), Error> {
    let choices = Choices { job: Job::Fit, ..options.choices };
    super::run::run(Options { choices, ..options })
}
