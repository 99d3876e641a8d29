//! One peer's lane of UCX: the messages under way in both directions, and how much of them the
//! other end has taken; and what UCX calls back.
#![allow(unsafe_code)]

use super::declarations::{AmRecvParam, IN_PROGRESS, OK, Object, RequestParam, UcsStatus};
use super::library::{Begun, Ucp};
use crate::crypto::TAG_BYTES;
use crate::transport::engine::{Coming, ENVELOPE_BYTES, Envelope, LaneToken};
use crate::transport::tcp::FRAME_BYTES;
use std::collections::VecDeque;
use std::ffi::{c_uint, c_void};
use std::time::{Duration, Instant};

/// The number of the active messages.
pub const MESSAGE: c_uint = 1;

/// Messages to a peer that it has not taken yet, at most: it keeps them, however slow it is.
pub const WINDOW: u64 = 64;

/// How often a peer is asked again: its answer may have overtaken a message.
const ASKING: Duration = Duration::from_millis(10);

/// What ends tell each other in a message of its own: how many messages were taken, as in an
/// envelope, how many have come, and whether an answer is wanted.
#[derive(Clone, Copy)]
#[repr(C)]
struct ArrivalWord {
    token: LaneToken,
    taken: [u8; 8],
    said: Said,
}

/// The part of a word that envelopes do not have.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Said {
    arrived: [u8; 8],
    asks: u8,
}

impl Said {
    /// Messages that have come to the peer, if it has not taken them.
    pub fn arrived(self) -> u64 {
        u64::from_le_bytes(self.arrived)
    }

    pub fn asks(self) -> bool {
        self.asks != 0
    }
}

const WORD_BYTES: usize = size_of::<ArrivalWord>();
const _: () = assert!(WORD_BYTES < ENVELOPE_BYTES && align_of::<Envelope>() == 1);

/// A message that has come, which UCX keeps.
pub struct Arrival {
    pub envelope: Envelope,
    pub data: *mut c_void,
    pub length: usize,
    /// The payload is still at the peer.
    pub is_far: bool,
    /// It is no message, but a word on these.
    pub said: Option<Said>,
}

/// What UCX's callbacks leave.
#[derive(Default)]
pub struct Inbox {
    pub arrivals: Vec<Arrival>,
    pub failures: Vec<(usize, UcsStatus)>,
}

/// Whom an endpoint's failure is of.
pub struct Whom {
    pub inbox: *mut Inbox,
    pub peer: usize,
}

/// A message under way: its request, and what it is.
pub struct Sending {
    pub request: *mut c_void,
    /// `None` for a word of credit.
    pub position: Option<u64>,
    pub envelope: Box<Envelope>,
}

/// A payload on its way to its slot.
pub struct Receiving {
    pub request: *mut c_void,
    pub what: Coming,
}

/// One peer's lane.
pub struct UcxLane {
    /// `None` until the peer has said where it is.
    pub endpoint: Option<Object>,
    /// What the peer knows this rank by, and what this rank knows the peer by.
    pub mine: LaneToken,
    pub theirs: LaneToken,
    pub arrivals: VecDeque<Arrival>,
    pub sending: Vec<Sending>,
    pub receiving: Vec<Receiving>,
    /// Envelopes of messages that are over, for the next.
    #[allow(clippy::vec_box)] // UCX has an envelope's address while it is in use.
    pub spare: Vec<Box<Envelope>>,
    /// Messages sent, and of these, as far as the peer has said, taken by it and come to it.
    pub sent: u64,
    pub sent_taken: u64,
    pub sent_arrived: u64,
    /// Messages of the peer's that have come, those taken by the connection, and how many of these
    /// the peer was told of.
    pub arrived: u64,
    pub taken: u64,
    pub taken_told: u64,
    pub failed: Option<String>,
    /// When the peer was asked last what has come to it.
    pub asked: Option<Instant>,
    /// Something has come from the peer.
    pub has_heard: bool,
    /// Positions of messages that are over and were not at once.
    pub done: Vec<u64>,
    /// UCX has its address.
    pub whom: Box<Whom>,
}

impl UcxLane {
    /// A lane that takes what comes with this token.
    pub fn new(theirs: LaneToken, whom: Whom) -> UcxLane {
        UcxLane {
            endpoint: None,
            mine: LaneToken::default(),
            theirs,
            arrivals: VecDeque::new(),
            sending: Vec::new(),
            receiving: Vec::new(),
            spare: Vec::new(),
            sent: 0,
            sent_taken: 0,
            sent_arrived: 0,
            arrived: 0,
            taken: 0,
            taken_told: 0,
            failed: None,
            asked: None,
            has_heard: false,
            done: Vec::new(),
            whom: Box::new(whom),
        }
    }

    /// An envelope for a message that is about to leave.
    pub fn envelope(&mut self, frame: [u8; FRAME_BYTES], tag: [u8; TAG_BYTES]) -> Box<Envelope> {
        self.taken_told = self.taken;
        let envelope = Envelope { token: self.mine, taken: self.taken.to_le_bytes(), frame, tag };
        match self.spare.pop() {
            Some(mut spare) => {
                *spare = envelope;
                spare
            }
            None => Box::new(envelope),
        }
    }

    /// Send a message of `bytes` of its envelope and a payload; whether it is over already.
    ///
    /// # Safety
    /// The payload stays as it is until the message is over or the endpoint closed.
    pub unsafe fn send(
        &mut self,
        ucp: &Ucp,
        position: Option<u64>,
        (envelope, bytes): (Box<Envelope>, usize),
        (payload, length): (*const u8, usize),
    ) -> std::result::Result<bool, String> {
        if let Some(why) = &self.failed {
            return Err(why.clone());
        }
        let endpoint = self.endpoint.expect("the lane is open");
        let param = RequestParam::default();
        // SAFETY: the caller's promise; the envelope lies where it is until the message is over.
        let begun = Begun::of(unsafe {
            (ucp.am_send_nbx)(
                endpoint,
                MESSAGE,
                (&raw const *envelope).cast(),
                bytes,
                payload.cast(),
                length,
                &raw const param,
            )
        });
        match begun {
            Begun::Done => {
                self.spare.push(envelope);
                Ok(true)
            }
            Begun::Request(request) => {
                self.sending.push(Sending { request, position, envelope });
                Ok(false)
            }
            Begun::Failed(status) => Err(told(status)),
        }
    }

    /// Tell the peer what has come and was taken of its messages; ask it for the same.
    pub fn tell(&mut self, ucp: &Ucp, asks: bool) -> std::result::Result<(), String> {
        if self.endpoint.is_none() {
            return Ok(());
        }
        let mut envelope = self.envelope([0; FRAME_BYTES], [0; TAG_BYTES]);
        let said = Said { arrived: self.arrived.to_le_bytes(), asks: u8::from(asks) };
        let word = ArrivalWord { token: envelope.token, taken: envelope.taken, said };
        // SAFETY: a word is bytes, and shorter than an envelope.
        unsafe { (&raw mut *envelope).cast::<ArrivalWord>().write(word) };
        // SAFETY: there is no payload.
        unsafe { self.send(ucp, None, (envelope, WORD_BYTES), (std::ptr::null(), 0))? };
        Ok(())
    }

    /// Hear what came with the peer's token; whether it is a message, which is kept.
    pub fn hear(&mut self, ucp: &Ucp, arrival: &Arrival) -> bool {
        let taken = u64::from_le_bytes(arrival.envelope.taken);
        let arrived = arrival.said.map_or(0, Said::arrived);
        if taken.max(arrived) > self.sent || self.arrivals.len() as u64 > WINDOW {
            let why = "it sends what no right peer sends";
            self.failed.get_or_insert_with(|| why.into());
            return false;
        }
        self.has_heard = true;
        self.sent_taken = self.sent_taken.max(taken);
        self.sent_arrived = self.sent_arrived.max(arrived);
        match arrival.said {
            None => self.arrived += 1,
            Some(said) if said.asks() => {
                // What fails here shows where the lane is read.
                let _ = self.tell(ucp, false);
            }
            Some(_) => {}
        }
        arrival.said.is_none()
    }

    /// Give back what messages that are over had, and note which these are.
    pub fn reap(&mut self, ucp: &Ucp) {
        let mut at = 0;
        while at < self.sending.len() {
            // SAFETY: the request is not freed yet.
            match unsafe { (ucp.request_check_status)(self.sending[at].request) } {
                IN_PROGRESS => at += 1,
                status => {
                    let Sending { request, position, envelope } = self.sending.swap_remove(at);
                    // SAFETY: it is over.
                    unsafe { (ucp.request_free)(request) };
                    self.spare.push(envelope);
                    if status != OK {
                        self.failed.get_or_insert_with(|| told(status));
                    }
                    self.done.extend(position.filter(|_| status == OK));
                }
            }
        }
    }

    /// Ask the peer, now and then, what has come to it.
    pub fn ask(&mut self, ucp: &Ucp) {
        if self.asked.is_none_or(|at| at.elapsed() > ASKING) {
            self.asked = Some(Instant::now());
            // What fails here shows where the lane is read.
            let _ = self.tell(ucp, true);
        }
    }

    /// Whether no request is under way.
    pub fn is_idle(&self, ucp: &Ucp) -> bool {
        let is_over = |request| {
            // SAFETY: the request is not freed yet.
            unsafe { (ucp.request_check_status)(request) != IN_PROGRESS }
        };
        self.sending.iter().all(|one| is_over(one.request))
            && self.receiving.iter().all(|one| is_over(one.request))
    }

    /// All requests under way.
    pub fn requests(&self) -> impl Iterator<Item = *mut c_void> {
        let sends = self.sending.iter().map(|one| one.request);
        sends.chain(self.receiving.iter().map(|one| one.request))
    }
}

/// What a status of UCX's says.
pub fn told(status: UcsStatus) -> String {
    let words = match status {
        -3 => "an input or output error",
        -6 => "the destination is unreachable",
        -16 => "it was cancelled",
        -20 => "it timed out",
        -25 => "the peer has reset the connection",
        -80 => "the endpoint timed out",
        _ => "an error",
    };
    format!("UCX says: {words} (status {status})")
}

/// A message has come: keep it for the thread that made the call.
pub unsafe extern "C" fn on_message(
    inbox: *mut c_void,
    header: *const c_void,
    header_length: usize,
    data: *mut c_void,
    length: usize,
    param: *const AmRecvParam,
) -> UcsStatus {
    let is_word = header_length == WORD_BYTES && length == 0;
    if header_length != ENVELOPE_BYTES && !is_word {
        return OK;
    }
    let mut bytes = [0u8; ENVELOPE_BYTES];
    // SAFETY: UCX gives a header of that length, and the flags of the message; any bytes are an
    // envelope.
    let (envelope, word, flags) = unsafe {
        bytes.as_mut_ptr().copy_from_nonoverlapping(header.cast(), header_length);
        let address = bytes.as_ptr();
        (*address.cast::<Envelope>(), *address.cast::<ArrivalWord>(), (*param).recv_attr)
    };
    let is_far = flags & AmRecvParam::RENDEZVOUS != 0;
    let is_kept = is_far || flags & AmRecvParam::DATA != 0;
    let data = if is_kept { data } else { std::ptr::null_mut() };
    let said = is_word.then_some(word.said);
    let arrival = Arrival { envelope, data, length, is_far, said };
    // SAFETY: the worker's inbox, which nobody else uses while UCX is at work.
    unsafe { (*inbox.cast::<Inbox>()).arrivals.push(arrival) };
    if is_kept { IN_PROGRESS } else { OK }
}

/// An endpoint has failed.
pub unsafe extern "C" fn on_error(whom: *mut c_void, _endpoint: Object, status: UcsStatus) {
    // SAFETY: what the lane keeps as long as its endpoint.
    unsafe {
        let Whom { inbox, peer } = *whom.cast::<Whom>();
        (*inbox).failures.push((peer, status));
    }
}
