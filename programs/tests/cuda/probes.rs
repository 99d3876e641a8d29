//! Devices that say they reach each other, and fail when it is tried: calls go through the host.

use super::here::is_apart;
use super::streams::{Floats, sum};
use super::support::{config, threads};
use super::{Bench, fake};
use ringcomm::communicator::{Call, Communicator};
use ringcomm::config::DeviceChoice;
use ringcomm::device::cuda::{Fused, Kernels};
use ringcomm::plan::Collective;
use ringcomm::types::DataType;

const FLOAT: DataType = DataType::Float32;

const DEVICES: [(&str, &str); 3] =
    [("FAKECUDA_DEVICES", "2"), ("FAKECUDA_QUEUES", "1"), ("FAKECUDA_PEERS", "1")];

/// Make ranks on two devices, and have them call.
fn check() {
    let seats = [DeviceChoice::Device(0), DeviceChoice::Device(1)];
    let ranks = Communicator::init_all_on(&seats, &config()).unwrap();
    fake::release();
    threads::run_all(&ranks, |comm| {
        let bench = Bench::new(comm.rank() as i32);
        let floats = Floats::new(&bench, &[1.5; 70]);
        let call = sum(&floats, &bench);
        assert_eq!(comm.explain(&call).unwrap().transport, "gpu/staged (a probe failed)");
        // SAFETY: the memory lives until it is read.
        unsafe { comm.call(&call) }.unwrap();
        assert_eq!(floats.read(&bench), [3.0; 70]);
    });
}

#[test]
fn a_probe_with_an_error_is_no_reason_to_have_no_communicator() {
    let test = "probes::a_probe_with_an_error_is_no_reason_to_have_no_communicator";
    if !is_apart(test, &DEVICES) {
        return;
    }
    for symbol in ["cuLaunchKernel", "cuDeviceCanAccessPeer", "cuStreamCreate", "cuMemAlloc_v2"] {
        fake::fail(symbol, 1, 4711);
        check();
        assert!(fake::calls(symbol) > 0);
        fake::fail("", 0, 0);
    }
}

#[test]
fn a_probe_that_does_not_come_back_is_given_up() {
    if !is_apart("probes::a_probe_that_does_not_come_back_is_given_up", &DEVICES) {
        return;
    }
    let bench = Bench::new(1);
    {
        let _current = bench.device.enter().unwrap();
        fake::hold(bench.stream.raw());
    }
    check();
}

/// Memory that does not carry what is written is not relied on, whichever trial finds it; and every
/// trial looks at what has come.
#[test]
fn what_arrives_wrong_is_found_before_a_call_relies_on_it() {
    if !is_apart("probes::what_arrives_wrong_is_found_before_a_call_relies_on_it", &DEVICES) {
        return;
    }
    let seats = [DeviceChoice::Device(0), DeviceChoice::Device(1)];
    let mut found = Vec::new();
    for symbol in ["cuLaunchKernel", "cuMemcpyAsync"] {
        for nth in 1..40 {
            fake::spoil(symbol, nth);
            let ranks = Communicator::init_all_on(&seats, &config()).unwrap();
            let (has_come, sum_of) = (fake::is_spoilt(), Call::new(Collective::AllReduce, FLOAT));
            fake::spoil("", 0);
            let answer = ranks[0].explain(&Call { count: 70, ..sum_of }).unwrap();
            threads::run_all(&ranks, |comm| {
                let bench = Bench::new(comm.rank() as i32);
                let floats = Floats::new(&bench, &[1.5; 70]);
                // SAFETY: the memory lives until it is read.
                unsafe { comm.call(&sum(&floats, &bench)) }.unwrap();
                assert_eq!(floats.read(&bench), [3.0; 70]);
            });
            if !has_come {
                // All that is tried has been.
                assert_eq!(answer.transport, "gpu/p2p", "{symbol} {nth}");
                break;
            }
            found.push((symbol, answer.transport));
        }
    }
    let of = |symbol: &str, transport: &str| {
        found.iter().filter(|one| **one == (symbol, transport)).count()
    };
    // One device writes in the other's memory, or the other way round.
    assert_eq!(of("cuLaunchKernel", "gpu/staged (no peer access)"), 2, "{found:?}");
    // What is fetched after a read and after a write; and each rank's results of every kernel.
    assert_eq!(of("cuMemcpyAsync", "gpu/staged (no peer access)"), 2, "{found:?}");
    assert!(of("cuMemcpyAsync", "gpu/fused (a trial failed)") >= 8, "{found:?}");
    assert!(of("cuLaunchKernel", "gpu/fused (a trial failed)") >= 4, "{found:?}");
    assert_eq!(of("cuMemcpyAsync", "gpu/p2p"), 0, "{found:?}");
}

/// The driver without a GPU is as strict as a device: what would go to another's memory without
/// access ends its context, so that the other tests show that access is asked for.
#[test]
fn a_kernel_goes_to_another_devices_memory_with_access_only() {
    let test = "probes::a_kernel_goes_to_another_devices_memory_with_access_only";
    if !is_apart(test, &DEVICES) {
        return;
    }
    for has_access in [true, false] {
        let (near, far) = (Bench::new(0), Bench::new(1));
        // Access goes one way.
        let (near, far) = if has_access { (near, far) } else { (far, near) };
        if has_access {
            assert!(near.device.reach(&far.device).unwrap());
        }
        let kernels = Kernels::of(&near.device).unwrap().expect("kernels");
        let ends = [Floats::new(&near, &[1.5; 70]), Floats::new(&far, &[0.0; 70])];
        let [source, target] = ends.each_ref().map(|one| one.memory.pointer().addr() as u64);
        let launched = {
            let _current = near.device.enter().unwrap();
            let mut copying = Fused::copying(&kernels, near.stream.raw(), DataType::Uint8, 280);
            copying.add(&[source], &[target], 280).unwrap();
            copying.launch()
        };
        launched.unwrap();
        match near.stream.synchronize() {
            Ok(()) => {
                assert!(has_access, "another device's memory was touched");
                assert_eq!(ends[1].read(&far), [1.5; 70]);
            }
            Err(error) => assert!(!has_access && error.to_string().contains("700"), "{error}"),
        }
    }
}
