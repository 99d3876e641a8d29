//! What launchers, people and a shared file say of where ranks meet: refused with a text, or a rank
//! among its ranks and lists within their bounds.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ringcomm::bootstrap::rendezvous::{detect, hosts, launched, rewritten, tasks_per_node};

/// Most hosts of a list.
const MOST: usize = 65_536;

/// The variables that are read, in the order of the input's lines.
const VARIABLES: [&str; 29] = [
    "RINGCOMM_RANK",
    "RINGCOMM_NRANKS",
    "RINGCOMM_ADDRESS",
    "RINGCOMM_LOCAL_RANK",
    "RINGCOMM_JOB",
    "RANK",
    "WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "PMI_RANK",
    "PMI_SIZE",
    "SLURM_PROCID",
    "SLURM_NTASKS",
    "SLURM_JOB_ID",
    "SLURM_STEP_ID",
    "SLURM_STEP_NODELIST",
    "SLURM_JOB_NODELIST",
    "SLURM_NODELIST",
    "SLURM_STEP_TASKS_PER_NODE",
    "SLURM_LOCALID",
    "SLURM_NODEID",
    "HOROVOD_RANK",
    "HOROVOD_SIZE",
    "RINGCOMM_SECRET",
    "PMIX_NAMESPACE",
];

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(hosts) = hosts(text) {
        assert!(!hosts.is_empty() && hosts.len() <= MOST);
    }
    if let Ok(tasks) = tasks_per_node(text) {
        assert!(tasks.len() <= MOST);
    }
    if let Some(again) = rewritten(text) {
        assert_eq!(rewritten(&again).as_ref(), Some(&again));
    }
    let mut lines = text.split('\n');
    let url = lines.next().filter(|url| !url.is_empty());
    let values: Vec<&str> = lines.take(VARIABLES.len()).collect();
    let lookup = |name: &str| {
        let index = VARIABLES.iter().position(|known| *known == name)?;
        values.get(index).filter(|value| !value.is_empty()).map(|value| value.to_string())
    };
    match detect(lookup, url, None, None) {
        Ok(found) => assert!(found.rank < found.nranks && !found.found.is_empty()),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    if let Ok(launched) = launched(lookup) {
        assert!(launched.rank < launched.nranks);
    }
});
