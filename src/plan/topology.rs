//! Topology: which ranks share a host.
//!
//! The one idea: hosts are numbered by their first rank and a host's ranks keep their order, so all
//! ranks number alike whatever they call their hosts.

use std::collections::HashMap;
use std::hash::Hash;

/// Which host every rank is on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Topology {
    /// By rank: its host, and its place among the ranks of that host.
    places: Vec<(usize, usize)>,
    /// By host: its ranks, in order.
    hosts: Vec<Vec<usize>>,
}

impl Topology {
    /// From any mark of each rank's host; equal marks are one host.
    pub fn new<T: Eq + Hash>(marks: &[T]) -> Topology {
        assert!(!marks.is_empty(), "a topology has at least one rank");
        let (mut places, mut hosts) = (Vec::new(), Vec::<Vec<usize>>::new());
        let mut known = HashMap::new();
        for (rank, mark) in marks.iter().enumerate() {
            let host = *known.entry(mark).or_insert(hosts.len());
            if host == hosts.len() {
                hosts.push(Vec::new());
            }
            places.push((host, hosts[host].len()));
            hosts[host].push(rank);
        }
        Topology { places, hosts }
    }

    /// All ranks on one host.
    pub fn one_host(nranks: usize) -> Topology {
        Topology::new(&vec![(); nranks])
    }

    pub fn nranks(&self) -> usize {
        self.places.len()
    }

    pub fn nhosts(&self) -> usize {
        self.hosts.len()
    }

    pub fn host(&self, rank: usize) -> usize {
        self.places[rank].0
    }

    /// How many ranks of its host come before `rank`.
    pub fn place(&self, rank: usize) -> usize {
        self.places[rank].1
    }

    /// The ranks of a host.
    pub fn ranks(&self, host: usize) -> &[usize] {
        &self.hosts[host]
    }

    /// The least number of ranks on a host.
    pub fn min_per_host(&self) -> usize {
        self.hosts.iter().map(Vec::len).min().unwrap_or(0)
    }

    /// The greatest number of ranks on a host.
    pub fn max_per_host(&self) -> usize {
        self.hosts.iter().map(Vec::len).max().unwrap_or(0)
    }

    /// The most links of a circle of all ranks that leave one host: 1 where the ranks of every host
    /// follow each other.
    pub fn ring_exits(&self) -> usize {
        let n = self.nranks();
        let leaves = |rank: &&usize| self.host(**rank) != self.host((**rank + 1) % n);
        self.hosts.iter().map(|ranks| ranks.iter().filter(leaves).count()).max().unwrap_or(0)
    }

    /// Several hosts, and one of them has several ranks.
    pub fn is_hierarchical(&self) -> bool {
        self.nhosts() > 1 && self.nhosts() < self.nranks()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_numbered_by_their_first_rank() {
        let topology = Topology::new(&["b", "a", "b", "c", "a", "b"]);
        assert_eq!((topology.nranks(), topology.nhosts()), (6, 3));
        assert_eq!(
            [0, 1, 2].map(|host| topology.ranks(host).to_vec()),
            [vec![0, 2, 5], vec![1, 4], vec![3]]
        );
        assert_eq!((topology.host(4), topology.place(4)), (1, 1));
        assert_eq!(
            (topology.min_per_host(), topology.max_per_host(), topology.ring_exits()),
            (1, 3, 2)
        );
        assert_eq!(topology, Topology::new(&[7, 1, 7, 0, 1, 7]));
    }

    #[test]
    fn nested_is_neither_one_host_nor_one_rank_a_host() {
        assert!(!Topology::one_host(4).is_hierarchical());
        assert_eq!(Topology::one_host(4).ring_exits(), 0);
        assert!(!Topology::new(&[0, 1, 2]).is_hierarchical());
        let nested = Topology::new(&[0, 0, 1, 1]);
        assert!(nested.is_hierarchical() && nested.ring_exits() == 1);
    }
}
