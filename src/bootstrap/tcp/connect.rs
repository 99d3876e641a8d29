//! Connecting to a gate: try its addresses in turn until one lets us in or the deadline has come.
//!
//! A gate may be late, full, or reached by another address than the first: every way in which one
//! attempt can fail leads to the next. What failed last is in the error.

use super::handshake::{Handshake, Keys, SharedSecret};
use super::hello::{ANYONE, Hello, Purpose, ROOT};
use super::pending::{HandshakeBroken, ProvenConnection, shake};
use super::socket::{OsNetwork, TcpSocket};
use super::stream_traits::Network;
use crate::bootstrap::unique_id::UniqueId;
use crate::error::{Error, Result};
use crate::os::poll::entry;
use std::io::ErrorKind::{ConnectionRefused, ConnectionReset, UnexpectedEof};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// A socket whose other end holds the secret, and knows that this end does.
pub type Proved = ProvenConnection<TcpSocket>;

/// The longest that one attempt takes in the first round, where there are other addresses to try: a
/// connection over a wide network and its handshake take a third. It doubles with every round,
/// since a lost packet is sent again after a second and a gate may be busy with thousands.
const ATTEMPT: Duration = Duration::from_secs(1);
/// Rounds after which it grows no further.
const MOST_DOUBLINGS: usize = 4;

/// The same until the other end's kernel has answered: hosts have networks that lead nowhere, and
/// a few of them are not to hold up a rank for long.
const HEAD_START: Duration = Duration::from_millis(100);
const MOST_HEAD_START_DOUBLINGS: usize = 7;

/// Pauses between rounds through the addresses: a process that is just starting is soon there, and
/// a thousand ranks that wait for a late one must not keep its machine busy.
const FIRST_PAUSE: Duration = Duration::from_millis(2);
const LONGEST_PAUSE: Duration = Duration::from_millis(100);

/// How long nobody may answer where a gate is known to have been open, not even the kernel of a
/// process that is stopped: about as long as for a connection that there is. Only where more
/// callers come to a stopped process at once than its queue holds (4,096 by default) does its
/// kernel drop what they say.
const SILENCE: Duration = Duration::from_secs(7);

/// What is left of that for another attempt, once the kernel has found nobody at the other end of
/// one that had been answered.
const LAST_TRY: Duration = Duration::from_secs(1);

/// What the system answers where a network does not lead to the other host, and what to do then.
const NO_WAY: [i32; 3] = [libc::ETIMEDOUT, libc::EHOSTUNREACH, libc::ENETUNREACH];
const NAME_ONE: &str = "; if the hosts have another network in common, name its interface on all \
                        of them (RINGCOMM_SOCKET_IFNAME)";

enum DialState<S> {
    Pausing { until: Instant },
    Shaking { stream: S, handshake: Box<Handshake>, since: Instant },
}

/// A dial without its sockets.
pub struct Connecting<S> {
    secret: SharedSecret,
    to: Vec<SocketAddr>,
    greeting: Hello,
    started: Instant,
    deadline: Instant,
    /// The peer was listening: where every address refuses, it is gone.
    was_open: bool,
    /// Somebody has answered in this round through the addresses, if only with a refusal.
    answered: bool,
    round_began: Instant,
    /// Since when there has been no round with an answer: what answered before may have fallen
    /// silent.
    unheard: Option<Instant>,
    state: DialState<S>,
    attempts: usize,
    pause: Duration,
    /// Addresses of this round that were refused.
    refused: usize,
    /// Why the last attempt failed.
    last: Option<(SocketAddr, HandshakeBroken)>,
    /// Hung up on us without a word at the last attempt there: it may not have our secret.
    hung_up: Option<SocketAddr>,
}

impl<S: super::stream_traits::ByteStream> Connecting<S> {
    pub fn new(
        secret: SharedSecret,
        to: &[SocketAddr],
        greeting: Hello,
        now: Instant,
        deadline: Instant,
    ) -> Connecting<S> {
        Connecting {
            secret,
            to: to.to_vec(),
            greeting,
            started: now,
            deadline,
            was_open: false,
            answered: false,
            round_began: now,
            unheard: Some(now),
            state: DialState::Pausing { until: now },
            attempts: 0,
            pause: FIRST_PAUSE,
            refused: 0,
            last: None,
            hung_up: None,
        }
    }

    pub fn fail_if_refused(self) -> Connecting<S> {
        Connecting { was_open: true, ..self }
    }

    /// Go on; the connection once the other end has let us in.
    pub fn advance(
        &mut self,
        now: Instant,
        network: &mut impl Network<Stream = S>,
    ) -> Result<Option<ProvenConnection<S>>> {
        loop {
            if now >= self.deadline || self.to.is_empty() {
                return Err(self.failure(now));
            }
            let may_change = self.may_change();
            let patience = self.patience(self.is_connected());
            match &mut self.state {
                DialState::Pausing { until } if now < *until => return Ok(None),
                DialState::Pausing { .. } => self.begin(now, network)?,
                DialState::Shaking { stream, handshake, since } => match shake(stream, handshake) {
                    Ok(Some(keys)) => return Ok(Some(self.through(now, keys))),
                    Ok(None) => {
                        // Once it has our proof, the gate takes the connection for made: it is not
                        // given up for a welcome that is late.
                        let gives_up =
                            may_change && !handshake.is_proved() && now >= *since + patience;
                        // What is to be said first leaves once the connection is made.
                        if handshake.outgoing().is_empty() {
                            (self.answered, self.unheard) = (true, None);
                        }
                        if now >= self.silent_at() {
                            return Err(self.failure(now));
                        }
                        if !gives_up {
                            return Ok(None);
                        }
                        self.next(
                            now,
                            HandshakeBroken::Network(std::io::ErrorKind::TimedOut.into()),
                        )?;
                    }
                    Err(broken) => self.next(now, broken)?,
                },
            }
        }
    }

    /// Whether an attempt is given up for another. Where nobody answers, another socket asks anew:
    /// a first packet that is lost is sent again by its kernel only after a second, then two, then
    /// four.
    fn may_change(&self) -> bool {
        self.to.len() > 1 || self.was_open && !self.answered
    }

    /// From when on nobody is there, if there has been no answer.
    fn silent_at(&self) -> Instant {
        self.silence_ends().map_or(self.deadline, |at| at.min(self.deadline))
    }

    fn silence_ends(&self) -> Option<Instant> {
        if !self.was_open || self.answered {
            return None;
        }
        // One of several may be silent a round long, and another not.
        let this_round = (self.to.len() == 1).then_some(self.round_began);
        Some(self.unheard.or(this_round)? + SILENCE)
    }

    /// Whether nobody has answered for so long that nobody is there, not even a kernel.
    pub fn is_silent(&self, now: Instant) -> bool {
        self.silence_ends().is_some_and(|at| now >= at)
    }

    /// How long the current attempt may take.
    fn patience(&self, is_connected: bool) -> Duration {
        let round = self.attempts / self.to.len().max(1);
        match is_connected || self.to.len() == 1 {
            true => ATTEMPT * (1 << round.min(MOST_DOUBLINGS)),
            false => HEAD_START * (1 << round.min(MOST_HEAD_START_DOUBLINGS)),
        }
    }

    /// Whether what is to be said first has left, which it does once the connection is made.
    fn is_connected(&self) -> bool {
        match &self.state {
            DialState::Shaking { handshake, .. } => handshake.outgoing().is_empty(),
            DialState::Pausing { .. } => false,
        }
    }

    fn current(&self) -> SocketAddr {
        self.to[self.attempts % self.to.len()]
    }

    fn begin(&mut self, now: Instant, network: &mut impl Network<Stream = S>) -> Result<()> {
        match network.connect(&self.current()) {
            Ok(stream) => {
                if self.was_open {
                    // Its host may fall silent when it has answered.
                    network.watch(&stream);
                }
                let handshake = Handshake::caller(&self.secret, &self.greeting)
                    .map_err(|why| Error::Internal(why.into()))?;
                let handshake = Box::new(handshake);
                self.state = DialState::Shaking { stream, handshake, since: now };
                Ok(())
            }
            Err(error) => self.next(now, HandshakeBroken::Network(error)),
        }
    }

    /// The attempt failed: the next address, or a pause after the last.
    fn next(&mut self, now: Instant, broken: HandshakeBroken) -> Result<()> {
        self.note_answer(now, &broken);
        if let HandshakeBroken::Network(error) = &broken {
            self.refused += usize::from(error.raw_os_error() == Some(libc::ECONNREFUSED));
        }
        let at = self.current();
        match &broken {
            // Who comes for another purpose has met the others, and has their secret.
            HandshakeBroken::Network(error)
                if error.kind() == UnexpectedEof
                    && self.greeting.purpose == Purpose::Meet
                    && !self.is_proved() =>
            {
                self.hung_up = Some(at);
            }
            _ if self.hung_up == Some(at) => self.hung_up = None,
            _ => {}
        }
        self.last = Some((at, broken));
        self.attempts += 1;
        let mut until = now;
        if self.attempts.is_multiple_of(self.to.len()) {
            if !self.answered {
                self.unheard.get_or_insert(self.round_began);
            }
            let is_gone = self.was_open && self.refused == self.to.len();
            if is_gone || now >= self.silent_at() {
                return Err(self.failure(now));
            }
            self.refused = 0;
            until = now + self.pause;
            self.pause = (self.pause * 2).min(LONGEST_PAUSE);
            (self.answered, self.round_began) = (false, until);
        }
        self.state = DialState::Pausing { until };
        Ok(())
    }

    /// Note what a failed attempt says of whether anybody is there.
    fn note_answer(&mut self, now: Instant, broken: &HandshakeBroken) {
        match broken {
            HandshakeBroken::Network(error) if error.raw_os_error() == Some(libc::ETIMEDOUT) => {
                // The kernel has tried for seconds.
                self.unheard.get_or_insert(now + LAST_TRY - SILENCE);
                self.answered = false;
            }
            HandshakeBroken::Network(error)
                if !matches!(error.kind(), ConnectionRefused | ConnectionReset | UnexpectedEof) => {
            }
            _ => (self.answered, self.unheard) = (true, None),
        }
    }

    /// Whether the gate of the attempt under way has shown that it holds the secret.
    fn is_proved(&self) -> bool {
        matches!(&self.state, DialState::Shaking { handshake, .. } if handshake.is_proved())
    }

    fn through(&mut self, now: Instant, keys: Keys) -> ProvenConnection<S> {
        let address = self.current();
        let pausing = DialState::Pausing { until: now };
        let shaken = std::mem::replace(&mut self.state, pausing);
        let DialState::Shaking { stream, since, .. } = shaken else {
            unreachable!("keys come from a handshake")
        };
        let took = now.saturating_duration_since(since);
        ProvenConnection { stream, greeting: self.greeting.clone(), keys, address, took }
    }

    fn failure(&self, now: Instant) -> Error {
        let Hello { rank, to, .. } = self.greeting;
        let whom = match to {
            ROOT | ANYONE => "the root".into(),
            to => format!("rank {to}"),
        };
        let waited_ms = now.saturating_duration_since(self.started).as_millis();
        let places = self.places();
        let (why, errno) = self.why();
        let advice = if NO_WAY.contains(&errno) { NAME_ONE } else { "" };
        Error::System {
            what: format!(
                "rank {rank} tried for {waited_ms} ms to reach {whom} at {places}{advice}{why}"
            ),
            errno,
        }
    }

    fn places(&self) -> String {
        let places: Vec<String> = self.to.iter().map(SocketAddr::to_string).collect();
        places.join(", ")
    }

    /// Why nobody was reached, where it ended for that and the gate had been open: what happened to
    /// the caller, without its name.
    pub fn obstacle(&self, now: Instant) -> String {
        let places = self.places();
        if self.refused == self.to.len() {
            return format!("was refused at {places}");
        }
        let waited_ms = now.saturating_duration_since(self.started).as_millis();
        let last = match &self.last {
            Some((at, HandshakeBroken::Network(error))) if error.raw_os_error().is_some() => {
                format!(" (the last attempt, at {at}, ended with: {error})")
            }
            _ => String::new(),
        };
        format!("had no answer from {places} in {waited_ms} ms{last}")
    }

    /// What the attempts came to.
    fn why(&self) -> (String, i32) {
        let (last, errno) = match &self.last {
            Some((at, HandshakeBroken::Refused(why))) => {
                (format!("; at {at} there is {why}"), libc::EPROTO)
            }
            Some((at, HandshakeBroken::Network(error))) => match error.raw_os_error() {
                Some(errno) => (format!("; last tried {at}"), errno),
                None if self.hung_up == Some(*at) => (String::new(), libc::ETIMEDOUT),
                None => {
                    (format!("; {at} was reached and hung up or said nothing"), libc::ETIMEDOUT)
                }
            },
            None => (String::new(), libc::ETIMEDOUT),
        };
        // A gate tells nobody why it does not let him in.
        let hung_up = self.hung_up.map(|at| {
            format!(
                "; {at} was reached and hung up, as it does on whoever lacks the secret: all ranks \
                 must have the same unique id, or the same RINGCOMM_SECRET"
            )
        });
        (hung_up.unwrap_or_default() + &last, errno)
    }

    /// The stream of the attempt that is under way, with whether it has something to send.
    pub fn stream(&self) -> Option<(&S, bool)> {
        match &self.state {
            DialState::Shaking { stream, handshake, .. } => {
                Some((stream, !handshake.outgoing().is_empty()))
            }
            DialState::Pausing { .. } => None,
        }
    }

    /// When [`Connecting::advance`] has something to do though nothing arrives.
    pub fn next_deadline(&self) -> Instant {
        match &self.state {
            DialState::Pausing { until } => (*until).min(self.deadline),
            DialState::Shaking { since, handshake, .. }
                if self.may_change() && !handshake.is_proved() =>
            {
                (*since + self.patience(self.is_connected())).min(self.silent_at())
            }
            DialState::Shaking { .. } => self.silent_at(),
        }
    }
}

/// A non-blocking connection to a gate.
pub struct Dial(Connecting<TcpSocket>);

impl Dial {
    /// Dial `to`, best address first, and retry until `deadline`.
    pub fn new(id: &UniqueId, to: &[SocketAddr], greeting: Hello, deadline: Instant) -> Dial {
        let to = OsNetwork.routes(to);
        Dial(Connecting::new(SharedSecret::new(id), &to, greeting, Instant::now(), deadline))
    }

    /// The gate is known to have been open: an error at once where every address refuses, since
    /// the process behind it is gone.
    pub fn where_open(self) -> Dial {
        Dial(self.0.fail_if_refused())
    }

    pub fn poll_fds(&self, into: &mut Vec<libc::pollfd>) {
        into.extend(self.0.stream().map(|(socket, sending)| {
            entry(socket.raw(), if sending { libc::POLLOUT } else { libc::POLLIN })
        }));
    }

    pub fn next_deadline(&self) -> Instant {
        self.0.next_deadline()
    }

    /// Go on; the connection once the other end has let us in, an error at the deadline.
    pub fn advance(&mut self) -> Result<Option<Proved>> {
        self.0.advance(Instant::now(), &mut OsNetwork)
    }
}

#[cfg(test)]
#[path = "tests/connect.rs"]
mod tests;
