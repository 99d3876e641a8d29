//! A device and the context in which its work is made.
#![allow(unsafe_code)]

use super::driver::{Aside, Context, Driver, PEER_ACCESS_ALREADY_ENABLED, PEER_ACCESS_UNSUPPORTED};
use super::launch_order::between_launches;
use crate::error::{Error, Result};
use std::sync::Arc;

/// The attributes of devices that are asked for, by the driver's numbers.
const MULTIPROCESSORS: i32 = 16;
const UNIFIED_ADDRESSING: i32 = 41;

/// A device of this process, with one of its contexts.
pub struct Device {
    pub driver: &'static Driver,
    /// Its number in this process.
    pub ordinal: i32,
    pub uuid: [u8; 16],
    pub multiprocessors: u32,
    context: Context,
    /// The device's own context was taken and has to be given back.
    retained: bool,
}

// SAFETY: a context may be used from any thread; the driver locks it.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

impl Device {
    /// The context that is current on this thread, if this process uses CUDA and has one.
    pub fn current() -> Option<u64> {
        let context = Driver::context_here();
        (!context.is_null()).then(|| context.expose_provenance() as u64)
    }

    /// The device of a context that the program keeps.
    pub fn of_context(token: u64) -> Result<Arc<Device>> {
        let driver = Driver::get()?;
        let context: Context = std::ptr::with_exposed_provenance_mut(token as usize);
        let mut ordinal = 0;
        {
            let device = Device::bare(driver, 0, context);
            let _current = device.enter()?;
            // SAFETY: the place is a local.
            let code = unsafe { (driver.context_device)(&mut ordinal) };
            driver.check(code, "asking for the CUDA device")?;
        }
        let primary = Device::of_ordinal(ordinal)?;
        if primary.context == context {
            // Retained: it stays as long as it is used here.
            return Ok(primary);
        }
        Device::bare(driver, ordinal, context).described().map(Arc::new)
    }

    /// The device with this number, in its own ("primary") context, which the runtime uses too.
    pub fn of_ordinal(ordinal: i32) -> Result<Arc<Device>> {
        let driver = Driver::get()?;
        let count = driver.devices()?;
        if !(0..count).contains(&ordinal) {
            return Err(Error::argument(format!(
                "there is no CUDA device {ordinal}: this process sees {count} of them"
            )));
        }
        let (mut device, mut context) = (0, std::ptr::null_mut());
        // The first to take the context makes it.
        let _aside = driver.aside();
        // SAFETY: the places are locals.
        unsafe {
            driver.check((driver.device_get)(&mut device, ordinal), "finding a CUDA device")?;
            let retained = (driver.primary_retain)(&mut context, device);
            driver.check(retained, &format!("taking the context of CUDA device {ordinal}"))?;
        }
        let retained = {
            let mut device = Device::bare(driver, ordinal, context);
            device.retained = true;
            device
        };
        retained.described().map(Arc::new)
    }

    fn bare(driver: &'static Driver, ordinal: i32, context: Context) -> Device {
        let (uuid, multiprocessors, retained) = ([0; 16], 1, false);
        Device { driver, ordinal, uuid, multiprocessors, context, retained }
    }

    /// With what the driver says of the device. What was retained is given back where it fails.
    fn described(mut self) -> Result<Device> {
        let (driver, ordinal) = (self.driver, self.ordinal);
        // SAFETY: the place is a field of this value.
        let code = unsafe { (driver.device_uuid)(&mut self.uuid, ordinal) };
        driver.check(code, "asking for the device's UUID")?;
        self.multiprocessors = self.attribute(MULTIPROCESSORS)?.max(1) as u32;
        if self.attribute(UNIFIED_ADDRESSING)? == 0 {
            return Err(Error::Cuda(format!(
                "CUDA device {ordinal} has no unified addressing, which ringcomm needs"
            )));
        }
        Ok(self)
    }

    pub(super) fn attribute(&self, attribute: i32) -> Result<i32> {
        let mut value = 0;
        // SAFETY: the place is a local.
        let code = unsafe { (self.driver.device_attribute)(&mut value, attribute, self.ordinal) };
        self.driver.check(code, "asking for an attribute of the CUDA device")?;
        Ok(value)
    }

    /// Its name, as NVIDIA gives it.
    pub fn name(&self) -> Result<String> {
        let mut text = [0u8; 128];
        let (place, size) = (text.as_mut_ptr().cast(), text.len() as i32 - 1);
        // SAFETY: room for `size` bytes, and a NUL after them.
        let code = unsafe { (self.driver.device_name)(place, size, self.ordinal) };
        self.driver.check(code, "asking for the device's name")?;
        let end = text.iter().position(|byte| *byte == 0).unwrap_or(text.len());
        Ok(String::from_utf8_lossy(&text[..end]).into_owned())
    }

    /// Whether both are the same device in the same context: each other's memory, streams and
    /// events are good as they are.
    pub fn is(&self, other: &Device) -> bool {
        self.context == other.context
    }

    /// What tells the context from every other of this process.
    pub fn token(&self) -> u64 {
        self.context.expose_provenance() as u64
    }

    /// What tells the context from every other that this process ever has: an address comes again.
    pub fn context_id(&self) -> Result<u64> {
        let mut id = 0;
        // SAFETY: the context lives as in `enter`; the place is a local.
        let code = unsafe { (self.driver.context_id)(self.context, &mut id) };
        self.driver.check(code, "asking for the number of the CUDA context")?;
        Ok(id)
    }

    /// Make the context current on this thread, until the guard goes.
    pub fn enter(&self) -> Result<Current<'_>> {
        // SAFETY: the context lives as long as the device, or as its owner, the program, keeps it.
        let code = unsafe { (self.driver.context_push)(self.context) };
        self.driver.check(code, "making the CUDA context current")?;
        Ok(Current(self))
    }

    /// As [`Device::enter`], for what a capture might see and does not: memory, modules, waits, and
    /// what events and streams begin and end with.
    pub(super) fn enter_aside(&self) -> Result<(Current<'_>, Aside<'_>)> {
        let aside = self.driver.aside();
        Ok((self.enter()?, aside))
    }

    /// Let this device's kernels reach the memory of `other`; whether they can.
    pub fn reach(&self, other: &Device) -> Result<bool> {
        if self.ordinal == other.ordinal {
            return Ok(self.is(other));
        }
        let (driver, mut can) = (self.driver, 0);
        // SAFETY: the place is a local.
        let code = unsafe { (driver.device_peer)(&mut can, self.ordinal, other.ordinal) };
        driver.check(code, "asking whether CUDA devices reach each other")?;
        if can == 0 {
            return Ok(false);
        }
        // The driver maps all that there is of the other's memory.
        let _between = between_launches();
        let _current = self.enter_aside()?;
        // SAFETY: both contexts live.
        match unsafe { (driver.context_peer)(other.context, 0) } {
            0 | PEER_ACCESS_ALREADY_ENABLED => Ok(true),
            PEER_ACCESS_UNSUPPORTED => Ok(false),
            code => Err(driver.refused(
                code,
                &format!(
                    "giving CUDA device {} access to the memory of CUDA device {}",
                    self.ordinal, other.ordinal
                ),
            )),
        }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        if self.retained {
            let _aside = self.driver.aside();
            // SAFETY: retained once, by `of_ordinal`. A driver that is shutting down says no.
            unsafe { (self.driver.primary_release)(self.ordinal) };
        }
    }
}

/// The context is current on this thread.
pub struct Current<'a>(&'a Device);

impl Drop for Current<'_> {
    fn drop(&mut self) {
        let mut context = std::ptr::null_mut();
        // SAFETY: pushed by `enter` on this thread; the place is a local.
        unsafe { (self.0.driver.context_pop)(&mut context) };
    }
}
