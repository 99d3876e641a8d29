//! Measuring what the choice of algorithms rests on, and agreeing on it.
//!
//! The constants are rank 0's, which it measures with one other rank of its host and one of another
//! or reads from a tuning file, and gives to the others when the communicator is made.
#![allow(unsafe_code)]

mod crossing;
mod engine;
mod known;

use crate::algorithm::select::Costs;
use crate::communicator::call::rank_state::{CHOOSING_OPERATIONS, SETUP_OPERATIONS};
use crate::communicator::health::wait_check::CancelCheck;
use crate::communicator::{Call, Communicator};
use crate::cycle_counter;
use crate::device::host::{Job, Reduction, copy};
use crate::error::Result;
use crate::fork::Once;
use crate::plan::Collective;
use crate::transport::{DEPTH, cma};
use crate::types::{DataType, ReduceOp};
use crossing::{Crossing, Volley, crossing};
use engine::choose_engine;
use known::{Known, Place};
use std::time::Instant;

/// Bytes of the blocks that are copied and added to find the machine's pace: in the second-level
/// cache, as slots are.
const SAMPLE_BYTES: usize = 256 << 10;

/// Repetitions; the fastest counts, because the machine may be busy.
const SAMPLES: usize = 8;

/// Round trips on a host: enough for a minimum, and together shorter than starting a process.
const ROUND_TRIPS: usize = 64;

/// Round trips of two messages at once, of which only the sender's own time counts.
const PAIR_ROUND_TRIPS: usize = 16;

/// Bytes that two ranks of a host send each other at once, in messages of a slot each: copies in
/// and out overlap, as in calls.
const LONG_BYTES: usize = 1 << 20;

/// The most messages in which they go.
const MOST_LONG: usize = 16;

/// Messages below this are too short to tell a byte's time from a message's.
const LEAST_LONG: usize = 8 << 10;

/// Laps of the ring before a measurement counts: the kernel commits its memory in the first, and a
/// sender knows after two whether its receiver is far.
const LAPS: usize = 2;

/// Further exchanges, enough for a minimum.
const LONG_EXCHANGES: usize = 8;

/// Round trips of each length between hosts: enough for a minimum, few where each is slow.
const WIRE_ROUND_TRIPS: usize = 16;

/// Bytes of the long messages between hosts: as much as the kernel hands to a network card at once.
const WIRE_SAMPLE_BYTES: usize = 64 << 10;

/// Microseconds: longer than a cache line takes between any two sockets of a machine. What took
/// more was the scheduler, which delays every algorithm alike.
const SLOWEST_CROSSING: f64 = 1.0;

/// Copy and reduction pace of this machine, measured once a process.
fn paces() -> (f64, f64) {
    static PACES: Once<(f64, f64)> = Once::new();
    *PACES.get_or_make(|| {
        let (a, b) = (vec![1u8; SAMPLE_BYTES], vec![0u8; SAMPLE_BYTES]);
        let mut c = vec![0u8; SAMPLE_BYTES];
        let target = c.as_mut_ptr();
        let sum = Reduction::new(DataType::Float32, ReduceOp::Sum, 2).expect("f32 has a sum");
        let per_byte = |work: &mut dyn FnMut()| {
            let time = |_| {
                let started = Instant::now();
                work();
                started.elapsed().as_secs_f64() * 1e6 / SAMPLE_BYTES as f64
            };
            (0..SAMPLES).map(time).fold(f64::MAX, f64::min)
        };
        // SAFETY: all three blocks have the sample's bytes.
        let copied = per_byte(&mut || unsafe { copy(target, a.as_ptr(), SAMPLE_BYTES, false) });
        let sources = [a.as_ptr(), b.as_ptr()];
        let added = per_byte(&mut || {
            // SAFETY: as above.
            unsafe { sum.run(&Job::new(&[target], &sources, SAMPLE_BYTES / 4)) }
        });
        (copied, (added - copied).max(added / 4.0))
    })
}

/// Agree on the constants: all ranks of a new communicator call it, and leave it together.
///
/// Ended soon with an error once it is called off.
pub fn calibrate(communicator: &Communicator, cores: usize, cancel: CancelCheck) -> Result<()> {
    if communicator.nranks == 1 {
        communicator.settle_on(Costs { cores, ..Costs::default() });
        // It is through with what others do now.
        communicator.health.pages.mine().end(SETUP_OPERATIONS - 1, cycle_counter::ticks());
        return Ok(());
    }
    choose_engine(communicator, cancel)?;
    // The same on all ranks, however many the choice took: no call has a number twice.
    communicator.engine.take().sequence = CHOOSING_OPERATIONS;
    let place = Place::of(communicator, cores);
    let mut known = match communicator.rank {
        // The others wait for it: they fail with the same words.
        0 => place
            .recall(&communicator.config)
            .inspect_err(|error| communicator.publish_failure(error))?,
        _ => Known::default(),
    };
    give(communicator, &mut known, cancel)?;
    if !known.host {
        (known.costs.copy_us_per_byte, known.costs.reduce_us_per_byte) = paces();
        known.host = measure_host(communicator, &place, &mut known.costs, cancel)?;
    }
    if !known.wire {
        known.wire = measure_wire(communicator, &mut known.costs, cancel)?;
    }
    give(communicator, &mut known, cancel)?;
    place.remember(&known);
    let mut costs = known.costs;
    if !meet(communicator, costs.cma_us_per_byte.is_finite(), cancel)? {
        costs.cma_us_per_byte = f64::INFINITY;
    }
    communicator.settle_on(costs);
    Ok(())
}

/// Give the others what rank 0 knows.
fn give(communicator: &Communicator, known: &mut Known, cancel: CancelCheck) -> Result<()> {
    let mut words = known.to_words();
    give_words(communicator, &mut words, cancel)?;
    *known = Known::from_words(&words);
    Ok(())
}

/// Give the others rank 0's words.
fn give_words(communicator: &Communicator, words: &mut [f64], cancel: CancelCheck) -> Result<()> {
    let give = Call {
        send: words.as_ptr().cast(),
        recv: words.as_mut_ptr().cast(),
        count: words.len(),
        ..Call::new(Collective::Broadcast, DataType::Float64)
    };
    // SAFETY: both buffers are the words.
    unsafe { communicator.run_unless(&give, cancel)? };
    Ok(())
}

/// Take the least of all ranks' numbers.
fn take_least(communicator: &Communicator, one: &mut [u8; 1], cancel: CancelCheck) -> Result<()> {
    let least = Call {
        send: one.as_ptr(),
        recv: one.as_mut_ptr(),
        count: 1,
        op: ReduceOp::Min,
        ..Call::new(Collective::AllReduce, DataType::Uint8)
    };
    // SAFETY: both buffers are the byte.
    unsafe { communicator.run_unless(&least, cancel) }
}

/// Wait for all ranks, which is the last that they do before the user's calls; whether the kernel
/// copies out of every rank's memory for every other one. `copies` is the same on all ranks.
fn meet(communicator: &Communicator, copies: bool, cancel: CancelCheck) -> Result<bool> {
    let pages = &communicator.health.pages;
    let processes = {
        let plan_context = communicator.plan_context();
        plan_context.one_machine && !plan_context.one_process
    };
    let is_readable = |peer: usize| {
        let process = communicator.health.processes[peer];
        process.is_some_and(|process| pages.of(peer).sample().is_readable(process))
    };
    let mut all = u8::from(copies && processes && (0..pages.nranks()).all(is_readable));
    let rendezvous = match copies && processes {
        false => Call::new(Collective::Barrier, DataType::Uint8),
        true => Call {
            send: &raw const all,
            recv: &raw mut all,
            count: 1,
            op: ReduceOp::Min,
            ..Call::new(Collective::AllReduce, DataType::Uint8)
        },
    };
    // SAFETY: both buffers are the byte; a barrier has none.
    unsafe { communicator.run_unless(&rendezvous, cancel)? };
    Ok(all != 0)
}

/// Measure what takes two ranks of a host: rank 0 with another one. What the other ranks get is not
/// looked at: rank 0 gives them its own. Whether all of it was found.
fn measure_host(
    communicator: &Communicator,
    place: &Place,
    costs: &mut Costs,
    cancel: CancelCheck,
) -> Result<bool> {
    let Some(companion) = place.companion else { return Ok(false) };
    let time = |messages, round_trips| {
        let volley = Volley { bytes: 8, messages, at_once: false };
        crossing(communicator, companion, volley, round_trips, cancel)
    };
    let (one, two) = (time(1, ROUND_TRIPS)?, time(2, PAIR_ROUND_TRIPS)?);
    take_host(costs, communicator.nranks, one, two);
    measure_copies(communicator, companion, costs, one, cancel)
}

/// What a byte takes that goes from core to core, and one that the kernel copies. Whether the first
/// was found, if slots are long enough for it.
fn measure_copies(
    communicator: &Communicator,
    companion: usize,
    costs: &mut Costs,
    short: Crossing,
    cancel: CancelCheck,
) -> Result<bool> {
    let trips =
        |volley, round_trips| crossing(communicator, companion, volley, round_trips, cancel);
    let bytes = slot_of(communicator);
    let messages = (LONG_BYTES / bytes).clamp(1, MOST_LONG);
    let before = (LAPS * DEPTH).div_ceil(messages);
    let long = trips(Volley { bytes, messages, at_once: true }, before + LONG_EXCHANGES)?;
    let turn = Volley { bytes: 8, messages: 1, at_once: false };
    let page = communicator.health.pages.of(companion);
    let mut pace = None;
    // The first time the kernel has not had these pages in its own hands.
    for _ in 0..2 {
        if communicator.rank == companion {
            cma::refresh();
        }
        trips(turn, 1)?;
        if communicator.rank == 0 {
            let process = communicator.health.processes[companion];
            pace = process.and_then(|process| page.sample().measure(process));
        }
        trips(turn, 1)?;
    }
    let is_found = long.round_trips > before;
    if is_found && bytes >= LEAST_LONG {
        let slot = (long.half_trip_us - short.half_trip_us) / (messages * bytes) as f64;
        costs.cross_us_per_byte = (slot / 2.0 - costs.copy_us_per_byte).max(0.0);
    }
    if let Some(pace) = pace {
        (costs.cma_us, costs.cma_us_per_byte) = pace;
    }
    Ok(is_found || bytes < LEAST_LONG)
}

/// Bytes of the longest message in a slot.
fn slot_of(communicator: &Communicator) -> usize {
    communicator.plan_context().geometry.slot_bytes.min(LONG_BYTES)
}

/// The constants of a host from what one message takes and what two at once take there.
fn take_host(costs: &mut Costs, nranks: usize, one: Crossing, two: Crossing) {
    // A second message takes what messages take; the first one the call as well.
    let message_us = two.send_us - one.send_us;
    if message_us > 0.0 {
        costs.message_us = message_us.min(one.send_us);
    }
    if nranks <= costs.cores {
        costs.alpha_us = one.half_trip_us.min(SLOWEST_CROSSING);
    } else {
        // Ranks that share cores mostly wait for their turn. These two may have had a core each
        // just then: the others do not.
        costs.switch_us = one.half_trip_us.max(costs.switch_us);
    }
}

/// As [`measure_host`], where there are several, with a rank of another one.
fn measure_wire(
    communicator: &Communicator,
    costs: &mut Costs,
    cancel: CancelCheck,
) -> Result<bool> {
    let opposite = {
        let plan_context = communicator.plan_context();
        if plan_context.topology.nhosts() == 1 {
            return Ok(false);
        }
        plan_context.topology.ranks(1)[0]
    };
    let time = |bytes| {
        let volley = Volley { bytes, messages: 1, at_once: false };
        crossing(communicator, opposite, volley, WIRE_ROUND_TRIPS, cancel)
    };
    let (short, long) = (time(8)?, time(WIRE_SAMPLE_BYTES)?);
    let further = (long.half_trip_us - short.half_trip_us).max(0.0);
    costs.wire_message_us = short.send_us;
    costs.wire_alpha_us = (short.half_trip_us - 2.0 * short.send_us).max(0.0);
    costs.wire_us_per_byte = further / (WIRE_SAMPLE_BYTES - 8) as f64;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::select::Profile;
    use crate::config::Config;

    /// The constants of two ranks, and how many messages rank 0 sent to find them.
    fn started(config: &Config) -> Vec<(Costs, u64)> {
        let ranks = Communicator::init_all(2, config).unwrap();
        let sent = |rank: &Communicator| rank.engine.take().setup_messages;
        ranks.iter().map(|rank| (rank.costs(), sent(rank))).collect()
    }

    /// A tuning file with this text, gone with the test.
    fn with_profile<T>(name: &str, text: &str, work: impl FnOnce(&Config) -> T) -> T {
        let path = std::env::temp_dir().join(format!("profile-{}-{name}", std::process::id()));
        std::fs::write(&path, text).unwrap();
        let profile = Some(path.to_str().unwrap().to_string());
        let outcome = work(&Config { tuning_file: profile, ..Config::default() });
        std::fs::remove_file(&path).unwrap();
        outcome
    }

    #[test]
    fn a_profile_takes_the_place_of_measuring() {
        let costs = Costs { alpha_us: 123.0, switch_us: 45.0, cores: 6, ..Costs::default() };
        let got = with_profile("whole", &costs.to_text(), started);
        assert_eq!(got, vec![(costs.clone(), 0), (costs, 0)]);
        let measured = started(&Config::default());
        assert_eq!(measured[0].0, measured[1].0);
        assert_ne!(measured[0].0.copy_us_per_byte, Costs::default().copy_us_per_byte);
    }

    #[test]
    fn a_process_measures_its_host_once() {
        // On a busy machine it tries again, and so may another test's ranks in between.
        let mut last = started(&Config::default());
        let mut is_settled = || {
            let before = std::mem::replace(&mut last, started(&Config::default()));
            last[0].1 == 0 && last == before
        };
        assert!((0..10).any(|_| is_settled()), "it measures again and again");
        let hosts = Config { hosts: Some(vec![0, 1]), ..Config::default() };
        let apart = started(&hosts);
        assert_eq!(apart[0].0.alpha_us, Costs::default().alpha_us, "nobody to measure with");
        assert_eq!(started(&hosts)[0].1, 0, "the wire is known");
    }

    #[test]
    fn constants_of_a_host_are_what_one_message_and_two_take() {
        let taken = |nranks, [half_trip_us, one, two]: [f64; 3]| {
            let crossing = |send_us| Crossing { half_trip_us, send_us, round_trips: 1 };
            let mut costs = Costs { cores: 2, ..Costs::default() };
            take_host(&mut costs, nranks, crossing(one), crossing(two));
            costs
        };
        let usual = Costs { cores: 2, ..Costs::default() };
        let near = Costs { alpha_us: 0.5, message_us: 0.25, ..usual.clone() };
        assert_eq!(taken(2, [0.5, 0.75, 1.0]), near);
        // A scheduler's delay is no crossing, and a second message takes no longer than a first.
        let delayed = Costs { alpha_us: SLOWEST_CROSSING, message_us: 0.75, ..usual.clone() };
        assert_eq!(taken(2, [90.0, 0.75, 50.0]), delayed);
        // Where the second seems to take nothing, nothing was found.
        let busy = Costs { alpha_us: 0.5, ..usual.clone() };
        assert_eq!(taken(2, [0.5, 0.75, 0.75]), busy);
        let shared = Costs { switch_us: 90.0, message_us: 0.25, ..usual.clone() };
        assert_eq!(taken(3, [90.0, 0.75, 1.0]), shared);
        // They met on two cores, where nobody waits for a turn.
        let lucky = Costs { message_us: 0.25, ..usual };
        assert_eq!(taken(3, [0.3, 0.75, 1.0]), lucky);
    }

    #[test]
    fn a_profile_without_a_wire_leaves_it_to_be_measured() {
        let costs = Costs { alpha_us: 123.0, cores: 2, ..Costs::default() };
        let text = Profile { costs: costs.clone(), knows_wire: false }.to_text();
        let got = with_profile("host", &text, |config| {
            let hosts = Some(vec![0, 1]);
            started(&Config { hosts, ..config.clone() })
        });
        for (theirs, _) in &got {
            assert_eq!((theirs.alpha_us, theirs.message_us), (123.0, costs.message_us));
            assert!(theirs.wire_alpha_us != costs.wire_alpha_us, "{theirs:?}");
        }
        assert_eq!(got[0].0, got[1].0);
    }

    #[test]
    fn a_damaged_profile_fails_every_rank_with_its_line() {
        let error = with_profile("damaged", "alpha_us = 1\nmessage_us = soon\n", |config| {
            let id = &crate::bootstrap::UniqueId::generate().unwrap();
            std::thread::scope(|scope| {
                let join = |rank| move || Communicator::init_rank(2, id, rank, config).err();
                let ranks = [0, 1].map(|rank| scope.spawn(join(rank)));
                ranks.map(|rank| rank.join().unwrap().expect("a damaged profile").to_string())
            })
        });
        for text in error {
            assert!(text.contains("line 2: message_us = \"soon\" is not a number"), "{text}");
        }
    }
}
