//! ring-perf on devices, as its users run it.

use super::gate::scratch;
use super::here::{has_devices, has_reach, is_on_fake};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The program, where it was built with the tests: not where these are run alone.
fn ring_perf(arguments: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ring-perf"));
    command.args(arguments.split_whitespace());
    command
}

/// What it reports; every row is right.
fn report(arguments: &str) -> String {
    reported(arguments).0
}

/// What it reports, and what it says.
fn reported(arguments: &str) -> (String, String) {
    let folder = scratch(&format!("perf-{}", arguments.len()));
    let path = folder.join("report.json");
    let output = ring_perf(arguments).arg("--json").arg(&path).output().expect("it starts");
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "ring-perf {arguments}\n{said}");
    let text = std::fs::read_to_string(&path).expect("a report");
    std::fs::remove_dir_all(&folder).expect("it was made above");
    let (rows, right) = (text.matches("\"hot_us\"").count(), text.matches("\"wrong\":0").count());
    assert!(rows > 0 && rows == right, "{rows} rows, {right} of them right: {text}");
    (text, said.into())
}

const PERF: &str = env!("CARGO_BIN_EXE_ring-perf");

/// Small enough for any test machine.
const SMALL: &str = "-d float -b 8 -e 64K -f 8192 -n 3 -w 1";

#[test]
fn a_benchmark_of_a_rank_on_each_of_two_devices() {
    if !is_on_fake() || !has_devices(2) {
        return;
    }
    let reaches = std::env::var("FAKECUDA_PEERS").map_or(true, |peers| peers == "1");
    for algorithm in ["", "--algo ring", "--algo twoshot"] {
        let text = report(&format!("all_reduce all_gather -g 2 {SMALL} {algorithm}"));
        let of = |what: &str| text.matches(what).count();
        assert!(of("\"devices\":2") == 1 && of("several GPUs") == 5, "{text}");
        let wanted = if reaches { "\"gpu/p2p\"" } else { "\"gpu/staged (no peer access)\"" };
        assert_eq!(of(wanted), 4, "{text}");
        // Of a graph of all streams, and of what crosses from device to device.
        let missing = |what: &str| of(&format!("\"{what}\":null"));
        let lacks = ["graph_us", "bound_percent", "copy_link_gbps"].map(missing);
        assert_eq!(lacks, if reaches { [0; 3] } else { [4, 4, 1] }, "{text}");
        assert_eq!(of("\"graph_error\":\"invalid argument: the stream is"), lacks[0], "{text}");
        if let (Some(name), true) = (algorithm.strip_prefix("--algo "), reaches) {
            assert_eq!(of(&format!("\"algorithm\":\"{name}\"")), 4, "{text}");
        }
    }
    let text = report(&format!("all_reduce -g 2 -t 2 {SMALL}"));
    assert_eq!(text.matches("\"ranks\":4").count(), 3, "{text}");
    assert_eq!(text.matches("\"graph_us\":null").count(), if reaches { 0 } else { 2 }, "{text}");
    assert_eq!(text.contains("\"gpu/fused\""), reaches, "{text}");
}

/// Processes with a device each have times of graphs, of which each replays its own.
#[test]
fn a_benchmark_of_processes_with_a_device_each_replays_graphs() {
    if !is_on_fake() || !has_devices(2) || !has_reach(2) {
        return;
    }
    let folder = scratch("perf-apart");
    for (algorithm, transport) in [("", "gpu/fused by ipc"), (" --algo ring", "gpu/p2p by ipc")] {
        let path = folder.join("report.json");
        let arguments = format!("-n 2 {PERF} all_reduce all_gather -g 2 {SMALL}{algorithm}");
        let mut command = Command::new(env!("CARGO_BIN_EXE_ringrun"));
        command.args(arguments.split_whitespace()).arg("--json").arg(&path);
        let output = command.output().expect("it starts");
        let said =
            String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments}\n{said}");
        let text = std::fs::read_to_string(&path).expect("a report");
        let of = |what: &str| text.matches(what).count();
        let rows = of("\"hot_us\"");
        let each = ["\"wrong\":0", "\"graph_error\":null", &format!("\"{transport}\"")];
        assert_eq!((each.map(of), of("\"graph_us\":null")), ([rows; 3], 0), "{text}");
        assert!(rows > 3 && of("several GPUs") == rows + 1, "{text}");
    }
    std::fs::remove_dir_all(&folder).expect("it was made above");
}

/// Ranks of two hosts that are given one device each are on one GPU only where it is the same,
/// which its UUID tells.
#[test]
fn a_benchmark_of_two_hosts_is_of_one_gpu_only_where_they_share_it() {
    if !is_on_fake() {
        return;
    }
    const ONE: &str = "one GPU, HBM-bound";
    for (first, scope, other) in [("${RANK}0", "several GPUs", ONE), ("0", ONE, "several GPUs")] {
        let folder = scratch("perf-hosts");
        let path = folder.join("report.json");
        let script = format!("RINGCOMM_HOSTID=$RANK FAKECUDA_FIRST={first} exec \"$0\" \"$@\"");
        let arguments = format!("all_reduce -g 1 {SMALL}");
        let mut command = Command::new(env!("CARGO_BIN_EXE_ringrun"));
        command.args(["-n", "2", "sh", "-c", &script, PERF]).args(arguments.split_whitespace());
        let output = command.arg("--json").arg(&path).output().expect("it starts");
        let said =
            String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
        let text = std::fs::read_to_string(&path).expect("a report");
        std::fs::remove_dir_all(&folder).expect("it was made above");
        let of = |what: &str| text.matches(what).count();
        let rows = of("\"hot_us\"");
        let each = ["\"wrong\":0", "\"gpu/staged, then net\""];
        assert_eq!((each.map(of), of(scope)), ([rows; 2], rows + 1), "{text}");
        let unbound = if scope == ONE { 0 } else { rows };
        assert_eq!(of("\"bound_percent\":null"), unbound, "{text}");
        assert!(rows > 0 && of("\"hosts\":2") == 1, "{text}");
        assert!(!(text.clone() + &said).contains(other), "{said}");
    }
}

/// No figure of one device is to be taken for one of several, or of a network.
#[test]
fn every_figure_of_one_gpu_says_what_it_is() {
    if !is_on_fake() {
        return;
    }
    let count = |text: &str, what: &str| text.matches(what).count();
    const ONE: &str = "one GPU, HBM-bound";
    for arguments in ["-g 1", "-g 1 -t 2", "-g 1 -t 2 --algo ring"] {
        let all = format!("all_reduce all_gather {arguments} {SMALL}");
        let (text, said) = reported(&all);
        let rows = count(&text, "\"hot_us\"");
        assert!(rows >= 4, "{rows} rows: {text}");
        // Of each row, and of all.
        let says_so = format!("\"scope\":\"{ONE}\"");
        assert_eq!(
            (count(&text, &says_so), count(&text, "\"scope\"")),
            (rows + 1, rows + 1),
            "{text}"
        );
        // So does the table.
        assert_eq!(count(&said, ONE), rows + 1, "{said}");
        assert!(!(text + &said).contains("several GPUs"), "{said}");
    }
}

/// Of results too large for the processor windows are compared, which a ring may have added up in
/// another order.
#[test]
fn a_benchmark_of_large_calls_compares_windows() {
    if !is_on_fake() {
        return;
    }
    let large = "-g 1 -t 3 -b 17M -e 17M -n 1 -w 0 -d bfloat16";
    let text = report(&format!("all_reduce {large} --algo ring"));
    assert!(text.contains("\"algorithm\":\"ring\""), "{text}");
}

/// A rank that fails before the others wait for it ends all of them.
#[test]
fn a_benchmark_ends_when_a_rank_fails() {
    if !is_on_fake() || !has_devices(2) {
        return;
    }
    // The first after those of the measurement of copies.
    let failing = |nth: usize| {
        let mut command = ring_perf(&format!("all_reduce -g 2 -c 0 {SMALL}"));
        command.env("FAKECUDA_FAIL", format!("cuStreamSynchronize:{nth}:999"));
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        command.spawn().expect("it starts")
    };
    let mut ended = Vec::new();
    for nth in 1..=12 {
        ended.push(end(failing(nth)));
    }
    assert!(ended.contains(&Some(1)) || ended.contains(&Some(2)), "{ended:?}");
}

/// Its status, with which it has to end by itself.
fn end(mut child: Child) -> Option<i32> {
    let started = Instant::now();
    loop {
        if let Some(status) = child.try_wait().expect("a child") {
            return status.code();
        }
        if started.elapsed() > Duration::from_secs(60) {
            child.kill().and_then(|()| child.wait()).expect("a child");
            panic!("ring-perf waits for a rank that has failed");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}
