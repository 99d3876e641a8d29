//! What one rank does: every cell in order, out of place and in place; rank 0 reports.

use crate::cli::options::{Options, Roots};
use crate::cli::sizes::Sizes;
use crate::measure::Clock;
use crate::measure::arena::Arena;
use crate::measure::buffers::{Stage, arena_bytes, kind};
use crate::measure::expected_layout::{Cell, Layout, Placement};
use crate::measure::oracle;
use crate::measure::statistics::Times;
use crate::measure::time_budget::{Allowance, Budget};
use crate::ranks::endpoint::Endpoint;
use crate::ranks::shared_state::{Board, Broken};
use crate::report::explain::explain;
use crate::report::row::{Row, Told};
use ringcomm::types::ReduceOp;
use std::time::Instant;

/// Takes what ranks tell the report.
pub type Sink<'a> = &'a dyn Fn(Told);

/// Rows of a table at most. At the default time for a row so many take three hours, and every
/// process has a list of some 10 MB of them: past this the step is a typing error.
pub const MOST_ROWS: usize = 100_000;

/// The cells of a run, in the order of the report. Every rank makes the same list. Refused before
/// they are too many.
pub fn cells(options: &Options, nranks: usize) -> Result<Vec<Cell>, String> {
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
        let sizes = match operation.has_data() {
            true => options.sizes(),
            false => Sizes::new(0, 0, options.progression),
        };
        for data_type in types {
            for op in reductions.iter().copied() {
                if operation.reduces() && !op.supports(data_type) {
                    continue;
                }
                for root in roots.iter().copied() {
                    let cell = |bytes| Cell {
                        operation: *operation,
                        bytes,
                        data_type,
                        op,
                        root,
                        buckets: Vec::new(),
                    };
                    let room = MOST_ROWS + 1 - cells.len();
                    cells.extend(sizes.clone().take(room).map(cell));
                    fits(cells.len())?;
                }
            }
        }
    }
    Ok(cells)
}

/// Whether a table has so many rows.
pub fn fits(rows: usize) -> Result<(), String> {
    match rows <= MOST_ROWS {
        true => Ok(()),
        false => Err(format!(
            "more than {MOST_ROWS} rows: give a larger -i, or -f 2, which multiplies, or fewer \
             types, reductions and roots"
        )),
    }
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
    sink(Told::Failed(format!("rank {rank}{place}: {text}")));
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
                    sink(Told::LeftOutFrom(number));
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
        count: layout.counted(),
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
        ..Row::default()
    };
    explain(&mut row, cell, stage, options, endpoint);
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
    // One by one, before their row: what is sent at once has a limit.
    for bucket in std::mem::take(&mut row.buckets) {
        sink(Told::Bucket(bucket));
    }
    let key = row.key();
    sink(Told::Row(Box::new(row)));
    if let Some((rank, finding)) = first {
        sink(Told::Wrong(format!("{key}: {}", explain_finding(cell, rank, finding))));
    }
}

/// The first wrong element in words.
fn explain_finding(
    cell: &Cell,
    rank: usize,
    [what, iteration, index, got, want]: [u64; 5],
) -> String {
    let show = |bits| oracle::show(cell.data_type, bits);
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
