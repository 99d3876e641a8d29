//! Mutants: plans with one small change, which a proof must reject.

use ringcomm::plan::{End, Plan, Step};

/// A mutated set of plans, and what was done to it, for a failure's text.
pub type Mutant = (String, Vec<Plan>);

/// A change to one rank's plan.
type Edit<'a> = &'a dyn Fn(&mut Plan);

/// Every mutant of `plans` that does something else, one small change each.
///
/// Not among them, as they mean the same: a local copy done twice or of one chunk more, exchanging
/// two steps that share no end, and a reordered reduction that every rank takes over from the one
/// place that does it (bits still agree), except where the algorithm promises an order.
pub fn mutants(plans: &[Plan], ordered: bool) -> Vec<Mutant> {
    let mut mutants = Vec::new();
    for (rank, plan) in plans.iter().enumerate() {
        for at in 0..plan.steps.len() {
            let mut change = |what: &str, edit: Edit| {
                let mut changed = plans.to_vec();
                edit(&mut changed[rank]);
                mutants.push((format!("{what} at rank {rank} step {at}"), changed));
            };
            change("drop the step", &|plan| {
                plan.steps.remove(at);
            });
            let ends = plan.steps[at].targets.iter().chain(&plan.steps[at].sources);
            if ends.into_iter().any(|end| matches!(end, End::Peer(_))) {
                change("repeat the step", &|plan| plan.steps.insert(at, plan.steps[at].clone()));
                change("longer span", &|plan| plan.steps[at].span.len += 1);
            }
            change("flip finish", &|plan| plan.steps[at].finish ^= true);
            if ordered && plan.steps[at].sources.len() > 2 {
                change("flip the tree", &|plan| plan.steps[at].balanced ^= true);
            }
            change("next chunk", &|plan| {
                let span = &mut plan.steps[at].span;
                span.first = (span.first + 1) % plan.nchunks.max(2);
            });
            if plan.steps[at].span.len > 1 {
                change("shorter span", &|plan| plan.steps[at].span.len -= 1);
            }
            change_ends(plan, at, ordered, &mut change);
        }
    }
    mutants
}

/// The mutants of a step that change one end or the order of the sources.
fn change_ends(plan: &Plan, at: usize, ordered: bool, change: &mut dyn FnMut(&str, Edit)) {
    let step = &plan.steps[at];
    for source in 0..step.sources.len() {
        change("drop a source", &|plan| {
            plan.steps[at].sources.remove(source);
        });
        change("repeat a source", &|plan| {
            let again = plan.steps[at].sources[source];
            plan.steps[at].sources.push(again);
        });
        if let End::Peer(peer) = step.sources[source] {
            change("hear another peer", &|plan| {
                plan.steps[at].sources[source] = End::Peer((peer + 1) % plan.nranks);
            });
        }
        if ordered && source > 0 {
            change("reorder the sources", &|plan| plan.steps[at].sources.swap(source - 1, source));
        }
    }
    for target in 0..step.targets.len() {
        change("drop a target", &|plan| {
            plan.steps[at].targets.remove(target);
        });
        change("repeat a target", &|plan| {
            let again = plan.steps[at].targets[target];
            plan.steps[at].targets.push(again);
        });
        match step.targets[target] {
            End::Peer(peer) => change("tell another peer", &|plan| {
                plan.steps[at].targets[target] = End::Peer((peer + 1) % plan.nranks);
            }),
            _ => change("write the input", &|plan| plan.steps[at].targets[target] = End::Input),
        }
    }
    let next = plan.steps.get(at + 1);
    if next.is_some_and(|next| order_matters(step, next)) {
        change("exchange with the next step", &|plan| plan.steps.swap(at, at + 1));
    }
}

/// Whether the order of two steps shows: the second reads what the first writes on the same span,
/// or they use one connection for different spans.
fn order_matters(first: &Step, second: &Step) -> bool {
    let peer = |end: &&End| matches!(end, End::Peer(_));
    let local = |end: &&End| matches!(end, End::Output | End::Scratch);
    let reads = first.targets.iter().filter(local).any(|end| second.sources.contains(end));
    let shares = first.targets.iter().filter(peer).any(|end| second.targets.contains(end))
        || first.sources.iter().filter(peer).any(|end| second.sources.contains(end));
    (reads && first.span == second.span) || (shares && first.span != second.span)
}
