//! Every code that drivers have, from every entry point that is asked for something: told in words.

use super::fake::{calls, fail, fail_too};
use super::here::is_apart;
use super::support::config;
use super::{Bench, closing, gate};
use ringcomm::communicator::Communicator;
use ringcomm::device::cuda::{
    Addresses, Capture, Device, DeviceMemory, Driver, Event, Grid, HandleType, HostRegistration,
    Imported, KernelFamily, Kernels, Mapping, OwnedStream, PhysicalPiece, Pinned, Recording, abi,
    copy, fill, wait, wait_value, write_value,
};
use ringcomm::error::Result;
use ringcomm::types::DataType;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Every code that drivers have, to CUDA 13.4 (`cbindings/abi/tests/codes.rs` holds those of its
/// header against it).
pub fn all() -> impl Iterator<Item = i32> {
    let codes = [
        1..=8,
        34..=37,
        46..=47,
        100..=102,
        200..=227,
        300..=304,
        400..=402,
        500..=500,
        600..=600,
        700..=724,
        800..=812,
        900..=920,
        999..=999,
    ];
    codes.into_iter().flatten()
}

/// Whether a text says what the driver answered.
pub fn is_told(text: &str, code: i32) -> bool {
    text.contains(&format!(", {code})")) || text.contains(&format!("answered {code}"))
}

/// An entry point, the codes that are no error of its, and what asks it for something.
type Asking<'a> = (&'static str, &'static [i32], &'a dyn Fn() -> Result<()>);

/// Let each entry point answer every code.
fn check(all_that_ask: &[Asking]) {
    for (symbol, answers, ask) in all_that_ask {
        fail("", 0, 0);
        ask().unwrap_or_else(|error| panic!("{symbol}: {error}"));
        check_told(symbol, answers, ask);
    }
}

fn check_told(symbol: &str, answers: &[i32], ask: &dyn Fn() -> Result<()>) {
    for code in all() {
        fail(symbol, 1, code);
        let text = ask().err().map(|error| error.to_string()).unwrap_or_default();
        assert!(calls(symbol) > 0, "{symbol} is not asked");
        fail("", 0, 0);
        // What the driver says by answers is told in other words, or is no error.
        assert_eq!(is_told(&text, code), !answers.contains(&code), "{code} of {symbol}: {text:?}");
    }
}

/// Two devices that reach each other.
const TWO: [(&str, &str); 2] = [("FAKECUDA_DEVICES", "2"), ("FAKECUDA_PEERS", "1")];

/// Entry points of devices and contexts.
pub const OF_DEVICES: [&str; 13] = [
    "cuDeviceGetCount",
    "cuDeviceGet",
    "cuDeviceGetAttribute",
    "cuDeviceGetName",
    "cuDeviceGetUuid_v2",
    "cuDeviceCanAccessPeer",
    "cuCtxEnablePeerAccess",
    "cuDevicePrimaryCtxRetain",
    "cuCtxGetDevice",
    "cuCtxGetId",
    "cuCtxPushCurrent_v2",
    "cuLaunchKernel",
    "cuLaunchCooperativeKernel",
];

#[test]
fn devices_and_contexts() {
    if !is_apart("codes::devices_and_contexts", &TWO) {
        return;
    }
    let [device, other] = [0, 1].map(|ordinal| Device::of_ordinal(ordinal).unwrap());
    let bench = Bench::new(0);
    let kernels = Kernels::of(&device).unwrap().unwrap();
    let taken = || Device::of_ordinal(0).map(drop);
    let launch = || {
        let _current = device.enter()?;
        // SAFETY: the bench's own stream.
        unsafe { kernels.delay(1, bench.stream.raw()) }
    };
    let together = || {
        let _current = device.enter()?;
        let (kernel, grid) = (
            (KernelFamily::Reduce, DataType::Float32),
            Grid { is_cooperative: true, ..Grid::of(1) },
        );
        // SAFETY: nothing to do, and the bench's own stream.
        unsafe { kernels.run(kernel, &abi::ReduceArgs::default(), grid, bench.stream.raw()) }
    };
    let no_device: &[i32] = &[100];
    let reach = || device.reach(&other).map(drop);
    let ask: [Asking; 13] = [
        ("cuDeviceGetCount", no_device, &taken),
        ("cuDeviceGet", &[], &taken),
        ("cuDeviceGetAttribute", &[], &taken),
        ("cuDeviceGetName", &[], &|| device.name().map(drop)),
        ("cuDeviceGetUuid_v2", &[], &taken),
        ("cuDeviceCanAccessPeer", &[], &reach),
        ("cuCtxEnablePeerAccess", &[217, 704], &reach),
        ("cuDevicePrimaryCtxRetain", &[], &taken),
        ("cuCtxGetDevice", &[], &|| Device::of_context(device.token()).map(drop)),
        ("cuCtxGetId", &[], &|| device.context_id().map(drop)),
        ("cuCtxPushCurrent_v2", &[], &|| device.enter().map(drop)),
        ("cuLaunchKernel", &[], &launch),
        ("cuLaunchCooperativeKernel", &[], &together),
    ];
    assert_eq!(ask.map(|(symbol, ..)| symbol), OF_DEVICES);
    check(&ask);
    // A device that has no access is not one whose access went wrong.
    for (code, reaches) in [(217, false), (704, true)] {
        fail("cuCtxEnablePeerAccess", 1, code);
        assert_eq!(device.reach(&other), Ok(reaches), "{code}");
    }
    fail("", 0, 0);
}

/// Entry points of streams, events, captures and graphs.
pub const OF_STREAMS: [&str; 13] = [
    "cuStreamCreate",
    "cuStreamSynchronize",
    "cuStreamQuery",
    "cuStreamWaitEvent",
    "cuStreamGetCaptureInfo_v2",
    "cuStreamBeginCapture_v2",
    "cuStreamEndCapture",
    "cuGraphInstantiateWithFlags",
    "cuGraphLaunch",
    "cuEventCreate",
    "cuEventRecord",
    "cuEventQuery",
    "cuEventElapsedTime",
];

#[test]
fn streams_events_and_graphs() {
    if !is_apart("codes::streams_events_and_graphs", &TWO) {
        return;
    }
    let bench = Bench::new(0);
    let (device, stream) = (&bench.device, &bench.stream);
    let _current = device.enter().unwrap();
    let made = || Event::new(device, Recording::Time).unwrap();
    let [event, later, other] = [made(), made(), made()];
    event.record(stream.raw()).unwrap();
    later.record(stream.raw()).unwrap();
    stream.synchronize().unwrap();
    let replay = stream.capture(|| Ok(())).unwrap();
    // A stream whose capture does not end is of no more use.
    let capture = || OwnedStream::new(device)?.capture(|| Ok(())).map(drop);
    let ask: [Asking; 13] = [
        ("cuStreamCreate", &[], &|| OwnedStream::new(device).map(drop)),
        ("cuStreamSynchronize", &[], &|| stream.synchronize()),
        ("cuStreamQuery", &[600], &|| device.is_idle(stream.raw()).map(drop)),
        ("cuStreamWaitEvent", &[], &|| wait(stream.raw(), &event)),
        ("cuStreamGetCaptureInfo_v2", &[], &|| Capture::of(device, stream.raw()).map(drop)),
        ("cuStreamBeginCapture_v2", &[], &capture),
        ("cuStreamEndCapture", &[], &capture),
        ("cuGraphInstantiateWithFlags", &[], &capture),
        ("cuGraphLaunch", &[], &|| replay.launch(stream)),
        ("cuEventCreate", &[], &|| Event::new(device, Recording::Moment).map(drop)),
        ("cuEventRecord", &[], &|| other.record(stream.raw())),
        ("cuEventQuery", &[600], &|| event.has_passed().map(drop)),
        ("cuEventElapsedTime", &[], &|| later.since(&event).map(drop)),
    ];
    assert_eq!(ask.map(|(symbol, ..)| symbol), OF_STREAMS);
    check(&ask);
}

/// Entry points of memory that is not shared.
pub const OF_MEMORY: [&str; 8] = [
    "cuMemHostAlloc",
    "cuMemAlloc_v2",
    "cuMemcpyAsync",
    "cuMemsetD8Async",
    "cuPointerGetAttribute",
    "cuPointerGetAttributes",
    "cuMemHostRegister_v2",
    "cuMemHostGetDevicePointer_v2",
];

/// Whole pages of host memory.
#[repr(align(4096))]
struct Page(#[expect(dead_code, reason = "only its address matters")] [u8; 4096]);

/// Pages that stay: what a broken context has registered would be refused the next time.
fn page() -> *mut u8 {
    std::ptr::from_mut(Box::leak(Box::new(Page([0; 4096])))).cast()
}

fn register(device: &Arc<Device>) -> Result<()> {
    HostRegistration::new(device, page(), 4096).map(drop)
}

#[test]
fn memory_of_devices_and_of_the_host() {
    if !is_apart("codes::memory_of_devices_and_of_the_host", &TWO) {
        return;
    }
    let bench = Bench::new(0);
    let (device, stream) = (&bench.device, bench.stream.raw());
    let _current = device.enter().unwrap();
    let memory = [(); 2].map(|()| DeviceMemory::new(device, 64).unwrap());
    let [from, to] = memory.each_ref().map(DeviceMemory::pointer);
    let register = || register(device);
    let ask: [Asking; 8] = [
        ("cuMemHostAlloc", &[], &|| Pinned::new(device, 64).map(drop)),
        ("cuMemAlloc_v2", &[], &|| DeviceMemory::new(device, 64).map(drop)),
        // SAFETY: both are so long, and stay until the driver frees them.
        ("cuMemcpyAsync", &[], &|| unsafe { copy(device, to, from, 64, stream) }),
        // SAFETY: as above.
        ("cuMemsetD8Async", &[], &|| unsafe { fill(device, to, 7, 64, stream) }),
        ("cuPointerGetAttribute", &[1], &|| device.allocation_id(from.addr() as u64).map(drop)),
        ("cuPointerGetAttributes", &[1], &|| device.kind(from).map(drop)),
        ("cuMemHostRegister_v2", &[], &register),
        ("cuMemHostGetDevicePointer_v2", &[], &register),
    ];
    assert_eq!(ask.map(|(symbol, ..)| symbol), OF_MEMORY);
    check(&ask);
    bench.stream.synchronize().unwrap();
}

/// Entry points of memory that processes share, whole or in pieces, and of its words.
pub const SHARED: [&str; 13] = [
    "cuMemGetAddressRange_v2",
    "cuIpcGetMemHandle",
    "cuMemGetAllocationGranularity",
    "cuMemCreate",
    "cuMemRetainAllocationHandle",
    "cuMemExportToShareableHandle",
    "cuMemImportFromShareableHandle",
    "cuMemAddressReserve",
    "cuMemMap",
    "cuMemSetAccess",
    "cuStreamWriteValue32_v2",
    "cuStreamWaitValue32_v2",
    "cuIpcOpenMemHandle_v2",
];

#[test]
fn memory_that_is_shared() {
    if !is_apart("codes::memory_that_is_shared", &TWO) {
        return;
    }
    let bench = Bench::new(0);
    let (device, stream) = (&bench.device, bench.stream.raw());
    let _current = device.enter().unwrap();
    let memory = DeviceMemory::new(device, 64).unwrap();
    let address = memory.pointer().addr() as u64;
    let allocation = device.allocation(address).unwrap().expect("it is there");
    let handle = device.export(&allocation).unwrap().expect("it is plain");
    let piece = PhysicalPiece::new(device, 1, Some(HandleType::Descriptor)).unwrap();
    let mapped = Addresses::of(device, std::slice::from_ref(&piece)).unwrap();
    let mapping = Mapping { base: mapped.start(), bytes: piece.bytes, block: 0 };
    let packed = piece.pack(HandleType::Descriptor).unwrap().expect("made to travel");
    let map = || Addresses::of(device, std::slice::from_ref(&piece)).map(drop);
    let make = || PhysicalPiece::new(device, 1, None).map(drop);
    let unpack =
        || PhysicalPiece::unpack(device, (piece.bytes, &packed), HandleType::Descriptor).map(drop);
    let words = HostRegistration::new(device, page(), 4096).unwrap();
    let word = words.address(0);
    // What no driver lets travel is no error.
    let (unfit, unmade): (&[i32], &[i32]) = (&[1], &[1, 800, 801]);
    let ask: [Asking; 12] = [
        ("cuMemGetAddressRange_v2", &[], &|| device.allocation(address).map(drop)),
        ("cuIpcGetMemHandle", unfit, &|| device.export(&allocation).map(drop)),
        ("cuMemGetAllocationGranularity", &[], &make),
        ("cuMemCreate", &[], &make),
        ("cuMemRetainAllocationHandle", unmade, &|| PhysicalPiece::at(device, &mapping).map(drop)),
        ("cuMemExportToShareableHandle", unmade, &|| piece.pack(HandleType::Descriptor).map(drop)),
        ("cuMemImportFromShareableHandle", &[], &unpack),
        ("cuMemAddressReserve", &[], &map),
        ("cuMemMap", &[], &map),
        ("cuMemSetAccess", &[], &map),
        // SAFETY: a word of the page, which stays.
        ("cuStreamWriteValue32_v2", &[], &|| unsafe { write_value(device, stream, word, 5) }),
        // SAFETY: as above.
        ("cuStreamWaitValue32_v2", &[], &|| unsafe { wait_value(device, stream, word, 5) }),
    ];
    assert_eq!(ask.map(|(symbol, ..)| symbol), SHARED[..12]);
    check(&ask);
    // Its own memory no process opens.
    check_told(SHARED[12], &[208], &|| Imported::new(device, handle, 64).map(drop));
    bench.stream.synchronize().unwrap();
}

/// Entry points that let go: nobody is told of their errors, and nobody is held up by them.
pub const LETTING_GO: [&str; 13] = [
    "cuCtxPopCurrent_v2",
    "cuThreadExchangeStreamCaptureMode",
    "cuDevicePrimaryCtxRelease_v2",
    "cuMemFreeHost",
    "cuMemFree_v2",
    "cuMemHostUnregister",
    "cuMemRelease",
    "cuMemUnmap",
    "cuMemAddressFree",
    "cuEventDestroy_v2",
    "cuStreamDestroy_v2",
    "cuGraphDestroy",
    "cuGraphExecDestroy",
];

#[test]
fn what_lets_go_is_silent_and_the_next_is_good() {
    if !is_apart("codes::what_lets_go_is_silent_and_the_next_is_good", &TWO) {
        return;
    }
    let bench = Bench::new(0);
    let device = &bench.device;
    let _current = device.enter().unwrap();
    let map = || {
        let piece = PhysicalPiece::new(device, 1, None)?;
        Addresses::of(device, &[piece]).map(drop)
    };
    let register = || register(device);
    let capture = || OwnedStream::new(device)?.capture(|| Ok(())).map(drop);
    let event = |_| Event::new(device, Recording::Time).unwrap();
    // Two for every code.
    let events: RefCell<Vec<Event>> = RefCell::new((0..2 * all().count()).map(event).collect());
    let let_go = || {
        drop(events.borrow_mut().pop().expect("there are as many"));
        Ok(())
    };
    let ask: [(&str, &dyn Fn() -> Result<()>); 13] = [
        ("cuCtxPopCurrent_v2", &|| device.enter().map(drop)),
        // What makes an event asks before, and is told of a context that broke then.
        ("cuThreadExchangeStreamCaptureMode", &let_go),
        ("cuDevicePrimaryCtxRelease_v2", &|| Device::of_ordinal(0).map(drop)),
        ("cuMemFreeHost", &|| Pinned::new(device, 64).map(drop)),
        ("cuMemFree_v2", &|| DeviceMemory::new(device, 64).map(drop)),
        ("cuMemHostUnregister", &register),
        ("cuMemRelease", &map),
        ("cuMemUnmap", &map),
        ("cuMemAddressFree", &map),
        ("cuEventDestroy_v2", &|| Event::new(device, Recording::Moment).map(drop)),
        ("cuStreamDestroy_v2", &|| OwnedStream::new(device).map(drop)),
        ("cuGraphDestroy", &capture),
        ("cuGraphExecDestroy", &capture),
    ];
    assert_eq!(ask.map(|(symbol, _)| symbol), LETTING_GO);
    for (symbol, ask) in ask {
        for code in all() {
            fail(symbol, 1, code);
            ask().unwrap_or_else(|error| panic!("{code} of {symbol}: {error}"));
            assert!(calls(symbol) > 0, "{symbol} is not called");
            fail("", 0, 0);
            ask().unwrap_or_else(|error| panic!("after {code} of {symbol}: {error}"));
        }
    }
}

/// Entry points of modules, which the first communicator in a context asks for its kernels.
pub const OF_MODULES: [&str; 3] = ["cuModuleLoadData", "cuModuleGetFunction", "cuModuleUnload"];

#[test]
fn kernels_that_do_not_load() {
    if !is_apart("codes::kernels_that_do_not_load", &TWO) {
        return;
    }
    let device = Device::of_ordinal(0).unwrap();
    let load = || match Kernels::of(&device) {
        Ok(Ok(_)) => panic!("they load"),
        Ok(Err(no_kernels)) => format!("does without: {no_kernels}"),
        Err(error) => error.to_string(),
    };
    for (code, another) in all().zip(all().skip(1).chain([1])) {
        fail("cuModuleLoadData", 1, code);
        let text = load();
        let is_without = [200, 209, 218, 221, 222, 223].contains(&code);
        assert_eq!(text.starts_with("does without"), is_without, "{code}: {text}");
        assert!(code == 209 || is_told(&text, code), "{code}: {text}");
        // What was loaded in vain is unloaded, whatever comes of that.
        for unloading in [0, another] {
            fail("cuModuleGetFunction", 5, code);
            if unloading != 0 {
                fail_too("cuModuleUnload", 1, unloading);
            }
            let text = load();
            assert!(is_told(&text, code) && !is_told(&text, unloading), "{code}: {text}");
            assert_eq!(calls("cuModuleUnload"), 1);
        }
    }
    fail("", 0, 0);
    Kernels::of(&device).unwrap().unwrap();
}

/// A driver that does not say which context is current has none: a rank that asks for no device is
/// the host's.
#[test]
fn the_current_context() {
    if !is_apart("codes::the_current_context", &TWO) {
        return;
    }
    let bench = Bench::new(1);
    let _current = bench.device.enter().unwrap();
    let device = || Communicator::init_all(1, &config()).unwrap()[0].device();
    for code in all() {
        fail("cuCtxGetCurrent", 1, code);
        assert_eq!(device(), None, "{code}");
        fail("", 0, 0);
        assert_eq!(device(), Some(1));
    }
}

/// Entry points that say what a code means: where they fail the number is told.
pub const OF_CODES: [&str; 2] = ["cuGetErrorName", "cuGetErrorString"];

#[test]
fn codes_without_a_text() {
    if !is_apart("codes::codes_without_a_text", &TWO) {
        return;
    }
    let device = Device::of_ordinal(0).unwrap();
    let ask = || device.name().unwrap_err().to_string();
    fail("cuDeviceGetName", 1, 2);
    let text = ask();
    assert!(text.contains("(CUDA_ERROR_OUT_OF_MEMORY, 2)"), "{text}");
    for symbol in OF_CODES {
        for code in all() {
            fail("cuDeviceGetName", 1, 2);
            fail_too(symbol, 1, code);
            let text = ask();
            assert!(text.ends_with("the CUDA driver answered 2"), "{symbol}: {text}");
            assert_eq!(calls(symbol), 1);
        }
    }
    fail("", 0, 0);
}

/// All entry points answer with every code somewhere.
#[test]
fn every_entry_point_answers_with_every_code() {
    let all = [
        &gate::STARTING[..],
        &OF_DEVICES,
        &OF_STREAMS,
        &OF_MEMORY,
        &SHARED,
        &LETTING_GO,
        &OF_MODULES,
        &OF_CODES,
        &closing::CLOSED,
    ];
    let all: BTreeSet<&str> = all.concat().into_iter().collect();
    assert_eq!(all, Driver::SYMBOLS.iter().copied().collect());
}
