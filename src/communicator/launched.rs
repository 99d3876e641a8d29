//! Making a communicator of ranks that a launcher, a user or a URL brings together.

use super::Communicator;
use crate::bootstrap::UniqueId;
use crate::bootstrap::rendezvous::{Found, Invitation, Network, invite};
use crate::config::Config;
use crate::error::{Error, Result};
use std::io::{Write, stderr};
use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

impl Communicator {
    /// Join the ranks of what was found; returns when all have come.
    pub fn init_found(found: &Found, config: &Config) -> Result<Communicator> {
        if config.debug > 0 {
            // Nobody may be reading any more: that changes nothing here.
            let _ = writeln!(stderr(), "ringcomm: {}", found.found);
        }
        let started = Instant::now();
        let (communicator, invitation) = meet(found, config).map_err(|error| match error {
            // Who waits in vain needs to know where it waited.
            Error::Missing { nranks, missing, waited_ms } => Error::NotMet {
                place: found.found.clone(),
                why: format!("missing of {nranks} ranks: {missing:?}"),
                waited_ms: waited_ms.max(started.elapsed().as_millis() as u64),
            },
            error => error,
        })?;
        invitation.met();
        Ok(communicator)
    }
}

/// Take up the invitation of what was found: for ranks of one machine.
fn meet(found: &Found, config: &Config) -> Result<(Communicator, Invitation)> {
    /// Of a machine that nothing leads to.
    struct ThisMachine;

    impl Network for ThisMachine {
        fn new_id(&self) -> Result<UniqueId> {
            UniqueId::generate()
        }

        fn answers(&self, _: &UniqueId) -> Result<bool> {
            Err(Error::usage(
                "rank 0 is on another machine, or in another container of this one; ranks of one \
                 machine only can meet",
            ))
        }
    }

    let deadline = Instant::now() + Duration::from_millis(config.timeout_ms);
    let invitation = invite(found, &ThisMachine, deadline)?;
    // An address can be bound where it belongs to the machine, and nowhere else.
    let is_here = |address: &SocketAddr| UdpSocket::bind((address.ip(), 0)).is_ok();
    let addresses = invitation.id.addresses();
    if !addresses.is_empty() && !addresses.iter().any(is_here) {
        return Err(Error::usage(format!(
            "the ranks are to meet at {}, which is another machine; ranks of one machine only can \
             meet ({})",
            addresses[0], found.found
        )));
    }
    let Invitation { nranks, rank, ref id, .. } = invitation;
    let communicator = Communicator::init_rank(nranks, id, rank, config)?;
    Ok((communicator, invitation))
}
