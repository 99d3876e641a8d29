//! Ranks on GPUs: every size with hot and with rotating buffers, and replayed from a graph, against
//! the bandwidth that copies reach in the same run.
//!
//! Ranks are threads, each with a stream, or, in a launched job, processes; or one thread calls for
//! all of them in a group, on one stream. The devices' own events take the times. A result is
//! compared with the one that the processor computes, bit for bit.
//! Where all ranks share one GPU, the memory of that GPU bounds every figure, and every line says
//! so.

mod bench;
mod copy_bandwidth;
mod device_count;

use crate::cli::operation::Operation;
use crate::cli::options::Options;
use crate::cli::outcome::{Failure, Status, say};
use crate::ranks::job;
use crate::run::worker;
use bench::{Bench, GpuCell, GpuTimes};
use copy_bandwidth::Bandwidth;
use device_count::Spread;
use ringcomm::algorithm::Algorithm;
use ringcomm::bootstrap::rendezvous::LaunchFacts;
use ringcomm::communicator::Communicator;
use ringcomm::config::{Config, DeviceChoice};
use ringcomm::device::cuda::Device;
use ringcomm::executor::device_work::{PieceShape, RankBuffers, pieces};
use ringcomm::plan::Collective;
use ringcomm::types::ReduceOp;
use serde_json::{Value, json};
use std::fs;
use std::sync::Arc;

/// What figures of a single GPU must never be read without.
const ONE_GPU: &str = "one GPU, HBM-bound";

/// Measure what the options ask for on so many devices, with so many ranks on each.
pub fn run(options: &Options, ndevices: usize) -> Result<Status, Failure> {
    let found = job::found(options).transpose()?;
    let none = |error: ringcomm::error::Error| Failure::Option(format!("-g {ndevices}: {error}"));
    let device = Device::of_ordinal(0).map_err(none)?;
    if let Some(found) = found.as_ref().filter(|found| found.rank > 0) {
        // Rank 0 reports.
        let ranks = join(options, Some(found), ndevices)?;
        Spread::of(&ranks)?;
        return follow(options, &ranks);
    }
    let name = device.name()?;
    // Before the others use the devices.
    let bandwidth = Bandwidth::measure(&device)?;
    let link = (ndevices > 1).then(|| copy_bandwidth::between(&device)).transpose()?.flatten();
    let mut ranks = join(options, found.as_ref(), ndevices)?;
    let nranks = ranks[0].nranks();
    let cells = cells(options, nranks)?;
    let Spread { ngpus, nhosts } = Spread::of(&ranks)?;
    let link = link.filter(|_| ngpus > 1 && nhosts == 1);
    let scope = if ngpus == 1 { ONE_GPU } else { "several GPUs" };
    let processes = if found.is_some() { ", each a process," } else { "" };
    let hosts = if nhosts > 1 { format!(" of {nhosts} hosts") } else { String::new() };
    let what = format!("{nranks} ranks{processes} on {ngpus} x {name}{hosts}; {scope}");
    head(&what, &bandwidth, link);
    let mut rows = Vec::new();
    let mut wrong = 0;
    for cell in cells {
        let times = Bench::new(&ranks, &cell, options)?.measure()?;
        wrong += times.wrong.unwrap_or(0);
        let bounds = Bounds { copies: bandwidth.best(), link, nranks, ngpus };
        rows.push(report(&cell, &times, &bounds, scope));
        // After every row: who runs out of time has what came before.
        if let Some(path) = &options.json {
            let whole = json!({
                "commit": ringcomm::COMMIT,
                "command": options.arguments.join(" "),
                "device": name,
                "devices": ngpus,
                "hosts": nhosts,
                "ranks": nranks,
                "processes": if found.is_some() { nranks } else { 1 },
                "scope": scope,
                "copy_driver_gbps": bandwidth.driver,
                "copy_kernel_gbps": bandwidth.kernel,
                "copy_link_gbps": link,
                "rows": rows,
            });
            save(path, &format!("{whole}\n"))?;
        }
        if let Some(error) = &times.graph_error {
            say(&format!("# no graph: {error}"));
            // Threads were aborted, and the next cell is measured by others; processes that are
            // refused a graph go on.
            if found.is_none() {
                ranks = join(options, None, ndevices)?;
            }
        }
    }
    Ok(if wrong == 0 { Status::Fine } else { Status::Wrong })
}

/// The lines before the rows.
fn head(what: &str, bandwidth: &Bandwidth, link: Option<f64>) {
    say(&format!(
        "# {what}; copies {:.0} GB/s by cudaMemcpyAsync, {:.0} by our kernel (read plus written){}",
        bandwidth.driver,
        bandwidth.kernel,
        link.map_or(String::new(), |link| format!(
            "; {link:.0} GB/s from device 0 to device 1 by cudaMemcpyAsync"
        ))
    ));
    say(match link {
        Some(_) => "# size and time of one call; %bound is busbw against that of the link",
        None => "# size and time of one call; %bound is against the larger of the two copies",
    });
    say(&format!(
        "{:>12} {:>10} {:>8} {:>16} {:>10} {:>10} {:>10} {:>10} {:>9} {:>9} {:>7} {:>6}",
        "bytes",
        "type",
        "op",
        "collective",
        "hot us",
        "rotate us",
        "graph us",
        "1-strm us",
        "algbw",
        "busbw",
        "%bound",
        "wrong"
    ));
}

/// Write a report whole or not at all, whenever this process is killed.
fn save(path: &str, text: &str) -> Result<(), Failure> {
    let is_file = fs::metadata(path).map_or(true, |found| found.is_file());
    let written = if is_file {
        let part = format!("{path}.part");
        fs::write(&part, text).and_then(|()| fs::rename(&part, path))
    } else {
        fs::write(path, text)
    };
    written.map_err(|error| Failure::Run(format!("writing {path}: {error}")))
}

/// The ranks of this process: all of them, or, of a launched job, its one, which takes its turn
/// among the devices.
fn join(
    options: &Options,
    found: Option<&LaunchFacts>,
    ndevices: usize,
) -> Result<Vec<Arc<Communicator>>, Failure> {
    let timeout_ms = options.timeout_ms.unwrap_or(60_000);
    let environment = Config::from_environment()?;
    let algorithm = options.algorithm.clone().or(environment.algorithm.clone());
    let config = Config { timeout_ms, algorithm, ..environment };
    let seat = |rank: usize| DeviceChoice::Device((rank % ndevices) as i32);
    if let Some(found) = found {
        let config = Config { device: seat(found.local_rank.unwrap_or(found.rank)), ..config };
        return Ok(vec![Arc::new(Communicator::init_found(found, &config)?)]);
    }
    let each = options.threads.unwrap_or(1);
    let seats: Vec<DeviceChoice> = (0..ndevices * each).map(seat).collect();
    Ok(Communicator::init_all_on(&seats, &config)?.into_iter().map(Arc::new).collect())
}

/// The life of a rank that does not report.
fn follow(options: &Options, ranks: &[Arc<Communicator>]) -> Result<Status, Failure> {
    let mut wrong = 0;
    for cell in cells(options, ranks[0].nranks())? {
        wrong += Bench::new(ranks, &cell, options)?.measure()?.wrong.unwrap_or(0);
    }
    Ok(if wrong == 0 { Status::Fine } else { Status::Wrong })
}

/// What is measured, in the order of the report.
fn cells(options: &Options, nranks: usize) -> Result<Vec<GpuCell>, Failure> {
    let mut cells = Vec::new();
    for operation in &options.operations {
        let Some(collective) = operation.collective() else { continue };
        let ops = if operation.reduces() { &options.reductions[..] } else { &[ReduceOp::Sum] };
        for data_type in &options.types {
            for op in ops.iter().filter(|op| !operation.reduces() || op.supports(*data_type)) {
                for bytes in options.sizes() {
                    let blocks = match operation {
                        Operation::AllReduce | Operation::Broadcast | Operation::Reduce => 1,
                        _ => nranks,
                    };
                    let count = bytes / data_type.size() / blocks;
                    let (operation, data_type, op) = (*operation, *data_type, *op);
                    cells.push(GpuCell { operation, collective, data_type, op, count, blocks });
                    worker::fits(cells.len()).map_err(Failure::Option)?;
                }
            }
        }
    }
    Ok(cells)
}

/// Bytes that a call reads and writes, where all ranks' memory is one device's: at least, which is
/// `2 N S` for `S` bytes of each of `N` ranks, or, in a ring through slots, by the ring's own
/// model. There every chunk is read and written (2), `N - 2` times a slot and an input reduced into
/// a slot (3), once into an output as well (4), copied on `N - 2` times from a slot to an output
/// and a slot (3), and to the last output (2): `(6 N - 4) S`.
fn moved(cell: &GpuCell, algorithm: &str, nranks: usize) -> usize {
    let size = cell.data_type.size();
    if cell.collective == Collective::AllReduce && algorithm == Algorithm::Ring.name() {
        return (6 * nranks - 4) * cell.count * size;
    }
    let shape = PieceShape { collective: cell.collective, root: 0, count: cell.count, size };
    // Every rank's buffers are elsewhere.
    let place = |rank: usize| RankBuffers { input: 1 << (20 + rank), output: 3 << (40 + rank) };
    let places: Vec<RankBuffers> = (0..nranks.min(20)).map(place).collect();
    let mut bytes = 0;
    let counted = pieces(&shape, &places, (0, 1), |sources, targets, len| {
        bytes += (sources.len() + targets.len()) * len * size;
        Ok(())
    });
    counted.map_or(0, |()| bytes)
}

/// What times are held against.
struct Bounds {
    /// GB/s of one device's memory, and from one device to another.
    copies: f64,
    link: Option<f64>,
    nranks: usize,
    ngpus: usize,
}

impl Bounds {
    /// Percent of what the memory of one device, or, with a rank on each of several, the links
    /// would allow: bytes that every algorithm has to move, which is what the bus bandwidth counts.
    fn percent(&self, cell: &GpuCell, times: &GpuTimes) -> f64 {
        if self.ngpus == 1 {
            let bytes = moved(cell, times.algorithm, self.nranks) as f64;
            return 100.0 * bytes / self.copies / 1e3 / times.rotating_us;
        }
        match self.link {
            Some(link) if self.nranks == self.ngpus => {
                let bytes = (cell.count * cell.blocks * cell.data_type.size()) as f64;
                let factor = cell.operation.bus_factor(self.nranks);
                100.0 * factor * bytes / times.rotating_us / 1e3 / link
            }
            _ => f64::NAN,
        }
    }
}

fn report(cell: &GpuCell, times: &GpuTimes, bounds: &Bounds, scope: &str) -> Value {
    let nranks = bounds.nranks;
    let bytes = cell.count * cell.blocks * cell.data_type.size();
    let algbw = bytes as f64 / times.hot_us / 1e3;
    let busbw = algbw * cell.operation.bus_factor(nranks);
    let percent = bounds.percent(cell, times);
    let op = if cell.operation.reduces() { cell.op.name() } else { "none" };
    let wrong = times.wrong.map_or("-".into(), |wrong| wrong.to_string());
    say(&format!(
        "{bytes:>12} {:>10} {op:>8} {:>16} {:>10.2} {:>10.2} {:>10.2} {:>10.2} {algbw:>9.2} \
         {busbw:>9.2} {percent:>7.1} {wrong:>6}  {scope}",
        cell.data_type.name(),
        cell.operation.name(),
        times.hot_us,
        times.rotating_us,
        times.graph_us,
        times.eager_one_stream_us,
    ));
    json!({
        "op": cell.operation.name(),
        "bytes": bytes,
        "type": cell.data_type.name(),
        "redop": op,
        "ranks": nranks,
        "hot_us": times.hot_us,
        "rotating_us": times.rotating_us,
        "graph_us": times.graph_us,
        "graph_error": times.graph_error,
        "eager_us": times.eager_us,
        "eager_one_stream_us": times.eager_one_stream_us,
        "iterations": times.iterations,
        "algbw": algbw,
        "busbw": busbw,
        "bound_percent": percent,
        "wrong": times.wrong,
        "transport": times.transport,
        "algorithm": times.algorithm,
        "scope": scope,
    })
}
