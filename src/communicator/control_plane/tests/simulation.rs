//! The control plane on a virtual network and clock: one seed decides every delay and every fault.
//!
//! What runs is the code of the control threads, from the listeners to the words on the mirrors;
//! only sockets and time are virtual. In the end every rank that lives must know of each other one
//! what is true. A seed that fails is printed; `RINGCOMM_SEED=n` replays it.

use super::state_machine::{ControlIdentity, Plane};
use crate::bootstrap::UniqueId;
use crate::bootstrap::sim::crypto::{Seeded, seed as seed_primitives, toy};
use crate::bootstrap::sim::net::{Happening, Line, Net, Port, Shared};
use crate::bootstrap::sim::{Simulated, every_seed};
use crate::bootstrap::tcp::{PendingPeers, SharedSecret};
use crate::executor::control_block::Life;
use crate::executor::control_block::shrink_board::{Announcement, Phase};
use crate::executor::links::{Pages, SegmentMap};
use crate::transport::segment::Segment;
use std::cell::RefCell;
use std::fmt;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Death,
    /// A rank ends, and says so.
    Leave,
    /// A rank is stopped for a while, and its kernel goes on.
    Stop,
    /// A host falls silent.
    Silence,
    Cut,
    Flip,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Lives,
    Dies,
    Leaves,
    FallsSilent,
}

/// In which everything that is to happen does.
const ACTION: Duration = Duration::from_secs(2);

/// After which everything must be known: a lost connection may take three seconds to be made again.
const CALM: Duration = Duration::from_secs(4);

/// How much longer it takes where a host falls silent: that is found after seconds of silence.
const SILENCE: Duration = Duration::from_secs(8);

struct Actor {
    address: SocketAddr,
    pending_peers: PendingPeers<Line>,
    plane: Option<Plane<Port>>,
    pages: Pages,
    fate: Fate,
    started: Option<Instant>,
    stopped: bool,
    /// When its fate came.
    met: Option<Instant>,
    /// By rank: when it took it for dead.
    missed: Vec<Option<Instant>>,
    /// When the world will look after it by itself.
    wake: Option<Instant>,
}

struct World {
    net: Shared,
    faults: Vec<Fault>,
    actors: Vec<Actor>,
    secret: SharedSecret,
    begin: Instant,
    numbers: Seeded,
}

fn pages(rank: usize, nranks: usize) -> Pages {
    let segment = |_| Arc::new(Segment::anonymous(SegmentMap::mirror_bytes()).expect("memory"));
    let pages = Pages::new(rank, (0..nranks).map(segment).collect());
    pages.mine().introduce(1000 + rank as u32, "here");
    pages
}

impl World {
    fn new(seed: u64, faults: &[Fault]) -> World {
        seed_primitives(seed);
        let mut numbers = Seeded(seed);
        let begin = Instant::now();
        let nranks = 2 + numbers.below(if numbers.clone().chance(20) { 12 } else { 5 }) as usize;
        let net = Rc::new(RefCell::new(Net::new(numbers.draw(), begin)));
        let id = UniqueId::from_secret(&seed.to_le_bytes(), b"simulation", &[]);
        let secret = SharedSecret::with(&id, toy);
        let addresses: Vec<SocketAddr> =
            (0..nranks).map(|rank| SocketAddr::from(([10, 0, 0, rank as u8 + 1], 4000))).collect();
        let actor = |rank: usize| {
            let pages = pages(rank, nranks);
            // The listeners are those of the rendezvous: open before the first control thread runs.
            net.borrow_mut().open_door(rank, addresses[rank]);
            let seat = ControlIdentity {
                rank,
                secret: secret.clone(),
                addresses: addresses.iter().map(|address| vec![*address]).collect(),
                remote: (0..nranks).map(|other| other != rank).collect(),
                pages: pages.clone(),
                timeout: ACTION + CALM + SILENCE,
            };
            let port = Port { net: net.clone(), owner: rank };
            let mut pending_peers = PendingPeers::new(secret.clone());
            pending_peers.set_rank(rank as u32);
            Actor {
                address: addresses[rank],
                pending_peers,
                plane: Some(Plane::new(seat, port, begin)),
                pages,
                fate: Fate::Lives,
                started: None,
                stopped: false,
                met: None,
                missed: vec![None; nranks],
                wake: None,
            }
        };
        let actors = (0..nranks).map(actor).collect();
        let mut world = World { net, faults: faults.to_vec(), actors, secret, begin, numbers };
        world.plan();
        world
    }

    fn has(&self, fault: Fault) -> bool {
        self.faults.contains(&fault)
    }

    /// Draw what will happen to whom.
    fn plan(&mut self) {
        let odds = |fault| if self.has(fault) { 10 } else { 0 };
        let (cut, flip) = (odds(Fault::Cut), odds(Fault::Flip));
        let late = [1, 30, 300][self.numbers.below(3) as usize];
        let mut net = self.net.borrow_mut();
        (net.odds.cut, net.odds.flip) = (cut, flip);
        let of_a_hundred = 100 / self.actors.len() as u64 + 10;
        for rank in 0..self.actors.len() {
            let numbers = &mut self.numbers;
            let start = self.begin + Duration::from_millis(numbers.below(late));
            net.schedule(start, Happening::Start(rank));
            let moment = |numbers: &mut Seeded| {
                // Half of them while the first connections are made.
                let within = if numbers.chance(50) { 20_000 } else { 1_000_000 };
                start + Duration::from_micros(numbers.below(within))
            };
            for _ in 0..numbers.below(5) {
                net.schedule(moment(numbers), Happening::Say(rank));
            }
            if self.faults.contains(&Fault::Stop) && numbers.chance(of_a_hundred) {
                let from = moment(numbers);
                net.schedule(from, Happening::Stop(rank));
                let length = Duration::from_millis(numbers.below(700));
                net.schedule(from + length, Happening::Continue(rank));
            }
            let fates = [
                (Fault::Death, Fate::Dies, Happening::Kill(rank)),
                (Fault::Leave, Fate::Leaves, Happening::Leave(rank)),
                (Fault::Silence, Fate::FallsSilent, Happening::Silence(rank)),
            ];
            for (fault, fate, happening) in fates {
                if self.faults.contains(&fault) && numbers.chance(of_a_hundred) {
                    self.actors[rank].fate = fate;
                    net.schedule(moment(numbers), happening);
                    break;
                }
            }
        }
    }
}

impl Simulated for World {
    fn run(&mut self) -> Result<bool, String> {
        let silence = if self.has(Fault::Silence) { SILENCE } else { Duration::ZERO };
        let end = self.begin + ACTION + CALM + silence;
        for happened in 0.. {
            // Ten times what the busiest of worlds takes.
            if happened > 1_000_000 {
                return Err("somebody spins".into());
            }
            let next = self.net.borrow_mut().advance();
            let now = self.net.borrow().now;
            let Some(what) = next.filter(|_| now < end) else { break };
            match what {
                Happening::Start(rank) => {
                    self.actors[rank].started = Some(now);
                    self.say(rank);
                }
                Happening::Kill(rank) => self.end(rank, now),
                Happening::Stop(rank) => self.actors[rank].stopped = true,
                Happening::Continue(rank) => {
                    self.actors[rank].stopped = false;
                    self.step(rank);
                }
                Happening::Silence(rank) => {
                    self.net.borrow_mut().silence(rank);
                    self.actors[rank].met = Some(now);
                }
                Happening::Say(rank) => self.say(rank),
                Happening::Leave(rank) => self.leave(rank, now),
                Happening::Wake(rank) => self.step(rank),
                what => {
                    let concerned = self.net.borrow_mut().apply(what);
                    // A rank looks at once, or when its machine gets round to it.
                    match concerned {
                        Some(rank) if self.numbers.chance(50) => self.step(rank),
                        Some(rank) => {
                            let late = Duration::from_micros(self.numbers.below(1000));
                            self.net.borrow_mut().schedule(now + late, Happening::Wake(rank));
                        }
                        None => {}
                    }
                }
            }
        }
        self.judge()
    }

    fn net(&self) -> &Shared {
        &self.net
    }
}

impl World {
    /// Its page has news.
    fn say(&mut self, rank: usize) {
        let page = self.actors[rank].pages.mine();
        let done = page.completed();
        page.begin(done, 7, 0, 10, 1);
        page.end(done, 2);
        if self.numbers.chance(10) && page.life() == Life::Working {
            page.fail((rank + 1) % self.actors.len(), "a text");
        }
        if let Some(plane) = &mut self.actors[rank].plane {
            plane.publish();
        }
        self.step(rank);
    }

    fn leave(&mut self, rank: usize, now: Instant) {
        let this = &mut self.actors[rank];
        let page = this.pages.mine();
        page.board.publish(&Announcement { phase: Phase::Closed, ..Announcement::NOTHING });
        page.leave();
        this.met = Some(now);
        if let Some(plane) = &mut this.plane {
            plane.leave(now);
        }
        self.step(rank);
    }

    /// The process is gone, and the kernel closes what it had.
    fn end(&mut self, rank: usize, now: Instant) {
        let this = &mut self.actors[rank];
        this.met.get_or_insert(now);
        this.plane = None;
        this.pending_peers = PendingPeers::new(self.secret.clone());
        self.net.borrow_mut().close_door(rank);
    }

    /// Somebody may have something to do.
    fn step(&mut self, rank: usize) {
        let now = self.net.borrow().now;
        let port = Port { net: self.net.clone(), owner: rank };
        let everybody: Vec<usize> = (0..self.actors.len()).collect();
        let this = &mut self.actors[rank];
        let Some(plane) = &mut this.plane else { return };
        if this.stopped || this.started.is_none() {
            return;
        }
        let arrivals = match plane.receives() {
            true => this.pending_peers.advance(now, || Ok(port.accept())),
            false => Vec::new(),
        };
        plane.advance(now, arrivals, &everybody);
        for other in everybody {
            let mirror = this.pages.of(other);
            if mirror.is_gone() && mirror.life() != Life::Left {
                this.missed[other].get_or_insert(now);
            }
        }
        if plane.is_over() {
            return self.end(rank, now);
        }
        let pending_peers = this.pending_peers.next_deadline(now).filter(|_| plane.receives());
        let at = pending_peers.map_or(plane.next_deadline(), |at| at.min(plane.next_deadline()));
        if this.wake.is_none_or(|wake| wake <= now || at < wake) {
            let at = at.max(now + Duration::from_micros(1));
            this.wake = Some(at);
            self.net.borrow_mut().schedule(at, Happening::Wake(rank));
        }
    }

    /// What must be known in the end.
    fn judge(&self) -> Result<bool, String> {
        let mut witnesses = 0;
        for (rank, actor) in self.actors.iter().enumerate() {
            if actor.fate == Fate::Leaves && actor.plane.is_some() {
                return Err(format!("rank {rank} never ends"));
            }
            if actor.fate == Fate::Lives {
                witnesses += 1;
                let mut others = (0..self.actors.len()).filter(|other| *other != rank);
                others.try_for_each(|other| self.judge_mirror(rank, other))?;
            }
        }
        Ok(witnesses > 1)
    }

    /// Whether `rank` knows of `other` what is true.
    fn judge_mirror(&self, rank: usize, other: usize) -> Result<(), String> {
        let mirror = self.actors[rank].pages.of(other);
        let page = self.actors[other].pages.mine();
        let told = (mirror.completed(), mirror.life(), mirror.failure());
        let is_told = told == (page.completed(), page.life(), page.failure());
        let noisy = self.has(Fault::Cut) || self.has(Fault::Flip) || self.has(Fault::Silence);
        let knows = match self.actors[other].fate {
            Fate::Lives => is_told && !mirror.is_gone(),
            Fate::Dies | Fate::FallsSilent => mirror.is_gone(),
            // Last words can be lost with the connections that they are on.
            Fate::Leaves if noisy => mirror.is_gone() || mirror.life() == page.life(),
            Fate::Leaves => {
                mirror.life() == page.life() && self.actors[rank].missed[other].is_none()
            }
        };
        let gone = if mirror.is_gone() { ", and that it is gone" } else { "" };
        if knows { Ok(()) } else { Err(format!("rank {rank} knows of {other} {told:?}{gone}")) }
    }

    /// How long after such a fate its witnesses knew of it.
    fn delays(&self, fate: Fate) -> impl Iterator<Item = Duration> {
        let witnesses = self.actors.iter().filter(|actor| actor.fate == Fate::Lives);
        let knew = witnesses.flat_map(|actor| actor.missed.iter().enumerate());
        knew.filter_map(move |(dead, at)| {
            let met = self.actors[dead].met.filter(|_| self.actors[dead].fate == fate);
            Some(at.as_ref()?.saturating_duration_since(met?))
        })
    }
}

impl fmt::Display for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let since = |at: Instant| at.saturating_duration_since(self.begin);
        writeln!(f, "{} ranks, faults {:?}", self.actors.len(), self.faults)?;
        for (rank, actor) in self.actors.iter().enumerate() {
            let (started, met) = (actor.started.map(since), actor.met.map(since));
            let missed = actor.missed.iter().map(|at| at.map(since)).collect::<Vec<_>>();
            let (address, fate) = (actor.address, actor.fate);
            writeln!(f, "  {rank} at {address}: {fate:?} {met:?}, from {started:?}; {missed:?}")?;
        }
        Ok(())
    }
}

/// The longest that a death and the silence of a host may take to be known, though some ways take
/// a fifth of a second, connections break, and witnesses are stopped for most of a second.
const LIMITS: [(Fate, Duration); 2] =
    [(Fate::Dies, Duration::from_secs(2)), (Fate::FallsSilent, Duration::from_secs(10))];

fn sweep(name: &str, seeds: u64, faults: &[Fault]) {
    let mut delays = LIMITS.map(|_| Vec::new());
    let look = |world: &World| {
        for ((fate, limit), delays) in LIMITS.iter().zip(&mut delays) {
            let before = delays.len();
            delays.extend(world.delays(*fate));
            if let Some(late) = delays[before..].iter().find(|delay| *delay > limit) {
                return Err(format!("{fate:?} was known after {late:?} only"));
            }
        }
        Ok(())
    };
    let (seeds, several) = every_seed(name, seeds, |seed| World::new(seed, faults), look);
    println!("{name}: {several} of {seeds} worlds left several ranks");
    for ((fate, _), delays) in LIMITS.iter().zip(&mut delays) {
        delays.sort_unstable();
        if let Some(last) = delays.last() {
            println!("{name}: {fate:?} is known after {:?}, {last:?}", delays[delays.len() / 2]);
        }
    }
}

#[test]
fn every_word_reaches_every_mirror() {
    sweep("calm", 150, &[]);
}

#[test]
fn the_dead_are_missed_and_nobody_else() {
    sweep("deaths", 500, &[Fault::Death]);
}

#[test]
fn who_leaves_is_not_taken_for_dead() {
    sweep("farewells", 500, &[Fault::Leave]);
}

#[test]
fn who_is_stopped_for_a_while_is_not_taken_for_dead() {
    sweep("stops", 150, &[Fault::Stop]);
}

#[test]
fn silent_hosts_are_missed_and_nobody_else() {
    sweep("silence", 200, &[Fault::Silence]);
}

#[test]
fn broken_and_damaged_connections_are_made_again() {
    sweep("cuts", 300, &[Fault::Cut, Fault::Flip]);
}

#[test]
fn deaths_and_farewells_are_told_apart() {
    sweep("both", 400, &[Fault::Death, Fault::Leave]);
}

#[test]
fn all_faults_together_leave_nobody_in_doubt() {
    let all = [Fault::Death, Fault::Leave, Fault::Stop, Fault::Silence, Fault::Cut, Fault::Flip];
    sweep("everything", 400, &all);
}
