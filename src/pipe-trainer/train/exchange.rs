//! Rows that the ranks have computed, brought together on every rank.

use tch::{Device, Kind, Tensor};

use crate::error::TrainerError;
use crate::ranks::Peers;

/// All rows in fp32, [count, width]: each rank has some of them, given with where they begin, and no row is of two ranks. Rows of none
/// are zero.
pub fn rows(peers: &Peers, count: i64, own: &[(i64, &Tensor)], device: Device) -> Result<Tensor, TrainerError> {
    let _guard = tch::no_grad_guard();
    let width = own.first().map_or(0, |(_, rows)| rows.size()[1]);
    let widths = peers.gather(&[width as f64])?;
    let width = widths.iter().map(|row| row[0] as i64).max().unwrap_or(0);
    let all = Tensor::f_zeros([count, width], (Kind::Float, device))?;
    for (start, rows) in own {
        all.f_narrow(0, *start, rows.size()[0])?.f_copy_(rows)?;
    }
    peers.sum(&all)?;
    Ok(all)
}
