//! Binding: a call's shape is turned into programs that are ready to run.

use super::context::PlanContext;
use super::plan_cache::{BoundCall, DataPath, Key, Mapped};
use super::select;
use crate::algorithm::select::AlgorithmChoice;
use crate::algorithm::{self, Algorithm, SumOrder};
use crate::communicator::call::fingerprint::mix;
use crate::communicator::call::portions::Portions;
use crate::communicator::call::signature::CallSignature;
use crate::communicator::call::{Call, Extents};
use crate::config::Config;
use crate::device::host::Reduction;
use crate::error::Result;
use crate::executor::chunk_layout::Layout;
use crate::executor::compile_plan::{CompileShape, CompiledPlan, Cut};
use crate::executor::direct::program::Direct;
use crate::executor::shm_two_shot::ShmTwoShot;
use crate::plan::{Collective, PIPELINE_DEPTH, Plan};

impl PlanContext {
    /// A call's shape, ready to run. Says nothing of any buffer.
    #[cold]
    pub fn bind(&self, call: &Call, config: &Config) -> Result<BoundCall> {
        let (rank, nranks) = (self.rank, self.nranks);
        let key = (Key::new(call), call.extents(rank, nranks)?);
        if call.runs_as_messages() {
            return self.bind_messages(call, key, config);
        }
        let chosen = select::choose(self, call, config)?;
        let is_serial = self.is_serial(chosen.slots.algorithm, call.collective, config);
        let plan_of = |algorithm, of| self.plan(algorithm, of, call, config);
        let layout_for = |plan: &Plan| {
            Layout::new(call.collective, rank, nranks, plan.nchunks, call.count, call.vector)
        };
        let element = call.data_type.size();
        let reduction = || Reduction::new(call.data_type, call.op, nranks);
        let reduction = call.collective.reduces().then(reduction).transpose()?;
        let reduction = reduction.map(|one| if is_serial { one } else { one.with_partial_sums() });
        let plans_of = |algorithm: Algorithm| (0..nranks).map(move |of| plan_of(algorithm, of));
        let plan = plan_of(chosen.slots.algorithm, rank).spread(self.stride());
        let layout = layout_for(&plan);
        let cut = Cut::new(plans_of(chosen.slots.algorithm), &layout, element);
        let shape = CompileShape {
            layout: &layout,
            element,
            reduction,
            slot_bytes: self.message_bytes((chosen.slots.algorithm, call.collective), cut.whole),
            pipelined: self.geometry.depth >= PIPELINE_DEPTH,
            cut,
        };
        let staged = CompiledPlan::new(&plan, shape)?;
        let direct = chosen.direct.and_then(|direct| {
            let plans: Vec<Plan> = plans_of(direct.algorithm).collect();
            Direct::new(&plans, rank, &layout_for(&plans[rank]), element)
        });
        let two_shot = chosen.two_shot.and_then(|choice| {
            let plans: Vec<Plan> = plans_of(choice.algorithm).collect();
            ShmTwoShot::new(&plans, rank, (call.count, element), self.window_bytes())
        });
        let kernel = chosen.cma.and_then(|choice| self.reading(call, choice.algorithm));
        // Between processes it is scratch or the slots unless all ranks' buffers turn out to be
        // shared, between threads it is the slots where a rank calls in place what that does not
        // suit.
        let always = self.one_process && direct.as_ref().is_some_and(|program| program.in_place);
        let by_cma = kernel.as_ref().is_some_and(|program| program.in_place);
        let of_windows = chosen.two_shot.filter(|_| two_shot.is_some());
        let otherwise = of_windows.or(chosen.cma.filter(|_| by_cma)).unwrap_or(chosen.slots);
        let best = chosen.direct.filter(|_| always).unwrap_or(otherwise);
        let descriptor = describe(call, best.algorithm);
        let fingerprint = descriptor.fingerprint(layout_word(call));
        let mapped = |(program, choice): (&Direct, AlgorithmChoice)| Mapped {
            algorithm: choice.algorithm.name(),
            chunks: plan_of(choice.algorithm, rank).nchunks,
            in_place: program.in_place,
            predicted_us: choice.predicted_us,
        };
        let mapped = direct.as_ref().zip(chosen.direct).filter(|_| !always).map(mapped);
        let asks = direct.is_some() || kernel.is_some();
        let way = direct.map_or(DataPath::Slots, DataPath::Direct);
        let (chunks, us) = (plan_of(otherwise.algorithm, rank).nchunks, best.predicted_us);
        let mut ready = BoundCall::new(key, descriptor, fingerprint, staged, way, chunks, us);
        (ready.mapped, ready.two_shot, ready.cma) = (mapped, two_shot, kernel);
        ready.portions = self.portions(call, &ready.extents, config)?;
        ready.backs_off = asks && chosen.backs_off(call.collective);
        Ok(ready)
    }

    /// Whether a call's sums are the serial loop's: each is one step over all inputs in rank order.
    fn is_serial(&self, algorithm: Algorithm, collective: Collective, config: &Config) -> bool {
        self.order_of(algorithm, collective, config) == SumOrder::Serial
    }

    fn order_of(&self, algorithm: Algorithm, collective: Collective, config: &Config) -> SumOrder {
        let among = (self.topology.nhosts(), self.nranks);
        SumOrder::of(algorithm, collective, among, config.deterministic)
    }

    /// What a rank does by an algorithm that does the call.
    fn plan(&self, algorithm: Algorithm, of: usize, call: &Call, config: &Config) -> Plan {
        let (collective, root) = (call.collective, call.root);
        let flat = collective.reduces() && self.is_serial(algorithm, collective, config);
        let plan = match flat {
            true => algorithm::plan(algorithm, collective, of, self.nranks, root),
            false => algorithm::plan_on(&self.topology, algorithm, collective, of, root),
        };
        plan.expect("only algorithms that exist are chosen")
    }

    /// In which order a call's inputs are reduced by the algorithm of this name, where that shows.
    pub fn order(&self, call: &Call, algorithm: &str, config: &Config) -> &'static str {
        let shows = call.collective.reduces() && !call.op.is_associative(call.data_type);
        match Algorithm::from_name(algorithm) {
            Ok(algorithm) if shows => self.order_of(algorithm, call.collective, config).name(),
            _ => "",
        }
    }

    /// How a call is cut, where a rank is on a device: the same on all ranks.
    pub fn portions(
        &self,
        call: &Call,
        extents: &Extents,
        config: &Config,
    ) -> Result<Option<Portions>> {
        let Some(bytes) = self.portion_bytes else { return Ok(None) };
        let cut = |parts| Portions::of(call, extents, (self.rank, self.nranks), parts, bytes);
        match cut(1) {
            None => Ok(None),
            whole => match self.parts(call, config)? {
                1 => Ok(whole),
                parts => Ok(cut(parts)),
            },
        }
    }

    /// The first portion of a call, ready to run.
    pub fn bind_portion(
        &self,
        call: &Call,
        portions: &Portions,
        config: &Config,
    ) -> Result<BoundCall> {
        let lists = portions.lists(call, 0);
        self.bind(&portions.call(call, 0, (call.send, call.recv), lists.as_ref()), config)
    }

    /// Parts of a vector that keep their elements however it is cut: in the algorithms that only
    /// run where they are asked for, the order of a sum depends on them.
    fn parts(&self, call: &Call, config: &Config) -> Result<usize> {
        let has_order = matches!(call.collective, Collective::AllReduce | Collective::Reduce)
            && !call.op.is_associative(call.data_type);
        if !has_order || config.algorithm.is_none() {
            return Ok(1);
        }
        let algorithm = select::choose(self, call, config)?.slots.algorithm;
        let plan =
            algorithm::plan_on(&self.topology, algorithm, call.collective, self.rank, call.root);
        let plan = plan.filter(|_| !self.is_serial(algorithm, call.collective, config));
        Ok(plan.map_or(1, |plan| plan.nchunks))
    }

    /// The program in which every rank only reads what others have.
    fn reading(&self, call: &Call, algorithm: Algorithm) -> Option<Direct> {
        let plan =
            |of| algorithm::plan_on(&self.topology, algorithm, call.collective, of, call.root);
        let plans: Vec<Plan> = (0..self.nranks).map(plan).collect::<Option<_>>()?;
        let (rank, nchunks) = (self.rank, plans[self.rank].nchunks);
        let layout =
            Layout::new(call.collective, rank, self.nranks, nchunks, call.count, call.vector);
        Direct::reading(&plans, rank, &layout, call.data_type.size())
    }

    /// A `v` form whose ranks know only their own blocks: each block is a message of its own.
    fn bind_messages(
        &self,
        call: &Call,
        key: (Key, Extents),
        config: &Config,
    ) -> Result<BoundCall> {
        let descriptor = describe(call, Algorithm::OneShot);
        let fingerprint = descriptor.fingerprint(layout_word(call));
        let predicted =
            select::predicted(self, call, Algorithm::OneShot).unwrap_or(self.costs.alpha_us);
        let nothing = CompiledPlan::empty(call.data_type.size(), self.geometry.slot_bytes);
        let (rank, chunks) = (self.rank, self.nranks);
        let layout =
            Layout::new(call.collective, rank, chunks, chunks * chunks, call.count, call.vector);
        let way = DataPath::Messages(layout);
        let mut ready =
            BoundCall::new(key, descriptor, fingerprint, nothing, way, chunks, predicted);
        ready.portions = self.portions(call, &ready.extents, config)?;
        Ok(ready)
    }
}

fn describe(call: &Call, algorithm: Algorithm) -> CallSignature {
    CallSignature {
        collective: Some(call.collective),
        data_type: call.data_type,
        op: call.op,
        algorithm,
        root: call.root,
        count: common_count(call),
    }
}

/// The count that all ranks agree on: in a `v` form that of all blocks, where all ranks know them.
fn common_count(call: &Call) -> usize {
    match call.vector {
        None => call.count,
        Some(_) if call.runs_as_messages() => 0,
        Some(vector) => vector.recv_counts.iter().sum(),
    }
}

/// What ranks of a `v` form must agree on: the counts, where all ranks know all of them.
fn layout_word(call: &Call) -> u64 {
    use Collective::{AllGather, ReduceScatter};
    match (call.vector, call.collective) {
        (None, _) => 0,
        (Some(v), AllGather | ReduceScatter) => {
            v.recv_counts.iter().fold(1, |hash, count| mix(hash ^ *count as u64))
        }
        (Some(_), _) => 1,
    }
}
