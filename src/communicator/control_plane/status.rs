//! What a rank's page says, in a form that travels.

use crate::cycle_counter;
use crate::error::cut;
use crate::executor::control_block::shrink_board::Announcement;
use crate::executor::control_block::{ControlBlock, HOST_BYTES, Life, OperationRecord, TEXT_BYTES};
use crate::sync::atomic::Ordering::Relaxed;

/// Calls that a status tells of: the one at hand and the last before it. Ranks that wait for each
/// other are at most a few calls apart.
pub const CALLS: usize = 4;

/// A page without its history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    pub life: Life,
    /// Whose failure it was, and its text.
    pub culprit: Option<u32>,
    pub text: String,
    pub pid: u32,
    pub host: String,
    pub completed: u64,
    /// At most [`CALLS`].
    pub calls: Vec<OperationRecord>,
    pub batch: Option<OperationRecord>,
    pub board: Announcement,
}

impl Status {
    /// What a page says now.
    pub fn of(page: &ControlBlock) -> Status {
        // The life first: who sees a failure sees what came before it.
        let life = page.life();
        let (culprit, text) = match life {
            Life::Failed => page.failure(),
            Life::Working | Life::Left => (None, String::new()),
        };
        let completed = page.completed();
        // Peers of this machine can write the page: any number may stand there.
        let first = completed.saturating_add(1).saturating_sub(CALLS as u64);
        let calls = (first..=completed).filter_map(|sequence| page.record(sequence));
        Status {
            life,
            culprit: culprit.map(|rank| rank as u32),
            text: cut(&text, TEXT_BYTES).into(),
            pid: page.pid.load(Relaxed),
            host: cut(&page.host(), HOST_BYTES).into(),
            completed,
            calls: calls.map(|record| record.seen()).collect(),
            batch: page.open_batch().map(|record| record.seen()),
            board: board(page),
        }
    }

    /// Make a mirror say the same; whether its owner's life has changed by that.
    pub fn reflect(&self, mirror: &ControlBlock) -> bool {
        // Its first words may be on their way while it has yet to say who it is.
        if self.pid != 0 {
            mirror.introduce(self.pid, &self.host);
        }
        mirror.reflect(self.completed, &self.calls, self.batch.as_ref(), cycle_counter::ticks());
        mirror.board.publish(&self.board);
        let before = mirror.life();
        // The life last, as above.
        match self.life {
            Life::Working => {}
            Life::Failed => mirror.fail(self.culprit.unwrap_or(0) as usize, &self.text),
            Life::Left => mirror.leave(),
        }
        mirror.life() != before
    }

    /// Within the bounds that a frame has room for.
    pub fn is_bounded(&self) -> bool {
        self.text.len() <= TEXT_BYTES && self.host.len() <= HOST_BYTES && self.calls.len() <= CALLS
    }
}

/// The page's announcement. Its writer takes less than a microsecond; one that is stopped in the
/// middle publishes again when it goes on.
fn board(page: &ControlBlock) -> Announcement {
    let tries = std::iter::repeat_with(|| page.board.read());
    tries.take(1000).flatten().next().unwrap_or(Announcement::NOTHING)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::segment::Segment;

    #[test]
    fn words_that_come_before_a_name_leave_the_name() {
        let segments = [(); 2].map(|()| Segment::anonymous(size_of::<ControlBlock>()).unwrap());
        #[allow(unsafe_code)]
        // SAFETY: zeroed memory is a page, and each segment holds one.
        let [page, mirror] = segments
            .each_ref()
            .map(|segment| unsafe { &*segment.address().cast::<ControlBlock>() });
        let said = |mirror: &ControlBlock| (mirror.pid.load(Relaxed), mirror.host());
        mirror.introduce(7, "its card says");
        Status::of(page).reflect(mirror);
        assert_eq!(said(mirror), (7, "its card says".into()));
        page.introduce(8, "itself");
        Status::of(page).reflect(mirror);
        assert_eq!(said(mirror), (8, "itself".into()));
    }
}
