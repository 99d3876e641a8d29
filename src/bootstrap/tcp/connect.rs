//! Connecting to a listener: try its addresses, each with a small head start, until one lets us in
//! or the deadline has come.
//!
//! A listener may be late, full, or reached by another address than the first: every way in which
//! one attempt can fail leads to the next. What failed last is in the error.

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

/// The longest that an attempt takes to be let in, where there are other addresses to try: a
/// connection over a wide network and its handshake take a third. It doubles with every attempt at
/// each that took so long, since a listener may be busy with thousands.
const ATTEMPT: Duration = Duration::from_secs(1);
/// Times after which it grows no further.
const MOST_DOUBLINGS: usize = 4;

/// How long an attempt is alone until the other end's kernel has answered: hosts have networks that
/// lead nowhere, and a few of them are not to hold up a rank. It goes on beside the next, for as
/// long as [`ATTEMPT`].
const HEAD_START: Duration = Duration::from_millis(10);

/// Pauses between rounds through the addresses: a process that is just starting is soon there, and
/// a thousand ranks that wait for a late one must not keep its machine busy.
const FIRST_PAUSE: Duration = Duration::from_millis(2);
const LONGEST_PAUSE: Duration = Duration::from_millis(100);

/// How long nobody may answer where a listener is known to have been open, not even the kernel of a
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

/// One try at one address.
struct Attempt<S> {
    /// Which of the addresses.
    at: usize,
    stream: S,
    handshake: Box<Handshake>,
    since: Instant,
    /// When the kernel at the other end had answered.
    connected: Option<Instant>,
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
    /// Of which the kernel has answered one alone, or none.
    under_way: Vec<Attempt<S>>,
    attempts: usize,
    /// When the next begins, unless one has been answered.
    next_at: Instant,
    pause: Duration,
    /// Attempts that were given up for others.
    given_up: usize,
    /// Whether the last attempt at each address was refused.
    refused: Vec<bool>,
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
            under_way: Vec::new(),
            attempts: 0,
            next_at: now,
            pause: FIRST_PAUSE,
            given_up: 0,
            refused: vec![false; to.len()],
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
                return Err(self.failure(now, network));
            }
            if let Some((attempt, keys)) = self.shake_all(now, network)? {
                if self.greeting.to == ROOT {
                    network.prefer(&attempt.stream);
                }
                return Ok(Some(self.through(now, attempt, keys)));
            }
            if now >= self.silent_at() {
                return Err(self.failure(now, network));
            }
            if self.connected().is_some() || now < self.next_at {
                return Ok(None);
            }
            self.begin(now, network)?;
        }
    }

    /// Go on with every attempt under way; the one that was let in.
    fn shake_all(
        &mut self,
        now: Instant,
        network: &impl Network<Stream = S>,
    ) -> Result<Option<(Attempt<S>, Keys)>> {
        let mut next = 0;
        while let Some(attempt) = self.under_way.get_mut(next) {
            match shake(&mut attempt.stream, &mut attempt.handshake) {
                Ok(Some(keys)) => return Ok(Some((self.under_way.swap_remove(next), keys))),
                // What is to be said first leaves once the connection is made.
                Ok(None) if attempt.handshake.outgoing().is_empty() => {
                    attempt.connected.get_or_insert(now);
                    (self.answered, self.unheard) = (true, None);
                    self.under_way.swap(0, next);
                    self.under_way.truncate(1);
                    break;
                }
                Ok(None) => next += 1,
                Err(broken) => {
                    let failed = self.under_way.remove(next);
                    self.fail(now, failed.at, failed.handshake.is_proved(), broken, network)?;
                }
            }
        }
        // Once it has our proof, the listener takes the connection for made: it is not given up for
        // a welcome that is late.
        let gives_up = self.gives_up_at().is_some_and(|at| now >= at);
        if gives_up && let Some(failed) = self.under_way.pop() {
            self.given_up += 1;
            let broken = HandshakeBroken::Network(std::io::ErrorKind::TimedOut.into());
            self.fail(now, failed.at, false, broken, network)?;
        }
        Ok(None)
    }

    /// The attempt that the other end's kernel has answered.
    fn connected(&self) -> Option<&Attempt<S>> {
        self.under_way.first().filter(|attempt| attempt.connected.is_some())
    }

    /// When that attempt is given up for another.
    fn gives_up_at(&self) -> Option<Instant> {
        let attempt = self.connected().filter(|attempt| !attempt.handshake.is_proved())?;
        Some(attempt.connected.filter(|_| self.may_change())? + self.patience())
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

    /// How long an attempt may take.
    fn patience(&self) -> Duration {
        let times = self.given_up / self.to.len().max(1);
        ATTEMPT * (1 << times.min(MOST_DOUBLINGS))
    }

    /// The next address's turn.
    fn begin(&mut self, now: Instant, network: &mut impl Network<Stream = S>) -> Result<()> {
        let (count, at) = (self.to.len(), self.attempts % self.to.len());
        if at == 0 && self.attempts > 0 {
            if !self.answered {
                self.unheard.get_or_insert(self.round_began);
            }
            if now >= self.silent_at() {
                return Err(self.failure(now, network));
            }
            (self.answered, self.round_began) = (false, now);
            self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        }
        self.attempts += 1;
        let is_under_way = |attempt: &Attempt<S>| attempt.at == at;
        // Its packet may be lost.
        let is_stale = |attempt: &Attempt<S>| count == 1 || now >= attempt.since + ATTEMPT;
        let before = self.under_way.len();
        self.under_way.retain(|attempt| !(is_under_way(attempt) && is_stale(attempt)));
        self.given_up += before - self.under_way.len();
        if self.under_way.iter().any(is_under_way) {
            self.next_at = self.next_turn(now);
            return Ok(());
        }
        self.next_at = match (count, self.may_change()) {
            (1, true) => now + self.patience(),
            (1, false) => self.deadline,
            _ => self.next_turn(now + HEAD_START),
        };
        match network.connect(&self.to[at]) {
            Ok(stream) => {
                if self.was_open {
                    // Its host may fall silent when it has answered.
                    network.watch(&stream);
                }
                let handshake = Handshake::caller(&self.secret, &self.greeting)
                    .map_err(|why| Error::Internal(why.into()))?;
                let handshake = Box::new(handshake);
                let attempt = Attempt { at, stream, handshake, since: now, connected: None };
                self.under_way.push(attempt);
                Ok(())
            }
            Err(error) => self.fail(now, at, false, HandshakeBroken::Network(error), network),
        }
    }

    /// When the next address's turn is, where nothing holds it up: after the last there is a pause.
    fn next_turn(&self, now: Instant) -> Instant {
        let is_last = self.attempts.is_multiple_of(self.to.len());
        now + if is_last { self.pause } else { Duration::ZERO }
    }

    /// An attempt failed, whose listener may have shown that it holds the secret.
    fn fail(
        &mut self,
        now: Instant,
        at: usize,
        is_proved: bool,
        broken: HandshakeBroken,
        network: &impl Network<Stream = S>,
    ) -> Result<()> {
        self.note_answer(now, &broken);
        let address = self.to[at];
        self.refused[at] = matches!(&broken, HandshakeBroken::Network(error)
            if error.raw_os_error() == Some(libc::ECONNREFUSED));
        match &broken {
            // Who comes for another purpose has met the others, and has their secret.
            HandshakeBroken::Network(error)
                if error.kind() == UnexpectedEof
                    && self.greeting.purpose == Purpose::Meet
                    && !is_proved =>
            {
                self.hung_up = Some(address);
            }
            _ if self.hung_up == Some(address) => self.hung_up = None,
            _ => {}
        }
        self.last = Some((address, broken));
        let next = self.next_turn(now);
        // In the past where another attempt had been answered.
        self.next_at = if self.next_at > now { self.next_at.min(next) } else { next };
        let is_gone = self.was_open && self.is_refused();
        if is_gone { Err(self.failure(now, network)) } else { Ok(()) }
    }

    /// Whether every address refused at its last attempt.
    fn is_refused(&self) -> bool {
        self.refused.iter().all(|refused| *refused)
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

    fn through(&mut self, now: Instant, attempt: Attempt<S>, keys: Keys) -> ProvenConnection<S> {
        self.under_way.clear();
        let Attempt { at, stream, since, .. } = attempt;
        let (address, took) = (self.to[at], now.saturating_duration_since(since));
        ProvenConnection { stream, greeting: self.greeting.clone(), keys, address, took }
    }

    fn failure(&self, now: Instant, network: &impl Network) -> Error {
        let Hello { rank, to, .. } = self.greeting;
        let whom = match to {
            ROOT | ANYONE => "the root".into(),
            to => format!("rank {to}"),
        };
        let waited_ms = now.saturating_duration_since(self.started).as_millis();
        let places = self.places();
        let (why, errno) = self.why();
        let advice = match NO_WAY.contains(&errno) {
            true => self.advice(network),
            false => String::new(),
        };
        Error::System {
            what: format!(
                "rank {rank} tried for {waited_ms} ms to reach {whom} at {places}{advice}{why}"
            ),
            errno,
        }
    }

    /// By which interfaces it was tried, and which variable names another.
    fn advice(&self, network: &impl Network) -> String {
        let mut names: Vec<String> = Vec::new();
        for name in self.to.iter().filter_map(|to| network.interface_to(to)) {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        let by = match names.is_empty() {
            true => String::new(),
            false => format!(" by {}", names.join(", ")),
        };
        format!("{by}{NAME_ONE}")
    }

    fn places(&self) -> String {
        let places: Vec<String> = self.to.iter().map(SocketAddr::to_string).collect();
        places.join(", ")
    }

    /// Why nobody was reached, where it ended for that and the listener had been open: what
    /// happened to the caller, without its name.
    pub fn obstacle(&self, now: Instant) -> String {
        let places = self.places();
        if self.is_refused() {
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
        // A listener tells nobody why it does not let him in.
        let hung_up = self.hung_up.map(|at| {
            format!(
                "; {at} was reached and hung up, as it does on whoever lacks the secret: all ranks \
                 must have the same unique id, or the same RINGCOMM_SECRET"
            )
        });
        (hung_up.unwrap_or_default() + &last, errno)
    }

    /// The streams of the attempts under way, with whether each has something to send.
    pub fn streams(&self) -> impl Iterator<Item = (&S, bool)> {
        let sending = |attempt: &Attempt<S>| !attempt.handshake.outgoing().is_empty();
        self.under_way.iter().map(move |attempt| (&attempt.stream, sending(attempt)))
    }

    /// When [`Connecting::advance`] has something to do though nothing arrives.
    pub fn next_deadline(&self) -> Instant {
        let next = match self.connected() {
            Some(_) => self.gives_up_at(),
            None => Some(self.next_at),
        };
        next.map_or(self.silent_at(), |at| at.min(self.silent_at()))
    }
}

/// A non-blocking connection to a listener.
pub struct Dial(Connecting<TcpSocket>);

impl Dial {
    /// Dial `to`, best address first, and retry until `deadline`.
    pub fn new(id: &UniqueId, to: &[SocketAddr], greeting: Hello, deadline: Instant) -> Dial {
        let to = OsNetwork.routes(to);
        Dial(Connecting::new(SharedSecret::new(id), &to, greeting, Instant::now(), deadline))
    }

    /// The listener is known to have been open: an error at once where every address refuses, since
    /// the process behind it is gone.
    pub fn where_open(self) -> Dial {
        Dial(self.0.fail_if_refused())
    }

    pub fn poll_fds(&self, into: &mut Vec<libc::pollfd>) {
        into.extend(self.0.streams().map(|(socket, sending)| {
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
