//! Closed forms of plans that are made of hosts, for a channel's rank on the largest host.

use super::cost_model::{ClosedForm, CostTerms, halving_shares, work};
use super::inter_host_cost::{HostTraffic, Hosts};
use crate::algorithm::Algorithm::{self, *};
use crate::algorithm::halving_chunks;
use crate::plan::Collective::{self, *};

/// The numbers that the forms are made of.
struct HierarchyShape {
    hosts: f64,
    /// Ranks on the largest host.
    local: f64,
    channels: f64,
    /// Chunks of a channel.
    groups: f64,
    /// Rounds of what goes up a balanced tree of the hosts.
    rounds: f64,
    /// Messages of a rank in a round of halving, and its bytes beside those of the least.
    shares: (f64, f64),
}

/// Whether the plan is made of hosts: their ranks first reduce among themselves.
pub(super) fn goes_by_hosts(
    algorithm: Algorithm,
    collective: Collective,
    hosts: Hosts,
    nranks: usize,
) -> bool {
    match algorithm {
        Hierarchical | Leaders => true,
        Doubling => matches!(collective, AllReduce | Barrier) && hosts.are_nested(nranks),
        Halving => matches!(collective, AllReduce | ReduceScatter) && hosts.are_nested(nranks),
        Binomial => collective == Reduce && hosts.are_nested(nranks),
        _ => false,
    }
}

/// `None` where there is no such plan.
fn shape(
    algorithm: Algorithm,
    collective: Collective,
    hosts: Hosts,
    nranks: usize,
) -> Option<HierarchyShape> {
    let does = match algorithm {
        Hierarchical => {
            matches!(collective, AllReduce | Reduce | Broadcast | ReduceScatter | AllGather)
        }
        Leaders => matches!(collective, AllReduce | Reduce | Broadcast | Barrier),
        _ => goes_by_hosts(algorithm, collective, hosts, nranks),
    };
    let is_alone = matches!(algorithm, Leaders | Binomial) || collective == Barrier;
    let groups = match algorithm {
        Halving => halving_chunks(hosts.count),
        Hierarchical if hosts.count > 2 => hosts.count,
        _ => 1,
    };
    (does && hosts.are_nested(nranks)).then_some(HierarchyShape {
        hosts: hosts.count as f64,
        local: hosts.most as f64,
        channels: if is_alone { 1.0 } else { hosts.least as f64 },
        groups: groups as f64,
        rounds: (hosts.count as f64).log2().ceil(),
        shares: halving_shares(hosts.count),
    })
}

/// Bytes of the longest message, where [`goes_by_hosts`].
pub(super) fn longest_message(
    algorithm: Algorithm,
    collective: Collective,
    hosts: Hosts,
    nranks: usize,
    bytes: f64,
) -> Option<f64> {
    let widest = widest_message(algorithm, collective, hosts, nranks)? as f64;
    let shape = shape(algorithm, collective, hosts, nranks);
    Some(match (shape, collective) {
        (Some(shape), AllReduce | Reduce | Broadcast) => {
            bytes / (shape.channels * shape.groups) * widest
        }
        _ => bytes / nranks as f64 * widest,
    })
}

/// Chunks of the widest message, where [`goes_by_hosts`].
pub(super) fn widest_message(
    algorithm: Algorithm,
    collective: Collective,
    hosts: Hosts,
    nranks: usize,
) -> Option<usize> {
    goes_by_hosts(algorithm, collective, hosts, nranks).then_some(match (algorithm, collective) {
        // A channel's whole part on a host.
        (Halving, AllReduce) => halving_chunks(hosts.count),
        (Halving, _) => nranks.div_ceil(hosts.least),
        _ => 1,
    })
}

/// `bytes` as in [`super::Question::bytes`].
pub(super) fn form(
    algorithm: Algorithm,
    collective: Collective,
    nranks: usize,
    hosts: Hosts,
    bytes: f64,
) -> Option<ClosedForm> {
    let shape = shape(algorithm, collective, hosts, nranks)?;
    let wire = wire(algorithm, collective, hosts, nranks as f64, bytes);
    let path = match (algorithm, collective) {
        (Doubling | Halving | Binomial, _) => balanced(&shape, algorithm, collective, bytes),
        (_, AllReduce) => all_reduce(&shape, bytes),
        (_, Barrier) => all_reduce(&shape, 0.0),
        (_, Reduce) => reduce(&shape, bytes),
        (_, Broadcast) => broadcast(&shape, bytes),
        _ => blocks(&shape, collective, nranks as f64, bytes / nranks as f64),
    };
    // To a channel and back on a host, where blocks go one of these ways.
    let on_hosts = if matches!(collective, ReduceScatter | AllGather) { 1.0 } else { 2.0 };
    let path_with_wire = CostTerms { messages: path.messages + wire.messages, ..path };
    // Rounds wait for each other: a slice is through before the next one begins.
    let streams = matches!(algorithm, Hierarchical | Leaders);
    Some(ClosedForm {
        alphas: on_hosts + wire.alphas,
        path: path_with_wire,
        period: streams.then_some(path),
        total: path.times(nranks as f64),
    })
}

/// What crosses: see the header of the plans.
pub(super) fn wire(
    algorithm: Algorithm,
    collective: Collective,
    hosts: Hosts,
    n: f64,
    b: f64,
) -> HostTraffic {
    let Some(shape) = shape(algorithm, collective, hosts, n as usize) else {
        return HostTraffic::default();
    };
    let (others, two_rounds) = (shape.hosts - 1.0, shape.groups > 1.0);
    let c = b / n;
    let b = if collective == Barrier { 0.0 } else { b };
    let (least, most) = (hosts.least as f64, hosts.most as f64);
    let (rounds, parts) = (shape.rounds, others / shape.hosts * b);
    let (in_a_round, more) = shape.shares;
    let (halving, halves) = (2.0 * rounds * in_a_round, parts * more);
    let (alphas, messages, bytes) = match (algorithm, collective) {
        (Doubling | Binomial, _) => (rounds, 2.0 * rounds, rounds * b),
        (Halving, AllReduce) => (2.0 * rounds, 2.0 * halving, 2.0 * halves),
        (Halving, _) => (rounds + 1.0, halving + 2.0, halves + c * most),
        // What a host's blocks demand, of the host with the fewest ranks or the most.
        (_, ReduceScatter | AllGather) => {
            let turns = (n / least).ceil();
            (1.0, turns + others, c * (n - least).max(others * most))
        }
        (_, Barrier) => (1.0, 2.0 * others, 0.0),
        _ if two_rounds => (2.0, 4.0 * others, 2.0 * parts),
        _ => (1.0, 2.0 * others, others * b),
    };
    // How many hosts' worth there is: with a root the hosts are not alike.
    let busy = match (algorithm, collective, two_rounds) {
        // Every host but the root's sends once.
        (Binomial, ..) => shape.hosts / rounds.max(1.0),
        (_, Broadcast | Reduce, false) => 1.0,
        (_, Broadcast, true) => shape.hosts / 2.0,
        (_, Reduce, true) => (shape.hosts + 1.0) / 2.0,
        _ => shape.hosts,
    };
    let of_all = (messages * busy * shape.channels, bytes * busy);
    HostTraffic { alphas, messages, bytes, of_all, ..HostTraffic::default() }
}

/// What goes up a balanced tree of the hosts, without the wire's messages.
fn balanced(
    shape: &HierarchyShape,
    algorithm: Algorithm,
    collective: Collective,
    b: f64,
) -> CostTerms {
    let b = if collective == Barrier { 0.0 } else { b };
    let HierarchyShape { hosts, local, channels, rounds, .. } = shape;
    let c = b / channels;
    let parts = (hosts - 1.0) / hosts * c * shape.shares.1;
    // The vector to the channels, and the complete one back.
    let here = work(channels - 1.0 + local - 1.0, (channels - 1.0) * c, c, (local - 1.0) * c);
    let back = work(channels - 1.0 + local - 1.0, (local - 1.0) * c, (channels - 1.0) * c, 0.0);
    let wire = match (algorithm, collective) {
        (Doubling | Binomial, _) => work(0.0, rounds * c, 0.0, rounds * c),
        (Halving, AllReduce) => work(0.0, 2.0 * parts, parts, parts),
        _ => work(0.0, parts, 0.0, parts),
    };
    let terms = match collective {
        AllReduce | Barrier => vec![here, wire, back],
        _ => vec![here, wire],
    };
    terms.into_iter().fold(CostTerms::default(), CostTerms::and)
}

/// Without the wire's messages; a channel's chunks are `c` bytes, one of their groups `g`.
fn all_reduce(shape: &HierarchyShape, b: f64) -> CostTerms {
    let HierarchyShape { hosts, local, channels, groups, .. } = shape;
    let (c, g) = (b / channels, b / channels / groups);
    let wire = if *groups > 1.0 { 2.0 * (hosts - 1.0) * g } else { (hosts - 1.0) * c };
    let messages = 2.0 * groups * ((channels - 1.0) + (local - 1.0));
    let sent = (channels - 1.0) * c + wire + (local - 1.0) * c;
    work(messages, sent, g + b, (local - 1.0) * c + (hosts - 1.0) * g)
}

fn reduce(shape: &HierarchyShape, b: f64) -> CostTerms {
    let HierarchyShape { hosts, local, channels, groups, .. } = shape;
    let (c, g) = (b / channels, b / channels / groups);
    let messages = groups * (2.0 * (channels - 1.0) + (local - 1.0));
    work(messages, (channels - 1.0) * c + c, g + b, (local - 1.0) * c + (hosts - 1.0) * g)
}

fn broadcast(shape: &HierarchyShape, b: f64) -> CostTerms {
    let HierarchyShape { hosts, local, channels, groups, .. } = shape;
    let c = b / channels;
    let wire = if *groups > 1.0 { 2.0 * (hosts - 1.0) / hosts * c } else { (hosts - 1.0) * c };
    let messages = groups * (2.0 * (channels - 1.0) + (local - 1.0));
    work(messages, (channels - 1.0) * c + wire + (local - 1.0) * c, 2.0 * b, 0.0)
}

/// Blocks of `c` bytes. A rank works for its share of the other hosts' blocks.
fn blocks(shape: &HierarchyShape, collective: Collective, n: f64, c: f64) -> CostTerms {
    let local = shape.local;
    let (share, companions) = (n / local, local - 1.0);
    let messages = 2.0 * companions * share;
    match collective {
        ReduceScatter => {
            let reduced = companions * share + shape.hosts - 1.0;
            work(messages, (companions * share + share) * c, c, reduced * c)
        }
        _ => work(messages, (companions * share + shape.hosts - 1.0) * c, n * c, 0.0),
    }
}
