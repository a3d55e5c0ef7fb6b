//! What libtorch can do and tch cannot, behind a safe interface. `shim.cpp` is the other side.

mod arithmetic;
mod attention;
mod call;
mod card;
mod checkpoint;
mod chunked;
mod dropout;
mod fused;
mod gradients;
mod graph;
mod optimizer;
mod ranks;

pub use arithmetic::{allow_tf32, deterministic, flush_denormals};
pub use attention::{Attention, has_attention};
pub use card::{CardMemory, card_memory, empty_cache, prepare_kernels, reset_peaks, trace_begin, trace_end, use_card};
pub use checkpoint::checkpoint;
pub use chunked::{gelu_feed_forward, linear_cross_entropy};
pub use dropout::{Dropped, chunked_attention, drop_add};
pub use fused::{AddNorm, FeedForward, linear, linears};
pub use gradients::{set_gradient, total_norm};
pub use graph::{Graph, to_device};
pub use optimizer::{AdamWGroup, AdamWStep, adamw, adamw_bf16, round_to_bf16};
pub use ranks::{BucketSums, Link, Waits, rendezvous};
