//! All-reduces in memory that peers reach directly.

use super::*;

/// Bytes of the all-reduces below: one element to more than any staging buffer holds.
const SIZES: [usize; 6] = [8, 1000, PAGE, 128 << 10, 1 << 20, 8 << 20];

/// Where a rank's two buffers lie.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Where {
    Plain,
    Exported,
    Registered,
}

/// An all-reduce of every size, out of place and in place.
fn sums(comm: ringComm_t, rank: usize, send: &mut [f32], recv: &mut [f32], context: &str) {
    for (round, bytes) in SIZES.into_iter().enumerate() {
        let count = bytes / 4;
        let value = |i: usize, rank: usize| ((i * 7 + round) % 4093) as f32 * (rank + 1) as f32;
        for in_place in [false, true] {
            recv[..count].fill(-1.0);
            let input = if in_place { &mut *recv } else { &mut *send };
            input[..count].iter_mut().enumerate().for_each(|(i, x)| *x = value(i, rank));
            let (input, output) = (input.as_ptr().cast(), recv.as_mut_ptr().cast());
            // SAFETY: both buffers hold `count` elements.
            succeeds(unsafe { ringAllReduce(input, output, count, FLOAT, SUM, comm, null_mut()) });
            for (i, sum) in recv[..count].iter().enumerate() {
                let want = value(i, 0) + value(i, 1);
                assert_eq!(*sum, want, "{context}: {bytes} B, in place {in_place}, element {i}");
            }
        }
    }
}

/// `bytes` zeroed bytes of `ringMemAlloc`.
fn exported<'a>(bytes: usize) -> &'a mut [f32] {
    let mut start = null_mut();
    // SAFETY: a local; then what was just allocated, zeroed and aligned to a page.
    unsafe {
        succeeds(ringMemAlloc(&mut start, bytes));
        std::slice::from_raw_parts_mut(start.cast(), bytes / 4)
    }
}

/// Both all-reduces with the buffers as `place` says, and, where one rank's were registered, once
/// more when they are not any longer.
fn reduce_in(comm: ringComm_t, rank: usize, place: [Where; 2]) {
    let context = &format!("{place:?}");
    let again = place.contains(&Where::Registered);
    let mine = place[rank];
    let bytes = SIZES[SIZES.len() - 1];
    if mine == Where::Exported {
        let (send, recv) = (exported(bytes), exported(bytes));
        sums(comm, rank, send, recv, context);
        if again {
            sums(comm, rank, send, recv, context);
        }
        for buffer in [send.as_mut_ptr(), recv.as_mut_ptr()] {
            // SAFETY: allocated above, and not used any more.
            unsafe {
                succeeds(ringMemFree(buffer.cast()));
                assert_eq!(ringMemFree(buffer.cast()), ringInvalidArgument);
            }
        }
        return;
    }
    let (mut send, mut recv) = (Pages::new(bytes / PAGE), Pages::new(bytes / PAGE));
    let mut handles = [null_mut(); 2];
    if mine == Where::Registered {
        for (pages, handle) in [&send, &recv].into_iter().zip(&mut handles) {
            // SAFETY: the pages stay until they are deregistered.
            succeeds(unsafe { ringCommRegister(comm, pages.at(0), bytes, handle) });
            assert_eq!(access(pages.at(0)), "rw-s");
        }
    }
    sums(comm, rank, send.numbers(), recv.numbers(), context);
    if mine == Where::Registered {
        let content = (send.numbers().to_vec(), recv.numbers().to_vec());
        for (pages, handle) in [&send, &recv].into_iter().zip(handles) {
            // SAFETY: no call uses the pages.
            succeeds(unsafe { ringCommDeregister(comm, handle) });
            assert_eq!(access(pages.at(0)), "rw-p", "{context}: ordinary again");
        }
        assert!(send.numbers() == content.0 && recv.numbers() == content.1, "{context}");
    }
    if again {
        sums(comm, rank, send.numbers(), recv.numbers(), &format!("{context}, deregistered"));
    }
}

#[test]
fn sums_in_exported_memory_are_right_whoever_has_it() {
    use Where::*;
    in_processes(2, |seat, _| {
        let comm = join(seat, 0);
        let places = [
            [Exported, Exported],
            [Exported, Plain],
            [Plain, Exported],
            [Registered, Registered],
            [Registered, Plain],
            [Plain, Registered],
            [Exported, Registered],
        ];
        for place in places {
            reduce_in(comm, seat.rank, place);
        }
        destroy(comm);
        assert_eq!(shared_mappings(), 0, "peers' memory is given up with the communicator");
        String::new()
    });
}

#[test]
fn exported_memory_is_mapped_by_the_peer() {
    in_processes(2, |seat, _| {
        let comm = join(seat, 0);
        let bytes = SIZES[SIZES.len() - 1];
        let (send, recv) = (exported(bytes), exported(bytes));
        assert_eq!(shared_mappings(), 2);
        sums(comm, seat.rank, send, recv, "both");
        assert!(shared_mappings() > 2, "nothing of the peer's was mapped");
        destroy(comm);
        String::new()
    });
}
