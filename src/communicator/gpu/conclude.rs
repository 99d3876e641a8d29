//! What the last rank of a meeting does for all: check the call, order the streams, launch.
//!
//! The stream of one rank of each device waits for the streams of all, then has the kernels of that
//! device's part, then an event for which all streams wait. Where all ranks give the same stream,
//! nothing waits for anything.

use super::desk::{Arrival, Met, Reach, Sitting, State, Verdict};
use super::launch::{Work, has_room};
use super::refuse_capture;
use crate::device::cuda::{Capture, wait};
use crate::error::{Error, Result};
use crate::executor::cuda::Place;

/// The driver's name for a stream that every thread has for itself: another thread cannot mean it.
const PER_THREAD_STREAM: usize = 2;

/// A rank as the conclusion sees it.
struct Party<'a> {
    sitting: &'a Sitting,
    arrival: &'a Arrival,
}

impl Party<'_> {
    fn shares_stream(&self, other: &Party) -> bool {
        self.arrival.stream == other.arrival.stream && self.sitting.device.is(&other.sitting.device)
    }
}

/// Give the devices their work. `last` is the rank that came last.
pub fn conclude(state: &mut State, last: usize) -> Verdict {
    let parties: Vec<Party> = state
        .sittings
        .iter()
        .zip(&state.arrivals)
        .map(|(sitting, arrival)| Party {
            sitting: sitting.as_ref().expect("all have sat down"),
            arrival: arrival.as_ref().expect("all have come"),
        })
        .collect();
    if parties.iter().any(|one| one.arrival.fingerprint != parties[0].arrival.fingerprint) {
        return Verdict::Differ;
    }
    // The last to come leads its device: its stream is the one that is at hand.
    let leader_of = |leader: &usize| {
        let is_here = parties[*leader].sitting.device.is(&parties[last].sitting.device);
        if is_here { last } else { *leader }
    };
    let leaders: Vec<usize> = state.leaders.iter().map(leader_of).collect();
    let unfit = unfit(&parties, state.reach == Reach::All, leaders.len());
    let outcome = check_capture(&parties, unfit).and_then(|()| match unfit {
        Some(_) => Ok(Met::OnHost),
        None => order(&parties, &leaders).map(|()| Met::Done),
    });
    match outcome {
        Ok(met) => Verdict::Met(met),
        Err(error) => Verdict::Failed(error),
    }
}

/// Why kernels cannot do this call, if they cannot.
fn unfit(parties: &[Party], is_within_reach: bool, ndevices: usize) -> Option<&'static str> {
    let first = parties[0].arrival;
    if !is_within_reach {
        Some("the devices do not reach each other's memory, or the library has no kernels")
    } else if !parties.iter().all(|party| party.arrival.is_fusable) {
        Some("a buffer is not on its rank's device, or the call has no kernel")
    } else if ndevices > 1 && !parties.iter().all(|party| party.arrival.is_plain) {
        Some("a buffer's memory cannot be reached from other devices")
    } else if !has_room(first.collective, first.op, parties.len()) {
        Some("there are too many ranks for one launch")
    } else if parties.len() > 1
        && parties.iter().any(|party| party.arrival.stream.0.addr() == PER_THREAD_STREAM)
    {
        Some("a stream is the per-thread default stream, which only its own thread can use")
    } else {
        None
    }
}

/// All streams are captured by one capture, or none is.
fn check_capture(parties: &[Party], unfit: Option<&'static str>) -> Result<()> {
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

/// Order the streams around the launches.
fn order(parties: &[Party], leaders: &[usize]) -> Result<()> {
    let is_other = |party: &Party, leader: &usize| !party.shares_stream(&parties[*leader]);
    for party in parties.iter().filter(|party| leaders.iter().any(|one| is_other(party, one))) {
        let _current = party.sitting.device.enter()?;
        party.sitting.before.record(party.arrival.stream.0)?;
    }
    for leader in leaders {
        let leader = &parties[*leader];
        let _current = leader.sitting.device.enter()?;
        for party in parties.iter().filter(|party| !party.shares_stream(leader)) {
            wait(leader.arrival.stream.0, &party.sitting.before)?;
        }
    }
    for (part, leader) in leaders.iter().enumerate() {
        launch(parties, &parties[*leader], (part, leaders.len()))?;
    }
    for leader in leaders {
        let leader = &parties[*leader];
        let mut recorded = false;
        for party in parties.iter().filter(|party| !party.shares_stream(leader)) {
            if !recorded {
                let _current = leader.sitting.device.enter()?;
                leader.sitting.after.record(leader.arrival.stream.0)?;
                recorded = true;
            }
            let _current = party.sitting.device.enter()?;
            wait(party.arrival.stream.0, &leader.sitting.after)?;
        }
    }
    Ok(())
}

/// Launch one device's part of the call on its leader's stream.
fn launch(parties: &[Party], leader: &Party, part: (usize, usize)) -> Result<()> {
    let call = leader.arrival;
    let Some(kernels) = &leader.sitting.kernels else {
        return Err(Error::Internal("a launch without kernels".into()));
    };
    let places: Vec<Place> = parties.iter().map(|party| party.arrival.place).collect();
    let scalars: Vec<f64> = parties.iter().map(|party| party.arrival.scalar).collect();
    let work = Work {
        collective: call.collective,
        root: call.root,
        count: call.count,
        data_type: call.data_type,
        op: call.op,
        places: &places,
        scalars: &scalars,
    };
    let _current = leader.sitting.device.enter()?;
    work.launch(kernels, call.stream.0, part)
}
