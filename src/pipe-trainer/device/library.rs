//! Shared libraries that are loaded when the program runs, because not every machine has them.

use std::ffi::{CStr, CString, c_void};
use std::mem;

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
