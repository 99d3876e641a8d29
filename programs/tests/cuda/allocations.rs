//! Calls take nothing new from the driver: what they need is there when a communicator is made.

use super::here::is_apart;
use super::streams::{Floats, sum};
use super::support::{config, threads};
use super::together::Together;
use super::{Bench, fake};
use ringcomm::communicator::{Call, Communicator};
use ringcomm::config::{Config, DeviceChoice};
use ringcomm::plan::Collective;
use ringcomm::types::DataType;

/// Entry points that allocate, load or make something that lasts.
const TAKES: [&str; 16] = [
    "cuDevicePrimaryCtxRetain",
    "cuMemHostAlloc",
    "cuMemAlloc_v2",
    "cuMemCreate",
    "cuMemRetainAllocationHandle",
    "cuMemImportFromShareableHandle",
    "cuMemAddressReserve",
    "cuMemMap",
    "cuMemHostRegister_v2",
    "cuIpcOpenMemHandle_v2",
    "cuEventCreate",
    "cuStreamCreate",
    "cuModuleLoadData",
    "cuModuleGetFunction",
    "cuGraphInstantiateWithFlags",
    "cuCtxEnablePeerAccess",
];

/// What ranks on these seats take in calls of several shapes, from the first one on.
fn check(seats: &[DeviceChoice], algorithm: Option<&str>, transport: &str, launch: &str) {
    let config = Config { algorithm: algorithm.map(Into::into), ..config() };
    let ranks = Communicator::init_all_on(seats, &config).unwrap();
    let together = Together::of(seats.len());
    threads::run_all(&ranks, |comm| {
        let all = together.join();
        let bench = Bench::new(comm.device().unwrap());
        let floats = Floats::new(&bench, &[1.0; 9000]);
        all.wait();
        if comm.rank() == 0 {
            fake::fail("", 0, 0);
        }
        all.wait();
        for count in [7, 300, 9000].repeat(20) {
            // SAFETY: no longer than the memory, which lives until the stream is synchronized.
            unsafe { comm.call(&Call { count, ..sum(&floats, &bench) }) }.unwrap();
        }
        bench.stream.synchronize().unwrap();
        all.wait();
        let taken = TAKES.map(|symbol| (symbol, fake::calls(symbol)));
        let taken: Vec<_> = taken.into_iter().filter(|(_, calls)| *calls > 0).collect();
        assert!(taken.is_empty(), "{transport}: {taken:?}");
        // As many as the shapes, and one for all ranks of a device.
        assert!(fake::calls(launch) >= 60, "{transport}: {}", fake::calls(launch));
        let call = Call { count: 9000, ..Call::new(Collective::AllReduce, DataType::Float32) };
        assert_eq!(comm.explain(&call).unwrap().transport, transport);
        // Before anybody's memory goes.
        all.wait();
    });
}

#[test]
fn a_call_takes_nothing_from_the_driver_that_was_not_there_before() {
    let test = "allocations::a_call_takes_nothing_from_the_driver_that_was_not_there_before";
    let two = [("FAKECUDA_DEVICES", "2"), ("FAKECUDA_QUEUES", "8"), ("FAKECUDA_PEERS", "1")];
    if !is_apart(test, &two) {
        return;
    }
    let (one, each) =
        ([DeviceChoice::Device(0); 2], [DeviceChoice::Device(0), DeviceChoice::Device(1)]);
    let mixed = [DeviceChoice::Device(0), DeviceChoice::Device(1), DeviceChoice::Device(0)];
    check(&one, None, "gpu/fused", "cuLaunchKernel");
    check(&mixed, None, "gpu/fused", "cuLaunchKernel");
    for algorithm in [None, Some("oneshot"), Some("twoshot"), Some("ring"), Some("tree")] {
        check(&each, algorithm, "gpu/p2p", "cuLaunchKernel");
        if algorithm.is_some() {
            check(&one, algorithm, "gpu/cooperative", "cuLaunchCooperativeKernel");
        }
    }
}
