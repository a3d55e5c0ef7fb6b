//! The real trainer on small data, one file for each subject; one program, so that all of them share the processors.

mod best;
mod classification;
mod cuts;
mod deberta;
mod evaluation;
mod exports;
mod failures;
mod hybrid;
mod labels;
mod mu_sota;
mod nodes;
mod pictures;
mod predict;
mod ranks;
mod support;
mod tabular;
