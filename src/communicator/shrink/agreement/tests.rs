//! The agreement in a simulated world: one seed gives the order of all steps, crashes at any point
//! between them, and in half of the worlds news that travels slowly and past some ranks.

use super::{Act, Agreement, PeerView};
use crate::communicator::call::fingerprint::mix;
use crate::executor::control_block::shrink_board::{Announcement, RankSet};
use std::collections::HashMap;

struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        (mix(self.0) % bound as u64) as usize
    }

    fn one_in(&mut self, chances: usize) -> bool {
        self.below(chances) == 0
    }
}

/// What a rank returned: the attempt, and whom it counts as dead.
type Returned = (u64, RankSet);

enum Doing {
    Late,
    Looking(Agreement),
    Making(Agreement),
    Done,
}

/// The rendezvous of one attempt with one set: like the real one it may end well for some ranks
/// and badly for others if one of them dies or gives up while it ends.
#[derive(Default)]
struct Rendezvous {
    come: Vec<usize>,
    broken: bool,
}

struct World {
    random: Random,
    nranks: usize,
    /// News travels from rank to rank; else all look at one memory.
    travels: bool,
    alive: Vec<bool>,
    crashes_left: usize,
    /// What `[i]` knows of `[i][j]`: a version, and the announcement.
    known: Vec<Vec<(u64, Announcement)>>,
    known_dead: Vec<Vec<bool>>,
    doing: Vec<Doing>,
    rendezvous: HashMap<(u64, Vec<u64>), Rendezvous>,
    returned: Vec<Vec<Returned>>,
    /// Shrinks that every rank makes, one after the other.
    rounds: usize,
}

impl World {
    fn new(seed: u64) -> World {
        let mut random = Random(seed);
        let nranks = 2 + random.below(8);
        World {
            nranks,
            travels: random.one_in(2),
            alive: vec![true; nranks],
            crashes_left: random.below(nranks),
            known: vec![vec![(0, Announcement::NOTHING); nranks]; nranks],
            known_dead: vec![vec![false; nranks]; nranks],
            doing: (0..nranks).map(|_| Doing::Late).collect(),
            rendezvous: HashMap::new(),
            returned: vec![Vec::new(); nranks],
            rounds: 1 + random.below(2),
            random,
        }
    }

    fn peers(&self, rank: usize) -> Vec<PeerView> {
        let peer = |other: usize| match self.travels {
            true => PeerView {
                is_dead: self.known_dead[rank][other],
                announced: self.known[rank][other].1.clone(),
            },
            false => PeerView {
                is_dead: !self.alive[other],
                announced: self.known[other][other].1.clone(),
            },
        };
        (0..self.nranks).map(peer).collect()
    }

    /// Perhaps this is where the rank dies.
    fn survives(&mut self, rank: usize) -> bool {
        if self.crashes_left > 0 && self.random.one_in(12) {
            self.crashes_left -= 1;
            self.alive[rank] = false;
        }
        self.alive[rank]
    }

    fn publish(&mut self, rank: usize, announcement: &Announcement) {
        let (version, page) = &mut self.known[rank][rank];
        if page != announcement {
            *version += 1;
            *page = announcement.clone();
        }
    }

    fn step(&mut self, rank: usize) {
        match std::mem::replace(&mut self.doing[rank], Doing::Done) {
            Doing::Late if self.random.one_in(8) => {
                let before = self.known[rank][rank].1.clone();
                let agreement = Agreement::begin(rank, before, &self.peers(rank));
                if self.survives(rank) {
                    self.publish(rank, agreement.mine());
                    self.doing[rank] = Doing::Looking(agreement);
                }
            }
            Doing::Late => self.doing[rank] = Doing::Late,
            Doing::Looking(agreement) => self.look(rank, agreement),
            Doing::Making(agreement) => self.make(rank, agreement),
            Doing::Done if self.returned[rank].len() < self.rounds => {
                self.doing[rank] = Doing::Late;
            }
            Doing::Done => {
                self.survives(rank);
            }
        }
    }

    fn look(&mut self, rank: usize, mut agreement: Agreement) {
        let peers = self.peers(rank);
        if !self.survives(rank) {
            return;
        }
        let act = agreement.look(&peers);
        self.publish(rank, agreement.mine());
        if !self.survives(rank) {
            return;
        }
        let key = (agreement.mine().attempt, agreement.mine().dead.words().to_vec());
        match act {
            Act::Wait => self.doing[rank] = Doing::Looking(agreement),
            Act::Make => {
                self.rendezvous.entry(key).or_default().come.push(rank);
                self.doing[rank] = Doing::Making(agreement);
            }
            Act::Settle => {
                let set = agreement.mine().dead.clone();
                self.returned[rank].push((agreement.mine().settled, set));
            }
            Act::Excluded(_) | Act::Absent(_) => panic!("rank {rank}: {act:?}"),
        }
    }

    fn make(&mut self, rank: usize, mut agreement: Agreement) {
        let peers = self.peers(rank);
        let mine = agreement.mine();
        let rendezvous = self.rendezvous.get_mut(&(mine.attempt, mine.dead.words().to_vec()));
        let rendezvous = rendezvous.expect("it came to the rendezvous");
        let whole = rendezvous.come.len() + mine.dead.iter().count() == self.nranks;
        let hurt = rendezvous.broken || rendezvous.come.iter().any(|member| !self.alive[*member]);
        let works = match (whole, hurt) {
            (true, false) => Some(true),
            (true, true) => Some(self.random.one_in(2)),
            (false, true) => Some(false),
            (false, false) => agreement.is_stale(&peers).then_some(false),
        };
        match works {
            None => {
                self.doing[rank] = Doing::Making(agreement);
                return;
            }
            Some(true) => agreement.made(),
            Some(false) => {
                rendezvous.broken = true;
                agreement.failed();
            }
        }
        if self.survives(rank) {
            self.publish(rank, agreement.mine());
            if self.survives(rank) {
                self.doing[rank] = Doing::Looking(agreement);
            }
        }
    }

    /// Carry something of what one rank knows to another.
    fn travel(&mut self) {
        let (to, from, about) = (
            self.random.below(self.nranks),
            self.random.below(self.nranks),
            self.random.below(self.nranks),
        );
        if !self.alive[to] || to == about {
            return;
        }
        if self.alive[from] && self.known[from][about].0 > self.known[to][about].0 {
            self.known[to][about] = self.known[from][about].clone();
        }
        if !self.alive[about] && self.random.one_in(2) {
            self.known_dead[to][about] = true;
        }
    }

    fn is_over(&self) -> bool {
        let done = |rank: usize| self.returned[rank].len() == self.rounds;
        (0..self.nranks).all(|rank| !self.alive[rank] || done(rank))
    }

    /// Run to the end; what went wrong, if anything.
    fn run(mut self) -> Result<usize, String> {
        // Rank steps and news alternate at random; 100,000 of them are far more than the longest
        // of the seeds below takes.
        for step in 0..100_000 {
            if step > 2000 {
                self.crashes_left = 0;
            }
            let rank = self.random.below(self.nranks);
            if self.alive[rank] && !(self.travels && self.random.one_in(2)) {
                self.step(rank);
            } else {
                (0..self.nranks).for_each(|_| self.travel());
            }
            if self.is_over() {
                return self.verdict();
            }
        }
        let stuck = (0..self.nranks).filter(|rank| self.alive[*rank]);
        let stuck: Vec<_> = stuck.map(|rank| (rank, &self.known[rank][rank].1)).collect();
        Err(format!("survivors never return: {stuck:?}"))
    }

    fn verdict(&self) -> Result<usize, String> {
        let alive: Vec<usize> = (0..self.nranks).filter(|rank| self.alive[*rank]).collect();
        for round in 0..self.rounds {
            // After the last round a rank may know of deaths that came too late to matter.
            let attempts = alive.iter().map(|rank| self.returned[*rank][round].0);
            let attempts: Vec<u64> = attempts.collect();
            if attempts.iter().any(|attempt| *attempt != attempts[0]) {
                return Err(format!("survivors {alive:?} return from attempts {attempts:?}"));
            }
            let sets = alive.iter().map(|rank| &self.returned[*rank][round].1);
            if let Some(set) = sets.clone().find(|set| alive.iter().any(|rank| set.contains(*rank)))
            {
                return Err(format!("{set:?} holds some of the living {alive:?}"));
            }
            let sides: Vec<&(u64, Vec<u64>)> =
                self.rendezvous.keys().filter(|(attempt, _)| *attempt == attempts[0]).collect();
            let full = |key: &&&(u64, Vec<u64>)| {
                let set = RankSet::from_words(&key.1).expect("it was made from a set");
                alive.iter().all(|rank| self.rendezvous[**key].come.contains(rank))
                    && alive.iter().all(|rank| !set.contains(*rank))
            };
            if sides.iter().filter(full).count() != 1 {
                return Err(format!("attempt {} is not one communicator: {sides:?}", attempts[0]));
            }
        }
        Ok(self.nranks - alive.len())
    }
}

#[test]
fn survivors_return_from_one_attempt_in_20_000_worlds() {
    let mut deaths = 0;
    for seed in 0..20_000 {
        match World::new(mix(seed)).run() {
            Ok(died) => deaths += died,
            Err(why) => panic!("seed {seed}: {why}"),
        }
    }
    assert!(deaths > 20_000, "{deaths} deaths are too few to show anything");
}

fn announced(phase: crate::executor::control_block::shrink_board::Phase, attempt: u64) -> PeerView {
    let announced = Announcement { phase, attempt, ..Announcement::NOTHING };
    PeerView { is_dead: false, announced }
}

#[test]
fn a_rank_that_gave_up_is_named_and_may_come_back() {
    use crate::executor::control_block::shrink_board::Phase::*;
    let mut peers = vec![announced(Idle, 0); 3];
    let mut agreement = Agreement::begin(0, Announcement::NOTHING, &peers);
    assert_eq!(agreement.look(&peers), Act::Wait);
    assert_eq!(agreement.awaited(&peers).map(|(rank, _)| rank), Some(1));
    peers[2] = announced(GaveUp, 1);
    assert_eq!(agreement.look(&peers), Act::Absent(2));
    agreement.give_up();
    // The next shrink begins after what was given up, and waits for the others to do so too.
    let mut agreement = Agreement::begin(0, agreement.mine().clone(), &peers);
    assert_eq!((agreement.mine().attempt, agreement.look(&peers)), (2, Act::Wait));
    peers[1] = announced(Proposing, 5);
    assert_eq!(agreement.look(&peers), Act::Wait);
    assert_eq!(agreement.mine().attempt, 5);
    peers[2] = announced(Proposing, 5);
    assert_eq!(agreement.look(&peers), Act::Make);
    assert!(!agreement.is_stale(&peers));
    peers[2] = announced(GaveUp, 5);
    assert!(agreement.is_stale(&peers));
    assert_eq!(agreement.look(&peers), Act::Absent(2));
}

#[test]
fn a_rank_that_is_counted_as_dead_is_told_by_whom() {
    use crate::executor::control_block::shrink_board::Phase::*;
    let mut peers = vec![announced(Idle, 0); 3];
    let mut agreement = Agreement::begin(1, Announcement::NOTHING, &peers);
    peers[2].announced.dead.insert(1);
    assert_eq!(agreement.look(&peers), Act::Excluded(2));
}
