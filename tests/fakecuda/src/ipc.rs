//! Memory between processes: a handle says where the owner's file has it.
//!
//! Stricter than a driver may be: memory that was freed is empty for those who have it open, and
//! memory that was closed is gone at once, whatever queues still have to do with it. What its owner
//! has where something else was that is still open here is not opened beside that.

use crate::memory::{BLOCKS, Block, alone, arena, block, lock_away, map};
use crate::streams::{current, synchronize_all};
use crate::{
    ALREADY_MAPPED, Answer, INVALID_CONTEXT, INVALID_VALUE, PEER_ACCESS_UNSUPPORTED, lock, peers,
    setting,
};
use std::collections::HashMap;
use std::ffi::CString;
use std::ops::Range;
use std::sync::{LazyLock, Mutex};

/// As the driver's: a value of 64 bytes.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Handle {
    process: u64,
    file: u64,
    offset: u64,
    bytes: u64,
    ordinal: u64,
    id: u64,
    rest: [u64; 2],
}

/// What is open here.
struct Opened {
    /// Its process, and the number that it has there.
    whose: (u64, u64),
    /// Where it is there.
    place: Range<u64>,
    times: usize,
}

/// By address.
static OPEN: LazyLock<Mutex<HashMap<u64, Opened>>> = LazyLock::new(Mutex::default);

pub fn export(address: u64) -> Answer<Handle> {
    let (_, block) = block(address).ok_or(INVALID_VALUE)?;
    let (Some(offset), Some(ordinal)) = (block.offset, block.ordinal) else {
        return Err(INVALID_VALUE);
    };
    Ok(Handle {
        process: u64::from(std::process::id()),
        file: arena()? as u64,
        offset: offset as u64,
        bytes: block.bytes as u64,
        ordinal: ordinal as u64,
        id: block.id,
        rest: [0; 2],
    })
}

pub fn open(handle: Handle) -> Answer<u64> {
    let here = current()?;
    if handle.process == u64::from(std::process::id()) {
        return Err(INVALID_CONTEXT);
    }
    if handle.ordinal != here as u64 && setting("FAKECUDA_PEERS", 1) == 0 {
        return Err(PEER_ACCESS_UNSUPPORTED);
    }
    // As with the driver's flag for it; a second time changes nothing.
    let _ = peers::enable(here, handle.ordinal as usize);
    let mut all = lock(&OPEN);
    let whose = (handle.process, handle.id);
    if let Some((address, opened)) = all.iter_mut().find(|(_, opened)| opened.whose == whose) {
        opened.times += 1;
        return Ok(*address);
    }
    let place = handle.offset..handle.offset + handle.bytes;
    let is_in_the_way = |opened: &Opened| {
        let meets = opened.place.start < place.end && place.start < opened.place.end;
        opened.whose.0 == handle.process && meets
    };
    if all.values().any(is_in_the_way) {
        return Err(ALREADY_MAPPED);
    }
    let path = format!("/proc/{}/fd/{}", handle.process, handle.file);
    let path = CString::new(path).map_err(|_| INVALID_VALUE)?;
    let bytes = handle.bytes as usize;
    // SAFETY: a C string; the descriptor is closed again.
    let start = unsafe {
        let fd = libc::open(path.as_ptr(), libc::O_RDWR | libc::O_CLOEXEC);
        if fd < 0 {
            return Err(INVALID_VALUE);
        }
        let start = map(bytes, Some((fd, handle.offset as usize)));
        libc::close(fd);
        start?
    };
    lock_away(start, bytes);
    let address = start.expose_provenance() as u64;
    lock(&BLOCKS).insert(address, Block::new(bytes, Some(handle.ordinal as usize), None));
    all.insert(address, Opened { whose, place, times: 1 });
    Ok(address)
}

pub fn close(address: u64) -> Answer {
    current()?;
    let _alone = alone();
    // As the driver was seen to: after everything that was given to any stream.
    synchronize_all();
    let mut all = lock(&OPEN);
    let opened = all.get_mut(&address).ok_or(INVALID_VALUE)?;
    opened.times -= 1;
    if opened.times == 0 {
        all.remove(&address);
        let block = lock(&BLOCKS).remove(&address).ok_or(INVALID_VALUE)?;
        let start = std::ptr::with_exposed_provenance_mut(address as usize);
        // SAFETY: mapped by `open`.
        unsafe { libc::munmap(start, block.bytes) };
    }
    Ok(())
}
