//! A rank that may not map what it needs says so, with what to do, and the others say it of that
//! rank: while the ranks meet, and in the call that first needs a connection.

mod support;

use ringcomm::communicator::{Communicator, Message};
use ringcomm::config::Config;
use ringcomm::error::{Error, Result};
use ringcomm::plan::Collective;
use ringcomm::types::DataType;
use std::time::{Duration, Instant};
use support::config;
use support::processes::{Ranks, Seat};
use support::scratch::{Scratch, run};

/// Let this process map so many bytes more than it has.
fn allow_only(bytes: u64) {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = pages.split(' ').next().unwrap().parse().unwrap();
    let most = pages * 4096 + bytes;
    let limit = libc::rlimit { rlim_cur: most, rlim_max: most };
    // SAFETY: a valid limit.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &limit) }, 0);
}

/// Join four ranks, of which `poor` have memory for their own segment only; the error.
fn join_with_little_memory(seat: &Seat, poor: &[usize]) -> String {
    if poor.contains(&seat.rank) {
        // A segment of rings for four ranks takes 6 MiB, and 13 where there are other hosts.
        allow_only(21 << 20);
    }
    let joined = Communicator::init_rank(seat.nranks, &seat.id, seat.rank, &seat.config);
    joined.err().expect("not all ranks can join").to_string()
}

/// What the ranks say of rank 1, before their own deadline. Those of other hosts may find it gone
/// before a rank of its host has passed the reason on.
fn say_who_has_no_memory(mut ranks: Ranks, hosts: [usize; 4]) {
    let deadline = Instant::now() + Duration::from_secs(20);
    let own = "mapping ";
    for (rank, host) in hosts.into_iter().enumerate() {
        let text = ranks.end(rank, deadline).result.unwrap_or_else(|why| panic!("{rank}: {why}"));
        let gone = text.contains("rank 1 (") && text.contains("died");
        assert!(text.contains(own) || (host != hosts[1] && gone), "rank {rank}: {text}");
        // With its host and its process.
        let who = text.contains("rank 1 (host ");
        let named = text.contains(" failed and rank") || text.contains(" died");
        assert!(rank == 1 || (who && named), "rank {rank}: {text}");
    }
}

#[test]
fn a_rank_that_cannot_map_the_others_memory_tells_them() {
    let config = Config { buff_size: Some(64 << 20), ..config() };
    let join = |seat: &Seat, _: &str| join_with_little_memory(seat, &[1]);
    say_who_has_no_memory(Ranks::start_apart(4, &config, "", join), [0; 4]);
}

#[test]
fn a_rank_that_cannot_map_the_others_memory_tells_those_of_other_hosts() {
    let config = Config { buff_size: Some(64 << 20), ..config() };
    for hosts in [[0, 0, 0, 0], [0, 0, 1, 1], [0, 0, 1, 2]] {
        let join = |seat: &Seat, _: &str| join_with_little_memory(seat, &[1]);
        say_who_has_no_memory(Ranks::start_on_hosts(&hosts, &config, "", join), hosts);
    }
}

#[test]
fn a_host_whose_ranks_all_cannot_map_each_others_memory_is_not_waited_for() {
    let config = Config { buff_size: Some(64 << 20), ..config() };
    let mut ranks = Ranks::start_on_hosts(&[0, 0, 1, 1], &config, "", |seat, _| {
        join_with_little_memory(seat, &[0, 1])
    });
    let deadline = Instant::now() + Duration::from_secs(20);
    for rank in 0..4 {
        let text = ranks.end(rank, deadline).result.unwrap_or_else(|why| panic!("{rank}: {why}"));
        // Those of the other host hear why, or find the listeners closed where not even that much
        // memory is left.
        let own = text.starts_with("mapping 1");
        assert_eq!(own, rank < 2, "rank {rank}: {text}");
        let who = text.starts_with("rank 0 (") || text.starts_with("rank 1 (");
        assert!(own || who, "rank {rank}: {text}");
    }
}

/// Some floats to or from a peer.
fn message(comm: &Communicator, scratch: &mut Scratch, sends: bool, peer: usize) -> Result<()> {
    let (count, data_type) = (100, DataType::Float32);
    let (buffer, into) = (scratch.send.as_ptr().cast(), scratch.recv.as_mut_ptr().cast());
    let message = match sends {
        true => Message::Send { buffer, count, data_type, peer },
        false => Message::Recv { buffer: into, count, data_type, peer },
    };
    // SAFETY: the buffers hold as many elements.
    unsafe { comm.exchange(&[message]) }
}

/// Ranks 1 and 2 of four have no connection when they have met. The rank that the argument names
/// has no memory for one; rank 1 sends to rank 2, which only looks for that once rank 0 has sent to
/// it, and all wait for what never comes. The error of a rank.
fn pass_on_with_little_memory(seat: &Seat, poor: &str) -> String {
    let comm = &seat.join();
    let mut scratch = Scratch::new(seat.nranks);
    let is_poor = seat.rank.to_string() == poor;
    if is_poor {
        allow_only(4 << 20);
    }
    let outcome = match seat.rank {
        0 => {
            // Until rank 1 has dialled rank 2, in most runs.
            std::thread::sleep(Duration::from_millis(700));
            message(comm, &mut scratch, true, 2)
        }
        1 => {
            // Until rank 2 has no memory.
            std::thread::sleep(Duration::from_millis(400));
            message(comm, &mut scratch, true, 2)
        }
        // It comes to the barrier, which never ends.
        3 => Ok(()),
        _ => {
            let first = message(comm, &mut scratch, false, 0);
            assert!(!is_poor || first.is_ok(), "it needs nothing of rank 1 yet: {first:?}");
            first.and_then(|()| message(comm, &mut scratch, false, 1))
        }
    };
    let barrier = scratch.call(Collective::Barrier, 0);
    let error = outcome.and_then(|()| run(comm, &barrier)).expect_err("a rank has no memory");
    assert!(!is_poor || matches!(error, Error::System { errno: libc::ENOMEM, .. }), "{error}");
    assert_eq!(comm.async_error().as_ref(), Some(&error), "it is kept");
    error.to_string()
}

#[test]
fn a_rank_without_memory_for_a_connection_says_so_and_is_named() {
    for poor in [1, 2] {
        let join = |seat: &Seat, poor: &str| pass_on_with_little_memory(seat, poor);
        let mut ranks = Ranks::start_on_hosts(&[0, 1, 2, 3], &config(), &poor.to_string(), join);
        let deadline = Instant::now() + Duration::from_secs(60);
        let who = ranks.who(poor);
        let peer = format!("for the connection to rank {}", 3 - poor);
        for rank in 0..4 {
            let text = ranks.end(rank, deadline).result.unwrap();
            for part in ["mapping ", &peer, "ulimit -v", "RINGCOMM_BUFFSIZE"] {
                assert!(text.contains(part), "rank {rank}: {part} is not in: {text}");
            }
            assert!(rank == poor || text.contains(&format!("{who} failed")), "rank {rank}: {text}");
        }
    }
}
