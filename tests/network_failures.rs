//! Ranks on other hosts that die, stop, miss a call or abort: every survivor names the rank, soon,
//! and holds nothing.
//!
//! `RINGCOMM_ROUNDS=1000 cargo test --release --test network_failures kills` is the long run.

mod support;

use ringcomm::communicator::{Communicator, Message};
use ringcomm::config::Config;
use ringcomm::error::{Error, RankProcess, Result};
use ringcomm::plan::Collective;
use ringcomm::transport::engine::choice::candidate_of;
use ringcomm::types::DataType;
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::time::{Duration, Instant};
use support::delays::{self, asked};
use support::holdings::Holdings;
use support::pace::{Pace, Timed, assert_kept};
use support::processes::{Ranks, Seat, say};
use support::scratch::{Scratch, run};
use support::work::{any_call, until_one_fails};
use support::{Case, Prepared, Random, config, joined_hosts, on_hosts, small_slots};

/// What a rank is doing, again and again, when one of them is killed.
const PHASES: [&str; 5] = ["init", "calls", "split", "shrink", "destroy"];

/// In which the ranks begin to end their communicators, in microseconds: a word from a rank takes a
/// millisecond to the test on a busy machine, an end less.
const ENDING_US: usize = 8000;

/// Two to eight ranks, alone on their hosts and not, and all on one, where they share memory.
const HOSTS: [&[usize]; 12] = [
    &[0, 0],
    &[0, 0, 0],
    &[0; 6],
    &[0, 1],
    &[0, 1, 2],
    &[0, 0, 1],
    &[0, 0, 1, 1],
    &[0, 1, 2, 3],
    &[0, 1, 0, 1, 2],
    &[0, 1, 2, 3, 4, 5],
    &[0, 0, 0, 1, 1, 2, 2],
    &[0, 0, 1, 1, 2, 2, 3, 3],
];

/// A rank of the killing test, until something fails; what `destroy` does may well succeed.
fn live(seat: &Seat, phase: &str, random: &mut Random) -> Result<()> {
    let comm = Communicator::init_rank(seat.nranks, &seat.id, seat.rank, &seat.config)?;
    let is_long = seat.config.buff_size.is_none();
    let mut scratch = if is_long { Scratch::long(seat.nranks) } else { Scratch::new(seat.nranks) };
    if phase == "calls" {
        return Err(until_one_fails(&comm, &mut scratch, random));
    }
    let barrier = scratch.call(Collective::Barrier, 0);
    run(&comm, &barrier)?;
    say("ready");
    let last = seat.nranks - 1;
    if phase == "shrink" && seat.rank == last {
        return Ok(());
    }
    loop {
        match phase {
            "init" => run(&comm, &any_call(&mut scratch, seat.nranks, random))?,
            "split" => {
                let child = comm.split(0, 0, None)?.expect("a member");
                run(&child, &scratch.call(Collective::AllReduce, 100))?;
                child.finalize()?;
            }
            "shrink" => {
                let fewer = comm.shrink(&[last], None)?;
                run(&fewer, &scratch.call(Collective::AllReduce, 100))?;
            }
            _ => {
                // Each at a moment of its own: some have ended when one dies, some have not.
                let mut own = Random(random.next() ^ seat.rank as u64);
                std::thread::sleep(Duration::from_micros(own.below(ENDING_US) as u64));
                return comm.finalize();
            }
        }
    }
}

/// `live`, and what it leaves behind; the last thing said is how it ended.
fn live_and_tell(seat: &Seat, argument: &str) -> String {
    let (phase, seed) = argument.split_once(' ').expect("phase and seed");
    // What an engine's library keeps for good is there before.
    drop(candidate_of(&seat.config.net, seat.nranks));
    let before = Holdings::now();
    say("here");
    let outcome = live(seat, phase, &mut Random(seed.parse().expect("a seed")));
    say(&outcome.map_or_else(|error| format!("error: {error}"), |()| "over".into()));
    assert_eq!(Holdings::back_to(&before), before, "nothing is left behind");
    String::new()
}

/// In which a rank that has begun to join may not have come to the others yet.
const COMING: Duration = Duration::from_millis(4);

/// A meeting with a rank that is missing ends after this.
const INIT_MS: u64 = 8000;

/// How long survivors took to learn of a death, or to end in spite of it.
#[derive(Default)]
struct Delays {
    known: Vec<Timed>,
    deaths: usize,
    /// Of ranks that had not come: only the deadline speaks of those.
    unmet: usize,
    /// The same, of those killed before they can have.
    unborn: usize,
    /// Of ranks that had come, but nobody looked after them.
    overlooked: usize,
    /// Survivors whose own part was done.
    at_peace: usize,
}

impl Delays {
    fn judge(&mut self, phase: &str) {
        let Delays { known, deaths, unmet, unborn, overlooked, at_peace } = self;
        assert_eq!(*overlooked, 0, "{phase}: who had come and died was awaited to the deadline");
        // Most victims that have had the time have come when they die. The usual few rounds may be
        // unlucky twice; a long run is for a quiet machine.
        let most = match phase {
            "init" if asked().is_some() => *deaths / 100,
            "init" => *deaths / 10 + 2,
            _ => 0,
        };
        assert!(*unmet <= most, "{phase}: {unmet} of {deaths} deaths known at the deadline only");
        // Of a third of the victims, who die that soon, most have come all the same.
        let is_likely = *deaths < 100 || *unborn <= *deaths / 6;
        assert!(is_likely, "{phase}: {unborn} of {deaths} had not come by then");
        println!(
            "{phase}: {deaths} deaths, {unmet} of them before the victim had come, {unborn} before \
             it could; survivors that were done before they knew: {at_peace}"
        );
        delays::judge(phase, known);
    }
}

/// Whether this is what a survivor may say of the death of `victim`, `who` in full.
fn names(text: &str, phase: &str, victim: usize, who: &str) -> bool {
    match phase {
        // A rank that dies before it has told anybody its process id has no more than a number.
        "init" => {
            // Others may be missing because they know of the death already.
            let missing = text.split_once("missing: [").and_then(|(_, list)| list.split_once(']'));
            let mut missing = missing.map_or("", |(list, _)| list).split(", ");
            text.contains(&format!("rank {victim} ")) || missing.any(|it| it == victim.to_string())
        }
        // Who has its own part done leaves in peace.
        "destroy" | "shrink" => text == "over" || text.contains(who),
        _ => text.contains(who),
    }
}

/// Kill one of the ranks at a random moment of the phase and hear the others.
fn kill(ranks: &mut Ranks, phase: &str, nranks: usize, random: &mut Random, delays: &mut Delays) {
    let deadline = Instant::now() + Duration::from_secs(60);
    // In the phase of shrinks the last rank is the one that is left out.
    let victim = random.below(nranks - usize::from(phase == "shrink"));
    let first = if phase == "init" { "here" } else { "ready" };
    for rank in 0..nranks {
        while ranks.hear(rank, deadline).1 != first {}
    }
    // A rendezvous with its measurements takes tens of milliseconds, a split or a shrink some.
    let span = match phase {
        "init" => random.pick(&[1, 10_000, 50_000, 150_000]),
        "destroy" => ENDING_US,
        _ => 20_000,
    };
    let pause = Duration::from_micros(random.below(span) as u64);
    std::thread::sleep(pause);
    let who = ranks.who(victim);
    let (pace, killed) = (Pace::beside(ranks.pids()), Instant::now());
    let (mut is_unmet, mut is_overlooked) = (false, false);
    ranks.signal(victim, libc::SIGKILL);
    for rank in (0..nranks).filter(|rank| *rank != victim) {
        let (at, text) = loop {
            let (at, text) = ranks.hear(rank, deadline);
            if text != "ready" {
                break (at, text);
            }
        };
        let said = format!("{phase}, rank {rank} of {nranks} on the death of {victim}: {text}");
        assert!(names(&text, phase, victim, &who), "{said}");
        let delay = pace.timed(killed, at);
        if text.contains("missing") && delay.took > Duration::from_millis(INIT_MS / 2) {
            // Those of one host meet there once all have come.
            is_overlooked |= text.contains("count as one host");
            is_unmet = true;
            continue;
        }
        let is_over = text == "over";
        delays.at_peace += usize::from(is_over);
        // An end waits for nobody, the dead included.
        if !is_over || phase == "destroy" {
            delays.known.push(delay);
            if delay.took > delays::LONGEST {
                println!("{delay:?}: {said}");
            }
        }
    }
    delays.deaths += 1;
    let counted = match is_overlooked {
        true => &mut delays.overlooked,
        false if pause < COMING => &mut delays.unborn,
        false => &mut delays.unmet,
    };
    *counted += usize::from(is_unmet);
    for rank in 0..nranks {
        let end = ranks.end(rank, deadline);
        assert!(end.killed == (rank == victim) || phase == "destroy", "{phase}: {:?}", end.result);
        if rank != victim {
            end.result.unwrap_or_else(|why| panic!("{phase}, rank {rank}: {why}"));
        }
    }
}

#[test]
fn survivors_of_kills_in_every_phase_name_the_dead_rank_and_hold_nothing() {
    let mut random = Random(3);
    let only = std::env::var("RINGCOMM_PHASE").ok();
    let chosen = |phase: &&str| only.as_deref().is_none_or(|only| only == *phase);
    let phases: Vec<&str> = PHASES.into_iter().filter(chosen).collect();
    assert!(!phases.is_empty(), "RINGCOMM_PHASE is one of {PHASES:?}");
    let mut delays: Vec<_> = phases.into_iter().map(|phase| (phase, Delays::default())).collect();
    // A few of every phase, or as many as a long run asks for.
    for round in 0..asked().unwrap_or(45) {
        let of = round % delays.len();
        let (phase, delays) = &mut delays[of];
        let hosts = loop {
            let hosts = random.pick(&HOSTS);
            if *phase != "shrink" || hosts.len() > 2 {
                break hosts;
            }
        };
        let timeout_ms = if *phase == "init" { INIT_MS } else { 60_000 };
        // Messages as short as can be, and as long.
        let lengths = if random.chance(3) { config() } else { small_slots(hosts.len(), 4096) };
        let config = Config { timeout_ms, ..lengths };
        let argument = format!("{phase} {}", random.next());
        let mut ranks = Ranks::start_on_hosts(hosts, &config, &argument, |seat, argument| {
            live_and_tell(seat, argument)
        });
        kill(&mut ranks, phase, hosts.len(), &mut random, delays);
    }
    delays.iter_mut().for_each(|(phase, delays)| delays.judge(phase));
}

/// A rank of the stopping tests: checks 200 calls, with a word after the first twenty.
fn check_results(seat: &Seat) -> String {
    let comm = seat.join();
    for seed in 0..200 {
        let collective = Collective::ALL[seed as usize % Collective::ALL.len()];
        let case = Case::new(collective, seat.nranks, 1500, DataType::Int32);
        Prepared::of(Case { seed, ..case }, comm.rank()).run(&comm);
        if seed == 20 {
            say("going");
        }
    }
    String::new()
}

#[test]
fn a_rank_of_another_host_that_stops_for_a_while_changes_nothing() {
    for hosts in [&[0, 1, 2], &[0, 0, 1]] {
        let mut ranks = Ranks::start_on_hosts(hosts, &config(), "", |seat, _| check_results(seat));
        let deadline = Instant::now() + Duration::from_secs(60);
        (0..3).for_each(|rank| assert_eq!(ranks.hear(rank, deadline).1, "going"));
        // The last for several heartbeats.
        for (rank, stop_ms) in [(2, 60), (0, 60), (1, 2500)] {
            ranks.signal(rank, libc::SIGSTOP);
            std::thread::sleep(Duration::from_millis(stop_ms));
            ranks.signal(rank, libc::SIGCONT);
        }
        for rank in 0..3 {
            ranks.end(rank, deadline).result.unwrap();
        }
    }
}

/// A rank of the dumping test: calls until one fails, and tells who waits for whom meanwhile.
fn work_and_tell(seat: &Seat) -> String {
    let comm = &seat.join();
    let mut scratch = Scratch::new(comm.nranks());
    let call = scratch.call(Collective::AllReduce, 1000);
    run(comm, &call).unwrap();
    say("ready");
    std::thread::scope(|scope| {
        let (done, finished) = std::sync::mpsc::channel::<()>();
        scope.spawn(move || {
            let timeout = std::sync::mpsc::RecvTimeoutError::Timeout;
            while finished.recv_timeout(Duration::from_millis(10)) == Err(timeout) {
                let dump = comm.dump();
                if dump.contains("waiting for rank 1") {
                    return say(&dump);
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

#[test]
fn a_stopped_rank_of_another_host_is_named_at_the_deadline_and_in_the_dump_before_it() {
    let config = Config { timeout_ms: 2500, ..config() };
    let hosts = [0, 1, 2, 2];
    let mut ranks = Ranks::start_on_hosts(&hosts, &config, "", |seat, _| work_and_tell(seat));
    let deadline = Instant::now() + Duration::from_secs(60);
    (0..4).for_each(|rank| assert_eq!(ranks.hear(rank, deadline).1, "ready"));
    ranks.signal(1, libc::SIGSTOP);
    for rank in [0, 2, 3] {
        let (_, dump) = ranks.hear(rank, deadline);
        assert!(dump.contains("\"failure\":null"), "before the deadline: {dump}");
    }
    for rank in [0, 2, 3] {
        let text = ranks.end(rank, deadline).result.unwrap();
        assert!(text.contains("timeout") && text.contains("rank 1"), "{text}");
        assert!(text.contains("AllReduce(count=1000") && text.contains('#'), "{text}");
    }
    ranks.signal(1, libc::SIGCONT);
    let text = ranks.end(1, deadline).result.unwrap();
    assert!(text.contains("timeout"), "the stopped rank learns why it is alone: {text}");
}

#[test]
fn a_call_that_a_rank_of_another_host_skips_is_named_at_the_deadline_by_everybody() {
    for hosts in [&[0, 1][..], &[0, 1, 2], &[0, 1, 1, 0, 2]] {
        let together = Barrier::new(hosts.len());
        let config = Config { timeout_ms: 3500, ..config() };
        on_hosts(hosts, &config, |comm| {
            let mut scratch = Scratch::new(hosts.len());
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

/// In which an abort ends what its own rank waits for, and all others know of it.
const ABORT_KNOWN: Duration = Duration::from_secs(1);

/// What ranks wait in.
const WAITS: [&str; 2] = ["a collective", "a receive"];

/// Wait for a rank, in a collective or for a message.
fn wait_for(comm: &Communicator, source: usize, how: &str) -> Result<()> {
    let mut scratch = Scratch::new(comm.nranks());
    if how == "a collective" {
        return run(comm, &scratch.call(Collective::AllReduce, 1000));
    }
    let (data_type, count) = (DataType::Float32, 1000);
    let (buffer, into) = (scratch.send.as_ptr().cast(), scratch.recv.as_mut_ptr().cast());
    let others = (0..comm.nranks()).filter(|peer| *peer != source);
    let messages: Vec<Message> = match comm.rank() == source {
        true => others.map(|peer| Message::Send { buffer, count, data_type, peer }).collect(),
        false => vec![Message::Recv { buffer: into, count, data_type, peer: source }],
    };
    // SAFETY: the buffers of `Scratch` hold so many elements, and only one message is received.
    unsafe { comm.exchange(&messages) }
}

/// Rank 0 aborts while it and rank 1 wait for rank 2; how long it was until both knew.
fn abort_a_wait(comms: &[Communicator], how: &str) -> Timed {
    let pace = Pace::start();
    std::thread::scope(|scope| {
        let wait =
            |comm| scope.spawn(move || (wait_for(comm, 2, how).unwrap_err(), Instant::now()));
        let waiting: Vec<_> = comms[..2].iter().map(wait).collect();
        let deadline = Instant::now() + Duration::from_secs(20);
        for (rank, comm) in comms[..2].iter().enumerate() {
            while !comm.dump().contains(&format!("rank {rank} is in ")) {
                assert!(Instant::now() < deadline, "{how}: rank {rank}: {}", comm.dump());
                std::thread::yield_now();
            }
        }
        // Until both sleep at their sockets, in most runs.
        std::thread::sleep(Duration::from_millis(50));
        let aborted = Instant::now();
        comms[0].abort();
        let ends: Vec<_> = waiting.into_iter().map(|rank| rank.join().unwrap()).collect();
        let [own, told] = [0, 1].map(|rank| &ends[rank].0);
        assert!(matches!(own, Error::Aborted { rank: 0, operation: Some(_) }), "{how}: {own}");
        let Error::Remote { rank: 1, peer: RankProcess { rank: 0, .. }, .. } = told else {
            panic!("{how}: {told}")
        };
        pace.over(&ends.iter().map(|(_, at)| (aborted, *at)).collect::<Vec<_>>())
    })
}

#[test]
fn an_abort_ends_waits_for_other_hosts_and_is_known_to_all_of_them() {
    let mut took = Vec::new();
    for hosts in [[0, 1, 2], [0, 1, 1]] {
        for how in WAITS {
            let comms = joined_hosts(&hosts, &config());
            took.push(abort_a_wait(&comms, how));
            // The rank that never called may have all the others' data for its first call; it
            // learns of the abort at the second at the latest, and all fail alike from then on.
            for comm in &comms {
                let call = || wait_for(comm, 2, "a collective");
                let first = call().and_then(|()| call()).unwrap_err();
                assert_eq!(call().unwrap_err(), first);
                assert_eq!(wait_for(comm, 2, "a receive").unwrap_err(), first);
                assert_eq!(comm.async_error(), Some(first.clone()));
                assert_eq!(comm.finalize(), Err(first));
            }
        }
    }
    assert_kept("aborts between hosts", ABORT_KNOWN, &took);
}

/// A rank that waits for rank 1 again and again until that fails. Rank 0 aborts once there is such
/// a file.
fn wait_and_abort(seat: &Seat, how: &str, file: &Path) -> String {
    let comm = &seat.join();
    wait_for(comm, 1, how).unwrap();
    say("ready");
    std::thread::scope(|scope| {
        if seat.rank == 0 {
            scope.spawn(|| {
                while !file.exists() {
                    std::thread::sleep(Duration::from_millis(5));
                }
                // Until all wait for what is stopped, in most runs.
                std::thread::sleep(Duration::from_millis(100));
                say("aborting");
                comm.abort();
            });
        }
        let error = std::iter::repeat_with(|| wait_for(comm, 1, how)).find_map(Result::err);
        say(&error.expect("it goes on until then").to_string());
    });
    String::new()
}

/// The stopped rank's kernel keeps its connections, and says nothing.
#[test]
fn an_abort_needs_nothing_of_a_rank_that_is_stopped() {
    let mut took = Vec::new();
    for (number, how) in WAITS.iter().enumerate() {
        let file = PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
            .join(format!("abort-{}-{number}", std::process::id()));
        let argument = format!("{how}|{}", file.display());
        let mut ranks =
            Ranks::start_on_hosts(&[0, 1, 2], &config(), &argument, |seat, argument| {
                let (how, file) = argument.split_once('|').expect("how and a file");
                wait_and_abort(seat, how, Path::new(file))
            });
        let deadline = Instant::now() + Duration::from_secs(40);
        (0..3).for_each(|rank| assert_eq!(ranks.hear(rank, deadline).1, "ready"));
        let pace = Pace::beside(ranks.pids());
        ranks.signal(1, libc::SIGSTOP);
        std::fs::write(&file, "").unwrap();
        let (aborted, said) = ranks.hear(0, deadline);
        assert_eq!(said, "aborting");
        let who = ranks.who(0);
        let known = [0, 2].map(|rank| {
            let (at, text) = ranks.hear(rank, deadline);
            let by = rank == 0 || text.contains(&format!("{who} failed"));
            assert!(by && text.contains("communicator of rank 0 was aborted"), "{how}: {text}");
            (aborted, at)
        });
        took.push(pace.over(&known));
        // Their ends wait for nobody either: the deadline of a call comes later than this.
        [0, 2].into_iter().for_each(|rank| drop(ranks.end(rank, deadline).result.unwrap()));
        ranks.signal(1, libc::SIGCONT);
        let (_, text) = ranks.hear(1, deadline);
        assert!(text.contains(&who) && text.contains("was aborted"), "{how}: {text}");
        ranks.end(1, deadline).result.unwrap();
        std::fs::remove_file(&file).unwrap();
    }
    assert_kept("aborts beside a stopped rank", ABORT_KNOWN, &took);
}
