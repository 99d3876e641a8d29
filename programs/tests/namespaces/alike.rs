//! Hosts that have an address in common, that of some bridge, and a range of ports: an address and
//! a port of the root's lead to another rank on some hosts. They do not say who is the root.

use super::support::config;
use super::support::processes::{Crew, Seat};
use super::{HOSTS, PATIENCE, TIMEOUT_MS, labs};
use ringcomm::bootstrap::allgather::root_threads;
use ringcomm::communicator::Communicator;
use ringcomm::config::Config;
use std::time::Instant;

/// Every host takes the first that is free.
fn with_ports(config: &Config) -> Config {
    Config { ports: Some(20_000..=20_020), ..config.clone() }
}

/// A rank's life: three communicators, each with another root, and who leads it.
fn live(seat: &Seat) -> String {
    let config = with_ports(&seat.config);
    let all = Communicator::init_rank(seat.nranks, &seat.id, seat.rank, &config);
    let all = all.unwrap_or_else(|error| panic!("init: {error}"));
    // The last leads.
    let turned = all.split(0, -(seat.rank as i32), None);
    let turned = turned.unwrap_or_else(|error| panic!("split: {error}")).expect("a color");
    assert_eq!(turned.rank(), seat.nranks - 1 - seat.rank);
    if seat.rank == 0 {
        return String::new();
    }
    let left = all.shrink(&[0], None).unwrap_or_else(|error| panic!("shrink: {error}"));
    assert_eq!((left.rank(), left.nranks()), (seat.rank - 1, seat.nranks - 1));
    String::new()
}

#[test]
fn hosts_with_an_address_in_common_have_one_root() {
    let crew = &Crew::new(|seat, _| live(seat));
    let Some(labs) = labs(hosts_with_an_address_in_common_have_one_root, 1) else { return };
    let lab = &labs[0];
    lab.give_all("10.88.0.1/16").expect("a bridge");
    let config = with_ports(&Config { timeout_ms: TIMEOUT_MS, spins: Some(4), ..config() });
    let id = lab.on_host(0, || root_threads::start(&config)).expect("an id");
    let shared = "10.88.0.1:20000".parse().expect("an address");
    assert!(id.addresses().contains(&shared), "the hosts differ in it: {:?}", id.addresses());
    let namespaces: Vec<_> = (0..HOSTS).map(|host| lab.host(host)).collect();
    let mut ranks = crew.start(&namespaces, &id, &config, "");
    let deadline = Instant::now() + PATIENCE;
    for rank in 0..HOSTS {
        ranks.end(rank, deadline).result.unwrap_or_else(|why| panic!("rank {rank}: {why}"));
    }
}
