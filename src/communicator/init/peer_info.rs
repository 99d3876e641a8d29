//! What a rank tells the others when it joins: its settings, its cores, where its memory is.

use crate::algorithm::Algorithm;
use crate::communicator::tuning::select::forced_algorithm;
use crate::communicator::tuning::slot_sizing::buff_size;
use crate::config::{Config, NetChoice, Protection};
use crate::crypto::sha256;
use crate::error::{Error, Result};
use crate::host;
use crate::os::thread_signals::say;
use crate::transport::engine::choice::Candidate;
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
    pub net: u64,
    /// Which network engine it brings along; 0 for none.
    pub engine: u64,
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
pub(super) const INTRODUCTION: usize = 8 * (10 + size_of::<Cores>() / 8);

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
            net: net_word(&config.net),
            engine: 0,
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
            self.net,
            self.engine,
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
            net: next()?,
            engine: next()?,
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
        let fields: [(_, _, _, Shown); 6] = [
            ("RINGCOMM_BUFFSIZE", self.buff_size, theirs.buff_size, number),
            ("RINGCOMM_DETERMINISTIC", self.deterministic, theirs.deterministic, number),
            ("RINGCOMM_ALGO", self.algorithm, theirs.algorithm, algorithm),
            ("RINGCOMM_PROTECTION", self.protection, theirs.protection, protection),
            ("RINGCOMM_NSOCKS", self.sockets, theirs.sockets, number),
            ("RINGCOMM_NET", self.net, theirs.net, net_name),
        ];
        // Where nothing is asked for, ranks without a common engine use TCP.
        let is_asked_for = self.net != net_word(&NetChoice::Auto);
        if self.net == theirs.net && is_asked_for && self.engine != theirs.engine {
            return Err(Error::usage(format!(
                "rank {rank} and rank {other} have different versions of the network engine that \
                 RINGCOMM_NET={} asks for; install the same on all hosts",
                net_name(self.net)
            )));
        }
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

/// The engine, if all ranks have it.
pub(super) fn of_all(
    engine: Option<Candidate>,
    peer_infos: &[PeerInfo],
    rank: usize,
    config: &Config,
) -> Option<Candidate> {
    let mine = peer_infos[rank].engine;
    let have_same = peer_infos.iter().all(|one| one.engine == mine);
    if !have_same && config.debug > 0 && rank == 0 {
        say("ringcomm: ranks have different network engines, or versions of one, or some have \
             none: messages go over tcp");
    }
    engine.filter(|_| have_same)
}

/// The name of the algorithm that such a word stands for.
fn algorithm(word: u64) -> String {
    let named = || Algorithm::ALL.iter().find(|one| **one as u64 + 1 == word);
    match word {
        0 => "none".into(),
        _ => named().map_or_else(|| format!("number {word}"), |one| one.name().into()),
    }
}

/// The same for the same choice.
fn net_word(net: &NetChoice) -> u64 {
    let digest = sha256(&[net.name().as_bytes()]);
    u64::from_le_bytes(*digest.first_chunk().expect("a digest is longer"))
}

/// What [`net_word`] was given, but for a plugin's name.
fn net_name(word: u64) -> String {
    let named = [NetChoice::Auto, NetChoice::Tcp, NetChoice::Ucx, NetChoice::Plugin(None)];
    match named.iter().find(|net| net_word(net) == word) {
        Some(net) => net.name(),
        None => "plugin:NAME (another name)".into(),
    }
}

/// The name of the protection that such a word stands for.
fn protection(word: u64) -> String {
    let named = Protection::ALL.iter().find(|one| **one as u64 == word);
    named.map_or_else(|| format!("number {word}"), |one| one.name().into())
}
