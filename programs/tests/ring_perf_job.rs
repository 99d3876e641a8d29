//! ring-perf between hosts: as the rank of a launched job, and over loopback TCP by itself.

use std::process::{Command, Output};

const RING_PERF: &str = env!("CARGO_BIN_EXE_ring-perf");
/// Small enough for any test machine.
const SMALL: &str = "-b 8 -e 64K -f 64 --probe 0 --budget 1 -n 4 -w 1";

/// Variables that would make a rank of a process: this test may itself run under a launcher.
fn clean(command: &mut Command) -> &mut Command {
    for (name, _) in std::env::vars() {
        let launchers = ["RINGCOMM_", "OMPI_", "PMI_", "SLURM_", "HOROVOD_"];
        if launchers.iter().any(|prefix| name.starts_with(prefix)) {
            command.env_remove(name);
        }
    }
    command.env_remove("RANK").env_remove("WORLD_SIZE")
}

fn run(program: &str, arguments: &str) -> (Output, String) {
    let mut command = Command::new(program);
    let output = clean(command.args(arguments.split_whitespace())).output().expect("it starts");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    (output, text + &error)
}

/// The sizes of a table's rows, and whether none of them is wrong.
fn rows(text: &str) -> (Vec<String>, bool) {
    let lines = text.lines().map(|line| line.trim_start_matches("[0]<stdout>:"));
    let rows: Vec<Vec<&str>> = lines
        .map(|line| line.split_whitespace().collect::<Vec<_>>())
        .filter(|fields| fields.len() == 19 && fields[0].parse::<usize>().is_ok())
        .collect();
    let right = rows.iter().all(|row| row[11] == "0" && row[18] == "0");
    (rows.iter().map(|row| row[0].to_string()).collect(), right)
}

#[test]
fn the_ranks_of_a_job_measure_together_and_one_of_them_reports() {
    let ringrun = env!("CARGO_BIN_EXE_ringrun");
    for hosts in ["", "-H localhost:3"] {
        let line = format!("-np 3 {hosts} {RING_PERF} all_reduce {SMALL}");
        let (output, text) = run(ringrun, &line);
        assert_eq!(output.status.code(), Some(0), "{text}");
        assert_eq!(rows(&text), (["8", "512", "32768"].map(String::from).to_vec(), true), "{text}");
        assert!(text.contains("3 ranks of a launched job"), "{text}");
        assert!(!text.contains("[1]") && !text.contains("[2]"), "{text}");
    }
}

/// The wrong element is another rank's: its finding reaches rank 0 through the communicator.
#[test]
fn what_is_wrong_on_any_rank_of_a_job_is_reported() {
    let fault = "--inject-fault 1:3:4";
    let line = format!("-np 2 {RING_PERF} -b 1000 -e 1000 --probe 0 -n 4 -w 1 {fault}");
    let (output, text) = run(env!("CARGO_BIN_EXE_ringrun"), &line);
    assert_ne!(output.status.code(), Some(0), "{text}");
    assert!(text.contains("rank 1, iteration 2, index 1: got "), "{text}");
}

#[test]
fn a_root_that_the_job_does_not_have_is_refused() {
    let line = format!("-np 2 {RING_PERF} broadcast -r 2 {SMALL}");
    let (output, text) = run(env!("CARGO_BIN_EXE_ringrun"), &line);
    assert_ne!(output.status.code(), Some(0), "{text}");
    assert!(text.contains("-r 2: there are 2 ranks, from 0"), "{text}");
}

#[test]
fn ranks_that_are_hosts_of_their_own_measure_tcp() {
    let hosts = [
        ("--tcp", "a host for each rank", " over net/tcp, "),
        ("--procs 4 --ranks_per_host 2", "every 2", " over shm and net/tcp, "),
    ];
    for (mode, said, over) in hosts {
        let run = |operation| run(RING_PERF, &format!("{operation} {mode} {SMALL} --explain"));
        let (_, messages) = run("send_recv");
        assert!(messages.contains(&format!("direct{over}").replace(", ", "\n")), "{messages}");
        let (output, text) = run("all_reduce");
        assert_eq!(output.status.code(), Some(0), "{text}");
        assert!(rows(&text).1 && rows(&text).0.len() == 3, "{text}");
        assert!(text.contains("# transport: tcp over loopback, ") && text.contains(said), "{text}");
        assert!(text.contains("protection encrypted") && text.contains(over), "{text}");
    }
}

/// Between hosts sums are in host order, in which every type is right.
#[test]
fn every_float_is_summed_right_between_hosts() {
    let kinds = "-d half,bfloat16,float,double -o sum,prod,avg";
    for mode in ["--tcp --procs 3", "--procs 4 --ranks_per_host 2"] {
        let line = format!("all_reduce reduce_scatter reduce {mode} {kinds} {SMALL}");
        let (output, text) = run(RING_PERF, &line);
        assert_eq!(output.status.code(), Some(0), "{text}");
        assert!(rows(&text).1 && rows(&text).0.len() == 3 * 4 * 3 * 3, "{text}");
    }
}
