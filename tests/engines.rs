//! Several hosts over network engines: the same bits as over TCP, and the same ends.
//!
//! Where UCX's library is not there, its tests say so. `RINGCOMM_ROUNDS=200 cargo test --release
//! --test engines` is the long run.

#![allow(clippy::redundant_closure)] // Ranks are started with the name of a closure's test.

mod support;

#[path = "support/fixture_plugin.rs"]
mod fixture_plugin;

use fixture_plugin::{ABIS, FixturePlugin};
use ringcomm::communicator::Message;
use ringcomm::config::{Config, NetChoice, Protection};
use ringcomm::plan::Collective;
use ringcomm::transport::engine::ucx::library::ucp;
use ringcomm::types::DataType;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};
use support::delays::{asked, judge};
use support::pace::{Pace, Timed};
use support::processes::{Ranks, Seat, say};
use support::samples::{mixed, mixed_long};
use support::scratch::{Scratch, run};
use support::skips::skip;
use support::work::until_one_fails;
use support::{Prepared, Random, config, on_hosts};

/// UCX over its own TCP: memory that hosts share in tests is none that they would share. An error
/// where there is no UCX.
fn ucx() -> Result<Config, String> {
    // SAFETY: tests of this file set the same, before the library reads it.
    unsafe { std::env::set_var("UCX_TLS", "tcp,self") };
    // Any other error is one.
    ucp().map_err(|error| error.to_string())?;
    Ok(Config { net: NetChoice::Ucx, ..config() })
}

/// A network plugin over sockets.
fn plugin(abi: u32, devices: u32) -> Config {
    let plugin = FixturePlugin { devices, ..FixturePlugin::new(abi) };
    Config { net: NetChoice::Plugin(Some(plugin.path())), ..config() }
}

const TOPOLOGIES: [&[usize]; 5] = [&[0, 1], &[0, 0, 1], &[0, 1, 2], &[0, 1, 2, 3], &[0, 0, 1, 2]];

/// Every collective and its `v` form against the oracle that TCP's results are held to.
fn gives_the_right_bits(base: &Config, kind: &str) {
    for protection in Protection::ALL {
        for (seed, hosts) in TOPOLOGIES.into_iter().enumerate() {
            let config = Config { protection, nsocks: 1 + seed % 2, ..base.clone() };
            let cases = (0..3).flat_map(|seed| mixed(hosts, seed));
            let cases = cases.chain(mixed_long(hosts, seed as u64));
            let cases: Vec<Prepared> = cases.map(Prepared::new).collect();
            on_hosts(hosts, &config, |comm| {
                cases.iter().for_each(|case| case.run(comm));
                assert!(comm.network().is_some_and(|text| text.starts_with(kind)));
            });
        }
    }
}

#[test]
fn every_collective_gives_the_bits_over_ucx_that_it_gives_over_tcp() {
    match ucx() {
        Ok(config) => gives_the_right_bits(&config, "ucx"),
        Err(why) => skip(every_collective_gives_the_bits_over_ucx_that_it_gives_over_tcp, why),
    }
}

#[test]
fn every_collective_gives_the_bits_over_plugins_that_it_gives_over_tcp() {
    for (devices, abi) in ABIS.into_iter().enumerate() {
        gives_the_right_bits(&plugin(abi, 1 + devices as u32), "plugin fixture");
    }
}

/// Two ranks send to each other, and receive only then: a send ends once the engine has it.
fn sends_do_not_wait_for_receives(base: &Config) {
    for protection in [Protection::Clear, Protection::Encrypted] {
        let config = Config { protection, timeout_ms: 20_000, ..base.clone() };
        on_hosts(&[0, 1], &config, |comm| {
            let (peer, data_type) = (1 - comm.rank(), DataType::Uint8);
            for count in [8, 4 << 10, 64 << 10, 256 << 10].repeat(3) {
                let (sent, mut got) = (vec![comm.rank() as u8; count], vec![9u8; count]);
                let send = Message::Send { buffer: sent.as_ptr(), count, data_type, peer };
                let recv = Message::Recv { buffer: got.as_mut_ptr(), count, data_type, peer };
                for message in [send, recv] {
                    // SAFETY: the buffers hold as many bytes.
                    unsafe { comm.exchange(&[message]) }.unwrap();
                }
                assert!(got.iter().all(|byte| *byte == peer as u8), "{count}");
            }
        });
    }
}

#[test]
fn sends_over_ucx_do_not_wait_for_receives() {
    match ucx() {
        Ok(config) => sends_do_not_wait_for_receives(&config),
        Err(why) => skip(sends_over_ucx_do_not_wait_for_receives, why),
    }
}

#[test]
fn sends_over_plugins_do_not_wait_for_receives() {
    ABIS.into_iter().for_each(|abi| sends_do_not_wait_for_receives(&plugin(abi, 1)));
}

/// Ranks choose a network, and one of them comes late to the first call.
fn come_late(seat: &Seat, plugin: &str) -> String {
    // SAFETY: no other thread of this process reads the environment now.
    unsafe { std::env::set_var("NCCL_NET_PLUGIN", plugin) };
    let comm = seat.join();
    let mut scratch = Scratch::new(seat.nranks);
    if seat.rank == 1 {
        std::thread::sleep(Duration::from_millis(700));
    }
    for _ in 0..3 {
        run(&comm, &scratch.call(Collective::AllReduce, 1000)).unwrap();
    }
    String::new()
}

#[test]
fn a_rank_may_be_late_where_ranks_have_chosen_a_network() {
    let plugin = FixturePlugin::new(12).path();
    let mut ranks = Ranks::start_on_hosts(&[0, 1, 2], &config(), &plugin, |seat, plugin| {
        come_late(seat, plugin)
    });
    let deadline = Instant::now() + Duration::from_secs(60);
    (0..3).for_each(|rank| drop(ranks.end(rank, deadline).result.unwrap()));
}

/// How long nothing may be written to a buffer after its call has failed.
const WATCHED: Duration = Duration::from_millis(20);

/// What a buffer holds that nobody may write to.
const POISON: f32 = 12345.0;

/// This process was sent SIGUSR1.
static TOLD: AtomicBool = AtomicBool::new(false);

extern "C" fn on_signal(_signal: libc::c_int) {
    TOLD.store(true, Relaxed);
}

/// A rank that calls until something fails, or, where it is the one named, until it is told to
/// abort; the last word is the error.
fn live(seat: &Seat, argument: &str) -> String {
    let handler = on_signal as extern "C" fn(libc::c_int) as libc::sighandler_t;
    // SAFETY: the handler stores a flag.
    unsafe { libc::signal(libc::SIGUSR1, handler) };
    let (aborts, seed) = argument.split_once(' ').expect("two words");
    let comm = seat.join();
    let mut random = Random(seed.parse().expect("a seed"));
    let mut scratch = Scratch::new(seat.nranks);
    let error = std::thread::scope(|scope| {
        if aborts == seat.rank.to_string() {
            scope.spawn(|| {
                while !TOLD.load(Relaxed) {
                    std::thread::sleep(Duration::from_micros(100));
                }
                comm.abort();
            });
        }
        until_one_fails(&comm, &mut scratch, &mut random)
    });
    scratch.recv.fill(POISON);
    say(&error.to_string());
    std::thread::sleep(WATCHED);
    assert!(scratch.recv.iter().all(|element| *element == POISON), "it is still written to");
    let barrier = scratch.call(Collective::Barrier, 0);
    assert!(run(&comm, &barrier).is_err(), "after {error}");
    String::new()
}

/// What happens to one of the ranks.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fate {
    Killed,
    Stopped,
    Aborts,
}

const FATES: [Fate; 3] = [Fate::Killed, Fate::Aborts, Fate::Stopped];

/// Starts the ranks: in the test itself, whose name a rank's process is started with.
type Start = fn(&[usize], &Config, &str) -> Ranks;

/// As `survivors_name_who_is_gone`, once; how long they took.
fn meets_its_fate(fate: Fate, base: &Config, start: Start, random: &mut Random) -> Vec<Timed> {
    let hosts = random.pick(&TOPOLOGIES);
    let (nranks, victim) = (hosts.len(), random.below(hosts.len()));
    let timeout_ms = if fate == Fate::Stopped { 1500 } else { 60_000 };
    let config = Config { timeout_ms, init_timeout_ms: Some(60_000), ..base.clone() };
    let aborts = if fate == Fate::Aborts { victim.to_string() } else { "none".into() };
    let argument = format!("{aborts} {}", random.next() >> 8);
    let mut ranks = start(hosts, &config, &argument);
    let deadline = Instant::now() + Duration::from_secs(60);
    (0..nranks).for_each(|rank| assert_eq!(ranks.hear(rank, deadline).1, "ready"));
    let pace = Pace::beside(ranks.pids());
    std::thread::sleep(Duration::from_micros(random.below(20_000) as u64));
    let since = Instant::now();
    let signal = match fate {
        Fate::Killed => libc::SIGKILL,
        Fate::Stopped => libc::SIGSTOP,
        Fate::Aborts => libc::SIGUSR1,
    };
    ranks.signal(victim, signal);
    let mut delays = Vec::new();
    for rank in (0..nranks).filter(|rank| *rank != victim) {
        let (at, text) = ranks.hear(rank, deadline);
        // Directly, or as the one that others wait for.
        let is_named = [" ", ";", ","].map(|end| format!("rank {victim}{end}"));
        let is_named = is_named.iter().any(|name| text.contains(name));
        assert!(is_named, "{fate:?} {victim} of {hosts:?}, rank {rank}: {text}");
        delays.push(pace.timed(since, at));
    }
    if fate == Fate::Stopped {
        ranks.signal(victim, libc::SIGCONT);
    }
    for rank in 0..nranks {
        let end = ranks.end(rank, deadline);
        assert_eq!(end.killed, fate == Fate::Killed && rank == victim, "{:?}", end.result);
        if !end.killed {
            end.result.unwrap_or_else(|why| panic!("{fate:?} {victim}, rank {rank}: {why}"));
        }
    }
    delays
}

/// At random moments one of the ranks is killed, stopped, or aborts: all others name it, in the
/// times in which they do over TCP, and nothing writes to their buffers afterwards.
fn survivors_name_who_is_gone(base: &Config, name: &str, start: Start) {
    let mut random = Random(5);
    let mut delays = FATES.map(|_| Vec::new());
    for round in 0..asked().unwrap_or(9) {
        let fate = round % FATES.len();
        delays[fate].extend(meets_its_fate(FATES[fate], base, start, &mut random));
    }
    let [killed, aborted, _] = &mut delays;
    judge(&format!("{name}, killed"), killed);
    judge(&format!("{name}, aborts"), aborted);
}

#[test]
fn survivors_over_ucx_name_who_is_gone() {
    match ucx() {
        Ok(config) => survivors_name_who_is_gone(&config, "ucx", |hosts, config, argument| {
            Ranks::start_on_hosts(hosts, config, argument, |seat, argument| live(seat, argument))
        }),
        Err(why) => skip(survivors_over_ucx_name_who_is_gone, why),
    }
}

#[test]
fn survivors_over_a_plugin_name_who_is_gone() {
    survivors_name_who_is_gone(&plugin(12, 2), "plugin", |hosts, config, argument| {
        Ranks::start_on_hosts(hosts, config, argument, |seat, argument| live(seat, argument))
    });
}
