//! Asking a rank itself why the connection that carried its data has ended.
//!
//! Whoever finds such a connection ended calls the other end's listener. The control thread there
//! answers with the dead that it knows of and, last, with what its own page says: where it has
//! failed, that came before it closed anything. Where the listener refuses, the process is gone,
//! and its neighbours, who have its last words, tell of it.

use super::{Aim, Plane};
use crate::bootstrap::tcp::{ByteStream, Network, ProvenConnection, is_not_yet};
use crate::communicator::control_plane::frame::{ControlOpener, ControlSealer, Item};
use std::time::Instant;

/// A question whose answer has yet to come.
struct PendingQuery<S> {
    peer: usize,
    stream: S,
    opener: ControlOpener,
}

/// An answer that has yet to leave.
struct Answer<S> {
    stream: S,
    bytes: Vec<u8>,
}

pub(super) struct Inquiries<S> {
    questions: Vec<PendingQuery<S>>,
    answers: Vec<Answer<S>>,
    /// Peers that have said what they know.
    explained: Vec<usize>,
}

impl<S: ByteStream> Inquiries<S> {
    pub fn new() -> Inquiries<S> {
        Inquiries { questions: Vec::new(), answers: Vec::new(), explained: Vec::new() }
    }

    /// The streams, with whether they have something to send.
    pub fn streams(&self) -> impl Iterator<Item = (&S, bool)> {
        let questions = self.questions.iter().map(|question| (&question.stream, false));
        questions.chain(self.answers.iter().map(|answer| (&answer.stream, true)))
    }
}

impl<N: Network> Plane<N> {
    /// Ask a peer whose connection for data has ended what it knows.
    pub fn ask(&mut self, peer: usize, now: Instant) {
        self.now = now;
        if self.gossip.is_gone(peer) || self.gossip.has_left(peer) {
            self.inquiries.explained.push(peer);
        } else {
            self.call(peer, Aim::Ask);
        }
    }

    /// Peers that were asked and whose answer shows on the mirrors.
    pub fn take_explained(&mut self) -> Vec<usize> {
        std::mem::take(&mut self.inquiries.explained)
    }

    /// A peer that was called takes the question.
    pub(super) fn await_answer(&mut self, peer: usize, arrival: ProvenConnection<N::Stream>) {
        let (stream, opener) = (arrival.stream, ControlOpener::new(&arrival.keys.receive));
        self.inquiries.questions.push(PendingQuery { peer, stream, opener });
    }

    /// Answer whoever has come to ask.
    pub(super) fn answer(&mut self, arrival: ProvenConnection<N::Stream>) {
        self.publish();
        let (mut sealer, mut bytes) = (ControlSealer::new(&arrival.keys.send), Vec::new());
        self.gossip.report().iter().for_each(|item| sealer.seal(item, &mut bytes));
        self.inquiries.answers.push(Answer { stream: arrival.stream, bytes });
    }

    /// Take what has come for questions, and send what the others take of answers.
    pub(super) fn advance_inquiries(&mut self) {
        for mut question in std::mem::take(&mut self.inquiries.questions) {
            match self.listen(&mut question) {
                Some(true) => self.inquiries.explained.push(question.peer),
                Some(false) => self.inquiries.questions.push(question),
                None => {}
            }
        }
        self.apply_news();
        self.inquiries.answers.retain_mut(|answer| {
            loop {
                if answer.bytes.is_empty() {
                    answer.stream.finish();
                    return false;
                }
                match answer.stream.send(&answer.bytes) {
                    Ok(count) => drop(answer.bytes.drain(..count)),
                    Err(error) => return is_not_yet(&error),
                }
            }
        });
    }

    /// Whether the whole answer has come; `None` if it never will.
    fn listen(&mut self, question: &mut PendingQuery<N::Stream>) -> Option<bool> {
        let mut bytes = [0; 4 << 10];
        loop {
            let count = match question.stream.receive(&mut bytes) {
                Ok(0) => return None,
                Ok(count) => count,
                Err(error) if is_not_yet(&error) => return Some(false),
                Err(_) => return None,
            };
            let mut items = Vec::new();
            question.opener.feed(&bytes[..count], |item| items.push(item)).ok()?;
            for item in items {
                let is_last =
                    matches!(item, Item::Status { rank, .. } if rank as usize == question.peer);
                self.gossip.learn(item).ok()?;
                if is_last {
                    return Some(true);
                }
            }
        }
    }
}
