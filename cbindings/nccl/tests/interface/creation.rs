//! Communicators that are made, divided, made smaller and larger, and how they end.

use crate::ranks::*;
use ringcomm_nccl::collectives::*;
use ringcomm_nccl::init::*;
use ringcomm_nccl::lifecycle::*;
use ringcomm_nccl::types::*;
use std::ptr::{null, null_mut};
use std::sync::Barrier;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// The sum of one over all ranks: how many there are.
fn counted(comm: ncclComm_t) -> i32 {
    let (one, mut sum) = (1i32, 0i32);
    let (send, recv) = ((&raw const one).cast(), (&raw mut sum).cast());
    // SAFETY: the buffers are locals.
    ok(unsafe { pncclAllReduce(send, recv, 1, ncclInt, ncclSum, comm, null_mut()) });
    sum
}

#[test]
fn all_ranks_of_a_process_are_made_at_once() {
    let mut comms = [null_mut(); 3];
    // SAFETY: there is room for three.
    ok(unsafe { pncclCommInitAll(comms.as_mut_ptr(), 3, [0, 1, 2].as_ptr()) });
    for (rank, comm) in comms.iter().enumerate() {
        assert_eq!(rank_of(*comm), (rank as i32, 3));
    }
    std::thread::scope(|scope| {
        for comm in comms.map(Handle) {
            scope.spawn(move || {
                let comm = { comm }.0;
                assert_eq!(counted(comm), 3);
                // SAFETY: safe for any argument.
                unsafe {
                    ok(pncclCommFinalize(comm));
                    ok(pncclCommDestroy(comm));
                }
            });
        }
    });
}

#[test]
fn ranks_meet_by_the_first_of_several_ids() {
    let mut ids = [new_id(), new_id()];
    let place = ids.as_mut_ptr().addr();
    std::thread::scope(|scope| {
        for rank in 0..2 {
            scope.spawn(move || {
                let (mut comm, ids) = (null_mut(), std::ptr::with_exposed_provenance_mut(place));
                // SAFETY: two ids are there, and nobody writes to them.
                unsafe {
                    ok(pncclCommInitRankScalable(&mut comm, 2, rank, 2, ids, null_mut()));
                    assert_eq!(counted(comm), 2);
                    ok(pncclCommDestroy(comm));
                }
            });
        }
    });
    let _ = ids[0].internal.as_mut_ptr().expose_provenance();
}

#[test]
fn a_split_orders_by_key_and_leaves_out_who_has_no_color() {
    with_ranks(4, |rank, comm| {
        let mut part = Handle(null_mut()).0;
        let color = if rank == 3 { NCCL_SPLIT_NOCOLOR } else { rank % 2 };
        // SAFETY: the place is a local.
        unsafe {
            ok(pncclCommSplit(comm, color, -rank, &mut part, null_mut()));
            match rank {
                0 => assert_eq!(rank_of(part), (1, 2)),
                1 => assert_eq!(rank_of(part), (0, 1)),
                2 => assert_eq!(rank_of(part), (0, 2)),
                _ => assert!(part.is_null()),
            }
            if !part.is_null() {
                counted(part);
            }
            ok(pncclCommDestroy(part));
            let wrong = pncclCommSplit(comm, -5, 0, &mut part, null_mut());
            refused(wrong, ncclInvalidArgument, "NCCL_SPLIT_NOCOLOR");
            assert!(part.is_null());
        }
    });
}

#[test]
fn a_shrink_leaves_ranks_out() {
    for flags in [NCCL_SHRINK_DEFAULT, NCCL_SHRINK_ABORT] {
        let done = Barrier::new(3);
        with_ranks_until(pncclCommAbort, 3, |rank, comm| {
            if rank != 1 {
                let (mut smaller, mut gone) = (null_mut(), [1]);
                // SAFETY: the places are locals.
                unsafe {
                    let list = gone.as_mut_ptr();
                    ok(pncclCommShrink(comm, list, 1, &mut smaller, null_mut(), flags));
                    assert_eq!(rank_of(smaller), (rank / 2, 2));
                    assert_eq!(counted(smaller), 2);
                    ok(pncclCommDestroy(smaller));
                }
            }
            done.wait();
        });
    }
}

#[test]
fn new_ranks_join_a_communicator_that_grows() {
    let (id_there, id) = (Barrier::new(3), std::sync::OnceLock::new());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            id_there.wait();
            let mut grown = null_mut();
            let id: *const ncclUniqueId = id.get().unwrap();
            // SAFETY: the place is a local, and the id stays.
            unsafe {
                ok(pncclCommGrow(null_mut(), 3, id, 2, &mut grown, null_mut()));
                assert_eq!(rank_of(grown), (2, 3));
                assert_eq!(counted(grown), 3);
                ok(pncclCommDestroy(grown));
            }
        });
        with_ranks(2, |rank, comm| {
            let mut grown = null_mut();
            let mut own = ncclUniqueId { internal: [0; NCCL_UNIQUE_ID_BYTES] };
            // SAFETY: the places are locals.
            unsafe {
                if rank == 1 {
                    ok(pncclCommGetUniqueId(comm, &mut own));
                    refused(
                        pncclCommGetUniqueId(comm, &mut own),
                        ncclInvalidUsage,
                        "not been used",
                    );
                    id.set(own).ok().unwrap();
                }
                id_there.wait();
                let mine = if rank == 1 { &raw const own } else { null() };
                ok(pncclCommGrow(comm, 3, mine, -1, &mut grown, null_mut()));
                assert_eq!(rank_of(grown), (rank, 3));
                assert_eq!(counted(grown), 3);
                ok(pncclCommDestroy(grown));
                // A growth that fails leaves it as it was, and gives its id up.
                if rank == 1 {
                    ok(pncclCommGetUniqueId(comm, &mut own));
                }
                let none = pncclCommGrow(comm, 3, null(), -1, &mut grown, null_mut());
                refused(none, ncclInvalidUsage, "one rank gives the id");
                // The old one goes on, and may grow again.
                assert_eq!(counted(comm), 2);
                if rank == 1 {
                    ok(pncclCommGetUniqueId(comm, &mut own));
                }
            }
        });
    });
}

#[test]
fn a_revoked_communicator_is_divided_and_takes_no_calls() {
    let revoked = Barrier::new(2);
    with_ranks_until(pncclCommAbort, 2, |rank, comm| {
        let (mut again, one, mut sum) = (null_mut(), 1i32, 0i32);
        revoked.wait();
        // SAFETY: the places are locals.
        unsafe {
            refused(pncclCommRevoke(comm, 1), ncclInvalidArgument, "no flag of a revocation");
            ok(pncclCommRevoke(comm, NCCL_REVOKE_DEFAULT));
            let (send, recv) = ((&raw const one).cast(), (&raw mut sum).cast());
            let wrong = pncclAllReduce(send, recv, 1, ncclInt, ncclSum, comm, null_mut());
            refused(wrong, ncclInvalidUsage, "revoked");
            ok(pncclCommSplit(comm, 0, -rank, &mut again, null_mut()));
            assert_eq!(rank_of(again), (1 - rank, 2));
            assert_eq!(counted(again), 2);
            ok(pncclCommDestroy(again));
        }
    });
}

#[test]
fn a_suspended_communicator_waits_for_its_resumption() {
    with_ranks(2, |_, comm| {
        let (one, mut sum) = (1i32, 0i32);
        // SAFETY: the places are locals.
        unsafe {
            refused(pncclCommResume(comm), ncclInvalidUsage, "not suspended");
            ok(pncclCommSuspend(comm, NCCL_SUSPEND_MEM));
            let (send, recv) = ((&raw const one).cast(), (&raw mut sum).cast());
            let wrong = pncclAllReduce(send, recv, 1, ncclInt, ncclSum, comm, null_mut());
            refused(wrong, ncclInvalidUsage, "ncclCommResume first");
            ok(pncclCommResume(comm));
        }
        assert_eq!(counted(comm), 2);
    });
}

#[test]
fn a_call_of_a_rank_whose_peer_aborts_ends_with_its_name() {
    let id = new_id();
    std::thread::scope(|scope| {
        for rank in 0..2 {
            scope.spawn(move || {
                let (mut comm, one, mut sum) = (null_mut(), 1i32, 0i32);
                // SAFETY: the places are locals.
                unsafe {
                    ok(pncclCommInitRank(&mut comm, 2, id, rank));
                    if rank == 0 {
                        let (send, recv) = ((&raw const one).cast(), (&raw mut sum).cast());
                        let ended =
                            pncclAllReduce(send, recv, 1, ncclInt, ncclSum, comm, null_mut());
                        assert_eq!(ended, ncclRemoteError);
                        assert!(last_error(comm).contains("rank 1"), "{}", last_error(comm));
                        let mut broken = ncclSuccess;
                        ok(pncclCommGetAsyncError(comm, &mut broken));
                        assert_eq!(broken, ncclRemoteError);
                    }
                    ok(pncclCommAbort(comm));
                }
            });
        }
    });
}

/// What the handler of the signal gives up, and what it was told.
static INTERRUPTED: AtomicPtr<ncclComm> = AtomicPtr::new(null_mut());
static TOLD: AtomicUsize = AtomicUsize::new(usize::MAX);

extern "C" fn give_up(_: i32) {
    // SAFETY: safe for any argument.
    let told = unsafe { pncclCommAbort(INTERRUPTED.load(SeqCst)) };
    TOLD.store(told as usize, SeqCst);
}

#[test]
fn a_signal_handler_aborts_the_call_that_it_interrupts() {
    let (id, done, caller) = (new_id(), Barrier::new(2), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        let handler = give_up as extern "C" fn(i32) as libc::sighandler_t;
        // SAFETY: the handler calls what a handler may.
        unsafe { libc::signal(libc::SIGUSR2, handler) };
        let (caller, done) = (&caller, &done);
        scope.spawn(move || {
            let (mut comm, one, mut sum) = (null_mut(), 1i32, 0i32);
            // SAFETY: the places are locals.
            unsafe {
                ok(pncclCommInitRank(&mut comm, 2, id, 0));
                INTERRUPTED.store(comm, SeqCst);
                caller.store(libc::pthread_self() as usize, SeqCst);
                let (send, recv) = ((&raw const one).cast(), (&raw mut sum).cast());
                let (begun, no) = (Instant::now(), null_mut());
                let ended = pncclAllReduce(send, recv, 1, ncclInt, ncclSum, comm, no);
                assert_eq!(ended, ncclInternalError);
                assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
                done.wait();
                ok(pncclCommAbort(comm));
            }
        });
        scope.spawn(move || {
            let mut comm = null_mut();
            // SAFETY: the place is a local; the thread that is interrupted waits for this one.
            unsafe {
                ok(pncclCommInitRank(&mut comm, 2, id, 1));
                while caller.load(SeqCst) == 0 {
                    std::thread::yield_now();
                }
                std::thread::sleep(Duration::from_millis(100));
                libc::pthread_kill(caller.load(SeqCst) as libc::pthread_t, libc::SIGUSR2);
                done.wait();
                ok(pncclCommAbort(comm));
            }
        });
    });
    assert_eq!(TOLD.load(SeqCst), ncclSuccess as usize);
}
