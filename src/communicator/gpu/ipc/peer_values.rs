//! What ranks on devices tell each other beside their bytes: small values, through their links.
#![allow(unsafe_code)]

use crate::communicator::gpu::staging::NAP;
use crate::communicator::health::wait_check::OpWaitCheck;
use crate::communicator::memory::peer_regions::Registrations;
use crate::error::{Error, Result};
use crate::executor::links::Links;
use crate::transport::fifo::Stamp;
use crate::transport::wait::WaitCheck;
use std::ops::Range;
use std::time::{Duration, Instant};

/// Words of exchanged messages are copied as they are.
pub trait Plain: Copy + Default {}
impl Plain for u64 {}

/// What a rank has to talk by, in one call.
pub struct PeerValues<'a> {
    pub links: &'a mut Links,
    /// Where descriptors come and go.
    pub memory: &'a mut Registrations,
    pub stamp: &'a Stamp,
    pub watch: &'a OpWaitCheck<'a>,
}

impl PeerValues<'_> {
    /// Tell all of `ranks` a value, and hear theirs: by rank.
    pub fn exchange<T: Plain>(&mut self, mine: T, ranks: Range<usize>) -> Result<Vec<T>> {
        let mut values = vec![mine; ranks.len()];
        let me = self.links.rank;
        for peer in ranks.clone().filter(|peer| *peer != me) {
            self.post(peer, mine)?;
        }
        for peer in ranks.filter(|peer| *peer != me) {
            values[peer] = self.receive(peer)?;
        }
        Ok(values)
    }

    pub fn post<T: Plain>(&mut self, peer: usize, value: T) -> Result<()> {
        let payload = self.links.reserve(peer, size_of::<T>(), self.watch)?;
        // SAFETY: the slot has room for it.
        unsafe { payload.cast::<T>().write_unaligned(value) };
        self.links.post(peer, self.stamp, size_of::<T>());
        Ok(())
    }

    pub fn receive<T: Plain>(&mut self, peer: usize) -> Result<T> {
        let payload = self.links.receive(peer, self.stamp, size_of::<T>(), self.watch)?;
        // SAFETY: the message has the bytes, and plain values have no others.
        let value = unsafe { payload.cast::<T>().read_unaligned() };
        self.links.free(peer);
        Ok(value)
    }

    /// The error of a rank that was told that `peer` has one: what the peer says of it, which it
    /// does at once.
    pub fn told(&self, peer: usize) -> Error {
        const LONGEST: Duration = Duration::from_secs(2);
        let started = Instant::now();
        while !self.watch.makes_communicator && started.elapsed() < LONGEST {
            if let Err(error) = self.watch.check(peer, Duration::ZERO) {
                return error;
            }
            std::thread::sleep(NAP);
        }
        Error::Cuda(format!("rank {peer} could not do its part in {}", self.watch.operation()))
    }
}
