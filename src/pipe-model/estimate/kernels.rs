//! The memory that kernels take for a moment beside inputs and outputs: attention, sums of columns, chunks of rows.

use super::Work;

/// The widest head that the trainer has a kernel of its own for.
const WIDEST: i64 = 128;
/// Queries that a block of the kernel takes.
const QUERIES: u128 = 128;
/// Bytes of weights in fp32 that exist at a time where they are computed in chunks.
const CHUNK: u128 = 64 << 20;
const FLOAT: u128 = 4;

/// Rows are padded to a multiple of this length on a card, where the fused attention of torch reads a bias.
pub const ROW_MULTIPLE: usize = 16;

/// Whether heads of this width have a kernel of the trainer's own, in kinds of 16 bits.
pub fn has_attention_kernel(width: i64) -> bool {
    width % 8 == 0 && width <= WIDEST
}

pub(crate) struct Attention<'a> {
    pub work: &'a Work,
    pub heads: u128,
    /// The width of one head.
    pub width: u128,
    pub queries: u128,
    pub keys: u128,
    pub drops: bool,
    pub bias: Bias,
}

/// A term that is added to scores, beside the mask of padding.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Bias {
    None,
    ByDistance,
    /// A term for each pair of tokens of each sample. There is no kernel for it.
    ByPair,
}

/// By which code it is computed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// The trainer's own kernel.
    Kernel,
    /// The fused attention of torch.
    Torch,
    /// A few samples at a time, with weights that exist for a moment: where some are dropped and there is no kernel.
    Chunks,
}

impl Attention<'_> {
    pub fn way(&self) -> Way {
        let fits = self.work.compute() < FLOAT && has_attention_kernel(self.width as i64);
        match self.drops {
            _ if fits && self.bias != Bias::ByPair => Way::Kernel,
            true => Way::Chunks,
            false => Way::Torch,
        }
    }

    fn rows(&self) -> u128 {
        self.work.batch * self.heads * self.queries
    }

    /// The logarithm of the sum of each row.
    pub fn kept(&self) -> u128 {
        match self.way() {
            Way::Kernel => self.rows() * FLOAT,
            Way::Torch => self.work.batch * self.heads * self.queries.next_multiple_of(32) * FLOAT,
            Way::Chunks => 0,
        }
    }

    pub fn forward(&self) -> u128 {
        match self.way() {
            Way::Kernel | Way::Torch => 0,
            Way::Chunks => 2 * self.chunk() + self.narrow_chunk(),
        }
    }

    pub fn backward(&self) -> u128 {
        match self.way() {
            Way::Kernel => 2 * self.rows() * FLOAT + if self.bias == Bias::ByDistance { self.bias_blocks() } else { 0 },
            // Gradients of queries are added up in fp32, and each row has a number.
            Way::Torch if self.work.compute() < FLOAT => self.rows() * (self.width + 1) * FLOAT,
            Way::Torch => self.rows() * FLOAT,
            Way::Chunks => 4 * self.chunk(),
        }
    }

    /// Sums along the diagonals, for each tile of packed queries (`most_sums` of attention.hpp).
    fn bias_blocks(&self) -> u128 {
        let Self { work, queries, keys, heads, .. } = *self;
        let sums = (keys + 288) * work.batch * queries / QUERIES + 160 * (work.batch + 1) + 1;
        heads * sums * FLOAT
    }

    fn chunk(&self) -> u128 {
        let sample = self.heads * self.queries * self.keys * FLOAT;
        sample * (CHUNK / sample.max(1)).clamp(1, self.work.batch.max(1))
    }

    fn narrow_chunk(&self) -> u128 {
        if self.work.compute() < FLOAT { self.chunk() } else { 0 }
    }
}

/// The processors of an H100 or H200. A card with fewer needs less.
const PROCESSORS: u128 = 132;
/// Blocks of 128 threads at once on each.
const BLOCKS: u128 = 16;

/// The staging buffer of torch's reduction (`ReduceConfig` in Reduce.cuh), whose blocks take four columns a thread and share
/// long columns among them. It has room in fp32 for the columns of a whole block for each column of the sum.
pub fn column_sums(rows: u128, columns: u128) -> u128 {
    let (threads, columns_a_thread) = (128, 4);
    let across = power_below(columns / columns_a_thread).min(32);
    let down = threads / across;
    let rows_a_thread = rows.div_ceil(down);
    if rows_a_thread < 256 {
        return 0;
    }
    let at_once = across * columns_a_thread;
    let busy = (PROCESSORS * BLOCKS).div_ceil(columns.div_ceil(at_once));
    let shares = busy.min(rows_a_thread.div_ceil(16)).max(rows_a_thread.div_ceil(256));
    if shares > 1 { 4 * columns * shares * at_once } else { 0 }
}

/// The partial sums of the gradient of a bias in the backward pass of an activation (`Activation::backward` of functions.hpp).
pub fn bias_sums(rows: u128, columns: u128) -> u128 {
    const BLOCKS: u128 = 1056;
    const THREADS: u128 = 128;
    let blocks_of_columns = (columns / 8).div_ceil(THREADS).max(1);
    rows.min(BLOCKS / blocks_of_columns).max(1) * columns * FLOAT
}

/// Up to this many tokens the gradient of embeddings is computed without partial sums.
const FEW_TOKENS: u128 = 3072;

/// The partial sums of the gradient of a table of `words` embeddings.
pub fn embedding_sums(tokens: u128, words: u128, width: u128) -> u128 {
    if tokens <= FEW_TOKENS { 0 } else { tokens.min(words + tokens / 10) * width * 4 }
}

/// The largest power of two that is not above.
fn power_below(number: u128) -> u128 {
    1 << number.max(1).ilog2()
}

/// Rows that the trainer computes at a time where each has `width` numbers and `most` may exist.
pub(crate) fn rows_at_a_time(most: i64, width: i64) -> i64 {
    (most / width).max(64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_torch_asks_for() {
        for (rows, columns, shares) in [(1024, 7488, 16), (4096, 7488, 36), (8192, 2048, 128)] {
            assert_eq!(column_sums(rows, columns), 4 * columns * 128 * shares);
        }
        assert_eq!(column_sums(512, 7488), 0);
        let mib = |rows, columns| column_sums(rows, columns) >> 20;
        assert_eq!((mib(1000, 3072), mib(4096, 3072), mib(16384, 3072), mib(16384, 4096)), (0, 96, 132, 132));
    }
}
