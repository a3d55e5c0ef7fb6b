//! What a new pipeline says of each architecture and each task.

pub use pipe_model::Starter as Defaults;
use pipe_model::StarterSizes;
use pipe_spec::pipeline::{Arch, Task};

/// The settings of a training that was not tuned yet.
pub fn defaults(arch: Arch) -> Defaults {
    pipe_model::starter(arch)
}

/// The config of a model of a usual size, as lines of YAML. `vocabulary` is that of the tokenizer.
pub fn config(arch: Arch, vocabulary: u64, features: usize, classes: usize) -> Vec<String> {
    (defaults(arch).config)(&StarterSizes { vocabulary, features, classes })
}

/// What a task is, for the list of choices.
pub fn describe(task: Task) -> &'static str {
    match task {
        Task::Seq2Seq => "a text from a text",
        Task::Classification => "a class or a number for a text or two",
        Task::Contrastive => "which picture belongs to which text",
        Task::TimeSeries => "a class for a window of a time series",
        Task::Language => "the next token of a text",
    }
}

/// Where the data of a task usually lies.
pub fn data(task: Task) -> &'static str {
    match task {
        Task::Seq2Seq | Task::Classification | Task::Contrastive => "data/train.jsonl",
        Task::TimeSeries => "data/train.csv",
        Task::Language => "data/train.txt",
    }
}
