//! HybridCNNLSTM: classes of windows of a time series, by convolutions, an LSTM and attention.

mod layers;

use std::sync::Arc;

use layers::{Attention, Head, Lstm, Stage};
use pipe_model::hybrid_cnn_lstm::{HybridConfig, NormKind, parameters};
use serde_json::{Map, Value};
use tch::{Kind, Tensor};

use super::batch_norm::DEPENDS_ON_BATCH;
use super::classification;
use super::interface::Model;
use super::pass::{Mode, Pass};
use super::setup::{Setup, Start};
use super::weights::Weights;
use crate::data::Part;
use crate::error::TrainerError;
use crate::ranks::SharedSum;

pub struct HybridCnnLstm {
    config: HybridConfig,
    weights: Weights,
    dropout: f64,
    setup: Setup,
    stages: Vec<Stage>,
    lstm: Arc<Lstm>,
    attention: Arc<Attention>,
    head: Head,
}

impl HybridCnnLstm {
    pub fn build(config: HybridConfig, start: &Start<'_>, setup: &Setup) -> Result<Self, TrainerError> {
        let weights = Weights::start(&parameters(&config), start, setup)?;
        Ok(Self {
            dropout: setup.dropout.unwrap_or(config.dropout),
            setup: *setup,
            stages: (0..config.conv_channels.len()).map(|index| Stage::new(&config, &weights, index)).collect(),
            lstm: Arc::new(Lstm::new(&config, &weights)),
            attention: Arc::new(Attention::new(&config, &weights)),
            head: Head::new(&weights),
            config,
            weights,
        })
    }

    /// [batch, time, features]
    fn input<'a>(&self, part: &'a Part) -> Result<&'a Tensor, TrainerError> {
        let input = part.get("x")?;
        let wanted = self.config.input_features;
        match input.size().as_slice() {
            [_, _, features] if *features == wanted => Ok(input),
            other => {
                let message = format!("found {wanted}; the data is of the shape {other:?}: samples, time, features");
                Err(TrainerError::config("input_features", message))
            }
        }
    }
}

impl Model for HybridCnnLstm {
    fn weights(&self) -> &Weights {
        &self.weights
    }

    /// [batch, classes]
    fn logits(&self, part: &Part, mode: Mode) -> Result<Tensor, TrainerError> {
        let pass = Pass::new(mode, self.dropout, &self.setup);
        let training = matches!(mode, Mode::Train(_));
        let mut hidden = self.input(part)?.f_transpose(1, 2)?;
        if pass.checkpointing && !matches!(self.stages.first(), Some(Stage::Batch(..))) {
            // The input of a recomputed block must require a gradient; the data does not by itself.
            hidden = hidden.f_detach()?.f_set_requires_grad(true)?;
        }
        for (number, stage) in self.stages.iter().enumerate() {
            hidden = stage.forward(&hidden, number as u64, training, pass)?;
        }
        let next = self.stages.len() as u64;
        let hidden = pass.block(&self.lstm, next, &[&hidden.f_transpose(1, 2)?])?;
        let hidden = pass.block(&self.attention, next + 1, &[&hidden])?;
        let pooled = hidden.f_mean_dim(1, false, Kind::Float)?;
        self.head.forward(&pooled, pass.for_block(next + 2))
    }

    fn loss_sum(&self, part: &Part, mode: Mode) -> Result<Tensor, TrainerError> {
        classification::part_loss_sum(&self.logits(part, mode)?, part)
    }

    fn config(&self) -> Map<String, Value> {
        self.config.export()
    }

    fn depends_on_batch(&self) -> Option<&'static str> {
        (self.config.norm == NormKind::Batch).then_some(DEPENDS_ON_BATCH)
    }

    fn share_statistics(&self, sum: &'static SharedSum) {
        self.stages.iter().for_each(|stage| stage.share_statistics(sum));
    }

    fn step_ended(&self, done: bool) -> Result<(), TrainerError> {
        self.stages.iter().try_for_each(|stage| stage.step_ended(done))
    }
}
