//! The environment of a rank: what it inherits, what is taken from it, what the launcher sets.
//!
//! A rank must find one launcher only. Variables in which another launcher around this one says
//! which process somebody is are removed; everything else is left alone.

use super::status_dir;
use crate::placement::Place;
use crate::protocol::frame::Variable;

/// Names, or with a star beginnings of names, that an outer launcher gives its processes. Slurm's
/// description of the allocation (`SLURM_JOB_*`, `SLURM_ARRAY_*`, ...) says nothing of a process
/// and stays: programs name their checkpoints after it.
pub const REMOVED: &[&str] = &[
    "OMPI_*",
    "PMI_*",
    "PMIX_*",
    "MPI_LOCALRANKID",
    "MPI_LOCALNRANKS",
    "TORCHELASTIC_*",
    "GROUP_WORLD_SIZE",
    "ROLE_*",
    "HOROVOD_GLOO_*",
    "HOROVOD_CONTROLLER",
    "HOROVOD_HOSTNAME",
    "SLURM_PROCID",
    "SLURM_LOCALID",
    "SLURM_NODEID",
    "SLURM_NPROCS",
    "SLURM_NTASKS",
    "SLURM_NTASKS_PER_*",
    "SLURM_TASKS_PER_NODE",
    "SLURM_TASK_PID",
    "SLURM_GTIDS",
    "SLURM_STEP*",
    "SLURM_SRUN_*",
    "SLURM_LAUNCH_NODE_IPADDR",
];

/// Where the ranks of a launcher meet. Who is a rank itself has it of the launcher around this one,
/// whose job that is.
const ADDRESS: &str = "RINGCOMM_ADDRESS";

/// Settings of a machine, not of a job: those of the launcher's are not handed to others.
const OF_A_MACHINE: &[&str] = &["RINGCOMM_HOSTID"];

/// Whether this environment is that of a rank.
fn is_ranks(mut names: impl Iterator<Item = impl AsRef<[u8]>>) -> bool {
    names.any(|name| name.as_ref() == b"RINGCOMM_RANK")
}

/// Of the launcher's environment, the settings that all ranks are to have.
pub fn settings(all: Vec<Variable>) -> Vec<Variable> {
    let within = is_ranks(all.iter().map(|(name, _)| name));
    let is_for_all = |name: &str| {
        let stays = is_own(name) || OF_A_MACHINE.contains(&name) || within && name == ADDRESS;
        name.starts_with("RINGCOMM_") && !stays
    };
    all.into_iter().filter(|(name, _)| str::from_utf8(name).is_ok_and(is_for_all)).collect()
}

/// What all ranks of one start of a job have in common.
#[derive(Clone, Debug)]
pub struct Facts {
    pub nranks: usize,
    pub address: String,
    pub port: String,
    pub secret: String,
    pub job: String,
    pub restart: usize,
    /// RINGCOMM_ADDRESS, where the ranks do not find each other without.
    pub meeting: Option<String>,
    pub elastic: Option<Elastic>,
}

/// Names the folder in which newcomers of an elastic job wait.
pub const ELASTIC: &str = "RINGCOMM_ELASTIC";

/// What ranks of an elastic job know of it.
#[derive(Clone, Debug)]
pub struct Elastic {
    /// Where newcomers wait.
    pub folder: String,
    pub least: usize,
    pub most: usize,
}

/// Whether an outer launcher's variable is removed.
pub fn is_removed(name: &[u8]) -> bool {
    REMOVED.iter().any(|pattern| match pattern.strip_suffix('*') {
        Some(beginning) => name.starts_with(beginning.as_bytes()),
        None => name == pattern.as_bytes(),
    })
}

/// What the launcher sets for a rank, by name.
pub fn variables(place: &Place, facts: &Facts) -> Vec<(&'static str, String)> {
    let text = |number: usize| number.to_string();
    let (rank, size) = (text(place.rank), text(facts.nranks));
    let (local_rank, local_size) = (text(place.local_rank), text(place.local_size));
    let mut all = vec![
        ("RANK", rank.clone()),
        ("WORLD_SIZE", size.clone()),
        ("LOCAL_RANK", local_rank.clone()),
        ("LOCAL_WORLD_SIZE", local_size.clone()),
        ("GROUP_RANK", text(place.host)),
        ("MASTER_ADDR", facts.address.clone()),
        ("MASTER_PORT", facts.port.clone()),
        ("RINGCOMM_RANK", rank.clone()),
        ("RINGCOMM_NRANKS", size.clone()),
        ("RINGCOMM_LOCAL_RANK", local_rank.clone()),
        ("RINGCOMM_LOCAL_SIZE", local_size.clone()),
        ("RINGCOMM_SECRET", facts.secret.clone()),
        ("RINGCOMM_JOB", facts.job.clone()),
        ("RINGCOMM_RESTART", text(facts.restart)),
        ("HOROVOD_RANK", rank),
        ("HOROVOD_SIZE", size),
        ("HOROVOD_LOCAL_RANK", local_rank),
        ("HOROVOD_LOCAL_SIZE", local_size),
        ("HOROVOD_CROSS_RANK", text(place.cross_rank)),
        ("HOROVOD_CROSS_SIZE", text(place.cross_size)),
    ];
    if let Some(elastic) = &facts.elastic {
        all.push((ELASTIC, elastic.folder.clone()));
        all.push(("RINGCOMM_MIN_NP", text(elastic.least)));
        all.push(("RINGCOMM_MAX_NP", text(elastic.most)));
    }
    all.extend(facts.meeting.clone().map(|meeting| ("RINGCOMM_ADDRESS", meeting)));
    all
}

/// Whether a variable is the launcher's own to set.
pub fn is_own(name: &str) -> bool {
    let place =
        Place { rank: 0, host: 0, local_rank: 0, local_size: 1, cross_rank: 0, cross_size: 1 };
    let none = String::new;
    let facts = Facts {
        nranks: 1,
        address: none(),
        port: none(),
        secret: none(),
        job: none(),
        restart: 0,
        // Whoever sets it knows a better place.
        meeting: None,
        elastic: None,
    };
    // An agent's own.
    name == status_dir::VARIABLE || variables(&place, &facts).iter().any(|(own, _)| *own == name)
}

/// The whole environment of a rank. A later source wins: what the machine has, what the user
/// forwards, what the launcher sets. Several ranks on a host without `OMP_NUM_THREADS` get one
/// thread each, as under torchrun: otherwise every rank would start a thread per core.
pub fn compose(
    machine: impl Iterator<Item = Variable>,
    forwarded: &[Variable],
    own: &[Variable],
    local_size: usize,
) -> Vec<Variable> {
    let replaced =
        |name: &[u8]| forwarded.iter().chain(own).any(|(replacing, _)| replacing == name);
    let mut all: Vec<Variable> = machine.collect();
    let within = is_ranks(all.iter().map(|(name, _)| name));
    let is_foreign = |name: &[u8]| is_removed(name) || (within && name == ADDRESS.as_bytes());
    all.retain(|(name, _)| !is_foreign(name) && !replaced(name));
    let overridden = |name: &[u8]| own.iter().any(|(replacing, _)| replacing == name);
    all.extend(forwarded.iter().filter(|(name, _)| !overridden(name)).cloned());
    all.extend(own.iter().cloned());
    if local_size > 1 && !all.iter().any(|(name, _)| name == b"OMP_NUM_THREADS") {
        all.push((b"OMP_NUM_THREADS".to_vec(), b"1".to_vec()));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(pairs: &[(&str, &str)]) -> Vec<Variable> {
        pairs.iter().map(|(name, value)| (name.as_bytes().to_vec(), (*value).into())).collect()
    }

    #[test]
    fn later_sources_win_and_outer_launchers_are_forgotten() {
        let machine = [("A", "1"), ("B", "1"), ("RANK", "9"), ("SLURM_PROCID", "0")];
        let mut all = compose(
            of(&machine).into_iter(),
            &of(&[("B", "2"), ("RANK", "8"), ("PMI_RANK", "3")]),
            &of(&[("RANK", "0")]),
            1,
        );
        all.sort();
        // Whoever forwards a variable by name means it.
        assert_eq!(all, of(&[("A", "1"), ("B", "2"), ("PMI_RANK", "3"), ("RANK", "0")]));
    }

    /// A rank's script may start a job of its own.
    #[test]
    fn ranks_within_a_rank_do_not_meet_where_the_outer_ones_do() {
        let outer = [("RINGCOMM_ADDRESS", "a:1"), ("RINGCOMM_RANK", "3"), ("RINGCOMM_ALGO", "x")];
        assert_eq!(settings(of(&outer)), of(&outer[2..]));
        assert_eq!(settings(of(&outer[..1])), of(&outer[..1]), "who is no rank means it");
        let own = of(&[("RINGCOMM_RANK", "0")]);
        let all = |forwarded: &[(&str, &str)]| {
            let mut all = compose(of(&outer).into_iter(), &of(forwarded), &own, 1);
            all.sort();
            all
        };
        assert_eq!(all(&[]), of(&[("RINGCOMM_ALGO", "x"), ("RINGCOMM_RANK", "0")]));
        let given = all(&[("RINGCOMM_ADDRESS", "b:2")]);
        assert_eq!(given[0], of(&[("RINGCOMM_ADDRESS", "b:2")])[0], "given with -x");
    }

    #[test]
    fn what_names_a_machine_stays_on_it() {
        let machine = [("RINGCOMM_HOSTID", "a"), ("RINGCOMM_TIMEOUT_MS", "5"), ("PATH", "x")];
        assert_eq!(settings(of(&machine)), of(&machine[1..2]));
        assert_eq!(compose(of(&machine).into_iter(), &[], &[], 1), of(&machine));
    }

    #[test]
    fn one_thread_each_where_ranks_share_a_host() {
        let omp = |machine: &[(&str, &str)], size| {
            let all = compose(of(machine).into_iter(), &[], &[], size);
            all.into_iter().find(|(name, _)| name == b"OMP_NUM_THREADS").map(|(_, value)| value)
        };
        assert_eq!(omp(&[], 2), Some(b"1".to_vec()));
        assert_eq!(omp(&[("OMP_NUM_THREADS", "4")], 2), Some(b"4".to_vec()));
        assert_eq!(omp(&[], 1), None);
    }

    #[test]
    fn what_describes_the_allocation_stays() {
        for name in ["SLURM_PROCID", "SLURM_STEP_ID", "OMPI_COMM_WORLD_RANK", "PMI_FD"] {
            assert!(is_removed(name.as_bytes()), "{name}");
        }
        for name in ["SLURM_JOB_ID", "SLURM_ARRAY_TASK_ID", "SLURM_CPUS_PER_TASK", "PATH"] {
            assert!(!is_removed(name.as_bytes()), "{name}");
        }
        assert!(is_own("RANK") && is_own("RINGCOMM_SECRET") && !is_own("RINGCOMM_TIMEOUT_MS"));
    }
}
