//! Each value with equal chances.

use super::{REDRAWS, Stream, was_tried};
use crate::axis::Axis;
use crate::space::{Point, Space};
use crate::trial::Trial;

/// A point that no trial has, where there seems to be one.
pub(super) fn suggest(space: &Space, trials: &[Trial], stream: &mut Stream) -> Point {
    let mut point = draw(space, || stream.uniform());
    for _ in 0..REDRAWS {
        if !was_tried(&point, trials) {
            break;
        }
        point = draw(space, || stream.uniform());
    }
    point
}

/// A point that is spread out evenly with those of the numbers near this one: of every `count` in a row, each has another part of every
/// range (a Latin hypercube). McKay et al., "A Comparison of Three Methods for Selecting Values of Input Variables" (1979).
pub(super) fn suggest_spread(space: &Space, trials: &[Trial], number: u64, seed: u64, count: usize) -> Point {
    let own = (number % count as u64) as usize;
    // The same for all numbers of the row.
    let mut shared = Stream::new(seed, u64::MAX - number / count as u64);
    let orders: Vec<Vec<usize>> = space.parameters.iter().map(|_| shared.shuffled(count)).collect();
    let mut stream = Stream::new(seed, number);
    let mut index = 0;
    let point = draw(space, || {
        let part = (orders[index][own] as f64 + stream.uniform()) / count as f64;
        index += 1;
        part
    });
    if was_tried(&point, trials) { suggest(space, trials, &mut stream) } else { point }
}

/// `part` says for each parameter, also those without a value, which part of the way from its first value to the last is taken.
fn draw(space: &Space, mut part: impl FnMut() -> f64) -> Point {
    let mut point = Point::new();
    for parameter in &space.parameters {
        let part = part();
        if parameter.applies(&point) {
            let axis = Axis::new(&parameter.domain);
            point.insert(parameter.name.clone(), axis.value(axis.at(part)));
        }
    }
    point
}
