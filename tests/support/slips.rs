//! Calls by which rank 1 differs from the others, on buffers of exactly the length they may touch.

use super::{Guarded, Memory};
use ringcomm::communicator::{Call, Communicator};
use ringcomm::error::Result;
use ringcomm::plan::Collective;
use ringcomm::types::{DataType, ReduceOp};

/// One way in which rank 1 may differ, and what the two calls are called where the right one has
/// [`COUNT`] elements.
pub type Slip = (&'static str, fn(&mut Call), &'static str, &'static str);

/// Elements of the right call in the texts of [`SLIPS`].
const COUNT: usize = 100;

pub const SLIPS: [(Collective, Slip); 16] = [
    (
        Collective::AllReduce,
        (
            "collective",
            |call| call.collective = Collective::AllGather,
            "AllReduce(count=100",
            "AllGather(count=100",
        ),
    ),
    (Collective::AllReduce, ("count", |call| call.count = 101, "count=100", "count=101")),
    (Collective::AllToAll, ("count", |call| call.count = 3000, "count=100", "count=3000")),
    (
        Collective::AllReduce,
        ("type", |call| call.data_type = DataType::Int32, "type=float", "type=int32"),
    ),
    (Collective::AllReduce, ("op", |call| call.op = ReduceOp::Max, "op=sum", "op=max")),
    (Collective::ReduceScatter, ("count", |call| call.count = 101, "count=100", "count=101")),
    (
        Collective::ReduceScatter,
        ("type", |call| call.data_type = DataType::Uint8, "type=float", "type=uint8"),
    ),
    (Collective::ReduceScatter, ("op", |call| call.op = ReduceOp::Min, "op=sum", "op=min")),
    (Collective::Broadcast, ("root", |call| call.root = 1, "root=0", "root=1")),
    (Collective::Reduce, ("root", |call| call.root = 1, "root=0", "root=1")),
    (Collective::Gather, ("count", |call| call.count = 7, "count=100", "count=7")),
    (Collective::AllGather, ("count", |call| call.count = 99, "count=100", "count=99")),
    (Collective::Scatter, ("count", |call| call.count = 101, "count=100", "count=101")),
    (Collective::Scatter, ("root", |call| call.root = 1, "root=0", "root=1")),
    (
        Collective::Broadcast,
        (
            "collective",
            |call| call.collective = Collective::Barrier,
            "Broadcast(count=100",
            "Barrier(",
        ),
    ),
    // Made by rank 1 before a call that the others make first.
    (
        Collective::AllReduce,
        (
            "order",
            |call| (call.collective, call.count) = (Collective::AllReduce, 1),
            "AllReduce(count=100",
            "AllReduce(count=1,",
        ),
    ),
];

/// What rank 1 calls where the others make `good`, and what errors must say of the two. A count
/// that is one off stays so, however long the call is; others are of short calls.
pub fn slipped<'a>(good: &Call<'a>, slip: Slip) -> (Call<'a>, [String; 2]) {
    let (_, change, right, wrong) = slip;
    let mut call = Call { count: COUNT, ..good.clone() };
    change(&mut call);
    let named = |text: &str, from: usize, to: usize| {
        text.replace(&format!("count={from}"), &format!("count={to}"))
    };
    let listed = call.count;
    if listed.abs_diff(COUNT) <= 1 {
        call.count = good.count + listed - COUNT;
    }
    let texts = [named(right, COUNT, good.count), named(wrong, listed, call.count)];
    (call, texts)
}

/// Buffers of exactly the length that a call on them may touch.
pub struct Exact {
    pub send: Guarded,
    pub recv: Guarded,
}

impl Exact {
    /// For so many elements of this type to send and to receive.
    pub fn new(data_type: DataType, send: usize, recv: usize, rank: usize) -> Exact {
        Exact::within(Memory::Ordinary, data_type, [send, recv], rank)
    }

    fn within(memory: Memory, data_type: DataType, elements: [usize; 2], rank: usize) -> Exact {
        let [send, recv] =
            elements.map(|count| Guarded::of(memory, count * data_type.size(), rank * 13));
        Exact { send, recv }
    }

    pub fn of(call: &Call, rank: usize, nranks: usize, memory: Memory) -> Exact {
        use Collective::*;
        let (all, one) = (call.count * nranks, call.count);
        let (send, recv) = match call.collective {
            AllReduce | Broadcast | Reduce => (one, one),
            AllGather | Gather => (one, all),
            ReduceScatter | Scatter => (all, one),
            AllToAll => (all, all),
            Barrier => (0, 0),
        };
        Exact::within(memory, call.data_type, [send, recv], rank)
    }

    /// The call, on these buffers.
    pub fn on<'a>(&mut self, call: &Call<'a>) -> Call<'a> {
        Call { send: self.send.pointer(), recv: self.recv.pointer(), ..call.clone() }
    }

    /// Run the call on them.
    pub fn run(&mut self, comm: &Communicator, call: &Call) -> Result<()> {
        let call = self.on(call);
        // SAFETY: they are as long as the call that they were made for, and live until it is over.
        unsafe { comm.run(&call) }
    }

    /// What was written outside of them, if anything was.
    pub fn spilled(&self) -> Option<String> {
        let outside = |buffer: &Guarded| buffer.differs(buffer.content(), 1);
        outside(&self.send).or_else(|| outside(&self.recv))
    }
}
