//! The part of a communicator that one operation uses at a time: connections, bound calls, scratch.
#![allow(unsafe_code)]

mod host_memory;
pub(super) mod op_lock;
mod probe;

use super::call::message::Message;
use super::call::portions::CallExtent;
use super::call::rank_state::SETUP_OPERATIONS;
use super::call::signature::CallSignature;
use super::call::{self, Call, fingerprint};
use super::gpu::Gpu;
use super::health::wait_check::{CancelCheck, CommHealth, OpWaitCheck};
use super::memory::shared_scratch::SharedScratch;
use super::tuning::context::PlanContext;
use super::tuning::direct_probe_backoff::ProbeBackoff;
use super::tuning::plan_cache::{BoundCall, Cache, DataPath};
use crate::algorithm::Algorithm;
use crate::algorithm::select::{Costs, zero_copy_from};
use crate::config::Config;
use crate::cycle_counter;
use crate::error::Result;
use crate::executor::bounced_send_recv::BounceBuffers;
use crate::executor::direct::processes::{self, DirectPrograms};
use crate::executor::direct::program::Used;
use crate::executor::direct::run::{self, Arithmetic, Bases, BufferAddresses, BufferLocation};
use crate::executor::host::{self, CallBuffers, Pointers};
use crate::executor::links::Links;
use crate::executor::send_recv::{self, PendingByPeer, Transfer};
use crate::executor::shm_two_shot::ShmTwoShot;
use crate::executor::zero_copy::ZeroCopyPolicy;
use crate::plan::topology::Topology;
use crate::transport::cma;
use crate::transport::fifo::Stamp;
use crate::types::{DataType, ReduceOp};
use host_memory::RunningCall;
use std::sync::Arc;

pub struct Engine {
    pub links: Links,
    /// What its calls are bound by.
    pub plan_context: Arc<PlanContext>,
    pub memory: super::memory::peer_regions::Registrations,
    /// What every message carries of its communicator and its rank.
    pub origin: Stamp,
    cache: Cache,
    pointers: Pointers,
    bases: Bases,
    scratch: Vec<u8>,
    /// Where portions of a call are packed, on a rank whose own memory would do as it is.
    pub(super) portion_room: Vec<u8>,
    /// What calls in windows go through.
    shared: SharedScratch,
    /// Collectives begun.
    pub sequence: u64,
    /// Point-to-point batches begun.
    batches: u64,
    /// Messages sent to and received from each peer, which number point-to-point stamps.
    sent: Vec<u64>,
    received: Vec<u64>,
    pub(super) transfers: Vec<Transfer>,
    pending: PendingByPeer,
    backoff: ProbeBackoff,
    /// Which messages are lent.
    zero_copy: ZeroCopyPolicy,
    /// The constants are not agreed yet.
    pub setting_up: bool,
    /// Messages that this rank sent until they were.
    #[cfg(test)]
    pub setup_messages: u64,
}

impl Engine {
    pub fn new(
        links: Links,
        memory: super::memory::peer_regions::Registrations,
        topology: Topology,
        (communicator, epoch): (u32, u32),
        portion_bytes: Option<usize>,
    ) -> Engine {
        let nranks = links.nranks;
        assert_eq!(topology.nranks(), nranks);
        let source = links.rank as u32;
        let mut plan_context = PlanContext::new(&links, topology);
        plan_context.portion_bytes = portion_bytes;
        let plan_context = Arc::new(plan_context);
        let origin = Stamp { communicator, epoch, source, ..Stamp::default() };
        Engine {
            plan_context,
            links,
            memory,
            origin,
            cache: Cache::default(),
            pointers: Pointers::new(nranks),
            bases: Bases::new(nranks),
            scratch: Vec::new(),
            portion_room: Vec::new(),
            shared: SharedScratch::default(),
            sequence: 0,
            batches: 0,
            sent: vec![0; nranks],
            received: vec![0; nranks],
            transfers: Vec::new(),
            pending: vec![[false; 2]; nranks],
            backoff: ProbeBackoff::default(),
            zero_copy: ZeroCopyPolicy::LEAST,
            setting_up: true,
            #[cfg(test)]
            setup_messages: 0,
        }
    }

    /// Run one collective, on buffers of host memory or, with a `gpu`, of any.
    ///
    /// # Safety
    /// The buffers of `call` are valid for the extents its collective defines.
    pub unsafe fn collective(
        &mut self,
        call: &Call,
        config: &Config,
        health: &CommHealth,
        gpu: Option<&Gpu>,
        cancel: CancelCheck,
    ) -> Result<()> {
        let ready = self.ready(call, config)?;
        let checked = ready.extents.check(call, self.links.rank).and_then(|in_place| {
            let found = gpu.map(|gpu| gpu.inspect(call, &ready.extents)).transpose()?;
            Ok((in_place, gpu.zip(found)))
        });
        let (in_place, elsewhere) = match checked {
            Ok(checked) => checked,
            Err(error) => {
                self.cache.put_back(ready);
                return Err(error);
            }
        };
        let sequence = self.sequence;
        self.sequence += 1;
        let page = health.pages.mine();
        let count = if call.runs_as_messages() { call.count } else { ready.descriptor.count };
        page.begin(sequence, ready.fingerprint, ready.what, count as u64, cycle_counter::ticks());
        let mut watch = OpWaitCheck::new(health, cancel, ready.descriptor, sequence);
        watch.makes_communicator = self.setting_up;
        let stamp = Stamp { sequence, fingerprint: ready.fingerprint, ..self.origin };
        let track = health.track.as_ref().filter(|_| !self.setting_up);
        if let Some((track, record)) = track.and_then(|track| Some((track, page.record(sequence)?)))
        {
            track.begun(record);
        }
        let running = RunningCall { config, stamp: &stamp, watch: &watch };
        let outcome = match elsewhere {
            // Most small calls: they need nothing of what the other ways set up.
            // SAFETY: the caller's promise.
            None if ready.is_through_slots() => unsafe {
                self.run_in_slots(call, &ready, &stamp, &watch)
            },
            // SAFETY: the caller's promise.
            None if ready.portions.is_none() => unsafe {
                self.execute(call, in_place, &ready, &stamp, &watch)
            },
            // SAFETY: the caller's promise.
            None => unsafe { self.on_host(call, CallExtent::Whole, &ready, &running) },
            Some((gpu, found)) => {
                let (links, memory) = (&mut self.links, &mut self.memory);
                let followed = gpu.follow(call, &found);
                let share = |()| gpu.run_shared(call, &found, links, memory, (&stamp, &watch));
                match followed.and_then(share) {
                    Ok(false) => {
                        gpu.run_launched(call, (&found, &*ready), &watch, &mut |call, part| {
                            // SAFETY: the caller's promise, or pinned memory of the same extents.
                            unsafe { self.on_host(call, part, &ready, &running) }
                        })
                    }
                    ended => ended.map(drop),
                }
            }
        };
        self.keep(ready);
        track.inspect(|track| track.ended(outcome.is_ok()));
        outcome?;
        page.end(sequence, cycle_counter::ticks());
        Ok(())
    }

    /// Keep a bound call at hand, unless its own run has shown that it is bound for what is not.
    #[inline]
    pub(super) fn keep(&mut self, ready: Arc<BoundCall>) {
        if ready.two_shot.is_none() || self.plan_context.shares_scratch() {
            self.cache.put_back(ready);
        }
    }

    pub(super) unsafe fn execute(
        &mut self,
        call: &Call,
        in_place: bool,
        ready: &BoundCall,
        stamp: &Stamp,
        watch: &OpWaitCheck,
    ) -> Result<()> {
        let buffers = self.buffers(call);
        if let DataPath::Messages(layout) = &ready.way {
            // SAFETY: the caller's promise.
            return unsafe { self.run_messages(call, (layout, layout), false, stamp, watch) };
        }
        if let DataPath::Direct(program) = &ready.way
            && self.links.one_process()
            && program.in_place
        {
            let (work, links) = (work_of(ready), &mut self.links);
            // SAFETY: the caller's promise.
            return unsafe {
                run::run(program, &work, &buffers, links, &mut self.bases, stamp, watch)
            };
        }
        // SAFETY: the caller's promise.
        if unsafe { self.probe_direct(call, in_place, ready, stamp, watch)? } {
            return Ok(());
        }
        if let Some(two_shot) = &ready.two_shot
            && self.has_scratch(stamp, watch)?
        {
            // SAFETY: the caller's promise.
            return unsafe {
                self.run_shm_two_shot(two_shot, &buffers, &work_of(ready), stamp, watch)
            };
        }
        // SAFETY: the caller's promise.
        unsafe { self.run_in_slots(call, ready, stamp, watch) }
    }

    /// As `run_in_buffers`, but for calls that had better not ask.
    unsafe fn probe_direct(
        &mut self,
        call: &Call,
        in_place: bool,
        ready: &BoundCall,
        stamp: &Stamp,
        watch: &OpWaitCheck,
    ) -> Result<bool> {
        if ready.backs_off && !self.backoff.should_probe(ready.fingerprint) {
            return Ok(false);
        }
        // SAFETY: the caller's promise.
        let ran = unsafe { self.run_in_buffers(call, in_place, ready, stamp, watch)? };
        if ready.backs_off {
            self.backoff.record(ready.fingerprint, ran);
        }
        Ok(ran)
    }

    /// Run it in the ranks' own buffers, if all of them suit a program for that; whether it ran.
    unsafe fn run_in_buffers(
        &mut self,
        call: &Call,
        in_place: bool,
        ready: &BoundCall,
        stamp: &Stamp,
        watch: &OpWaitCheck,
    ) -> Result<bool> {
        let mapped = match &ready.way {
            DataPath::Direct(program) => Some(program),
            _ => None,
        };
        let programs = DirectPrograms { mapped, kernel: ready.cma.as_ref() };
        if programs.mapped.is_none() && programs.kernel.is_none() {
            return Ok(false);
        }
        let buffers = self.buffers(call);
        let mut buffer_addresses = self.memory.buffer_addresses(call, &ready.extents, in_place)?;
        if programs.kernel.is_some()
            && buffer_addresses.input_region == BufferLocation::PRIVATE
            && cma::is_lendable(call.send, ready.extents.input)
        {
            buffer_addresses.input_region = BufferLocation::CMA;
            buffer_addresses.input_offset = call.send.expose_provenance() as u64;
        }
        let memory = &mut self.memory;
        let mut resolve = |theirs: &BufferAddresses, used: &Used| memory.resolve(theirs, used);
        // SAFETY: the caller's promise.
        unsafe {
            processes::try_run(
                programs,
                &work_of(ready),
                &buffers,
                &buffer_addresses,
                &mut resolve,
                &mut self.links,
                &mut self.bases,
                stamp,
                watch,
            )
        }
    }

    #[inline]
    unsafe fn run_in_slots(
        &mut self,
        call: &Call,
        ready: &BoundCall,
        stamp: &Stamp,
        watch: &OpWaitCheck,
    ) -> Result<()> {
        let buffers = self.buffers(call);
        let (links, pointers) = (&mut self.links, &mut self.pointers);
        // SAFETY: the caller's promise; scratch has the bytes that binding asked for.
        unsafe { host::run(&ready.compiled, &buffers, links, pointers, stamp, watch) }
    }

    #[inline]
    fn buffers(&mut self, call: &Call) -> CallBuffers {
        CallBuffers {
            input: call.send,
            output: call.recv,
            scratch: self.scratch.as_mut_ptr(),
            scalar: call.scalar,
        }
    }

    /// Whether the ranks share scratch, which the first call that would go through it finds out.
    /// Where that is given up, all of them bind calls for slots from then on.
    #[inline]
    fn has_scratch(&mut self, stamp: &Stamp, watch: &OpWaitCheck) -> Result<bool> {
        if self.shared.is_open() {
            return Ok(true);
        }
        let bytes = self.plan_context.window_bytes();
        let (memory, links) = (&mut self.memory, &mut self.links);
        let is_open = self.shared.open(bytes, memory, links, stamp, watch)?;
        if self.shared.is_given_up() {
            self.plan_context.share_no_scratch();
            self.cache = Cache::default();
        }
        Ok(is_open)
    }

    unsafe fn run_shm_two_shot(
        &mut self,
        two_shot: &ShmTwoShot,
        buffers: &CallBuffers,
        work: &Arithmetic,
        stamp: &Stamp,
        watch: &OpWaitCheck,
    ) -> Result<()> {
        let (buffer_addresses, scratch) = self.shared.scratch_addresses(buffers.scalar);
        let Engine { memory, links, bases, .. } = self;
        memory.drop_withdrawn();
        let mut resolve = |theirs: &BufferAddresses, used: &Used| memory.resolve(theirs, used);
        // SAFETY: the caller's promise; the scratch is the communicator's, as long as any window.
        unsafe {
            two_shot.run(
                work,
                buffers,
                (scratch, &buffer_addresses),
                &mut resolve,
                links,
                bases,
                stamp,
                watch,
            )
        }
    }

    /// The bound call, made at the first call of its shape.
    #[inline]
    pub fn ready(&mut self, call: &Call, config: &Config) -> Result<Arc<BoundCall>> {
        if let Some(ready) = self.cache.take(call) {
            return Ok(ready);
        }
        let ready = Arc::new(self.plan_context.bind(call, config)?);
        if self.scratch.len() < ready.compiled.scratch_bytes {
            self.scratch.resize(ready.compiled.scratch_bytes, 0);
        }
        self.cache.insert(call, ready.clone());
        Ok(ready)
    }

    /// Set-up is over: what follows is chosen by `costs`, and numbered as the user's.
    pub fn settle(&mut self, costs: Costs) {
        let [reached, by_cma, by_cma_alone] = zero_copy_from(&costs);
        self.zero_copy = ZeroCopyPolicy { reached, by_cma, by_cma_alone };
        self.plan_context = Arc::new(self.plan_context.settled(costs, self.links.net()));
        self.setting_up = false;
        self.cache = Cache::default();
        self.sequence = SETUP_OPERATIONS;
        self.batches = 0;
        #[cfg(test)]
        {
            self.setup_messages = self.sent.iter().sum();
        }
        // All of them have come: a rank has passed the last barrier when it has had its own.
        self.sent.fill(0);
        self.received.fill(0);
        self.links.pages().mine().forget_batches();
    }

    /// Run the messages that `transfers` lists.
    pub(super) unsafe fn run_transfers(
        &mut self,
        bounce_buffers: &mut dyn BounceBuffers,
        watch: &OpWaitCheck,
    ) -> Result<()> {
        self.memory.drop_withdrawn();
        let Engine { transfers, pending, links, memory, zero_copy, .. } = self;
        // SAFETY: the caller's promise.
        unsafe {
            send_recv::run(transfers, pending, links, memory, *zero_copy, bounce_buffers, watch)
        }
    }

    /// Run a batch of point-to-point messages, some of which may go through bounce buffers.
    ///
    /// # Safety
    /// Every buffer is valid for its count, and so are the bounce buffers.
    pub unsafe fn exchange<M: AsRef<Message>>(
        &mut self,
        messages: &[M],
        health: &CommHealth,
        cancel: CancelCheck,
        bounce_buffers: Option<&mut dyn BounceBuffers>,
    ) -> Result<()> {
        // A refused batch must not have numbered a message.
        self.check_messages(messages)?;
        let batch = self.batches;
        self.batches += 1;
        let descriptor = CallSignature {
            collective: None,
            data_type: DataType::Uint8,
            op: ReduceOp::Sum,
            algorithm: Algorithm::Pairwise,
            root: 0,
            count: messages.len(),
        };
        let page = health.pages.mine();
        page.begin_batch(batch, descriptor.pack(), messages.len() as u64, cycle_counter::ticks());
        self.transfers.clear();
        for message in messages {
            let transfer = self.transfer(message.as_ref());
            self.transfers.push(transfer);
        }
        let mut none = ();
        let bounce_buffers: &mut dyn BounceBuffers = match bounce_buffers {
            None => &mut none,
            Some(bounce_buffers) => {
                let all = self.transfers.iter_mut().enumerate();
                all.for_each(|(index, transfer)| transfer.is_away = bounce_buffers.has(index));
                bounce_buffers
            }
        };
        let mut watch = OpWaitCheck::new(health, cancel, descriptor, batch);
        watch.makes_communicator = self.setting_up;
        let track = health.track.as_ref().filter(|_| !self.setting_up);
        if let Some((track, record)) = track.and_then(|track| Some((track, page.batch(batch)?))) {
            track.begun(record);
        }
        // SAFETY: the caller's promise.
        let outcome = unsafe { self.run_transfers(bounce_buffers, &watch) };
        track.inspect(|track| track.ended(outcome.is_ok()));
        outcome?;
        page.end_batch(batch, cycle_counter::ticks());
        Ok(())
    }

    /// Refuse a batch that can never be right.
    pub fn check_messages<M: AsRef<Message>>(&self, messages: &[M]) -> Result<()> {
        call::message::check(messages, self.links.rank, self.links.nranks)
    }

    /// Number a checked message.
    fn transfer(&mut self, message: &Message) -> Transfer {
        let (sends, peer, address, count, data_type) = message.parts();
        let numbers = if sends { &mut self.sent } else { &mut self.received };
        let sequence = numbers[peer];
        numbers[peer] += 1;
        let fingerprint = fingerprint::of_message(count, data_type);
        let stamp = Stamp { sequence, fingerprint, ..self.origin };
        Transfer::new(sends, peer, address, count * data_type.size(), stamp)
    }
}

/// How the arithmetic of a call is done in its ranks' memory.
fn work_of(ready: &BoundCall) -> Arithmetic<'_> {
    Arithmetic {
        reduction: ready.compiled.reduction.as_ref(),
        element: ready.compiled.element,
        streamed: if ready.compiled.streaming { usize::MAX } else { 0 },
    }
}
