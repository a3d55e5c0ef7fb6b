//! Asks the CUDA driver about the card, without CUDA headers: its library is loaded where the machine has one.

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::fs;
use std::mem;

use crate::error::TrainerError;

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
