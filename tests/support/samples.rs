//! The calls that suites make: every type, operation and count, and samples of them.

use super::case::{Blocks, Case, Prepared};
use super::data::{Data, Random};
use super::threads::on_threads;
use ringcomm::config::Config;
use ringcomm::plan::Collective;
use ringcomm::types::{DataType, ReduceOp};

pub const RANKS: [usize; 6] = [1, 2, 3, 4, 7, 8];

/// Bytes of a slot in most tests here: short, so that short vectors take several slices.
pub const SLOT: usize = 1024;

pub const REDUCING: [Collective; 3] =
    [Collective::AllReduce, Collective::ReduceScatter, Collective::Reduce];

pub const COPYING: [Collective; 5] = [
    Collective::AllGather,
    Collective::Broadcast,
    Collective::AllToAll,
    Collective::Gather,
    Collective::Scatter,
];

pub const WITH_V_FORM: [Collective; 5] = [
    Collective::AllGather,
    Collective::ReduceScatter,
    Collective::AllToAll,
    Collective::Gather,
    Collective::Scatter,
];

pub fn operations() -> impl Iterator<Item = ReduceOp> {
    ReduceOp::ALL.into_iter().chain([ReduceOp::PreMulSum])
}

/// Around the rank count, a prime, and more than two slots of a whole vector or one of a block.
pub fn counts(collective: Collective, nranks: usize, data_type: DataType) -> Vec<usize> {
    let slots = match collective {
        Collective::AllReduce | Collective::Reduce | Collective::Broadcast => 2,
        _ => 1,
    };
    let long = slots * SLOT / data_type.size() + 7;
    let mut counts = vec![0, 1, nranks - 1, nranks, nranks + 1, 61, long];
    counts.sort_unstable();
    counts.dedup();
    counts
}

/// In how many blocks, of which a call gives the length, the longest of a rank's buffers is.
pub fn blocks_of(collective: Collective, nranks: usize) -> usize {
    use Collective::*;
    match collective {
        AllReduce | Broadcast | Reduce | Barrier => 1,
        AllGather | Gather | ReduceScatter | Scatter | AllToAll => nranks,
    }
}

pub fn run_on_threads(nranks: usize, config: &Config, cases: Vec<Case>) -> usize {
    let prepared: Vec<Prepared> = cases.into_iter().map(Prepared::new).collect();
    on_threads(nranks, config, |comm| prepared.iter().for_each(|case| case.run(comm)));
    prepared.len()
}

/// Block lengths of a `v` form: none, some or many elements.
pub fn blocks(collective: Collective, nranks: usize, random: &mut Random) -> Blocks {
    let longest = random.pick(&[1, 5, 40, 700]);
    let mut lengths = || {
        let length = |_| if random.chance(3) { 0 } else { random.below(longest + 1) };
        (0..nranks).map(length).collect()
    };
    match collective {
        Collective::AllToAll => Blocks::Between((0..nranks).map(|_| lengths()).collect()),
        _ => Blocks::Of(lengths()),
    }
}

pub fn v_cases(nranks: usize, rounds: usize, random: &mut Random) -> Vec<Case> {
    let mut cases = Vec::new();
    for collective in WITH_V_FORM {
        for data_type in DataType::ALL {
            for _ in 0..rounds {
                for in_place in [false, true] {
                    // Blocks of different lengths cannot change places.
                    let in_place = in_place && collective != Collective::AllToAll;
                    let blocks = Some(blocks(collective, nranks, random));
                    let ops: Vec<_> = operations().filter(|op| op.supports(data_type)).collect();
                    let (op, root, seed) =
                        (random.pick(&ops), random.below(nranks), random.next() >> 8);
                    let case = Case::new(collective, nranks, 0, data_type);
                    cases.push(Case { blocks, in_place, op, root, seed, ..case });
                }
            }
        }
    }
    cases
}

/// Every collective and type in and out of place, too long for a slot of any test and short enough
/// to be checked; operations and roots in turn.
pub fn long_cases(nranks: usize) -> Vec<Case> {
    let mut cases = Vec::new();
    for collective in REDUCING.into_iter().chain(COPYING) {
        for data_type in DataType::ALL {
            let count = 60_000 / data_type.size() / blocks_of(collective, nranks) + 3;
            let ops: Vec<_> = operations().filter(|op| op.supports(data_type)).collect();
            for in_place in [false, true] {
                let (seed, root) = (cases.len() as u64, cases.len() % nranks);
                let op = ops[cases.len() / 2 % ops.len()];
                let case = Case::new(collective, nranks, count, data_type);
                cases.push(Case { op, in_place, root, seed, ..case });
            }
        }
    }
    cases
}

/// A thin sample of everything, which child processes make for themselves.
pub fn sample(nranks: usize, seed: u64) -> Vec<Case> {
    let mut random = Random(seed);
    let mut cases = v_cases(nranks, 1, &mut random);
    for collective in REDUCING.into_iter().chain(COPYING) {
        for data_type in DataType::ALL {
            let ops: Vec<_> = operations().filter(|op| op.supports(data_type)).collect();
            let mut all = counts(collective, nranks, data_type);
            all.push(40_000 / data_type.size() / nranks + 3);
            for count in all {
                let (op, root) = (random.pick(&ops), random.below(nranks));
                let (in_place, seed) = (random.chance(2), random.next() >> 8);
                let case = Case::new(collective, nranks, count, data_type);
                cases.push(Case { op, in_place, root, seed, ..case });
            }
        }
    }
    cases
}

/// As `sample`, of ranks on these hosts.
pub fn sample_on(hosts: &[usize], seed: u64) -> Vec<Case> {
    let cases = sample(hosts.len(), seed).into_iter();
    cases.map(|case| Case { hosts: in_host_order(hosts), ..case }).collect()
}

/// Every collective and every `v` form once, in an order and with the rest by `seed`; sums are of
/// numbers whose order of reduction shows, which is that of `hosts`.
pub fn mixed(hosts: &[usize], seed: u64) -> Vec<Case> {
    // A header's worth, several short slots, and what takes a slow wire a while.
    mixed_of(hosts, seed, &DataType::ALL, &[3, 1000, 40_000, 300_000], |_| hosts.len())
}

/// As `mixed`, of vectors that also take more than the longest message between hosts, and several.
pub fn mixed_long(hosts: &[usize], seed: u64) -> Vec<Case> {
    // The oracle takes as long as there are elements.
    let types = [DataType::Int64, DataType::Float32, DataType::Float64];
    mixed_of(hosts, seed, &types, &[1000, 1_400_000, 3_000_000], |collective| {
        blocks_of(collective, hosts.len())
    })
}

/// As `mixed`, of such types and of up to a pick of these bytes, divided by a collective's `parts`.
fn mixed_of(
    hosts: &[usize],
    seed: u64,
    types: &[DataType],
    bytes: &[usize],
    parts: impl Fn(Collective) -> usize,
) -> Vec<Case> {
    let (nranks, mut random) = (hosts.len(), Random(seed));
    let mut cases = vec![Case::new(Collective::Barrier, nranks, 0, DataType::Uint8)];
    for collective in WITH_V_FORM {
        let case = Case::new(collective, nranks, 0, random.pick(types));
        let in_place = collective != Collective::AllToAll && random.chance(2);
        cases.push(Case {
            blocks: Some(blocks(collective, nranks, &mut random)),
            in_place,
            ..case
        });
    }
    for collective in REDUCING.into_iter().chain(COPYING) {
        let data_type = random.pick(types);
        let bytes = random.pick(bytes);
        let count = random.below(bytes / data_type.size() / parts(collective) + 2);
        let in_place = random.chance(2);
        cases.push(Case { in_place, ..Case::new(collective, nranks, count, data_type) });
    }
    for case in &mut cases {
        let supported = |op: &ReduceOp| op.supports(case.data_type);
        case.op = random.pick(&operations().filter(supported).collect::<Vec<_>>());
        (case.root, case.seed) = (random.below(nranks), random.next() >> 8);
        (case.data, case.hosts) = (Data::Special, in_host_order(hosts));
    }
    for index in (1..cases.len()).rev() {
        cases.swap(index, random.below(index + 1));
    }
    cases
}

/// Hosts by number in the order of their first ranks; none where all are on one.
fn in_host_order(hosts: &[usize]) -> Vec<usize> {
    let mut known = Vec::new();
    for host in hosts {
        if !known.contains(host) {
            known.push(*host);
        }
    }
    if known.len() == 1 {
        return Vec::new();
    }
    let number = |host| known.iter().position(|other| other == host).expect("known");
    hosts.iter().map(number).collect()
}
