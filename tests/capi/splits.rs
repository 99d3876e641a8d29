//! Splits of one communicator in one group; shrinks.

use super::*;

#[test]
fn splits_of_one_communicator_in_one_group_keep_their_order() {
    let all = init_all(4);
    for _ in 0..10 {
        std::thread::scope(|scope| {
            join_all(
                all.iter()
                    .enumerate()
                    .map(|(rank, comm)| scope.spawn(move || split_twice(rank as i32, comm.comm()))),
            );
        });
    }
    end_all(&all);
}

fn split_twice(rank: i32, comm: ringComm_t) {
    let (mut parity, mut half, mut backwards) = (null_mut(), null_mut(), null_mut());
    succeeds(ringGroupStart());
    // SAFETY: the places for the handles live until the group's end.
    unsafe {
        succeeds(ringCommSplit(comm, rank % 2, 0, &mut parity, null_mut()));
        succeeds(ringCommSplit(comm, rank / 2, 0, &mut half, null_mut()));
        succeeds(ringCommSplit(comm, 0, -rank, &mut backwards, null_mut()));
    }
    succeeds(ringGroupEnd());
    assert_eq!(gather(parity, rank), [rank % 2, rank % 2 + 2]);
    assert_eq!(gather(half, rank), [rank / 2 * 2, rank / 2 * 2 + 1]);
    assert_eq!(gather(backwards, rank), [3, 2, 1, 0]);
    [parity, half, backwards].into_iter().for_each(destroy);
}

#[test]
fn one_thread_splits_all_its_ranks_in_a_group() {
    let all = init_all(4);
    let mut children = [[null_mut(); 2]; 4];
    succeeds(ringGroupStart());
    for (rank, (comm, [parity, half])) in all.iter().zip(&mut children).enumerate() {
        let rank = rank as i32;
        // SAFETY: the places for the handles live until the group's end.
        unsafe {
            succeeds(ringCommSplit(comm.comm(), rank % 2, 0, parity, null_mut()));
            succeeds(ringCommSplit(comm.comm(), rank / 2, 0, half, null_mut()));
        }
    }
    succeeds(ringGroupEnd());
    for (rank, [parity, half]) in children.into_iter().enumerate() {
        for (child, want) in [(parity, rank / 2), (half, rank % 2)] {
            let mut at = -1;
            // SAFETY: a local.
            succeeds(unsafe { ringCommUserRank(child, &mut at) });
            assert_eq!(at, want as c_int);
            destroy(child);
        }
    }
    end_all(&all);
}

#[test]
fn a_shrink_that_names_nobody_keeps_all_who_live() {
    let all = init_all(3);
    let shrink = |comm: ringComm_t, flags| {
        let mut fewer = null_mut();
        // SAFETY: a place for the handle; an empty list is not read.
        let result = unsafe { ringCommShrink(comm, null_mut(), 0, &mut fewer, null_mut(), flags) };
        succeeds(result);
        fewer
    };
    for flags in [RING_SHRINK_DEFAULT, RING_SHRINK_ABORT] {
        std::thread::scope(|scope| {
            join_all(all.iter().enumerate().map(|(rank, comm)| {
                scope.spawn(move || {
                    let fewer = shrink(comm.comm(), flags);
                    assert_eq!(gather(fewer, rank as i32), [0, 1, 2]);
                    destroy(fewer);
                })
            }));
        });
    }
    end_all(&all);
}

#[test]
fn abort_ends_a_split_that_waits_for_others() {
    let all = init_all(2);
    let (first, second) = (all[0], all[1]);
    std::thread::scope(|scope| {
        let split = scope.spawn(move || {
            let mut child = null_mut();
            // SAFETY: a local.
            unsafe { ringCommSplit(first.comm(), 0, 0, &mut child, null_mut()) }
        });
        // What the ranks tell each other, without the meeting that follows.
        let (mine, mut told) = ([0i32, 0, 0, i32::MAX], [0i32; 8]);
        let (send, recv) = (mine.as_ptr().cast(), told.as_mut_ptr().cast());
        // SAFETY: four elements from each rank.
        succeeds(unsafe { ringAllGather(send, recv, 4, INT, second.comm(), null_mut()) });
        std::thread::sleep(Duration::from_millis(50));
        assert!(!split.is_finished());
        // SAFETY: safe for any argument.
        succeeds(unsafe { ringCommAbort(first.comm()) });
        assert_eq!(split.join().unwrap(), ringAborted);
    });
    destroy(second.comm());
}

#[test]
fn an_id_for_some_ranks_names_what_is_wrong_with_them() {
    let all = init_all(3);
    let mut id = ringUniqueId { internal: [0; 128] };
    let ask = |ranks: *const c_int, nranks: c_int, id: *mut ringUniqueId| {
        // SAFETY: where ranks and an id are named they are there.
        unsafe { ringCommGetUniqueId(all[0].comm(), ranks, nranks, id) }
    };
    let refused = |ranks: *const c_int, nranks: c_int, id: *mut ringUniqueId, word: &str| {
        assert_eq!(ask(ranks, nranks, id), ringInvalidArgument);
        assert!(last_error().contains(word), "{}", last_error());
    };
    succeeds(ask([0, 2].as_ptr(), 2, &mut id));
    refused([0, 3].as_ptr(), 2, &mut id, "rank 3");
    refused([0].as_ptr(), 0, &mut id, "0 ranks");
    refused([0].as_ptr(), 1, null_mut(), "uniqueId");
    refused(null(), 1, &mut id, "ranks is NULL");
    end_all(&all);
}
