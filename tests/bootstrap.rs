//! The rendezvous between threads and processes, with every kind of guest it must survive.

use ringcomm::bootstrap::{Contribution, Member, UniqueId, exchange, process_token};
use ringcomm::error::{Error, Result};
use std::thread;
use std::time::{Duration, Instant};

fn soon(ms: u64) -> Instant {
    Instant::now() + Duration::from_millis(ms)
}

/// Long enough for any machine; nothing here comes near it unless it hangs.
fn patient() -> Instant {
    soon(30_000)
}

fn contribution(rank: usize) -> Contribution {
    let payload = format!("payload of rank {rank}").into_bytes();
    Contribution { payload, process: process_token().unwrap(), fds: Vec::new() }
}

fn check(members: &[Member], nranks: usize) {
    assert_eq!(members.len(), nranks);
    for (rank, member) in members.iter().enumerate() {
        assert_eq!(member.payload, format!("payload of rank {rank}").into_bytes());
    }
}

/// Every `(rank, nranks)` as a thread, all with one id.
fn threads(ranks: &[(usize, usize)], deadline: Instant) -> Vec<Result<Vec<Member>>> {
    let id = UniqueId::generate().unwrap();
    thread::scope(|scope| {
        let handles: Vec<_> = ranks
            .iter()
            .map(|&(rank, nranks)| {
                let id = &id;
                scope.spawn(move || exchange(id, rank, nranks, contribution(rank), deadline))
            })
            .collect();
        handles.into_iter().map(|handle| handle.join().unwrap()).collect()
    })
}

#[test]
fn threads_meet() {
    for nranks in [1, 2, 3, 4, 7, 16, 64] {
        let ranks: Vec<_> = (0..nranks).map(|rank| (rank, nranks)).collect();
        let start = Instant::now();
        for result in threads(&ranks, patient()) {
            check(&result.unwrap(), nranks);
        }
        println!("{nranks} threads met in {:?}", start.elapsed());
    }
}
