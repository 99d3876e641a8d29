//! Network engines: what moves messages between hosts in the sockets' place, where a cluster has
//! something faster than TCP: [`ucx`], or one of NCCL's network [`plugin`]s.
//!
//! An engine sends, receives, completes and tells of errors, no more. Who is there, who has died,
//! and who may speak stays with the sockets: a [`Lane`] of an engine lies beside a peer's data
//! sockets, over which both ends tell each other where their engines are and by which token they
//! know each other. What comes without the token is a stranger's. Messages carry the same frames as
//! over sockets, so that either way may take any of them, and protection is the same.
//!
//! # Contract of a [`NetEngine`]
//!
//! **Who calls.** Anybody, one at a time: the rank's thread within calls, and between them a thread
//! of the engine's, which only lets it [`progress`](NetEngine::progress). No call waits for an
//! engine that another thread has: one that does not come back holds up nothing but its messages.
//!
//! **Memory.** It reads slots of the [`Outbound`] half and writes slots of the [`Inbound`] half of
//! a connection, never the user's memory: an engine may not give back what it was lent at the
//! moment at which a call fails. An engine that has to name beforehand where messages go is
//! [lent](NetEngine::lend) blocks beside the slots for that. After [`close`](NetEngine::close)
//! nothing is used any more; where an engine cannot promise this, [`close`](NetEngine::close) says
//! so and the slots are kept for good.
//!
//! **Waiting.** No call waits for a peer.
#![allow(unsafe_code)]

pub mod choice;
mod lane;
pub mod plugin;
pub mod ucx;

use crate::config::Protection;
use crate::crypto::{Aead, TAG_BYTES};
use crate::error::{Error, Result};
use crate::fork;
use crate::os::poll::{EventFd, entry, poll_for};
use crate::os::thread_signals::spawn_deaf;
use crate::sync::atomic::{AtomicBool, Ordering::*};
use crate::sync::{Mutex, MutexGuard};
use crate::transport::tcp::{FRAME_BYTES, Frame, Inbound, Outbound, PayloadTarget, verify};
pub use lane::Lane;
use std::os::fd::RawFd;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Bytes of the word by which a rank knows who sends: it gave it to that peer, over the socket that
/// the peer had proved itself on.
pub const TOKEN_BYTES: usize = 16;

pub type LaneToken = [u8; TOKEN_BYTES];

/// Bytes at a token's beginning that say to whom it was given; the others are random.
const WHOSE_BYTES: usize = 4;

/// To whom this token would have been given.
fn whose(token: &LaneToken) -> usize {
    u32::from_le_bytes(*token.first_chunk::<WHOSE_BYTES>().expect("a token is longer")) as usize
}

/// What goes with each payload on an engine.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Envelope {
    pub token: LaneToken,
    /// Messages that this end has taken of the other's so far, in little endian.
    pub taken: [u8; 8],
    pub frame: [u8; FRAME_BYTES],
    /// What seals the message, where it is encrypted.
    pub tag: [u8; TAG_BYTES],
}

pub const ENVELOPE_BYTES: usize = size_of::<Envelope>();

/// How messages are sealed for a peer and opened from it.
#[derive(Default)]
pub struct Seals {
    pub protection: Protection,
    pub seals: Option<Aead>,
    pub opens: Option<Aead>,
}

/// A message whose payload is on its way to its slot.
pub struct Coming {
    pub frame: Frame,
    pub header: [u8; FRAME_BYTES],
    pub tag: [u8; TAG_BYTES],
    pub place: PayloadTarget,
}

impl Coming {
    /// The payload is at its place: hand the message over if it is as the peer sent it.
    pub fn arrive(self, seals: &Seals, inbound: &mut Inbound) -> std::result::Result<(), String> {
        let Coming { frame, header, tag, place } = self;
        // SAFETY: the payload has just come there.
        let payload =
            unsafe { std::slice::from_raw_parts_mut(place.address, frame.length as usize) };
        verify(seals.protection, seals.opens.as_ref(), (&frame, &header, &tag), payload)?;
        inbound.arrived(&frame, place);
        Ok(())
    }
}

/// What an engine is, for people.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EngineInfo {
    /// "ucx" or "plugin".
    pub kind: &'static str,
    /// With its version.
    pub name: String,
    /// The devices that it uses, as far as it says; of UCX's, those to the first peer.
    pub devices: String,
    /// Whether any of these is better than a socket.
    pub beats_tcp: bool,
    /// In Mbit/s; 0 where it does not say.
    pub speed: u64,
    /// Lanes that are open.
    pub lanes: usize,
    /// Messages that it has sent.
    pub sent: u64,
}

impl EngineInfo {
    /// In words: "ucx 1.22.0 (rc_mlx5/mlx5_0:1)".
    pub fn text(&self) -> String {
        let speed = match self.speed {
            0 => String::new(),
            mbits => format!("{} Gbit/s", mbits as f64 / 1000.0),
        };
        let facts = [self.devices.clone(), speed];
        let facts: Vec<String> = facts.into_iter().filter(|fact| !fact.is_empty()).collect();
        match facts.is_empty() {
            true => self.name.clone(),
            false => format!("{} ({})", self.name, facts.join(", ")),
        }
    }
}

/// What makes [`Lane`]s.
pub trait NetEngine: Send {
    fn info(&self) -> EngineInfo;

    /// Take from a peer what comes with the token `theirs`, from now on. What it needs to know to
    /// reach this rank, which is said to it over the sockets.
    fn expect(&mut self, peer: usize, theirs: LaneToken) -> Result<Vec<u8>>;

    /// Open the lane to a peer, who is at `address` and knows this rank by `mine`.
    fn open(&mut self, peer: usize, address: &[u8], mine: LaneToken) -> Result<()>;

    /// Whether it receives into blocks that it is lent beforehand.
    fn posts_receives(&self) -> bool {
        false
    }

    /// Take blocks of a lane that is open, for good, where [`NetEngine::posts_receives`] says that
    /// there are some beside the slots; asked again, it does nothing.
    fn lend(&mut self, _peer: usize, _outbound: &mut Outbound, _inbound: &mut Inbound) {}

    /// Whether something has come from a peer, or both are connected: asked again and again, it
    /// comes to be, where the engine works between the two.
    fn hears(&mut self, peer: usize) -> bool;

    /// Send on what is posted, as far as the engine takes it. What it has taken, it sends without
    /// further calls but of [`progress`](NetEngine::progress).
    fn write(
        &mut self,
        peer: usize,
        outbound: &mut Outbound,
        seals: &Seals,
    ) -> std::result::Result<(), String>;

    /// Tell of messages that are sent, and send nothing more.
    fn settle(&mut self, peer: usize, outbound: &mut Outbound);

    /// Take in what has come.
    fn read(
        &mut self,
        peer: usize,
        inbound: &mut Inbound,
        seals: &Seals,
    ) -> std::result::Result<(), String>;

    /// Do what is to be done for messages that are under way; whether there is news for a call.
    fn progress(&mut self) -> bool;

    /// Whether the peer has all that was sent; asked again and again, it comes to be.
    fn is_delivered(&mut self, peer: usize) -> bool;

    /// End the lane to a peer; whether its slots are free now.
    fn close(&mut self, peer: usize) -> bool;

    /// What becomes readable when there is something to do, once [`NetEngine::arm`] said so.
    fn event(&self) -> Option<RawFd>;

    /// Whether one may sleep on [`NetEngine::event`]: nothing is to be done now.
    fn arm(&mut self) -> bool;
}

/// How long a call waits for an engine that another thread has, where it needs it: a plugin that
/// does not come back holds it for good.
const PATIENCE: Duration = Duration::from_secs(2);

/// How soon an engine that wakes nobody is looked after again, and how late once nothing happens.
const SHORT_PAUSE: Duration = Duration::from_millis(2);
const LONG_PAUSE: Duration = Duration::from_millis(100);

/// The engine of a rank, for its calls and for the thread that looks after it between them.
pub struct SharedEngine {
    engine: Mutex<Box<dyn NetEngine>>,
    /// A call has used it since that thread looked last.
    is_used: AtomicBool,
    /// Wakes that thread to its end.
    end: Arc<EventFd>,
    /// The process it was made in: a forked child has no such thread, and its parent's goes on.
    born: u32,
}

impl SharedEngine {
    pub fn new(engine: Box<dyn NetEngine>) -> Result<SharedEngine> {
        let (is_used, end) = (AtomicBool::new(false), Arc::new(EventFd::new()?));
        let (engine, born) = (Mutex::new(engine), fork::generation());
        Ok(SharedEngine { engine, is_used, end, born })
    }

    /// The engine, for a call, unless another thread has it just now.
    #[inline]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, Box<dyn NetEngine>>> {
        // Relaxed: the other thread looks again soon.
        self.is_used.store(true, Relaxed);
        self.engine.try_lock()
    }

    /// The engine, for what cannot be put off; an error where it does not come back from a call.
    pub fn lock(&self) -> Result<MutexGuard<'_, Box<dyn NetEngine>>> {
        self.engine.try_lock_for(PATIENCE).ok_or_else(|| {
            Error::usage(
                "the network engine does not come back from a call; set another RINGCOMM_NET",
            )
        })
    }

    /// What the engine is, from any thread.
    pub fn info(&self) -> EngineInfo {
        self.lock().map_or_else(|_| EngineInfo::default(), |engine| engine.info())
    }

    /// Let it go on between calls, in a thread of its own: the one that sees peers die does not
    /// wait for others' code. `wake` ends the sleep of a call for which there may be news.
    pub fn serve(self: &Arc<SharedEngine>, wake: impl Fn() + Send + 'static) -> Result<()> {
        let (engine, end) = (Arc::downgrade(self), self.end.clone());
        let started = spawn_deaf("ringcomm-net", move || look_after(&engine, &end, wake));
        started.map(drop).map_err(|error| Error::System {
            what: "starting the thread of the network engine".into(),
            errno: error.raw_os_error().unwrap_or(0),
        })
    }

    /// Let the engine do what there is to do, unless a call does: whether there may be news for
    /// one, and what to sleep on, if there is something.
    fn progress_between_calls(&self) -> (bool, Option<RawFd>) {
        if self.is_used.swap(false, Relaxed) {
            return (false, None);
        }
        let Some(mut engine) = self.engine.try_lock() else { return (false, None) };
        let has_news = engine.progress();
        (has_news, engine.event().filter(|_| engine.arm()))
    }
}

impl Drop for SharedEngine {
    fn drop(&mut self) {
        if self.born == fork::generation() {
            self.end.raise();
        }
    }
}

fn look_after(engine: &Weak<SharedEngine>, end: &EventFd, wake: impl Fn()) {
    let mut pause = SHORT_PAUSE;
    while let Some(shared) = engine.upgrade() {
        let was_used = shared.is_used.load(Relaxed);
        let (has_news, event) = shared.progress_between_calls();
        drop(shared);
        if has_news {
            wake();
        }
        pause = if was_used || has_news { SHORT_PAUSE } else { LONG_PAUSE.min(2 * pause) };
        // The kernel passes over a descriptor of -1.
        let mut polled = [end.raw(), event.unwrap_or(-1)].map(|fd| entry(fd, libc::POLLIN));
        // An error ends the sleep early.
        let _ = poll_for(&mut polled, event.map_or(pause, |_| Duration::MAX));
    }
}
