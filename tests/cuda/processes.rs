//! Ranks that are processes, each on a device, several of them on one.

use super::support::samples::sample;
use super::support::{Prepared, config};
use super::{Bench, ndevices};
use ringcomm::bootstrap::UniqueId;
use ringcomm::communicator::Communicator;
use ringcomm::config::{Config, Seat};
use std::process::{Child, Command, Stdio};

const RANK: &str = "RINGCOMM_TEST_RANK";
const ID: &str = "RINGCOMM_TEST_ID";
const NRANKS: usize = 3;

/// One rank, as a process of the test below.
fn be_rank(rank: usize, id: &UniqueId) {
    let ndevices = ndevices();
    // Two ranks of the three share a device, and there may be a second.
    let seat = Seat::Device((rank % 2 % ndevices) as i32);
    let comm = Communicator::init_rank(NRANKS, id, rank, &Config { seat, ..config() }).unwrap();
    let bench = Bench::new(comm.device().unwrap());
    for case in sample(NRANKS, 70) {
        let case = Prepared::of(case, rank);
        if let Err(text) = case.outcome_on(&comm, Some(&bench)) {
            panic!("rank {rank} of {:?}: {text}", case.case);
        }
    }
}

fn id_from(text: &str) -> UniqueId {
    let byte = |at| u8::from_str_radix(&text[at..at + 2], 16).expect("hex");
    let bytes: Vec<u8> = (0..text.len()).step_by(2).map(byte).collect();
    UniqueId::from_bytes(&bytes.try_into().expect("an id's length")).expect("an id")
}

#[test]
fn processes_on_devices_compute_what_threads_do() {
    if let (Ok(rank), Ok(id)) = (std::env::var(RANK), std::env::var(ID)) {
        return be_rank(rank.parse().expect("a rank"), &id_from(&id));
    }
    if ndevices() == 0 {
        return;
    }
    let id = UniqueId::generate().unwrap();
    let id: String = id.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    let start = |rank: usize| {
        let test = "processes::processes_on_devices_compute_what_threads_do";
        Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", test, "--nocapture"])
            .env(RANK, rank.to_string())
            .env(ID, &id)
            .stdout(Stdio::null())
            .spawn()
            .expect("a process")
    };
    let ranks: Vec<Child> = (0..NRANKS).map(start).collect();
    for mut rank in ranks {
        assert!(rank.wait().expect("its end").success());
    }
}
