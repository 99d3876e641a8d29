//! A plan: what one rank does in a collective, as data.
//!
//! An algorithm is a pure function from `(rank, nranks, root)` to a [`Plan`]: a list of steps
//! `targets <- reduce(sources)` with no sizes and no pointers. The buffers of a collective are cut
//! into **chunks** that all ranks number alike; a step moves one [`Span`] of neighbouring chunks,
//! and each [`End`] says where: this rank's input, output or scratch, or a peer. Sources reduce
//! left to right, or as a balanced tree where the step says so: the order of every reduction is in
//! the plan.
//!
//! Executors run `for slice { for step { .. } }`: a slice is a piece of every chunk, never larger
//! than a connection slot. [`verify`] proves plans, [`simulate`] times them, the executors run
//! them.

pub mod partition;
pub mod simulate;
pub mod topology;
pub mod verify;

/// Where one end of a step is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum End {
    /// The caller's send buffer. Only ever a source.
    Input,
    /// The caller's receive buffer.
    Output,
    /// Memory of the library, which each slice has to itself.
    Scratch,
    /// The connection with a peer: as a source, its next message; as a target, a message to it.
    Peer(usize),
}

/// Neighbouring chunks, by index: `first..first + len`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Span {
    pub first: usize,
    pub len: usize,
}

impl Span {
    pub const fn one(chunk: usize) -> Span {
        Span { first: chunk, len: 1 }
    }

    pub const fn new(first: usize, len: usize) -> Span {
        Span { first, len }
    }

    pub fn chunks(self) -> std::ops::Range<usize> {
        self.first..self.first + self.len
    }
}

/// `targets <- reduce(sources)` on one span of chunks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    pub span: Span,
    pub targets: Vec<End>,
    pub sources: Vec<End>,
    /// The value is complete: an average divides here, and nowhere else.
    pub finish: bool,
    /// Sources are reduced as a balanced tree, the larger half first, and not left to right: each
    /// sum of two is rounded, as where other ranks had formed it.
    pub balanced: bool,
    /// How many slices behind the first stage the step runs where connections are deep enough, so
    /// that later slices are on their way before this one is waited for.
    pub stage: usize,
}

/// Slots of a connection from which executors run plans in stages: a message of each of two stages
/// in both halves of a double buffer.
pub const PIPELINE_DEPTH: usize = 4;

/// Slices between two stages where ranks share cores. Whoever waits there loses its core, so it
/// had better get several slices done before that. With 4 processes on 2 near cores 1 MiB takes
/// 376 us with 1, 320 with 2, 274 with 4 (`benches/results/where-time-goes-2026-11-22.txt`).
pub const CROWDED_STRIDE: usize = 4;

/// Slices between two stages where every rank is a host of its own. Both ends then write several
/// messages, read several, and write again, where with one they would take turns at the sockets
/// (`benches/results/tcp-2026-11-22.txt`).
pub const WIRE_STRIDE: usize = 4;

/// What one rank does, step by step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    pub rank: usize,
    pub nranks: usize,
    /// How many chunks the collective is cut into; the same number on every rank.
    pub nchunks: usize,
    pub steps: Vec<Step>,
    /// The stage of the steps that are added next.
    stage: usize,
}

/// The builder: NCCL's verbs as methods, so that an algorithm reads like its textbook.
impl Plan {
    pub fn new(rank: usize, nranks: usize, nchunks: usize) -> Plan {
        assert!(rank < nranks, "rank {rank} of {nranks}");
        Plan { rank, nranks, nchunks, steps: Vec::new(), stage: 0 }
    }

    /// The steps that follow run one slice later.
    pub fn next_stage(&mut self) {
        self.stage += 1;
    }

    /// The same with every stage `stride` slices behind the one before it, not one. Connections
    /// need as many times the depth.
    pub fn spread(mut self, stride: usize) -> Plan {
        self.steps.iter_mut().for_each(|step| step.stage *= stride);
        self
    }

    /// The same with all inputs of a step reduced as a balanced tree.
    pub fn balanced(mut self) -> Plan {
        self.steps.iter_mut().for_each(|step| step.balanced = step.sources.len() > 1);
        self
    }

    /// How many stages the plan has, the empty ones of a plan that is spread among them.
    pub fn stages(&self) -> usize {
        self.steps.iter().map(|step| step.stage + 1).max().unwrap_or(1)
    }

    /// The general step; the verbs below are its usual cases.
    pub fn step(&mut self, span: Span, targets: &[End], sources: &[End]) -> &mut Step {
        self.steps.push(Step {
            span,
            targets: targets.to_vec(),
            sources: sources.to_vec(),
            finish: false,
            balanced: false,
            stage: self.stage,
        });
        self.steps.last_mut().expect("just pushed")
    }

    /// As [`Plan::step`], where the reduced value is complete.
    pub fn finish(&mut self, span: Span, targets: &[End], sources: &[End]) {
        self.step(span, targets, sources).finish = true;
    }

    /// As [`Plan::finish`], of the parts of hosts, in host order.
    pub fn finish_hosts(&mut self, span: Span, targets: &[End], parts: &[End]) {
        let step = self.step(span, targets, parts);
        (step.finish, step.balanced) = (true, true);
    }

    pub fn copy(&mut self, span: Span, target: End, source: End) {
        self.step(span, &[target], &[source]);
    }

    pub fn send(&mut self, span: Span, peer: usize, source: End) {
        self.step(span, &[End::Peer(peer)], &[source]);
    }

    pub fn recv(&mut self, span: Span, target: End, peer: usize) {
        self.step(span, &[target], &[End::Peer(peer)]);
    }

    /// Receive, keep a copy and pass it on.
    pub fn recv_copy_send(&mut self, span: Span, target: End, from: usize, to: usize) {
        self.step(span, &[target, End::Peer(to)], &[End::Peer(from)]);
    }

    /// Receive, add this rank's input and pass the partial result on.
    pub fn recv_reduce_send(&mut self, span: Span, from: usize, to: usize) {
        self.step(span, &[End::Peer(to)], &[End::Peer(from), End::Input]);
    }

    /// Receive, add this rank's input: the result is complete, keep it.
    pub fn recv_reduce_copy(&mut self, span: Span, target: End, from: usize) {
        self.finish(span, &[target], &[End::Peer(from), End::Input]);
    }

    /// Receive, add this rank's input: the result is complete, keep it and pass it on.
    pub fn recv_reduce_copy_send(&mut self, span: Span, target: End, from: usize, to: usize) {
        self.finish(span, &[target, End::Peer(to)], &[End::Peer(from), End::Input]);
    }
}

/// The operations that have plans. `Send` and `Recv` are matched at run time instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Collective {
    AllReduce,
    ReduceScatter,
    AllGather,
    Broadcast,
    Reduce,
    AllToAll,
    Gather,
    Scatter,
    /// An all-reduce of nothing: every rank leaves after every rank has come.
    Barrier,
}

impl Collective {
    pub const ALL: [Collective; 9] = [
        Collective::AllReduce,
        Collective::ReduceScatter,
        Collective::AllGather,
        Collective::Broadcast,
        Collective::Reduce,
        Collective::AllToAll,
        Collective::Gather,
        Collective::Scatter,
        Collective::Barrier,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            Collective::AllReduce => "AllReduce",
            Collective::ReduceScatter => "ReduceScatter",
            Collective::AllGather => "AllGather",
            Collective::Broadcast => "Broadcast",
            Collective::Reduce => "Reduce",
            Collective::AllToAll => "AllToAll",
            Collective::Gather => "Gather",
            Collective::Scatter => "Scatter",
            Collective::Barrier => "Barrier",
        }
    }

    pub const fn has_root(self) -> bool {
        use Collective::*;
        matches!(self, Broadcast | Reduce | Gather | Scatter)
    }

    pub const fn reduces(self) -> bool {
        use Collective::*;
        matches!(self, AllReduce | ReduceScatter | Reduce | Barrier)
    }

    /// Whether rank's input holds `chunk`.
    ///
    /// Chunk numbers: AllToAll numbers the block from `s` to `d` as `s * nranks + d`;
    /// ReduceScatter, AllGather, Gather and Scatter number the block of rank `r` as `r`; AllReduce,
    /// Broadcast, Reduce and Barrier cut the whole buffer into as many chunks as the algorithm
    /// likes.
    pub fn input_holds(self, rank: usize, nranks: usize, root: usize, chunk: usize) -> bool {
        use Collective::*;
        match self {
            AllReduce | ReduceScatter | Reduce | Barrier => true,
            AllGather | Gather => chunk == rank,
            Broadcast | Scatter => rank == root,
            AllToAll => chunk / nranks == rank,
        }
    }

    /// Whether rank's output must hold `chunk` at the end: the reduction of every input that holds
    /// it where the collective reduces, else a copy of the only one.
    pub fn output_wants(self, rank: usize, nranks: usize, root: usize, chunk: usize) -> bool {
        use Collective::*;
        match self {
            AllReduce | AllGather | Broadcast | Barrier => true,
            ReduceScatter | Scatter => chunk == rank,
            Reduce | Gather => rank == root,
            AllToAll => chunk % nranks == rank,
        }
    }
}
