//! Ranges of addresses that pieces of a device's memory are mapped into.
//!
//! A buffer may lie on several pieces, one after another. What is at an address can be another
//! piece the next time: the number of the piece tells.
#![allow(unsafe_code)]

use super::vmm::{Carriers, HandleType, ON_DEVICE, PhysicalPiece};
use crate::device::cuda::context::Device;
use crate::device::cuda::driver::{AccessDesc, Address, MemLocation};
use crate::device::cuda::launch_order::DeferredFree;
use crate::error::Result;
use crate::fork::ForkSafeMutex;
use std::sync::Arc;

/// Attributes of devices, by the driver's numbers: whether they map memory like this, and let it
/// travel as a descriptor, or by a fabric.
const MAPS: i32 = 102;
const HAS_DESCRIPTORS: i32 = 103;
const HAS_FABRIC: i32 = 128;

/// Attributes of pointers, by the driver's numbers.
const ALLOWED_CARRIERS: i32 = 14;
const MAPPING_BYTES: i32 = 18;
const MAPPING_BASE: i32 = 19;
const MEMORY_BLOCK: i32 = 20;

/// A piece where it is mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    pub base: Address,
    pub bytes: usize,
    /// No other piece of the process ever has this number.
    pub block: u64,
}

impl Mapping {
    fn end(&self) -> Address {
        self.base + self.bytes as u64
    }
}

/// Pieces that are mapped one after another.
pub struct MappedRun {
    pub mappings: Vec<Mapping>,
    pub carrier: HandleType,
}

impl MappedRun {
    pub fn base(&self) -> Address {
        self.mappings[0].base
    }

    pub fn bytes(&self) -> usize {
        self.mappings.iter().map(|mapping| mapping.bytes).sum()
    }
}

impl Device {
    /// How pieces of its memory can travel: none where it has none.
    pub fn carriers(self: &Arc<Device>) -> Carriers {
        let mut carriers = Carriers::default();
        // What an older driver does not know, it does not have.
        let has = |attribute| self.attribute(attribute).is_ok_and(|value| value != 0);
        if !has(MAPS) {
            return carriers;
        }
        if has(HAS_DESCRIPTORS) {
            carriers.add(HandleType::Descriptor);
        }
        if has(HAS_FABRIC) && self.is_on_fabric() {
            carriers.add(HandleType::Fabric);
        }
        carriers
    }

    /// Whether this process may use the fabric, which is more than that the device could: asked
    /// once, as memory comes of it.
    fn is_on_fabric(self: &Arc<Device>) -> bool {
        static KNOWN: ForkSafeMutex<Vec<([u8; 16], bool)>> = ForkSafeMutex::new(Vec::new());
        let known = KNOWN.lock().iter().find(|(uuid, _)| *uuid == self.uuid).map(|(_, is)| *is);
        if let Some(known) = known {
            return known;
        }
        let found = self.finds_fabric().unwrap_or(false);
        KNOWN.lock().push((self.uuid, found));
        found
    }

    fn finds_fabric(self: &Arc<Device>) -> Result<bool> {
        let piece = DeferredFree::new(|| PhysicalPiece::new(self, 1, Some(HandleType::Fabric)))?;
        let _current = self.enter()?;
        Ok(piece.pack(HandleType::Fabric)?.is_some())
    }

    /// The number of the piece at an address; `None` where there is no memory.
    pub fn block(&self, address: Address) -> Result<Option<u64>> {
        self.wide_attribute(MEMORY_BLOCK, address)
    }

    /// The pieces around a range that can travel so, `most` of them at most; `None` where not all
    /// of the range can. Beyond the range a run goes as far as a window of `wide` pieces, so that
    /// ranges near each other are in the same one.
    pub fn run(
        &self,
        address: Address,
        bytes: usize,
        (wide, most): (u64, usize),
        allowed: Carriers,
    ) -> Result<Option<MappedRun>> {
        let Some((first, carriers)) = self.mapping(address)? else { return Ok(None) };
        let common = Carriers(carriers & allowed.0);
        let Some(carrier) = HandleType::among(common) else { return Ok(None) };
        let travels = |carriers: u32| Carriers(carriers).has(carrier);
        let end = address + bytes as u64;
        let window = wide * first.bytes as u64;
        let mut mappings = vec![first];
        let mut last = first;
        while last.end() < end.next_multiple_of(window) && mappings.len() < most {
            match self.mapping(last.end())? {
                Some((next, carriers)) if next.base == last.end() && travels(carriers) => {
                    mappings.push(next);
                    last = next;
                }
                _ => break,
            }
        }
        if last.end() < end {
            return Ok(None);
        }
        let mut before = Vec::new();
        let mut start = first.base;
        while start > address - address % window && mappings.len() + before.len() < most {
            match self.mapping(start - 1)? {
                Some((next, carriers)) if next.end() == start && travels(carriers) => {
                    before.push(next);
                    start = next.base;
                }
                _ => break,
            }
        }
        before.reverse();
        before.extend(mappings);
        Ok(Some(MappedRun { mappings: before, carrier }))
    }

    /// What is mapped at an address, and how it may travel.
    fn mapping(&self, address: Address) -> Result<Option<(Mapping, u32)>> {
        let ask = |attribute| self.wide_attribute(attribute, address);
        let (Some(base), Some(bytes)) = (ask(MAPPING_BASE)?, ask(MAPPING_BYTES)?) else {
            return Ok(None);
        };
        let (Some(block), Some(carriers)) = (ask(MEMORY_BLOCK)?, ask(ALLOWED_CARRIERS)?) else {
            return Ok(None);
        };
        // Addresses that are only reserved are mapped to nothing.
        let is_mapped = base <= address && address - base < bytes;
        let mapping = Mapping { base, bytes: bytes as usize, block };
        Ok(is_mapped.then_some((mapping, carriers as u32)))
    }
}

/// A range of addresses, with what is mapped into it, until this is dropped.
pub struct Addresses {
    device: Arc<Device>,
    start: Address,
    bytes: usize,
    /// By where they begin.
    mapped: Vec<(usize, usize)>,
}

impl Addresses {
    /// So many bytes of addresses: whole pieces.
    pub fn reserve(device: &Arc<Device>, bytes: usize) -> Result<Addresses> {
        let mut start = 0;
        let _current = device.enter_aside()?;
        // SAFETY: the place is a local.
        let code = unsafe { (device.driver.addresses_reserve)(&mut start, bytes, 0, 0, 0) };
        device.driver.check(code, &format!("reserving {bytes} bytes of addresses"))?;
        Ok(Addresses { device: device.clone(), start, bytes, mapped: Vec::new() })
    }

    /// Pieces one after another, each with an address.
    pub fn of(device: &Arc<Device>, pieces: &[PhysicalPiece]) -> Result<Addresses> {
        let bytes = pieces.iter().map(|piece| piece.bytes).sum();
        let mut addresses = Addresses::reserve(device, bytes)?;
        let mut offset = 0;
        for piece in pieces {
            addresses.map(offset, piece)?;
            offset += piece.bytes;
        }
        Ok(addresses)
    }

    /// Let this device find a piece at an offset at which nothing is.
    pub fn map(&mut self, offset: usize, piece: &PhysicalPiece) -> Result<()> {
        const READ_AND_WRITE: i32 = 3;
        let Addresses { device, start, .. } = self;
        let address = *start + offset as u64;
        let _current = device.enter_aside()?;
        // SAFETY: addresses of this range, which nothing uses yet; the driver checks both.
        let code =
            unsafe { (device.driver.addresses_map)(address, piece.bytes, 0, piece.handle, 0) };
        device.driver.check(code, "mapping a piece of the CUDA device's memory")?;
        self.mapped.push((offset, piece.bytes));
        let place = MemLocation { kind: ON_DEVICE, ordinal: device.ordinal };
        let right = AccessDesc { place, what: READ_AND_WRITE };
        // SAFETY: just mapped; the right is a local.
        let code = unsafe { (device.driver.addresses_open)(address, piece.bytes, &right, 1) };
        device.driver.check(code, "opening mapped memory to the CUDA device")
    }

    /// Take the piece at an offset away, after all that uses it.
    pub fn unmap(&mut self, offset: usize) {
        if let Some(index) = self.mapped.iter().position(|(at, _)| *at == offset)
            && let Ok(_current) = self.device.enter_aside()
        {
            let (_, bytes) = self.mapped.swap_remove(index);
            // SAFETY: mapped by `map`; the caller has no more use for it.
            unsafe { (self.device.driver.addresses_unmap)(self.start + offset as u64, bytes) };
        }
    }

    pub fn start(&self) -> Address {
        self.start
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Where it begins, for devices to read and write.
    pub fn pointer(&self) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut(self.start as usize)
    }
}

impl Drop for Addresses {
    fn drop(&mut self) {
        while let Some((offset, _)) = self.mapped.last().copied() {
            let before = self.mapped.len();
            self.unmap(offset);
            if self.mapped.len() == before {
                // The context is gone, and all in it.
                return;
            }
        }
        if let Ok(_current) = self.device.enter_aside() {
            // SAFETY: reserved by `reserve`, and nothing is mapped there any more.
            unsafe { (self.device.driver.addresses_free)(self.start, self.bytes) };
        }
    }
}
