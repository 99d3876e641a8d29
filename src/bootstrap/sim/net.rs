//! A network of pipes: delays, short reads and writes, cuts, flipped bits, recordings.
//!
//! It is as unkind as TCP may be: a connection that is closed while it holds unread bytes is reset,
//! and a reset takes what the other end has not read yet with it.

use super::crypto::Seeded;
use crate::bootstrap::tcp::socket::{KEEPALIVE, USER_TIMEOUT};
use crate::bootstrap::tcp::stream_traits::{ByteStream, Network, unexpected_eof};
use crate::os::tcp_liveness::AckWatch;
use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Who is to look at the network again: a rank, the root, or nobody.
pub type Party = usize;

/// Bytes that a direction holds at most.
const WINDOW: usize = 16 << 10;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Happening {
    Wake(Party),
    Opened {
        pipe: usize,
    },
    Arrived {
        pipe: usize,
        side: usize,
        bytes: usize,
    },
    Closed {
        pipe: usize,
        side: usize,
        reset: bool,
    },
    Refused {
        pipe: usize,
    },
    /// What was sent is not acknowledged.
    TimedOut {
        pipe: usize,
        side: usize,
    },
    Kill(Party),
    Stop(Party),
    Continue(Party),
    Start(Party),
    /// Nothing comes from its host any more, and nothing gets there.
    Silence(Party),
    /// It has something to tell.
    Say(Party),
    Leave(Party),
    /// From now on no more connections are harmed.
    Calm,
    /// A stranger comes to a door with bytes of its own.
    Stranger {
        door: usize,
        recorded: bool,
    },
}

#[derive(Default)]
struct Side {
    owner: Party,
    /// On their way here, then here.
    flying: VecDeque<u8>,
    inbox: VecDeque<u8>,
    latest: Option<Instant>,
    sent: u64,
    eof: bool,
    failed: Option<i32>,
    dropped: bool,
    finished: bool,
    is_watched: bool,
    /// The other end is asked after, while nothing is on its way there.
    asked: bool,
    /// Since when something is on its way that never arrives.
    unacknowledged: Option<Instant>,
}

struct Pipe {
    sides: [Side; 2],
    to: SocketAddr,
    delay: Duration,
    connected: bool,
    /// The pipe breaks when one side has sent so much.
    cut: Option<(usize, u64)>,
    /// One bit of what one side sends is turned round.
    flip: Option<(usize, u64)>,
    recording: Vec<u8>,
}

pub struct Door {
    pub owner: Party,
    backlog: VecDeque<usize>,
    open: bool,
}

#[derive(Default, Clone, Copy)]
pub struct Odds {
    /// Connections of a hundred that are cut.
    pub cut: u64,
    pub flip: u64,
}

pub struct Net {
    pub now: Instant,
    pub numbers: Seeded,
    pub odds: Odds,
    heap: BinaryHeap<Reverse<(Instant, u64, Happening)>>,
    count: u64,
    pipes: Vec<Pipe>,
    pub doors: Vec<Door>,
    places: BTreeMap<SocketAddr, usize>,
    silent: BTreeSet<Party>,
    pub recordings: Vec<(usize, Vec<u8>)>,
    pub bytes: u64,
    begin: Instant,
    history: DefaultHasher,
}

pub type Shared = Rc<RefCell<Net>>;

pub struct Line {
    net: Shared,
    pipe: usize,
    side: usize,
}

impl Net {
    pub fn new(seed: u64, now: Instant) -> Net {
        Net {
            now,
            numbers: Seeded(seed),
            odds: Odds::default(),
            heap: BinaryHeap::new(),
            count: 0,
            pipes: Vec::new(),
            doors: Vec::new(),
            places: BTreeMap::new(),
            silent: BTreeSet::new(),
            recordings: Vec::new(),
            bytes: 0,
            begin: now,
            history: DefaultHasher::new(),
        }
    }

    /// A number for all that has happened, and when, and for what was sent.
    pub fn history(&self) -> u64 {
        self.history.finish()
    }

    pub fn schedule(&mut self, at: Instant, what: Happening) {
        self.count += 1;
        self.heap.push(Reverse((at.max(self.now), self.count, what)));
    }

    pub fn advance(&mut self) -> Option<Happening> {
        let Reverse((at, _, what)) = self.heap.pop()?;
        self.now = at;
        (at - self.begin, what).hash(&mut self.history);
        Some(what)
    }

    pub fn open_door(&mut self, owner: Party, address: SocketAddr) {
        self.places.insert(address, self.doors.len());
        self.doors.push(Door { owner, backlog: VecDeque::new(), open: true });
    }

    /// The listener is gone, and what waited there with it.
    pub fn close_door(&mut self, owner: Party) {
        let mut waiting = Vec::new();
        for door in self.doors.iter_mut().filter(|door| door.owner == owner) {
            door.open = false;
            waiting.extend(door.backlog.drain(..));
        }
        waiting.into_iter().for_each(|pipe| self.close(pipe, 1));
    }

    pub fn silence(&mut self, party: Party) {
        self.silent.insert(party);
        for pipe in 0..self.pipes.len() {
            if self.pipes[pipe].sides.iter().any(|side| side.owner == party) {
                self.probe(pipe);
            }
        }
    }

    /// The kernels at the ends where they are to ask whether the other one is there, in vain.
    fn probe(&mut self, pipe: usize) {
        let at = self.now + USER_TIMEOUT + KEEPALIVE;
        for side in 0..2 {
            let Side { is_watched, asked, .. } = self.pipes[pipe].sides[side];
            if is_watched || asked {
                self.schedule(at, Happening::TimedOut { pipe, side });
            }
        }
    }

    /// Whether what one end sends never gets to the other.
    fn is_cut_off(&self, pipe: usize) -> bool {
        self.pipes[pipe].sides.iter().any(|side| self.silent.contains(&side.owner))
    }

    /// Let something happen; who is to look at the network.
    pub fn apply(&mut self, what: Happening) -> Option<Party> {
        match what {
            Happening::Opened { pipe } => self.arrive_at_door(pipe),
            Happening::Arrived { pipe, side, bytes } => {
                let end = &mut self.pipes[pipe].sides[side];
                let arrived: Vec<u8> = end.flying.drain(..bytes.min(end.flying.len())).collect();
                if end.dropped {
                    return None;
                }
                end.inbox.extend(arrived);
                Some(end.owner)
            }
            Happening::Closed { pipe, side, reset } => {
                let end = &mut self.pipes[pipe].sides[side];
                if reset {
                    end.inbox.clear();
                    end.failed.get_or_insert(libc::ECONNRESET);
                }
                end.eof = true;
                Some(end.owner)
            }
            Happening::TimedOut { pipe, side } => {
                let end = &mut self.pipes[pipe].sides[side];
                if !end.is_watched && end.unacknowledged.is_some() {
                    // It was not asked: the kernel sent again what it had sent before.
                    return None;
                }
                end.failed.get_or_insert(libc::ETIMEDOUT);
                Some(end.owner)
            }
            Happening::Refused { pipe } => {
                let end = &mut self.pipes[pipe].sides[0];
                end.failed = Some(libc::ECONNREFUSED);
                Some(end.owner)
            }
            _ => None,
        }
    }

    fn arrive_at_door(&mut self, pipe: usize) -> Option<Party> {
        let (to, delay) = (self.pipes[pipe].to, self.pipes[pipe].delay);
        if self.pipes[pipe].connected {
            return Some(self.pipes[pipe].sides[0].owner);
        }
        let door = self.places.get(&to).map(|door| &mut self.doors[*door]);
        let caller = self.pipes[pipe].sides[0].owner;
        let is_silent = |party: Party| self.silent.contains(&party);
        if is_silent(caller) || door.as_ref().is_some_and(|door| is_silent(door.owner)) {
            return None;
        }
        match door.filter(|door| door.open) {
            Some(door) => {
                door.backlog.push_back(pipe);
                let owner = door.owner;
                self.pipes[pipe].sides[1].owner = owner;
                self.pipes[pipe].connected = true;
                self.schedule(self.now + delay, Happening::Opened { pipe });
                Some(owner)
            }
            None => {
                self.schedule(self.now + delay, Happening::Refused { pipe });
                None
            }
        }
    }

    fn dial(&mut self, owner: Party, to: SocketAddr) -> usize {
        let pipe = self.pipes.len();
        // Within a rack to across a continent, and now and then something slow.
        let slow = if self.numbers.chance(5) { 100 } else { 1 };
        let delay = Duration::from_micros((20 + self.numbers.below(2_000)) * slow);
        let mut fault = |odds| {
            let hit = self.numbers.chance(odds);
            let bytes = 1 << self.numbers.below(11);
            hit.then(|| (self.numbers.below(2) as usize, self.numbers.below(bytes)))
        };
        let (cut, flip) = (fault(self.odds.cut), fault(self.odds.flip));
        let sides = [Side { owner, ..Side::default() }, Side { owner, ..Side::default() }];
        self.pipes.push(Pipe { sides, to, delay, connected: false, cut, flip, recording: vec![] });
        self.schedule(self.now + delay, Happening::Opened { pipe });
        pipe
    }

    fn accept(&mut self, owner: Party) -> Option<(usize, SocketAddr)> {
        let door = self.doors.iter_mut().find(|door| door.owner == owner)?;
        let pipe = door.backlog.pop_front()?;
        Some((pipe, self.pipes[pipe].to))
    }

    fn send(&mut self, pipe: usize, side: usize, bytes: &[u8]) -> io::Result<usize> {
        let most = self.numbers.below(bytes.len() as u64 * 2) as usize + 1;
        let jitter = Duration::from_micros(self.numbers.below(50));
        let cut_off = self.is_cut_off(pipe);
        let (now, line) = (self.now, &mut self.pipes[pipe]);
        if let Some(errno) = line.sides[side].failed {
            return Err(io::Error::from_raw_os_error(errno));
        }
        if !line.connected {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        if cut_off {
            let end = &mut line.sides[side];
            if end.unacknowledged.replace(end.unacknowledged.unwrap_or(now)).is_none()
                && end.is_watched
            {
                self.schedule(now + USER_TIMEOUT, Happening::TimedOut { pipe, side });
            }
            return Ok(bytes.len());
        }
        let (other, sent) = (1 - side, line.sides[side].sent);
        let held = line.sides[other].flying.len() + line.sides[other].inbox.len();
        let mut taken = bytes.len().min(most).min(WINDOW.saturating_sub(held));
        if let Some((_, at)) = line.cut.filter(|(cut, _)| *cut == side) {
            if sent >= at {
                for side in 0..2 {
                    line.sides[side].failed = Some(libc::ECONNRESET);
                }
                let reset = Happening::Closed { pipe, side: other, reset: true };
                self.schedule(now + self.pipes[pipe].delay, reset);
                return Err(io::Error::from_raw_os_error(libc::ECONNRESET));
            }
            taken = taken.min((at - sent) as usize);
        }
        if taken == 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let mut moved = bytes[..taken].to_vec();
        if let Some((_, at)) = line.flip.filter(|(flip, _)| *flip == side)
            && (sent..sent + taken as u64).contains(&at)
        {
            moved[(at - sent) as usize] ^= 1 << (at % 8);
        }
        if side == 0 && line.recording.len() < 512 {
            line.recording.extend(&moved);
        }
        moved.hash(&mut self.history);
        line.sides[side].sent += taken as u64;
        line.sides[other].flying.extend(moved);
        let at = (now + line.delay + jitter).max(line.sides[other].latest.unwrap_or(now));
        line.sides[other].latest = Some(at);
        self.bytes += taken as u64;
        self.schedule(at, Happening::Arrived { pipe, side: other, bytes: taken });
        Ok(taken)
    }

    fn receive(&mut self, pipe: usize, side: usize, bytes: &mut [u8]) -> io::Result<usize> {
        let most = self.numbers.below(bytes.len() as u64 * 2) as usize + 1;
        let (other, end) = (1 - side, &mut self.pipes[pipe].sides[side]);
        if end.inbox.is_empty() {
            return match end.failed {
                Some(errno) => Err(io::Error::from_raw_os_error(errno)),
                None if end.eof => Ok(0),
                None => Err(io::ErrorKind::WouldBlock.into()),
            };
        }
        let got = bytes.len().min(end.inbox.len()).min(most);
        for (cell, byte) in bytes.iter_mut().zip(end.inbox.drain(..got)) {
            *cell = byte;
        }
        // There is room again.
        let (writer, at) = (self.pipes[pipe].sides[other].owner, self.now);
        self.schedule(at + self.pipes[pipe].delay, Happening::Wake(writer));
        Ok(got)
    }

    /// One side sends nothing more.
    fn finish(&mut self, pipe: usize, side: usize) {
        self.pipes[pipe].sides[side].finished = true;
        self.end(pipe, 1 - side, false);
    }

    /// Tell a side that nothing more comes.
    fn end(&mut self, pipe: usize, side: usize, reset: bool) {
        if self.is_cut_off(pipe) {
            return;
        }
        let (now, line) = (self.now, &mut self.pipes[pipe]);
        let at = (now + line.delay).max(line.sides[side].latest.unwrap_or(now));
        line.sides[side].latest = Some(at);
        self.schedule(at, Happening::Closed { pipe, side, reset });
    }

    /// One side lets go of a pipe.
    fn close(&mut self, pipe: usize, side: usize) {
        let line = &mut self.pipes[pipe];
        if line.sides[side].dropped {
            return;
        }
        let reset = !line.sides[side].inbox.is_empty() || !line.sides[side].flying.is_empty();
        line.sides[side].dropped = true;
        if side == 0 && !line.recording.is_empty() {
            let door = self.places.get(&line.to).copied();
            let recording = std::mem::take(&mut line.recording);
            self.recordings.extend(door.map(|door| (door, recording)));
        }
        if reset || !self.pipes[pipe].sides[side].finished {
            self.end(pipe, 1 - side, reset);
        }
    }
}

/// The network as one party sees it.
pub struct Port {
    pub net: Shared,
    pub owner: Party,
}

impl Port {
    pub fn accept(&self) -> Option<(Line, SocketAddr)> {
        let (pipe, from) = self.net.borrow_mut().accept(self.owner)?;
        Some((Line { net: self.net.clone(), pipe, side: 1 }, from))
    }
}

impl Network for Port {
    type Stream = Line;

    fn connect(&mut self, to: &SocketAddr) -> io::Result<Line> {
        let pipe = self.net.borrow_mut().dial(self.owner, *to);
        Ok(Line { net: self.net.clone(), pipe, side: 0 })
    }

    fn watch(&self, line: &Line) {
        let mut net = self.net.borrow_mut();
        net.pipes[line.pipe].sides[line.side].is_watched = true;
        if net.is_cut_off(line.pipe) {
            net.probe(line.pipe);
        }
    }

    fn enable_keepalive(&self, line: &Line) {
        let mut net = self.net.borrow_mut();
        let side = &mut net.pipes[line.pipe].sides[line.side];
        (side.is_watched, side.asked) = (false, true);
        if net.is_cut_off(line.pipe) {
            net.probe(line.pipe);
        }
    }

    /// As the looks of a second each come to it, about.
    fn is_silent(&self, line: &Line, _: &mut AckWatch) -> bool {
        let net = self.net.borrow();
        let since = net.pipes[line.pipe].sides[line.side].unacknowledged;
        since.is_some_and(|since| net.now - since >= USER_TIMEOUT)
    }
}

impl ByteStream for Line {
    fn receive(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        if bytes.is_empty() {
            return Err(unexpected_eof());
        }
        self.net.borrow_mut().receive(self.pipe, self.side, bytes)
    }

    fn send(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.net.borrow_mut().send(self.pipe, self.side, bytes)
    }

    fn finish(&mut self) {
        self.net.borrow_mut().finish(self.pipe, self.side);
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.net.borrow_mut().close(self.pipe, self.side);
    }
}
