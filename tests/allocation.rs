//! After its first call at a shape a collective allocates nothing and takes no lock.

#[path = "allocation/exported.rs"]
mod exported;
mod support;

use ringcomm::communicator::{Call, Communicator, Message, VectorCounts};
use ringcomm::plan::Collective;
use ringcomm::sync::{Mutex, locks_taken};
use ringcomm::types::{DataType, ReduceOp};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use support::{
    Guarded, Memory, by_cma, calm, config, on_joined_threads, on_processes, on_threads,
    small_slots, staged, windowed,
};

/// The system's allocator, counting the calls of each thread.
struct Counting;

thread_local! {
    static CALLS: Cell<usize> = const { Cell::new(0) };
}

fn count() {
    // A thread that ends has no counter any more, and no test looks at it.
    let _ = CALLS.try_with(|calls| calls.set(calls.get() + 1));
}

// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, address: *mut u8, layout: Layout) {
        count();
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(address, layout) }
    }

    unsafe fn realloc(&self, address: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        count();
        // SAFETY: the caller's promise.
        unsafe { System.realloc(address, layout, bytes) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn calls() -> usize {
    CALLS.with(Cell::get)
}

/// What a thread has asked for that may make it wait for others.
#[derive(Debug, PartialEq)]
struct Used {
    allocations: usize,
    locks: u64,
}

fn used() -> Used {
    Used { allocations: calls(), locks: locks_taken() }
}

/// Elements of every block; with `ROOM` for all.
const COUNTS: [usize; 3] = [1, 500, 30_000];

/// A second and later call of every collective and shape, forms with counts included.
fn repeat_every_shape(comm: &Communicator) {
    repeat_every_shape_in(comm, Memory::Ordinary);
}

fn repeat_every_shape_in(comm: &Communicator, memory: Memory) {
    let nranks = comm.nranks();
    let room = COUNTS[2] * nranks * size_of::<f32>();
    let [mut send, mut recv] = [0, 0].map(|shift| Guarded::of(memory, room, shift));
    [&mut send, &mut recv].into_iter().for_each(|buffer| buffer.content_mut().fill(0));
    for count in COUNTS {
        let blocks = || (0..nranks).map(|_| count).collect::<Vec<_>>();
        let starts = || (0..nranks).map(|rank| rank * count).collect::<Vec<_>>();
        let vector = VectorCounts {
            send_counts: blocks(),
            send_displacements: starts(),
            recv_counts: blocks(),
            recv_displacements: starts(),
        };
        for collective in Collective::ALL {
            for op in [ReduceOp::Sum, ReduceOp::Avg, ReduceOp::PreMulSum] {
                for vector in [None, Some(&vector)] {
                    use Collective::*;
                    let whole = matches!(collective, AllReduce | Broadcast | Reduce | Barrier);
                    if whole && vector.is_some() {
                        continue;
                    }
                    let call = Call {
                        send: send.pointer(),
                        recv: recv.pointer(),
                        count: if collective == Barrier { 0 } else { count },
                        op,
                        vector,
                        ..Call::new(collective, DataType::Float32)
                    };
                    repeat(comm, &call);
                }
            }
        }
    }
}

fn repeat(comm: &Communicator, call: &Call) {
    // SAFETY: the buffers hold the longest block of every rank.
    unsafe { comm.run(call) }.unwrap();
    let before = used();
    for _ in 0..5 {
        // SAFETY: as above.
        unsafe { comm.run(call) }.unwrap();
    }
    let now = used();
    let (name, count, v) = (call.collective.name(), call.count, call.vector.is_some());
    assert_eq!(now, before, "{name}, count {count}, op {}, v form: {v}", call.op);
}

fn repeat_exchanges(comm: &Communicator) {
    let (rank, nranks) = (comm.rank(), comm.nranks());
    let (next, previous) = ((rank + 1) % nranks, (rank + nranks - 1) % nranks);
    let (send, mut recv) = (vec![1u8; 100_000], vec![0u8; 100_000]);
    for count in [1, 100_000] {
        let data_type = DataType::Uint8;
        let messages = [
            Message::Send { buffer: send.as_ptr(), count, data_type, peer: next },
            Message::Recv { buffer: recv.as_mut_ptr(), count, data_type, peer: previous },
        ];
        // SAFETY: both buffers hold `count` bytes.
        unsafe { comm.exchange(&messages) }.unwrap();
        let before = used();
        for _ in 0..5 {
            // SAFETY: as above.
            unsafe { comm.exchange(&messages) }.unwrap();
        }
        assert_eq!(used(), before, "an exchange of {count} bytes");
    }
}

#[test]
fn the_counters_count() {
    let before = used();
    drop(std::hint::black_box(vec![1u8; 10]));
    drop(Mutex::new(()).lock());
    let Used { allocations, locks } = before;
    assert_eq!(used(), Used { allocations: allocations + 2, locks: locks + 1 });
}

#[test]
fn collectives_between_threads_use_only_what_they_have_after_the_first_call() {
    for nranks in [1, 2, 4] {
        on_threads(nranks, &config(), repeat_every_shape);
        on_joined_threads(nranks, &small_slots(nranks, 1024), repeat_every_shape);
    }
}

#[test]
fn collectives_between_processes_use_only_what_they_have_after_the_first_call() {
    for nranks in [2, 4] {
        for config in [staged(nranks), windowed(nranks), by_cma(nranks)] {
            on_processes(nranks, &config, "", |comm, _| {
                repeat_every_shape(comm);
                String::new()
            });
        }
    }
}

#[test]
fn collectives_in_exported_memory_use_only_what_they_have_after_the_first_call() {
    for nranks in [2, 4] {
        on_processes(nranks, &calm(nranks), "", |comm, _| {
            repeat_every_shape_in(comm, Memory::Exported);
            // The peers' buffers were mapped, both of each: they were used from where they lie.
            let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
            let mapped = maps.lines().filter(|line| line.contains("memfd:ringcomm-user")).count();
            assert!(mapped >= comm.nranks(), "{maps}");
            String::new()
        });
    }
}

#[test]
fn messages_use_only_what_they_have_after_the_first_batch() {
    for nranks in [1, 2, 3] {
        on_threads(nranks, &config(), repeat_exchanges);
    }
    for config in [staged(2), by_cma(2)] {
        on_processes(2, &config, "", |comm, _| {
            repeat_exchanges(comm);
            String::new()
        });
    }
}

#[test]
fn alternating_shapes_do_too() {
    on_threads(2, &config(), |comm| {
        let (send, mut recv) = (vec![1f32; 1000], vec![0f32; 1000]);
        let call = |count: usize, recv: &mut Vec<f32>| Call {
            send: send.as_ptr().cast(),
            recv: recv.as_mut_ptr().cast(),
            count,
            ..Call::new(Collective::AllReduce, DataType::Float32)
        };
        let shapes = [call(1, &mut recv), call(10, &mut recv), call(1000, &mut recv)];
        let round = || {
            for shape in &shapes {
                // SAFETY: the buffers hold the longest shape.
                unsafe { comm.run(shape) }.unwrap();
            }
        };
        round();
        let before = used();
        (0..5).for_each(|_| round());
        assert_eq!(used(), before);
    });
}

#[test]
fn a_wait_that_becomes_long_does_too() {
    on_threads(2, &config(), |comm| {
        let barrier = Call::new(Collective::Barrier, DataType::Uint8);
        // SAFETY: a barrier has no buffers.
        unsafe { comm.run(&barrier) }.unwrap();
        if comm.rank() == 1 {
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        let before = used();
        // SAFETY: as above.
        unsafe { comm.run(&barrier) }.unwrap();
        assert_eq!(used(), before);
    });
}
