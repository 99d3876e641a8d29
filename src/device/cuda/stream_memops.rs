//! Words of host memory that streams write and wait for: what orders streams of several processes.
//!
//! A stream that waits for a word goes on when any device, or any processor that maps the word,
//! has written it. So what a process that is gone will never do, another can do in its place, and
//! no stream has to wait for ever. An event cannot be let go like that.
#![allow(unsafe_code)]
// A stream is handed to the driver, which looks it up; nothing here follows it.
#![allow(clippy::not_unsafe_ptr_arg_deref)]

use super::context::Device;
use super::driver::{Address, RawStream};
use crate::error::Result;
use crate::sync::Mutex;
use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

/// What is registered, by its start, with the number of its users: the driver takes memory once.
static USERS: LazyLock<Mutex<HashMap<usize, (usize, Address)>>> = LazyLock::new(Mutex::default);

/// Whole pages of this process's memory that its devices address.
pub struct HostRegistration {
    device: Arc<Device>,
    start: usize,
    address: Address,
}

impl HostRegistration {
    /// Let the devices of this process have `bytes` bytes, which are mapped until this is dropped.
    pub fn new(device: &Arc<Device>, start: *mut u8, bytes: usize) -> Result<HostRegistration> {
        /// Usable from every context, and with an address there.
        const PORTABLE_AND_MAPPED: u32 = 1 | 2;
        let driver = device.driver;
        let mut users = USERS.lock();
        let _current = device.enter_aside()?;
        let known = users.get(&start.addr()).copied();
        let (count, address) = match known {
            Some(known) => known,
            None => {
                let mut address = 0;
                // SAFETY: the caller's promise; the place is a local. What was registered and has
                // no address is given back.
                unsafe {
                    let code = (driver.host_register)(start.cast(), bytes, PORTABLE_AND_MAPPED);
                    driver.check(code, "registering shared memory with CUDA")?;
                    let code = (driver.host_address)(&mut address, start.cast(), 0);
                    let found = driver.check(code, "asking for the address of shared memory");
                    found.inspect_err(|_| {
                        let _ = (driver.host_unregister)(start.cast());
                    })?;
                }
                (0, address)
            }
        };
        users.insert(start.addr(), (count + 1, address));
        Ok(HostRegistration { device: device.clone(), start: start.expose_provenance(), address })
    }

    /// The address, for devices, of what lies `offset` bytes behind the start.
    pub fn address(&self, offset: usize) -> Address {
        self.address + offset as Address
    }
}

impl Drop for HostRegistration {
    fn drop(&mut self) {
        let mut users = USERS.lock();
        let Some((count, _)) = users.get_mut(&self.start) else { return };
        *count -= 1;
        if *count == 0 {
            users.remove(&self.start);
            if let Ok(_current) = self.device.enter_aside() {
                let start = std::ptr::with_exposed_provenance_mut(self.start);
                // SAFETY: registered by `new`, and this was its last user.
                unsafe { (self.device.driver.host_unregister)(start) };
            }
        }
    }
}

/// Let `stream` write a word after what it was given before, whose writes are seen first. The
/// context is current.
///
/// # Safety
/// The word is registered until the stream has passed.
pub unsafe fn write_value(
    device: &Device,
    stream: RawStream,
    word: Address,
    value: u32,
) -> Result<()> {
    // SAFETY: the caller's promise.
    let code = unsafe { (device.driver.write_value)(stream, word, value, 0) };
    device.driver.check(code, "letting a stream tell the host or other processes that it has come")
}

/// Let what `stream` is given from here on wait until a word is `value` or less than 2^31 beyond.
/// The context is current.
///
/// # Safety
/// As for [`write_value`].
pub unsafe fn wait_value(
    device: &Device,
    stream: RawStream,
    word: Address,
    value: u32,
) -> Result<()> {
    /// The driver's flag for a comparison that goes round.
    const AT_LEAST: u32 = 0;
    // SAFETY: the caller's promise.
    let code = unsafe { (device.driver.wait_value)(stream, word, value, AT_LEAST) };
    device.driver.check(code, "making a stream wait for another process's")
}
