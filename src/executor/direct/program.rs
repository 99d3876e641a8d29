//! Binding for ranks that can address each other's buffers: messages become loads and stores.
//!
//! Two kinds of message need no slot. A sender that only passes on its input lends it: the receiver
//! reads it where it lies (*pull*). A receiver that only keeps what comes lends its output: the
//! sender writes it there (*push*). A plan whose every message is one of the two turns into a
//! program with no messages at all, between two barriers: at the first everybody says where its
//! buffers are, at the second that it has finished with the others'. The plan stays the
//! specification: sources are the same, in the same order, so the bits are those of the
//! interpreter.
//!
//! Programs only read inputs and only write outputs. Where an in-place call lays one over the
//! other, `in_place` says whether some rank could read a block that another has already
//! overwritten.

use crate::device::host::STREAMED_LEAST;
use crate::executor::chunk_layout::Layout;
use crate::plan::{End, Plan, Span, Step};
use std::collections::{HashMap, HashSet};

/// A block in some rank's buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockRef {
    pub rank: usize,
    /// In its output; else in its input.
    pub output: bool,
    /// Bytes before it.
    pub offset: usize,
}

#[derive(Clone, Debug)]
pub struct DirectStep {
    pub targets: Box<[BlockRef]>,
    pub sources: Box<[BlockRef]>,
    pub bytes: usize,
    pub finish: bool,
}

/// How far into a rank's buffers a program goes: bytes from their starts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Used {
    pub input: usize,
    pub output: usize,
}

/// What one rank does with everybody's buffers.
#[derive(Clone, Debug)]
pub struct Direct {
    pub steps: Box<[DirectStep]>,
    /// By rank: what must be there before the program may run.
    pub used: Box<[Used]>,
    /// The peers whose buffers this rank reads or writes.
    pub touches: Box<[usize]>,
    /// The peers that read or write this rank's buffers.
    pub touched_by: Box<[usize]>,
    /// Whether in-place calls are safe.
    pub in_place: bool,
    /// The bytes of the longest chunk.
    pub chunk_bytes: usize,
    /// Whether it writes at peers what would go past the cache if they are far.
    pub pushes: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TransferKind {
    Pull,
    Push,
}

/// One message: the step and its place at either end.
struct DirectMessage {
    kind: TransferKind,
    span: Span,
}

/// A block of one rank, for finding conflicts: (rank, chunk).
type BlockKey = (usize, usize);

/// One rank's program in chunks, before offsets.
struct Draft {
    targets: Vec<(usize, End)>,
    sources: Vec<(usize, End)>,
    span: Span,
    finish: bool,
}

impl Direct {
    /// The program of `rank`, or `None` where the plans need slots.
    ///
    /// `plans` are those of all ranks; the same plans give every rank the same answer.
    pub fn new(plans: &[Plan], rank: usize, layout: &Layout, element: usize) -> Option<Direct> {
        Direct::made_of(plans, rank, layout, element, true)
    }

    /// As [`Direct::new`], of a program that reads what peers have and writes nothing there.
    pub fn reading(plans: &[Plan], rank: usize, layout: &Layout, element: usize) -> Option<Direct> {
        Direct::made_of(plans, rank, layout, element, false)
    }

    fn made_of(
        plans: &[Plan],
        rank: usize,
        layout: &Layout,
        element: usize,
        writes: bool,
    ) -> Option<Direct> {
        let wires = wires(plans, layout, writes)?;
        let drafts: Vec<Vec<Draft>> =
            plans.iter().map(|plan| drafts(plan, &wires)).collect::<Option<_>>()?;
        let touched = |owner: usize| peers(&drafts[owner], owner);
        let touches = touched(rank);
        let touched_by: Vec<usize> = (0..plans.len())
            .filter(|&peer| peer != rank && touched(peer).contains(&rank))
            .collect();
        let mut steps = Vec::new();
        for draft in &drafts[rank] {
            for chunk in draft.span.chunks() {
                let place = |&(owner, end): &(usize, End)| {
                    let output = end == End::Output;
                    let elements = if output {
                        layout.output(owner, chunk)
                    } else {
                        layout.input(owner, chunk)
                    };
                    elements.map(|elements| BlockRef {
                        rank: owner,
                        output,
                        offset: elements * element,
                    })
                };
                steps.push(DirectStep {
                    targets: draft.targets.iter().map(place).collect::<Option<_>>()?,
                    sources: draft.sources.iter().map(place).collect::<Option<_>>()?,
                    bytes: layout.count(chunk) * element,
                    finish: draft.finish,
                });
            }
        }
        let is_push = |step: &DirectStep| {
            step.bytes >= STREAMED_LEAST && step.targets.iter().any(|place| place.rank != rank)
        };
        Some(Direct {
            pushes: steps.iter().any(is_push),
            used: used(&steps, plans.len()),
            steps: steps.into(),
            touches: touches.into(),
            touched_by: touched_by.into(),
            in_place: is_safe_in_place(&drafts, layout),
            chunk_bytes: (0..plans[rank].nchunks).map(|chunk| layout.count(chunk)).max()? * element,
        })
    }
}

/// What a program uses of each rank's buffers.
fn used(steps: &[DirectStep], nranks: usize) -> Box<[Used]> {
    let mut used = vec![Used::default(); nranks];
    for step in steps.iter().filter(|step| step.bytes > 0) {
        for place in step.targets.iter().chain(&step.sources) {
            let owner = &mut used[place.rank];
            let reached = if place.output { &mut owner.output } else { &mut owner.input };
            *reached = (*reached).max(place.offset.saturating_add(step.bytes));
        }
    }
    used.into()
}

/// Every message with its kind, keyed by (sender, receiver), in order.
///
/// Where both kinds are possible the rank that has copied less so far does it, which spreads a
/// broadcast or a gather over its ranks.
fn wires(
    plans: &[Plan],
    layout: &Layout,
    writes: bool,
) -> Option<HashMap<(usize, usize), Vec<DirectMessage>>> {
    let mut receives: HashMap<(usize, usize), Vec<&Step>> = HashMap::new();
    for plan in plans {
        for step in &plan.steps {
            for source in &step.sources {
                if let End::Peer(sender) = *source {
                    receives.entry((sender, plan.rank)).or_default().push(step);
                }
            }
        }
    }
    let mut wires: HashMap<(usize, usize), Vec<DirectMessage>> = HashMap::new();
    let mut load = vec![0; plans.len()];
    for plan in plans {
        for step in &plan.steps {
            for target in &step.targets {
                let End::Peer(receiver) = *target else { continue };
                let sent = wires.entry((plan.rank, receiver)).or_default();
                let twin = receives.get(&(plan.rank, receiver))?.get(sent.len())?;
                let pull = is_lent_input(step) && layout.input_is_public();
                let push = writes && is_lent_output(twin) && layout.output_is_public();
                let kind = match (pull, push) {
                    (false, false) => return None,
                    (true, false) => TransferKind::Pull,
                    (false, true) => TransferKind::Push,
                    (true, true) if load[receiver] <= load[plan.rank] => TransferKind::Pull,
                    (true, true) => TransferKind::Push,
                };
                if pull && push {
                    load[if kind == TransferKind::Pull { receiver } else { plan.rank }] += 1;
                }
                sent.push(DirectMessage { kind, span: step.span });
            }
        }
    }
    Some(wires)
}

/// The step sends the input as it is.
fn is_lent_input(step: &Step) -> bool {
    step.sources == [End::Input]
}

/// The step only keeps what comes.
fn is_lent_output(step: &Step) -> bool {
    step.targets == [End::Output] && matches!(step.sources[..], [End::Peer(_)])
}

/// A rank's steps with the messages resolved; `None` where a step cannot do without slots.
fn drafts(plan: &Plan, wires: &HashMap<(usize, usize), Vec<DirectMessage>>) -> Option<Vec<Draft>> {
    let mut sent: HashMap<usize, usize> = HashMap::new();
    let mut received: HashMap<usize, usize> = HashMap::new();
    let mut drafts = Vec::new();
    for step in &plan.steps {
        let mut sources = Vec::new();
        let mut pushed_here = false;
        for source in &step.sources {
            match *source {
                End::Input => sources.push((plan.rank, End::Input)),
                End::Peer(peer) => {
                    let index = received.entry(peer).or_default();
                    let wire = wires.get(&(peer, plan.rank))?.get(*index)?;
                    *index += 1;
                    if wire.span != step.span {
                        return None;
                    }
                    pushed_here |= wire.kind == TransferKind::Push;
                    sources.push((peer, End::Input));
                }
                End::Output | End::Scratch => return None,
            }
        }
        let mut targets = Vec::new();
        for target in &step.targets {
            match *target {
                End::Output => targets.push((plan.rank, End::Output)),
                End::Peer(peer) => {
                    let index = sent.entry(peer).or_default();
                    let wire = wires.get(&(plan.rank, peer))?.get(*index)?;
                    *index += 1;
                    if wire.kind == TransferKind::Push {
                        targets.push((peer, End::Output));
                    }
                }
                End::Input | End::Scratch => return None,
            }
        }
        // A pushed block is the sender's work; a send whose receivers all pull is nobody's.
        if !pushed_here && !targets.is_empty() {
            drafts.push(Draft { targets, sources, span: step.span, finish: step.finish });
        }
    }
    Some(drafts)
}

/// The other ranks whose buffers a program uses.
fn peers(drafts: &[Draft], rank: usize) -> Vec<usize> {
    let ends = drafts.iter().flat_map(|draft| draft.targets.iter().chain(&draft.sources));
    let owners: HashSet<usize> = ends.map(|end| end.0).filter(|owner| *owner != rank).collect();
    let mut owners: Vec<usize> = owners.into_iter().collect();
    owners.sort_unstable();
    owners
}

/// Whether no block is read by one step and, where input and output share memory, written by
/// another.
fn is_safe_in_place(drafts: &[Vec<Draft>], layout: &Layout) -> bool {
    let mut writer: HashMap<BlockKey, usize> = HashMap::new();
    let all = || drafts.iter().flatten().enumerate();
    for (index, draft) in all() {
        for chunk in draft.span.chunks() {
            for (owner, _) in &draft.targets {
                // Copying a block onto itself changes nothing.
                let itself = draft.sources == [(*owner, End::Input)]
                    && layout.in_place_partner(chunk) == chunk;
                if !itself {
                    writer.insert((*owner, chunk), index);
                }
            }
        }
    }
    all().all(|(index, draft)| {
        draft.span.chunks().all(|chunk| {
            let written = layout.in_place_partner(chunk);
            draft.sources.iter().all(|(owner, _)| {
                writer.get(&(*owner, written)).is_none_or(|writer| *writer == index)
            })
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::{self, Algorithm};
    use crate::plan::Collective;

    #[test]
    fn what_a_program_uses_ends_where_its_furthest_block_does() {
        // Three ranks, ten floats in chunks of 4, 3 and 3: rank 1 reduces the middle one, which
        // ends after seven floats, and takes the others from the ranks that made them.
        let plan = |rank| algorithm::plan(Algorithm::TwoShot, Collective::AllReduce, rank, 3, 0);
        let plans: Vec<Plan> = (0..3).map(|rank| plan(rank).unwrap()).collect();
        let layout = Layout::new(Collective::AllReduce, 1, 3, plans[0].nchunks, 10, None);
        let program = Direct::new(&plans, 1, &layout, 4).unwrap();
        let used = |input, output| Used { input, output };
        assert_eq!(program.used[..], [used(28, 28), used(28, 28), used(28, 28)]);
        assert_eq!(program.chunk_bytes, 16);
        // Nothing of nothing, wherever it would lie.
        let layout = Layout::new(Collective::AllReduce, 1, 3, plans[0].nchunks, 0, None);
        let program = Direct::new(&plans, 1, &layout, 4).unwrap();
        assert_eq!(program.used[..], [Used::default(); 3]);
    }
}
