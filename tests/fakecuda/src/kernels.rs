//! Modules and launches: the library's own kernels, compiled for the host.

use crate::streams::{current, find};
use crate::{Answer, INVALID_HANDLE, INVALID_IMAGE, INVALID_VALUE, NOT_FOUND, lock};
use std::collections::HashMap;
use std::ffi::{CStr, CString, c_char, c_void};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, LazyLock, Mutex, OnceLock};

type Launch = unsafe extern "C" fn(*const c_char, u32, u32, u32, *const c_void, usize) -> i32;
type Bytes = unsafe extern "C" fn(*const c_char) -> usize;

/// The interface of the host's kernels.
struct Host {
    launch: Launch,
    bytes: Bytes,
}

fn host() -> Option<&'static Host> {
    static HOST: OnceLock<Option<Host>> = OnceLock::new();
    HOST.get_or_init(|| {
        let path = CString::new(std::env::var("FAKECUDA_KERNELS").ok()?).ok()?;
        // SAFETY: a library of the tests, with functions of these names and types.
        unsafe {
            let library = libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL);
            if library.is_null() {
                return None;
            }
            let launch = libc::dlsym(library, c"ringcomm_host_launch".as_ptr());
            let bytes = libc::dlsym(library, c"ringcomm_host_args_bytes".as_ptr());
            if launch.is_null() || bytes.is_null() {
                return None;
            }
            Some(Host {
                launch: std::mem::transmute::<*mut c_void, Launch>(launch),
                bytes: std::mem::transmute::<*mut c_void, Bytes>(bytes),
            })
        }
    })
    .as_ref()
}

/// A kernel failed: the device answers everything with an error from then on.
pub static BROKEN: AtomicBool = AtomicBool::new(false);

static FUNCTIONS: LazyLock<Mutex<HashMap<usize, CString>>> = LazyLock::new(Mutex::default);
static MODULES: AtomicUsize = AtomicUsize::new(0);

pub fn load(image: *const c_void) -> Answer<*mut c_void> {
    current()?;
    if image.is_null() || host().is_none() {
        return Err(INVALID_IMAGE);
    }
    MODULES.fetch_add(1, SeqCst);
    Ok(std::ptr::without_provenance_mut(0x30D0))
}

/// # Safety
/// `name` is a C string.
pub unsafe fn function(name: *const c_char) -> Answer<*mut c_void> {
    // SAFETY: the caller's promise.
    let name = unsafe { CStr::from_ptr(name) }.to_owned();
    let host = host().ok_or(NOT_FOUND)?;
    // SAFETY: a C string.
    if unsafe { (host.bytes)(name.as_ptr()) } == 0 {
        return Err(NOT_FOUND);
    }
    let mut functions = lock(&FUNCTIONS);
    let known = functions.iter().find(|(_, other)| **other == name).map(|(handle, _)| *handle);
    let handle = known.unwrap_or(0xF000 + 16 * functions.len());
    functions.insert(handle, name);
    Ok(std::ptr::without_provenance_mut(handle))
}

/// # Safety
/// `parameters` has one address, of the structure that the kernel takes.
pub unsafe fn launch(
    function: *mut c_void,
    (grid, block, shared): ([u32; 3], [u32; 3], u32),
    stream: *mut c_void,
    parameters: *mut *mut c_void,
) -> Answer {
    let name = lock(&FUNCTIONS).get(&function.addr()).cloned().ok_or(INVALID_HANDLE)?;
    let is_possible = grid[0] > 0 && grid[1] > 0 && grid[2] == 1 && block[0] > 0;
    if !is_possible || block[0] > 1024 || block[1..] != [1, 1] || shared > 0 {
        return Err(INVALID_VALUE);
    }
    let host = host().ok_or(NOT_FOUND)?;
    // SAFETY: a C string; then the caller's promise.
    let arguments = unsafe {
        let bytes = (host.bytes)(name.as_ptr());
        std::slice::from_raw_parts((*parameters).cast::<u64>(), bytes / 8).to_vec()
    };
    find(stream)?.submit(Arc::new(move || {
        let (start, bytes) = (arguments.as_ptr().cast(), 8 * arguments.len());
        // SAFETY: the structure is whole; what it points to the program promised.
        let code =
            unsafe { (host.launch)(name.as_ptr(), grid[0], grid[1], block[0], start, bytes) };
        if code != 0 {
            BROKEN.store(true, SeqCst);
        }
    }));
    Ok(())
}
