//! What the passes of cuDNN's LSTM hold.

use super::sizes::{FLOAT, Sizes};
use crate::memory::Stage;

/// For the products of each layer and direction, as measured.
const PRODUCTS: u128 = 8 << 20;
/// The same in fp32 up to this many hidden numbers.
const FEW_HIDDEN: u128 = 128;
const PRODUCTS_OF_FEW: u128 = 16 << 20;

/// The LSTM of a row of weights, behind the making of that row.
pub fn stages(sizes: &Sizes, channels: u128) -> [Stage; 2] {
    let (input, output) = (sizes.state(channels), sizes.state(sizes.width));
    let weights = weights(sizes, channels);
    let row = weights * sizes.work.compute();
    // Hidden numbers and cells begin as the same zeros.
    let ends = ends(sizes);
    let kept = row + reserve(sizes) + output + ends;
    let workspace = workspace(sizes, [input, output]) + row;
    // The gradient of the output is turned around before that of the row is made. What is checkpointed gets it turned around.
    let turned = if sizes.work.checkpointing { 0 } else { output };
    let making = Stage {
        name: "weights of the LSTM".to_owned(),
        forward: row + sizes.narrowed(weights),
        // Gradients of the row as the LSTM gives them, and put together again.
        backward: input + 2 * row + sizes.new_gradients(weights),
        gradients: weights * sizes.work.weight(),
        ..Stage::default()
    };
    let lstm = Stage {
        name: "LSTM".to_owned(),
        // What comes out is counted by what is behind it.
        kept: if sizes.work.checkpointing { 0 } else { kept },
        // cuDNN wants times before samples, and gives what there is after the last time.
        forward: kept + sizes.narrowed(weights) + input + 2 * ends + workspace,
        // The input once more, its gradient, that of the output, and those of both ends.
        backward: kept + output + 2 * input + turned.max(row) + 4 * ends + workspace,
        ..Stage::default()
    };
    [making, lstm]
}

fn weights(sizes: &Sizes, channels: u128) -> u128 {
    let layer = |input: u128| 4 * sizes.hidden * (input + sizes.hidden + 2) * sizes.directions;
    layer(channels) + (sizes.layers - 1) * layer(sizes.width)
}

/// Hidden numbers of all layers at one time.
fn ends(sizes: &Sizes) -> u128 {
    sizes.work.batch * sizes.layers * sizes.width * sizes.work.compute()
}

/// What cuDNN keeps of every layer: gates, cells and what goes into the next.
fn reserve(sizes: &Sizes) -> u128 {
    (6 * sizes.layers - 1) * sizes.state(sizes.width)
}

/// One and the same for both passes, beside a copy of the weights. The multiples are as measured; with one direction and
/// several layers it is up to 3 % less.
fn workspace(sizes: &Sizes, [input, output]: [u128; 2]) -> u128 {
    let directions = sizes.directions;
    // Outputs of two directions side by side, for the next layer.
    let joined = if directions > 1 && sizes.layers > 1 { output } else { 0 };
    let wide_input = 3 * directions * input + 3 * output + joined;
    let wide_output = input + (3 + 2 * directions) * output;
    let few = sizes.hidden <= FEW_HIDDEN && sizes.work.compute() == FLOAT;
    let products = if few { PRODUCTS_OF_FEW } else { PRODUCTS };
    wide_input.max(wide_output) + 13 * ends(sizes) + sizes.layers * directions * products
}
