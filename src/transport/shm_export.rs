//! User memory that other processes can map: a table of regions, each an anonymous file in memory.
//!
//! A region is allocated here, or a private range of the user's that is moved into a file in place.
//! Peers know it by a number and map it from its descriptor (`fd_mailbox`, `shm_import`). The table
//! changes rarely and is asked in every operation, so each thread keeps a copy of it and looks at
//! one counter to see whether that is still the last.
#![allow(unsafe_code)]

pub use super::fd_mailbox::{Mailbox, MailboxSender, Sent};
pub use super::shm_import::ShmImports;

use super::segment::{map_at, sealed_file, unmap};
use crate::error::{Error, Result};
use crate::fork::{self, ForkSafeMutex};
use crate::os::thread_signals::without_size_signal;
use crate::sync::atomic::{AtomicU64, Ordering::*};
use crate::sync::with_local;
use rustix::fs::{FallocateFlags, fallocate};
use rustix::rand::{GetRandomFlags, getrandom};
use std::cell::RefCell;
use std::collections::HashSet;
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::ptr::null_mut;

/// Where a buffer lies in exported memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Location {
    /// The region's number: random, so no two of a machine are alike, and never 0.
    pub region: u64,
    pub offset: usize,
}

struct Region {
    number: u64,
    start: usize,
    /// Whole pages. One more behind them, in the file only, tells importers that the region is
    /// gone.
    bytes: usize,
    file: File,
    /// The process that made it: its forked children share the memory but must not withdraw it.
    owner: u32,
    /// Of the process, before the region was mapped: children of later ones map it, too.
    forks: u64,
    kind: RegionKind,
}

enum RegionKind {
    /// By [`allocate`]; goes with [`release`].
    Allocated,
    /// By [`register`]; goes with its last [`deregister`].
    Adopted,
}

impl Region {
    fn new(
        (number, forks): (u64, u64),
        start: *mut u8,
        bytes: usize,
        file: OwnedFd,
        kind: RegionKind,
    ) -> Region {
        let (start, owner) = (start.expose_provenance(), std::process::id());
        Region { number, start, bytes, file: File::from(file), owner, forks, kind }
    }

    /// Whether a child that maps it is to keep its content: memory that was the user's before, and
    /// of which no parent of a child expects that it goes.
    fn is_childs_too(&self) -> bool {
        matches!(self.kind, RegionKind::Adopted) && self.forks != fork::forks()
    }
}

/// All regions of this process and their registrations.
#[derive(Default)]
struct RegionTable {
    /// Sorted by address.
    regions: Vec<Region>,
    /// Registrations: (handle, region).
    handles: Vec<(u64, u64)>,
}

/// What `find` and `address` need of a region: start, bytes, number.
type RegionEntry = (usize, usize, u64);

static TABLE: ForkSafeMutex<Option<RegionTable>> = ForkSafeMutex::new(None);

/// Held while a range is looked up and then moved: two that overlap would be mapped over each
/// other. Not the table's lock, since moving takes long and calls on other memory ask the table
/// meanwhile.
static MOVING: ForkSafeMutex<()> = ForkSafeMutex::new(());

/// Counts changes of the table.
static CHANGES: AtomicU64 = AtomicU64::new(0);

/// Handles of registrations; never reused.
static NEXT_HANDLE: AtomicU64 = AtomicU64::new(1);

thread_local! {
    /// This thread's copy of the table, sorted by start, and the number of changes then.
    static SEEN: RefCell<(u64, Vec<RegionEntry>)> = RefCell::default();
}

pub(super) fn page() -> usize {
    rustix::param::page_size()
}

/// Bytes of the file of a region: the region in whole pages and one page for the mark.
pub(super) fn file_bytes(bytes: usize) -> Option<usize> {
    bytes.checked_next_multiple_of(page())?.checked_add(page())
}

impl RegionTable {
    /// The region that covers the range.
    fn covering(&self, start: usize, bytes: usize) -> Option<&Region> {
        let index = self.regions.partition_point(|region| region.start <= start).checked_sub(1)?;
        let region = &self.regions[index];
        contains(region.start, region.bytes, start, bytes).then_some(region)
    }

    fn insert(&mut self, region: Region) {
        let index = self.regions.partition_point(|other| other.start < region.start);
        self.regions.insert(index, region);
        count_change();
    }

    fn remove(&mut self, number: u64) -> Option<Region> {
        let index = self.regions.iter().position(|region| region.number == number)?;
        let region = self.regions.remove(index);
        count_change();
        Some(region)
    }
}

/// Whether the inner range lies in the outer one, from its first byte to its last.
pub(super) fn contains(start: usize, bytes: usize, inner: usize, inner_bytes: usize) -> bool {
    inner >= start && inner - start <= bytes && inner_bytes <= bytes - (inner - start)
}

fn with_table<T>(body: impl FnOnce(&mut RegionTable) -> T) -> T {
    let anew = || {
        count_change();
        None
    };
    body(TABLE.lock_or(anew).get_or_insert_default())
}

/// Make every thread's copy stale. Called under the table's lock.
fn count_change() {
    // Release: pairs with the Acquire in `with_entries`.
    CHANGES.fetch_add(1, Release);
}

/// Look something up in the present table, without a lock unless it has just changed.
fn with_entries<T>(body: impl FnOnce(&[RegionEntry]) -> Option<T>) -> Option<T> {
    // Acquire: pairs with the Release in `count_change`; the caller's own order with the thread
    // that exported its buffer does the rest.
    let changes = CHANGES.load(Acquire);
    if changes == 0 {
        return None;
    }
    with_local(&SEEN, |seen| {
        let (seen, entries) = &mut *seen.borrow_mut();
        if *seen != changes {
            with_table(|table| {
                entries.clear();
                entries.extend(table.regions.iter().map(|r| (r.start, r.bytes, r.number)));
            });
            *seen = changes;
        }
        body(entries)
    })
}

/// Where the range lies, if one region covers it.
pub fn find(address: *const u8, bytes: usize) -> Option<Location> {
    let inner = address.addr();
    with_entries(|entries| {
        let index = entries.partition_point(|entry| entry.0 <= inner).checked_sub(1)?;
        let (start, length, region) = entries[index];
        let offset = inner - start;
        contains(start, length, inner, bytes).then_some(Location { region, offset })
    })
}

/// The address of a range in a region of this process, if the region holds all of it.
pub fn address(region: u64, offset: usize, bytes: usize) -> Option<*mut u8> {
    with_entries(|entries| {
        let &(start, length, _) = entries.iter().find(|entry| entry.2 == region)?;
        let inside = contains(0, length, offset, bytes);
        inside.then(|| std::ptr::with_exposed_provenance_mut(start + offset))
    })
}

/// The numbers of all regions that this process exports now.
pub fn numbers() -> HashSet<u64> {
    with_table(|table| table.regions.iter().map(|region| region.number).collect())
}

/// The bytes of a region and a descriptor to send to a peer.
pub(super) fn descriptor(region: u64) -> Result<(usize, OwnedFd)> {
    with_table(|table| {
        let found = table.regions.iter().find(|found| found.number == region);
        let found = found.ok_or_else(|| Error::usage("the memory was freed during the call"))?;
        let copy = found.file.try_clone();
        let copy = copy.map_err(|_| Error::system("duplicating a descriptor of shared memory"))?;
        Ok((found.bytes, copy.into()))
    })
}

/// Zeroed memory that peers in other processes can read and write directly.
///
/// A child made by `fork` shares it with its parent.
pub fn allocate(bytes: usize) -> Result<*mut u8> {
    let too_many = || Error::argument(format!("{bytes} bytes of shared memory are too many"));
    let bytes = bytes.max(1).checked_next_multiple_of(page()).ok_or_else(too_many)?;
    let name = (random_number()?, fork::forks());
    let file = sealed_file(c"ringcomm-user", file_bytes(bytes).ok_or_else(too_many)?)?;
    // SAFETY: the kernel chooses a place that nothing uses.
    let start = unsafe { map_at(null_mut(), Some(&file), bytes)? };
    with_table(|table| table.insert(Region::new(name, start, bytes, file, RegionKind::Allocated)));
    Ok(start)
}

/// The highest bit stays clear and the lowest is set: 0 and the greatest numbers mean other things.
fn random_number() -> Result<u64> {
    let mut bytes = [0; 8];
    // The kernel gives so few at once.
    getrandom(&mut bytes, GetRandomFlags::empty())
        .map_err(|error| Error::os("reading random bytes (getrandom)", error))?;
    Ok(u64::from_ne_bytes(bytes) >> 1 | 1)
}

/// Free what [`allocate`] returned. Peers that still map it keep an empty mapping, never a fault.
#[allow(clippy::not_unsafe_ptr_arg_deref, reason = "only an address in the table is unmapped")]
pub fn release(address: *mut u8) -> Result<()> {
    let start = address.addr();
    let region = with_table(|table| {
        let found = table.covering(start, 0).filter(|region| region.start == start);
        match found.map(|region| (&region.kind, region.number)) {
            Some((RegionKind::Allocated, number)) => Ok(table.remove(number)),
            Some((RegionKind::Adopted, _)) => Err(Error::argument(
                "this memory was registered, not allocated here; deregister it instead",
            )),
            None => Err(Error::argument(format!(
                "{address:p} was not returned by ringMemAlloc, or was freed already"
            ))),
        }
    })?;
    if let Some(region) = region {
        // SAFETY: the mapping was made by `allocate` and its user gives it up.
        unsafe { unmap(address, region.bytes) };
        withdraw(&region);
    }
    Ok(())
}

/// Tell importers that the region is gone, and give its memory back though they still map it.
fn withdraw(region: &Region) {
    if region.owner != std::process::id() {
        return;
    }
    // Both only make room earlier; the memory goes with its last mapping in any case.
    let mark = || region.file.write_all_at(&1u64.to_ne_bytes(), region.bytes as u64);
    let _ = without_size_signal(mark);
    // Asked when all pages are private here: a child that is forked now has copies of its own.
    if region.is_childs_too() {
        return;
    }
    let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    let _ = fallocate(&region.file, mode, 0, region.bytes as u64);
}

/// Let peers in other processes use a range of the user's directly; a handle for [`deregister`].
///
/// Memory of [`allocate`] and ranges inside earlier registrations are counted only. Any other range
/// is moved into shared memory, at the same address and with its content: no other thread may touch
/// it meanwhile, and children made by `fork` later share it with their parent until it is
/// deregistered, and keep it as it was then.
#[allow(clippy::not_unsafe_ptr_arg_deref, reason = "the range is looked up before it is moved")]
pub fn register(address: *mut u8, bytes: usize) -> Result<u64> {
    let start = address.addr();
    if address.is_null() || bytes == 0 || start.checked_add(bytes).is_none() {
        return Err(Error::argument("register: the range is NULL, empty, or wraps around"));
    }
    // Relaxed: only the value matters.
    let handle = NEXT_HANDLE.fetch_add(1, Relaxed);
    let _moving = MOVING.lock();
    let is_known = with_table(|table| {
        let known = table.covering(start, bytes).map(|region| region.number);
        table.handles.extend(known.map(|number| (handle, number)));
        known.is_some()
    });
    if !is_known {
        // SAFETY: the caller of `register` keeps other threads away from the range.
        let region = unsafe { adopt(address, bytes)? };
        with_table(|table| {
            table.handles.push((handle, region.number));
            table.insert(region);
        });
    }
    Ok(handle)
}

/// Move a private range into a file mapped at the same address.
///
/// # Safety
/// Nothing else uses the range meanwhile.
unsafe fn adopt(address: *mut u8, bytes: usize) -> Result<Region> {
    if !address.addr().is_multiple_of(page()) || !bytes.is_multiple_of(page()) {
        return Err(Error::argument(format!(
            "register: {bytes} bytes at {address:p} are not whole pages; allocate the buffer with \
             ringMemAlloc, or aligned to {0} bytes and a multiple of {0} long",
            page()
        )));
    }
    check_private(address.addr(), bytes)?;
    let name = (random_number()?, fork::forks());
    let file = File::from(sealed_file(c"ringcomm-user", bytes + page())?);
    // SAFETY: the range was just seen mapped; the kernel reports what it cannot read.
    let content = unsafe { std::slice::from_raw_parts(address, bytes) };
    without_size_signal(|| file.write_all_at(content, 0))
        .map_err(|_| Error::system("moving memory to share it"))?;
    let file = OwnedFd::from(file);
    // SAFETY: whole pages of the user's, whose content the file has.
    unsafe { map_at(address, Some(&file), bytes)? };
    Ok(Region::new(name, address, bytes, file, RegionKind::Adopted))
}

/// Refuse a range that is not private writable memory from end to end.
fn check_private(start: usize, bytes: usize) -> Result<()> {
    let maps = std::fs::read_to_string("/proc/self/maps")
        .map_err(|_| Error::system("reading /proc/self/maps"))?;
    let mut reached = start;
    for line in maps.lines() {
        let mut fields = line.split([' ', '-']);
        let mut bound = || usize::from_str_radix(fields.next()?, 16).ok();
        let (Some(low), Some(high)) = (bound(), bound()) else { continue };
        let is_private = line
            .split(' ')
            .nth(1)
            .is_some_and(|access| access.starts_with("rw") && access.ends_with('p'));
        if low <= reached && reached < high && is_private {
            reached = high;
        }
    }
    if reached - start >= bytes {
        return Ok(());
    }
    Err(Error::argument(
        "register: the range is not private, writable memory throughout (it may be mapped from a \
         file that is shared, or overlap other registered memory); allocate it with ringMemAlloc \
         instead",
    ))
}

/// Replace the mapping of a region's file by a private one, whose pages are then copied one by one.
///
/// A store of another thread goes to the file's page or to its copy, and never between: the kernel
/// changes the mapping in one step, and copies a page when it is written to, here with what it has
/// already. The range stays a private mapping of the file, of which nothing is read any more. A
/// copy of the range that took its place later would not have what is stored meanwhile.
///
/// # Safety
/// The range is mapped from the region's file.
unsafe fn make_private(region: &Region) -> Result<()> {
    let target = std::ptr::with_exposed_provenance_mut::<u8>(region.start);
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_FIXED;
    let file = region.file.as_raw_fd();
    // Not by the function: ThreadSanitizer takes that for a write to the range, which it is not, as
    // the content stays.
    // SAFETY: the caller's promise; the content is that of the mapping that goes.
    let mapped = unsafe {
        libc::syscall(libc::SYS_mmap, target, region.bytes, access, flags, file, 0 as libc::off_t)
    };
    if mapped == -1 {
        return Err(Error::system("making registered memory private again"));
    }
    for offset in (0..region.bytes).step_by(page()) {
        // SAFETY: inside the mapping. Others may write there: this is one atomic instruction.
        let byte = unsafe { std::sync::atomic::AtomicU8::from_ptr(target.add(offset)) };
        // Relaxed: it orders nothing. Not an addition of 0, of which compilers make a load.
        let same = |value| byte.compare_exchange(value, value, Relaxed, Relaxed).is_ok();
        while !same(byte.load(Relaxed)) {}
    }
    Ok(())
}

/// Take back one registration. After its last one, adopted memory is private again, at the same
/// address and with its content, of which no store of another thread is lost meanwhile.
///
/// Children that were forked since it was registered keep the content as it is now. The pages
/// behind the range are theirs then and stay as long as the range is mapped here, which sees them
/// again if it drops its own (`MADV_DONTNEED`): a copy of the range in fresh pages would not have
/// what other threads store meanwhile.
pub fn deregister(handle: u64) -> Result<()> {
    let _moving = MOVING.lock();
    let last = with_table(|table| -> Result<_> {
        let index = table.handles.iter().position(|(known, _)| *known == handle);
        let index = index.ok_or_else(|| {
            Error::argument(format!("{handle:#x} is not the handle of a registration"))
        })?;
        let (_, number) = table.handles.swap_remove(index);
        let used = table.handles.iter().any(|(_, other)| *other == number);
        let adopted = table
            .regions
            .iter()
            .any(|region| region.number == number && matches!(region.kind, RegionKind::Adopted));
        Ok(if adopted && !used { table.remove(number) } else { None })
    })?;
    let Some(region) = last else { return Ok(()) };
    // SAFETY: the range is the region's own mapping, which nobody gives up but we.
    unsafe { make_private(&region)? };
    withdraw(&region);
    Ok(())
}
