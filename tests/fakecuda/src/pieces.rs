//! Memory that has its addresses apart: pieces, each a file of its own, and reserved ranges.
//!
//! Stricter than a driver may be: what is unmapped is gone at once, whatever queues still have to
//! do with it, and what is mapped nobody may touch before it is opened to a device.

use crate::memory::{BLOCKS, Block, FRESH, alone, lock_away};
use crate::streams::current;
use crate::{
    Answer, INVALID_DEVICE, INVALID_VALUE, NOT_SUPPORTED, OUT_OF_MEMORY, PEER_ACCESS_UNSUPPORTED,
    lock, ndevices, setting,
};
use std::collections::{BTreeMap, HashMap};
use std::ffi::c_void;
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::os::unix::fs::FileExt;
use std::ptr::with_exposed_provenance_mut;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, LazyLock, Mutex};

/// As the driver's.
#[repr(C)]
pub struct Wanted {
    kind: i32,
    carriers: i32,
    place: [i32; 2],
    unused: [u64; 2],
}

/// As the driver's.
#[repr(C)]
pub struct Right {
    place: [i32; 2],
    what: i32,
}

/// As the driver's: a value that names a piece on a fabric. Here: the process and its descriptor.
pub type Fabric = [u64; 8];

/// All pieces are of whole granules.
pub const GRANULE: usize = 8192;

const DESCRIPTOR: i32 = 1;
const FABRIC: i32 = 8;

struct Piece {
    /// The bytes, then a granule that begins with the device's number and the carriers.
    file: File,
    bytes: usize,
    ordinal: usize,
    carriers: i32,
    /// No other piece of the process ever has this number.
    block: u64,
}

impl Piece {
    fn new(file: File, bytes: usize, ordinal: usize, carriers: i32) -> Arc<Piece> {
        static BLOCK: AtomicU64 = AtomicU64::new(1 << 32);
        Arc::new(Piece { file, bytes, ordinal, carriers, block: BLOCK.fetch_add(1, SeqCst) })
    }
}

/// By handle.
static PIECES: LazyLock<Mutex<HashMap<u64, Arc<Piece>>>> = LazyLock::new(Mutex::default);

/// By address.
static RESERVED: LazyLock<Mutex<BTreeMap<u64, usize>>> = LazyLock::new(Mutex::default);
static MAPPED: LazyLock<Mutex<BTreeMap<u64, Arc<Piece>>>> = LazyLock::new(Mutex::default);

fn handle(piece: Arc<Piece>) -> u64 {
    static HANDLES: AtomicU64 = AtomicU64::new(0x71EC_E000);
    let handle = HANDLES.fetch_add(1, SeqCst);
    lock(&PIECES).insert(handle, piece);
    handle
}

fn piece(handle: u64) -> Answer<Arc<Piece>> {
    lock(&PIECES).get(&handle).cloned().ok_or(INVALID_VALUE)
}

fn whole(bytes: usize) -> Answer {
    if bytes > 0 && bytes.is_multiple_of(GRANULE) { Ok(()) } else { Err(INVALID_VALUE) }
}

pub fn create(bytes: usize, wanted: &Wanted) -> Answer<u64> {
    whole(bytes)?;
    let ordinal = usize::try_from(wanted.place[1]).map_err(|_| INVALID_DEVICE)?;
    if wanted.kind != 1 || wanted.place[0] != 1 || wanted.unused != [0; 2] {
        return Err(INVALID_VALUE);
    }
    if ordinal >= ndevices() {
        return Err(INVALID_DEVICE);
    }
    if wanted.carriers & !(DESCRIPTOR | FABRIC) != 0 {
        return Err(NOT_SUPPORTED);
    }
    // SAFETY: a C string; the descriptor is this piece's.
    let file = unsafe {
        let fd = libc::memfd_create(c"fakecuda-piece".as_ptr(), libc::MFD_CLOEXEC);
        if fd < 0 {
            return Err(OUT_OF_MEMORY);
        }
        File::from(OwnedFd::from_raw_fd(fd))
    };
    let written = file.write_all_at(&vec![FRESH; bytes], 0).and_then(|()| {
        file.set_len((bytes + GRANULE) as u64)?;
        file.write_all_at(&[ordinal as u8, wanted.carriers as u8], bytes as u64)
    });
    written.map_err(|_| OUT_OF_MEMORY)?;
    Ok(handle(Piece::new(file, bytes, ordinal, wanted.carriers)))
}

/// The piece of a file that some process made.
fn opened(file: File) -> Answer<u64> {
    let bytes = file.metadata().map_err(|_| INVALID_VALUE)?.len() as usize;
    let bytes = bytes.checked_sub(GRANULE).ok_or(INVALID_VALUE)?;
    let mut facts = [0u8; 2];
    file.read_exact_at(&mut facts, bytes as u64).map_err(|_| INVALID_VALUE)?;
    Ok(handle(Piece::new(file, bytes, usize::from(facts[0]), i32::from(facts[1]))))
}

/// # Safety
/// `place` has room for a descriptor, or for the value of a fabric.
pub unsafe fn export(place: *mut c_void, handle: u64, carrier: i32) -> Answer {
    let piece = piece(handle)?;
    if place.is_null() || carrier & piece.carriers == 0 {
        return Err(INVALID_VALUE);
    }
    let copy = piece.file.try_clone().map_err(|_| OUT_OF_MEMORY)?;
    // SAFETY: the caller's promise.
    unsafe {
        match carrier {
            DESCRIPTOR => place.cast::<RawFd>().write(copy.into_raw_fd()),
            FABRIC => {
                // It stays open: nobody says when the value is of no more use.
                let fd = copy.into_raw_fd() as u64;
                let value: Fabric = [u64::from(std::process::id()), fd, 0, 0, 0, 0, 0, 0];
                place.cast::<Fabric>().write_unaligned(value);
            }
            _ => return Err(INVALID_VALUE),
        }
    }
    Ok(())
}

/// # Safety
/// `named` is a descriptor's number, or leads to the value of a fabric.
pub unsafe fn import(named: *mut c_void, carrier: i32) -> Answer<u64> {
    let path = match carrier {
        // A descriptor may be closed as soon as it was imported.
        DESCRIPTOR => format!("/proc/self/fd/{}", named.addr()),
        FABRIC => {
            // SAFETY: the caller's promise.
            let value = unsafe { named.cast::<Fabric>().read_unaligned() };
            format!("/proc/{}/fd/{}", value[0], value[1])
        }
        _ => return Err(INVALID_VALUE),
    };
    let file = File::options().read(true).write(true).open(path);
    opened(file.map_err(|_| INVALID_VALUE)?)
}

/// The piece that is mapped at an address.
fn at(address: u64) -> Option<(u64, Arc<Piece>)> {
    let mapped = lock(&MAPPED);
    let (start, piece) = mapped.range(..=address).next_back()?;
    (address < start + piece.bytes as u64).then(|| (*start, piece.clone()))
}

pub fn retain(address: u64) -> Answer<u64> {
    at(address).map(|(_, piece)| handle(piece)).ok_or(INVALID_VALUE)
}

pub fn release(handle: u64) -> Answer {
    lock(&PIECES).remove(&handle).map(drop).ok_or(INVALID_VALUE)
}

/// Addresses that nobody may touch, in the place of whatever was there, or wherever there is room.
fn close(address: u64, bytes: usize) -> Answer<u64> {
    let fixed = if address == 0 { 0 } else { libc::MAP_FIXED };
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | fixed;
    let place = with_exposed_provenance_mut(address as usize);
    // SAFETY: a new mapping, or in the place of one of this driver's.
    let start = unsafe { libc::mmap(place, bytes, libc::PROT_NONE, flags, -1, 0) };
    let is_made = start != libc::MAP_FAILED;
    if is_made { Ok(start.expose_provenance() as u64) } else { Err(OUT_OF_MEMORY) }
}

pub fn reserve(bytes: usize) -> Answer<u64> {
    current()?;
    whole(bytes)?;
    let start = close(0, bytes)?;
    lock(&RESERVED).insert(start, bytes);
    Ok(start)
}

pub fn free(address: u64, bytes: usize) -> Answer {
    let is_mapped = lock(&MAPPED).range(address..address + bytes as u64).next().is_some();
    let mut reserved = lock(&RESERVED);
    if is_mapped || reserved.get(&address) != Some(&bytes) {
        return Err(INVALID_VALUE);
    }
    reserved.remove(&address);
    // SAFETY: mapped by `reserve`.
    unsafe { libc::munmap(with_exposed_provenance_mut(address as usize), bytes) };
    Ok(())
}

pub fn map(address: u64, bytes: usize, offset: usize, handle: u64) -> Answer {
    let piece = piece(handle)?;
    let end = address + bytes as u64;
    let is_reserved = lock(&RESERVED)
        .range(..=address)
        .next_back()
        .is_some_and(|(start, room)| end <= start + *room as u64);
    let mut mapped = lock(&MAPPED);
    let is_free = mapped
        .range(..end)
        .next_back()
        .is_none_or(|(start, before)| start + before.bytes as u64 <= address);
    if !is_reserved || !is_free || offset != 0 || bytes != piece.bytes {
        return Err(INVALID_VALUE);
    }
    let (flags, fd) = (libc::MAP_SHARED | libc::MAP_FIXED, piece.file.as_raw_fd());
    let place = with_exposed_provenance_mut(address as usize);
    // SAFETY: in the place of addresses that were reserved, and hold nothing.
    let start = unsafe { libc::mmap(place, bytes, libc::PROT_NONE, flags, fd, 0) };
    if start == libc::MAP_FAILED {
        return Err(OUT_OF_MEMORY);
    }
    let block = Block::new(bytes, Some(piece.ordinal), None);
    lock(&BLOCKS).insert(address, Block { rights: Some(0), ..block });
    mapped.insert(address, piece);
    Ok(())
}

pub fn unmap(address: u64, bytes: usize) -> Answer {
    let _alone = alone();
    let mut mapped = lock(&MAPPED);
    if mapped.get(&address).is_none_or(|piece| piece.bytes != bytes) {
        return Err(INVALID_VALUE);
    }
    mapped.remove(&address);
    lock(&BLOCKS).remove(&address);
    close(address, bytes).map(drop)
}

/// Let a device touch a range of whole pieces.
pub fn open(address: u64, bytes: usize, right: &Right) -> Answer {
    const READ_AND_WRITE: i32 = 3;
    let ordinal = usize::try_from(right.place[1]).ok().filter(|ordinal| *ordinal < ndevices());
    let ordinal = ordinal.ok_or(INVALID_DEVICE)?;
    let (start, piece) = at(address).ok_or(INVALID_VALUE)?;
    if (start, piece.bytes) != (address, bytes) || right.what != READ_AND_WRITE {
        return Err(INVALID_VALUE);
    }
    if ordinal != piece.ordinal && setting("FAKECUDA_PEERS", 1) == 0 {
        return Err(PEER_ACCESS_UNSUPPORTED);
    }
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let place: *mut c_void = with_exposed_provenance_mut(address as usize);
    // SAFETY: mapped by `map`, so many bytes.
    if unsafe { libc::mprotect(place, bytes, access) } != 0 {
        return Err(OUT_OF_MEMORY);
    }
    lock_away(place.cast(), bytes);
    let mut blocks = lock(&BLOCKS);
    let block = blocks.get_mut(&address).ok_or(INVALID_VALUE)?;
    block.rights = block.rights.map(|rights| rights | 1 << ordinal);
    Ok(())
}

/// How the memory at an address may travel: plain memory does not.
pub fn carriers(address: u64) -> u32 {
    at(address).map_or(0, |(_, piece)| piece.carriers as u32)
}

/// The number of the piece at an address, or of its plain allocation.
pub fn block(address: u64) -> Answer<u64> {
    match at(address) {
        Some((_, piece)) => Ok(piece.block),
        None => crate::memory::block(address).map(|(_, block)| block.id).ok_or(INVALID_VALUE),
    }
}
