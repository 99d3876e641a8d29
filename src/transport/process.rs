//! process (bring-up)
use crate::error::Result;
use std::os::fd::OwnedFd;
pub struct Liveness(#[allow(dead_code)] Vec<Option<OwnedFd>>);
impl Liveness {
    pub fn new(v: Vec<Option<OwnedFd>>) -> Liveness {
        Liveness(v)
    }
    pub fn dead(&self) -> Vec<usize> {
        Vec::new()
    }
}
pub fn own_descriptor() -> Result<OwnedFd> {
    Ok(std::fs::File::open("/dev/null").unwrap().into())
}
