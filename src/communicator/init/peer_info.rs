//! What a rank tells the others when it joins: its settings, its cores, where its memory is.

use crate::algorithm::Algorithm;
use crate::communicator::tuning::select::forced_algorithm;
use crate::communicator::tuning::slot_sizing::buff_size;
use crate::config::{Config, Protection};
use crate::error::{Error, Result};
use crate::host;
use rustix::thread::{CpuSet, sched_getaffinity};

/// What a rank tells the others at the rendezvous.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::communicator) struct PeerInfo {
    /// The number of its segment, for threads of its process.
    pub segment: u64,
    /// Its machine: ranks of one share cores, in whatever containers they run.
    pub machine: u64,
    /// Settings that must be the same on all ranks.
    pub buff_size: u64,
    pub deterministic: u64,
    pub algorithm: u64,
    pub protection: u64,
    pub sockets: u64,
    /// 1 where the rank is on a device.
    pub device: u64,
    /// The cores that it may run on: ranks bound to a core each do not share cores.
    pub cores: Cores,
}

/// A set of cores, a bit each; as many as the kernel's fixed-size sets hold.
pub(super) type Cores = [u64; 16];

/// The cores that the calling thread may run on; none where the kernel does not say.
pub(super) fn own_cores() -> Cores {
    let mut cores = Cores::default();
    if let Ok(set) = sched_getaffinity(None) {
        for core in (0..CpuSet::MAX_CPU).filter(|core| set.is_set(*core)) {
            cores[core / 64] |= 1 << (core % 64);
        }
    }
    cores
}

/// Bytes of an introduction.
pub(super) const INTRODUCTION: usize = 8 * (8 + size_of::<Cores>() / 8);

impl PeerInfo {
    /// This rank's.
    pub fn new(config: &Config, nranks: usize, is_on_device: bool) -> Result<PeerInfo> {
        Ok(PeerInfo {
            segment: 0,
            machine: host::machine(),
            buff_size: buff_size(config, nranks) as u64,
            deterministic: u64::from(config.deterministic),
            algorithm: forced_algorithm(config)?.map_or(0, |algorithm| algorithm as u64 + 1),
            protection: config.protection as u64,
            sockets: config.nsocks as u64,
            device: u64::from(is_on_device),
            cores: own_cores(),
        })
    }

    pub fn pack(&self) -> Vec<u8> {
        let words = [
            self.segment,
            self.machine,
            self.buff_size,
            self.deterministic,
            self.algorithm,
            self.protection,
            self.sockets,
            self.device,
        ];
        words.iter().chain(&self.cores).flat_map(|word| word.to_le_bytes()).collect()
    }

    pub fn unpack(bytes: &[u8]) -> Result<PeerInfo> {
        let mut words = bytes
            .chunks_exact(8)
            .map(|word| u64::from_le_bytes(word.try_into().expect("chunks of eight")));
        let mut next =
            || words.next().ok_or_else(|| Error::Internal("a short introduction".into()));
        Ok(PeerInfo {
            segment: next()?,
            machine: next()?,
            buff_size: next()?,
            deterministic: next()?,
            algorithm: next()?,
            protection: next()?,
            sockets: next()?,
            device: next()?,
            cores: {
                let mut cores = Cores::default();
                for word in &mut cores {
                    *word = next()?;
                }
                cores
            },
        })
    }

    pub fn check(&self, rank: usize, other: usize, theirs: &PeerInfo) -> Result<()> {
        type Shown = fn(u64) -> String;
        let number: Shown = |word| word.to_string();
        let fields: [(_, _, _, Shown); 5] = [
            ("RINGCOMM_BUFFSIZE", self.buff_size, theirs.buff_size, number),
            ("RINGCOMM_DETERMINISTIC", self.deterministic, theirs.deterministic, number),
            ("RINGCOMM_ALGO", self.algorithm, theirs.algorithm, algorithm),
            ("RINGCOMM_PROTECTION", self.protection, theirs.protection, protection),
            ("RINGCOMM_NSOCKS", self.sockets, theirs.sockets, number),
        ];
        match fields.iter().find(|(_, mine, theirs, _)| mine != theirs) {
            None => Ok(()),
            Some((name, mine, theirs, shown)) => Err(Error::usage(format!(
                "ranks disagree on {name}: rank {rank} has {}, rank {other} has {}; set it alike \
                 on all ranks",
                shown(*mine),
                shown(*theirs)
            ))),
        }
    }
}

/// The name of the algorithm that such a word stands for.
fn algorithm(word: u64) -> String {
    let named = || Algorithm::ALL.iter().find(|one| **one as u64 + 1 == word);
    match word {
        0 => "none".into(),
        _ => named().map_or_else(|| format!("number {word}"), |one| one.name().into()),
    }
}

/// The name of the protection that such a word stands for.
fn protection(word: u64) -> String {
    let named = Protection::ALL.iter().find(|one| **one as u64 == word);
    named.map_or_else(|| format!("number {word}"), |one| one.name().into())
}
