//! Memory that processes share and that has no name: an anonymous file behind a descriptor.
//!
//! A peer could shrink the file and make every access beyond its new end a fatal signal; so a
//! segment is sealed against any change of size when it is made, and the seals are checked before
//! it is mapped. The memory goes when its last mapping and descriptor do, however their owners die.
#![allow(unsafe_code)]

use crate::error::{Error, Result};
use crate::os::descriptors::above_stdio;
use crate::os::thread_signals::without_size_signal;
use rustix::fs::{self, MemfdFlags, SealFlags};
use rustix::io::Errno;
use std::ffi::CStr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::null_mut;

/// No change of size, and no change of that.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// Zeroed memory, shared with whoever has the descriptor. Pages take room once they are touched.
pub struct Segment {
    address: *mut u8,
    bytes: usize,
    descriptor: Option<OwnedFd>,
}

// SAFETY: the segment only owns the mapping; what is done through its address is the user's
// concern.
unsafe impl Send for Segment {}
// SAFETY: as above.
unsafe impl Sync for Segment {}

impl Segment {
    /// Memory for other processes.
    pub fn create(bytes: usize) -> Result<Segment> {
        let descriptor = sealed_file(c"ringcomm", bytes)?;
        let address = map(Some(&descriptor), bytes)?;
        Ok(Segment { address, bytes, descriptor: Some(descriptor) })
    }

    /// Memory for the threads of this process alone.
    pub fn anonymous(bytes: usize) -> Result<Segment> {
        Ok(Segment { address: map(None, bytes)?, bytes, descriptor: None })
    }

    /// The memory behind a peer's descriptor, if it has `bytes` bytes and always will.
    pub fn map(descriptor: OwnedFd, bytes: usize) -> Result<Segment> {
        check(&descriptor, bytes)?;
        let address = map(Some(&descriptor), bytes)?;
        // The mapping keeps the memory; a descriptor less per peer.
        Ok(Segment { address, bytes, descriptor: None })
    }

    pub fn address(&self) -> *mut u8 {
        self.address
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// A descriptor to send to a peer; only a segment of [`Segment::create`] has one.
    pub fn descriptor(&self) -> Result<OwnedFd> {
        let Some(descriptor) = &self.descriptor else {
            return Err(Error::Internal("this segment has no descriptor to share".into()));
        };
        descriptor.try_clone().map_err(|_| Error::system("duplicating a segment's descriptor"))
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own.
        unsafe { unmap(self.address, self.bytes) };
    }
}

/// An anonymous file of `bytes` zeros whose size is fixed for ever.
pub(super) fn sealed_file(label: &CStr, bytes: usize) -> Result<OwnedFd> {
    let file = fs::memfd_create(label, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
        .and_then(above_stdio)
        .map_err(|error| Error::os("creating shared memory (memfd_create)", error))?;
    if i64::try_from(bytes).is_err() {
        return Err(Error::argument(format!("{bytes} bytes of shared memory are too many")));
    }
    without_size_signal(|| fs::ftruncate(&file, bytes as u64))
        .and_then(|()| fs::fcntl_add_seals(&file, SEALS))
        .map_err(|error| {
            let limit = if error == Errno::FBIG { " (the limit of `ulimit -f`)" } else { "" };
            Error::os(format!("sizing {bytes} bytes of shared memory{limit}"), error)
        })?;
    Ok(file)
}

/// Refuse a descriptor whose memory is not `bytes` long, or could change its size.
pub(super) fn check(descriptor: &OwnedFd, bytes: usize) -> Result<()> {
    let size = fs::fstat(descriptor)
        .map_err(|error| Error::os("inspecting a peer's shared memory", error))?
        .st_size;
    if !fs::fcntl_get_seals(descriptor).is_ok_and(|seals| seals.contains(SEALS)) {
        return Err(Error::usage(
            "a peer sent shared memory that is not sealed against resizing; it is refused",
        ));
    }
    if usize::try_from(size) != Ok(bytes) {
        return Err(Error::usage(format!(
            "a peer sent {size} bytes of shared memory where {bytes} were agreed; \
             all ranks must run the same version with the same RINGCOMM_BUFFSIZE"
        )));
    }
    Ok(())
}

fn map(file: Option<&OwnedFd>, bytes: usize) -> Result<*mut u8> {
    // SAFETY: the kernel chooses a place that nothing uses.
    unsafe { map_at(null_mut(), file, bytes) }
}

/// Map a file, or private zeros where there is none; at `target`, or where the kernel likes for
/// NULL.
///
/// # Safety
/// A `target` is the start of `bytes` bytes of whole pages whose present content nobody needs.
pub(super) unsafe fn map_at(
    target: *mut u8,
    file: Option<&OwnedFd>,
    bytes: usize,
) -> Result<*mut u8> {
    let (mut flags, descriptor) = match file {
        Some(file) => (libc::MAP_SHARED, file.as_raw_fd()),
        None => (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1),
    };
    if !target.is_null() {
        flags |= libc::MAP_FIXED;
    }
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // By the C library's function, which tells ThreadSanitizer that the memory is new.
    // SAFETY: the caller's promise.
    let address = unsafe { libc::mmap(target.cast(), bytes, access, flags, descriptor, 0) };
    if address == libc::MAP_FAILED {
        return Err(Error::system(format!("mapping {bytes} bytes")));
    }
    Ok(address.cast())
}

/// # Safety
/// The range is a whole mapping that nothing uses any more.
pub(super) unsafe fn unmap(address: *mut u8, bytes: usize) {
    // SAFETY: the caller's promise.
    let result = unsafe { libc::munmap(address.cast(), bytes) };
    debug_assert_eq!(result, 0, "unmapping what was mapped cannot fail");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(segment: &Segment, at: usize) -> u8 {
        assert!(at < segment.bytes());
        // SAFETY: inside the mapping.
        unsafe { *segment.address().add(at) }
    }

    fn write(segment: &Segment, at: usize, byte: u8) {
        assert!(at < segment.bytes());
        // SAFETY: inside the mapping.
        unsafe { *segment.address().add(at) = byte };
    }

    #[test]
    fn two_mappings_of_a_segment_are_one_memory() {
        let mine = Segment::create(10_000).unwrap();
        let theirs = Segment::map(mine.descriptor().unwrap(), 10_000).unwrap();
        assert!((0..theirs.bytes()).all(|at| read(&theirs, at) == 0));
        write(&mine, 9_999, 7);
        assert_eq!(read(&theirs, 9_999), 7);
        drop(mine);
        assert_eq!(read(&theirs, 9_999), 7);
    }

    #[test]
    fn nobody_can_resize_a_segment() {
        let segment = Segment::create(4096).unwrap();
        let file = std::fs::File::from(segment.descriptor().unwrap());
        assert!(file.set_len(0).is_err() && file.set_len(1 << 20).is_err());
    }

    #[test]
    fn memory_that_could_shrink_is_refused() {
        let open = fs::memfd_create(c"open", MemfdFlags::ALLOW_SEALING).unwrap();
        std::fs::File::from(open.try_clone().unwrap()).set_len(4096).unwrap();
        let text = Segment::map(open, 4096).err().unwrap().to_string();
        assert!(text.contains("not sealed"), "{text}");
        let ordinary = OwnedFd::from(std::fs::File::open("/proc/self/exe").unwrap());
        assert!(Segment::map(ordinary, 4096).is_err());
    }

    #[test]
    fn memory_of_another_size_is_refused() {
        let segment = Segment::create(4096).unwrap();
        let text = Segment::map(segment.descriptor().unwrap(), 8192).err().unwrap().to_string();
        assert!(text.contains("4096 bytes of shared memory where 8192"), "{text}");
    }

    #[test]
    fn anonymous_memory_has_no_descriptor() {
        let segment = Segment::anonymous(100).unwrap();
        write(&segment, 99, 1);
        assert!(segment.descriptor().is_err());
    }
}
