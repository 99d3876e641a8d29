//! Ranks on GPUs: every size with hot and with rotating buffers, and replayed from a graph, against
//! the bandwidth that copies reach in the same run.
//!
//! Ranks are threads, each with a stream, or, in a launched job, processes. The devices' own events
//! take the times. A result is compared with the one that the processor computes, bit for bit.
//! Where all ranks share one GPU, the memory of that GPU bounds every figure, and every line says
//! so.

mod bench;
mod copies;

use crate::job;
use crate::json::{Value, object};
use crate::operation::Operation;
use crate::options::Options;
use crate::run::Failure;
use crate::{Status, say};
use bench::{Bench, Cell, Times};
use copies::Bandwidth;
use ringcomm::bootstrap::rendezvous::Found;
use ringcomm::communicator::Communicator;
use ringcomm::config::{Config, Seat};
use ringcomm::device::cuda::Device;
use ringcomm::executor::cuda::{Place, Shape, pieces};
use ringcomm::types::ReduceOp;
use std::fs;

/// What figures of a single GPU must never be read without.
const ONE_GPU: &str = "one GPU, HBM-bound";

/// Measure what the options ask for on so many devices, with so many ranks on each.
pub fn run(options: &Options, ndevices: usize) -> Result<Status, Failure> {
    let found = job::found(options).transpose()?;
    let none = |error: ringcomm::error::Error| Failure::Option(format!("-g {ndevices}: {error}"));
    let device = Device::of_ordinal(0).map_err(none)?;
    if let Some(found) = found.as_ref().filter(|found| found.rank > 0) {
        // Rank 0 reports.
        return follow(options, &join(options, Some(found), ndevices)?);
    }
    // Before the others use the devices.
    let bandwidth = Bandwidth::measure(&device)?;
    let ranks = join(options, found.as_ref(), ndevices)?;
    let nranks = ranks[0].nranks();
    let scope = if ndevices == 1 { ONE_GPU } else { "several GPUs" };
    let processes = if found.is_some() { ", each a process," } else { "" };
    say(&format!(
        "# {nranks} ranks{processes} on {ndevices} x {}; {scope}; copies {:.0} GB/s by \
         cudaMemcpyAsync, {:.0} by our kernel (read plus written)",
        device.name()?,
        bandwidth.driver,
        bandwidth.kernel
    ));
    say("# size and time of one call; %bound is against the larger of the two copies");
    say(&format!(
        "{:>12} {:>10} {:>8} {:>16} {:>10} {:>10} {:>10} {:>9} {:>9} {:>7} {:>6}",
        "bytes",
        "type",
        "op",
        "collective",
        "hot us",
        "rotate us",
        "graph us",
        "algbw",
        "busbw",
        "%bound",
        "wrong"
    ));
    let mut rows = Vec::new();
    let mut wrong = 0;
    for cell in cells(options, nranks) {
        let times = Bench::new(&ranks, &cell, options)?.measure()?;
        wrong += times.wrong.unwrap_or(0);
        rows.push(report(&cell, &times, &bandwidth, (nranks, ndevices, scope)));
    }
    if let Some(path) = &options.json {
        let whole = object([
            ("device", device.name()?.as_str().into()),
            ("devices", ndevices.into()),
            ("ranks", nranks.into()),
            ("processes", if found.is_some() { nranks } else { 1 }.into()),
            ("scope", scope.into()),
            ("copy_driver_gbps", bandwidth.driver.into()),
            ("copy_kernel_gbps", bandwidth.kernel.into()),
            ("rows", Value::List(rows)),
        ]);
        let write = |error: std::io::Error| Failure::Run(format!("writing {path}: {error}"));
        fs::write(path, format!("{whole}\n")).map_err(write)?;
    }
    Ok(if wrong == 0 { Status::Fine } else { Status::Wrong })
}

/// The ranks of this process: all of them, or, of a launched job, its one, which takes its turn
/// among the devices.
fn join(
    options: &Options,
    found: Option<&Found>,
    ndevices: usize,
) -> Result<Vec<Communicator>, Failure> {
    let timeout_ms = options.timeout_ms.unwrap_or(60_000);
    let config = Config { timeout_ms, ..Config::from_environment()? };
    let seat = |rank: usize| Seat::Device((rank % ndevices) as i32);
    if let Some(found) = found {
        let config = Config { seat: seat(found.local_rank.unwrap_or(found.rank)), ..config };
        return Ok(vec![Communicator::init_found(found, &config)?]);
    }
    let each = options.threads.unwrap_or(1);
    let seats: Vec<Seat> = (0..ndevices * each).map(seat).collect();
    Ok(Communicator::init_all_on(&seats, &config)?)
}

/// The life of a rank that does not report.
fn follow(options: &Options, ranks: &[Communicator]) -> Result<Status, Failure> {
    let mut wrong = 0;
    for cell in cells(options, ranks[0].nranks()) {
        wrong += Bench::new(ranks, &cell, options)?.measure()?.wrong.unwrap_or(0);
    }
    Ok(if wrong == 0 { Status::Fine } else { Status::Wrong })
}

/// What is measured, in the order of the report.
fn cells(options: &Options, nranks: usize) -> Vec<Cell> {
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
                    cells.push(Cell { operation, collective, data_type, op, count, blocks });
                }
            }
        }
    }
    cells
}

/// Bytes that a call reads and writes at least, where all ranks' memory is one device's.
fn moved(cell: &Cell, nranks: usize) -> usize {
    let size = cell.data_type.size();
    let shape = Shape { collective: cell.collective, root: 0, count: cell.count, size };
    // Every rank's buffers are elsewhere.
    let place = |rank: usize| Place { input: 1 << (20 + rank), output: 3 << (40 + rank) };
    let places: Vec<Place> = (0..nranks.min(20)).map(place).collect();
    let mut bytes = 0;
    let counted = pieces(&shape, &places, (0, 1), |sources, targets, len| {
        bytes += (sources.len() + targets.len()) * len * size;
        Ok(())
    });
    counted.map_or(0, |()| bytes)
}

fn report(
    cell: &Cell,
    times: &Times,
    bandwidth: &Bandwidth,
    (nranks, ndevices, scope): (usize, usize, &str),
) -> Value {
    let bytes = cell.count * cell.blocks * cell.data_type.size();
    let algbw = bytes as f64 / times.hot_us / 1e3;
    let busbw = algbw * cell.operation.bus_factor(nranks);
    let bound_us = moved(cell, nranks) as f64 / bandwidth.best() / 1e3;
    let percent = if ndevices == 1 { 100.0 * bound_us / times.rotating_us } else { f64::NAN };
    let op = if cell.operation.reduces() { cell.op.name() } else { "none" };
    let wrong = times.wrong.map_or("-".into(), |wrong| wrong.to_string());
    say(&format!(
        "{bytes:>12} {:>10} {op:>8} {:>16} {:>10.2} {:>10.2} {:>10.2} {algbw:>9.2} {busbw:>9.2} \
         {percent:>7.1} {wrong:>6}  {scope}",
        cell.data_type.name(),
        cell.operation.name(),
        times.hot_us,
        times.rotating_us,
        times.graph_us,
    ));
    object([
        ("op", cell.operation.name().into()),
        ("bytes", bytes.into()),
        ("type", cell.data_type.name().into()),
        ("redop", op.into()),
        ("ranks", nranks.into()),
        ("hot_us", times.hot_us.into()),
        ("rotating_us", times.rotating_us.into()),
        ("graph_us", times.graph_us.into()),
        ("eager_us", times.eager_us.into()),
        ("algbw", algbw.into()),
        ("busbw", busbw.into()),
        ("bound_percent", percent.into()),
        ("wrong", times.wrong.map_or(Value::Null, Value::from)),
        ("transport", times.transport.into()),
        ("scope", scope.into()),
    ])
}
