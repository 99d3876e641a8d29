//! Declarations of `ucp/api/ucp.h`, of the interface as of version 1.16, which all later ones of
//! the same SONAME have: structures carry a mask of the fields that are set, and are longer in
//! newer versions. UcsStatus codes are numbers and never become an enum.
//!
//! `cbindings/abi/tests/ucx_header.rs` holds them against UCX's own header.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

/// UCX's objects, which are addresses to this library.
pub type Object = *mut c_void;

pub type UcsStatus = i8;
pub const OK: UcsStatus = 0;
pub const IN_PROGRESS: UcsStatus = 1;
pub const BUSY: UcsStatus = -15;
/// Of the codes of errors the least: what an address of a request is never like.
pub const LAST_ERROR: isize = -100;

pub mod features {
    pub const WAKEUP: u64 = 1 << 4;
    pub const AM: u64 = 1 << 6;
}

#[repr(C)]
#[derive(Default)]
pub struct Params {
    pub field_mask: u64,
    pub features: u64,
    pub request_size: usize,
    pub request_init: usize,
    pub request_cleanup: usize,
    pub tag_sender_mask: u64,
    pub mt_workers_shared: c_int,
    pub estimated_num_eps: usize,
    pub estimated_num_ppn: usize,
    pub name: usize,
    /// What newer versions have behind it.
    pub spare: [u64; 8],
}

impl Params {
    pub const FEATURES: u64 = 1 << 0;
    pub const ESTIMATED_NUM_EPS: u64 = 1 << 6;
}

#[repr(C)]
#[derive(Default)]
pub struct WorkerParams {
    pub field_mask: u64,
    pub thread_mode: c_uint,
    pub cpu_mask: [u64; 16],
    pub events: c_uint,
    pub user_data: usize,
    pub event_fd: c_int,
    pub flags: u64,
    pub name: usize,
    pub am_alignment: usize,
    pub client_id: u64,
    pub spare: [u64; 8],
}

impl WorkerParams {
    pub const THREAD_MODE: u64 = 1 << 0;
    /// One thread at a time, and not always the same.
    pub const SERIALIZED: c_uint = 1;
}

pub type OnError = unsafe extern "C" fn(*mut c_void, Object, UcsStatus);

#[repr(C)]
pub struct EpParams {
    pub field_mask: u64,
    pub address: *const c_void,
    pub err_mode: c_uint,
    pub err_handler: Option<OnError>,
    pub err_arg: *mut c_void,
    pub user_data: usize,
    pub flags: c_uint,
    pub sockaddr: [usize; 2],
    pub conn_request: usize,
    pub name: usize,
    pub local_sockaddr: [usize; 2],
    spare: [u64; 8],
}

impl EpParams {
    pub const REMOTE_ADDRESS: u64 = 1 << 0;
    pub const ERR_HANDLING_MODE: u64 = 1 << 1;
    pub const ERR_HANDLER: u64 = 1 << 2;
    pub const PEER: c_uint = 1;

    pub fn new(address: *const c_void, err_handler: OnError, err_arg: *mut c_void) -> EpParams {
        EpParams {
            field_mask: EpParams::REMOTE_ADDRESS
                | EpParams::ERR_HANDLING_MODE
                | EpParams::ERR_HANDLER,
            address,
            err_mode: EpParams::PEER,
            err_handler: Some(err_handler),
            err_arg,
            user_data: 0,
            flags: 0,
            sockaddr: [0; 2],
            conn_request: 0,
            name: 0,
            local_sockaddr: [0; 2],
            spare: [0; 8],
        }
    }
}

/// A transport and a device that a lane uses.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct TransportEntry {
    transport: *const c_char,
    device: *const c_char,
}

impl Default for TransportEntry {
    fn default() -> TransportEntry {
        TransportEntry { transport: std::ptr::null(), device: std::ptr::null() }
    }
}

impl TransportEntry {
    /// As UCX writes it in its own logs.
    pub fn text(&self) -> String {
        let name = |name: *const c_char| match name.is_null() {
            true => String::new(),
            // SAFETY: a text of UCX's, which lives as long as the endpoint.
            false => unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned(),
        };
        format!("{}/{}", name(self.transport), name(self.device))
    }
}

/// Bytes of an endpoint's name and its two addresses (`sockaddr_storage`) in [`EpAttributes`].
const EP_NAME_AND_ADDRESSES: usize = 32 + 2 * 128;

/// What is asked of an endpoint.
#[repr(C)]
pub struct EpAttributes {
    pub field_mask: u64,
    _name_and_addresses: [u64; EP_NAME_AND_ADDRESSES / 8],
    pub entries: *mut TransportEntry,
    number_of_entries: c_uint,
    entry_bytes: usize,
    spare: [u64; 8],
}

impl EpAttributes {
    pub const TRANSPORTS: u64 = 1 << 3;

    /// Asks for the transports.
    pub fn of_transports(entries: &mut [TransportEntry]) -> EpAttributes {
        EpAttributes {
            field_mask: EpAttributes::TRANSPORTS,
            _name_and_addresses: [0; EP_NAME_AND_ADDRESSES / 8],
            entries: entries.as_mut_ptr(),
            number_of_entries: entries.len() as c_uint,
            entry_bytes: size_of::<TransportEntry>(),
            spare: [0; 8],
        }
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.number_of_entries as usize
    }
}

/// What a received active message comes with.
#[repr(C)]
pub struct AmRecvParam {
    pub recv_attr: u64,
    pub reply_ep: Object,
}

impl AmRecvParam {
    pub const DATA: u64 = 1 << 16;
    pub const RENDEZVOUS: u64 = 1 << 17;
}

pub type OnMessage = unsafe extern "C" fn(
    *mut c_void,
    *const c_void,
    usize,
    *mut c_void,
    usize,
    *const AmRecvParam,
) -> UcsStatus;

#[repr(C)]
pub struct AmHandlerParam {
    pub field_mask: u64,
    pub id: c_uint,
    pub flags: u32,
    pub callback: Option<OnMessage>,
    pub arg: *mut c_void,
    spare: [u64; 4],
}

impl AmHandlerParam {
    /// Messages may be kept beyond the callback.
    pub const PERSISTENT_DATA: u32 = 1 << 1;

    pub fn new(id: c_uint, callback: OnMessage, arg: *mut c_void) -> AmHandlerParam {
        AmHandlerParam {
            field_mask: 0b1111,
            id,
            flags: AmHandlerParam::PERSISTENT_DATA,
            callback: Some(callback),
            arg,
            spare: [0; 4],
        }
    }
}

#[repr(C)]
#[derive(Default)]
pub struct RequestParam {
    pub op_attr_mask: u32,
    pub flags: u32,
    pub request: usize,
    pub callback: usize,
    pub datatype: u64,
    pub user_data: usize,
    pub reply_buffer: usize,
    pub memory_type: c_uint,
    pub recv_info: usize,
    pub memh: usize,
    pub spare: [u64; 4],
}

impl RequestParam {
    pub const FLAGS: u32 = 1 << 4;
    /// Of closing an endpoint: without a word to the peer.
    pub const FORCE: u32 = 1 << 0;
}

/// Hands all entry points to a macro: names without `ucp_`, and types.
macro_rules! entry_points {
    ($to:ident) => {
        $to! {
            get_version: fn(*mut c_uint, *mut c_uint, *mut c_uint);
            config_read: fn(*const c_char, *const c_char, *mut Object) -> UcsStatus;
            config_release: fn(Object);
            init_version: fn(c_uint, c_uint, *const Params, Object, *mut Object) -> UcsStatus;
            cleanup: fn(Object);
            worker_create: fn(Object, *const WorkerParams, *mut Object) -> UcsStatus;
            worker_destroy: fn(Object);
            worker_get_address: fn(Object, *mut *mut c_void, *mut usize) -> UcsStatus;
            worker_release_address: fn(Object, *mut c_void);
            worker_progress: fn(Object) -> c_uint;
            worker_get_efd: fn(Object, *mut c_int) -> UcsStatus;
            worker_arm: fn(Object) -> UcsStatus;
            worker_set_am_recv_handler: fn(Object, *const AmHandlerParam) -> UcsStatus;
            ep_create: fn(Object, *const EpParams, *mut Object) -> UcsStatus;
            ep_query: fn(Object, *mut EpAttributes) -> UcsStatus;
            ep_close_nbx: fn(Object, *const RequestParam) -> *mut c_void;
            am_send_nbx: fn(
                Object, c_uint, *const c_void, usize, *const c_void, usize, *const RequestParam
            ) -> *mut c_void;
            am_recv_data_nbx: fn(
                Object, *mut c_void, *mut c_void, usize, *const RequestParam
            ) -> *mut c_void;
            am_data_release: fn(Object, *mut c_void);
            request_check_status: fn(*mut c_void) -> UcsStatus;
            request_free: fn(*mut c_void);
        }
    };
}
pub(crate) use entry_points;
