//! ReduceScatter and AllGather: a rank's block has one rank on every other host that works for it.
//!
//! The ranks of a host share this work in turns, a round of one block for each of them, so that
//! nobody is more than a message ahead of the others.

use super::HostPosition;
use crate::plan::{End, Plan, Span};

/// The part of a host's ranks goes straight to the rank whose block it is.
pub(super) fn reduce_scatter(place: &HostPosition) -> Plan {
    let nranks = place.topology.nranks();
    let mut plan = Plan::new(place.rank, nranks, nranks);
    for host in place.elsewhere() {
        for round in rounds(place, host) {
            for worker in place.companions() {
                if let Some(&rank) = round.get(worker) {
                    plan.step(Span::one(rank), &[place.local(worker)], &[End::Input]);
                }
            }
            if let Some(&rank) = round.get(place.index) {
                plan.step(Span::one(rank), &[End::Peer(rank)], &place.inputs());
            }
        }
    }
    for worker in place.companions() {
        plan.step(Span::one(place.locals()[worker]), &[place.local(worker)], &[End::Input]);
    }
    if place.own_part() == End::Scratch {
        plan.step(Span::one(place.rank), &[End::Scratch], &place.inputs());
    }
    plan.next_stage();
    let parts = place.parts(|host| End::Peer(worker_of(place, place.index, host)));
    plan.finish_hosts(Span::one(place.rank), &[End::Output], &parts);
    plan
}

/// A block goes to one rank of every other host, which passes it on there.
pub(super) fn all_gather(place: &HostPosition) -> Plan {
    let nranks = place.topology.nranks();
    let mut plan = Plan::new(place.rank, nranks, nranks);
    let here = |first: End| {
        [first].into_iter().chain(place.companions().map(|at| place.local(at))).collect::<Vec<_>>()
    };
    let mut targets = here(End::Output);
    targets.extend(place.elsewhere().map(|host| End::Peer(worker_of(place, place.index, host))));
    plan.step(Span::one(place.rank), &targets, &[End::Input]);
    for other in place.companions() {
        plan.step(Span::one(place.locals()[other]), &[End::Output], &[place.local(other)]);
    }
    plan.next_stage();
    for host in place.elsewhere() {
        for round in rounds(place, host) {
            if let Some(&rank) = round.get(place.index) {
                plan.step(Span::one(rank), &here(End::Output), &[End::Peer(rank)]);
            }
            for worker in place.companions() {
                if let Some(&rank) = round.get(worker) {
                    plan.step(Span::one(rank), &[End::Output], &[place.local(worker)]);
                }
            }
        }
    }
    plan
}

/// The ranks of `host`, as many at a time as there are ranks here: the i-th is the i-th's work.
fn rounds<'a>(place: &HostPosition<'a>, host: usize) -> std::slice::Chunks<'a, usize> {
    place.topology.ranks(host).chunks(place.locals().len())
}

/// Who on `host` works for the rank at `index` of its own host: see [`rounds`].
fn worker_of(place: &HostPosition, index: usize, host: usize) -> usize {
    let ranks = place.topology.ranks(host);
    ranks[index % ranks.len()]
}
