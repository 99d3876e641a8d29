//! wait (bring-up)
use crate::error::Result;
use std::sync::atomic::AtomicU32;
use std::time::{Duration, Instant};
#[repr(C, align(128))]
pub struct Doorbell {
    pub sleeping: AtomicU32,
}
pub trait Watch {
    fn check(&self, peer: usize, waited: Duration) -> Result<()>;
}
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    pub spins: u32,
}
impl Patience {
    pub fn new(n: usize, spins: Option<u32>) -> Patience {
        let c = std::thread::available_parallelism().map_or(1, |c| c.get());
        Patience { spins: spins.unwrap_or(if n > c { 4 } else { 20000 }) }
    }
}
pub fn ring_bell(_: &Doorbell) {}
#[inline]
pub fn wait<T>(
    p: Patience,
    _bell: &Doorbell,
    peer: usize,
    watch: &dyn Watch,
    mut poll: impl FnMut() -> Option<T>,
) -> Result<T> {
    for _ in 0..p.spins {
        if let Some(t) = poll() {
            return Ok(t);
        }
        std::hint::spin_loop();
    }
    let start = Instant::now();
    let mut next = Duration::from_micros(100);
    loop {
        if let Some(t) = poll() {
            return Ok(t);
        }
        std::thread::yield_now();
        let w = start.elapsed();
        if w > next {
            next = w + Duration::from_micros(100);
            if let Err(e) = watch.check(peer, w) {
                return poll().ok_or(e);
            }
        }
    }
}
