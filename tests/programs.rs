//! Random programs: any sequence of collectives, batches, groups and splits that ranks can agree on
//! gives what the oracle says, on threads, processes and hosts, and the same bytes every time.
//!
//! A program is a list of numbers. All ranks expand a number into the same step, from what they all
//! know: which communicators there are and who is in them. All buffers of a program are in ordinary
//! memory, or all in exported memory.

mod support;

use proptest::prelude::*;
use proptest::test_runner::{FileFailurePersistence, TestCaseError, TestRunner};
use ringcomm::communicator::{Communicator, Order, OrderedMessage, enqueue};
use ringcomm::config::Config;
use ringcomm::plan::Collective;
use ringcomm::types::{DataType, ReduceOp};
use std::fmt::Write;
use std::ops::RangeInclusive;
use std::sync::Arc;
use support::case::Blocks;
use support::{
    Case, Data, Memory, Prepared, Random, config, exchange, on_hosts, on_joined_threads,
    on_processes, on_threads, small_slots,
};

#[derive(Clone, Debug)]
struct Program {
    nranks: usize,
    slot: usize,
    deterministic: bool,
    memory: Memory,
    steps: Vec<u64>,
}

impl Program {
    fn config(&self) -> Config {
        let slots = match self.slot {
            0 => config(),
            bytes => small_slots(self.nranks, bytes),
        };
        Config { deterministic: self.deterministic, ..slots }
    }

    /// A form that travels in an environment variable.
    fn text(&self) -> String {
        let mut text = format!("{} {}", self.nranks, u8::from(self.deterministic));
        text += if self.memory == Memory::Exported { " exported" } else { " ordinary" };
        for step in &self.steps {
            let _ = write!(text, " {step:x}");
        }
        text
    }

    fn read(text: &str) -> Program {
        let words: Vec<&str> = text.split(' ').collect();
        Program {
            nranks: words[0].parse().unwrap(),
            slot: 0,
            deterministic: words[1] == "1",
            memory: if words[2] == "exported" { Memory::Exported } else { Memory::Ordinary },
            steps: words[3..].iter().map(|step| u64::from_str_radix(step, 16).unwrap()).collect(),
        }
    }
}

/// The communicators of one split: disjoint groups of first ranks, in the order of their new ranks.
struct Family<'a> {
    groups: Vec<Vec<usize>>,
    mine: Option<Handle<'a>>,
}

enum Handle<'a> {
    First(&'a Communicator),
    Split(Arc<Communicator>),
}

impl Handle<'_> {
    fn get(&self) -> &Communicator {
        match self {
            Handle::First(comm) => comm,
            Handle::Split(comm) => comm,
        }
    }
}

/// Splits a program may make; each costs a rendezvous.
const MOST_SPLITS: usize = 3;

/// FNV-1a over all that a rank receives.
struct Digest(u64);

impl Digest {
    fn add(&mut self, bytes: &[u8]) {
        let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
        self.0 = bytes.iter().fold(self.0, step);
    }
}

/// Run this rank's part; a digest of all that it received.
fn run(program: &Program, comm: &Communicator) -> u64 {
    let everybody = (0..comm.nranks()).collect();
    let mut families = vec![Family { groups: vec![everybody], mine: Some(Handle::First(comm)) }];
    let mut digest = Digest(0xcbf2_9ce4_8422_2325);
    for step in &program.steps {
        let mut random = Random(*step);
        let index = random.below(families.len());
        let kind = random.below(12);
        // A group needs a communicator that can be shared, which those of splits are.
        let wants_split = kind == 0 || (kind >= 10 && families.len() == 1);
        if wants_split && families.len() <= MOST_SPLITS {
            let child = split(&families[index], comm.rank(), &mut random);
            families.push(child);
            continue;
        }
        if kind >= 10 {
            run_group(program, &families[1..], &mut random, &mut digest);
            continue;
        }
        let family = &families[index];
        let Some(mine) = family.mine.as_ref().map(Handle::get) else { continue };
        let group = family.groups.iter().find(|group| group.contains(&comm.rank())).unwrap();
        assert_eq!(group[mine.rank()], comm.rank());
        if kind < 3 {
            let batch = exchange::batch(mine.nranks(), &mut random);
            let place = (mine.rank(), mine.nranks());
            let mut begun = exchange::Begun::new(place, &batch, program.memory, &mut random);
            // SAFETY: every buffer holds its message.
            unsafe { mine.exchange(&begun.messages()) }.unwrap();
            begun.check();
        } else {
            let case = collective(mine.nranks(), program.deterministic, &mut random);
            let shown = format!("rank {} of {group:?}: {case:?}", mine.rank());
            let prepared = Prepared::of(case, mine.rank()).within(program.memory);
            let bytes = prepared.outcome(mine);
            digest.add(&bytes.unwrap_or_else(|text| panic!("{shown}: {text}")));
        }
    }
    digest.0
}

/// Some collectives and messages on one or two communicators, as between `ringGroupStart` and
/// `ringGroupEnd`. A rank makes those of the communicators that it is in.
fn run_group(program: &Program, families: &[Family], random: &mut Random, digest: &mut Digest) {
    let pair = [random.below(families.len()), random.below(families.len())];
    let (mut collectives, mut batches) = (Vec::new(), Vec::new());
    for _ in 0..1 + random.below(5) {
        // Every call expands by itself: ranks that are in one communicator alone must agree.
        let (family, sends) = (&families[random.pick(&pair)], random.chance(3));
        let mut random = Random(random.next());
        let Some(Handle::Split(comm)) = &family.mine else { continue };
        if sends {
            let batch = exchange::batch(comm.nranks(), &mut random);
            let place = (comm.rank(), comm.nranks());
            let begun = exchange::Begun::new(place, &batch, program.memory, &mut random);
            batches.push((collectives.len(), comm, begun));
        } else {
            let case = collective(comm.nranks(), program.deterministic, &mut random);
            collectives.push((comm, Prepared::of(case, comm.rank()).within(program.memory)));
        }
    }
    let begin = collectives.iter().map(|(comm, prepared)| prepared.begin(comm.rank()));
    let mut begun: Vec<_> = begin.collect();
    enqueue::start();
    for at in 0..=collectives.len() {
        for (_, comm, batch) in batches.iter_mut().filter(|(before, ..)| *before == at) {
            for message in batch.messages() {
                let posted = OrderedMessage { message, order: Order::default() };
                // SAFETY: every buffer holds its message, until the group has ended.
                unsafe { enqueue::message(comm, posted, None) }.unwrap();
            }
        }
        if let (Some((comm, _)), Some(begun)) = (collectives.get(at), begun.get_mut(at)) {
            // SAFETY: the buffers have the sizes that the collective defines, until the end.
            unsafe { enqueue::collective(comm, &begun.call(), None) }.unwrap();
        }
    }
    enqueue::end().unwrap();
    for ((comm, prepared), begun) in collectives.iter().zip(begun) {
        let bytes = begun.finish();
        let shown = || format!("in a group, rank {}: {:?}", comm.rank(), prepared.case);
        digest.add(&bytes.unwrap_or_else(|text| panic!("{}: {text}", shown())));
    }
    batches.iter().for_each(|(.., batch)| batch.check());
}

/// Split every group of a family by random colors and keys.
fn split<'a>(family: &Family, me: usize, random: &mut Random) -> Family<'a> {
    let mut groups = Vec::new();
    let mut mine = None;
    for group in &family.groups {
        let asks: Vec<(i32, i32)> = group
            .iter()
            .map(|_| (random.below(3) as i32 - i32::from(random.chance(4)), random.below(4) as i32))
            .collect();
        for color in 0..3 {
            let mut members: Vec<(i32, usize)> = (0..group.len())
                .filter(|at| asks[*at].0 == color)
                .map(|at| (asks[at].1, at))
                .collect();
            members.sort_unstable();
            if !members.is_empty() {
                groups.push(members.into_iter().map(|(_, at)| group[at]).collect());
            }
        }
        if let (Some(at), Some(parent)) = (group.iter().position(|rank| *rank == me), &family.mine)
        {
            let (color, key) = asks[at];
            mine = parent
                .get()
                .split(color, key, None)
                .unwrap()
                .map(|comm| Handle::Split(Arc::new(comm)));
        }
    }
    Family { groups, mine }
}

fn collective(nranks: usize, deterministic: bool, random: &mut Random) -> Case {
    use Collective::*;
    let collective = random.pick(&Collective::ALL);
    let data_type = random.pick(&DataType::ALL);
    let ops = ReduceOp::ALL.into_iter().chain([ReduceOp::PreMulSum]);
    let ops: Vec<_> = ops.filter(|op| op.supports(data_type)).collect();
    let longest = random.pick(&[1, 3, 17, 100, 1000, 3000]);
    let in_place = random.chance(2);
    let has_v = matches!(collective, AllGather | ReduceScatter | AllToAll | Gather | Scatter);
    let v_form = has_v && random.chance(2);
    // Blocks of different lengths cannot change places.
    let in_place = in_place && !(v_form && collective == AllToAll);
    let mut lengths = || (0..nranks).map(|_| random.below(longest + 1)).collect();
    let blocks = v_form.then(|| match collective {
        AllToAll => Blocks::Between((0..nranks).map(|_| lengths()).collect()),
        _ => Blocks::Of(lengths()),
    });
    Case {
        op: random.pick(&ops),
        root: random.below(nranks),
        in_place,
        blocks,
        data: if deterministic { Data::Special } else { Data::Exact },
        seed: random.next() >> 8,
        ..Case::new(collective, nranks, random.below(longest + 1), data_type)
    }
}

fn programs(nranks: RangeInclusive<usize>) -> impl Strategy<Value = Program> {
    let steps = prop::collection::vec(any::<u64>(), 1..40);
    let slot = prop::sample::select(vec![0, 64, 256, 1024, 4096]);
    let memory = prop::sample::select(vec![Memory::Ordinary, Memory::Exported]);
    (nranks, slot, any::<bool>(), memory, steps).prop_map(
        |(nranks, slot, deterministic, memory, steps)| Program {
            nranks,
            slot,
            deterministic,
            memory,
            steps,
        },
    )
}

/// Check a property of `cases` random programs; a failing one is written to a file beside this one
/// and is tried first from then on.
fn check(cases: u32, nranks: RangeInclusive<usize>, property: impl Fn(Program)) {
    let config = ProptestConfig {
        cases,
        max_shrink_iters: 60,
        source_file: Some(file!()),
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))),
        ..ProptestConfig::default()
    };
    let outcome = TestRunner::new(config).run(&programs(nranks), |program| {
        let property = std::panic::AssertUnwindSafe(|| property(program));
        std::panic::catch_unwind(property).map_err(|panic| {
            let text = panic.downcast_ref::<String>().cloned();
            TestCaseError::fail(text.unwrap_or_else(|| "a panic without a text".into()))
        })
    });
    if let Err(error) = outcome {
        panic!("{error}");
    }
}

#[test]
fn random_programs_between_threads_do_what_the_oracle_says() {
    check(150, 1..=8, |program| {
        on_threads(program.nranks, &program.config(), |comm| run(&program, comm));
    });
}

#[test]
fn the_same_program_gives_the_same_bytes_twice_and_however_its_ranks_met() {
    check(30, 1..=5, |program| {
        let config = program.config();
        let first = on_threads(program.nranks, &config, |comm| run(&program, comm));
        let second = on_threads(program.nranks, &config, |comm| run(&program, comm));
        let joined = on_joined_threads(program.nranks, &config, |comm| run(&program, comm));
        assert_eq!(first, second, "from run to run");
        assert_eq!(first, joined, "made at once, and one by one");
    });
}

#[test]
fn random_programs_between_processes_do_what_threads_do() {
    let property = |program: Program| {
        let (nranks, config) = (program.nranks, program.config());
        let digests = on_processes(nranks, &config, &program.text(), |comm, text| {
            format!("{:x}", run(&Program::read(text), comm))
        });
        let threads = on_threads(nranks, &config, |comm| format!("{:x}", run(&program, comm)));
        assert_eq!(digests, threads);
    };
    if support::processes::is_child() {
        // A child finds its program in its environment; any will do to reach the call.
        let memory = Memory::Ordinary;
        let steps = vec![];
        return property(Program { nranks: 1, slot: 0, deterministic: false, memory, steps });
    }
    check(20, 1..=5, property);
}

#[test]
fn random_programs_between_hosts_do_what_threads_do() {
    check(20, 2..=3, |program| {
        // Each alone, or two of three together.
        let hosts: &[usize] = if program.nranks == 2 { &[0, 1] } else { &[0, 0, 1] };
        // Ranks of fake hosts do not know that they share the cores.
        let config = Config { spins: Some(4), ..program.config() };
        let apart = on_hosts(hosts, &config, |comm| run(&program, comm));
        let threads = on_threads(program.nranks, &config, |comm| run(&program, comm));
        assert_eq!(apart, threads);
    });
}
