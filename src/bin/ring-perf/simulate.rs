//! `--simulate`: the table for ranks that are not there, on a network that `--network` describes.
//!
//! The library's own cost model picks the algorithm for that network, and the library's
//! simulator runs its plans on a clock. Nothing is sent and nothing is measured.

use crate::layout::Cell;
use crate::operation::Operation;
use crate::options::Options;
use crate::row::Row;
use ringcomm::algorithm::select::{Costs, Hosts, Question, choose};
use ringcomm::algorithm::{self, Algorithm};
use ringcomm::plan::Collective;
use ringcomm::plan::simulate::{Machine, Wire, simulate, simulate_hosts};
use ringcomm::plan::topology::Topology;

/// A network with one port per rank, or per host where ranks share hosts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Network {
    /// From the end of a send to its arrival.
    pub alpha_us: f64,
    /// A rank's own time for a message.
    pub message_us: f64,
    /// What a rank's port carries.
    pub beta_gbs: f64,
    /// What a rank copies or adds in its own memory.
    pub memory_gbs: f64,
    pub slot_bytes: usize,
    pub depth: usize,
}

impl Network {
    /// Read `key=value,...`; what is not given keeps its default.
    pub fn parse(text: &str) -> Result<Network, String> {
        let mut network = Network {
            // A 100 Gb/s network of 2026 through a kernel-bypass library, and one core's memory.
            alpha_us: 2.0,
            message_us: 0.2,
            beta_gbs: 12.5,
            memory_gbs: 20.0,
            slot_bytes: 512 << 10,
            depth: 8,
        };
        for field in text.split(',').map(str::trim).filter(|field| !field.is_empty()) {
            let (key, value) = field
                .split_once('=')
                .ok_or_else(|| format!("--network: {field:?} is not key=value"))?;
            let unit = ["us", "GB/s"].into_iter().find_map(|unit| value.strip_suffix(unit));
            let real = || -> Result<f64, String> {
                let real: f64 = unit.unwrap_or(value).trim().parse().unwrap_or(f64::NAN);
                let positive = real.is_finite() && real > 0.0;
                if positive {
                    Ok(real)
                } else {
                    Err(format!("--network: {field:?} needs a number"))
                }
            };
            match key {
                "alpha" => network.alpha_us = real()?,
                "message" => network.message_us = real()?,
                "beta" => network.beta_gbs = real()?,
                "memory" => network.memory_gbs = real()?,
                "slot" => {
                    network.slot_bytes = crate::option_table::size(value)
                        .ok()
                        .filter(|bytes| *bytes > 0)
                        .ok_or_else(|| format!("--network: {field:?} needs a size"))?;
                }
                // Two slots are the least that a ring needs.
                "depth" => network.depth = (real()? as usize).max(2),
                _ => {
                    return Err(format!(
                        "--network: there is no {key:?}; known: alpha message beta memory slot \
                         depth"
                    ));
                }
            }
        }
        Ok(network)
    }

    /// A byte's time through a port; GB/s are thousands of bytes per microsecond.
    fn port_us_per_byte(&self) -> f64 {
        1.0 / (self.beta_gbs * 1e3)
    }

    fn memory_us_per_byte(&self) -> f64 {
        1.0 / (self.memory_gbs * 1e3)
    }

    /// What ranks do without the wire of `costs`.
    fn machine(&self, costs: &Costs, shared: bool) -> Machine {
        let (port, memory) = (self.port_us_per_byte(), self.memory_us_per_byte());
        Machine {
            alpha_us: costs.alpha_us,
            message_us: costs.message_us,
            send_us_per_byte: if shared { memory } else { port },
            copy_us_per_byte: memory,
            reduce_us_per_byte: memory,
            depth: self.depth,
            slot_bytes: self.slot_bytes,
        }
    }

    /// Where ranks share hosts the network is the wire, and a host has the library's usual memory
    /// at the given pace. Else every rank has a port, and the model has one price for a byte moved:
    /// that of the slower, the port.
    fn costs(&self, nranks: usize, shared: bool) -> Costs {
        let (port, memory) = (self.port_us_per_byte(), self.memory_us_per_byte());
        let costs = Costs {
            reduce_us_per_byte: memory,
            wire_alpha_us: self.alpha_us,
            wire_message_us: self.message_us,
            wire_us_per_byte: port,
            switch_us: 0.0,
            cores: nranks,
            ..Costs::default()
        };
        if shared {
            return Costs { copy_us_per_byte: memory, ..costs };
        }
        Costs {
            alpha_us: self.alpha_us,
            message_us: self.message_us,
            copy_us_per_byte: port.max(memory),
            ..costs
        }
    }
}

fn wire(costs: &Costs) -> Wire {
    Wire {
        alpha_us: costs.wire_alpha_us,
        message_us: costs.wire_message_us,
        us_per_byte: costs.wire_us_per_byte,
    }
}

/// The operations that have plans or are a plain message. A v form takes as long as its busiest
/// rank.
pub fn can(operation: Operation) -> bool {
    !operation.is_vector()
}

/// The row of a cell.
pub fn row(
    cell: &Cell,
    nranks: usize,
    network: &Network,
    options: &Options,
) -> Result<Row, String> {
    let layout = cell.layout(0, nranks);
    let bytes = layout.size_elements * cell.data_type.size();
    let mut row = Row {
        op: cell.operation.name().into(),
        bytes,
        count: layout.count,
        data_type: cell.data_type.name().into(),
        redop: if cell.operation.reduces() { cell.op.name() } else { "none" }.into(),
        root: cell.operation.has_root().then_some(cell.root),
        ranks: nranks,
        mode: "simulated".into(),
        transport: "network".into(),
        min_us: f64::NAN,
        p99_us: f64::NAN,
        mem: f64::NAN,
        channels: 1,
        ..Row::default()
    };
    match cell.operation.collective() {
        Some(collective) => collective_row(&mut row, collective, cell, network, options)?,
        None => {
            row.algorithm = "direct".into();
            row.time_us = network.alpha_us
                + 2.0 * network.message_us
                + bytes as f64 * network.port_us_per_byte();
            row.predicted_us = row.time_us;
        }
    }
    row.algbw = bytes as f64 / (row.time_us * 1e3);
    row.busbw = row.algbw * cell.operation.bus_factor(nranks);
    Ok(row)
}

fn collective_row(
    row: &mut Row,
    collective: Collective,
    cell: &Cell,
    network: &Network,
    options: &Options,
) -> Result<(), String> {
    let nranks = row.ranks;
    let local = options.ranks_per_host.unwrap_or(nranks).min(nranks);
    let topology = Topology::new(&(0..nranks).map(|rank| rank / local).collect::<Vec<_>>());
    let forced = options.algorithm.as_deref().map(Algorithm::from_name).transpose();
    let question = Question {
        collective,
        nranks,
        hosts: Hosts::of(&topology),
        bytes: row.bytes,
        // A network's users take a sum in any order, unless they say otherwise.
        associative: true,
        deterministic: options.deterministic,
        direct: false,
        in_place: false,
        slot_bytes: network.slot_bytes,
        forced: forced.map_err(|error| error.to_string())?,
    };
    let shared = options.ranks_per_host.is_some();
    let costs = network.costs(nranks, shared);
    let choice = choose(&question, &costs);
    let plan = |rank| {
        algorithm::plan_on(&topology, choice.algorithm, collective, rank, cell.root)
            .expect("what was chosen has a plan on every rank")
    };
    let machine = network.machine(&costs, shared);
    let outcome = match topology.nhosts() {
        1 => simulate(collective, nranks, row.bytes, &machine, plan),
        _ => simulate_hosts(collective, &topology, row.bytes, &machine, &wire(&costs), plan),
    };
    let outcome = outcome.map_err(|error| format!("{}: {error}", choice.algorithm))?;
    row.algorithm = choice.algorithm.name().into();
    row.predicted_us = choice.predicted_us;
    row.time_us = outcome.time_us;
    row.slices = outcome.slices;
    row.chunks = plan(0).nchunks;
    row.slice_bytes = row.bytes.div_ceil(row.chunks.max(1) * outcome.slices.max(1));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use ringcomm::types::{DataType, ReduceOp};

    #[test]
    fn ranks_that_share_hosts_share_their_ports() {
        let network = Network::parse("").unwrap();
        let (operation, data_type, op) = (Operation::AllReduce, DataType::Float32, ReduceOp::Sum);
        let bytes = 256 << 20;
        let cell = Cell { operation, bytes, data_type, op, root: 0, buckets: Vec::new() };
        let options = Options { ranks_per_host: Some(8), ..Options::default() };
        let row = row(&cell, 64, &network, &options).unwrap();
        assert_eq!(row.algorithm, "hierarchical");
        // Twice 7/8 of the vector leave each host through its port, and not much else takes time.
        let port_us = 2.0 * 7.0 / 8.0 * bytes as f64 / (network.beta_gbs * 1e3);
        assert!(row.time_us >= port_us && row.time_us < 2.0 * port_us, "{} {port_us}", row.time_us);
    }

    #[test]
    fn a_network_is_read_and_its_errors_are_named() {
        let network = Network::parse("alpha=5us, beta=50GB/s,slot=1M").unwrap();
        assert_eq!((network.alpha_us, network.beta_gbs, network.slot_bytes), (5.0, 50.0, 1 << 20));
        assert!(Network::parse("gamma=1").unwrap_err().contains("known: alpha"));
        assert!(Network::parse("alpha=fast").is_err());
        assert!(Network::parse("alpha").is_err());
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
