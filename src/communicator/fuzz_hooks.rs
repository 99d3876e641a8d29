//! Doors for the fuzz targets to what takes a peer's words, and is nobody else's to call.

use super::call::signature::CallSignature;
use super::health::wait_check::{CommHealth, OpWaitCheck};
use super::init::multi_host::HostPeerInfo;
use super::init::peer_info::PeerInfo;
use super::memory::peer_regions::Registrations;
use crate::algorithm::Algorithm;
use crate::error::Result;
use crate::executor::direct::program::Used;
use crate::executor::direct::run::{Base, BufferAddresses};
use crate::executor::links::Pages;
use crate::plan::Collective;
use crate::sync::atomic::AtomicBool;
use crate::transport::pidfd::Liveness;
use crate::transport::shm_export::Mailbox;
use crate::transport::wait::WaitCheck;
use crate::types::{DataType, ReduceOp};
use std::os::fd::OwnedFd;
use std::time::Duration;

/// A rank that has been sent memory, by peers in other processes.
pub struct Importer(Registrations);

impl Importer {
    /// The rank, and the end of its mailbox that its peers post into.
    pub fn new() -> Result<(Importer, OwnedFd)> {
        let (mailbox, sender) = Mailbox::pair()?;
        Ok((Importer(Registrations::new(false, Some(mailbox), Vec::new())), sender))
    }

    /// See [`Registrations::resolve`].
    pub fn resolve(&mut self, addresses: &BufferAddresses, used: &Used) -> Option<Base> {
        self.0.resolve(addresses, used).ok().flatten()
    }
}

/// What a rank says of itself at the rendezvous, read and written again.
pub fn peer_info(bytes: &[u8]) -> Option<Vec<u8>> {
    PeerInfo::unpack(bytes).ok().map(|peer_info| peer_info.pack())
}

/// What a rank tells the ranks of all hosts, read and written again.
pub fn host_peer_info(bytes: &[u8]) -> Option<Vec<u8>> {
    HostPeerInfo::unpack(bytes).map(|host_peer_info| host_peer_info.pack())
}

/// What a rank that waits for rank 1 in collective `sequence` finds on everybody's page.
pub fn wait_check(pages: &Pages, sequence: u64, waited: Duration) -> Result<()> {
    let health = CommHealth {
        pages: pages.clone(),
        liveness: Liveness::new((0..pages.nranks()).map(|_| None).collect()),
        processes: Vec::new(),
        publisher: None,
        track: None,
        maker: None,
        together: false,
        aborted: AtomicBool::new(false),
        timeout: Duration::from_secs(1),
        init_timeout: Duration::from_secs(1),
    };
    if let Some(error) = health.peer_error() {
        return Err(error);
    }
    let descriptor = CallSignature {
        collective: Some(Collective::AllReduce),
        data_type: DataType::Float32,
        op: ReduceOp::Sum,
        algorithm: Algorithm::Ring,
        root: 0,
        count: 1,
    };
    OpWaitCheck::new(&health, None, descriptor, sequence).check(1, waited)
}
