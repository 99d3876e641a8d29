//! `--simulate`: the table for ranks that are not there, on a network that `--network` describes.
//!
//! The library's own cost model picks the algorithm for that network, and the library's
//! simulator runs its plans on a clock. Plans that are too many for that, as those of rooted
//! two-shot collectives of thousands of ranks, have the cost model's own time, and the row says so.
//! Nothing is sent and nothing is measured.

use super::network::Network;
use crate::cli::options::Options;
use crate::measure::expected_layout::Cell;
use crate::report::row::{Course, MODELLED, Row, SIMULATED};
use ringcomm::algorithm::select::{Costs, Hosts, Question, choose};
use ringcomm::algorithm::{self, Algorithm, SumOrder, channels};
use ringcomm::plan::Collective;
use ringcomm::plan::simulate::{HostWire, SimulationError, simulate, simulate_hosts};
use ringcomm::plan::topology::Topology;

fn wire(costs: &Costs) -> HostWire {
    HostWire {
        alpha_us: costs.wire_alpha_us,
        message_us: costs.wire_message_us,
        us_per_byte: costs.wire_us_per_byte,
    }
}

/// Elements of a cell: the columns of count and size, and what is simulated. A v form takes as long
/// as its busiest rank: as blocks that are all like the longest. Of many ranks no layout is made.
fn elements(cell: &Cell, nranks: usize) -> [usize; 3] {
    if !cell.operation.is_vector() {
        let layout = cell.layout(0, nranks);
        return [layout.counted(), layout.size_elements, layout.size_elements];
    }
    let blocks = cell.uneven_blocks(nranks);
    let longest = blocks.iter().max().expect("there are ranks");
    let all = blocks.iter().sum();
    [all, all, longest * nranks]
}

/// The row of a cell.
pub fn row(
    cell: &Cell,
    nranks: usize,
    network: &Network,
    options: &Options,
) -> Result<Row, String> {
    let [count, elements, simulated] = elements(cell, nranks);
    let bytes = elements * cell.data_type.size();
    let mut row = Row {
        op: cell.operation.name().into(),
        bytes,
        count,
        data_type: cell.data_type.name().into(),
        redop: if cell.operation.reduces() { cell.op.name() } else { "none" }.into(),
        root: cell.operation.has_root().then_some(cell.root),
        ranks: nranks,
        mode: SIMULATED.into(),
        min_us: f64::NAN,
        p99_us: f64::NAN,
        mem: f64::NAN,
        course: Course { transport: "network".into(), channels: 1, ..Course::default() },
        ..Row::default()
    };
    match cell.operation.collective() {
        Some(collective) => {
            let bytes = simulated * cell.data_type.size();
            collective_row(&mut row, collective, cell, bytes, network, options)?;
        }
        None => {
            row.course.algorithm = "direct".into();
            row.time_us = network.alpha_us
                + 2.0 * network.message_us
                + bytes as f64 * network.port_us_per_byte();
            row.course.predicted_us = row.time_us;
        }
    }
    // A rank alone takes no time for a barrier, nor are there bytes.
    let moves = bytes > 0 && row.time_us > 0.0;
    row.algbw = if moves { bytes as f64 / (row.time_us * 1e3) } else { 0.0 };
    row.busbw = row.algbw * cell.operation.bus_factor(nranks);
    Ok(row)
}

/// What there is to know of the ranks' places: without `--ranks_per_host` each has a host and a
/// port of its own, and the simulator needs no topology to say so.
fn spread(options: &Options, nranks: usize) -> (Option<Topology>, Hosts) {
    match options.ranks_per_host {
        Some(local) => {
            let marks: Vec<usize> = (0..nranks).map(|rank| rank / local).collect();
            let topology = Topology::new(&marks);
            let hosts = Hosts::of(&topology);
            (Some(topology), hosts)
        }
        None if nranks == 1 => (None, Hosts::one(1)),
        None => (None, Hosts { count: nranks, least: 1, most: 1, exits: 1 }),
    }
}

/// In which order an algorithm reduces, where that makes a difference.
fn order(question: &Question, algorithm: Algorithm) -> &'static str {
    let Question { collective, nranks, hosts, deterministic, .. } = *question;
    match question.associative {
        true => "",
        false => SumOrder::of(algorithm, collective, (hosts.count, nranks), deterministic).name(),
    }
}

fn collective_row(
    row: &mut Row,
    collective: Collective,
    cell: &Cell,
    bytes: usize,
    network: &Network,
    options: &Options,
) -> Result<(), String> {
    let nranks = row.ranks;
    let (topology, hosts) = spread(options, nranks);
    let forced = options.algorithm.as_deref().map(Algorithm::from_name).transpose();
    let question = Question {
        collective,
        nranks,
        hosts,
        bytes,
        element: cell.data_type.size(),
        associative: !collective.reduces() || cell.op.is_associative(cell.data_type),
        deterministic: options.deterministic,
        direct: false,
        in_place: false,
        slot_bytes: network.slot_bytes,
        whole_bytes: 0,
        forced: forced.map_err(|error| error.to_string())?,
    };
    let costs = network.costs(nranks);
    let choice = choose(&question, &costs);
    let machine = network.machine(&costs, topology.is_some());
    let plan = |rank| {
        match &topology {
            Some(topology) => {
                algorithm::plan_on(topology, choice.algorithm, collective, rank, cell.root)
            }
            None => algorithm::plan(choice.algorithm, collective, rank, nranks, cell.root),
        }
        .expect("what was chosen has a plan on every rank")
    };
    let outcome = match topology.as_ref().filter(|topology| topology.nhosts() > 1) {
        None => simulate(collective, nranks, bytes, &machine, plan),
        Some(topology) => {
            simulate_hosts(collective, topology, bytes, &machine, &wire(&costs), plan)
        }
    };
    let course = &mut row.course;
    course.algorithm = choice.algorithm.name().into();
    course.order = order(&question, choice.algorithm).into();
    course.predicted_us = choice.predicted_us;
    match outcome {
        Ok(outcome) => {
            row.time_us = outcome.time_us;
            course.slices = outcome.slices;
            course.chunks = plan(0).nchunks;
            course.slice_bytes = row.bytes.div_ceil(course.chunks.max(1) * outcome.slices.max(1));
            course.channels =
                topology.map_or(1, |topology| channels(&topology, choice.algorithm, collective));
        }
        Err(SimulationError::TooLarge { .. }) => {
            row.mode = MODELLED.into();
            row.time_us = choice.predicted_us;
            course.channels = 0;
        }
        Err(deadlock) => return Err(format!("{}: {deadlock}", choice.algorithm)),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::operation::Operation;
    use ringcomm::types::{DataType, ReduceOp};

    #[test]
    fn ranks_that_share_hosts_share_their_ports() {
        let network = Network::parse("").unwrap();
        let (operation, data_type, op) = (Operation::AllReduce, DataType::Float32, ReduceOp::Sum);
        let bytes = 256 << 20;
        let cell = Cell { operation, bytes, data_type, op, root: 0, buckets: Vec::new() };
        let options = Options { ranks_per_host: Some(8), ..Options::default() };
        let row = row(&cell, 64, &network, &options).unwrap();
        assert_eq!((row.course.algorithm.as_str(), row.course.channels), ("hierarchical", 8));
        // Twice 7/8 of the vector leave each host through its port, and not much else takes time.
        let port_us = 2.0 * 7.0 / 8.0 * bytes as f64 / (network.beta_gbs * 1e3);
        assert!(row.time_us >= port_us && row.time_us < 2.0 * port_us, "{} {port_us}", row.time_us);
    }

    #[test]
    fn the_columns_are_those_of_a_measured_row() {
        for operation in Operation::ALL {
            let (data_type, op) = (DataType::Float32, ReduceOp::Sum);
            let cell = Cell { operation, bytes: 4000, data_type, op, root: 0, buckets: Vec::new() };
            for nranks in [1, 3, 4] {
                let layout = cell.layout(0, nranks);
                let [count, elements, _] = elements(&cell, nranks);
                let measured = (layout.counted(), layout.size_elements);
                assert_eq!((count, elements), measured, "{operation:?} {nranks}");
            }
        }
    }

    #[test]
    fn a_large_all_reduce_nears_the_port_and_a_small_one_the_latency() {
        let network = Network::parse("").unwrap();
        let time = |bytes| {
            let (operation, data_type, op) =
                (Operation::AllReduce, DataType::Float32, ReduceOp::Sum);
            let cell = Cell { operation, bytes, data_type, op, root: 0, buckets: Vec::new() };
            row(&cell, 64, &network, &Options::default()).unwrap()
        };
        let (small, large) = (time(8), time(256 << 20));
        // Six doublings at least have to wait for the network six times.
        assert!(small.time_us >= 6.0 * network.alpha_us, "{}", small.time_us);
        assert!(large.busbw <= network.beta_gbs && large.busbw > 0.2 * network.beta_gbs);
    }
}
