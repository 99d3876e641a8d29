//! How many descriptors a rank needs to make a communicator, found out before it counts on them.

use crate::error::{Error, Result};
use crate::os::descriptors::room_for;

/// What a rank opens for itself: a segment, a mailbox, its process, a socket or two.
const OWN: usize = 8;
/// For each rank of another process of its host: three that it is sent, and a socket to send them.
const NEAR: usize = 4;
/// Where there are other hosts: a contact, a parent and children in the rendezvous, the events of
/// the control thread, and a connection to come.
const FAR: usize = 16;

/// The descriptors that a rank opens at most while a communicator is made.
///
/// `near` is how many of the ranks are in other processes of its host, `far` how many are on other
/// hosts, to each of which it has so many sockets for data as soon as it has sent something.
pub fn needed(near: usize, far: usize, sockets: usize) -> usize {
    // As it measures the network, a rank speaks with few others.
    let spoken_to = far.checked_ilog2().map_or(0, |log| 2 * (log as usize + 1));
    let outside = if far > 0 { FAR + spoken_to * (1 + sockets) } else { 0 };
    OWN + NEAR * near + outside
}

/// An error where this process cannot have so many descriptors more.
pub fn ensure(rank: usize, count: usize) -> Result<()> {
    match room_for(count) {
        (_, Ok(())) => Ok(()),
        (room, Err(error)) => Err(Error::os(lacking(rank, room, count), error)),
    }
}

/// What is said of a rank that has room for too few.
pub fn lacking(rank: usize, room: usize, count: usize) -> String {
    format!("rank {rank} can open {room} more files, and may need {count} for the new communicator")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_ranks_need_more_and_other_hosts_cost_little_each() {
        assert!(needed(0, 0, 1) < needed(1, 0, 1));
        assert!(needed(0, 1, 1) < needed(0, 1, 4));
        assert!(needed(0, 10_000, 1) < needed(0, 1, 1) + 100);
    }

    #[test]
    fn who_lacks_room_is_told_how_much() {
        assert!(ensure(3, 2).is_ok());
        let error = ensure(3, 1 << 24).unwrap_err().to_string();
        assert!(error.starts_with("rank 3 can open "), "{error}");
        assert!(error.contains("16777216") && error.contains("raise `ulimit -n`"), "{error}");
    }
}
