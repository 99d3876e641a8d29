//! Host memory that is registered, and its words that streams write and wait for.

use crate::failures::{break_with, broken};
use crate::memory::{BLOCKS, alone};
use crate::peers::ILLEGAL_ADDRESS;
use crate::streams::{current, find};
use crate::{ALREADY_REGISTERED, Answer, INVALID_VALUE, NOT_REGISTERED, lock};
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

/// Bytes, by address.
static REGISTERED: LazyLock<Mutex<BTreeMap<u64, usize>>> = LazyLock::new(Mutex::default);

pub fn register(start: *mut c_void, bytes: usize) -> Answer {
    current()?;
    let (address, pages) = (start.expose_provenance() as u64, bytes as u64);
    let is_whole = |number: u64| number > 0 && number.is_multiple_of(4096);
    if !is_whole(address) || !is_whole(pages) {
        return Err(INVALID_VALUE);
    }
    let _alone = alone();
    let mut all = lock(&REGISTERED);
    let before = all.range(..address + pages).next_back();
    if before.is_some_and(|(start, bytes)| start + *bytes as u64 > address) {
        return Err(ALREADY_REGISTERED);
    }
    all.insert(address, bytes);
    Ok(())
}

pub fn unregister(start: *mut c_void) -> Answer {
    current()?;
    let _alone = alone();
    lock(&REGISTERED).remove(&(start.addr() as u64)).map(drop).ok_or(NOT_REGISTERED)
}

/// The address for devices: the same, as everywhere with unified addressing.
pub fn address(start: *mut c_void) -> Answer<u64> {
    let address = start.addr() as u64;
    if is_registered(address) { Ok(address) } else { Err(INVALID_VALUE) }
}

/// Whether an address is in host memory that devices reach by themselves.
pub fn is_registered(address: u64) -> bool {
    let all = lock(&REGISTERED);
    let before = all.range(..=address).next_back();
    before.is_some_and(|(start, bytes)| address + 4 <= start + *bytes as u64) || is_pinned(address)
}

/// Whether an address is in host memory of the driver's own.
fn is_pinned(address: u64) -> bool {
    let all = lock(&BLOCKS);
    let before = all.range(..=address).next_back();
    before.is_some_and(|(start, block)| {
        block.ordinal.is_none() && address + 4 <= start + block.bytes as u64
    })
}

/// Let `work` have a word when its time comes, if it is registered then.
fn submit(
    stream: *mut c_void,
    address: u64,
    work: impl Fn(&AtomicU32) + Send + Sync + 'static,
) -> Answer {
    if !address.is_multiple_of(4) || !is_registered(address) {
        return Err(INVALID_VALUE);
    }
    find(stream)?.submit(Arc::new(move || {
        if !is_registered(address) {
            return break_with(ILLEGAL_ADDRESS);
        }
        let word: *const AtomicU32 = std::ptr::with_exposed_provenance(address as usize);
        // SAFETY: registered memory is mapped.
        work(unsafe { &*word });
    }));
    Ok(())
}

pub fn write(stream: *mut c_void, address: u64, value: u32) -> Answer {
    submit(stream, address, move |word| {
        // Nothing of a broken context comes to pass.
        if broken().is_none() {
            word.store(value, SeqCst);
        }
    })
}

pub fn wait(stream: *mut c_void, address: u64, value: u32, flags: u32) -> Answer {
    if flags != 0 {
        return Err(INVALID_VALUE);
    }
    submit(stream, address, move |word| {
        while (word.load(SeqCst).wrapping_sub(value) as i32) < 0 && broken().is_none() {
            std::thread::sleep(Duration::from_micros(10));
            if !is_registered(std::ptr::from_ref(word).addr() as u64) {
                return break_with(ILLEGAL_ADDRESS);
            }
        }
    })
}
