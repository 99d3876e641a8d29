//! What only the driver without a GPU can do: fail on demand, hold a stream.

use std::ffi::{CStr, CString, c_char, c_void};
use std::sync::Once;

fn control(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: the driver is loaded, if it is there, and stays.
    let found = unsafe {
        let library = libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_LAZY);
        if library.is_null() { library } else { libc::dlsym(library, name.as_ptr()) }
    };
    (!found.is_null()).then_some(found)
}

pub fn is_there() -> bool {
    control(c"fakecuda_fail").is_some()
}

/// Let the nth call of an entry point from now fail; 0 lets none.
pub fn fail(symbol: &str, nth: u64, code: i32) {
    type Fail = unsafe extern "C" fn(*const c_char, u64, i32);
    let symbol = CString::new(symbol).expect("no NUL");
    let found = control(c"fakecuda_fail").expect("the fake driver");
    // SAFETY: the driver's own type; a C string.
    unsafe { std::mem::transmute::<*mut c_void, Fail>(found)(symbol.as_ptr(), nth, code) }
}

/// Let the nth call of another entry point since [`fail`] fail, too.
pub fn fail_too(symbol: &str, nth: u64, code: i32) {
    type Fail = unsafe extern "C" fn(*const c_char, u64, i32);
    let symbol = CString::new(symbol).expect("no NUL");
    let found = control(c"fakecuda_fail_too").expect("the fake driver");
    // SAFETY: the driver's own type; a C string.
    unsafe { std::mem::transmute::<*mut c_void, Fail>(found)(symbol.as_ptr(), nth, code) }
}

/// Calls of an entry point since [`fail`].
pub fn calls(symbol: &str) -> u64 {
    type Calls = unsafe extern "C" fn(*const c_char) -> u64;
    let symbol = CString::new(symbol).expect("no NUL");
    let found = control(c"fakecuda_calls").expect("the fake driver");
    // SAFETY: the driver's own type; a C string.
    unsafe { std::mem::transmute::<*mut c_void, Calls>(found)(symbol.as_ptr()) }
}

/// Let what the nth transfer of an entry point from now carries arrive wrong; 0 lets none: of
/// `cuMemcpyAsync` those from a device to the host, of `cuLaunchKernel` those on memory of another
/// device.
pub fn spoil(symbol: &str, nth: u64) {
    type Spoil = unsafe extern "C" fn(*const c_char, u64);
    let symbol = CString::new(symbol).expect("no NUL");
    let found = control(c"fakecuda_spoil").expect("the fake driver");
    // SAFETY: the driver's own type; a C string.
    unsafe { std::mem::transmute::<*mut c_void, Spoil>(found)(symbol.as_ptr(), nth) }
}

/// Whether it has.
pub fn is_spoilt() -> bool {
    let found = control(c"fakecuda_is_spoilt").expect("the fake driver");
    // SAFETY: the driver's own type.
    unsafe { std::mem::transmute::<*mut c_void, extern "C" fn() -> i32>(found)() == 1 }
}

/// Let the nth call of an entry point from now wait at its beginning, until the value goes.
pub fn stall(symbol: &str, nth: u64) -> Stalled {
    type Stall = unsafe extern "C" fn(*const c_char, u64);
    let symbol = CString::new(symbol).expect("no NUL");
    let found = control(c"fakecuda_stall").expect("the fake driver");
    // SAFETY: the driver's own type; a C string.
    unsafe { std::mem::transmute::<*mut c_void, Stall>(found)(symbol.as_ptr(), nth) };
    Stalled
}

/// A call waits, or will.
pub struct Stalled;

impl Stalled {
    /// Whether the call has come.
    pub fn has_come(&self) -> bool {
        let found = control(c"fakecuda_is_stalled").expect("the fake driver");
        // SAFETY: the driver's own type.
        unsafe { std::mem::transmute::<*mut c_void, extern "C" fn() -> i32>(found)() == 1 }
    }
}

impl Drop for Stalled {
    fn drop(&mut self) {
        std::mem::forget(stall("", 0));
    }
}

/// Give a stream something that does not end before [`release`], or before a thread panics: to free
/// the memory that it then lets go of, the driver waits for every stream.
pub fn hold(stream: *mut c_void) {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            before(panic);
            release();
        }));
    });
    type Hold = unsafe extern "C" fn(*mut c_void) -> i32;
    let found = control(c"fakecuda_hold").expect("the fake driver");
    // SAFETY: the driver's own type.
    assert_eq!(unsafe { std::mem::transmute::<*mut c_void, Hold>(found)(stream) }, 0);
}

pub fn release() {
    let found = control(c"fakecuda_release").expect("the fake driver");
    // SAFETY: the driver's own type.
    unsafe { std::mem::transmute::<*mut c_void, extern "C" fn()>(found)() }
}
