//! A job of some ranks on the virtual network, its faults, and what must be true in the end.

use super::Simulated;
use super::crypto::{Seeded, seed as seed_primitives, toy};
use super::net::{Happening, Line, Net, Party, Port, Shared};
use crate::bootstrap::allgather::LAST_WORDS;
use crate::bootstrap::allgather::client::AllgatherClient;
use crate::bootstrap::allgather::driver::{AllgatherDriver, Role};
use crate::bootstrap::allgather::message::{NO_RANK, PeerId as Named};
use crate::bootstrap::allgather::root::AllgatherRoot;
use crate::bootstrap::tcp::handshake::SharedSecret;
use crate::bootstrap::tcp::hello::{ANYONE, Hello, Purpose};
use crate::bootstrap::tcp::pending::PendingPeers;
use crate::bootstrap::tcp::stream_traits::{ByteStream, Network};
use crate::bootstrap::unique_id::UniqueId;
use crate::error::Error;
use std::cell::RefCell;
use std::fmt;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Connections that send garbage, or nothing.
    Strangers,
    /// Connections that repeat what an honest one sent.
    Recordings,
    Missing,
    Death,
    /// A rank stops, and its kernel goes on accepting.
    Stop,
    /// Nothing comes from a host any more, and nothing gets there.
    Silence,
    Cut,
    Flip,
    /// The first of the root's addresses leads some ranks to another rank, or to themselves.
    Astray,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Lives,
    Missing,
    Killed,
    Stopped,
    Silent,
}

/// How long a rank waits.
const PATIENCE: Duration = Duration::from_secs(20);

/// Until the silence of a host has been noticed, by whoever had met it.
const NOTICED: Duration = Duration::from_secs(10);

type Outcome = Result<Vec<Vec<u8>>, Error>;

struct Actor {
    address: SocketAddr,
    lobby: PendingPeers<Line>,
    host: Option<AllgatherDriver<Port>>,
    fate: Fate,
    stopped: bool,
    started: Option<Instant>,
    silent_since: Option<Instant>,
    over: Option<Instant>,
    outcome: Option<(Instant, Outcome)>,
    /// Whether it had every contribution when it was last seen.
    complete: bool,
    /// When the world will look after it by itself.
    wake: Option<Instant>,
}

pub struct World {
    net: Shared,
    nranks: usize,
    faults: Vec<Fault>,
    actors: Vec<Actor>,
    secret: SharedSecret,
    /// The actor that the others contact: a rank, or one past them.
    root: usize,
    begin: Instant,
    numbers: Seeded,
    strangers: Vec<(Line, Vec<u8>)>,
}

fn payload(rank: usize) -> Vec<u8> {
    vec![rank as u8; (rank * 131) % 700]
}

impl World {
    pub fn new(seed: u64, faults: &[Fault]) -> World {
        seed_primitives(seed);
        let mut numbers = Seeded(seed);
        let begin = Instant::now();
        let nranks = 2 + numbers.below(if numbers.clone().chance(10) { 60 } else { 14 }) as usize;
        let apart = numbers.chance(50);
        let id = UniqueId::from_secret(&seed.to_le_bytes(), b"simulation", &[]);
        let secret = SharedSecret::with(&id, toy);
        let net = Rc::new(RefCell::new(Net::new(numbers.draw(), begin)));
        let root = if apart { nranks } else { 0 };
        let address = |actor: usize| SocketAddr::from(([10, 0, 0, actor as u8 + 1], 4000));
        let actors = (0..nranks + usize::from(apart)).map(|actor| Actor {
            address: address(actor),
            lobby: PendingPeers::new(secret.clone()),
            host: None,
            fate: Fate::Lives,
            stopped: false,
            started: None,
            silent_since: None,
            over: None,
            outcome: None,
            complete: false,
            wake: None,
        });
        let (actors, strangers) = (actors.collect(), Vec::new());
        let faults = faults.to_vec();
        let mut world =
            World { net, nranks, faults, actors, secret, root, begin, numbers, strangers };
        world.plan();
        world
    }

    fn has(&self, fault: Fault) -> bool {
        self.faults.contains(&fault)
    }

    /// Draw what will happen to whom.
    fn plan(&mut self) {
        let late = [1, 10, 1000][self.numbers.below(3) as usize];
        let pick = |numbers: &mut Seeded, odds: u64| numbers.chance(odds);
        let (many, mut net) = (self.faults.len() > 1, self.net.borrow_mut());
        if self.faults.contains(&Fault::Cut) {
            net.odds.cut = if many { 3 } else { 10 };
        }
        if self.faults.contains(&Fault::Flip) {
            net.odds.flip = if many { 3 } else { 10 };
        }
        let at = |numbers: &mut Seeded, within: u64| {
            self.begin + Duration::from_micros(numbers.below(within * 1000))
        };
        for rank in 0..self.actors.len() {
            let numbers = &mut self.numbers;
            let start = if rank == self.nranks { self.begin } else { at(numbers, late) };
            let odds = if many { 5 } else { 100 / self.nranks as u64 + 5 };
            let fate = &mut self.actors[rank].fate;
            if self.faults.contains(&Fault::Missing) && rank != self.root && pick(numbers, odds) {
                *fate = Fate::Missing;
                continue;
            }
            net.schedule(start, Happening::Start(rank));
            // From before the first contact to after the last word, in the time of a rendezvous.
            let moment = start + Duration::from_micros(numbers.below(20_000));
            if self.faults.contains(&Fault::Death) && pick(numbers, odds) {
                *fate = Fate::Killed;
                net.schedule(moment, Happening::Kill(rank));
            } else if self.faults.contains(&Fault::Stop) && pick(numbers, odds) {
                *fate = Fate::Stopped;
                net.schedule(moment, Happening::Stop(rank));
            } else if self.faults.contains(&Fault::Silence) && pick(numbers, odds) {
                *fate = Fate::Silent;
                net.schedule(moment, Happening::Silence(rank));
            }
        }
        for (fault, recorded) in [(Fault::Strangers, false), (Fault::Recordings, true)] {
            for _ in 0..if self.faults.contains(&fault) { self.numbers.below(300) } else { 0 } {
                let door = self.numbers.below(self.actors.len() as u64) as usize;
                let when = at(&mut self.numbers, late + 20);
                net.schedule(when, Happening::Stranger { door, recorded });
            }
        }
    }
}

impl Simulated for World {
    fn run(&mut self) -> Result<bool, String> {
        let limit = self.begin + 10 * PATIENCE;
        for happened in 0.. {
            // A hundred times what the busiest of rendezvous takes.
            if happened > 5_000_000 {
                return Err("somebody spins".into());
            }
            let next = self.net.borrow_mut().advance();
            let Some(what) = next else { break };
            let now = self.net.borrow().now;
            if now > limit {
                return Err("the rendezvous never ends".into());
            }
            match what {
                Happening::Start(actor) => self.start(actor, now),
                Happening::Kill(actor) => self.kill(actor),
                Happening::Stop(actor) => self.actors[actor].stopped = true,
                Happening::Silence(actor) => self.silence(actor, now),
                Happening::Stranger { door, recorded } => self.stranger(door, recorded),
                Happening::Wake(actor) => self.step(actor),
                what => {
                    let concerned = self.net.borrow_mut().apply(what);
                    // A rank looks at once, or when its machine gets round to it.
                    match concerned {
                        Some(actor) if self.numbers.chance(50) => self.step(actor),
                        Some(actor) => {
                            let late = Duration::from_micros(self.numbers.below(1000));
                            self.net.borrow_mut().schedule(now + late, Happening::Wake(actor));
                        }
                        None => {}
                    }
                }
            }
            if self.is_over() {
                break;
            }
        }
        self.judge()
    }

    fn net(&self) -> &Shared {
        &self.net
    }
}

impl World {
    fn is_over(&self) -> bool {
        let ranks = &self.actors[..self.nranks];
        ranks.iter().all(|actor| actor.outcome.is_some() || actor.fate != Fate::Lives)
    }

    fn port(&self, owner: Party) -> Port {
        Port { net: self.net.clone(), owner }
    }

    fn start(&mut self, actor: usize, now: Instant) {
        let pid = 1000 + actor as u32;
        let deadline = now + PATIENCE;
        let apart = actor == self.nranks;
        let me = Named { rank: if apart { NO_RANK } else { actor as u32 }, pid };
        let (nranks, mine) = (self.nranks, payload(actor));
        let own = [self.actors[actor].address];
        let role = if apart {
            Role::Root(AllgatherRoot::apart(pid, now, PATIENCE))
        } else if actor == self.root {
            Role::Root(AllgatherRoot::of(me, nranks, &mine, now, deadline))
        } else {
            let root = self.root_for_a_rank();
            Role::Member(AllgatherClient::new(me, nranks, &mine, &own, &root, now, deadline))
        };
        let (purpose, to, rank) = (Purpose::Meet, ANYONE, me.rank);
        let (nranks, detail, note) = (nranks as u32, pid, self.numbers.draw());
        let greeting = Hello { purpose, rank, to, nranks, detail, note };
        let host = AllgatherDriver::new(self.port(actor), self.secret.clone(), greeting, role);
        let this = &mut self.actors[actor];
        if !apart {
            this.lobby.set_rank(me.rank);
        }
        if actor == self.root {
            this.lobby.set_root();
        }
        (this.host, this.started) = (Some(host), Some(now));
        self.net.borrow_mut().open_door(actor, own[0]);
        self.step(actor);
    }

    /// Where a rank looks for the root.
    fn root_for_a_rank(&mut self) -> Vec<SocketAddr> {
        let root = self.actors[self.root].address;
        if !self.has(Fault::Astray) || self.numbers.chance(30) {
            return vec![root];
        }
        let wrong = self.numbers.below(self.nranks as u64) as usize;
        vec![self.actors[wrong].address, root]
    }

    fn kill(&mut self, actor: usize) {
        let this = &mut self.actors[actor];
        if this.outcome.is_some() {
            // It had come through already: its death is another story.
            this.fate = Fate::Lives;
            return;
        }
        this.stopped = true;
        this.host = None;
        this.lobby = PendingPeers::new(self.secret.clone());
        self.net.borrow_mut().close_door(actor);
    }

    fn silence(&mut self, actor: usize, now: Instant) {
        let this = &mut self.actors[actor];
        if this.outcome.is_some() {
            this.fate = Fate::Lives;
            return;
        }
        this.silent_since = Some(now);
        self.net.borrow_mut().silence(actor);
    }

    fn stranger(&mut self, door: usize, recorded: bool) {
        let address = self.actors[door].address;
        let mut port = self.port(usize::MAX);
        let words = if recorded {
            let net = self.net.borrow();
            if net.recordings.is_empty() {
                return;
            }
            let index = self.numbers.below(net.recordings.len() as u64) as usize;
            net.recordings[index].1.clone()
        } else if self.numbers.chance(60) {
            Vec::new()
        } else {
            (0..self.numbers.below(200)).map(|_| self.numbers.draw() as u8).collect()
        };
        let line = port.connect(&address).expect("a virtual connection");
        self.strangers.push((line, words));
    }

    /// Somebody may have something to do.
    fn step(&mut self, actor: usize) {
        // Strangers say what they can whenever anything happens.
        for (line, words) in &mut self.strangers {
            if let Ok(sent) = line.send(words) {
                words.drain(..sent);
            }
        }
        self.strangers.retain(|(_, words)| !words.is_empty() || words.capacity() == 0);
        let (net, now) = (self.net.clone(), self.net.borrow().now);
        let Some(this) = self.actors.get_mut(actor).filter(|this| !this.stopped) else { return };
        if this.started.is_none() {
            return;
        }
        let port = Port { net: net.clone(), owner: actor };
        let proved = this.lobby.advance(now, || Ok(port.accept()));
        let Some(host) = &mut this.host else { return };
        for arrival in proved {
            host.admit(arrival, now);
        }
        host.advance(now);
        this.complete |= host.has_table();
        let mut deadlines = vec![this.lobby.next_deadline(now), host.next_deadline()];
        if let Some(outcome) = host.outcome().cloned() {
            let until = *this.over.get_or_insert(now + LAST_WORDS);
            deadlines = vec![this.lobby.next_deadline(now), Some(until)];
            let apart = actor == self.nranks;
            if host.is_quiet() || now >= until {
                let table = |host: &mut AllgatherDriver<Port>| {
                    host.take_table().into_iter().map(|(_, payload)| payload).collect()
                };
                let failed = outcome.is_err();
                let outcome = outcome.map(|()| table(host));
                this.outcome.get_or_insert((now, outcome.map_err(Error::from)));
                deadlines.pop();
                // A root apart stays for those who come late.
                if !(failed && apart) {
                    this.host = None;
                    if failed {
                        this.lobby = PendingPeers::new(self.secret.clone());
                        net.borrow_mut().close_door(actor);
                        return;
                    }
                }
            }
        }
        let next = deadlines.into_iter().flatten().min();
        if let Some(at) = next.filter(|at| this.wake.is_none_or(|wake| wake <= now || *at < wake)) {
            let at = at.max(now + Duration::from_micros(1));
            this.wake = Some(at);
            net.borrow_mut().schedule(at, Happening::Wake(actor));
        }
    }

    /// What must be true of every ending.
    fn judge(&self) -> Result<bool, String> {
        let expected: Vec<Vec<u8>> = (0..self.nranks).map(payload).collect();
        let mut met = 0;
        for (rank, actor) in self.actors[..self.nranks].iter().enumerate() {
            if actor.fate != Fate::Lives {
                continue;
            }
            let Some((at, outcome)) = &actor.outcome else {
                return Err(format!("rank {rank} never returned"));
            };
            let deadline = self.begun(rank) + PATIENCE + LAST_WORDS;
            if *at > deadline {
                return Err(format!("rank {rank} returned after its deadline"));
            }
            match outcome {
                Ok(table) if *table == expected => met += 1,
                Ok(_) => return Err(format!("rank {rank} has a wrong table")),
                Err(error) => self.judge_error(rank, error, *at)?,
            }
        }
        let lost = self.actors[..self.nranks].iter().any(|actor| actor.fate == Fate::Missing);
        if met > 0 && lost {
            return Err("ranks met without one that never came".into());
        }
        // Whoever succeeds knows that everybody had received everything.
        let without = self.actors[..self.nranks].iter().position(|actor| !actor.complete);
        if let (true, Some(rank)) = (met > 0, without) {
            return Err(format!("a rank succeeded before rank {rank} had everything"));
        }
        Ok(met == self.nranks)
    }

    fn begun(&self, rank: usize) -> Instant {
        self.actors[rank].started.expect("it has returned")
    }

    /// When the last of them had: until then there is something to say to whoever is silent.
    fn all_begun(&self) -> Instant {
        self.actors.iter().filter_map(|actor| actor.started).max().unwrap_or(self.begin)
    }

    /// Whether an error says what really happened.
    fn judge_error(&self, rank: usize, error: &Error, at: Instant) -> Result<(), String> {
        let fate = |rank: usize| self.actors[rank].fate;
        let of = |wanted: Fate| -> Vec<usize> {
            (0..self.nranks).filter(|rank| fate(*rank) == wanted).collect()
        };
        let noisy = self.has(Fault::Cut) || self.has(Fault::Flip) || self.faults.len() > 2;
        if noisy {
            let text = error.to_string();
            return if text.is_empty() { Err("an error without words".into()) } else { Ok(()) };
        }
        // A rank that is the root and fails is gone for those who come late.
        let root = &self.actors[self.root];
        let failed = root.outcome.as_ref().is_some_and(|(_, outcome)| outcome.is_err());
        let root_lost = root.fate != Fate::Lives || (failed && self.root < self.nranks);
        let fair = match error {
            Error::PeerDied { peer, .. } => match self.actors[peer.rank].silent_since {
                Some(since) => at <= since.max(self.all_begun()) + NOTICED,
                None => fate(peer.rank) == Fate::Killed,
            },
            Error::Missing { missing, .. } if self.has(Fault::Missing) => {
                *missing == of(Fate::Missing)
            }
            // Whoever stopped or died before it had said anything is missing.
            Error::Missing { missing, .. } => missing.iter().all(|rank| fate(*rank) != Fate::Lives),
            Error::Timeout { peer, .. } => fate(peer.rank) == Fate::Stopped,
            Error::System { .. } | Error::NotMet { .. } => root_lost,
            _ => false,
        };
        if fair { Ok(()) } else { Err(format!("rank {rank} returned {error:?}")) }
    }
}

impl fmt::Display for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let since = |at: Instant| at.saturating_duration_since(self.begin);
        writeln!(f, "{} ranks, root {}, faults {:?}", self.nranks, self.root, self.faults)?;
        for (number, actor) in self.actors.iter().enumerate() {
            write!(f, "  {number}: {:?}", actor.fate)?;
            if let Some(at) = actor.started {
                write!(f, ", started {:?}", since(at))?;
            }
            match &actor.outcome {
                Some((at, Ok(_))) => writeln!(f, ", met {:?}", since(*at))?,
                Some((at, Err(error))) => writeln!(f, ", {:?}: {error}", since(*at))?,
                None => writeln!(f)?,
            }
        }
        Ok(())
    }
}
