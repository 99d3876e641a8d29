//! Point-to-point messages as their user asks for them, and what is refused before any is sent.

use crate::error::{Error, Result};
use crate::types::DataType;

/// One message of a point-to-point batch.
#[derive(Clone, Copy, Debug)]
pub enum Message {
    Send { buffer: *const u8, count: usize, data_type: DataType, peer: usize },
    Recv { buffer: *mut u8, count: usize, data_type: DataType, peer: usize },
}

impl AsRef<Message> for Message {
    fn as_ref(&self) -> &Message {
        self
    }
}

impl Message {
    /// Whether it is a send, its peer, buffer, count and type.
    pub(in crate::communicator) fn parts(&self) -> (bool, usize, *mut u8, usize, DataType) {
        match *self {
            Message::Send { buffer, count, data_type, peer } => {
                (true, peer, buffer.cast_mut(), count, data_type)
            }
            Message::Recv { buffer, count, data_type, peer } => {
                (false, peer, buffer, count, data_type)
            }
        }
    }

    /// Refuse what can never be right by itself.
    pub(in crate::communicator) fn check(&self, nranks: usize) -> Result<()> {
        let (sends, peer, address, count, data_type) = self.parts();
        let name = if sends { "Send" } else { "Recv" };
        if peer >= nranks {
            return Err(Error::argument(format!(
                "{name}: peer {peer} is not a rank of this communicator; ranks are 0 to {}",
                nranks - 1
            )));
        }
        let bytes = count.checked_mul(data_type.size());
        let Some(bytes) = bytes.filter(|bytes| *bytes <= isize::MAX as usize) else {
            return Err(Error::argument(format!("{name}: count {count} does not fit memory")));
        };
        if bytes > 0 && address.is_null() {
            return Err(Error::argument(format!("{name}: the buffer of {count} elements is NULL")));
        }
        Ok(())
    }
}

/// Refuse a batch of `rank` that can never be right.
pub(in crate::communicator) fn check<M: AsRef<Message>>(
    messages: &[M],
    rank: usize,
    nranks: usize,
) -> Result<()> {
    messages.iter().try_for_each(|message| message.as_ref().check(nranks))?;
    let own = |sends: bool| {
        let parts = messages.iter().map(|message| message.as_ref().parts());
        parts.filter(move |(sent, peer, ..)| *sent == sends && *peer == rank)
    };
    // Of messages to itself nobody else can bring the other end.
    let (mut sent, mut received) = (own(true), own(false));
    loop {
        match (sent.next(), received.next()) {
            (None, None) => return Ok(()),
            (Some((.., count, data_type)), Some((.., expected, expected_type))) => {
                if (count, data_type) != (expected, expected_type) {
                    return Err(Error::argument(format!(
                        "rank {rank} sends itself {count} elements of type {data_type} but \
                         receives {expected} of type {expected_type}"
                    )));
                }
            }
            _ => {
                return Err(Error::argument(format!(
                    "rank {rank} sends to itself without receiving, or the reverse; put both in \
                     one group"
                )));
            }
        }
    }
}
