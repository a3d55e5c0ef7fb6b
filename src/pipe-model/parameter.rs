//! The parameters of a model: name, shape and initialisation, without tensors.

/// One parameter.
#[derive(Clone, Debug, PartialEq)]
pub struct Parameter {
    pub name: String,
    pub shape: Vec<i64>,
    pub init: Init,
    /// Other names that checkpoints may have for it.
    pub aliases: Vec<String>,
    /// Whether a checkpoint may lack it. The model then initialises it, or does without it.
    pub may_be_missing: bool,
    /// Whether it is trained; state such as the running mean of a batch norm is not.
    pub trained: bool,
    /// Whether it is a weight that stays as it is, because an adapter is trained in its place.
    pub frozen: bool,
}

impl Parameter {
    pub fn new(name: impl Into<String>, shape: &[i64], init: Init) -> Self {
        let (name, shape) = (name.into(), shape.to_vec());
        Self { name, shape, init, aliases: Vec::new(), may_be_missing: false, trained: true, frozen: false }
    }

    /// How many numbers it has.
    pub fn count(&self) -> u64 {
        self.shape.iter().product::<i64>() as u64
    }
}

/// The parameters of a model as they are listed, in order.
#[derive(Default)]
pub(crate) struct Listed(pub Vec<Parameter>);

impl Listed {
    pub fn push(&mut self, name: &str, shape: &[i64], init: Init) {
        self.0.push(Parameter::new(name, shape, init));
    }

    /// A weight that begins as `init`, and a bias of 0 with all dimensions of the weight but the last.
    pub fn linear(&mut self, path: &str, shape: &[i64], init: Init) {
        self.push(&format!("{path}.weight"), shape, init);
        self.push(&format!("{path}.bias"), &shape[..shape.len() - 1], Init::Constant(0.0));
    }

    /// Weight and bias as torch begins a linear layer or an LSTM of `inputs` inputs.
    pub fn torch_linear(&mut self, path: &str, outputs: i64, inputs: i64) {
        self.uniform(&format!("{path}.weight"), &[outputs, inputs], inputs);
        self.uniform(&format!("{path}.bias"), &[outputs], inputs);
    }

    /// Evenly up to inputs^-0.5.
    pub fn uniform(&mut self, name: &str, shape: &[i64], inputs: i64) {
        self.push(name, shape, Init::Uniform { bound: (inputs as f64).powf(-0.5) });
    }

    /// A norm with the mean and variance that it remembers, and how many batches it has seen.
    pub fn batch_norm(&mut self, path: &str, channels: i64) {
        self.norm(path, channels);
        let state = [
            ("running_mean", vec![channels], Init::Constant(0.0)),
            ("running_var", vec![channels], Init::Constant(1.0)),
            ("num_batches_tracked", Vec::new(), Init::Count),
        ];
        for (name, shape, init) in state {
            self.0.push(Parameter { trained: false, ..Parameter::new(format!("{path}.{name}"), &shape, init) });
        }
    }

    /// Counts have 8 bytes each: they come first, so that they begin at whole 8 bytes of a file.
    pub fn counts_first(mut self) -> Vec<Parameter> {
        self.0.sort_by_key(|parameter| parameter.init != Init::Count);
        self.0
    }

    /// A norm with weight and bias.
    pub fn norm(&mut self, path: &str, width: i64) {
        self.push(&format!("{path}.weight"), &[width], Init::Constant(1.0));
        self.push(&format!("{path}.bias"), &[width], Init::Constant(0.0));
    }
}

/// How a parameter is initialised.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Init {
    Constant(f64),
    /// Normal around 0.
    Normal {
        std: f64,
    },
    /// Evenly between -bound and bound.
    Uniform {
        bound: f64,
    },
    /// Counts from 0; a whole number, whatever the precision.
    Count,
}
