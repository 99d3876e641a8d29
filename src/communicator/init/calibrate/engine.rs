//! Whether messages between hosts go over a network engine, where nobody has asked for either: if
//! it has a better device than a socket, and rank 0 and a rank of another host find it faster.

use super::crossing::{Volley, crossing};
use super::{WIRE_ROUND_TRIPS, give_words, take_least};
use crate::communicator::Communicator;
use crate::communicator::health::wait_check::CancelCheck;
use crate::error::Result;
use crate::transport::engine::EngineInfo;
use std::time::{Duration, Instant};

/// How long an engine may take to connect two ranks.
const PATIENCE: Duration = Duration::from_secs(5);

/// Bytes of a short and of a long message, which count alike.
const LENGTHS: [usize; 2] = [8, 1 << 20];

/// Decide it on all ranks, if it is to be decided.
pub(super) fn choose_engine(communicator: &Communicator, cancel: CancelCheck) -> Result<()> {
    let found = || communicator.engine.take().links.engine();
    if !matches!(found(), Some((_, false))) {
        return Ok(());
    }
    let other = communicator.plan_context().topology.ranks(1)[0];
    let mut works = [works_between(communicator, other, cancel)?];
    take_least(communicator, &mut works, cancel)?;
    if works[0] == 0 {
        communicator.engine.take().links.close_engine();
        let text = "the network engine does not work between hosts: messages go over tcp";
        if communicator.config.debug > 0 && communicator.rank == 0 {
            communicator.log(text);
        }
        return Ok(());
    }
    let use_engine = |is_used| communicator.engine.take().links.use_engine(is_used);
    let time = |bytes| {
        let volley = Volley { bytes, messages: 1, at_once: false };
        crossing(communicator, other, volley, WIRE_ROUND_TRIPS, cancel).map(|it| it.half_trip_us)
    };
    let over_tcp = [time(LENGTHS[0])?, time(LENGTHS[1])?];
    use_engine(true);
    let over_engine = [time(LENGTHS[0])?, time(LENGTHS[1])?];
    // What is closed afterwards has nothing on its way any more.
    use_engine(false);
    let info = found().map_or_else(EngineInfo::default, |(info, _)| info);
    let is_chosen = info.beats_tcp && is_faster(over_engine, over_tcp);
    let mut verdict = [f64::from(u8::from(is_chosen))];
    give_words(communicator, &mut verdict, cancel)?;
    let is_used = verdict[0] != 0.0;
    match is_used {
        true => use_engine(true),
        false => communicator.engine.take().links.close_engine(),
    }
    if communicator.config.debug > 0 && communicator.rank == 0 {
        let way = if is_used { info.text() } else { "tcp".into() };
        communicator.log(&format!(
            "messages between hosts go over {way}: 8 B take {:.1} us over {} and {:.1} us over \
             tcp, 1 MiB {:.0} us and {:.0} us",
            over_engine[0], info.name, over_tcp[0], over_engine[1], over_tcp[1]
        ));
    }
    Ok(())
}

/// Whether the engine works between rank 0 and this other one, as one of these two sees it: 1 or 0.
fn works_between(communicator: &Communicator, other: usize, cancel: CancelCheck) -> Result<u8> {
    let peer = match communicator.rank {
        0 => other,
        rank if rank == other => 0,
        _ => return Ok(1),
    };
    let started = Instant::now();
    loop {
        if communicator.engine.take().links.engine_hears(peer) {
            return Ok(1);
        }
        if let Some(error) = cancel.and_then(|cancel| cancel()) {
            return Err(communicator.record_failure(error));
        }
        if started.elapsed() > PATIENCE || communicator.health.peer_error().is_some() {
            return Ok(0);
        }
        std::thread::sleep(Duration::from_micros(100));
    }
}

/// Whether the first times are less than the others, taken together.
fn is_faster(these: [f64; 2], those: [f64; 2]) -> bool {
    let ratio: f64 = these.iter().zip(those).map(|(this, that)| this / that).product();
    ratio < 1.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_and_long_messages_count_alike() {
        assert!(is_faster([2.0, 100.0], [10.0, 200.0]));
        assert!(is_faster([5.0, 390.0], [10.0, 200.0]), "half the time outweighs twice less a bit");
        assert!(!is_faster([5.0, 410.0], [10.0, 200.0]));
        assert!(!is_faster([0.0, 0.0], [0.0, 0.0]), "ranks that did not measure decide nothing");
    }
}
