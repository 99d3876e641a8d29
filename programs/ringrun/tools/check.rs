//! `ringrun --check`: the ranks that it starts measure every pair of them.
//!
//! Rank 0 leads: it tells all ranks which pair is next and hears what the pair found, so only one
//! pair is on the wire at a time. A pair that cannot talk ends this, and `pairs` looks at each.
#![allow(unsafe_code)]

use crate::sys::terminal::{complain, say};
use ringcomm::bootstrap::rendezvous::detect;
use ringcomm::communicator::{Communicator, Message};
use ringcomm::config::Config;
use ringcomm::types::DataType;
use std::fmt::Write as _;
use std::time::Instant;

/// What a rank of a check is started with.
pub const ARGUMENT: &str = "--check-rank";

/// How long a pair may take, milliseconds, unless RINGCOMM_TIMEOUT_MS says otherwise: a hundred
/// times what one takes over a gigabit.
const DEADLINE_MS: u64 = 20_000;

/// Round trips of which the median is told, enough that a few interruptions do not show.
const ROUNDS: usize = 51;

/// Bytes of a message that measures bandwidth: more than caches hold on most machines, and two
/// seconds over ten megabit.
const BYTES: usize = 4 << 20;

/// Messages of that size in one direction.
const REPEATS: usize = 4;

/// Bytes of a rank's host name as it is sent.
const NAME_BYTES: usize = 64;

/// Sent in a pair's place when there is none left.
const OVER: u64 = u64::MAX;

/// What a pair found.
#[derive(Clone, Copy, Default)]
pub struct PairResult {
    /// One way, for eight bytes.
    pub microseconds: f64,
    /// From the lower to the higher rank, and back, gigabytes per second.
    pub there: f64,
    pub back: f64,
}

/// Run a rank of a check; the exit status.
pub fn serve() -> u8 {
    let variable = |name: &str| std::env::var(name).ok();
    let told = Config::from_environment().and_then(|mut config| {
        if variable("RINGCOMM_TIMEOUT_MS").is_none() {
            config.timeout_ms = DEADLINE_MS;
        }
        let found = detect(variable, None, None, None)?;
        Communicator::init_found(&found, &config)
    });
    match told.map_err(|error| error.to_string()).and_then(|comm| measure(&comm)) {
        Ok(()) => 0,
        Err(text) => {
            complain(&format!("check: {text}"));
            1
        }
    }
}

/// Send or receive words.
fn words(comm: &Communicator, sends: bool, words: &mut [u64], peer: usize) -> Result<(), String> {
    let (count, data_type) = (words.len(), DataType::Uint64);
    let message = match sends {
        true => Message::Send { buffer: words.as_ptr().cast(), count, data_type, peer },
        false => Message::Recv { buffer: words.as_mut_ptr().cast(), count, data_type, peer },
    };
    // SAFETY: the buffer is a live slice of `count` words.
    unsafe { comm.exchange(&[message]) }.map_err(|error| error.to_string())
}

fn measure(comm: &Communicator) -> Result<(), String> {
    let names = names(comm)?;
    let mut all = vec![PairResult::default(); comm.nranks() * comm.nranks()];
    let pairs = (0..comm.nranks()).flat_map(|low| (low + 1..comm.nranks()).map(move |h| (low, h)));
    let mut pairs = pairs.map(|(low, high)| [low as u64, high as u64]).chain([[OVER; 2]]);
    loop {
        let mut pair = [OVER; 2];
        if comm.rank() == 0 {
            pair = pairs.next().expect("the last one ends the loop");
            for peer in 1..comm.nranks() {
                words(comm, true, &mut pair, peer).map_err(|text| apart(&names, pair, &text))?;
            }
        } else {
            words(comm, false, &mut pair, 0)?;
        }
        if pair[0] == OVER {
            break;
        }
        let [low, high] = pair.map(|rank| rank as usize);
        let found = one_pair(comm, low, high);
        if comm.rank() == 0 {
            let found = found.map_err(|text| apart(&names, pair, &text))?;
            all[low * comm.nranks() + high] = found;
        } else {
            found?;
        }
    }
    if comm.rank() == 0 {
        say(&report(&names, comm.network(), &all));
    }
    comm.finalize().map_err(|error| error.to_string())
}

fn apart(names: &[String], pair: [u64; 2], text: &str) -> String {
    let name = |rank: u64| {
        let host = names.get(rank as usize).map_or(String::new(), |name| format!(" ({name})"));
        format!("rank {rank}{host}")
    };
    let [low, high] = pair;
    if low == OVER {
        return text.to_string();
    }
    // Who is at fault is in the text: it need not be one of the two.
    format!("while {} and {} were measured: {text}", name(low), name(high))
}

/// The host of every rank, on rank 0.
fn names(comm: &Communicator) -> Result<Vec<String>, String> {
    let mut own = [0u64; NAME_BYTES / 8];
    let text = ringcomm::host::name();
    for (at, byte) in text.bytes().take(NAME_BYTES).enumerate() {
        own[at / 8] |= u64::from(byte) << (at % 8 * 8);
    }
    if comm.rank() > 0 {
        words(comm, true, &mut own, 0)?;
        return Ok(Vec::new());
    }
    let mut names = vec![text.to_string()];
    for peer in 1..comm.nranks() {
        words(comm, false, &mut own, peer)
            .map_err(|text| apart(&names, [0, peer as u64], &text))?;
        let bytes = own.iter().flat_map(|word| word.to_le_bytes());
        let bytes: Vec<u8> = bytes.take_while(|byte| *byte != 0).collect();
        names.push(String::from_utf8_lossy(&bytes).into_owned());
    }
    Ok(names)
}

/// This rank's part while one pair measures; what it found, on rank 0.
fn one_pair(comm: &Communicator, low: usize, high: usize) -> Result<PairResult, String> {
    let mut told = [0u64; 3];
    if comm.rank() == low || comm.rank() == high {
        let peer = if comm.rank() == low { high } else { low };
        told[0] = latency(comm, peer, comm.rank() == low)?.to_bits();
        let mut load = vec![1u64; BYTES / 8];
        for (at, source) in [(1, low), (2, high)] {
            told[at] = bandwidth(comm, peer, comm.rank() == source, &mut load)?.to_bits();
        }
    }
    if low != 0 && comm.rank() == low {
        words(comm, true, &mut told, 0)?;
    } else if low != 0 && comm.rank() == 0 {
        words(comm, false, &mut told, low)?;
    }
    let [microseconds, there, back] = told.map(f64::from_bits);
    Ok(PairResult { microseconds, there, back })
}

/// Half of the median round trip, microseconds.
fn latency(comm: &Communicator, peer: usize, begins: bool) -> Result<f64, String> {
    let mut rounds = Vec::with_capacity(ROUNDS);
    let mut word = [0u64];
    for _ in 0..ROUNDS {
        let started = Instant::now();
        words(comm, begins, &mut word, peer)?;
        words(comm, !begins, &mut word, peer)?;
        rounds.push(started.elapsed().as_secs_f64() * 1e6 / 2.0);
    }
    rounds.sort_by(f64::total_cmp);
    Ok(rounds[ROUNDS / 2])
}

/// Gigabytes per second in one direction, until the last byte is acknowledged.
fn bandwidth(
    comm: &Communicator,
    peer: usize,
    sends: bool,
    load: &mut [u64],
) -> Result<f64, String> {
    let mut word = [0u64];
    // The first message makes connections and pages that the others find.
    words(comm, sends, load, peer)?;
    words(comm, !sends, &mut word, peer)?;
    let started = Instant::now();
    for _ in 0..REPEATS {
        words(comm, sends, load, peer)?;
    }
    words(comm, !sends, &mut word, peer)?;
    Ok((REPEATS * BYTES) as f64 / started.elapsed().as_secs_f64() / 1e9)
}

/// What all ranks found.
fn report(names: &[String], network: Option<String>, all: &[PairResult]) -> String {
    let nranks = names.len();
    let mut text = format!("{nranks} ranks, every pair talks\n");
    for (rank, name) in names.iter().enumerate() {
        let _ = writeln!(text, "  rank {rank}: {name}");
    }
    if let Some(network) = network {
        let _ = writeln!(text, "  between hosts: {network}");
    }
    let all: Vec<Option<PairResult>> = all.iter().copied().map(Some).collect();
    text + &matrices("rank", nranks, &all)
}

/// Both matrices; a row's and a column's number is that of `what`, and pairs are found at the row
/// of the lower and the column of the higher. Those that found nothing cannot talk.
pub fn matrices(what: &str, count: usize, all: &[Option<PairResult>]) -> String {
    let mut text = String::new();
    let cell = |from: usize, to: usize, value: &dyn Fn(&PairResult) -> String| {
        if from == to {
            return "-".into();
        }
        let found = all[from.min(to) * count + from.max(to)].as_ref();
        found.map_or("FAILS".into(), value)
    };
    let mut matrix = |title: &str, value: &dyn Fn(usize, usize) -> String| {
        let _ = writeln!(text, "\n{title}");
        let heads: String = (0..count).map(|to| format!("{to:>9}")).collect();
        let _ = writeln!(text, "{:8}{heads}", "");
        for from in 0..count {
            let cells: String = (0..count).map(|to| format!("{:>9}", value(from, to))).collect();
            let _ = writeln!(text, "{what} {from:<3}{cells}");
        }
    };
    matrix("latency, microseconds one way, 8 bytes", &|from, to| {
        cell(from, to, &|found| format!("{:.1}", found.microseconds))
    });
    matrix("bandwidth, GB/s, from row to column", &|from, to| {
        cell(from, to, &|found| format!("{:.2}", if from < to { found.there } else { found.back }))
    });
    text
}
