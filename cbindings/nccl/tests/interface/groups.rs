//! Groups: calls and new communicators of several ranks from one thread, and what a group takes.

use crate::ranks::*;
use ringcomm_nccl::collectives::*;
use ringcomm_nccl::group::*;
use ringcomm_nccl::init::*;
use ringcomm_nccl::lifecycle::*;
use ringcomm_nccl::query::*;
use ringcomm_nccl::types::*;
use std::ptr::null_mut;

/// Ranks of one thread.
fn of_one_thread<const N: usize>() -> [ncclComm_t; N] {
    let (id, mut comms) = (new_id(), [null_mut(); N]);
    ok(pncclGroupStart());
    for (rank, comm) in comms.iter_mut().enumerate() {
        // SAFETY: the places stay until the group's end.
        ok(unsafe { pncclCommInitRank(comm, N as i32, id, rank as i32) });
    }
    ok(pncclGroupEnd());
    comms
}

fn destroy(comms: &[ncclComm_t]) {
    for comm in comms {
        // SAFETY: safe for any argument.
        ok(unsafe { pncclCommDestroy(*comm) });
    }
}

#[test]
fn one_thread_is_several_ranks() {
    let comms = of_one_thread::<3>();
    let inputs = [[1.0f32; 5], [2.0; 5], [3.0; 5]];
    let mut outputs = [[0.0f32; 5]; 3];
    let mut parts = [null_mut(); 3];
    ok(pncclGroupStart());
    ok(pncclGroupStart());
    for rank in 0..3 {
        let (send, recv) = (inputs[rank].as_ptr().cast(), outputs[rank].as_mut_ptr().cast());
        // SAFETY: the buffers stay until the group's end.
        ok(unsafe { pncclAllReduce(send, recv, 5, ncclFloat, ncclSum, comms[rank], null_mut()) });
    }
    ok(pncclGroupEnd());
    assert_eq!(outputs[0], [0.0; 5]);
    ok(pncclGroupEnd());
    assert_eq!(outputs, [[6.0; 5]; 3]);
    ok(pncclGroupStart());
    for rank in 0..3 {
        // SAFETY: the places stay until the group's end.
        ok(unsafe {
            pncclCommSplit(comms[rank], rank as i32 / 2, 0, &mut parts[rank], null_mut())
        });
    }
    ok(pncclGroupEnd());
    assert_eq!(parts.map(rank_of), [(0, 2), (1, 2), (0, 1)]);
    destroy(&parts);
    destroy(&comms);
}

#[test]
fn a_group_with_a_wrong_call_makes_nothing() {
    let comms = of_one_thread::<2>();
    let (id, mut fresh) = (new_id(), Handle(null_mut()).0);
    let (input, mut output) = ([1.0f32; 4], [0.0f32; 4]);
    ok(pncclGroupStart());
    // SAFETY: the places stay until the group's end.
    unsafe {
        ok(pncclCommInitRank(&mut fresh, 1, id, 0));
        let (send, recv) = (input.as_ptr().cast(), output.as_mut_ptr().cast());
        let wrong = pncclAllReduce(send, recv, 4, 99, ncclSum, comms[0], null_mut());
        refused(wrong, ncclInvalidArgument, "99");
    }
    refused(pncclGroupEnd(), ncclInvalidArgument, "99");
    assert!(fresh.is_null());
    refused(pncclGroupEnd(), ncclInvalidUsage, "never started");
    destroy(&comms);
}

#[test]
fn a_simulated_group_says_how_long_it_takes_and_runs_nothing() {
    let comms = of_one_thread::<2>();
    let mut info = ncclSimInfo_t {
        size: size_of::<ncclSimInfo_t>(),
        magic: SIM_INFO_MAGIC,
        version: NCCL_VERSION_CODE as u32,
        estimatedTime: NCCL_UNDEF_FLOAT,
    };
    let mut times = Vec::new();
    for count in [1, 1 << 20] {
        let (input, mut output) = (vec![1.0f32; count], vec![0.0f32; count]);
        ok(pncclGroupStart());
        for comm in comms {
            let (send, recv) = (input.as_ptr().cast(), output.as_mut_ptr().cast());
            // SAFETY: the buffers stay until the group's end.
            ok(unsafe { pncclAllReduce(send, recv, count, ncclFloat, ncclSum, comm, null_mut()) });
        }
        // SAFETY: the place is a local.
        ok(unsafe { pncclGroupSimulateEnd(&mut info) });
        assert!(output.iter().all(|value| *value == 0.0));
        times.push(info.estimatedTime);
    }
    assert!(0.0 < times[0] && 10.0 * times[0] < times[1], "{times:?} us");
    info.magic = 0;
    ok(pncclGroupStart());
    // SAFETY: the place is a local.
    let wrong = unsafe { pncclGroupSimulateEnd(&mut info) };
    refused(wrong, ncclInvalidArgument, "NCCL_SIM_INFO_INITIALIZER");
    // SAFETY: safe for any argument.
    let unbalanced = unsafe { pncclGroupSimulateEnd(&mut info) };
    refused(unbalanced, ncclInvalidUsage, "never started");
    destroy(&comms);
}

#[test]
fn a_refused_question_leaves_the_group_as_it_is() {
    let comms = of_one_thread::<1>();
    let (one, mut sum, mut count) = (1i32, 0i32, 0);
    ok(pncclGroupStart());
    let (send, recv) = ((&raw const one).cast(), (&raw mut sum).cast());
    // SAFETY: the places stay until the group's end.
    unsafe {
        ok(pncclAllReduce(send, recv, 1, ncclInt, ncclSum, comms[0], null_mut()));
        refused(pncclCommCount(null_mut(), &mut count), ncclInvalidArgument, "NULL");
        refused(pncclCommCount(comms[0], null_mut()), ncclInvalidArgument, "NULL");
    }
    ok(pncclGroupEnd());
    assert_eq!(sum, 1);
    destroy(&comms);
}
