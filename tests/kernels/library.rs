//! The kernels compiled for the host: built once from their sources, loaded, launched.

use crate::abi;
use ringcomm::types::DataType;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::io::{Write, stderr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::SystemTime;

type Launch = unsafe extern "C" fn(*const c_char, u32, u32, u32, *const c_void, usize) -> c_int;

/// A row of the table of `abi.h`'s fields.
#[repr(C)]
pub struct Field {
    structure: *const c_char,
    field: *const c_char,
    pub offset: usize,
    pub bytes: usize,
}

impl Field {
    pub fn names(&self) -> (&str, &str) {
        // SAFETY: the library's table holds literals.
        unsafe {
            let text = |pointer| CStr::from_ptr(pointer).to_str().unwrap();
            (text(self.structure), text(self.field))
        }
    }
}

pub struct Kernels {
    launch: Launch,
    args_bytes: unsafe extern "C" fn(*const c_char) -> usize,
    block: unsafe extern "C" fn(u32),
    pub layout: &'static [Field],
}

/// The structure that a kernel takes.
pub trait Args: Sized {
    /// All zero, which is a value of every field.
    fn zeroed() -> Box<Self> {
        // SAFETY: the structures of `abi.rs` are numbers.
        unsafe { Box::new(std::mem::zeroed()) }
    }
}

impl Args for abi::ReduceArgs {}
impl Args for abi::PlanArgs {}
impl Args for abi::OneshotArgs {}

impl Kernels {
    /// Run a kernel to its end on `rows` rows of `blocks` blocks.
    pub fn launch<A: Args>(&self, symbol: &str, blocks: u32, rows: u32, args: &A) {
        self.launch_with(symbol, [blocks, rows, 1], args);
    }

    /// As `launch`, in so many threads of a block, as far as they really run.
    pub fn launch_with<A: Args>(&self, symbol: &str, grid: [u32; 3], args: &A) {
        let name = CString::new(symbol).unwrap();
        let [blocks, rows, threads] = grid;
        let pointer = std::ptr::from_ref(args).cast();
        // SAFETY: the structure is the one that the kernel takes, or the size would be refused.
        let code =
            unsafe { (self.launch)(name.as_ptr(), blocks, rows, threads, pointer, size_of::<A>()) };
        assert_eq!(code, 0, "{symbol} was not launched");
    }

    /// How many threads really run in a block of the launches that follow.
    pub fn threads(&self, count: u32) {
        // SAFETY: the function stores a number.
        unsafe { (self.block)(count) };
    }

    pub fn args_bytes(&self, symbol: &str) -> usize {
        let name = CString::new(symbol).unwrap();
        // SAFETY: the name is a C string.
        unsafe { (self.args_bytes)(name.as_ptr()) }
    }
}

/// The suffix of the kernels of a type.
pub fn kind(data_type: DataType) -> &'static str {
    use DataType::*;
    match data_type {
        Int8 | Uint8 | Bool => "w1",
        Int16 | Uint16 => "w2",
        Int32 | Uint32 => "w4",
        Int64 | Uint64 => "w8",
        Float8e4m3 => "e4m3",
        Float8e5m2 => "e5m2",
        Float16 => "f16",
        Bfloat16 => "bf16",
        Float32 => "f32",
        Float64 => "f64",
    }
}

fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels")
}

fn modified(path: &Path) -> Option<SystemTime> {
    path.metadata().and_then(|metadata| metadata.modified()).ok()
}

/// The library, compiled if it is older than its sources; `None` without a C++ compiler.
fn build() -> Option<PathBuf> {
    let library = Path::new(env!("CARGO_TARGET_TMPDIR")).join("libringcomm_kernels_host.so");
    let newest = sources().read_dir().unwrap().filter_map(|entry| modified(&entry.unwrap().path()));
    if modified(&library) > newest.max() {
        return Some(library);
    }
    if Command::new("g++").arg("--version").output().is_err() {
        return None;
    }
    let status = Command::new(sources().join("build-host")).arg(&library).status().unwrap();
    assert!(status.success(), "the kernels do not compile for the host");
    Some(library)
}

fn load(library: &Path) -> Kernels {
    let path = CString::new(library.to_str().unwrap()).unwrap();
    // SAFETY: the library was made from this repository's sources, and its symbols have these
    // types; it is never unloaded.
    unsafe {
        let handle = libc::dlopen(path.as_ptr(), libc::RTLD_NOW);
        assert!(!handle.is_null(), "{} does not load", library.display());
        let symbol = |name: &CStr| {
            let address = libc::dlsym(handle, name.as_ptr());
            assert!(!address.is_null(), "{name:?} is missing");
            address
        };
        let count = *symbol(c"ringcomm_host_layout_count").cast::<usize>();
        let fields = symbol(c"ringcomm_host_layout").cast::<Field>();
        Kernels {
            launch: std::mem::transmute::<*mut c_void, Launch>(symbol(c"ringcomm_host_launch")),
            args_bytes: std::mem::transmute::<
                *mut c_void,
                unsafe extern "C" fn(*const c_char) -> usize,
            >(symbol(c"ringcomm_host_args_bytes")),
            block: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(u32)>(symbol(
                c"ringcomm_host_block",
            )),
            layout: std::slice::from_raw_parts(fields, count),
        }
    }
}

// SAFETY: tables of literals, which nobody writes.
unsafe impl Sync for Kernels {}
// SAFETY: as above.
unsafe impl Send for Kernels {}

/// The kernels, or `None` where there is no compiler to make them, which the test says: past the
/// harness, which counts it as passed, and the scripts count these lines.
pub fn kernels() -> Option<&'static Kernels> {
    static KERNELS: OnceLock<Option<Kernels>> = OnceLock::new();
    let kernels = KERNELS.get_or_init(|| build().map(|library| load(&library))).as_ref();
    if kernels.is_none() {
        let thread = std::thread::current();
        let test = thread.name().unwrap_or("a_test");
        let _ = writeln!(
            stderr(),
            "skipped: kernels::{test}: there is no g++ to compile them for the host"
        );
    }
    kernels
}
