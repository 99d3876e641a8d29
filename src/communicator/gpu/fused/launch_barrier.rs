//! Barrier on the host at which the ranks of one process meet for a call on their devices.
//!
//! Every rank brings its buffers and its stream and waits here, on the host, until all have come.
//! The last one gives the devices their work ([`launch_for_all`]) and lets the others go. So a
//! stream is only made to wait for events that are recorded already: with one hardware queue as
//! with many, whatever else the queue holds, what is waited for comes first.
//!
//! [`launch_for_all`]: super::launch::launch_for_all

use super::launch::launch_for_all;
use crate::communicator::call::NextRank;
use crate::communicator::gpu::p2p::kernel_select::ChosenKernelPath;
use crate::communicator::gpu::p2p::peer_access_probe::{self, Probed};
use crate::communicator::gpu::p2p::rank_device::{RankCall, RankDevice};
use crate::communicator::gpu::p2p::threads::{P2pCall, P2pThreads};
use crate::communicator::health::wait_check::{GROUP_THEM, OpWaitCheck};
use crate::device::cuda::{Capture, RawStream, wait};
use crate::error::{Error, Result};
use crate::executor::device_p2p::{AbortBlock, Ending};
use crate::fork::ForkSafeMutex;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use crate::sync::{Condvar, Mutex};
use crate::transport::wait::WaitCheck;
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

/// The launch barriers of this process, by their communicators' names.
static BARRIERS: ForkSafeMutex<BTreeMap<Vec<u8>, Weak<LaunchBarrier>>> =
    ForkSafeMutex::new(BTreeMap::new());

/// What came of a call at the barrier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BarrierOutcome {
    /// The devices have their work.
    Done,
    /// The call has to go through the host.
    OnHost,
}

/// What the last to come found.
#[derive(Clone)]
pub enum Decision {
    Met(BarrierOutcome),
    /// The ranks have not made the same call.
    Differ,
    /// An error of all ranks.
    Failed(Error),
}

/// Whether all devices read and write each other's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceReach {
    All,
    /// They do, but kernels that wait for each other have failed when they were tried.
    Memory,
    /// There are no kernels.
    No,
    /// The driver refuses, or what passes does not arrive as it was.
    Refused,
    /// It was tried and there was an error, or no end: they are not relied on.
    Failed,
}

pub struct BarrierState {
    pub rank_devices: Vec<Option<RankDevice>>,
    pub arrivals: Vec<Option<RankCall>>,
    present: usize,
    verdict: Decision,
    /// By rank: the thread that made its last call, which was in no row.
    drivers: Vec<Option<ThreadId>>,
    /// Known once all ranks have sat down.
    pub reach: DeviceReach,
    /// The rank whose streams launch for each device: by device, in the order of ranks.
    pub leaders: Vec<usize>,
    /// The ranks whose kernels wait for each other, where they may.
    pub p2p_threads: Option<P2pThreads>,
}

pub struct LaunchBarrier {
    nranks: usize,
    state: Mutex<BarrierState>,
    /// By rank: what stops its kernels that wait. Apart from the state, which is locked while work
    /// is given to devices.
    controls: Mutex<Vec<Arc<AbortBlock>>>,
    changed: Condvar,
    /// A call went through the host after the ranks came, and the next ones may.
    has_more: AtomicBool,
    /// Calls for which all have come. Release by the last to come: pairs with the Acquire of those
    /// that wait, which then find the verdict.
    epoch: AtomicU64,
}

/// Looks at the epoch before a rank goes to sleep: a few microseconds, as long as
/// ranks that are in step are apart.
const SPINS: u32 = 2000;

/// Between two looks of a sleeping rank at what nobody announces: peers' failures, the deadline.
const LOOK: Duration = Duration::from_millis(5);

/// How long another thread may take to make the call of a rank that this thread made the last call
/// of, before this is taken for one thread that waits for itself. Longer than a pool of threads
/// takes to hand work on.
const PATIENCE: Duration = Duration::from_secs(10);

impl LaunchBarrier {
    /// The launch barrier of a communicator: the same for all its ranks.
    pub fn of(name: &[u8], nranks: usize) -> Arc<LaunchBarrier> {
        let mut barriers = BARRIERS.lock();
        barriers.retain(|_, launch_barrier| launch_barrier.strong_count() > 0);
        if let Some(launch_barrier) = barriers.get(name).and_then(Weak::upgrade) {
            return launch_barrier;
        }
        let state = BarrierState {
            rank_devices: (0..nranks).map(|_| None).collect(),
            arrivals: (0..nranks).map(|_| None).collect(),
            present: 0,
            verdict: Decision::Met(BarrierOutcome::OnHost),
            drivers: vec![None; nranks],
            reach: DeviceReach::No,
            leaders: Vec::new(),
            p2p_threads: None,
        };
        let (state, changed, controls) = (Mutex::new(state), Condvar::new(), Mutex::default());
        let (has_more, epoch) = (AtomicBool::new(false), AtomicU64::new(0));
        let launch_barrier =
            Arc::new(LaunchBarrier { nranks, state, controls, changed, has_more, epoch });
        barriers.insert(name.to_vec(), Arc::downgrade(&launch_barrier));
        launch_barrier
    }

    /// Take a rank's place. The last to sit down finds out who reaches whom, and is told of an
    /// error of that.
    pub fn take_seat(&self, rank: usize, rank_device: RankDevice) -> Option<Error> {
        let mut state = self.state.lock();
        state.rank_devices[rank] = Some(rank_device);
        if !state.rank_devices.iter().all(Option::is_some) {
            return None;
        }
        let error = state.survey();
        *self.controls.lock() = state.p2p_threads.iter().flat_map(P2pThreads::controls).collect();
        error
    }

    pub fn reach(&self) -> DeviceReach {
        self.state.lock().reach
    }

    /// How kernels that wait do a call, where they do it, in how many channels, and whether in one
    /// launch.
    pub fn explain(
        &self,
        call: &crate::communicator::call::Call,
    ) -> Option<(ChosenKernelPath, usize, bool)> {
        let crate::communicator::call::Call { collective, root, count, data_type, op, .. } = *call;
        let call = P2pCall { collective, root, count, data_type, op, is_plain: true };
        let mut state = self.state.lock();
        let p2p_threads = state.p2p_threads.as_mut()?;
        let chosen = p2p_threads.way(call).ok().flatten()?;
        Some((chosen, p2p_threads.channels(&call, chosen.way), p2p_threads.is_together()))
    }

    /// End the kernels of all ranks that wait, and let none begin.
    pub fn stop(&self) {
        self.controls.lock().iter().for_each(|control| control.stop());
    }

    /// Where and why a kernel of this rank ended early.
    pub fn ending(&self, rank: usize) -> Option<Ending> {
        self.controls.lock().get(rank).and_then(|control| control.ending())
    }

    /// What a rank's stream is given next comes after all that devices were given here. The context
    /// is current.
    pub fn follow(&self, rank: usize, stream: RawStream, capture: Capture) -> Result<()> {
        let mut state = self.state.lock();
        for leader in &state.leaders {
            let leader = state.rank_devices[*leader].as_ref().expect("all have sat down");
            wait(stream, leader.after(capture))?;
        }
        state
            .p2p_threads
            .as_mut()
            .map_or(Ok(()), |p2p_threads| p2p_threads.follow(rank, stream, capture))
    }

    /// Whether the ranks of a call wait for each other here and nowhere else, as far as is known:
    /// devices reach each other, and no call that might have met so went through the host after it.
    pub fn is_all_there_is(&self) -> bool {
        // Relaxed: a thread that does not know it yet finds it out once more.
        !self.has_more.load(Relaxed)
            && matches!(self.reach(), DeviceReach::All | DeviceReach::Memory)
    }

    /// A call of ranks on one thread went through the host after all.
    pub fn has_more(&self) {
        // Relaxed: as above.
        self.has_more.store(true, Relaxed);
    }

    /// Come to a call, and leave when all ranks have come and the work is given. A thread that
    /// brings all ranks brings the others `meanwhile`.
    pub fn arrive_and_wait(
        &self,
        rank: usize,
        arrival: RankCall,
        watch: &OpWaitCheck,
        meanwhile: Option<NextRank>,
    ) -> Result<BarrierOutcome> {
        let mut state = self.state.lock();
        // Relaxed: the lock orders it; it changes under the lock only.
        let epoch = self.epoch.load(Relaxed);
        // In a row a thread waits for itself only where a rank has failed.
        state.drivers[rank] = meanwhile.is_none().then_some(arrival.thread);
        state.arrivals[rank] = Some(arrival);
        state.present += 1;
        if state.present == self.nranks {
            let verdict = launch_for_all(&mut state, rank);
            state.arrivals.iter_mut().for_each(|arrival| *arrival = None);
            state.present = 0;
            state.verdict = verdict.clone();
            // Release: pairs with the Acquire in `wait`.
            self.epoch.store(epoch + 1, Release);
            drop(state);
            self.changed.notify_all();
            return settle(verdict, watch);
        }
        drop(state);
        if let Some(meanwhile) = meanwhile {
            meanwhile.come();
        }
        self.wait(rank, epoch, watch)
    }

    fn wait(&self, rank: usize, epoch: u64, watch: &OpWaitCheck) -> Result<BarrierOutcome> {
        for _ in 0..SPINS {
            // Acquire: pairs with the Release in `arrive_and_wait`.
            if self.epoch.load(Acquire) != epoch {
                let verdict = self.state.lock().verdict.clone();
                return settle(verdict, watch);
            }
            std::hint::spin_loop();
        }
        let started = Instant::now();
        let mut state = self.state.lock();
        loop {
            if self.epoch.load(Relaxed) != epoch {
                let verdict = state.verdict.clone();
                drop(state);
                return settle(verdict, watch);
            }
            if let Err(error) = self.look(&state, started.elapsed(), watch) {
                state.arrivals[rank] = None;
                state.present -= 1;
                return Err(error);
            }
            self.changed.wait_for(&mut state, LOOK);
        }
    }

    /// Why a rank should not wait any longer for the first that is missing.
    fn look(&self, state: &BarrierState, waited: Duration, watch: &OpWaitCheck) -> Result<()> {
        let missing = state.arrivals.iter().position(Option::is_none).expect("not all have come");
        let is_mine = state.drivers[missing] == Some(std::thread::current().id());
        let enough = PATIENCE.min(watch.health.timeout / 2);
        if is_mine && waited >= enough {
            return Err(Error::usage(format!(
                "rank {} waits in {} for rank {missing}, which this same thread has to call: \
                 {GROUP_THEM}",
                watch.health.pages.rank,
                watch.operation()
            )));
        }
        watch.check(missing, waited)
    }
}

impl Drop for LaunchBarrier {
    /// The stations have the last hold of what stops them: it is freed with their memory.
    fn drop(&mut self) {
        self.controls.lock().clear();
    }
}

/// What a verdict is for one rank.
fn settle(verdict: Decision, watch: &OpWaitCheck) -> Result<BarrierOutcome> {
    match verdict {
        Decision::Met(met) => Ok(met),
        Decision::Failed(error) => Err(error),
        Decision::Differ => {
            let nranks = watch.health.pages.nranks();
            let other = (watch.health.pages.rank + 1) % nranks;
            watch.check(other, Duration::ZERO)?;
            Err(Error::usage(format!("the ranks made different calls in {}", watch.operation())))
        }
    }
}

impl BarrierState {
    /// All have sat down: who launches, and whether every device reaches every other. An error of
    /// that is no reason to have no communicator: calls go through the host.
    fn survey(&mut self) -> Option<Error> {
        let rank_devices: Vec<&RankDevice> = self.rank_devices.iter().flatten().collect();
        let mut leaders: Vec<usize> = Vec::new();
        for (rank, rank_device) in rank_devices.iter().enumerate() {
            let is_same = |leader: &usize| rank_devices[*leader].device.is(&rank_device.device);
            if !leaders.iter().any(is_same) {
                leaders.push(rank);
            }
        }
        let has_kernels = rank_devices.iter().all(|rank_device| rank_device.kernels.is_some());
        let pairs = leaders.iter().flat_map(|from| leaders.iter().map(move |to| (*from, *to)));
        let mut others = pairs.filter(|(from, to)| from != to);
        let probe = |(from, to): (usize, usize)| {
            let probed = peer_access_probe::probe_peer_access(rank_devices[from], rank_devices[to]);
            match probed {
                Ok(Probed::Works) => None,
                Ok(Probed::Fails(why)) => Some((DeviceReach::Refused, Some(why))),
                Err(error) => Some((DeviceReach::Failed, Some(error))),
            }
        };
        let (mut reach, mut error) = match has_kernels {
            true => others.find_map(probe).unwrap_or((DeviceReach::All, None)),
            false => (DeviceReach::No, None),
        };
        let mut p2p_threads = None;
        if reach == DeviceReach::All {
            match P2pThreads::new(&rank_devices, leaders.len()) {
                Ok(found) => p2p_threads = found,
                Err(why) => (reach, error) = (DeviceReach::Memory, Some(why)),
            }
        }
        (self.reach, self.leaders, self.p2p_threads) = (reach, leaders, p2p_threads);
        error
    }
}
