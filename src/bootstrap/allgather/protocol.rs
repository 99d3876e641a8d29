//! What the root and the other ranks of a rendezvous have in common: events in, actions out, and
//! the branches below them.
//!
//! ```text
//! rank                      root                         the rank's parent in the tree
//!   here(listener) ->
//!                        <- place(parent's listener)
//!   join ->  ..........................................>
//!                           <......................... adopted
//!   attached ->                 (the contact ends)
//!   offers ->  .......................................>   ... and so up to the root
//!              table          <....................... and so down to everybody
//!   done ->    .......................................>   up again: this rank has it
//!              go             <....................... down again: everybody has it
//! ```
//!
//! Ranks are placed in the order in which they come, the i-th below the (i / ARITY - 1)-th, so that
//! a parent is always there before its children: no contact waits for another rank, and a late rank
//! holds up nobody but itself. The first few stay below the root on the connection that they came
//! by.
//!
//! A connection of the tree that ends before its time is a death: both sides tell their own part of
//! the tree at once, and the failure names the rank that the first of them lost.

use super::message::{
    AllgatherMessage, MAX_BODY, PeerId, RankContribution, entry_bytes, push_entry,
};
use crate::bootstrap::error::BootstrapError;
use crate::bootstrap::local::wire::Failure;
use crate::bootstrap::tcp::Refusal;
use crate::bootstrap::tcp::hello::Hello;
use crate::error::Error;
use crate::host;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Children of the root and of every rank. Larger is fewer rounds, smaller is fewer copies of the
/// table that one rank sends.
pub const ARITY: usize = 8;

/// One connection of this rank's, by a number of its own.
pub type ConnectionId = u64;

/// What happened.
pub enum TreeEvent {
    /// Somebody came through the listener.
    Came {
        link: ConnectionId,
        greeting: Hello,
        /// How long its handshake took.
        took: Duration,
    },
    /// What was dialled let us in.
    Reached {
        link: ConnectionId,
    },
    /// What was dialled did not.
    Unreachable {
        error: Error,
    },
    Said {
        link: ConnectionId,
        message: AllgatherMessage,
    },
    /// The connection ended.
    Lost {
        link: ConnectionId,
    },
    /// What came over the connection makes no sense.
    Garbled {
        link: ConnectionId,
        why: Refusal,
    },
}

/// What is to be done.
pub enum TreeAction {
    Say {
        link: ConnectionId,
        message: AllgatherMessage,
    },
    /// Connect; of one dial at a time, the last that was asked for counts. `was_open`: whoever
    /// does not listen there any more is gone. It is given up at `until`.
    Dial {
        to: Vec<SocketAddr>,
        rank: u32,
        was_open: bool,
        until: Instant,
    },
    /// End a connection once what was said has left.
    Hang {
        link: ConnectionId,
    },
}

/// What every rank leaves with: all contributions in order of rank.
pub type PeerTable = Vec<(PeerId, Vec<u8>)>;

/// A failure as the text of one's own error, where its own kind cannot carry it.
pub fn own_failure(me: PeerId, error: &Error) -> Failure {
    match error {
        Error::System { what, errno } => refused(me, *errno, what.clone()),
        other => refused(me, libc::EPROTO, other.to_string()),
    }
}

/// What a rank could not do, in its own words.
pub fn refused(me: PeerId, errno: i32, what: String) -> Failure {
    let PeerId { rank, pid } = me;
    Failure::System { rank, pid, host: host::name().into(), errno, what }
}

/// A rank was lost. The root knows the hosts of the ranks, and adds them for those that it tells.
pub fn died(who: PeerId) -> Failure {
    Failure::Died { rank: who.rank, pid: who.pid, host: "".into() }
}

/// What came from a party with this name made no sense.
pub fn garbled(me: PeerId, from: &str, why: Refusal) -> Failure {
    let what = format!("{} got {why} from {from}", name(PeerId { pid: 0, ..me }));
    refused(me, libc::EBADMSG, what)
}

pub fn out_of_turn(from: &str) -> Failure {
    Failure::Usage { text: format!("{from} sent something out of turn") }
}

/// A party for a text.
pub fn name(party: PeerId) -> String {
    let PeerId { rank, pid } = party;
    match (rank, pid) {
        (super::message::NO_RANK, _) => "the root".into(),
        (_, 0) => format!("rank {rank}"),
        _ => format!("rank {rank} (pid {pid})"),
    }
}

/// What the failure of a rendezvous is to one rank.
pub fn into_unmet(failure: Failure, me: u32, nranks: usize) -> BootstrapError {
    match failure {
        Failure::Died { rank: super::message::NO_RANK, pid, .. } => {
            BootstrapError::there(Error::System {
                what: format!(
                    "the process that made the unique id (pid {pid}) ended or hung up before all \
                 {nranks} ranks had met"
                ),
                errno: libc::ECONNRESET,
            })
        }
        Failure::System { rank: super::message::NO_RANK, pid, host, errno, what } => {
            let what =
                format!("the process that made the unique id (host {host}, pid {pid}): {what}");
            BootstrapError::there(Error::System { what, errno })
        }
        // What was damaged on its way says nothing against this rank: another rendezvous may go
        // well.
        Failure::System { errno: libc::EBADMSG, .. } => {
            BootstrapError::there(failure.into_error(me as usize, nranks))
        }
        other => other.into_unmet(me as usize, nranks),
    }
}

struct Child {
    link: ConnectionId,
    who: PeerId,
}

/// The ranks directly below.
#[derive(Default)]
pub struct Branches(Vec<Child>);

impl Branches {
    pub fn add(&mut self, link: ConnectionId, who: PeerId) {
        self.0.push(Child { link, who });
    }

    pub fn who(&self, link: ConnectionId) -> Option<PeerId> {
        self.0.iter().find(|child| child.link == link).map(|child| child.who)
    }

    pub fn links(&self) -> impl Iterator<Item = ConnectionId> {
        self.0.iter().map(|child| child.link)
    }

    pub fn say(&self, message: &AllgatherMessage, actions: &mut Vec<TreeAction>) {
        for link in self.links() {
            actions.push(TreeAction::Say { link, message: message.clone() });
        }
    }
}

/// A table as messages.
pub fn table_messages(table: &PeerTable) -> Vec<AllgatherMessage> {
    let (mut messages, mut body, mut first) = (Vec::new(), Vec::new(), 0);
    for (rank, (from, payload)) in (0..).zip(table) {
        if body.len() + entry_bytes(payload) > MAX_BODY {
            let full = Arc::from(std::mem::take(&mut body));
            messages.push(AllgatherMessage::Table { first, count: rank - first, body: full });
            first = rank;
        }
        push_entry(&mut body, &RankContribution { from: *from, payload });
    }
    let count = table.len() as u32 - first;
    messages.push(AllgatherMessage::Table { first, count, body: Arc::from(body) });
    messages
}
