//! A communicator: the ranks that work together, and the calls they make.
//!
//! A rank's end has two parts. What one operation uses at a time (connections, bound calls,
//! scratch) is the [`exec`], taken in turns; what other threads may look at meanwhile (the pages,
//! the abort flag, the failure) is shared.

pub mod call;
pub mod control_plane;
pub mod enqueue;
#[cfg(any(test, fuzzing))]
pub mod fuzz_hooks;
pub mod gpu;
pub mod observe;

mod exec;
mod failure;
mod health;
pub mod init;
mod memory;
mod messages;
#[doc(hidden)]
pub mod one_sided;
mod shrink;
#[cfg(test)]
mod sim;
mod tuning;
pub mod typed;

use crate::algorithm::{self, select::Costs};
use crate::bootstrap::UniqueId;
use crate::config::Config;
use crate::device::cuda::PointerKind;
use crate::error::{Error, Result};
use crate::executor::control_block::Life;
use crate::fork;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use crate::transport::shm_export;
pub use call::message::Message;
pub use call::{Call, Order, VectorCounts};
use exec::Engine;
use exec::op_lock::OpLock;
use failure::Unwinding;
use gpu::Gpu;
pub use gpu::OrderedMessage;
use health::wait_check::{CancelCheck, CommHealth};
use observe::flight_dump::FlightDump;
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tuning::context::PlanContext;
use tuning::plan_cache::BoundCall;
pub use tuning::plan_cache::Mapped;

/// One rank's end of a communicator. Calls from several threads take turns.
pub struct Communicator {
    rank: usize,
    nranks: usize,
    id: UniqueId,
    config: Config,
    engine: OpLock<Engine>,
    /// That of the engine, from when it stays as it is, for whoever has no turn.
    plan_context: OnceLock<Arc<PlanContext>>,
    health: CommHealth,
    failure: Mutex<Option<Error>>,
    /// The error of the last call that failed, by whichever thread, also where nothing broke.
    last_error: failure::LastError,
    /// Held by the thread that makes a smaller communicator. By the number of the list of those who
    /// are left out: the last attempt that this rank has been at, or knows to have failed.
    shrinking: Mutex<BTreeMap<u64, u64>>,
    /// How often it was aborted: who makes a smaller communicator of an aborted one is called off
    /// by the next time. Release by `abort`: pairs with the Acquire in `aborts`.
    aborts: AtomicU64,
    /// Splits so far, which name the rendezvous of the next.
    children: Mutex<u64>,
    /// Its thread in groups of several communicators, made by the first.
    worker: OnceLock<Arc<enqueue::HostStream>>,
    /// Shared with the groups of all threads that hold calls of it and have not ended.
    kept: Arc<()>,
    /// Its device, if it is on one.
    gpu: Option<Gpu>,
    /// Its part in the network, where ranks are on several hosts.
    outside: Option<control_plane::RemoteLinks>,
    /// Finalized: takes no more calls.
    finalized: AtomicBool,
    /// Its place among what onlookers of this process see.
    exhibit: Option<observe::status_server::StatusEntry>,
    /// The process it was made in, as [`fork::generation`] tells them apart.
    born: u32,
}

/// How a call would run, for `ringCommExplain` and `ring-perf --explain`.
#[derive(Clone, Debug)]
pub struct Explanation {
    pub algorithm: &'static str,
    /// In which order inputs are reduced, where that shows in the result; else empty.
    pub order: &'static str,
    /// How data moves: "threads/direct", "shm/two-shot", "shm/direct or shm/slots", ... Where
    /// there is an "or", the numbers are of what it ends with.
    pub transport: &'static str,
    /// The network engine between hosts, with its version and devices; `None` where it is TCP.
    pub network: Option<String>,
    /// Parallel channels: of the plan, times the sockets to a peer on another host.
    pub channels: usize,
    pub chunks: usize,
    pub slices: usize,
    pub slice_bytes: usize,
    pub predicted_us: f64,
    /// What runs instead where the buffers allow it: between processes, where those of all ranks
    /// turn out to be memory that they share; between threads, where no rank calls in place.
    pub mapped: Option<Mapped>,
}

/// Levels of `RINGCOMM_DEBUG`.
const WARNINGS: u32 = 1;
const EVERY_CALL: u32 = 2;

impl Communicator {
    /// This rank's number, from 0.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// The number of ranks.
    pub fn nranks(&self) -> usize {
        self.nranks
    }

    pub fn config(&self) -> &Config {
        &self.config
    }

    /// How long an operation waits for its peers.
    pub fn timeout(&self) -> Duration {
        self.health.timeout
    }

    /// Run one collective; returns when this rank's buffers may be used again.
    ///
    /// An invalid argument leaves the communicator as it was; any other error breaks it.
    ///
    /// # Safety
    /// The buffers of `call` are valid for the extents its collective defines.
    #[inline]
    #[allow(unsafe_code)]
    #[doc(hidden)]
    pub unsafe fn run(&self, call: &Call) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.run_on(call, None, None) }
    }

    /// As [`Communicator::run`], ended soon with an error once it is called off.
    ///
    /// # Safety
    /// As for [`Communicator::run`].
    #[allow(unsafe_code)]
    #[inline]
    unsafe fn run_unless(&self, call: &Call, cancel: CancelCheck) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.run_on(call, None, cancel) }
    }

    /// # Safety
    /// As for `run`.
    #[allow(unsafe_code)]
    unsafe fn run_on(&self, call: &Call, gpu: Option<&Gpu>, cancel: CancelCheck) -> Result<()> {
        self.check_process()?;
        self.follow();
        let mut engine = self.engine.take();
        let _whole = self.on_network();
        self.check()?;
        if let Some(late) = self.health.lateness(gpu) {
            return Err(self.record_failure(late));
        }
        if self.config.debug >= EVERY_CALL {
            self.log(&format!("{call:?}"));
        }
        let guard = Unwinding(self);
        // SAFETY: the caller's promise.
        let outcome = unsafe { engine.collective(call, &self.config, &self.health, gpu, cancel) };
        std::mem::forget(guard);
        if self.config.debug > 0 {
            self.say_detour(gpu);
        }
        outcome.map_err(|error| self.record_failure(error))
    }

    /// Where the ranks of a call meet that wait for each other nowhere else, as far as can be said
    /// before they have come, and how many they are.
    #[doc(hidden)]
    pub fn meets(&self, call: &Call) -> Option<(usize, usize)> {
        let launch_barrier = self.gpu.as_ref().and_then(|gpu| gpu.launch_barrier.as_ref())?;
        let is_it = launch_barrier.is_all_there_is() && !gpu::is_apart(call);
        is_it.then(|| (Arc::as_ptr(launch_barrier).addr(), self.nranks))
    }

    /// As [`Communicator::run`], for a call of the user's: its buffers may be this rank's device's,
    /// and it is ordered by the call's stream.
    ///
    /// # Safety
    /// As for `run`, until the stream is past the call.
    #[inline]
    #[allow(unsafe_code)]
    #[doc(hidden)]
    pub unsafe fn call(&self, call: &Call) -> Result<()> {
        let Some(gpu) = self.gpu.as_ref().filter(|_| call.order.ticket.is_some()) else {
            // SAFETY: the caller's promise.
            return unsafe { self.run_on(call, self.gpu.as_ref(), None) };
        };
        let cancel = || gpu.jam(call.collective.name());
        // SAFETY: the caller's promise.
        unsafe { self.run_on(call, Some(gpu), Some(&cancel)) }
    }

    /// Refuse memory that only the device reads; `what` is its name.
    #[doc(hidden)]
    pub fn check_on_host(&self, pointer: *const u8, what: &str) -> Result<()> {
        let Some(gpu) = &self.gpu else { return Ok(()) };
        let _current = gpu.device.enter()?;
        match gpu.device.kind(pointer)? {
            PointerKind::Host => Ok(()),
            PointerKind::Device { .. } => Err(Error::argument(format!(
                "{what} is in the memory of a CUDA device; it is read on the host"
            ))),
        }
    }

    /// The number of the CUDA device that this rank is on, if it is on one.
    #[inline]
    pub fn device(&self) -> Option<i32> {
        self.gpu.as_ref().map(|gpu| gpu.device.ordinal)
    }

    /// Wait until this communicator's thread has run what it was given before.
    fn follow(&self) {
        if self.gpu.is_some()
            && let Some(worker) = self.worker.get()
        {
            // Its errors are the communicator's, too. Its own thread does not wait for itself.
            let _: Result<bool, Error> = worker.mark().and_then(|mark| worker.reached(mark, None));
        }
    }

    /// Refuse what a forked child asks of its parent's communicator: half of it is the parent's.
    #[inline]
    #[doc(hidden)]
    pub fn check_process(&self) -> Result<()> {
        if self.is_of_this_process() { Ok(()) } else { Err(forked()) }
    }

    #[inline]
    fn is_of_this_process(&self) -> bool {
        self.born == fork::generation()
    }

    /// The error of a communicator that is already broken.
    #[inline]
    fn check(&self) -> Result<()> {
        if !self.is_broken() {
            if self.finalized.load(Relaxed) {
                return Err(Error::usage(
                    "this communicator was finalized; it takes no more calls",
                ));
            }
            return Ok(());
        }
        Err(self.async_error().unwrap_or_else(|| self.record_failure(self.aborted())))
    }

    /// Whether it was aborted or has failed: no call begins any more.
    pub fn is_broken(&self) -> bool {
        // Acquire: pairs with the Release in `abort` and `record_failure`.
        self.health.aborted.load(Acquire)
    }

    /// Wait until the call that runs, if one does, is over.
    #[doc(hidden)]
    pub fn settle(&self) {
        drop(self.engine.take());
    }

    /// Wait until the call that runs, if one does, is over, and let no other one begin: what calls
    /// use is about to go. Those that a group or a stream still holds fail when their turn comes.
    ///
    /// Ends soon where the communicator is broken or a peer is: the call that runs ends then, and
    /// with it the peers' use of its buffers. A split or a shrink that another thread is in ends
    /// with an error, and survivors who shrink do not wait for this rank.
    #[doc(hidden)]
    pub fn retire(&self) {
        if !self.is_of_this_process() {
            return;
        }
        let mut turn = self.engine.take();
        self.part(&mut turn);
        // Release: pairs with the Acquire in `check`.
        self.health.aborted.store(true, Release);
        drop(turn);
        self.aborts.fetch_add(1, Release);
        let _alone = self.shrinking.lock();
        self.health.pages.mine().leave();
        self.close_board();
    }

    /// Before this rank leaves: have its last messages with those who may still need them.
    fn part(&self, engine: &mut Engine) {
        let started = Instant::now();
        let needs = |peer| {
            let page = self.health.pages.of(peer);
            page.life() == Life::Working && !page.is_gone()
        };
        let goes_on = || !self.is_broken() && started.elapsed() < self.health.timeout;
        engine.links.deliver(|peer| goes_on() && needs(peer));
    }

    /// How `call` would run, without running it. Takes no turn: it answers while a call hangs.
    #[doc(hidden)]
    pub fn explain(&self, call: &Call) -> Result<Explanation> {
        self.check_process()?;
        let plan_context = self.plan_context();
        let mut ready = plan_context.bind(call, &self.config)?;
        let (transport, chosen) = match &self.gpu {
            Some(gpu) => gpu.explain(call),
            None => (plan_context.transport(&ready), None),
        };
        let number = match ready.portions.filter(|_| chosen.is_none()) {
            Some(portions) => {
                ready = plan_context.bind_portion(call, &portions, &self.config)?;
                portions.number
            }
            None => 1,
        };
        let predicted_us = number as f64 * ready.predicted_us;
        let host =
            (ready.algorithm.name(), self.channels(&plan_context, call, &ready), predicted_us);
        let (algorithm, channels, predicted_us) = chosen.unwrap_or(host);
        let (slices, slice_bytes) = ready.slices();
        Ok(Explanation {
            algorithm,
            order: plan_context.order(call, algorithm, &self.config),
            transport,
            network: self.network(),
            channels,
            chunks: ready.chunks,
            slices: number * slices,
            slice_bytes,
            predicted_us,
            mapped: ready.mapped.map(|mapped| mapped.times(number)),
        })
    }

    /// Lanes that a call of the host runs in: those of its plan, each with all sockets to a peer.
    fn channels(&self, plan_context: &PlanContext, call: &Call, ready: &BoundCall) -> usize {
        let sockets = if plan_context.one_machine { 1 } else { self.config.nsocks };
        let (topology, collective) = (&plan_context.topology, call.collective);
        algorithm::channels(topology, ready.algorithm, collective) * sockets
    }

    /// The network engine that messages between hosts go over, in words; `None` where it is TCP.
    /// Takes no turn.
    #[doc(hidden)]
    pub fn network(&self) -> Option<String> {
        if self.plan_context().net == "tcp" {
            return None;
        }
        let engine = self.outside.as_ref()?.engine.upgrade()?;
        Some(engine.info().text())
    }

    /// The constants that its ranks agreed on, as measured at init or read from a tuning file.
    #[doc(hidden)]
    pub fn costs(&self) -> Costs {
        self.plan_context().costs.clone()
    }

    /// Whether floats are summed in host order, where nothing else is asked for.
    #[doc(hidden)]
    pub fn has_host_order(&self) -> bool {
        self.plan_context().topology.nhosts() > 1 && self.nranks > 2
    }

    /// What its calls are bound by, which no call changes.
    fn plan_context(&self) -> Arc<PlanContext> {
        let settled = self.plan_context.get().cloned();
        // While it is made there is nobody to wait for.
        settled.unwrap_or_else(|| self.engine.take().plan_context.clone())
    }

    /// Its making is over: these are the constants that its ranks have agreed on.
    fn settle_on(&self, costs: Costs) {
        let mut engine = self.engine.take();
        engine.settle(costs);
        self.plan_context.set(engine.plan_context.clone()).expect("constants are agreed on once");
    }

    /// A number that its ranks have in common, and hardly any other communicator's.
    #[doc(hidden)]
    pub fn number(&self) -> u32 {
        number_of(&self.id)
    }

    /// The flight record as JSON: the last operations, and who waits for whom. From any thread.
    pub fn dump(&self) -> String {
        let failure = self.async_error().map(|error| error.to_string());
        self.flight().dump(failure)
    }

    /// The same operations as a trace for Perfetto. From any thread.
    pub fn trace(&self) -> String {
        observe::flight_dump::trace(&self.flight().events())
    }

    fn flight(&self) -> FlightDump {
        FlightDump { pages: self.health.pages.clone(), number: self.number() }
    }

    /// Register a page-aligned range or memory of `shm_export::allocate`, so that peers in other
    /// processes read and write it directly. Returns a handle for `deregister`.
    #[doc(hidden)]
    pub fn register(&self, address: *mut u8, bytes: usize) -> Result<u64> {
        shm_export::register(address, bytes)
    }

    #[doc(hidden)]
    pub fn deregister(&self, handle: u64) -> Result<()> {
        shm_export::deregister(handle)
    }

    /// Wait for every call that was started, then say goodbye to the peers; whether calls matched.
    pub fn finalize(&self) -> Result<()> {
        self.check_process()?;
        self.follow();
        let mut engine = self.engine.take();
        self.check()?;
        self.part(&mut engine);
        let matched = self.check_last_calls(&engine);
        // Read under the turn, like `check`.
        self.finalized.store(true, Relaxed);
        self.leave();
        matched
    }
}

/// What messages carry of the id: enough to tell communicators apart, nothing of the secret.
fn number_of(id: &UniqueId) -> u32 {
    // Ranks may know the rendezvous place by different addresses.
    let derived = id.derive_at(b"number", &[]);
    let fold = |hash: u64, byte: &u8| call::fingerprint::mix(hash ^ u64::from(*byte));
    derived.as_bytes().iter().fold(0, fold) as u32
}

#[cold]
fn forked() -> Error {
    Error::usage(
        "this process is a fork of the one that made the communicator; make another one here, or \
         use this one in the parent only",
    )
}

impl Drop for Communicator {
    fn drop(&mut self) {
        if !self.is_of_this_process() {
            // The page is the parent's, which goes on.
            return;
        }
        self.exhibit = None;
        self.close_board();
        self.part(&mut self.engine.take());
        self.health.pages.mine().leave();
    }
}
