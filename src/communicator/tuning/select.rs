//! Choosing an algorithm for a call.
//!
//! All ranks ask the same question of the same constants, on which they agreed when the
//! communicator was made (`init/calibrate/mod.rs`).

use super::context::PlanContext;
use crate::algorithm::select::{
    AlgorithmChoice, Costs, Hosts, Question, by_cma, choose as fastest, predict, shm_two_shot,
};
use crate::algorithm::{self, Algorithm, serial_order};
use crate::communicator::call::Call;
use crate::config::Config;
use crate::error::{Error, Result};
use crate::plan::Collective;

/// How a call runs: through slots, and directly where all ranks' buffers turn out to be reachable.
pub struct ChosenPaths {
    pub slots: AlgorithmChoice,
    /// What is faster than slots where the ranks can share scratch.
    pub two_shot: Option<AlgorithmChoice>,
    /// What is faster than slots where the kernel copies for all ranks.
    pub cma: Option<AlgorithmChoice>,
    pub direct: Option<AlgorithmChoice>,
    /// Whether asking for the ranks' buffers takes a part of the call's time that matters where the
    /// answer is no.
    pub asking_counts: bool,
}

impl ChosenPaths {
    /// Whether a call that asked in vain for the ranks' buffers is better followed by some that do
    /// not ask, and gives the same bits without.
    pub fn backs_off(&self, collective: Collective) -> bool {
        let ways = [Some(self.slots), self.two_shot, self.cma, self.direct];
        let in_order = |way: &AlgorithmChoice| serial_order(way.algorithm, collective);
        self.asking_counts && ways.iter().flatten().all(in_order)
    }
}

/// Times that asking goes into a call of which it is too little to matter: 3 %.
const ASKING_COUNTS: f64 = 32.0;

pub fn choose(plan_context: &PlanContext, call: &Call, config: &Config) -> Result<ChosenPaths> {
    let nranks = plan_context.nranks;
    let forced = match plan_context.setting_up {
        true => Some(first(call.collective, plan_context.topology.nhosts())),
        false => forced_algorithm(config)?,
    };
    let exists = |algorithm: &Algorithm| {
        algorithm::plan_on(&plan_context.topology, *algorithm, call.collective, 0, call.root)
            .is_some()
    };
    let forced = forced.filter(exists);
    let question = Question {
        collective: call.collective,
        nranks,
        hosts: Hosts::of(&plan_context.topology),
        bytes: whole_bytes(call, nranks),
        element: call.data_type.size(),
        associative: !call.collective.reduces() || call.op.is_associative(call.data_type),
        deterministic: config.deterministic,
        direct: false,
        // Ranks may differ in this, so it must not change their choice.
        in_place: false,
        slot_bytes: plan_context.longest_message(),
        whole_bytes: plan_context.longest_whole(),
        forced,
    };
    let costs = &plan_context.costs;
    // Between hosts there are messages only.
    if plan_context.setting_up || plan_context.topology.nhosts() > 1 {
        let slots = fastest(&question, costs);
        return Ok(through_slots(slots, None));
    }
    if plan_context.one_process {
        // Which of the two is faster is known: the buffers are reachable.
        let best = fastest(&Question { direct: true, ..question }, costs);
        let direct = best.direct.then_some(best);
        let slots_us = predict(best.algorithm, false, &question, costs);
        let predicted_us = slots_us.filter(|_| best.direct).unwrap_or(best.predicted_us);
        let slots = AlgorithmChoice { direct: false, predicted_us, ..best };
        return Ok(through_slots(slots, direct));
    }
    let slots = fastest(&question, costs);
    let direct = fastest(&Question { direct: true, ..question }, costs);
    // Asking everybody where their buffers are costs a message each way.
    let asking = costs.alpha_us + 2.0 * costs.message_us * nranks as f64;
    let asked = AlgorithmChoice { predicted_us: direct.predicted_us + asking, ..direct };
    let two_shot = match plan_context.shares_scratch() {
        true => shm_two_shot(&question, plan_context.window_bytes(), costs),
        false => None,
    };
    let two_shot = two_shot.filter(|two_shot| two_shot.predicted_us < slots.predicted_us);
    let cma = by_cma(&question, costs).map(|cma| AlgorithmChoice {
        // They ask, too.
        predicted_us: cma.predicted_us + asking,
        ..cma
    });
    // Only what is not reduced goes this way, and only what is reduced in windows.
    let ahead = running_ahead(&question, costs);
    let cma = cma.filter(|cma| cma.predicted_us + ahead < slots.predicted_us);
    let otherwise = two_shot.or(cma).unwrap_or(slots).predicted_us;
    let worth = direct.direct && asked.predicted_us < otherwise;
    let asking_counts = otherwise < ASKING_COUNTS * (asking + ahead);
    Ok(ChosenPaths { slots, two_shot, cma, direct: worth.then_some(asked), asking_counts })
}

/// What a call through slots takes less than the model says where some ranks only send and others
/// only take: who sends is a slot ahead, in the next call too. Ranks that ask wait for each other.
fn running_ahead(question: &Question, costs: &Costs) -> f64 {
    match question.collective {
        Collective::Broadcast | Collective::Reduce | Collective::Gather | Collective::Scatter => {
            let slot = question.bytes.min(question.slot_bytes) as f64;
            slot * (costs.copy_us_per_byte + costs.cross_us_per_byte)
        }
        _ => 0.0,
    }
}

/// Where neither scratch nor the kernel is a way, and nobody asks in vain.
fn through_slots(slots: AlgorithmChoice, direct: Option<AlgorithmChoice>) -> ChosenPaths {
    ChosenPaths { slots, two_shot: None, cma: None, direct, asking_counts: false }
}

/// What runs before the constants are agreed, so that nothing that a rank knows by itself decides.
/// Between hosts a pair that talks makes its connection first, with a handshake: few pairs do.
fn first(collective: Collective, nhosts: usize) -> Algorithm {
    match collective {
        _ if nhosts == 1 => Algorithm::OneShot,
        Collective::Barrier => Algorithm::Doubling,
        _ => Algorithm::Binomial,
    }
}

/// Bytes of the whole vector; of the blocks of all ranks where there are blocks.
fn whole_bytes(call: &Call, nranks: usize) -> usize {
    use Collective::*;
    let elements = match (call.collective, call.vector) {
        (Barrier, _) => 0,
        (AllReduce | Broadcast | Reduce, _) => call.count,
        (AllGather | ReduceScatter, Some(vector)) => vector.recv_counts.iter().sum(),
        // As far as this rank knows: its own blocks, or those of all on the root.
        (AllToAll | Gather | Scatter, Some(vector)) => {
            let sums = [&vector.send_counts, &vector.recv_counts]
                .map(|counts| counts.iter().fold(0, |sum: usize, one| sum.saturating_add(*one)));
            match sums {
                [0, 0] => call.count.saturating_mul(nranks),
                [sent, received] => sent.max(received),
            }
        }
        _ => call.count.saturating_mul(nranks),
    };
    elements.saturating_mul(call.data_type.size())
}

/// The modelled time of one algorithm for a call, for explanations.
pub fn predicted(plan_context: &PlanContext, call: &Call, algorithm: Algorithm) -> Option<f64> {
    let question = Question {
        collective: call.collective,
        nranks: plan_context.nranks,
        hosts: Hosts::of(&plan_context.topology),
        bytes: whole_bytes(call, plan_context.nranks),
        element: call.data_type.size(),
        associative: true,
        deterministic: false,
        direct: false,
        in_place: false,
        slot_bytes: plan_context.longest_message(),
        whole_bytes: plan_context.longest_whole(),
        forced: None,
    };
    predict(algorithm, false, &question, &plan_context.costs)
}

/// The algorithm that the settings name, if they name one.
pub(in crate::communicator) fn forced_algorithm(config: &Config) -> Result<Option<Algorithm>> {
    let named = config.algorithm.as_deref().map(Algorithm::from_name).transpose();
    named.map_err(|error| match error {
        Error::InvalidArgument(text) => {
            Error::argument(format!("RINGCOMM_ALGO or the config's algorithm: {text}"))
        }
        other => other,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::DataType;

    /// Two processes on cores far from each other, where the kernel copies a little faster than
    /// the model says of slots.
    fn chosen(collective: Collective, bytes: usize) -> ChosenPaths {
        let costs = Costs {
            alpha_us: 0.22,
            copy_us_per_byte: 2.0e-5,
            reduce_us_per_byte: 0.9e-5,
            cross_us_per_byte: 3.5e-5,
            cma_us: 0.6,
            cma_us_per_byte: 7.0e-5,
            ..Costs::default()
        };
        let call = Call { count: bytes / 4, ..Call::new(collective, DataType::Float32) };
        choose(&PlanContext::of_processes(2, costs), &call, &Config::default()).unwrap()
    }

    #[test]
    fn a_root_that_runs_ahead_through_slots_does_not_wait_for_the_kernels_copies() {
        for bytes in [64 << 10, 128 << 10] {
            let [gathered, sent] = [Collective::AllGather, Collective::Broadcast]
                .map(|collective| chosen(collective, bytes));
            assert!(gathered.cma.is_some() && sent.cma.is_none(), "{bytes}");
        }
        // Of a long call a slot is little.
        assert!(chosen(Collective::Broadcast, 64 << 20).cma.is_some());
    }

    #[test]
    fn a_root_that_asked_in_vain_does_not_wait_for_answers_at_every_call() {
        let counts = |collective, bytes| chosen(collective, bytes).asking_counts;
        assert!(counts(Collective::Broadcast, 8 << 10) && counts(Collective::AllGather, 8 << 10));
        assert!(counts(Collective::Broadcast, 1 << 20) && !counts(Collective::AllGather, 1 << 20));
        assert!(!counts(Collective::Broadcast, 64 << 20));
    }
}
