//! Communicators that do not block: begun, asked about, given up.

use crate::ranks::*;
use ringcomm_nccl::collectives::*;
use ringcomm_nccl::group::*;
use ringcomm_nccl::init::*;
use ringcomm_nccl::lifecycle::*;
use ringcomm_nccl::types::*;
use std::ptr::null_mut;
use std::time::Instant;

fn begin(nranks: i32, id: ncclUniqueId, rank: i32) -> ncclComm_t {
    let (mut comm, mut config) = (null_mut(), config(0));
    // SAFETY: the places are locals.
    let begun = unsafe { pncclCommInitRankConfig(&mut comm, nranks, id, rank, &mut config) };
    assert_eq!(begun, ncclInProgress);
    assert!(!comm.is_null());
    comm
}

#[test]
fn one_thread_begins_all_ranks_and_asks_until_they_are_there() {
    let id = new_id();
    let comms = [0, 1, 2].map(|rank| begin(3, id, rank));
    for comm in comms {
        assert_eq!(poll(comm), ncclSuccess);
    }
    let (one, mut sums) = (1i32, [0i32; 3]);
    // Without a group: a call that does not block waits for nobody.
    for (comm, sum) in comms.iter().zip(&mut sums) {
        let (send, recv) = ((&raw const one).cast(), (&raw mut *sum).cast());
        // SAFETY: the buffers stay until the calls are done.
        let begun = unsafe { pncclAllReduce(send, recv, 1, ncclInt, ncclSum, *comm, null_mut()) };
        assert!([ncclSuccess, ncclInProgress].contains(&begun), "{}", last_error(null_mut()));
    }
    for comm in comms {
        assert_eq!(poll(comm), ncclSuccess);
    }
    assert_eq!(sums, [3; 3]);
    let mut parts = [null_mut(); 3];
    for (comm, part) in comms.iter().zip(&mut parts) {
        // SAFETY: the places stay.
        let begun = unsafe { pncclCommSplit(*comm, 0, 0, part, null_mut()) };
        assert_eq!(begun, ncclInProgress);
    }
    for comm in parts.iter().chain(&comms) {
        assert_eq!(poll(*comm), ncclSuccess);
    }
    assert_eq!(parts.map(rank_of), [(0, 3), (1, 3), (2, 3)]);
    for comm in comms.iter().chain(&parts) {
        // SAFETY: safe for any argument.
        assert_eq!(unsafe { pncclCommFinalize(*comm) }, ncclInProgress);
    }
    for comm in comms.iter().chain(&parts) {
        assert_eq!(poll(*comm), ncclSuccess);
        // SAFETY: safe for any argument.
        ok(unsafe { pncclCommDestroy(*comm) });
    }
}

#[test]
fn a_group_of_such_calls_returns_before_they_are_done() {
    let (id, mut comms, mut settings) = (new_id(), [null_mut(); 2], config(0));
    ok(pncclGroupStart());
    for (rank, comm) in comms.iter_mut().enumerate() {
        // SAFETY: the places stay until the group's end.
        ok(unsafe { pncclCommInitRankConfig(comm, 2, id, rank as i32, &mut settings) });
    }
    assert_eq!(pncclGroupEnd(), ncclInProgress);
    assert!(comms.iter().all(|comm| poll(*comm) == ncclSuccess));
    let (one, mut sums) = (1i32, [0i32; 2]);
    ok(pncclGroupStart());
    for (comm, sum) in comms.iter().zip(&mut sums) {
        let (send, recv) = ((&raw const one).cast(), (&raw mut *sum).cast());
        // SAFETY: the buffers stay until the calls are done.
        ok(unsafe { pncclAllReduce(send, recv, 1, ncclInt, ncclSum, *comm, null_mut()) });
    }
    assert_eq!(pncclGroupEnd(), ncclInProgress);
    assert!(comms.iter().all(|comm| poll(*comm) == ncclSuccess));
    assert_eq!(sums, [2; 2]);
    for comm in comms {
        // SAFETY: safe for any argument.
        ok(unsafe { pncclCommDestroy(comm) });
    }
}

#[test]
fn who_waits_for_ranks_that_never_come_gives_up_at_once() {
    let comm = begin(2, new_id(), 0);
    let (one, mut sum, mut state) = (1i32, 0i32, ncclSuccess);
    // SAFETY: the places are locals.
    unsafe {
        ok(pncclCommGetAsyncError(comm, &mut state));
        assert_eq!(state, ncclInProgress);
        let (send, recv) = ((&raw const one).cast(), (&raw mut sum).cast());
        let early = pncclAllReduce(send, recv, 1, ncclInt, ncclSum, comm, null_mut());
        refused(early, ncclInvalidArgument, "ncclCommGetAsyncError");
        let begun = Instant::now();
        ok(pncclCommAbort(comm));
        assert!(begun.elapsed().as_secs() < 10);
        refused(pncclCommAbort(comm), ncclInvalidArgument, "already gone");
    }
}

#[test]
fn one_that_cannot_be_made_says_why() {
    let mut id = new_id();
    // A number that no id has.
    id.internal.fill(7);
    let (mut comm, mut settings) = (null_mut(), config(0));
    // SAFETY: the places are locals.
    unsafe {
        let begun = pncclCommInitRankConfig(&mut comm, 2, id, 0, &mut settings);
        refused(begun, ncclInvalidArgument, "");
        assert!(comm.is_null());
    }
}
