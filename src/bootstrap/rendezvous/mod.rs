//! How people and frameworks say who meets where, and how an id comes out of it.
//!
//! Two questions, answered apart. *Who is this rank?* is for the caller or one family of variables,
//! never a mixture. *Where do the ranks meet?* is a [`RendezvousPlace`]: this machine, rank 0's
//! address, or a file that all see. What every rank knows then, the place, the job's name and a
//! secret, becomes the unique id; only where they meet through a file does rank 0 make the id up.

mod derive_id;
mod detect;
mod file;
mod launcher_env;
mod secret;
mod slurm_nodelist;
mod url;

#[cfg(test)]
mod tests;

pub use derive_id::{JoinTicket, RendezvousNetwork, join};
pub use detect::{detect, launched};
#[cfg(any(test, fuzzing))]
pub use file::rewritten;
pub use secret::SecretSource;
pub use slurm_nodelist::{hosts, tasks_per_node};

use std::fmt;
use std::path::PathBuf;

/// What was found out without asking any other rank.
#[derive(Clone, Debug)]
pub struct LaunchFacts {
    pub rank: usize,
    pub nranks: usize,
    /// The rank among those of this machine, where the launcher says it.
    pub local_rank: Option<usize>,
    pub local_size: Option<usize>,
    pub place: RendezvousPlace,
    /// Where ranks of one machine meet if their users say that they are on several hosts.
    pub address: Option<RendezvousPlace>,
    /// Names the job and its restart: the same on all its ranks, and no other job's.
    pub job: String,
    pub secret: SecretSource,
    /// All of this in a sentence, with the variables it was read from.
    pub found: String,
}

/// What a launcher says of a rank, wherever it meets the others.
#[derive(Clone, Debug)]
pub struct Launched {
    pub rank: usize,
    pub nranks: usize,
    pub local_rank: Option<usize>,
    /// What was found, or what is missing to meet without a URL.
    pub found: String,
}

/// Where ranks meet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RendezvousPlace {
    /// Every rank is on this machine.
    Machine,
    /// Rank 0 listens there.
    Address { host: String, port: u16 },
    /// Rank 0 leaves the id there; a file system that all ranks see.
    File(PathBuf),
}

impl fmt::Display for RendezvousPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RendezvousPlace::Machine => write!(f, "this machine"),
            RendezvousPlace::Address { host, port } if host.contains(':') => {
                write!(f, "[{host}]:{port}")
            }
            RendezvousPlace::Address { host, port } => write!(f, "{host}:{port}"),
            RendezvousPlace::File(path) => write!(f, "{}", path.display()),
        }
    }
}
