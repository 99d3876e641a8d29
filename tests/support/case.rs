//! One collective call on all ranks: what each rank holds before it, and must hold after it.

use super::data::{self, Data, Random};
use super::device::Bench;
use super::guarded::{Guarded, Memory, UNTOUCHED};
use super::oracle::{Rule, reduce};
use ringcomm::communicator::{Call, Communicator, VectorCounts};
use ringcomm::error::Error;
use ringcomm::plan::Collective;
use ringcomm::types::{DataType, ReduceOp};
use std::ptr::null_mut;

/// Elements per block in a `v` form.
#[derive(Clone, Debug, PartialEq)]
pub enum Blocks {
    /// Of each rank.
    Of(Vec<usize>),
    /// From each rank to each: `[source][target]`.
    Between(Vec<Vec<usize>>),
}

#[derive(Clone, Debug)]
pub struct Case {
    pub collective: Collective,
    pub nranks: usize,
    pub count: usize,
    pub data_type: DataType,
    pub op: ReduceOp,
    pub root: usize,
    pub in_place: bool,
    pub blocks: Option<Blocks>,
    pub data: Data,
    pub seed: u64,
    /// The host of every rank, where reductions are in host order and not in rank order.
    pub hosts: Vec<usize>,
}

impl Case {
    pub fn new(collective: Collective, nranks: usize, count: usize, data_type: DataType) -> Case {
        Case {
            collective,
            nranks,
            count,
            data_type,
            op: ReduceOp::Sum,
            root: 0,
            in_place: false,
            blocks: None,
            data: Data::Exact,
            seed: 1,
            hosts: Vec::new(),
        }
    }

    fn block(&self, source: usize, target: usize) -> usize {
        match &self.blocks {
            None => self.count,
            Some(Blocks::Between(counts)) => counts[source][target],
            Some(Blocks::Of(counts)) => match self.collective {
                Collective::AllGather | Collective::Gather => counts[source],
                _ => counts[target],
            },
        }
    }

    /// What this rank passes as the count.
    fn own_count(&self, rank: usize) -> usize {
        match &self.blocks {
            Some(Blocks::Of(counts)) => counts[rank],
            _ => self.count,
        }
    }

    /// One block a rank; in a `v` form shuffled and with gaps, where the collective allows both.
    fn spread(&self, counts: Vec<usize>, layout: u64) -> Side {
        let mut order: Vec<usize> = (0..counts.len()).collect();
        let mut random = Random(self.seed ^ layout.wrapping_mul(0x51_7c_c1_b7));
        let loose = self.blocks.is_some() && self.collective != Collective::ReduceScatter;
        if loose {
            for index in (1..order.len()).rev() {
                order.swap(index, random.below(index + 1));
            }
        }
        let mut at = 0;
        let mut blocks = vec![(0, 0); counts.len()];
        for peer in order {
            at += if loose { random.below(3) } else { 0 };
            blocks[peer] = (at, counts[peer]);
            at += counts[peer];
        }
        Side { blocks, elements: at }
    }

    fn send_side(&self, rank: usize) -> Option<Side> {
        use Collective::*;
        let whole = |count| Some(Side { blocks: vec![(0, count)], elements: count });
        let to_all = |layout| {
            let counts = (0..self.nranks).map(|target| self.block(rank, target)).collect();
            Some(self.spread(counts, layout))
        };
        match self.collective {
            AllReduce | Reduce => whole(self.count),
            AllGather | Gather => whole(self.block(rank, 0)),
            Broadcast => whole(self.count).filter(|_| rank == self.root),
            Scatter => to_all(1).filter(|_| rank == self.root),
            ReduceScatter => to_all(1),
            AllToAll => to_all(2 + rank as u64),
            Barrier => None,
        }
    }

    fn recv_side(&self, rank: usize) -> Option<Side> {
        use Collective::*;
        let whole = |count| Some(Side { blocks: vec![(0, count)], elements: count });
        let of_all = |layout| {
            let counts = (0..self.nranks).map(|source| self.block(source, rank)).collect();
            Some(self.spread(counts, layout))
        };
        match self.collective {
            AllReduce | Broadcast => whole(self.count),
            Reduce => whole(self.count).filter(|_| rank == self.root),
            ReduceScatter | Scatter => whole(self.block(0, rank)),
            Gather => of_all(1).filter(|_| rank == self.root),
            AllGather => of_all(1 + rank as u64),
            AllToAll => of_all(100 + rank as u64),
            Barrier => None,
        }
    }

    fn scalar(&self, rank: usize) -> f64 {
        match (self.data_type.is_float(), self.data, rank % 2) {
            (false, _, 0) => 3.0,
            (true, Data::Special, 0) => 1.7,
            (true, Data::Special, _) => -0.3,
            (true, Data::Exact, 0) => -1.0,
            _ => 2.0,
        }
    }

    fn element(&self, rank: usize, index: usize) -> u64 {
        data::element(self.data, self.data_type, self.op, self.seed, rank, index)
    }

    /// The reduction of element `index` over all ranks: the serial loop, or that of the hosts'
    /// serial loops as a balanced tree.
    fn reduced(&self, index: usize, sources: &mut Vec<u64>) -> u64 {
        let rule = Rule { data_type: self.data_type, op: self.op, parts: None, scaled: None };
        sources.clear();
        let mean = self.op == ReduceOp::Avg && self.nranks > 1;
        let nhosts = self.hosts.iter().max().map_or(0, |last| last + 1);
        // Sums of hosts are rounded to the type: inputs are made smaller, by a power of two.
        let is_narrow = matches!(
            self.data_type,
            DataType::Float16 | DataType::Float8e4m3 | DataType::Float8e5m2
        );
        let partial_sums = mean && is_narrow && nhosts > 1 && self.nranks > 2;
        let prescale =
            if partial_sums { (self.nranks.next_power_of_two() as f64).recip() } else { 1.0 };
        for rank in 0..self.nranks {
            let raw = self.element(rank, index);
            sources.push(match self.op {
                _ if partial_sums => reduce(&Rule { scaled: Some((0, prescale)), ..rule }, &[raw]),
                ReduceOp::PreMulSum => {
                    reduce(&Rule { scaled: Some((0, self.scalar(rank))), ..rule }, &[raw])
                }
                _ => raw,
            });
        }
        if self.op == ReduceOp::PreMulSum && self.nranks == 1 {
            return sources[0];
        }
        let whole = Rule { parts: mean.then_some(self.nranks as f64 * prescale), ..rule };
        if self.hosts.is_empty() {
            return reduce(&whole, sources);
        }
        let part = |host| {
            let on_host = |rank: &usize| self.hosts[*rank] == host;
            let inputs = (0..self.nranks).filter(on_host).map(|rank| sources[rank]);
            reduce(&rule, &inputs.collect::<Vec<_>>())
        };
        balanced(&whole, &rule, &(0..nhosts).map(part).collect::<Vec<_>>())
    }

    /// The reduced vector, where the collective has one.
    fn reduction(&self) -> Vec<u8> {
        let elements = match self.collective {
            Collective::AllReduce | Collective::Reduce => self.count,
            Collective::ReduceScatter => (0..self.nranks).map(|rank| self.block(0, rank)).sum(),
            _ => 0,
        };
        let mut sources = Vec::new();
        self.bytes((0..elements).map(|index| self.reduced(index, &mut sources)))
    }

    fn bytes(&self, elements: impl Iterator<Item = u64>) -> Vec<u8> {
        let size = self.data_type.size();
        let mut bytes = Vec::with_capacity(size * elements.size_hint().0);
        elements.for_each(|bits| bytes.extend_from_slice(&bits.to_le_bytes()[..size]));
        bytes
    }

    fn send_content(&self, rank: usize) -> Option<Vec<u8>> {
        let side = self.send_side(rank)?;
        Some(self.bytes((0..side.elements).map(|index| self.element(rank, index))))
    }

    /// What block `block` of the receive buffer of `rank` holds at the end.
    fn want_block(&self, rank: usize, block: usize, count: usize, reduction: &[u8]) -> Vec<u8> {
        use Collective::*;
        let size = self.data_type.size();
        let copy = |source: usize, which: usize| {
            let at = self.send_side(source).expect("a source sends").blocks[which].0;
            self.bytes((at..at + count).map(|index| self.element(source, index)))
        };
        match self.collective {
            AllReduce | Reduce => reduction.to_vec(),
            ReduceScatter => {
                let at: usize = (0..rank).map(|before| self.block(0, before)).sum();
                reduction[at * size..(at + count) * size].to_vec()
            }
            Broadcast => copy(self.root, 0),
            Scatter => copy(self.root, rank),
            AllGather | Gather => copy(block, 0),
            AllToAll => copy(block, rank),
            Barrier => Vec::new(),
        }
    }

    /// The whole receive buffer of `rank` at the end, over what it holds at the start.
    fn want(&self, rank: usize, side: &Side, start: Vec<u8>, reduction: &[u8]) -> Vec<u8> {
        let size = self.data_type.size();
        let mut want = start;
        for (block, (at, count)) in side.blocks.iter().enumerate() {
            let content = self.want_block(rank, block, *count, reduction);
            want[at * size..(at + count) * size].copy_from_slice(&content);
        }
        want
    }

    fn vector(&self, rank: usize) -> Option<VectorCounts> {
        use Collective::*;
        self.blocks.as_ref()?;
        let lists = |side: Option<Side>| {
            side.map(|side| side.blocks.into_iter().unzip()).unwrap_or_default()
        };
        let mut vector = VectorCounts::default();
        if matches!(self.collective, Scatter | AllToAll) {
            (vector.send_displacements, vector.send_counts) = lists(self.send_side(rank));
        }
        if matches!(self.collective, AllGather | Gather | AllToAll) {
            (vector.recv_displacements, vector.recv_counts) = lists(self.recv_side(rank));
        }
        if self.collective == ReduceScatter {
            vector.recv_counts = (0..self.nranks).map(|target| self.block(0, target)).collect();
        }
        Some(vector)
    }
}

/// One buffer of one rank.
struct Side {
    /// (elements before, elements) of each block.
    blocks: Vec<(usize, usize)>,
    elements: usize,
}

/// One rank's part of a case.
struct Part {
    send: Option<Vec<u8>>,
    /// What the receive buffer must hold.
    recv: Option<Vec<u8>>,
    joint: Option<Joint>,
    vector: Option<VectorCounts>,
}

/// The one buffer of an in-place call.
struct Joint {
    start: Vec<u8>,
    want: Vec<u8>,
    send_at: usize,
    recv_at: usize,
}

/// One rank's call with its buffers, which must stay until it has run.
pub struct Begun<'a> {
    case: &'a Case,
    rank: usize,
    part: &'a Part,
    /// The one of an in-place call; else what is sent and what is received, where there is such.
    buffers: Vec<Guarded>,
}

impl<'a> Begun<'a> {
    pub fn call(&mut self) -> Call<'a> {
        let mut pointers = self.buffers.iter_mut().map(Guarded::pointer);
        let mut next = || pointers.next().expect("a buffer");
        let (send, recv) = match &self.part.joint {
            Some(joint) => {
                let base = next();
                (base.wrapping_add(joint.send_at), base.wrapping_add(joint.recv_at))
            }
            None => (
                self.part.send.as_ref().map_or(null_mut(), |_| next()),
                self.part.recv.as_ref().map_or(null_mut(), |_| next()),
            ),
        };
        let case = self.case;
        Call {
            send,
            recv,
            count: case.own_count(self.rank),
            op: case.op,
            scalar: case.scalar(self.rank),
            root: case.root,
            vector: self.part.vector.as_ref(),
            ..Call::new(case.collective, case.data_type)
        }
    }

    /// After the call: what was received, if it is right and nothing else was written.
    pub fn finish(self) -> Result<Vec<u8>, String> {
        let size = self.case.data_type.size();
        let mut buffers = self.buffers.iter();
        let want = match &self.part.joint {
            Some(joint) => Some(&joint.want),
            None => {
                if let Some(content) = &self.part.send
                    && let Some(text) = buffers.next().expect("sent").differs(content, size)
                {
                    return Err(format!("the send buffer changed: {text}"));
                }
                self.part.recv.as_ref()
            }
        };
        let (Some(buffer), Some(want)) = (buffers.next(), want) else { return Ok(Vec::new()) };
        match buffer.differs(want, size) {
            None => Ok(buffer.content().to_vec()),
            Some(text) => Err(text),
        }
    }
}

/// A case with all that its ranks need to run and check it.
pub struct Prepared {
    pub case: Case,
    parts: Vec<Option<Part>>,
    /// Where its buffers come from.
    memory: Memory,
}

impl Prepared {
    pub fn new(case: Case) -> Prepared {
        let reduction = case.reduction();
        let parts = (0..case.nranks).map(|rank| Some(part(&case, rank, &reduction))).collect();
        Prepared { case, parts, memory: Memory::Ordinary }
    }

    /// Only what `rank` needs, where ranks do not share memory.
    pub fn of(case: Case, rank: usize) -> Prepared {
        let reduction = case.reduction();
        let only = |other| (other == rank).then(|| part(&case, rank, &reduction));
        let parts = (0..case.nranks).map(only).collect();
        Prepared { case, parts, memory: Memory::Ordinary }
    }

    /// The same in memory of a kind.
    pub fn within(self, memory: Memory) -> Prepared {
        Prepared { memory, ..self }
    }

    /// Run it on this rank with fresh buffers; panics with the case where the result is wrong.
    pub fn run(&self, comm: &Communicator) {
        if let Err(text) = self.try_run(comm) {
            panic!("rank {} of {:?}: {text}", comm.rank(), self.case);
        }
    }

    /// As `run`, with what the call says instead of a panic.
    pub fn try_run(&self, comm: &Communicator) -> Result<(), String> {
        self.outcome(comm).map(|_| ())
    }

    /// Run it; the receive buffer's bytes, if they are right.
    pub fn outcome(&self, comm: &Communicator) -> Result<Vec<u8>, String> {
        self.outcome_on(comm, None)
    }

    /// As `outcome`, in the memory of a device where there is one.
    pub fn outcome_on(
        &self,
        comm: &Communicator,
        bench: Option<&Bench>,
    ) -> Result<Vec<u8>, String> {
        let mut begun = self.begin(comm.rank());
        let call = begun.call();
        if let Some(bench) = bench {
            bench.run(comm, &call, &mut begun.buffers.iter_mut().collect::<Vec<_>>())?;
        } else {
            // SAFETY: the buffers have the sizes that the collective defines for this case.
            unsafe { comm.run(&call) }.map_err(|error: Error| error.to_string())?;
        }
        begun.finish()
    }

    /// A rank's call with fresh buffers, for whoever makes it in a way of his own.
    pub fn begin(&self, rank: usize) -> Begun<'_> {
        let part = self.parts[rank].as_ref().expect("prepared for this rank");
        // A cheap way to meet every alignment: the seed and the rank move the buffers.
        let shift = (self.case.seed as usize).wrapping_mul(7) + rank * 13;
        let (memory, mut buffers) = (self.memory, Vec::new());
        if let Some(joint) = &part.joint {
            buffers.push(Guarded::of_content(memory, &joint.start, shift));
        } else {
            let send = part.send.as_ref();
            buffers.extend(send.map(|content| Guarded::of_content(memory, content, shift)));
            let recv = part.recv.as_ref();
            buffers.extend(recv.map(|want| Guarded::of(memory, want.len(), shift / 3)));
        }
        Begun { case: &self.case, rank, part, buffers }
    }

    /// How this rank's communicator would run the case.
    pub fn explain(&self, comm: &Communicator) -> ringcomm::communicator::Explanation {
        let part = self.parts[comm.rank()].as_ref().expect("prepared for this rank");
        let case = &self.case;
        // Any address does: nothing is moved. Far apart, so that the buffers do not overlap.
        let call = Call {
            send: std::ptr::without_provenance(1 << 20),
            recv: std::ptr::without_provenance_mut(1 << 40),
            count: case.own_count(comm.rank()),
            op: case.op,
            root: case.root,
            vector: part.vector.as_ref(),
            ..Call::new(case.collective, case.data_type)
        };
        comm.explain(&call).expect("a call that can be explained")
    }
}

fn part(case: &Case, rank: usize, reduction: &[u8]) -> Part {
    let size = case.data_type.size();
    let send = case.send_content(rank);
    let recv_side = case.recv_side(rank);
    let joint = if case.in_place { joint(case, rank, reduction) } else { None };
    let recv = recv_side.map(|side| {
        let start = vec![UNTOUCHED; side.elements * size];
        case.want(rank, &side, start, reduction)
    });
    Part { send, recv, joint, vector: case.vector(rank) }
}

/// The in-place form; `None` on ranks that have one buffer only.
fn joint(case: &Case, rank: usize, reduction: &[u8]) -> Option<Joint> {
    use Collective::*;
    let size = case.data_type.size();
    let send = case.send_content(rank)?;
    let (send_side, recv_side) = (case.send_side(rank)?, case.recv_side(rank)?);
    match case.collective {
        AllGather | Gather => {
            let mut start = vec![UNTOUCHED; recv_side.elements * size];
            let send_at = recv_side.blocks[rank].0 * size;
            start[send_at..send_at + send.len()].copy_from_slice(&send);
            let want = case.want(rank, &recv_side, start.clone(), reduction);
            Some(Joint { start, want, send_at, recv_at: 0 })
        }
        ReduceScatter | Scatter => {
            let (at, count) = send_side.blocks[rank];
            let recv_at = at * size;
            let mut want = send.clone();
            let block = case.want_block(rank, 0, count, reduction);
            want[recv_at..recv_at + block.len()].copy_from_slice(&block);
            Some(Joint { start: send, want, send_at: 0, recv_at })
        }
        _ => {
            let want = case.want(rank, &recv_side, send.clone(), reduction);
            Some(Joint { start: send, want, send_at: 0, recv_at: 0 })
        }
    }
}

/// The sum of some, of which each half's is rounded first; the larger half comes first.
fn balanced(top: &Rule, below: &Rule, parts: &[u64]) -> u64 {
    if let [part] = parts {
        return *part;
    }
    let (left, right) = parts.split_at(parts.len().div_ceil(2));
    reduce(top, &[left, right].map(|half| balanced(below, below, half)))
}
