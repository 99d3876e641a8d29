//! From what was found to an id: the same on every rank of the job, and on nobody else's.
//!
//! The id comes from the secret, the job, the place, and how often these ranks have met there
//! before, so that one environment serves any number of communicators, made in the same order on
//! all ranks.

use super::file::{self, FileRendezvous, Published};
use super::secret::{self, ADVICE, SecretSource};
use super::{LaunchFacts, RendezvousPlace};
use crate::bootstrap::process;
use crate::bootstrap::unique_id::UniqueId;
use crate::error::{Error, Result};
use crate::fork::ForkSafeMutex;
use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::time::{Duration, Instant};

/// Pause between two tries of a name that nobody knows yet.
const ASK_AGAIN: Duration = Duration::from_millis(250);

/// What is known of the network, and what it does where ranks meet through a file.
pub trait RendezvousNetwork {
    /// This rank's user says which host it is on: others may be on another one of this machine.
    fn hosts_are_named(&self) -> bool;
    /// A new id that leads to this process, for rank 0 to leave in the file.
    fn new_id(&self) -> Result<UniqueId>;
    /// Whether somebody who holds the id's secret answers at its addresses.
    fn answers(&self, id: &UniqueId) -> Result<bool>;
}

/// All that a rank needs to meet the others.
#[derive(Debug)]
pub struct JoinTicket {
    pub rank: usize,
    pub nranks: usize,
    pub local_rank: Option<usize>,
    /// With addresses where the ranks meet over the network; without, all are on this machine.
    pub id: UniqueId,
    /// This rank listens at the id's port, for whoever reaches it at any of its addresses: a name
    /// may lead this machine to its own loopback, and the others to an address that they can use.
    pub hosts_root: bool,
    pub found: String,
    turn: JoinKey,
    /// Until the ranks have met, or this rank gives up.
    _published: Option<Published>,
}

impl JoinTicket {
    /// The ranks have met: the place is free for their next rendezvous.
    pub fn met(self) {
        *TURNS.lock().entry(self.turn).or_default() += 1;
    }
}

/// A place, a job and a rank, which is a thread of this process or all of it.
type JoinKey = (String, String, usize);

/// Rendezvous so far.
static TURNS: ForkSafeMutex<BTreeMap<JoinKey, u64>> = ForkSafeMutex::new(BTreeMap::new());

/// Where the ranks meet, as far as it is the same for all of them.
struct Target {
    /// In words that every rank writes alike.
    place: String,
    /// Empty where all ranks are on this machine.
    addresses: Vec<SocketAddr>,
}

/// Make the id that leads this rank to the others. Waits where rank 0 has yet to write a file.
pub fn join(
    found: &LaunchFacts,
    network: &dyn RendezvousNetwork,
    deadline: Instant,
) -> Result<JoinTicket> {
    let job = match (&found.place, found.job.is_empty()) {
        (RendezvousPlace::Machine, true) => process::launcher(),
        _ => found.job.clone(),
    };
    // Hosts that are played on one machine meet as hosts do.
    let are_several = network.hosts_are_named() && found.secret != SecretSource::None;
    let place = match (&found.place, &found.address) {
        (RendezvousPlace::Machine, Some(address)) if are_several => address,
        (place, _) => place,
    };
    let key: JoinKey = (place.to_string(), job.clone(), found.rank);
    let turn = TURNS.lock().get(&key).copied().unwrap_or(0);
    let ticket = |id: UniqueId, published| JoinTicket {
        rank: found.rank,
        nranks: found.nranks,
        local_rank: found.local_rank,
        hosts_root: found.rank == 0 && !id.addresses().is_empty(),
        id,
        found: found.found.clone(),
        turn: key,
        _published: published,
    };
    if found.nranks == 1 {
        return Ok(ticket(UniqueId::generate()?, None));
    }
    let secret = found.secret.key()?;
    let target = match place {
        RendezvousPlace::File(path) => {
            let rendezvous = FileRendezvous::new(&job, found.nranks, turn);
            if found.rank == 0 {
                let id = network.new_id()?;
                let published = file::publish(path, &rendezvous, &id)?;
                return Ok(ticket(id, Some(published)));
            }
            let answers = |id: &UniqueId| network.answers(id);
            let id = file::await_id(path, &rendezvous, &answers, deadline)?;
            return Ok(ticket(id, None));
        }
        RendezvousPlace::Machine => Target { place: place.to_string(), addresses: Vec::new() },
        RendezvousPlace::Address { host, port } => {
            let port = port_of_turn(*port, turn)?;
            let rendezvous = match (secret.is_some(), network.hosts_are_named()) {
                (false, _) => Meets::Here,
                (true, false) => Meets::HereOnLoopback,
                (true, true) => Meets::Anywhere,
            };
            address(host, port, rendezvous, deadline)?
        }
    };
    let secret = match secret {
        Some(key) => key,
        None => secret::of_this_machine()?.into_bytes(),
    };
    let label = secret::label(&[&job, &target.place, &turn.to_string()]);
    let id = UniqueId::from_secret(&secret, &label, &target.addresses);
    Ok(ticket(id, None))
}

/// The next communicator meets at the next port: the first one's rank 0 may still listen.
fn port_of_turn(port: u16, turn: u64) -> Result<u16> {
    u16::try_from(turn).ok().and_then(|turn| port.checked_add(turn)).ok_or_else(|| {
        Error::usage(format!(
            "after {turn} communicators from port {port} there is no port left for another; make \
             more with ringCommSplit, or start at a lower port"
        ))
    })
}

/// Which addresses lead to other machines.
#[derive(Clone, Copy, PartialEq)]
enum Meets {
    /// None: there is no secret, and ranks meet on this machine.
    Here,
    /// All but loopback.
    HereOnLoopback,
    /// All of them: behind a loopback address may be another host that is played here.
    Anywhere,
}

/// Where `host` is.
fn address(host: &str, port: u16, meets: Meets, deadline: Instant) -> Result<Target> {
    let here = Target { place: format!("loopback port {port}"), addresses: Vec::new() };
    let literal = host.parse::<IpAddr>().ok();
    let loopback =
        host.eq_ignore_ascii_case("localhost") || literal.is_some_and(|ip| ip.is_loopback());
    if loopback && meets != Meets::Anywhere {
        return Ok(here);
    }
    let addresses = resolve(host, deadline, || (host, port).to_socket_addrs().map(Vec::from_iter))?;
    if meets != Meets::Here {
        // Ranks may know the host by different addresses, but they call it by one name.
        return Ok(Target { place: format!("{}:{port}", host.to_lowercase()), addresses });
    }
    let mut others = addresses.iter().map(SocketAddr::ip).filter(|ip| !ip.is_loopback());
    let Some(ip) = others.next() else { return Ok(here) };
    let elsewhere = match literal == Some(ip) {
        true => format!("{host} may be another"),
        false => format!("{host} is {ip}"),
    };
    Err(Error::usage(format!(
        "without a secret ranks meet on one machine only, and {elsewhere}: {ADVICE}"
    )))
}

/// The addresses of a host, at least one: all that `ask` gives, as the id that carries some chooses
/// among them, by family too. Names of a job's hosts appear with the job, some time after its ranks
/// have started: so a name that nobody knows is asked for again until the deadline.
fn resolve(
    host: &str,
    deadline: Instant,
    ask: impl Fn() -> io::Result<Vec<SocketAddr>>,
) -> Result<Vec<SocketAddr>> {
    let started = Instant::now();
    loop {
        let why = match ask() {
            Ok(all) if !all.is_empty() => return Ok(all),
            Ok(_) => "it has no address".to_string(),
            Err(error) => error.to_string(),
        };
        if Instant::now() >= deadline {
            let asked = started.elapsed().as_secs();
            return Err(Error::usage(format!(
                "the ranks are to meet at {host}, which this machine cannot find after {asked} s: \
                 {why}"
            )));
        }
        std::thread::sleep(ASK_AGAIN.min(deadline.saturating_duration_since(Instant::now())));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bootstrap::rendezvous::detect;

    /// A network without anybody. Whether hosts have names on it.
    struct Nobody(bool);

    impl RendezvousNetwork for Nobody {
        fn hosts_are_named(&self) -> bool {
            self.0
        }

        fn new_id(&self) -> Result<UniqueId> {
            UniqueId::generate()
        }

        fn answers(&self, _: &UniqueId) -> Result<bool> {
            Ok(false)
        }
    }

    fn invited(url: &str, rank: usize, secret: Option<&str>) -> Result<JoinTicket> {
        invited_on(&Nobody(false), url, rank, secret)
    }

    fn invited_on(
        network: &Nobody,
        url: &str,
        rank: usize,
        secret: Option<&str>,
    ) -> Result<JoinTicket> {
        let lookup = |name: &str| secret.filter(|_| name == "RINGCOMM_SECRET").map(str::to_string);
        let found = detect(lookup, Some(url), Some(rank), Some(2)).unwrap();
        join(&found, network, Instant::now())
    }

    const SECRET: Option<&str> = Some("sixteen letters!");

    /// A name of which nobody knows anything for a second.
    #[test]
    fn a_name_is_asked_for_until_the_deadline() {
        let ask_from = |appears: Instant| {
            let known = SocketAddr::from(([192, 0, 2, 1], 9));
            let unknown = || io::Error::other("nobody knows it");
            move || if Instant::now() < appears { Err(unknown()) } else { Ok(vec![known]) }
        };
        let in_ms = |ms| Instant::now() + Duration::from_millis(ms);
        assert_eq!(resolve("head", in_ms(20_000), ask_from(in_ms(1000))).unwrap().len(), 1);
        let error = resolve("head", in_ms(600), ask_from(in_ms(60_000))).unwrap_err().to_string();
        assert!(error.contains("cannot find after 0 s: nobody knows it"), "{error}");
    }

    #[test]
    fn ranks_of_one_place_and_secret_share_an_id_and_others_do_not() {
        let id = |url: &str, rank, secret| invited(url, rank, secret).unwrap().id;
        let here = id("tcp://127.0.0.1:5", 0, None);
        assert_eq!(here, id("tcp://localhost:5", 1, None));
        assert_eq!(here, id("tcp://[::1]:5", 1, None));
        assert_ne!(here, id("tcp://127.0.0.1:6", 1, None));
        assert_ne!(here, id("tcp://127.0.0.1:5", 1, SECRET));
        let there = id("tcp://192.0.2.1:5", 0, SECRET);
        assert_eq!(there, id("tcp://192.0.2.1:5", 1, SECRET));
        assert_ne!(there, id("tcp://192.0.2.1:5", 1, Some("another secret of it")));
        assert_eq!(there.addresses(), ["192.0.2.1:5".parse().unwrap()]);
        assert!(here.addresses().is_empty());
    }

    #[test]
    fn rank_0_hosts_where_there_is_an_address() {
        let hosts = |url: &str, rank| invited(url, rank, SECRET).unwrap().hosts_root;
        assert!(hosts("tcp://[2001:db8::1]:5", 0));
        assert!(!hosts("tcp://[2001:db8::1]:5", 1));
        assert!(!hosts("tcp://127.0.0.1:5", 0));
    }

    #[test]
    fn loopback_is_the_way_to_other_hosts_where_hosts_have_names() {
        let id = |secret| invited_on(&Nobody(true), "tcp://127.0.0.1:5", 0, secret).unwrap().id;
        assert_eq!(id(SECRET).addresses(), ["127.0.0.1:5".parse().unwrap()]);
        assert!(id(None).addresses().is_empty(), "without a secret nobody listens");
    }

    #[test]
    fn ranks_of_one_machine_meet_as_hosts_where_these_have_names_and_there_is_a_place() {
        let id = |network: &Nobody, secret: Option<&str>, launcher: &[(&str, &str)]| {
            let lookup = |name: &str| {
                let value =
                    launcher.iter().find(|(known, _)| *known == name).map(|(_, value)| *value);
                value.or(secret.filter(|_| name == "RINGCOMM_SECRET")).map(str::to_string)
            };
            let found = detect(lookup, None, None, None).unwrap();
            join(&found, network, Instant::now()).unwrap().id
        };
        let ringrun = [
            ("RINGCOMM_RANK", "0"),
            ("RINGCOMM_NRANKS", "2"),
            ("RINGCOMM_LOCAL_SIZE", "2"),
            ("MASTER_ADDR", "127.0.0.1"),
            ("MASTER_PORT", "29400"),
        ];
        let addresses = ["127.0.0.1:29401".parse().unwrap()];
        assert_eq!(id(&Nobody(true), SECRET, &ringrun).addresses(), addresses);
        assert!(id(&Nobody(true), None, &ringrun).addresses().is_empty(), "nobody would listen");
        assert!(id(&Nobody(false), SECRET, &ringrun).addresses().is_empty());
        // Nothing says where.
        assert!(id(&Nobody(true), SECRET, &ringrun[..3]).addresses().is_empty());
    }

    #[test]
    fn without_a_secret_only_loopback_is_served_and_the_text_says_what_to_set() {
        let text = invited("tcp://192.0.2.1:5", 0, None).unwrap_err().to_string();
        assert!(text.contains("192.0.2.1 may be another: set RINGCOMM_SECRET"), "{text}");
        assert!(text.contains("RINGCOMM_SECRET_FILE") && text.contains("ringrun"), "{text}");
        let text = invited("tcp://127.0.0.1:5", 0, Some("short")).unwrap_err().to_string();
        assert!(text.contains("5 characters"), "{text}");
    }

    #[test]
    fn the_next_meeting_has_an_id_and_a_port_of_its_own() {
        let first = invited("tcp://192.0.2.7:65534", 0, SECRET).unwrap();
        let again = invited("tcp://192.0.2.7:65534", 0, SECRET).unwrap();
        assert_eq!(first.id, again.id, "who has not met tries again");
        let id = first.id.clone();
        first.met();
        let second = invited("tcp://192.0.2.7:65534", 0, SECRET).unwrap();
        assert_ne!(second.id, id);
        assert_eq!(second.id.addresses()[0].port(), 65535);
        second.met();
        let text = invited("tcp://192.0.2.7:65534", 0, SECRET).unwrap_err().to_string();
        assert!(text.contains("no port left"), "{text}");
    }

    #[test]
    fn ranks_without_an_address_have_a_new_id_for_every_meeting_too() {
        let lookup = |name: &str| {
            let value = match name {
                "OMPI_COMM_WORLD_RANK" => "0",
                "OMPI_COMM_WORLD_SIZE" | "OMPI_COMM_WORLD_LOCAL_SIZE" => "2",
                _ => return None,
            };
            Some(value.to_string())
        };
        let found = detect(lookup, None, None, None).unwrap();
        let first = join(&found, &Nobody(false), Instant::now()).unwrap();
        let id = first.id.clone();
        first.met();
        assert_ne!(join(&found, &Nobody(false), Instant::now()).unwrap().id, id);
    }

    #[test]
    fn of_a_names_addresses_the_best_of_each_family_are_told() {
        let known = ["10.0.0.1:5", "10.0.0.1:5", "10.0.0.2:5", "[2001:db8::1]:5"];
        let known: [SocketAddr; 4] = known.map(|one| one.parse().unwrap());
        let all = resolve("head", Instant::now(), || Ok(known.to_vec())).unwrap();
        let id = UniqueId::from_secret(b"a secret", b"a label", &all);
        assert_eq!(id.addresses(), [known[0], known[2], known[3]]);
    }

    #[test]
    fn a_host_that_is_nowhere_is_named() {
        let text = invited("tcp://nobody.invalid:5", 0, SECRET).unwrap_err().to_string();
        assert!(text.contains("nobody.invalid"), "{text}");
    }

    #[test]
    fn a_file_leads_to_rank_0_until_it_has_met() {
        let name = format!("ringcomm-invite-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let url = format!("file://{}", path.display());
        let zero = invited(&url, 0, None).unwrap();
        assert_eq!(invited(&url, 1, None).unwrap().id, zero.id);
        zero.met();
        assert!(!path.exists());
        let second = invited(&url, 0, None).unwrap();
        // Rank 1 has not met yet, by its own count: the second rendezvous is not its first.
        let text = invited(&url, 1, None).unwrap_err().to_string();
        assert!(text.contains("rendezvous 1; this is for"), "{text}");
        drop(second);
        assert!(!path.exists());
    }
}
