//! The families of variables that launchers set: who says rank, number of ranks, place and job.
//!
//! A family is a row of names. Rank and number of ranks always come from one family; a place may be
//! named apart, and only where it is not does the family's own count.

use super::RendezvousPlace;
use super::slurm_nodelist;
use super::url::{self, SLURM, TORCH};
use crate::error::{Error, Result};

/// Reads one variable; an empty one counts as not set.
pub(super) type Lookup<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Variables that say the same, the preferred one first.
type Names = &'static [&'static str];

pub(super) struct LauncherKind {
    pub name: &'static str,
    rank: Names,
    nranks: Names,
    local_rank: Names,
    local_size: Names,
    /// Together they name the job and how often it was restarted.
    job: Names,
    /// What one machine's launcher counts for itself. Others of the same job count otherwise, so it
    /// names the job only where that machine has all the ranks.
    job_here: Names,
    place: fn(Lookup) -> Result<Where>,
    /// What else must be there for the others to mean anything, and how it gets there.
    proof: Option<(Names, &'static str)>,
}

/// Where a family says that the ranks meet.
enum Where {
    Known { place: RendezvousPlace, said: String },
    Unknown { missing: String },
}

/// What a family's variables came to.
pub(super) enum Reading {
    Absent,
    /// Some are set, but not enough of them.
    Incomplete {
        missing: String,
    },
    /// Rank and number of ranks are known, but not where they meet.
    Placeless {
        who: LauncherRank,
        missing: String,
    },
    Complete {
        who: LauncherRank,
        place: RendezvousPlace,
        said: String,
    },
}

/// Who this rank is.
#[derive(Clone, Debug)]
pub(super) struct LauncherRank {
    pub rank: usize,
    pub nranks: usize,
    pub local_rank: Option<usize>,
    pub local_size: Option<usize>,
    /// Where its ranks would meet, were they not all on this machine.
    pub address: Option<RendezvousPlace>,
    pub job: String,
    /// The variables and their values, for the message.
    pub said: String,
}

pub(super) const FAMILIES: [LauncherKind; 6] = [
    LauncherKind {
        name: "RINGCOMM_*",
        rank: &["RINGCOMM_RANK"],
        nranks: &["RINGCOMM_NRANKS"],
        local_rank: &["RINGCOMM_LOCAL_RANK"],
        local_size: &["RINGCOMM_LOCAL_SIZE"],
        job: &[],
        job_here: &[],
        place: of_master,
        proof: None,
    },
    LauncherKind {
        name: TORCH,
        rank: &["RANK"],
        nranks: &["WORLD_SIZE"],
        local_rank: &["LOCAL_RANK"],
        local_size: &["LOCAL_WORLD_SIZE"],
        job: &["TORCHELASTIC_RUN_ID"],
        // The restarts that this agent has left its own ranks: one that joined later, or that saw
        // others come and go, has another count.
        job_here: &["TORCHELASTIC_RESTART_COUNT"],
        place: of_master,
        proof: None,
    },
    LauncherKind {
        name: "HOROVOD_*",
        rank: &["HOROVOD_RANK"],
        nranks: &["HOROVOD_SIZE"],
        local_rank: &["HOROVOD_LOCAL_RANK"],
        local_size: &["HOROVOD_LOCAL_SIZE"],
        // Where the launcher itself listens: no two jobs of a machine have the same.
        job: &["HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_GLOO_RENDEZVOUS_PORT"],
        job_here: &[],
        place: nowhere,
        proof: None,
    },
    LauncherKind {
        name: "OMPI_COMM_WORLD_*",
        rank: &["OMPI_COMM_WORLD_RANK"],
        nranks: &["OMPI_COMM_WORLD_SIZE"],
        local_rank: &["OMPI_COMM_WORLD_LOCAL_RANK"],
        local_size: &["OMPI_COMM_WORLD_LOCAL_SIZE"],
        job: &["PMIX_NAMESPACE"],
        job_here: &[],
        place: nowhere,
        proof: None,
    },
    LauncherKind {
        name: "PMI_*",
        rank: &["PMI_RANK"],
        nranks: &["PMI_SIZE"],
        local_rank: &["MPI_LOCALRANKID"],
        local_size: &["MPI_LOCALNRANKS"],
        // Slurm's, Intel MPI's; MPICH names no job.
        job: &["PMI_JOBID", "I_MPI_HYDRA_UUID"],
        job_here: &[],
        place: nowhere,
        proof: None,
    },
    LauncherKind {
        name: SLURM,
        rank: &["SLURM_PROCID"],
        nranks: &["SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS"],
        local_rank: &["SLURM_LOCALID"],
        local_size: &[],
        job: &["SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT"],
        job_here: &[],
        place: of_slurm,
        // In a batch script, and in what mpirun starts there, SLURM_PROCID is 0 for everybody.
        proof: Some((
            &["SLURM_STEP_ID", "SLURM_STEPID"],
            "srun sets it; start the ranks with srun",
        )),
    },
];

/// The first variable of `names` that is set, with its value.
fn first(lookup: Lookup, names: Names) -> Option<(&'static str, String)> {
    names.iter().find_map(|name| lookup(name).map(|value| (*name, value)))
}

/// The same as a number.
fn number(lookup: Lookup, names: Names) -> Result<Option<(&'static str, usize)>> {
    let Some((name, value)) = first(lookup, names) else { return Ok(None) };
    match value.trim().parse() {
        Ok(number) => Ok(Some((name, number))),
        Err(_) => Err(Error::argument(format!("{name}={value:?} is no whole number from 0"))),
    }
}

impl LauncherKind {
    /// Read the family's variables; `place` is where the ranks meet, if somebody else said it.
    pub fn read(
        &self,
        lookup: Lookup,
        place: Option<&(RendezvousPlace, String)>,
    ) -> Result<Reading> {
        let (rank, nranks) = (number(lookup, self.rank)?, number(lookup, self.nranks)?);
        let missing = |name: &str| Reading::Incomplete { missing: format!("{name} is not set") };
        let (rank, nranks) = match (rank, nranks) {
            (None, None) => return Ok(Reading::Absent),
            (None, Some(_)) => return Ok(missing(self.rank[0])),
            (Some(_), None) => return Ok(missing(self.nranks[0])),
            (Some(rank), Some(nranks)) => (rank, nranks),
        };
        if let Some((names, how)) = self.proof
            && nranks.1 > 1
            && first(lookup, names).is_none()
        {
            return Ok(Reading::Incomplete { missing: format!("{} is not set; {how}", names[0]) });
        }
        let said = format!("{}={} {}={}", rank.0, rank.1, nranks.0, nranks.1);
        let (rank, nranks) = (rank.1, nranks.1);
        if rank >= nranks {
            return Err(Error::argument(format!("{said}: ranks are 0 to one less than that")));
        }
        let local_rank = number(lookup, self.local_rank)?.map(|(_, rank)| rank);
        let local_size = match self.local_size {
            [] => tasks_of_this_node(lookup)?,
            names => number(lookup, names)?.map(|(_, size)| size),
        };
        let job = self.job(lookup, local_size == Some(nranks));
        let address = None;
        let who = LauncherRank { rank, nranks, local_rank, local_size, address, job, said };
        if let Some((place, said)) = place {
            return Ok(Reading::Complete { who, place: place.clone(), said: said.clone() });
        }
        Ok(match (self.place)(lookup)? {
            // All on this machine: no address is needed, and what there is tells jobs apart.
            here if who.local_size == Some(nranks) => {
                let (job, address) = match here {
                    Where::Known { place, .. } => (format!("{} at {place}", who.job), Some(place)),
                    Where::Unknown { .. } => (who.job.clone(), None),
                };
                let said = "all ranks are on this machine".into();
                Reading::Complete {
                    who: LauncherRank { job, address, ..who },
                    place: RendezvousPlace::Machine,
                    said,
                }
            }
            Where::Known { place, said } => Reading::Complete { who, place, said },
            Where::Unknown { missing } => Reading::Placeless { who, missing },
        })
    }

    fn job(&self, lookup: Lookup, all_here: bool) -> String {
        let said = |name: &&str| lookup(name).map(|value| format!("{name}={value}"));
        let here = self.job_here.iter().filter(|_| all_here);
        self.job.iter().chain(here).filter_map(said).collect::<Vec<_>>().join(" ")
    }
}

/// For launchers that name no place.
fn nowhere(_: Lookup) -> Result<Where> {
    Ok(Where::Unknown {
        missing:
            "nothing says where ranks of several machines meet; set RINGCOMM_ADDRESS=host:port \
                  to rank 0's host"
                .into(),
    })
}

/// The port after MASTER_PORT: PyTorch's own store listens on that, in torchrun's agent or in rank
/// 0, whenever PyTorch is in the job.
fn of_master(lookup: Lookup) -> Result<Where> {
    Ok(match master(lookup)? {
        Ok((place, said)) => Where::Known { place, said },
        Err(missing) => Where::Unknown { missing },
    })
}

/// What MASTER_ADDR and MASTER_PORT say, or what is missing.
pub(super) fn master(
    lookup: Lookup,
) -> Result<std::result::Result<(RendezvousPlace, String), String>> {
    let missing = |name: &str| Ok(Err(format!("{name} is not set, nor is RINGCOMM_ADDRESS")));
    let Some(host) = lookup("MASTER_ADDR") else { return missing("MASTER_ADDR") };
    let Some(port) = lookup("MASTER_PORT") else { return missing("MASTER_PORT") };
    let bracketed = if host.contains(':') { format!("[{host}]") } else { host };
    let text = format!("{bracketed}:{}", port.trim());
    let place = url::place(&text, &format!("MASTER_ADDR:MASTER_PORT={text}"))?;
    let RendezvousPlace::Address { host, port } = place else { unreachable!("without a scheme") };
    let is_drawn = lookup("TORCHELASTIC_RUN_ID").is_some() && port >= FIRST_OF_CONNECTIONS;
    let (port, why) = match is_drawn {
        true => (quiet(port.into()), "by MASTER_PORT"),
        false => (next(port), "next to MASTER_PORT"),
    };
    let said = format!("they meet at {host} (MASTER_ADDR), port {port} ({why})");
    Ok(Ok((RendezvousPlace::Address { host, port }, said)))
}

/// The port beside `port`.
fn next(port: u16) -> u16 {
    port.checked_add(1).unwrap_or(port - 1)
}

/// From here on Linux gives ports to outgoing connections, unless it is told otherwise. A port next
/// to one that torchrun drew from these is often some connection's.
const FIRST_OF_CONNECTIONS: u16 = 32_768;

/// Ports that jobs meet on whose launcher names no good one: 10,000 below those of connections,
/// free of the registered services that clusters commonly run.
const QUIET_PORTS: std::ops::Range<u64> = 20_000..30_000;

/// The quiet port that a number gives.
fn quiet(number: u64) -> u16 {
    (QUIET_PORTS.start + number % (QUIET_PORTS.end - QUIET_PORTS.start)) as u16
}

/// The first node of the step, where Slurm puts rank 0, on a port that the job's number gives.
fn of_slurm(lookup: Lookup) -> Result<Where> {
    const NODES: Names = &["SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"];
    const JOB: Names = &["SLURM_JOB_ID", "SLURM_JOBID"];
    let missing = |name: &str| Ok(Where::Unknown { missing: format!("{name} is not set") });
    let Some((_, job)) = number(lookup, JOB)? else { return missing(JOB[0]) };
    let Some((name, nodes)) = first(lookup, NODES) else { return missing(NODES[0]) };
    let step = number(lookup, &["SLURM_STEP_ID", "SLURM_STEPID"])?.map_or(0, |(_, step)| step);
    let hosts = slurm_nodelist::hosts(&nodes)?;
    // A prime, so that steps of a job and jobs after it do not soon share a port.
    let mixed = (job as u64).wrapping_add((step as u64).wrapping_mul(1009));
    let port = quiet(mixed);
    let host = hosts.into_iter().next().expect("a list has a first");
    let said = format!("they meet at {host} (first of {name}={nodes}), port {port} (of the job)");
    Ok(Where::Known { place: RendezvousPlace::Address { host, port }, said })
}

/// The tasks of this step on this node.
fn tasks_of_this_node(lookup: Lookup) -> Result<Option<usize>> {
    let tasks = first(lookup, &["SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"]);
    let node = number(lookup, &["SLURM_NODEID"])?;
    match (tasks, node) {
        (Some((_, tasks)), Some((_, node))) => {
            Ok(slurm_nodelist::tasks_per_node(&tasks)?.get(node).copied())
        }
        _ => Ok(None),
    }
}
