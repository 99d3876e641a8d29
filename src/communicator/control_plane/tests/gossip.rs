//! Gossip on a simulated network: one seed gives the delays, the cuts and the deaths.

use super::*;
use crate::communicator::call::fingerprint::mix;
use crate::executor::control_block::shrink_board::Announcement;
use std::collections::{BTreeMap, BTreeSet};

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0) % bound
    }

    fn one_in(&mut self, chances: u64) -> bool {
        self.below(chances) == 0
    }
}

/// Something that happens later, to one end of a connection.
enum Event {
    Arrive {
        to: usize,
        from: usize,
        connection: u64,
        bytes: Vec<u8>,
    },
    End {
        to: usize,
        from: usize,
        connection: u64,
    },
    /// A rank finds out whether a lost neighbour is there: connected again, or dead.
    Answer {
        lower: usize,
        higher: usize,
    },
}

/// A connection: its number, and when what was sent last arrives.
#[derive(Clone, Copy)]
struct Wire {
    number: u64,
    last: u64,
}

/// Time is in microseconds.
struct World {
    random: Random,
    now: u64,
    ranks: Vec<Gossip>,
    alive: Vec<bool>,
    events: BTreeMap<(u64, u64), Event>,
    numbers: u64,
    /// By sender and receiver.
    wires: BTreeMap<(usize, usize), Wire>,
    /// What each rank has published last.
    published: Vec<u64>,
    /// What `[rank]` has heard last of `[other]`.
    heard: Vec<Vec<u64>>,
    /// Pairs of which one is about to find out.
    asked: BTreeSet<(usize, usize)>,
}

/// The longest delay of a message: a wide network's.
const DELAY: u64 = 50_000;

fn status(completed: u64) -> Status {
    Status {
        life: Life::Working,
        culprit: None,
        text: String::new(),
        pid: 1,
        host: "h".into(),
        completed,
        calls: Vec::new(),
        batch: None,
        board: Announcement::NOTHING,
    }
}

impl World {
    fn new(seed: u64) -> World {
        let mut random = Random(seed);
        let nranks = 2 + random.below(19) as usize;
        let mut world = World {
            now: 0,
            ranks: (0..nranks).map(|rank| Gossip::new(rank, nranks)).collect(),
            alive: vec![true; nranks],
            events: BTreeMap::new(),
            numbers: 0,
            wires: BTreeMap::new(),
            published: vec![0; nranks],
            heard: vec![vec![0; nranks]; nranks],
            asked: BTreeSet::new(),
            random,
        };
        (0..nranks).for_each(|rank| world.tend(rank));
        world
    }

    fn after(&mut self, delay: u64, event: Event) {
        self.numbers += 1;
        self.events.insert((self.now + delay, self.numbers), event);
    }

    /// Call every neighbour that there is no connection with. The lower rank does, as the engine's.
    fn tend(&mut self, rank: usize) {
        for neighbour in self.ranks[rank].neighbours() {
            let (lower, higher) = (rank.min(neighbour), rank.max(neighbour));
            let is_linked = self.ranks[rank].is_linked(neighbour);
            if !is_linked && self.asked.insert((lower, higher)) {
                let delay = 1 + self.random.below(DELAY);
                self.after(delay, Event::Answer { lower, higher });
            }
        }
    }

    fn answer(&mut self, lower: usize, higher: usize) {
        for (one, other) in [(lower, higher), (higher, lower)] {
            if self.alive[one] && !self.alive[other] {
                self.ranks[one].died(other);
                self.settle(one);
            }
        }
        if !(self.alive[lower] && self.alive[higher]) {
            return;
        }
        self.numbers += 1;
        let number = self.numbers;
        let mut key = [0; 32];
        key[..8].copy_from_slice(&number.to_le_bytes());
        let mut other = key;
        other[31] = 1;
        for (one, two, send, receive) in
            [(lower, higher, &key, &other), (higher, lower, &other, &key)]
        {
            self.ranks[one].connected(two, send, receive);
            self.wires.insert((one, two), Wire { number, last: self.now });
        }
        self.settle(lower);
        self.settle(higher);
    }

    /// Send what there is to send, and look at what has changed.
    fn settle(&mut self, rank: usize) {
        let mut gone = false;
        for news in self.ranks[rank].take_news() {
            match news {
                News::Status(other) => {
                    let status = self.ranks[rank].status(other).expect("there is news of it");
                    assert!(status.completed > self.heard[rank][other], "news is newer");
                    self.heard[rank][other] = status.completed;
                }
                News::Gone(other) => {
                    assert!(!self.alive[other], "rank {rank} takes {other} for dead, which lives");
                    self.ranks[rank].closed(other);
                    self.wires.remove(&(rank, other));
                    gone = true;
                }
            }
        }
        for neighbour in 0..self.ranks.len() {
            let Some(mut wire) = self.wires.get(&(rank, neighbour)).copied() else { continue };
            loop {
                let bytes = self.ranks[rank].outgoing(neighbour);
                if bytes.is_empty() {
                    break;
                }
                let some = bytes.len().min(1 + self.random.below(3000) as usize);
                let bytes = bytes[..some].to_vec();
                self.ranks[rank].sent(neighbour, some);
                // In order, whatever the delay.
                wire.last = wire.last.max(self.now + 1 + self.random.below(DELAY));
                let (to, connection) = (neighbour, wire.number);
                let delay = wire.last - self.now;
                self.after(delay, Event::Arrive { to, from: rank, connection, bytes });
            }
            self.wires.insert((rank, neighbour), wire);
        }
        if gone {
            self.tend(rank);
        }
    }

    fn is_current(&self, to: usize, from: usize, connection: u64) -> bool {
        self.alive[to] && self.wires.get(&(to, from)).is_some_and(|wire| wire.number == connection)
    }

    fn step(&mut self) -> bool {
        let Some(((at, _), event)) = self.events.pop_first() else { return false };
        self.now = at;
        match event {
            Event::Arrive { to, from, connection, bytes } => {
                if self.is_current(to, from, connection) {
                    self.ranks[to].received(from, &bytes).expect("nobody tampers");
                    self.settle(to);
                }
            }
            Event::End { to, from, connection } => {
                if self.is_current(to, from, connection) {
                    self.wires.remove(&(to, from));
                    self.ranks[to].closed(from);
                    self.tend(to);
                }
            }
            Event::Answer { lower, higher } => {
                self.asked.remove(&(lower, higher));
                self.answer(lower, higher);
            }
        }
        true
    }

    /// End both sides of a connection, each when it notices.
    fn cut(&mut self, one: usize, two: usize) {
        for (to, from) in [(one, two), (two, one)] {
            if let Some(wire) = self.wires.get(&(to, from)) {
                let connection = wire.number;
                let delay = 1 + self.random.below(DELAY);
                self.after(delay, Event::End { to, from, connection });
            }
        }
    }

    fn kill(&mut self, rank: usize) {
        self.alive[rank] = false;
        (0..self.ranks.len()).for_each(|other| self.cut(rank, other));
    }

    /// What every living rank must know in the end.
    fn check(&self) -> Result<(), String> {
        for rank in (0..self.ranks.len()).filter(|rank| self.alive[*rank]) {
            for other in (0..self.ranks.len()).filter(|other| *other != rank) {
                let (heard, said) = (self.heard[rank][other], self.published[other]);
                if self.alive[other] && heard != said {
                    return Err(format!("rank {rank} has heard {heard} of {other}, not {said}"));
                }
                if self.alive[other] == self.ranks[rank].is_gone(other) {
                    return Err(format!("rank {rank} is wrong about the life of {other}"));
                }
            }
        }
        Ok(())
    }

    fn run(&mut self) -> Result<u64, String> {
        let nranks = self.ranks.len() as u64;
        for _ in 0..self.random.below(300) {
            match self.random.below(10) {
                0..=3 => {
                    let rank = self.random.below(nranks) as usize;
                    if self.alive[rank] {
                        self.published[rank] += 1;
                        assert!(self.ranks[rank].publish(status(self.published[rank])));
                        self.settle(rank);
                    }
                }
                4 if self.random.one_in(3) => {
                    let (one, two) = (self.random.below(nranks), self.random.below(nranks));
                    self.cut(one as usize, two as usize);
                }
                5 if self.random.one_in(6) && self.alive.iter().filter(|a| **a).count() > 1 => {
                    let rank = self.random.below(nranks) as usize;
                    self.kill(rank);
                }
                _ => drop(self.step()),
            }
        }
        let quiet = self.now;
        while self.step() {}
        self.check().map(|()| self.now - quiet)
    }
}

#[test]
fn news_and_deaths_reach_everybody_in_200_worlds() {
    let mut longest = 0;
    for seed in 0..200 {
        let mut world = World::new(mix(seed));
        match world.run() {
            Ok(took) => longest = longest.max(took),
            Err(why) => panic!("seed {seed}: {why}"),
        }
    }
    // 20 ranks: a death is noticed, asked after and passed on over at most five hops, each of which
    // may wait for a connection of its own, and the circle may have to close more than once.
    assert!(longest <= 60 * DELAY, "{longest} us are too long");
}

#[test]
fn a_slow_neighbour_gets_the_newest_only() {
    let (mut fast, mut slow) = (Gossip::new(0, 2), Gossip::new(1, 2));
    fast.connected(1, &[1; 32], &[2; 32]);
    slow.connected(0, &[2; 32], &[1; 32]);
    for completed in 1..=1000 {
        assert!(fast.publish(status(completed)));
        assert!(!fast.publish(status(completed)), "it says nothing new");
    }
    let bytes = fast.outgoing(1).to_vec();
    assert!(bytes.len() < 500, "{} bytes pile up", bytes.len());
    slow.received(0, &bytes).unwrap();
    assert_eq!(slow.status(0).unwrap().completed, 1000);
}

/// A neighbour reads what there is for it, and says so.
fn hand_over(from: &mut Gossip, to: &mut Gossip) -> usize {
    let bytes = from.outgoing(1).to_vec();
    from.sent(1, bytes.len());
    to.received(0, &bytes).unwrap();
    to.beat(0);
    let answer = to.outgoing(0).to_vec();
    to.sent(0, answer.len());
    from.received(1, &answer).unwrap();
    bytes.len()
}

#[test]
fn deaths_and_failures_wait_for_no_other_news() {
    let nranks = 1000;
    let (mut one, mut other) = (Gossip::new(0, nranks), Gossip::new(1, nranks));
    one.connected(1, &[1; 32], &[2; 32]);
    other.connected(0, &[2; 32], &[1; 32]);
    let tell = |one: &mut Gossip, rank: usize, status: Status| {
        let version = status.completed;
        let status = Box::new(status);
        one.heard(Some(2), Item::Status { rank: rank as u32, version, status }).unwrap();
    };
    (2..nranks).for_each(|rank| tell(&mut one, rank, status(1)));
    hand_over(&mut one, &mut other);
    let (dead, failed) = (nranks - 1, nranks - 2);
    one.died(dead);
    tell(&mut one, failed, Status { life: Life::Failed, ..status(2) });
    hand_over(&mut one, &mut other);
    assert!(other.is_gone(dead), "the death waits");
    assert!(other.status(failed).is_some_and(|status| status.life == Life::Failed), "or this");
    // More than once was handed over, and nothing twice.
    let mut bytes = 0;
    while let count @ 100.. = hand_over(&mut one, &mut other) {
        bytes += count;
    }
    assert!((2..nranks).all(|rank| other.status(rank).is_some()), "{bytes} bytes more");
    assert!(bytes > 2 * AHEAD as usize, "{bytes} bytes");
    assert!(one.links[1].as_ref().is_some_and(|link| link.later.is_empty()));
}

#[test]
fn why_a_rank_was_not_reached_is_passed_on_and_stays() {
    let (mut one, mut other) = (Gossip::new(0, 4), Gossip::new(1, 4));
    one.connected(1, &[1; 32], &[2; 32]);
    other.connected(0, &[2; 32], &[1; 32]);
    one.unreached(2, "was refused at a:1".into());
    one.died(3);
    hand_over(&mut one, &mut other);
    one.died(2);
    hand_over(&mut one, &mut other);
    for gossip in [&one, &other] {
        assert!(gossip.is_gone(2) && gossip.is_gone(3));
        assert_eq!(gossip.obstacle(2), Some((0, "was refused at a:1")));
        assert_eq!(gossip.obstacle(3), None, "it was seen to die");
    }
    // Who asks is told the same.
    let mut third = Gossip::new(3, 4);
    other.report().into_iter().for_each(|item| third.learn(item).unwrap());
    assert_eq!(third.obstacle(2), one.obstacle(2));
}

#[test]
fn news_of_ranks_that_there_are_not_ends_the_connection() {
    let unreached = |rank, by| Item::Unreached { rank, by, why: String::new() };
    for item in [Item::Gone { rank: 2 }, unreached(2, 1), unreached(1, 2)] {
        let mut gossip = Gossip::new(0, 2);
        gossip.connected(1, &[1; 32], &[2; 32]);
        let (mut sealer, mut bytes) = (ControlSealer::new(&[2; 32]), Vec::new());
        sealer.seal(&item, &mut bytes);
        assert!(gossip.received(1, &bytes).is_err());
    }
}

#[test]
fn the_circle_closes_over_the_dead() {
    let mut gossip = Gossip::new(3, 16);
    assert_eq!(gossip.neighbours(), [1, 2, 4, 5, 7, 11, 12 + 3]);
    for dead in [2, 4, 5, 7, 11] {
        gossip.died(dead);
    }
    let neighbours = gossip.neighbours();
    assert!(neighbours.contains(&1) && neighbours.contains(&6), "{neighbours:?}");
    assert!(neighbours.iter().all(|rank| !gossip.is_gone(*rank)));
}
