//! What one rank does: every cell in order, out of place and in place; rank 0 reports.

use crate::allowance::{Allowance, Budget};
use crate::arena::Arena;
use crate::board::{Board, Broken};
use crate::endpoint::Endpoint;
use crate::json::{Value, object};
use crate::layout::{Cell, Layout, Placement};
use crate::measure::{Clock, Times};
use crate::numeric;
use crate::options::{Options, Roots};
use crate::report::time;
use crate::row::Row;
use crate::stage::{Stage, arena_bytes, kind};
use ringcomm::communicator::{Explanation, Mapped};
use ringcomm::types::ReduceOp;
use std::time::Instant;

/// What travels from the ranks to the report: one JSON object each.
pub type Sink<'a> = &'a dyn Fn(Value);

/// The cells of a run, in the order of the report. Every rank makes the same list.
pub fn cells(options: &Options, nranks: usize) -> Vec<Cell> {
    let mut cells = Vec::new();
    for operation in &options.operations {
        let roots: Vec<usize> = match options.roots {
            Roots::All if operation.has_root() => (0..nranks).collect(),
            Roots::One(root) if operation.has_root() => vec![root],
            _ => vec![0],
        };
        let reductions = match operation.reduces() {
            true => options.reductions.clone(),
            false => vec![ReduceOp::Sum],
        };
        let types = match operation.has_data() {
            true => options.types.clone(),
            false => options.types[..1].to_vec(),
        };
        let sizes = if operation.has_data() { options.sizes() } else { vec![0] };
        for data_type in types {
            for op in reductions.iter().copied() {
                if operation.reduces() && !op.supports(data_type) {
                    continue;
                }
                for root in roots.iter().copied() {
                    cells.extend(sizes.iter().map(|bytes| Cell {
                        operation: *operation,
                        bytes: *bytes,
                        data_type,
                        op,
                        root,
                        buckets: Vec::new(),
                    }));
                }
            }
        }
    }
    cells
}

/// The placements that a cell is measured in.
pub fn placements(options: &Options, cell: &Cell) -> Vec<Placement> {
    let in_place = options.in_place && cell.operation.has_in_place();
    let mut placements = Vec::new();
    // An operation that cannot run in place runs, whatever was asked.
    if options.out_of_place || !in_place {
        placements.push(Placement::OutOfPlace);
    }
    if in_place {
        placements.push(Placement::InPlace);
    }
    placements
}

/// The hidden `--inject-fault RANK:CALL:BYTE`, where it is for this rank.
fn fault(options: &Options, rank: usize) -> Option<(usize, usize)> {
    let text = options.fault.as_ref()?;
    let numbers: Vec<usize> = text.split(':').filter_map(|part| part.parse().ok()).collect();
    match numbers[..] {
        [of, call, byte] if of == rank => Some((call, byte)),
        _ => None,
    }
}

/// Run every cell as one rank. An error is reported once, by the rank that met it first.
pub fn run(
    options: &Options,
    cells: &[Cell],
    (rank, mode): (usize, &str),
    board: &Board,
    endpoint: &dyn Endpoint,
    sink: Sink,
) {
    let result = measure_all(options, cells, (rank, mode), board, endpoint, sink);
    if let Err(Broken::Library(error)) = result {
        fail(board, rank, cells, &error.to_string(), sink);
    }
}

/// Say what failed and stop the run.
pub fn fail(board: &Board, rank: usize, cells: &[Cell], text: &str, sink: Sink) {
    let place = board.cell_of(rank).and_then(|cell| cells.get(cell)).map(describe);
    let place = place.map(|place| format!(" in {place}")).unwrap_or_default();
    sink(object([("failed", format!("rank {rank}{place}: {text}").as_str().into())]));
    board.stop();
}

pub fn describe(cell: &Cell) -> String {
    let op = if cell.operation.reduces() { format!(" {}", cell.op) } else { String::new() };
    format!("{} of {} B, {}{op}", cell.operation.name(), cell.bytes, cell.data_type)
}

fn measure_all(
    options: &Options,
    cells: &[Cell],
    (rank, mode): (usize, &str),
    board: &Board,
    endpoint: &dyn Endpoint,
    sink: Sink,
) -> Result<(), Broken> {
    let nranks = board.nranks();
    let needs = cells.iter().flat_map(|cell| {
        placements(options, cell)
            .into_iter()
            .map(|placement| arena_bytes(cell, placement, rank, nranks, options))
    });
    let arena = Arena::new(needs.max().unwrap_or(0))?;
    if options.register {
        endpoint.register(arena.base(), arena.bytes())?;
    }
    let mut clock = Clock::new(board, rank, options);
    clock.fault = fault(options, rank);
    let mut pace = Pace::new(options, cells);
    'cells: for (number, cell) in cells.iter().enumerate() {
        board.working_on(rank, number);
        let layout = cell.layout(rank, nranks);
        for placement in placements(options, cell) {
            let Some(budget) = pace.next(board, rank)? else {
                if rank == 0 {
                    sink(object([("left_out_from", number.into())]));
                }
                break 'cells;
            };
            let what = (cell, &layout, placement);
            let mut stage = Stage::new(endpoint, &arena, (rank, nranks), what, options);
            let times = clock.measure(&mut stage, budget)?;
            board.report_wrong(rank, stage.wrong as u64, stage.first.unwrap_or_default());
            board.share(rank, [0; 2])?;
            board.barrier()?;
            if rank == 0 {
                report(&mut stage, &times, what, (nranks, mode), options, (endpoint, board), sink);
            }
            // Nobody overwrites what rank 0 reads.
            board.barrier()?;
        }
    }
    endpoint.finalize()?;
    Ok(())
}

/// What the next placement may take, where rank 0 decides whether there is time for it.
struct Pace {
    usual: Budget,
    begun: Instant,
    allowance: Option<Allowance>,
}

impl Pace {
    fn new(options: &Options, cells: &[Cell]) -> Pace {
        let (begun, usual) = (Instant::now(), options.budget());
        let placements = cells.iter().map(|cell| placements(options, cell).len()).sum();
        let allowance = options.time_left.map(|left| Allowance::new(left, usual, placements));
        Pace { usual: Budget::whole(usual), begun, allowance }
    }

    /// The same on all ranks; `None`: the rest is left out.
    fn next(&mut self, board: &Board, rank: usize) -> Result<Option<Budget>, Broken> {
        // A measurement begins with the other place for a decision.
        const PLACE: usize = 1;
        let Some(allowance) = &mut self.allowance else { return Ok(Some(self.usual)) };
        if rank == 0 {
            let budget = allowance.next(self.begun.elapsed());
            board.decide(PLACE, budget.map_or(0, Budget::encode));
        }
        board.start_together()?;
        let word = board.decision(PLACE);
        Ok((word != 0).then(|| Budget::decode(word)))
    }
}

fn report(
    stage: &mut Stage,
    times: &Times,
    (cell, layout, placement): (&Cell, &Layout, Placement),
    (nranks, mode): (usize, &str),
    options: &Options,
    (endpoint, board): (&dyn Endpoint, &Board),
    sink: Sink,
) {
    let size = cell.data_type.size();
    let bytes = layout.size_elements * size;
    let seconds = times.median();
    // GB are 10^9 bytes, as everywhere in this field.
    let algbw = if bytes > 0 { bytes as f64 / seconds / 1e9 } else { 0.0 };
    let mut row = Row {
        op: cell.operation.name().into(),
        bytes,
        count: layout.count.max(if cell.operation.is_vector() { layout.size_elements } else { 0 }),
        data_type: cell.data_type.name().into(),
        redop: if cell.operation.reduces() { cell.op.name() } else { "none" }.into(),
        root: cell.operation.has_root().then_some(cell.root),
        ranks: nranks,
        mode: mode.into(),
        in_place: placement == Placement::InPlace,
        time_us: seconds * 1e6,
        min_us: times.least() * 1e6,
        p99_us: times.p99() * 1e6,
        algbw,
        busbw: algbw * cell.operation.bus_factor(nranks),
        mem: f64::NAN,
        iterations: times.iterations,
        predicted_us: f64::NAN,
        transport: if options.tcp { "tcp" } else { "messages" }.into(),
        algorithm: "direct".into(),
        ..Row::default()
    };
    if cell.operation.collective().is_some()
        && let Ok(explanation) = endpoint.explain(&stage.aimed())
    {
        row.algorithm = explanation.algorithm.into();
        row.transport = explanation.transport.into();
        row.channels = explanation.channels;
        row.chunks = explanation.chunks;
        row.slices = explanation.slices;
        row.slice_bytes = explanation.slice_bytes;
        row.predicted_us = explanation.predicted_us;
        explain_mapped(&mut row, &explanation, options);
    }
    let mut wrong = 0;
    let mut first = None;
    for rank in 0..nranks {
        let (count, finding) = board.wrong(rank);
        wrong += count as usize;
        if count > 0 && first.is_none() {
            first = Some((rank, finding));
        }
    }
    row.wrong = options.check.then_some(wrong);
    sink(object([("row", row.to_json())]));
    if let Some((rank, finding)) = first {
        let text = format!("{}: {}", row.key(), explain_finding(cell, rank, finding));
        sink(object([("wrong", text.as_str().into())]));
    }
}

/// What runs in registered buffers: it has, or it is told beside what has.
fn explain_mapped(row: &mut Row, explanation: &Explanation, options: &Options) {
    if explanation.mapped.is_some() {
        row.transport = "process staged".into();
    }
    let suits = |mapped: &Mapped| mapped.in_place || !row.in_place;
    let Some(mapped) = explanation.mapped.filter(suits) else { return };
    if !options.register {
        row.mapped = format!(
            "registered: {} over process mapped, predicted {} us",
            mapped.algorithm,
            time(mapped.predicted_us)
        );
        return;
    }
    row.algorithm = mapped.algorithm.into();
    row.transport = "process mapped".into();
    (row.chunks, row.slices) = (mapped.chunks, 1);
    row.slice_bytes = row.bytes.div_ceil(mapped.chunks.max(1));
    row.predicted_us = mapped.predicted_us;
}

/// The first wrong element in words.
fn explain_finding(
    cell: &Cell,
    rank: usize,
    [what, iteration, index, got, want]: [u64; 5],
) -> String {
    let show = |bits| numeric::show(cell.data_type, bits);
    let place = format!("rank {rank}, iteration {iteration}");
    match what {
        kind::GUARD => format!(
            "{place}: byte {} was written outside of the buffer (now 0x{got:02x})",
            index as i64
        ),
        kind::UNTOUCHED => format!(
            "{place}, index {index}: written, though no element belongs there (byte 0x{got:02x})"
        ),
        kind::INPUT => format!(
            "rank {rank}, index {index}: the input was changed to {}, it was {}",
            show(got),
            show(want)
        ),
        _ => format!("{place}, index {index}: got {}, want {}", show(got), show(want)),
    }
}
