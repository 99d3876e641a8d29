//! One order for what several devices are given, within which no memory comes or goes.
//!
//! Kernels that wait for each other's are launched on one device after another. To free memory, to
//! close or to unmap it, a driver may wait for all that its devices have, and let nobody launch
//! meanwhile: between two such launches it would wait for a kernel that waits for the second. To
//! keep launches back until it is through is no better: what it waits for may be a stream that a
//! kernel, or its caller, waits for the next launch with. So while there may be such kernels the
//! library frees nothing: what is let go is kept, for who needs as much again, until the last of
//! them are gone. Memory that comes cannot be put off; it comes between the launches of two calls.

use super::context::Device;
use super::memory::{DeviceMemory, Pinned};
use crate::error::{Error, Result};
use crate::fork::ForkSafeMutex;
use crate::sync::{Mutex, MutexGuard};
use std::any::Any;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Held while the kernels of one call are given to several devices.
static ORDER: Mutex<()> = Mutex::new(());

/// No other call is given to several devices meanwhile, and no memory of the library's comes.
pub fn in_one_order() -> MutexGuard<'static, ()> {
    ORDER.lock()
}

#[derive(Default)]
struct LaunchState {
    /// How many hold an [`SpinKernelsActive`].
    interlocked: usize,
    /// Memory that began to come or to go while nobody did.
    under_way: usize,
    /// What was let go since.
    kept: Vec<Box<dyn Any + Send>>,
    spares: Spares,
}

static STATE: ForkSafeMutex<LaunchState> = ForkSafeMutex::new(LaunchState {
    interlocked: 0,
    under_way: 0,
    kept: Vec::new(),
    spares: Spares { pinned: Vec::new(), memory: Vec::new() },
});

/// Between two looks at what is under way.
const PAUSE: Duration = Duration::from_micros(200);

/// While one lives, kernels of this process may wait for each other's on several devices.
pub struct SpinKernelsActive(());

impl SpinKernelsActive {
    /// From when on nothing is freed, and what began before has ended; that is waited for no
    /// longer than `longest`.
    pub fn begin(longest: Duration) -> Result<SpinKernelsActive> {
        STATE.lock().interlocked += 1;
        let interlocked = SpinKernelsActive(());
        let started = Instant::now();
        while STATE.lock().under_way > 0 {
            if started.elapsed() > longest {
                return Err(Error::Cuda(format!(
                    "cannot start peer-to-peer kernels: an allocation or a free has held the CUDA \
                     driver for {} ms",
                    longest.as_millis()
                )));
            }
            std::thread::sleep(PAUSE);
        }
        Ok(interlocked)
    }
}

impl Drop for SpinKernelsActive {
    fn drop(&mut self) {
        let mut state = STATE.lock();
        // A child begins with none, and may drop its parent's.
        state.interlocked = state.interlocked.saturating_sub(1);
        if state.interlocked > 0 {
            return;
        }
        let all = (std::mem::take(&mut state.kept), std::mem::take(&mut state.spares));
        let _under_way = UnderWay::begin(state);
        drop(all);
    }
}

/// Memory that comes or goes while there are no kernels that wait.
struct UnderWay(());

impl UnderWay {
    fn begin(mut state: impl DerefMut<Target = LaunchState>) -> UnderWay {
        state.under_way += 1;
        UnderWay(())
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        let mut state = STATE.lock();
        // As for `SpinKernelsActive`.
        state.under_way = state.under_way.saturating_sub(1);
    }
}

/// Held while the driver does what it may wait for kernels with.
pub struct Between {
    _order: Option<MutexGuard<'static, ()>>,
    _under_way: Option<UnderWay>,
}

/// Between the launches of two calls of kernels that wait for each other, where there may be some.
pub fn between_launches() -> Between {
    {
        let state = STATE.lock();
        if state.interlocked == 0 {
            return Between { _order: None, _under_way: Some(UnderWay::begin(state)) };
        }
    }
    Between { _order: Some(in_one_order()), _under_way: None }
}

/// Memory of the library's own, in one way or another, which comes between launches and goes when
/// no kernels wait for each other.
pub struct DeferredFree<T: Send + 'static>(Option<T>);

impl<T: Send + 'static> DeferredFree<T> {
    pub fn new(make: impl FnOnce() -> Result<T>) -> Result<DeferredFree<T>> {
        let _between = between_launches();
        make().map(|one| DeferredFree(Some(one)))
    }

    /// As [`DeferredFree::new`], where there may be none.
    pub fn new_or_none(
        make: impl FnOnce() -> Result<Option<T>>,
    ) -> Result<Option<DeferredFree<T>>> {
        let _between = between_launches();
        Ok(make()?.map(|one| DeferredFree(Some(one))))
    }
}

impl<T: Send + 'static> Deref for DeferredFree<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.as_ref().expect("there until it is let go")
    }
}

impl<T: Send + 'static> Drop for DeferredFree<T> {
    fn drop(&mut self) {
        self.0.take().into_iter().for_each(let_go_of);
    }
}

/// Drop it, now or when no kernels wait for each other.
fn let_go_of<T: Send + 'static>(one: T) {
    release_when_idle(one, |state, one| state.kept.push(Box::new(one)));
}

/// Memory that somebody else may have after its owner.
pub trait DeviceBlock: Send + Sized + 'static {
    fn allocate(device: &Arc<Device>, bytes: usize) -> Result<Self>;

    /// Whether it is reached as memory of this device is.
    fn is_of(&self, device: &Device) -> bool;

    fn bytes(&self) -> usize;

    /// Its kind's among all.
    fn among(spares: &mut Spares) -> &mut Vec<Self>;
}

/// Memory that nothing uses any more.
#[derive(Default)]
pub struct Spares {
    pub(super) pinned: Vec<Pinned>,
    pub(super) memory: Vec<DeviceMemory>,
}

impl<T: DeviceBlock> DeferredFree<T> {
    /// So many bytes at least, which hold anything.
    pub fn of(device: &Arc<Device>, bytes: usize) -> Result<DeferredFree<T>> {
        // Let go of before memory comes, which takes it again.
        let spare = spare(T::among(&mut STATE.lock().spares), device, bytes);
        match spare {
            Some(spare) => Ok(DeferredFree(Some(spare))),
            None => DeferredFree::new(|| T::allocate(device, bytes)),
        }
    }

    /// Nothing uses it any more, and nothing will.
    pub fn release(mut self) {
        if let Some(one) = self.0.take() {
            release_when_idle(one, |state, one| T::among(&mut state.spares).push(one));
        }
    }
}

/// The smallest that is large enough, unless that is much too large: more than twice, or a page.
fn spare<T: DeviceBlock>(spares: &mut Vec<T>, device: &Device, bytes: usize) -> Option<T> {
    const PAGE: usize = 4096;
    let suits = bytes..=PAGE.max(bytes.saturating_mul(2));
    let all = spares.iter().enumerate();
    let all = all.filter(|(_, one)| one.is_of(device) && suits.contains(&one.bytes()));
    let (index, _) = all.min_by_key(|(_, one)| one.bytes())?;
    Some(spares.swap_remove(index))
}

/// Free what it is, or keep it where it cannot be freed.
fn release_when_idle<T>(one: T, keep: impl FnOnce(&mut LaunchState, T)) {
    let mut state = STATE.lock();
    if state.interlocked > 0 {
        return keep(&mut state, one);
    }
    let _under_way = UnderWay::begin(state);
    drop(one);
}
