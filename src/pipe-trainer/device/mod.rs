//! The device: prepared before the first call of torch, and its memory.
//!
//! Asks the CUDA driver about the card, without CUDA headers: its library is loaded where the machine has one.

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::{fs, mem};

use pipe_spec::pipeline::{Limit, Memory, Precision};
use pipe_spec::text::human_bytes;
use pipe_spec::{Device, TrainerSpec, event};
use tch::{Kind, Tensor};

use crate::error::TrainerError;
use crate::host::{self, HostMemory};
use crate::torch::{self, CardMemory};

/// The least memory that a limit must leave beyond what the program holds at its start: with less not even an error can be
/// reported.
const MIN_HEADROOM: u64 = 16 << 20;

pub struct Hardware {
    pub device: tch::Device,
    pub name: String,
    /// Bytes that this run may use.
    pub capacity: Option<u64>,
    pub driver: Option<String>,
    card: Option<Card>,
}

/// Bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Usage {
    pub allocated: u64,
    pub reserved: u64,
    pub peak: u64,
}

impl Hardware {
    pub fn prepare(spec: &TrainerSpec) -> Result<Self, TrainerError> {
        if spec.train.deterministic {
            // Without it cuBLAS may add up in any order. SAFETY: no other thread runs yet.
            unsafe { std::env::set_var("CUBLAS_WORKSPACE_CONFIG", ":4096:8") };
        }
        let hardware = match spec.device {
            Device::Cpu => Self::cpu(&spec.memory),
            Device::Cuda => Self::cuda(spec.device_index, &spec.memory)?,
        };
        if let Some(threads) = spec.threads {
            tch::set_num_threads(i32::try_from(threads).unwrap_or(i32::MAX));
        }
        torch::flush_denormals();
        // Some CPUs have a similar mode, which is not what the pipeline asks for.
        torch::allow_tf32(spec.train.precision == Precision::Tf32 && spec.device == Device::Cuda)?;
        torch::deterministic(spec.train.deterministic)?;
        hardware.warm_up()?;
        Ok(hardware)
    }

    fn cpu(memory: &Memory) -> Self {
        Self {
            device: tch::Device::Cpu,
            name: "cpu".to_owned(),
            capacity: size_limit(memory).or_else(host::total_memory),
            driver: None,
            card: None,
        }
    }

    /// Settings go into the environment and the library is loaded before torch looks for either.
    pub fn cuda(index: u32, memory: &Memory) -> Result<Self, TrainerError> {
        let card = Card::open(index)?;
        let share = match memory.limit {
            None => None,
            Some(Limit::Share(share)) => Some(share),
            Some(Limit::Size(size)) => Some((size.0 as f64 / card.total as f64).min(1.0)),
        };
        let mut settings = memory.allocator.to_string();
        if let Some(share) = share {
            let separator = if settings.is_empty() { "" } else { "," };
            settings.push_str(&format!("{separator}per_process_memory_fraction:{share:.6}"));
        }
        if !settings.is_empty() {
            for name in ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"] {
                // SAFETY: no other thread runs yet.
                unsafe { std::env::set_var(name, &settings) };
            }
        }
        Library::open("libtorch_cuda.so")
            .map_err(|message| TrainerError::Cuda { message: format!("libtorch: {message}") })?;
        torch::prepare_kernels()?;
        if !tch::Cuda::is_available() {
            let message = "the driver is there, but libtorch finds no card it can use".to_owned();
            return Err(TrainerError::Cuda { message });
        }
        torch::use_card(index)?;
        Ok(Self {
            device: tch::Device::Cuda(index as usize),
            name: card.name.clone(),
            capacity: Some(share.map_or(card.total, |share| (card.total as f64 * share) as u64)),
            driver: card.driver_version(),
            card: Some(card),
        })
    }

    /// Lets torch start its threads and load its kernels, whose memory should not depend on when it is asked for.
    fn warm_up(&self) -> Result<(), TrainerError> {
        let ones = Tensor::f_ones([512, 512], (Kind::Float, self.device))?.f_set_requires_grad(true)?;
        ones.f_matmul(&ones)?.f_relu()?.f_sum(Kind::Float)?.f_backward()?;
        Ok(())
    }

    /// On the CPU, holds this process to `usable` of `memory.limit` from now on. On a card the allocator enforces the limit.
    pub fn enforce_limit(&self, memory: &Memory, usable: impl Fn(u64) -> u64) -> Result<(), TrainerError> {
        match size_limit(memory).map(usable) {
            Some(bytes) if self.card.is_none() && bytes < HostMemory::now().data + MIN_HEADROOM => {
                let message = format!("a limit of {} is less than the program itself needs", human_bytes(bytes));
                Err(TrainerError::OutOfMemory { memory: event::MemoryKind::Host, message, host: HostMemory::now() })
            }
            Some(bytes) if self.card.is_none() => host::set_limit(bytes).map_err(|error| TrainerError::Panic {
                message: format!("cannot limit the memory of this process: {error}"),
            }),
            _ => Ok(()),
        }
    }

    /// Bytes that this process could hold now: others may hold some of the card.
    pub fn available(&self) -> Result<Option<u64>, TrainerError> {
        let Some(card) = &self.card else { return Ok(self.capacity) };
        let own = self.card_memory()?.reserved;
        Ok(self.capacity.map(|capacity| card.free().map_or(capacity, |free| capacity.min(free + own))))
    }

    /// Bytes of a card that this run may use.
    pub fn card_capacity(&self) -> Option<u64> {
        self.capacity.filter(|_| self.card.is_some())
    }

    /// Bytes of the whole card, whatever this run may use.
    pub fn card_total(&self) -> Option<u64> {
        self.card.as_ref().map(|card| card.total)
    }

    /// The most that torch has held on the card so far.
    pub fn card_peak(&self) -> Option<u64> {
        self.card.as_ref().and_then(|_| self.card_memory().ok()).map(|card| card.peak_allocated)
    }

    /// Bytes that torch's allocator holds on the card; nothing on the CPU.
    pub fn card_memory(&self) -> Result<CardMemory, TrainerError> {
        match self.device {
            tch::Device::Cuda(index) => Ok(torch::card_memory(index)?),
            _ => Ok(CardMemory::default()),
        }
    }

    /// From now on peaks on the card count from what is held now.
    pub fn reset_peaks(&self) -> Result<(), TrainerError> {
        match self.device {
            tch::Device::Cuda(index) => Ok(torch::reset_peaks(index)?),
            _ => Ok(()),
        }
    }

    /// Waits until the card has done what it was given.
    pub fn synchronize(&self) {
        if let tch::Device::Cuda(index) = self.device {
            tch::Cuda::synchronize(index as i64);
        }
    }

    pub fn usage(&self) -> Usage {
        match &self.card {
            None => {
                let host = HostMemory::now();
                Usage { allocated: host.resident, reserved: host.data, peak: host.peak }
            }
            Some(_) => {
                let card = self.card_memory().unwrap_or_default();
                Usage { allocated: card.allocated, reserved: card.reserved, peak: card.peak_allocated }
            }
        }
    }
}

fn size_limit(memory: &Memory) -> Option<u64> {
    match memory.limit {
        Some(Limit::Size(size)) => Some(size.0),
        Some(Limit::Share(_)) | None => None,
    }
}

pub struct Card {
    driver: Library,
    pub name: String,
    /// Bytes.
    pub total: u64,
}

type CuInit = unsafe extern "C" fn(c_uint) -> c_int;
type CuDeviceGetCount = unsafe extern "C" fn(*mut c_int) -> c_int;
type CuDeviceGet = unsafe extern "C" fn(*mut c_int, c_int) -> c_int;
type CuDeviceGetName = unsafe extern "C" fn(*mut c_char, c_int, c_int) -> c_int;
type CuDeviceTotalMem = unsafe extern "C" fn(*mut usize, c_int) -> c_int;
type CuMemGetInfo = unsafe extern "C" fn(*mut usize, *mut usize) -> c_int;
type CuDriverGetVersion = unsafe extern "C" fn(*mut c_int) -> c_int;

impl Card {
    /// The card with this number, counted from 0, among those that the driver shows.
    pub fn open(index: u32) -> Result<Self, TrainerError> {
        Self::ask(index).map_err(|message| TrainerError::Cuda { message: format!("driver: {message}") })
    }

    fn ask(index: u32) -> Result<Self, String> {
        let driver = Library::open("libcuda.so.1")?;
        let (mut count, mut device, mut total, mut name) = (0, 0, 0, [0; 256]);
        // SAFETY: the types are those of cuda.h, and every pointer is valid for the write it is there for.
        unsafe {
            check("cuInit", driver.function::<CuInit>(c"cuInit")?(0))?;
            check("cuDeviceGetCount", driver.function::<CuDeviceGetCount>(c"cuDeviceGetCount")?(&raw mut count))?;
            let number = c_int::try_from(index).ok().filter(|number| *number < count);
            let number = number.ok_or_else(|| format!("there is no card {index}; it shows {count}"))?;
            check("cuDeviceGet", driver.function::<CuDeviceGet>(c"cuDeviceGet")?(&raw mut device, number))?;
            let get_name = driver.function::<CuDeviceGetName>(c"cuDeviceGetName")?;
            check("cuDeviceGetName", get_name(name.as_mut_ptr(), 255, device))?;
            let total_memory = driver.function::<CuDeviceTotalMem>(c"cuDeviceTotalMem_v2")?;
            check("cuDeviceTotalMem", total_memory(&raw mut total, device))?;
        }
        // SAFETY: the buffer is longer than what the driver may write, and began as zeros.
        let name = unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned();
        Ok(Self { driver, name, total: total as u64 })
    }

    /// Bytes that are free, once torch uses the card in this thread.
    pub fn free(&self) -> Option<u64> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: as above.
        let asked =
            unsafe { self.driver.function::<CuMemGetInfo>(c"cuMemGetInfo_v2").ok()?(&raw mut free, &raw mut total) };
        (asked == 0).then_some(free as u64)
    }

    /// The version of the kernel's driver, or of the CUDA that it supports where that is hidden.
    pub fn driver_version(&self) -> Option<String> {
        let kernel = fs::read_to_string("/proc/driver/nvidia/version").unwrap_or_default();
        let is_version = |word: &&str| word.contains('.') && word.chars().all(|c| c.is_ascii_digit() || c == '.');
        if let Some(version) = kernel.split_whitespace().find(is_version) {
            return Some(version.to_owned());
        }
        let mut version = 0;
        // SAFETY: as above.
        let asked =
            unsafe { self.driver.function::<CuDriverGetVersion>(c"cuDriverGetVersion").ok()?(&raw mut version) };
        (asked == 0).then(|| format!("CUDA {}.{}", version / 1000, version % 1000 / 10))
    }
}

fn check(name: &str, status: c_int) -> Result<(), String> {
    if status == 0 { Ok(()) } else { Err(format!("{name} failed with error {status}")) }
}

pub struct Library(*mut c_void);

impl Library {
    /// Loads `name` by the usual search; its symbols are there for everything loaded later.
    pub fn open(name: &str) -> Result<Self, String> {
        let name = CString::new(name).map_err(|error| error.to_string())?;
        // SAFETY: the name is a valid C string; the libraries opened here may run their initialisers at this point.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
        if handle.is_null() { Err(last_error()) } else { Ok(Self(handle)) }
    }

    /// The function `name`.
    ///
    /// # Safety
    /// `F` must be the type of a pointer to that very function.
    pub unsafe fn function<F: Copy>(&self, name: &CStr) -> Result<F, String> {
        assert_eq!(size_of::<F>(), size_of::<*mut c_void>());
        let address = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        if address.is_null() {
            return Err(last_error());
        }
        Ok(unsafe { mem::transmute_copy(&address) })
    }
}

fn last_error() -> String {
    // SAFETY: dlerror gives null or a C string that lives until the next call on this thread.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return "unknown error of the dynamic linker".to_owned();
    }
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}
