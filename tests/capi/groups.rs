//! What the communicators of a group, and of a stream, say of an error.

use super::*;

/// Room for every sum, as long as its caller's group or stream has it.
type Buffer = [f32; 16];

/// A sum of so many elements on a communicator.
fn sum(buffer: &mut Buffer, count: usize, comm: ringComm_t, stream: ringStream_t) -> ringResult_t {
    let buffer = buffer.as_mut_ptr().cast();
    // SAFETY: each caller keeps the buffer until the call is over.
    unsafe { ringAllReduce(buffer, buffer, count, FLOAT, SUM, comm, stream) }
}

/// Both ranks name both calls.
fn names_both(comm: ringComm_t) {
    let text = last_error_of(comm);
    for part in ["count=8", "count=9", "rank 0", "rank 1"] {
        assert!(text.contains(part), "{part} is not in: {text}");
    }
}

#[test]
fn a_group_that_fails_is_known_to_its_communicators() {
    let (all, others) = (init_all(2), init_all(2));
    std::thread::scope(|scope| {
        join_all(all.iter().zip(&others).enumerate().map(|(rank, (comm, other))| {
            scope.spawn(move || {
                let (mut nine, mut four): (Buffer, Buffer) = Default::default();
                succeeds(ringGroupStart());
                succeeds(sum(&mut nine, 8 + rank, comm.comm(), null_mut()));
                succeeds(sum(&mut four, 4, other.comm(), null_mut()));
                let result = ringGroupEnd();
                assert!(matches!(result, ringInvalidUsage | ringRemoteError), "{result:?}");
                names_both(comm.comm());
                // The group is the last call that failed on this one, too; it goes on.
                names_both(other.comm());
                succeeds(sum(&mut four, 4, other.comm(), null_mut()));
            })
        }));
    });
    let fresh = init_all(1);
    assert_eq!(last_error_of(fresh[0].comm()), "");
    end_all(&fresh);
    end_all(&others);
}

#[test]
fn a_refused_group_is_known_to_its_communicators() {
    let (all, others) = (init_all(1), init_all(1));
    let mut buffer = Buffer::default();
    succeeds(ringGroupStart());
    succeeds(sum(&mut buffer, 4, all[0].comm(), null_mut()));
    // SAFETY: refused before a buffer is touched.
    let refused = unsafe { ringSend(null(), 1, FLOAT, 7, others[0].comm(), null_mut()) };
    assert_eq!(refused, ringInvalidArgument);
    assert_eq!(ringGroupEnd(), ringInvalidArgument);
    for comm in [all[0], others[0]] {
        assert!(last_error_of(comm.comm()).contains("peer 7"), "{}", last_error_of(comm.comm()));
    }
    end_all(&all);
    end_all(&others);
}

#[test]
fn a_split_that_fails_in_a_group_is_known_to_its_parent() {
    let all = init_all(2);
    // SAFETY: safe for any argument.
    succeeds(unsafe { ringCommAbort(all[1].comm()) });
    let mut child = null_mut();
    succeeds(ringGroupStart());
    // SAFETY: the place for the handle lives until the group's end.
    succeeds(unsafe { ringCommSplit(all[0].comm(), 0, 0, &mut child, null_mut()) });
    assert_ne!(ringGroupEnd(), ringSuccess);
    assert!(last_error_of(all[0].comm()).contains("rank 1"), "{}", last_error_of(all[0].comm()));
    // SAFETY: safe for any argument.
    succeeds(unsafe { ringCommAbort(all[0].comm()) });
}

/// What ends a communicator waits for the calls that another thread's group holds, not for ever.
#[test]
fn who_ends_a_communicator_does_not_wait_for_ever_for_a_group() {
    let parent = init_all(1)[0];
    for splits in [false, true] {
        let (mut comm, mut brief) = (null_mut(), ringConfig_t { timeoutMs: 200, ..settings(0) });
        // SAFETY: both are locals.
        succeeds(unsafe { ringCommSplit(parent.comm(), 0, 0, &mut comm, &mut brief) });
        let (comm, moment) = (Handle(comm), Barrier::new(2));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let (mut buffer, mut child) = (Buffer::default(), null_mut());
                succeeds(ringGroupStart());
                succeeds(match splits {
                    // SAFETY: the place for the handle lives until the group's end.
                    true => unsafe { ringCommSplit(comm.comm(), 0, 0, &mut child, null_mut()) },
                    false => sum(&mut buffer, 4, comm.comm(), null_mut()),
                });
                moment.wait();
                moment.wait();
                assert_ne!(ringGroupEnd(), ringSuccess);
                assert!(child.is_null());
            });
            moment.wait();
            for end in [ringCommFinalize, ringCommDestroy] {
                // SAFETY: safe for any argument.
                assert_eq!(unsafe { end(comm.comm()) }, ringInvalidUsage);
                assert!(last_error().contains("ringGroupEnd"), "{}", last_error());
            }
            // SAFETY: safe for any argument.
            assert_eq!(unsafe { ringCommDestroy(comm.comm()) }, ringInvalidArgument);
            moment.wait();
        });
    }
    end_all(&[parent]);
}

#[test]
fn a_call_that_fails_on_a_stream_is_known_to_its_communicator() {
    let all = init_all(2);
    std::thread::scope(|scope| {
        join_all(all.iter().enumerate().map(|(rank, comm)| {
            scope.spawn(move || {
                let (mut stream, mut buffer) = (null_mut(), Buffer::default());
                // SAFETY: a local; the stream is this thread's.
                unsafe {
                    succeeds(ringStreamCreate(&mut stream));
                    succeeds(sum(&mut buffer, 8 + rank, comm.comm(), stream));
                    assert_ne!(ringStreamSynchronize(stream), ringSuccess);
                    succeeds(ringStreamDestroy(stream));
                }
                names_both(comm.comm());
            })
        }));
    });
}

/// Messages that are longer than a slot, so that each waits for its receive.
const LONG: usize = 3 << 20;

#[test]
fn messages_on_both_sides_of_a_collective_are_one_batch() {
    let all = init_all(2);
    std::thread::scope(|scope| {
        join_all(all.iter().enumerate().map(|(rank, comm)| {
            scope.spawn(move || {
                let comm = comm.comm();
                let (sent, mut got) = (vec![rank as f32; LONG], vec![-1f32; LONG]);
                let mut four: Buffer = [1.0; 16];
                let peer = 1 - rank as c_int;
                let to = sent.as_ptr().cast();
                let from = got.as_mut_ptr().cast();
                succeeds(ringGroupStart());
                // SAFETY: the buffers live until the group's end.
                unsafe {
                    // The ranks put the collective in different places.
                    if rank == 0 {
                        succeeds(ringSend(to, LONG, FLOAT, peer, comm, null_mut()));
                        succeeds(sum(&mut four, 16, comm, null_mut()));
                        succeeds(ringRecv(from, LONG, FLOAT, peer, comm, null_mut()));
                    } else {
                        succeeds(ringSend(to, LONG, FLOAT, peer, comm, null_mut()));
                        succeeds(ringRecv(from, LONG, FLOAT, peer, comm, null_mut()));
                        succeeds(sum(&mut four, 16, comm, null_mut()));
                    }
                }
                succeeds(ringGroupEnd());
                assert_eq!(four, [2.0; 16]);
                assert!(got.iter().all(|value| *value == peer as f32));
            })
        }));
    });
    end_all(&all);
}

#[test]
fn a_message_from_nowhere_is_refused_where_it_is_put_into_a_group() {
    let all = init_all(1);
    let mut buffer: Buffer = [3.0; 16];
    succeeds(ringGroupStart());
    succeeds(sum(&mut buffer, 16, all[0].comm(), null_mut()));
    // SAFETY: refused before a buffer is touched.
    let refused = unsafe { ringSend(null(), 4, FLOAT, 0, all[0].comm(), null_mut()) };
    assert_eq!(refused, ringInvalidArgument);
    assert!(last_error().contains("Send: the buffer of 4 elements is NULL"), "{}", last_error());
    assert_eq!(ringGroupEnd(), ringInvalidArgument);
    end_all(&all);
}
