//! ring-perf as its users run it: options, exit statuses, reports, and checks that can fail.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A folder of this test's own, gone with it.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("ring-perf-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    fn file(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_string()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).unwrap();
    }
}

fn ring_perf(arguments: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_ring-perf"))
        .args(arguments.split_whitespace())
        .output()
        .expect("ring-perf starts")
}

/// Run, and expect a status; gives standard output and standard error.
fn expect(status: i32, arguments: &str) -> (String, String) {
    let output = ring_perf(arguments);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(status), "ring-perf {arguments}\n{out}\n{err}");
    (out, err)
}

/// The rows of a table: their first field is a size.
fn rows(table: &str) -> Vec<Vec<&str>> {
    table
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>())
        .filter(|fields| fields.len() == 19 && fields[0].parse::<usize>().is_ok())
        .collect()
}

/// Small enough for any test machine.
const SMALL: &str = "--probe 0 --budget 1 -n 4 -w 1";

#[test]
fn bad_options_exit_with_2_and_a_suggestion() {
    for (arguments, wanted) in [
        ("--minbite 8", "did you mean --minbytes?"),
        ("all_redcue", "did you mean all_reduce?"),
        ("-o summ", "did you mean sum?"),
        ("-d floot", "did you mean float?"),
        ("-b", "-b needs BYTES"),
        ("-b many", "is not a size"),
        ("-b 2M -e 1M", "nothing to run"),
        ("-Q", "there is no option -Q"),
        ("-g 1", "no CUDA driver"),
        ("-g 1 --tcp", "threads of one process"),
        ("-t 2 -r 2", "there are 2 ranks"),
        ("-t 2 --algo rung", "did you mean \"ring\"?"),
        ("-t 2 --trace /nowhere/trace.txt", "/nowhere/trace.txt"),
        ("-t 2 --compare /nowhere/old.json", "/nowhere/old.json"),
        ("--simulate 8 --network gamma=1", "known: alpha"),
        ("--network alpha=1", "give both"),
        ("--simulate 8 -t 2", "leave -t and --procs out"),
        ("--simulate 8 --trace x", "give operations and sizes"),
        ("broadcast --trace x", "leave the operations out"),
        ("-c some", "is not a number"),
        ("-d float -o band", "float has no band"),
        ("-t 2 --json /nowhere/new.json", "--json /nowhere/new.json: No such file"),
        ("-t 2 --csv /nowhere/new.csv", "--csv /nowhere/new.csv: No such file"),
        ("-t 2 --plot /nowhere/new.svg", "--plot /nowhere/new.svg: No such file"),
    ] {
        let (_, error) = expect(2, arguments);
        assert!(error.contains(wanted), "{arguments}: {error}");
    }
}

#[test]
fn help_names_every_option_of_nccl_tests() {
    let (help, _) = expect(0, "--help");
    for name in [
        "-b, --minbytes",
        "-e, --maxbytes",
        "-i, --stepbytes",
        "-f, --stepfactor",
        "-n, --iters",
        "-w, --warmup_iters",
        "-m, --agg_iters",
        "-t, --nthreads",
        "-g, --ngpus",
        "-d, --datatype",
        "-o, --op",
        "-r, --root",
        "-c, --check",
        "-p, --parallel_init",
        "-z, --blocking",
        "-a, --average",
        "all_to_all_v",
    ] {
        assert!(help.contains(name), "{name}");
    }
    assert!(!help.contains("inject"), "hidden options stay hidden");
}

#[test]
fn threads_and_processes_give_a_table_without_wrong_results() {
    for mode in ["-t 2", "--procs 2", "-t 3", "-t 2 -p 1"] {
        let (table, _) = expect(0, &format!("{mode} -b 8 -e 64K -f 64 {SMALL}"));
        let rows = rows(&table);
        let sizes: Vec<&str> = rows.iter().map(|row| row[0]).collect();
        assert_eq!(sizes, ["8", "512", "32768"], "{mode}:\n{table}");
        assert!(rows.iter().all(|row| row[11] == "0" && row[18] == "0"), "{table}");
        assert!(table.contains("Out of bounds values : 0 OK"), "{table}");
    }
}

#[test]
fn every_operation_is_right_between_threads_and_processes() {
    for mode in ["-t 2", "-t 3", "--procs 2", "--procs 3"] {
        let (table, _) = expect(0, &format!("all {mode} -b 1000 -e 40000 -f 40 -r all {SMALL}"));
        for operation in ["all_reduce,", "all_to_all_v,", "barrier,", "send_recv,", "scatter_v,"] {
            assert!(table.contains(&format!("# {operation}")), "{mode}: {operation}");
        }
    }
}

#[test]
fn every_type_and_reduction_is_right() {
    let (table, _) = expect(0, &format!("-t 2 -d all -o all -b 3000 -e 3000 {SMALL}"));
    // 8 integer types of 9 reductions, bool of 7, 6 floats of 6.
    assert_eq!(rows(&table).len(), 8 * 9 + 7 + 6 * 6, "{table}");
    expect(0, &format!("reduce_scatter -t 3 -d all -o all -b 3000 -e 3000 {SMALL}"));
    expect(0, &format!("-t 3 --deterministic -b 8 -e 1M -f 32 {SMALL}"));
}

/// The checker is proven able to fail, on the last element, a guard band, and in one rank only.
#[test]
fn a_wrong_result_exits_with_1_and_is_named() {
    let (table, error) = expect(1, &format!("-t 2 -b 1000 -e 1000 {SMALL} --inject-fault 1:3:996"));
    assert!(error.contains("rank 1, iteration 2, index 249: got "), "{error}");
    assert!(error.contains("want ") && error.contains("all_reduce 1000 B"), "{error}");
    assert_eq!(rows(&table)[0][11], "1");
    assert!(table.contains("1 FAILED"), "{table}");

    let guard = format!("broadcast --procs 2 -b 1000 -e 1000 {SMALL} --inject-fault 0:2:1000");
    let (_, error) = expect(1, &guard);
    assert!(error.contains("rank 0, iteration 1: byte 1000 was written outside"), "{error}");

    // The result of a rank that gets none must stay as it was.
    let (_, error) =
        expect(1, &format!("reduce -t 2 -b 1000 -e 1000 {SMALL} --inject-fault 1:2:40"));
    assert!(error.contains("no element belongs there"), "{error}");

    // In place comes second: calls 0 to 4 are out of place.
    let (table, error) = expect(1, &format!("-t 2 -b 1000 -e 1000 {SMALL} --inject-fault 0:7:0"));
    assert!(error.contains("in place: rank 0"), "{error}");
    assert_eq!(rows(&table)[0][18], "1");

    // Unchecked, nobody notices.
    expect(0, &format!("-t 2 -b 1000 -e 1000 {SMALL} -c 0 --inject-fault 1:3:996"));
}

#[test]
fn the_naive_endpoint_passes_the_same_checks() {
    expect(0, &format!("all --endpoint-naive -t 3 -b 1000 -e 3000 -f 3 -r all {SMALL}"));
}

/// `python3 -c` would do, but a validator in twenty lines needs nothing installed.
fn skip_json(text: &str) -> Result<&str, String> {
    let text = text.trim_start();
    let (open, close) = match text.chars().next() {
        Some('{') => ('{', '}'),
        Some('[') => ('[', ']'),
        Some('"') => {
            let mut escaped = false;
            for (at, letter) in text.char_indices().skip(1) {
                match letter {
                    '"' if !escaped => return Ok(&text[at + 1..]),
                    _ => escaped = letter == '\\' && !escaped,
                }
            }
            return Err("open text".into());
        }
        _ => {
            let end = text.find([',', '}', ']', '\n']).unwrap_or(text.len());
            let word = text[..end].trim_end();
            let known = matches!(word, "null" | "true" | "false") || word.parse::<f64>().is_ok();
            return if known { Ok(&text[end..]) } else { Err(format!("bad word {word:?}")) };
        }
    };
    let mut rest = text[1..].trim_start();
    while !rest.starts_with(close) {
        if open == '{' {
            rest = skip_json(rest)?.trim_start().strip_prefix(':').ok_or("no colon")?;
        }
        rest = skip_json(rest)?.trim_start();
        match rest.strip_prefix(',') {
            Some(more) => rest = more.trim_start(),
            None if rest.starts_with(close) => {}
            None => return Err(format!("no comma at {:?}", rest.get(..20))),
        }
    }
    Ok(&rest[1..])
}

#[test]
fn reports_are_valid_and_compare_with_themselves() {
    let folder = Folder::new("reports");
    let (json, csv, plot) = (folder.file("a.json"), folder.file("a.csv"), folder.file("a.svg"));
    let run = format!("reduce -t 2 -b 1K -e 4K {SMALL}");
    expect(0, &format!("{run} --json {json} --csv {csv} --plot {plot}"));
    let text = std::fs::read_to_string(&json).unwrap();
    assert_eq!(skip_json(&text).unwrap().trim(), "");
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
        assert!(text.contains(&format!("\"{field}\": ")), "{field}");
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
    let key = "\"time_us\": ";
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
fn a_profile_is_written_read_back_and_leads_to_the_same_choices() {
    let folder = Folder::new("profile");
    let path = folder.file("machine.profile");
    let (shown, _) = expect(0, &format!("--save-profile {path}"));
    let text = std::fs::read_to_string(&path).unwrap();
    assert_eq!(shown, text, "what is written is shown");
    // What the rows say of how each call runs, without its times.
    let choices = |arguments: &str| -> Vec<String> {
        let (table, _) = expect(0, &format!("--explain -b 256 -e 16K -f 8 {SMALL} {arguments}"));
        let lines = table.lines().filter(|line| line.contains(" over "));
        lines.map(|line| line.split(';').next().unwrap().to_string()).collect()
    };
    for mode in ["--procs 2", "--procs 3", "-t 3"] {
        // A rank that chose otherwise would end the run: calls that differ are refused.
        let first = choices(&format!("{mode} --profile {path}"));
        assert_eq!(first.len(), 6, "{first:?}");
        assert_eq!(first, choices(&format!("{mode} --profile {path}")), "{mode}");
    }

    // The choice follows the file: where messages are dear, fewer of them, where bytes are, those.
    let with = |dear: [&str; 2]| {
        let changed = text.lines().map(|line| match line.split(" = ").next() {
            Some(name) if dear.contains(&name) => format!("{name} = 1000\n"),
            _ => format!("{line}\n"),
        });
        let other = folder.file("other.profile");
        std::fs::write(&other, changed.collect::<String>()).unwrap();
        choices(&format!("--procs 4 --profile {other}"))
    };
    let (messages, bytes) =
        (["alpha_us", "message_us"], ["copy_us_per_byte", "reduce_us_per_byte"]);
    assert_ne!(with(messages), with(bytes));
}

#[test]
fn a_damaged_profile_is_refused_with_its_line_and_reason() {
    let folder = Folder::new("damaged");
    let path = folder.file("machine.profile");
    for (text, wanted) in [
        ("alpha_us = 1\nmessage_us = soon\n", "line 2: message_us = \"soon\" is not a number"),
        ("# a comment\nalpha = 1\n", "line 2: unknown key \"alpha\""),
        ("alpha_us = 1\n", "line 1: the profile ends without message_us"),
    ] {
        std::fs::write(&path, text).unwrap();
        for mode in ["-t 2", "--procs 2"] {
            let (_, error) = expect(2, &format!("{mode} --profile {path} {SMALL}"));
            assert!(error.contains(&path) && error.contains(wanted), "{error}");
        }
    }
    expect(2, &format!("-t 2 --profile /nowhere/machine.profile {SMALL}"));
    expect(2, &format!("--profile {path} --save-profile {path}"));
    expect(2, "--save-profile /nowhere/machine.profile");
}

/// Between processes what runs depends on the memory: the explanation tells what has run, and what
/// would have.
#[test]
fn an_explanation_names_what_runs_in_registered_memory_too() {
    // Where a message costs nothing, an 8 MiB sum is read where it lies if it can be.
    let folder = Folder::new("explain");
    let profile = folder.file("machine.profile");
    let text = "alpha_us = 0\nmessage_us = 0\ncopy_us_per_byte = 1e-4\nreduce_us_per_byte = 1e-4\n\
                wire_alpha_us = 0\nwire_message_us = 0\nwire_us_per_byte = 0\nswitch_us = 0\n\
                cores = 2\n";
    std::fs::write(&profile, text).unwrap();
    let explained = |more: &str| {
        let run = "--procs 2 --explain -b 8M -e 8M --placement out";
        let (table, _) = expect(0, &format!("{run} --profile {profile} {SMALL} {more}"));
        table.lines().find(|line| line.contains(" over ")).unwrap().to_string()
    };
    let ordinary = explained("");
    assert!(ordinary.contains(" over process staged, "), "{ordinary}");
    let (_, other) = ordinary.split_once("; registered: ").expect(&ordinary);
    let (algorithm, _) = other.split_once(" over process mapped, predicted ").expect(&ordinary);
    let registered = explained("--register");
    assert!(registered.contains(&format!(" {algorithm} over process mapped, ")), "{registered}");
    assert!(!registered.contains("registered: "), "{registered}");
}

#[test]
fn comma_separated_values_have_the_output_to_themselves() {
    let (out, _) = expect(0, &format!("-t 2 -b 8 -e 8 {SMALL} --csv"));
    assert!(out.starts_with("op,bytes,count,type"), "{out}");
    assert_eq!(out.lines().count(), 3, "{out}");
}

#[test]
fn the_traces_have_the_published_numbers_of_parameters() {
    for (file, parameters) in [("resnet50.txt", 25_557_032), ("gpt2-small.txt", 124_439_808)] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/traces").join(file);
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
fn an_option_that_is_refused_late_leaves_no_empty_report() {
    let folder = Folder::new("refused");
    let (json, csv) = (folder.file("new.json"), folder.file("new.csv"));
    expect(2, &format!("-t 2 --json {json} --csv {csv} --profile /nowhere/profile"));
    assert!(!Path::new(&json).exists() && !Path::new(&csv).exists());
}

#[test]
fn a_trace_is_one_step_of_bucketed_all_reduces() {
    let trace = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/traces/resnet50.txt");
    let run = format!("-t 2 --trace {} --probe 0 -n 1 -w 0", trace.display());
    let (table, _) = expect(0, &run);
    assert!(table.contains("25557032 float in 5 buckets of 7.8 "), "{table}");
    let rows = rows(&table);
    assert_eq!((rows.len(), rows[0][0], rows[0][11]), (1, "102228128", "0"), "{table}");
}

#[test]
fn a_simulation_prints_the_same_table_for_a_hundred_thousand_ranks() {
    let (table, _) = expect(0, "--simulate 100000 --explain -b 8 -e 1M -f 1024 --algo ring");
    assert_eq!(rows(&table).len(), 2, "{table}");
    assert!(table.contains("100000 ranks, simulated") && table.contains("ring over network"));
    let (table, _) = expect(0, "all --simulate 16 -b 1K -e 1K");
    assert_eq!(rows(&table).len(), 15, "{table}");
    let (table, _) = expect(0, "all_to_all_v --simulate 100000 -b 1M -e 1M");
    assert_eq!(rows(&table).len(), 1, "{table}");
}

/// All operations, from one element to megabytes: what the clock cannot run is marked.
#[test]
fn every_operation_is_simulated_for_as_many_ranks_as_there_may_be() {
    let folder = Folder::new("simulated");
    for (places, modelled) in [
        ("--simulate 100000", &["reduce"][..]),
        ("--simulate 10000 --ranks_per_host 8", &["reduce", "broadcast"]),
    ] {
        let json = folder.file("report.json");
        let run = format!("all {places} -b 8 -e 8M -f 1048576 --json {json}");
        let (table, _) = expect(0, &run);
        // A table of each operation, none of them empty.
        let tables: Vec<&str> = table.split(" ranks, simulated\n").skip(1).collect();
        assert_eq!(tables.len(), 15, "{table}");
        assert!(tables.iter().all(|one| !rows(one).is_empty()), "{table}");
        let report = std::fs::read_to_string(&json).unwrap();
        let marked = |row: &&str| row.contains("\"mode\": \"modelled\"");
        let marked: Vec<&str> = report.lines().filter(marked).collect();
        for row in &marked {
            let known = modelled.iter().any(|op| row.contains(&format!("\"op\": \"{op}\"")));
            assert!(known, "{row}");
        }
        assert!(!marked.is_empty());
        assert_eq!(table.matches("by the cost model").count(), marked.len());
    }
}

/// A simulation asks what the library would: a sum of floats has the serial order between hosts,
/// and pays for it where they are many.
#[test]
fn a_simulation_runs_what_the_library_would() {
    let explained = |more: &str| {
        let (table, _) = expect(0, &format!("--simulate 1000 -b 1K -e 1K --explain {more}"));
        let time: f64 = rows(&table)[0][5].parse().unwrap();
        (table, time)
    };
    let (floats, slow) = explained("");
    assert!(floats.contains(" oneshot over network, in rank order"), "{floats}");
    let (integers, fast) = explained("-d int32");
    assert!(integers.contains(" doubling over network, channels"), "{integers}");
    assert!(slow > 5.0 * fast, "{slow} {fast}");
}

/// `kill -9` of a rank process in the middle: an end with its name, and soon.
#[test]
fn a_killed_rank_is_reported() {
    let mut job = Command::new(env!("CARGO_BIN_EXE_ring-perf"))
        .args("--procs 2 -b 8 -e 8 --probe 0 -n 100000000".split_whitespace())
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let children = format!("/proc/{0}/task/{0}/children", job.id());
    let victim = loop {
        let list = std::fs::read_to_string(&children).unwrap();
        let pids: Vec<i32> = list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect();
        if pids.len() == 2 {
            break pids[1];
        }
        assert!(job.try_wait().unwrap().is_none(), "ended by itself");
        std::thread::yield_now();
    };
    // Whether it dies at start-up or in a call, the report must come.
    assert_eq!(unsafe_kill(victim), 0);
    let output = job.wait_with_output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(error.contains(&format!("(pid {victim}) was killed by signal 9")), "{error}");
}

#[allow(unsafe_code)]
fn unsafe_kill(pid: i32) -> i32 {
    // SAFETY: a signal to a process that this test's own child started.
    unsafe { libc::kill(pid, libc::SIGKILL) }
}
