//! The events of the stand-in, as the types of pipe-spec. Every value that no test looks at stands here, once.

use std::fs;
use std::io::Write;
use std::path::PathBuf;

use pipe_spec::event::{
    Checkpoint, Eval, MemoryKind, OomRecord, OomSizes, Point, Rehearsed, Started, StartedMemory, Step,
};
use pipe_spec::run::JobFolder;
use pipe_spec::{Event, EventKind, Phase, RunFolder, TrainerSpec};

pub const MIB: u64 = 1 << 20;

/// Writes events as the trainer does: into the job's file, then on stdout. QUIET=file or QUIET=stdout leaves one of them out.
pub struct Events {
    path: PathBuf,
    quiet: String,
    seq: u64,
    pub time: fn() -> f64,
}

impl Events {
    pub fn new(folder: &JobFolder, time: fn() -> f64) -> Self {
        Self { path: folder.events(), quiet: std::env::var("QUIET").unwrap_or_default(), seq: 0, time }
    }

    pub fn emit(&mut self, kind: EventKind) {
        let line = self.line(kind);
        if self.quiet != "file" {
            self.append(&line);
        }
        if self.quiet != "stdout" {
            println!("{line}");
        }
    }

    /// In the file alone.
    pub fn emit_to_file(&mut self, kind: EventKind) {
        let line = self.line(kind);
        self.append(&line);
    }

    /// Counts an event that is written nowhere.
    pub fn lose(&mut self) {
        self.seq += 1;
    }

    fn line(&mut self, kind: EventKind) -> String {
        self.seq += 1;
        serde_json::to_string(&Event { seq: self.seq, ts: (self.time)(), kind }).expect("an event is plain data")
    }

    fn append(&self, line: &str) {
        let mut file = fs::File::options().create(true).append(true).open(&self.path).expect("the event file");
        file.write_all(format!("{line}\n").as_bytes()).expect("the event file");
    }
}

pub fn job_folder(spec: &TrainerSpec) -> JobFolder {
    RunFolder::new(&spec.run).attempt(spec.attempt).job()
}

/// On the CPU, with 64 MiB.
pub fn started(spec: &TrainerSpec, steps: u64) -> Started {
    Started {
        device: "cpu".to_owned(),
        memory: StartedMemory { capacity: Some(64 * MIB), ..StartedMemory::default() },
        libtorch: "none".to_owned(),
        params: 1,
        batch: spec.train.batch(),
        accum: spec.train.accum(),
        effective_batch: spec.train.effective_batch,
        steps,
        samples: 3,
        longest: Some("64".to_owned()),
        ranks: spec.rank.count,
        sums_by: (spec.rank.count > 1).then(|| "gloo".to_owned()),
        ..Started::default()
    }
}

pub fn step(step: u64, loss: f64) -> Step {
    Step { step, samples: step, loss, tokens: 1, ms: 1.0, allocated: 1, reserved: 1, peak: 1, ..Step::default() }
}

pub fn eval(step: u64) -> EventKind {
    let scores = [("accuracy".to_owned(), 0.5)].into();
    EventKind::Eval(Eval { step, loss: 1.25, samples: 20, ms: 1.0, headline: None, scores })
}

pub fn checkpoint(step: u64) -> EventKind {
    EventKind::Checkpoint(Checkpoint { step, path: "checkpoints/x".to_owned(), bytes: 1, ms: 1.0 })
}

pub fn rehearsed(batch: u32, peak: u64) -> EventKind {
    EventKind::Rehearsed(Rehearsed { batch, longest: "64".to_owned(), peak, reserved: peak, ms: 1.0 })
}

/// 600 MiB that a card does not have. All of its memory is in use but `free`; other processes hold `others` of it.
pub struct Shortage {
    pub phase: Phase,
    pub reserved: u64,
    pub allocated: u64,
    pub free: u64,
    pub others: u64,
    pub points: Vec<Point>,
}

impl Shortage {
    pub fn record(self, batch: u32, total: u64) -> OomRecord {
        OomRecord {
            step: 1,
            batch,
            longest_sequence: Some(64),
            sizes: OomSizes {
                requested: Some(600 * MIB),
                allocated: Some(self.allocated),
                reserved: Some(self.reserved),
                peak: Some(self.allocated),
                free: Some(self.free),
                total: Some(total),
                card_total: Some(total),
                card_free: Some(self.free),
                own: Some(self.reserved),
                others: Some(self.others),
            },
            alloc_retries: Some(0),
            points: self.points,
            message: "out of memory".to_owned(),
            ..OomRecord::new(MemoryKind::Device, self.phase)
        }
    }
}
