//! Making a communicator of ranks that a launcher, a user or a URL brings together.

use super::host_setup::StopConditions;
use crate::bootstrap::allgather::root_threads;
use crate::bootstrap::rendezvous::{
    JoinTicket, LaunchFacts, RendezvousNetwork, RendezvousPlace, join,
};
use crate::bootstrap::tcp::{
    ANYONE, AuthListener, Dial, Hello, NetworkConfig, Purpose, interfaces,
};
use crate::bootstrap::{Blame, BootstrapError, UniqueId};
use crate::communicator::Communicator;
use crate::config::Config;
use crate::error::{Error, Result, list};
use crate::os::thread_signals::say;
use std::time::{Duration, Instant};

impl Communicator {
    /// Join the ranks of what was found; returns when all have come.
    #[doc(hidden)]
    pub fn init_found(found: &LaunchFacts, config: &Config) -> Result<Communicator> {
        Communicator::init_found_unless(found, config, &|| false)
    }

    /// As [`Communicator::init_found`], until `cancelled` says that nobody waits for it any more.
    #[doc(hidden)]
    pub fn init_found_unless(
        found: &LaunchFacts,
        config: &Config,
        cancelled: &dyn Fn() -> bool,
    ) -> Result<Communicator> {
        if config.debug > 0 {
            say(&format!("ringcomm: {}", found.found));
        }
        let started = Instant::now();
        let deadline = started + config.init_timeout();
        let until = StopConditions { deadline, cancelled: Some(cancelled), failed: None };
        let (communicator, ticket) = meet(found, config, until).map_err(|unmet| {
            let is_over = Instant::now() >= deadline;
            let waited_ms = started.elapsed().as_millis() as u64;
            let not_met = |why, waited_ms| {
                // Who waits in vain needs to know where it waited.
                Error::NotMet { place: found.found.clone(), why, waited_ms }
            };
            match unmet {
                BootstrapError {
                    error: Error::Missing { nranks, missing, unlisted, waited_ms: told },
                    ..
                } => {
                    let missing = list(&missing, unlisted);
                    let why = format!("missing of {nranks} ranks: {missing}");
                    not_met(why, told.max(waited_ms))
                }
                // Nobody listens where rank 0 would, who alone knows which others have come.
                BootstrapError { error: Error::System { what, errno }, cause: Blame::There }
                    if is_over && found.rank > 0 && NOBODY.contains(&errno) =>
                {
                    let nranks = found.nranks;
                    let tried = Error::System { what, errno };
                    not_met(format!("missing of {nranks} ranks: [0]; {tried}"), waited_ms)
                }
                unmet => unmet.error,
            }
        })?;
        ticket.met();
        Ok(communicator)
    }
}

/// What the network answers for an address at which there is no listener, or no host.
const NOBODY: [i32; 2] = [libc::ECONNREFUSED, libc::EHOSTUNREACH];

/// A new id, for ranks of any host where this one has a network, else for ranks of this machine.
///
/// Where there is a network, a thread of this process introduces the ranks to each other: the
/// process has to live until they have met. This machine's ranks reach it only where a loopback
/// interface is up, also by the addresses of other interfaces.
pub fn new_id(config: &Config) -> Result<UniqueId> {
    let own = interfaces()?;
    let has = |loopback| own.iter().any(|interface| interface.loopback == loopback);
    let is_reachable = has(true) && has(false);
    // Ranks that say on which host they are may be on several that are played here.
    if is_reachable || config.interfaces.is_some() || config.host_id.is_some() {
        root_threads::start(config)
    } else {
        UniqueId::generate()
    }
}

impl Communicator {
    /// As [`new_id`], for some of this communicator's ranks: where they share a host no network is
    /// used, and no thread is started.
    #[doc(hidden)]
    pub fn new_id_of(&self, ranks: &[usize]) -> Result<UniqueId> {
        self.check_process()?;
        match self.share_a_host(ranks) {
            true => UniqueId::generate(),
            false => new_id(&self.config),
        }
    }
}

/// The network, for ranks that meet through a file.
struct LauncherNetwork<'a>(&'a Config);

impl RendezvousNetwork for LauncherNetwork<'_> {
    fn hosts_are_named(&self) -> bool {
        self.0.host_id.is_some()
    }

    fn new_id(&self) -> Result<UniqueId> {
        new_id(self.0)
    }

    fn answers(&self, id: &UniqueId) -> Result<bool> {
        let greeting = Hello {
            purpose: Purpose::Control,
            rank: ANYONE,
            to: ANYONE,
            nranks: 0,
            detail: 0,
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

/// How long rank 0 tries to listen where the ranks meet. What has the port may be a connection that
/// ends, or a rank of the job's last start: launchers give those as long to go. Any other program
/// should not take minutes to be told of.
const PORT_COMES_FREE: Duration = Duration::from_secs(30);
/// Pause between two tries.
const TRY_AGAIN: Duration = Duration::from_millis(50);

/// Listen for the other ranks.
fn open_root(id: &UniqueId, config: &Config, until: StopConditions) -> Result<AuthListener> {
    let end = until.deadline.min(Instant::now() + PORT_COMES_FREE);
    let goes_on = || Instant::now() < end && !until.cancelled.is_some_and(|cancelled| cancelled());
    loop {
        match AuthListener::open_root(id, &NetworkConfig::from(config)) {
            Err(Error::System { errno: libc::EADDRINUSE, .. }) if goes_on() => {
                std::thread::sleep(TRY_AGAIN);
            }
            Err(Error::System { what, errno: libc::EADDRINUSE }) => {
                let what = format!(
                    "{what}, where the ranks are to meet (another program has the port; name \
                     another, as by RINGCOMM_ADDRESS=host:port on every rank)"
                );
                return Err(Error::System { what, errno: libc::EADDRINUSE });
            }
            opened => return opened,
        }
    }
}

/// Meet the ranks of what was found.
fn meet(
    found: &LaunchFacts,
    config: &Config,
    until: StopConditions,
) -> Result<(Communicator, JoinTicket), BootstrapError> {
    let ticket = join(found, &LauncherNetwork(config), until.deadline)?;
    let JoinTicket { nranks, rank, ref id, hosts_root, .. } = ticket;
    let through_file = matches!(found.place, RendezvousPlace::File(_));
    let communicator = if hosts_root && !through_file {
        let listener = open_root(id, config, until)?;
        Communicator::init_through(listener, nranks, id, rank, config, until)?
    } else {
        Communicator::init_unless(nranks, id, rank, config, until)?
    };
    Ok((communicator, ticket))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn a_root_answers_and_nothing_else_does() {
        let config = Config { interfaces: Some("=lo".into()), ..Config::default() };
        let root = root_threads::start(&config).unwrap();
        let outside = LauncherNetwork(&config);
        assert!(outside.answers(&root).unwrap());
        assert!(outside.answers(&root).unwrap(), "again");
        // Another secret at the place of the root, and no secret at all.
        assert!(!outside.answers(&UniqueId::at(&root.addresses()).unwrap()).unwrap());
        let mute = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = mute.local_addr().unwrap();
        assert!(!outside.answers(&UniqueId::at(&[at]).unwrap()).unwrap());
        drop(mute);
        assert!(!outside.answers(&UniqueId::at(&[at]).unwrap()).unwrap());
    }
}
