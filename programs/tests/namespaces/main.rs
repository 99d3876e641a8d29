//! Hosts with wires between them: ranks in network namespaces, on links that lose packets, are
//! slow, reset connections and fall silent. Every run is exact to the bit or ends in an error that
//! names a rank; none hangs.
//!
//! A run follows from its number. `scripts/soak namespaces` makes 500 of them; RINGCOMM_ROUNDS and
//! RINGCOMM_FIRST choose others. It needs root, ip, tc and nft, and says `skipped` without.

mod alike;
mod lab;
mod parted;
mod shrunk;
mod shut;
#[path = "../../../tests/support/mod.rs"]
mod support;

use lab::{HOSTS, Lab, Trouble};
use ringcomm::bootstrap::UniqueId;
use ringcomm::bootstrap::allgather::root_threads;
use ringcomm::communicator::Communicator;
use ringcomm::config::{Config, Protection};
use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::*};
use std::time::{Duration, Instant};
use support::holdings::Holdings;
use support::processes::{Crew, Ranks, Seat};
use support::samples::{mixed, mixed_long};
use support::skips::skip;
use support::{
    Prepared, Random, config, exchange, names_another, names_in_full, names_who_is_missing,
};

/// The longest that an operation or a meeting may wait: a packet that is lost several times comes
/// after seconds.
const TIMEOUT_MS: u64 = 20_000;

/// A rank that has not ended by then hangs.
const PATIENCE: Duration = Duration::from_secs(120);

/// A host that falls silent is named by then.
const SILENCE: Duration = Duration::from_secs(10);

/// Most of a run is waiting: so many go on at once, each on hosts of its own.
const LABS: usize = 4;

/// In the place of a number of calls: the rank never got a communicator.
const UNMET: &str = "-";

/// Numbers as text, and back.
fn words(numbers: &[usize]) -> String {
    numbers.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
}

/// What a rank does: rounds of every collective, and a batch of messages. The calls that were
/// exact or [`UNMET`], and the error that ended it, if one did.
fn take_part(seat: &Seat, [seed, rounds, is_long]: [usize; 3], hosts: &[usize]) -> String {
    let joined = Communicator::init_rank(seat.nranks, &seat.id, seat.rank, &seat.config);
    let comm = match joined {
        Ok(comm) => comm,
        Err(error) => return format!("{UNMET} {error}"),
    };
    let (mut done, mut random) = (0, Random(seed as u64));
    for _ in 0..rounds {
        let calls = if is_long > 0 { mixed_long } else { mixed };
        for case in calls(hosts, random.next()) {
            if let Err(text) = Prepared::of(case, seat.rank).try_run(&comm) {
                // A difference to the oracle is no error of the library.
                assert!(comm.async_error().is_some(), "a wrong result: {text}");
                return format!("{done} {text}");
            }
            done += 1;
        }
        let batch = match is_long {
            0 => exchange::batch(seat.nranks, &mut random),
            _ => exchange::batch_long(seat.nranks, &mut random),
        };
        if let Err(error) = exchange::try_run(&comm, &batch, &mut Random(random.next())) {
            return format!("{done} {error}");
        }
        done += 1;
    }
    match comm.finalize() {
        Ok(()) => format!("{done} "),
        Err(error) => format!("{done} {error}"),
    }
}

/// The numbers of a rank's argument.
fn numbers(argument: &str) -> Vec<usize> {
    argument.split(' ').map(|word| word.parse().expect("a number")).collect()
}

/// The life of a rank, by its numbers: a seed, rounds, whether calls are long, and the host of
/// every rank.
fn live(seat: &Seat, numbers: &[usize]) -> String {
    let before = Holdings::now();
    let (own, hosts) = numbers.split_first_chunk().expect("three numbers of its own");
    let end = take_part(seat, *own, hosts);
    assert_eq!(Holdings::back_to(&before), before, "nothing is left behind: {end}");
    end
}

/// One run: who lives where, and what happens to them.
#[derive(Debug)]
#[allow(dead_code)] // What only who reads a failure looks at.
struct Run {
    number: usize,
    /// The host of every rank.
    hosts: Vec<usize>,
    trouble: Trouble,
    protection: Protection,
    sockets: usize,
    rounds: usize,
    /// Whether vectors and messages take more than the longest message.
    is_long: bool,
    random: Random,
}

impl Run {
    fn new(number: usize) -> Run {
        let mut random = Random(number as u64 + 1);
        let troubles = [
            Trouble::Loss(1),
            Trouble::Resets,
            Trouble::Loss(5),
            Trouble::Rate(random.pick(&[10, 100, 500])),
            Trouble::Partition,
            Trouble::Loss(20),
            Trouble::None,
            Trouble::Slow { loss: random.pick(&[1, 5]), rate: 100 },
        ];
        let trouble = troubles[number % troubles.len()];
        let hosts = placed(random.below(2 * HOSTS) + 1, &mut random);
        let alone = hosts.iter().all(|host| *host == hosts[0]);
        let protections = [Protection::Clear, Protection::Checksum, Protection::Encrypted];
        Run {
            number,
            hosts,
            trouble,
            protection: random.pick(&protections),
            sockets: 1 + random.below(3),
            // What comes at some moment finds the ranks at work for a while.
            rounds: match trouble {
                _ if alone => 1,
                Trouble::Resets => 8,
                Trouble::Partition => 1000,
                _ => 1,
            },
            // Where the wire allows it within the time that a call may take.
            is_long: match trouble {
                Trouble::Rate(10) | Trouble::Loss(20) => false,
                _ => number / troubles.len() % 3 == 1,
            },
            random,
        }
    }
}

/// Hosts for so many ranks, one or two on each.
fn placed(nranks: usize, random: &mut Random) -> Vec<usize> {
    let mut seats: Vec<usize> = (0..2 * HOSTS).map(|seat| seat / 2).collect();
    for index in (1..seats.len()).rev() {
        seats.swap(index, random.below(index + 1));
    }
    seats.truncate(nranks);
    seats
}

/// How a rank ended, and how long after the silence, if there was one.
#[derive(Debug)]
struct End {
    /// Those that were exact; none without a communicator.
    calls: Option<usize>,
    error: String,
    after: Option<Duration>,
}

impl Run {
    /// Make the run, on these hosts.
    fn make(&mut self, lab: &Lab, crew: &Crew) -> Vec<End> {
        let config = Config {
            timeout_ms: TIMEOUT_MS,
            spins: Some(4),
            nsocks: self.sockets,
            protection: self.protection,
            ..config()
        };
        lab.set(self.trouble).expect("the tools of this machine have just worked");
        let id = lab.on_host(self.hosts[0], || root_threads::start(&config)).expect("an id");
        let namespaces: Vec<_> = self.hosts.iter().map(|host| lab.host(*host)).collect();
        let seed = (self.random.next() >> 1) as usize;
        let (rounds, is_long) = (self.rounds, usize::from(self.is_long));
        let argument = format!("{seed} {rounds} {is_long} {}", words(&self.hosts));
        let mut ranks = crew.start(&namespaces, &id, &config, &argument);
        let cut = self.disturb(lab);
        self.hear(&mut ranks, cut, &id)
    }

    /// The troubles that come at some moment; the host that has fallen silent, and when.
    fn disturb(&mut self, lab: &Lab) -> Option<(usize, Instant)> {
        // The ranks need some tenths of a second to start and to meet.
        let mut pause = |most| {
            std::thread::sleep(Duration::from_millis(self.random.below(most) as u64));
            self.random.pick(&self.hosts)
        };
        match self.trouble {
            Trouble::Resets => {
                for _ in 0..3 {
                    lab.reset(pause(700), 20).expect("filters");
                    pause(50);
                    lab.set(Trouble::None).expect("filters");
                }
                None
            }
            Trouble::Partition => {
                let host = pause(1500);
                lab.cut(host).expect("filters");
                Some((host, Instant::now()))
            }
            _ => None,
        }
    }

    /// What the ranks say at their ends; panics where one hangs or is wrong.
    fn hear(&self, ranks: &mut Ranks, cut: Option<(usize, Instant)>, id: &UniqueId) -> Vec<End> {
        let deadline = Instant::now() + PATIENCE;
        let hear = |rank| {
            let end = ranks.end(rank, deadline);
            let text = end.result.unwrap_or_else(|why| panic!("{self:?}: rank {rank}: {why}"));
            let (calls, error) = text.split_once(' ').expect("calls and an error");
            let after = cut.map(|(_, since)| end.at.saturating_duration_since(since));
            let calls = (calls != UNMET).then(|| calls.parse().expect("a number"));
            End { calls, error: error.into(), after }
        };
        let ends: Vec<End> = (0..self.hosts.len()).map(hear).collect();
        if asked("RINGCOMM_FIRST").is_some() {
            println!("{self:?}: {ends:#?}");
        }
        for (rank, end) in ends.iter().enumerate() {
            let error = &end.error;
            assert!(self.is_named(rank, end, cut, id), "{self:?}: rank {rank}: {error}");
        }
        ends
    }

    /// Whether this is what a rank may say of such a run.
    fn is_named(
        &self,
        rank: usize,
        end: &End,
        cut: Option<(usize, Instant)>,
        id: &UniqueId,
    ) -> bool {
        let (error, nranks) = (&end.error, self.hosts.len());
        let missing = end.calls.is_none() && names_who_is_missing(error, rank, nranks, id);
        if end.calls.is_some() && !error.is_empty() && !names_in_full(error, rank, nranks) {
            return false;
        }
        let alone = self.hosts.iter().all(|host| *host == self.hosts[0]);
        match self.trouble {
            _ if alone => error.is_empty(),
            Trouble::Resets | Trouble::Loss(20) => {
                error.is_empty() || missing || names_another(error, rank, nranks)
            }
            Trouble::Partition => {
                let (silent, _) = cut.expect("somebody was cut off");
                let across = |other: &usize| {
                    (self.hosts[*other] == silent) != (self.hosts[rank] == silent)
                        && error.contains(&format!("rank {other} "))
                };
                missing || (0..nranks).any(|other| across(&other))
            }
            // TCP makes good for all of it.
            _ => error.is_empty(),
        }
    }
}

/// What became of the runs of one kind.
#[derive(Default)]
struct Tally {
    runs: usize,
    exact: usize,
    calls: usize,
    longest: Duration,
    silences: Vec<Duration>,
}

impl Tally {
    fn add(&mut self, ends: &[End], took: Duration) {
        self.runs += 1;
        self.exact += usize::from(ends.iter().all(|end| end.error.is_empty()));
        self.calls += ends.iter().filter_map(|end| end.calls).sum::<usize>();
        self.longest = self.longest.max(took);
        // Who has not met has the deadline of the meeting.
        let met = ends.iter().filter(|end| end.calls.is_some() && !end.error.is_empty());
        self.silences.extend(met.filter_map(|end| end.after));
    }

    fn print(&mut self, kind: &str) {
        let Tally { runs, exact, calls, longest, silences } = self;
        println!("{kind}: {runs} runs, {exact} exact, {calls} calls, longest {longest:.1?}");
        silences.sort_unstable();
        let Some(last) = silences.last().copied() else { return };
        let median = silences[silences.len() / 2];
        println!("{kind}: {} errors, p50 {median:.1?}, longest {last:.1?}", silences.len());
        assert!(last <= SILENCE, "a silent host is named after {last:?}");
    }
}

/// Hosts for this test, or `None` where this machine has no such thing, which is told.
fn labs<F: Fn()>(test: F, count: usize) -> Option<Vec<Lab>> {
    labs_of(test, count, Lab::new)
}

fn labs_of<F: Fn()>(test: F, count: usize, make: fn() -> Result<Lab, String>) -> Option<Vec<Lab>> {
    match (0..count).map(|_| make()).collect() {
        Ok(labs) => Some(labs),
        Err(why) => {
            let lacks = ["not permitted", "not supported", lab::NO_PROGRAM, "Unknown device type"];
            assert!(lacks.iter().any(|lack| why.contains(lack)), "{why}");
            skip(test, why.trim().replace('\n', "; "));
            None
        }
    }
}

/// A number from the environment, if it is there.
fn asked(name: &str) -> Option<usize> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

#[test]
fn every_collective_is_exact_between_hosts_with_one_and_two_ranks() {
    let crew = Crew::new(|seat, argument| live(seat, &numbers(argument)));
    let test = every_collective_is_exact_between_hosts_with_one_and_two_ranks;
    let Some(labs) = labs(test, 1) else { return };
    let mut calls = 0;
    for nranks in 1..=2 * HOSTS {
        let spread: Vec<usize> = (0..nranks).map(|rank| rank % HOSTS).collect();
        let packed: Vec<usize> = (0..nranks).map(|rank| rank / 2).collect();
        for hosts in [spread, packed] {
            let run = Run { hosts, trouble: Trouble::None, rounds: 6, ..Run::new(nranks) };
            let ends = { run }.make(&labs[0], &crew);
            calls += ends.iter().filter_map(|end| end.calls).sum::<usize>();
        }
    }
    println!("{calls} calls on {HOSTS} hosts, all exact");
}

#[test]
fn hosts_with_nothing_but_link_local_addresses_meet_and_are_exact() {
    let crew = Crew::new(|seat, argument| live(seat, &numbers(argument)));
    let test = hosts_with_nothing_but_link_local_addresses_meet_and_are_exact;
    let Some(labs) = labs_of(test, 1, Lab::link_local) else { return };
    let id = labs[0].on_host(0, || root_threads::start(&config())).expect("an id");
    let own: Vec<String> = id.addresses().iter().map(ToString::to_string).collect();
    assert!(own.len() == 1 && own[0].starts_with("[fe80::1%"), "{own:?}");
    let mut calls = 0;
    for hosts in [vec![0, 1], vec![3, 2, 1, 0], vec![2, 2, 0, 1, 1, 3]] {
        let run = Run::new(hosts.len());
        let run = Run { hosts, trouble: Trouble::None, rounds: 1, ..run };
        let ends = { run }.make(&labs[0], &crew);
        calls += ends.iter().filter_map(|end| end.calls).sum::<usize>();
    }
    println!("{calls} calls over links of IPv6, all exact");
}

/// Memory is shared by a socket's name, which is the network namespace's.
#[test]
fn ranks_that_only_count_as_one_host_are_told_so() {
    let crew = Crew::new(|seat, _| {
        let config = Config { host_id: Some("one".into()), ..seat.config.clone() };
        let met = Communicator::init_rank(seat.nranks, &seat.id, seat.rank, &config);
        met.map_or_else(|error| error.to_string(), |_| "they met".into())
    });
    let Some(labs) = labs(ranks_that_only_count_as_one_host_are_told_so, 1) else { return };
    let lab = &labs[0];
    let config = Config { timeout_ms: 3000, ..config() };
    let id = lab.on_host(0, || root_threads::start(&config)).expect("an id");
    let mut ranks = crew.start(&[lab.host(0), lab.host(1)], &id, &config, "");
    let deadline = Instant::now() + PATIENCE;
    for rank in 0..2 {
        let text = ranks.end(rank, deadline).result.expect("an end");
        assert!(text.starts_with("ranks [0, 1] count as one host, and after "), "{text}");
        assert!(text.contains(&format!("missing: [{}]; set RINGCOMM_HOSTID", 1 - rank)), "{text}");
    }
}

#[test]
fn a_check_shows_which_hosts_cannot_talk() {
    let Some(labs) = labs(a_check_shows_which_hosts_cannot_talk, 1) else { return };
    let lab = &labs[0];
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"));
    let shell = folder.join(format!("namespaces-{}.sh", std::process::id()));
    std::fs::write(&shell, lab.shell()).expect("a script");
    std::fs::set_permissions(&shell, PermissionsExt::from_mode(0o700)).expect("its mode");
    let check = || {
        let hosts: Vec<String> = (0..3).map(|host| lab::address(host) + ":1").collect();
        Command::new(env!("CARGO_BIN_EXE_ringrun"))
            .args(["--check", "-H", &hosts.join(",")])
            .env("RINGCOMM_SSH", &shell)
            // No packet is lost here: what has not come by then does not come.
            .env("RINGCOMM_TIMEOUT_MS", "4000")
            .output()
            .expect("ringrun")
    };
    let whole = check();
    lab.part(1, 2).expect("filters");
    let parted = check();
    std::fs::remove_file(&shell).expect("the script");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(whole.status.success(), "{}", text(&whole.stderr));
    assert!(text(&whole.stdout).contains("3 ranks, every pair talks"), "{}", text(&whole.stdout));
    let (out, errors) = (text(&parted.stdout), text(&parted.stderr));
    assert_eq!(parted.status.code(), Some(1), "{out}{errors}");
    assert!(out.contains("3 hosts, 2 of 3 pairs talk"), "{out}{errors}");
    assert_eq!(out.matches("FAILS").count(), 4, "{out}");
    assert!(errors.contains("198.18.0.2 and 198.18.0.3 cannot talk: "), "{errors}");
    println!("{out}{errors}");
}

#[test]
fn every_run_over_bad_wires_is_exact_or_ends_in_an_error_with_a_name() {
    let crew = Crew::new(|seat, argument| live(seat, &numbers(argument)));
    let test = every_run_over_bad_wires_is_exact_or_ends_in_an_error_with_a_name;
    let Some(labs) = labs(test, LABS) else { return };
    let (started, first) = (Instant::now(), asked("RINGCOMM_FIRST").unwrap_or(0));
    let most = asked("RINGCOMM_ROUNDS");
    let next = AtomicUsize::new(0);
    let tallies: Mutex<BTreeMap<String, Tally>> = Mutex::default();
    std::thread::scope(|scope| {
        for lab in &labs {
            let (next, tallies, crew) = (&next, &tallies, &crew);
            scope.spawn(move || {
                loop {
                    // Relaxed: it hands out numbers, and nothing else goes with them.
                    let number = next.fetch_add(1, Relaxed);
                    let is_over = match most {
                        Some(most) => number >= most,
                        None => started.elapsed() > Duration::from_secs(40),
                    };
                    if is_over {
                        return;
                    }
                    let (mut run, begun) = (Run::new(first + number), Instant::now());
                    let ends = run.make(lab, crew);
                    let kind = format!("{:?}", run.trouble);
                    let mut tallies = tallies.lock().expect("no run has failed");
                    tallies.entry(kind).or_default().add(&ends, begun.elapsed());
                }
            });
        }
    });
    let mut tallies = tallies.into_inner().expect("no run has failed");
    let sum = |of: fn(&Tally) -> usize| tallies.values().map(of).sum::<usize>();
    let (runs, exact) = (sum(|tally| tally.runs), sum(|tally| tally.exact));
    println!("{runs} runs, {exact} exact, the others ended by an error with a name");
    tallies.iter_mut().for_each(|(kind, tally)| tally.print(kind));
}
