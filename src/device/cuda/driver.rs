//! The driver's library, found at run time: the one gate through which everything of CUDA goes.
//!
//! The library is never linked. Every entry point is looked up by name before the first is called,
//! so a driver that lacks one is refused in words. Result codes are numbers and never become an
//! enum: a newer driver has codes that this library does not know.
#![allow(unsafe_code)]

pub use super::driver_sys::*;
use crate::error::{Error, Result};
use crate::fork::Once;
use std::ffi::{CStr, c_char, c_void};

/// The oldest driver with all that is used: CUDA 12.0. What the kernels need beyond that, the
/// driver says itself when it loads them.
const OLDEST: i32 = 12000;

/// Where the driver's library is looked for.
const LIBRARY: &CStr = c"libcuda.so.1";

macro_rules! bound {
    ($($name:ident = $symbol:ident ($($argument:ty),*);)*) => {
        /// The entry points, by what they do.
        pub struct Driver {
            $(pub(super) $name: unsafe extern "C" fn($($argument),*) -> Code,)*
        }

        impl Driver {
            /// The names of all entry points.
            pub const SYMBOLS: &[&str] = &[$(stringify!($symbol)),*];

            /// Look every entry point up in a loaded library.
            fn bind(library: *mut c_void) -> Result<Driver> {
                Ok(Driver {
                    $($name: {
                        let found = look_up(library, concat!(stringify!($symbol), "\0"))?;
                        // SAFETY: the driver's interface gives this name this type.
                        unsafe {
                            std::mem::transmute::<
                                *mut c_void,
                                unsafe extern "C" fn($($argument),*) -> Code,
                            >(found)
                        }
                    },)*
                })
            }
        }
    };
}

entry_points!(bound);

/// An entry point's address; `symbol` ends with a NUL.
fn look_up(library: *mut c_void, symbol: &str) -> Result<*mut c_void> {
    // SAFETY: a library that stays loaded, and a C string.
    let found = unsafe { libc::dlsym(library, symbol.as_ptr().cast()) };
    if found.is_null() {
        let name = symbol.trim_end_matches('\0');
        return Err(Error::Cuda(format!(
            "the CUDA driver has no {name}: it is older than CUDA {}.{}, or damaged; install a \
             newer NVIDIA driver, or set RINGCOMM_CUDA=0 to use host memory only",
            OLDEST / 1000,
            OLDEST % 1000 / 10
        )));
    }
    Ok(found)
}

/// The driver, or why there is none, once it was asked for.
static DRIVER: Once<Result<Driver>> = Once::new();

/// Open the driver's library with these flags; NULL where it is not there.
fn library(flags: libc::c_int) -> *mut c_void {
    // SAFETY: a C string; loading the driver runs its initializers, as any CUDA program does.
    unsafe { libc::dlopen(LIBRARY.as_ptr(), flags) }
}

/// Whether somebody has loaded the driver's library, as far as the kernel knows.
///
/// Asked before `dlopen` is, which for a library that is not there maps the loader's cache, and in
/// a child of a process whose other thread was just unmapping that, unmaps it once more: whatever
/// is there by then. Nor can such a child have the loader's list, whose lock may be held for ever.
fn is_loaded() -> bool {
    // In the name of the file that `LIBRARY` links to. Others may have it, too, which the loader
    // tells apart; so it does where the kernel says nothing.
    const NAME: &[u8] = b"cuda.so";
    std::fs::read("/proc/self/maps")
        .map_or(true, |maps| maps.windows(NAME.len()).any(|text| text == NAME))
}

/// What the dynamic loader said last.
fn loader_text() -> String {
    // SAFETY: the loader's own text, read before anything else is asked of it.
    unsafe {
        let text = libc::dlerror();
        if text.is_null() {
            return "no reason given".into();
        }
        CStr::from_ptr(text).to_string_lossy().into_owned()
    }
}

impl Driver {
    /// The context that is current on this thread; NULL where there is none.
    ///
    /// Loads and starts nothing: a program that has device memory has done both, and no other
    /// program pays for it, or is bothered by a driver that would not do.
    pub(super) fn context_here() -> Context {
        if !is_loaded() {
            return std::ptr::null_mut();
        }
        let handle = library(libc::RTLD_LAZY | libc::RTLD_NOLOAD);
        if handle.is_null() {
            return std::ptr::null_mut();
        }
        let mut context = std::ptr::null_mut();
        // SAFETY: the driver's interface gives this name this type; the place is a local.
        unsafe {
            let found = libc::dlsym(handle, c"cuCtxGetCurrent".as_ptr());
            if !found.is_null() {
                let current = std::mem::transmute::<*mut c_void, CurrentContext>(found);
                if current(&mut context) != 0 {
                    context = std::ptr::null_mut();
                }
            }
            // The program's own handle keeps the driver.
            libc::dlclose(handle);
        }
        context
    }

    /// The driver, loaded if need be.
    pub fn get() -> Result<&'static Driver> {
        DRIVER.get_or_make(Driver::start).as_ref().map_err(Error::clone)
    }

    fn start() -> Result<Driver> {
        let handle = library(libc::RTLD_NOW | libc::RTLD_LOCAL);
        if handle.is_null() {
            return Err(Error::Cuda(format!(
                "there is no CUDA driver here ({}); a rank on a GPU needs the NVIDIA driver, \
                 ranks on the CPU do not",
                loader_text()
            )));
        }
        let driver = Driver::bind(handle)?;
        // SAFETY: the driver's interface; the numbers are written before they are read.
        unsafe {
            driver.check((driver.init)(0), "starting the CUDA driver")?;
            let mut version = 0;
            driver.check((driver.version)(&mut version), "asking for the driver's version")?;
            if version < OLDEST {
                return Err(Error::Cuda(format!(
                    "the CUDA driver is of CUDA {}.{} and ringcomm needs {}.{}; install a newer \
                     NVIDIA driver, or set RINGCOMM_CUDA=0 to use host memory only",
                    version / 1000,
                    version % 1000 / 10,
                    OLDEST / 1000,
                    OLDEST % 1000 / 10
                )));
            }
        }
        Ok(driver)
    }

    /// An error for any code but success; `what` is what was being done.
    #[inline]
    pub(super) fn check(&self, code: Code, what: &str) -> Result<()> {
        if code == 0 { Ok(()) } else { Err(self.refused(code, what)) }
    }

    #[cold]
    pub(super) fn refused(&self, code: Code, what: &str) -> Error {
        // SAFETY: both give a text that is never freed, or leave NULL for a code they do not know.
        let (name, text) = unsafe { (text(self.error_name, code), text(self.error_string, code)) };
        match (name, text) {
            (Some(name), Some(text)) => Error::Cuda(format!("{what}: {text} ({name}, {code})")),
            _ => Error::Cuda(format!("{what}: the CUDA driver answered {code}")),
        }
    }

    /// Do what a capture might see, but does not, until the guard goes: other libraries' captures
    /// forbid their own thread, or all, what might end up in a graph by mistake.
    #[must_use]
    pub(super) fn aside(&self) -> Aside<'_> {
        let mut mode = RELAXED;
        // SAFETY: the place is a local.
        let code = unsafe { (self.capture_mode)(&mut mode) };
        Aside { driver: self, before: (code == 0).then_some(mode) }
    }

    /// How many devices there are; a machine with a driver and no GPU has none.
    pub fn devices(&self) -> Result<i32> {
        let mut count = 0;
        // SAFETY: the count is a local.
        match unsafe { (self.device_count)(&mut count) } {
            NO_DEVICE => Ok(0),
            code => self.check(code, "counting CUDA devices").map(|()| count),
        }
    }
}

/// This thread does as it likes beside captures.
pub struct Aside<'a> {
    driver: &'a Driver,
    /// What it kept to before; not known where the driver does not say, and changes nothing.
    before: Option<i32>,
}

impl Drop for Aside<'_> {
    fn drop(&mut self) {
        if let Some(mut mode) = self.before {
            // SAFETY: the place is a local.
            unsafe { (self.driver.capture_mode)(&mut mode) };
        }
    }
}

type Describe = unsafe extern "C" fn(Code, *mut *const c_char) -> Code;

unsafe fn text(describe: Describe, code: Code) -> Option<String> {
    let mut text = std::ptr::null();
    // SAFETY: the caller's promise: the text stays.
    unsafe {
        if describe(code, &mut text) != 0 || text.is_null() {
            return None;
        }
        Some(CStr::from_ptr(text).to_string_lossy().into_owned())
    }
}
