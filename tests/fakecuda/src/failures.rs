//! Errors on demand: the nth call of an entry point answers with a code that was asked for.

use crate::{Code, lock};
use std::collections::HashMap;
use std::ffi::{CStr, c_char};
use std::sync::atomic::{AtomicI32, Ordering::SeqCst};
use std::sync::{Condvar, LazyLock, Mutex};

#[derive(Default)]
struct Failures {
    /// Calls of each entry point so far.
    calls: HashMap<&'static str, u64>,
    /// What is to fail: the entry points, at which of their calls from the first, and how.
    wanted: Vec<(String, u64, Code)>,
}

static FAILURES: LazyLock<Mutex<Failures>> = LazyLock::new(|| {
    let parse = |text: &str| {
        let mut words = text.split(':');
        let symbol = words.next()?.to_string();
        Some((symbol, words.next()?.parse().ok()?, words.next()?.parse().ok()?))
    };
    let asked = std::env::var("FAKECUDA_FAIL").unwrap_or_default();
    let wanted = asked.split(',').filter_map(parse).collect();
    Mutex::new(Failures { wanted, ..Failures::default() })
});

/// What breaks a context: from then on everything in it answers the same; 0 while nothing has.
static BROKEN: AtomicI32 = AtomicI32::new(0);

pub fn break_with(code: Code) {
    BROKEN.store(code, SeqCst);
}

pub fn broken() -> Option<Code> {
    Some(BROKEN.load(SeqCst)).filter(|code| *code != 0)
}

/// Errors of the device's own work: addresses, traps, hardware.
fn breaks(code: Code) -> bool {
    code == 700 || (714..=719).contains(&code)
}

/// Count a call; the code that it has to answer with, if it has to fail.
pub fn injected(symbol: &'static str) -> Option<Code> {
    let broken = broken();
    let asked = asked_for(symbol);
    if broken.is_some() {
        return broken;
    }
    asked.inspect(|code| {
        if breaks(*code) {
            break_with(*code);
        }
    })
}

/// As [`injected`], of what no context has a part in.
pub fn asked_for(symbol: &'static str) -> Option<Code> {
    let mut failures = lock(&FAILURES);
    let calls = failures.calls.entry(symbol).or_default();
    *calls += 1;
    let nth = *calls;
    let is_now = |(name, at, _): &&(String, u64, Code)| name == symbol && *at == nth;
    failures.wanted.iter().find(is_now).map(|(.., code)| *code)
}

/// What is to arrive wrong: of which entry point, and how many of its transfers are still to come.
static SPOILT: Mutex<Option<(String, u64)>> = Mutex::new(None);

/// Whether what this transfer carries is to arrive wrong.
pub fn spoils(symbol: &str) -> bool {
    let mut spoilt = lock(&SPOILT);
    let is_it = |(wanted, left): &&mut (String, u64)| wanted == symbol && *left > 0;
    let Some((_, left)) = spoilt.as_mut().filter(is_it) else { return false };
    *left -= 1;
    *left == 0
}

/// Let what the `nth` transfer of `symbol` from now carries arrive wrong: a copy to the host's
/// memory, or a kernel's on memory of another device. 0 lets none.
///
/// # Safety
/// `symbol` is a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fakecuda_spoil(symbol: *const c_char, nth: u64) {
    // SAFETY: the caller's promise.
    let symbol = unsafe { CStr::from_ptr(symbol) }.to_string_lossy().into_owned();
    *lock(&SPOILT) = (nth > 0).then_some((symbol, nth));
}

/// 1 when what was asked for has come about.
#[unsafe(no_mangle)]
pub extern "C" fn fakecuda_is_spoilt() -> i32 {
    lock(&SPOILT).as_ref().is_some_and(|(_, left)| *left == 0).into()
}

/// A call that does not get on.
struct Stall {
    symbol: String,
    /// How many calls of it are still to come, with this one.
    left: u64,
}

static STALL: Mutex<Option<Stall>> = Mutex::new(None);
static GO_ON: Condvar = Condvar::new();

/// Wait here where it was asked for.
pub fn stall(symbol: &str) {
    let mut stall = lock(&STALL);
    let Some(asked) = stall.as_mut().filter(|asked| asked.symbol == symbol && asked.left > 0)
    else {
        return;
    };
    asked.left -= 1;
    if asked.left == 0 {
        while stall.is_some() {
            stall = GO_ON.wait(stall).expect("nobody panics with it");
        }
    }
}

/// Let the `nth` call of `symbol` from now wait before it does anything; with 0 all go on.
///
/// # Safety
/// `symbol` is a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fakecuda_stall(symbol: *const c_char, nth: u64) {
    // SAFETY: the caller's promise.
    let symbol = unsafe { CStr::from_ptr(symbol) }.to_string_lossy().into_owned();
    *lock(&STALL) = (nth > 0).then_some(Stall { symbol, left: nth });
    GO_ON.notify_all();
}

/// 1 when the call that was asked for waits.
#[unsafe(no_mangle)]
pub extern "C" fn fakecuda_is_stalled() -> i32 {
    lock(&STALL).as_ref().is_some_and(|stall| stall.left == 0).into()
}

/// Let the `nth` call of `symbol` from now fail with `code`; 0 lets none fail. The counts begin
/// anew, and what was broken is whole.
///
/// # Safety
/// `symbol` is a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fakecuda_fail(symbol: *const c_char, nth: u64, code: Code) {
    // SAFETY: the caller's promise.
    let name = unsafe { CStr::from_ptr(symbol) }.to_string_lossy().into_owned();
    let mut failures = lock(&FAILURES);
    failures.calls.clear();
    break_with(0);
    failures.wanted = (nth > 0).then_some((name, nth, code)).into_iter().collect();
}

/// Let the `nth` call of another entry point since the last `fakecuda_fail` fail, too.
///
/// # Safety
/// `symbol` is a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fakecuda_fail_too(symbol: *const c_char, nth: u64, code: Code) {
    // SAFETY: the caller's promise.
    let name = unsafe { CStr::from_ptr(symbol) }.to_string_lossy().into_owned();
    lock(&FAILURES).wanted.push((name, nth, code));
}

/// Calls of `symbol` since the last `fakecuda_fail`.
///
/// # Safety
/// `symbol` is a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fakecuda_calls(symbol: *const c_char) -> u64 {
    // SAFETY: the caller's promise.
    let name = unsafe { CStr::from_ptr(symbol) }.to_string_lossy();
    lock(&FAILURES).calls.get(&*name).copied().unwrap_or(0)
}
