//! Addresses of a rank: which few of many are told to others.

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};

/// The best few of some addresses, best first and each once (several interfaces may have the same):
/// among them the best of each family, since of two hosts one may have only the other family, but
/// for one that is worth nothing off its link.
pub fn best_few(all: &[SocketAddr], most: usize) -> Vec<SocketAddr> {
    let mut seen = HashSet::new();
    let all: Vec<SocketAddr> = all.iter().copied().filter(|one| seen.insert(*one)).collect();
    let (few, rest) = all.split_at(all.len().min(most));
    let mut few = few.to_vec();
    let is_hidden = |one: &&SocketAddr| {
        few.iter().all(|told| told.is_ipv4() != one.is_ipv4()) && !is_link_local(one)
    };
    if let (Some(hidden), [_, .., last]) = (rest.iter().find(is_hidden), &mut few[..]) {
        *last = *hidden;
    }
    few
}

pub fn is_link_local(address: &SocketAddr) -> bool {
    match address.ip() {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    }
}
