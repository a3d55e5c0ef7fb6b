//! What torch holds while it adds up the rows of a matrix, as for the gradient of a bias.

/// Of a card like the H200. Fewer hold less.
const MULTIPROCESSORS: u64 = 132;
const THREADS_OF_MULTIPROCESSOR: u64 = 2048;
/// A block is 32 threads wide and 4 high; each thread adds up 4 columns.
const BLOCK_HEIGHT: u64 = 4;
const BLOCK_THREADS: u64 = 32 * BLOCK_HEIGHT;
const BLOCK_COLUMNS: u64 = 32 * 4;
const LEAST_ROWS_OF_THREAD: u64 = 16;
const MOST_ROWS_OF_THREAD: u64 = 256;

/// Bytes of the partial sums where several blocks share a column, which torch makes room for many times over: `setReduceConfig`
/// and `global_memory_size` of ATen/native/cuda/Reduce.cuh.
pub(crate) fn column_sum(rows: u64, columns: u64) -> u64 {
    let rows_of_thread = rows.div_ceil(BLOCK_HEIGHT);
    let blocks = columns.div_ceil(BLOCK_COLUMNS);
    let wanted_blocks = MULTIPROCESSORS * (THREADS_OF_MULTIPROCESSOR / BLOCK_THREADS);
    if rows_of_thread < MOST_ROWS_OF_THREAD || blocks > wanted_blocks {
        return 0;
    }
    let sharing = wanted_blocks
        .div_ceil(blocks)
        .min(rows_of_thread.div_ceil(LEAST_ROWS_OF_THREAD))
        .max(rows_of_thread.div_ceil(MOST_ROWS_OF_THREAD));
    if sharing > 1 { 4 * columns * BLOCK_COLUMNS * sharing } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_rows_need_no_room_and_many_as_much_as_there_are_blocks() {
        let mib = |rows, columns| column_sum(rows, columns) >> 20;
        assert_eq!((mib(1000, 3072), mib(4096, 3072), mib(6144, 4096), mib(1 << 20, 3072)), (0, 96, 132, 1536));
    }
}
