//! Whole lives on a virtual network and clock: ranks meet, work, die, agree, shrink and work on.
//!
//! One seed decides every delay and every fault. What runs is the code of the library: listeners,
//! handshakes and the rendezvous of the bootstrap, a control plane for every communicator, the
//! watch of a call that waits, the attempts of a shrink and the agreement in them, and plans of the
//! collectives. Sockets, threads and time are virtual, every rank is on a host of its own, and a
//! connection for data carries one number for each chunk. An operation that fails names somebody
//! who has died. In the end all who live are in one communicator without the dead and add up
//! exactly. A seed that fails is printed; `RINGCOMM_SEED=n` replays it.
//!
//! Written again here, because it waits on threads and sockets there: the order in which
//! `Communicator::init_unless` makes a communicator and `shrink::driver` takes the steps of a
//! shrink is that of [`rank`]'s `make` and `survive`.

mod all_reduce;
mod communicator;
mod rank;
mod world;

use crate::bootstrap::sim::every_seed;
use world::{Fault, Tally, World};

/// Worlds of one kind with many seeds, and what they came to together.
fn sweep(name: &str, seeds: u64, faults: &[Fault]) -> Tally {
    let mut all = Tally::default();
    let look = |world: &World| {
        let tally = world.tally();
        all.shrinks += tally.shrinks;
        all.attempts += tally.attempts;
        all.deaths += tally.deaths;
        all.deaths_shrinking += tally.deaths_shrinking;
        Ok(())
    };
    let (seeds, several) = every_seed(name, seeds, |seed| World::new(seed, faults), look);
    let Tally { shrinks, attempts, deaths, deaths_shrinking } = all;
    println!(
        "{name}: {several} of {seeds} worlds left several ranks; {deaths} deaths, \
         {deaths_shrinking} of them in a shrink; {shrinks} shrinks in {attempts} attempts"
    );
    all
}

#[test]
fn ranks_work_together_whatever_the_delays() {
    sweep("calm lives", 50, &[]);
}

#[test]
fn survivors_agree_and_work_on() {
    let all = sweep("deaths", 300, &[Fault::Death]);
    // Else there is little that this shows.
    let shows = all.deaths > 100 && all.deaths_shrinking > 10 && all.attempts > all.shrinks;
    assert!(shows || std::env::var_os("RINGCOMM_SEED").is_some());
}

#[test]
fn survivors_that_are_stopped_for_a_while_are_waited_for() {
    sweep("deaths and stops", 150, &[Fault::Death, Fault::Stop]);
}

#[test]
fn survivors_of_silent_hosts_agree_and_work_on() {
    let all = sweep("silent hosts", 150, &[Fault::Silence, Fault::Death]);
    assert!(all.shrinks > 0 || std::env::var_os("RINGCOMM_SEED").is_some());
}

#[test]
fn survivors_with_broken_and_damaged_connections_work_on() {
    let faults = [Fault::Death, Fault::Stop, Fault::Cut, Fault::Flip];
    sweep("deaths, stops and cuts", 150, &faults);
}
