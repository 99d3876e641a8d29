//! Modules and launches: the library's own kernels, compiled for the host.

use crate::failures::{break_with, spoils};
use crate::peers::{ILLEGAL_ADDRESS, may_touch_all, names_others, spoil_others};
use crate::residency;
use crate::streams::{current, find};
use crate::{Answer, INVALID_HANDLE, INVALID_IMAGE, INVALID_VALUE, LAUNCH_FAILED, NOT_FOUND, lock};
use std::collections::{HashMap, HashSet};
use std::ffi::{CStr, CString, c_char, c_void};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
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

/// A kernel of a module, which has to be loaded when it is launched and when it runs.
#[derive(Clone)]
struct Function {
    module: usize,
    name: CString,
}

static FUNCTIONS: LazyLock<Mutex<HashMap<usize, Function>>> = LazyLock::new(Mutex::default);
static MODULES: LazyLock<Mutex<HashSet<usize>>> = LazyLock::new(Mutex::default);

pub fn load(image: *const c_void) -> Answer<*mut c_void> {
    current()?;
    if image.is_null() || host().is_none() {
        return Err(INVALID_IMAGE);
    }
    static NEXT: AtomicUsize = AtomicUsize::new(0x30D0);
    let module = NEXT.fetch_add(16, SeqCst);
    lock(&MODULES).insert(module);
    Ok(std::ptr::without_provenance_mut(module))
}

/// From here on none of the module's kernels can be launched, and those that were have no code.
pub fn unload(module: *mut c_void) -> Answer {
    current()?;
    if lock(&MODULES).remove(&module.addr()) { Ok(()) } else { Err(INVALID_HANDLE) }
}

fn is_loaded(function: &Function) -> bool {
    lock(&MODULES).contains(&function.module)
}

/// # Safety
/// `name` is a C string.
pub unsafe fn function(module: *mut c_void, name: *const c_char) -> Answer<*mut c_void> {
    // SAFETY: the caller's promise.
    let name = unsafe { CStr::from_ptr(name) }.to_owned();
    let host = host().ok_or(NOT_FOUND)?;
    // SAFETY: a C string.
    if unsafe { (host.bytes)(name.as_ptr()) } == 0 {
        return Err(NOT_FOUND);
    }
    let function = Function { module: module.addr(), name };
    if !is_loaded(&function) {
        return Err(INVALID_HANDLE);
    }
    let mut functions = lock(&FUNCTIONS);
    let handle = 0xF000 + 16 * functions.len();
    functions.insert(handle, function);
    Ok(std::ptr::without_provenance_mut(handle))
}

/// How a grid's blocks come to their device.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    OneByOne,
    /// Together, to wait for each other.
    Cooperative,
}

/// # Safety
/// `parameters` has one address, of the structure that the kernel takes.
pub unsafe fn launch(
    function: *mut c_void,
    (grid, block, shared): ([u32; 3], [u32; 3], u32),
    stream: *mut c_void,
    parameters: *mut *mut c_void,
    kind: Kind,
) -> Answer {
    let function = lock(&FUNCTIONS).get(&function.addr()).cloned();
    let function = function.filter(is_loaded).ok_or(INVALID_HANDLE)?;
    let is_possible = grid[0] > 0 && grid[1] > 0 && grid[2] == 1 && block[0] > 0;
    if !is_possible || block[0] > 1024 || block[1..] != [1, 1] || shared > 0 {
        return Err(INVALID_VALUE);
    }
    let host = host().ok_or(NOT_FOUND)?;
    // SAFETY: a C string; then the caller's promise.
    let arguments = unsafe {
        let bytes = (host.bytes)(function.name.as_ptr());
        std::slice::from_raw_parts((*parameters).cast::<u64>(), bytes / 8).to_vec()
    };
    let stream = find(stream)?;
    let ordinal = stream.ordinal;
    let spoils = names_others(ordinal, &arguments) && spoils("cuLaunchKernel");
    // What order there is between graphs, and between them and other work, the program says.
    let is_gang = kind == Kind::Cooperative && lock(&stream.capture).is_none();
    stream.submit(Arc::new(move || {
        let _resident = is_gang.then(|| residency::enter(ordinal, grid[0] * grid[1]));
        if !may_touch_all(ordinal, &arguments) {
            return break_with(ILLEGAL_ADDRESS);
        }
        let (start, bytes) = (arguments.as_ptr().cast(), 8 * arguments.len());
        let name = function.name.as_ptr();
        // SAFETY: the structure is whole; what it points to the program promised.
        let run = || unsafe { (host.launch)(name, grid[0], grid[1], block[0], start, bytes) };
        if !is_loaded(&function) || run() != 0 {
            break_with(LAUNCH_FAILED);
        }
        if spoils {
            // SAFETY: who asked for it has nothing else under way there.
            unsafe { spoil_others(ordinal, &arguments) };
        }
    }));
    Ok(())
}
