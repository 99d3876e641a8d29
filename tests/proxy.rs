//! Ranks behind a proxy that delays, cuts and damages what goes between them: every run is exact to
//! the bit or ends in an error with a name, none hangs. And a proxy that only listens: it learns
//! nothing of what is encrypted.
//!
//! The proxy stands between by `connect`: this program defines it, so that the linker gives it to
//! the library as well, and every connection to a listener goes through a relay of this process.
//! Each relay forwards at a pace of its own, so what goes over different connections changes its
//! order.
//!
//! `RINGCOMM_ROUNDS=500 cargo test --release --test proxy` is the long run.

mod support;

use ringcomm::bootstrap::allgather::root_threads;
use ringcomm::communicator::{Call, Communicator, Message};
use ringcomm::config::{Config, Protection};
use ringcomm::plan::Collective;
use ringcomm::types::DataType;
use std::cell::Cell;
use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddrV4, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering::*};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, Instant};
use support::samples::{mixed, mixed_long};
use support::{Prepared, Random, config, names_in_full, names_who_is_missing, on_hosts, wired};

/// What the relays do at present.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Trouble {
    None,
    /// Up to so many microseconds before every piece.
    Delay(usize),
    /// One connection in so many ends after some bytes.
    Cut(usize),
    /// One connection in so many has a bit flipped.
    Flip(usize),
}

static TROUBLE: Mutex<(Trouble, u64)> = Mutex::new((Trouble::None, 0));

/// Held by the test whose trouble it is.
static TURN: Mutex<()> = Mutex::new(());

/// Wait for the other tests, whether they succeed or not.
fn take_turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What all relays have forwarded, in pieces as they came, while somebody wants to know.
static TAPE: Mutex<Option<Vec<u8>>> = Mutex::new(None);

/// By port of a listener, the port of the relay before it.
static RELAYS: LazyLock<Mutex<HashMap<u16, u16>>> = LazyLock::new(Mutex::default);

/// Connections through relays, cut ones, and flipped bits.
static COUNTS: [AtomicU64; 3] = [const { AtomicU64::new(0) }; 3];

thread_local! {
    /// This thread is a relay's.
    static DIRECT: Cell<bool> = const { Cell::new(false) };
}

/// The library's `connect`, and everybody else's here.
///
/// # Safety
/// As the system's: `address` is valid for `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn connect(
    fd: libc::c_int,
    address: *const libc::sockaddr,
    length: libc::socklen_t,
) -> libc::c_int {
    // SAFETY: the caller's promise; an address of this family has this layout.
    let mut inet = unsafe {
        let is_inet = length as usize >= size_of::<libc::sockaddr_in>()
            && i32::from((*address).sa_family) == libc::AF_INET
            && !DIRECT.get();
        is_inet.then(|| address.cast::<libc::sockaddr_in>().read_unaligned())
    };
    let mut address = address;
    if let Some(inet) = &mut inet {
        inet.sin_port = relay_before(u16::from_be(inet.sin_port)).to_be();
        address = (&raw const *inet).cast();
    }
    // SAFETY: the caller's arguments, or an address of the same length.
    unsafe { libc::syscall(libc::SYS_connect, fd, address, length) as libc::c_int }
}

/// The relay before a listener of this machine, a new one if there is none.
fn relay_before(target: u16) -> u16 {
    let mut relays = RELAYS.lock().expect("no relay panics");
    *relays.entry(target).or_insert_with(|| {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let port = listener.local_addr().expect("an address").port();
        std::thread::spawn(move || {
            DIRECT.set(true);
            for caller in listener.incoming().map_while(Result::ok) {
                // Without a listener behind, the caller sees its connection end.
                if let Ok(called) =
                    TcpStream::connect(SocketAddrV4::new(Ipv4Addr::LOCALHOST, target))
                {
                    join(caller, called);
                }
            }
        });
        port
    })
}

/// Forward between two sockets, with the trouble of the time.
fn join(caller: TcpStream, called: TcpStream) {
    COUNTS[0].fetch_add(1, Relaxed);
    let (trouble, seed) = {
        let mut trouble = TROUBLE.lock().expect("no relay panics");
        trouble.1 += 1;
        *trouble
    };
    for (number, (from, to)) in [(&caller, &called), (&called, &caller)].into_iter().enumerate() {
        let (from, to) = (from.try_clone().expect("a socket"), to.try_clone().expect("a socket"));
        let _ = (from.set_nodelay(true), to.set_nodelay(true));
        let random = Random(seed.wrapping_mul(0x9e37_79b9) + number as u64 + 1);
        std::thread::spawn(move || forward(from, to, trouble, random));
    }
}

fn forward(mut from: TcpStream, mut to: TcpStream, trouble: Trouble, mut random: Random) {
    // Handshakes are some hundred bytes, a run's payloads some hundred thousand, or millions.
    let magnitude = 6 + random.below(14);
    let place = random.below(1 << magnitude);
    let is_hit = match trouble {
        Trouble::Cut(one_in) | Trouble::Flip(one_in) => random.below(one_in) == 0,
        _ => false,
    };
    let (mut bytes, mut before) = ([0; 8192], 0);
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        if let Trouble::Delay(most) = trouble {
            std::thread::sleep(Duration::from_micros(random.below(most + 1) as u64));
        }
        let here = is_hit && (before..before + count).contains(&place);
        match trouble {
            Trouble::Cut(_) if here => {
                COUNTS[1].fetch_add(1, Relaxed);
                let _ = to.write_all(&bytes[..place - before]);
                let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
                return;
            }
            Trouble::Flip(_) if here => {
                COUNTS[2].fetch_add(1, Relaxed);
                bytes[place - before] ^= 1 << random.below(8);
            }
            _ => {}
        }
        // Before it is sent on: what has come through is on the tape.
        if let Some(tape) = TAPE.lock().expect("no relay panics").as_mut() {
            tape.extend(&bytes[..count]);
        }
        if to.write_all(&bytes[..count]).is_err() {
            break;
        }
        before += count;
    }
    let _ = to.shutdown(Shutdown::Write);
}

/// The longest that an operation or a meeting may wait.
const TIMEOUT_MS: u64 = 4000;

/// How a rank's part in a run ended.
enum End {
    /// It never got a communicator.
    Unmet(String),
    /// It made so many calls that were exact, and then one that failed, if one did.
    Worked(usize, Option<String>),
}

/// The calls of a rank.
fn take_part(comm: &Communicator, prepared: &[Prepared]) -> End {
    for (done, case) in prepared.iter().enumerate() {
        if let Err(text) = case.try_run(comm) {
            // A difference to the oracle is no error of the library.
            assert!(comm.async_error().is_some(), "a wrong result: {text}");
            comm.abort();
            return End::Worked(done, Some(text));
        }
    }
    End::Worked(prepared.len(), None)
}

/// One run on threads that take each other for other hosts: how many calls were exact, and the
/// errors of the ranks that failed, which name another rank each, or who was missing when they were
/// to meet.
fn run_once(nranks: usize, seed: u64, config: &Config, is_long: bool) -> (usize, Vec<String>) {
    let id = root_threads::start(config).expect("an id");
    let hosts: Vec<usize> = (0..nranks).collect();
    let cases = if is_long { mixed_long(&hosts, seed) } else { mixed(&hosts, seed) };
    let cases: Vec<Prepared> = cases.into_iter().map(Prepared::new).collect();
    let ends = std::thread::scope(|scope| {
        let rank = |rank: usize| {
            let (id, cases) = (&id, &cases);
            let config = Config { host_id: Some(format!("host {rank}")), ..config.clone() };
            scope.spawn(move || {
                let joined = Communicator::init_rank(nranks, id, rank, &config);
                match joined {
                    Ok(comm) => take_part(&comm, cases),
                    Err(error) => End::Unmet(error.to_string()),
                }
            })
        };
        let ranks: Vec<_> = (0..nranks).map(rank).collect();
        ranks.into_iter().map(|rank| rank.join().expect("an exact result")).collect::<Vec<_>>()
    });
    let (mut calls, mut errors) = (0, Vec::new());
    for (rank, end) in ends.into_iter().enumerate() {
        let (done, text) = match end {
            End::Unmet(text) => {
                let named = names_who_is_missing(&text, rank, nranks, &id);
                assert!(named, "rank {rank} of {nranks} has not met: {text}");
                (0, Some(text))
            }
            End::Worked(done, Some(text)) => {
                let named = names_in_full(&text, rank, nranks);
                assert!(named, "rank {rank} of {nranks} after {done} calls: {text}");
                (done, Some(text))
            }
            End::Worked(done, None) => (done, None),
        };
        calls += done;
        errors.extend(text);
    }
    (calls, errors)
}

#[test]
fn every_run_through_the_proxy_is_exact_or_ends_in_an_error_with_a_name() {
    let _turn = take_turn();
    let asked = std::env::var("RINGCOMM_ROUNDS").ok();
    let most = asked.map_or(usize::MAX, |rounds| rounds.parse().expect("a number"));
    let (started, mut random) = (Instant::now(), Random(5));
    let troubles = [
        Trouble::None,
        Trouble::Delay(300),
        Trouble::Delay(3000),
        Trouble::Cut(10),
        Trouble::Cut(40),
        Trouble::Flip(10),
        Trouble::Flip(40),
    ];
    let (mut runs, mut exact, mut calls, mut longest) = (0, 0, 0, Duration::ZERO);
    while runs < most && (most != usize::MAX || started.elapsed() < Duration::from_secs(25)) {
        let trouble = troubles[runs % troubles.len()];
        TROUBLE.lock().expect("no relay panics").0 = trouble;
        let mut nranks = 2 + random.below(3);
        let mut protection = random.pick(&[Protection::Checksum, Protection::Encrypted]);
        let mut sockets = 1 + random.below(2);
        // In some runs messages are as long as they get; in half of those up to 512 KiB go whole.
        let is_long = runs % 4 == 3;
        let mut profile = None;
        if runs % 8 == 3 {
            (nranks, protection, sockets) = (2, Protection::Checksum, 1);
            profile = wired(2, 1.0 / 5_000.0).tuning_file;
        }
        let config = Config {
            timeout_ms: TIMEOUT_MS,
            interfaces: Some("lo".into()),
            spins: Some(4),
            nsocks: sockets,
            protection,
            tuning_file: profile,
            ..config()
        };
        let begun = Instant::now();
        let (done, heard) = mpsc::channel();
        let seed = random.next();
        std::thread::spawn(move || done.send(run_once(nranks, seed, &config, is_long)));
        let told = format!("run {runs}, {nranks} ranks, {trouble:?}, {protection:?}");
        let (exact_calls, errors) = heard
            .recv_timeout(Duration::from_secs(60))
            .unwrap_or_else(|why| panic!("{told} hangs or is wrong: {why}"));
        let took = begun.elapsed();
        longest = longest.max(took);
        let harmless = matches!(trouble, Trouble::None | Trouble::Delay(_));
        assert!(!harmless || errors.is_empty(), "{told}: {errors:?}");
        if took > Duration::from_secs(2) {
            println!("{told}: {took:?}, {:?}", errors.first());
        }
        (runs, calls) = (runs + 1, calls + exact_calls);
        exact += usize::from(errors.is_empty());
        RELAYS.lock().expect("no relay panics").clear();
    }
    let counts = COUNTS.each_ref().map(|count| count.load(Relaxed));
    println!("{runs} runs, {exact} exact, {calls} calls, longest {longest:?}; {counts:?}");
    assert!(counts[1] > 0 && counts[2] > 0, "connections, cuts, flips: {counts:?}");
}

/// What the ranks send each other, again and again; nothing else is like it by chance.
const WORD: &[u8; 16] = b"for rank 1 alone";

/// Of them in a call.
const WORDS: usize = 1024;

/// Both ranks send words, in a collective each and in messages: how many went between them.
fn send_words(comm: &Communicator) -> usize {
    let (mine, mut theirs) = (WORD.repeat(WORDS), vec![0; WORDS * WORD.len()]);
    let (count, data_type) = (mine.len(), DataType::Uint8);
    for root in 0..2 {
        theirs.fill(0);
        let call = Call {
            send: mine.as_ptr().cast(),
            recv: theirs.as_mut_ptr().cast(),
            count,
            root,
            ..Call::new(Collective::Broadcast, data_type)
        };
        // SAFETY: both buffers hold as many bytes.
        unsafe { comm.run(&call) }.expect("a broadcast");
        assert!(theirs == mine);
    }
    theirs.fill(0);
    let peer = 1 - comm.rank();
    let (buffer, into) = (mine.as_ptr().cast(), theirs.as_mut_ptr().cast());
    let messages = [
        Message::Send { buffer, count, data_type, peer },
        Message::Recv { buffer: into, count, data_type, peer },
    ];
    // SAFETY: as above.
    unsafe { comm.exchange(&messages) }.expect("messages");
    assert!(theirs == mine);
    4 * WORDS
}

#[test]
fn what_goes_between_hosts_is_seen_on_the_way_unless_it_is_encrypted() {
    let _turn = take_turn();
    TROUBLE.lock().expect("no relay panics").0 = Trouble::None;
    for protection in Protection::ALL {
        *TAPE.lock().expect("no relay panics") = Some(Vec::new());
        let config = Config { nsocks: 2, protection, ..config() };
        let sent = on_hosts(&[0, 1], &config, |comm| {
            // One that is made of another protects no less.
            let child = comm.split(0, 0, None).expect("a split").expect("a member");
            send_words(comm) + send_words(&child)
        });
        let tape = TAPE.lock().expect("no relay panics").take().expect("it was asked for");
        let seen = tape.windows(WORD.len()).filter(|bytes| bytes == WORD).count();
        println!("{protection:?}: {} words sent, {seen} seen in {} bytes", sent[0], tape.len());
        assert!(tape.len() >= sent[0] * WORD.len(), "not all went through the proxy");
        match protection {
            Protection::Encrypted => assert_eq!(seen, 0, "what is encrypted is seen"),
            // A word in two pieces is missed.
            _ => assert!(seen > sent[0] / 2, "{seen} of {} seen", sent[0]),
        }
    }
}
