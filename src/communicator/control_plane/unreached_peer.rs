//! A rank that this one has met and never been connected with, and that does not come to its
//! listener.
//!
//! Its process may be gone: then the host refuses, as it also does where a filter was told to. Or
//! something between the two lets nothing through, and nobody answers. So what is told of it says
//! both, and what happened: who has seen the rank die tells that, and what is heard first stays.

use super::{FIRST_LINK, OutgoingConnection, Plane};
use crate::bootstrap::tcp::Network;
use crate::error::Error;
use std::time::Duration;

/// How long a rank whose listener refuses is not given up yet: it may have left, or died, and ranks
/// that this one is about to be connected with know of it.
const REFUSED_GRACE: Duration = Duration::from_millis(40);

impl<N: Network> Plane<N> {
    /// A call to such a rank has failed.
    pub(super) fn called_in_vain(&mut self, call: &OutgoingConnection<N::Stream>, why: &Error) {
        let (now, peer) = (self.now, call.peer);
        let neighbour = &mut self.neighbours[peer];
        let is_refused = matches!(why, Error::System { errno: libc::ECONNREFUSED, .. });
        if is_refused && now < *neighbour.refused.get_or_insert(now) + REFUSED_GRACE {
            neighbour.probe_at = Some(now + REFUSED_GRACE);
        } else if !is_refused && !call.dial.is_silent(now) {
            // Its kernel answers and it does not: the calls that need it have a deadline.
            neighbour.probe_at = Some(now + FIRST_LINK);
        } else {
            neighbour.probe_at = None;
            if !self.gossip.has_left(peer) {
                self.gossip.unreached(peer, call.dial.obstacle(now));
            }
        }
    }
}
