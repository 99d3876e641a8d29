//! What is used of the driver's interface: types, numbers, entry points.
//!
//! All of it is copied from what the driver promises, and nothing else is known here, so that
//! `cbindings/abi` can read this file, too, and hold it against NVIDIA's own header.

use std::ffi::c_void;

/// A result of the driver; 0 is success.
pub type Code = i32;

/// The codes that something is made of.
pub const INVALID_VALUE: Code = 1;
pub const NO_DEVICE: Code = 100;
/// Something else is mapped there.
pub const ALREADY_MAPPED: Code = 208;
/// Neither machine code for the device is there, nor what could be compiled for it.
pub const NO_BINARY_FOR_GPU: Code = 209;
/// What a driver answers to an image that is newer than itself: no image that it knows, no PTX that
/// it knows, no compiler for it, too new a version, no compiling.
pub const TOO_NEW: [Code; 5] = [200, 218, 221, 222, 223];
pub const PEER_ACCESS_UNSUPPORTED: Code = 217;
pub const PEER_ACCESS_ALREADY_ENABLED: Code = 704;
pub const NOT_READY: Code = 600;
pub const NOT_PERMITTED: Code = 800;
pub const NOT_SUPPORTED: Code = 801;

/// The mode of captures in which threads do as they like, by the driver's number.
pub const RELAXED: i32 = 2;

/// What the driver hands out is never looked into.
pub type Context = *mut c_void;
pub type RawStream = *mut c_void;
pub type RawEvent = *mut c_void;
pub type Module = *mut c_void;
pub type Function = *mut c_void;
pub type Graph = *mut c_void;
pub type GraphExec = *mut c_void;
pub type RawGraphNode = *mut c_void;
pub type Address = u64;
/// A piece of memory that has no address yet.
pub type AllocationHandle = u64;

/// What a piece of memory is to be like, as the driver lays it out.
#[repr(C)]
pub struct AllocationProp {
    pub kind: i32,
    /// How it may travel: a bit for each way.
    pub carriers: i32,
    pub place: MemLocation,
    pub unused: [u64; 2],
}

/// On which device memory is.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct MemLocation {
    pub kind: i32,
    pub ordinal: i32,
}

/// Who may do what with a range of addresses.
#[repr(C)]
pub struct AccessDesc {
    pub place: MemLocation,
    pub what: i32,
}

/// What names an allocation to other processes: a value of the driver's, of this size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct IpcMemHandle(pub [u64; 8]);

/// `cuCtxGetCurrent`, which is also asked where nobody has bound the others.
pub type CurrentContext = unsafe extern "C" fn(*mut Context) -> Code;

/// Hand all entry points to a macro: what they do, their names, their arguments, of types that it
/// has in scope. Each returns a [`Code`].
macro_rules! entry_points {
    ($with:ident) => {
        $with! {
            init = cuInit (u32);
            version = cuDriverGetVersion (*mut i32);
            error_name = cuGetErrorName (Code, *mut *const c_char);
            error_string = cuGetErrorString (Code, *mut *const c_char);
            device_count = cuDeviceGetCount (*mut i32);
            device_get = cuDeviceGet (*mut i32, i32);
            device_attribute = cuDeviceGetAttribute (*mut i32, i32, i32);
            device_name = cuDeviceGetName (*mut c_char, i32, i32);
            device_uuid = cuDeviceGetUuid_v2 (*mut [u8; 16], i32);
            device_peer = cuDeviceCanAccessPeer (*mut i32, i32, i32);
            primary_retain = cuDevicePrimaryCtxRetain (*mut Context, i32);
            primary_release = cuDevicePrimaryCtxRelease_v2 (i32);
            context_device = cuCtxGetDevice (*mut i32);
            context_id = cuCtxGetId (Context, *mut u64);
            context_push = cuCtxPushCurrent_v2 (Context);
            context_pop = cuCtxPopCurrent_v2 (*mut Context);
            context_peer = cuCtxEnablePeerAccess (Context, u32);
            pointer_attribute = cuPointerGetAttribute (*mut c_void, i32, Address);
            pointer_attributes = cuPointerGetAttributes (u32, *mut i32, *mut *mut c_void, Address);
            host_allocate = cuMemHostAlloc (*mut *mut c_void, usize, u32);
            host_free = cuMemFreeHost (*mut c_void);
            memory_allocate = cuMemAlloc_v2 (*mut Address, usize);
            memory_free = cuMemFree_v2 (Address);
            copy = cuMemcpyAsync (Address, Address, usize, RawStream);
            fill = cuMemsetD8Async (Address, u8, usize, RawStream);
            event_create = cuEventCreate (*mut RawEvent, u32);
            event_record = cuEventRecord (RawEvent, RawStream);
            event_query = cuEventQuery (RawEvent);
            event_elapsed = cuEventElapsedTime (*mut f32, RawEvent, RawEvent);
            event_destroy = cuEventDestroy_v2 (RawEvent);
            stream_create = cuStreamCreate (*mut RawStream, u32);
            stream_destroy = cuStreamDestroy_v2 (RawStream);
            stream_wait = cuStreamWaitEvent (RawStream, RawEvent, u32);
            stream_synchronize = cuStreamSynchronize (RawStream);
            stream_query = cuStreamQuery (RawStream);
            stream_capture = cuStreamGetCaptureInfo_v2
                (RawStream, *mut i32, *mut u64, *mut Graph, *mut *const RawGraphNode, *mut usize);
            capture_mode = cuThreadExchangeStreamCaptureMode (*mut i32);
            capture_begin = cuStreamBeginCapture_v2 (RawStream, i32);
            capture_end = cuStreamEndCapture (RawStream, *mut Graph);
            graph_instantiate = cuGraphInstantiateWithFlags (*mut GraphExec, Graph, u64);
            graph_launch = cuGraphLaunch (GraphExec, RawStream);
            graph_destroy = cuGraphDestroy (Graph);
            graph_exec_destroy = cuGraphExecDestroy (GraphExec);
            module_load = cuModuleLoadData (*mut Module, *const c_void);
            module_unload = cuModuleUnload (Module);
            module_function = cuModuleGetFunction (*mut Function, Module, *const c_char);
            address_range = cuMemGetAddressRange_v2 (*mut Address, *mut usize, Address);
            export = cuIpcGetMemHandle (*mut IpcMemHandle, Address);
            import = cuIpcOpenMemHandle_v2 (*mut Address, IpcMemHandle, u32);
            close = cuIpcCloseMemHandle (Address);
            piece_granularity = cuMemGetAllocationGranularity
                (*mut usize, *const AllocationProp, i32);
            piece_create = cuMemCreate (*mut AllocationHandle, usize, *const AllocationProp, u64);
            piece_retain = cuMemRetainAllocationHandle (*mut AllocationHandle, *mut c_void);
            piece_release = cuMemRelease (AllocationHandle);
            piece_export = cuMemExportToShareableHandle (*mut c_void, AllocationHandle, i32, u64);
            piece_import = cuMemImportFromShareableHandle (*mut AllocationHandle, *mut c_void, i32);
            addresses_reserve = cuMemAddressReserve (*mut Address, usize, usize, Address, u64);
            addresses_free = cuMemAddressFree (Address, usize);
            addresses_map = cuMemMap (Address, usize, usize, AllocationHandle, u64);
            addresses_unmap = cuMemUnmap (Address, usize);
            addresses_open = cuMemSetAccess (Address, usize, *const AccessDesc, usize);
            host_register = cuMemHostRegister_v2 (*mut c_void, usize, u32);
            host_unregister = cuMemHostUnregister (*mut c_void);
            host_address = cuMemHostGetDevicePointer_v2 (*mut Address, *mut c_void, u32);
            write_value = cuStreamWriteValue32_v2 (RawStream, Address, u32, u32);
            wait_value = cuStreamWaitValue32_v2 (RawStream, Address, u32, u32);
            launch = cuLaunchKernel
                (Function, u32, u32, u32, u32, u32, u32, u32, RawStream,
                 *mut *mut c_void, *mut *mut c_void);
            launch_cooperative = cuLaunchCooperativeKernel
                (Function, u32, u32, u32, u32, u32, u32, u32, RawStream, *mut *mut c_void);
        }
    };
}
pub(crate) use entry_points;
