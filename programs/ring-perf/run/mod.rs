//! One invocation from the facts of the machine to the last file written.

pub(super) mod launch;
mod threads;
pub(super) mod worker;

use crate::report::compare;

use crate::cli::options::{Csv, Options};
use crate::measure::expected_layout::Cell;
use crate::model::network::Network;
use crate::model::simulate;
use crate::model::tuning_file;
use crate::report::machine::Machine;
use crate::report::plot;
use crate::report::row::{MODELLED, Row, Told};
use crate::report::table;

use crate::cli::mode::Mode;
use crate::cli::outcome::{Failure, Status, complain, say, say_beside};
use crate::measure::gradient_trace;
use indicatif::{ProgressBar, ProgressFinish, ProgressStyle};
use ringcomm::algorithm::Algorithm;
use ringcomm::algorithm::select::Profile;
use ringcomm::bootstrap::rendezvous::LaunchFacts;
use serde_json::json;
use std::time::Instant;

/// What measures with so many GPUs.
type OnGpus = fn(&Options, usize) -> Result<Status, Failure>;

/// The cells of a mode: of the trace, or of the operations and sizes.
fn cells(options: &Options, mode: Mode) -> Result<Vec<Cell>, Failure> {
    match &options.trace {
        Some(path) => gradient_trace::cells(options, path).map_err(Failure::Option),
        None => worker::cells(options, mode.nranks()).map_err(Failure::Option),
    }
}

pub fn everything(options: &Options, on_gpus: OnGpus) -> Result<Status, Failure> {
    let mut created = Vec::new();
    let outcome = run(options, on_gpus, &mut created);
    if let Err(Failure::Option(_)) = outcome {
        // Nothing was run: no empty report is left behind.
        created.iter().for_each(|path| drop(std::fs::remove_file(path)));
    }
    outcome
}

/// `created` takes the names of the files that were made for reports to come.
fn run(options: &Options, on_gpus: OnGpus, created: &mut Vec<String>) -> Result<Status, Failure> {
    let begun = Instant::now();
    if options.gpus > 0 {
        return on_gpus(options, options.gpus);
    }
    let found = crate::ranks::job::found(options).transpose()?;
    let modes = match &found {
        Some(found) => vec![Mode::of_job(found.nranks)],
        None => Mode::chosen(options),
    };
    if let Some(child) = options.child {
        let mode = modes[0];
        launch::be_child(options, child, &cells(options, mode)?, mode)?;
        return Ok(Status::Fine);
    }
    if found.as_ref().is_none_or(|found| found.rank == 0) {
        outputs_are_writable(options, created)?;
    }
    if let Some(name) = &options.algorithm {
        Algorithm::from_name(name).map_err(|error| Failure::Option(format!("--algo: {error}")))?;
    }
    if let Some(path) = &options.save_tuning {
        say(tuning_file::save(path)?.trim_end());
        return Ok(Status::Fine);
    }
    if let Some(path) = &options.tuning {
        Profile::read(path).map_err(|error| Failure::Option(format!("--tuning: {error}")))?;
    }
    if let Some(nranks) = options.simulate {
        return simulated(options, nranks);
    }
    if let Some(found) = found.as_ref().filter(|found| found.rank > 0) {
        return follow(options, found, modes[0]);
    }
    let old = options.compare.as_ref().map(|path| compare::read(path)).transpose();
    let old = old.map_err(|text| Failure::Option(format!("--compare {text}")))?;
    let planned = |mode: Mode| Ok((mode, cells(options, mode)?));
    let planned = modes.into_iter().map(planned).collect::<Result<Vec<_>, Failure>>()?;
    // Of a job that may be on several machines, one machine's bandwidth says nothing.
    let probe = options.probe && found.is_none();
    let machine = if probe { Machine::probed() } else { Machine::described() };
    let quiet = options.csv == Some(Csv::Output);
    if !quiet {
        say(&table::header(options, &machine));
    }
    let mut session = Session { options, machine, found, rows: Vec::new(), failed: false, quiet };
    let several = planned.len();
    for (done, (mode, cells)) in planned.iter().enumerate() {
        let left = options.time_left.map(|total| total.saturating_sub(begun.elapsed()));
        let share = left.map(|left| left / (several - done) as u32);
        session.measure(*mode, cells, &Options { time_left: share, ..options.clone() })?;
    }
    session.finish(old)
}

/// The life of a rank that does not report: it says nothing unless it fails.
fn follow(options: &Options, found: &LaunchFacts, mode: Mode) -> Result<Status, Failure> {
    let mut status = Status::Fine;
    let mut receive = |told| {
        if let Told::Failed(text) = told {
            complain(&text);
            status = Status::Wrong;
        }
    };
    launch::run_job(options, found, &cells(options, mode)?, &mut receive)?;
    Ok(status)
}

/// The table of a job that is not run.
fn simulated(options: &Options, nranks: usize) -> Result<Status, Failure> {
    let network =
        Network::parse(options.network.as_deref().unwrap_or("")).map_err(Failure::Option)?;
    let cells = worker::cells(options, nranks).map_err(Failure::Option)?;
    let quiet = options.csv == Some(Csv::Output);
    let machine = Machine::described();
    let found = None;
    let mut session = Session { options, machine, found, rows: Vec::new(), failed: false, quiet };
    if !quiet {
        say(&format!(
            "# ring-perf {} {}\n# simulated, not measured: {network:?}",
            env!("CARGO_PKG_VERSION"),
            options.arguments.join(" ")
        ));
    }
    let mut titled = None;
    for cell in &cells {
        let row = simulate::row(cell, nranks, &network, options).map_err(Failure::Run)?;
        if !quiet {
            if titled != Some(cell.operation) {
                titled = Some(cell.operation);
                say(&table::title(cell.operation, &format!("{nranks} ranks, simulated")));
            }
            say(&table::line(Some(&row), None));
            if row.mode == MODELLED {
                say("#   by the cost model: too many steps to simulate");
            }
            if options.explain {
                say(&table::explanation(Some(&row), None));
            }
        }
        session.rows.push(row);
    }
    session.finish(None)
}

/// What has been measured so far.
struct Session<'a> {
    options: &'a Options,
    machine: Machine,
    /// The launched job that this process is rank 0 of.
    found: Option<LaunchFacts>,
    rows: Vec<Row>,
    failed: bool,
    /// Comma-separated values have the output to themselves.
    quiet: bool,
}

impl Session<'_> {
    /// Measure a mode, with its share of the time where there is an end to it.
    fn measure(&mut self, mode: Mode, cells: &[Cell], options: &Options) -> Result<(), Failure> {
        if let Some(path) = options.trace.as_ref().filter(|_| !self.quiet) {
            say(&gradient_trace::describe(options, path).map_err(Failure::Option)?);
        }
        // Which rows will come, in this order.
        let mut awaited = cells.iter().flat_map(|cell| {
            let count = worker::placements(options, cell).len();
            (0..count).map(move |index| (cell, index + 1 == count))
        });
        let total = cells.iter().map(|cell| worker::placements(options, cell).len()).sum();
        let bar = bar(total);
        let (mut titled, mut halves, mut left_out) = (None, Vec::new(), None);
        let mut buckets = Vec::new();
        let mut receive = |told: Told| {
            self.failed |= matches!(told, Told::Failed(_));
            let mut row = match told {
                Told::Row(row) => *row,
                Told::Bucket(bucket) => return buckets.push(bucket),
                Told::LeftOutFrom(cell) => return left_out = left_out.or(Some(cell)),
                Told::Failed(text) | Told::Wrong(text) => {
                    return bar.suspend(|| complain(&text));
                }
            };
            row.buckets = std::mem::take(&mut buckets);
            row.mem = table::memory_share(&row, &self.machine);
            let name = format!("{} {} B", row.op, row.bytes);
            let Some((cell, last)) = awaited.next() else { return };
            halves.push(row.clone());
            self.rows.push(row);
            if last && !self.quiet {
                let half = |in_place| halves.iter().find(|row: &&Row| row.in_place == in_place);
                let is_first = titled.replace(cell.operation) != Some(cell.operation);
                bar.suspend(|| {
                    if is_first {
                        say(&table::title(cell.operation, &table::place(mode, options)));
                    }
                    say(&table::line(half(false), half(true)));
                    if options.explain {
                        say(&table::explanation(half(false), half(true)));
                    }
                });
            }
            if last {
                halves.clear();
            }
            // Below the table, until the next row.
            bar.set_message(name);
            bar.inc(1);
        };
        match &self.found {
            Some(found) => launch::run_job(options, found, cells, &mut receive)?,
            None => launch::run(options, cells, mode, &mut receive)?,
        }
        bar.finish_and_clear();
        if let Some(row) = halves.first().filter(|_| !self.quiet) {
            say(&table::line(Some(row), None));
        }
        let missing = awaited.next().is_some();
        self.failed |= missing && left_out.is_none();
        if options.time_left.is_some() && !self.quiet {
            let first = left_out.and_then(|number| cells.get(number));
            table::shortened(&self.rows, mode, first).iter().for_each(|line| say(line));
        }
        Ok(())
    }

    fn finish(self, old: Option<Vec<Row>>) -> Result<Status, Failure> {
        let options = self.options;
        if !self.quiet {
            say(&table::summary(&self.rows));
        }
        match &options.csv {
            Some(Csv::Output) => say(table::csv(&self.rows).trim_end()),
            Some(Csv::File(path)) => save(path, &table::csv(&self.rows))?,
            None => {}
        }
        if let Some(path) = &options.json {
            save(path, &json_report(options, &self.machine, &self.rows))?;
        }
        if let Some(path) = &options.plot {
            let caption = format!(
                "ring-perf {}: {}, {} cores",
                options.arguments.join(" "),
                self.machine.cpu,
                self.machine.cores
            );
            save(path, &plot::svg(&self.rows, &caption))?;
        }
        let wrong = self.rows.iter().any(|row| row.wrong.is_some_and(|wrong| wrong > 0));
        let mut status = Status::Fine;
        if let Some(old) = old {
            let comparison = compare::compare(&self.rows, &old, options.tolerance);
            let tell = if self.quiet { say_beside } else { say };
            tell(comparison.text.trim_end());
            if comparison.slower > 0 || comparison.matched == 0 {
                status = Status::Slower;
            }
        }
        // A wrong result outweighs a slow one.
        Ok(if wrong || self.failed { Status::Wrong } else { status })
    }
}

/// A report that cannot be written is known before anything is measured. What is there stays until
/// the new report takes its place: it may be what the run is compared with.
fn outputs_are_writable(options: &Options, created: &mut Vec<String>) -> Result<(), Failure> {
    let csv = match &options.csv {
        Some(Csv::File(path)) => Some(path),
        _ => None,
    };
    let outputs = [
        ("--json", options.json.as_ref()),
        ("--csv", csv),
        ("--plot", options.plot.as_ref()),
        ("--save-tuning", options.save_tuning.as_ref()),
    ];
    for (name, path) in outputs {
        let Some(path) = path else { continue };
        if !std::path::Path::new(path).exists() {
            created.push(path.clone());
        }
        let opened = std::fs::OpenOptions::new().append(true).create(true).open(path);
        opened.map_err(|error| Failure::Option(format!("{name} {path}: {error}")))?;
    }
    Ok(())
}

/// A progress bar: on a terminal's standard error, and nowhere else.
fn bar(total: usize) -> ProgressBar {
    // Thirty columns leave room for the row's name on any terminal.
    let style = ProgressStyle::with_template("[{bar:30}] {pos}/{len} {msg}");
    let style = style.expect("a template").progress_chars("##.");
    let bar =
        ProgressBar::new(total as u64).with_style(style).with_finish(ProgressFinish::AndClear);
    bar.tick();
    bar
}

fn save(path: &str, text: &str) -> Result<(), Failure> {
    std::fs::write(path, text).map_err(|error| Failure::Run(format!("{path}: {error}")))
}

/// The report for programs: the run's facts, then an object for each row on a line of its own.
fn json_report(options: &Options, machine: &Machine, rows: &[Row]) -> String {
    let header = json!({
        "program": "ring-perf",
        "version": env!("CARGO_PKG_VERSION"),
        "commit": ringcomm::COMMIT,
        "command": options.arguments.join(" "),
        "machine": machine.to_json(),
        "network": table::network(options),
    });
    let text = |row| serde_json::to_string(row).expect("a row is JSON");
    let rows: Vec<String> = rows.iter().map(text).collect();
    format!("{{\"header\": {header},\n\"rows\": [\n{}\n]}}\n", rows.join(",\n"))
}
