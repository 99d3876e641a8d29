//! Cooperative launches of several communicators on one device, which has no room for two at once.

use super::here::is_apart;
use super::streams::{Floats, sum};
use super::support::{config, device::Bench, threads};
use super::{fake, ndevices};
use ringcomm::communicator::{Call, Communicator, enqueue};
use ringcomm::config::{Config, DeviceChoice};
use ringcomm::device::cuda::{Event, Recording, wait};
use ringcomm::plan::Collective;
use ringcomm::types::DataType;
use std::sync::Arc;
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
        let ranks =
            Communicator::init_all_on(&vec![DeviceChoice::Device(0); nranks], &config).unwrap();
        let call = Call { count: COUNT, ..Call::new(Collective::AllReduce, DataType::Float32) };
        assert_eq!(ranks[0].explain(&call).unwrap().transport, "gpu/cooperative");
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

/// In a graph as well, where both are of one capture; each of two captures is by itself.
#[test]
fn grids_of_one_capture_take_turns() {
    if !is_apart("gangs::grids_of_one_capture_take_turns", &[]) {
        return;
    }
    let config = Config { algorithm: Some("ring".into()), ..config() };
    let communicator = || -> Vec<Arc<Communicator>> {
        let ranks = Communicator::init_all_on(&[DeviceChoice::Device(0); 2], &config).unwrap();
        ranks.into_iter().map(Arc::new).collect()
    };
    let all = [communicator(), communicator()];
    let benches = [Bench::new(0), Bench::new(0)];
    let floats = benches.each_ref().map(|bench| [1.0, 2.0].map(|of| Floats::new(bench, &[of; 50])));
    let moments = [(); 2].map(|()| Event::new(&benches[0].device, Recording::Moment).unwrap());
    let [first, second] = benches.each_ref().map(|bench| bench.stream.raw());
    let call = |which: usize| {
        let before = fake::calls("cuStreamWaitEvent");
        enqueue::start();
        for (rank, floats) in all[which].iter().zip(&floats[which]) {
            // SAFETY: the memory lives as long as the graph.
            unsafe { enqueue::collective(rank, &sum(floats, &benches[which]), None) }.unwrap();
        }
        enqueue::end().unwrap();
        fake::calls("cuStreamWaitEvent") - before
    };
    // Two calls of the first, one of the second.
    for values in [[6.0, 3.0], [24.0, 6.0]] {
        let mut waits = [0; 3];
        let replay = benches[0].stream.capture(|| {
            moments[0].record(first)?;
            wait(second, &moments[0])?;
            waits = [call(0), call(0), call(1)];
            moments[1].record(second)?;
            wait(first, &moments[1])
        });
        assert_eq!(waits, [0, 0, 1]);
        replay.unwrap().launch(&benches[0].stream).unwrap();
        for (floats, value) in floats.iter().zip(values) {
            assert_eq!(floats[1].read(&benches[0]), [value; 50]);
        }
    }
}
