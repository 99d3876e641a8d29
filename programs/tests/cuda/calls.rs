//! Every collective, type, operation and count in device memory, against the oracle.

use super::here::has_devices;
use super::support::samples::{operations, sample};
use super::support::{Case, Prepared, config, small_slots};
use super::{Bench, ndevices, on_seats, spread};
use ringcomm::communicator::Communicator;
use ringcomm::config::DeviceChoice;
use ringcomm::device::cuda::Device;
use ringcomm::plan::Collective;
use ringcomm::types::DataType;

/// Sixteen summands leave the whole numbers that fp8 and their products that f16 can hold.
fn fits(nranks: usize, case: &Case) -> bool {
    nranks < 9
        || !case.collective.reduces()
        || case.data_type.size() > 1
        || !case.data_type.is_float()
}

fn cases(nranks: usize, seed: u64) -> Vec<Prepared> {
    sample(nranks, seed).into_iter().filter(|case| fits(nranks, case)).map(Prepared::new).collect()
}

fn check(case: &Prepared, comm: &Communicator, bench: &Bench) {
    if let Err(text) = case.outcome_on(comm, Some(bench)) {
        panic!("rank {} of {:?}: {text}", comm.rank(), case.case);
    }
}

/// Whether the devices of these seats let each other in: one does always.
fn is_within_reach(seats: &[DeviceChoice]) -> bool {
    let device = |seat: &DeviceChoice| match seat {
        DeviceChoice::Device(ordinal) => Device::of_ordinal(*ordinal).unwrap(),
        _ => unreachable!("ranks on devices"),
    };
    let devices: Vec<_> = seats.iter().map(device).collect();
    let reaches = |from: &Device| devices.iter().all(|to| from.is(to) || from.reach(to).unwrap());
    devices.iter().all(|from| reaches(from))
}

/// Whether each of several ranks has a device of its own.
fn is_alone(seats: &[DeviceChoice]) -> bool {
    seats.len() > 1 && seats.iter().enumerate().all(|(rank, seat)| !seats[..rank].contains(seat))
}

fn run(seats: &[DeviceChoice], seed: u64) {
    let nranks = seats.len();
    let cases = cases(nranks, seed);
    on_seats(seats, &small_slots(nranks, 4096), |comm, bench| {
        cases.iter().for_each(|case| check(case, comm, bench));
        let transport = cases[0].explain(comm).transport;
        let want = if is_alone(seats) { "gpu/p2p" } else { "gpu/fused" };
        assert_eq!(transport == want, is_within_reach(seats), "{transport}");
    });
    println!("{} calls of {nranks} ranks", cases.len());
}

#[test]
fn several_ranks_of_one_device() {
    if ndevices() > 0 {
        for nranks in [1, 2, 3, 8] {
            run(&vec![DeviceChoice::Device(0); nranks], 100 + nranks as u64);
        }
    }
}

#[test]
fn sixteen_ranks_of_one_device() {
    if ndevices() > 0 {
        run(&[DeviceChoice::Device(0); 16], 116);
    }
}

#[test]
fn ranks_on_all_devices() {
    let ndevices = ndevices();
    if has_devices(2) {
        run(&spread(ndevices), 200);
        run(&spread(ndevices + 1), 201);
    }
}

#[test]
fn every_type_and_operation() {
    if ndevices() == 0 {
        return;
    }
    for nranks in [2, 5] {
        let mut cases = Vec::new();
        for collective in [Collective::AllReduce, Collective::ReduceScatter, Collective::Reduce] {
            for data_type in DataType::ALL {
                for op in operations().filter(|op| op.supports(data_type)) {
                    for (count, in_place) in [(1, false), (61, true), (3000, true)] {
                        let (seed, root) = (cases.len() as u64, cases.len() % nranks);
                        let case = Case::new(collective, nranks, count, data_type);
                        cases.push(Prepared::new(Case { op, in_place, seed, root, ..case }));
                    }
                }
            }
        }
        on_seats(&spread(nranks), &config(), |comm, bench| {
            cases.iter().for_each(|case| check(case, comm, bench));
        });
        println!("{} calls of {nranks} ranks", cases.len());
    }
}

#[test]
fn ranks_of_the_host_and_of_devices_together() {
    if ndevices() == 0 {
        return;
    }
    let seats =
        [DeviceChoice::Host, DeviceChoice::Device(0), DeviceChoice::Host, DeviceChoice::Device(0)];
    let cases = cases(seats.len(), 300);
    on_seats(&seats, &small_slots(seats.len(), 4096), |comm, bench| {
        for case in &cases {
            match comm.device() {
                None => case.run(comm),
                Some(_) => check(case, comm, bench),
            }
        }
    });
}

#[test]
fn a_rank_may_mix_host_and_device_memory() {
    if ndevices() == 0 {
        return;
    }
    let cases = cases(3, 400);
    on_seats(&spread(3), &config(), |comm, bench| {
        let mut bench = Bench::beside(bench);
        for (index, case) in cases.iter().enumerate() {
            // Another mixture for every rank: none, the first buffer, the second, both.
            bench.on_host = (index + comm.rank()) as u32 % 4;
            check(case, comm, &bench);
        }
    });
}

#[test]
fn all_ranks_may_share_a_stream() {
    if ndevices() == 0 {
        return;
    }
    let shared = Bench::new(0);
    let (device, stream) = (shared.device.clone(), shared.stream.clone());
    let cases = cases(4, 500);
    on_seats(&[DeviceChoice::Device(0); 4], &config(), |comm, bench| {
        let mut own = Bench::beside(bench);
        (own.device, own.stream) = (device.clone(), stream.clone());
        cases.iter().step_by(4).for_each(|case| check(case, comm, &own));
    });
}

#[test]
fn a_split_of_ranks_on_devices_is_on_the_same_devices() {
    if ndevices() == 0 {
        return;
    }
    let cases = cases(2, 600);
    on_seats(&spread(4), &config(), |comm, bench| {
        let half = comm.split((comm.rank() / 2) as i32, 0, None).unwrap().expect("a half");
        assert_eq!(half.device(), comm.device());
        cases.iter().step_by(8).for_each(|case| check(case, &half, bench));
    });
}
