//! Broadcast: from the root to its host's channels, from there to the other hosts, and on each to
//! all.
//!
//! With a chunk for each host, the root's host sends each of them to its host alone, which passes
//! it on to the others: no host sends much more than the vector.

use super::HostPosition;
use crate::plan::{End, Plan};

pub(super) fn plan(place: &HostPosition, root: usize) -> Plan {
    let mut plan = place.vector_plan();
    let topology = place.topology;
    let spread = Spread { place, root, home: topology.host(root), first: topology.place(root) };
    if place.host == spread.home {
        spread.leave_home(&mut plan);
        return plan;
    }
    plan.next_stage();
    // In the order in which the root's host sends them.
    for group in spread.groups_of_home().filter(|group| spread.is_direct(*group, place.host)) {
        spread.pass_on(&mut plan, group, spread.home);
    }
    plan.next_stage();
    for group in spread.groups_of_home().filter(|group| !spread.is_direct(*group, place.host)) {
        spread.pass_on(&mut plan, group, group);
    }
    plan
}

struct Spread<'a> {
    place: &'a HostPosition<'a>,
    root: usize,
    /// The root's host, and its place there.
    home: usize,
    first: usize,
}

impl Spread<'_> {
    /// The groups in the order of the root's host: its own last.
    fn groups_of_home(&self) -> impl Iterator<Item = usize> + use<> {
        let (home, groups) = (self.home, self.place.groups);
        (1..=groups).map(move |step| (home + step) % groups)
    }

    /// Whether `host` gets the chunks of `group` from the root's host, not from another.
    fn is_direct(&self, group: usize, host: usize) -> bool {
        self.place.groups == 1 || group == host || group == self.home
    }

    /// The ranks of this host that a channel still has to tell, and itself.
    fn everybody_here(&self) -> Vec<End> {
        let place = self.place;
        let ignorant = |at: &usize| place.locals()[*at] != self.root;
        let others = place.companions().filter(ignorant).map(|at| place.local(at));
        [End::Output].into_iter().chain(others).collect()
    }

    /// On the root's host.
    fn leave_home(&self, plan: &mut Plan) {
        let place = self.place;
        let is_root = place.rank == self.root;
        for group in self.groups_of_home() {
            if is_root {
                for channel in place.other_lanes() {
                    let targets = [End::Output, place.local(channel)];
                    plan.step(place.chunk(channel, group), &targets, &[End::Input]);
                }
            }
            if place.is_lane() {
                let mut targets = self.everybody_here();
                let direct = place.elsewhere().filter(|host| self.is_direct(group, *host));
                targets.extend(direct.map(|host| place.opposite(host)));
                let source = if is_root { End::Input } else { place.local(self.first) };
                plan.step(place.chunk(place.index, group), &targets, &[source]);
            }
            if !is_root {
                self.take_from_lanes(plan, group);
            }
        }
    }

    /// On another host: what came from `from`, to everybody here and to the hosts that wait for it.
    fn pass_on(&self, plan: &mut Plan, group: usize, from: usize) {
        let place = self.place;
        if place.is_lane() {
            let mut targets = self.everybody_here();
            if from == self.home && place.groups > 1 && group == place.host {
                let waiting = place.elsewhere().filter(|host| *host != self.home);
                targets.extend(waiting.map(|host| place.opposite(host)));
            }
            plan.step(place.chunk(place.index, group), &targets, &[place.opposite(from)]);
        }
        self.take_from_lanes(plan, group);
    }

    fn take_from_lanes(&self, plan: &mut Plan, group: usize) {
        let place = self.place;
        for channel in place.other_lanes() {
            plan.step(place.chunk(channel, group), &[End::Output], &[place.local(channel)]);
        }
    }
}
