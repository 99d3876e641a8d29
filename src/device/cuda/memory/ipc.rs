//! Memory of a device that several processes use.
#![allow(unsafe_code)]

use super::va_range::Addresses;
use super::vmm::{HandleType, PhysicalPiece};
use crate::device::cuda::context::Device;
use crate::device::cuda::driver::{ALREADY_MAPPED, Address, INVALID_VALUE, IpcMemHandle};
use crate::error::{Error, Result};
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// An allocation of a device's memory, as its owner knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocation {
    pub base: Address,
    pub bytes: usize,
    /// No other allocation of the process ever has this number.
    pub id: u64,
}

impl Allocation {
    /// Where in it a range lies, if it lies in it whole.
    pub fn offset(&self, address: Address, bytes: usize) -> Option<u64> {
        let offset = address.checked_sub(self.base)?;
        (offset.checked_add(bytes as u64)? <= self.bytes as u64).then_some(offset)
    }
}

/// The attribute of a pointer that numbers its allocation, by the driver's number.
const BUFFER_ID: i32 = 7;

impl Device {
    /// The number of the allocation at an address; `None` where there is none.
    pub fn allocation_id(&self, address: Address) -> Result<Option<u64>> {
        self.wide_attribute(BUFFER_ID, address)
    }

    /// The allocation at an address, if there is one.
    pub fn allocation(&self, address: Address) -> Result<Option<Allocation>> {
        let Some(id) = self.allocation_id(address)? else { return Ok(None) };
        let (base, bytes) = self.range(address)?;
        Ok(Some(Allocation { base, bytes, id }))
    }

    /// What other processes open this allocation by; `None` for memory that the driver does not
    /// share like this. The context is current.
    pub fn export(&self, allocation: &Allocation) -> Result<Option<IpcMemHandle>> {
        let mut handle = IpcMemHandle::default();
        let _aside = self.driver.aside();
        // SAFETY: the place is a local.
        match unsafe { (self.driver.export)(&mut handle, allocation.base) } {
            INVALID_VALUE => Ok(None),
            code => {
                self.driver.check(code, "sharing memory of the CUDA device")?;
                Ok(Some(handle))
            }
        }
    }

    /// The base and the bytes of the allocation at an address.
    fn range(&self, address: Address) -> Result<(Address, usize)> {
        let (mut base, mut bytes) = (0, 0);
        // SAFETY: the places are locals.
        let code = unsafe { (self.driver.address_range)(&mut base, &mut bytes, address) };
        self.driver.check(code, "asking for the bounds of an allocation")?;
        Ok((base, bytes))
    }
}

/// Memory of another process's, mapped here until this is dropped.
pub struct Imported {
    base: Address,
    bytes: usize,
    _hold: Hold,
}

/// What lets it go.
enum Hold {
    Opened(#[expect(dead_code, reason = "kept to be dropped")] OpenedAllocation),
    Mapped(#[expect(dead_code, reason = "kept to be dropped")] Addresses),
}

/// An allocation that is open, by its address here.
struct OpenedAllocation {
    device: Arc<Device>,
    base: Address,
}

impl Imported {
    /// Open the allocation that another process exported, of so many bytes as that says: not every
    /// driver tells the bounds of what is another's. `None` while this process has open what that
    /// one had there before. The context is current.
    pub fn new(
        device: &Arc<Device>,
        handle: IpcMemHandle,
        bytes: usize,
    ) -> Result<Option<Imported>> {
        /// The driver's flag that lets this device reach the memory of the other.
        const ENABLE_PEER_ACCESS: u32 = 1;
        let mut base = 0;
        let _aside = device.driver.aside();
        // SAFETY: the place is a local; a handle is a value that the driver checks.
        let code = unsafe { (device.driver.import)(&mut base, handle, ENABLE_PEER_ACCESS) };
        if code == ALREADY_MAPPED {
            return Ok(None);
        }
        device.driver.check(code, "opening another process's memory of the CUDA device")?;
        let opened = OpenedAllocation { device: device.clone(), base };
        Ok(Some(Imported { base, bytes, _hold: Hold::Opened(opened) }))
    }

    /// Map the pieces that another process packed, one after another. The context is current.
    pub fn of_pieces(
        device: &Arc<Device>,
        packed: &[(usize, OwnedFd)],
        carrier: HandleType,
    ) -> Result<Imported> {
        let unpack =
            |(bytes, packed): &(usize, _)| PhysicalPiece::unpack(device, (*bytes, packed), carrier);
        let pieces: Vec<PhysicalPiece> = packed.iter().map(unpack).collect::<Result<_>>()?;
        // Mapped, they stay.
        let addresses = Addresses::of(device, &pieces)?;
        let (base, bytes) = (addresses.start(), addresses.bytes());
        Ok(Imported { base, bytes, _hold: Hold::Mapped(addresses) })
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The address of a range in it, if it has the whole range: the numbers are another process's.
    pub fn address(&self, offset: u64, bytes: usize) -> Result<Address> {
        let end = offset.checked_add(bytes as u64);
        match end {
            Some(end) if end <= self.bytes as u64 => Ok(self.base + offset),
            _ => Err(Error::usage(format!(
                "a peer named {bytes} bytes at {offset} of an allocation of {} bytes",
                self.bytes
            ))),
        }
    }
}

impl Drop for OpenedAllocation {
    fn drop(&mut self) {
        if let Ok(_current) = self.device.enter_aside() {
            // SAFETY: opened by `Imported::new`, and this was its owner.
            unsafe { (self.device.driver.close)(self.base) };
        }
    }
}
