//! How far the trainer is: phase, step and part. The record of an out-of-memory reads it.

use std::cell::Cell;

use pipe_spec::Phase;

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

    /// What a part may hold, where parts are filled.
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
