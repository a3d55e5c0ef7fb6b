//! The real trainer on small data, one file for each subject; one program, so that all of them share the processors.

mod bag_of_words;
mod best;
mod bounds;
mod classification;
mod cuts;
mod deberta;
mod evaluation;
mod evaluation_details;
mod exports;
mod failures;
mod hybrid;
mod in_process;
mod lease;
mod memory;
mod mu_sota;
mod nodes;
mod not_finite;
mod pairs;
mod precision;
mod predict;
mod ranks;
mod resume;
mod split;
mod support;
