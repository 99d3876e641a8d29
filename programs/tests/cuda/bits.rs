//! The same bits as on the processor, for inputs whose sums are not exact.

use super::support::samples::operations;
use super::support::{Case, Data, Prepared, config, on_threads};
use super::{ndevices, on_seats, spread};
use ringcomm::config::DeviceChoice;
use ringcomm::plan::Collective;
use ringcomm::types::DataType;

#[test]
fn devices_and_the_processor_agree_bit_for_bit() {
    if ndevices() == 0 {
        return;
    }
    for nranks in [2, 3, 8] {
        let mut cases = Vec::new();
        for collective in [Collective::AllReduce, Collective::ReduceScatter] {
            for data_type in DataType::ALL.into_iter().filter(|one| one.is_float()) {
                for op in operations().filter(|op| op.supports(data_type)) {
                    for count in [5, 2000] {
                        let (seed, data) = (cases.len() as u64, Data::Special);
                        let case = Case::new(collective, nranks, count, data_type);
                        cases.push(Prepared::new(Case { op, data, seed, ..case }));
                    }
                }
            }
        }
        let on_host = on_threads(nranks, &config(), |comm| {
            cases.iter().map(|case| case.outcome(comm).unwrap()).collect::<Vec<_>>()
        });
        for seats in [vec![DeviceChoice::Device(0); nranks], spread(nranks)] {
            let on_devices = on_seats(&seats, &config(), |comm, bench| {
                let run = |case: &Prepared| case.outcome_on(comm, Some(bench)).unwrap();
                cases.iter().map(run).collect::<Vec<_>>()
            });
            assert!(on_devices == on_host, "{nranks} ranks: other bits than the processor's");
        }
    }
}
