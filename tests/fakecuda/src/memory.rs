//! Memory: ordinary pages, of which those of a device are only for its queues to touch.

use crate::failures::{broken, spoils};
use crate::streams::{current, find, synchronize_all};
use crate::words::is_registered;
use crate::{Answer, INVALID_VALUE, OUT_OF_MEMORY, lock, setting};
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, LazyLock, Mutex, OnceLock, RwLock, RwLockWriteGuard};

#[derive(Clone, Copy)]
pub struct Block {
    pub bytes: usize,
    /// The device, or none for pinned host memory.
    pub ordinal: Option<usize>,
    /// No other block of the process ever has this number.
    pub id: u64,
    /// Where it is in the file that other processes can open; none for what is not this process's.
    pub offset: Option<usize>,
    /// The devices that may touch it, a bit each; none where that goes by pairs of devices.
    pub rights: Option<u32>,
}

impl Block {
    pub fn new(bytes: usize, ordinal: Option<usize>, offset: Option<usize>) -> Block {
        static IDS: AtomicU64 = AtomicU64::new(1);
        Block { bytes, ordinal, id: IDS.fetch_add(1, SeqCst), offset, rights: None }
    }
}

/// By address.
pub static BLOCKS: LazyLock<Mutex<BTreeMap<u64, Block>>> = LazyLock::new(Mutex::default);

/// What fresh memory holds: no number that a test writes.
pub const FRESH: u8 = 0xA5;

/// The protection key of device memory, where the processor and the kernel have such keys.
fn key() -> Option<i32> {
    static KEY: OnceLock<Option<i32>> = OnceLock::new();
    *KEY.get_or_init(|| {
        const NO_ACCESS: libc::c_ulong = 1;
        // SAFETY: two numbers; this thread loses access to pages of the new key, of which there are
        // none. Other threads never had it.
        let key = unsafe { libc::syscall(libc::SYS_pkey_alloc, 0 as libc::c_ulong, NO_ACCESS) };
        (key > 0).then_some(key as i32)
    })
}

/// Let this thread touch device memory.
pub fn allow_device_memory() {
    #[cfg(target_arch = "x86_64")]
    if let Some(key) = key() {
        // SAFETY: there are protection keys; the two bits of this one are cleared.
        unsafe {
            let (mut rights, _high): (u32, u32);
            std::arch::asm!("rdpkru", in("ecx") 0, out("eax") rights, out("edx") _high);
            rights &= !(0b11 << (2 * key));
            std::arch::asm!("wrpkru", in("eax") rights, in("ecx") 0, in("edx") 0);
        }
    }
}

/// Map so many bytes of a file, or of none.
pub fn map(bytes: usize, file: Option<(i32, usize)>) -> Answer<*mut u8> {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let flags = match file {
        Some(_) => libc::MAP_SHARED,
        None => libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
    };
    let (fd, offset) = file.unwrap_or((-1, 0));
    let offset = offset as libc::off_t;
    // SAFETY: a new mapping wherever the kernel likes.
    let start = unsafe { libc::mmap(std::ptr::null_mut(), bytes, access, flags, fd, offset) };
    if start == libc::MAP_FAILED { Err(OUT_OF_MEMORY) } else { Ok(start.cast()) }
}

/// Let only the queues' threads touch this memory.
pub fn lock_away(start: *mut u8, bytes: usize) {
    if let Some(key) = key() {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: just mapped, so many bytes.
        unsafe { libc::syscall(libc::SYS_pkey_mprotect, start, bytes, access, key) };
    }
}

/// The file that all device memory of this process is in, which other processes can open.
pub fn arena() -> Answer<i32> {
    /// More than any test allocates; what is not touched takes no room.
    const BYTES: libc::off_t = 1 << 40;
    static ARENA: OnceLock<i32> = OnceLock::new();
    let fd = *ARENA.get_or_init(|| {
        // SAFETY: a C string; the descriptor stays as long as the process.
        unsafe {
            let fd = libc::memfd_create(c"fakecuda".as_ptr(), libc::MFD_CLOEXEC);
            if fd >= 0 && libc::ftruncate(fd, BYTES) == 0 { fd } else { -1 }
        }
    });
    if fd >= 0 { Ok(fd) } else { Err(OUT_OF_MEMORY) }
}

/// Places in the arena that were freed and may be used again, by their whole pages.
static FREED: Mutex<Vec<(usize, usize)>> = Mutex::new(Vec::new());

/// Room for so many bytes in the arena, in whole pages: what was freed last, where that is asked
/// for, else never the same again.
fn room(bytes: usize) -> usize {
    static END: AtomicUsize = AtomicUsize::new(0);
    let bytes = bytes.next_multiple_of(4096);
    let mut freed = lock(&FREED);
    match freed.iter().rposition(|(_, room)| *room == bytes) {
        Some(index) => freed.remove(index).0,
        None => END.fetch_add(bytes, SeqCst),
    }
}

fn allocate(bytes: usize, ordinal: Option<usize>) -> Answer<u64> {
    if bytes == 0 {
        return Err(INVALID_VALUE);
    }
    let _alone = alone();
    let offset = ordinal.map(|_| room(bytes));
    let start = match offset {
        Some(offset) => map(bytes, Some((arena()?, offset)))?,
        None => map(bytes, None)?,
    };
    // SAFETY: just mapped, so many bytes.
    unsafe { start.write_bytes(FRESH, bytes) };
    if ordinal.is_some() {
        lock_away(start, bytes);
    }
    let address = start.expose_provenance() as u64;
    lock(&BLOCKS).insert(address, Block::new(bytes, ordinal, offset));
    Ok(address)
}

pub fn allocate_device(bytes: usize) -> Answer<u64> {
    allocate(bytes, Some(current()?))
}

pub fn allocate_host(bytes: usize) -> Answer<*mut c_void> {
    current()?;
    Ok(std::ptr::with_exposed_provenance_mut(allocate(bytes, None)? as usize))
}

/// Read by who launches a kernel; written while memory comes or goes, where no launch is let in
/// then.
pub static LAUNCHES: RwLock<()> = RwLock::new(());

/// Where that is asked for: let nobody launch, and wait for everything that was given to any
/// stream, as a driver may do whatever memory comes or goes.
pub fn alone() -> Option<RwLockWriteGuard<'static, ()>> {
    if setting("FAKECUDA_FREES_ALONE", 0) == 0 {
        return None;
    }
    let alone = LAUNCHES.write();
    synchronize_all();
    alone.ok()
}

/// Free a block, as the driver does: after everything that was given to any stream.
pub fn free(address: u64, is_device: bool) -> Answer {
    match lock(&BLOCKS).get(&address) {
        Some(block) if block.ordinal.is_some() == is_device => {
            if is_device && block.offset.is_none() {
                return Err(INVALID_VALUE);
            }
        }
        _ => return Err(INVALID_VALUE),
    }
    let _alone = alone();
    synchronize_all();
    let block = lock(&BLOCKS).remove(&address).ok_or(INVALID_VALUE)?;
    if let Some(offset) = block.offset {
        // Who has it open finds that it is gone.
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        // SAFETY: a range of a file of this process.
        unsafe { libc::fallocate(arena()?, mode, offset as i64, block.bytes as i64) };
        if setting("FAKECUDA_REUSES", 0) == 1 {
            lock(&FREED).push((offset, block.bytes.next_multiple_of(4096)));
        }
    }
    // SAFETY: mapped by `allocate`, and nothing that was given uses it any more.
    unsafe { libc::munmap(std::ptr::with_exposed_provenance_mut(address as usize), block.bytes) };
    Ok(())
}

pub fn block(address: u64) -> Option<(u64, Block)> {
    let blocks = lock(&BLOCKS);
    let (start, block) = blocks.range(..=address).next_back()?;
    (address < start + block.bytes as u64).then_some((*start, *block))
}

/// An attribute of a pointer, of four bytes: the memory's type, the device, whether processes share
/// it as a whole, and how piece by piece.
pub fn attribute(attribute: i32, address: u64) -> Answer<u32> {
    let (_, block) = block(address).ok_or(INVALID_VALUE)?;
    match attribute {
        2 => Ok(if block.ordinal.is_some() { 2 } else { 1 }),
        9 => Ok(block.ordinal.unwrap_or(0) as u32),
        10 => Ok(u32::from(block.offset.is_some())),
        14 => Ok(crate::pieces::carriers(address)),
        _ => Err(INVALID_VALUE),
    }
}

/// An attribute of a pointer, of eight bytes: the block's number, its bounds, its piece's number.
pub fn wide_attribute(attribute: i32, address: u64) -> Option<Answer<u64>> {
    let found = || block(address).ok_or(INVALID_VALUE);
    match attribute {
        7 => Some(found().map(|(_, block)| block.id)),
        18 => Some(found().map(|(_, block)| block.bytes as u64)),
        19 => Some(found().map(|(start, _)| start)),
        20 => Some(crate::pieces::block(address)),
        _ => None,
    }
}

/// The bounds of the block at an address. Stricter than a driver may be: what another process has
/// allocated it says nothing of.
pub fn range(address: u64) -> Answer<(u64, usize)> {
    let (start, block) = block(address).ok_or(INVALID_VALUE)?;
    let is_imported = block.ordinal.is_some() && block.offset.is_none() && block.rights.is_none();
    if is_imported { Err(INVALID_VALUE) } else { Ok((start, block.bytes)) }
}

/// Refuse a range that begins in a block and goes beyond it, but from piece to mapped piece.
fn check(address: u64, bytes: usize) -> Answer {
    let end = address + bytes as u64;
    let Some((start, mut last)) = block(address) else { return Ok(()) };
    let mut reached = start + last.bytes as u64;
    while reached < end {
        let next = block(reached).filter(|_| last.rights.is_some()).ok_or(INVALID_VALUE)?;
        last = next.1;
        reached += last.bytes as u64;
    }
    Ok(())
}

pub fn copy(to: u64, from: u64, bytes: usize, stream: *mut c_void) -> Answer {
    check(to, bytes)?;
    check(from, bytes)?;
    let is_device = |address| block(address).is_some_and(|(_, block)| block.ordinal.is_some());
    let spoils = bytes > 0 && is_device(from) && !is_device(to) && spoils("cuMemcpyAsync");
    let stream = find(stream)?;
    let blocks = blocks(to, from, bytes) && lock(&stream.capture).is_none();
    if blocks {
        // It waits for a stream, which a capture might see.
        crate::capture::forbid()?;
    }
    stream.submit(Arc::new(move || {
        let to: *mut u8 = std::ptr::with_exposed_provenance_mut(to as usize);
        let from: *const u8 = std::ptr::with_exposed_provenance(from as usize);
        // SAFETY: the program promised both ranges until the stream is past this.
        unsafe {
            std::ptr::copy(from, to, bytes);
            if spoils {
                *to ^= 0x40;
            }
        }
    }));
    if blocks {
        stream.synchronize();
        return broken().map_or(Ok(()), Err);
    }
    Ok(())
}

/// Whether a copy may hold its caller until the stream has done it, as the driver's documentation
/// has it ("API synchronization behavior"): within the host's memory, from a device to memory that
/// is not pinned, and from there to a device where it is longer than a driver sets aside at once.
fn blocks(to: u64, from: u64, bytes: usize) -> bool {
    const SET_ASIDE: usize = 64 << 10;
    let is_device = |address| block(address).is_some_and(|(_, block)| block.ordinal.is_some());
    match (is_device(from), is_device(to)) {
        _ if bytes == 0 => false,
        (true, true) => false,
        (true, false) => !is_registered(to),
        (false, true) => !is_registered(from) && bytes > SET_ASIDE,
        (false, false) => true,
    }
}

pub fn fill(to: u64, value: u8, bytes: usize, stream: *mut c_void) -> Answer {
    check(to, bytes)?;
    find(stream)?.submit(Arc::new(move || {
        let to: *mut u8 = std::ptr::with_exposed_provenance_mut(to as usize);
        // SAFETY: the program promised the range until the stream is past this.
        unsafe { to.write_bytes(value, bytes) };
    }));
    Ok(())
}
