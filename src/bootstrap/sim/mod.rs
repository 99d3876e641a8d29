//! Rendezvous on a virtual network and clock: one seed decides every delay and every fault.
//!
//! What runs is the code that runs on sockets: listeners, dials, handshakes, frames and the
//! protocol of the rendezvous. Only the sockets are virtual, and the Diffie-Hellman exchange is a
//! toy, since a thousand seeds are to take a second. A seed that fails is printed;
//! `RINGCOMM_SEED=n` replays it, as every sweep shows of its first seeds. `RINGCOMM_SEEDS=n` makes
//! n of every kind (`scripts/soak seeds`).
//!
//! Written again here, because they are loops over sockets there: what [`listener`] does of a
//! listener and of `meet`, and what [`world`] does of the thread of a root.

pub mod crypto;
pub mod hundred_thousand_ranks;
pub mod listener;
pub mod net;
mod world;

use net::Shared;
use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use world::{Fault, World};

/// What follows from a seed.
pub trait Simulated: Display {
    /// Let it happen; what is wrong with how it ended, or whether it ended well.
    fn run(&mut self) -> Result<bool, String>;

    fn net(&self) -> &Shared;
}

/// So many seeds of every sweep are run twice.
const REPLAYED: u64 = 3;

/// Run the worlds of many seeds and have a look at each; how many there were, and of how many that
/// ended well. One that fails is printed.
pub fn every_seed<W: Simulated>(
    name: &str,
    seeds: u64,
    world: impl Fn(u64) -> W,
    mut look: impl FnMut(&W) -> Result<(), String>,
) -> (u64, u64) {
    let number = |name| std::env::var(name).ok().map(|text| text.parse().expect("a number"));
    let seeds: u64 = number("RINGCOMM_SEEDS").unwrap_or(seeds);
    let (mut all, mut fulfilled) = (0, 0);
    for seed in number("RINGCOMM_SEED").map_or(0..seeds, |seed| seed..seed + 1) {
        let mut this = world(seed);
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            let fully = this.run()?;
            look(&this).map(|()| fully)
        }));
        match outcome {
            Ok(Ok(fully)) => (all, fulfilled) = (all + 1, fulfilled + u64::from(fully)),
            Ok(Err(complaint)) => {
                panic!("{name}: {complaint}\n{this}replay with RINGCOMM_SEED={seed}")
            }
            Err(panic) => {
                eprintln!("{name}: {this}replay with RINGCOMM_SEED={seed}");
                resume_unwind(panic);
            }
        }
        if seed < REPLAYED {
            let mut again = world(seed);
            let _ = again.run();
            let histories = [this, again].map(|world| world.net().borrow().history());
            assert_eq!(histories[0], histories[1], "{name}: seed {seed} does not replay");
        }
    }
    (all, fulfilled)
}

/// Rendezvous of one kind with many seeds. Every one of them ends, and ends well or with a reason.
fn sweep(name: &str, seeds: u64, faults: &[Fault]) {
    let world = |seed| World::new(seed, faults);
    let (seeds, met) = every_seed(name, seeds, world, |_| Ok(()));
    println!("{name}: {met} of {seeds} rendezvous brought all ranks together");
}

#[test]
fn another_seed_is_another_history() {
    let history = |seed| {
        let mut world = World::new(seed, &[]);
        world.run().expect("nothing goes wrong");
        let net = world.net().borrow();
        net.history()
    };
    assert_eq!(history(1), history(1));
    assert_ne!(history(1), history(2));
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
    sweep("deaths", 400, &[Fault::Death]);
}

#[test]
fn stopped_ranks_end_in_an_error_at_the_deadline() {
    sweep("stops", 200, &[Fault::Stop]);
}

#[test]
fn hosts_that_fall_silent_are_missed_in_seconds_and_nobody_else_is() {
    sweep("silence", 400, &[Fault::Silence]);
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
fn an_address_that_leads_to_another_rank_leads_nobody_astray() {
    sweep("astray", 200, &[Fault::Astray]);
}

#[test]
fn all_faults_together_end_in_time() {
    let all = [
        Fault::Strangers,
        Fault::Recordings,
        Fault::Missing,
        Fault::Death,
        Fault::Stop,
        Fault::Silence,
        Fault::Cut,
        Fault::Flip,
        Fault::Astray,
    ];
    sweep("everything", 500, &all);
}
