//! The entry points, as C calls them.
//!
//! Every one counts its calls, fails where it is asked to, and otherwise does what a driver does as
//! far as ringcomm can tell. Out-parameters are written on success only.

use crate::failures::{asked_for, broken, injected, stall};
use crate::kernels::Kind;
use crate::streams::{context_of, current, find, ordinal_of};
use crate::{
    Answer, COOPERATIVE_LAUNCH_TOO_LARGE, Code, INVALID_DEVICE, INVALID_VALUE, NAMES, NO_DEVICE,
    NOT_READY, capture, events, ipc, kernels, memory, ndevices, peers, pieces, setting, streams,
    words,
};
use std::ffi::{c_char, c_void};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

/// What a capture might see by mistake, as the driver's documentation and what is known of drivers
/// have it; where they say nothing, what may wait for streams, or makes or ends what lasts.
const UNSAFE: [&str; 30] = [
    "cuDevicePrimaryCtxRetain",
    "cuDevicePrimaryCtxRelease_v2",
    "cuCtxEnablePeerAccess",
    "cuMemHostAlloc",
    "cuMemFreeHost",
    "cuMemAlloc_v2",
    "cuMemFree_v2",
    "cuMemCreate",
    "cuMemRelease",
    "cuMemMap",
    "cuMemUnmap",
    "cuMemSetAccess",
    "cuMemAddressFree",
    "cuMemHostRegister_v2",
    "cuMemHostUnregister",
    "cuIpcGetMemHandle",
    "cuIpcOpenMemHandle_v2",
    "cuIpcCloseMemHandle",
    "cuEventCreate",
    "cuEventQuery",
    "cuEventDestroy_v2",
    "cuStreamCreate",
    "cuStreamSynchronize",
    "cuStreamQuery",
    "cuStreamDestroy_v2",
    "cuGraphInstantiateWithFlags",
    "cuGraphExecDestroy",
    "cuModuleLoadData",
    "cuModuleGetFunction",
    "cuModuleUnload",
];

/// What of these names asks for devices, contexts and threads, which no context is needed for. All
/// else needs a current one: its documentation has `INVALID_CONTEXT` among its codes, but for
/// graphs, mapped memory and the query of an event, of which a driver may ask more than it says.
const WITHOUT_CONTEXT: [&str; 5] = ["cuInit", "cuDriver", "cuDevice", "cuCtx", "cuThread"];

/// What every entry point begins and ends with.
fn answer(symbol: &'static str, body: impl FnOnce() -> Answer) -> Code {
    let injected = injected(symbol);
    stall(symbol);
    if let Some(code) = injected {
        return code;
    }
    if !WITHOUT_CONTEXT.iter().any(|name| symbol.starts_with(name))
        && let Err(code) = current()
    {
        return code;
    }
    if UNSAFE.contains(&symbol)
        && let Err(code) = capture::forbid()
    {
        return code;
    }
    body().err().unwrap_or(0)
}

/// Write an out-parameter.
fn put<T>(place: *mut T, value: T) -> Answer {
    if place.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: the C caller promises room for a `T`.
    unsafe { place.write(value) };
    Ok(())
}

fn device(ordinal: i32) -> Answer<usize> {
    usize::try_from(ordinal).ok().filter(|one| *one < ndevices()).ok_or(INVALID_DEVICE)
}

macro_rules! entries {
    ($($symbol:ident ($($name:ident: $type:ty),*) $body:block)*) => {
        $(
            /// As in the driver's interface.
            ///
            /// # Safety
            /// As in the driver's interface.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $symbol($($name: $type),*) -> Code {
                answer(stringify!($symbol), || $body)
            }
        )*
    };
}

type Handle = *mut c_void;

/// Of every device, each with room for one block of the library's kernels.
pub const MULTIPROCESSORS: u32 = 8;

entries! {
    cuInit(_flags: u32) {
        if ndevices() == 0 { Err(NO_DEVICE) } else { Ok(()) }
    }
    cuDriverGetVersion(version: *mut i32) {
        put(version, setting("FAKECUDA_VERSION", 13000) as i32)
    }
    cuDeviceGetCount(count: *mut i32) { put(count, ndevices() as i32) }
    cuDeviceGet(place: *mut i32, ordinal: i32) { put(place, device(ordinal)? as i32) }
    cuDeviceGetAttribute(place: *mut i32, attribute: i32, ordinal: i32) {
        device(ordinal)?;
        match attribute {
            // Few multiprocessors: launches are then of more tiles than blocks.
            16 => put(place, MULTIPROCESSORS as i32),
            41 | 102 => put(place, 1),
            103 => put(place, setting("FAKECUDA_PIECES", 1) as i32),
            128 => put(place, setting("FAKECUDA_FABRIC", 1) as i32),
            _ => Err(INVALID_VALUE),
        }
    }
    cuDeviceGetName(name: *mut c_char, len: i32, ordinal: i32) {
        let text = format!("fake device {}\0", device(ordinal)?);
        if len < text.len() as i32 {
            return Err(INVALID_VALUE);
        }
        // SAFETY: the C caller promises `len` bytes.
        unsafe { std::ptr::copy_nonoverlapping(text.as_ptr().cast(), name, text.len()) };
        Ok(())
    }
    cuDeviceGetUuid_v2(uuid: *mut [u8; 16], ordinal: i32) {
        put(uuid, [(device(ordinal)? + 1 + setting("FAKECUDA_FIRST", 0)) as u8; 16])
    }
    cuDeviceCanAccessPeer(can: *mut i32, from: i32, to: i32) {
        let apart = device(from)? != device(to)?;
        put(can, i32::from(apart && setting("FAKECUDA_PEERS", 1) == 1))
    }
    cuDevicePrimaryCtxRetain(context: *mut Handle, ordinal: i32) {
        put(context, context_of(device(ordinal)?))
    }
    cuDevicePrimaryCtxRelease_v2(ordinal: i32) { device(ordinal).map(|_| ()) }
    cuCtxGetCurrent(context: *mut Handle) {
        put(context, current().map_or(std::ptr::null_mut(), context_of))
    }
    cuCtxGetDevice(place: *mut i32) { put(place, current()? as i32) }
    cuCtxGetId(context: Handle, id: *mut u64) { put(id, ordinal_of(context)? as u64 + 1) }
    cuCtxPushCurrent_v2(context: Handle) {
        streams::push(ordinal_of(context)?);
        Ok(())
    }
    cuCtxPopCurrent_v2(context: *mut Handle) { put(context, context_of(streams::pop()?)) }
    cuCtxEnablePeerAccess(context: Handle, _flags: u32) {
        peers::enable(current()?, ordinal_of(context)?)
    }
    cuPointerGetAttribute(place: *mut c_void, attribute: i32, address: u64) {
        match memory::wide_attribute(attribute, address) {
            Some(value) => put(place.cast::<u64>(), value?),
            None => put(place.cast::<u32>(), memory::attribute(attribute, address)?),
        }
    }
    cuPointerGetAttributes(count: u32, asked: *mut i32, places: *mut *mut c_void, address: u64) {
        for index in 0..count as usize {
            // SAFETY: the C caller promises as many attributes and places.
            let (attribute, place) = unsafe { (*asked.add(index), *places.add(index)) };
            // What the driver never heard of has zeros, and is no error.
            match memory::wide_attribute(attribute, address) {
                Some(value) => put(place.cast::<u64>(), value.unwrap_or(0))?,
                None => {
                    let value = memory::attribute(attribute, address).unwrap_or(0);
                    put(place.cast::<u32>(), value)?;
                }
            }
        }
        Ok(())
    }
    cuMemGetAddressRange_v2(base: *mut u64, bytes: *mut usize, address: u64) {
        let (start, len) = memory::range(address)?;
        put(base, start)?;
        put(bytes, len)
    }
    cuIpcGetMemHandle(place: *mut ipc::Handle, address: u64) { put(place, ipc::export(address)?) }
    cuIpcOpenMemHandle_v2(place: *mut u64, handle: ipc::Handle, _flags: u32) {
        put(place, ipc::open(handle)?)
    }
    cuIpcCloseMemHandle(address: u64) { ipc::close(address) }
    cuMemGetAllocationGranularity(
        place: *mut usize, _wanted: *const pieces::Wanted, _which: i32
    ) {
        put(place, pieces::GRANULE)
    }
    cuMemCreate(place: *mut u64, bytes: usize, wanted: *const pieces::Wanted, _flags: u64) {
        // SAFETY: the C caller promises the structure.
        put(place, pieces::create(bytes, unsafe { &*wanted })?)
    }
    cuMemRetainAllocationHandle(place: *mut u64, address: Handle) {
        put(place, pieces::retain(address.addr() as u64)?)
    }
    cuMemRelease(piece: u64) { pieces::release(piece) }
    cuMemExportToShareableHandle(place: Handle, piece: u64, carrier: i32, _flags: u64) {
        // SAFETY: the C caller promises room for what the carrier stands for.
        unsafe { pieces::export(place, piece, carrier) }
    }
    cuMemImportFromShareableHandle(place: *mut u64, named: Handle, carrier: i32) {
        // SAFETY: the C caller promises what the carrier stands for.
        put(place, unsafe { pieces::import(named, carrier)? })
    }
    cuMemAddressReserve(place: *mut u64, bytes: usize, _align: usize, _near: u64, _flags: u64) {
        put(place, pieces::reserve(bytes)?)
    }
    cuMemAddressFree(address: u64, bytes: usize) { pieces::free(address, bytes) }
    cuMemMap(address: u64, bytes: usize, offset: usize, piece: u64, _flags: u64) {
        pieces::map(address, bytes, offset, piece)
    }
    cuMemUnmap(address: u64, bytes: usize) { pieces::unmap(address, bytes) }
    cuMemSetAccess(address: u64, bytes: usize, right: *const pieces::Right, count: usize) {
        if count != 1 {
            return Err(INVALID_VALUE);
        }
        // SAFETY: the C caller promises the structure.
        pieces::open(address, bytes, unsafe { &*right })
    }
    cuMemHostRegister_v2(start: Handle, bytes: usize, _flags: u32) {
        words::register(start, bytes)
    }
    cuMemHostUnregister(start: Handle) { words::unregister(start) }
    cuMemHostGetDevicePointer_v2(place: *mut u64, start: Handle, _flags: u32) {
        put(place, words::address(start)?)
    }
    cuStreamWriteValue32_v2(stream: Handle, word: u64, value: u32, _flags: u32) {
        words::write(stream, word, value)
    }
    cuStreamWaitValue32_v2(stream: Handle, word: u64, value: u32, flags: u32) {
        words::wait(stream, word, value, flags)
    }
    cuMemHostAlloc(place: *mut Handle, bytes: usize, _flags: u32) {
        put(place, memory::allocate_host(bytes)?)
    }
    cuMemFreeHost(start: Handle) { memory::free(start.expose_provenance() as u64, false) }
    cuMemAlloc_v2(place: *mut u64, bytes: usize) { put(place, memory::allocate_device(bytes)?) }
    cuMemFree_v2(address: u64) { memory::free(address, true) }
    cuMemcpyAsync(to: u64, from: u64, bytes: usize, stream: Handle) {
        memory::copy(to, from, bytes, stream)
    }
    cuMemsetD8Async(to: u64, value: u8, bytes: usize, stream: Handle) {
        memory::fill(to, value, bytes, stream)
    }
    cuEventCreate(place: *mut Handle, _flags: u32) { put(place, events::make()?) }
    cuEventRecord(event: Handle, stream: Handle) { events::record(event, stream) }
    cuEventQuery(event: Handle) { events::query(event) }
    cuEventElapsedTime(place: *mut f32, start: Handle, end: Handle) {
        put(place, events::elapsed(start, end)?)
    }
    cuEventDestroy_v2(event: Handle) { events::destroy(event) }
    cuStreamCreate(place: *mut Handle, _flags: u32) { put(place, streams::make()?) }
    cuStreamDestroy_v2(stream: Handle) { streams::destroy(stream) }
    cuStreamWaitEvent(stream: Handle, event: Handle, _flags: u32) { events::wait(stream, event) }
    cuStreamSynchronize(stream: Handle) {
        find(stream)?.synchronize();
        broken().map_or(Ok(()), Err)
    }
    cuStreamQuery(stream: Handle) {
        if !find(stream)?.is_idle() {
            return Err(NOT_READY);
        }
        broken().map_or(Ok(()), Err)
    }
    cuStreamGetCaptureInfo_v2(
        stream: Handle, status: *mut i32, id: *mut u64, _graph: *mut Handle,
        _nodes: *mut *const c_void, _count: *mut usize
    ) {
        let stream = find(stream)?;
        let own = crate::lock(&stream.capture);
        if let Some(capture) = &*own {
            put(id, capture.id)?;
        }
        let is_broken = |capture: &Arc<capture::Capture>| capture.is_broken.load(SeqCst);
        put(status, own.as_ref().map_or(0, |capture| if is_broken(capture) { 2 } else { 1 }))
    }
    cuThreadExchangeStreamCaptureMode(mode: *mut i32) {
        // SAFETY: the C caller promises a mode.
        put(mode, capture::exchange(unsafe { *mode })?)
    }
    cuStreamBeginCapture_v2(stream: Handle, mode: i32) { capture::begin(stream, mode) }
    cuStreamEndCapture(stream: Handle, place: *mut Handle) { put(place, capture::end(stream)?) }
    cuGraphInstantiateWithFlags(place: *mut Handle, graph: Handle, _flags: u64) {
        put(place, capture::instantiate(graph)?)
    }
    cuGraphLaunch(exec: Handle, stream: Handle) { capture::launch(exec, stream) }
    cuGraphDestroy(graph: Handle) { capture::destroy(graph) }
    cuGraphExecDestroy(exec: Handle) { capture::destroy(exec) }
    cuModuleLoadData(place: *mut Handle, image: *const c_void) { put(place, kernels::load(image)?) }
    cuModuleUnload(module: Handle) { kernels::unload(module) }
    cuModuleGetFunction(place: *mut Handle, module: Handle, name: *const c_char) {
        // SAFETY: the C caller promises a C string.
        put(place, unsafe { kernels::function(module, name)? })
    }
    cuLaunchKernel(
        function: Handle, gx: u32, gy: u32, gz: u32, bx: u32, by: u32, bz: u32, shared: u32,
        stream: Handle, parameters: *mut Handle, _extra: *mut Handle
    ) {
        let shape = ([gx, gy, gz], [bx, by, bz], shared);
        // SAFETY: the C caller promises the kernel's parameters.
        unsafe { kernels::launch(function, shape, stream, parameters, Kind::OneByOne) }
    }
    cuLaunchCooperativeKernel(
        function: Handle, gx: u32, gy: u32, gz: u32, bx: u32, by: u32, bz: u32, shared: u32,
        stream: Handle, parameters: *mut Handle
    ) {
        if gx * gy > MULTIPROCESSORS {
            return Err(COOPERATIVE_LAUNCH_TOO_LARGE);
        }
        let shape = ([gx, gy, gz], [bx, by, bz], shared);
        // SAFETY: as above. The host runs all blocks of whatever waits at once.
        unsafe { kernels::launch(function, shape, stream, parameters, Kind::Cooperative) }
    }
}

/// The text of a code, asked for as `symbol`; NULL and an error for one that this driver does not
/// know.
fn described(symbol: &'static str, code: Code, place: *mut *const c_char) -> Code {
    if let Some(code) = asked_for(symbol) {
        return code;
    }
    let found = NAMES.iter().find(|(known, _)| *known == code);
    let text = found.map_or(std::ptr::null(), |(_, name)| name.as_ptr());
    put(place, text).err().unwrap_or(if found.is_some() { 0 } else { INVALID_VALUE })
}

/// The name of a code.
///
/// # Safety
/// `place` has room for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetErrorName(code: Code, place: *mut *const c_char) -> Code {
    described("cuGetErrorName", code, place)
}

/// As [`cuGetErrorName`]: this driver has no longer texts.
///
/// # Safety
/// `place` has room for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetErrorString(code: Code, place: *mut *const c_char) -> Code {
    described("cuGetErrorString", code, place)
}
