//! Collectives between threads by the shortest way: everyone shows its pointers, everyone computes
//! its own result from the others' inputs into a copy, and writes it when all have read.
#![allow(unsafe_code)]

use super::oracle;
use crate::ranks::endpoint::Endpoint;
use ringcomm::communicator::{Call, Explanation, Message, VectorCounts};
use ringcomm::error::Result;
use ringcomm::plan::Collective;
use ringcomm::types::ReduceOp;
use std::sync::{Arc, Barrier, Mutex};

/// What a rank shows to the others during a call.
#[derive(Clone, Copy, Default)]
struct Shown {
    send: usize,
    scalar: f64,
}

struct Common {
    barrier: Barrier,
    shown: Mutex<Vec<Shown>>,
}

/// One rank of the naive job.
pub struct Naive {
    rank: usize,
    nranks: usize,
    common: Arc<Common>,
}

impl Naive {
    pub fn all(nranks: usize) -> Vec<Naive> {
        let shown = Mutex::new(vec![Shown::default(); nranks]);
        let common = Arc::new(Common { barrier: Barrier::new(nranks), shown });
        (0..nranks).map(|rank| Naive { rank, nranks, common: Arc::clone(&common) }).collect()
    }

    /// Show the input, take everyone's, compute, and write when all have computed.
    fn meet(&self, shown: Shown, recv: *mut u8, compute: impl FnOnce(&[Shown]) -> Pieces) {
        self.common.shown.lock().expect("no rank panics")[self.rank] = shown;
        self.common.barrier.wait();
        let all = self.common.shown.lock().expect("no rank panics").clone();
        let pieces = compute(&all);
        self.common.barrier.wait();
        for (offset, bytes) in pieces {
            // SAFETY: the caller promised a receive buffer of the extent its collective defines.
            unsafe { recv.add(offset).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        }
        self.common.barrier.wait();
    }
}

/// Byte offsets in the receive buffer, with what belongs there.
type Pieces = Vec<(usize, Vec<u8>)>;

/// A copy of `bytes` from a shown address.
fn take(address: usize, offset: usize, bytes: usize) -> Vec<u8> {
    let mut copy = vec![0; bytes];
    if bytes > 0 {
        let source = address as *const u8;
        // SAFETY: the rank that showed the address promised that much; it waits until we are done.
        unsafe { source.add(offset).copy_to_nonoverlapping(copy.as_mut_ptr(), bytes) };
    }
    copy
}

/// Elements before each block: the displacements, or one block after the other.
fn offsets(counts: &[usize]) -> Vec<usize> {
    counts.iter().scan(0, |next, count| Some(std::mem::replace(next, *next + count))).collect()
}

impl Naive {
    fn reduced(&self, call: &Call, all: &[Shown], first: usize, count: usize) -> Vec<u8> {
        let size = call.data_type.size();
        let scalars: Vec<f64> = all.iter().map(|shown| shown.scalar).collect();
        let inputs: Vec<Vec<u8>> =
            all.iter().map(|shown| take(shown.send, first * size, count * size)).collect();
        let element = |input: &Vec<u8>, index: usize| {
            let mut word = [0u8; 8];
            word[..size].copy_from_slice(&input[index * size..][..size]);
            u64::from_ne_bytes(word)
        };
        let mut result = Vec::with_capacity(count * size);
        for index in 0..count {
            let elements: Vec<u64> = inputs.iter().map(|input| element(input, index)).collect();
            let value = oracle::reduce(call.data_type, call.op, &elements, &scalars);
            result.extend_from_slice(&value.to_ne_bytes()[..size]);
        }
        result
    }

    fn pieces(&self, call: &Call, all: &[Shown]) -> Pieces {
        let (n, me, size) = (self.nranks, self.rank, call.data_type.size());
        let even = vec![call.count; n];
        let evenly: Vec<usize> = (0..n).map(|rank| rank * call.count).collect();
        let table = |pick: fn(&VectorCounts) -> &Vec<usize>, plain: &Vec<usize>| {
            call.vector.map_or(plain.clone(), |vector| pick(vector).clone())
        };
        let from = |rank: usize, first: usize, count: usize| {
            take(all[rank].send, first * size, count * size)
        };
        let gather = || -> Pieces {
            let counts = table(|vector| &vector.recv_counts, &even);
            let at = table(|vector| &vector.recv_displacements, &evenly);
            (0..n).map(|rank| (at[rank] * size, from(rank, 0, counts[rank]))).collect()
        };
        match call.collective {
            Collective::AllReduce => vec![(0, self.reduced(call, all, 0, call.count))],
            Collective::Reduce if me == call.root => {
                vec![(0, self.reduced(call, all, 0, call.count))]
            }
            Collective::Broadcast => vec![(0, from(call.root, 0, call.count))],
            Collective::ReduceScatter => {
                let counts = table(|vector| &vector.recv_counts, &even);
                vec![(0, self.reduced(call, all, offsets(&counts)[me], counts[me]))]
            }
            Collective::AllGather => gather(),
            Collective::Gather if me == call.root => gather(),
            Collective::Scatter => {
                let at = table(|vector| &vector.send_displacements, &evenly);
                vec![(0, from(call.root, at[me], call.count))]
            }
            Collective::AllToAll => self.all_to_all(call, all),
            _ => Vec::new(),
        }
    }

    /// The v form is symmetric in ring-perf, so the receiver's table is the sender's turned round:
    /// block `me` of `rank` follows the blocks `0..me`, a gap of one element between any two.
    fn all_to_all(&self, call: &Call, all: &[Shown]) -> Pieces {
        let (n, me, size) = (self.nranks, self.rank, call.data_type.size());
        let block = |rank: usize| {
            let Some(vector) = call.vector else {
                let (at, count) = (me * call.count, call.count);
                return (rank * call.count * size, take(all[rank].send, at * size, count * size));
            };
            // counts[(s + d) % n]: what rank sends to d is what we send to (rank + d - me).
            let theirs: Vec<usize> =
                (0..n).map(|d| vector.send_counts[(rank + d + n - me) % n]).collect();
            let at = offsets(&theirs)[me] + me;
            let piece = take(all[rank].send, at * size, theirs[me] * size);
            (vector.recv_displacements[rank] * size, piece)
        };
        (0..n).map(block).collect()
    }
}

impl Endpoint for Naive {
    unsafe fn run(&self, call: &Call) -> Result<()> {
        let scalar = if call.op == ReduceOp::PreMulSum { call.scalar } else { 1.0 };
        let shown = Shown { send: call.send as usize, scalar };
        self.meet(shown, call.recv, |all| self.pieces(call, all));
        Ok(())
    }

    /// Whoever sends shows what; whoever receives takes it from the rank that the message names.
    unsafe fn exchange(&self, messages: &[Message]) -> Result<()> {
        let (mut shown, mut target, mut bytes) = (Shown::default(), std::ptr::null_mut(), 0);
        let mut source = self.rank;
        for message in messages {
            match *message {
                Message::Send { buffer, .. } => shown.send = buffer as usize,
                Message::Recv { buffer, count, data_type, peer } => {
                    (target, bytes) = (buffer, count * data_type.size());
                    source = peer;
                }
            }
        }
        self.meet(shown, target, |all| vec![(0, take(all[source].send, 0, bytes))]);
        Ok(())
    }

    fn start_group(&self) {}

    fn end_group(&self) -> Result<()> {
        Ok(())
    }

    /// It has no groups: a call runs where it is made.
    unsafe fn defer(&self, call: &Call) -> Result<()> {
        // SAFETY: the caller's promise is the same.
        unsafe { self.run(call) }
    }

    unsafe fn defer_messages(&self, messages: &[Message]) -> Result<()> {
        // SAFETY: the caller's promise is the same.
        unsafe { self.exchange(messages) }
    }

    fn explain(&self, _call: &Call) -> Result<Explanation> {
        Ok(Explanation {
            algorithm: "naive",
            transport: "lock",
            channels: 1,
            chunks: 1,
            slices: 1,
            slice_bytes: 0,
            predicted_us: 1.0,
            mapped: None,
        })
    }

    fn is_nested(&self) -> bool {
        false
    }

    fn register(&self, _address: *mut u8, _bytes: usize) -> Result<()> {
        Ok(())
    }

    fn finalize(&self) -> Result<()> {
        Ok(())
    }
}
