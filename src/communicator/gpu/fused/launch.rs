//! What the last rank of a barrier does for all: check the call, order the streams, launch.
//!
//! The stream of one rank of each device waits for the streams of all, then has the kernels of that
//! device's part, then an event for which all streams wait. Where all ranks give the same stream,
//! nothing waits for anything. Ranks of `P2pThreads` have kernels that wait for each other instead:
//! on a device each, every rank's on its own stream, and no stream waits for another.
#![allow(unsafe_code)]

use super::launch_barrier::{BarrierOutcome, BarrierState, Decision, DeviceReach};
use crate::communicator::gpu::p2p::rank_device::{RankCall, RankDevice};
use crate::communicator::gpu::p2p::threads::{P2pCall, P2pThreads, RankLaunch};
use crate::communicator::gpu::refuse_capture::refuse_capture;
use crate::device::cuda::{
    Capture, Event, Fused, Kernels, MOST_SCALED, PER_THREAD_STREAM, RawStream, in_one_order, wait,
};
use crate::error::{Error, Result};
use crate::executor::device_p2p::{KernelPath, KernelWork};
use crate::executor::device_work::{PieceShape, RankBuffers, fits, pieces};
use crate::plan::Collective;
use crate::types::ReduceOp;

/// A rank as the conclusion sees it.
struct Participant<'a> {
    rank_device: &'a RankDevice,
    arrival: &'a RankCall,
}

impl<'a> Participant<'a> {
    fn kernels(&self) -> Result<&'a Kernels> {
        let kernels = self.rank_device.kernels.as_deref();
        kernels.ok_or_else(|| Error::Internal("a launch without kernels".into()))
    }

    /// Where its kernels that wait are launched.
    fn part(&self) -> Result<RankLaunch<'a>> {
        let (kernels, stream) = (self.kernels()?, self.arrival.stream.0);
        Ok(RankLaunch { kernels, stream, capture: self.arrival.capture, around: None })
    }

    /// The moment after the call on this rank's device, which the device's first rank keeps.
    fn after<'b>(&self, parties: &'b [Participant]) -> &'b Event {
        let is_here = |one: &&Participant| one.rank_device.device.is(&self.rank_device.device);
        let first = parties.iter().find(is_here).expect("it is one of them");
        first.rank_device.after(self.arrival.capture)
    }

    fn shares_stream(&self, other: &Participant) -> bool {
        self.arrival.stream == other.arrival.stream
            && self.rank_device.device.is(&other.rank_device.device)
    }
}

/// Give the devices their work. `last` is the rank that came last.
pub fn launch_for_all(state: &mut BarrierState, last: usize) -> Decision {
    let BarrierState { rank_devices, arrivals, leaders, reach, p2p_threads, .. } = state;
    let parties: Vec<Participant> = rank_devices
        .iter()
        .zip(arrivals.iter())
        .map(|(rank_device, arrival)| Participant {
            rank_device: rank_device.as_ref().expect("all have sat down"),
            arrival: arrival.as_ref().expect("all have come"),
        })
        .collect();
    if parties.iter().any(|one| one.arrival.fingerprint != parties[0].arrival.fingerprint) {
        return Decision::Differ;
    }
    // The last to come leads its device: its stream is the one that is at hand.
    let leader_of = |leader: &usize| {
        let is_here = parties[*leader].rank_device.device.is(&parties[last].rank_device.device);
        if is_here { last } else { *leader }
    };
    let leaders: Vec<usize> = leaders.iter().map(leader_of).collect();
    let is_within_reach = matches!(reach, DeviceReach::All | DeviceReach::Memory);
    let outcome = work(&parties, &leaders, is_within_reach, p2p_threads.as_mut());
    outcome.map_or_else(Decision::Failed, Decision::Met)
}

/// Give the devices the kernels of a call, of the kind that is best for it.
fn work(
    parties: &[Participant],
    leaders: &[usize],
    is_within_reach: bool,
    p2p_threads: Option<&mut P2pThreads>,
) -> Result<BarrierOutcome> {
    let mut unfit = unfit(parties, is_within_reach);
    // A graph may run what was captured on several streams one after the other.
    let is_captured = parties.iter().any(|party| party.arrival.capture != Capture::No);
    let p2p_threads = p2p_threads.filter(|p2p_threads| p2p_threads.is_together() || !is_captured);
    if let (Some(p2p_threads), None) = (p2p_threads, unfit) {
        let arrivals: Vec<&RankCall> = parties.iter().map(|party| party.arrival).collect();
        let call = P2pCall::of(&arrivals);
        if let Some(chosen) = p2p_threads.way(call)? {
            check_capture(parties, None)?;
            let places: Vec<RankBuffers> = arrivals.iter().map(|arrival| arrival.place).collect();
            let scalars: Vec<f64> = arrivals.iter().map(|arrival| arrival.scalar).collect();
            let work = call.work(chosen.way, &places, &scalars);
            launch_waiting_kernels(parties, leaders, p2p_threads, &work)?;
            return Ok(BarrierOutcome::Done);
        }
    }
    unfit = unfit.or_else(|| unfit_for_one(parties, leaders.len()));
    check_capture(parties, unfit)?;
    if unfit.is_some() {
        return Ok(BarrierOutcome::OnHost);
    }
    // What waits on several devices is launched in the order of all that does.
    let _one_order = (leaders.len() > 1).then(in_one_order);
    order(parties, leaders, |leaders| {
        let mut parts = leaders.iter().enumerate();
        parts.try_for_each(|(part, leader)| {
            launch(parties, &parties[*leader], (part, leaders.len()))
        })
    })?;
    Ok(BarrierOutcome::Done)
}

/// Launch kernels that wait: each rank's on its own stream, or all in one launch between events.
fn launch_waiting_kernels(
    parties: &[Participant],
    leaders: &[usize],
    p2p_threads: &mut P2pThreads,
    work: &KernelWork,
) -> Result<()> {
    let parts: Vec<RankLaunch> = parties.iter().map(Participant::part).collect::<Result<_>>()?;
    // SAFETY: the callers promised their buffers, until their streams have passed.
    let mut launch = |leader| unsafe { p2p_threads.launch(&parts, leader, work) };
    if leaders.len() > 1 {
        return launch(leaders[0]);
    }
    order(parties, leaders, |leaders| launch(leaders[0]))
}

/// Why kernels cannot do this call, if they cannot.
fn unfit(parties: &[Participant], is_within_reach: bool) -> Option<&'static str> {
    if !is_within_reach {
        Some("the devices do not reach each other's memory, or the library has no kernels")
    } else if !parties.iter().all(|party| party.arrival.is_fusable) {
        Some("a buffer is not on its rank's device, or the call has no kernel")
    } else if parties.len() > 1
        && parties.iter().any(|party| party.arrival.stream.0.addr() == PER_THREAD_STREAM)
    {
        Some("a stream is the per-thread default stream, which only its own thread can use")
    } else {
        None
    }
}

/// Why kernels that wait for nothing cannot.
fn unfit_for_one(parties: &[Participant], ndevices: usize) -> Option<&'static str> {
    let first = parties[0].arrival;
    if ndevices > 1 && !parties.iter().all(|party| party.arrival.is_plain) {
        Some("a buffer's memory cannot be reached from other devices")
    } else if !has_room(first.collective, first.op, parties.len()) {
        Some("there are too many ranks for one launch")
    } else {
        None
    }
}

/// All streams are captured by one capture, or none is.
fn check_capture(parties: &[Participant], unfit: Option<&'static str>) -> Result<()> {
    let captures = parties.iter().map(|party| party.arrival.capture);
    let Some(capture) = captures.clone().find(|capture| *capture != Capture::No) else {
        return Ok(());
    };
    if let Some(why) = unfit {
        return refuse_capture(capture, why);
    }
    let one = captures.clone().all(|other| other == capture) && capture != Capture::Broken;
    if one { Ok(()) } else { refuse_capture(capture, "not all ranks' streams are in one capture") }
}

/// Order the streams around launches on the leaders' streams.
fn order(
    parties: &[Participant],
    leaders: &[usize],
    launch: impl FnOnce(&[usize]) -> Result<()>,
) -> Result<()> {
    let is_other = |party: &Participant, leader: &usize| !party.shares_stream(&parties[*leader]);
    for party in parties.iter().filter(|party| leaders.iter().any(|one| is_other(party, one))) {
        let _current = party.rank_device.device.enter()?;
        party.rank_device.before.record(party.arrival.stream.0)?;
    }
    for leader in leaders {
        let leader = &parties[*leader];
        let _current = leader.rank_device.device.enter()?;
        for party in parties.iter().filter(|party| !party.shares_stream(leader)) {
            wait(leader.arrival.stream.0, &party.rank_device.before)?;
        }
    }
    launch(leaders)?;
    for leader in leaders {
        let leader = &parties[*leader];
        let after = leader.after(parties);
        {
            // Also where all are on one stream: the next call may be on another.
            let _current = leader.rank_device.device.enter()?;
            after.record(leader.arrival.stream.0)?;
        }
        for party in parties.iter().filter(|party| !party.shares_stream(leader)) {
            let _current = party.rank_device.device.enter()?;
            wait(party.arrival.stream.0, after)?;
        }
    }
    Ok(())
}

/// Launch one device's part of the call on its leader's stream.
fn launch(parties: &[Participant], leader: &Participant, part: (usize, usize)) -> Result<()> {
    let kernels = leader.kernels()?;
    let places: Vec<RankBuffers> = parties.iter().map(|party| party.arrival.place).collect();
    let scalars: Vec<f64> = parties.iter().map(|party| party.arrival.scalar).collect();
    let arrivals: Vec<&RankCall> = parties.iter().map(|party| party.arrival).collect();
    let work = P2pCall::of(&arrivals).work(KernelPath::Pieces, &places, &scalars);
    let _current = leader.rank_device.device.enter()?;
    launch_part(&work, kernels, leader.arrival.stream.0, part)
}

/// Whether a launch has room for so many ranks of such a call.
pub fn has_room(collective: Collective, op: ReduceOp, nranks: usize) -> bool {
    let scales = collective.reduces() && op == ReduceOp::PreMulSum;
    fits(collective, nranks) && !(scales && nranks > MOST_SCALED)
}

/// Launch part `part.0` of `part.1`. The context is current.
pub fn launch_part(
    work: &KernelWork,
    kernels: &Kernels,
    stream: RawStream,
    part: (usize, usize),
) -> Result<()> {
    let KernelWork { collective, root, count, .. } = *work;
    let size = work.data_type.size();
    let bytes = count.saturating_mul(size) / part.1;
    let moved = work.moved_as();
    let mut fused = match collective.reduces() {
        true => {
            let what = (work.data_type, work.op);
            Fused::reducing(kernels, stream, what, work.places.len(), work.scalars, bytes)
        }
        false => Fused::copying(kernels, stream, moved, bytes),
    };
    let shape = PieceShape { collective, root, count, size };
    let unit = size / moved.size();
    pieces(&shape, work.places, part, |sources, targets, len| {
        fused.add(sources, targets, len * unit)
    })?;
    fused.launch()
}
