//! Measuring what the choice of algorithms rests on, and agreeing on it.
//!
//! The constants are rank 0's, which it measures with one other rank of its host and one of another
//! or reads from a tuning file, and gives to the others when the communicator is made.
#![allow(unsafe_code)]

use crate::algorithm::select::{Costs, Profile};
use crate::communicator::call::rank_state::SETUP_OPERATIONS;
use crate::communicator::health::wait_check::CancelCheck;
use crate::communicator::{Call, Communicator, Message};
use crate::config::Config;
use crate::cycle_counter;
use crate::device::host::{Job, Reduction, copy};
use crate::error::{Error, Result};
use crate::executor::links::Reach;
use crate::fork::Once;
use crate::plan::Collective;
use crate::sync::atomic::{AtomicU32, Ordering::Relaxed};
use crate::transport::{DEPTH, cma};
use crate::types::{DataType, ReduceOp};
use std::time::{Duration, Instant};

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

/// Round trips that a measurement makes at least: the first may have to make the connection.
const LEAST_ROUND_TRIPS: usize = 2;

/// How long a measurement goes on after its first round trip: several times as long as all of them
/// take where both ranks have a core and are on one network. On a machine that is busy with others,
/// or between continents, each takes tens of milliseconds, and all ranks wait.
const MEASURING: Duration = Duration::from_millis(10);

/// Communicators of a process that try to find out what long messages take, where the machine is so
/// busy that none does: their ranks wait for it.
const MOST_TRIES: u32 = 3;

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

/// What rank 0's profile has. The others are told before they meet, as it says what they measure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Profiled {
    /// There is none.
    #[default]
    Nothing = 0,
    /// All but the constants of the wire.
    Host = 1,
    Everything = 2,
}

impl Profiled {
    /// Of this rank's tuning file. One that cannot be read is an error when its constants are
    /// needed.
    pub fn by(config: &Config) -> Profiled {
        let Some(path) = &config.tuning_file else { return Profiled::Nothing };
        match Profile::read(path) {
            Ok(Profile { knows_wire: false, .. }) => Profiled::Host,
            _ => Profiled::Everything,
        }
    }

    /// From what a rank is told.
    pub fn from_word(word: u64) -> Profiled {
        match word {
            0 => Profiled::Nothing,
            1 => Profiled::Host,
            _ => Profiled::Everything,
        }
    }
}

/// Agree on the constants: all ranks of a new communicator call it, and leave it together.
///
/// `profiled` is the same on all ranks.
/// Ended soon with an error once it is called off.
pub fn calibrate(
    communicator: &Communicator,
    profiled: Profiled,
    cores: usize,
    cancel: CancelCheck,
) -> Result<()> {
    if communicator.nranks == 1 {
        communicator.settle_on(Costs { cores, ..Costs::default() });
        // It is through with what others do now.
        communicator.health.pages.mine().end(SETUP_OPERATIONS - 1, cycle_counter::ticks());
        return Ok(());
    }
    let mut costs = Costs { cores, ..Costs::default() };
    if profiled == Profiled::Nothing {
        (costs.copy_us_per_byte, costs.reduce_us_per_byte) = paces();
        measure_host(communicator, &mut costs, cancel)?;
    } else if let (0, Some(path)) = (communicator.rank, &communicator.config.tuning_file) {
        // The others wait for these constants: they fail with the same words.
        costs = Profile::read(path).inspect_err(|error| communicator.publish_failure(error))?.costs;
    }
    if profiled != Profiled::Everything {
        measure_wire(communicator, &mut costs, cancel)?;
    }
    let mut words = costs.to_words();
    let give = Call {
        send: words.as_ptr().cast(),
        recv: words.as_mut_ptr().cast(),
        count: words.len(),
        ..Call::new(Collective::Broadcast, DataType::Float64)
    };
    // SAFETY: both buffers are the words.
    unsafe { communicator.run_unless(&give, cancel)? };
    let mut costs = Costs::from_words(words);
    if !meet(communicator, costs.cma_us_per_byte.is_finite(), cancel)? {
        costs.cma_us_per_byte = f64::INFINITY;
    }
    communicator.settle_on(costs);
    Ok(())
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

/// Measure what takes two ranks of a host: rank 0 with another one, once a process. What the other
/// ranks get is not looked at: rank 0 gives them its own.
fn measure_host(communicator: &Communicator, costs: &mut Costs, cancel: CancelCheck) -> Result<()> {
    let companion = communicator.plan_context().topology.ranks(0).get(1).copied();
    let Some(companion) = companion else { return Ok(()) };
    // By whether the companion is a process of its own.
    static KNOWN: [Once<(Crossing, Crossing)>; 2] = [const { Once::new() }; 2];
    let is_apart = communicator.engine.take().links.reach(companion) != Reach::Process;
    let known = &KNOWN[usize::from(is_apart)];
    // Rank 0 says when each ends, whatever the other one's process has measured.
    let is_known = communicator.rank == 0 && known.get().is_some();
    let time = |messages, round_trips| {
        let round_trips = if is_known { 1 } else { round_trips };
        let volley = Volley { bytes: 8, messages, at_once: false };
        crossing(communicator, companion, volley, round_trips, cancel)
    };
    let measured = (time(1, ROUND_TRIPS)?, time(2, PAIR_ROUND_TRIPS)?);
    let (one, two) = match communicator.rank {
        0 => *known.get_or_make(|| measured),
        _ => measured,
    };
    take_host(costs, communicator.nranks, one, two);
    measure_copies(communicator, companion, costs, one, cancel)
}

/// What a byte takes that goes from core to core, and one that the kernel copies: measured by the
/// first communicator of rank 0's process that has whom to ask.
fn measure_copies(
    communicator: &Communicator,
    companion: usize,
    costs: &mut Costs,
    short: Crossing,
    cancel: CancelCheck,
) -> Result<()> {
    static CROSS: Once<f64> = Once::new();
    static TRIES: AtomicU32 = AtomicU32::new(0);
    static KERNEL: Once<(f64, f64)> = Once::new();
    let trips =
        |volley, round_trips| crossing(communicator, companion, volley, round_trips, cancel);
    let bytes = communicator.plan_context().geometry.slot_bytes.min(LONG_BYTES);
    let messages = (LONG_BYTES / bytes).clamp(1, MOST_LONG);
    let before = (LAPS * DEPTH).div_ceil(messages);
    // Rank 0 says when it ends, whatever the other one's process has measured.
    let is_known = communicator.rank == 0
        && (CROSS.get().is_some() || TRIES.fetch_add(1, Relaxed) >= MOST_TRIES);
    let exchanges = if is_known { 1 } else { before + LONG_EXCHANGES };
    let long = trips(Volley { bytes, messages, at_once: true }, exchanges)?;
    let turn = Volley { bytes: 8, messages: 1, at_once: false };
    let page = communicator.health.pages.of(companion);
    let mut pace = KERNEL.get().copied();
    // The first time the kernel has not had these pages in its own hands.
    for _ in 0..2 {
        if communicator.rank == companion {
            cma::refresh();
        }
        trips(turn, 1)?;
        if communicator.rank == 0 && KERNEL.get().is_none() {
            let process = communicator.health.processes[companion];
            pace = process.and_then(|process| page.sample().measure(process));
        }
        trips(turn, 1)?;
    }
    if communicator.rank == 0 {
        let slot = (long.half_trip_us - short.half_trip_us) / (messages * bytes) as f64;
        let cross = (slot / 2.0 - costs.copy_us_per_byte).max(0.0);
        let is_one = long.round_trips > before && bytes >= LEAST_LONG;
        let measured = CROSS.get().or_else(|| is_one.then(|| CROSS.get_or_make(|| cross)));
        costs.cross_us_per_byte = measured.copied().unwrap_or(costs.cross_us_per_byte);
        if let Some(pace) = pace {
            (costs.cma_us, costs.cma_us_per_byte) = *KERNEL.get_or_make(|| pace);
        }
    }
    Ok(())
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
fn measure_wire(communicator: &Communicator, costs: &mut Costs, cancel: CancelCheck) -> Result<()> {
    let opposite = {
        let plan_context = communicator.plan_context();
        if plan_context.topology.nhosts() == 1 {
            return Ok(());
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
    Ok(())
}

/// Messages that are sent together, and their length.
#[derive(Clone, Copy)]
struct Volley {
    bytes: usize,
    messages: usize,
    /// The other rank sends as many at the same time, not in answer.
    at_once: bool,
}

/// The best of some round trips, as rank 0 sees them.
#[derive(Clone, Copy)]
struct Crossing {
    /// Half the round trip, or an exchange.
    half_trip_us: f64,
    /// The sender's own part.
    send_us: f64,
    round_trips: usize,
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
fn crossing(
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

    /// The constants of two ranks, and whether they exchanged messages to find them.
    fn started(config: &Config) -> Vec<(Costs, bool)> {
        let ranks = Communicator::init_all(2, config).unwrap();
        // On a busy machine fewer than all.
        let long = LAPS * DEPTH + MOST_LONG * (LONG_EXCHANGES + 1);
        let most = ROUND_TRIPS + 2 * PAIR_ROUND_TRIPS + long + 4;
        let all = 3 * LEAST_ROUND_TRIPS as u64..=most as u64;
        let timed = |rank: &Communicator| all.contains(&rank.engine.take().setup_messages);
        ranks.iter().map(|rank| (rank.costs(), timed(rank))).collect()
    }

    #[test]
    fn a_measurement_ends_soon_where_round_trips_take_long() {
        let trips = |each: Duration| {
            let is_last = |many: &usize| ends_after(*many, ROUND_TRIPS, each * *many as u32);
            (0..).find(is_last).unwrap() + 1
        };
        assert_eq!(trips(Duration::from_micros(1)), ROUND_TRIPS);
        assert_eq!(trips(MEASURING / 4), 5);
        assert_eq!(trips(Duration::from_secs(1)), LEAST_ROUND_TRIPS);
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
        assert_eq!(got, vec![(costs.clone(), false), (costs, false)]);
        let measured = started(&Config::default());
        assert!(measured.iter().all(|(_, timed)| *timed));
        assert_eq!(measured[0].0, measured[1].0);
        assert_ne!(measured[0].0.copy_us_per_byte, Costs::default().copy_us_per_byte);
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
