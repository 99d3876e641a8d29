//! Communicators from communicators: split, split of a split, shrink.

mod support;

use ringcomm::communicator::{Call, Communicator};
use ringcomm::config::{AddressFamily, Config, Protection};
use ringcomm::error::{Error, RankProcess};
use ringcomm::plan::Collective;
use ringcomm::types::DataType;
use std::ffi::CString;
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};
use support::processes::{Ranks, Seat, say};
use support::threads::join_all;
use support::{Random, config, joined_hosts, on_joined_threads, on_processes, on_threads};

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
fn an_id_for_ranks_of_one_host_leads_through_no_network() {
    let all = joined_hosts(&[0, 0, 1], &config());
    for (ranks, is_near) in [([0, 1], true), ([1, 2], false)] {
        let id = all[ranks[0]].new_id_of(&ranks).unwrap();
        assert_eq!(id.addresses().is_empty(), is_near, "{ranks:?}");
        std::thread::scope(|scope| {
            let join = |rank: usize| {
                let (id, parent) = (&id, ranks[rank] as i64);
                scope.spawn(move || {
                    let made = Communicator::init_rank(2, id, rank, &config()).unwrap();
                    assert_eq!(gather(&made, parent), ranks.map(|rank| rank as i64));
                })
            };
            join_all([0, 1].map(join));
        });
    }
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
        let own = Config { deterministic: true, buff_size: Some(1 << 20), ..config() };
        let child = comm.split(0, 0, Some(&own)).unwrap().unwrap();
        assert!(child.config().deterministic && !comm.config().deterministic);
        assert_eq!(gather(&child, 3), [3; 4]);
    });
}

#[test]
fn between_hosts_a_child_listens_where_its_parent_does_and_nowhere_else() {
    // On loopback, which only a machine without a network chooses by itself.
    let both = joined_hosts(&[0, 1], &config());
    let elsewhere = [
        Config { interfaces: Some("=lo".into()), ..config() },
        Config { family: Some(AddressFamily::V4), ..config() },
    ];
    let refused = |made: Result<(), Error>| match made {
        Err(Error::InvalidArgument(text)) => {
            assert!(text.contains("RINGCOMM_SOCKET_") && text.contains("leave it unset"), "{text}");
        }
        other => panic!("{other:?}"),
    };
    support::threads::run_all(&both, |comm| {
        let child = comm.split(0, 0, Some(&config())).unwrap().unwrap();
        assert_eq!(child.config().interfaces.as_deref(), Some("lo"));
        assert_eq!(gather(&child, 3), [3, 3]);
        for config in &elsewhere {
            refused(comm.split(0, 0, Some(config)).map(drop));
            refused(comm.shrink(&[], Some(config)).map(drop));
        }
        let made = comm.split(0, 0, (comm.rank() == 1).then_some(&elsewhere[0])).map(drop);
        match comm.rank() {
            1 => refused(made),
            _ => assert!(made.unwrap_err().to_string().contains("rank 1 cannot listen")),
        }
        assert_eq!(gather(comm, 1), [1, 1]);
    });
}

#[test]
fn ranks_whose_settings_differ_are_named_as_the_parent_counts_them() {
    let other = Config { protection: Protection::Checksum, ..config() };
    support::threads::run_all(&joined_hosts(&[0, 1, 2], &config()), |comm| {
        let own = if comm.rank() == 0 { other.clone() } else { config() };
        let error = comm.split(0, -(comm.rank() as i32), Some(&own)).map(drop).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("RINGCOMM_PROTECTION: rank "), "{text}");
        assert!(text.contains("rank 0 has checksum"), "{text}");
        let theirs = if comm.rank() == 1 { 1 } else { 2 };
        assert!(text.contains(&format!("rank {theirs} has encrypted")), "{text}");
    });
}

#[test]
fn many_splits_of_one_communicator_live_side_by_side() {
    on_threads(4, &config(), |comm| {
        let small = Config { buff_size: Some(64 << 10), ..config() };
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

/// Take part in what the ranks of a split tell each other, and not in what they do then.
fn tell_a_wish(comm: &Communicator) {
    // Color, key, the port of a listener that is open, for all that the others know, and
    // descriptors.
    let (mine, mut all) = ([0i32, 0, 1, i32::MAX], vec![0i32; 4 * comm.nranks()]);
    let call = Call {
        send: mine.as_ptr().cast(),
        recv: all.as_mut_ptr().cast(),
        count: mine.len(),
        ..Call::new(Collective::AllGather, DataType::Int32)
    };
    // SAFETY: four elements from each rank.
    unsafe { comm.run(&call) }.unwrap();
}

/// Wait until the rank's split has heard what the others want: they meet next.
fn until_split_meets(comm: &Communicator) {
    let deadline = Instant::now() + Duration::from_secs(20);
    let heard = format!("{{\"rank\":{},\"host\":", comm.rank());
    let has_heard = || {
        let dump = comm.dump();
        let own = dump.split(&heard).nth(1).expect("its own state");
        own.split('}').next().unwrap().contains("\"completed\":1")
    };
    while !has_heard() && Instant::now() < deadline {
        std::thread::yield_now();
    }
}

/// Call `end` again and again until the thread has ended: on a busy machine the first time may come
/// before it has begun.
fn end_until<T>(
    thread: &ScopedJoinHandle<T>,
    both: &[Communicator],
    end: impl Fn(&[Communicator]),
) {
    let until = Instant::now() + Duration::from_secs(20);
    while !thread.is_finished() && Instant::now() < until {
        end(both);
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The error of rank 0's split or shrink, which rank 1 comes to meet in part only, once `end` is
/// called with both.
fn ended(hosts: &[usize], shrinks: bool, end: impl Fn(&[Communicator])) -> Error {
    let both = match hosts[0] == hosts[1] {
        true => Communicator::init_all(2, &config()).unwrap(),
        false => joined_hosts(hosts, &config()),
    };
    if shrinks {
        // What was aborted before can still be shrunk.
        both[0].abort();
    }
    std::thread::scope(|scope| {
        let first = scope.spawn(|| match shrinks {
            true => both[0].shrink(&[], None).map(Some),
            false => both[0].split(0, 0, None),
        });
        if !shrinks {
            tell_a_wish(&both[1]);
        }
        if !shrinks {
            until_split_meets(&both[0]);
        }
        // Long enough for rank 0 to be where it waits; where it is not, `end` comes again.
        std::thread::sleep(Duration::from_millis(50));
        assert!(!first.is_finished());
        end_until(&first, &both, end);
        first.join().unwrap().err().expect("nobody to meet")
    })
}

#[test]
fn an_abort_ends_a_split_and_a_shrink_that_wait_for_others() {
    for hosts in [[0, 0], [0, 1]] {
        for shrinks in [false, true] {
            let error = ended(&hosts, shrinks, |both| both[0].abort());
            assert!(matches!(error, Error::Aborted { rank: 0, .. }), "{error}");
        }
        let error = ended(&hosts, false, |both| both[1].abort());
        assert!(
            matches!(error, Error::Remote { rank: 0, peer: RankProcess { rank: 1, .. }, .. }),
            "{error}"
        );
    }
    let three = Communicator::init_all(3, &config()).unwrap();
    std::thread::scope(|scope| {
        let first = scope.spawn(|| three[0].shrink(&[2], None));
        std::thread::sleep(Duration::from_millis(50));
        end_until(&first, &three, |three| three[0].abort());
        let error = first.join().unwrap().err().expect("nobody to meet");
        assert!(matches!(error, Error::Aborted { rank: 0, .. }), "{error}");
    });
}

/// Write no profile into a pipe, if somebody has it open to read.
fn written_where_read(path: &Path) -> bool {
    let mut options = OpenOptions::new();
    let pipe = options.write(true).custom_flags(libc::O_NONBLOCK).open(path);
    pipe.and_then(|mut pipe| pipe.write_all(b"nothing")).is_ok()
}

/// A tuning file whose reader waits until somebody writes it.
fn pipe(of: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("profile-{}-{of}-pipe", std::process::id()));
    let name = CString::new(path.as_os_str().as_bytes()).unwrap();
    // SAFETY: a path that ends with a zero.
    assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
    path
}

/// A tuning file that rank 0 waits for in the middle of making a communicator, until `end` was
/// called with both ranks and rank 1 has returned; rank 1's error.
fn ended_in_the_end(
    nranks: usize,
    divide: impl Fn(&Communicator, &Config) -> Result<(), Error> + Sync,
    end: impl Fn(&[Communicator]),
) -> Error {
    let both = Communicator::init_all(nranks, &config()).unwrap();
    let path = pipe("ended");
    let waits = Config { tuning_file: path.to_str().map(String::from), ..config() };
    std::thread::scope(|scope| {
        let (divide, both, waits) = (&divide, &both, &waits);
        let zero = scope.spawn(move || divide(&both[0], waits));
        let one = scope.spawn(move || divide(&both[1], &config()));
        // Long enough for rank 1 to be where it waits; where it is not, `end` comes again.
        std::thread::sleep(Duration::from_millis(100));
        assert!(!one.is_finished());
        end_until(&one, both, end);
        let is_stuck = !one.is_finished();
        // No profile, but the end of the wait for one, where rank 0 has come as far as to wait.
        while !zero.is_finished() && !written_where_read(&path) {
            std::thread::sleep(Duration::from_millis(1));
        }
        std::fs::remove_file(&path).unwrap();
        assert!(zero.join().unwrap().is_err());
        let error = one.join().unwrap().expect_err("rank 0 did not come any further");
        assert!(!is_stuck, "only rank 0 ended it: {error}");
        error
    })
}

#[test]
fn an_abort_ends_a_split_and_a_shrink_whose_other_ranks_stop_after_they_met() {
    let shrink = |comm: &Communicator, config: &Config| comm.shrink(&[], Some(config)).map(drop);
    let error = ended_in_the_end(2, shrink, |both| both[1].abort());
    assert!(matches!(error, Error::Aborted { rank: 1, .. }), "{error}");
    let list = |comm: &Communicator, config: &Config| comm.shrink(&[2], Some(config)).map(drop);
    let error = ended_in_the_end(3, list, |both| both[1].abort());
    assert!(matches!(error, Error::Aborted { rank: 1, .. }), "{error}");
    let split = |comm: &Communicator, config: &Config| comm.split(0, 0, Some(config)).map(drop);
    let error = ended_in_the_end(2, split, |both| both[1].abort());
    assert!(matches!(error, Error::Aborted { rank: 1, .. }), "{error}");
    // Rank 0 tells rank 1.
    let error = ended_in_the_end(2, split, |both| both[0].abort());
    assert!(
        matches!(error, Error::Remote { rank: 1, peer: RankProcess { rank: 0, .. }, .. }),
        "{error}"
    );
}

#[test]
fn who_is_waited_for_while_a_split_is_made_has_one_number() {
    let all = Communicator::init_all(3, &config()).unwrap();
    let path = pipe("late");
    // Rank 2 is the first of the new communicator: it stops in the middle. Rank 0 is the last.
    let waits = Config { tuning_file: path.to_str().map(String::from), ..config() };
    let impatient = Config { timeout_ms: 3000, ..config() };
    std::thread::scope(|scope| {
        let configs = [&impatient, &config(), &waits];
        let [zero, one, two] = std::array::from_fn(|rank| {
            let (comm, config) = (&all[rank], configs[rank].clone());
            scope.spawn(move || comm.split(0, -(rank as i32), Some(&config)).map(drop).unwrap_err())
        });
        let (zero, one) = (zero.join().unwrap(), one.join().unwrap());
        while !two.is_finished() && !written_where_read(&path) {
            std::thread::sleep(Duration::from_millis(1));
        }
        std::fs::remove_file(&path).unwrap();
        two.join().unwrap();
        let Error::Timeout { rank: 0, peer: RankProcess { rank: peer @ 1..=2, .. }, .. } = zero
        else {
            panic!("{zero}");
        };
        let awaited = format!("rank {peer} is still at the making");
        let told = one.to_string();
        assert!(zero.to_string().contains(&awaited), "{zero}");
        assert!(told.starts_with("rank 0 (") && told.contains(&awaited), "{told}");
        assert!(told.contains("timeout: rank 0 waited"), "{told}");
    });
}

/// Split again and again; the error that ends it.
fn split_until_one_dies(seat: &Seat, dies_between: &str) -> String {
    let comm = seat.join();
    if dies_between == "between" && seat.rank == 1 {
        tell_a_wish(&comm);
        // SAFETY: ends this process.
        unsafe { libc::raise(libc::SIGKILL) };
    }
    say("ready");
    // Counted the other way round in the children, so that a number of theirs is noticed.
    let key = -(seat.rank as i32);
    loop {
        match comm.split(0, key, None) {
            Ok(child) => drop(child),
            Err(error) => return error.to_string(),
        }
    }
}

/// What the others say of the death of `victim`.
fn mourn(mut ranks: Ranks, nranks: usize, victim: usize) {
    let deadline = Instant::now() + Duration::from_secs(30);
    let dead = format!("rank {victim}");
    for rank in 0..nranks {
        let end = ranks.end(rank, deadline);
        assert_eq!(end.killed, rank == victim, "{:?}", end.result);
        if rank != victim {
            let text = end.result.unwrap_or_else(|why| panic!("rank {rank}: {why}"));
            assert!(text.contains(&dead), "rank {rank}, dead is {victim}: {text}");
        }
    }
}

#[test]
fn a_rank_that_dies_at_any_point_of_a_split_is_named_by_the_others() {
    const HOSTS: [&[usize]; 4] = [&[0, 0, 0], &[0, 0, 1], &[0, 1, 2], &[0, 0, 1, 1]];
    let mut random = Random(5);
    for round in 0..32 {
        let hosts = HOSTS[round % HOSTS.len()];
        let mut ranks = Ranks::start_on_hosts(hosts, &config(), "", |seat, text| {
            split_until_one_dies(seat, text)
        });
        let deadline = Instant::now() + Duration::from_secs(30);
        (0..hosts.len()).for_each(|rank| assert_eq!(ranks.hear(rank, deadline).1, "ready"));
        // A split takes two to ten milliseconds.
        std::thread::sleep(Duration::from_micros(random.below(20_000) as u64));
        let victim = random.below(hosts.len());
        ranks.signal(victim, libc::SIGKILL);
        mourn(ranks, hosts.len(), victim);
    }
}

#[test]
fn a_rank_that_dies_before_it_meets_the_others_of_its_color_is_named() {
    for hosts in [[0, 0], [0, 1]] {
        let ranks = Ranks::start_on_hosts(&hosts, &config(), "between", |seat, text| {
            split_until_one_dies(seat, text)
        });
        mourn(ranks, 2, 1);
    }
}

#[test]
fn splits_of_several_threads_at_once_meet_in_one_order_on_all_ranks() {
    const THREADS: usize = 3;
    const ROUNDS: usize = 20;
    for hosts in [[0, 0], [0, 1]] {
        let both = match hosts[0] == hosts[1] {
            true => Communicator::init_all(2, &config()).unwrap(),
            false => joined_hosts(&hosts, &config()),
        };
        support::threads::run_all(&both, |comm| {
            std::thread::scope(|scope| {
                let split = || {
                    for _ in 0..ROUNDS {
                        let child = comm.split(0, 0, None).unwrap().unwrap();
                        assert_eq!((child.rank(), child.nranks()), (comm.rank(), 2));
                        assert_eq!(gather(&child, 7), [7, 7]);
                    }
                };
                support::threads::join_all([(); THREADS].map(|()| scope.spawn(split)));
            });
        });
    }
}
