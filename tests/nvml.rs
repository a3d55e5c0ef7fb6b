//! A stand-in for NVIDIA's management library, for tests of what the runner asks it. It says what the file named by TEST_CARD
//! says when it is asked: a line with the MiB of the card and those that are free, and if it is to be known its compute
//! capability (12.0 is 120), then a line with pid and MiB for every process that computes on it. The next card comes after an empty
//! line. Card 1 has the UUID GPU-00000001-test.

use std::ffi::{c_char, c_int, c_uint, c_void};

const SUCCESS: c_int = 0;
const NOT_SUPPORTED: c_int = 3;
const NOT_FOUND: c_int = 6;
const TOO_SMALL: c_int = 7;

#[repr(C)]
pub struct Memory {
    version: c_uint,
    total: u64,
    reserved: u64,
    free: u64,
    used: u64,
}

#[repr(C)]
pub struct Process {
    pid: c_uint,
    used: u64,
    gpu_instance: c_uint,
    compute_instance: c_uint,
}

/// What is said of each card.
fn cards() -> Option<Vec<String>> {
    let text = std::fs::read_to_string(std::env::var("TEST_CARD").ok()?).ok()?;
    Some(text.trim_end().split("\n\n").map(str::to_owned).collect())
}

/// A handle is never null.
fn index_of(device: *mut c_void) -> usize {
    device as usize / 8 - 1
}

fn text(device: *mut c_void) -> Option<String> {
    cards()?.get(index_of(device)).cloned()
}

/// The first two numbers of every line.
fn card(device: *mut c_void) -> Option<Vec<[u64; 2]>> {
    let text = text(device)?;
    let numbers = |line: &str| {
        let mut words = line.split_whitespace().map(|word| word.parse().ok());
        Some([words.next()??, words.next()??])
    };
    text.lines().map(numbers).collect()
}

fn write(text: &str, into: *mut c_char, length: c_uint) -> c_int {
    let bytes = text.as_bytes();
    assert!(bytes.len() < length as usize);
    unsafe {
        std::ptr::copy_nonoverlapping(bytes.as_ptr().cast(), into, bytes.len());
        *into.add(bytes.len()) = 0;
    }
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlInit_v2() -> c_int {
    if cards().is_some() { SUCCESS } else { NOT_FOUND }
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlShutdown() -> c_int {
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetHandleByIndex_v2(index: c_uint, device: *mut *mut c_void) -> c_int {
    if index as usize >= cards().map_or(0, |cards| cards.len()) {
        return NOT_FOUND;
    }
    unsafe { *device = ((index as usize + 1) * 8) as *mut c_void };
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetCount_v2(count: *mut c_uint) -> c_int {
    unsafe { *count = cards().map_or(0, |cards| cards.len()) as c_uint };
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetUUID(device: *mut c_void, uuid: *mut c_char, length: c_uint) -> c_int {
    write(&format!("GPU-{:08}-test", index_of(device)), uuid, length)
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetName(_: *mut c_void, name: *mut c_char, length: c_uint) -> c_int {
    write("Test Card", name, length)
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlSystemGetDriverVersion(version: *mut c_char, length: c_uint) -> c_int {
    write("1.2.3", version, length)
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetCudaComputeCapability(
    device: *mut c_void,
    major: *mut c_int,
    minor: *mut c_int,
) -> c_int {
    let text = text(device).unwrap_or_default();
    let third = text.lines().next().and_then(|line| line.split_whitespace().nth(2)?.parse::<c_int>().ok());
    let Some(number) = third else { return NOT_SUPPORTED };
    unsafe { (*major, *minor) = (number / 10, number % 10) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetMemoryInfo_v2(device: *mut c_void, memory: *mut Memory) -> c_int {
    let Some([[total, free], ..]) = card(device).as_deref().and_then(|lines| lines.first_chunk::<1>()).copied() else {
        return NOT_FOUND;
    };
    unsafe {
        (*memory).total = total << 20;
        (*memory).free = free << 20;
        (*memory).reserved = 0;
        (*memory).used = (total - free) << 20;
    }
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetComputeRunningProcesses_v3(
    device: *mut c_void,
    count: *mut c_uint,
    into: *mut Process,
) -> c_int {
    let lines = card(device).unwrap_or_default();
    let processes = lines.get(1..).unwrap_or_default();
    let room = unsafe { *count } as usize;
    unsafe { *count = processes.len() as c_uint };
    if room < processes.len() {
        return TOO_SMALL;
    }
    for (position, [pid, mib]) in processes.iter().enumerate() {
        let process =
            Process { pid: *pid as c_uint, used: mib << 20, gpu_instance: c_uint::MAX, compute_instance: c_uint::MAX };
        unsafe { into.add(position).write(process) };
    }
    SUCCESS
}
