//! The table, in nccl-tests' columns, and the same rows as comma-separated values.

use super::machine::Machine;
use super::row::{Bucket, Course, Row};
use super::row::{MODELLED, SIMULATED};
use crate::cli::mode::{self, Mode};
use crate::cli::operation::Operation;
use crate::cli::options::Options;
use crate::measure::expected_layout::{Cell, Placement, least_traffic};
use crate::measure::time_budget::LEAST_ITERATIONS;
use ringcomm::config::NetChoice;

/// How much of the memory's bandwidth the row's least traffic is, in per cent: sums against the add
/// figure, copies against the copy figure, of all cores. What fits the cache is not held against
/// the memory.
pub fn memory_share(row: &Row, machine: &Machine) -> f64 {
    let (Some(bandwidth), Some(operation)) = (machine.bandwidth, Operation::parse(&row.op)) else {
        return f64::NAN;
    };
    let placement = if row.in_place { Placement::InPlace } else { Placement::OutOfPlace };
    let bytes = least_traffic(operation, row.bytes, row.ranks, placement);
    let gbs = if operation.reduces() { bandwidth.add_all } else { bandwidth.copy_all };
    if bytes <= machine.cache_bytes as f64 {
        f64::NAN
    } else {
        bytes / (gbs * 1e9) / (row.time_us * 1e-6) * 100.0
    }
}

/// With `--tcp`: how the ranks reach each other.
pub fn network(options: &Options) -> Option<String> {
    let config = mode::config(options).ok().filter(|_| options.tcp)?;
    let sockets = match config.nsocks {
        1 => "1 socket".into(),
        several => format!("{several} sockets"),
    };
    let hosts = match options.ranks_per_host.unwrap_or(1) {
        1 => "a host for each rank".into(),
        several => format!("a host for every {several} ranks"),
    };
    let protection = config.protection.name();
    let net = match config.net {
        NetChoice::Auto => "tcp".into(),
        net => net.name(),
    };
    Some(format!("{net} over loopback, {hosts}; protection {protection}, {sockets} to a peer"))
}

/// The lines above all tables.
pub fn header(options: &Options, machine: &Machine) -> String {
    let mut lines = vec![
        format!("# ring-perf {} {}", env!("CARGO_PKG_VERSION"), options.arguments.join(" ")),
        format!("# {}, {} cores", machine.cpu, machine.cores),
    ];
    lines.extend(network(options).map(|network| format!("# transport: {network}")));
    match machine.cross_core_ns {
        Some((near, far)) if far - near > 10.0 => {
            lines.push(format!("# cache line from core to core: {near:.0} to {far:.0} ns"));
        }
        Some((near, _)) => lines.push(format!("# cache line from core to core: {near:.0} ns")),
        None => {}
    }
    if let Some(bandwidth) = machine.bandwidth {
        lines.push(format!(
            "# memory, read plus written: copy {:.1} GB/s (one core {:.1}), add {:.1} GB/s (one \
             core {:.1})",
            bandwidth.copy_all, bandwidth.copy_one, bandwidth.add_all, bandwidth.add_one
        ));
    }
    lines.join("\n")
}

/// The lines above the table of one operation; `place` says which ranks.
pub fn title(operation: Operation, place: &str) -> String {
    let half = format!(
        "{:>10} {:>10} {:>10} {:>7} {:>7} {:>5} {:>6}",
        "time", "min", "p99", "algbw", "busbw", "%mem", "#wrong"
    );
    let units = format!(
        "{:>10} {:>10} {:>10} {:>7} {:>7} {:>5} {:>6}",
        "(us)", "(us)", "(us)", "(GB/s)", "(GB/s)", "", ""
    );
    format!(
        "#\n# {}, {place}\n#\n# {:>10} {:>12} {:>8} {:>9} {:>5}  \
         {:^61}  {:^61}\n# {:>10} {:>12} {:>8} {:>9} {:>5}  {half}  {half}\n# {:>10} {:>12} {:>8} \
         {:>9} {:>5}  {units}  {units}",
        operation.name(),
        "",
        "",
        "",
        "",
        "",
        "out-of-place",
        "in-place",
        "size",
        "count",
        "type",
        "redop",
        "root",
        "(B)",
        "(elements)",
        "",
        "",
        ""
    )
}

/// Which ranks a table is of, and how their results are treated.
pub fn place(mode: Mode, options: &Options) -> String {
    let check = if options.check { "every result checked" } else { "results not checked" };
    let memory = if options.register { ", registered buffers" } else { "" };
    let nranks = mode.nranks();
    let ranks = match mode.procs {
        _ if mode.launched => format!("{nranks} ranks of a launched job"),
        Some(procs) if mode.threads > 1 => {
            format!("{nranks} ranks: {procs} processes of {} threads", mode.threads)
        }
        _ => format!("{nranks} ranks as {}", mode.name()),
    };
    format!("{ranks}{memory}; {check}")
}

/// Four significant figures, and never more than the column holds.
pub fn time(us: f64) -> String {
    match us {
        _ if us.is_nan() => "-".into(),
        _ if us < 10.0 => format!("{us:.3}"),
        _ if us < 100.0 => format!("{us:.2}"),
        _ if us < 1000.0 => format!("{us:.1}"),
        _ => format!("{us:.0}"),
    }
}

fn half(row: Option<&Row>) -> String {
    let Some(row) = row else {
        return format!(
            "{:>10} {:>10} {:>10} {:>7} {:>7} {:>5} {:>6}",
            "N/A", "N/A", "N/A", "N/A", "N/A", "N/A", "N/A"
        );
    };
    let mem = if row.mem.is_nan() { "-".into() } else { format!("{:.0}", row.mem) };
    let wrong = row.wrong.map_or("-".into(), |wrong| wrong.to_string());
    format!(
        "{:>10} {:>10} {:>10} {:>7.2} {:>7.2} {mem:>5} {wrong:>6}",
        time(row.time_us),
        time(row.min_us),
        time(row.p99_us),
        row.algbw,
        row.busbw
    )
}

/// One line of the table from the row's two placements, of which one may be missing.
pub fn line(out_of_place: Option<&Row>, in_place: Option<&Row>) -> String {
    let row = out_of_place.or(in_place).expect("a row has a placement");
    // -1 where there is no root, as nccl-tests prints it.
    let root = row.root.map_or("-1".into(), |root| root.to_string());
    format!(
        "{:>12} {:>12} {:>8} {:>9} {root:>5}  {}  {}",
        row.bytes,
        row.count,
        row.data_type,
        row.redop,
        half(out_of_place),
        half(in_place)
    )
}

/// What `--explain` adds below.
pub fn explanation(out_of_place: Option<&Row>, in_place: Option<&Row>) -> String {
    let one = |row: &Row| {
        let place = if row.in_place { "in place" } else { "out of place" };
        let mut text = format!("#   {place}: ");
        text += &match row.buckets.len() {
            0 => way(&row.course) + &channels(&[&row.course]),
            1 => "1 all-reduce".into(),
            several => format!("{several} all-reduces"),
        };
        let predicted_us = row.course.predicted_us;
        text += &prediction(predicted_us);
        if !predicted_us.is_nan() && row.mode != MODELLED {
            text += &format!(
                ", {} {} ({:.2} of it)",
                if row.mode == SIMULATED { SIMULATED } else { "measured" },
                time(row.time_us),
                row.time_us / predicted_us
            );
        }
        if !row.course.mapped.is_empty() {
            text += &format!("; {}", row.course.mapped);
        }
        text + &step(row)
    };
    let lines: Vec<String> = [out_of_place, in_place].into_iter().flatten().map(one).collect();
    lines.join("\n")
}

fn way(course: &Course) -> String {
    let order = match course.order.as_str() {
        "" => String::new(),
        order => format!(", in {order}"),
    };
    format!("{} over {}{order}", course.algorithm, course.transport)
}

/// Of calls with the same channels and chunks.
fn channels(courses: &[&Course]) -> String {
    match courses[0].channels {
        0 => String::new(),
        channels => format!(
            ", channels {channels}, chunks {}, slices {} of {} B",
            courses[0].chunks,
            span(courses.iter().map(|course| course.slices)),
            span(courses.iter().map(|course| course.slice_bytes))
        ),
    }
}

fn prediction(us: f64) -> String {
    if us.is_nan() { String::new() } else { format!("; predicted {} us", time(us)) }
}

/// The buckets of a step, those that run alike on one line.
fn step(row: &Row) -> String {
    let alike = |bucket: &Bucket| {
        let course = &bucket.course;
        (way(course), course.channels, course.chunks)
    };
    let mut groups: Vec<Vec<&Bucket>> = Vec::new();
    for bucket in &row.buckets {
        match groups.iter_mut().find(|group| alike(group[0]) == alike(bucket)) {
            Some(group) => group.push(bucket),
            None => groups.push(vec![bucket]),
        }
    }
    let line = |group: Vec<&Bucket>| {
        let bytes = span(group.iter().map(|bucket| bucket.bytes));
        let courses: Vec<&Course> = group.iter().map(|bucket| &bucket.course).collect();
        let predicted_us = courses.iter().map(|course| course.predicted_us).sum();
        let (way, channels) = (way(courses[0]), channels(&courses));
        format!("\n#     {} of {bytes} B: {way}{channels}{}", group.len(), prediction(predicted_us))
    };
    groups.into_iter().map(line).collect()
}

/// From the least to the most.
fn span(values: impl Iterator<Item = usize> + Clone) -> String {
    match (values.clone().min().unwrap_or(0), values.max().unwrap_or(0)) {
        (least, most) if least == most => least.to_string(),
        (least, most) => format!("{least} to {most}"),
    }
}

/// What of a mode was left out so that the run ends in time, from the cell `first` on.
pub fn shortened(rows: &[Row], mode: Mode, first: Option<&Cell>) -> Vec<String> {
    let few = |row: &&Row| row.mode == mode.name() && row.iterations < LEAST_ITERATIONS;
    let few = rows.iter().filter(few).count();
    let mut lines = Vec::new();
    if few > 0 {
        lines.push(format!(
            "# {few} measurements of fewer than {LEAST_ITERATIONS} iterations: a run without \
             arguments ends within 20 s, and this machine is busy"
        ));
    }
    lines.extend(first.map(|cell| {
        format!(
            "# left out, to end within 20 s: {} from {} B on",
            cell.operation.name(),
            cell.bytes
        )
    }));
    lines
}

/// What ends the report: nccl-tests' two lines.
pub fn summary(rows: &[Row]) -> String {
    let wrong: usize = rows.iter().filter_map(|row| row.wrong).sum();
    let unchecked = rows.iter().all(|row| row.wrong.is_none());
    let verdict = match (unchecked, wrong) {
        (true, _) => "not checked".into(),
        (false, 0) => "0 OK".into(),
        (false, wrong) => format!("{wrong} FAILED"),
    };
    let sum: f64 = rows.iter().map(|row| row.busbw).sum();
    let mean = match rows.len() {
        0 => "-".into(),
        several => format!("{:.4}", sum / several as f64),
    };
    format!("#\n# Out of bounds values : {verdict}\n# Avg bus bandwidth    : {mean}")
}

const CSV_COLUMNS: &str = "op,bytes,count,type,redop,root,ranks,mode,transport,algorithm,in_place,\
                           time_us,min_us,p99_us,algbw,busbw,mem_percent,wrong,iterations";

/// A row a line, with the names that the JSON has.
pub fn csv(rows: &[Row]) -> String {
    let mut text = format!("{CSV_COLUMNS}\n");
    for row in rows {
        let optional =
            |value: Option<usize>| value.map_or(String::new(), |value| value.to_string());
        let mem = if row.mem.is_nan() { String::new() } else { format!("{:.1}", row.mem) };
        text += &format!(
            "{},{},{},{},{},{},{},{},{},{},{},{:.4},{:.4},{:.4},{:.4},{:.4},{mem},{},{}\n",
            row.op,
            row.bytes,
            row.count,
            row.data_type,
            row.redop,
            optional(row.root),
            row.ranks,
            row.mode,
            row.course.transport,
            row.course.algorithm,
            row.in_place,
            row.time_us,
            row.min_us,
            row.p99_us,
            row.algbw,
            row.busbw,
            optional(row.wrong),
            row.iterations
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::machine::MemoryBandwidth;

    #[test]
    fn the_share_of_the_memory_is_least_traffic_over_time() {
        let bandwidth =
            MemoryBandwidth { add_all: 50.0, copy_all: 100.0, ..MemoryBandwidth::default() };
        let machine = Machine { bandwidth: Some(bandwidth), ..Machine::default() };
        let row = Row { op: "all_reduce".into(), bytes: 1_000_000, ranks: 2, ..Row::default() };
        // 4 MB at 50 GB/s are 80 us.
        let row = Row { time_us: 160.0, ..row };
        let share = memory_share(&row, &machine);
        assert!((share - 50.0).abs() < 1e-9, "{share}");
        let cached = Machine { cache_bytes: 4_000_000, ..machine };
        assert!(memory_share(&row, &cached).is_nan());
    }

    #[test]
    fn a_step_is_told_as_its_sum_and_its_buckets() {
        let bucket = |bytes, algorithm: &str, slices, predicted_us| {
            let (algorithm, transport) = (algorithm.to_string(), "threads/direct".to_string());
            let course = Course { algorithm, transport, slices, predicted_us, ..Course::default() };
            let course = Course { channels: 1, chunks: 2, slice_bytes: 8, ..course };
            Bucket { bytes, count: bytes / 4, course }
        };
        let row = Row {
            op: "all_reduce".into(),
            data_type: "int32".into(),
            time_us: 140.0,
            course: Course { predicted_us: 70.0, ..Course::default() },
            buckets: vec![
                bucket(16, "twoshot", 1, 10.0),
                bucket(8, "oneshot", 1, 20.0),
                bucket(64, "twoshot", 4, 40.0),
            ],
            ..Row::default()
        };
        let text = explanation(Some(&row), None);
        let wanted = "#   out of place: 3 all-reduces; predicted 70.00 us, measured 140.0 (2.00 \
            of it)\n\
            #     2 of 16 to 64 B: twoshot over threads/direct, channels 1, chunks 2, slices 1 to \
            4 of 8 B; predicted 50.00 us\n\
            #     1 of 8 B: oneshot over threads/direct, channels 1, chunks 2, slices 1 of 8 B; \
            predicted 20.00 us";
        assert_eq!(text, wanted);
    }

    #[test]
    fn a_run_without_rows_has_no_mean() {
        assert!(summary(&[]).ends_with(" not checked\n# Avg bus bandwidth    : -"));
        let row = Row { busbw: 1.5, ..Row::default() };
        assert!(summary(&[row]).ends_with(" : 1.5000"));
    }

    #[test]
    fn columns_line_up() {
        let row = Row { time_us: 12.345, wrong: Some(0), mem: f64::NAN, ..Row::default() };
        let full = line(Some(&row), Some(&row));
        assert_eq!(full.len(), line(Some(&row), None).len());
        let title = title(Operation::AllReduce, "2 ranks as threads");
        assert_eq!(title.lines().last().map(str::len), Some(full.len()));
    }
}
