//! A call through NCCL's interface allocates nothing after the first of its shape, and takes no
//! lock that the library's own call has not.
#![allow(unsafe_code)]
#![allow(non_upper_case_globals)]

#[path = "interface/ranks.rs"]
#[allow(dead_code)]
mod ranks;

use ranks::{Handle, ok, with_ranks};
use ringcomm::sync::locks_taken;
use ringcomm_nccl::collectives::*;
use ringcomm_nccl::group::*;
use ringcomm_nccl::types::*;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ptr::null_mut;

/// The system's allocator, counting the calls of each thread.
struct Counting;

thread_local! {
    static CALLS: Cell<usize> = const { Cell::new(0) };
}

fn count() {
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
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn used() -> (usize, u64) {
    (CALLS.with(Cell::get), locks_taken())
}

#[test]
fn a_call_allocates_nothing_and_takes_no_lock() {
    with_ranks(2, |rank, comm| {
        let comm = Handle(comm).0;
        let (input, mut output) = (vec![1u8; 1 << 20], vec![0u8; 1 << 20]);
        let (send, recv) = (input.as_ptr().cast(), output.as_mut_ptr().cast());
        let (no, byte) = (null_mut(), ncclUint8);
        for count in [1, 1000, 1 << 19] {
            // SAFETY: the buffers have room for two blocks of it.
            let round = || unsafe {
                ok(pncclAllReduce(send, recv, count, byte, ncclSum, comm, no));
                ok(pncclBroadcast(send, recv, count, byte, 0, comm, no));
                ok(pncclReduce(send, recv, count, byte, ncclMax, 1, comm, no));
                ok(pncclAllGather(send, recv, count, byte, comm, no));
                ok(pncclReduceScatter(send, recv, count, byte, ncclSum, comm, no));
                ok(pncclAlltoAll(send, recv, count, byte, comm, no));
                match rank {
                    0 => ok(pncclSend(send, count, byte, 1, comm, no)),
                    _ => ok(pncclRecv(recv, count, byte, 0, comm, no)),
                }
            };
            round();
            let before = used();
            (0..5).for_each(|_| round());
            assert_eq!(used(), before, "{count} bytes");
        }
        // A group of messages: its lists are kept for the next.
        let group = || {
            ok(pncclGroupStart());
            // SAFETY: as above.
            unsafe {
                ok(pncclSend(send, 100, byte, 1 - rank, comm, no));
                ok(pncclRecv(recv, 100, byte, 1 - rank, comm, no));
            }
            ok(pncclGroupEnd());
        };
        (0..3).for_each(|_| group());
        let before = CALLS.with(Cell::get);
        (0..5).for_each(|_| group());
        assert_eq!(CALLS.with(Cell::get), before, "a group");
    });
}
