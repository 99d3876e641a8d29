//! UCX's library, found at run time: the one gate through which everything of UCX goes.
#![allow(unsafe_code)]

use super::declarations::{entry_points, *};
use crate::error::{Error, Result};
use crate::fork::Once;
use crate::os::thread_signals::with_own_signals;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

/// Where the library is looked for.
const LIBRARY: &CStr = c"libucp.so.0";

/// The interface that is asked for, and the least version: where a peer died while it connected,
/// 1.13 ended the process with a failed assertion, and 1.15 with a segmentation fault.
const API: (c_uint, c_uint) = (1, 16);

macro_rules! bound {
    ($($name:ident: fn($($argument:ty),*) $(-> $result:ty)?;)*) => {
        /// The entry points, by UCX's names.
        pub struct Ucp {
            $(pub $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
            /// The version that was found.
            pub version: (c_uint, c_uint, c_uint),
        }

        impl Ucp {
            fn bind(library: *mut c_void) -> Result<Ucp> {
                let mut ucp = Ucp {
                    $($name: {
                        let symbol = concat!("ucp_", stringify!($name), "\0");
                        let found = look_up(library, symbol)?;
                        // SAFETY: UCX's interface gives this name this type.
                        unsafe {
                            std::mem::transmute::<
                                *mut c_void,
                                unsafe extern "C" fn($($argument),*) $(-> $result)?,
                            >(found)
                        }
                    },)*
                    version: (0, 0, 0),
                };
                let (major, minor, release) = &mut ucp.version;
                // SAFETY: three integers are written.
                unsafe { (ucp.get_version)(major, minor, release) };
                check_version(ucp.version)?;
                Ok(ucp)
            }
        }
    };
}

entry_points!(bound);

/// What a call that may go on in the background gives.
pub enum Begun {
    Done,
    /// It goes on; to be asked about, and freed.
    Request(*mut c_void),
    Failed(UcsStatus),
}

impl Begun {
    pub fn of(answer: *mut c_void) -> Begun {
        match answer.addr().cast_signed() {
            0 => Begun::Done,
            code if (LAST_ERROR..0).contains(&code) => Begun::Failed(code as UcsStatus),
            _ => Begun::Request(answer),
        }
    }
}

fn look_up(library: *mut c_void, symbol: &str) -> Result<*mut c_void> {
    // SAFETY: a library that stays loaded, and a C string.
    let found = unsafe { libc::dlsym(library, symbol.as_ptr().cast()) };
    if found.is_null() {
        let name = symbol.trim_end_matches('\0');
        return Err(unusable(format!("it has no {name}; use UCX 1.16 or newer")));
    }
    Ok(found)
}

/// Refuse a version that a dying peer takes with it.
fn check_version((major, minor, release): (c_uint, c_uint, c_uint)) -> Result<()> {
    let (least_major, least_minor) = API;
    if (major, minor) >= API {
        return Ok(());
    }
    Err(unusable(format!(
        "it is UCX {major}.{minor}.{release}, which may end the process where a peer dies; use \
         {least_major}.{least_minor} or newer"
    )))
}

fn unusable(why: String) -> Error {
    Error::usage(format!("{} cannot be used: {why}", LIBRARY.to_string_lossy()))
}

/// The library, or why there is none, once it was asked for.
static UCP: Once<Result<Ucp>> = Once::new();

/// The library, loaded at the first call; it is never unloaded.
pub fn ucp() -> Result<&'static Ucp> {
    UCP.get_or_make(|| {
        let library = with_own_signals(|| {
            // SAFETY: a C string; loading runs the library's initializers, as any program's that
            // is linked with it.
            unsafe { libc::dlopen(LIBRARY.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) }
        });
        if library.is_null() {
            // SAFETY: the loader's own text, read before anything else is asked of it.
            let text = unsafe { CStr::from_ptr(libc::dlerror()) };
            return Err(unusable(text.to_string_lossy().into_owned()));
        }
        Ucp::bind(library)
    })
    .as_ref()
    .map_err(Clone::clone)
}

/// The interface's version that [`Ucp::init_version`] is given.
pub const fn api() -> (c_uint, c_uint) {
    API
}
