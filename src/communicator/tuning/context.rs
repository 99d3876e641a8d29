//! What a call is chosen and bound by: who the ranks are, how they reach each other, and the
//! constants that they have agreed on.
//!
//! It is fixed when the communicator is made and nothing that runs changes it, but for a word that
//! says that no scratch is shared, so whoever asks how a call would run needs no turn.

use super::plan_cache::{BoundCall, DataPath};
use super::slot_sizing::{stride, window_bytes};
use crate::algorithm::Algorithm;
use crate::algorithm::select::{Costs, goes_whole};
use crate::executor::links::Links;
use crate::plan::Collective;
use crate::plan::topology::Topology;
use crate::sync::atomic::{AtomicBool, Ordering::Relaxed};
use crate::transport::fifo::FifoShape;
use std::sync::Arc;

/// The longest message between hosts whose ranks take turns on a machine's cores, as those of tests
/// do: with its frame one of the kernel's segments. With 8 ranks on 2 cores 32 MiB take 60 ms in
/// place of 72 (`benches/results/messages-2026-11-25.txt`).
const CROWDED_MESSAGE: usize = 65_024;

/// A wire on which a byte takes longer than this (4 GB/s) leaves a core idle: there the reduction
/// of one slice and the messages' own cost are hidden behind the next slice, if there is one.
const BUSY_WIRE_US_PER_BYTE: f64 = 1.0 / 4_000.0;

#[derive(Clone, Debug)]
pub struct PlanContext {
    pub rank: usize,
    pub nranks: usize,
    pub geometry: FifoShape,
    /// The longest message of a plan that cuts them, and up to how many bytes one goes whole.
    longest_message: usize,
    longest_whole: usize,
    /// How far the peers are: all ranks in one process; on one machine; every peer elsewhere.
    pub one_process: bool,
    pub one_machine: bool,
    all_remote: bool,
    /// What moves messages between hosts: "tcp", or the kind of engine.
    pub net: &'static str,
    /// Which ranks share a host.
    pub topology: Topology,
    pub costs: Costs,
    /// The constants are not agreed yet.
    pub setting_up: bool,
    /// The ranks have found that they cannot share scratch. The one thing that a call changes, at
    /// the same one on all ranks. Relaxed: whoever has no turn may see it late.
    no_scratch: Arc<AtomicBool>,
    /// Bytes of a portion of a long call, where a rank is on a device: what goes through the host
    /// there goes through two of them.
    pub portion_bytes: Option<usize>,
}

impl PlanContext {
    pub fn new(links: &Links, topology: Topology) -> PlanContext {
        let mut peers = (0..links.nranks).filter(|peer| *peer != links.rank);
        PlanContext {
            rank: links.rank,
            nranks: links.nranks,
            geometry: links.geometry,
            longest_message: links.longest_message(),
            longest_whole: links.longest_whole(),
            one_process: links.one_process(),
            one_machine: links.one_machine(),
            all_remote: peers.all(|peer| links.is_remote(peer)),
            net: "tcp",
            topology,
            costs: Costs::default(),
            setting_up: true,
            no_scratch: Arc::default(),
            portion_bytes: None,
        }
    }

    /// Of ranks in processes of one machine, which have agreed on these constants.
    #[cfg(test)]
    pub fn of_processes(nranks: usize, costs: Costs) -> PlanContext {
        let geometry = FifoShape { depth: 8, slot_bytes: 128 << 10 };
        PlanContext {
            rank: 0,
            nranks,
            geometry,
            longest_message: geometry.slot_bytes,
            longest_whole: 0,
            one_process: false,
            one_machine: true,
            all_remote: false,
            net: "tcp",
            topology: Topology::one_host(nranks),
            costs,
            setting_up: false,
            no_scratch: Arc::default(),
            portion_bytes: None,
        }
    }

    /// With the constants that the ranks have agreed on.
    pub fn settled(&self, costs: Costs, net: &'static str) -> PlanContext {
        PlanContext { costs, net, setting_up: false, ..self.clone() }
    }

    /// Whether the ranks may go through scratch that they share: all are on one machine, and none
    /// has found that it cannot.
    pub fn shares_scratch(&self) -> bool {
        self.one_machine && !self.no_scratch.load(Relaxed)
    }

    /// From now on all calls are bound for slots or for the ranks' own buffers.
    pub fn share_no_scratch(&self) {
        self.no_scratch.store(true, Relaxed);
    }

    /// The most of a vector that goes through shared scratch at once.
    pub fn window_bytes(&self) -> usize {
        window_bytes(self.geometry, self.nranks)
    }

    /// How data moves, in words.
    pub fn transport(&self, ready: &BoundCall) -> &'static str {
        if !self.one_machine {
            return match (self.all_remote, self.net) {
                (true, "ucx") => "net/ucx",
                (true, "plugin") => "net/plugin",
                (true, _) => "net/tcp",
                (false, "ucx") => "shm and net/ucx",
                (false, "plugin") => "shm and net/plugin",
                (false, _) => "shm and net/tcp",
            };
        }
        match (self.one_process, &ready.way) {
            (true, DataPath::Direct(_)) if ready.mapped.is_some() => {
                "threads/direct or threads/slots"
            }
            (true, DataPath::Direct(_)) => "threads/direct",
            (true, DataPath::Slots) => "threads/slots",
            (true, DataPath::Messages(_)) => "threads/send-recv",
            (false, DataPath::Direct(_)) if ready.two_shot.is_some() => {
                "shm/direct or shm/two-shot"
            }
            (false, DataPath::Direct(_)) if ready.runs_by_cma() => "shm/direct or shm/cma",
            (false, DataPath::Direct(_)) if ready.cma.is_some() => {
                "shm/direct, shm/cma or shm/slots"
            }
            (false, DataPath::Direct(_)) => "shm/direct or shm/slots",
            (false, DataPath::Slots) if ready.two_shot.is_some() => "shm/two-shot",
            (false, DataPath::Slots) if ready.runs_by_cma() => "shm/cma",
            (false, DataPath::Slots) if ready.cma.is_some() => "shm/cma or shm/slots",
            (false, DataPath::Slots) => "shm/slots",
            (false, DataPath::Messages(_)) => "shm/send-recv",
        }
    }

    /// Slices between two stages of a plan. The order of messages depends on it, so it rests on
    /// what all ranks agree on.
    pub(super) fn stride(&self) -> usize {
        stride(self.geometry.depth, self.nranks, self.topology.nhosts(), self.is_crowded())
    }

    fn is_crowded(&self) -> bool {
        !self.setting_up && self.nranks > self.costs.cores
    }

    /// What a message of a plan has room for, of which the longest has `longest` bytes.
    pub(super) fn message_bytes(&self, plan: (Algorithm, Collective), longest: usize) -> usize {
        match goes_whole(plan, longest, self.longest_whole()) {
            true => longest,
            false => self.longest_message(),
        }
    }

    /// The longest message of a plan whose messages are cut.
    pub fn longest_message(&self) -> usize {
        match self.one_machine || !self.is_crowded() {
            true => self.longest_message,
            false => self.longest_message.min(CROWDED_MESSAGE),
        }
    }

    /// Up to how many bytes a message between hosts goes whole: of ranks that have a core each, so
    /// that somebody takes what comes.
    pub fn longest_whole(&self) -> usize {
        let is_busy = !self.setting_up && self.costs.wire_us_per_byte <= BUSY_WIRE_US_PER_BYTE;
        if is_busy && !self.is_crowded() { self.longest_whole } else { 0 }
    }
}
