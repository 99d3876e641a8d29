//! AllReduce, Reduce and Barrier: parts on each host, then the whole, then to whoever keeps it.

use super::HostPosition;
use crate::plan::{End, Plan};

/// `root` is the only rank that keeps the result; `None` if all do.
pub(super) fn plan(place: &HostPosition, root: Option<usize>) -> Plan {
    let mut plan = place.vector_plan();
    let reduction = HierarchicalReduction { place, root };
    reduction.make_parts(&mut plan);
    plan.next_stage();
    reduction.complete(&mut plan);
    plan.next_stage();
    reduction.spread(&mut plan);
    plan
}

struct HierarchicalReduction<'a> {
    place: &'a HostPosition<'a>,
    root: Option<usize>,
}

impl HierarchicalReduction<'_> {
    fn keeps(&self, rank: usize) -> bool {
        self.root.is_none_or(|root| root == rank)
    }

    /// Whether a rank of `host` keeps the result.
    fn is_wanted_on(&self, host: usize) -> bool {
        self.root.is_none_or(|root| self.place.topology.host(root) == host)
    }

    /// Whether the chunks of `group` are completed on `host`: on their own host where each has one,
    /// else wherever they are wanted.
    fn is_completed_on(&self, group: usize, host: usize) -> bool {
        if self.place.groups == 1 { self.is_wanted_on(host) } else { group == host }
    }

    /// On this host, in rank order; a part goes straight to where its chunk is completed.
    ///
    /// Channel by channel and not rank by rank: no rank is more than a message ahead of the others.
    fn make_parts(&self, plan: &mut Plan) {
        let place = self.place;
        for group in place.groups_own_last() {
            for channel in place.other_lanes() {
                plan.step(place.chunk(channel, group), &[place.local(channel)], &[End::Input]);
            }
            if !place.is_lane() {
                continue;
            }
            let stays = self.is_completed_on(group, place.host) && place.own_part() != End::Input;
            let mut targets = if stays { vec![End::Scratch] } else { Vec::new() };
            let goes = place.elsewhere().filter(|host| self.is_completed_on(group, *host));
            targets.extend(goes.map(|host| place.opposite(host)));
            if !targets.is_empty() {
                plan.step(place.chunk(place.index, group), &targets, &place.inputs());
            }
        }
    }

    /// All parts in host order, then to this host's ranks and the hosts that only take it over.
    fn complete(&self, plan: &mut Plan) {
        let place = self.place;
        for group in place.groups_own_last() {
            if !self.is_completed_on(group, place.host) {
                continue;
            }
            if place.is_lane() {
                let mut targets = self.keepers_here();
                let takes =
                    |host: &usize| self.is_wanted_on(*host) && !self.is_completed_on(group, *host);
                targets.extend(place.elsewhere().filter(takes).map(|host| place.opposite(host)));
                let parts = place.parts(|host| place.opposite(host));
                plan.finish_hosts(place.chunk(place.index, group), &targets, &parts);
            }
            self.take_from_lanes(plan, group);
        }
    }

    /// What other hosts have completed.
    fn spread(&self, plan: &mut Plan) {
        let place = self.place;
        if !self.is_wanted_on(place.host) || place.groups == 1 {
            return;
        }
        for host in place.elsewhere() {
            if place.is_lane() {
                let chunk = place.chunk(place.index, host);
                plan.step(chunk, &self.keepers_here(), &[place.opposite(host)]);
            }
            self.take_from_lanes(plan, host);
        }
    }

    /// The ranks of this host that keep the result, as targets of this rank.
    fn keepers_here(&self) -> Vec<End> {
        let place = self.place;
        let mut targets = if self.keeps(place.rank) { vec![End::Output] } else { Vec::new() };
        let keeper = |at: &usize| self.keeps(place.locals()[*at]);
        targets.extend(place.companions().filter(keeper).map(|at| place.local(at)));
        targets
    }

    fn take_from_lanes(&self, plan: &mut Plan, group: usize) {
        let place = self.place;
        if self.keeps(place.rank) {
            for channel in place.other_lanes() {
                plan.step(place.chunk(channel, group), &[End::Output], &[place.local(channel)]);
            }
        }
    }
}
