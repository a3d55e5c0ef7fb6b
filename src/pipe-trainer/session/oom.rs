//! The progress of a training, and the record of an out-of-memory: phase and step, and what torch and the kernel reported.

use std::cell::Cell;

use pipe_spec::event::{MemoryKind, OomSizes};
use pipe_spec::{OomRecord, Phase};

use crate::device::{Hardware, Usage};
use crate::host::{self, HostMemory};

pub struct Progress {
    phase: Cell<Phase>,
    step: Cell<u64>,
    batch: Cell<u32>,
    filled: Cell<Option<f64>>,
    part_bytes: Cell<Option<u64>>,
    longest_sequence: Cell<Option<u32>>,
}

impl Progress {
    pub fn new(batch: u32) -> Self {
        Self {
            phase: Cell::new(Phase::Load),
            step: Cell::new(0),
            batch: Cell::new(batch),
            filled: Cell::new(None),
            part_bytes: Cell::new(None),
            longest_sequence: Cell::new(None),
        }
    }

    pub fn enter(&self, phase: Phase) {
        self.phase.set(phase);
    }

    /// The step that is being computed, counted from 1.
    pub fn set_step(&self, step: u64) {
        self.step.set(step);
    }

    pub fn set_part(&self, batch: u32, longest_sequence: u32) {
        self.batch.set(batch);
        self.longest_sequence.set(Some(longest_sequence));
    }

    /// How full the fullest part of the step is, where parts are filled.
    pub fn set_filled(&self, filled: Option<f64>) {
        self.filled.set(filled);
    }

    /// Sets the bytes that a part may hold, where parts are filled.
    pub fn set_part_bytes(&self, bytes: Option<u64>) {
        self.part_bytes.set(bytes);
    }

    pub fn part_bytes(&self) -> Option<u64> {
        self.part_bytes.get()
    }

    pub fn filled(&self) -> Option<f64> {
        self.filled.get()
    }

    pub fn phase(&self) -> Phase {
        self.phase.get()
    }

    pub fn step(&self) -> u64 {
        self.step.get()
    }

    pub fn batch(&self) -> u32 {
        self.batch.get()
    }

    pub fn longest_sequence(&self) -> Option<u32> {
        self.longest_sequence.get()
    }
}

pub fn record(
    memory: MemoryKind,
    message: &str,
    host: HostMemory,
    progress: &Progress,
    hardware: &Hardware,
    allocator: String,
) -> OomRecord {
    let mut record = OomRecord {
        step: progress.step(),
        batch: progress.batch(),
        filled: progress.filled(),
        part_bytes: progress.part_bytes(),
        longest_sequence: progress.longest_sequence(),
        sizes: OomSizes { requested: requested(message), ..OomSizes::default() },
        allocator: (!allocator.is_empty()).then_some(allocator),
        message: message.to_owned(),
        ..OomRecord::new(memory, progress.phase())
    };
    match memory {
        MemoryKind::Host => fill_from_host(&mut record, host, hardware),
        MemoryKind::Device => fill_from_device(&mut record, hardware),
    }
    record
}

fn fill_from_host(record: &mut OomRecord, host: HostMemory, hardware: &Hardware) {
    let on_cpu = hardware.device == tch::Device::Cpu;
    record.sizes.allocated = Some(host.resident);
    record.sizes.reserved = Some(host.data);
    record.sizes.peak = Some(host.peak);
    record.sizes.total = if on_cpu { hardware.capacity } else { host::total_memory() };
    record.sizes.free = record.sizes.total.map(|total| total.saturating_sub(host.data));
}

/// Torch's message is more exact than what can be asked once its memory has been given back.
fn fill_from_device(record: &mut OomRecord, hardware: &Hardware) {
    let message = record.message.clone();
    let Usage { allocated, reserved, peak } = hardware.usage();
    let by_torch = size_before(&message, " is allocated by PyTorch");
    let unused = size_before(&message, " is reserved by PyTorch but unallocated");
    record.sizes.allocated = by_torch.or(Some(allocated));
    record.sizes.reserved = by_torch.zip(unused).map(|(used, unused)| used + unused).or(Some(reserved));
    record.sizes.peak = by_torch.max(Some(peak));
    record.sizes.total = size_before(&message, " allowed").or(hardware.capacity);
    // Free memory of the card is no use beyond the limit.
    let allowed = record.sizes.total.zip(record.sizes.reserved).map(|(total, reserved)| total.saturating_sub(reserved));
    record.sizes.card_total = size_after(&message, "total capacity of ").or(hardware.card_total());
    record.sizes.card_free = size_before(&message, " is free");
    record.sizes.free = match (record.sizes.card_free, allowed) {
        (Some(free), Some(allowed)) => Some(free.min(allowed)),
        (free, allowed) => free.or(allowed),
    };
    record.sizes.own = size_after(&message, "this process has ");
    let held = record.sizes.card_total.zip(record.sizes.card_free).map(|(total, free)| total.saturating_sub(free));
    record.sizes.others = others(&message).or(held.zip(record.sizes.own).map(|(held, own)| held.saturating_sub(own)));
    record.alloc_retries = hardware.card_memory().ok().map(|card| card.retries);
}

/// "Process 12 has 3.00 GiB memory in use." for each other process on the card.
fn others(message: &str) -> Option<u64> {
    let of_process = |text: &str| {
        let rest = text.trim_start().split_once(' ')?.1.strip_prefix("has ")?;
        size_before(rest, " memory in use")
    };
    message.split("Process ").skip(1).filter_map(of_process).reduce(|sum, bytes| sum + bytes)
}

/// The bytes that were asked for: "tried to allocate 4096 bytes", "Tried to allocate 2.00 GiB".
fn requested(message: &str) -> Option<u64> {
    let lower = message.to_ascii_lowercase();
    let at = lower.find("tried to allocate ")? + "tried to allocate ".len();
    let mut words = message[at..].split_whitespace();
    size(words.next()?, words.next()?)
}

/// The size that stands right after `marker`.
fn size_after(message: &str, marker: &str) -> Option<u64> {
    let mut words = message[message.find(marker)? + marker.len()..].split_whitespace();
    size(words.next()?, words.next()?)
}

/// The size that stands right before `marker`.
fn size_before(message: &str, marker: &str) -> Option<u64> {
    let mut words = message[..message.find(marker)?].split_whitespace().rev();
    let unit = words.next()?;
    size(words.next()?, unit)
}

fn size(number: &str, unit: &str) -> Option<u64> {
    let scale: u64 = match unit.trim_end_matches(['.', ',', ';']) {
        "bytes" | "B" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        "TiB" => 1 << 40,
        _ => return None,
    };
    Some((number.parse::<f64>().ok()? * scale as f64) as u64)
}

#[cfg(test)]
mod oom_tests {
    use super::*;

    const CUDA: &str = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 139.80 GiB of \
        which 100.50 GiB is free. Process 12 has 3.00 GiB memory in use. Including non-PyTorch memory, this process has \
        32.30 GiB memory in use. 32.14 GiB allowed; Of the allocated memory 31.50 GiB is allocated by PyTorch, and \
        512.00 MiB is reserved by PyTorch but unallocated.";

    #[test]
    fn sizes_are_read_from_messages() {
        assert_eq!(requested(CUDA), Some(2 << 30));
        assert_eq!(requested("can't allocate memory: you tried to allocate 4096 bytes. Error code 12"), Some(4096));
        assert_eq!(requested("std::bad_alloc"), None);
        assert_eq!(size_before(CUDA, " is allocated by PyTorch"), Some(63 << 29));
        assert_eq!(size_before(CUDA, " is reserved by PyTorch but unallocated"), Some(512 << 20));
        assert_eq!(size_after(CUDA, "this process has "), Some((32.3 * f64::from(1 << 30)) as u64));
        assert_eq!(others(CUDA), Some(3 << 30));
        assert_eq!(others("CUDA out of memory."), None);
    }
}
