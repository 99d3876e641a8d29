//! The same through the C functions: outside of groups, in groups, and on streams.
#![allow(non_snake_case)] // C names are spelled as a C program spells them.

use super::{Used, used};
use crate::support::threads::join_all;
use ringcomm::ffi::calls::collective::*;
use ringcomm::ffi::calls::group::*;
use ringcomm::ffi::calls::stream::*;
use ringcomm::ffi::calls::vector::*;
use ringcomm::ffi::comm::lifecycle::*;
use ringcomm::ffi::types::ringResult_t::ringSuccess;
use ringcomm::ffi::types::*;
use std::ffi::{c_int, c_void};
use std::ptr::{null, null_mut};

const SUM: RawRedOp = RawRedOp(ringRedOp_t::ringSum as i32);
const FLOAT: RawDataType = RawDataType(ringDataType_t::ringFloat32 as i32);

/// Ranks of every test.
const NRANKS: usize = 2;

/// Elements of a block: in a header's line, and in more than a slot.
const COUNTS: [usize; 2] = [4, 100_000];

/// One rank: its communicator, a stream, and buffers of a block for each rank.
struct Rank {
    rank: usize,
    comm: ringComm_t,
    stream: ringStream_t,
    send: Vec<f32>,
    recv: Vec<f32>,
}

impl Rank {
    fn buffers(&mut self) -> (*const c_void, *mut c_void) {
        (self.send.as_ptr().cast(), self.recv.as_mut_ptr().cast())
    }

    fn peer(&self) -> c_int {
        (1 - self.rank) as c_int
    }

    /// Both messages of an exchange with the other rank, of which one waits for the other.
    fn exchange(&mut self, count: usize, stream: ringStream_t) {
        let ((send, recv), peer) = (self.buffers(), self.peer());
        // SAFETY: the buffers hold `count` elements until the group's end or the synchronization.
        unsafe {
            succeeds(ringSend(send, count, FLOAT, peer, self.comm, stream));
            succeeds(ringRecv(recv, count, FLOAT, peer, self.comm, stream));
        }
    }

    fn sum(&mut self, count: usize, stream: ringStream_t) {
        let (send, recv) = self.buffers();
        // SAFETY: as above.
        succeeds(unsafe { ringAllReduce(send, recv, count, FLOAT, SUM, self.comm, stream) });
    }
}

#[track_caller]
fn succeeds(result: ringResult_t) {
    assert_eq!(result, ringSuccess);
}

/// Run `body` as every rank.
fn on_ranks(body: impl Fn(&mut Rank) + Sync) {
    let mut all = [null_mut(); NRANKS];
    // SAFETY: room for every handle.
    succeeds(unsafe { ringCommInitAll(all.as_mut_ptr(), NRANKS as c_int, null()) });
    let (all, body) = (all.map(|comm| comm.addr()), &body);
    std::thread::scope(|scope| {
        join_all(all.into_iter().enumerate().map(|(rank, handle)| {
            scope.spawn(move || {
                // A handle is a number, and never followed.
                let (comm, mut stream) = (std::ptr::without_provenance_mut(handle), null_mut());
                // SAFETY: a local.
                succeeds(unsafe { ringStreamCreate(&mut stream) });
                let room = NRANKS * COUNTS[1];
                let (send, recv) = (vec![1.0; room], vec![0.0; room]);
                body(&mut Rank { rank, comm, stream, send, recv });
                // SAFETY: safe for any argument.
                unsafe {
                    succeeds(ringStreamDestroy(stream));
                    succeeds(ringCommDestroy(comm));
                }
            })
        }));
    });
}

/// What this thread uses in the fifth to tenth round of `work`.
fn settled(rank: &mut Rank, count: usize, work: impl Fn(&mut Rank, usize)) -> Used {
    (0..5).for_each(|_| work(rank, count));
    let before = used();
    (0..5).for_each(|_| work(rank, count));
    let now = used();
    Used { allocations: now.allocations - before.allocations, locks: now.locks - before.locks }
}

const NOTHING: Used = Used { allocations: 0, locks: 0 };

#[test]
fn calls_use_only_what_they_have() {
    on_ranks(|rank| {
        for count in COUNTS {
            let used = settled(rank, count, |rank, count| {
                rank.sum(count, null_mut());
                let (send, recv) = rank.buffers();
                // SAFETY: the buffers hold a block for each rank.
                unsafe {
                    succeeds(ringAllGather(send, recv, count, FLOAT, rank.comm, null_mut()));
                    succeeds(ringAllToAll(send, recv, count, FLOAT, rank.comm, null_mut()));
                    succeeds(ringBarrier(rank.comm, null_mut()));
                }
            });
            assert_eq!(used, NOTHING, "{count}");
        }
    });
}

#[test]
fn lone_messages_use_only_what_they_have() {
    on_ranks(|rank| {
        for count in COUNTS {
            let used = settled(rank, count, |rank, count| {
                let ((send, recv), peer) = (rank.buffers(), rank.peer());
                // SAFETY: the buffers hold `count` elements.
                unsafe {
                    if rank.rank == 0 {
                        succeeds(ringSend(send, count, FLOAT, peer, rank.comm, null_mut()));
                        succeeds(ringRecv(recv, count, FLOAT, peer, rank.comm, null_mut()));
                    } else {
                        succeeds(ringRecv(recv, count, FLOAT, peer, rank.comm, null_mut()));
                        succeeds(ringSend(send, count, FLOAT, peer, rank.comm, null_mut()));
                    }
                }
            });
            assert_eq!(used, NOTHING, "{count}");
        }
    });
}

#[test]
fn v_forms_use_only_what_they_have() {
    on_ranks(|rank| {
        for count in COUNTS {
            let (counts, starts) = ([count; NRANKS], [0, count]);
            let used = settled(rank, count, |rank, count| {
                let ((send, recv), comm) = (rank.buffers(), rank.comm);
                let (counts, starts) = (counts.as_ptr(), starts.as_ptr());
                let none = null_mut();
                // SAFETY: the buffers hold a block for each rank, the lists a number.
                unsafe {
                    succeeds(ringAllGatherv(send, count, recv, counts, starts, FLOAT, comm, none));
                    succeeds(ringReduceScatterv(send, recv, counts, FLOAT, SUM, comm, none));
                    succeeds(ringAllToAllv(
                        send, counts, starts, recv, counts, starts, FLOAT, comm, none,
                    ));
                    succeeds(ringGatherv(send, count, recv, counts, starts, FLOAT, 0, comm, none));
                    succeeds(ringScatterv(send, counts, starts, recv, count, FLOAT, 0, comm, none));
                }
            });
            assert_eq!(used, NOTHING, "{count}");
        }
    });
}

/// A group takes the lock of its own list, which no other thread holds for long: to leave the
/// list, and to have it back.
#[test]
fn groups_allocate_nothing() {
    on_ranks(|rank| {
        for count in COUNTS {
            let used = settled(rank, count, |rank, count| {
                succeeds(ringGroupStart());
                rank.sum(count, null_mut());
                rank.exchange(count, null_mut());
                succeeds(ringGroupEnd());
            });
            assert_eq!(used.allocations, 0, "{count}");
        }
    });
}

/// A stream's queue has a lock, which its worker holds to take a call out of it.
#[test]
fn calls_on_a_stream_allocate_nothing() {
    on_ranks(|rank| {
        for count in COUNTS {
            let used = settled(rank, count, |rank, count| {
                rank.sum(count, rank.stream);
                // SAFETY: the stream is this thread's.
                succeeds(unsafe { ringStreamSynchronize(rank.stream) });
            });
            assert_eq!(used.allocations, 0, "{count}");
        }
    });
}
