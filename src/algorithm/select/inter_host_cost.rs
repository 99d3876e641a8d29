//! Several hosts: what of an algorithm's cost is the wire's.
//!
//! The one idea: a message that crosses costs the wire's constants in place of the memory's, and
//! all bytes that leave a host share its way out. A flat algorithm is judged by its busiest rank
//! and host; where the closed form does not say which of its messages cross, the worst is taken.

use super::cost_model::{ClosedForm, CostTerms};
use super::{Costs, Question, hierarchical_cost};
use crate::algorithm::Algorithm::{self, *};
use crate::plan::Collective::{self, *};
use crate::plan::topology::Topology;

/// How ranks are spread over hosts, as far as costs depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hosts {
    pub count: usize,
    /// The least and the greatest number of ranks on a host.
    pub least: usize,
    pub most: usize,
    /// The most links of a circle of all ranks that leave one host.
    pub exits: usize,
}

impl Hosts {
    /// All ranks on one host.
    pub fn one(nranks: usize) -> Hosts {
        Hosts { count: 1, least: nranks, most: nranks, exits: 0 }
    }

    /// Several hosts, and one of them has several ranks.
    pub fn are_nested(&self, nranks: usize) -> bool {
        self.count > 1 && self.count < nranks
    }

    pub fn of(topology: &Topology) -> Hosts {
        Hosts {
            count: topology.nhosts(),
            least: topology.min_per_host(),
            most: topology.max_per_host(),
            exits: topology.ring_exits(),
        }
    }
}

/// What crosses between hosts.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct HostTraffic {
    /// Of the form's latencies.
    pub alphas: f64,
    /// Of the messages on the form's path.
    pub messages: f64,
    /// Bytes that leave or enter the busiest host, whichever is more.
    pub bytes: f64,
    /// Messages and bytes of all ranks together.
    pub of_all: (f64, f64),
    /// Of what a rank sends, the share that it does not copy itself: it leaves from where it lies.
    pub zero_copy: f64,
    /// Of what it copies, the share that comes to its place without it.
    pub landed: f64,
}

impl HostTraffic {
    /// For one slice of `bytes` bytes.
    pub fn of(
        algorithm: Algorithm,
        question: &Question,
        form: &ClosedForm,
        bytes: f64,
    ) -> HostTraffic {
        let hosts = question.hosts;
        if hosts.count == 1 {
            return HostTraffic::default();
        }
        let n = question.nranks as f64;
        let (least, most) = (hosts.least as f64, hosts.most as f64);
        // Of a rank's peers, those elsewhere.
        let away = |local: f64| (n - local) / (n - 1.0);
        let sent = form.total.sent / n;
        let kept = kept(algorithm, question.collective, n);
        let rooted = matches!(question.collective, Broadcast | Reduce | Gather | Scatter);
        let share = |alphas: f64, of_messages: f64, bytes: f64| {
            // Without a root hosts are alike.
            let crossing = match rooted || form.total.sent == 0.0 {
                true => of_messages,
                false => (hosts.count as f64 * bytes / form.total.sent).min(1.0),
            };
            HostTraffic {
                alphas: form.alphas * alphas,
                messages: form.path.messages * of_messages,
                bytes,
                of_all: (form.total.messages * crossing, form.total.sent * crossing),
                zero_copy: of_messages,
                landed: kept * of_messages,
            }
        };
        if hierarchical_cost::goes_by_hosts(algorithm, question.collective, hosts, question.nranks)
        {
            return hierarchical_cost::wire(algorithm, question.collective, hosts, n, bytes);
        }
        match algorithm {
            OneShot if rooted => share(1.0, away(least), form.total.sent * away(least)),
            OneShot | TwoShot | Pairwise => {
                let leaves = (least * away(least)).max(most * away(most));
                share(1.0, away(least), sent * leaves)
            }
            // Every step of the ring waits for its slowest link; the chain passes each link once.
            Ring => share(1.0, 1.0, sent * hosts.exits as f64),
            Chain => {
                let crossing = ((hosts.count * hosts.exits) as f64 / n).min(1.0);
                share(crossing, crossing, sent * hosts.exits as f64)
            }
            // A vector goes up level by level, each after the one below.
            Binomial if question.collective == Reduce => share(1.0, 1.0, n.log2().ceil() * bytes),
            Doubling | Halving | DoubleTree | Binomial => {
                // Rounds between neighbours stay on their host where its ranks follow each other.
                let apart = hosts.exits > 1;
                let crossing = if apart { 1.0 } else { (hosts.count as f64).log2() / n.log2() };
                share(crossing, crossing, sent * most * crossing)
            }
            Hierarchical | Leaders | Local => HostTraffic::default(),
        }
    }

    pub fn alphas(&self, costs: &Costs) -> f64 {
        self.alphas * (costs.wire_alpha_us - costs.alpha_us)
    }

    pub fn messages(&self, costs: &Costs) -> f64 {
        self.messages * (costs.wire_message_us - costs.message_us)
    }

    pub fn bytes(&self, costs: &Costs) -> f64 {
        self.bytes * costs.wire_us_per_byte
    }

    /// What is the kernel's work, of all ranks together.
    pub fn total(&self, costs: &Costs) -> f64 {
        let (messages, bytes) = self.of_all;
        let all = HostTraffic { messages, bytes, ..*self };
        all.messages(costs) + all.bytes(costs)
    }

    /// What it does not do of this work.
    pub fn spared(&self, work: &CostTerms, costs: &Costs) -> f64 {
        (self.zero_copy * work.sent + self.landed * work.copied) * costs.copy_us_per_byte
    }
}

/// Of the bytes that ranks copy in a flat algorithm, the share that comes from others only to be
/// kept.
fn kept(algorithm: Algorithm, collective: Collective, n: f64) -> f64 {
    match (algorithm, collective) {
        (_, Reduce | ReduceScatter | Barrier) | (OneShot, AllReduce) => 0.0,
        // The first operand of the own chunk is copied as well.
        (TwoShot, AllReduce) => (n - 1.0) / n,
        (_, AllReduce | Broadcast) => 1.0,
        (_, AllGather | AllToAll | Gather | Scatter) => (n - 1.0) / n,
    }
}
