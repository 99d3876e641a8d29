//! How many GPUs and hosts the ranks of a benchmark are on, whatever each process sees of them.
#![allow(unsafe_code)]

use ringcomm::communicator::{Call, Communicator};
use ringcomm::config::Config;
use ringcomm::device::cuda::Device;
use ringcomm::error::Result;
use ringcomm::host;
use ringcomm::plan::Collective;
use ringcomm::types::DataType;
use std::collections::HashSet;
use std::sync::Arc;

pub struct Spread {
    pub ngpus: usize,
    pub nhosts: usize,
}

/// What a host is known by, and a device.
const HOST: usize = 32;
const DEVICE: usize = 16;

impl Spread {
    /// Of the ranks of this process, which are all, or one of a launched job. All ranks ask.
    pub fn of(ranks: &[Arc<Communicator>]) -> Result<Spread> {
        let host = host::identity(Config::from_environment()?.host_id.as_deref());
        let mut all = Vec::new();
        for comm in ranks {
            let device = comm.device().map(Device::of_ordinal).transpose()?;
            all.extend(host);
            all.extend(device.map(|device| device.uuid).unwrap_or_default());
        }
        let comm = &ranks[0];
        if ranks.len() < comm.nranks() {
            let mine = std::mem::replace(&mut all, vec![0; comm.nranks() * (HOST + DEVICE)]);
            let call = Call {
                send: mine.as_ptr(),
                recv: all.as_mut_ptr(),
                count: mine.len(),
                ..Call::new(Collective::AllGather, DataType::Uint8)
            };
            // SAFETY: both have what the call says.
            unsafe { comm.run(&call)? };
        }
        let ranks = || all.chunks(HOST + DEVICE);
        // No two have the same number, wherever they are; a host may be a part of one.
        let gpus: HashSet<&[u8]> = ranks().map(|rank| &rank[HOST..]).collect();
        let hosts: HashSet<&[u8]> = ranks().map(|rank| &rank[..HOST]).collect();
        Ok(Spread { ngpus: gpus.len(), nhosts: hosts.len() })
    }
}
