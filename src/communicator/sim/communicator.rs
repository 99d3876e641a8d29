//! One rank's end of a communicator on the virtual network: its control plane, the pages that this
//! keeps true, its connections, and the operation at hand.

use super::all_reduce::{Loss, Operation, Progress, Wire};
use crate::algorithm::Algorithm;
use crate::bootstrap::UniqueId;
use crate::bootstrap::sim::listener::Listener;
use crate::bootstrap::sim::net::Port;
use crate::communicator::call::fingerprint::mix;
use crate::communicator::call::signature::CallSignature;
use crate::communicator::control_plane::state_machine::{ControlIdentity, Plane};
use crate::communicator::health::wait_check::{CommHealth, OpWaitCheck};
use crate::communicator::number_of;
use crate::error::{Error, Result};
use crate::executor::control_block::shrink_board::{Announcement, Phase};
use crate::executor::links::{Pages, SegmentMap};
use crate::plan::Collective;
use crate::sync::atomic::AtomicBool;
use crate::transport::pidfd::Liveness;
use crate::transport::segment::Segment;
use crate::transport::tcp::EXPLANATION;
use crate::transport::wait::WaitCheck;
use crate::types::{DataType, ReduceOp};
use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The deadline of whatever a rank waits for: longer than any fault holds it up. Only who never
/// finds rank 0 waits as long.
pub const PATIENCE: Duration = Duration::from_secs(20);

pub struct SimCommunicator {
    /// By rank in it: what the rank is called in the world.
    pub members: Vec<usize>,
    pub id: UniqueId,
    pub health: Rc<CommHealth>,
    /// There is something that the control thread has not been told.
    pub news: Rc<Cell<bool>>,
    pub addresses: Vec<SocketAddr>,
    listener: Listener,
    plane: Plane<Port>,
    wires: Vec<Wire>,
    operation: Option<(Instant, Operation)>,
    /// It is being made, and its operation is a trial.
    is_new: bool,
    /// Operations that its user has made.
    pub completed: u64,
}

/// What every call is called.
const CALL: CallSignature = CallSignature {
    collective: Some(Collective::AllReduce),
    data_type: DataType::Uint64,
    op: ReduceOp::Sum,
    algorithm: Algorithm::Ring,
    root: 0,
    count: 1,
};

/// What errors call a member by, whatever its rank.
pub fn pid_of(member: usize) -> u32 {
    1000 + member as u32
}

impl SimCommunicator {
    /// A communicator whose trial has begun.
    pub fn new(
        listener: Listener,
        id: UniqueId,
        rank: usize,
        members: Vec<usize>,
        addresses: Vec<SocketAddr>,
        now: Instant,
    ) -> SimCommunicator {
        let nranks = members.len();
        let segment = |_| Arc::new(Segment::anonymous(SegmentMap::mirror_bytes()).expect("memory"));
        let pages = Pages::new(rank, (0..nranks).map(segment).collect());
        for (other, member) in members.iter().enumerate() {
            pages.of(other).introduce(pid_of(*member), "here");
        }
        let seat = ControlIdentity {
            rank,
            secret: listener.secret.clone(),
            addresses: addresses.iter().map(|address| vec![*address]).collect(),
            remote: (0..nranks).map(|other| other != rank).collect(),
            pages: pages.clone(),
            timeout: PATIENCE,
        };
        let health = CommHealth {
            pages,
            liveness: Liveness::new(Vec::new()),
            processes: Vec::new(),
            aborted: AtomicBool::new(false),
            timeout: PATIENCE,
            init_timeout: PATIENCE,
            publisher: None,
            track: None,
            maker: None,
            together: false,
        };
        let mut crew = SimCommunicator {
            plane: Plane::new(seat, listener.caller(), now),
            members,
            id,
            health: Rc::new(health),
            news: Rc::new(Cell::new(true)),
            addresses,
            listener,
            wires: (0..nranks).map(|_| Wire::default()).collect(),
            operation: None,
            is_new: true,
            completed: 0,
        };
        crew.begin(now);
        crew
    }

    /// The trial is over, and what follows is its user's.
    pub fn proved(self) -> SimCommunicator {
        SimCommunicator { is_new: false, ..self }
    }

    pub fn rank(&self) -> usize {
        self.health.pages.rank
    }

    /// What the control thread does.
    pub fn tend(&mut self, now: Instant) {
        if self.news.take() && !self.plane.is_leaving() {
            self.plane.publish();
        }
        let arrivals = match self.plane.receives() {
            true => self.listener.advance(now),
            false => Vec::new(),
        };
        let everybody: Vec<usize> = (0..self.members.len()).collect();
        self.plane.advance(now, arrivals, &everybody);
        for data_socket in self.plane.take_data_connections() {
            let wire = &mut self.wires[data_socket.peer];
            match data_socket.outcome {
                Ok(arrival) => wire.connected(arrival.stream, &arrival.keys),
                Err(_) => drop(wire.loss.get_or_insert(Loss::Found)),
            }
        }
        for peer in self.plane.take_explained() {
            self.wires[peer].loss = Some(Loss::Explained);
        }
    }

    /// When the control thread has something to do though nothing arrives.
    pub fn next_deadline(&self, now: Instant) -> Instant {
        let listener = self.listener.next_deadline(now).filter(|_| self.plane.receives());
        let answers = self.wires.iter().filter_map(|wire| match wire.loss {
            Some(Loss::Asked { until }) if until > now => Some(until),
            _ => None,
        });
        listener.into_iter().chain(answers).fold(self.plane.next_deadline(), Instant::min)
    }

    /// End this rank's part, as dropping a communicator does.
    pub fn leave(&mut self, now: Instant) {
        let page = self.health.pages.mine();
        let before = page.board.read().unwrap_or(Announcement::NOTHING);
        page.board.publish(&Announcement { phase: Phase::Closed, ..before });
        page.leave();
        self.plane.leave(now);
        self.news.set(true);
    }

    pub fn is_over(&self) -> bool {
        self.plane.is_over()
    }

    /// Tell the others why this rank cannot go on.
    pub fn fail(&mut self, error: &Error) {
        let page = self.health.pages.mine();
        match error {
            Error::Remote { peer, text, .. } => page.fail(peer.rank, text),
            error => page.fail(self.rank(), &error.to_string()),
        }
        self.news.set(true);
    }

    /// What a member adds to a chunk in the operation at hand.
    fn contribution(&self, member: usize, sequence: u64, chunk: usize) -> u64 {
        let words = [u64::from(number_of(&self.id)), member as u64, sequence, chunk as u64];
        words.into_iter().fold(0, |hash, word| mix(hash ^ word.wrapping_add(0x9e37_79b9)))
    }

    pub fn is_at_work(&self) -> bool {
        self.operation.is_some()
    }

    /// Begin the next operation.
    pub fn begin(&mut self, now: Instant) {
        let page = self.health.pages.mine();
        let (sequence, number) = (page.completed(), u64::from(number_of(&self.id)));
        page.begin(sequence, CALL.fingerprint(0), CALL.pack(), 1, 1);
        let me = self.members[self.rank()];
        let mine = |chunk: usize| self.contribution(me, sequence, chunk);
        let (rank, nranks) = (self.rank(), self.members.len());
        let operation = Operation::new(rank, nranks, sequence, mix(number ^ sequence), mine);
        self.operation = Some((now, operation));
    }

    /// Go on with the operation, as the thread that made the call does; whether it is through. The
    /// outer error is what no rank may ever see.
    pub fn work(&mut self, now: Instant) -> Result<Result<bool>, String> {
        let Some((since, operation)) = &mut self.operation else { return Ok(Ok(true)) };
        self.wires.iter_mut().for_each(Wire::advance);
        let progress = operation.advance(&mut self.wires)?;
        self.wires.iter_mut().for_each(Wire::advance);
        match progress {
            Progress::Waits(peer) => {
                let waited = now.saturating_duration_since(*since);
                self.connect(peer, now);
                self.investigate(now);
                Ok(self.watch(peer, waited, now).map(|()| false))
            }
            Progress::Done(output) => {
                let sequence = self.health.pages.mine().completed();
                self.operation = None;
                self.check(sequence, &output)?;
                self.health.pages.mine().end(sequence, 2);
                self.completed += u64::from(!self.is_new);
                self.news.set(true);
                Ok(Ok(true))
            }
        }
    }

    /// Ask for the connections that the operation needs: the lower of two ranks makes theirs.
    fn connect(&mut self, awaited: usize, now: Instant) {
        for other in self.rank() + 1..self.members.len() {
            let wire = &mut self.wires[other];
            if (other == awaited || wire.is_wanted())
                && !std::mem::replace(&mut wire.is_known, true)
            {
                self.plane.connect(other, 1, now);
                self.news.set(true);
            }
        }
    }

    /// Ask why connections have ended.
    fn investigate(&mut self, now: Instant) {
        for (peer, wire) in self.wires.iter_mut().enumerate() {
            if let Some(Loss::Found) = wire.loss {
                wire.loss = Some(Loss::Asked { until: now + EXPLANATION });
                self.plane.ask(peer, now);
                self.news.set(true);
            }
        }
    }

    /// What a rank that waits for a peer looks at.
    fn watch(&self, peer: usize, waited: Duration, now: Instant) -> Result<()> {
        let sequence = self.health.pages.mine().completed();
        let watch = OpWaitCheck::new(&self.health, None, CALL, sequence);
        watch.check(peer, waited)?;
        match self.wires.iter().position(|wire| wire.is_over(now)) {
            Some(lost) => Err(watch.broken(lost, "the connection is gone")),
            None => Ok(()),
        }
    }

    fn check(&self, sequence: u64, output: &[u64]) -> Result<(), String> {
        let sum = |chunk: usize| {
            let all = self.members.iter().map(|member| self.contribution(*member, sequence, chunk));
            all.fold(0, u64::wrapping_add)
        };
        match (0..output.len()).find(|chunk| output[*chunk] != sum(*chunk)) {
            None => Ok(()),
            Some(chunk) => Err(format!(
                "rank {} of {:?} has a wrong chunk {chunk} of operation {sequence}",
                self.rank(),
                self.members
            )),
        }
    }
}
