//! A communicator: the ranks that work together, and the calls they make.
//!
//! (Signatures first: the bodies arrive with the executor.)
#![allow(unused_variables)]

pub mod call;

use crate::bootstrap::UniqueId;
use crate::config::Config;
use crate::error::{Error, Result};
use crate::types::DataType;
pub use call::{Call, Vector};

/// One rank's end of a communicator. Calls from several threads take turns.
pub struct Communicator {}

/// How a call would run, for `ringCommExplain` and `ring-perf --explain`.
#[derive(Clone, Debug)]
pub struct Explanation {
    pub algorithm: &'static str,
    /// How data moves: "thread direct", "shm staged", "shm mapped", ...
    pub transport: &'static str,
    pub channels: usize,
    pub chunks: usize,
    pub slices: usize,
    pub slice_bytes: usize,
    pub predicted_us: f64,
}

/// One message of a point-to-point batch.
#[derive(Clone, Copy, Debug)]
pub enum Message {
    Send { buffer: *const u8, count: usize, data_type: DataType, peer: usize },
    Recv { buffer: *mut u8, count: usize, data_type: DataType, peer: usize },
}

fn later<T>() -> Result<T> {
    Err(Error::Internal("not written yet".into()))
}

impl Communicator {
    /// Join `nranks` ranks that share `id`; returns when all have come.
    pub fn init_rank(
        nranks: usize,
        id: &UniqueId,
        rank: usize,
        config: &Config,
    ) -> Result<Communicator> {
        later()
    }

    /// All ranks of a new communicator in this process.
    pub fn init_all(nranks: usize, config: &Config) -> Result<Vec<Communicator>> {
        later()
    }

    pub fn rank(&self) -> usize {
        0
    }

    pub fn nranks(&self) -> usize {
        0
    }

    /// Run one collective; returns when this rank's buffers may be used again.
    ///
    /// # Safety
    /// The buffers of `call` are valid for the extents its collective defines.
    #[allow(unsafe_code)]
    pub unsafe fn run(&self, call: &Call) -> Result<()> {
        later()
    }

    /// Run sends and receives together; they complete in any order.
    ///
    /// # Safety
    /// Every buffer is valid for its count.
    #[allow(unsafe_code)]
    pub unsafe fn exchange(&self, messages: &[Message]) -> Result<()> {
        later()
    }

    /// A communicator of the ranks that give the same color, ordered by (key, rank). `None` for a
    /// negative color.
    pub fn split(
        &self,
        color: i32,
        key: i32,
        config: Option<&Config>,
    ) -> Result<Option<Communicator>> {
        later()
    }

    /// A communicator without the `excluded` ranks; they need not take part.
    pub fn shrink(&self, excluded: &[usize], config: Option<&Config>) -> Result<Communicator> {
        later()
    }

    /// Fail everything running on this rank and tell the peers. From any thread.
    pub fn abort(&self) {}

    /// The error that broke the communicator, if one has.
    pub fn async_error(&self) -> Option<Error> {
        None
    }

    pub fn explain(&self, call: &Call) -> Result<Explanation> {
        later()
    }

    /// The flight record as JSON: the last operations, and who waits for whom. From any thread.
    pub fn dump(&self) -> String {
        String::new()
    }

    /// Register a page-aligned range or memory of `memory::allocate`, so that peers in other
    /// processes read and write it directly. Returns a handle for `deregister`.
    pub fn register(&self, address: *mut u8, bytes: usize) -> Result<u64> {
        later()
    }

    pub fn deregister(&self, handle: u64) -> Result<()> {
        later()
    }

    /// Wait for every call that was started, then say goodbye to the peers.
    pub fn finalize(&self) -> Result<()> {
        later()
    }
}
