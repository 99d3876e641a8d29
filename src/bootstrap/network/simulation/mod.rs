//! Meetings on a virtual network and clock: one seed decides every delay and every fault.
//!
//! What runs is the code that runs on sockets: gates, dials, handshakes, frames and the protocol of
//! the meeting. Only the sockets are virtual, and the Diffie-Hellman exchange is a toy, since a
//! thousand seeds are to take a second. A seed that fails is printed; `RINGCOMM_SEED=n` replays it.

mod large;
mod net;
mod primitives;
mod world;

use world::{Fault, World};

/// Meetings of one kind with many seeds. Every one of them ends, and ends well or with a reason.
fn sweep(name: &str, seeds: u64, faults: &[Fault]) {
    let only = std::env::var("RINGCOMM_SEED").ok().map(|seed| seed.parse().expect("a number"));
    let mut met = 0;
    for seed in only.map_or(0..seeds, |seed: u64| seed..seed + 1) {
        let mut world = World::new(seed, faults);
        let verdict = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| world.run()));
        match verdict {
            Ok(Ok(all)) => met += u64::from(all),
            Ok(Err(complaint)) => {
                panic!("{name}: {complaint}\n{world}replay with RINGCOMM_SEED={seed}")
            }
            Err(panic) => {
                eprintln!("{name}: {world}replay with RINGCOMM_SEED={seed}");
                std::panic::resume_unwind(panic);
            }
        }
    }
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
