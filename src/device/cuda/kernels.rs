//! The kernels: one module for each device, loaded whole before the first call.
#![allow(unsafe_code)]

use super::abi;
use super::context::Device;
use super::driver::{Function, Module, Stream};
use crate::error::{Error, Result};
use crate::types::DataType;
use std::ffi::{CString, c_void};
use std::sync::Arc;

/// How the names of kernels end, by what they compute with.
const KINDS: [&str; 10] = ["w1", "w2", "w4", "w8", "e4m3", "e5m2", "f16", "bf16", "f32", "f64"];

/// The kernels that handle elements of this type, by index into [`KINDS`].
fn kind(data_type: DataType) -> usize {
    use DataType::*;
    match data_type {
        Int8 | Uint8 | Bool => 0,
        Int16 | Uint16 => 1,
        Int32 | Uint32 => 2,
        Int64 | Uint64 => 3,
        Float8e4m3 => 4,
        Float8e5m2 => 5,
        Float16 => 6,
        Bfloat16 => 7,
        Float32 => 8,
        Float64 => 9,
    }
}

/// A device's kernels, ready to launch.
pub struct Kernels {
    device: Arc<Device>,
    module: Module,
    reduce: [Function; KINDS.len()],
    delay: Function,
}

// SAFETY: functions may be launched from any thread; the driver locks what it changes.
unsafe impl Send for Kernels {}
// SAFETY: as above.
unsafe impl Sync for Kernels {}

/// A file with kernels to use instead of those that the library was built with.
fn replacement() -> Result<Option<Vec<u8>>> {
    let Ok(path) = std::env::var("RINGCOMM_KERNELS") else { return Ok(None) };
    let read = |error: std::io::Error| {
        Error::argument(format!("RINGCOMM_KERNELS={path:?} cannot be read: {error}"))
    };
    std::fs::read(&path).map(Some).map_err(read)
}

impl Kernels {
    /// Load them; `None` where the library was built without.
    pub fn load(device: &Arc<Device>) -> Result<Option<Kernels>> {
        let replacement = replacement()?;
        let image = replacement.as_deref().unwrap_or(super::FATBIN);
        if image.is_empty() {
            return Ok(None);
        }
        let (driver, mut module) = (device.driver, std::ptr::null_mut());
        let _current = device.enter()?;
        // SAFETY: the place is a local; the driver reads the image by its own header.
        let code = unsafe { (driver.module_load)(&mut module, image.as_ptr().cast()) };
        driver.check(
            code,
            &format!(
                "loading the kernels on CUDA device {} (the driver may be too old for \
                      them; RINGCOMM_CUDA=0 uses host memory only)",
                device.ordinal
            ),
        )?;
        let reduce = [std::ptr::null_mut(); KINDS.len()];
        let delay = std::ptr::null_mut();
        let mut kernels = Kernels { device: device.clone(), module, reduce, delay };
        for (index, kind) in KINDS.iter().enumerate() {
            kernels.reduce[index] = kernels.function(&format!("ringcomm_reduce_{kind}"))?;
        }
        kernels.delay = kernels.function("ringcomm_delay")?;
        Ok(Some(kernels))
    }

    fn function(&self, name: &str) -> Result<Function> {
        let symbol = CString::new(name).expect("names have no NUL");
        let mut function = std::ptr::null_mut();
        // SAFETY: the place is a local, the module is loaded.
        let code = unsafe {
            (self.device.driver.module_function)(&mut function, self.module, symbol.as_ptr())
        };
        self.device.driver.check(code, &format!("finding the kernel {name}"))?;
        Ok(function)
    }

    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Keep a stream busy for so long, as a test of what is ordered after it. The context is
    /// current.
    ///
    /// # Safety
    /// The stream is one of this device, and lives.
    pub unsafe fn delay(&self, duration_ns: u64, stream: Stream) -> Result<()> {
        let arguments = abi::DelayArgs { duration_ns };
        // SAFETY: this is the kernel's structure, and it points to nothing; the stream is promised.
        unsafe { self.launch(self.delay, &arguments, (1, 1), stream, "launching a delay") }
    }

    /// Launch the reduction kernel for a type. The context is current.
    ///
    /// # Safety
    /// `arguments` is the structure that the kernel takes, and what it points to is valid until the
    /// stream is past the launch.
    pub(super) unsafe fn reduce<T>(
        &self,
        data_type: DataType,
        arguments: &T,
        blocks: u32,
        threads: u32,
        stream: Stream,
    ) -> Result<()> {
        let (function, shape) = (self.reduce[kind(data_type)], (blocks, threads));
        // SAFETY: the caller's promise.
        unsafe { self.launch(function, arguments, shape, stream, "launching a reduction kernel") }
    }

    /// # Safety
    /// As for `reduce`.
    unsafe fn launch<T>(
        &self,
        function: Function,
        arguments: &T,
        (blocks, threads): (u32, u32),
        stream: Stream,
        doing: &str,
    ) -> Result<()> {
        let mut parameters = [(&raw const *arguments).cast_mut().cast::<c_void>()];
        // SAFETY: the caller's promise; the driver copies the structure before it returns.
        let code = unsafe {
            let launch = self.device.driver.launch;
            let none = std::ptr::null_mut();
            launch(function, blocks, 1, 1, threads, 1, 1, 0, stream, parameters.as_mut_ptr(), none)
        };
        self.device.driver.check(code, doing)
    }
}

impl Drop for Kernels {
    fn drop(&mut self) {
        if let Ok(_current) = self.device.enter() {
            // SAFETY: loaded by `load`, and this was its owner.
            unsafe { (self.device.driver.module_unload)(self.module) };
        }
    }
}
