//! The kernels: one module for each context, loaded whole before the first call, and never
//! unloaded.
//!
//! A launch may still be on a stream of the program's, or in a graph that it captured and replays,
//! when the last communicator is long gone; to unload a module under either is undefined, and no
//! event stands for a graph. So a module goes with its context.
#![allow(unsafe_code)]

use super::abi;
use super::context::Device;
use super::cooperative_order::CooperativeOrder;
use super::driver::{Function, Module, NO_BINARY_FOR_GPU, RawStream, TOO_NEW};
use super::launch_order::between_launches;
use crate::error::{Error, Result};
use crate::fork::ForkSafeMutex;
use crate::os::environment::variable;
use crate::types::DataType;
use std::collections::BTreeMap;
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

/// The kernels that there are for every kind of element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelFamily {
    /// Pieces: takes [`abi::ReduceArgs`].
    Reduce,
    /// The interpreter of plans: takes [`abi::PlanArgs`].
    Plan,
    /// Small messages: takes [`abi::OneshotArgs`].
    OneShot,
}

impl KernelFamily {
    const ALL: [KernelFamily; 3] =
        [KernelFamily::Reduce, KernelFamily::Plan, KernelFamily::OneShot];

    const fn name(self) -> &'static str {
        match self {
            KernelFamily::Reduce => "reduce",
            KernelFamily::Plan => "plan",
            KernelFamily::OneShot => "oneshot",
        }
    }
}

/// The blocks of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    pub blocks: u32,
    /// More than one where several ranks have a row each.
    pub rows: u32,
    /// Of a block.
    pub threads: u32,
    /// All blocks are on the device at once, or the driver refuses the launch.
    pub is_cooperative: bool,
}

impl Grid {
    /// Blocks of one rank.
    pub const fn of(blocks: u32) -> Grid {
        Grid { blocks, rows: 1, threads: abi::THREADS as u32, is_cooperative: false }
    }
}

/// A device's kernels, ready to launch.
pub struct Kernels {
    device: Arc<Device>,
    /// By family and kind.
    typed: [[Function; KINDS.len()]; KernelFamily::ALL.len()],
    delay: Function,
    turns: CooperativeOrder,
}

// SAFETY: functions may be launched from any thread; the driver locks what it changes.
unsafe impl Send for Kernels {}
// SAFETY: as above.
unsafe impl Sync for Kernels {}

/// What was loaded, by the number of the context, which no later context has. A device's own
/// context is kept from here on, and its modules with it.
static LOADED: ForkSafeMutex<BTreeMap<u64, Arc<Kernels>>> = ForkSafeMutex::new(BTreeMap::new());

/// A file with kernels to use instead of those that the library was built with.
fn replacement() -> Result<Option<Vec<u8>>> {
    let Some(path) = variable("RINGCOMM_FATBIN") else { return Ok(None) };
    let read = |error: std::io::Error| {
        Error::argument(format!("RINGCOMM_FATBIN={path:?} cannot be read: {error}"))
    };
    std::fs::read(&path).map(Some).map_err(read)
}

impl Kernels {
    /// Those of the context, loaded for its first communicator; or why there are none, which is no
    /// error of who can do without.
    pub fn of(device: &Arc<Device>) -> Result<Result<Arc<Kernels>>> {
        let id = device.context_id()?;
        let mut loaded = LOADED.lock();
        if let Some(kernels) = loaded.get(&id) {
            return Ok(Ok(kernels.clone()));
        }
        let fresh = match Kernels::load(device)? {
            Ok(fresh) => Arc::new(fresh),
            Err(why) => return Ok(Err(why)),
        };
        loaded.insert(id, fresh.clone());
        Ok(Ok(fresh))
    }

    fn load(device: &Arc<Device>) -> Result<Result<Kernels>> {
        let replacement = replacement()?;
        let image = replacement.as_deref().unwrap_or(super::FATBIN);
        if image.is_empty() {
            return Ok(Err(Error::Cuda("ringcomm was built without kernels".into())));
        }
        let (driver, mut module) = (device.driver, std::ptr::null_mut());
        let _between = between_launches();
        let _current = device.enter_aside()?;
        // SAFETY: the place is a local; the driver reads the image by its own header.
        let code = unsafe { (driver.module_load)(&mut module, image.as_ptr().cast()) };
        if code == NO_BINARY_FOR_GPU {
            return Ok(Err(Error::Cuda(format!(
                "CUDA device {} is older than sm_80, the oldest with kernels",
                device.ordinal
            ))));
        }
        if TOO_NEW.contains(&code) {
            return Ok(Err(Error::Cuda(format!(
                "the driver is too old for the kernels: it answered {code} to those for CUDA \
                 device {}",
                device.ordinal
            ))));
        }
        driver.check(
            code,
            &format!(
                "loading the kernels on CUDA device {} (RINGCOMM_CUDA=0 uses host memory only)",
                device.ordinal
            ),
        )?;
        // SAFETY: loaded above; nothing of it was ever launched.
        let unload = |_: &Error| unsafe {
            let _ = (driver.module_unload)(module);
        };
        let function = |name: &str| find(device, module, name).inspect_err(unload);
        let mut typed = [[std::ptr::null_mut(); KINDS.len()]; KernelFamily::ALL.len()];
        for (places, family) in typed.iter_mut().zip(KernelFamily::ALL) {
            for (place, kind) in places.iter_mut().zip(KINDS) {
                *place = function(&format!("ringcomm_{}_{kind}", family.name()))?;
            }
        }
        let delay = function("ringcomm_delay")?;
        Ok(Ok(Kernels { device: device.clone(), typed, delay, turns: CooperativeOrder::default() }))
    }

    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Those of the device's cooperative launches.
    pub fn turns(&self) -> &CooperativeOrder {
        &self.turns
    }

    /// Keep a stream busy for so long, as a test of what is ordered after it. The context is
    /// current.
    ///
    /// # Safety
    /// The stream is one of this device, and lives.
    pub unsafe fn delay(&self, duration_ns: u64, stream: RawStream) -> Result<()> {
        let (arguments, grid) =
            (abi::DelayArgs { duration_ns }, Grid { threads: 1, ..Grid::of(1) });
        // SAFETY: this is the kernel's structure, and it points to nothing; the stream is promised.
        unsafe { self.launch(self.delay, &arguments, grid, stream, "a delay") }
    }

    /// Launch a kernel of a family for elements of a type. The context is current.
    ///
    /// # Safety
    /// `arguments` is the structure that the kernel takes, and what it points to is valid until the
    /// stream is past the launch.
    pub unsafe fn run<T>(
        &self,
        (family, data_type): (KernelFamily, DataType),
        arguments: &T,
        grid: Grid,
        stream: RawStream,
    ) -> Result<()> {
        let function = self.typed[family as usize][kind(data_type)];
        // SAFETY: the caller's promise.
        unsafe { self.launch(function, arguments, grid, stream, family.name()) }
    }

    /// # Safety
    /// As for `run`.
    unsafe fn launch<T>(
        &self,
        function: Function,
        arguments: &T,
        grid: Grid,
        stream: RawStream,
        name: &str,
    ) -> Result<()> {
        let mut parameters = [(&raw const *arguments).cast_mut().cast::<c_void>()];
        let (driver, parameters) = (self.device.driver, parameters.as_mut_ptr());
        let Grid { blocks, rows, threads, is_cooperative } = grid;
        // SAFETY: the caller's promise; the driver copies the structure before it returns.
        let code = unsafe {
            if is_cooperative {
                let launch = driver.launch_cooperative;
                launch(function, blocks, rows, 1, threads, 1, 1, 0, stream, parameters)
            } else {
                let (launch, none) = (driver.launch, std::ptr::null_mut());
                launch(function, blocks, rows, 1, threads, 1, 1, 0, stream, parameters, none)
            }
        };
        match code {
            0 => Ok(()),
            code => Err(driver.refused(code, &format!("launching the kernel {name}"))),
        }
    }
}

fn find(device: &Device, module: Module, name: &str) -> Result<Function> {
    let symbol = CString::new(name).expect("names have no NUL");
    let mut function = std::ptr::null_mut();
    // SAFETY: the place is a local, the module is loaded.
    let code = unsafe { (device.driver.module_function)(&mut function, module, symbol.as_ptr()) };
    device.driver.check(code, &format!("finding the kernel {name}"))?;
    Ok(function)
}
