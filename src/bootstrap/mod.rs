//! How ranks find each other: the unique id, and the authenticated rendezvous it leads to.

/// The 128 bytes that lead the ranks of one communicator together, a 32-byte secret among them.
#[derive(Clone, PartialEq, Eq)]
pub struct UniqueId(pub(crate) [u8; 128]);
use crate::error::Result;
use std::os::fd::OwnedFd;
pub struct Contribution {
    pub payload: Vec<u8>,
    pub process: u64,
    pub fds: Vec<OwnedFd>,
}
pub struct Member {
    pub payload: Vec<u8>,
    pub process: u64,
    pub pid: u32,
    pub fds: Vec<OwnedFd>,
}
pub fn exchange(
    _: &UniqueId,
    _: usize,
    _: usize,
    _: Contribution,
    _: std::time::Instant,
) -> Result<Vec<Member>> {
    unimplemented!()
}
pub fn process_token() -> u64 {
    1
}
impl UniqueId {
    pub fn generate() -> Result<UniqueId> {
        Ok(UniqueId([0; 128]))
    }
    pub fn derive(&self, _: &[u8]) -> UniqueId {
        self.clone()
    }
    pub fn short(&self) -> u32 {
        1
    }
}
