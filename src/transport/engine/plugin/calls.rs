//! Calls of a network plugin, the same for all versions of its interface.
//!
//! Lengths are `int` before version 11; a context, and arguments for a profiler, came with it.
//! Arguments that carry results are zero before each call, as plugins expect.
#![allow(unsafe_code)]

use super::abi::DeviceProperties;
use super::abi::{
    HOST_MEMORY, INTERNAL, MemoryHandle, NEEDS_DEVICE, NetCode, NetComm, NetDevice, NetHandle,
    PluginAbi, Properties6, Properties8, Properties11, Request, TAG, checked, word,
};
use std::ffi::{c_int, c_void};

/// The calls of a plugin that has started.
#[derive(Clone, Copy)]
pub struct NetCalls {
    pub abi: PluginAbi,
    words: [*const c_void; word::ALL],
}

// SAFETY: addresses of functions of a library that is never unloaded.
unsafe impl Send for NetCalls {}

// SAFETY: as above.
unsafe impl Sync for NetCalls {}

impl NetCalls {
    pub fn new(abi: PluginAbi, words: [*const c_void; word::ALL]) -> NetCalls {
        NetCalls { abi, words }
    }
}

/// A word as a function of these arguments; within `unsafe`.
macro_rules! call {
    ($calls:expr, $at:ident, fn($($argument:ty),*)) => {
        std::mem::transmute::<*const c_void, unsafe extern "C" fn($($argument),*) -> NetCode>(
            $calls.words[word::$at],
        )
    };
}

/// A length as versions before 11 have it.
fn as_int(length: usize) -> Result<c_int, NetCode> {
    c_int::try_from(length).map_err(|_| INTERNAL)
}

/// # Safety
/// Of all calls: what is passed came from the same plugin, is not closed, deregistered or done yet,
/// and of one connection's end nobody else uses anything meanwhile.
impl NetCalls {
    pub unsafe fn devices(&self) -> Result<c_int, NetCode> {
        let mut count = 0;
        // SAFETY: the interface's type.
        checked(unsafe { call!(self, DEVICES, fn(*mut c_int))(&raw mut count) })?;
        Ok(count)
    }

    pub unsafe fn device(&self, device: c_int) -> Result<NetDevice, NetCode> {
        // SAFETY: the type of each version.
        unsafe {
            match self.abi {
                PluginAbi::V6 => self.described::<Properties6>(device),
                PluginAbi::V8 => self.described::<Properties8>(device),
                PluginAbi::V11 => self.described::<Properties11<4>>(device),
                PluginAbi::V12 => self.described::<Properties11<8>>(device),
            }
        }
    }

    /// `T` is numbers and addresses.
    unsafe fn described<T: DeviceProperties>(&self, device: c_int) -> Result<NetDevice, NetCode> {
        // SAFETY: zero is good for what it is.
        let mut properties: T = unsafe { std::mem::zeroed() };
        // SAFETY: the interface's type.
        let get = unsafe { call!(self, GET_PROPERTIES, fn(c_int, *mut T)) };
        // SAFETY: as above.
        checked(unsafe { get(device, &raw mut properties) })?;
        // SAFETY: the name is null or a text of the plugin's.
        Ok(unsafe { NetDevice::of(&properties) })
    }

    pub unsafe fn listen(
        &self,
        context: *mut c_void,
        device: c_int,
        handle: &mut NetHandle,
    ) -> Result<NetComm, NetCode> {
        let (handle, mut comm) = ((&raw mut *handle).cast::<c_void>(), std::ptr::null_mut());
        // SAFETY: the interface's types.
        let code = unsafe {
            match self.abi.has_contexts() {
                false => {
                    let listen = call!(self, LISTEN, fn(c_int, *mut c_void, *mut NetComm));
                    listen(device, handle, &raw mut comm)
                }
                true => {
                    let listen =
                        call!(self, LISTEN, fn(*mut c_void, c_int, *mut c_void, *mut NetComm));
                    listen(context, device, handle, &raw mut comm)
                }
            }
        };
        checked(code)?;
        if comm.is_null() { Err(INTERNAL) } else { Ok(comm) }
    }

    /// Go on connecting; null until it is done. The handle is the same at each call.
    pub unsafe fn connect(
        &self,
        context: *mut c_void,
        device: c_int,
        handle: &mut NetHandle,
    ) -> Result<NetComm, NetCode> {
        type Handle = *mut c_void;
        type Offload = *mut *mut c_void;
        let handle = (&raw mut *handle).cast::<c_void>();
        let (mut comm, mut offload) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: the interface's types.
        let code = unsafe {
            match self.abi {
                PluginAbi::V6 => {
                    let connect = call!(self, CONNECT, fn(c_int, Handle, *mut NetComm));
                    connect(device, handle, &raw mut comm)
                }
                PluginAbi::V8 => {
                    let connect = call!(self, CONNECT, fn(c_int, Handle, *mut NetComm, Offload));
                    connect(device, handle, &raw mut comm, &raw mut offload)
                }
                PluginAbi::V11 | PluginAbi::V12 => {
                    let connect =
                        call!(self, CONNECT, fn(*mut c_void, c_int, Handle, *mut NetComm, Offload));
                    connect(context, device, handle, &raw mut comm, &raw mut offload)
                }
            }
        };
        checked(code)?;
        if offload.is_null() { Ok(comm) } else { Err(NEEDS_DEVICE) }
    }

    /// Go on accepting; null until it is done.
    pub unsafe fn accept(&self, listener: NetComm) -> Result<NetComm, NetCode> {
        let (mut comm, mut offload) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: the interface's types.
        let code = unsafe {
            match self.abi {
                PluginAbi::V6 => {
                    call!(self, ACCEPT, fn(NetComm, *mut NetComm))(listener, &raw mut comm)
                }
                _ => {
                    let accept = call!(self, ACCEPT, fn(NetComm, *mut NetComm, *mut *mut c_void));
                    accept(listener, &raw mut comm, &raw mut offload)
                }
            }
        };
        checked(code)?;
        if offload.is_null() { Ok(comm) } else { Err(NEEDS_DEVICE) }
    }

    /// Register memory of the host's with one end of a connection.
    pub unsafe fn register(
        &self,
        comm: NetComm,
        (address, length): (*mut u8, usize),
    ) -> Result<MemoryHandle, NetCode> {
        type Out = *mut MemoryHandle;
        let (data, mut registration) = (address.cast::<c_void>(), std::ptr::null_mut());
        // SAFETY: the interface's types.
        let code = unsafe {
            match self.abi {
                PluginAbi::V6 => {
                    let register = call!(self, REG_MR, fn(NetComm, *mut c_void, c_int, c_int, Out));
                    register(comm, data, as_int(length)?, HOST_MEMORY, &raw mut registration)
                }
                _ => {
                    let register = call!(self, REG_MR, fn(NetComm, *mut c_void, usize, c_int, Out));
                    register(comm, data, length, HOST_MEMORY, &raw mut registration)
                }
            }
        };
        checked(code).map(|()| registration)
    }

    pub unsafe fn deregister(&self, comm: NetComm, memory: MemoryHandle) -> Result<(), NetCode> {
        // SAFETY: the interface's type.
        checked(unsafe { call!(self, DEREG_MR, fn(NetComm, MemoryHandle))(comm, memory) })
    }

    /// Send; null where it has to be asked for again.
    pub unsafe fn isend(
        &self,
        comm: NetComm,
        (address, length): (*mut u8, usize),
        memory: MemoryHandle,
    ) -> Result<Request, NetCode> {
        type Data = *mut c_void;
        type Out = *mut Request;
        let (data, mut request) = (address.cast::<c_void>(), std::ptr::null_mut());
        // SAFETY: the interface's types; there is nothing for the profiler.
        let code = unsafe {
            match self.abi.has_contexts() {
                false => {
                    let isend =
                        call!(self, ISEND, fn(NetComm, Data, c_int, c_int, MemoryHandle, Out));
                    isend(comm, data, as_int(length)?, TAG, memory, &raw mut request)
                }
                true => {
                    let isend = call!(
                        self,
                        ISEND,
                        fn(NetComm, Data, usize, c_int, MemoryHandle, Data, Out)
                    );
                    let profiled = std::ptr::null_mut();
                    isend(comm, data, length, TAG, memory, profiled, &raw mut request)
                }
            }
        };
        checked(code).map(|()| request)
    }

    /// Receive so many bytes or less; null where it has to be asked for again.
    pub unsafe fn irecv(
        &self,
        comm: NetComm,
        (address, length): (*mut u8, usize),
        memory: MemoryHandle,
    ) -> Result<Request, NetCode> {
        type List<T> = *mut T;
        type Data = *mut c_void;
        type Out = *mut Request;
        let mut request = std::ptr::null_mut();
        let (mut data, mut tag, mut memory) = (address.cast::<c_void>(), TAG, memory);
        let (data, tags, memory) = (&raw mut data, &raw mut tag, &raw mut memory);
        // SAFETY: the interface's types; lists of one, which are read during the call alone.
        let code = unsafe {
            match self.abi.has_contexts() {
                false => {
                    type Ints = List<c_int>;
                    let irecv =
                        call!(self, IRECV, fn(NetComm, c_int, List<Data>, Ints, Ints, Out, Out));
                    let mut length = as_int(length)?;
                    irecv(comm, 1, data, &raw mut length, tags, memory, &raw mut request)
                }
                true => {
                    type Sizes = List<usize>;
                    let irecv = call!(
                        self,
                        IRECV,
                        fn(NetComm, c_int, List<Data>, Sizes, List<c_int>, Out, Out, Out)
                    );
                    let (mut length, mut profiled) = (length, std::ptr::null_mut());
                    let (length, profiled) = (&raw mut length, &raw mut profiled);
                    irecv(comm, 1, data, length, tags, memory, profiled, &raw mut request)
                }
            }
        };
        checked(code).map(|()| request)
    }

    /// Go on with a request; once it is done, and dead, the bytes that were received.
    pub unsafe fn test(&self, request: Request) -> Result<Option<usize>, NetCode> {
        // As many as NCCL gives.
        let (mut done, mut sizes) = (0, [0 as c_int; 64]);
        // SAFETY: the interface's type.
        let test = unsafe { call!(self, TEST, fn(Request, *mut c_int, *mut c_int)) };
        // SAFETY: as above.
        checked(unsafe { test(request, &raw mut done, sizes.as_mut_ptr()) })?;
        Ok((done != 0).then(|| usize::try_from(sizes[0]).unwrap_or(usize::MAX)))
    }

    pub unsafe fn close_send(&self, comm: NetComm) -> Result<(), NetCode> {
        // SAFETY: the interface's type.
        checked(unsafe { call!(self, CLOSE_SEND, fn(NetComm))(comm) })
    }

    pub unsafe fn close_receive(&self, comm: NetComm) -> Result<(), NetCode> {
        // SAFETY: the interface's type.
        checked(unsafe { call!(self, CLOSE_RECV, fn(NetComm))(comm) })
    }

    pub unsafe fn close_listen(&self, comm: NetComm) -> Result<(), NetCode> {
        // SAFETY: the interface's type.
        checked(unsafe { call!(self, CLOSE_LISTEN, fn(NetComm))(comm) })
    }

    /// End a context, all of whose connections are closed.
    pub unsafe fn finalize(&self, context: *mut c_void) -> Result<(), NetCode> {
        if !self.abi.has_contexts() || self.words[word::FINALIZE].is_null() {
            return Ok(());
        }
        // SAFETY: the interface's type.
        checked(unsafe { call!(self, FINALIZE, fn(*mut c_void))(context) })
    }
}
