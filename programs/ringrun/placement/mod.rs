//! Which rank runs where: hosts are filled in the order given, each to its slots.

pub(super) mod hosts;

use hosts::Host;

/// Where one rank runs and what it may call itself there.
#[derive(Clone, Debug, PartialEq)]
pub struct Place {
    pub rank: usize,
    /// Index of its host among those that are used.
    pub host: usize,
    pub local_rank: usize,
    /// Ranks on its host.
    pub local_size: usize,
    /// Its index among the ranks that have the same local rank, one per host, and their number:
    /// what Horovod calls cross rank and cross size.
    pub cross_rank: usize,
    pub cross_size: usize,
}

/// Places for `nranks` ranks, as many as there are slots if none is asked for.
pub fn place(nranks: Option<usize>, hosts: &[Host]) -> Result<Vec<Place>, String> {
    let slots: usize = hosts.iter().map(|host| host.slots).sum();
    let nranks = nranks.unwrap_or(slots);
    if nranks > slots {
        return Err(format!(
            "-np {nranks}: the hosts have {slots} slots; give them more, as in -H {}:{}",
            hosts[0].name,
            hosts[0].slots + nranks - slots
        ));
    }
    let mut places: Vec<Place> = Vec::new();
    let mut left = nranks;
    let mut taken = Vec::new();
    for host in hosts {
        let here = host.slots.min(left);
        left -= here;
        taken.push(here);
    }
    for (host, here) in taken.iter().enumerate() {
        for local_rank in 0..*here {
            let shares = |other: &&usize| **other > local_rank;
            places.push(Place {
                rank: places.len(),
                host,
                local_rank,
                local_size: *here,
                cross_rank: taken[..host].iter().filter(shares).count(),
                cross_size: taken.iter().filter(shares).count(),
            });
        }
    }
    Ok(places)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts(slots: &[usize]) -> Vec<Host> {
        let host = |(at, slots): (usize, &usize)| Host { name: format!("h{at}"), slots: *slots };
        slots.iter().enumerate().map(host).collect()
    }

    #[test]
    fn hosts_are_filled_in_order() {
        let places = place(Some(5), &hosts(&[3, 1, 4])).unwrap();
        let short: Vec<_> =
            places.iter().map(|p| (p.rank, p.host, p.local_rank, p.local_size)).collect();
        assert_eq!(short, [(0, 0, 0, 3), (1, 0, 1, 3), (2, 0, 2, 3), (3, 1, 0, 1), (4, 2, 0, 1)]);
        let cross: Vec<_> = places.iter().map(|p| (p.cross_rank, p.cross_size)).collect();
        assert_eq!(cross, [(0, 3), (0, 1), (0, 1), (1, 3), (2, 3)]);
    }

    #[test]
    fn the_default_is_every_slot_and_more_is_refused() {
        assert_eq!(place(None, &hosts(&[2, 2])).unwrap().len(), 4);
        let error = place(Some(6), &hosts(&[2, 2])).unwrap_err();
        assert!(error.contains("4 slots") && error.contains("-H h0:4"), "{error}");
    }

    #[test]
    fn hosts_without_a_rank_are_not_used() {
        assert!(place(Some(2), &hosts(&[2, 2])).unwrap().iter().all(|place| place.host == 0));
    }
}
