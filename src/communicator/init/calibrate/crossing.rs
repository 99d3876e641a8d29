//! The time of messages between rank 0 and another rank.
#![allow(unsafe_code)]

use crate::communicator::health::wait_check::CancelCheck;
use crate::communicator::{Communicator, Message};
use crate::error::{Error, Result};
use crate::types::DataType;
use std::time::{Duration, Instant};

/// Round trips that a measurement makes at least: the first may have to make the connection.
const LEAST_ROUND_TRIPS: usize = 2;

/// How long a measurement goes on after its first round trip: several times as long as all of them
/// take where both ranks have a core and are on one network. On a machine that is busy with others,
/// or between continents, each takes tens of milliseconds, and all ranks wait.
const MEASURING: Duration = Duration::from_millis(10);

/// Messages that are sent together, and their length.
#[derive(Clone, Copy)]
pub(super) struct Volley {
    pub bytes: usize,
    pub messages: usize,
    /// The other rank sends as many at the same time, not in answer.
    pub at_once: bool,
}

/// The best of some round trips, as rank 0 sees them.
#[derive(Clone, Copy)]
pub(super) struct Crossing {
    /// Half the round trip, or an exchange.
    pub half_trip_us: f64,
    /// The sender's own part.
    pub send_us: f64,
    pub round_trips: usize,
}

impl Crossing {
    /// None yet.
    const NOTHING: Crossing =
        Crossing { half_trip_us: f64::MAX, send_us: f64::MAX, round_trips: 0 };
}

/// Whether a measurement ends with the round trip after so `many`, by the time since the first.
fn ends_after(many: usize, round_trips: usize, since_first: Duration) -> bool {
    many + 1 >= round_trips || many + 1 >= LEAST_ROUND_TRIPS && since_first >= MEASURING
}

/// Time volleys to and fro between rank 0 and `other`. Rank 0 says in each whether it is the last.
pub(super) fn crossing(
    communicator: &Communicator,
    other: usize,
    Volley { bytes, messages, at_once }: Volley,
    round_trips: usize,
    cancel: CancelCheck,
) -> Result<Crossing> {
    let rank = communicator.rank;
    if rank != 0 && rank != other {
        return Ok(Crossing { half_trip_us: 0.0, send_us: 0.0, round_trips: 0 });
    }
    let mut best = Crossing::NOTHING;
    // Two of them say that more come, or that it is the last.
    let [more, mut last, mut pong] = [(); 3].map(|()| vec![0u8; messages * bytes]);
    last[0] = 1;
    let (data_type, peer, count) = (DataType::Uint8, other - rank, bytes);
    let sends = [&more, &last].map(|ping| {
        let send = |one: &[u8]| Message::Send { buffer: one.as_ptr(), count, data_type, peer };
        Vec::from_iter(ping.chunks(bytes).map(send))
    });
    let recv = |one: &mut [u8]| Message::Recv { buffer: one.as_mut_ptr(), count, data_type, peer };
    let recvs = Vec::from_iter(pong.chunks_mut(bytes).map(recv));
    let both = sends.each_ref().map(|sends| [&sends[..], &recvs].concat());
    let timed = |volley: &[Message]| {
        let started = Instant::now();
        // SAFETY: both buffers hold as many bytes.
        unsafe { communicator.exchange_unless(volley, cancel)? };
        Ok::<f64, Error>(started.elapsed().as_secs_f64() * 1e6)
    };
    let mut first_done = None;
    for many in 0..round_trips {
        // No wait here is so long that it would look, but all of them are on a busy machine, and
        // the others wait.
        let reason = cancel.and_then(|cancel| cancel());
        if let Some(peer_error) = reason.or_else(|| communicator.health.peer_error()) {
            return Err(communicator.record_failure(peer_error));
        }
        let since_first = first_done.map_or(Duration::ZERO, |at: Instant| at.elapsed());
        let mut is_last = rank == 0 && ends_after(many, round_trips, since_first);
        let (sends, both) = (&sends[usize::from(is_last)], &both[usize::from(is_last)]);
        let (first, second) = match (at_once, rank) {
            (true, _) => [timed(both)?; 2].into(),
            (false, 0) => (timed(sends)?, timed(&recvs)?),
            (false, _) => (timed(&recvs)?, timed(sends)?),
        };
        first_done.get_or_insert_with(Instant::now);
        is_last |= rank != 0 && pong[0] == 1;
        best.half_trip_us = best.half_trip_us.min((first + second) / 2.0);
        best.send_us = best.send_us.min(first);
        best.round_trips += 1;
        if is_last {
            break;
        }
    }
    Ok(best)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_measurement_ends_soon_where_round_trips_take_long() {
        const MANY: usize = 64;
        let trips = |each: Duration| {
            let is_last = |many: &usize| ends_after(*many, MANY, each * *many as u32);
            (0..).find(is_last).unwrap() + 1
        };
        assert_eq!(trips(Duration::from_micros(1)), MANY);
        assert_eq!(trips(MEASURING / 4), 5);
        assert_eq!(trips(Duration::from_secs(1)), LEAST_ROUND_TRIPS);
    }
}
