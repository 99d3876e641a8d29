//! Bound calls, kept by shape: after its first call a shape costs one comparison.

use crate::algorithm::Algorithm;
use crate::communicator::call::fingerprint::mix;
use crate::communicator::call::portions::Portions;
use crate::communicator::call::signature::CallSignature;
use crate::communicator::call::{Call, Extents, VectorCounts};
use crate::executor::chunk_layout::Layout;
use crate::executor::compile_plan::CompiledPlan;
use crate::executor::direct::program::Direct;
use crate::executor::shm_two_shot::ShmTwoShot;
use crate::plan::Collective;
use crate::types::{DataType, ReduceOp};
use std::collections::HashMap;
use std::sync::Arc;

/// Shapes kept before the cache starts over: a model has tens of bucket sizes, not thousands.
const MOST: usize = 4096;

/// How a call runs in the ranks' own buffers, where that depends on the buffers.
#[derive(Clone, Copy, Debug)]
pub struct Mapped {
    pub algorithm: &'static str,
    pub chunks: usize,
    /// Whether it also suits a call in place.
    pub in_place: bool,
    pub predicted_us: f64,
}

impl Mapped {
    /// Of a call in so many portions.
    pub fn times(self, number: usize) -> Mapped {
        Mapped { predicted_us: number as f64 * self.predicted_us, ..self }
    }
}

/// Everything about a call but its addresses.
#[derive(Clone, Debug, PartialEq)]
pub struct Key {
    collective: Collective,
    data_type: DataType,
    op: ReduceOp,
    root: usize,
    count: usize,
    vector: Option<VectorCounts>,
}

impl Key {
    pub fn new(call: &Call) -> Key {
        Key {
            collective: call.collective,
            data_type: call.data_type,
            op: call.op,
            root: call.root,
            count: call.count,
            vector: call.vector.cloned(),
        }
    }

    fn is_of(&self, call: &Call) -> bool {
        self.count == call.count
            && self.collective == call.collective
            && self.data_type == call.data_type
            && self.op == call.op
            && self.root == call.root
            && self.vector.as_ref() == call.vector
    }
}

fn hash(call: &Call) -> u64 {
    let mut hash = call.collective as u64
        | (call.data_type as u64) << 8
        | (call.op as u64) << 16
        | (call.root as u64) << 32;
    hash = mix(hash ^ mix(call.count as u64));
    let lists = call.vector.iter().flat_map(|v| {
        [&v.send_counts, &v.send_displacements, &v.recv_counts, &v.recv_displacements]
    });
    lists.flatten().fold(hash, |hash, word| mix(hash ^ *word as u64))
}

/// How a bound call runs.
pub enum DataPath {
    /// Through slots.
    Slots,
    /// In the peers' buffers where all of them can be reached, else through slots.
    Direct(Direct),
    /// Block by block, as point-to-point messages.
    Messages(Layout),
}

/// A call's shape, ready to run.
pub struct BoundCall {
    key: Key,
    pub extents: Extents,
    pub algorithm: Algorithm,
    pub descriptor: CallSignature,
    /// [`CallSignature::pack`], done once.
    pub what: u64,
    pub fingerprint: u64,
    pub compiled: CompiledPlan,
    pub way: DataPath,
    /// What runs in the place of `compiled` where the ranks share scratch.
    pub two_shot: Option<ShmTwoShot>,
    /// What runs in the place of `compiled` unless somebody's buffers do not suit it: what others
    /// have, the kernel reads.
    pub cma: Option<Direct>,
    pub chunks: usize,
    pub predicted_us: f64,
    /// How it is cut where ranks are on devices, if it is long.
    pub portions: Option<Portions>,
    /// Whether a call that asked in vain for the ranks' buffers is followed by some that do not.
    pub backs_off: bool,
    /// The program of `way` in words, where it depends on the buffers whether that runs.
    pub mapped: Option<Mapped>,
}

impl BoundCall {
    pub fn new(
        (key, extents): (Key, Extents),
        descriptor: CallSignature,
        fingerprint: u64,
        compiled: CompiledPlan,
        way: DataPath,
        chunks: usize,
        predicted_us: f64,
    ) -> BoundCall {
        BoundCall {
            key,
            extents,
            algorithm: descriptor.algorithm,
            what: descriptor.pack(),
            descriptor,
            fingerprint,
            compiled,
            way,
            two_shot: None,
            cma: None,
            portions: None,
            backs_off: false,
            chunks,
            predicted_us,
            mapped: None,
        }
    }

    /// Whether it goes through slots, whatever its buffers are.
    #[inline]
    pub fn is_through_slots(&self) -> bool {
        let is_one = self.portions.is_none() && self.two_shot.is_none() && self.cma.is_none();
        is_one && matches!(self.way, DataPath::Slots)
    }

    /// Whether what does not lie in memory that all share is read by the kernel, also in place.
    pub fn runs_by_cma(&self) -> bool {
        self.cma.as_ref().is_some_and(|program| program.in_place)
    }

    /// Slices, and the bytes of a chunk that are in one of them, unless `mapped` runs.
    pub fn slices(&self) -> (usize, usize) {
        match (&self.two_shot, &self.way) {
            (Some(two_shot), _) => (two_shot.count(), two_shot.slice_bytes()),
            (None, DataPath::Direct(program)) if self.mapped.is_none() => (1, program.chunk_bytes),
            (None, DataPath::Direct(_) | DataPath::Slots) if self.runs_by_cma() => {
                (1, self.cma.as_ref().map_or(0, |program| program.chunk_bytes))
            }
            (None, DataPath::Messages(layout)) => {
                (1, layout.longest_own() * self.key.data_type.size())
            }
            _ => (self.compiled.slices, self.compiled.slice_bytes),
        }
    }
}

#[derive(Default)]
pub struct Cache {
    last: Option<Arc<BoundCall>>,
    shapes: HashMap<u64, Vec<Arc<BoundCall>>>,
    count: usize,
}

impl Cache {
    /// The bound call, if this shape has been called before. Taken out, so that no count is kept;
    /// the caller puts it back.
    #[inline]
    pub fn take(&mut self, call: &Call) -> Option<Arc<BoundCall>> {
        match &self.last {
            Some(last) if last.key.is_of(call) => self.last.take(),
            _ => self.find(call),
        }
    }

    fn find(&self, call: &Call) -> Option<Arc<BoundCall>> {
        let same = self.shapes.get(&hash(call))?;
        same.iter().find(|ready| ready.key.is_of(call)).cloned()
    }

    /// Keep it at hand for the next call.
    #[inline]
    pub fn put_back(&mut self, ready: Arc<BoundCall>) {
        self.last = Some(ready);
    }

    pub fn insert(&mut self, call: &Call, ready: Arc<BoundCall>) {
        if self.count == MOST {
            *self = Cache::default();
        }
        self.count += 1;
        self.shapes.entry(hash(call)).or_default().push(ready);
    }
}
