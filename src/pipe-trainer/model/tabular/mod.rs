//! A table: embeddings of categories beside standardised numbers, residual blocks with layer norm, and a head that predicts classes or
//! a number.

use pipe_model::tabular::{TabularConfig, parameters};
use pipe_model::{Activation, LabelUnit};
use serde_json::{Map, Value};
use tch::{Device, Kind, Tensor};

use super::classification;
use super::interface::Model;
use super::layers::{FeedForward, LayerNorm, Linear};
use super::pass::{Mode, Pass, Setup, Start};
use super::weights::{SharedTensor, Weights};
use crate::data::Part;
use crate::error::TrainerError;

/// The epsilon of torch's norms.
const EPSILON: f64 = 1e-5;

pub struct Tabular {
    config: TabularConfig,
    weights: Weights,
    dropout: f64,
    setup: Setup,
    /// How many of the inputs are numbers; the others are categories.
    numbers: i64,
    embedding: Option<Embedding>,
    input: Linear,
    blocks: Vec<(LayerNorm, FeedForward)>,
    norm: LayerNorm,
    head: Linear,
}

/// One table for the categories of all columns.
struct Embedding {
    table: SharedTensor,
    /// The row of each column's first category.
    offsets: Tensor,
}

impl Embedding {
    fn new(weights: &Weights, categories: &[i64], device: Device) -> Result<Option<Self>, TrainerError> {
        if categories.is_empty() {
            return Ok(None);
        }
        let starts = categories.iter().scan(0, |next, count| Some(std::mem::replace(next, *next + count)));
        let offsets = Tensor::f_from_slice(&starts.collect::<Vec<i64>>())?.f_to_device(device)?;
        Ok(Some(Self { table: weights.get("embedding.weight"), offsets }))
    }

    /// [batch, columns] to [batch, columns * embedding_size]
    fn forward(&self, categories: &Tensor) -> Result<Tensor, TrainerError> {
        let rows = categories.f_to_kind(Kind::Int64)?.f_add(&self.offsets)?;
        Ok(Tensor::f_embedding(&self.table, &rows, -1, false, false)?.f_flatten(1, 2)?)
    }
}

impl Tabular {
    pub fn build(config: TabularConfig, start: &Start<'_>, setup: &Setup) -> Result<Self, TrainerError> {
        let Some(columns) = &config.columns else {
            return Err(TrainerError::config("features", "missing: the data decides them".to_owned()));
        };
        let weights = Weights::start(&parameters(&config), start, setup)?;
        let block = |layer: i64| {
            let path = |name: &str| format!("layers.{layer}.{name}");
            let (first, second) = (Linear::new(&weights, &path("up")), Linear::new(&weights, &path("down")));
            let inner = FeedForward { first, gate: None, second, activation: Activation::Relu, drops: true };
            (LayerNorm::new(&weights, &path("norm"), EPSILON), inner)
        };
        Ok(Self {
            dropout: setup.dropout.unwrap_or(config.dropout),
            setup: *setup,
            numbers: columns.numbers() as i64,
            embedding: Embedding::new(&weights, &columns.categories(), setup.device)?,
            input: Linear::new(&weights, "input"),
            blocks: (0..config.num_layers).map(block).collect(),
            norm: LayerNorm::new(&weights, "norm", EPSILON),
            head: Linear::new(&weights, "head"),
            config,
            weights,
        })
    }

    /// [batch, inputs]: the numbers of each row, and the embeddings of its categories.
    fn inputs(&self, part: &Part) -> Result<Tensor, TrainerError> {
        let all = part.get("x")?;
        let numbers = all.f_narrow(1, 0, self.numbers)?;
        let Some(embedding) = &self.embedding else { return Ok(numbers) };
        let categories = all.f_narrow(1, self.numbers, all.size2()?.1 - self.numbers)?;
        let embedded = embedding.forward(&categories)?;
        Ok(Tensor::f_cat(&[numbers.f_to_kind(embedded.kind())?, embedded], 1)?)
    }
}

impl Model for Tabular {
    fn weights(&self) -> &Weights {
        &self.weights
    }

    /// [batch, labels]
    fn logits(&self, part: &Part, mode: Mode) -> Result<Tensor, TrainerError> {
        let pass = Pass::new(mode, self.dropout, &self.setup);
        let mut hidden = self.input.forward(&self.inputs(part)?, pass)?;
        for (number, (norm, inner)) in (0..).zip(&self.blocks) {
            let pass = pass.for_block(number);
            let changed = inner.forward(&norm.forward(&hidden)?, pass)?;
            hidden = pass.drop_add(&changed, &hidden)?;
        }
        self.head.forward(&self.norm.forward(&hidden)?.f_relu()?, pass)
    }

    fn loss_sum(&self, part: &Part, mode: Mode) -> Result<Tensor, TrainerError> {
        let labels = classification::standardised(part.get("labels")?, self.label_unit())?;
        classification::part_loss_sum(&self.logits(part, mode)?, &part.shallow_clone().with("labels", labels))
    }

    fn config(&self) -> Map<String, Value> {
        self.config.export()
    }

    fn label_unit(&self) -> LabelUnit {
        self.config.columns.as_ref().map_or_else(LabelUnit::default, |columns| columns.unit)
    }
}
