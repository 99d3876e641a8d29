//! segment (bring-up)
#![allow(unsafe_code)]
use crate::error::{Error, Result};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
pub struct Segment {
    at: *mut u8,
    bytes: usize,
    fd: Option<OwnedFd>,
}
unsafe impl Send for Segment {}
unsafe impl Sync for Segment {}
impl Segment {
    fn mmap(bytes: usize, fd: Option<OwnedFd>) -> Result<Segment> {
        let (flags, raw) = match &fd {
            Some(f) => (libc::MAP_SHARED, f.as_raw_fd()),
            None => (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1),
        };
        let at = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                flags,
                raw,
                0,
            )
        };
        if at == libc::MAP_FAILED {
            return Err(Error::system("mmap"));
        }
        Ok(Segment { at: at.cast(), bytes, fd })
    }
    pub fn anonymous(bytes: usize) -> Result<Segment> {
        Segment::mmap(bytes, None)
    }
    pub fn create(bytes: usize) -> Result<Segment> {
        let fd = unsafe {
            libc::memfd_create(c"ringcomm".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING)
        };
        if fd < 0 {
            return Err(Error::system("memfd_create"));
        }
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        if unsafe { libc::ftruncate(fd.as_raw_fd(), bytes as i64) } != 0 {
            return Err(Error::system("ftruncate"));
        }
        Segment::mmap(bytes, Some(fd))
    }
    pub fn map(fd: OwnedFd, bytes: usize) -> Result<Segment> {
        Segment::mmap(bytes, Some(fd))
    }
    pub fn address(&self) -> *mut u8 {
        self.at
    }
    pub fn bytes(&self) -> usize {
        self.bytes
    }
    pub fn descriptor(&self) -> Result<OwnedFd> {
        self.fd.as_ref().unwrap().try_clone().map_err(|_| Error::system("dup"))
    }
}
impl Drop for Segment {
    fn drop(&mut self) {
        unsafe { libc::munmap(self.at.cast(), self.bytes) };
    }
}
