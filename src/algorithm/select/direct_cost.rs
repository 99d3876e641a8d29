//! Closed forms without slots, where ranks read and write each other's buffers.
//!
//! The one idea: a plan needs no messages when each of them only passes on an input (the reader
//! reads it where it lies) or is only kept in an output (the writer writes it there). What is left
//! is the work, between two barriers: at the first all say that their inputs are ready, at the
//! second that they are done with each other's memory.

use super::cost_model::{ClosedForm, CostTerms, work};
use crate::algorithm::Algorithm::{self, *};
use crate::plan::Collective::{self, *};

/// A further target of one value is a write without a read: half of a copy. So it is where another
/// core has the line: nobody waits for it. Two cores of an Intel Xeon all-reduce 1 MiB in 48 us by
/// two-shot, which reads half of it from the other and writes half there, in 77 by one-shot.
const WRITE: f64 = 0.5;

/// Whether in-place calls are safe: no rank overwrites what another may still have to read.
fn safe_in_place(algorithm: Algorithm, collective: Collective) -> bool {
    !matches!((algorithm, collective), (OneShot, AllReduce) | (_, AllToAll))
}

/// `None` where the plan needs slots. `b` bytes as in [`super::Question::bytes`].
pub(super) fn form(
    algorithm: Algorithm,
    collective: Collective,
    nranks: usize,
    b: f64,
    in_place: bool,
) -> Option<ClosedForm> {
    if nranks == 1 || (in_place && !safe_in_place(algorithm, collective)) {
        return None;
    }
    let n = nranks as f64;
    let (others, c) = (n - 1.0, b / n);
    // The busiest rank's copied and reduced bytes, those that it reads and writes of others', and
    // how many ranks work as much.
    let (copied, reduced, crossed, busy) = match (algorithm, collective) {
        (OneShot, AllReduce) => (0.0, others * b, others * b, n),
        (TwoShot, AllReduce) => (WRITE * others * c, others * c, (1.0 + WRITE) * others * c, n),
        (OneShot, Reduce) => (0.0, others * b, others * b, 1.0),
        (TwoShot, Reduce) => (0.0, others * c, others * c, n),
        (OneShot, ReduceScatter) => (0.0, others * c, others * c, n),
        (OneShot | Pairwise, AllGather | AllToAll) => (n * c, 0.0, others * c, n),
        // A broadcast is mostly in place: the root has nothing to copy for itself.
        (OneShot, Broadcast) => (b, 0.0, b, others),
        // Every rank copies one chunk to all others but the root, which has it.
        (TwoShot, Broadcast) => {
            let moved = c + WRITE * (others - 1.0) * c;
            (moved, 0.0, moved, n)
        }
        (OneShot, Gather) => (n * c, 0.0, others * c, 1.0),
        (OneShot, Scatter) => (c, 0.0, c, n),
        _ => return None,
    };
    // At each barrier a rank tells every other one, and hears it.
    let messages = 4.0 * others;
    let path = CostTerms { crossed, ..work(messages, 0.0, copied, reduced) };
    let total = CostTerms { messages: messages * n, ..path.times(busy) };
    Some(ClosedForm { alphas: 2.0, path, period: None, total })
}

/// The one algorithm in which ranks only read what others have: as the kernel copies it.
pub(super) const READS: Algorithm = OneShot;

/// As [`form`] of [`READS`], where nothing is reduced and the kernel copies what others have: those
/// bytes are only crossed, and only the own ones copied.
pub(super) fn by_cma(collective: Collective, nranks: usize, b: f64) -> Option<ClosedForm> {
    if collective.reduces() || collective == Barrier {
        return None;
    }
    let form = form(READS, collective, nranks, b, false)?;
    let own = |work: CostTerms| CostTerms { copied: work.copied - work.crossed, ..work };
    Some(ClosedForm { path: own(form.path), total: own(form.total), ..form })
}

/// As [`form`] of an all-reduce of `b` bytes in memory that is a copy of the ranks' own, but for
/// the part that a rank works on: the rest is copied there and back.
pub(super) fn windowed(
    algorithm: Algorithm,
    collective: Collective,
    nranks: usize,
    b: f64,
) -> Option<ClosedForm> {
    if collective != AllReduce {
        return None;
    }
    let form = form(algorithm, collective, nranks, b, true)?;
    let n = nranks as f64;
    let moved = 2.0 * (n - 1.0) * b / n;
    // What is copied there was last read by others, what is copied back was written by them.
    let with = |work: CostTerms, ranks: f64| CostTerms {
        copied: work.copied + moved * ranks,
        crossed: work.crossed + moved * ranks,
        ..work
    };
    Some(ClosedForm { path: with(form.path, 1.0), total: with(form.total, n), ..form })
}
