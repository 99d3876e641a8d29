//! Closed forms of the hierarchical plans, for a channel's rank on the largest host.

use super::cost_model::{ClosedForm, CostTerms, work};
use super::inter_host_cost::{HostTraffic, Hosts};
use crate::algorithm::Algorithm::{self, *};
use crate::plan::Collective::{self, *};

/// The numbers that the forms are made of.
struct HierarchyShape {
    hosts: f64,
    /// Ranks on the largest host.
    local: f64,
    channels: f64,
    /// Chunks of a channel.
    groups: f64,
}

/// `None` where there is no such plan.
fn shape(algorithm: Algorithm, collective: Collective, hosts: Hosts) -> Option<HierarchyShape> {
    let does = match algorithm {
        Hierarchical => {
            matches!(collective, AllReduce | Reduce | Broadcast | ReduceScatter | AllGather)
        }
        _ => matches!(collective, AllReduce | Reduce | Broadcast | Barrier),
    };
    let leaders = algorithm == Leaders;
    let groups = if leaders || hosts.count == 2 { 1 } else { hosts.count };
    let nested = hosts.count > 1 && hosts.most > 1;
    (does && nested).then_some(HierarchyShape {
        hosts: hosts.count as f64,
        local: hosts.most as f64,
        channels: if leaders { 1.0 } else { hosts.least as f64 },
        groups: groups as f64,
    })
}

pub(super) fn longest_message(
    algorithm: Algorithm,
    collective: Collective,
    nranks: usize,
    hosts: Hosts,
    bytes: f64,
) -> f64 {
    match (shape(algorithm, collective, hosts), collective) {
        (Some(shape), AllReduce | Reduce | Broadcast) => bytes / (shape.channels * shape.groups),
        _ => bytes / nranks as f64,
    }
}

/// `bytes` as in [`super::Question::bytes`].
pub(super) fn form(
    algorithm: Algorithm,
    collective: Collective,
    nranks: usize,
    hosts: Hosts,
    bytes: f64,
) -> Option<ClosedForm> {
    let shape = shape(algorithm, collective, hosts)?;
    let wire = wire(algorithm, collective, hosts, nranks as f64, bytes);
    let path = match collective {
        AllReduce => all_reduce(&shape, bytes),
        Barrier => all_reduce(&shape, 0.0),
        Reduce => reduce(&shape, bytes),
        Broadcast => broadcast(&shape, bytes),
        _ => blocks(&shape, collective, nranks as f64, bytes / nranks as f64),
    };
    // To a channel and back on a host, where blocks go one of these ways.
    let on_hosts = if matches!(collective, ReduceScatter | AllGather) { 1.0 } else { 2.0 };
    Some(ClosedForm {
        alphas: on_hosts + wire.alphas,
        path: CostTerms { messages: path.messages + wire.messages, ..path },
        period: Some(path),
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
    let Some(shape) = shape(algorithm, collective, hosts) else { return HostTraffic::default() };
    let (others, two_rounds) = (shape.hosts - 1.0, shape.groups > 1.0);
    let c = b / n;
    let (least, most) = (hosts.least as f64, hosts.most as f64);
    let (alphas, messages, bytes) = match collective {
        // What a host's blocks demand, of the host with the fewest ranks or the most.
        ReduceScatter | AllGather => {
            let turns = (n / least).ceil();
            (1.0, turns + others, c * (n - least).max(others * most))
        }
        Barrier => (1.0, 2.0 * others, 0.0),
        _ if two_rounds => (2.0, 4.0 * others, 2.0 * others / shape.hosts * b),
        _ => (1.0, 2.0 * others, others * b),
    };
    // How many hosts' worth there is: with a root the hosts are not alike.
    let busy = match (collective, two_rounds) {
        (Broadcast | Reduce, false) => 1.0,
        (Broadcast, true) => shape.hosts / 2.0,
        (Reduce, true) => (shape.hosts + 1.0) / 2.0,
        _ => shape.hosts,
    };
    let of_all = (messages * busy * shape.channels, bytes * busy);
    HostTraffic { alphas, messages, bytes, of_all, ..HostTraffic::default() }
}

/// Without the wire's messages; a channel's chunks are `c` bytes, one of their groups `g`.
fn all_reduce(shape: &HierarchyShape, b: f64) -> CostTerms {
    let HierarchyShape { hosts, local, channels, groups } = shape;
    let (c, g) = (b / channels, b / channels / groups);
    let wire = if *groups > 1.0 { 2.0 * (hosts - 1.0) * g } else { (hosts - 1.0) * c };
    let messages = 2.0 * groups * ((channels - 1.0) + (local - 1.0));
    let sent = (channels - 1.0) * c + wire + (local - 1.0) * c;
    work(messages, sent, g + b, (local - 1.0) * c + (hosts - 1.0) * g)
}

fn reduce(shape: &HierarchyShape, b: f64) -> CostTerms {
    let HierarchyShape { hosts, local, channels, groups } = shape;
    let (c, g) = (b / channels, b / channels / groups);
    let messages = groups * (2.0 * (channels - 1.0) + (local - 1.0));
    work(messages, (channels - 1.0) * c + c, g + b, (local - 1.0) * c + (hosts - 1.0) * g)
}

fn broadcast(shape: &HierarchyShape, b: f64) -> CostTerms {
    let HierarchyShape { hosts, local, channels, groups } = shape;
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
