//! A pipeline as a file with every default: the order of the sections, and which are left out.

use serde::{Serialize, Serializer};

use super::{
    Container, Data, EngineKind, Evaluate, Memory, Model, Notify, OnOom, Pipeline, Save, Track, Train, Training, Work,
};
use crate::text::Name;

#[derive(Serialize)]
struct Written<'a> {
    version: u32,
    name: &'a Name,
    #[serde(skip_serializing_if = "Option::is_none")]
    model: Option<&'a Model>,
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<&'a Data>,
    #[serde(skip_serializing_if = "Option::is_none")]
    train: Option<&'a Train>,
    #[serde(skip_serializing_if = "Option::is_none")]
    memory: Option<&'a Memory>,
    on_oom: &'a OnOom,
    #[serde(skip_serializing_if = "Option::is_none")]
    evaluate: Option<&'a Evaluate>,
    #[serde(skip_serializing_if = "Option::is_none")]
    save: Option<&'a Save>,
    container: &'a Container,
    #[serde(skip_serializing_if = "Option::is_none")]
    engine: Option<EngineKind>,
    #[serde(skip_serializing_if = "<[Notify]>::is_empty")]
    notify: &'a [Notify],
    track: &'a Track,
    #[serde(skip_serializing_if = "Option::is_none")]
    command: Option<&'a [String]>,
}

impl Serialize for Pipeline {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (training, command): (Option<&Training>, _) = match &self.work {
            Work::Training(training) => (Some(training), None),
            Work::Command(command) => (None, Some(command.as_slice())),
        };
        Written {
            version: self.version,
            name: &self.name,
            model: training.map(|training| &training.model),
            data: training.map(|training| &training.data),
            train: training.map(|training| &training.train),
            memory: training.map(|training| &training.memory),
            on_oom: &self.on_oom,
            evaluate: training.map(|training| &training.evaluate),
            save: training.map(|training| &training.save),
            container: &self.container,
            engine: self.engine,
            notify: &self.notify,
            track: &self.track,
            command,
        }
        .serialize(serializer)
    }
}
