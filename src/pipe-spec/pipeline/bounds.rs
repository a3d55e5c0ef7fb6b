//! The most that settings may say: far above every training that there is, and so small that no product of them overflows and
//! nothing is allocated for a typing error.

/// Samples in a pass or in a step.
pub const MAX_SAMPLES: u32 = 1 << 24;
/// Tokens of a row.
pub const MAX_TOKENS: u32 = 1 << 20;
/// Threads that prepare batches.
pub const MAX_WORKERS: u32 = 1024;
/// Steps that are ready ahead.
pub const MAX_PREFETCHED: u32 = 1024;
pub const MAX_STEPS: u64 = 1_000_000_000;
/// Evaluations in a row without an improvement.
pub const MAX_PATIENCE: u32 = 1_000_000;
pub const MAX_EPOCHS: f64 = 1_000_000.0;
pub const MAX_RETRIES: u32 = 1000;
/// Seconds: a year.
pub const MAX_WAIT: u64 = 365 * 24 * 60 * 60;
/// Texts that are generated for one evaluation.
pub const MAX_TEXTS: u32 = 1 << 16;
pub const MAX_BEAMS: u32 = 1024;
pub const MAX_CPUS: f64 = 4096.0;

/// Machines of a job.
pub const MAX_NODES: u32 = 1024;
/// `memory.allocator.max_split_size_mb`
pub const MAX_SPLIT_MB: u64 = 1 << 24;
/// `memory.allocator.roundup_power2_divisions`
pub const MAX_DIVISIONS: u64 = 1 << 16;
