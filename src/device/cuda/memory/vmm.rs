//! Pieces of a device's memory that have no address of their own, and how they travel.
//!
//! A piece goes to another process as a descriptor, where it was made to travel, and is mapped
//! there anew. It stays until the last of those that hold it or map it has let it go.
#![allow(unsafe_code)]

use super::va_range::Mapping;
use crate::device::cuda::context::Device;
use crate::device::cuda::driver::{
    AllocationHandle, AllocationProp, INVALID_VALUE, MemLocation, NOT_PERMITTED, NOT_SUPPORTED,
};
use crate::error::{Error, Result};
use crate::os::descriptors::above_stdio;
use rustix::fs::{MemfdFlags, memfd_create};
use std::ffi::c_void;
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// How a piece travels between processes, by the driver's number of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandleType {
    /// As a file's descriptor.
    Descriptor = 1,
    /// As a value that the devices' fabric knows.
    Fabric = 8,
}

impl HandleType {
    /// In the order in which they are preferred.
    pub const ALL: [HandleType; 2] = [HandleType::Descriptor, HandleType::Fabric];

    /// The carrier of a number.
    pub fn of(number: u64) -> Option<HandleType> {
        HandleType::ALL.into_iter().find(|carrier| *carrier as u64 == number)
    }

    /// The first of a set.
    pub(in crate::device::cuda) fn among(set: Carriers) -> Option<HandleType> {
        HandleType::ALL.into_iter().find(|carrier| set.has(*carrier))
    }
}

/// A set of carriers, of one bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Carriers(pub u32);

impl Carriers {
    pub fn has(self, carrier: HandleType) -> bool {
        self.0 & carrier as u32 != 0
    }

    pub fn add(&mut self, carrier: HandleType) {
        self.0 |= carrier as u32;
    }

    pub fn remove(&mut self, carrier: HandleType) {
        self.0 &= !(carrier as u32);
    }
}

/// Bytes of the value that a fabric knows.
const FABRIC_BYTES: usize = 64;

/// Memory of the device itself, as its kind and its place's kind are numbered.
pub(super) const ON_DEVICE: i32 = 1;

/// A piece of a device's memory, held until this is dropped. Mapped, it stays for longer.
pub struct PhysicalPiece {
    device: Arc<Device>,
    pub(in crate::device::cuda) handle: AllocationHandle,
    pub bytes: usize,
}

impl PhysicalPiece {
    /// A fresh one of at least so many bytes, which may travel by `carrier`.
    pub fn new(
        device: &Arc<Device>,
        bytes: usize,
        carrier: Option<HandleType>,
    ) -> Result<PhysicalPiece> {
        /// The smallest multiple of bytes that the driver maps.
        const LEAST: i32 = 0;
        let place = MemLocation { kind: ON_DEVICE, ordinal: device.ordinal };
        let carriers = carrier.map_or(0, |carrier| carrier as i32);
        let wanted = AllocationProp { kind: ON_DEVICE, carriers, place, unused: [0; 2] };
        let (mut handle, mut granule) = (0, 0);
        let _current = device.enter_aside()?;
        // SAFETY: the places are locals.
        let code = unsafe { (device.driver.piece_granularity)(&mut granule, &wanted, LEAST) };
        device.driver.check(code, "asking how the CUDA device divides its memory")?;
        let bytes = bytes.max(1).next_multiple_of(granule.max(1));
        // SAFETY: as above.
        let code = unsafe { (device.driver.piece_create)(&mut handle, bytes, &wanted, 0) };
        device.driver.check(code, &format!("making {bytes} bytes of the CUDA device's memory"))?;
        Ok(PhysicalPiece { device: device.clone(), handle, bytes })
    }

    /// The one that is mapped somewhere; `None` where the driver knows none there. The context is
    /// current.
    pub fn at(device: &Arc<Device>, mapping: &Mapping) -> Result<Option<PhysicalPiece>> {
        let (mut handle, address) = (0, mapping.base as usize);
        let address: *mut c_void = std::ptr::with_exposed_provenance_mut(address);
        let _aside = device.driver.aside();
        // SAFETY: the place is a local; the driver checks the address.
        match unsafe { (device.driver.piece_retain)(&mut handle, address) } {
            INVALID_VALUE | NOT_PERMITTED | NOT_SUPPORTED => Ok(None),
            code => {
                device.driver.check(code, "finding a piece of the CUDA device's memory")?;
                Ok(Some(PhysicalPiece { device: device.clone(), handle, bytes: mapping.bytes }))
            }
        }
    }

    /// What another process makes it its own by; `None` where the driver does not let it travel so.
    /// The context is current.
    pub fn pack(&self, carrier: HandleType) -> Result<Option<OwnedFd>> {
        let (mut descriptor, mut value): (RawFd, _) = (-1, [0u8; FABRIC_BYTES]);
        let place: *mut c_void = match carrier {
            HandleType::Descriptor => (&raw mut descriptor).cast(),
            HandleType::Fabric => value.as_mut_ptr().cast(),
        };
        let number = carrier as i32;
        let _aside = self.device.driver.aside();
        // SAFETY: the place has room for what the carrier's number stands for.
        match unsafe { (self.device.driver.piece_export)(place, self.handle, number, 0) } {
            INVALID_VALUE | NOT_PERMITTED | NOT_SUPPORTED => return Ok(None),
            code => {
                self.device.driver.check(code, "sharing a piece of the CUDA device's memory")?
            }
        }
        match carrier {
            // SAFETY: the driver has made it for this process to close.
            HandleType::Descriptor => Ok(Some(unsafe { OwnedFd::from_raw_fd(descriptor) })),
            HandleType::Fabric => wrapped(&value).map(Some),
        }
    }

    /// What another process packed, of so many bytes. The context is current.
    pub fn unpack(
        device: &Arc<Device>,
        (bytes, packed): (usize, &OwnedFd),
        carrier: HandleType,
    ) -> Result<PhysicalPiece> {
        let (mut handle, mut value) = (0, [0u8; FABRIC_BYTES]);
        let named: *mut c_void = match carrier {
            // The interface has the number itself for an address.
            HandleType::Descriptor => std::ptr::without_provenance_mut(packed.as_raw_fd() as usize),
            HandleType::Fabric => {
                let read = packed.try_clone().and_then(|copy| {
                    File::from(copy).read_exact_at(&mut value, 0)?;
                    Ok(())
                });
                read.map_err(|_| Error::system("reading what a peer sent of its memory"))?;
                value.as_mut_ptr().cast()
            }
        };
        let _aside = device.driver.aside();
        // SAFETY: the place is a local; what is named is what the carrier's number stands for.
        let code = unsafe { (device.driver.piece_import)(&mut handle, named, carrier as i32) };
        device.driver.check(code, "opening a piece of another process's memory")?;
        Ok(PhysicalPiece { device: device.clone(), handle, bytes })
    }
}

/// A file in memory that says just this.
fn wrapped(value: &[u8]) -> Result<OwnedFd> {
    let what = "sharing a piece of the CUDA device's memory (memfd_create)";
    let file = memfd_create(c"ringcomm-fabric", MemfdFlags::CLOEXEC)
        .and_then(above_stdio)
        .map_err(|error| Error::os(what, error))?;
    let file = File::from(file);
    file.write_all_at(value, 0).map_err(|error| Error::os(what, error))?;
    Ok(OwnedFd::from(file))
}

impl Drop for PhysicalPiece {
    fn drop(&mut self) {
        if let Ok(_current) = self.device.enter_aside() {
            // SAFETY: made or retained by whoever made this, which was its owner.
            unsafe { (self.device.driver.piece_release)(self.handle) };
        }
    }
}
