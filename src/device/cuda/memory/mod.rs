//! Where memory is, host memory that devices copy to and from, and copies.
#![allow(unsafe_code)]

pub(super) mod ipc;
pub(super) mod va_range;
pub(super) mod vmm;

use super::context::Device;
use super::driver::{Address, INVALID_VALUE, RawStream};
use super::launch_order::{DeviceBlock, Spares};
use crate::error::Result;
use std::ffi::c_void;
use std::sync::Arc;

/// Where a pointer leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PointerKind {
    /// Memory that the processor reads and writes.
    Host,
    /// Memory of the device with this number. Memory that moves ("managed") counts as its device's.
    Device {
        ordinal: i32,
        /// Allocated plainly, so that enabling peer access opens it to other devices; memory of a
        /// pool or of virtual addresses has rights of its own.
        plain: bool,
    },
}

/// The attributes of pointers that are asked for, by the driver's numbers.
const MEMORY_TYPE: i32 = 2;
const DEVICE_ORDINAL: i32 = 9;
const IS_LEGACY_IPC_CAPABLE: i32 = 10;

/// The driver's numbers, among memory types, of memory that it never heard of and of the host's.
const UNKNOWN: u32 = 0;
const HOST: u32 = 1;

impl Device {
    /// Where `pointer` leads; NULL and what CUDA never heard of is host memory.
    pub fn kind(&self, pointer: *const u8) -> Result<PointerKind> {
        let address = pointer.expose_provenance() as Address;
        if address == 0 {
            return Ok(PointerKind::Host);
        }
        let asked = [MEMORY_TYPE, DEVICE_ORDINAL, IS_LEGACY_IPC_CAPABLE];
        Ok(match self.narrow_attributes(asked, address)? {
            None | Some([UNKNOWN | HOST, ..]) => PointerKind::Host,
            Some([_, ordinal, plain]) => {
                PointerKind::Device { ordinal: ordinal as i32, plain: is_set(plain) }
            }
        })
    }

    /// Attributes of one or four bytes, in one question; `None` or zeros for memory that CUDA never
    /// heard of.
    fn narrow_attributes<const N: usize>(
        &self,
        mut asked: [i32; N],
        address: Address,
    ) -> Result<Option<[u32; N]>> {
        let mut values = [0u64; N];
        let mut places = [std::ptr::null_mut::<c_void>(); N];
        for (place, value) in places.iter_mut().zip(&mut values) {
            *place = (&raw mut *value).cast();
        }
        let (attributes, places) = (asked.as_mut_ptr(), places.as_mut_ptr());
        let ask = self.driver.pointer_attributes;
        // SAFETY: as many attributes and places, each with room for any attribute.
        match unsafe { ask(N as u32, attributes, places, address) } {
            INVALID_VALUE => Ok(None),
            code => {
                self.driver.check(code, "asking where a buffer is")?;
                Ok(Some(values.map(|value| value as u32)))
            }
        }
    }

    /// Whether the memory of a device at an address was allocated plainly.
    pub fn is_plain(&self, address: Address) -> Result<bool> {
        let plain = self.wide_attribute(IS_LEGACY_IPC_CAPABLE, address)?;
        Ok(plain.is_some_and(|plain| is_set(plain as u32)))
    }

    /// An attribute of any width up to eight bytes; `None` for memory that CUDA never heard of.
    pub(super) fn wide_attribute(&self, attribute: i32, address: Address) -> Result<Option<u64>> {
        let mut value = 0u64;
        let place = (&raw mut value).cast::<c_void>();
        // SAFETY: all attributes that are asked for have at most eight bytes.
        match unsafe { (self.driver.pointer_attribute)(place, attribute, address) } {
            INVALID_VALUE => Ok(None),
            code => {
                self.driver.check(code, "asking where a buffer is")?;
                Ok(Some(value))
            }
        }
    }
}

/// An attribute that is a truth value, of which the driver writes one byte.
fn is_set(value: u32) -> bool {
    value & 1 == 1
}

/// Host memory that devices copy to and from at full speed, without the processor.
pub struct Pinned {
    device: Arc<Device>,
    start: *mut u8,
    bytes: usize,
}

// SAFETY: plain memory with one owner; the driver frees it from any thread.
unsafe impl Send for Pinned {}

impl Pinned {
    pub fn new(device: &Arc<Device>, bytes: usize) -> Result<Pinned> {
        let mut start = std::ptr::null_mut();
        /// Usable from every context, not only the current one.
        const PORTABLE: u32 = 1;
        let _current = device.enter_aside()?;
        // SAFETY: the place is a local.
        let code = unsafe { (device.driver.host_allocate)(&mut start, bytes.max(1), PORTABLE) };
        device.driver.check(code, &format!("allocating {bytes} bytes of pinned host memory"))?;
        Ok(Pinned { device: device.clone(), start: start.cast(), bytes })
    }

    pub fn pointer(&self) -> *mut u8 {
        self.start
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if let Ok(_current) = self.device.enter_aside() {
            // SAFETY: allocated by `new`, and this was its owner.
            unsafe { (self.device.driver.host_free)(self.start.cast()) };
        }
    }
}

impl DeviceBlock for Pinned {
    fn allocate(device: &Arc<Device>, bytes: usize) -> Result<Pinned> {
        Pinned::new(device, bytes)
    }

    fn is_of(&self, device: &Device) -> bool {
        self.device.is(device)
    }

    fn bytes(&self) -> usize {
        self.bytes
    }

    fn among(spares: &mut Spares) -> &mut Vec<Pinned> {
        &mut spares.pinned
    }
}

/// Memory of a device.
pub struct DeviceMemory {
    device: Arc<Device>,
    address: Address,
    bytes: usize,
}

impl DeviceMemory {
    pub fn new(device: &Arc<Device>, bytes: usize) -> Result<DeviceMemory> {
        let mut address = 0;
        let _current = device.enter_aside()?;
        // SAFETY: the place is a local.
        let code = unsafe { (device.driver.memory_allocate)(&mut address, bytes.max(1)) };
        device.driver.check(code, &format!("allocating {bytes} bytes on the CUDA device"))?;
        Ok(DeviceMemory { device: device.clone(), address, bytes })
    }

    /// Its address, which only the device reads and writes.
    pub fn pointer(&self) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut(self.address as usize)
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        if let Ok(_current) = self.device.enter_aside() {
            // SAFETY: allocated by `new`, and this was its owner.
            unsafe { (self.device.driver.memory_free)(self.address) };
        }
    }
}

impl DeviceBlock for DeviceMemory {
    fn allocate(device: &Arc<Device>, bytes: usize) -> Result<DeviceMemory> {
        DeviceMemory::new(device, bytes)
    }

    fn is_of(&self, device: &Device) -> bool {
        self.device.is(device)
    }

    fn bytes(&self) -> usize {
        self.bytes
    }

    fn among(spares: &mut Spares) -> &mut Vec<DeviceMemory> {
        &mut spares.memory
    }
}

/// Copy, in the stream's order, between any two kinds of memory. The device's context is current.
///
/// # Safety
/// Both ranges are valid until the stream is past the copy.
pub unsafe fn copy(
    device: &Device,
    target: *mut u8,
    source: *const u8,
    bytes: usize,
    stream: RawStream,
) -> Result<()> {
    if bytes == 0 {
        return Ok(());
    }
    let (to, from) = (target.expose_provenance() as u64, source.expose_provenance() as u64);
    // SAFETY: the caller's promise.
    let code = unsafe { (device.driver.copy)(to, from, bytes, stream) };
    match code {
        0 => Ok(()),
        code => Err(device.driver.refused(code, &format!("copying {bytes} bytes"))),
    }
}

/// Set every byte, in the stream's order. The device's context is current.
///
/// # Safety
/// The range is valid until the stream is past this.
pub unsafe fn fill(
    device: &Device,
    target: *mut u8,
    value: u8,
    bytes: usize,
    stream: RawStream,
) -> Result<()> {
    let to = target.expose_provenance() as u64;
    // SAFETY: the caller's promise.
    let code = unsafe { (device.driver.fill)(to, value, bytes, stream) };
    device.driver.check(code, &format!("filling {bytes} bytes"))
}
