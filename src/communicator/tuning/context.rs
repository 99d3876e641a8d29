//! What a call is chosen and bound by: who the ranks are, how they reach each other, and the
//! constants that they have agreed on.
//!
//! It is fixed when the communicator is made and nothing that runs changes it, but for a word that
//! says that no scratch is shared, so whoever asks how a call would run needs no turn.

use super::plan_cache::{Key, Ready, Way};
use super::select;
use super::slot_sizing::{stride, window_bytes};
use crate::algorithm::select::{Choice, Costs, goes_whole};
use crate::algorithm::{self, Algorithm, serial_order};
use crate::communicator::Mapped;
use crate::communicator::call::portions::Portions;
use crate::communicator::call::signature::{Descriptor, mix};
use crate::communicator::call::{Call, Extents};
use crate::config::Config;
use crate::device::host::Reduction;
use crate::error::Result;
use crate::executor::bind::{Bound, Cut, Shape};
use crate::executor::direct::program::Direct;
use crate::executor::layout::Layout;
use crate::executor::links::Links;
use crate::executor::shm_two_shot::Windows;
use crate::plan::topology::Topology;
use crate::plan::{Collective, PIPELINE_DEPTH, Plan};
use crate::sync::atomic::{AtomicBool, Ordering::Relaxed};
use crate::transport::fifo::Geometry;
use crate::types::ReduceOp;
use std::sync::Arc;

/// The longest message between hosts whose ranks take turns on a machine's cores, as those of tests
/// do: with its frame one of the kernel's segments. With 8 ranks on 2 cores 32 MiB take 60 ms in
/// place of 72 (`benches/results/messages-2026-11-25.txt`).
const CROWDED_MESSAGE: usize = 65_024;

/// A wire on which a byte takes longer than this (4 GB/s) leaves a core idle: there the reduction
/// of one slice and the messages' own cost are hidden behind the next slice, if there is one.
const BUSY_WIRE_US_PER_BYTE: f64 = 1.0 / 4_000.0;

#[derive(Clone, Debug)]
pub struct Basis {
    pub rank: usize,
    pub nranks: usize,
    pub geometry: Geometry,
    /// The longest message of a plan that cuts them, and up to how many bytes one goes whole.
    longest_message: usize,
    longest_whole: usize,
    /// How far the peers are: all ranks in one process; on one machine; every peer elsewhere.
    pub one_process: bool,
    pub one_machine: bool,
    all_remote: bool,
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

impl Basis {
    pub fn new(links: &Links, topology: Topology) -> Basis {
        let mut peers = (0..links.nranks).filter(|peer| *peer != links.rank);
        Basis {
            rank: links.rank,
            nranks: links.nranks,
            geometry: links.geometry,
            longest_message: links.longest_message(),
            longest_whole: links.longest_whole(),
            one_process: links.one_process(),
            one_machine: links.one_machine(),
            all_remote: peers.all(|peer| links.is_remote(peer)),
            topology,
            costs: Costs::default(),
            setting_up: true,
            no_scratch: Arc::default(),
            portion_bytes: None,
        }
    }

    /// Of ranks in processes of one machine, which have agreed on these constants.
    #[cfg(test)]
    pub fn of_processes(nranks: usize, costs: Costs) -> Basis {
        let geometry = Geometry { depth: 8, slot_bytes: 128 << 10 };
        Basis {
            rank: 0,
            nranks,
            geometry,
            longest_message: geometry.slot_bytes,
            longest_whole: 0,
            one_process: false,
            one_machine: true,
            all_remote: false,
            topology: Topology::one_host(nranks),
            costs,
            setting_up: false,
            no_scratch: Arc::default(),
            portion_bytes: None,
        }
    }

    /// With the constants that the ranks have agreed on.
    pub fn settled(&self, costs: Costs) -> Basis {
        Basis { costs, setting_up: false, ..self.clone() }
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
    pub fn transport(&self, ready: &Ready) -> &'static str {
        if !self.one_machine {
            return if self.all_remote { "tcp" } else { "shared memory and tcp" };
        }
        match (self.one_process, &ready.way) {
            (true, Way::Direct(_)) if ready.mapped.is_some() => "thread direct or staged",
            (true, Way::Direct(_)) => "thread direct",
            (true, Way::Staged) => "thread staged",
            (true, Way::Messages(_)) => "thread messages",
            (false, Way::Direct(_)) if ready.windows.is_some() => "process mapped or windows",
            (false, Way::Direct(_)) if ready.runs_by_kernel() => "process mapped or kernel",
            (false, Way::Direct(_)) if ready.kernel.is_some() => "process mapped, kernel or staged",
            (false, Way::Direct(_)) => "process mapped or staged",
            (false, Way::Staged) if ready.windows.is_some() => "process windows",
            (false, Way::Staged) if ready.runs_by_kernel() => "process kernel",
            (false, Way::Staged) if ready.kernel.is_some() => "process kernel or staged",
            (false, Way::Staged) => "process staged",
            (false, Way::Messages(_)) => "process messages",
        }
    }

    /// A call's shape, ready to run. Says nothing of any buffer.
    #[cold]
    pub fn bind(&self, call: &Call, config: &Config) -> Result<Ready> {
        let (rank, nranks) = (self.rank, self.nranks);
        let key = (Key::new(call), call.extents(rank, nranks)?);
        if by_messages(call) {
            return self.bind_messages(call, key, config);
        }
        let chosen = select::choose(self, call, config)?;
        let plan_of = |algorithm: Algorithm, of: usize| {
            algorithm::plan_on(&self.topology, algorithm, call.collective, of, call.root)
                .expect("only algorithms that exist are chosen")
        };
        let layout_for = |plan: &Plan| {
            Layout::new(call.collective, rank, nranks, plan.nchunks, call.count, call.vector)
        };
        let element = call.data_type.size();
        let scales = call.op == ReduceOp::PreMulSum && call.collective.reduces();
        let reduction = || Reduction::new(call.data_type, call.op, nranks);
        let reduction = call.collective.reduces().then(reduction).transpose()?;
        let plans_of = |algorithm: Algorithm| (0..nranks).map(move |of| plan_of(algorithm, of));
        let plan = plan_of(chosen.staged.algorithm, rank).spread(self.stride());
        let layout = layout_for(&plan);
        let cut = Cut::new(plans_of(chosen.staged.algorithm), &layout, element);
        let shape = Shape {
            layout: &layout,
            element,
            reduction,
            scales,
            slot_bytes: self.message_bytes((chosen.staged.algorithm, call.collective), cut.whole),
            pipelined: self.geometry.depth >= PIPELINE_DEPTH,
            cut,
        };
        let staged = Bound::new(&plan, shape)?;
        let direct = chosen.direct.and_then(|direct| {
            let plans: Vec<Plan> = plans_of(direct.algorithm).collect();
            Direct::new(&plans, rank, &layout_for(&plans[rank]), element)
        });
        let windows = chosen.windows.and_then(|choice| {
            let plans: Vec<Plan> = plans_of(choice.algorithm).collect();
            Windows::new(&plans, rank, (call.count, element), self.window_bytes())
        });
        let kernel = chosen.kernel.and_then(|choice| self.reading(call, choice.algorithm));
        // Between processes it is scratch or the slots unless all ranks' buffers turn out to be
        // shared, between threads it is the slots where a rank calls in place what that does not
        // suit.
        let always = self.one_process && direct.as_ref().is_some_and(|program| program.in_place);
        let by_kernel = kernel.as_ref().is_some_and(|program| program.in_place);
        let of_windows = chosen.windows.filter(|_| windows.is_some());
        let of_kernel = chosen.kernel.filter(|_| by_kernel);
        let otherwise = of_windows.or(of_kernel).unwrap_or(chosen.staged);
        let best = chosen.direct.filter(|_| always).unwrap_or(otherwise);
        let descriptor = describe(call, best.algorithm);
        let fingerprint = descriptor.fingerprint(layout_word(call));
        let mapped = |(program, choice): (&Direct, Choice)| Mapped {
            algorithm: choice.algorithm.name(),
            chunks: plan_of(choice.algorithm, rank).nchunks,
            in_place: program.in_place,
            predicted_us: choice.predicted_us,
        };
        let mapped = direct.as_ref().zip(chosen.direct).filter(|_| !always).map(mapped);
        let asks = direct.is_some() || kernel.is_some();
        let way = direct.map_or(Way::Staged, Way::Direct);
        let chunks = plan_of(otherwise.algorithm, rank).nchunks;
        let predicted_us = best.predicted_us;
        let mut ready = Ready::new(key, descriptor, fingerprint, staged, way, chunks, predicted_us);
        (ready.mapped, ready.windows, ready.kernel) = (mapped, windows, kernel);
        ready.portions = self.portions(call, &ready.extents, config)?;
        ready.forbears = asks && chosen.forbears(call.collective);
        Ok(ready)
    }

    /// How a call is cut, where a rank is on a device: the same on all ranks.
    pub fn portions(
        &self,
        call: &Call,
        extents: &Extents,
        config: &Config,
    ) -> Result<Option<Portions>> {
        let Some(bytes) = self.portion_bytes else { return Ok(None) };
        let cut = |parts| Portions::of(call, extents, (self.rank, self.nranks), parts, bytes);
        match cut(1) {
            None => Ok(None),
            whole => match self.parts(call, config)? {
                1 => Ok(whole),
                parts => Ok(cut(parts)),
            },
        }
    }

    /// The first portion of a call, ready to run.
    pub fn bind_portion(&self, call: &Call, portions: &Portions, config: &Config) -> Result<Ready> {
        let lists = portions.lists(call, 0);
        self.bind(&portions.call(call, 0, (call.send, call.recv), lists.as_ref()), config)
    }

    /// Parts of a vector that keep their elements however it is cut: in the algorithms that only
    /// run where they are asked for, the order of a sum depends on them.
    fn parts(&self, call: &Call, config: &Config) -> Result<usize> {
        let has_order = matches!(call.collective, Collective::AllReduce | Collective::Reduce)
            && !call.op.is_associative(call.data_type);
        if !has_order || config.algorithm.is_none() {
            return Ok(1);
        }
        let algorithm = select::choose(self, call, config)?.staged.algorithm;
        let plan =
            algorithm::plan_on(&self.topology, algorithm, call.collective, self.rank, call.root);
        let plan = plan.filter(|_| !serial_order(algorithm, call.collective));
        Ok(plan.map_or(1, |plan| plan.nchunks))
    }

    /// The program in which every rank only reads what others have.
    fn reading(&self, call: &Call, algorithm: Algorithm) -> Option<Direct> {
        let plan =
            |of| algorithm::plan_on(&self.topology, algorithm, call.collective, of, call.root);
        let plans: Vec<Plan> = (0..self.nranks).map(plan).collect::<Option<_>>()?;
        let (rank, nchunks) = (self.rank, plans[self.rank].nchunks);
        let layout =
            Layout::new(call.collective, rank, self.nranks, nchunks, call.count, call.vector);
        Direct::reading(&plans, rank, &layout, call.data_type.size())
    }

    /// Slices between two stages of a plan. The order of messages depends on it, so it rests on
    /// what all ranks agree on.
    fn stride(&self) -> usize {
        stride(self.geometry.depth, self.nranks, self.topology.nhosts(), self.is_crowded())
    }

    fn is_crowded(&self) -> bool {
        !self.setting_up && self.nranks > self.costs.cores
    }

    /// What a message of a plan has room for, of which the longest has `longest` bytes.
    fn message_bytes(&self, plan: (Algorithm, Collective), longest: usize) -> usize {
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

    /// A `v` form whose ranks know only their own blocks: each block is a message of its own.
    fn bind_messages(&self, call: &Call, key: (Key, Extents), config: &Config) -> Result<Ready> {
        let descriptor = describe(call, Algorithm::OneShot);
        let fingerprint = descriptor.fingerprint(layout_word(call));
        let predicted =
            select::predicted(self, call, Algorithm::OneShot).unwrap_or(self.costs.alpha_us);
        let nothing = Bound::empty(call.data_type.size(), self.geometry.slot_bytes);
        let (rank, chunks) = (self.rank, self.nranks);
        let layout =
            Layout::new(call.collective, rank, chunks, chunks * chunks, call.count, call.vector);
        let way = Way::Messages(layout);
        let mut ready = Ready::new(key, descriptor, fingerprint, nothing, way, chunks, predicted);
        ready.portions = self.portions(call, &ready.extents, config)?;
        Ok(ready)
    }
}

/// Whether the call is a `v` form in which a rank knows only its own blocks.
pub fn by_messages(call: &Call) -> bool {
    use Collective::{AllToAll, Gather, Scatter};
    call.vector.is_some() && matches!(call.collective, AllToAll | Gather | Scatter)
}

fn describe(call: &Call, algorithm: Algorithm) -> Descriptor {
    Descriptor {
        collective: Some(call.collective),
        data_type: call.data_type,
        op: call.op,
        algorithm,
        root: call.root,
        count: common_count(call),
    }
}

/// The count that all ranks agree on: in a `v` form that of all blocks, where all ranks know them.
fn common_count(call: &Call) -> usize {
    match call.vector {
        None => call.count,
        Some(_) if by_messages(call) => 0,
        Some(vector) => vector.recv_counts.iter().sum(),
    }
}

/// What ranks of a `v` form must agree on: the counts, where all ranks know all of them.
fn layout_word(call: &Call) -> u64 {
    use Collective::{AllGather, ReduceScatter};
    match (call.vector, call.collective) {
        (None, _) => 0,
        (Some(v), AllGather | ReduceScatter) => {
            v.recv_counts.iter().fold(1, |hash, count| mix(hash ^ *count as u64))
        }
        (Some(_), _) => 1,
    }
}
