//! Sizes of chunks on which the trainer and the estimate must agree.

/// Rows that the trainer computes at a time where each has `width` numbers and `most` may exist.
pub(crate) fn rows_at_a_time(most: i64, width: i64) -> i64 {
    (most / width).max(64)
}
