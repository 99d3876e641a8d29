//! The authenticated listener of a rank, to which its peers come.

use super::connect::Proved;
use super::handshake::SharedSecret;
use super::interface;
use super::pending::{AdmissionStats, PendingPeers};
use super::socket::{Listener, TcpSocket};
use crate::bootstrap::addresses::best_few;
use crate::bootstrap::unique_id::UniqueId;
use crate::config::{AddressFamily, Config};
use crate::error::{Error, Result};
use crate::os::poll::{EventFd, entry};
use std::io;
use std::io::ErrorKind::{AddrInUse, AddrNotAvailable};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::time::Instant;

/// Addresses of a listener that are told to others; further ones are worse, and a host may have
/// hundreds.
pub const MOST_ADDRESSES: usize = 8;

/// How ranks reach each other over the network.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NetworkConfig {
    /// `RINGCOMM_SOCKET_IFNAME`, in NCCL's syntax.
    pub interfaces: Option<String>,
    /// `RINGCOMM_PORT_RANGE`.
    pub ports: Option<RangeInclusive<u16>>,
    /// `RINGCOMM_SOCKET_FAMILY`.
    pub family: Option<AddressFamily>,
}

impl From<&Config> for NetworkConfig {
    fn from(config: &Config) -> NetworkConfig {
        NetworkConfig {
            interfaces: config.interfaces.clone(),
            ports: config.ports.clone(),
            family: config.family,
        }
    }
}

/// Listeners, and the callers that have not proved themselves yet. It never waits on one of them.
pub struct AuthListener {
    /// At the same port each.
    listeners: Vec<Listener>,
    addresses: Vec<SocketAddr>,
    pending_peers: PendingPeers<TcpSocket>,
    /// Proved, and not yet taken by the one they are for.
    kept: Vec<Proved>,
    /// A descriptor for a root that has no other left; it is given back once the ranks have met.
    spare: Option<EventFd>,
}

impl AuthListener {
    /// Listen for holders of the id's secret, at the best few of the chosen interfaces' addresses
    /// and nowhere else.
    pub fn open(id: &UniqueId, config: &NetworkConfig) -> Result<AuthListener> {
        let all = interface::interfaces()?;
        let wish = config.interfaces.as_deref();
        let mut chosen = interface::choose(&all, wish, config.family)?;
        if chosen.iter().all(|address| address.ip().is_loopback()) {
            // One leads to as many as all do.
            chosen.truncate(1);
        }
        AuthListener::among(id, &chosen, config.ports.clone())
    }

    fn among(
        id: &UniqueId,
        chosen: &[SocketAddr],
        ports: Option<RangeInclusive<u16>>,
    ) -> Result<AuthListener> {
        let (listeners, reached) = listen(&best_few(chosen, MOST_ADDRESSES), ports)?;
        Ok(AuthListener::with(id, listeners, &reached))
    }

    /// Listen at one address, for a rendezvous at a place that the user names. An unspecified IP
    /// serves every address of the machine.
    pub fn open_at(id: &UniqueId, at: SocketAddr, config: &NetworkConfig) -> Result<AuthListener> {
        let listener = Listener::bind(&at).map_err(|error| refused_port(&at, &error))?;
        let reached = if at.ip().is_unspecified() {
            let all = interface::interfaces()?;
            let family = at.is_ipv4().then_some(AddressFamily::V4).or(config.family);
            interface::choose(&all, config.interfaces.as_deref(), family)?
        } else {
            vec![at]
        };
        Ok(AuthListener::with(id, vec![listener], &reached))
    }

    fn with(id: &UniqueId, listeners: Vec<Listener>, reached: &[SocketAddr]) -> AuthListener {
        let port = listeners[0].port();
        let with_port = |mut address: SocketAddr| {
            address.set_port(port);
            address
        };
        let addresses = best_few(reached, MOST_ADDRESSES).into_iter().map(with_port).collect();
        let pending_peers = PendingPeers::new(SharedSecret::new(id));
        let (kept, spare) = (Vec::new(), None);
        AuthListener { listeners, addresses, pending_peers, kept, spare }
    }

    /// The listener of the root: its rank, or a thread that is no rank, introduces the others.
    /// Addresses do not say who that is: hosts may share one that is private to each (a container
    /// bridge's), and listen at the same port.
    pub fn of_root(mut self) -> AuthListener {
        self.pending_peers.set_root();
        // Without one it still is a listener.
        self.spare = EventFd::new().ok();
        self
    }

    pub(in crate::bootstrap) fn is_root(&self) -> bool {
        self.pending_peers.is_root()
    }

    /// Where it can be reached: the best few of the machine's addresses, best first; never loopback
    /// unless that is all there is.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// From now on callers that mean another rank are turned away.
    pub fn set_rank(&mut self, rank: usize) {
        self.pending_peers.set_rank(rank as u32);
    }

    /// Listen for the ranks of an id that leads here, perhaps by addresses that this machine does
    /// not know of itself (a service's, a translator's), or that others know it by and it does not
    /// (a name that is 127.0.1.1 at home): at the id's port on every interface, for both families,
    /// since others may know it by either. The user may name one that the id has an address of.
    pub fn open_root(id: &UniqueId, config: &NetworkConfig) -> Result<AuthListener> {
        let addresses = id.addresses();
        let Some(first) = addresses.first() else {
            return Err(Error::Internal("an id without an address has no root".into()));
        };
        let at = |anywhere: IpAddr| SocketAddr::new(anywhere, first.port());
        let [v4, v6] = [at(Ipv4Addr::UNSPECIFIED.into()), at(Ipv6Addr::UNSPECIFIED.into())];
        let has = |family| {
            addresses.iter().any(|address| address.is_ipv6() == (family == AddressFamily::V6))
        };
        let listener = match config.family.filter(|family| has(*family)) {
            Some(AddressFamily::V4) => AuthListener::open_at(id, v4, config),
            Some(AddressFamily::V6) => AuthListener::open_at(id, v6, config),
            // It serves both families, but on a machine where IPv6 is switched off.
            None if knows_v6() => AuthListener::open_at(id, v6, config),
            None => AuthListener::open_at(id, v4, config),
        };
        Ok(listener?.of_root())
    }

    /// What to poll before the next [`AuthListener::advance`].
    pub fn poll_fds(&self, into: &mut Vec<libc::pollfd>) {
        if self.pending_peers.is_open(Instant::now()) {
            into.extend(self.listeners.iter().map(|one| entry(one.raw(), libc::POLLIN)));
        }
        into.extend(self.pending_peers.callers().map(|(socket, sending)| {
            entry(socket.raw(), libc::POLLIN | if sending { libc::POLLOUT } else { 0 })
        }));
    }

    /// When [`AuthListener::advance`] has something to do though nothing arrives.
    pub fn next_deadline(&self) -> Option<Instant> {
        let now = Instant::now();
        if self.kept.is_empty() { self.pending_peers.next_deadline(now) } else { Some(now) }
    }

    /// Go on with every caller that can, and give out those that have proved themselves. A caller
    /// that was cut off in its last moment, before its welcome came, may come again with the same
    /// greeting: at a rendezvous and between neighbours the later of the two counts. Of a
    /// connection for data the first counts as well: as it has ended, the connection breaks, and
    /// the error names the peer.
    pub fn advance(&mut self) -> Vec<Proved> {
        let mut proved = std::mem::take(&mut self.kept);
        let AuthListener { listeners, pending_peers, .. } = self;
        let mut next = 0;
        let accept = || {
            // In turn, so that a flood at one address does not keep those of another out.
            for _ in 0..listeners.len() {
                next = (next + 1) % listeners.len();
                match listeners[next].accept() {
                    Ok(None) => {}
                    accepted => return accepted,
                }
            }
            Ok(None)
        };
        proved.extend(pending_peers.advance(Instant::now(), accept));
        proved
    }

    /// What the system answered, if somebody has come whom it does not give us.
    pub(in crate::bootstrap) fn shortage(&self) -> Option<i32> {
        self.pending_peers.shortage()
    }

    /// Whether that is so though strangers hold none.
    pub(in crate::bootstrap) fn is_starved(&self) -> bool {
        self.pending_peers.is_starved()
    }

    /// Give back a descriptor that was kept, so that callers can be told why they are not let in.
    pub(in crate::bootstrap) fn release_spare(&mut self) {
        self.spare = None;
    }

    /// Keep what is for somebody else; the next [`AuthListener::advance`] gives it out again.
    pub(in crate::bootstrap) fn keep(&mut self, proved: Vec<Proved>) {
        self.kept.extend(proved);
    }

    /// How many callers were let in, refused and put out so far.
    pub fn tally(&self) -> AdmissionStats {
        self.pending_peers.tally
    }
}

/// Whether this machine's kernel has IPv6.
fn knows_v6() -> bool {
    Listener::bind(&SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0))).is_ok()
}

/// Where nobody names a port: how many the kernel is asked for until one is free at every address.
const MOST_PORTS: usize = 16;

/// Listen at all of these addresses at one port, the first of the range that is free at each; where
/// each listener is.
fn listen(
    at: &[SocketAddr],
    ports: Option<RangeInclusive<u16>>,
) -> Result<(Vec<Listener>, Vec<SocketAddr>)> {
    let any = || vec![0; MOST_PORTS];
    let mut last = at[0];
    for port in ports.clone().map_or_else(any, Iterator::collect) {
        match listen_at(at, port) {
            Ok(listening) => return Ok(listening.into_iter().unzip()),
            Err((at, error)) if error.kind() == AddrInUse => last = at,
            Err((at, error)) => return Err(refused_port(&at, &error)),
        }
    }
    let tried = match ports {
        Some(ports) => format!("RINGCOMM_PORT_RANGE={}-{}", ports.start(), ports.end()),
        None => format!("{MOST_PORTS} that the kernel gave"),
    };
    let what = format!("listening at {}: every port of {tried} is taken", last.ip());
    Err(Error::System { what, errno: libc::EADDRINUSE })
}

/// Listen at all of these addresses that there still are, at this port or (0) what the kernel gives
/// for the first; or where it was refused.
fn listen_at(
    at: &[SocketAddr],
    mut port: u16,
) -> Result<Vec<(Listener, SocketAddr)>, (SocketAddr, io::Error)> {
    let (mut listening, mut gone) = (Vec::new(), None);
    for mut at in at.iter().copied() {
        at.set_port(port);
        match Listener::bind(&at) {
            Ok(listener) => {
                port = listener.port();
                listening.push((listener, at));
            }
            // An interface may go or lose an address at any moment, and one of IPv6 may not be its
            // own yet.
            Err(error)
                if error.kind() == AddrNotAvailable
                    || error.raw_os_error() == Some(libc::ENODEV) =>
            {
                gone = Some((at, error));
            }
            Err(error) => return Err((at, error)),
        }
    }
    match gone {
        Some(gone) if listening.is_empty() => Err(gone),
        _ => Ok(listening),
    }
}

fn refused_port(at: &SocketAddr, error: &io::Error) -> Error {
    let errno = error.raw_os_error().unwrap_or(0);
    Error::System { what: format!("listening at {at}"), errno }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpStream;

    /// As where every container has an interface of the host's.
    #[test]
    fn of_hundreds_of_addresses_the_best_are_told() {
        let id = UniqueId::generate().unwrap();
        let at = SocketAddr::from(([127, 0, 0, 1], 0));
        let many: Vec<_> = (0..200).map(|last| SocketAddr::from(([10, 0, 0, last], 0))).collect();
        let listener = AuthListener::with(&id, vec![Listener::bind(&at).unwrap()], &many);
        let told: Vec<IpAddr> = listener.addresses().iter().map(SocketAddr::ip).collect();
        let best: Vec<IpAddr> =
            (0..MOST_ADDRESSES as u8).map(|last| [10, 0, 0, last].into()).collect();
        assert_eq!(told, best);
    }

    #[test]
    fn many_addresses_of_one_family_do_not_hide_the_other() {
        let id = UniqueId::generate().unwrap();
        let at = SocketAddr::from(([127, 0, 0, 1], 0));
        let told = |more: &[&str]| {
            let many = (0..200).map(|last| format!("10.0.0.{last}"));
            let many = many.chain(more.iter().map(|ip| ip.to_string()));
            let many: Vec<_> = many.map(|ip| SocketAddr::new(ip.parse().unwrap(), 0)).collect();
            let listener = AuthListener::with(&id, vec![Listener::bind(&at).unwrap()], &many);
            listener.addresses().iter().map(|told| told.ip().to_string()).collect::<Vec<_>>()
        };
        let first: Vec<String> =
            (0..MOST_ADDRESSES - 1).map(|last| format!("10.0.0.{last}")).collect();
        let both = |other: &str| [&first[..], &[other.to_string()]].concat();
        assert_eq!(told(&["2001:db8::2", "2001:db8::3"]), both("2001:db8::2"));
        // Every interface has such an address; it is worth less than any that is routed.
        assert_eq!(told(&["fe80::1"]), both("10.0.0.7"));
    }

    #[test]
    fn nobody_is_let_in_at_an_address_that_was_not_chosen() {
        let id = UniqueId::generate().unwrap();
        let chosen = ["127.0.0.1:0", "127.0.0.3:0"].map(|at| at.parse::<SocketAddr>().unwrap());
        let mut listener = AuthListener::among(&id, &chosen, None).unwrap();
        let port = listener.addresses()[0].port();
        let at = |ip: &str| SocketAddr::new(ip.parse().unwrap(), port);
        assert_eq!(listener.addresses(), [at("127.0.0.1"), at("127.0.0.3")]);
        let refused = TcpStream::connect(at("127.0.0.2")).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
        let _callers = chosen.map(|at| TcpStream::connect((at.ip(), port)).unwrap());
        let until = Instant::now() + std::time::Duration::from_secs(30);
        while listener.pending_peers.callers().count() < 2 {
            assert!(Instant::now() < until, "one has come to each");
            listener.advance();
            std::thread::yield_now();
        }
        // As another rank of this host would, which must not get a port that is free at one only.
        let taken =
            AuthListener::among(&id, &chosen[1..], Some(port..=port)).err().unwrap().to_string();
        assert!(taken.contains("127.0.0.3") && taken.contains("RINGCOMM_PORT_RANGE"), "{taken}");
        let both = ["127.0.0.2:0", "127.0.0.3:0"].map(|at| at.parse::<SocketAddr>().unwrap());
        let next = AuthListener::among(&id, &both, Some(port..=port.saturating_add(20))).unwrap();
        assert_ne!(next.addresses()[0].port(), port);
        assert_eq!(next.addresses()[0].port(), next.addresses()[1].port());
    }

    /// As where a host's own name is 127.0.1.1 at home and an IPv6 address elsewhere.
    #[test]
    fn a_root_is_reached_by_a_family_that_its_own_id_has_no_address_of() {
        if !knows_v6() {
            return;
        }
        let probe = Listener::bind(&SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0))).unwrap();
        let port = probe.port();
        drop(probe);
        let id = UniqueId::at(&[SocketAddr::from(([127, 0, 1, 1], port))]).unwrap();
        let config = NetworkConfig { interfaces: Some("=lo".into()), ..NetworkConfig::default() };
        let _gate = AuthListener::open_root(&id, &config).unwrap();
        for at in [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)] {
            TcpStream::connect((at, port)).unwrap();
        }
    }

    #[test]
    fn an_address_of_two_interfaces_is_listened_at_once() {
        let id = UniqueId::generate().unwrap();
        let chosen = ["127.0.0.1:0"; 2].map(|at| at.parse::<SocketAddr>().unwrap());
        let listener = AuthListener::among(&id, &chosen, None).unwrap();
        assert_eq!((listener.addresses().len(), listener.listeners.len()), (1, 1));
    }

    #[test]
    fn an_address_that_is_gone_is_not_told() {
        let id = UniqueId::generate().unwrap();
        // Set aside for documents: no machine's.
        let chosen = ["203.0.113.1:0", "127.0.0.1:0"].map(|at| at.parse::<SocketAddr>().unwrap());
        let listener = AuthListener::among(&id, &chosen, None).unwrap();
        let told: Vec<IpAddr> = listener.addresses().iter().map(SocketAddr::ip).collect();
        assert_eq!(told, [chosen[1].ip()]);
        let error = AuthListener::among(&id, &chosen[..1], None).err().unwrap().to_string();
        assert!(error.starts_with("listening at 203.0.113.1:0: "), "{error}");
    }
}
