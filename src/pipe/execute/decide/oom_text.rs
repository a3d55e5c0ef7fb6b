//! Whether the log of a command says that memory ran out, and of how much it speaks. Pure.

use std::sync::LazyLock;

use pipe_spec::event::{MemoryKind, OomSizes};
use pipe_spec::{OomRecord, Phase};
use regex::{Captures, Regex, RegexBuilder};

/// Characters of a message that are kept.
const MESSAGE: usize = 2000;

/// Messages of frameworks when memory has run out, and whose memory it is.
const MESSAGES: [(MemoryKind, &str); 26] = [
    (MemoryKind::Device, r"(?:CUDA|HIP|XPU|MPS backend) out of memory"),
    (MemoryKind::Device, r"torch\.(?:cuda\.)?OutOfMemoryError"),
    (MemoryKind::Device, r"(?:CUDA|HIP) (?:driver |runtime )?error: out of memory|cuda runtime error \(2\)"),
    (MemoryKind::Device, r"cudaErrorMemoryAllocation|CUDA_ERROR_OUT_OF_MEMORY|hipErrorOutOfMemory"),
    (MemoryKind::Device, r"UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY"),
    (MemoryKind::Device, r"Cuda failure (?:\d+ )?'out of memory'"),
    (MemoryKind::Device, r"(?:CUBLAS|CUDNN|CUSOLVER|HIPBLAS)_STATUS_ALLOC_FAILED|CUFFT_ALLOC_FAILED"),
    (MemoryKind::Device, r"Ran out of memory in memory space (?:hbm|vmem|smem)"),
    (MemoryKind::Device, r"OOM when allocating tensor with shape.*by allocator (?:GPU|gpu)"),
    (MemoryKind::Host, r"OOM when allocating tensor with shape.*by allocator (?:cpu|mklcpu)"),
    (MemoryKind::Device, r"ResourceExhaustedError: .*failed to allocate memory"),
    (MemoryKind::Device, r"Out of memory error on GPU \d+"),
    (MemoryKind::Device, r"cudaMalloc(?: retry)? failed: out of memory"),
    (MemoryKind::Device, r"cupy\.cuda\.memory\.OutOfMemoryError"),
    (MemoryKind::Host, r"DefaultCPUAllocator: (?:can't allocate memory|not enough memory)"),
    (MemoryKind::Host, r"(?:ArrayMemoryError|MemoryError): Unable to allocate"),
    (MemoryKind::Host, r"\[Errno 12\] Cannot allocate memory|unable to mmap .* Cannot allocate memory|std::bad_alloc"),
    (
        MemoryKind::Host,
        r"(?m)^(?:\[\w+\]:\s*)?MemoryError(?::.*)?$|DataLoader worker \(pid.*\) is killed by signal: Killed",
    ),
    // Shared memory, of which a container has as much as `container.shm` says.
    (MemoryKind::Host, r"unable to allocate shared memory\(shm\)|is killed by signal: Bus error.*shared memory"),
    (MemoryKind::Host, r"memory allocation of \d+ bytes failed|ArrowMemoryError|C error: out of memory"),
    (MemoryKind::Host, r"\(-4:Insufficient memory\)|mkl_malloc: failed to allocate memory|OutOfMemoryException"),
    (MemoryKind::Host, r"ray\.exceptions\.OutOfMemoryError"),
    (MemoryKind::Host, r"JavaScript heap out of memory|Array buffer allocation failed"),
    (MemoryKind::Host, r"java\.lang\.OutOfMemoryError|Could not reserve enough space for .* object heap"),
    (MemoryKind::Host, r"runtime: out of memory: cannot allocate|memory exhausted"),
    (
        MemoryKind::Host,
        r"(?m)out of memory allocating \d+ bytes|^Out of memory!|x(?:re|m|c)alloc: cannot allocate|\b(?:malloc|mmap)\b.*Cannot allocate memory",
    ),
];

/// The same of JAX and ONNX Runtime, which say it of the card and of the host: it is what they compute on.
const OF_EITHER: &str = r"RESOURCE_EXHAUSTED: (?:Out of memory|Failed to allocate|Ran out of memory|Attempting to)|Failed to allocate memory for requested buffer of size";

static EITHER: LazyLock<Regex> = LazyLock::new(|| compiled(OF_EITHER));

/// How a failure of Python begins.
const TRACEBACK: &str = "Traceback (most recent call last)";

/// A failure that passes on that of another process.
const PASSED_ON: &str = r"ChildFailedError|Process(?:Raised|Exited)Exception|CalledProcessError|BrokenProcessPool|DataLoader worker|RayTaskError|PanicException";

static OF_ANOTHER: LazyLock<Regex> = LazyLock::new(|| compiled(PASSED_ON));

/// The line of a failure of Python that says what it was.
static EXCEPTION: LazyLock<Regex> =
    LazyLock::new(|| compiled(r"^\s*(?:\[\w+\]:\s*)?[A-Za-z_][\w.]*(?:Error|Exception)\b"));

/// Lines that Python writes between a failure and one that came of it.
const CHAINED: [&str; 2] = ["During handling of the above exception", "The above exception was the direct cause"];

static KNOWN: LazyLock<Vec<(MemoryKind, Regex)>> =
    LazyLock::new(|| MESSAGES.iter().map(|(memory, text)| (*memory, compiled(text))).collect());

fn compiled(text: &str) -> Regex {
    Regex::new(text).expect("it is written here, and tested")
}

/// The out-of-memory that the last lines of a log report. `patterns` are those of the pipeline; they speak of the card where
/// there is one.
pub fn find(log: &str, patterns: &[String], on_card: bool) -> Option<OomRecord> {
    let own = if on_card { MemoryKind::Device } else { MemoryKind::Host };
    // A line ends where a progress bar starts over.
    let log = log.replace('\r', "\n");
    let given = patterns.iter().filter_map(|text| RegexBuilder::new(text).multi_line(true).build().ok());
    let given: Vec<(MemoryKind, Regex)> = given.chain([EITHER.clone()]).map(|pattern| (own, pattern)).collect();
    // The last one decides: what came before it was survived.
    let (memory, at) = KNOWN
        .iter()
        .chain(&given)
        .filter_map(|(memory, pattern)| Some((*memory, pattern.find_iter(&log).last()?.start())))
        .max_by_key(|(_, at)| *at)?;
    if was_survived(&log, at) {
        return None;
    }
    let start = log[..at].rfind('\n').map_or(0, |end| end + 1);
    let message: String = log[start..].chars().take(MESSAGE).collect();
    Some(record(memory, &message))
}

/// Whether a program of Python went on after the message at `at`, and failed of something else: its last failure, with those that
/// it came of, begins later, and does not pass on that of another process.
fn was_survived(log: &str, at: usize) -> bool {
    let failures: Vec<usize> = log.match_indices(TRACEBACK).map(|(start, _)| start).collect();
    let Some((&last, before)) = failures.split_last() else { return false };
    let comes_of = |start: usize, next: usize| CHAINED.iter().any(|text| log[start..next].contains(text));
    let mut first = last;
    for &start in before.iter().rev() {
        if !comes_of(start, first) {
            break;
        }
        first = start;
    }
    let start = log[..at].rfind('\n').map_or(0, |end| end + 1);
    let passes_on = OF_ANOTHER.is_match(&log[first..]) && EXCEPTION.is_match(&log[start..]);
    at < first && !passes_on
}

/// A record that a program has written, with the sizes that its message tells, where it names none itself.
pub fn with_sizes(told: OomRecord) -> OomRecord {
    match told.sizes.requested {
        Some(_) => told,
        None => {
            let sizes = OomSizes { peak: told.sizes.peak, ..record(told.memory, &told.message).sizes };
            OomRecord { sizes, ..told }
        }
    }
}

/// The sizes that a message tells.
fn record(memory: MemoryKind, message: &str) -> OomRecord {
    let size = |pattern: &Regex| pattern.captures(message).and_then(|found| bytes(&found));
    let mut record = OomRecord {
        message: message.lines().next().unwrap_or_default().to_owned(),
        ..OomRecord::new(memory, Phase::Forward)
    };
    record.sizes.requested = REQUESTED.iter().find_map(size);
    let card = CARD.iter().find_map(size);
    let allowed = size(&ALLOWED);
    record.sizes.card_total = card;
    record.sizes.total = allowed.or(card);
    record.sizes.card_free = size(&FREE);
    record.sizes.allocated = size(&ALLOCATED);
    record.sizes.reserved = match size(&UNALLOCATED) {
        Some(unused) => record.sizes.allocated.map(|allocated| allocated.saturating_add(unused)),
        None => size(&RESERVED),
    };
    record.sizes.free = match (allowed, record.sizes.reserved) {
        (Some(allowed), Some(reserved)) => Some(allowed.saturating_sub(reserved)),
        _ => record.sizes.card_free,
    };
    let mut others: Vec<u64> = OTHERS.captures_iter(message).filter_map(|found| bytes(&found)).collect();
    record.sizes.own = size(&OWN).or_else(|| take_own(&mut others, record.sizes.reserved?));
    record.sizes.others =
        (!others.is_empty()).then(|| others.iter().fold(0, |sum: u64, each| sum.saturating_add(*each)));
    record
}

/// In a container torch does not know its own process, and lists it as any other: the smallest that holds what torch does.
fn take_own(processes: &mut Vec<u64>, reserved: u64) -> Option<u64> {
    // Sizes are told with two digits after the point.
    let least = reserved - reserved / 100;
    let (at, own) =
        processes.iter().copied().enumerate().filter(|(_, held)| *held >= least).min_by_key(|(_, held)| *held)?;
    processes.remove(at);
    Some(own)
}

const SIZE: &str = r"(?P<number>\d[\d,]*(?:\.\d*)?)\s?(?P<unit>bytes?|[KMGTPE]i?B|[KMGTPE]\b)";

fn sized(text: &str) -> Regex {
    compiled(&text.replace("SIZE", SIZE))
}

/// A number without a unit.
const BYTES: &str = r"(?P<number>\d+)(?P<unit>)";

static REQUESTED: LazyLock<[Regex; 14]> = LazyLock::new(|| {
    [
        sized("[Tt]ried to allocate SIZE"),
        sized("trying to allocate SIZE"),
        sized("Failed to allocate request for SIZE"),
        sized("(?:Unable to|Cannot) allocate SIZE"),
        sized("[Oo]ut of memory allocating SIZE"),
        sized("memory allocation of SIZE failed"),
        sized("unable to mmap SIZE"),
        sized("Insufficient memory\\) Failed to allocate SIZE"),
        sized("input buffer of size SIZE"),
        sized("(?:cannot allocate|Cannot reserve) SIZE"),
        sized("enough space for SIZE object heap"),
        compiled(&format!("(?:malloc of size|requested buffer of size) {BYTES}")),
        compiled(&format!("cannot allocate {BYTES}-byte block")),
        compiled(&format!("alloc memory of {BYTES} size")),
    ]
});
static CARD: LazyLock<[Regex; 2]> = LazyLock::new(|| [sized("SIZE total capacity"), sized("total capaci?ty of SIZE")]);
static FREE: LazyLock<Regex> = LazyLock::new(|| sized("SIZE (?:is )?free"));
static ALLOWED: LazyLock<Regex> = LazyLock::new(|| sized("SIZE allowed"));
static ALLOCATED: LazyLock<Regex> = LazyLock::new(|| sized("SIZE (?:already allocated|is allocated by PyTorch)"));
static RESERVED: LazyLock<Regex> = LazyLock::new(|| sized("SIZE reserved in total"));
static UNALLOCATED: LazyLock<Regex> = LazyLock::new(|| sized("SIZE is reserved by PyTorch but unallocated"));
static OWN: LazyLock<Regex> = LazyLock::new(|| sized("this process has SIZE memory in use"));
static OTHERS: LazyLock<Regex> = LazyLock::new(|| sized(r"Process \d+ has SIZE memory in use"));

/// Powers of 1024, whichever way the unit is written.
fn bytes(found: &Captures<'_>) -> Option<u64> {
    let number: f64 = found.name("number")?.as_str().replace(',', "").parse().ok()?;
    let factor: u64 = match found.name("unit")?.as_str().chars().next() {
        Some('K') => 1 << 10,
        Some('M') => 1 << 20,
        Some('G') => 1 << 30,
        Some('T') => 1 << 40,
        Some('P') => 1 << 50,
        Some('E') => 1 << 60,
        _ => 1,
    };
    Some((number * factor as f64).round() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_gives_sizes_to_a_record_that_has_none() {
        let message = "CUDA out of memory. Tried to allocate 2.00 GiB.".to_owned();
        let told = OomRecord { message, step: 3, ..OomRecord::new(MemoryKind::Device, Phase::Eval) };
        let told = OomRecord { sizes: OomSizes { peak: Some(5), ..told.sizes }, ..told };
        let record = with_sizes(told.clone());
        assert_eq!((record.sizes.requested, record.sizes.peak), (gib(2.0), Some(5)));
        assert_eq!((record.phase, record.step), (Phase::Eval, 3));
        let own = OomRecord { sizes: OomSizes { requested: Some(1), ..told.sizes }, ..told };
        assert_eq!(with_sizes(own.clone()), own);
    }

    const GIB: f64 = (1u64 << 30) as f64;

    fn gib(size: f64) -> Option<u64> {
        Some((size * GIB).round() as u64)
    }

    fn found(log: &str) -> OomRecord {
        find(log, &[], true).unwrap_or_else(|| panic!("{log}"))
    }

    /// Real texts of many programs, from tests/fixtures/oom_texts: each is read rightly, or is one of those that
    /// only the kernel knows to be out of memory.
    #[test]
    fn real_texts() {
        #[derive(serde::Deserialize)]
        struct Text {
            file: String,
            kind: String,
            requested: Option<u64>,
        }
        // Their program, or what started it, was killed and does not say why; or it says it in words that others use as well.
        const UNREAD: [&str; 10] = [
            "accelerate-1.15.0-no-executable-batch-size.txt",
            "bash-killed.txt",
            "c-sanitizer.txt",
            "dask-killed.txt",
            "python-process-pool-killed.txt",
            "python-subprocess-killed.txt",
            // A thread ran out of memory, and the program went on to another failure.
            "python-thread.txt",
            "sklearn-loky-killed.txt",
            "torch-2.11.0-spawn-killed.txt",
            "torch-2.11.0-torchrun-killed.txt",
        ];
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/oom_texts");
        let index = std::fs::read_to_string(folder.join("index.jsonl")).unwrap();
        let texts: Vec<Text> = index.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let mut wrong = Vec::new();
        for text in &texts {
            let log = String::from_utf8_lossy(&std::fs::read(folder.join(&text.file)).unwrap()).into_owned();
            let found = find(&log, &[], text.kind == "device");
            let kind = found.as_ref().map_or("not_oom", |record| match record.memory {
                MemoryKind::Device => "device",
                MemoryKind::Host => "host",
            });
            let want = if UNREAD.contains(&text.file.as_str()) { "not_oom" } else { text.kind.as_str() };
            let requested = found.and_then(|record| record.sizes.requested);
            // Sizes are told with few digits.
            let near = |a: u64, b: u64| a.abs_diff(b) <= b / 100;
            let has_size = match (requested, text.requested.filter(|_| want != "not_oom")) {
                (Some(found), Some(real)) => near(found, real),
                (found, real) => found == real,
            };
            if kind != want || !has_size {
                wrong.push(format!("{}: {kind} {requested:?}, not {want} {:?}", text.file, text.requested));
            }
        }
        assert!(texts.len() >= 140, "{}", texts.len());
        assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), texts.len(), wrong.join("\n"));
    }

    #[test]
    fn what_was_survived_is_no_verdict() {
        let of = |error: &str| {
            format!("Traceback (most recent call last):\n  File \"a.py\", line 3, in <module>\n{error}\n")
        };
        let oom = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.";
        let (during, cause) =
            (format!("\n{}, another exception occurred:\n\n", CHAINED[0]), format!("\n{} of it:\n\n", CHAINED[1]));
        for (log, is_oom) in [
            (of(oom), true),
            (format!("{}{during}{}", of(oom), of("ValueError: x")), true),
            (format!("{}{cause}{}", of(oom), of("a.b.TrainingError: x")), true),
            (format!("warning: {oom} skipping\nstep 3\n{}", of("ValueError: x")), false),
            (format!("{}step 3\n{}", of(oom), of("RuntimeError: x")), false),
            (format!("{}step 3\n{}{cause}{}", of(oom), of("KeyError: 1"), of("KeyError: 2")), false),
            (
                format!(
                    "tip: when you see CUDA out of memory, lower the batch\n{}",
                    of("subprocess.CalledProcessError: x")
                ),
                false,
            ),
            (
                format!(
                    "[rank0]: {oom}\n{}",
                    of("torch.distributed.elastic.multiprocessing.errors.ChildFailedError: x")
                ),
                true,
            ),
            (
                format!(
                    "{}{}",
                    of(oom),
                    of("subprocess.CalledProcessError: Command 'x' returned non-zero exit status 1.")
                ),
                true,
            ),
            (format!("{}terminate called after throwing an instance of 'std::bad_alloc'\n", of("ValueError: x")), true),
        ] {
            assert_eq!(find(&log, &[], true).is_some(), is_oom, "{log}");
        }
    }

    /// As torch 1.x and 2.0 write it.
    #[test]
    fn sizes_of_an_older_torch() {
        let text = "step 3\rstep 4\rTraceback (most recent call last):\n  File \"train.py\", line 9, in <module>\nRuntimeError: CUDA \
                    out of memory. Tried to allocate 512.00 MiB (GPU 0; 23.70 GiB total capacity; 20.50 GiB already allocated; \
                    128.00 MiB free; 21.25 GiB reserved in total by PyTorch) If reserved memory is >> allocated memory try ...\n";
        let record = found(text);
        assert_eq!(record.memory, MemoryKind::Device);
        assert_eq!(
            (record.sizes.requested, record.sizes.total, record.sizes.card_total),
            (Some(512 << 20), gib(23.7), gib(23.7))
        );
        assert_eq!(
            (record.sizes.allocated, record.sizes.reserved, record.sizes.card_free),
            (gib(20.5), gib(21.25), Some(128 << 20))
        );
        assert!(record.message.starts_with("RuntimeError: CUDA out of memory") && !record.message.contains('\n'));
    }

    /// As torch 2.1 and later write it: with a cap, with other processes, in a container that hides which process is its own.
    #[test]
    fn sizes_of_a_newer_torch() {
        let text = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.25 GiB \
                    of which 1.50 GiB is free. Process 71 has 60.00 GiB memory in use. Including non-PyTorch memory, this process \
                    has 17.50 GiB memory in use. 24.00 GiB allowed; Of the allocated memory 16.00 GiB is allocated by PyTorch, and \
                    512.00 MiB is reserved by PyTorch but unallocated. If reserved but unallocated memory is large ...";
        let record = found(text);
        assert_eq!(
            (record.sizes.requested, record.sizes.total, record.sizes.card_total),
            (gib(2.0), gib(24.0), gib(79.25))
        );
        assert_eq!((record.sizes.allocated, record.sizes.reserved), (gib(16.0), gib(16.5)));
        assert_eq!((record.sizes.own, record.sizes.others, record.sizes.card_free), (gib(17.5), gib(60.0), gib(1.5)));
        assert_eq!(record.sizes.free, gib(7.5), "of what is allowed");
        let contained = text.replace("Including non-PyTorch memory, this process has", "Process 99 has");
        let record = found(&contained);
        assert_eq!((record.sizes.own, record.sizes.others), (gib(17.5), gib(60.0)));
    }

    #[test]
    fn whose_memory_and_how_much() {
        use MemoryKind::{Device, Host};
        for (text, memory, requested) in [
            ("torch.cuda.OutOfMemoryError: HIP out of memory. Tried to allocate 20.00 MiB.", Device, Some(20 << 20)),
            ("RuntimeError: CUDA error: out of memory\nCUDA kernel errors might be ...", Device, None),
            ("RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", Device, None),
            (
                "RuntimeError: [enforce fail at alloc_cpu.cpp:75] err == 0. DefaultCPUAllocator: can't allocate memory: you tried \
                 to allocate 40000000000 bytes. Error code 12 (Cannot allocate memory)",
                Host,
                Some(40_000_000_000),
            ),
            (
                "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 8589934592 bytes.",
                Device,
                Some(8 << 30),
            ),
            (
                "ResourceExhaustedError: OOM when allocating tensor with shape[64,512] and type float on /job:localhost/replica:0/task:0/device:GPU:0 by allocator GPU_0_bfc",
                Device,
                None,
            ),
            (
                "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 1.50 GiB for an array with shape (3,)",
                Host,
                Some(3 << 29),
            ),
            ("Traceback (most recent call last):\nMemoryError", Host, None),
            ("[rank0]: MemoryError", Host, None),
            ("OSError: [Errno 12] Cannot allocate memory", Host, None),
            (
                "torch.OutOfMemoryError: Allocation on device 0 would exceed allowed memory. (out of memory)",
                Device,
                None,
            ),
            ("RuntimeError: HIP error: out of memory", Device, None),
            (
                "cupy.cuda.memory.OutOfMemoryError: Out of memory allocating 8,000,000,000 bytes",
                Device,
                Some(8_000_000_000),
            ),
            ("RuntimeError: DataLoader worker (pid 17) is killed by signal: Killed. ", Host, None),
        ] {
            let record = found(text);
            assert_eq!((record.memory, record.sizes.requested), (memory, requested), "{text}");
        }
    }

    #[test]
    fn what_only_looks_like_it() {
        for text in [
            "",
            "lowering the batch to avoid running out of memory",
            "RuntimeError: CUDA error: an illegal memory access was encountered",
            "RuntimeError: CUDA error: device-side assert triggered",
            "OSError: [Errno 28] No space left on device",
            "429 RESOURCE_EXHAUSTED: Quota exceeded for quota metric",
            "grpc: RESOURCE_EXHAUSTED: Received message larger than max (5 vs. 4)",
            "except MemoryError: pass  # noqa",
        ] {
            assert!(find(text, &[], true).is_none(), "{text}");
        }
        let own = ["heap is full$".to_owned(), "(".to_owned()];
        assert_eq!(find("x: heap is full\nend", &own, true).map(|record| record.memory), Some(MemoryKind::Device));
        assert_eq!(find("x: heap is full", &own, false).map(|record| record.memory), Some(MemoryKind::Host));
    }

    /// A message that was survived does not decide when a later one does.
    #[test]
    fn the_last_message_decides() {
        let text = "CUDA out of memory. Tried to allocate 1.00 GiB.\nretrying\nDefaultCPUAllocator: not enough memory: you tried to allocate 64 bytes.";
        let record = found(text);
        assert_eq!((record.memory, record.sizes.requested), (MemoryKind::Host, Some(64)));
    }
}
