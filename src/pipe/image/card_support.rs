//! Whether the libtorch of a job can use a card, known before anything is started on it.

use std::path::Path;

use pipe_spec::pipeline::Image;

use super::{Cuda, architectures};
use crate::error::Error;
use crate::gpu::Card;

/// Refuses cards that the job's libtorch cannot use, or lacks the CUDA libraries for. `contained`: the job runs in an image and
/// not as a process.
pub fn check_cards(image: Option<&Image>, contained: bool, cards: &[Card]) -> Result<(), Error> {
    if let Cuda::Missing { folder, libraries } = super::cuda(image, contained)? {
        return Err(Error::NoCuda { folder, libraries });
    }
    match super::libtorch_cuda(image, contained) {
        Some(library) => cards.iter().try_for_each(|card| check_card(card, &library)),
        None => Ok(()),
    }
}

/// Whether `card` can run what is in `library`. Where either is not known nothing is refused.
pub fn check_card(card: &Card, library: &Path) -> Result<(), Error> {
    let built_for = architectures(library);
    match card.capability {
        Some(capability) if !built_for.is_empty() && !built_for.iter().any(|built| built.runs_on(capability)) => {
            Err(Error::Capability { card: card.name.clone(), capability, built_for })
        }
        _ => Ok(()),
    }
}
