//! What torch takes to add up the rows of a matrix, as for the gradient of a bias.

/// Of an H100 or H200; with fewer it takes less.
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

/// The largest power of two that is not above.
fn power_below(number: u128) -> u128 {
    1 << number.max(1).ilog2()
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
