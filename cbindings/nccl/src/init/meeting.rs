//! Unique ids, and how the ranks that have one meet.
#![allow(unsafe_code)]

use crate::comm::{Comm, answer};
use crate::environment::variable;
use crate::types::*;
use ringcomm::bootstrap::UniqueId;
use ringcomm::bootstrap::rendezvous::{LaunchFacts, RendezvousPlace, SecretSource};
use ringcomm::communicator::init::new_id;
use ringcomm::error::{Error, Result};
use ringcomm::ffi::comm::lifecycle::ringFreeUniqueId;
use ringcomm::ffi::convert;
use ringcomm::ffi::types::ringUniqueId;
use ringcomm::{Communicator, Config};
use std::sync::atomic::Ordering::Acquire;

/// How an id begins whose ranks meet where `NCCL_COMM_ID` says.
const BY_ADDRESS: &[u8] = b"NCCL_COMM_ID=";

/// What an id leads to.
pub enum Meeting {
    Id(UniqueId),
    /// Rank 0 listens at the address, which every rank has from its environment.
    Address {
        host: String,
        port: u16,
    },
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclGetUniqueId(uniqueId: *mut ncclUniqueId) -> ncclResult_t {
    answer(|| {
        let out = convert::out(uniqueId, "ncclGetUniqueId: uniqueId")?;
        out.set(match variable("NCCL_COMM_ID").filter(|place| !place.trim().is_empty()) {
            Some(place) => by_address(place.trim())?,
            None => of_ring(&convert::unique_id_to_c(&new_id(&Config::from_environment()?)?)),
        });
        Ok(())
    })
}

pub fn of_ring(id: &ringUniqueId) -> ncclUniqueId {
    ncclUniqueId { internal: id.internal }
}

fn to_ring(id: &ncclUniqueId) -> ringUniqueId {
    ringUniqueId { internal: id.internal }
}

/// Give up what this process holds for an id that nobody will use.
pub fn free(id: &ncclUniqueId) {
    let _ = ringFreeUniqueId(to_ring(id));
}

/// The id of all processes that have this address in their environment.
fn by_address(place: &str) -> Result<ncclUniqueId> {
    address(place)?;
    let mut internal = [0; NCCL_UNIQUE_ID_BYTES];
    let text = BY_ADDRESS.iter().chain(place.as_bytes());
    if BY_ADDRESS.len() + place.len() >= internal.len() {
        return Err(Error::argument(format!("NCCL_COMM_ID={place} is too long")));
    }
    for (to, from) in internal.iter_mut().zip(text) {
        *to = *from as std::ffi::c_char;
    }
    Ok(ncclUniqueId { internal })
}

/// `host:port`, or `[IPv6 address]:port`.
fn address(place: &str) -> Result<(String, u16)> {
    let parts = place.rsplit_once(':').and_then(|(host, port)| {
        let host = host.strip_prefix('[').map_or(Some(host), |host| host.strip_suffix(']'))?;
        let is_bare = !host.contains(':') || place.starts_with('[');
        (!host.is_empty() && is_bare).then_some((host.to_string(), port.parse().ok()?))
    });
    parts.ok_or_else(|| {
        Error::argument(format!("NCCL_COMM_ID={place} is no address; give host:port of rank 0"))
    })
}

/// What a caller's id leads to.
pub fn take_id(id: &ncclUniqueId) -> Result<Meeting> {
    let bytes = id.internal.map(|byte| byte as u8);
    let Some(place) = bytes.strip_prefix(BY_ADDRESS) else {
        return convert::unique_id(&to_ring(id)).map(Meeting::Id);
    };
    let text: Vec<u8> = place.iter().copied().take_while(|byte| *byte != 0).collect();
    let (host, port) = address(&String::from_utf8_lossy(&text))?;
    Ok(Meeting::Address { host, port })
}

impl Meeting {
    /// Join the ranks; ended soon where nobody waits for `own` any more.
    pub fn join(
        self,
        nranks: usize,
        rank: usize,
        config: &Config,
        own: &Comm,
    ) -> Result<Communicator> {
        // Acquire: pairs with the Release of whoever gives it up.
        let is_given_up = || own.aborted.load(Acquire);
        match self {
            Meeting::Id(id) => {
                let joined =
                    Communicator::init_rank_unless(nranks, &id, rank, config, &is_given_up);
                if is_given_up() {
                    free(&of_ring(&convert::unique_id_to_c(&id)));
                }
                joined
            }
            Meeting::Address { host, port } => {
                let place = RendezvousPlace::Address { host, port };
                let found = format!("NCCL_COMM_ID: rank {rank} of {nranks} meets at {place}");
                Communicator::init_found_unless(
                    &LaunchFacts {
                        rank,
                        nranks,
                        local_rank: None,
                        local_size: None,
                        address: None,
                        job: format!("NCCL_COMM_ID {place}"),
                        secret: secret(),
                        place,
                        found,
                    },
                    config,
                    &is_given_up,
                )
            }
        }
    }
}

/// The job's secret. NCCL has none: whoever knows the address can join there, and so it is here
/// where the job has none.
fn secret() -> SecretSource {
    match ringcomm::os::environment::variable("RINGCOMM_SECRET") {
        Some(text) => SecretSource::Text(text),
        None => match ringcomm::os::environment::variable_os("RINGCOMM_SECRET_FILE") {
            Some(path) => SecretSource::File(path.into()),
            None => SecretSource::None,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_a_host_and_a_port() {
        let right =
            [("node1:4711", "node1"), ("10.0.0.1:1", "10.0.0.1"), ("[fe80::1]:9", "fe80::1")];
        for (place, host) in right {
            assert_eq!(address(place).unwrap().0, host);
            let id = by_address(place).unwrap();
            assert!(
                matches!(take_id(&id).unwrap(), Meeting::Address { host: to, .. } if to == host)
            );
        }
        for wrong in ["node1", "node1:", ":4711", "fe80::1:9", "[fe80::1:9", "node1:70000"] {
            assert!(address(wrong).unwrap_err().to_string().contains("host:port"), "{wrong}");
        }
    }
}
