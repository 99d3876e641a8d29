//! Cooperative launches of several communicators on one device, which has no room for two at once.

use super::ndevices;
use super::streams::{Floats, sum};
use super::support::{config, device::Bench, threads};
use ringcomm::communicator::{Call, Communicator};
use ringcomm::config::{Config, Seat};
use ringcomm::plan::Collective;
use ringcomm::types::DataType;
use std::thread::scope;

/// Calls of each communicator: some thousands of moments at which two may be there at once.
const CALLS: usize = 300;

/// Sums that take all of a device, of communicators and streams that know nothing of each other.
#[test]
fn grids_of_several_communicators_take_turns() {
    if ndevices() == 0 {
        return;
    }
    const COUNT: usize = 20_000;
    let work = |name: &str, nranks: usize| {
        let config = Config { algorithm: Some(name.into()), ..config() };
        let ranks = Communicator::init_all_on(&vec![Seat::Device(0); nranks], &config).unwrap();
        let call = Call { count: COUNT, ..Call::new(Collective::AllReduce, DataType::Float32) };
        assert_eq!(ranks[0].explain(&call).unwrap().transport, "cuda cooperative");
        threads::run_all(&ranks, |comm| {
            let bench = Bench::new(0);
            let floats = Floats::new(&bench, &[0.0; COUNT]);
            for _ in 0..CALLS {
                // SAFETY: the memory lives until it is read.
                unsafe { comm.call(&sum(&floats, &bench)) }.unwrap();
            }
            assert_eq!(floats.read(&bench), [0.0; COUNT]);
        });
    };
    scope(|scope| {
        let all = [("twoshot", 2), ("ring", 4), ("twoshot", 8)];
        let all = all.map(|(name, nranks)| scope.spawn(move || work(name, nranks)));
        all.into_iter().for_each(|one| one.join().expect("every call is right"));
    });
}
