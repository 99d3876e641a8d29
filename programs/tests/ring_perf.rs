//! ring-perf as its users run it: options, exit statuses, reports, and checks that can fail.

use std::path::Path;
use std::process::Command;

#[path = "support/perf.rs"]
mod perf;

use perf::{Folder, SMALL, expect, rows};

#[test]
fn bad_options_exit_with_2_and_a_suggestion() {
    for (arguments, wanted) in [
        ("--minbite 8", "'--minbytes'"),
        ("all_redcue", "did you mean all_reduce?"),
        ("-o summ", "did you mean sum?"),
        ("-d floot", "did you mean float?"),
        ("-b", "a value is required for '--minbytes <BYTES>'"),
        ("-b many", "is not a size"),
        ("-b 2M -e 1M", "nothing to run"),
        ("-Q", "unexpected argument '-Q'"),
        ("-g 1", "no CUDA driver"),
        ("--ranks_per_host 2", "all 2 ranks are on one host"),
        ("--tcp -t 4 --ranks_per_host 8", "all 4 ranks are on one host"),
        ("--tcp -t 1", "a rank alone has nobody to reach"),
        ("-g 1 --tcp", "threads of one process"),
        ("-t 2 -r 2", "there are 2 ranks"),
        ("--csv all_reduec -t 2", "did you mean all_reduce?"),
        ("-t 2 --deterministic --algo ring", "does not reduce in rank order"),
        ("-t 2 --deterministic --algo rung", "did you mean \"ring\"?"),
        ("-t 2 --algo rung", "did you mean \"ring\"?"),
        ("-t 2 --trace /nowhere/trace.txt", "/nowhere/trace.txt"),
        ("-t 2 --compare /nowhere/old.json", "/nowhere/old.json"),
        ("--simulate 8 --network gamma=1", "known: alpha"),
        ("--simulate 8 --network slot=2 -b 1K -e 1K", "\"slot=2\" needs a size from 64 on"),
        ("--simulate 8 --network alpha=2GB/s", "needs a positive number of us"),
        ("--network alpha=1", "give both"),
        ("--simulate 8 -t 2", "leave -t and --procs out"),
        ("--simulate 8 --trace x", "give operations and sizes"),
        ("broadcast --trace x", "leave the operations out"),
        ("-c some", "is not a number"),
        ("-d float -o band", "float has no band"),
        ("-t 2 -m 18446744073709551615", "a result buffer of its own: at most 65536"),
        ("-t 2 --rotate 65537", "a result buffer of its own: at most 65536"),
        ("-t 2 -f 1 -i 0", "never reaches another size"),
        ("-t 2 -G 4", "-g replays a graph"),
        ("--simulate 8 -n 5", "--iters has no effect with --simulate"),
        ("--trace x -b 8", "--minbytes has no effect with --trace"),
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
        "-N, --run_cycles",
        "-I, --per_iter_timing",
        "-K, --per_iter_skip",
        "-y, --stream_null",
        "-T, --timeout",
        "-G, --cudagraph",
        "-C, --report_cputime",
        "-S, --report_timestamps",
        "-J, --json",
        "-R, --local_register",
        "-x, --cta_policy",
        "-D, --device_implementation",
        "-V, --device_cta_count",
        "-M, --memory",
        "-u, --unalign",
        "output_file",
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

/// Whatever is asked for, the columns are of the same times.
#[test]
fn a_time_lies_between_the_least_and_the_99th_percentile() {
    for (size, iterations, warmup) in ["8", "4M"]
        .iter()
        .flat_map(|size| [1, 4, 20].map(|n| [(size, n, 0), (size, n, 5)]))
        .flatten()
    {
        let run = format!("-t 2 -b {size} -e {size} --probe 0 -n {iterations} -w {warmup}");
        let (table, _) = expect(0, &run);
        let row: Vec<f64> =
            rows(&table)[0].iter().map(|field| field.parse().unwrap_or(f64::NAN)).collect();
        for at in [5, 12] {
            let (time, least, p99) = (row[at], row[at + 1], row[at + 2]);
            assert!(least <= time && time <= p99, "{run}\n{table}");
        }
    }
}

#[test]
fn every_operation_is_right_between_threads_and_processes() {
    let mapped = ["--procs 2 --register", "--procs 3 --register"];
    let modes = ["-t 2", "-t 3", "--procs 2", "--procs 3", "--procs 2 -t 2"];
    for mode in modes.into_iter().chain(mapped) {
        let (table, _) = expect(0, &format!("all {mode} -b 1000 -e 40000 -f 40 -r all {SMALL}"));
        let names = ["all_reduce,", "all_to_all_v,", "barrier,", "send_recv,", "ping_pong,"];
        for operation in names.into_iter().chain(["scatter_v,"]) {
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

/// In place, too, a rank's input and what lies between its results are not the library's to write:
/// where no result belongs, and where there is none at all.
#[test]
fn what_is_written_beside_the_results_in_place_is_named() {
    let input = "the input was changed to";
    // Of 250 elements in blocks of 83 and 167 with a gap between them, which is element 83.
    let gap = "index 83: written, though no element belongs there";
    for (operation, fault, wanted) in [
        ("reduce", "1:2:40", input),
        ("gather", "1:2:40", input),
        ("gather_v", "1:2:40", input),
        ("gather_v", "0:2:332", gap),
        ("all_gather_v", "1:2:332", gap),
        ("reduce_scatter", "0:2:900", input),
        ("reduce_scatter_v", "0:2:900", input),
        ("all_to_all", "1:2:40", "got "),
        ("scatter", "0:2:900", input),
        ("scatter_v", "0:2:900", input),
    ] {
        let run = format!("{operation} -t 2 --placement in -b 1000 -e 1000 {SMALL}");
        let (table, error) = expect(1, &format!("{run} --inject-fault {fault}"));
        let (rank, _) = fault.split_once(':').unwrap();
        assert!(error.contains(&format!("in place: rank {rank}, ")), "{operation}: {error}");
        assert!(error.contains(wanted), "{operation}: {error}");
        assert!(table.contains("1 FAILED"), "{operation}: {table}");
    }
}

/// Several calls of an iteration are one group, whatever they are.
#[test]
fn groups_of_calls_are_right() {
    for mode in ["-t 3", "--procs 2"] {
        expect(0, &format!("all {mode} -m 3 -b 1000 -e 40000 -f 40 {SMALL}"));
    }
}

/// Without memory for it: that so many rows are wanted shows before they are listed.
#[test]
fn a_table_of_millions_of_rows_is_refused() {
    let program = env!("CARGO_BIN_EXE_ring-perf");
    for more in ["-t 2", "--procs 2", "--simulate 100000 -r all broadcast"] {
        let line = format!("ulimit -v 4000000; exec {program} {more} -b 8 -e 1G -i 4");
        let output = Command::new("sh").args(["-c", &line]).output().expect("a shell");
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{more}: {error}");
        assert!(error.contains("more than 100000 rows: give a larger -i"), "{more}: {error}");
    }
}

#[test]
fn a_profile_is_written_read_back_and_leads_to_the_same_choices() {
    let folder = Folder::new("profile");
    let path = folder.file("machine.profile");
    let (shown, _) = expect(0, &format!("--save-tuning {path}"));
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
        let first = choices(&format!("{mode} --tuning {path}"));
        assert_eq!(first.len(), 6, "{first:?}");
        assert_eq!(first, choices(&format!("{mode} --tuning {path}")), "{mode}");
    }

    // The choice follows the file: where messages are dear, fewer of them, where bytes are, those.
    let with = |dear: [&str; 2]| {
        let changed = text.lines().map(|line| match line.split(" = ").next() {
            Some(name) if dear.contains(&name) => format!("{name} = 1000\n"),
            _ => format!("{line}\n"),
        });
        let other = folder.file("other.profile");
        std::fs::write(&other, changed.collect::<String>()).unwrap();
        choices(&format!("--procs 4 --tuning {other}"))
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
        ("alpha_us = 1\n", "line 1: the tuning file ends without message_us"),
    ] {
        std::fs::write(&path, text).unwrap();
        for mode in ["-t 2", "--procs 2"] {
            let (_, error) = expect(2, &format!("{mode} --tuning {path} {SMALL}"));
            assert!(error.contains(&path) && error.contains(wanted), "{error}");
        }
    }
    expect(2, &format!("-t 2 --tuning /nowhere/machine.profile {SMALL}"));
    expect(2, &format!("--tuning {path} --save-tuning {path}"));
    expect(2, "--save-tuning /nowhere/machine.profile");
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
        let (table, _) = expect(0, &format!("{run} --tuning {profile} {SMALL} {more}"));
        table.lines().find(|line| line.contains(" over ")).unwrap().to_string()
    };
    let ordinary = explained("");
    assert!(ordinary.contains(" over shm/two-shot, "), "{ordinary}");
    let (_, other) = ordinary.split_once("; registered: ").expect(&ordinary);
    let (algorithm, _) = other.split_once(" over shm/direct, predicted ").expect(&ordinary);
    let registered = explained("--register");
    assert!(registered.contains(&format!(" {algorithm} over shm/direct, ")), "{registered}");
    assert!(!registered.contains("registered: "), "{registered}");
}

#[test]
fn an_option_that_is_refused_late_leaves_no_empty_report() {
    let folder = Folder::new("refused");
    let (json, csv) = (folder.file("new.json"), folder.file("new.csv"));
    expect(2, &format!("-t 2 --json {json} --csv {csv} --tuning /nowhere/profile"));
    assert!(!Path::new(&json).exists() && !Path::new(&csv).exists());
}

#[test]
fn a_simulation_prints_the_same_table_for_a_hundred_thousand_ranks() {
    let (table, _) = expect(0, "--simulate 100000 --explain -b 8 -e 1M -f 1024 --algo ring");
    assert_eq!(rows(&table).len(), 2, "{table}");
    assert!(table.contains("100000 ranks, simulated") && table.contains("ring over network"));
    for ranks in [1, 16] {
        let (table, _) = expect(0, &format!("all --simulate {ranks} -b 1K -e 1K"));
        assert_eq!(rows(&table).len(), 16, "{table}");
        assert!(!table.contains("NaN") && !table.contains("inf"), "{table}");
    }
    let (table, _) = expect(0, "all_to_all_v --simulate 100000 -b 1M -e 1M");
    assert_eq!(rows(&table).len(), 1, "{table}");
}

/// All operations, of some elements and of a megabyte: what the clock cannot run is marked.
#[test]
fn every_operation_is_simulated_for_as_many_ranks_as_there_may_be() {
    let folder = Folder::new("simulated");
    for (places, modelled) in [
        ("--simulate 100000", &[][..]),
        ("--simulate 10000 --ranks_per_host 8", &["reduce", "broadcast"]),
    ] {
        let json = folder.file("report.json");
        let run = format!("all {places} -b 8 -e 1M -f 131072 --json {json}");
        let (table, _) = expect(0, &run);
        // A table of each operation, none of them empty.
        let tables: Vec<&str> = table.split(" ranks, simulated\n").skip(1).collect();
        assert_eq!(tables.len(), 16, "{table}");
        assert!(tables.iter().all(|one| !rows(one).is_empty()), "{table}");
        let report = std::fs::read_to_string(&json).unwrap();
        let marked = |row: &&str| row.contains("\"mode\":\"modelled\"");
        let marked: Vec<&str> = report.lines().filter(marked).collect();
        for row in &marked {
            let known = modelled.iter().any(|op| row.contains(&format!("\"op\":\"{op}\"")));
            assert!(known, "{row}");
        }
        assert_eq!(marked.is_empty(), modelled.is_empty());
        assert_eq!(table.matches("by the cost model").count(), marked.len());
    }
}

/// A simulation asks what the library would: a sum of floats has the serial order where it is asked
/// for, and pays for it where hosts are many; host order costs nothing.
#[test]
fn a_simulation_runs_what_the_library_would() {
    let explained = |more: &str| {
        let (table, _) = expect(0, &format!("--simulate 1000 -b 1K -e 1K --explain {more}"));
        let time: f64 = rows(&table)[0][5].parse().unwrap();
        (table, time)
    };
    let (serial, slow) = explained("--deterministic");
    assert!(serial.contains(" oneshot over network, in rank order"), "{serial}");
    let (floats, fast) = explained("");
    assert!(floats.contains(" doubling over network, in host order"), "{floats}");
    let (integers, same) = explained("-d int32");
    assert!(integers.contains(" doubling over network, channels"), "{integers}");
    assert!(slow > 5.0 * fast && fast == same, "{slow} {fast} {same}");
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
