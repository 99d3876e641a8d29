//! Random operations on several communicators at once, against the oracle: fused ones, and ones
//! whose kernels wait for each other, in one launch on the first device and between devices.
//!
//! A seed says the shapes, types, operations and roots, and every rank delays its stream as it
//! likes: with kernels that do nothing for a while, and by coming late. Outputs are poisoned and
//! guarded (`Bench::run`). Between checked calls come runs of calls that nobody waits for.
//! `RINGCOMM_STRESS_OPERATIONS` (some hundreds) and `RINGCOMM_STRESS_SEED` say how much and which.

use super::processes::is_within_reach;
use super::support::samples::{COPYING, REDUCING, operations, v_cases};
use super::support::{Case, Data, Prepared, Random, config, small_slots, threads};
use super::{Bench, ndevices, spread};
use ringcomm::communicator::{Call, Communicator, Order};
use ringcomm::config::{Config, DeviceChoice};
use ringcomm::device::cuda::{DeviceMemory, Kernels, copy, fill};
use ringcomm::plan::Collective;
use ringcomm::types::DataType;
use std::time::{Duration, Instant};

/// Ranks of the communicators that run side by side on the first device, and the algorithm that
/// they are asked for: unasked they are fused.
const TOGETHER: [(usize, Option<&str>); 7] = [
    (2, None),
    (3, None),
    (4, None),
    (8, None),
    (3, Some("oneshot")),
    (4, Some("twoshot")),
    (2, Some("ring")),
];
/// Of those that have a rank on each of several devices. They are few: more might fill a device
/// with kernels whose peers have no room.
const BETWEEN: [Option<&str>; 2] = [None, Some("ring")];
/// Different calls of each of them; more would only take longer to prepare.
const CASES: usize = 400;
/// The longest delay of a stream: some launches long.
const DELAY_NS: usize = 40_000;
/// The most bytes of a run of sums: a few blocks' worth.
const SUMMED: usize = 30_000;

fn number(name: &str, default: usize) -> usize {
    let text = std::env::var(name).ok();
    text.map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name}={text:?}")))
}

/// A communicator of the stress.
struct Member {
    seats: Vec<DeviceChoice>,
    algorithm: Option<&'static str>,
    transport: &'static str,
}

impl Member {
    fn all() -> Vec<Member> {
        let together = TOGETHER.map(|(nranks, algorithm)| Member {
            seats: vec![DeviceChoice::Device(0); nranks],
            algorithm,
            transport: if algorithm.is_some() { "gpu/cooperative" } else { "gpu/fused" },
        });
        let seats = spread(ndevices().min(4));
        let is_between = seats.len() > 1 && is_within_reach(2);
        let between = BETWEEN.into_iter().filter(|_| is_between).map(|algorithm| Member {
            seats: seats.clone(),
            algorithm,
            transport: "gpu/p2p",
        });
        together.into_iter().chain(between).collect()
    }

    fn communicators(&self) -> Vec<Communicator> {
        // Slots that messages of this size come round to.
        let slots = match self.algorithm {
            Some(_) => small_slots(self.seats.len(), 4096),
            None => config(),
        };
        let config = Config { algorithm: self.algorithm.map(Into::into), ..slots };
        let ranks = Communicator::init_all_on(&self.seats, &config).expect("a communicator");
        let answer = ranks[0].explain(&Call { count: 500, ..sum_of_bytes() }).expect("an answer");
        assert_eq!(answer.transport, self.transport, "{:?}", self.algorithm);
        assert!(self.algorithm.is_none_or(|name| name == answer.algorithm), "{answer:?}");
        ranks
    }

    /// Whether sums are added up in the order of the ranks, whatever it is that adds them.
    fn is_serial(&self) -> bool {
        self.algorithm != Some("ring")
    }
}

/// A call of any kind, mostly small. One in a hundred is a `v` form, which goes through the host.
fn case(nranks: usize, random: &mut Random) -> Case {
    if random.chance(100) {
        let all = v_cases(nranks, 1, random);
        return all[random.below(all.len())].clone();
    }
    let all: Vec<Collective> = REDUCING.into_iter().chain(COPYING).collect();
    let (collective, data_type) = (random.pick(&all), random.pick(&DataType::ALL));
    let bytes = random.pick(&[16, 300, 5_000, 5_000, 60_000]);
    let count = random.below(bytes / data_type.size() + 2);
    let supported: Vec<_> = operations().filter(|op| op.supports(data_type)).collect();
    Case {
        op: random.pick(&supported),
        root: random.below(nranks),
        in_place: random.chance(2),
        data: random.pick(&[Data::Exact, Data::Special]),
        seed: random.next() >> 8,
        ..Case::new(collective, nranks, count, data_type)
    }
}

/// What one rank of a communicator does everything with.
struct Stressed<'a> {
    comm: &'a Communicator,
    bench: &'a Bench,
    kernels: &'a Kernels,
    /// For runs of sums.
    memory: DeviceMemory,
    /// Differs from rank to rank.
    own: Random,
}

impl Stressed<'_> {
    fn dally(&mut self) {
        if self.own.chance(6) {
            let _current = self.bench.device.enter().expect("the device");
            let duration_ns = self.own.below(DELAY_NS) as u64;
            // SAFETY: the bench's own stream.
            unsafe { self.kernels.delay(duration_ns, self.bench.stream.raw()) }.expect("a delay");
        }
        if self.own.chance(16) {
            std::thread::sleep(Duration::from_micros(self.own.below(200) as u64));
        }
    }

    /// Sums in place of one byte, again and again, without waiting; then the result.
    fn run_of_sums(&mut self, times: usize, len: usize) {
        let (place, stream) = (self.memory.pointer(), self.bench.stream.raw());
        let device = &self.bench.device.clone();
        // SAFETY: the memory is as long, and lives until the stream is synchronized.
        unsafe { fill(device, place, 1, len, stream) }.expect("a fill");
        for _ in 0..times {
            self.dally();
            let call = Call {
                send: place,
                recv: place,
                count: len,
                order: Order::on(stream),
                ..sum_of_bytes()
            };
            // SAFETY: as above.
            unsafe { self.comm.call(&call) }.expect("a sum");
        }
        let mut got = vec![0u8; len];
        // SAFETY: as above.
        unsafe { copy(device, got.as_mut_ptr(), place, len, stream) }.expect("a copy");
        self.bench.stream.synchronize().expect("the stream");
        let want = (0..times).fold(1u8, |sum, _| sum.wrapping_mul(self.comm.nranks() as u8));
        assert!(got.iter().all(|byte| *byte == want), "after {times} sums of {len} bytes");
    }
}

fn sum_of_bytes() -> Call<'static> {
    Call::new(Collective::AllReduce, DataType::Uint8)
}

/// So many operations on a communicator of its own; all ranks draw the same calls.
fn stress(member: &Member, operations: usize, seed: u64) {
    let nranks = member.seats.len();
    let mut random = Random(seed + nranks as u64);
    let prepared = |random: &mut Random| {
        let case = case(nranks, random);
        let data = if member.is_serial() { case.data } else { Data::Exact };
        Prepared::new(Case { data, ..case })
    };
    let prepared: Vec<Prepared> =
        (0..CASES.min(operations)).map(|_| prepared(&mut random)).collect();
    let ranks = member.communicators();
    let start = random.next();
    threads::run_all(&ranks, |comm| {
        let (bench, mut common) = (Bench::new(comm.device().unwrap_or(0)), Random(start));
        let kernels = Kernels::of(&bench.device).expect("kernels").expect("built with kernels");
        let _current = bench.device.enter().expect("the device");
        let own = Random(start ^ (comm.rank() as u64 + 1) << 40);
        let memory = DeviceMemory::new(&bench.device, SUMMED).expect("memory");
        let mut rank = Stressed { comm, bench: &bench, kernels: &kernels, memory, own };
        let mut done = 0;
        while done < operations {
            if common.chance(8) {
                let (times, len) = (1 + common.below(15), 1 + common.below(SUMMED));
                rank.run_of_sums(times, len);
                done += times;
                continue;
            }
            let case = &prepared[common.below(prepared.len())];
            rank.dally();
            if let Err(text) = case.outcome_on(comm, Some(&bench)) {
                panic!(
                    "seed {seed}, {:?}, operation {done}, rank {}: {:?}: {text}",
                    member.algorithm,
                    comm.rank(),
                    case.case
                );
            }
            done += 1;
        }
    });
}

#[test]
fn random_operations_of_several_communicators_at_once() {
    if ndevices() == 0 {
        return;
    }
    let operations = number("RINGCOMM_STRESS_OPERATIONS", 600);
    let seed = number("RINGCOMM_STRESS_SEED", 1) as u64;
    let begun = Instant::now();
    let members = Member::all();
    let each = operations.div_ceil(members.len());
    std::thread::scope(|scope| {
        let one = |member| scope.spawn(move || stress(member, each, seed));
        let all: Vec<_> = members.iter().map(one).collect();
        all.into_iter().for_each(|one| one.join().expect("every operation is right"));
    });
    let seconds = begun.elapsed().as_secs_f64();
    println!("{{\"stress\": {operations}, \"seed\": {seed}, \"seconds\": {seconds:.1}}}");
}
