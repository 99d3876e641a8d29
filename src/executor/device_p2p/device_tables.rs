//! What kernels read beside their arguments: kept in device memory by what it is, and written once.
//!
//! The device's copy follows the host's in the order of the stream of the launch that needs it
//! first, and later launches of the rank come after. What a graph has captured is kept for ever:
//! its launches name the addresses again, and copy for themselves.
#![allow(unsafe_code)]

use crate::device::cuda::{Address, Capture, DeferredFree, Device, Pinned, RawStream, copy};
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
    mirror: DeferredFree<Pinned>,
    memory: Address,
    used: usize,
    /// Bytes that are there for good.
    kept: usize,
    /// How often what was there was forgotten.
    pub clearings: u64,
    known: HashMap<Vec<u8>, PlacedTable>,
}

/// A table, and what has copied it to the device.
struct PlacedTable {
    at: usize,
    bytes: usize,
    is_there: bool,
    /// The last capture whose graph copies it.
    capture: Capture,
}

impl Tables {
    /// In [`BYTES`] of device memory.
    pub fn new(device: &Arc<Device>, memory: Address) -> Result<Tables> {
        let mirror = DeferredFree::of(device, BYTES)?;
        let (device, known) = (device.clone(), HashMap::new());
        Ok(Tables { device, mirror, memory, used: 0, kept: 0, clearings: 0, known })
    }

    /// The address of the table of that name, if there is one; what is given to `stream` next finds
    /// it on the device. The context is current.
    ///
    /// A graph copies for itself: whether, when and on which stream it is launched is not known.
    pub fn find(
        &mut self,
        name: &[u8],
        stream: RawStream,
        capture: Capture,
    ) -> Result<Option<Address>> {
        let Some(table) = self.known.get_mut(name) else { return Ok(None) };
        let address = self.memory + table.at as Address;
        let has_come = match capture {
            Capture::No => table.is_there,
            capture => table.capture == capture,
        };
        if !has_come {
            let source = self.mirror.pointer().wrapping_add(table.at);
            let target = std::ptr::with_exposed_provenance_mut(address as usize);
            // SAFETY: as many bytes of both, which stay; launches that read them meanwhile find
            // them as they are.
            unsafe { copy(&self.device, target, source, table.bytes, stream)? };
            match capture {
                Capture::No => table.is_there = true,
                capture => table.capture = capture,
            }
        }
        Ok(Some(address))
    }

    /// The address of a new table of that name, made by `fill` for where it will lie; `None` where
    /// there is no room. As [`Tables::find`].
    pub fn place(
        &mut self,
        name: &[u8],
        (stream, capture): (RawStream, Capture),
        bytes: usize,
        fill: impl FnOnce(Address, &mut [u8]),
    ) -> Result<Option<Address>> {
        if bytes > BYTES - self.used {
            return Ok(None);
        }
        let (at, address) = (self.used, self.memory + self.used as Address);
        let source = self.mirror.pointer().wrapping_add(at);
        // SAFETY: bytes of the mirror that no copy under way reads: those before are used.
        fill(address, unsafe { std::slice::from_raw_parts_mut(source, bytes) });
        self.used = (at + bytes).next_multiple_of(LINE).min(BYTES);
        let table = PlacedTable { at, bytes, is_there: false, capture: Capture::No };
        self.known.insert(name.to_vec(), table);
        self.find(name, stream, capture)
    }

    /// What is there stays: a graph refers to it.
    pub fn keep(&mut self) {
        self.kept = self.used;
    }

    /// Forget all that is not kept. No launch that is under way may need it.
    pub fn clear(&mut self) {
        self.known.retain(|_, table| table.at < self.kept);
        self.used = self.kept;
        self.clearings += 1;
    }

    /// Nothing reads the mirror any more.
    pub fn release(self) {
        self.mirror.release();
    }
}
