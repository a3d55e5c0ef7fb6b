//! What a new pipeline says of each task.

use pipe_spec::pipeline::Task;

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

/// What its data must have.
pub fn wants(task: Task) -> &'static str {
    match task {
        Task::Seq2Seq => "two texts (source, target) or conversations (messages)",
        Task::Classification => "a text or two (text, text_pair) and a label",
        Task::Contrastive => "paths of pictures (image) and a text",
        Task::TimeSeries => "numbers, a label and perhaps a time, in .csv, .tsv or .parquet",
        Task::Language => "a text",
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
