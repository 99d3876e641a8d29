//! One peer's lane of a network plugin: its rails, the messages under way, and how many have come.
//!
//! A message is one of the plugin's: the payload, and directly behind it the [`Envelope`]. Message
//! number p goes over rail p modulo the number of rails. Each rail receives into blocks of its own,
//! so that no rail waits for a block that another one has.
//!
//! A message of an envelope alone, without a frame, is a word. It says how many messages have come,
//! where no message the other way has said so for a while. A plugin may call a send done before the
//! peer has it, so only that count tells that all was delivered.
#![allow(unsafe_code)]

use super::abi::HANDLE_BYTES;
use super::channel::{Failed, Memory, Rail, RailRemains};
use super::library::NetPlugin;
use crate::crypto::TAG_BYTES;
use crate::transport::engine::{Coming, ENVELOPE_BYTES, Envelope, LaneToken, Seals};
use crate::transport::tcp::{FRAME_BYTES, Frame, FrameAdmission, Inbound, Outbound};
use std::time::{Duration, Instant};

/// How long nothing has come before the peer is told what has: messages tell it too, and a peer who
/// waits for this word does nothing else any more.
const QUIET: Duration = Duration::from_millis(1);

/// A message that has come.
struct ReceivedFrame {
    frame: Frame,
    header: [u8; FRAME_BYTES],
    tag: [u8; TAG_BYTES],
    block: usize,
}

/// What is over: on which rail, in which block, where, and the bytes of it.
type Over = (usize, usize, Memory, usize);

/// One peer's lane.
pub struct PluginLane {
    rails: Vec<Rail>,
    /// What the peer knows this rank by, and what this rank knows the peer by.
    mine: LaneToken,
    pub theirs: LaneToken,
    /// The memory of both halves, once it is lent.
    halves: Option<[Memory; 2]>,
    /// The rail of each block that was lent.
    owners: Vec<(usize, usize)>,
    /// Bytes of a block.
    capacity: usize,
    received: Vec<ReceivedFrame>,
    /// Positions of messages that are sent.
    sent_positions: Vec<u64>,
    over: Vec<Over>,
    /// Where words are, if none is under way.
    word: Option<*mut u8>,
    /// Messages sent, and of these, done, and as far as the peer has said come to it.
    sent: u64,
    sent_done: u64,
    sent_arrived: u64,
    /// Messages that have come, how many of these the peer was told of, and when the last one came.
    arrived: u64,
    arrived_told: u64,
    last_arrival: Instant,
    failed: Option<String>,
    /// The peer has sent what no right one sends: nothing more is taken.
    is_over: bool,
}

impl PluginLane {
    /// A lane that takes what comes with this token.
    pub fn new(theirs: LaneToken, rails: Vec<Rail>) -> PluginLane {
        PluginLane {
            rails,
            mine: LaneToken::default(),
            theirs,
            halves: None,
            owners: Vec::new(),
            capacity: 0,
            received: Vec::new(),
            sent_positions: Vec::new(),
            over: Vec::new(),
            word: None,
            sent: 0,
            sent_done: 0,
            sent_arrived: 0,
            arrived: 0,
            arrived_told: 0,
            last_arrival: Instant::now(),
            failed: None,
            is_over: false,
        }
    }

    /// The handles by which the peer finds this rank.
    pub fn handles(&self) -> impl Iterator<Item = &[u8; HANDLE_BYTES]> {
        self.rails.iter().map(|rail| &rail.mine)
    }

    /// Reach the peer, who gave these handles and knows this rank by `mine`; what is left of rails
    /// that the peer does not have.
    pub fn open(&mut self, handles: &[[u8; HANDLE_BYTES]], mine: LaneToken) -> Vec<RailRemains> {
        let unused = self.rails.split_off(handles.len().min(self.rails.len()));
        self.rails.iter_mut().zip(handles).for_each(|(rail, handle)| rail.open(*handle));
        self.mine = mine;
        unused.into_iter().map(Rail::remains).collect()
    }

    /// Take blocks of both halves; what is left of rails that there are no blocks for. Both ends
    /// have as many blocks, so they use the same rails.
    pub fn lend(
        &mut self,
        plugin: &NetPlugin,
        outbound: &mut Outbound,
        inbound: &mut Inbound,
    ) -> Vec<RailRemains> {
        if self.halves.is_some() {
            return Vec::new();
        }
        let (Some(sends), Some(receives)) = (outbound.memory(), inbound.memory()) else {
            return Vec::new();
        };
        self.halves = Some([sends, receives]);
        self.word = outbound.lend();
        self.capacity = inbound.slot_bytes() + ENVELOPE_BYTES;
        let unused = self.rails.split_off(inbound.lendable().min(self.rails.len()));
        if self.rails.is_empty() || self.word.is_none() {
            self.fail("there are no slots for it".into());
        } else if self.capacity > plugin.most_bytes {
            self.fail(format!(
                "network plugin {} takes messages of {} bytes at most, and a slot has {}; set a \
                 smaller RINGCOMM_BUFFSIZE or another RINGCOMM_NET",
                plugin.name, plugin.most_bytes, self.capacity
            ));
        } else {
            let rails = self.rails.len();
            let share = inbound.lendable() / rails;
            for rail in (0..share).flat_map(|_| 0..rails) {
                let Some((block, address)) = inbound.lend() else { break };
                self.owners.push((block, rail));
                self.receive_into(rail, block, address);
            }
        }
        unused.into_iter().map(Rail::remains).collect()
    }

    fn receive_into(&mut self, rail: usize, block: usize, address: *mut u8) {
        // SAFETY: a block that was lent to this lane and nobody uses.
        unsafe { self.rails[rail].receives.post((address, self.capacity), block) };
    }

    /// Receive again into blocks whose messages were read.
    pub fn reclaim(&mut self, inbound: &mut Inbound) {
        while let Some((block, address)) = inbound.take_returned() {
            let owner = self.owners.iter().find(|(lent, _)| *lent == block);
            let (_, rail) = *owner.expect("it was lent to this lane");
            self.receive_into(rail, block, address);
        }
    }

    pub fn is_connected(&self) -> bool {
        self.halves.is_some() && self.rails.iter().all(Rail::is_connected)
    }

    fn fail(&mut self, why: String) {
        self.failed.get_or_insert(why);
    }

    /// Why the lane is of no more use.
    pub fn failure(&self) -> Option<&str> {
        self.failed.as_deref()
    }

    /// What goes behind a payload.
    fn envelope(&mut self, frame: [u8; FRAME_BYTES], tag: [u8; TAG_BYTES]) -> Envelope {
        self.arrived_told = self.arrived;
        Envelope { token: self.mine, taken: self.arrived.to_le_bytes(), frame, tag }
    }

    /// Take what is posted, to be sent; how many messages.
    pub fn queue(&mut self, outbound: &mut Outbound, seals: &Seals) -> u64 {
        if self.failed.is_some() || !self.is_connected() {
            return 0;
        }
        let before = self.sent;
        while let Some(position) = outbound.take(seals.seals.as_ref()) {
            let message = outbound.message(position);
            let envelope = self.envelope(message.header, message.tag);
            let memory = outbound.append(position, bytes_of(&envelope));
            let rail = (position % self.rails.len() as u64) as usize;
            // SAFETY: the message keeps its slot until it is done, and the lane is closed before
            // the connection gives up its slots.
            unsafe { self.rails[rail].sends.post(memory, Some(position)) };
            self.sent += 1;
        }
        self.sent - before
    }

    /// Tell `outbound` of what is sent.
    pub fn settle_sends(&mut self, outbound: &mut Outbound) {
        self.sent_positions.drain(..).for_each(|position| outbound.done(position));
    }

    /// Do what is to be done for messages that are under way.
    pub fn advance(&mut self, plugin: &NetPlugin) {
        let Some([sends, receives]) = self.halves.filter(|_| !self.is_over) else { return };
        let mut failed: Option<Failed> = None;
        for (number, rail) in self.rails.iter_mut().enumerate() {
            // A rail that has failed to connect is not asked again.
            if !rail.is_connected() && self.failed.is_none() {
                failed = failed.or(rail.connect(plugin).err());
            }
            let over = &mut self.over;
            let mut come = |block, memory, size| over.push((number, block, memory, size));
            // SAFETY: what is posted lies in that half's memory, which is mapped until the lane is
            // closed.
            let received = unsafe { rail.receives.drive(&plugin.calls, receives, &mut come) };
            let (positions, done, word) =
                (&mut self.sent_positions, &mut self.sent_done, &mut self.word);
            let mut gone = |position, memory: Memory, _| match position {
                Some(position) => {
                    positions.push(position);
                    *done += 1;
                }
                None => *word = Some(memory.0),
            };
            // SAFETY: as above.
            let sent = unsafe { rail.sends.drive(&plugin.calls, sends, &mut gone) };
            failed = failed.or(received.err()).or(sent.err());
        }
        let mut over = std::mem::take(&mut self.over);
        over.drain(..).for_each(|one| self.arrive(one));
        self.over = over;
        if let Some((call, code)) = failed {
            self.fail(plugin.told(call, code));
        }
        self.tell();
    }

    /// Whether something waits for the connection to take it.
    pub fn has_news(&self) -> bool {
        !self.received.is_empty() || !self.sent_positions.is_empty() || self.failed.is_some()
    }

    /// Something has come to a block: keep a message for the connection, and hear a word.
    fn arrive(&mut self, (rail, block, (address, _), size): Over) {
        if self.is_over {
            return;
        }
        match self.take_in(block, address, size) {
            Ok(true) => {}
            Ok(false) => self.receive_into(rail, block, address),
            Err(why) => {
                self.is_over = true;
                self.fail(why.into());
            }
        }
    }

    /// Whether it is a message.
    fn take_in(&mut self, block: usize, at: *mut u8, size: usize) -> Result<bool, &'static str> {
        if !(ENVELOPE_BYTES..=self.capacity).contains(&size) {
            return Err("a message has a length that none has");
        }
        // SAFETY: so many bytes have come to the block; an envelope is bytes.
        let envelope = unsafe { at.add(size - ENVELOPE_BYTES).cast::<Envelope>().read_unaligned() };
        let Envelope { token, taken, frame: header, tag } = envelope;
        if token != self.theirs {
            return Err("a message came that the peer did not send");
        }
        let taken = u64::from_le_bytes(taken);
        if taken > self.sent {
            return Err("the peer has more messages than were sent");
        }
        self.sent_arrived = self.sent_arrived.max(taken);
        if size == ENVELOPE_BYTES && header == [0; FRAME_BYTES] {
            return Ok(false);
        }
        let frame = Frame::decode(&header)?;
        if frame.length as usize != size - ENVELOPE_BYTES {
            return Err("a message has another length than its frame says");
        }
        self.arrived += 1;
        self.last_arrival = Instant::now();
        self.received.push(ReceivedFrame { frame, header, tag, block });
        Ok(true)
    }

    /// Tell the peer what has come, where nothing else has for a while.
    fn tell(&mut self) {
        let is_due = self.arrived > self.arrived_told
            && self.failed.is_none()
            && self.is_connected()
            && self.last_arrival.elapsed() >= QUIET;
        let Some(address) = self.word.take_if(|_| is_due) else { return };
        let envelope = self.envelope([0; FRAME_BYTES], [0; TAG_BYTES]);
        // SAFETY: a block for words, and none is under way.
        unsafe { address.cast::<Envelope>().write_unaligned(envelope) };
        // SAFETY: the block is the lane's until it is closed.
        unsafe { self.rails[0].sends.post((address, ENVELOPE_BYTES), None) };
    }

    /// Hand over what has come, as far as there are slots.
    pub fn hand_over(&mut self, inbound: &mut Inbound, seals: &Seals) -> Result<(), String> {
        let mut at = 0;
        while at < self.received.len() {
            let ReceivedFrame { frame, header, tag, block } = self.received[at];
            let outcome = match inbound.admit_into(&frame, block) {
                Ok(FrameAdmission::Later) => {
                    at += 1;
                    continue;
                }
                Ok(FrameAdmission::Into(place)) => {
                    Coming { frame, header, tag, place }.arrive(seals, inbound)
                }
                Err(why) => Err(why.into()),
            };
            self.received.remove(at);
            if let Err(why) = outcome {
                self.is_over = true;
                self.fail(why.clone());
                return Err(why);
            }
        }
        Ok(())
    }

    /// Whether the peer has all that was sent, as far as it can be known.
    pub fn is_delivered(&mut self) -> bool {
        self.failed.is_some() || self.sent_done.min(self.sent_arrived) == self.sent
    }

    /// What there is to close; nothing else is called any more.
    pub fn remains(self) -> Vec<RailRemains> {
        self.rails.into_iter().map(Rail::remains).collect()
    }
}

fn bytes_of(envelope: &Envelope) -> &[u8; ENVELOPE_BYTES] {
    // SAFETY: an envelope is bytes alone.
    unsafe { &*std::ptr::from_ref(envelope).cast() }
}
