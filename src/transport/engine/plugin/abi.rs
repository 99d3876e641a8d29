//! Binary interface of NCCL's network plugins, versions 6, 8, 11 and 12: structures and codes.
//!
//! A plugin exports a structure of a name and function pointers, whose order and types depend on
//! the version. Codes are numbers and never become an enum.
#![allow(unsafe_code)]

use super::calls::NetCalls;
use std::ffi::{CStr, c_char, c_float, c_int, c_ulong, c_void};

/// What calls return: `ncclResult_t`.
pub type NetCode = c_int;
pub const OK: NetCode = 0;
/// The plugin broke the interface.
pub const INTERNAL: NetCode = 3;
/// A connection that wants code on a device; no code of NCCL's.
pub const NEEDS_DEVICE: NetCode = -1;

/// One end of a connection, or a listener.
pub type NetComm = *mut c_void;
pub type Request = *mut c_void;
/// Registered memory; may be null.
pub type MemoryHandle = *mut c_void;

/// `NCCL_PTR_HOST`: memory of the host's, as a kind to register and as a bit of what is supported.
pub const HOST_MEMORY: c_int = 1;
/// `NCCL_NET_DEVICE_HOST`.
const HOST_DEVICE: c_int = 0;
/// Both ends have to use the same for all messages: order alone matches them.
pub const TAG: c_int = 0;

/// Bytes by which a plugin finds a peer's: `NCCL_NET_HANDLE_MAXSIZE`.
pub const HANDLE_BYTES: usize = 128;

/// A handle in memory. A plugin keeps in the peer's what it has begun.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub struct NetHandle(pub [u8; HANDLE_BYTES]);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PluginAbi {
    V6 = 6,
    V8 = 8,
    V11 = 11,
    V12 = 12,
}

impl PluginAbi {
    /// In the order in which they are looked for.
    pub const ALL: [PluginAbi; 4] = [PluginAbi::V12, PluginAbi::V11, PluginAbi::V8, PluginAbi::V6];

    /// The structure's name in a library.
    pub fn symbol(self) -> &'static CStr {
        match self {
            PluginAbi::V6 => c"ncclNetPlugin_v6",
            PluginAbi::V8 => c"ncclNetPlugin_v8",
            PluginAbi::V11 => c"ncclNetPlugin_v11",
            PluginAbi::V12 => c"ncclNetPlugin_v12",
        }
    }

    fn words(self) -> usize {
        match self {
            PluginAbi::V6 => 17,
            PluginAbi::V8 => 19,
            PluginAbi::V11 | PluginAbi::V12 => 22,
        }
    }

    /// The structure's length.
    pub fn bytes(self) -> usize {
        self.words() * size_of::<usize>()
    }

    /// Whether a plugin is started for each communicator, and not once for all.
    pub fn has_contexts(self) -> bool {
        matches!(self, PluginAbi::V11 | PluginAbi::V12)
    }

    /// Requests under way of one end of a connection, at most.
    pub fn most_requests(self) -> usize {
        if self == PluginAbi::V6 { 8 } else { 32 }
    }
}

/// Positions in the structure.
pub mod word {
    pub const NAME: usize = 0;
    pub const INIT: usize = 1;
    pub const DEVICES: usize = 2;
    pub const GET_PROPERTIES: usize = 3;
    pub const LISTEN: usize = 4;
    pub const CONNECT: usize = 5;
    pub const ACCEPT: usize = 6;
    pub const REG_MR: usize = 7;
    pub const DEREG_MR: usize = 9;
    pub const ISEND: usize = 10;
    pub const IRECV: usize = 11;
    pub const TEST: usize = 13;
    pub const CLOSE_SEND: usize = 14;
    pub const CLOSE_RECV: usize = 15;
    pub const CLOSE_LISTEN: usize = 16;
    /// From version 11 on.
    pub const FINALIZE: usize = 20;
    /// Words of the longest.
    pub const ALL: usize = 22;

    /// Those that every plugin has.
    pub const NEEDED: [usize; 13] = [
        DEVICES,
        GET_PROPERTIES,
        LISTEN,
        CONNECT,
        ACCEPT,
        REG_MR,
        DEREG_MR,
        ISEND,
        IRECV,
        TEST,
        CLOSE_SEND,
        CLOSE_RECV,
        CLOSE_LISTEN,
    ];
}

#[repr(C)]
pub struct Properties6 {
    name: *const c_char,
    pci_path: *const c_char,
    guid: u64,
    ptr_support: c_int,
    speed: c_int,
    port: c_int,
    latency: c_float,
    max_comms: c_int,
    max_recvs: c_int,
}

#[repr(C)]
pub struct Properties8 {
    name: *const c_char,
    pci_path: *const c_char,
    guid: u64,
    ptr_support: c_int,
    reg_is_global: c_int,
    speed: c_int,
    port: c_int,
    latency: c_float,
    max_comms: c_int,
    max_recvs: c_int,
    net_device_type: c_int,
    net_device_version: c_int,
}

/// Of versions 11, where a device is of 4 others at most, and 12, where it is of 8.
#[repr(C)]
pub struct Properties11<const DEVICES: usize> {
    name: *const c_char,
    pci_path: *const c_char,
    guid: u64,
    ptr_support: c_int,
    reg_is_global: c_int,
    force_flush: c_int,
    speed: c_int,
    port: c_int,
    latency: c_float,
    max_comms: c_int,
    max_recvs: c_int,
    net_device_type: c_int,
    net_device_version: c_int,
    ndevs: c_int,
    devs: [c_int; DEVICES],
    max_p2p_bytes: usize,
    max_coll_bytes: usize,
    max_multi_request_size: c_int,
    /// From version 12 on; padding before.
    rail_and_plane: [i16; 2],
}

const _: () = assert!(size_of::<Properties6>() == 48 && size_of::<Properties8>() == 64);
const _: () = assert!(size_of::<Properties11<4>>() == 112 && size_of::<Properties11<8>>() == 128);

/// What of the properties is read, in each version.
pub trait DeviceProperties {
    /// The name, the speed, what memory is supported, the kind of device, and the longest message
    /// or 0.
    fn read(&self) -> (*const c_char, c_int, c_int, c_int, usize);
}

impl DeviceProperties for Properties6 {
    fn read(&self) -> (*const c_char, c_int, c_int, c_int, usize) {
        (self.name, self.speed, self.ptr_support, HOST_DEVICE, 0)
    }
}

impl DeviceProperties for Properties8 {
    fn read(&self) -> (*const c_char, c_int, c_int, c_int, usize) {
        (self.name, self.speed, self.ptr_support, self.net_device_type, 0)
    }
}

impl<const DEVICES: usize> DeviceProperties for Properties11<DEVICES> {
    fn read(&self) -> (*const c_char, c_int, c_int, c_int, usize) {
        let most = self.max_p2p_bytes;
        (self.name, self.speed, self.ptr_support, self.net_device_type, most)
    }
}

/// What a plugin says of a device.
pub struct NetDevice {
    pub name: String,
    /// In Mbit/s.
    pub speed: u64,
    /// It takes memory of the host's, and needs no code on a device.
    pub is_usable: bool,
    /// The longest message, where it says so.
    pub most_bytes: Option<usize>,
}

impl NetDevice {
    /// # Safety
    /// A name is a C string.
    pub unsafe fn of(properties: &impl DeviceProperties) -> NetDevice {
        let (name, speed, memory, kind, most) = properties.read();
        NetDevice {
            // SAFETY: the caller's promise.
            name: unsafe { text(name) }.unwrap_or_else(|| "device".into()),
            speed: u64::try_from(speed).unwrap_or(0),
            is_usable: memory & HOST_MEMORY != 0 && kind == HOST_DEVICE,
            most_bytes: (most > 0).then_some(most),
        }
    }
}

#[repr(C)]
struct NetConfig {
    traffic_class: c_int,
}

/// `NCCL_NET_TRAFFIC_CLASS_UNDEF`.
const ANY_TRAFFIC_CLASS: c_int = -1;

type Log = unsafe extern "C" fn(c_int, c_ulong, *const c_char, c_int, *const c_char);
type Profiler =
    unsafe extern "C" fn(*mut *mut c_void, c_int, *mut c_void, i64, *mut c_void) -> NetCode;

/// Takes what a plugin would log, and drops it. Plugins call it with more arguments than it names,
/// as C's functions with `...`: where it takes those it names from registers, as the calling
/// conventions of x86-64 and AArch64 have it, it need not know of the others.
unsafe extern "C" fn no_log(
    _level: c_int,
    _flags: c_ulong,
    _file: *const c_char,
    _line: c_int,
    _format: *const c_char,
) {
}

unsafe extern "C" fn no_profiler(
    _event: *mut *mut c_void,
    _kind: c_int,
    _parent: *mut c_void,
    _plugin: i64,
    _data: *mut c_void,
) -> NetCode {
    OK
}

/// The structure that a library exports. Until its plugin has started, it may hold no more than the
/// name and the start.
#[derive(Clone, Copy)]
pub struct PluginTable {
    pub abi: PluginAbi,
    pub words: *const *const c_void,
}

impl PluginTable {
    fn word(self, at: usize) -> *const c_void {
        assert!(at < self.abi.words());
        // SAFETY: the structure has as many words, and its library is never unloaded.
        unsafe { self.words.add(at).read_volatile() }
    }

    /// The plugin's name, which it may choose when it starts.
    pub fn name(self) -> String {
        // SAFETY: null, or a text of the library's.
        unsafe { text(self.word(word::NAME).cast()) }.unwrap_or_else(|| "without a name".into())
    }

    /// Start the plugin; its context, where the version has contexts.
    ///
    /// # Safety
    /// A plugin without contexts is not started yet; nobody starts or ends a plugin meanwhile.
    pub unsafe fn start(self) -> Result<*mut c_void, NetCode> {
        type Init6 = unsafe extern "C" fn(Log) -> NetCode;
        type Init11 =
            unsafe extern "C" fn(*mut *mut c_void, u64, *const NetConfig, Log, Profiler) -> NetCode;
        let mut context = std::ptr::null_mut();
        let init = self.word(word::INIT);
        if init.is_null() {
            return Err(INTERNAL);
        }
        let code = match self.abi.has_contexts() {
            // SAFETY: the type of these versions, and the caller's promise.
            false => unsafe { std::mem::transmute::<*const c_void, Init6>(init)(no_log) },
            true => {
                let config = NetConfig { traffic_class: ANY_TRAFFIC_CLASS };
                // SAFETY: the type of these versions; the configuration outlives the call.
                unsafe {
                    let init = std::mem::transmute::<*const c_void, Init11>(init);
                    init(&raw mut context, 0, &raw const config, no_log, no_profiler)
                }
            }
        };
        checked(code).map(|()| context)
    }

    /// The calls of a plugin that has started, or `None` where it lacks some.
    pub fn calls(self) -> Option<NetCalls> {
        let mut words = [std::ptr::null(); word::ALL];
        for (at, word) in words.iter_mut().enumerate().take(self.abi.words()) {
            *word = self.word(at);
        }
        let has_all = word::NEEDED.iter().all(|at| !words[*at].is_null());
        has_all.then(|| NetCalls::new(self.abi, words))
    }
}

/// A text of a plugin's.
///
/// # Safety
/// It is null or a C string.
unsafe fn text(text: *const c_char) -> Option<String> {
    // SAFETY: the caller's promise.
    (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
}

pub fn checked(code: NetCode) -> Result<(), NetCode> {
    if code == OK { Ok(()) } else { Err(code) }
}

/// What a code says.
pub fn told(code: NetCode) -> String {
    let words = match code {
        NEEDS_DEVICE => return "the connection needs code on a device".into(),
        1 => "a call of CUDA's failed (ncclUnhandledCudaError)",
        2 => "a call of the system's failed (ncclSystemError)",
        3 => "an error within the plugin (ncclInternalError)",
        4 => "an argument is wrong (ncclInvalidArgument)",
        5 => "it was used wrongly (ncclInvalidUsage)",
        6 => "the peer, or the way to it, has failed (ncclRemoteError)",
        _ => return format!("error {code}"),
    };
    format!("{words}, error {code}")
}
