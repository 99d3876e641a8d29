//! A peer that writes at random over every page that it shares: the others neither crash nor wait
//! past their deadline, print nothing, and go on without it.
//!
//! For a few seconds; `RINGCOMM_HOSTILE_SECONDS` says for how many, `RINGCOMM_SEED` from where.

mod support;

use ringcomm::communicator::{Call, Communicator, Message};
use ringcomm::config::Config;
use ringcomm::plan::Collective;
use ringcomm::types::DataType;
use std::io::{Read, Seek};
use std::os::fd::{AsRawFd, FromRawFd};
use std::time::{Duration, Instant};
use support::processes::{Ranks, Seat};
use support::scratch::{Scratch, run};
use support::work::any_call;
use support::{Random, config};

const RANKS: usize = 3;
const HOSTILE: usize = RANKS - 1;
const EPISODE: Duration = Duration::from_millis(300);
/// The deadline of a call, and what a busy machine adds.
const DEADLINE_MS: u64 = 1000;
const SLACK: Duration = Duration::from_secs(15);

/// What this process prints to standard error from now on.
struct Printed(std::fs::File);

impl Printed {
    fn begin() -> Printed {
        // SAFETY: the name ends in a zero; the descriptor is new and nobody else's.
        let file = unsafe {
            std::fs::File::from_raw_fd(libc::memfd_create(c"printed".as_ptr(), libc::MFD_CLOEXEC))
        };
        // SAFETY: two live descriptors.
        assert!(unsafe { libc::dup2(file.as_raw_fd(), 2) } == 2);
        Printed(file)
    }

    fn text(mut self) -> String {
        let mut text = String::new();
        self.0.rewind().unwrap();
        self.0.read_to_string(&mut text).unwrap();
        text
    }
}

/// The pages that this process shares with others and may write: where they begin, and bytes.
fn shared_pages() -> Vec<(usize, usize)> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let shared = maps.lines().filter(|line| line.contains(" rw-s ") && line.contains("memfd:ring"));
    let ends = shared.map(|line| {
        let (begin, end) = line.split(' ').next().unwrap().split_once('-').unwrap();
        let address = |hex| usize::from_str_radix(hex, 16).unwrap();
        (address(begin), address(end) - address(begin))
    });
    ends.collect()
}

/// Write over the pages until then: numbers that mean something somewhere, noise, what stood
/// elsewhere, all at once or now and then.
fn vandalize(mut random: Random, until: Instant) {
    let pages = shared_pages();
    assert!(!pages.is_empty(), "the ranks of a machine share memory");
    let pause = random.pick(&[0, 0, 20, 500]);
    while Instant::now() < until {
        let (begin, bytes) = random.pick(&pages);
        // Words of control stand at the beginning.
        let room = if random.chance(2) { bytes.min(8192) } else { bytes };
        let at = begin + random.below(room / 64) * 64 + random.below(8) * 8;
        let other = begin + random.below(bytes / 64) * 64;
        let value = match random.below(6) {
            0 => random.next(),
            1 => random.below(8) as u64,
            2 => u64::MAX,
            3 => 1 << random.below(64),
            4 => u64::from(std::process::id()),
            _ => {
                // SAFETY: both lines lie in a live mapping.
                unsafe { std::ptr::copy(other as *const u8, (at & !63) as *mut u8, 64) };
                continue;
            }
        };
        // SAFETY: the word lies in a live mapping. The library uses it at the same time, which is
        // what this is about.
        unsafe { (at as *mut u64).write_volatile(value) };
        if pause > 0 && random.chance(8) {
            std::thread::sleep(Duration::from_micros(pause));
        }
    }
}

/// Ranks 0 and 1 tell each other something. What comes may be altered: ranks of a machine share the
/// slots of all (SECURITY.md).
fn tell(comm: &Communicator, turn: u32) -> ringcomm::error::Result<()> {
    if comm.rank() == HOSTILE {
        return Ok(());
    }
    let peer = 1 - comm.rank();
    let (sent, mut got) = (vec![turn; 700], vec![0_u32; 700]);
    let (count, data_type) = (sent.len(), DataType::Uint32);
    let messages = [
        Message::Send { buffer: sent.as_ptr().cast(), count, data_type, peer },
        Message::Recv { buffer: got.as_mut_ptr().cast(), count, data_type, peer },
    ];
    // SAFETY: both buffers hold so many elements until the call has returned.
    unsafe { comm.exchange(&messages) }
}

/// The sum of both ranks that go on together.
fn assert_right(comm: &Communicator) {
    let (sent, mut got) = ([comm.rank() as f32 + 1.0; 500], [0.0_f32; 500]);
    let (send, recv) = (sent.as_ptr().cast(), got.as_mut_ptr().cast());
    let call =
        Call { send, recv, count: 500, ..Call::new(Collective::AllReduce, DataType::Float32) };
    // SAFETY: both buffers hold so many elements until the call has returned.
    if unsafe { comm.run(&call) }.is_ok() {
        assert!(got.iter().all(|got| *got == 3.0), "{got:?}");
    }
}

fn live(seat: &Seat, seed: &str) -> String {
    let printed = Printed::begin();
    // The hostile one may be there before this one has begun.
    let made = Communicator::init_rank(RANKS, &seat.id, seat.rank, &seat.config);
    let Ok(comm) = &made else { return "0 1 0".into() };
    let mut random = Random(seed.parse().unwrap());
    let until = Instant::now() + EPISODE;
    let vandal = Random(random.next());
    let vandal = (comm.rank() == HOSTILE)
        .then(|| std::thread::spawn(move || vandalize(vandal, until + EPISODE)));
    let mapped = random.chance(2);
    let mut scratch = if mapped { Scratch::mapped(RANKS) } else { Scratch::new(RANKS) };
    let (mut calls, mut longest, mut turn) = (0, Duration::ZERO, 0);
    let error = loop {
        turn += 1;
        let begun = Instant::now();
        let done = match random.chance(3) {
            true => tell(comm, turn),
            false => run(comm, &any_call(&mut scratch, RANKS, &mut random)),
        };
        longest = longest.max(begun.elapsed());
        calls += 1;
        if done.is_err() || Instant::now() > until {
            break done.err();
        }
    };
    let limit = Duration::from_millis(DEADLINE_MS) + SLACK;
    assert!(longest < limit, "a call took {longest:?}");
    let mut went_on = false;
    if comm.rank() != HOSTILE && error.is_some() {
        let begun = Instant::now();
        if let Ok(smaller) = comm.shrink(&[HOSTILE], None) {
            assert_right(&smaller);
            went_on = true;
        }
        assert!(begun.elapsed() < 3 * limit, "shrinking took {:?}", begun.elapsed());
    }
    vandal.into_iter().for_each(|vandal| vandal.join().unwrap());
    let text = printed.text();
    assert!(text.is_empty() || comm.rank() == HOSTILE, "printed: {text}");
    format!("{calls} {} {}", u32::from(error.is_some()), u32::from(went_on))
}

#[test]
fn a_peer_that_writes_over_shared_pages_does_no_more_than_end_the_job() {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    let seconds = number("RINGCOMM_HOSTILE_SECONDS").unwrap_or(4);
    let first = number("RINGCOMM_SEED").unwrap_or(1);
    let config = Config {
        timeout_ms: DEADLINE_MS,
        init_timeout_ms: Some(10_000),
        spins: Some(4),
        ..config()
    };
    let begun = Instant::now();
    let mut all = [0; 4];
    for seed in first.. {
        if begun.elapsed() > Duration::from_secs(seconds) {
            break;
        }
        let mut ranks = Ranks::start_apart(RANKS, &config, &seed.to_string(), |seat, seed| {
            // A closure, whose name tells the test.
            live(seat, seed)
        });
        let deadline = Instant::now() + Duration::from_secs(100);
        for rank in 0..HOSTILE {
            let said = ranks.end(rank, deadline).result;
            let said = said.unwrap_or_else(|why| panic!("seed {seed}: rank {rank}: {why}"));
            let numbers = said.split(' ').map(|number| number.parse::<u64>().unwrap());
            all[1..].iter_mut().zip(numbers).for_each(|(sum, number)| *sum += number);
        }
        all[0] += 1;
    }
    let [episodes, calls, failed, went_on] = all;
    assert!(failed >= episodes, "{failed} errors in {episodes} episodes: nobody is disturbed");
    println!("{episodes} episodes, {calls} calls, {failed} ended in an error, {went_on} went on");
}
