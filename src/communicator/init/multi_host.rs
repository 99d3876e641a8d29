//! Joining ranks on several hosts: who is where, shared memory within a host, sockets between.
//!
//! All ranks meet through the network first and say where they are. Those of one host then meet as
//! the ranks of one machine do. A rank of another host is a mirror of its page, which the control
//! thread keeps, and a connection, which is made at its first use.

use super::descriptors;
use super::excuse;
use super::host_setup::{CoreCounts, LocalSetup, SharedSegment, StopConditions, keeping_failure};
use super::peer_info::{INTRODUCTION, PeerInfo, of_all};
use super::vanished_ranks::VanishedRanks;
use crate::bootstrap::allgather::meet_unless;
use crate::bootstrap::tcp::AuthListener;
use crate::bootstrap::{BootstrapError, UniqueId};
use crate::communicator::Communicator;
use crate::communicator::control_plane::{ControlThread, RemoteLinks};
use crate::communicator::failure;
use crate::communicator::tuning::slot_sizing::{OnHosts, on_hosts, segment_bytes};
use crate::config::{Config, NetChoice};
use crate::error::{Error, Result};
use crate::executor::links::{Links, Pages, SegmentMap};
use crate::host;
use crate::transport::engine::choice::{Candidate, candidate_of};
use crate::transport::segment::Segment;
use crate::transport::tcp::{Settings, SocketInbox, TcpEndpoint};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// What a rank knows of the ranks on other hosts once they have met.
pub(super) struct RemotePeers {
    listener: AuthListener,
    /// By rank: what it said of itself.
    infos: Vec<HostPeerInfo>,
    /// By rank: its host, numbered by first appearance.
    hosts: Vec<usize>,
    /// What connections between hosts are like.
    wire: Settings,
    /// The network engine that all ranks have.
    engine: Option<Candidate>,
}

/// What a rank tells the ranks of all hosts.
pub(in crate::communicator) struct HostPeerInfo {
    introduction: PeerInfo,
    host: [u8; 32],
    pid: u32,
    addresses: Vec<SocketAddr>,
    host_name: String,
}

/// Bytes of an address: IP as IPv6, port, scope.
const ADDRESS: usize = 16 + 2 + 4;

fn pack_address(address: &SocketAddr) -> [u8; ADDRESS] {
    let (ip, scope) = match address {
        SocketAddr::V4(v4) => (v4.ip().to_ipv6_mapped(), 0),
        SocketAddr::V6(v6) => (*v6.ip(), v6.scope_id()),
    };
    let mut bytes = [0; ADDRESS];
    bytes[..16].copy_from_slice(&ip.octets());
    bytes[16..18].copy_from_slice(&address.port().to_le_bytes());
    bytes[18..].copy_from_slice(&scope.to_le_bytes());
    bytes
}

fn unpack_address(bytes: &[u8; ADDRESS]) -> SocketAddr {
    let (ip, rest) = bytes.split_first_chunk::<16>().expect("an address is longer");
    let (port, scope) = rest.split_first_chunk::<2>().expect("an address is longer");
    let port = u16::from_le_bytes(*port);
    let scope = u32::from_le_bytes(scope.try_into().expect("four bytes are left"));
    let ip = Ipv6Addr::from(*ip);
    match ip.to_ipv4_mapped() {
        Some(v4) => SocketAddr::new(IpAddr::V4(v4), port),
        None => SocketAddr::V6(SocketAddrV6::new(ip, port, 0, scope)),
    }
}

impl HostPeerInfo {
    pub(in crate::communicator) fn pack(&self) -> Vec<u8> {
        let mut bytes = self.introduction.pack();
        bytes.extend(self.host);
        bytes.extend(self.pid.to_le_bytes());
        bytes.push(self.addresses.len() as u8);
        bytes.extend(self.addresses.iter().flat_map(pack_address));
        bytes.extend(self.host_name.as_bytes());
        bytes
    }

    pub(in crate::communicator) fn unpack(bytes: &[u8]) -> Option<HostPeerInfo> {
        let (introduction, rest) = bytes.split_at_checked(INTRODUCTION)?;
        let (host, rest) = rest.split_first_chunk::<32>()?;
        let (pid, rest) = rest.split_first_chunk::<4>()?;
        let (count, rest) = rest.split_first()?;
        let (addresses, name) = rest.split_at_checked(usize::from(*count) * ADDRESS)?;
        Some(HostPeerInfo {
            introduction: PeerInfo::unpack(introduction).ok()?,
            host: *host,
            pid: u32::from_le_bytes(*pid),
            addresses: addresses.as_chunks::<ADDRESS>().0.iter().map(unpack_address).collect(),
            host_name: String::from_utf8_lossy(name).into_owned(),
        })
    }
}

/// Hosts numbered by first appearance.
fn numbered(infos: &[HostPeerInfo]) -> Vec<usize> {
    let mut known: Vec<&[u8; 32]> = Vec::new();
    infos
        .iter()
        .map(|info| {
            known.iter().position(|host| **host == info.host).unwrap_or_else(|| {
                known.push(&info.host);
                known.len() - 1
            })
        })
        .collect()
}

/// The most ranks that a host has.
fn most(hosts: &[usize]) -> usize {
    let mut ranks_of = vec![0; hosts.len()];
    hosts.iter().for_each(|host| ranks_of[*host] += 1);
    ranks_of.into_iter().max().expect("there is a rank")
}

/// The error where ranks of one host, who all came over the network, do not meet there: machines
/// that were restored from one snapshot, for one, say the same of themselves.
fn apart(error: Error, locals: &[usize]) -> Error {
    match error {
        Error::Missing { missing, unlisted, waited_ms, .. } => {
            Error::Apart { ranks: locals.to_vec(), missing, unlisted, waited_ms }
        }
        error => error,
    }
}

/// Meet the ranks of all hosts, and take what they say of themselves. A rank that has nothing to
/// share with those of its own tells the others why.
fn exchange_infos(
    share: Result<SharedSegment>,
    info: &HostPeerInfo,
    id: &UniqueId,
    (rank, nranks): (usize, usize),
    listener: &mut AuthListener,
    until: StopConditions,
) -> Result<(SharedSegment, Vec<HostPeerInfo>), BootstrapError> {
    let words = share.as_ref().map_or_else(excuse::pack, |_| info.pack());
    let (deadline, cancelled) = (until.deadline, until.cancelled);
    let infos = meet_unless(id, rank, nranks, words, listener, deadline, cancelled);
    // Whatever becomes of the rendezvous, a rank that excuses itself has failed for that.
    let (share, infos) = (share?, infos?);
    let mut words = infos.iter().enumerate();
    if let Some(error) = words.find_map(|(other, info)| excuse::unpack(info, other, rank)) {
        return Err(BootstrapError::there(error));
    }
    let unreadable = |other: usize| {
        Error::usage(format!(
            "rank {other} introduced itself in a way that this library does not read; use the \
             same ringcomm on every rank"
        ))
    };
    let read = |(other, bytes): (usize, &Vec<u8>)| {
        HostPeerInfo::unpack(bytes).ok_or_else(|| unreadable(other))
    };
    Ok((share, infos.iter().enumerate().map(read).collect::<Result<_>>()?))
}

impl Communicator {
    /// Join ranks that may be on several hosts.
    pub(super) fn join_hosts(
        mut setup: LocalSetup,
        id: &UniqueId,
        config: &Config,
        until: StopConditions,
        mut listener: AuthListener,
    ) -> Result<Communicator, BootstrapError> {
        let (rank, nranks) = (setup.rank, setup.segments.len());
        setup.seated.device = crate::communicator::gpu::device(config)?;
        let mut mine = PeerInfo::new(config, nranks, setup.seated.device.is_some())?;
        let engine = candidate_of(&config.net, nranks);
        mine.engine = engine.as_ref().map_or(0, |found| found.as_ref().map_or(0, |one| one.kind));
        let info = HostPeerInfo {
            introduction: mine,
            host: host::identity(config.host_id.as_deref()),
            pid: std::process::id(),
            addresses: listener.addresses().to_vec(),
            host_name: host::name().to_string(),
        };
        let share_bytes = segment_bytes(config, nranks)?;
        // How many are near is not known yet; those who lack room for them tell them there.
        let share = descriptors::ensure(rank, descriptors::needed(0, nranks - 1, config.nsocks))
            .and_then(|()| SharedSegment::new(share_bytes));
        let (share, engine) = match engine {
            Ok(engine) => (share, engine),
            Err(error) => (Err(error), None),
        };
        let (share, infos) =
            exchange_infos(share, &info, id, (rank, nranks), &mut listener, until)?;
        for (other, info) in infos.iter().enumerate() {
            mine.check(rank, other, &info.introduction)?;
        }
        let peer_infos: Vec<PeerInfo> = infos.iter().map(|info| info.introduction).collect();
        setup.seated.among(peer_infos.iter().map(|one| one.device == 1));
        setup.core_counts = CoreCounts::of(&peer_infos, &mine);
        let engine = of_all(engine, &peer_infos, rank, config);
        let hosts = numbered(&infos);
        let here = hosts[rank];
        let locals: Vec<usize> = (0..nranks).filter(|other| hosts[*other] == here).collect();
        let OnHosts { slots, wire } = on_hosts(config, nranks, most(&hosts), setup.seated.any)?;
        setup.map = SegmentMap::new(locals.len(), slots).within(share_bytes);
        let local_id = id.derive_at(format!("host {here}").as_bytes(), &[]);
        let listeners = locals.iter().enumerate().filter(|(_, other)| **other != rank);
        let listeners = listeners.map(|(place, other)| {
            let info = &infos[*other];
            (place, info.pid, &info.addresses[..])
        });
        let vanished_ranks = VanishedRanks::new(listeners);
        let met =
            setup.meet_locals(Ok(share), &locals, &local_id, &mine, until, Some(&vanished_ranks));
        let met =
            met.map_err(|unmet| BootstrapError { error: apart(unmet.error, &locals), ..unmet });
        let met = met.and_then(|_| setup.mirror(&hosts));
        // On one host, too, the listener is open until all have come through: see
        // `vanished_ranks.rs`.
        let (outside, _gate) = match locals.len() < nranks {
            true => (Some(RemotePeers { listener, infos, hosts, wire, engine }), None),
            false => (None, Some(listener)),
        };
        if let Err(unmet) = met {
            if let Some(outside) = outside {
                outside.tell(rank, &unmet.error, id, config);
            }
            return Err(unmet);
        }
        keeping_failure(setup, |setup| super::assemble(setup, outside, id, config, until.failed))
    }
}

impl RemotePeers {
    /// Start the control thread and give the links their connections.
    pub fn attach(
        mut self,
        links: &mut Links,
        id: &UniqueId,
        config: &Config,
    ) -> Result<RemoteLinks> {
        let rank = links.rank;
        let (wire, engine) = (self.wire, self.engine.take());
        let inbox = Arc::new(SocketInbox::new()?);
        let remote = self.hosts.iter().map(|host| *host != self.hosts[rank]).collect();
        let mut post = self.start(rank, links.pages(), remote, inbox.clone(), id, config)?;
        let connector = post.control_thread.connector();
        let woken = inbox.clone();
        let mut endpoint = TcpEndpoint::new(rank, links.nranks, wire, inbox, connector);
        if let Some(Candidate { engine, .. }) = engine {
            engine.serve(move || woken.wake())?;
            post.engine = Arc::downgrade(&engine);
            endpoint = endpoint.with_engine(engine, config.net != NetChoice::Auto);
        }
        links.attach(Box::new(endpoint));
        Ok(post)
    }

    /// Tell the others why this rank, which has met them, goes no further: who finds its listener
    /// closed takes it for dead. Those of its own host have seen the same.
    fn tell(self, rank: usize, why: &Error, id: &UniqueId, config: &Config) {
        let bytes = SegmentMap::mirror_bytes();
        let mirrors = self.infos.iter().map(|_| Segment::anonymous(bytes).map(Arc::new));
        // Where there is no memory for it, the closed listener has to do.
        let (Ok(mirrors), Ok(inbox)) = (mirrors.collect::<Result<_>>(), SocketInbox::new()) else {
            return;
        };
        let pages = Pages::new(rank, mirrors);
        pages.mine().introduce(std::process::id(), host::name());
        failure::publish(&pages, rank, why);
        let remote = (0..self.infos.len()).map(|other| other != rank).collect();
        // It ends with its last words.
        drop(self.start(rank, pages, remote, Arc::new(inbox), id, config));
    }

    /// Start the control thread. `remote`, by rank: its page is a mirror.
    fn start(
        self,
        rank: usize,
        pages: Pages,
        remote: Vec<bool>,
        inbox: Arc<SocketInbox>,
        id: &UniqueId,
        config: &Config,
    ) -> Result<RemoteLinks> {
        let RemotePeers { listener, infos, hosts, .. } = self;
        for other in (0..infos.len()).filter(|other| remote[*other]) {
            pages.of(other).introduce(infos[other].pid, &infos[other].host_name);
        }
        let addresses: Vec<_> = infos.into_iter().map(|info| info.addresses).collect();
        let control_thread = ControlThread::start(crate::communicator::control_plane::Start {
            rank,
            id: id.clone(),
            listener,
            addresses: addresses.clone(),
            remote,
            pages,
            inbox,
            data_sockets: config.nsocks,
            timeout: Duration::from_millis(config.timeout_ms),
        })?;
        Ok(RemoteLinks { control_thread, addresses, hosts, engine: Weak::new() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bootstrap::MAX_PAYLOAD;
    use crate::bootstrap::allgather::root_threads;
    use crate::bootstrap::sim::hundred_thousand_ranks::CARD;
    use crate::bootstrap::tcp::MOST_ADDRESSES;
    use crate::bootstrap::{
        Contribution, LivenessProbe, exchange_unless, process_token, rendezvous_name,
    };
    use std::time::Instant;

    /// Meet the ranks of all hosts as rank 2 of 3, on host b.
    fn come(id: &UniqueId, config: &Config) -> AuthListener {
        let mut listener = AuthListener::open(id, &config.into()).unwrap();
        let info = HostPeerInfo {
            introduction: PeerInfo::new(config, 3, false).unwrap(),
            host: host::identity(config.host_id.as_deref()),
            pid: 12,
            addresses: listener.addresses().to_vec(),
            host_name: "b".into(),
        };
        let deadline = Instant::now() + Duration::from_secs(60);
        meet_unless(id, 2, 3, info.pack(), &mut listener, deadline, None).unwrap();
        listener
    }

    /// What rank 0 on host a and rank 1 on host b say where rank 2 does this after all have met.
    /// The listener that it gives back stays open until they have said it.
    fn said_where_one(
        goes: impl Fn(&UniqueId, AuthListener) -> Option<AuthListener>,
    ) -> [String; 2] {
        let [a, b] = ["a", "b"].map(|host| Config {
            host_id: Some(host.into()),
            interfaces: Some("lo".into()),
            timeout_ms: 60_000,
            ..Config::default()
        });
        let id = &root_threads::start(&a).unwrap();
        std::thread::scope(|scope| {
            let ranks = [(0, &a), (1, &b)].map(|(rank, config)| {
                scope.spawn(move || Communicator::init_rank(3, id, rank, config).err().unwrap())
            });
            let _gate = goes(id, come(id, &b));
            ranks.map(|rank| rank.join().unwrap().to_string())
        })
    }

    #[test]
    fn a_rank_that_gives_up_on_its_host_is_not_taken_for_dead_on_others() {
        let [first, second] = said_where_one(|id, listener| {
            let id = id.derive_at(b"host 1", &[]);
            let (process, fds) = (process_token().unwrap(), Vec::new());
            let nothing = Contribution { payload: Vec::new(), process, fds };
            let deadline = Instant::now() + Duration::from_secs(60);
            exchange_unless(&id, 1, 2, nothing, deadline, LivenessProbe::default()).unwrap();
            Some(listener)
        });
        assert!(!second.contains("died"), "{second}");
        assert!(first.contains("rank 1 ") && !first.contains("died"), "{first}");
        assert!(first.contains(&second), "it says why: {first}");
    }

    #[test]
    fn a_rank_that_dies_before_it_meets_those_of_its_host_is_missed_at_once() {
        let [first, second] = said_where_one(|id, listener| {
            // Whoever has the name waits for the others of the host.
            let name = rendezvous_name(&id.derive_at(b"host 1", &[]));
            let name = format!("@{}", String::from_utf8(name).unwrap());
            let started = Instant::now();
            while !std::fs::read_to_string("/proc/net/unix").unwrap().contains(&name) {
                assert!(started.elapsed() < Duration::from_secs(60), "nobody waits");
            }
            drop(listener);
            None
        });
        assert!(second.starts_with("rank 2 (") && second.contains("pid 12) died"), "{second}");
        assert!(first.contains("rank 2 (") && first.contains("pid 12) died"), "{first}");
    }

    #[test]
    fn of_several_that_are_gone_none_is_said_to_have_died() {
        let id = UniqueId::generate().unwrap();
        let (process, fds) = (process_token().unwrap(), Vec::new());
        let mine = Contribution { payload: Vec::new(), process, fds };
        let gone = || vec![(0, Some(12)), (1, None)];
        let liveness_probe = LivenessProbe { absent: Some(&gone), ..LivenessProbe::default() };
        let deadline = Instant::now() + Duration::from_secs(60);
        let unmet = exchange_unless(&id, 2, 3, mine, deadline, liveness_probe).err().unwrap();
        let text = apart(unmet.error, &[0, 1, 2]).to_string();
        assert!(text.contains("missing: [0, 1]") && !text.contains("died"), "{text}");
    }

    #[test]
    fn a_card_survives_its_bytes() {
        let info = HostPeerInfo {
            introduction: PeerInfo::new(&Config::default(), 2, true).unwrap(),
            host: [7; 32],
            pid: 12,
            addresses: vec!["10.0.0.1:80".parse().unwrap(), "[fe80::1%3]:90".parse().unwrap()],
            host_name: "a".into(),
        };
        let bytes = info.pack();
        let read = HostPeerInfo::unpack(&bytes).unwrap();
        assert_eq!(read.addresses, info.addresses);
        assert!(read.introduction == info.introduction && read.host == info.host);
        assert_eq!((read.pid, read.host_name.as_str()), (12, "a"));
        let least = bytes.len() - 1;
        assert!((0..least).all(|end| HostPeerInfo::unpack(&bytes[..end]).is_none()));
        assert!(
            HostPeerInfo::unpack(&bytes[..least]).is_some_and(|info| info.host_name.is_empty())
        );
    }

    #[test]
    fn ranks_that_do_not_meet_on_their_host_are_told_how_hosts_are_named() {
        let missing = Error::Missing { nranks: 2, missing: vec![3], unlisted: 0, waited_ms: 5 };
        let text = apart(missing, &[1, 3]).to_string();
        assert!(text.starts_with("ranks [1, 3] count as one host"), "{text}");
        assert!(text.contains("only 1 of them") && text.contains("missing: [3]"), "{text}");
        assert!(text.contains("set RINGCOMM_HOSTID"), "{text}");
        let other = Error::usage("something else");
        assert_eq!(apart(other.clone(), &[1, 3]), other);
    }

    #[test]
    fn large_meetings_are_simulated_with_cards_of_the_right_length() {
        let info = HostPeerInfo {
            introduction: PeerInfo::new(&Config::default(), 2, false).unwrap(),
            host: [7; 32],
            pid: 12,
            addresses: vec!["10.0.0.1:80".parse().unwrap()],
            host_name: "node-012345".into(),
        };
        assert_eq!(info.pack().len(), CARD);
    }

    #[test]
    fn the_longest_of_cards_is_no_more_than_a_meeting_takes() {
        let info = HostPeerInfo {
            introduction: PeerInfo::new(&Config::default(), 2, true).unwrap(),
            host: [7; 32],
            pid: 12,
            addresses: vec!["10.0.0.1:80".parse().unwrap(); MOST_ADDRESSES],
            // What a kernel allows.
            host_name: "h".repeat(64),
        };
        assert!(info.pack().len() <= MAX_PAYLOAD);
    }

    /// The bytes and the mappings that the ranks of other hosts take before a message is exchanged.
    /// RINGCOMM_RANKS says how many ranks there are.
    #[test]
    fn mirrors_of_many_ranks_are_few_mappings() {
        let nranks = std::env::var("RINGCOMM_RANKS").map_or(2_000, |text| text.parse().unwrap());
        let lines = |file: &str| std::fs::read_to_string(file).unwrap();
        let mappings = || lines("/proc/self/maps").lines().count();
        let resident = || {
            let pages = lines("/proc/self/statm").split(' ').nth(1).unwrap().parse::<usize>();
            pages.unwrap() * 4096
        };
        let before = (mappings(), resident());
        let bytes = SegmentMap::mirror_bytes();
        let mirrors = (0..nranks).map(|_| Arc::new(Segment::anonymous(bytes).unwrap()));
        let pages = Pages::new(0, mirrors.collect());
        (0..nranks).for_each(|rank| pages.of(rank).introduce(12, "node-012345"));
        let after = (mappings(), resident());
        println!(
            "{nranks} mirrors of {bytes} bytes each, in which {} are in memory once ranks have \
             met; mappings of the process: {} before, {} after",
            after.1.saturating_sub(before.1) / nranks,
            before.0,
            after.0
        );
        // The kernel allows a process 65,530 unless it is told otherwise (vm.max_map_count).
        assert!(after.0 < before.0 + nranks / 10, "{before:?}, {after:?}");
    }
}
