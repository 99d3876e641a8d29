//! Ranks on a virtual network, what happens to them, and what must be true in the end.

use super::communicator::{SimCommunicator, pid_of};
use super::rank::{Ground, MOST_RANKS, Rank};
use crate::bootstrap::UniqueId;
use crate::bootstrap::sim::Simulated;
use crate::bootstrap::sim::crypto::{Seeded, seed as seed_primitives};
use crate::bootstrap::sim::listener::Listener;
use crate::bootstrap::sim::net::{Happening, Net, Shared};
use crate::communicator::number_of;
use crate::error::Error;
use std::cell::RefCell;
use std::fmt;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A process is killed: at any time, or at a step of its first shrink.
    Death,
    /// A process is stopped for a while, and its kernel goes on.
    Stop,
    /// A host falls silent, with all that is on it: to the others it is the same whether it goes on
    /// by itself.
    Silence,
    Cut,
    Flip,
}

/// Operations that all who live have to complete together before a world ends.
const OPERATIONS: u64 = 2;

/// The longest that a user's thread rests between two operations, in microseconds: operations take
/// a few milliseconds, so half of the faults come in the middle of one.
const MOST_REST_US: u64 = 20_000;

/// A rank that is killed while it shrinks is, within so many steps: most shrinks take fewer.
const SHRINK_STEPS: u64 = 60;

/// In which most ranks meet: some ways take a fifth of a second.
const RENDEZVOUS: Duration = Duration::from_millis(700);

/// After which nothing new goes wrong.
const ACTION: Duration = Duration::from_millis(1200);

/// In which everything must have come right: some connections are lost several times, and each may
/// take three seconds to be given up.
const LIMIT: Duration = Duration::from_secs(70);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Lives,
    /// To die at a time of its own.
    Dies,
    /// To die so many steps into its first shrink, if there is one.
    DiesShrinking(u64),
    Dead,
}

struct Actor {
    rank: Option<Rank>,
    fate: Fate,
    /// It died while it was about to shrink.
    died_shrinking: bool,
    stopped: bool,
    /// When the world will look after its control threads, and after its user's.
    wake: Option<Instant>,
    turn: Option<Instant>,
    /// When it begins its next operation.
    rest: Instant,
}

/// What a world came to.
#[derive(Default)]
pub struct Tally {
    pub shrinks: u64,
    pub attempts: u64,
    pub deaths: u64,
    pub deaths_shrinking: u64,
}

pub struct World {
    net: Shared,
    faults: Vec<Fault>,
    actors: Vec<Actor>,
    id: UniqueId,
    ground: Ground,
    /// The listener of rank 0, until it starts.
    first: Option<Listener>,
    /// Where that is.
    root: SocketAddr,
    begin: Instant,
    numbers: Seeded,
    /// Starts, stops and deaths that are still to come.
    ahead: usize,
}

impl World {
    pub fn new(seed: u64, faults: &[Fault]) -> World {
        seed_primitives(seed);
        let mut numbers = Seeded(seed);
        let begin = Instant::now();
        let nranks = 2 + numbers.below(4) as usize;
        let net = Rc::new(RefCell::new(Net::new(numbers.draw(), begin)));
        let ground = Ground::new(net.clone());
        let id = UniqueId::from_secret(&seed.to_le_bytes(), b"simulation", &[]);
        let actor = |_| Actor {
            rank: None,
            fate: Fate::Lives,
            died_shrinking: false,
            stopped: false,
            wake: None,
            turn: None,
            rest: begin,
        };
        let actors = (0..nranks).map(actor).collect();
        let faults = faults.to_vec();
        let listener = ground.open(0, &id);
        let (root, first, ahead) = (listener.address, Some(listener), 0);
        let mut world =
            World { net, faults, actors, id, ground, first, root, begin, numbers, ahead };
        world.plan();
        world
    }

    /// Draw what will happen to whom.
    fn plan(&mut self) {
        let numbers = &mut self.numbers;
        let mut net = self.net.borrow_mut();
        let odds = |fault| if self.faults.contains(&fault) { 5 } else { 0 };
        (net.odds.cut, net.odds.flip) = (odds(Fault::Cut), odds(Fault::Flip));
        net.schedule(self.begin + ACTION, Happening::Calm);
        let late = [1, 1000, 30_000][numbers.below(3) as usize];
        // While they meet, which ends it for all, or mostly while they work.
        let (quiet, span) = match numbers.chance(10) {
            true => (Duration::ZERO, Duration::from_millis(30)),
            false => (RENDEZVOUS, ACTION - RENDEZVOUS),
        };
        // Some worlds lose one rank, some all but one.
        let of_a_hundred = 10 + numbers.below(60);
        for (rank, actor) in self.actors.iter_mut().enumerate() {
            let start = self.begin + Duration::from_micros(numbers.below(late));
            net.schedule(start, Happening::Start(rank));
            self.ahead += 1;
            let moment = |numbers: &mut Seeded| {
                start + quiet + span.mul_f64(numbers.below(1000) as f64 / 1e3)
            };
            if self.faults.contains(&Fault::Stop) && numbers.chance(of_a_hundred) {
                let from = moment(numbers);
                net.schedule(from, Happening::Stop(rank));
                let length = Duration::from_millis(numbers.below(700));
                net.schedule(from + length, Happening::Continue(rank));
                self.ahead += 2;
            }
            if self.faults.contains(&Fault::Silence) && numbers.chance(of_a_hundred) {
                actor.fate = Fate::Dies;
                net.schedule(moment(numbers), Happening::Silence(rank));
                self.ahead += 1;
            } else if self.faults.contains(&Fault::Death) && numbers.chance(of_a_hundred) {
                if numbers.chance(50) {
                    actor.fate = Fate::Dies;
                    net.schedule(moment(numbers), Happening::Kill(rank));
                    self.ahead += 1;
                } else {
                    actor.fate = Fate::DiesShrinking(numbers.below(SHRINK_STEPS));
                }
            }
        }
    }
}

impl Simulated for World {
    fn run(&mut self) -> Result<bool, String> {
        for happened in 0.. {
            // Ten times what the busiest of worlds takes.
            if happened > 1_000_000 {
                return Err("somebody spins".into());
            }
            let next = self.net.borrow_mut().advance();
            let now = self.net.borrow().now;
            let Some(what) = next.filter(|_| now < self.begin + LIMIT) else {
                return Err("the survivors never get to work together".into());
            };
            self.happen(what, now)?;
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
    fn happen(&mut self, what: Happening, now: Instant) -> Result<(), String> {
        use Happening::{Continue, Kill, Silence, Start, Stop};
        let was_ahead = matches!(what, Start(_) | Kill(_) | Silence(_) | Stop(_) | Continue(_));
        self.ahead -= usize::from(was_ahead);
        match what {
            Happening::Start(rank) => self.start(rank, now),
            Happening::Kill(rank) => self.kill(rank),
            Happening::Silence(rank) => {
                let mut net = self.net.borrow_mut();
                self.ground.parties(rank).for_each(|party| net.silence(party));
                drop(net);
                self.kill(rank);
            }
            Happening::Stop(rank) => self.actors[rank].stopped = true,
            Happening::Continue(rank) => {
                self.actors[rank].stopped = false;
                self.tend(rank, now);
            }
            Happening::Calm => {
                let mut net = self.net.borrow_mut();
                (net.odds.cut, net.odds.flip) = (0, 0);
            }
            Happening::Wake(party) => self.tend(party % MOST_RANKS, now),
            Happening::Say(rank) => self.take_turn(rank, now)?,
            what => {
                let concerned = self.net.borrow_mut().apply(what);
                // A control thread looks at once, or when its machine gets round to it.
                let (at_once, lag) = (self.numbers.chance(50), self.lag(1000));
                match concerned.map(|party| party % MOST_RANKS) {
                    Some(rank) if at_once => self.tend(rank, now),
                    Some(rank) => self.wake(rank, now + lag, now),
                    None => {}
                }
            }
        }
        Ok(())
    }

    fn lag(&mut self, most_us: u64) -> Duration {
        Duration::from_micros(1 + self.numbers.below(most_us))
    }

    fn start(&mut self, rank: usize, now: Instant) {
        let first = self.first.take_if(|_| rank == 0);
        let root = if first.is_some() { None } else { Some(self.root) };
        let listener = first.unwrap_or_else(|| self.ground.open(rank, &self.id));
        let (nranks, ground) = (self.actors.len(), self.ground.clone());
        self.actors[rank].rank =
            Some(Rank::join(listener, &self.id, (rank, nranks), root, ground, now));
        self.tend(rank, now);
    }

    /// The control threads have a look, and the user's thread soon after them.
    fn tend(&mut self, number: usize, now: Instant) {
        let lag = self.lag(300);
        let this = &mut self.actors[number];
        let Some(rank) = this.rank.as_mut().filter(|_| !this.stopped) else { return };
        rank.tend(now);
        if let Some(at) = rank.next_deadline(now) {
            self.wake(number, at, now);
        }
        self.give_turn(number, now + lag, now);
    }

    /// Let the control threads look at that time at the latest.
    fn wake(&mut self, number: usize, at: Instant, now: Instant) {
        let wake = &mut self.actors[number].wake;
        schedule(&self.net, wake, Happening::Wake(number), at, now);
    }

    /// Let the user's thread go on at that time at the latest.
    fn give_turn(&mut self, number: usize, at: Instant, now: Instant) {
        let turn = &mut self.actors[number].turn;
        schedule(&self.net, turn, Happening::Say(number), at, now);
    }

    /// The thread of a rank's user goes on until it has to wait.
    fn take_turn(&mut self, number: usize, now: Instant) -> Result<(), String> {
        let (pause, lag) = (self.lag(MOST_REST_US), self.lag(100));
        loop {
            let this = &mut self.actors[number];
            let Some(rank) = this.rank.as_mut().filter(|_| !this.stopped) else { return Ok(()) };
            if let (true, Fate::DiesShrinking(steps)) = (rank.is_shrinking(), this.fate) {
                if steps == 0 {
                    this.died_shrinking = true;
                    self.kill(number);
                    return Ok(());
                }
                this.fate = Fate::DiesShrinking(steps - 1);
            }
            if let Some(crew) = rank.idle() {
                if now < this.rest {
                    let rest = this.rest;
                    self.give_turn(number, rest, now);
                    return Ok(());
                }
                this.rest = now + pause;
                crew.begin(now);
            }
            let goes_on = rank.go_on(now)?;
            if let Some(error) = rank.failed_with.take() {
                self.judge_error(number, &error)?;
            }
            if !goes_on {
                break;
            }
        }
        let Some(rank) = &mut self.actors[number].rank else { return Ok(()) };
        if rank.over.is_some() {
            return self.give_up(number);
        }
        let (has_orders, meets_until) = (rank.has_orders(), rank.meets_until(now));
        if has_orders {
            // A death may come before the control threads have told what there is to tell.
            self.wake(number, now + lag, now);
        }
        if let Some(at) = meets_until {
            self.give_turn(number, at, now);
        }
        Ok(())
    }

    /// An operation fails because somebody has died, and says who; where connections are harmed it
    /// may also be because of that.
    fn judge_error(&self, number: usize, error: &Error) -> Result<(), String> {
        let text = error.to_string();
        let died = |rank: &usize| self.actors[*rank].fate == Fate::Dead;
        let dead = (0..self.actors.len()).filter(died);
        let is_named = dead.map(pid_of).any(|pid| text.contains(&format!("pid {pid})")));
        match is_named || self.is_noisy() {
            true => Ok(()),
            false => Err(format!("rank {number} names nobody who died: {text}")),
        }
    }

    fn is_noisy(&self) -> bool {
        self.faults.contains(&Fault::Cut) || self.faults.contains(&Fault::Flip)
    }

    /// The process is gone, and the kernel closes what it had.
    fn kill(&mut self, number: usize) {
        let this = &mut self.actors[number];
        this.fate = if this.rank.take().is_some() { Fate::Dead } else { this.fate };
    }

    /// A rank ends because it never got a communicator.
    fn give_up(&mut self, number: usize) -> Result<(), String> {
        let noisy = self.is_noisy();
        let is_alone = self.actors.iter().all(|actor| actor.fate != Fate::Dead);
        let this = &mut self.actors[number];
        let error = this.rank.take().and_then(|rank| rank.over);
        this.fate = Fate::Dead;
        match is_alone && !noisy {
            true => Err(format!("rank {number} gave up though nobody had died: {error:?}")),
            false => Ok(()),
        }
    }

    fn living(&self) -> impl Iterator<Item = &Rank> {
        self.actors.iter().filter_map(|actor| actor.rank.as_ref())
    }

    /// Whether all who live have worked together, and nothing more is to happen.
    fn is_over(&self) -> bool {
        let members: Vec<usize> = self.living().map(|rank| rank.number).collect();
        let is_done =
            |crew: &SimCommunicator| crew.completed >= OPERATIONS && crew.members == members;
        self.ahead == 0 && self.living().all(|rank| rank.crew.as_ref().is_some_and(is_done))
    }

    /// What must be true of every ending.
    fn judge(&self) -> Result<bool, String> {
        let mut ids = self.living().filter_map(|rank| rank.crew.as_ref()).map(|crew| &crew.id);
        let first = ids.next();
        match ids.any(|id| Some(number_of(id)) != first.map(number_of)) {
            true => Err("the survivors are in different communicators".into()),
            false => Ok(self.living().count() > 1),
        }
    }

    pub fn tally(&self) -> Tally {
        let dead = || self.actors.iter().filter(|actor| actor.fate == Fate::Dead);
        Tally {
            shrinks: self.living().map(|rank| rank.shrinks).sum(),
            attempts: self.living().map(|rank| rank.attempts).sum(),
            deaths: dead().count() as u64,
            deaths_shrinking: dead().filter(|actor| actor.died_shrinking).count() as u64,
        }
    }
}

/// Let something happen at that time, unless `pending` is the same thing and earlier.
fn schedule(
    net: &Shared,
    pending: &mut Option<Instant>,
    what: Happening,
    at: Instant,
    now: Instant,
) {
    if pending.is_none_or(|pending| pending <= now || at < pending) {
        let at = at.max(now + Duration::from_micros(1));
        *pending = Some(at);
        net.borrow_mut().schedule(at, what);
    }
}

impl fmt::Display for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let now = self.net.borrow().now.saturating_duration_since(self.begin);
        writeln!(f, "{} ranks, faults {:?}, after {now:?}", self.actors.len(), self.faults)?;
        for (number, actor) in self.actors.iter().enumerate() {
            match &actor.rank {
                Some(rank) => writeln!(f, "  {number}: {:?}, {rank}", actor.fate)?,
                None => writeln!(f, "  {number}: {:?}", actor.fate)?,
            }
        }
        Ok(())
    }
}
