//! The life of a rank: it joins, works, and when that fails shrinks and works on.

use super::communicator::{PATIENCE, SimCommunicator};
use crate::bootstrap::sim::listener::{Guest, Listener, Rendezvous};
use crate::bootstrap::sim::net::Shared;
use crate::bootstrap::{BootstrapError, UniqueId};
use crate::communicator::health::wait_check::CommHealth;
use crate::communicator::init::cause;
use crate::communicator::shrink::state_machine::{
    RendezvousPoint, ShrinkAttempt, ShrinkEnv, ShrinkMachine, ShrinkStep,
};
use crate::error::{Error, Result};
use crate::executor::control_block::shrink_board::Announcement;
use std::cell::Cell;
use std::fmt;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Instant;

/// Parties of the network are numbered so that this many ranks can each have any number of
/// listeners.
pub const MOST_RANKS: usize = 64;

/// Where listeners are opened.
#[derive(Clone)]
pub struct Ground {
    pub net: Shared,
    listeners: Rc<Cell<usize>>,
}

impl Ground {
    pub fn new(net: Shared) -> Ground {
        Ground { net, listeners: Rc::default() }
    }

    /// What a rank is on the network, by each of its listeners.
    pub fn parties(&self, rank: usize) -> impl Iterator<Item = usize> {
        (0..self.listeners.get()).map(move |number| number * MOST_RANKS + rank)
    }

    pub fn open(&self, rank: usize, id: &UniqueId) -> Listener {
        let number = self.listeners.replace(self.listeners.get() + 1);
        let address = SocketAddr::from(([10, 0, 0, rank as u8 + 1], 4000 + number as u16));
        Listener::open(&self.net, number * MOST_RANKS + rank, address, id)
    }
}

/// A rank that shrinks, as its survivor sees it.
struct Post {
    number: usize,
    health: Rc<CommHealth>,
    news: Rc<Cell<bool>>,
    id: UniqueId,
    ground: Ground,
}

impl ShrinkEnv for Post {
    type Listener = Listener;

    fn health(&self) -> &CommHealth {
        &self.health
    }

    fn share_a_host(&self, ranks: &[usize]) -> bool {
        ranks.len() == 1
    }

    fn open_door(&self, label: &str) -> Result<(Listener, u16)> {
        let listener = self.ground.open(self.number, &self.id.derive_at(label.as_bytes(), &[]));
        let port = listener.address.port();
        Ok((listener, port))
    }

    fn announce(&self, announcement: &Announcement) {
        self.health.pages.mine().board.publish(announcement);
        self.news.set(true);
    }
}

/// A communicator on its way.
#[allow(clippy::large_enum_variant, reason = "a rank has one at most")]
enum Making {
    Rendezvous {
        rendezvous: Rendezvous,
        id: UniqueId,
        rank: usize,
        members: Vec<usize>,
    },
    /// All have met; the first operation shows whether it works.
    Trying(SimCommunicator),
}

pub struct Rank {
    pub number: usize,
    ground: Ground,
    /// The communicator that it works on.
    pub crew: Option<SimCommunicator>,
    making: Option<Making>,
    survivor: Option<ShrinkMachine<Post>>,
    /// What it has made and may not return yet.
    made: Option<SimCommunicator>,
    /// Nothing else happens until these have said goodbye.
    leaving: Vec<SimCommunicator>,
    /// Why it goes no further.
    pub over: Option<Error>,
    /// What its last operation failed with, until somebody looks.
    pub failed_with: Option<Error>,
    pub attempts: u64,
    pub shrinks: u64,
}

impl Rank {
    /// Join the others; the first of them has opened its listener already.
    pub fn join(
        listener: Listener,
        id: &UniqueId,
        (number, nranks): (usize, usize),
        root: Option<SocketAddr>,
        ground: Ground,
        now: Instant,
    ) -> Rank {
        let members: Vec<usize> = (0..nranks).collect();
        let making = meet(listener, id.clone(), number, members, root, now);
        Rank {
            number,
            ground,
            crew: None,
            making: Some(making),
            survivor: None,
            made: None,
            leaving: Vec::new(),
            over: None,
            failed_with: None,
            attempts: 0,
            shrinks: 0,
        }
    }

    /// The communicator on which it might begin an operation.
    pub fn idle(&mut self) -> Option<&mut SimCommunicator> {
        let free = self.making.is_none() && self.survivor.is_none() && self.leaving.is_empty();
        self.crew.as_mut().filter(|crew| free && !crew.is_at_work())
    }

    pub fn is_shrinking(&self) -> bool {
        self.survivor.is_some()
    }

    fn crews(&mut self) -> impl Iterator<Item = &mut SimCommunicator> {
        let trying = self.making.iter_mut().filter_map(|making| match making {
            Making::Trying(crew) => Some(crew),
            Making::Rendezvous { .. } => None,
        });
        let others = self.crew.iter_mut().chain(&mut self.made).chain(&mut self.leaving);
        others.chain(trying)
    }

    /// What its control threads do.
    pub fn tend(&mut self, now: Instant) {
        self.crews().for_each(|crew| crew.tend(now));
        self.leaving.retain(|crew| !crew.is_over());
    }

    /// When one of its control threads has something to do though nothing arrives.
    pub fn next_deadline(&mut self, now: Instant) -> Option<Instant> {
        self.crews().map(|crew| crew.next_deadline(now)).min()
    }

    /// Whether its control threads have been told something.
    pub fn has_orders(&mut self) -> bool {
        self.crews().any(|crew| crew.news.get())
    }

    /// When its rendezvous has something to do though nothing arrives.
    pub fn meets_until(&self, now: Instant) -> Option<Instant> {
        match &self.making {
            Some(Making::Rendezvous { rendezvous, .. }) if self.leaving.is_empty() => {
                rendezvous.next_deadline(now)
            }
            _ => None,
        }
    }

    fn leave(&mut self, crew: Option<SimCommunicator>, now: Instant) {
        if let Some(mut crew) = crew {
            crew.leave(now);
            self.leaving.push(crew);
        }
    }

    /// What the thread of its user does; whether it may do more at once. The error is what may
    /// never happen.
    pub fn go_on(&mut self, now: Instant) -> Result<bool, String> {
        if !self.leaving.is_empty() || self.over.is_some() {
            return Ok(false);
        }
        if self.making.is_some() {
            return self.make(now);
        }
        if self.survivor.is_some() {
            return self.survive(now).map_err(|error| format!("rank {}: {error}", self.number));
        }
        let Some(crew) = &mut self.crew else { return Ok(false) };
        match crew.work(now)? {
            Ok(_) => Ok(false),
            Err(error) => {
                crew.fail(&error);
                self.failed_with = Some(error);
                self.shrink(now);
                Ok(true)
            }
        }
    }

    fn shrink(&mut self, now: Instant) {
        let crew = self.crew.as_ref().expect("it works on one");
        let post = Post {
            number: self.number,
            health: crew.health.clone(),
            news: crew.news.clone(),
            id: crew.id.clone(),
            ground: self.ground.clone(),
        };
        let survivor = ShrinkMachine::begin(post, now + PATIENCE).expect("listeners open");
        self.survivor = Some(survivor);
    }

    /// Go on with the agreement.
    fn survive(&mut self, now: Instant) -> Result<bool> {
        let survivor = self.survivor.as_mut().expect("it shrinks");
        let give_up = |survivor: &mut ShrinkMachine<Post>, text: String| {
            survivor.give_up();
            Err(Error::Internal(text))
        };
        match survivor.advance(now)? {
            ShrinkStep::Wait { .. } => Ok(false),
            ShrinkStep::Settle => {
                let made = self.made.take().expect("it is settled because it is held");
                let old = self.crew.replace(made.proved());
                self.leave(old, now);
                self.survivor = None;
                self.shrinks += 1;
                Ok(false)
            }
            ShrinkStep::Make(attempt) => {
                let before = self.made.take();
                self.leave(before, now);
                self.making = Some(self.attempt(attempt, now));
                self.attempts += 1;
                Ok(true)
            }
            ShrinkStep::Excluded(peer) => give_up(survivor, format!("it is dead, says {peer}")),
            ShrinkStep::Absent(peer) => {
                give_up(survivor, format!("rank {peer} does not take part"))
            }
            ShrinkStep::Late => {
                give_up(survivor, format!("the deadline came, with {:?}", survivor.mine()))
            }
        }
    }

    /// Make the communicator of an attempt.
    fn attempt(&self, attempt: ShrinkAttempt<Listener>, now: Instant) -> Making {
        let ShrinkAttempt { left, label, door } = attempt;
        let crew = self.crew.as_ref().expect("it shrinks one");
        let rank = left.iter().position(|rank| *rank == crew.rank()).expect("it is left");
        let members = left.iter().map(|rank| crew.members[*rank]).collect();
        let (listener, root) = match door {
            RendezvousPoint::Mine(listener) => (Some(listener), None),
            RendezvousPoint::At(port) => {
                let mut root = crew.addresses[left[0]];
                root.set_port(port);
                (None, Some(root))
            }
            RendezvousPoint::Here => (None, None),
        };
        let place = root.or(listener.as_ref().map(|listener| listener.address));
        let id = crew.id.derive_at(label.as_bytes(), place.as_slice());
        let listener = listener.unwrap_or_else(|| self.ground.open(self.number, &id));
        match left.len() {
            1 => Making::Trying(SimCommunicator::new(listener, id, 0, members, Vec::new(), now)),
            _ => meet(listener, id, rank, members, root, now),
        }
    }

    /// Go on with the communicator that is being made.
    fn make(&mut self, now: Instant) -> Result<bool, String> {
        let mut is_stale = || self.survivor.as_mut().is_some_and(ShrinkMachine::is_stale);
        let outcome = match self.making.as_mut().expect("it is being made") {
            Making::Rendezvous { rendezvous, .. } if rendezvous.is_undecided() && is_stale() => {
                Err(Error::Aborted { rank: self.number, operation: None }.into())
            }
            Making::Rendezvous { rendezvous, .. } => match rendezvous.advance(now) {
                None => return Ok(false),
                Some(outcome) => outcome,
            },
            Making::Trying(crew) => {
                let stale = || Error::Aborted { rank: self.number, operation: None };
                let worked = if is_stale() { Err(stale()) } else { crew.work(now)? };
                match worked {
                    Ok(false) => return Ok(false),
                    Ok(true) => Ok(Vec::new()),
                    Err(error) => {
                        crew.fail(&error);
                        Err(BootstrapError { cause: cause(&error), error })
                    }
                }
            }
        };
        match (self.making.take().expect("as above"), outcome) {
            (Making::Rendezvous { rendezvous, id, rank, members }, Ok(infos)) => {
                let addresses = infos.iter().map(|info| address_in(info)).collect();
                let listener = rendezvous.into_gate();
                let crew = SimCommunicator::new(listener, id, rank, members, addresses, now);
                self.making = Some(Making::Trying(crew));
            }
            (Making::Trying(crew), Ok(_)) => self.keep(crew)?,
            (Making::Rendezvous { .. }, Err(unmet)) => self.fail(unmet)?,
            (Making::Trying(crew), Err(unmet)) => {
                self.leave(Some(crew), now);
                self.fail(unmet)?;
            }
        }
        Ok(true)
    }

    /// A communicator is made.
    fn keep(&mut self, crew: SimCommunicator) -> Result<(), String> {
        match &mut self.survivor {
            None => self.crew = Some(crew.proved()),
            Some(survivor) => {
                self.made = Some(crew);
                survivor.made().map_err(|error| error.to_string())?;
            }
        }
        Ok(())
    }

    /// A communicator could not be made.
    fn fail(&mut self, unmet: BootstrapError) -> Result<(), String> {
        let Some(survivor) = &mut self.survivor else {
            self.over = Some(unmet.error);
            return Ok(());
        };
        match survivor.failed(unmet.cause) {
            Ok(true) => Ok(()),
            _ => Err(format!("rank {} cannot shrink: {unmet:?}", self.number)),
        }
    }
}

fn meet(
    listener: Listener,
    id: UniqueId,
    rank: usize,
    members: Vec<usize>,
    root: Option<SocketAddr>,
    now: Instant,
) -> Making {
    let guest = Guest {
        rank,
        nranks: members.len(),
        mine: listener.address.to_string().into_bytes(),
        root,
        deadline: now + PATIENCE,
        note: listener.port.owner as u64 + 1,
    };
    Making::Rendezvous { rendezvous: Rendezvous::new(listener, guest, now), id, rank, members }
}

fn address_in(info: &[u8]) -> SocketAddr {
    str::from_utf8(info).ok().and_then(|text| text.parse().ok()).expect("a info has an address")
}

impl fmt::Display for Rank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let doing = match (&self.survivor, &self.making) {
            (_, Some(Making::Rendezvous { members, .. })) => format!("meets {members:?}"),
            (_, Some(Making::Trying(crew))) => format!("tries {:?}", crew.members),
            (Some(survivor), None) => format!("announces {:?}", survivor.mine()),
            (None, None) => "works".into(),
        };
        write!(f, "{doing}, saying goodbye to {} communicators; ", self.leaving.len())?;
        match &self.crew {
            Some(crew) => write!(f, "{} operations with {:?}", crew.completed, crew.members),
            None => write!(f, "no communicator yet"),
        }
    }
}
