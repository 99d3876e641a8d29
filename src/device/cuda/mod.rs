//! Memory and arithmetic of CUDA devices, through the driver's own interface.
//!
//! Nothing here waits for the device except by asking again, and nothing allocates but what says
//! so. Work is ordered by streams and events; whoever calls sees to it that every wait points at
//! work that is already submitted, so that it cannot matter how many hardware queues there are.

#[path = "../../../kernels/abi.rs"]
#[allow(dead_code)]
pub mod abi;
mod context;
mod cooperative_order;
mod driver;
mod driver_sys;
mod event;
mod fused;
mod kernels;
mod launch_order;
mod memory;
mod stream_memops;

pub use context::{Current, Device};
pub use cooperative_order::CooperativeOrder;
pub use driver::{Address, Driver, IpcMemHandle, RawStream};
pub use event::{
    Capture, Event, OwnedStream, PER_THREAD_STREAM, Recording, Replay, Trail, check_stream, wait,
};
pub use fused::{Fused, MOST_ENDS, MOST_SCALED};
pub(crate) use fused::{copied_as, tile};
pub use kernels::{Grid, KernelFamily, Kernels};
pub use launch_order::{DeferredFree, SpinKernelsActive, in_one_order};
pub use memory::ipc::{Allocation, Imported};
pub use memory::va_range::{Addresses, MappedRun, Mapping};
pub use memory::vmm::{Carriers, HandleType, PhysicalPiece};
pub use memory::{DeviceMemory, Pinned, PointerKind, copy, fill};
pub use stream_memops::{HostRegistration, wait_value, write_value};

/// The kernels for all architectures, compiled when the library was built; empty without nvcc.
const FATBIN: &[u8] = include_bytes!(env!("RINGCOMM_EMBEDDED_FATBIN"));
