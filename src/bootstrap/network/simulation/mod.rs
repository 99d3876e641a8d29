//! Meetings on a virtual network and clock: one seed decides every delay and every fault.
//!
//! What runs is the code that runs on sockets: gates, dials, handshakes, frames and the protocol of
//! the meeting. Only the sockets are virtual, and the Diffie-Hellman exchange is a toy, since a
//! thousand seeds are to take a second. A seed that fails is printed; `RINGCOMM_SEED=n` replays it.

mod large;
pub mod net;
pub mod primitives;
mod world;

use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use world::{Fault, World};

/// Run the worlds of many seeds; how many came out as true. One that fails is printed.
pub fn every_seed<W: Display>(
    name: &str,
    seeds: u64,
    world: impl Fn(u64) -> W,
    mut run: impl FnMut(&mut W) -> Result<bool, String>,
) -> u64 {
    let only = std::env::var("RINGCOMM_SEED").ok().map(|seed| seed.parse().expect("a number"));
    let mut fulfilled = 0;
    for seed in only.map_or(0..seeds, |seed: u64| seed..seed + 1) {
        let mut world = world(seed);
        match catch_unwind(AssertUnwindSafe(|| run(&mut world))) {
            Ok(Ok(fully)) => fulfilled += u64::from(fully),
            Ok(Err(complaint)) => {
                panic!("{name}: {complaint}\n{world}replay with RINGCOMM_SEED={seed}")
            }
            Err(panic) => {
                eprintln!("{name}: {world}replay with RINGCOMM_SEED={seed}");
                resume_unwind(panic);
            }
        }
    }
    fulfilled
}

/// Meetings of one kind with many seeds. Every one of them ends, and ends well or with a reason.
fn sweep(name: &str, seeds: u64, faults: &[Fault]) {
    let met = every_seed(name, seeds, |seed| World::new(seed, faults), World::run);
    println!("{name}: {met} of {seeds} meetings brought all ranks together");
}

#[test]
fn ranks_meet_whatever_the_delays() {
    sweep("calm", 400, &[]);
}

#[test]
fn strangers_and_recordings_hold_up_nobody() {
    sweep("strangers", 300, &[Fault::Strangers, Fault::Recordings]);
}

#[test]
fn missing_ranks_are_listed() {
    sweep("missing", 200, &[Fault::Missing]);
}

#[test]
fn the_dead_are_named() {
    sweep("deaths", 800, &[Fault::Death]);
}

#[test]
fn stopped_ranks_end_in_an_error_at_the_deadline() {
    sweep("stops", 200, &[Fault::Stop]);
}

#[test]
fn cut_connections_end_in_an_error_or_are_made_again() {
    sweep("cuts", 500, &[Fault::Cut]);
}

#[test]
fn flipped_bits_never_reach_a_table() {
    sweep("flips", 500, &[Fault::Flip]);
}

#[test]
fn all_faults_together_end_in_time() {
    let all = [
        Fault::Strangers,
        Fault::Recordings,
        Fault::Missing,
        Fault::Death,
        Fault::Stop,
        Fault::Cut,
        Fault::Flip,
    ];
    sweep("everything", 1000, &all);
}
