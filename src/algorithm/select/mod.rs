//! Selection: which algorithm a call uses, by modelled time alone.
//!
//! The one idea: an algorithm's time is a closed form in the constants of [`Costs`], which are
//! measured or read from a tuning file; no size is compared with any threshold but where a message
//! between hosts goes whole ([`goes_whole`]). All ranks must be given the same question and the
//! same constants, and then choose alike.
//!
//! **Measured constants never change bits.** Where an operation is not associative on its type, the
//! layout, the collective and the size alone decide in which order it is reduced, and the measured
//! constants choose among the algorithms that reduce in that order, which all give the same bits:
//! - the serial order on one host, and wherever it is asked for;
//! - host order where there are several hosts.
//!
//! A root does not matter: ranks are alike on one machine, and hosts nearly.

mod cost_model;
mod cost_params;
mod direct_cost;
mod hierarchical_cost;
mod inter_host_cost;

use super::{Algorithm, host_order, serial_order};
use crate::plan::Collective;
use cost_model::{ClosedForm, CostTerms};
pub use cost_params::{Costs, Profile};
use inter_host_cost::HostTraffic;
pub use inter_host_cost::Hosts;

/// A call, as far as its time depends on it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Question {
    pub collective: Collective,
    pub nranks: usize,
    /// How they are spread over hosts.
    pub hosts: Hosts,
    /// Bytes of the whole vector: for collectives of blocks, of the blocks of all ranks (that one
    /// rank sends, in AllToAll).
    pub bytes: usize,
    /// Bytes of an element, which no slot splits.
    pub element: usize,
    /// Any order of the reduction gives the same bits (true where nothing is reduced).
    pub associative: bool,
    /// The result must be the serial loop's. Wins over `forced`.
    pub deterministic: bool,
    /// Ranks can read and write each other's buffers, so that some plans need no slots.
    pub direct: bool,
    /// The call is in place on some rank.
    pub in_place: bool,
    /// Bytes of a connection's slot.
    pub slot_bytes: usize,
    /// Up to how many bytes a message goes whole where [`goes_whole`] says so.
    pub whole_bytes: usize,
    /// The user's choice, taken where it exists for the collective.
    pub forced: Option<Algorithm>,
}

/// The answer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AlgorithmChoice {
    pub algorithm: Algorithm,
    /// Use the peers' buffers instead of going through slots.
    pub direct: bool,
    pub predicted_us: f64,
}

/// The fastest algorithm that is allowed, by the model.
pub fn choose(question: &Question, costs: &Costs) -> AlgorithmChoice {
    match asked(question) {
        Some(forced) => fastest(vec![forced], question, costs),
        None => fastest(candidates(question), question, costs),
    }
}

/// The algorithm that the user wants, where it may be taken.
fn asked(question: &Question) -> Option<Algorithm> {
    let serial = |algorithm| serial_order(algorithm, question.collective);
    let may_be = |algorithm: &Algorithm| {
        exists(*algorithm, question) && (!question.deterministic || serial(*algorithm))
    };
    question.forced.filter(may_be)
}

fn exists(algorithm: Algorithm, question: &Question) -> bool {
    form(algorithm, question, 1.0).is_some()
}

/// The algorithms that give the bits which the call is to have.
fn candidates(question: &Question) -> Vec<Algorithm> {
    let Question { collective, nranks, hosts, deterministic, .. } = *question;
    let all = Algorithm::ALL.into_iter().filter(|algorithm| exists(*algorithm, question));
    if question.associative && !deterministic {
        return all.collect();
    }
    let alone = hosts.count == nranks;
    // Two ranks have one order.
    match collective.reduces() && !deterministic && hosts.count > 1 && nranks > 2 {
        true => all.filter(|algorithm| host_order(*algorithm, collective, alone)).collect(),
        false => all.filter(|algorithm| serial_order(*algorithm, collective)).collect(),
    }
}

fn fastest(candidates: Vec<Algorithm>, question: &Question, costs: &Costs) -> AlgorithmChoice {
    let choices = candidates
        .into_iter()
        .flat_map(|algorithm| [(algorithm, false), (algorithm, true)])
        .filter_map(|(algorithm, direct)| {
            let predicted_us = predict(algorithm, direct, question, costs)?;
            Some(AlgorithmChoice { algorithm, direct, predicted_us })
        });
    // The first of equals wins: the order of Algorithm::ALL is part of the answer.
    choices
        .reduce(|best, next| if next.predicted_us < best.predicted_us { next } else { best })
        .expect("every collective has an algorithm that is in serial order")
}

/// The modelled time of one algorithm, through slots or direct; `None` where it does not do the
/// collective, or not so, or not through such slots.
pub fn predict(
    algorithm: Algorithm,
    direct: bool,
    question: &Question,
    costs: &Costs,
) -> Option<f64> {
    let (collective, nranks) = (question.collective, question.nranks);
    let bytes = question.bytes as f64;
    let (form, slices) = if direct {
        if !question.direct {
            return None;
        }
        (direct_cost::form(algorithm, collective, nranks, bytes, question.in_place)?, 1.0)
    } else if algorithm == Algorithm::Local {
        (ClosedForm::of(algorithm, collective, nranks, bytes)?, 1.0)
    } else {
        let hosts = question.hosts;
        let nested =
            hierarchical_cost::longest_message(algorithm, collective, hosts, nranks, bytes);
        let flat = || cost_model::longest_message(algorithm, collective, nranks, bytes);
        let message = nested.unwrap_or_else(flat);
        let slices =
            match goes_whole((algorithm, collective), message as usize, question.whole_bytes) {
                true => 1.0,
                false => (message / question.slot_bytes as f64).ceil().max(1.0),
            };
        (self::form(algorithm, question, bytes / slices)?, slices)
    };
    let wire = HostTraffic::of(algorithm, question, &form, bytes / slices);
    // The kernel's part of the wire is work of the same core: it adds to what a rank does itself.
    let crossing = wire.messages(costs) + wire.bytes(costs);
    let work = |work: &CostTerms| work.time(costs) - wire.spared(work, costs) + crossing;
    let first = form.alphas * costs.alpha_us + wire.alphas(costs) + work(&form.path);
    // Each further slice follows at the pace of the busiest rank where slices stream, else it goes
    // the whole way.
    let pace = form.period.as_ref().map_or(first, work);
    let time = first + (slices - 1.0) * pace;
    let total = form.total.time(costs) + wire.total(costs);
    Some(crowded(&form, (time, total), slices, nranks, costs))
}

/// Whether a plan's longest message, of so many bytes, goes whole between hosts where messages up
/// to `most` bytes may: of a plan in which every rank has something to do meanwhile, and nobody
/// passes on what comes.
pub fn goes_whole(
    (algorithm, collective): (Algorithm, Collective),
    bytes: usize,
    most: usize,
) -> bool {
    use Collective::*;
    let are_alike = matches!(collective, AllReduce | ReduceScatter | AllGather | AllToAll);
    let is_direct = matches!(algorithm, Algorithm::OneShot | Algorithm::TwoShot);
    are_alike && is_direct && (1..=most).contains(&bytes)
}

/// A two-shot all-reduce of ranks of one host that goes through scratch of theirs, `window` bytes
/// at a time; `None` where the call is not one, or the user wants another algorithm. It is in
/// serial order, which any call may be in on one host.
pub fn shm_two_shot(question: &Question, window: usize, costs: &Costs) -> Option<AlgorithmChoice> {
    let algorithm = Algorithm::TwoShot;
    let asks_else = asked(question).is_some_and(|asked| asked != algorithm);
    if asks_else || question.hosts.count > 1 || question.bytes == 0 {
        return None;
    }
    let windows = (question.bytes as f64 / window as f64).ceil();
    let bytes = question.bytes as f64 / windows;
    let form = direct_cost::windowed(algorithm, question.collective, question.nranks, bytes)?;
    let first = form.alphas * costs.alpha_us + form.path.time(costs);
    let times = (windows * first, form.total.time(costs));
    let predicted_us = crowded(&form, times, windows, question.nranks, costs);
    Some(AlgorithmChoice { algorithm, direct: false, predicted_us })
}

/// A collective between processes of one host of which each reads what it needs where it lies,
/// through the kernel; `None` where the call is none for that, or the user wants another algorithm.
/// In place, too, but for an all-to-all, which the caller has to know.
pub fn by_cma(question: &Question, costs: &Costs) -> Option<AlgorithmChoice> {
    let algorithm = direct_cost::READS;
    let asks_else = asked(question).is_some_and(|asked| asked != algorithm);
    let copies = costs.cma_us_per_byte.is_finite();
    if !copies || asks_else || question.hosts.count > 1 || question.bytes == 0 {
        return None;
    }
    let form = direct_cost::by_cma(question.collective, question.nranks, question.bytes as f64)?;
    // Every block is a call of the system.
    let costs = Costs { cross_us_per_byte: costs.cma_us_per_byte, ..costs.clone() };
    let blocks = match question.collective {
        Collective::Broadcast | Collective::Scatter => 1,
        _ => question.nranks - 1,
    };
    let time = form.alphas * costs.alpha_us + form.path.time(&costs) + blocks as f64 * costs.cma_us;
    let times = (time, form.total.time(&costs));
    let predicted_us = crowded(&form, times, 1.0, question.nranks, &costs);
    Some(AlgorithmChoice { algorithm, direct: false, predicted_us })
}

/// From how many bytes on a message between two ranks that both wait for it takes no longer where
/// the receiver copies it from where it lies than through a slot: as one process's memory is read,
/// as the kernel reads another's, and as the kernel reads it where nothing comes the other way, so
/// that one rank copies into slots while the other copies out of them.
pub fn zero_copy_from(costs: &Costs) -> [usize; 3] {
    let copy = costs.copy_us_per_byte + costs.cross_us_per_byte;
    let from = |copies: f64, begin_us: f64, us_per_byte: f64| {
        let gained = copies * copy - us_per_byte;
        // The sender waits until it is told that the message has been copied.
        let bytes = (begin_us + costs.alpha_us + 2.0 * costs.message_us) / gained;
        if gained > 0.0 && bytes < usize::MAX as f64 { bytes as usize } else { usize::MAX }
    };
    [
        from(2.0, 0.0, copy),
        from(2.0, costs.cma_us, costs.cma_us_per_byte),
        from(1.0, costs.cma_us, costs.cma_us_per_byte),
    ]
}

/// The time of a form in so many slices, which takes `time` where every rank has a core, and of
/// which one slice is `total` for all ranks together.
fn crowded(
    form: &ClosedForm,
    (time, total): (f64, f64),
    slices: f64,
    nranks: usize,
    costs: &Costs,
) -> f64 {
    let core_counts = nranks as f64 / costs.cores as f64;
    if core_counts <= 1.0 {
        return time;
    }
    // More ranks than cores: the cores do everybody's work, and every wait lets the others on a
    // core run first.
    let streams = form.period.is_some();
    let waits = if streams { form.alphas + slices - 1.0 } else { form.alphas * slices };
    let shared = total * slices / costs.cores as f64;
    time.max(shared) + waits * costs.switch_us * core_counts
}

/// The closed form; `None` where the algorithm does not do the collective, or not through slots as
/// short as these: a message of more chunks than a slot has elements.
fn form(algorithm: Algorithm, question: &Question, bytes: f64) -> Option<ClosedForm> {
    let (collective, nranks) = (question.collective, question.nranks);
    let hosts = question.hosts;
    let nested = hierarchical_cost::widest_message(algorithm, collective, hosts, nranks);
    let flat = || cost_model::widest_message(algorithm, collective, nranks);
    let widest = nested.unwrap_or_else(flat);
    if question.bytes > question.slot_bytes && question.slot_bytes / widest < question.element {
        return None;
    }
    match hierarchical_cost::goes_by_hosts(algorithm, collective, hosts, nranks) {
        true => hierarchical_cost::form(algorithm, collective, nranks, hosts, bytes),
        false => ClosedForm::of(algorithm, collective, nranks, bytes),
    }
}

#[cfg(test)]
mod crossing_tests;
#[cfg(test)]
mod host_order_tests;
#[cfg(test)]
mod tests;
