//! Garbage handles, NULL, ends that came twice, calls behind an abort, ranks that disagree, and
//! numbers of chance in every argument: NCCL's code, a text, and nothing else.

use crate::ranks::*;
use proptest::prelude::*;
use ringcomm_nccl::collectives::*;
use ringcomm_nccl::environment::params::*;
use ringcomm_nccl::group::*;
use ringcomm_nccl::init::*;
use ringcomm_nccl::lifecycle::*;
use ringcomm_nccl::memory::windows::*;
use ringcomm_nccl::memory::*;
use ringcomm_nccl::query::*;
use ringcomm_nccl::types::*;
use std::ffi::{CStr, c_void};
use std::ptr::{null, null_mut};

/// Every function of a communicator, on what may be none.
fn all_functions(comm: ncclComm_t) -> Vec<(&'static str, ncclResult_t)> {
    let (mut number, mut long, mut place) = (0i32, 0u64, null_mut::<c_void>());
    let (mut other, mut window) = (null_mut(), null_mut());
    let mut id = ncclUniqueId { internal: [0; NCCL_UNIQUE_ID_BYTES] };
    let (one, mut two) = ([1f32; 4], [0f32; 4]);
    let (send, recv, no) = (one.as_ptr().cast(), two.as_mut_ptr().cast(), null_mut());
    // SAFETY: the buffers and places are locals; a handle may be anything.
    unsafe {
        vec![
            ("AllReduce", pncclAllReduce(send, recv, 4, ncclFloat, ncclSum, comm, no)),
            ("Bcast", pncclBcast(recv, 4, ncclFloat, 0, comm, no)),
            ("AllGather", pncclAllGather(send, recv, 1, ncclFloat, comm, no)),
            ("Send", pncclSend(send, 1, ncclFloat, 0, comm, no)),
            ("Recv", pncclRecv(recv, 1, ncclFloat, 0, comm, no)),
            ("RedOpDestroy", pncclRedOpDestroy(2000, comm)),
            ("CommCount", pncclCommCount(comm, &mut number)),
            ("CommUserRank", pncclCommUserRank(comm, &mut number)),
            ("CommCuDevice", pncclCommCuDevice(comm, &mut number)),
            ("CommGetAsyncError", pncclCommGetAsyncError(comm, &mut number)),
            ("CommMemStats", pncclCommMemStats(comm, 0, &mut long)),
            ("CommSplit", pncclCommSplit(comm, 0, 0, &mut other, null_mut())),
            ("CommShrink", pncclCommShrink(comm, null_mut(), 0, &mut other, null_mut(), 0)),
            ("CommGetUniqueId", pncclCommGetUniqueId(comm, &mut id)),
            ("CommRevoke", pncclCommRevoke(comm, 0)),
            ("CommSuspend", pncclCommSuspend(comm, NCCL_SUSPEND_MEM)),
            ("CommResume", pncclCommResume(comm)),
            ("CommRegister", pncclCommRegister(comm, recv, 16, &mut place)),
            ("CommDeregister", pncclCommDeregister(comm, null_mut())),
            ("CommWindowRegister", pncclCommWindowRegister(comm, recv, 16, &mut window, 0)),
            ("Signal", pncclSignal(0, 0, 0, 0, comm, no)),
        ]
    }
}

#[test]
fn what_is_no_communicator_is_refused_by_every_function() {
    let mut gone = null_mut();
    // SAFETY: the place is a local.
    unsafe {
        ok(pncclCommInitRank(&mut gone, 1, new_id(), 0));
        ok(pncclCommDestroy(gone));
    }
    let here = &raw mut gone;
    for garbage in [null_mut(), gone, here.cast(), std::ptr::without_provenance_mut(0xdead_beef)] {
        for (name, result) in all_functions(garbage) {
            assert_eq!(result, ncclInvalidArgument, "{name} of {garbage:p}");
        }
        assert!(last_error(null_mut()).starts_with("ncclSignal: "), "{}", last_error(null_mut()));
    }
    // SAFETY: safe for any argument.
    unsafe {
        for end in [pncclCommDestroy, pncclCommAbort, pncclCommFinalize] {
            ok(end(null_mut()));
            refused(end(gone), ncclInvalidArgument, "already gone");
        }
    }
}

#[test]
fn places_that_are_null_are_refused() {
    with_ranks(1, |_, comm| {
        let id = new_id();
        // SAFETY: nothing is there.
        let refusals = unsafe {
            [
                pncclGetUniqueId(null_mut()),
                pncclGetVersion(null_mut()),
                pncclMemAlloc(null_mut(), 8),
                pncclCommInitRank(null_mut(), 1, id, 0),
                pncclCommInitAll(null_mut(), 2, null()),
                pncclCommSplit(comm, 0, 0, null_mut(), null_mut()),
                pncclCommCount(comm, null_mut()),
                pncclCommGetAsyncError(comm, null_mut()),
                pncclCommQueryProperties(comm, null_mut()),
                pncclSetEncryption(null()),
                pncclParamBind(null_mut(), c"NCCL_DEBUG".as_ptr()),
                pncclAllReduce(null(), null_mut(), 4, ncclFloat, ncclSum, comm, null_mut()),
            ]
        };
        assert_eq!(refusals, [ncclInvalidArgument; 12]);
        ok(pncclGroupStart());
        // SAFETY: nothing is there.
        refused(unsafe { pncclGroupSimulateEnd(null_mut()) }, ncclInvalidArgument, "simInfo");
    });
}

#[test]
fn ranks_that_disagree_are_told() {
    let id = new_id();
    std::thread::scope(|scope| {
        for rank in 0..2 {
            scope.spawn(move || {
                let (mut comm, one, mut sum) = (null_mut(), [1i32; 8], [0i32; 8]);
                // SAFETY: the buffers are locals.
                unsafe {
                    ok(pncclCommInitRank(&mut comm, 2, id, rank));
                    let (send, recv) = (one.as_ptr().cast(), sum.as_mut_ptr().cast());
                    let count = 4 + rank as usize;
                    let wrong =
                        pncclAllReduce(send, recv, count, ncclInt, ncclSum, comm, null_mut());
                    // Whoever sees it first tells the other.
                    assert!([ncclInvalidUsage, ncclRemoteError].contains(&wrong), "{wrong}");
                    assert!(last_error(comm).contains("ranks disagree"), "{}", last_error(comm));
                    ok(pncclCommAbort(comm));
                }
            });
        }
    });
}

#[test]
fn a_refused_creation_is_remembered_by_its_parent() {
    with_ranks(1, |_, comm| {
        let (mut other, mut own, mut memory) = (null_mut(), 0, null_mut());
        let no = null_mut();
        // SAFETY: the places are locals.
        unsafe {
            refused(pncclCommSplit(comm, -5, 0, &mut other, no), ncclInvalidArgument, "NOCOLOR");
            assert!(last_error(comm).contains("NCCL_SPLIT_NOCOLOR"), "{}", last_error(comm));
            let shrunk = pncclCommShrink(comm, &mut own, 1, &mut other, no, 0);
            refused(shrunk, ncclInvalidArgument, "this rank is excluded");
            assert!(last_error(comm).contains("this rank is excluded"));
            let grown = pncclCommGrow(comm, 1, null(), -1, &mut other, no);
            refused(grown, ncclInvalidArgument, "are not more than 1");
            assert!(last_error(comm).contains("are not more than 1"));
            assert!(other.is_null());
            refused(pncclMemAlloc(&mut memory, 1 << 60), ncclSystemError, "memory");
            let many = pncclCommInitAll(&mut other, 1 << 30, null());
            refused(many, ncclInvalidArgument, "the limit in a process");
            // A group that holds calls of it keeps it.
            let (one, mut sum) = (1i32, 0i32);
            ok(pncclGroupStart());
            let (send, recv) = ((&raw const one).cast(), (&raw mut sum).cast());
            ok(pncclAllReduce(send, recv, 1, ncclInt, ncclSum, comm, null_mut()));
            refused(pncclCommDestroy(comm), ncclInvalidUsage, "ncclGroupEnd");
            assert!(last_error(comm).contains("ncclGroupEnd"), "{}", last_error(comm));
            ok(pncclGroupEnd());
            assert_eq!(sum, 1);
            refused(
                pncclAllReduce(send, recv, 1, 99, ncclSum, comm, null_mut()),
                ncclInvalidArgument,
                "nccl.h lists them",
            );
        }
    });
}

#[test]
fn every_code_has_a_text() {
    let texts: std::collections::HashSet<_> = (0..=8)
        // SAFETY: never NULL.
        .map(|code| unsafe { CStr::from_ptr(pncclGetErrorString(code)) })
        .collect();
    assert_eq!(texts.len(), 9);
    // SAFETY: never NULL.
    let unknown = unsafe { CStr::from_ptr(pncclGetErrorString(-1)) };
    assert_eq!(unknown, c"unknown result code");
}

#[test]
fn variables_are_found_by_name() {
    let (mut handle, mut text, mut number) = (null_mut(), null(), 0i64);
    let (mut keys, mut count) = (null_mut(), 0);
    // SAFETY: the places are locals, and texts live until this thread asks again.
    unsafe {
        ok(pncclParamBind(&mut handle, c"NCCL_ALGO".as_ptr()));
        ok(pncclParamGetStr(handle, &mut text));
        assert_eq!(CStr::from_ptr(text), c"");
        refused(pncclParamGetI64(handle, &mut number), ncclInvalidUsage, "not set");
        let unknown = pncclParamBind(&mut handle, c"NCCL_NOTHING".as_ptr());
        refused(unknown, ncclInvalidArgument, "NCCL_NOTHING");
        let garbage = std::ptr::without_provenance_mut(4711);
        refused(pncclParamGetI64(garbage, &mut number), ncclInvalidArgument, "handle");
        ok(pncclParamGetAllParameterKeys(&mut keys, &mut count));
        assert!(count > 100);
        let last = CStr::from_ptr(*keys.add(count as usize - 1));
        assert!(last.to_str().unwrap().starts_with("NCCL_"));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    /// One rank alone: whatever the numbers are, a call does it or says why not.
    #[test]
    fn numbers_of_chance_break_nothing(
        count in prop_oneof![0usize..64, any::<usize>()],
        kind in prop_oneof![-2i32..80, any::<i32>()],
        op in prop_oneof![-2i32..80, any::<i32>()],
        root in prop_oneof![-2i32..3, any::<i32>()],
        size in prop_oneof![0usize..200, any::<usize>()],
        magic in prop_oneof![Just(NCCL_API_MAGIC), any::<u32>()],
        fields in proptest::collection::vec(prop_oneof![Just(i32::MIN), -2i32..10], 4),
    ) {
        thread_local! {
            static COMM: ncclComm_t = {
                let mut comm = null_mut();
                // SAFETY: the place is a local.
                ok(unsafe { pncclCommInitRank(&mut comm, 1, new_id(), 0) });
                comm
            };
        }
        let comm = COMM.with(|comm| *comm);
        let (one, mut two) = ([1u8; 1024], [0u8; 1024]);
        let (send, recv, no) = (one.as_ptr().cast(), two.as_mut_ptr().cast(), null_mut());
        // More than the buffers hold is the caller's promise: only what fits may succeed.
        let count = if count <= 64 { count } else { count | 1 << 60 };
        let mut settings = config(fields[0]);
        (settings.size, settings.magic) = (size.min(size_of::<ncclConfig_t>()), magic);
        (settings.minCTAs, settings.maxCTAs) = (fields[1], fields[2]);
        settings.cgaClusterSize = fields[3];
        let mut made = null_mut();
        // SAFETY: what fits into the buffers, and is refused where it does not.
        let results = unsafe {
            [
                pncclAllReduce(send, recv, count, kind, op, comm, no),
                pncclReduce(send, recv, count, kind, op, root, comm, no),
                pncclBroadcast(send, recv, count, kind, root, comm, no),
                pncclAllGather(send, recv, count, kind, comm, no),
                pncclReduceScatter(send, recv, count, kind, op, comm, no),
                pncclSignal(root, op, kind, 0, comm, no),
                pncclCommMemStats(comm, kind, null_mut()),
                pncclCommInitRankConfig(&mut made, 1, new_id(), root, &mut settings),
            ]
        };
        for result in results {
            prop_assert!((0..=8).contains(&result));
        }
        if !made.is_null() {
            prop_assert_eq!(poll(made), ncclSuccess);
            // SAFETY: safe for any argument.
            ok(unsafe { pncclCommDestroy(made) });
        }
    }
}
