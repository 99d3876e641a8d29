//! Which way kernels that wait do a call: by modelled time, like everything else.
//!
//! The closed forms are those of the processor's plans (`algorithm::select`), with three sets of
//! constants that follow from two, which are measured when the communicator is made: what a flag
//! takes from device to device, and what a byte takes. The last of the ranks to come chooses for
//! all, so they cannot differ.

use super::threads::P2pCall;
use crate::algorithm::select::{Costs, Hosts, Question, predict};
use crate::algorithm::{Algorithm, serial_order};
use crate::error::Result;
use crate::executor::device_p2p::KernelPath;
use crate::plan::Collective;
use std::collections::HashMap;
use std::time::Duration;

/// Shapes whose ways are kept before they are chosen anew: as many as bound calls.
const MOST_WAYS: usize = 4096;

/// What a configuration asks of kernels that wait. The same on every rank, as communicators check,
/// but for the timeout.
#[derive(Clone, Copy, Debug)]
pub struct GpuSettings {
    pub algorithm: Option<Algorithm>,
    pub deterministic: bool,
    /// Of what peers write to; `None` leaves it to the ranks' geometry.
    pub buff_size: Option<usize>,
    pub timeout: Duration,
}

/// What devices take for what kernels do with each other's memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkCosts {
    /// From a flag's store on one device to another device's kernel having seen it.
    pub crossing_us: f64,
    /// A byte from one device to another.
    pub us_per_byte: f64,
}

impl Default for LinkCosts {
    /// In the order of NVLink: 450 GB/s each way, two microseconds for a step. Only until it is
    /// measured.
    fn default() -> LinkCosts {
        LinkCosts { crossing_us: 2.0, us_per_byte: 1.0 / 450e3 }
    }
}

impl LinkCosts {
    fn costs(&self, alphas: f64, bytes: f64) -> Costs {
        Costs {
            alpha_us: alphas * self.crossing_us,
            message_us: 0.0,
            copy_us_per_byte: bytes * self.us_per_byte,
            // A device's own memory is an order faster than a link.
            reduce_us_per_byte: 0.1 * self.us_per_byte,
            // A device has its own cores.
            cores: usize::MAX,
            ..Costs::default()
        }
    }

    /// Through slots: a fence waits until the payload has crossed, then the flag crosses.
    fn plans(&self) -> Costs {
        self.costs(2.0, 1.0)
    }

    /// In lines: half of each is the flag.
    fn lines(&self) -> Costs {
        self.costs(1.0, 2.0)
    }

    /// In the peers' buffers: at a barrier the flags cross, and before the second one reads go
    /// there and back. Every operand of a reduction comes over the link, and so does every result;
    /// the model counts a further target as half a copy.
    fn pieces(&self) -> Costs {
        Costs { reduce_us_per_byte: self.us_per_byte, ..self.costs(2.0, 2.0) }
    }
}

/// A way and its modelled time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ChosenKernelPath {
    pub way: KernelPath,
    pub predicted_us: f64,
}

/// The way of every shape that was called.
pub struct Ways {
    pub asked: GpuSettings,
    pub pace: LinkCosts,
    known: HashMap<P2pCall, Option<ChosenKernelPath>>,
}

impl Ways {
    pub fn new(asked: GpuSettings, pace: LinkCosts) -> Ways {
        Ways { asked, pace, known: HashMap::new() }
    }

    /// As [`choose`], from what was chosen before where it was.
    pub fn of(
        &mut self,
        call: P2pCall,
        nranks: usize,
        does: impl Fn(KernelPath) -> Result<bool>,
    ) -> Result<Option<ChosenKernelPath>> {
        if let Some(way) = self.known.get(&call) {
            return Ok(*way);
        }
        if self.known.len() >= MOST_WAYS {
            self.known.clear();
        }
        let way = choose(&call, nranks, (&self.asked, &self.pace), does)?;
        self.known.insert(call, way);
        Ok(way)
    }
}

/// The fastest way that `does` the call and gives the bits that it must; the one that is asked for,
/// if there is one.
pub fn choose(
    call: &P2pCall,
    nranks: usize,
    (asked, pace): (&GpuSettings, &LinkCosts),
    does: impl Fn(KernelPath) -> Result<bool>,
) -> Result<Option<ChosenKernelPath>> {
    let reduces = call.collective.reduces();
    let is_free = !asked.deterministic && (!reduces || call.op.is_associative(call.data_type));
    let blocks = match call.collective {
        Collective::AllReduce | Collective::Broadcast | Collective::Reduce => 1,
        _ => nranks,
    };
    let question = Question {
        collective: call.collective,
        nranks,
        hosts: Hosts::one(nranks),
        bytes: blocks.saturating_mul(call.count).saturating_mul(call.data_type.size()),
        element: call.data_type.size(),
        associative: true,
        deterministic: false,
        direct: true,
        in_place: false,
        // A device's slots are many: channels stream beside each other.
        slot_bytes: usize::MAX,
        whole_bytes: 0,
        forced: None,
    };
    let time =
        |algorithm, is_direct, costs: &Costs| predict(algorithm, is_direct, &question, costs);
    let direct = Algorithm::ALL.into_iter().filter_map(|one| time(one, true, &pace.pieces()));
    // A barrier collective is the kernels' own barrier and no more.
    let pieces = direct.reduce(f64::min).unwrap_or(2.0 * pace.crossing_us);
    let mut ways = vec![
        (KernelPath::OneShot, Algorithm::OneShot, time(Algorithm::OneShot, false, &pace.lines())),
        (KernelPath::Pieces, Algorithm::TwoShot, Some(pieces)),
    ];
    ways.extend(Algorithm::ALL.into_iter().filter(|one| *one != Algorithm::Local).map(
        |algorithm| (KernelPath::Plan(algorithm), algorithm, time(algorithm, false, &pace.plans())),
    ));
    let is_asked = |algorithm| asked.algorithm == Some(algorithm) && !asked.deterministic;
    ways.retain(|(_, algorithm, _)| {
        is_free || is_asked(*algorithm) || serial_order(*algorithm, call.collective)
    });
    let mut possible: Vec<(Algorithm, ChosenKernelPath)> = Vec::new();
    for (way, algorithm, predicted_us) in ways {
        let Some(predicted_us) = predicted_us else { continue };
        possible.push((algorithm, ChosenKernelPath { way, predicted_us }));
    }
    for (algorithm, chosen) in &possible {
        // The kernel made for it comes before its plan.
        if asked.algorithm == Some(*algorithm) && does(chosen.way)? {
            return Ok(Some(*chosen));
        }
    }
    let mut best: Option<ChosenKernelPath> = None;
    for (_, chosen) in &possible {
        let is_better = best.is_none_or(|best| chosen.predicted_us < best.predicted_us);
        if is_better && does(chosen.way)? {
            best = Some(*chosen);
        }
    }
    Ok(best)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{DataType, ReduceOp};

    fn call(count: usize, data_type: DataType) -> P2pCall {
        let (collective, op) = (Collective::AllReduce, ReduceOp::Sum);
        P2pCall { collective, root: 0, count, data_type, op, is_plain: true }
    }

    fn asked(algorithm: Option<Algorithm>, deterministic: bool) -> GpuSettings {
        let (buff_size, timeout) = (None, Duration::from_secs(1));
        GpuSettings { algorithm, deterministic, buff_size, timeout }
    }

    /// What eight ranks do where `does` says what there is.
    fn way(
        call: P2pCall,
        asked: GpuSettings,
        does: impl Fn(KernelPath) -> bool,
    ) -> Option<KernelPath> {
        let chosen = choose(&call, 8, (&asked, &LinkCosts::default()), |way| Ok(does(way)));
        chosen.unwrap().map(|chosen| chosen.way)
    }

    #[test]
    fn small_calls_are_one_shot_and_large_ones_are_not() {
        let free = asked(None, false);
        assert_eq!(way(call(8, DataType::Int32), free, |_| true), Some(KernelPath::OneShot));
        let large = way(call(1 << 24, DataType::Int32), free, |_| true);
        assert_eq!(large, Some(KernelPath::Pieces));
        // A slow link moves the border down: the flags of lines cost more.
        let slow = LinkCosts { us_per_byte: 1.0, ..LinkCosts::default() };
        let chosen = choose(&call(64, DataType::Int32), 8, (&free, &slow), |_| Ok(true));
        assert_eq!(chosen.unwrap().unwrap().way, KernelPath::Pieces);
    }

    #[test]
    fn sums_that_round_keep_the_serial_order_unless_asked_otherwise() {
        let not_pieces = |way| way != KernelPath::Pieces && way != KernelPath::OneShot;
        let chosen = way(call(1 << 24, DataType::Float32), asked(None, false), not_pieces);
        assert_eq!(chosen, Some(KernelPath::Plan(Algorithm::TwoShot)));
        let ring = Some(Algorithm::Ring);
        let chosen = way(call(1 << 24, DataType::Float32), asked(ring, false), |_| true);
        assert_eq!(chosen, Some(KernelPath::Plan(Algorithm::Ring)));
        let chosen = way(call(1 << 24, DataType::Float32), asked(ring, true), |_| true);
        assert_eq!(chosen, Some(KernelPath::Pieces));
    }

    #[test]
    fn what_is_asked_has_its_own_kernel_first_and_another_way_where_it_has_none() {
        let two = asked(Some(Algorithm::TwoShot), false);
        assert_eq!(way(call(8, DataType::Int32), two, |_| true), Some(KernelPath::Pieces));
        let plan = way(call(8, DataType::Int32), two, |way| way != KernelPath::Pieces);
        assert_eq!(plan, Some(KernelPath::Plan(Algorithm::TwoShot)));
        assert_eq!(
            way(call(8, DataType::Int32), two, |way| way == KernelPath::OneShot),
            Some(KernelPath::OneShot)
        );
        assert_eq!(way(call(8, DataType::Int32), two, |_| false), None);
    }
}
