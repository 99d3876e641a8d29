//! Same input, same bits: one plan gives identical bytes whatever carries its messages.

mod support;

use ringcomm::algorithm::Algorithm;
use ringcomm::communicator::{Call, Communicator};
use ringcomm::config::Config;
use ringcomm::plan::Collective;
use ringcomm::transport::core_distance;
use ringcomm::types::{DataType, ReduceOp};
use std::fmt::Write;
use support::oracle::{Rule, reduce};
use support::{Data, Guarded, Memory, config, data, on_joined_threads, on_processes, on_threads};

const FLOATS: [DataType; 6] = [
    DataType::Float8e4m3,
    DataType::Float8e5m2,
    DataType::Float16,
    DataType::Bfloat16,
    DataType::Float32,
    DataType::Float64,
];

const OPS: [ReduceOp; 5] =
    [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Max, ReduceOp::Min, ReduceOp::Avg];

const COLLECTIVES: [Collective; 3] =
    [Collective::AllReduce, Collective::ReduceScatter, Collective::Reduce];

/// One reduction with data that shows the order; what the rank received, as a number.
fn digest(comm: &Communicator, call: &Call, memory: Memory) -> u64 {
    let (rank, nranks, size) = (comm.rank(), comm.nranks(), call.data_type.size());
    let total = match call.collective {
        Collective::ReduceScatter => call.count * nranks,
        _ => call.count,
    };
    let receives = call.collective != Collective::Reduce || rank == call.root;
    let mut input = Guarded::of(memory, total * size, 4);
    let mut output = Guarded::of(memory, if receives { call.count * size } else { size }, 4);
    for (index, bytes) in input.content_mut().chunks_exact_mut(size).enumerate() {
        bytes.copy_from_slice(&element(call.data_type, rank, index).to_le_bytes()[..size]);
    }
    output.content_mut().fill(0);
    let call = Call { send: input.pointer().cast_const(), recv: output.pointer(), ..call.clone() };
    // SAFETY: the buffers have the sizes that the collective defines.
    unsafe { comm.run(&call) }.unwrap_or_else(|error| panic!("rank {rank}: {error}"));
    fnv(output.content())
}

fn element(data_type: DataType, rank: usize, index: usize) -> u64 {
    data::element(Data::Special, data_type, ReduceOp::Sum, 77, rank, index)
}

/// FNV-1a.
fn fnv(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
    })
}

/// Every collective, type and operation at a short and a long count: a line a call.
fn digests(comm: &Communicator, memory: Memory) -> String {
    let mut lines = String::new();
    for collective in COLLECTIVES {
        for data_type in FLOATS {
            for op in OPS {
                for count in [37, 40_000 / data_type.size()] {
                    let call = Call {
                        op,
                        count,
                        root: comm.nranks() - 1,
                        ..Call::new(collective, data_type)
                    };
                    let hash = digest(comm, &call, memory);
                    let name = collective.name();
                    let _ = writeln!(lines, "{name} {data_type} {op} {count}: {hash:016x}");
                }
            }
        }
    }
    lines
}

/// A sum that is worth asking the peers of other processes where their buffers are.
fn long_sum() -> Call<'static> {
    Call { count: 1 << 18, ..Call::new(Collective::AllReduce, DataType::Float32) }
}

/// How a long sum travels, wherever its buffers lie.
fn transport(comm: &Communicator) -> &'static str {
    // Far apart and never read: nothing is moved to explain a call.
    let (send, recv) =
        (std::ptr::without_provenance(1 << 20), std::ptr::without_provenance_mut(1 << 40));
    comm.explain(&Call { send, recv, ..long_sum() }).unwrap().transport
}

fn forced(algorithm: Algorithm) -> Config {
    Config { algorithm: Some(algorithm.name().into()), ..config() }
}

fn compare(what: &str, got: &[String], want: &[String]) {
    for (rank, (got, want)) in got.iter().zip(want).enumerate() {
        for (got, want) in got.lines().zip(want.lines()) {
            assert_eq!(got, want, "{what}, rank {rank}");
        }
        assert_eq!(got.lines().count(), want.lines().count());
    }
}

/// Algorithms of which threads run each step in each other's memory, without messages.
const DIRECT: [Algorithm; 2] = [Algorithm::OneShot, Algorithm::TwoShot];

/// Algorithms whose plan the interpreter runs through slots, between threads too.
const STAGED: [Algorithm; 4] =
    [Algorithm::Ring, Algorithm::Halving, Algorithm::DoubleTree, Algorithm::Chain];

/// Under every kind of reduction order; an algorithm that does not know a collective is not forced.
#[test]
fn threads_and_processes_with_both_kinds_of_memory_give_the_same_bytes() {
    let children = |config: &Config, nranks: usize, way: &str| {
        on_processes(nranks, config, way, |comm, way| {
            let memory = if way == "exported" { Memory::Exported } else { Memory::Ordinary };
            // Peers map what is exported, where a plan can be direct, and scratch.
            let before = mapped_files();
            digest(comm, &long_sum(), memory);
            let mapped = mapped_files() > before;
            let (says, in_windows) = (transport(comm), way == "windows");
            let can_be_direct = says.starts_with("shm/direct") && way == "exported";
            assert_eq!(mapped, in_windows || can_be_direct, "{way}: {says}");
            assert!(way == "exported" || says.ends_with("two-shot") == in_windows, "{way}: {says}");
            digests(comm, memory)
        })
    };
    if support::processes::is_child() {
        children(&config(), 1, "");
    }
    for algorithm in DIRECT.into_iter().chain(STAGED) {
        let way = if DIRECT.contains(&algorithm) { "threads/direct" } else { "threads/slots" };
        for nranks in [2, 3] {
            let config = forced(algorithm);
            let threads = on_threads(nranks, &config, |comm| {
                // Of one-shot it says that it is staged in place.
                assert!(transport(comm).starts_with(way), "{algorithm}: {}", transport(comm));
                digests(comm, Memory::Ordinary)
            });
            let joined = on_joined_threads(nranks, &config, |comm| digests(comm, Memory::Exported));
            compare(&format!("{algorithm} joined"), &joined, &threads);
            // Slots of another size cut the same plan into other slices.
            let slots = Config { buff_size: Some(nranks * 3000), ..config.clone() };
            let sliced = on_threads(nranks, &slots, |comm| digests(comm, Memory::Ordinary));
            compare(&format!("{algorithm} in short slices"), &sliced, &threads);
            let short = |costs: Config| Config { tuning_file: costs.tuning_file, ..slots.clone() };
            let staged = children(&short(support::staged(nranks)), nranks, "staged");
            compare(&format!("{algorithm} staged"), &staged, &threads);
            if algorithm == Algorithm::TwoShot {
                let windows = children(&short(support::windowed(nranks)), nranks, "windows");
                compare(&format!("{algorithm} in short windows"), &windows, &threads);
            }
            let mapped = children(&config, nranks, "exported");
            compare(&format!("{algorithm} mapped"), &mapped, &threads);
        }
    }
}

/// A peer's distance decides how its slots and its memory are written, not what is in them.
#[test]
fn far_peers_get_the_same_bytes() {
    for algorithm in DIRECT.into_iter().chain(STAGED) {
        let way = if DIRECT.contains(&algorithm) { "threads/direct" } else { "threads/slots" };
        for nranks in [2, 3, 4] {
            let run = |far| {
                core_distance::assume_far(far);
                on_threads(nranks, &forced(algorithm), |comm| {
                    assert!(transport(comm).starts_with(way), "{algorithm}");
                    digests(comm, Memory::Ordinary)
                })
            };
            let what = format!("{algorithm} far, {nranks} ranks");
            compare(&what, &run(true), &run(false));
        }
    }
}

#[test]
fn exported_memory_is_mapped_and_ordinary_memory_goes_through_scratch() {
    let config =
        Config { tuning_file: support::windowed(2).tuning_file, ..forced(Algorithm::TwoShot) };
    on_processes(2, &config, "", |comm, _| {
        let count = 1 << 18;
        let mut buffers = [Memory::Exported, Memory::Exported, Memory::Ordinary, Memory::Ordinary]
            .map(|memory| Guarded::of(memory, count * 4, 4));
        let [a, b, c, d] = &mut buffers;
        a.content_mut().fill(0);
        c.content_mut().fill(0);
        let call = |send: &mut Guarded, recv: &mut Guarded| Call {
            send: send.pointer().cast_const(),
            recv: recv.pointer(),
            count,
            ..Call::new(Collective::AllReduce, DataType::Float32)
        };
        let explained = comm.explain(&call(a, b)).unwrap();
        assert_eq!(explained.transport, "shm/direct or shm/two-shot");
        assert_eq!(explained.mapped.expect("both are told").algorithm, "twoshot");
        let before = mapped_files();
        // SAFETY: all buffers hold `count` elements.
        unsafe {
            comm.run(&call(c, d)).unwrap();
            assert_eq!(mapped_files(), before + 2, "this rank's scratch and the peer's are");
            comm.run(&call(a, b)).unwrap();
        }
        assert!(mapped_files() > before + 2, "the peer's exported memory is mapped");
        String::new()
    });
}

fn mapped_files() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().filter(|line| line.contains("memfd:")).count()
}

#[test]
fn eight_ranks_in_serial_order_equal_the_serial_loop() {
    let count = 3001;
    for data_type in FLOATS {
        let expected: Vec<u64> = OPS
            .iter()
            .map(|op| {
                let parts = (*op == ReduceOp::Avg).then_some(8.0);
                let rule = Rule { data_type, op: *op, parts, scaled: None };
                let bytes: Vec<u8> = (0..count)
                    .flat_map(|index| {
                        let all: Vec<u64> =
                            (0..8).map(|rank| element(data_type, rank, index)).collect();
                        let bits = reduce(&rule, &all).to_le_bytes();
                        bits.into_iter().take(data_type.size())
                    })
                    .collect();
                fnv(&bytes)
            })
            .collect();
        for config in [
            forced(Algorithm::OneShot),
            forced(Algorithm::TwoShot),
            Config { deterministic: true, ..config() },
        ] {
            on_threads(8, &config, |comm| {
                for (op, expected) in OPS.iter().zip(&expected) {
                    let call =
                        Call { op: *op, count, ..Call::new(Collective::AllReduce, data_type) };
                    let got = digest(comm, &call, Memory::Ordinary);
                    assert_eq!(got, *expected, "{data_type} {op}, rank {}", comm.rank());
                }
            });
        }
    }
}

#[test]
fn copies_keep_every_bit_of_special_values() {
    for nranks in [1, 2, 3] {
        on_threads(nranks, &config(), |comm| {
            for data_type in FLOATS {
                let case = support::Case {
                    data: Data::Special,
                    ..support::Case::new(Collective::AllGather, nranks, 5000, data_type)
                };
                support::Prepared::of(case, comm.rank()).run(comm);
            }
        });
    }
}
