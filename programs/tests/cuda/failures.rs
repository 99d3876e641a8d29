//! Every entry point of the driver failing, at every one of its calls: an error, and never a hang.

use super::fake::{calls, fail};
use super::gate::{self, child, is_child};
use super::here::{is_apart, is_on_fake};
use super::streams::{Floats, sum};
use super::support::config;
use super::{Bench, spread};
use super::{closing, codes};
use ringcomm::communicator::{Call, Communicator, enqueue};
use ringcomm::config::{Config, DeviceChoice};
use ringcomm::device::cuda::{Device, Driver};
use ringcomm::plan::Collective;
use ringcomm::types::DataType;
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// Entry points, with how often each was called.
type Counts = Vec<(&'static str, u64)>;

/// What is done while something fails: a communicator is made, and every rank makes two calls.
/// Returns how often every entry point was called before all of it is taken apart, and whether a
/// probe of the devices is said to have failed.
fn scenario(seats: &[DeviceChoice]) -> Result<(Counts, bool), String> {
    let config = Config { timeout_ms: 20_000, ..config() };
    let ranks = Communicator::init_all_on(seats, &config).map_err(|error| error.to_string())?;
    let ends: Vec<Result<_, String>> = std::thread::scope(|scope| {
        let rank = |comm| scope.spawn(move || rank(comm));
        let threads: Vec<_> = ranks.iter().map(rank).collect();
        threads.into_iter().map(|thread| thread.join().expect("panics are caught")).collect()
    });
    let counted = counts();
    ends.into_iter().collect::<Result<Vec<_>, _>>()?;
    Ok((counted, is_probe_told(&ranks[0])?))
}

fn counts() -> Counts {
    Driver::SYMBOLS.iter().map(|symbol| (*symbol, calls(symbol))).collect()
}

fn is_probe_told(comm: &Communicator) -> Result<bool, String> {
    let call = Call::new(Collective::AllReduce, DataType::Float32);
    let answer = comm.explain(&call).map_err(|error| error.to_string())?;
    Ok(answer.transport.ends_with("failed)"))
}

/// As [`scenario`], with kernels of one cooperative launch: two ranks make a call in a group, and
/// another that is captured and replayed.
fn graph() -> Result<(Counts, bool), String> {
    let algorithm = Some("twoshot".into());
    let config = Config { timeout_ms: 20_000, algorithm, ..config() };
    let ranks = Communicator::init_all_on(&[DeviceChoice::Device(0); 2], &config);
    let ranks: Vec<_> =
        ranks.map_err(|error| error.to_string())?.into_iter().map(Arc::new).collect();
    let bench = Bench::new(0);
    let floats = [1.0, 2.0].map(|value| Floats::new(&bench, &[value; 100]));
    let call_all = || {
        enqueue::start();
        for (rank, floats) in ranks.iter().zip(&floats) {
            // SAFETY: the memory lives until the stream is synchronized, and longer than the graph.
            unsafe { enqueue::collective(rank, &sum(floats, &bench), None) }?;
        }
        enqueue::end()
    };
    let run = || {
        call_all()?;
        let replay = bench.stream.capture(call_all)?;
        replay.launch(&bench.stream)?;
        bench.stream.synchronize()
    };
    run().map_err(|error| error.to_string())?;
    Ok((counts(), is_probe_told(&ranks[0])?))
}

/// A rank's two calls. What the test itself asks of the driver panics, and then the others must not
/// wait for this rank.
fn rank(comm: &Communicator) -> Result<(Bench, Floats), String> {
    let run = AssertUnwindSafe(|| {
        let bench = Bench::new(comm.device().unwrap_or(0));
        let floats = Floats::new(&bench, &[1.0; 100]);
        for _ in 0..2 {
            // SAFETY: the memory lives until the stream is synchronized below.
            unsafe { comm.call(&sum(&floats, &bench)) }.map_err(|error| error.to_string())?;
        }
        bench.stream.synchronize().map_err(|error| error.to_string())?;
        Ok((bench, floats))
    });
    catch_unwind(run).unwrap_or_else(|_| {
        comm.abort();
        Err("the test's own use of the driver failed".into())
    })
}

/// Codes that stand for all: a plain error, one that breaks the context, one that no driver has
/// yet.
const CODES: [i32; 3] = [1, 700, 9999];

/// Entry points that clean up: where they fail there is nothing more to be done, and nobody to
/// tell.
const SILENT: [&str; 9] = [
    "cuCtxPopCurrent_v2",
    "cuDevicePrimaryCtxRelease_v2",
    "cuEventDestroy_v2",
    "cuGraphDestroy",
    "cuGraphExecDestroy",
    "cuMemFreeHost",
    "cuMemFree_v2",
    "cuStreamDestroy_v2",
    // What it would have allowed is tried all the same.
    "cuThreadExchangeStreamCaptureMode",
];

/// Everything that a scene asks of the driver fails once, at some of its calls; `these` among it.
fn every_failure(these: &[&str], scene: &dyn Fn() -> Result<(Counts, bool), String>) {
    fail("", 0, 0);
    let (mut counted, _) = scene().unwrap();
    // What cleans up is called most when all is taken apart.
    let ends = counted.iter_mut().filter(|(symbol, _)| SILENT.contains(symbol));
    ends.for_each(|(symbol, count)| *count = calls(symbol));
    counted.retain(|(_, calls)| *calls > 0);
    let symbols: Vec<&str> = counted.iter().map(|(symbol, _)| *symbol).collect();
    let missing: Vec<_> = these.iter().filter(|symbol| !symbols.contains(symbol)).collect();
    assert!(missing.is_empty(), "nobody asks for {missing:?}");
    let (mut failed, mut tried) = (0, 0);
    for (symbol, count) in counted {
        // The first, one in the middle and the last: beginning, use, end; and one more, while all
        // is taken apart.
        let mut moments = vec![1, 2, 3, count / 2, count - 1, count, count + 1];
        moments.retain(|nth| *nth > 0);
        moments.sort_unstable();
        moments.dedup();
        for (index, nth) in moments.into_iter().enumerate() {
            let code = CODES[index % CODES.len()];
            fail(symbol, nth, code);
            let outcome = catch_unwind(AssertUnwindSafe(scene));
            fail("", 0, 0);
            tried += 1;
            // What the test itself asks of the driver panics here.
            failed += usize::from(!matches!(outcome, Ok(Ok(_))));
            if let Ok(Ok((counted, is_probe_told))) = outcome {
                // How often some are called depends on time (`cuEventQuery`), so that the last of
                // one run may fall into the end of another, where nobody is left to be told.
                let reached = counted.iter().any(|(name, count)| *name == symbol && *count >= nth);
                // What is not CUDA's memory goes through the host; later contexts may be entered
                // to clean up.
                let is_answer = code == 1 && symbol.starts_with("cuPointerGetAttribute");
                let is_end = symbol == "cuCtxPushCurrent_v2" && nth > 3;
                assert!(
                    !reached || is_probe_told || SILENT.contains(&symbol) || is_answer || is_end,
                    "call {nth} of {symbol} answered {code}, and nobody said so"
                );
            }
        }
    }
    println!("{failed} of {tried} injected errors were told, of {}", symbols.join(" "));
    assert!(failed > 20);
}

/// What the ranks say of a call in which the first call of `symbol` answers `code`.
fn told(seats: &[DeviceChoice], symbol: &str, code: i32) -> String {
    let config = Config { timeout_ms: 20_000, ..config() };
    let ranks = Communicator::init_all_on(seats, &config).unwrap();
    let prepare = |comm: &Communicator| {
        let bench = Bench::new(comm.device().unwrap_or(0));
        let floats = Floats::new(&bench, &[1.0; 100]);
        (bench, floats)
    };
    let parts: Vec<_> = ranks.iter().map(prepare).collect();
    fail(symbol, 1, code);
    let call = |(comm, (bench, floats)): (&Communicator, (Bench, Floats))| {
        // SAFETY: the memory lives until the driver frees it, which waits for its streams.
        let ended = unsafe { comm.call(&sum(&floats, &bench)) };
        (ended.err().map(|error| error.to_string()), bench, floats)
    };
    let ends: Vec<_> = std::thread::scope(|scope| {
        let each = ranks.iter().zip(parts);
        let threads: Vec<_> = each.map(|part| scope.spawn(move || call(part))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    fail("", 0, 0);
    ends.iter().filter_map(|(text, ..)| text.as_deref()).collect::<Vec<_>>().join("; ")
}

/// Entry points of a call whose ranks are on devices, and of one through the host, and a code that
/// is no error of theirs.
const FUSED: [(&str, i32); 6] = [
    ("cuLaunchKernel", 0),
    ("cuEventRecord", 0),
    ("cuStreamWaitEvent", 0),
    ("cuStreamGetCaptureInfo_v2", 0),
    ("cuPointerGetAttributes", 1),
    ("cuCtxPushCurrent_v2", 0),
];
const THROUGH_HOST: [(&str, i32); 3] =
    [("cuMemcpyAsync", 0), ("cuEventQuery", 600), ("cuEventRecord", 0)];

/// Every code that drivers have today.
fn every_code() {
    type Errors<'a> = &'a [(&'a str, i32)];
    let seats: [(&[DeviceChoice], Errors); 2] = [
        (&[DeviceChoice::Device(0), DeviceChoice::Device(0)], &FUSED),
        (&[DeviceChoice::Device(0), DeviceChoice::Host], &THROUGH_HOST),
    ];
    let mut ntold = 0;
    for code in codes::all() {
        for (seats, symbols) in seats {
            for (symbol, _) in symbols.iter().filter(|(_, answer)| *answer != code) {
                let text = told(seats, symbol, code);
                assert!(codes::is_told(&text, code), "{code} of {symbol}: {text:?}");
                ntold += 1;
            }
        }
    }
    let nsymbols = FUSED.len() + THROUGH_HOST.len();
    println!("{ntold} codes of {nsymbols} entry points were told");
}

#[test]
fn an_error_of_any_entry_point_ends_in_words() {
    if !is_child() {
        if !is_on_fake() {
            return;
        }
        // What is asked of the driver holds for its whole process.
        println!("{}", child("failures::an_error_of_any_entry_point_ends_in_words", &[]));
        return;
    }
    quietly(|| {
        every_code();
        every_failure(&SCENES[..2], &|| scenario(&spread(2)));
        every_failure(&SCENES[..2], &|| scenario(&[DeviceChoice::Device(0), DeviceChoice::Host]));
        every_failure(&SCENES[2..3], &graph);
        // Where the program's own context says which device it is.
        let device = Device::of_ordinal(0).unwrap();
        let _current = device.enter().unwrap();
        let seats = [DeviceChoice::Context(device.token()), DeviceChoice::Current];
        every_failure(&SCENES[3..4], &|| scenario(&seats));
    });
}

/// Entry points that the scenes of the tests here ask for.
const SCENES: [&str; 5] = [
    "cuCtxPopCurrent_v2",
    "cuThreadExchangeStreamCaptureMode",
    "cuLaunchCooperativeKernel",
    "cuCtxGetDevice",
    "cuCtxEnablePeerAccess",
];

/// Every one fails in some test, which insists on coming to it.
#[test]
fn every_entry_point_is_made_to_fail() {
    let all = [
        &SCENES[..],
        &gate::STARTING,
        &closing::CLOSING,
        &codes::OF_DEVICES,
        &codes::OF_STREAMS,
        &codes::OF_MEMORY,
        &codes::SHARED,
        &codes::LETTING_GO,
        &codes::OF_MODULES,
        &codes::OF_CODES,
    ];
    let all: BTreeSet<&str> = all.concat().into_iter().collect();
    assert_eq!(all, Driver::SYMBOLS.iter().copied().collect());
}

/// What only devices that reach each other are asked, and their kernels' trial.
#[test]
fn an_error_between_devices_ends_in_words() {
    let two = [("FAKECUDA_DEVICES", "2"), ("FAKECUDA_PEERS", "1")];
    if is_apart("failures::an_error_between_devices_ends_in_words", &two) {
        quietly(|| every_failure(&SCENES[4..], &|| scenario(&spread(2))));
    }
}

/// Run what makes threads panic, and say only how it ends itself.
fn quietly(all: impl FnOnce()) {
    // Threads of a failed scenario say what they wanted of the driver.
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let run = catch_unwind(AssertUnwindSafe(all));
    std::panic::set_hook(hook);
    if let Err(panic) = run {
        let text = panic.downcast_ref::<String>();
        panic!("{}", text.map_or("a panic without a text", String::as_str));
    }
}
