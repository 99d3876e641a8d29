//! A plan done step by step: one rank at a time goes as far as it can, with the CPU path's
//! arithmetic.

use crate::data::{Rule, on_the_host};
use ringcomm::executor::compile_plan::{BoundStep, CompiledPlan, Piece};
use ringcomm::plan::End;
use std::collections::{HashMap, VecDeque};

/// What one rank's call works on.
pub struct Memory {
    pub input: Vec<u8>,
    pub output: Vec<u8>,
    /// By channel.
    pub scratch: Vec<Vec<u8>>,
    pub scalar: f64,
}

/// Messages under way, by sender and receiver.
type Network = HashMap<(usize, usize), VecDeque<Vec<u8>>>;

/// Run all ranks' plans, channel by channel.
pub fn reference(bounds: &[Vec<CompiledPlan>], memories: &mut [Memory], rule: &Rule) {
    for channel in 0..bounds[0].len() {
        let mut network = Network::new();
        let mut queues: Vec<VecDeque<(usize, usize)>> =
            bounds.iter().map(|rank| order(&rank[channel])).collect();
        while queues.iter().any(|queue| !queue.is_empty()) {
            let mut moved = false;
            for (rank, queue) in queues.iter_mut().enumerate() {
                while let Some(&(index, slice)) = queue.front() {
                    let bound = &bounds[rank][channel];
                    let memory = (&mut memories[rank], channel);
                    let done = step(rank, bound, (index, slice), memory, rule, &mut network);
                    if !done {
                        break;
                    }
                    queue.pop_front();
                    moved = true;
                }
            }
            assert!(moved, "the plan does not end");
        }
    }
}

/// Steps and slices in the executors' order.
fn order(bound: &CompiledPlan) -> VecDeque<(usize, usize)> {
    let mut all = VecDeque::new();
    for tick in 0..bound.ticks {
        for (index, step) in bound.steps.iter().enumerate() {
            if tick >= step.stage && tick - step.stage < step.slices {
                all.push_back((index, tick - step.stage));
            }
        }
    }
    all
}

/// Do a slice of a step, if its messages have come.
fn step(
    rank: usize,
    bound: &CompiledPlan,
    (index, slice): (usize, usize),
    (memory, channel): (&mut Memory, usize),
    rule: &Rule,
    network: &mut Network,
) -> bool {
    let step = &bound.steps[index];
    let peers = |ends: &[End]| -> Vec<usize> {
        let peer = |end: &End| if let End::Peer(peer) = end { Some(*peer) } else { None };
        ends.iter().filter_map(peer).collect()
    };
    let messages = peers(&step.sources);
    if messages.iter().any(|peer| network.get(&(*peer, rank)).is_none_or(VecDeque::is_empty)) {
        return false;
    }
    let mut come: HashMap<usize, Vec<u8>> = HashMap::new();
    for peer in messages {
        come.insert(peer, network.get_mut(&(peer, rank)).unwrap().pop_front().unwrap());
    }
    let mut sent: HashMap<usize, Vec<u8>> =
        peers(&step.targets).into_iter().map(|peer| (peer, Vec::new())).collect();
    let mut packed = 0;
    for piece in &step.pieces {
        let bytes = piece.slice(slice, bound.slice_bytes);
        let sources: Vec<Vec<u8>> = step
            .sources
            .iter()
            .map(|end| match *end {
                End::Peer(peer) => come[&peer][packed..packed + bytes].to_vec(),
                local => place(bound, memory, channel, local, piece, slice, bytes).to_vec(),
            })
            .collect();
        let result =
            if bytes == 0 { Vec::new() } else { reduce(step, &sources, rule, memory.scalar) };
        for target in &step.targets {
            match *target {
                End::Peer(peer) => sent.get_mut(&peer).unwrap().extend(&result),
                local => place(bound, memory, channel, local, piece, slice, bytes)
                    .copy_from_slice(&result),
            }
        }
        packed += bytes;
    }
    for (peer, message) in sent {
        network.entry((rank, peer)).or_default().push_back(message);
    }
    true
}

fn reduce(step: &BoundStep, sources: &[Vec<u8>], rule: &Rule, scalar: f64) -> Vec<u8> {
    if step.copies {
        return sources[0].clone();
    }
    let scaled = step.scaled.map(|index| (index, scalar));
    on_the_host(&Rule { finish: step.finish, scaled, ..*rule }, sources)
}

/// Where a local end's slice of a piece lies.
fn place<'a>(
    bound: &CompiledPlan,
    memory: &'a mut Memory,
    channel: usize,
    end: End,
    piece: &Piece,
    slice: usize,
    bytes: usize,
) -> &'a mut [u8] {
    let sliced = slice * bound.slice_bytes;
    match end {
        End::Input => &mut memory.input[piece.input + sliced..][..bytes],
        End::Output => &mut memory.output[piece.output + sliced..][..bytes],
        _ => {
            let offset = slice % bound.lives * bound.scratch_share + piece.scratch;
            &mut memory.scratch[channel][offset..][..bytes]
        }
    }
}
