//! Whether all ranks have the same weights, to the bit: each has computed every update by itself.

use tch::{Device, Tensor};

use super::session::Session;
use super::state::State;
use crate::error::TrainerError;

/// Bits of a hash in each of the numbers that are compared: a double holds them exactly.
const BYTES_EACH: usize = 5;

pub fn check(session: &Session, state: &State) -> Result<(), TrainerError> {
    if session.peers.is_nobody() {
        return Ok(());
    }
    let all = session.peers.gather(&hash(state)?)?;
    match all.iter().position(|other| *other != all[0]) {
        None => Ok(()),
        Some(rank) => Err(state.ranks_differ(session, rank, "weights")),
    }
}

/// Whether all ranks go on from the same step: each has looked for a whole checkpoint by itself.
pub fn check_step(session: &Session, state: &State) -> Result<(), TrainerError> {
    let all = session.peers.gather(&[state.step as f64])?;
    match all.iter().position(|other| *other != all[0]) {
        None => Ok(()),
        Some(rank) => Err(state.ranks_differ(session, rank, "checkpoints")),
    }
}

fn hash(state: &State) -> Result<Vec<f64>, TrainerError> {
    let mut hasher = blake3::Hasher::new();
    for (_, weight) in state.model.weights().iter() {
        let host = on_host(weight)?;
        let bytes = host.numel() * host.kind().elt_size_in_bytes();
        // SAFETY: a contiguous tensor on the CPU is so many bytes in a row, and `host` outlives the slice.
        hasher.update(unsafe { std::slice::from_raw_parts(host.data_ptr().cast::<u8>(), bytes) });
    }
    let number = |bytes: &[u8]| bytes.iter().fold(0u64, |number, byte| number << 8 | u64::from(*byte)) as f64;
    Ok(hasher.finalize().as_bytes().chunks(BYTES_EACH).map(number).collect())
}

fn on_host(tensor: &Tensor) -> Result<Tensor, TrainerError> {
    Ok(tensor.f_detach()?.f_to_device(Device::Cpu)?.f_contiguous()?)
}
