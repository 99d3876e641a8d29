//! ring-perf's reports: files, comparisons, and the steps of a trace.

use std::path::Path;

#[path = "support/perf.rs"]
mod perf;

use perf::{Folder, SMALL, expect, rows};

#[test]
fn reports_are_valid_and_compare_with_themselves() {
    let folder = Folder::new("reports");
    let (json, csv, plot) = (folder.file("a.json"), folder.file("a.csv"), folder.file("a.svg"));
    let run = format!("reduce -t 2 -b 1K -e 4K {SMALL}");
    expect(0, &format!("{run} --json {json} --csv {csv} --plot {plot}"));
    let text = std::fs::read_to_string(&json).unwrap();
    serde_json::from_str::<serde_json::Value>(&text).expect("JSON");
    for field in [
        "op",
        "bytes",
        "count",
        "type",
        "redop",
        "root",
        "ranks",
        "mode",
        "transport",
        "algorithm",
        "in_place",
        "time_us",
        "min_us",
        "p99_us",
        "algbw",
        "busbw",
        "wrong",
        "machine",
        "cpu",
        "version",
        "command",
    ] {
        assert!(text.contains(&format!("\"{field}\":")), "{field}");
    }
    let lines = std::fs::read_to_string(&csv).unwrap();
    assert_eq!(lines.lines().count(), 1 + 6, "a heading, three sizes in two placements");
    let columns: Vec<usize> = lines.lines().map(|line| line.split(',').count()).collect();
    assert!(columns.iter().all(|count| *count == columns[0]), "{lines}");
    assert!(std::fs::read_to_string(&plot).unwrap().starts_with("<svg"));

    // Ratios to this report's own times cannot pass a tolerance of a million.
    let (out, _) = expect(0, &format!("{run} --compare {json} --tolerance 1000000"));
    assert!(out.contains("6 rows in both"), "{out}");
    // Against a report of a millionth of the times every row is too slow.
    let fast = folder.file("fast.json");
    std::fs::write(&fast, shrink_times(&text)).unwrap();
    let (out, _) = expect(3, &format!("{run} --compare {fast} --tolerance 0.5"));
    assert!(out.contains("SLOWER") && out.contains("6 more than 50 % slower"), "{out}");
    // A report about something else compares with nothing, which must not pass for a success.
    expect(3, &format!("broadcast -t 2 -b 1K -e 1K {SMALL} --compare {json}"));
    let broken = folder.file("broken.json");
    std::fs::write(&broken, &text[..text.len() / 2]).unwrap();
    expect(2, &format!("{run} --compare {broken}"));
}

/// The report with every median time near zero.
fn shrink_times(report: &str) -> String {
    let key = "\"time_us\":";
    let mut text = String::new();
    for (index, piece) in report.split(key).enumerate() {
        if index == 0 {
            text.push_str(piece);
        } else {
            let end = piece.find(',').unwrap();
            text.push_str(&format!("{key}0.000001{}", &piece[end..]));
        }
    }
    text
}

#[test]
fn comma_separated_values_have_the_output_to_themselves() {
    let (out, _) = expect(0, &format!("-t 2 -b 8 -e 8 {SMALL} --csv"));
    assert!(out.starts_with("op,bytes,count,type"), "{out}");
    assert_eq!(out.lines().count(), 3, "{out}");
}

/// The comparison does not mix with the values, and the exit status is still its own.
#[test]
fn a_comparison_leaves_comma_separated_values_alone() {
    let folder = Folder::new("aside");
    let json = folder.file("old.json");
    let run = format!("-t 2 -b 8 -e 8 {SMALL}");
    expect(0, &format!("{run} --json {json}"));
    let compared = format!("{run} --csv --compare {json}");
    let (out, error) = expect(0, &format!("{compared} --tolerance 1000000"));
    assert_eq!(out.lines().count(), 3, "{out}");
    let columns: Vec<usize> = out.lines().map(|line| line.split(',').count()).collect();
    assert!(columns.iter().all(|count| *count == columns[0]), "{out}");
    assert!(error.contains("2 rows in both"), "{error}");
    std::fs::write(&json, shrink_times(&std::fs::read_to_string(&json).unwrap())).unwrap();
    expect(3, &compared);
}

/// Rows that a comparison puts beside each other although they are not of the same memory.
#[test]
fn a_comparison_says_what_moved_otherwise() {
    let folder = Folder::new("unlike");
    let json = folder.file("old.json");
    let run = format!("--procs 2 -b 1M -e 1M --placement out {SMALL}");
    expect(0, &format!("{run} --json {json}"));
    let compare =
        |more: &str| expect(0, &format!("{run} --tolerance 1000000 --compare {json} {more}")).0;
    let alike = compare("");
    assert!(alike.contains("1 rows in both") && !alike.contains("before: "), "{alike}");
    let registered = compare("--register");
    assert!(registered.contains("(registered, before: not registered"), "{registered}");
    let tcp = compare("--tcp");
    assert!(tcp.contains("(net/tcp, before: "), "{tcp}");
    assert!(tcp.contains("# 1 rows of other memory or another transport"), "{tcp}");
}

#[test]
fn the_traces_have_the_published_numbers_of_parameters() {
    for (file, parameters) in [("resnet50.txt", 25_557_032), ("gpt2-small.txt", 124_439_808)] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../benches/traces").join(file);
        let text = std::fs::read_to_string(&path).unwrap();
        let total: usize = text
            .lines()
            .filter(|line| !line.starts_with('#'))
            .map(|line| line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap())
            .sum();
        assert_eq!(total, parameters, "{file}");
    }
}

#[test]
fn a_trace_is_one_step_of_bucketed_all_reduces() {
    let trace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../benches/traces/resnet50.txt");
    let run = format!("-t 2 --trace {} --probe 0 -n 1 -w 0", trace.display());
    let (table, _) = expect(0, &run);
    assert!(table.contains("25557032 float in 5 buckets of 7.8 "), "{table}");
    let rows = rows(&table);
    assert_eq!((rows.len(), rows[0][0], rows[0][11]), (1, "102228128", "0"), "{table}");
}

/// The numbers of a field, in the order of the report.
fn numbers(report: &str, field: &str) -> Vec<f64> {
    let key = format!("\"{field}\":");
    let end = |rest: &str| rest.find([',', '}']).unwrap();
    report.split(&key).skip(1).map(|rest| rest[..end(rest)].parse().unwrap()).collect()
}

/// The prediction beside the time of a step is that of the step: of all its buckets, each as the
/// same all-reduce by itself is predicted.
#[test]
fn a_step_is_predicted_as_the_sum_of_its_buckets() {
    let folder = Folder::new("step");
    let [trace, profile, json] = ["model.txt", "machine.profile", "a.json"].map(|n| folder.file(n));
    let text = "alpha_us = 1\nmessage_us = 0.1\ncopy_us_per_byte = 1e-4\n\
                reduce_us_per_byte = 1e-4\nwire_alpha_us = 0\nwire_message_us = 0\n\
                wire_us_per_byte = 0\nswitch_us = 0\ncores = 2\n";
    std::fs::write(&profile, text).unwrap();
    std::fs::write(&trace, "small 2 float\nlarge 500000 float\nlast 1000 float\n").unwrap();
    for mode in ["-t 2", "--procs 2", "--procs 2 --register"] {
        let run = format!("{mode} --tuning {profile} --explain --json {json} {SMALL}");
        let reported = |more: &str| {
            let (table, _) = expect(0, &format!("{run} {more}"));
            (table, std::fs::read_to_string(&json).unwrap())
        };
        let buckets = "--first_bucket 8 --bucket 1M";
        let (table, step) = reported(&format!("--trace {trace} {buckets}"));
        let placements = step.lines().filter(|line| line.contains("\"buckets\":"));
        assert_eq!(placements.clone().count(), 2, "{step}");
        for placement in placements {
            let [whole, parts @ ..] = &numbers(placement, "predicted_us")[..] else { panic!() };
            assert_eq!(parts.len(), 3, "{placement}");
            assert!((whole - parts.iter().sum::<f64>()).abs() < 1e-6 * whole, "{placement}");
            assert_eq!(numbers(placement, "bytes"), [2_004_008.0, 8.0, 2e6, 4000.0]);
            let is_in = placement.contains("\"in_place\":true");
            let place = if is_in { "in" } else { "out" };
            for (bytes, predicted) in [8, 2_000_000, 4000].iter().zip(parts) {
                let (_, one) = reported(&format!("-b {bytes} -e {bytes} --placement {place}"));
                assert_eq!(numbers(&one, "predicted_us"), [*predicted], "{mode} {bytes}");
            }
        }
        assert_eq!(table.matches(": 3 all-reduces; predicted ").count(), 2, "{table}");
        let of_it = |line: &&str| line.starts_with("#     ") && line.contains(" B: ");
        let each = table.lines().filter(of_it).map(|line| line[6..].split(' ').next().unwrap());
        assert_eq!(each.map(|count| count.parse::<usize>().unwrap()).sum::<usize>(), 6, "{table}");
    }
}

/// A report has room for as many buckets as a model has gradients.
#[test]
fn every_gradient_may_be_a_bucket_of_its_own() {
    let folder = Folder::new("many");
    let (trace, json) = (folder.file("model.txt"), folder.file("a.json"));
    let gradients: String = (0..300).map(|layer| format!("layer{layer} 10 float\n")).collect();
    std::fs::write(&trace, gradients).unwrap();
    let buckets = "--first_bucket 1 --bucket 1 --placement out";
    expect(0, &format!("--procs 2 --trace {trace} {buckets} --json {json} {SMALL}"));
    let bytes = numbers(&std::fs::read_to_string(&json).unwrap(), "bytes");
    assert_eq!((bytes.len(), bytes[0], bytes[300]), (301, 12_000.0, 40.0));
}

#[test]
fn every_reduction_that_was_asked_for_is_one_of_a_step() {
    let folder = Folder::new("reductions");
    let trace = folder.file("model.txt");
    std::fs::write(&trace, "a 100 float\nb 100 int32\n").unwrap();
    let run = format!("-t 2 --trace {trace} {SMALL}");
    let (table, _) = expect(0, &format!("{run} -o sum,max"));
    let kinds: Vec<String> =
        rows(&table).iter().map(|row| format!("{} {}", row[2], row[3])).collect();
    let mut wanted = ["float sum", "float max", "int32 sum", "int32 max"].map(String::from);
    let mut found = kinds.clone();
    found.sort();
    wanted.sort();
    assert_eq!(found, wanted, "{table}");
    let (_, error) = expect(2, &format!("{run} -o band"));
    assert!(error.contains("float has no band"), "{error}");
    // Of all, those that there are.
    expect(0, &format!("{run} -o all"));
}
