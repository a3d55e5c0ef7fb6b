//! A safe interface to functions of libtorch that tch lacks. `shim.cpp` is the other side.

mod call;
mod card;
mod dropout;
mod fused;
mod optimizer;
mod quantized;
mod ranks;

pub use card::{
    CardMemory, Graph, allow_tf32, card_memory, deterministic, empty_cache, flush_denormals, prepare_kernels,
    reset_peaks, to_device, trace_begin, trace_end, use_card,
};
pub use dropout::{Dropped, chunked_attention, drop_add};
pub use fused::{
    AddNorm, Attention, FeedForward, checkpoint, gated_activation, gelu_feed_forward, has_attention, lay_together,
    linear, linear_cross_entropy, linears, linears_and_residual, linears_apart, rms_norm, select_rows, turn,
};
pub use optimizer::{AdamWGroup, AdamWStep, adamw, adamw_bf16, round_to_bf16, set_gradient, total_norm};
pub use quantized::{NarrowGroup, OuterScales, QuantizedMatrix, adamw_8bit, nf4_numbers};
pub use ranks::{BucketSums, Link, Rendezvous, Waits, rendezvous};
