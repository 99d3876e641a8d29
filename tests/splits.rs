//! Communicators from communicators: split, split of a split, shrink.

mod support;

use ringcomm::communicator::{Call, Communicator};
use ringcomm::config::Config;
use ringcomm::error::Error;
use ringcomm::plan::Collective;
use ringcomm::types::DataType;
use support::{config, on_joined_threads, on_processes, on_threads};

/// What every rank gives, gathered by all.
fn gather(comm: &Communicator, mine: i64) -> Vec<i64> {
    let mut all = vec![0; comm.nranks()];
    let call = Call {
        send: (&raw const mine).cast(),
        recv: all.as_mut_ptr().cast(),
        count: 1,
        ..Call::new(Collective::AllGather, DataType::Int64)
    };
    // SAFETY: one element from each rank.
    unsafe { comm.run(&call) }.unwrap();
    all
}

fn split_by_parity(comm: &Communicator) {
    let rank = comm.rank() as i32;
    // Larger keys first: the new order is the old one backwards.
    let half = comm.split(rank % 2, -rank, None).unwrap().unwrap();
    let mut want: Vec<i64> =
        (0..comm.nranks() as i64).filter(|other| other % 2 == i64::from(rank % 2)).collect();
    want.reverse();
    assert_eq!(half.nranks(), want.len());
    assert_eq!(want[half.rank()], i64::from(rank));
    assert_eq!(gather(&half, i64::from(rank)), want);
    // The parent still works, and the two halves do not mix.
    assert_eq!(gather(comm, 1), vec![1; comm.nranks()]);
    let quarter = half.split((half.rank() / 2) as i32, 0, None).unwrap().unwrap();
    let pair: Vec<i64> = want.chunks(2).nth(half.rank() / 2).unwrap().to_vec();
    assert_eq!(gather(&quarter, i64::from(rank)), pair);
}

#[test]
fn a_split_orders_by_key_and_can_be_split_again() {
    for nranks in [1, 2, 5, 8] {
        on_threads(nranks, &config(), split_by_parity);
        on_joined_threads(nranks, &config(), split_by_parity);
    }
}

#[test]
fn processes_split_too() {
    for nranks in [2, 5] {
        on_processes(nranks, &config(), "", |comm, _| {
            split_by_parity(comm);
            String::new()
        });
    }
}

#[test]
fn equal_keys_keep_the_old_order_and_a_negative_color_stays_out() {
    on_threads(5, &config(), |comm| {
        let color = if comm.rank() == 2 { -1 } else { 7 };
        let child = comm.split(color, 0, None).unwrap();
        assert_eq!(child.is_none(), comm.rank() == 2);
        if let Some(child) = child {
            assert_eq!(gather(&child, comm.rank() as i64), [0, 1, 3, 4]);
        }
    });
}

#[test]
fn a_split_can_have_settings_of_its_own() {
    on_threads(4, &config(), |comm| {
        let own = Config { deterministic: true, buffer_bytes: 1 << 20, ..config() };
        let child = comm.split(0, 0, Some(&own)).unwrap().unwrap();
        assert!(child.config().deterministic && !comm.config().deterministic);
        assert_eq!(gather(&child, 3), [3; 4]);
    });
}

#[test]
fn many_splits_of_one_communicator_live_side_by_side() {
    on_threads(4, &config(), |comm| {
        let small = Config { buffer_bytes: 64 << 10, ..config() };
        let children: Vec<Communicator> = (0..10)
            .map(|turn| {
                let color = (comm.rank() + turn) as i32 % 2;
                comm.split(color, 0, Some(&small)).unwrap().unwrap()
            })
            .collect();
        for child in children.iter().rev() {
            assert_eq!(gather(child, 5), [5; 2]);
        }
    });
}

#[test]
fn a_shrunken_communicator_works_without_the_excluded() {
    on_threads(5, &config(), |comm| {
        if comm.rank() == 1 || comm.rank() == 4 {
            return;
        }
        let fewer = comm.shrink(&[4, 1], None).unwrap();
        assert_eq!(gather(&fewer, comm.rank() as i64), [0, 2, 3]);
        if fewer.rank() > 0 {
            let last = fewer.shrink(&[0], None).unwrap();
            assert_eq!(gather(&last, comm.rank() as i64), [2, 3]);
        }
    });
}

#[test]
fn wrong_exclusions_are_refused_by_name() {
    on_threads(2, &config(), |comm| {
        for (excluded, word) in [(vec![5], "rank 5"), (vec![comm.rank()], "excludes itself")] {
            match comm.shrink(&excluded, None) {
                Err(Error::InvalidArgument(text)) => assert!(text.contains(word), "{text}"),
                other => panic!("{:?}", other.err()),
            }
        }
        assert_eq!(gather(comm, 1), [1, 1]);
    });
}
