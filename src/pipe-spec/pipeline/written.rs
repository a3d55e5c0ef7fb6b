//! A pipeline as a file with every default: the order of the sections, and which are left out.

use std::collections::BTreeMap;

use serde::{Serialize, Serializer};
use serde_json::{Map, Value};

use super::{
    Adapter, Allocator, Checkpoints, CommandLine, CommandTrain, Container, Data, Evaluate, Limit, Memory,
    MetricsFormat, Model, Notify, OnOom, Pipeline, Ranks, Save, Track, Train, VarValue, Work,
};
use crate::text::Name;

#[derive(Serialize)]
struct Written<'a> {
    version: u32,
    name: &'a Name,
    #[serde(skip_serializing_if = "Option::is_none")]
    model: Option<&'a Model>,
    #[serde(skip_serializing_if = "Option::is_none")]
    adapter: Option<&'a Adapter>,
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<&'a Data>,
    #[serde(skip_serializing_if = "Option::is_none")]
    train: Option<WrittenTrain<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    memory: Option<WrittenMemory<'a>>,
    on_oom: &'a OnOom,
    #[serde(skip_serializing_if = "Option::is_none")]
    evaluate: Option<&'a Evaluate>,
    #[serde(skip_serializing_if = "Option::is_none")]
    save: Option<&'a Save>,
    container: &'a Container,
    #[serde(skip_serializing_if = "Option::is_none")]
    engine: Option<&'a str>,
    #[serde(flatten)]
    sections: &'a Map<String, Value>,
    #[serde(skip_serializing_if = "<[Notify]>::is_empty")]
    notify: &'a [Notify],
    track: &'a Track,
    #[serde(skip_serializing_if = "Option::is_none")]
    command: Option<&'a CommandLine>,
    #[serde(skip_serializing_if = "Option::is_none")]
    vars: Option<&'a BTreeMap<String, VarValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    checkpoints: Option<&'a Checkpoints>,
    #[serde(skip_serializing_if = "Option::is_none")]
    metrics: Option<&'a MetricsFormat>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum WrittenMemory<'a> {
    Training(&'a Memory),
    Command {
        #[serde(skip_serializing_if = "Option::is_none")]
        limit: Option<Limit>,
        allocator: &'a Allocator,
    },
}

#[derive(Serialize)]
#[serde(untagged)]
enum WrittenTrain<'a> {
    Training(&'a Train),
    Command(&'a CommandTrain),
}

impl Serialize for Pipeline {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (training, command) = (self.training(), self.command());
        // One rank for each card is what there is with any number of cards.
        let ranks = |train: &Train| Some(train.ranks.count()).filter(|ranks| *ranks > 1);
        let is_default = |train: &&Train| ranks(train).is_some() && ranks(train) == self.container.gpus.count();
        let plain = training.map(|training| &training.train).filter(is_default);
        let plain = plain.map(|train| Train { ranks: Ranks::Auto, ..train.clone() });
        Written {
            version: self.version,
            name: &self.name,
            model: training.map(|training| &training.model),
            adapter: training.and_then(|training| training.adapter.as_ref()),
            data: training.map(|training| &training.data),
            train: Some(match &self.work {
                Work::Training(training) => WrittenTrain::Training(plain.as_ref().unwrap_or(&training.train)),
                Work::Command(command) => WrittenTrain::Command(&command.train),
            }),
            memory: Some(match &self.work {
                Work::Training(training) => WrittenMemory::Training(&training.memory),
                Work::Command(command) => {
                    WrittenMemory::Command { limit: command.memory.limit, allocator: &command.memory.allocator }
                }
            }),
            on_oom: &self.on_oom,
            evaluate: training.map(|training| &training.evaluate),
            save: training.map(|training| &training.save),
            container: &self.container,
            engine: self.engine.as_deref(),
            sections: &self.sections,
            notify: &self.notify,
            track: &self.track,
            command: command.map(|command| &command.line),
            vars: command.map(|command| &command.vars).filter(|vars| !vars.is_empty()),
            checkpoints: command.and_then(|command| command.checkpoints.as_ref()),
            metrics: command.map(|command| &command.metrics),
        }
        .serialize(serializer)
    }
}
