//! The real trainer on small data, one file for each subject; one program, so that all of them share the processors.

mod bag_of_words;
mod best;
mod classification;
mod cuts;
mod deberta;
mod evaluation;
mod exports;
mod failures;
mod hybrid;
mod labels;
mod memory;
mod mu_sota;
mod nodes;
mod pairs;
mod picture_classes;
mod predict;
mod ranks;
mod resume;
mod support;
mod tabular;
