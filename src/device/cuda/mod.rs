//! Memory and arithmetic of CUDA devices, through the driver's own interface.
//!
//! Nothing here waits for the device except by asking again, and nothing allocates but what says
//! so. Work is ordered by streams and events; whoever calls sees to it that every wait points at
//! work that is already submitted, so that it cannot matter how many hardware queues there are.

#[path = "../../../kernels/abi.rs"]
#[allow(dead_code)]
pub mod abi;
mod addresses;
mod context;
mod driver;
mod event;
mod flag;
mod fused;
mod interface;
mod kernels;
mod memory;
mod order;
mod pieces;
mod share;
mod turns;

pub use addresses::{Addresses, Mapping, Run};
pub use context::{Current, Device};
pub use driver::{Address, Driver, Shareable, Stream};
pub use event::{
    Capture, Event, OwnedStream, PER_THREAD_STREAM, Recording, Replay, Trail, check_stream, wait,
};
pub use flag::{Registered, wait_value, write_value};
pub use fused::{Fused, MOST_ENDS, MOST_SCALED};
pub(crate) use fused::{copied_as, tile};
pub use kernels::{Family, Grid, Kernels};
pub use memory::{DeviceMemory, Kind, Pinned, copy, fill};
pub use order::{Interlocked, Lasting, in_one_order};
pub use pieces::{Carrier, Carriers, Piece};
pub use share::{Allocation, Imported};
pub use turns::Turns;

/// The kernels for all architectures, compiled when the library was built; empty without nvcc.
const FATBIN: &[u8] = include_bytes!(env!("RINGCOMM_FATBIN"));
