//! The functions between two layers.

use pipe_model::Activation;
use tch::Tensor;

use crate::error::TrainerError;

pub fn activate(function: Activation, input: &Tensor) -> Result<Tensor, TrainerError> {
    Ok(match function {
        Activation::Relu => input.f_relu()?,
        Activation::Gelu => input.f_gelu("none")?,
        Activation::GeluTanh => input.f_gelu("tanh")?,
        // The same as silu, which keeps one tensor for its gradient instead of two.
        Activation::QuickGelu => input.f_mul_scalar(1.702)?.f_silu()?.f_mul_scalar(1.0 / 1.702)?,
        Activation::Silu => input.f_silu()?,
        Activation::Tanh => input.f_tanh()?,
        Activation::Sigmoid => input.f_sigmoid()?,
        Activation::Mish => input.f_mish()?,
        Activation::LeakyRelu => input.f_leaky_relu()?,
        Activation::Relu6 => input.f_relu6()?,
        Activation::SquaredRelu => input.f_relu()?.f_square()?,
        Activation::Linear => input.shallow_clone(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_torch() {
        let cases = [
            ("relu", -2.0, 0.0),
            ("gelu", 1.0, 0.841_344_7),
            ("gelu_python", 1.0, 0.841_344_7),
            ("gelu_new", 1.0, 0.841_192),
            ("gelu_fast", 1.0, 0.841_192),
            ("quick_gelu", 1.0, 0.845_795_8),
            ("silu", 1.0, 0.731_058_6),
            ("swish", 1.0, 0.731_058_6),
            ("tanh", 1.0, 0.761_594_2),
            ("sigmoid", 1.0, 0.731_058_6),
            ("mish", 1.0, 0.865_098_4),
            ("leaky_relu", -2.0, -0.02),
            ("relu6", 7.0, 6.0),
            ("relu2", 3.0, 9.0),
            ("linear", -2.0, -2.0),
        ];
        for (name, input, want) in cases {
            let function = Activation::parse("hidden_act", name).unwrap();
            let got = activate(function, &Tensor::from_slice(&[input])).unwrap().double_value(&[0]);
            assert!((got - want).abs() < 1e-6, "{name}({input}) is {got}");
        }
    }
}
