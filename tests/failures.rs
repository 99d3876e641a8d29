//! What happens when a rank dies, stops, aborts or is missing: named errors, soon, on every rank,
//! and nothing left behind.

mod support;

use ringcomm::bootstrap::UniqueId;
use ringcomm::communicator::{Call, Communicator, Message};
use ringcomm::config::Config;
use ringcomm::error::{Error, RankProcess};
use ringcomm::plan::Collective;
use ringcomm::types::{DataType, ReduceOp};
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::sync::Barrier;
use std::time::{Duration, Instant};
use support::delays::{asked, judge};
use support::holdings::{Holdings, Names, shared_without_a_name};
use support::pace::{Pace, Timed};
use support::processes::{Ranks, Seat, say};
use support::scratch::{Scratch, run};
use support::work::until_one_fails;
use support::{Case, Prepared, Random, config, on_threads, small_slots};

/// A rank of the killing test: works until a call fails; its last word is the error.
fn work_until_a_call_fails(seat: &Seat, seed: &str) -> String {
    let before = Holdings::now();
    let comm = seat.join();
    let mut random = Random(seed.parse().unwrap());
    // Half of the jobs work in each other's memory.
    let is_mapped = random.chance(2);
    let mut scratch =
        if is_mapped { Scratch::mapped(seat.nranks) } else { Scratch::new(seat.nranks) };
    let error = until_one_fails(&comm, &mut scratch, &mut random);
    say(&error.to_string());
    let (mapped, one_host) = (shared_without_a_name(), seat.config.host_id.is_none());
    assert!(mapped >= seat.nranks || !one_host, "{mapped} mappings of the peers' memory");
    assert_eq!(comm.async_error().as_ref(), Some(&error), "the error is kept");
    let barrier = scratch.call(Collective::Barrier, 0);
    assert_eq!(run(&comm, &barrier), Err(error.clone()), "and given again");
    drop((comm, scratch));
    assert_eq!(Holdings::back_to(&before), before, "nothing is left behind");
    String::new()
}

/// Kill a rank at a random point and see that every other one names it, and that it names its
/// operation and holds nothing afterwards (which it checks itself). Returns how long they took.
fn kill_one(round: usize, random: &mut Random, mut ranks: Ranks, nranks: usize) -> Vec<Timed> {
    let victim = random.below(nranks);
    let mut heard = Vec::new();
    let deadline = Instant::now() + Duration::from_secs(60);
    for rank in 0..nranks {
        assert_eq!(ranks.hear(rank, deadline).1, "ready");
    }
    std::thread::sleep(Duration::from_micros(random.below(4000) as u64));
    let (pace, killed) = (Pace::beside(ranks.pids()), Instant::now());
    ranks.signal(victim, libc::SIGKILL);
    for rank in (0..nranks).filter(|rank| *rank != victim) {
        let (at, text) = ranks.hear(rank, deadline);
        heard.push(at);
        let dead = ranks.who(victim) + " died";
        assert!(text.contains(&dead), "round {round}, rank {rank} of {nranks}: {text}");
    }
    for rank in 0..nranks {
        let end = ranks.end(rank, deadline);
        assert_eq!(end.killed, rank == victim);
        if rank != victim {
            end.result.unwrap_or_else(|why| panic!("round {round}, rank {rank}: {why}"));
        }
    }
    heard.into_iter().map(|at| pace.timed(killed, at)).collect()
}

#[test]
fn survivors_of_kills_name_the_dead_rank_and_the_operation_and_hold_nothing() {
    let (mut random, names) = (Random(1), Names::now());
    let mut delays = Vec::new();
    for round in 0..asked().unwrap_or(200) {
        let nranks = 2 + round % 7;
        let seed = random.next().to_string();
        let config = small_slots(nranks, 4096);
        let ranks = Ranks::start_apart(nranks, &config, &seed, |seat, seed| {
            work_until_a_call_fails(seat, seed)
        });
        delays.extend(kill_one(round, &mut random, ranks, nranks));
    }
    names.are_all();
    judge("calls on one host", &mut delays);
}

#[test]
fn survivors_of_kills_on_several_hosts_name_the_dead_rank_and_the_operation() {
    const HOSTS: [&[usize]; 6] =
        [&[0, 1], &[0, 0, 1], &[0, 1, 2], &[0, 0, 1, 1], &[0, 1, 0, 1, 2], &[0, 1, 2, 3, 4, 5, 6]];
    let (mut random, names) = (Random(2), Names::now());
    let mut delays = Vec::new();
    for round in 0..asked().unwrap_or(80) {
        let hosts = HOSTS[round % HOSTS.len()];
        let seed = random.next().to_string();
        let config = small_slots(hosts.len(), 4096);
        let ranks = Ranks::start_on_hosts(hosts, &config, &seed, |seat, seed| {
            work_until_a_call_fails(seat, seed)
        });
        delays.extend(kill_one(round, &mut random, ranks, hosts.len()));
    }
    names.are_all();
    judge("calls on several hosts", &mut delays);
}

/// A rank of the stopping tests: works until a call fails, and tells who waits for whom meanwhile.
fn work_and_tell(comm: &Communicator) -> String {
    let mut scratch = Scratch::new(comm.nranks());
    let call = scratch.call(Collective::AllReduce, 1000);
    run(comm, &call).unwrap();
    say("ready");
    std::thread::scope(|scope| {
        let (done, finished) = std::sync::mpsc::channel::<()>();
        scope.spawn(move || {
            while finished.recv_timeout(Duration::from_millis(10)).is_err_and(is_timeout) {
                let dump = comm.dump();
                let waits = dump.split("\"waited_ms\":").skip(1);
                let digits = |rest: &str| {
                    let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
                    rest[..end].parse::<u64>().ok()
                };
                if waits.filter_map(digits).any(|waited| waited >= 150) {
                    say(&dump);
                    return;
                }
            }
        });
        let error = loop {
            if let Err(error) = run(comm, &call) {
                break error;
            }
        };
        drop(done);
        error.to_string()
    })
}

fn is_timeout(error: std::sync::mpsc::RecvTimeoutError) -> bool {
    error == std::sync::mpsc::RecvTimeoutError::Timeout
}

#[test]
fn a_stopped_rank_is_named_at_the_deadline_and_in_the_dump_before_it() {
    for nranks in [2, 4] {
        let config = Config { timeout_ms: 2500, ..config() };
        let mut ranks = Ranks::start(nranks, &config, "", |comm, _| work_and_tell(comm));
        let deadline = Instant::now() + Duration::from_secs(60);
        for rank in 0..nranks {
            assert_eq!(ranks.hear(rank, deadline).1, "ready");
        }
        std::thread::sleep(Duration::from_millis(20));
        ranks.signal(1, libc::SIGSTOP);
        for rank in (0..nranks).filter(|rank| *rank != 1) {
            let (_, dump) = ranks.hear(rank, deadline);
            assert!(dump.contains("waiting for rank 1"), "rank {rank}: {dump}");
            assert!(dump.contains("\"failure\":null"), "before the deadline: {dump}");
        }
        for rank in (0..nranks).filter(|rank| *rank != 1) {
            let text = ranks.end(rank, deadline).result.unwrap();
            assert!(text.contains("timeout") && text.contains("rank 1"), "{text}");
            assert!(text.contains("AllReduce(count=1000") && text.contains('#'), "{text}");
        }
        ranks.signal(1, libc::SIGCONT);
        let text = ranks.end(1, deadline).result.unwrap();
        assert!(text.contains("timeout"), "the stopped rank learns why it is alone: {text}");
    }
}

#[test]
fn a_rank_that_stops_for_a_while_changes_nothing() {
    let mut ranks = Ranks::start(3, &config(), "", |comm, _| {
        say("ready");
        for seed in 0..200 {
            let collective = Collective::ALL[seed as usize % Collective::ALL.len()];
            let case = Case::new(collective, 3, 1500, DataType::Int32);
            Prepared::of(Case { seed, ..case }, comm.rank()).run(comm);
            if seed == 20 {
                say("going");
            }
        }
        String::new()
    });
    let deadline = Instant::now() + Duration::from_secs(60);
    for word in ["ready", "going"] {
        for rank in 0..3 {
            assert_eq!(ranks.hear(rank, deadline).1, word);
        }
    }
    for rank in [2, 0, 1] {
        ranks.signal(rank, libc::SIGSTOP);
        std::thread::sleep(Duration::from_millis(60));
        ranks.signal(rank, libc::SIGCONT);
    }
    for rank in 0..3 {
        ranks.end(rank, deadline).result.unwrap();
    }
}

#[test]
fn a_skipped_call_is_named_at_the_deadline_by_everybody() {
    for nranks in [2, 3, 5] {
        let together = Barrier::new(nranks);
        // Set-up has the same deadline, on a machine that may be busy.
        let config = Config { timeout_ms: 5000, ..config() };
        on_threads(nranks, &config, |comm| {
            let mut scratch = Scratch::new(nranks);
            let call = scratch.call(Collective::AllReduce, 10);
            run(comm, &call).unwrap();
            if comm.rank() == 1 {
                together.wait();
                return;
            }
            let text = run(comm, &call).unwrap_err().to_string();
            together.wait();
            assert!(text.contains("timeout"), "{text}");
            assert!(text.contains("rank 1 has not made call #1"), "{text}");
            assert!(text.contains("AllReduce(count=10") && text.contains("#1"), "{text}");
        });
    }
}

#[test]
fn abort_ends_a_wait_and_tells_the_peers() {
    let comms = Communicator::init_all(3, &config()).unwrap();
    std::thread::scope(|scope| {
        let waiting: Vec<_> = comms[..2]
            .iter()
            .map(|comm| {
                scope.spawn(move || {
                    let mut scratch = Scratch::new(3);
                    let call = scratch.call(Collective::AllReduce, 10);
                    run(comm, &call).unwrap_err()
                })
            })
            .collect();
        // What is aborted before its call has begun is in none.
        for (rank, comm) in comms[..2].iter().enumerate() {
            let begun = format!("rank {rank} is in AllReduce");
            let deadline = Instant::now() + Duration::from_secs(20);
            while !comm.dump().contains(&begun) && Instant::now() < deadline {
                std::thread::yield_now();
            }
        }
        comms[0].abort();
        let errors: Vec<Error> =
            waiting.into_iter().map(|waiting| waiting.join().unwrap()).collect();
        assert!(matches!(errors[0], Error::Aborted { rank: 0, operation: Some(_) }), "{errors:?}");
        assert!(
            matches!(errors[1], Error::Remote { rank: 1, peer: RankProcess { rank: 0, .. }, .. }),
            "{errors:?}"
        );
    });
    // The rank that never called has all the others' data for its first call; it learns of the
    // abort at the second at the latest. Every call from then on fails alike.
    let mut scratch = Scratch::new(3);
    let call = scratch.call(Collective::AllReduce, 10);
    for comm in &comms {
        let first = run(comm, &call).and_then(|()| run(comm, &call)).unwrap_err();
        assert_eq!(run(comm, &call).unwrap_err(), first);
        let message = Message::Recv {
            buffer: scratch.recv.as_mut_ptr().cast(),
            count: 1,
            data_type: DataType::Float32,
            peer: 0,
        };
        // SAFETY: the buffer holds an element.
        assert_eq!(unsafe { comm.exchange(&[message]) }.unwrap_err(), first);
        assert_eq!(comm.async_error(), Some(first.clone()));
        assert_eq!(comm.finalize(), Err(first));
    }
}

#[test]
fn a_refused_argument_breaks_nothing() {
    on_threads(2, &config(), |comm| {
        let mut scratch = Scratch::new(2);
        let good = scratch.call(Collective::AllReduce, 10);
        let refused = [
            Call { root: 2, ..good.clone() },
            Call { op: ReduceOp::Band, ..good.clone() },
            Call { send: std::ptr::null(), ..good.clone() },
            Call { recv: good.send.cast_mut().wrapping_add(4), ..good.clone() },
        ];
        for call in refused {
            let error = run(comm, &call).unwrap_err();
            assert!(matches!(error, Error::InvalidArgument(_)), "{error}");
        }
        // SAFETY: a count that no address space holds is refused before any buffer is looked at.
        let error = unsafe { comm.run(&Call { count: usize::MAX / 2, ..good.clone() }) };
        assert!(matches!(error, Err(Error::InvalidArgument(_))), "{error:?}");
        run(comm, &good).unwrap();
        assert_eq!(comm.async_error(), None);
    });
}

#[test]
fn ranks_that_never_came_are_named() {
    let id = UniqueId::generate().unwrap();
    let config = Config { timeout_ms: 1500, ..config() };
    let join = |rank| Communicator::init_rank(4, &id, rank, &config).err().unwrap();
    let (first, second) = std::thread::scope(|scope| {
        let second = scope.spawn(|| join(3));
        (join(0), second.join().unwrap())
    });
    for error in [first, second] {
        let text = error.to_string();
        assert!(text.contains("missing: [1, 2]"), "{text}");
    }
}

/// What a rank that waits says of one that comes no further after they have met.
#[test]
fn a_deadline_while_the_communicator_is_made_says_so() {
    let id = UniqueId::generate().unwrap();
    let path = std::env::temp_dir().join(format!("profile-{}-late", std::process::id()));
    let name = CString::new(path.as_os_str().as_bytes()).unwrap();
    // SAFETY: a path that ends with a zero.
    assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
    let waits = Config { tuning_file: path.to_str().map(String::from), ..config() };
    let text = std::thread::scope(|scope| {
        // Rank 0 reads a tuning file when it has met rank 1.
        let zero = scope.spawn(|| Communicator::init_rank(2, &id, 0, &waits).err());
        let late = Config { timeout_ms: 3000, ..config() };
        let text = Communicator::init_rank(2, &id, 1, &late).err().unwrap().to_string();
        drop(std::fs::write(&path, "nothing"));
        std::fs::remove_file(&path).unwrap();
        assert!(zero.join().unwrap().is_some());
        text
    });
    assert!(text.contains("ms for rank 0 "), "{text}");
    assert!(text.contains(" while the communicator was made; rank 0 is still at"), "{text}");
    assert!(!text.contains('#') && !text.contains("Broadcast"), "no call of the user's: {text}");
}

#[test]
fn a_failure_stays_in_its_communicator() {
    let healthy = Communicator::init_all(2, &config()).unwrap();
    let broken = Communicator::init_all(2, &config()).unwrap();
    support::threads::run_all(&healthy, |comm| {
        let mut scratch = Scratch::new(2);
        let call = scratch.call(Collective::AllReduce, 10);
        let child = comm.split(0, 0, None).unwrap().unwrap();
        run(comm, &call).unwrap();
        broken[comm.rank()].abort();
        run(comm, &call).unwrap();
        run(&child, &call).unwrap();
        child.abort();
        assert!(run(&child, &call).is_err());
        run(comm, &call).unwrap();
    });
}

#[test]
fn survivors_of_a_death_shrink_and_go_on() {
    let mut ranks = Ranks::start(4, &config(), "", |comm, _| {
        let mut scratch = Scratch::new(4);
        let call = scratch.call(Collective::AllReduce, 100);
        run(comm, &call).unwrap();
        say("ready");
        let error = loop {
            if let Err(error) = run(comm, &call) {
                break error.to_string();
            }
        };
        assert!(error.contains("rank 2"), "{error}");
        let fewer = comm.shrink(&[2], None).unwrap();
        assert_eq!(fewer.nranks(), 3);
        for seed in 0..30 {
            let case = Case::new(Collective::AllReduce, 3, 1000, DataType::Int64);
            Prepared::of(Case { seed, ..case }, fewer.rank()).run(&fewer);
        }
        String::new()
    });
    let deadline = Instant::now() + Duration::from_secs(60);
    for rank in 0..4 {
        assert_eq!(ranks.hear(rank, deadline).1, "ready");
    }
    ranks.signal(2, libc::SIGKILL);
    for rank in [0, 1, 3] {
        ranks.end(rank, deadline).result.unwrap();
    }
}

#[test]
fn a_rank_that_left_is_named_by_those_who_still_wait() {
    let mut comms = Communicator::init_all(2, &config()).unwrap();
    comms.pop().unwrap().finalize().unwrap();
    let mut scratch = Scratch::new(2);
    let call = scratch.call(Collective::AllReduce, 10);
    let text = run(&comms[0], &call).unwrap_err().to_string();
    assert!(text.contains("rank 1 left"), "{text}");
}

/// Make communicators, split them and end them: a leak shows as growth.
fn come_and_go() {
    let cycle = |nranks| {
        on_threads(nranks, &config(), |comm| {
            let mut scratch = Scratch::new(nranks);
            let call = scratch.call(Collective::AllReduce, 100);
            run(comm, &call).unwrap();
        });
        support::on_joined_threads(nranks, &config(), |comm| {
            let child = comm.split(0, 0, None).unwrap().unwrap();
            child.finalize().unwrap();
        });
    };
    // What is made once and kept is made by then.
    (0..3).for_each(|_| cycle(3));
    // The kernel lists a thread for a moment after it was joined.
    std::thread::sleep(Duration::from_millis(200));
    let before = Holdings::now();
    // Three ranks' rings take more than a hundred times what a heap may grow by.
    (0..100).for_each(|_| cycle(3));
    assert_eq!(Holdings::back_to(&before), before, "something is left behind");
}

#[test]
fn communicators_come_and_go_without_a_trace() {
    let mut ranks = Ranks::start_apart(1, &config(), "", |_, _| {
        come_and_go();
        String::new()
    });
    let deadline = Instant::now() + Duration::from_secs(support::HARD_DEADLINE_S);
    ranks.end(0, deadline).result.unwrap();
}
