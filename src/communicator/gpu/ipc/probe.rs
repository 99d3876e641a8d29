//! Whether ranks of several processes can work in each other's memory: tried once, as they meet.
//!
//! Every rank does what it can, says so, and looks whether all could; then all make one call on
//! memory of the library's own, compare what came, and say that; and others on memory that is
//! mapped piece by piece, one for each way in which all can send such pieces. So all come to the
//! same answer and an error of one rank is no reason to have no communicator: calls go through the
//! host.
#![allow(unsafe_code)]

use super::p2p::{P2pProcesses, P2pProcessesConfig};
use super::peer_values::{PeerValues, Plain};
use super::watchdog::DeadProcessWatchdog;
use super::{IpcRank, OfferedBuffers, Within};
use crate::bootstrap;
use crate::communicator::call::{Call, Order};
use crate::communicator::gpu::staging::wait_for;
use crate::communicator::gpu::{Gpu, Sharing};
use crate::communicator::health::wait_check::OpWaitCheck;
use crate::device::cuda::{
    Addresses, Capture, Carriers, DeferredFree, Device, DeviceMemory, Event, HandleType,
    OwnedStream, PhysicalPiece, Pinned, Recording, copy,
};
use crate::error::{Error, Result};
use crate::executor::links::Links;
use crate::plan::Collective;
use crate::types::DataType;
use std::sync::Arc;
use std::time::Duration;

/// What a rank says of itself.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct ProbeHello {
    uuid: [u8; 16],
    /// Its process, and its context: ranks of one process must share it to use each other's memory.
    process: u64,
    context: u64,
    /// 1 where it could do all that it does alone.
    is_able: u64,
    /// How its device's memory that is mapped piece by piece can travel.
    carriers: u32,
    multiprocessors: u32,
}

impl Plain for ProbeHello {}

/// Bytes that are sent: several lines and pages, and not a multiple of either.
const BYTES: usize = 20_011;

/// A call that has not come back by then never will: it takes microseconds.
const LONGEST: Duration = Duration::from_secs(5);

impl Gpu {
    /// Find out whether the ranks' devices can share memory.
    pub(in crate::communicator) fn survey(&self, talk: &mut PeerValues) -> Result<()> {
        let all = 0..talk.links.nranks;
        let mut sharing = self.prepare(talk.links, talk.watch);
        let hello = ProbeHello {
            uuid: self.device.uuid,
            process: bootstrap::process_token()?,
            context: self.device.token(),
            is_able: u64::from(sharing.is_ok()),
            carriers: self.device.carriers().0,
            multiprocessors: self.device.multiprocessors,
        };
        let hellos = talk.exchange(hello, all.clone())?;
        let mut able = hellos.iter().all(|hello| hello.is_able == 1) && one_context(&hellos);
        if able {
            // Before anything is launched: a kernel that goes where it may not ends its context.
            let reach = self.reach_threads(&hellos);
            let answers = talk.exchange(u64::from(reach.is_ok()), all)?;
            able = !answers.contains(&0);
            if let Err(error) = reach {
                sharing = Err(error);
            }
        }
        if let (Ok((shared, guardian)), true) = (&mut sharing, able) {
            let guardian = guardian.take().expect("it was just made");
            let leaders = leaders(&hellos);
            let is_mine = |leader: &&usize| hellos[**leader].uuid == hello.uuid;
            let mine = *leaders.iter().find(is_mine).expect("every device has one");
            shared.appoint(leaders, mine, guardian, talk.links);
            let (works, error) = self.tried(shared, None, talk)?;
            let common = hellos.iter().fold(u32::MAX, |common, hello| common & hello.carriers);
            let common = |carrier: &HandleType| works && Carriers(common).has(*carrier);
            for carrier in HandleType::ALL.into_iter().filter(common) {
                shared.set_carrier_usable(carrier, Ok(true));
                let (come, error) = self.tried(shared, Some(carrier), talk)?;
                shared.set_carrier_usable(carrier, error.map_or(Ok(come), Err));
            }
            if let Some(error) = error {
                sharing = Err(error);
            } else if !works {
                sharing = Err(Error::Cuda("a rank's device did not pass a probe".into()));
            } else if are_apart(&hellos) {
                let multiprocessors = hellos.iter().map(|hello| hello.multiprocessors).min();
                let ground = P2pProcessesConfig {
                    device: &self.device,
                    kernels: &shared.kernels,
                    asked: self.asked,
                    multiprocessors: multiprocessors.unwrap_or(1) as usize,
                    bytes: self.ground_bytes,
                    pages: shared.pages(),
                    stopper: &self.stopper,
                };
                let p2p_processes = P2pProcesses::new(ground, talk)?;
                shared.set_p2p_processes(p2p_processes);
            }
        } else if sharing.is_ok() {
            sharing = Err(Error::Cuda("not all ranks' devices can share memory".into()));
        }
        *self.sharing.lock() = match sharing {
            Ok((shared, _)) => Sharing::Works(Box::new(shared)),
            Err(error) => Sharing::Failed(error),
        };
        Ok(())
    }

    /// Make a call on plain memory, or on pieces that travel so; whether all ranks found it right,
    /// and an error of this rank's.
    fn tried(
        &self,
        shared: &mut IpcRank,
        kind: Option<HandleType>,
        talk: &mut PeerValues,
    ) -> Result<(bool, Option<Error>)> {
        let all = 0..talk.links.nranks;
        let (passed, bench) = self.probe(shared, kind, talk);
        let verdict = u64::from(matches!(passed, Ok(true)));
        let verdicts = talk.exchange(verdict, all.clone())?;
        // Memory is freed when nobody has it open any more.
        shared.close_imports();
        talk.exchange(verdict, all)?;
        drop(bench);
        Ok((!verdicts.contains(&0), passed.err()))
    }

    /// Let this device's kernels into the memory of the other devices of this process, which is not
    /// opened as that of other processes is.
    fn reach_threads(&self, hellos: &[ProbeHello]) -> Result<()> {
        let mine = &hellos[self.rank];
        let is_other = |one: &&ProbeHello| one.process == mine.process && one.uuid != mine.uuid;
        for other in hellos.iter().filter(is_other) {
            let other = Device::of_context(other.context)?;
            if !self.device.reach(&other)? {
                let (from, to) = (self.device.ordinal, other.ordinal);
                return Err(Error::Cuda(format!(
                    "CUDA device {from} has no access to the memory of device {to}"
                )));
            }
        }
        Ok(())
    }

    /// What a rank does alone.
    fn prepare(
        &self,
        links: &Links,
        watch: &OpWaitCheck,
    ) -> Result<(IpcRank, Option<DeadProcessWatchdog>)> {
        let kernels = self.kernels.as_ref().map_err(Error::clone)?;
        let shared = IpcRank::prepare(&self.device, kernels, links)?;
        let health = watch.health;
        let (processes, pages) = (health.liveness.copies()?, health.pages.clone());
        let devices = shared.pages().clone();
        let guardian = DeadProcessWatchdog::start(processes, pages, devices, self.stopper.clone())?;
        Ok((shared, Some(guardian)))
    }

    /// Make a call of all ranks on the library's own memory; whether what came is right.
    fn probe(
        &self,
        shared: &mut IpcRank,
        kind: Option<HandleType>,
        talk: &mut PeerValues,
    ) -> (Result<bool>, Option<IpcProbe>) {
        match IpcProbe::new(&self.device, kind) {
            Ok(bench) => {
                let passed = bench.try_call(shared, kind, talk);
                if passed.is_err() {
                    // Something may be under way for ever, and to free memory would wait for it.
                    std::mem::forget(bench);
                    return (passed, None);
                }
                (passed, Some(bench))
            }
            Err(error) => {
                // The others must not wait for this rank.
                let call = Call::new(Collective::AllReduce, DataType::Uint8);
                let ran = shared.run(
                    &call,
                    OfferedBuffers::Unfit,
                    (call.order.stream, Capture::No),
                    talk,
                );
                (ran.and(Err(error)), None)
            }
        }
    }
}

/// Memory of a bench.
enum Room {
    Plain(DeferredFree<DeviceMemory>),
    Pieces(DeferredFree<Addresses>),
}

impl Room {
    fn new(device: &Arc<Device>, kind: Option<HandleType>) -> Result<Room> {
        let Some(carrier) = kind else { return DeferredFree::of(device, BYTES).map(Room::Plain) };
        let made = DeferredFree::new(|| {
            let piece = PhysicalPiece::new(device, BYTES, Some(carrier))?;
            Addresses::of(device, &[piece])
        });
        made.map(Room::Pieces)
    }

    fn pointer(&self) -> *mut u8 {
        match self {
            Room::Plain(memory) => memory.pointer(),
            Room::Pieces(addresses) => addresses.pointer(),
        }
    }
}

/// What a probe works with.
struct IpcProbe {
    device: Arc<Device>,
    stream: OwnedStream,
    input: Room,
    output: Room,
    host: DeferredFree<Pinned>,
    end: Event,
}

impl IpcProbe {
    fn new(device: &Arc<Device>, kind: Option<HandleType>) -> Result<IpcProbe> {
        Ok(IpcProbe {
            device: device.clone(),
            stream: OwnedStream::new(device)?,
            input: Room::new(device, kind)?,
            output: Room::new(device, kind)?,
            host: DeferredFree::of(device, BYTES)?,
            end: Event::new(device, Recording::Moment)?,
        })
    }

    /// Sum a pattern of every rank; whether the sum is right.
    fn try_call(
        &self,
        shared: &mut IpcRank,
        kind: Option<HandleType>,
        talk: &mut PeerValues,
    ) -> Result<bool> {
        let pattern = |rank: usize, at: usize| (at % 251) as u8 ^ (rank as u8).wrapping_mul(7);
        let (rank, nranks) = (talk.links.rank, talk.links.nranks);
        // SAFETY: the memory is the bench's, and nothing of it is under way.
        let host = unsafe { std::slice::from_raw_parts_mut(self.host.pointer(), BYTES) };
        host.iter_mut().enumerate().for_each(|(at, byte)| *byte = pattern(rank, at));
        let loaded = self.copied(self.input.pointer(), self.host.pointer());
        let call = Call {
            send: self.input.pointer(),
            recv: self.output.pointer(),
            count: BYTES,
            order: Order::on(self.stream.raw()),
            ..Call::new(Collective::AllReduce, DataType::Uint8)
        };
        let buffers = match (&loaded, kind) {
            (Err(_), _) => OfferedBuffers::Unfit,
            (Ok(()), None) => OfferedBuffers::Plain,
            (Ok(()), Some(_)) => OfferedBuffers::Any,
        };
        let ran = shared.run(&call, buffers, (call.order.stream, Capture::No), talk)?;
        loaded?;
        self.copied(self.host.pointer(), self.output.pointer())?;
        {
            let _current = self.device.enter()?;
            self.end.record(self.stream.raw())?;
        }
        wait_for(&self.end, &Within(LONGEST))?;
        let sum = |at| (0..nranks).fold(0u8, |sum, rank| sum.wrapping_add(pattern(rank, at)));
        Ok(ran && host.iter().enumerate().all(|(at, byte)| *byte == sum(at)))
    }

    fn copied(&self, to: *mut u8, from: *const u8) -> Result<()> {
        let _current = self.device.enter()?;
        // SAFETY: both have the bytes, and stay until the stream has passed, or for good.
        unsafe { copy(&self.device, to, from, BYTES, self.stream.raw()) }
    }
}

/// The first rank of each device.
fn leaders(hellos: &[ProbeHello]) -> Vec<usize> {
    let is_first = |rank: &usize| {
        let before = &hellos[..*rank];
        before.iter().all(|other| other.uuid != hellos[*rank].uuid)
    };
    (0..hellos.len()).filter(is_first).collect()
}

/// Whether each rank is a process of its own with a device of its own.
fn are_apart(hellos: &[ProbeHello]) -> bool {
    let is_like = |one: &ProbeHello, other: &ProbeHello| {
        one.uuid == other.uuid || one.process == other.process
    };
    let is_alone =
        |(rank, one): (usize, &ProbeHello)| !hellos[..rank].iter().any(|other| is_like(one, other));
    hellos.len() > 1 && hellos.iter().enumerate().all(is_alone)
}

/// Whether ranks of one process that are on one device are in one context.
fn one_context(hellos: &[ProbeHello]) -> bool {
    let differ = |one: &ProbeHello, other: &ProbeHello| {
        (one.uuid, one.process) == (other.uuid, other.process) && one.context != other.context
    };
    hellos.iter().all(|one| !hellos.iter().any(|other| differ(one, other)))
}
