//! Windows, puts and signals; memory that is allocated and registered.

use crate::ranks::*;
use ringcomm_nccl::group::*;
use ringcomm_nccl::init::*;
use ringcomm_nccl::lifecycle::*;
use ringcomm_nccl::memory::windows::*;
use ringcomm_nccl::memory::*;
use ringcomm_nccl::types::*;
use ringcomm_nccl::unsupported::*;
use std::ffi::c_void;
use std::ptr::null_mut;

const BYTES: usize = 8192;

fn allocate() -> *mut c_void {
    let mut memory = null_mut();
    // SAFETY: the place is a local.
    ok(unsafe { pncclMemAlloc(&mut memory, BYTES) });
    memory
}

#[test]
fn what_is_put_is_there_once_its_signal_has_come() {
    with_ranks(2, |rank, comm| {
        let (memory, mut window, mut found) = (allocate(), null_mut(), null_mut());
        let values: Vec<i32> = (0..100).map(|at| at * (rank + 1)).collect();
        let source = values.as_ptr().cast();
        let other = 1 - rank;
        let mut wait = ncclWaitSignalDesc_t { opCnt: 2, peer: other, sigIdx: 5, ctx: 0 };
        // SAFETY: the memory has room, and the places are locals.
        unsafe {
            let flags = NCCL_WIN_COLL_SYMMETRIC;
            ok(pncclCommWindowRegister(comm, memory, BYTES, &mut window, flags));
            ok(pncclWinGetUserPtr(comm, window, &mut found));
            assert_eq!(found, memory);
            let no = null_mut();
            ok(pncclPutSignal(source, 100, ncclInt, other, window, 400, 5, 0, 0, comm, no));
            ok(pncclSignal(other, 5, 0, 0, comm, no));
            ok(pncclWaitSignal(1, &mut wait, comm, no));
            let come = memory.cast::<i32>().add(100);
            assert!((0..100).all(|at| come.add(at as usize).read() == at * (other + 1)));
            let wrong =
                pncclPutSignal(source, 100, ncclInt, other, window, BYTES, 5, 0, 0, comm, no);
            refused(wrong, ncclInvalidArgument, "are not in the window of rank");
            let wrong = pncclSignal(other, 64, 0, 0, comm, no);
            refused(wrong, ncclInvalidArgument, "signal 64; there are 0 to 63");
            let wrong = pncclSignal(other, 0, 1, 0, comm, no);
            refused(wrong, ncclInvalidArgument, "context 1");
            // In a group, whatever the order of its calls: who puts waits for nobody.
            memory.cast::<i32>().add(1).write(-1);
            ok(pncclSignal(other, 6, 0, 0, comm, no));
            wait.sigIdx = 6;
            wait.opCnt = 1;
            ok(pncclWaitSignal(1, &mut wait, comm, no));
            wait.sigIdx = 5;
            ok(pncclGroupStart());
            ok(pncclWaitSignal(1, &mut wait, comm, no));
            ok(pncclPutSignal(source, 1, ncclInt, other, window, 4, 5, 0, 0, comm, no));
            ok(pncclGroupEnd());
            assert_eq!(memory.cast::<i32>().add(1).read(), 0);
            ok(pncclCommWindowDeregister(comm, window));
            let wrong = pncclCommWindowDeregister(comm, window);
            refused(wrong, ncclInvalidArgument, "is one no more");
            ok(pncclMemFree(memory));
            refused(pncclMemFree(memory), ncclInvalidArgument, "ncclMemAlloc");
        }
    });
}

type Pair<T> = [T; 2];

/// Two ranks of this thread, their memory, and its windows.
fn of_one_thread() -> (Pair<ncclComm_t>, Pair<*mut c_void>, Pair<ncclWindow_t>) {
    let (mut comms, mut windows) = ([null_mut(); 2], [null_mut(); 2]);
    // SAFETY: there is room for two.
    ok(unsafe { pncclCommInitAll(comms.as_mut_ptr(), 2, std::ptr::null()) });
    let memory = [allocate(), allocate()];
    ok(pncclGroupStart());
    for rank in 0..2 {
        let place = &mut windows[rank];
        // SAFETY: the places stay until the group's end.
        ok(unsafe { pncclCommWindowRegister(comms[rank], memory[rank], BYTES, place, 1) });
    }
    ok(pncclGroupEnd());
    (comms, memory, windows)
}

#[test]
fn one_thread_registers_the_windows_of_several_ranks_in_a_group() {
    let (comms, memory, mut windows) = of_one_thread();
    assert!(windows.iter().all(|window| !window.is_null()));
    let (value, mut wait) = (7i32, ncclWaitSignalDesc_t { opCnt: 1, peer: 0, sigIdx: 0, ctx: 0 });
    // SAFETY: the memory has room, and the places are locals.
    unsafe {
        let (source, no) = ((&raw const value).cast(), null_mut());
        ok(pncclPutSignal(source, 1, ncclInt, 1, windows[0], 8, 0, 0, 0, comms[0], no));
        ok(pncclWaitSignal(1, &mut wait, comms[1], no));
        assert_eq!(memory[1].cast::<i32>().add(2).read(), 7);
        ok(pncclGroupStart());
        let wrong = pncclCommWindowRegister(comms[0], memory[0], BYTES, &mut windows[0], 1 << 9);
        refused(wrong, ncclInvalidArgument, "flags that no window has");
        refused(pncclGroupEnd(), ncclInvalidArgument, "flags that no window has");
        for rank in 0..2 {
            ok(pncclCommWindowDeregister(comms[rank], windows[rank]));
            ok(pncclCommDestroy(comms[rank]));
            ok(pncclMemFree(memory[rank]));
        }
    }
}

#[test]
fn signals_need_a_window_first() {
    with_ranks(2, |rank, comm| {
        // SAFETY: nothing is read.
        let early = unsafe { pncclSignal(1 - rank, 0, 0, 0, comm, null_mut()) };
        refused(early, ncclInvalidUsage, "ncclCommWindowRegister");
    });
}

#[test]
fn any_buffer_can_be_registered() {
    with_ranks(2, |_, comm| {
        let mut odd = [0u8; 100];
        let (mut one, mut other, memory) = (null_mut(), null_mut(), allocate());
        // SAFETY: the buffers live, and the places are locals.
        unsafe {
            ok(pncclCommRegister(comm, odd.as_mut_ptr().add(1).cast(), 99, &mut one));
            ok(pncclCommRegister(comm, memory, BYTES, &mut other));
            ok(pncclCommDeregister(comm, one));
            ok(pncclCommDeregister(comm, other));
            refused(pncclCommDeregister(comm, other), ncclInvalidArgument, "registration");
            let wrong = pncclCommRegister(comm, null_mut(), 8, &mut one);
            refused(wrong, ncclInvalidArgument, "ncclCommRegister: the buffer is NULL");
            ok(pncclMemFree(memory));
            ok(pncclMemFree(null_mut()));
        }
    });
}

#[test]
fn what_kernels_would_need_is_refused_with_the_reason() {
    with_ranks(1, |_, comm| {
        let why = "kernels compiled against NCCL's headers";
        // SAFETY: nothing is read or written.
        unsafe {
            let refusals = [
                pncclDevCommCreate(comm, std::ptr::null(), null_mut()),
                pncclDevCommDestroy(comm, std::ptr::null()),
                pncclGetLsaDevicePointer(null_mut(), 0, 0, null_mut()),
                pncclGetPeerDevicePointer(null_mut(), 0, 0, null_mut()),
                pncclGetLsaMultimemDevicePointer(null_mut(), 0, null_mut()),
                pncclLLA2ACreateRequirement(1, 1, null_mut(), null_mut()),
            ];
            for refusal in refusals {
                refused(refusal, ncclInvalidUsage, why);
            }
        }
        assert!(last_error(comm).contains(why), "{}", last_error(comm));
        let world = pncclTeamWorld(comm);
        assert_eq!((world.nRanks, world.rank, world.stride), (1, 0, 1));
        assert_eq!(pncclTeamRankToWorld(comm, world, 0), 0);
        assert_eq!(pncclTeamWorld(null_mut()).nRanks, 0);
    });
}

#[test]
fn a_rank_of_the_same_process_that_has_ended_is_no_target() {
    let (comms, memory, windows) = of_one_thread();
    let (value, no) = (7i32, null_mut());
    // SAFETY: the memory that is freed is no window any more.
    unsafe {
        let source = (&raw const value).cast();
        ok(pncclCommWindowDeregister(comms[1], windows[1]));
        ok(pncclMemFree(memory[1]));
        let gone = pncclPutSignal(source, 1, ncclInt, 1, windows[0], 0, 0, 0, 0, comms[0], no);
        refused(gone, ncclInvalidUsage, "rank 1 has deregistered its window");
        ok(pncclSignal(1, 0, 0, 0, comms[0], no));
        ok(pncclCommDestroy(comms[1]));
        refused(pncclSignal(1, 0, 0, 0, comms[0], no), ncclRemoteError, "rank 1");
        ok(pncclCommAbort(comms[0]));
        ok(pncclMemFree(memory[0]));
    }
}
