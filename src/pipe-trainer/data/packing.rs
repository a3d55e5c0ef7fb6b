//! Samples that stand one after the other in a single row, without padding: where each of them begins, where each token stands, and the tiles that
//! attention takes one at a time.

use tch::{Kind, TchError, Tensor};

use crate::torch;

/// Rows of a tile, as in attention.cu.
const TILE: usize = 128;

/// Numbers of a tile: sample, first row in the sample, where its sums begin, nothing.
const TILE_NUMBERS: usize = 4;

/// The samples of one column of tokens. Behind them is a spare sample, which takes the tokens that nobody needs.
#[derive(Debug, PartialEq)]
pub struct PackedRows {
    /// Where each sample begins, the spare one included, and the end of all.
    offsets: Vec<i32>,
    tiles: Vec<i32>,
    /// Sample and position of each token.
    places: Vec<i32>,
    /// Positions of the longest sample at least.
    longest: usize,
}

/// The sizes of packed rows, at least what their samples need: few of them come up again and again.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PackedSize {
    pub samples: usize,
    pub tokens: usize,
    pub longest: usize,
    /// Whether there are as many tiles as samples of any lengths need, and not only as many as these do.
    pub any_lengths: bool,
}

impl PackedRows {
    /// For samples with tokens at these positions of theirs.
    pub fn new(positions: &[Vec<usize>], size: PackedSize) -> Self {
        let PackedSize { samples, tokens, longest, any_lengths } = size;
        let mut rows = Self { offsets: vec![0], tiles: Vec::new(), places: Vec::new(), longest };
        let mut sums = 0;
        for (sample, positions) in positions.iter().enumerate() {
            rows.add(sample, positions.len(), positions.len(), &mut sums);
            rows.places.extend(positions.iter().flat_map(|position| [sample as i32, *position as i32]));
        }
        let used = rows.places.len() / 2;
        rows.offsets.resize(samples + 1, used as i32);
        rows.add(samples, tokens - used, 0, &mut sums);
        rows.places.extend((0..tokens - used).flat_map(|position| [samples as i32, position as i32]));
        if any_lengths {
            let most = tokens.div_ceil(TILE) + samples + 1;
            let unused = [-1, 0, 0, 0].into_iter().cycle().take(most * TILE_NUMBERS - rows.tiles.len());
            rows.tiles.extend(unused);
        }
        rows
    }

    /// The next sample. Its last tile comes first: where no token sees a later one it is the most work.
    fn add(&mut self, sample: usize, tokens: usize, visible: usize, sums: &mut usize) {
        for first in (0..tokens).step_by(TILE).rev() {
            self.tiles.extend([sample as i32, first as i32, *sums as i32, 0]);
            // As `BiasGradient::positions` of attention_backward.cu.
            *sums += visible.next_multiple_of(32) + TILE;
        }
        self.offsets.push(self.offsets[self.offsets.len() - 1] + tokens as i32);
    }

    /// As tensors on the CPU, by the names that `Packed::find` asks for.
    pub fn tensors(&self) -> Result<[(&'static str, Tensor); PACKED_TENSORS], TchError> {
        let tiles = Tensor::f_from_slice(&self.tiles)?.f_reshape([-1, TILE_NUMBERS as i64])?;
        let places = Tensor::f_from_slice(&self.places)?.f_reshape([-1, 2])?;
        let counts: Vec<i32> = (0..self.longest as i32).collect();
        let [of_offsets, of_tiles, of_places, of_counts] = Packed::NAMES;
        Ok([
            (of_offsets, Tensor::f_from_slice(&self.offsets)?),
            (of_tiles, tiles),
            (of_places, places),
            (of_counts, Tensor::f_from_slice(&counts)?),
        ])
    }
}

/// The tensors of `Packed`.
pub const PACKED_TENSORS: usize = 4;

/// The rows of a column of a part, as tensors on its device.
#[derive(Clone, Copy)]
pub struct Packed<'a> {
    /// [samples + 2], int32: where each sample begins, the spare one included, and the end of all.
    pub offsets: &'a Tensor,
    /// [tiles, 4], int32.
    pub tiles: &'a Tensor,
    /// [tokens, 2], int32: sample and position of each token.
    pub places: &'a Tensor,
    /// From 0 to the length of the longest sample, int32.
    pub counts: &'a Tensor,
}

impl<'a> Packed<'a> {
    const NAMES: [&'static str; PACKED_TENSORS] = ["offsets", "tiles", "places", "counts"];

    /// Absent where one of the tensors is.
    pub fn find(find: impl Fn(&str) -> Option<&'a Tensor>) -> Option<Self> {
        let [offsets, tiles, places, counts] = Self::NAMES.map(find);
        Some(Self { offsets: offsets?, tiles: tiles?, places: places?, counts: counts? })
    }

    /// In the order that `from_tensors` takes.
    pub fn tensors(self) -> [&'a Tensor; PACKED_TENSORS] {
        [self.offsets, self.tiles, self.places, self.counts]
    }

    pub fn from_tensors(tensors: [&'a Tensor; PACKED_TENSORS]) -> Self {
        let [offsets, tiles, places, counts] = tensors;
        Self { offsets, tiles, places, counts }
    }

    /// How many samples there are, without the spare one.
    pub fn samples(self) -> i64 {
        self.offsets.size()[0] - 2
    }

    pub fn tokens(self) -> i64 {
        self.places.size()[0]
    }

    /// Positions of the longest sample at least.
    pub fn longest(self) -> i64 {
        self.counts.size()[0]
    }

    /// Whether all samples are of one length, with a token at each position, and nothing is spare.
    pub fn is_even(self) -> bool {
        let (samples, longest) = (self.samples(), self.longest());
        // Where there is room for any lengths there are more tiles: then nothing is known of them.
        let tiles = samples * (longest as u64).div_ceil(TILE as u64) as i64;
        self.tokens() == samples * longest && self.tiles.size()[0] == tiles
    }

    /// The sample of each token.
    pub fn sample_numbers(self) -> Result<Tensor, TchError> {
        self.places.f_select(1, 0)
    }

    /// The position of each token in its sample.
    pub fn positions(self) -> Result<Tensor, TchError> {
        self.places.f_select(1, 1)
    }

    /// Where each sample begins, [samples].
    pub fn starts(self) -> Result<Tensor, TchError> {
        self.offsets.f_narrow(0, 0, self.samples())
    }

    /// Tokens of each sample, [samples].
    pub fn lengths(self) -> Result<Tensor, TchError> {
        self.offsets.f_narrow(0, 1, self.samples())?.f_sub(&self.starts()?)
    }

    /// [1, tokens, ...] as [samples, longest, ...]. What stands behind a sample is anything.
    pub fn unpacked(self, packed: &Tensor) -> Result<Tensor, TchError> {
        let mut size = packed.size();
        (size[0], size[1]) = (self.samples(), self.longest());
        if self.is_even() {
            return packed.f_reshape(size);
        }
        let index =
            self.starts()?.f_unsqueeze(1)?.f_add(&self.counts.f_unsqueeze(0)?)?.f_clamp_max(self.tokens() - 1)?;
        packed.f_squeeze_dim(0)?.f_index_select(0, &index.f_reshape([-1])?)?.f_reshape(size)
    }

    /// [samples, longest, ...] as [1, tokens, ...]. Spare tokens are anything.
    pub fn packed(self, rows: &Tensor) -> Result<Tensor, TchError> {
        let mut size = rows.size();
        let whole = [&[size[0] * size[1]], &size[2..]].concat();
        (size[0], size[1]) = (1, self.tokens());
        if self.is_even() {
            return rows.f_reshape(size);
        }
        let sample = self.sample_numbers()?;
        let tokens = Tensor::f_arange(self.tokens(), (tch::Kind::Int, rows.device()))?;
        let inside = tokens.f_sub(&self.offsets.f_index_select(0, &sample)?)?;
        let index = sample.f_mul_scalar(self.longest())?.f_add(&inside)?.f_clamp_max(whole[0] - 1)?;
        rows.f_reshape(whole)?.f_index_select(0, &index)?.f_unsqueeze(0)
    }
}

/// The tensors of `UnpackedRows`.
pub const UNPACKED_TENSORS: usize = 4;

/// A row for each of some packed samples, as long as the longest, with every token at its position: distances are then as they are in padded
/// rows, also where a mask has left tokens out.
pub struct UnpackedRows {
    /// [samples, longest]: the token at each position, or any where there is none.
    tokens: Tensor,
    /// [samples, longest]: whether there is none.
    is_empty: Tensor,
    /// [tokens]: where each token is among the positions of all rows.
    positions: Tensor,
    /// [tokens]: whether it is a spare one, which has no row.
    is_spare: Tensor,
}

impl UnpackedRows {
    pub fn new(packed: Packed<'_>) -> Result<Self, TchError> {
        let (samples, longest) = (packed.samples(), packed.longest());
        let (last, device) = (samples * longest, packed.places.device());
        // Spare tokens share a position behind all others.
        let sample = packed.sample_numbers()?.f_to_kind(Kind::Int64)?;
        let positions = sample.f_mul_scalar(longest)?.f_add(&packed.positions()?)?.f_clamp_max(last)?;
        let tokens = Tensor::f_arange(packed.tokens(), (Kind::Int64, device))?;
        let tokens = Tensor::f_zeros([last + 1], (Kind::Int64, device))?.f_scatter(0, &positions, &tokens)?;
        let is_empty = Tensor::f_ones([last + 1], (Kind::Bool, device))?.f_scatter_value(0, &positions, 0)?;
        let rows = |all: Tensor| all.f_narrow(0, 0, last)?.f_view([samples, longest]);
        Ok(Self {
            tokens: rows(tokens)?,
            is_empty: rows(is_empty)?,
            positions: positions.f_clamp_max(last - 1)?,
            is_spare: positions.f_ge(last)?,
        })
    }

    /// In the order that `from_tensors` takes.
    pub fn tensors(&self) -> [&Tensor; UNPACKED_TENSORS] {
        [&self.tokens, &self.is_empty, &self.positions, &self.is_spare]
    }

    pub fn from_tensors(tensors: [&Tensor; UNPACKED_TENSORS]) -> Self {
        let [tokens, is_empty, positions, is_spare] = tensors.map(Tensor::shallow_clone);
        Self { tokens, is_empty, positions, is_spare }
    }

    /// [samples, longest]: where there is no token.
    pub fn is_empty(&self) -> &Tensor {
        &self.is_empty
    }

    /// [1, tokens, width] as [samples, longest, width]. Where there is no token is anything, and its gradient is lost.
    pub fn unpacked(&self, packed: &Tensor) -> Result<Tensor, TchError> {
        let rows =
            torch::select_rows(&packed.f_squeeze_dim(0)?, &self.tokens.f_view([-1])?, &self.positions, &self.is_spare)?;
        let (samples, longest) = self.tokens.size2()?;
        rows.f_view([samples, longest, -1])
    }

    /// [samples, longest, width] as [1, tokens, width]. Spare tokens are anything, and their gradient is lost.
    pub fn packed(&self, rows: &Tensor) -> Result<Tensor, TchError> {
        let (tokens, is_empty) = (self.tokens.f_view([-1])?, self.is_empty.f_view([-1])?);
        torch::select_rows(&rows.f_flatten(0, 1)?, &self.positions, &tokens, &is_empty)?.f_unsqueeze(0)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use tch::Device;

    use super::*;

    fn positions(lengths: &[usize]) -> Vec<Vec<usize>> {
        lengths.iter().map(|length| (0..*length).collect()).collect()
    }

    #[test]
    fn samples_follow_each_other_and_the_rest_is_spare() {
        let size = PackedSize { samples: 4, tokens: 140, longest: 130, any_lengths: true };
        let rows = PackedRows::new(&positions(&[130, 0, 3]), size);
        assert_eq!(rows.offsets, [0, 130, 130, 133, 133, 140]);
        let used = [[0, 128, 0, 0], [0, 0, 288, 0], [2, 0, 576, 0], [4, 0, 736, 0]];
        assert_eq!(rows.tiles[..16], used.concat());
        // Room for samples of any lengths: two tiles of tokens, and one begun for each sample and the spare one.
        assert_eq!(rows.tiles.len(), (2 + 4 + 1) * 4);
        assert!(rows.tiles[16..].chunks(4).all(|tile| tile == [-1, 0, 0, 0]));
        assert_eq!(rows.places[..4], [0, 0, 0, 1]);
        assert_eq!(rows.places[2 * 132..], [2, 2, 4, 0, 4, 1, 4, 2, 4, 3, 4, 4, 4, 5, 4, 6]);
    }

    #[test]
    fn there_and_back() {
        for (lengths, tokens) in [(vec![3, 1, 2], 8), (vec![2, 2], 4)] {
            let (samples, longest) = (lengths.len(), lengths[0]);
            let size = PackedSize { samples, tokens, longest, any_lengths: false };
            let rows = PackedRows::new(&positions(&lengths), size);
            let tensors = HashMap::from(rows.tensors().unwrap());
            let packed = Packed::find(|name| tensors.get(name)).unwrap();
            assert_eq!((packed.samples(), packed.is_even()), (samples as i64, tokens == 4));
            // As many tokens as even samples would have.
            let size = PackedSize { samples, tokens: samples * longest, longest, any_lengths: true };
            let rounded = HashMap::from(PackedRows::new(&positions(&lengths), size).tensors().unwrap());
            assert!(!Packed::find(|name| rounded.get(name)).unwrap().is_even());
            let values = Tensor::arange(2 * tokens as i64, (Kind::Float, Device::Cpu)).reshape([1, tokens as i64, 2]);
            let unpacked = packed.unpacked(&values).unwrap();
            assert_eq!(unpacked.size(), [samples as i64, longest as i64, 2]);
            let used: i64 = lengths.iter().sum::<usize>() as i64;
            let back = packed.packed(&unpacked).unwrap();
            assert_eq!(back.size(), values.size());
            assert_eq!(back.narrow(1, 0, used), values.narrow(1, 0, used));
            let of_lengths: Vec<i32> = Vec::try_from(packed.lengths().unwrap()).unwrap();
            assert_eq!(of_lengths, lengths.iter().map(|length| *length as i32).collect::<Vec<_>>());
        }
    }

    /// The second sample has no token at position 0, and there are two spare tokens.
    #[test]
    fn rows_have_every_token_at_its_position_and_gradients_of_nothing_else() {
        let size = PackedSize { samples: 2, tokens: 6, longest: 3, any_lengths: false };
        let rows = PackedRows::new(&[vec![0, 1], vec![1, 2]], size);
        let tensors = HashMap::from(rows.tensors().unwrap());
        let rows = UnpackedRows::new(Packed::find(|name| tensors.get(name)).unwrap()).unwrap();
        let numbers = |tensor: &Tensor| Vec::<f32>::try_from(tensor.reshape([-1]).to_kind(Kind::Float)).unwrap();
        let values = (Tensor::arange(6, (Kind::Float, Device::Cpu)) + 1.0).reshape([1, 6, 1]).set_requires_grad(true);
        let unpacked = rows.unpacked(&values).unwrap();
        assert_eq!((unpacked.size(), numbers(rows.is_empty())), (vec![2, 3, 1], vec![0.0, 0.0, 1.0, 1.0, 0.0, 0.0]));
        assert_eq!(numbers(&unpacked.masked_fill(&rows.is_empty().unsqueeze(2), 0.0)), [1.0, 2.0, 0.0, 0.0, 3.0, 4.0]);
        let weights = Tensor::from_slice(&[10f32, 20.0, 30.0, 40.0, 50.0, 60.0]);
        (unpacked.reshape([-1]) * &weights).sum(Kind::Float).backward();
        assert_eq!(numbers(&values.grad()), [10.0, 20.0, 50.0, 60.0, 0.0, 0.0]);
        let whole = weights.reshape([2, 3, 1]).set_requires_grad(true);
        let packed = rows.packed(&whole).unwrap();
        assert_eq!((packed.size(), numbers(&packed.narrow(1, 0, 4))), (vec![1, 6, 1], vec![10.0, 20.0, 50.0, 60.0]));
        (packed * values.detach()).sum(Kind::Float).backward();
        assert_eq!(numbers(&whole.grad()), [1.0, 2.0, 0.0, 0.0, 3.0, 4.0]);
    }
}
