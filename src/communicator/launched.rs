//! Making a communicator of ranks that a launcher, a user or a URL brings together.

use super::Communicator;
use super::assembly::Until;
use crate::bootstrap::UniqueId;
use crate::bootstrap::network::{
    ANYONE, Dial, Gate, Greeting, NetworkConfig, Purpose, Root, interfaces,
};
use crate::bootstrap::rendezvous::{Found, Invitation, Network, Place, invite};
use crate::config::Config;
use crate::error::{Error, Result, list};
use std::io::{Write, stderr};
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
            Error::Missing { nranks, missing, unlisted, waited_ms } => Error::NotMet {
                place: found.found.clone(),
                why: format!("missing of {nranks} ranks: {}", list(&missing, unlisted)),
                waited_ms: waited_ms.max(started.elapsed().as_millis() as u64),
            },
            error => error,
        })?;
        invitation.met();
        Ok(communicator)
    }
}

/// A new id, for ranks of any host where this one has a network, else for ranks of this machine.
///
/// Where there is a network, a thread of this process introduces the ranks to each other: the
/// process has to live until they have met.
pub fn new_id(config: &Config) -> Result<UniqueId> {
    let own = interfaces()?;
    let is_reachable = own.iter().any(|interface| !interface.loopback);
    if is_reachable || config.interfaces.is_some() {
        Root::start(config)
    } else {
        UniqueId::generate()
    }
}

/// The network, for ranks that meet through a file.
struct Outside<'a>(&'a Config);

impl Network for Outside<'_> {
    fn hosts_are_named(&self) -> bool {
        self.0.host_id.is_some()
    }

    fn new_id(&self) -> Result<UniqueId> {
        new_id(self.0)
    }

    fn answers(&self, id: &UniqueId) -> Result<bool> {
        let greeting = Greeting {
            purpose: Purpose::Control,
            rank: ANYONE,
            to: ANYONE,
            nranks: 0,
            lane: 0,
            note: 0,
        };
        let deadline = Instant::now() + ANSWERS;
        let mut dial = Dial::new(id, &id.addresses(), greeting, deadline);
        loop {
            match dial.advance() {
                Ok(Some(_)) => return Ok(true),
                Ok(None) => std::thread::sleep(Duration::from_millis(1)),
                Err(_) => return Ok(false),
            }
        }
    }
}

/// How long whoever wrote a file has to answer: a handshake over a wide network takes a tenth.
const ANSWERS: Duration = Duration::from_secs(2);

/// Take up the invitation of what was found.
fn meet(found: &Found, config: &Config) -> Result<(Communicator, Invitation)> {
    let deadline = Instant::now() + Duration::from_millis(config.timeout_ms);
    let invitation = invite(found, &Outside(config), deadline)?;
    let Invitation { nranks, rank, ref id, hosts_root, .. } = invitation;
    let through_file = matches!(found.place, Place::File(_));
    let communicator = if hosts_root && !through_file {
        let gate = Gate::open_root(id, &NetworkConfig::from(config))?;
        let until = Until::deadline(deadline);
        Communicator::init_through(gate, nranks, id, rank, config, until)?
    } else {
        Communicator::init_rank(nranks, id, rank, config)?
    };
    Ok((communicator, invitation))
}
