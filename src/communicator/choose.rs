//! Choosing an algorithm for a call, and measuring what the choice rests on.
//!
//! All ranks ask the same question of the same constants: rank 0's, which it measures or reads from
//! a profile and gives to the others when the communicator is made.
#![allow(unsafe_code)]

use super::engine::Engine;
use super::{Call, Communicator, Message};
use crate::algorithm::select::{Choice, Costs, Question, choose as fastest, predict};
use crate::algorithm::{self, Algorithm};
use crate::config::Config;
use crate::device::host::{Job, Reduction, copy};
use crate::error::{Error, Result};
use crate::plan::Collective;
use crate::types::{DataType, ReduceOp};
use std::sync::OnceLock;
use std::time::Instant;

/// How a call runs: through slots, and directly where all ranks' buffers turn out to be reachable.
pub struct Chosen {
    pub staged: Choice,
    pub direct: Option<Choice>,
}

pub fn choose(engine: &Engine, call: &Call, config: &Config) -> Result<Chosen> {
    let nranks = engine.links.nranks;
    let forced = match &config.algorithm {
        // Before the constants are agreed, nothing that a rank knows by itself may decide.
        _ if engine.setting_up => Some(Algorithm::OneShot),
        Some(name) => Some(Algorithm::from_name(name)?),
        None => None,
    };
    let forced = forced
        .filter(|forced| algorithm::plan(*forced, call.collective, 0, nranks, call.root).is_some());
    let question = Question {
        collective: call.collective,
        nranks,
        bytes: whole_bytes(call, nranks),
        associative: !call.collective.reduces() || call.op.is_associative(call.data_type),
        deterministic: config.deterministic,
        direct: false,
        // Ranks may differ in this, so it must not change their choice.
        in_place: false,
        slot_bytes: engine.links.geometry.slot_bytes,
        forced,
    };
    let costs = &engine.costs;
    if engine.setting_up {
        return Ok(Chosen { staged: fastest(&question, costs), direct: None });
    }
    if engine.links.one_process() {
        // Which of the two is faster is known: the buffers are reachable.
        let best = fastest(&Question { direct: true, ..question }, costs);
        return Ok(Chosen { staged: best, direct: best.direct.then_some(best) });
    }
    let staged = fastest(&question, costs);
    let direct = fastest(&Question { direct: true, ..question }, costs);
    // Asking everybody where their buffers are costs a message each way.
    let asking = costs.alpha_us + 2.0 * costs.message_us * nranks as f64;
    let worth = direct.direct && direct.predicted_us + asking < staged.predicted_us;
    Ok(Chosen { staged, direct: worth.then_some(direct) })
}

/// Bytes of the whole vector; of the blocks of all ranks where there are blocks.
fn whole_bytes(call: &Call, nranks: usize) -> usize {
    use Collective::*;
    let elements = match (call.collective, call.vector) {
        (Barrier, _) => 0,
        (AllReduce | Broadcast | Reduce, _) => call.count,
        (AllGather | ReduceScatter, Some(vector)) => vector.recv_counts.iter().sum(),
        _ => call.count.saturating_mul(nranks),
    };
    elements.saturating_mul(call.data_type.size())
}

/// The modelled time of one algorithm for a call, for explanations.
pub fn predicted(engine: &Engine, call: &Call, algorithm: Algorithm) -> Option<f64> {
    let question = Question {
        collective: call.collective,
        nranks: engine.links.nranks,
        bytes: whole_bytes(call, engine.links.nranks),
        associative: true,
        deterministic: false,
        direct: false,
        in_place: false,
        slot_bytes: engine.links.geometry.slot_bytes,
        forced: None,
    };
    predict(algorithm, false, &question, &engine.costs)
}

/// Bytes of the blocks that are copied and added to find the machine's pace: in the second-level
/// cache, as slots are.
const SAMPLE_BYTES: usize = 256 << 10;

/// Repetitions; the fastest counts, because the machine may be busy.
const SAMPLES: usize = 8;

/// Round trips between ranks 0 and 1: enough for a minimum, about 20 us with near cores.
const ROUND_TRIPS: usize = 64;

/// Microseconds: a cache line crosses between the sockets of a large machine in about half of that.
/// What took longer was the scheduler, which delays every algorithm alike.
const SLOWEST_CROSSING: f64 = 1.0;

/// Copy and reduction pace of this machine, measured once a process: well under a millisecond.
fn paces() -> (f64, f64) {
    static PACES: OnceLock<(f64, f64)> = OnceLock::new();
    *PACES.get_or_init(|| {
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
/// `profiled` says that rank 0 has a profile; it is the same on all ranks.
pub fn calibrate(communicator: &Communicator, profiled: bool, cores: usize) -> Result<()> {
    if communicator.nranks == 1 {
        communicator.engine.take().settle(Costs { cores, ..Costs::default() });
        return Ok(());
    }
    let mut costs = Costs { cores, ..Costs::default() };
    if !profiled {
        (costs.copy_us_per_byte, costs.reduce_us_per_byte) = paces();
        let crossing = crossing(communicator)?;
        if communicator.nranks <= costs.cores {
            costs.alpha_us = crossing.min(SLOWEST_CROSSING);
        } else {
            // Ranks that share cores mostly wait for their turn.
            costs.switch_us = crossing.max(costs.alpha_us);
        }
    } else if let (0, Some(path)) = (communicator.rank, &communicator.config.profile) {
        // The others wait for these constants: they fail with the same words.
        costs = Costs::read(path).inspect_err(|error| communicator.tell(error))?;
    }
    let mut words = [
        costs.alpha_us,
        costs.message_us,
        costs.copy_us_per_byte,
        costs.reduce_us_per_byte,
        costs.switch_us,
        costs.cores as f64,
    ];
    let give = Call {
        send: words.as_ptr().cast(),
        recv: words.as_mut_ptr().cast(),
        count: words.len(),
        ..Call::new(Collective::Broadcast, DataType::Float64)
    };
    // SAFETY: both buffers are the words; a barrier has none.
    unsafe {
        communicator.run(&give)?;
        communicator.run(&Call::new(Collective::Barrier, DataType::Uint8))?;
    }
    let [alpha_us, message_us, copy_us_per_byte, reduce_us_per_byte, switch_us, cores] = words;
    let cores = cores as usize;
    let costs =
        Costs { alpha_us, message_us, copy_us_per_byte, reduce_us_per_byte, switch_us, cores };
    communicator.engine.take().settle(costs);
    Ok(())
}

/// Time for a message to cross between ranks 0 and 1, in microseconds: half the best round trip.
fn crossing(communicator: &Communicator) -> Result<f64> {
    let rank = communicator.rank;
    let mut best = f64::MAX;
    if rank < 2 {
        let (ping, mut pong) = ([0u8; 8], [0u8; 8]);
        let (data_type, peer, count) = (DataType::Uint8, 1 - rank, 8);
        let send = Message::Send { buffer: ping.as_ptr(), count, data_type, peer };
        let recv = Message::Recv { buffer: pong.as_mut_ptr(), count, data_type, peer };
        for _ in 0..ROUND_TRIPS {
            let started = Instant::now();
            let order = if rank == 0 { [send, recv] } else { [recv, send] };
            // SAFETY: both buffers hold eight bytes.
            unsafe {
                communicator.exchange(&order[..1])?;
                communicator.exchange(&order[1..])?;
            }
            best = best.min(started.elapsed().as_secs_f64() * 1e6 / 2.0);
        }
    }
    match best.is_finite() {
        true => Ok(best),
        false => Err(Error::Internal("no round trip was timed".into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The constants of two ranks, and whether they exchanged messages to find them.
    fn started(config: &Config) -> Vec<(Costs, bool)> {
        let ranks = Communicator::init_all(2, config).unwrap();
        let last = 2 * ROUND_TRIPS as u64 - 1;
        let timed = |rank: &Communicator| rank.watched.pages.mine().batch(last).is_some();
        ranks.iter().map(|rank| (rank.costs(), timed(rank))).collect()
    }

    /// A profile with this text, gone with the test.
    fn with_profile<T>(name: &str, text: &str, work: impl FnOnce(&Config) -> T) -> T {
        let path = std::env::temp_dir().join(format!("profile-{}-{name}", std::process::id()));
        std::fs::write(&path, text).unwrap();
        let profile = Some(path.to_str().unwrap().to_string());
        let outcome = work(&Config { profile, ..Config::default() });
        std::fs::remove_file(&path).unwrap();
        outcome
    }

    #[test]
    fn a_profile_takes_the_place_of_measuring() {
        let costs = Costs { alpha_us: 123.0, switch_us: 45.0, cores: 6, ..Costs::default() };
        let got = with_profile("whole", &costs.to_text(), started);
        assert_eq!(got, vec![(costs.clone(), false), (costs, false)]);
        assert!(started(&Config::default()).iter().all(|(_, timed)| *timed));
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
