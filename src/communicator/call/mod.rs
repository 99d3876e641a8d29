//! One collective call as its user made it, and the checks that it can be run.

pub mod rank_state;
pub mod signature;

pub(super) mod fingerprint;
pub(super) mod message;
pub(super) mod portions;

use crate::device::cuda::RawStream;
use crate::error::{Error, Result};
pub use crate::executor::chunk_layout::VectorCounts;
use crate::plan::Collective;
use crate::types::{DataType, ReduceOp};
use std::cell::Cell;
use std::fmt;

/// Where a call stands among what its user's streams do.
#[derive(Clone, Copy, Debug)]
pub struct Order {
    /// The stream of a rank on a device that orders the call; NULL is the default stream.
    pub stream: RawStream,
    /// The call is done only when its stream is past it: it was given to a stream of the host.
    pub settles: bool,
    /// The stream has all of the call but the host's part.
    pub(super) ticket: Option<StreamTicket>,
}

/// Under which number a stream has a call, or the last portion of one; those before it have the
/// numbers before that.
#[derive(Clone, Copy, Debug)]
pub(super) struct StreamTicket {
    pub last: u32,
    /// The pinned memory that it goes through.
    pub base: *mut u8,
}

impl Order {
    /// On a stream of the device's.
    pub fn on(stream: RawStream) -> Order {
        Order { stream, settles: false, ticket: None }
    }
}

impl Default for Order {
    fn default() -> Order {
        Order::on(std::ptr::null_mut())
    }
}

/// What a rank does before it waits for the others at their barrier.
#[derive(Clone, Copy)]
pub struct NextRank<'a> {
    pub(super) come: &'a dyn Fn(),
    pub(super) is_apart: &'a Cell<bool>,
}

impl NextRank<'_> {
    /// Let the other ranks come, which are all on this thread.
    pub fn come(&self) {
        (self.come)();
    }

    /// The ranks would have to wait for each other after the barrier: the error with which all of
    /// them leave it. It breaks nothing, and nobody is told.
    pub fn leave(&self) -> Error {
        self.is_apart.set(true);
        Error::argument(
            "this call cannot be run by one thread for all ranks: the ranks wait for each other",
        )
    }
}

impl fmt::Debug for NextRank<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        formatter.write_str("the others' calls")
    }
}

/// A collective with its buffers.
#[derive(Clone, Debug)]
pub struct Call<'a> {
    pub collective: Collective,
    /// Read by the collective; may be NULL where this rank sends nothing.
    pub send: *const u8,
    /// Written by the collective; may be NULL where this rank receives nothing.
    pub recv: *mut u8,
    /// Elements, in NCCL's meaning: of the whole vector for AllReduce, Broadcast and Reduce; sent
    /// by each rank for AllGather and Gather; received by each for ReduceScatter and Scatter; from
    /// each rank to each for AllToAll. In a `v` form: what this rank sends (AllGather, Gather) or
    /// receives (ReduceScatter, Scatter).
    pub count: usize,
    pub data_type: DataType,
    pub op: ReduceOp,
    /// The factor of [`ReduceOp::PreMulSum`] on this rank.
    pub scalar: f64,
    pub root: usize,
    pub vector: Option<&'a VectorCounts>,
    pub order: Order,
    /// This thread makes the other ranks' calls, too.
    pub meanwhile: Option<NextRank<'a>>,
}

impl Call<'_> {
    /// A call with no buffers, summing nothing at rank 0; set the fields that matter.
    pub fn new(collective: Collective, data_type: DataType) -> Call<'static> {
        Call {
            collective,
            send: std::ptr::null(),
            recv: std::ptr::null_mut(),
            count: 0,
            data_type,
            op: ReduceOp::Sum,
            scalar: 1.0,
            root: 0,
            vector: None,
            order: Order::default(),
            meanwhile: None,
        }
    }

    /// Whether it is a `v` form in which a rank knows only its own blocks.
    pub(super) fn runs_as_messages(&self) -> bool {
        use Collective::{AllToAll, Gather, Scatter};
        self.vector.is_some() && matches!(self.collective, AllToAll | Gather | Scatter)
    }

    /// Refuse what cannot be run whatever the addresses; else what the buffers must hold.
    pub(super) fn extents(&self, rank: usize, nranks: usize) -> Result<Extents> {
        let name = self.collective.name();
        if self.root >= nranks {
            return Err(Error::argument(format!(
                "{name}: root {} is not a rank of this communicator; ranks are 0 to {}",
                self.root,
                nranks - 1
            )));
        }
        if self.collective.reduces() && !self.op.supports(self.data_type) {
            return Err(Error::argument(format!(
                "{name}: {} is not defined on {}; bitwise operations need integers or bool, \
                 and bool has no avg and no pre-multiplied sum",
                self.op, self.data_type
            )));
        }
        self.check_vector(rank, nranks)?;
        let (input, output) = self.buffer_elements(rank, nranks)?;
        let size = self.data_type.size();
        let bytes = |elements: usize| {
            let bytes = elements.checked_mul(size).filter(|bytes| *bytes <= isize::MAX as usize);
            bytes.ok_or_else(|| {
                Error::argument(format!(
                    "{name}: {elements} elements of {size} bytes do not fit an address space"
                ))
            })
        };
        let (input, output) = (bytes(input)?, bytes(output)?);
        // Only looked at where the block lies inside a buffer, whose bytes were counted.
        let own = self.own_block(rank).wrapping_mul(size);
        let distance = match self.collective {
            Collective::AllGather | Collective::Gather => Some(own.wrapping_neg()),
            Collective::ReduceScatter | Collective::Scatter => Some(own),
            Collective::AllToAll if self.vector.is_some() => None,
            _ => Some(0),
        };
        Ok(Extents { input, output, distance })
    }

    #[cold]
    fn overlap(&self, rank: usize) -> Error {
        let rule = match self.collective {
            Collective::AllGather | Collective::Gather => {
                "the send buffer must be this rank's block of the receive buffer"
            }
            Collective::ReduceScatter | Collective::Scatter => {
                "the receive buffer must be this rank's block of the send buffer"
            }
            Collective::AllToAll if self.vector.is_some() => "is not possible for this one",
            _ => "the two must be the same address",
        };
        Error::argument(format!(
            "{}: the buffers of rank {rank} overlap; in place {rule}",
            self.collective.name()
        ))
    }

    /// Elements before this rank's own block in the gathered or scattered buffer.
    fn own_block(&self, rank: usize) -> usize {
        match (self.vector, self.collective) {
            (None, _) => rank.wrapping_mul(self.count),
            (Some(v), Collective::ReduceScatter) => v.recv_counts[..rank].iter().sum(),
            (Some(v), Collective::Scatter) => v.send_displacements.get(rank).copied().unwrap_or(0),
            (Some(v), _) => v.recv_displacements.get(rank).copied().unwrap_or(0),
        }
    }

    /// Every list that this rank needs has one entry a rank, and its own entry agrees with `count`.
    fn check_vector(&self, rank: usize, nranks: usize) -> Result<()> {
        use Collective::*;
        let Some(v) = self.vector else { return Ok(()) };
        let name = self.collective.name();
        let length = |list: &[usize], what: &str| {
            if list.len() == nranks {
                return Ok(());
            }
            Err(Error::argument(format!(
                "{name}v: {what} has {} entries but the communicator has {nranks} ranks",
                list.len()
            )))
        };
        let own = |list: &[usize], what: &str| match list[rank] == self.count {
            true => Ok(()),
            false => Err(Error::argument(format!(
                "{name}v: {what}[{rank}] is {} but rank {rank} itself passes {}",
                list[rank], self.count
            ))),
        };
        let is_root = rank == self.root;
        match self.collective {
            AllGather | Gather if self.collective == AllGather || is_root => {
                length(&v.recv_counts, "recv counts")?;
                length(&v.recv_displacements, "recv displacements")?;
                own(&v.recv_counts, "recv counts")?;
                blocks_are_disjoint(name, &v.recv_counts, &v.recv_displacements)
            }
            ReduceScatter => {
                length(&v.recv_counts, "recv counts")?;
                own(&v.recv_counts, "recv counts")
            }
            Scatter if is_root => {
                length(&v.send_counts, "send counts")?;
                length(&v.send_displacements, "send displacements")?;
                own(&v.send_counts, "send counts")
            }
            AllToAll => {
                length(&v.send_counts, "send counts")?;
                length(&v.send_displacements, "send displacements")?;
                length(&v.recv_counts, "recv counts")?;
                length(&v.recv_displacements, "recv displacements")?;
                if v.send_counts[rank] != v.recv_counts[rank] {
                    return Err(Error::argument(format!(
                        "{name}v: rank {rank} sends itself {} elements and receives {} of them; \
                         send counts[{rank}] and recv counts[{rank}] must be equal",
                        v.send_counts[rank], v.recv_counts[rank]
                    )));
                }
                blocks_are_disjoint(name, &v.recv_counts, &v.recv_displacements)
            }
            Gather | Scatter => Ok(()),
            _ => Err(Error::argument(format!("{name} has no v form"))),
        }
    }

    /// Elements of the send and of the receive buffer on this rank.
    fn buffer_elements(&self, rank: usize, nranks: usize) -> Result<(usize, usize)> {
        use Collective::*;
        let is_root = rank == self.root;
        let end = |counts: &[usize], displacements: &[usize]| {
            let ends = counts.iter().zip(displacements).map(|(count, at)| match count {
                0 => Some(0),
                _ => count.checked_add(*at),
            });
            ends.into_iter().try_fold(0, |most, end| end.map(|end| end.max(most)))
        };
        let blocks = self.count.checked_mul(nranks);
        let (input, output) = match (self.collective, self.vector) {
            (Barrier, _) => (Some(0), Some(0)),
            (AllReduce, _) => (Some(self.count), Some(self.count)),
            (Broadcast, _) => (Some(if is_root { self.count } else { 0 }), Some(self.count)),
            (Reduce, _) => (Some(self.count), Some(if is_root { self.count } else { 0 })),
            (AllToAll, None) => (blocks, blocks),
            (AllToAll, Some(v)) => (
                end(&v.send_counts, &v.send_displacements),
                end(&v.recv_counts, &v.recv_displacements),
            ),
            (ReduceScatter, None) => (blocks, Some(self.count)),
            (ReduceScatter, Some(v)) => (
                v.recv_counts.iter().try_fold(0usize, |sum, count| sum.checked_add(*count)),
                Some(self.count),
            ),
            (Gather | Scatter, _) if !is_root => match self.collective {
                Gather => (Some(self.count), Some(0)),
                _ => (Some(0), Some(self.count)),
            },
            (AllGather | Gather, None) => (Some(self.count), blocks),
            (AllGather | Gather, Some(v)) => {
                (Some(self.count), end(&v.recv_counts, &v.recv_displacements))
            }
            (Scatter, None) => (blocks, Some(self.count)),
            (Scatter, Some(v)) => (end(&v.send_counts, &v.send_displacements), Some(self.count)),
        };
        match (input, output) {
            (Some(input), Some(output)) => Ok((input, output)),
            _ => Err(Error::argument(format!(
                "{}: count {} on {nranks} ranks does not fit an address space",
                self.collective.name(),
                self.count
            ))),
        }
    }
}

/// Two ranks' blocks must not be received into the same elements.
fn blocks_are_disjoint(name: &str, counts: &[usize], displacements: &[usize]) -> Result<()> {
    let mut blocks: Vec<(usize, usize, usize)> = (0..counts.len())
        .filter(|&rank| counts[rank] > 0)
        .map(|rank| (displacements[rank], counts[rank], rank))
        .collect();
    blocks.sort_unstable();
    for pair in blocks.windows(2) {
        let ((first, count, one), (second, _, other)) = (pair[0], pair[1]);
        if second - first < count {
            return Err(Error::argument(format!(
                "{name}v: the blocks received from ranks {one} and {other} overlap"
            )));
        }
    }
    Ok(())
}

/// What the buffers of a call hold, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Extents {
    pub input: usize,
    pub output: usize,
    /// From the input to the output of an in-place call, modulo the address space; `None` where
    /// there is no such thing.
    distance: Option<usize>,
}

impl Extents {
    /// Refuse NULL and overlapping buffers; else say whether the call is in place.
    #[inline]
    pub(super) fn check(&self, call: &Call, rank: usize) -> Result<bool> {
        let (input, output) = (call.send.addr(), call.recv.addr());
        if (self.input > 0 && input == 0) || (self.output > 0 && output == 0) {
            return Err(self.missing(call));
        }
        let apart = self.input == 0
            || self.output == 0
            || input >= output.saturating_add(self.output)
            || output >= input.saturating_add(self.input);
        if apart {
            return Ok(false);
        }
        match self.distance {
            Some(distance) if output.wrapping_sub(input) == distance => Ok(true),
            _ => Err(call.overlap(rank)),
        }
    }

    #[cold]
    fn missing(&self, call: &Call) -> Error {
        let sends = self.input > 0 && call.send.is_null();
        let (what, bytes) = if sends { ("send", self.input) } else { ("receive", self.output) };
        Error::argument(format!(
            "{}: the {what} buffer is NULL but {bytes} bytes are to be moved",
            call.collective.name()
        ))
    }
}
