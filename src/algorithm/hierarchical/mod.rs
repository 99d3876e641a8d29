//! Hierarchical: the ranks of a host meet in its memory, and each byte crosses between hosts once.
//!
//! ```text
//!   host 0:  0 1 2 3     AllReduce, channel j: (1) ranks send chunk j to their host's rank of it
//!            │ │ │ │     (2) the ranks of channel j of all hosts complete it among themselves
//!   host 1:  4 5 6 7     (3) each gives it to the ranks of its host
//!   channel  0 1 2 3     channels = the least number of ranks on a host
//! ```
//! Steps: one or two over the wire, two or three on a host. Bytes that leave (and enter) a host for
//! a vector of S on H hosts, whatever their ranks: 2 (H-1)/H S for AllReduce, the least possible;
//! ReduceScatter and AllGather what the hosts' blocks demand; each channel carries its part of
//! that. The channel's ranks send to each other directly, in no ring or tree: the same bytes in the
//! fewest rounds, for a connection to every other host.
//! A step's wire messages arrive one stage later, so that a host's work on one slice overlaps with
//! another slice's way over the wire; on a host both ends are in the same stage.
//!
//! Invariant: a reduction is that of each host's ranks in rank order, then of the hosts' parts as
//! a [balanced tree](super::balanced), whatever the collective or the variant: the same bits from
//! all.
//!
//! [`plan`] uses all channels, for bandwidth; [`leaders`] one channel and one round over the wire,
//! for latency.
//!
//! Reference: A. Bienz, L. Olson, W. Gropp, "Node-Aware Improvements to Allreduce", 2019; the
//! channels are those of J. L. Träff, S. Hunold, "Decomposing MPI Collectives for Exploiting
//! Multi-channel Communication", 2020.

mod broadcast;
mod reduction;
mod scatter_gather;

use super::balanced::Members;
use crate::plan::Collective::{self, *};
use crate::plan::topology::Topology;
use crate::plan::{End, Plan, Span};

/// With all channels. `None` where no host has company or all ranks share one.
pub(super) fn plan(
    collective: Collective,
    rank: usize,
    topology: &Topology,
    root: usize,
) -> Option<Plan> {
    let channels = topology.min_per_host();
    let rounds = if topology.nhosts() == 2 { Rounds::One } else { Rounds::Two };
    let place = HostPosition::new(rank, topology, channels, rounds)?;
    match collective {
        AllReduce => Some(reduction::plan(&place, None)),
        Reduce => Some(reduction::plan(&place, Some(root))),
        Broadcast => Some(broadcast::plan(&place, root)),
        ReduceScatter => Some(scatter_gather::reduce_scatter(&place)),
        AllGather => Some(scatter_gather::all_gather(&place)),
        _ => None,
    }
}

/// With one channel and one round.
pub(super) fn leaders(
    collective: Collective,
    rank: usize,
    topology: &Topology,
    root: usize,
) -> Option<Plan> {
    let place = HostPosition::new(rank, topology, 1, Rounds::One)?;
    match collective {
        AllReduce | Barrier => Some(reduction::plan(&place, None)),
        Reduce => Some(reduction::plan(&place, Some(root))),
        Broadcast => Some(broadcast::plan(&place, root)),
        _ => None,
    }
}

/// How channel ranks of different hosts meet.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Rounds {
    /// Everybody who needs a chunk hears all hosts that have a part of it.
    One,
    /// A chunk has one host, from which the others get it complete.
    Two,
}

/// One rank's place among hosts and channels.
struct HostPosition<'a> {
    topology: &'a Topology,
    rank: usize,
    host: usize,
    /// This rank's place on its host: its channel, if it is less than `channels`.
    index: usize,
    channels: usize,
    /// Chunks of a channel: one, or one for each host.
    groups: usize,
}

impl<'a> HostPosition<'a> {
    fn new(
        rank: usize,
        topology: &'a Topology,
        channels: usize,
        rounds: Rounds,
    ) -> Option<HostPosition<'a>> {
        let (host, index) = (topology.host(rank), topology.place(rank));
        let groups = if rounds == Rounds::One { 1 } else { topology.nhosts() };
        let place = HostPosition { topology, rank, host, index, channels, groups };
        topology.is_hierarchical().then_some(place)
    }

    /// A plan for a vector that is cut into the chunks of all channels.
    fn vector_plan(&self) -> Plan {
        Plan::new(self.rank, self.topology.nranks(), self.channels * self.groups)
    }

    /// The chunk of a channel that belongs to a host, where each host has one.
    fn chunk(&self, channel: usize, group: usize) -> Span {
        Span::one(channel * self.groups + group)
    }

    fn is_lane(&self) -> bool {
        self.index < self.channels
    }

    /// The hosts after this one, around to the one before.
    fn elsewhere(&self) -> impl Iterator<Item = usize> + use<> {
        let (host, nhosts) = (self.host, self.topology.nhosts());
        (1..nhosts).map(move |step| (host + step) % nhosts)
    }

    /// The groups of a channel's chunks, this host's last.
    fn groups_own_last(&self) -> Vec<usize> {
        match self.groups {
            1 => vec![0],
            _ => self.elsewhere().chain([self.host]).collect(),
        }
    }

    fn locals(&self) -> &[usize] {
        self.topology.ranks(self.host)
    }

    fn members(&self) -> Members<'a> {
        Members::on(self.rank, self.topology)
    }

    /// The other ranks of this host by place, starting after this one.
    fn companions(&self) -> impl Iterator<Item = usize> + use<> {
        self.members().companions().map(|(place, _)| place)
    }

    /// The companions that carry a channel.
    fn other_lanes(&self) -> impl Iterator<Item = usize> + use<> {
        let channels = self.channels;
        self.companions().filter(move |place| *place < channels)
    }

    /// The connection with a rank of this host.
    fn local(&self, place: usize) -> End {
        End::Peer(self.locals()[place])
    }

    /// The connection with the rank of another host that carries this rank's channel.
    fn opposite(&self, host: usize) -> End {
        self.members().peer(host)
    }

    /// The inputs of this host's ranks, in order.
    fn inputs(&self) -> Vec<End> {
        self.members().inputs()
    }

    /// Where this host's part of a reduction waits for the other hosts'.
    fn own_part(&self) -> End {
        self.members().part()
    }

    /// All hosts' parts in host order, this one's own among them; `from` is the connection with
    /// another host.
    fn parts(&self, from: impl Fn(usize) -> End) -> Vec<End> {
        let part = |host| if host == self.host { self.own_part() } else { from(host) };
        (0..self.topology.nhosts()).map(part).collect()
    }
}
