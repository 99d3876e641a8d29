//! What kernels read beside their arguments: kept in device memory by what it is, and written once.
//!
//! The device's copy follows the host's in the order of the stream of the launch that needs it
//! first, and later launches of the rank come after. What a graph has captured is kept for ever:
//! its launches name the addresses again.
#![allow(unsafe_code)]

use crate::device::cuda::{Address, Device, Pinned, Stream, copy};
use crate::error::Result;
use std::collections::HashMap;
use std::sync::Arc;

/// Room for the tables of about twenty shapes of calls with many ranks and channels, each some tens
/// of kilobytes.
pub const BYTES: usize = 1 << 20;

/// Tables begin at whole lines.
const LINE: usize = 128;

pub struct Tables {
    device: Arc<Device>,
    mirror: Pinned,
    memory: Address,
    used: usize,
    /// Bytes that are there for good.
    kept: usize,
    known: HashMap<Vec<u8>, Address>,
}

impl Tables {
    /// In [`BYTES`] of device memory.
    pub fn new(device: &Arc<Device>, memory: Address) -> Result<Tables> {
        let mirror = Pinned::new(device, BYTES)?;
        let (device, known) = (device.clone(), HashMap::new());
        Ok(Tables { device, mirror, memory, used: 0, kept: 0, known })
    }

    /// The table of that name, if it is there.
    pub fn find(&self, name: &[u8]) -> Option<Address> {
        self.known.get(name).copied()
    }

    /// The address of the table of that name, made by `fill` for where it will lie if it is not
    /// there; `None` where there is no room. The context is current.
    pub fn place(
        &mut self,
        name: &[u8],
        stream: Stream,
        bytes: usize,
        fill: impl FnOnce(Address, &mut [u8]),
    ) -> Result<Option<Address>> {
        if let Some(address) = self.find(name) {
            return Ok(Some(address));
        }
        if bytes > BYTES - self.used {
            return Ok(None);
        }
        let (at, address) = (self.used, self.memory + self.used as Address);
        let source = self.mirror.pointer().wrapping_add(at);
        // SAFETY: bytes of the mirror that no copy under way reads: those before are used.
        fill(address, unsafe { std::slice::from_raw_parts_mut(source, bytes) });
        let target = std::ptr::with_exposed_provenance_mut(address as usize);
        // SAFETY: as many bytes of the device, which no launch before this one on the rank's
        // streams reads; the mirror keeps what is copied until `clear`.
        unsafe { copy(&self.device, target, source, bytes, stream)? };
        self.used = (at + bytes).next_multiple_of(LINE).min(BYTES);
        self.known.insert(name.to_vec(), address);
        Ok(Some(address))
    }

    /// What is there stays: a graph refers to it.
    pub fn keep(&mut self) {
        self.kept = self.used;
    }

    /// Forget all that is not kept. No launch that is under way may need it.
    pub fn clear(&mut self) {
        let end = self.memory + self.kept as Address;
        self.known.retain(|_, address| *address < end);
        self.used = self.kept;
    }
}
