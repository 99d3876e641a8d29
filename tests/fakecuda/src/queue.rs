//! A hardware queue: a thread that does one thing after the other, whatever stream it came from.

use crate::{lock, memory, setting};
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::time::Duration;

/// What a queue does. Captured work is done more than once.
pub type Work = Arc<dyn Fn() + Send + Sync>;

pub struct Queue {
    work: Mutex<VecDeque<Work>>,
    more: Condvar,
}

impl Queue {
    /// A queue with a thread of its own, which goes with the process.
    fn start() -> Arc<Queue> {
        let queue = Arc::new(Queue { work: Mutex::default(), more: Condvar::new() });
        let theirs = Arc::clone(&queue);
        // Named as the driver's threads are, which call nobody.
        let thread = std::thread::Builder::new().name("cuda-EvtHandlr".into());
        thread.spawn(move || theirs.run()).expect("a thread");
        queue
    }

    pub fn push(&self, work: Work) {
        lock(&self.work).push_back(work);
        self.more.notify_one();
    }

    fn run(&self) {
        memory::allow_device_memory();
        let longest_us = setting("FAKECUDA_DELAY_US", 0) as u64;
        let mut random = std::ptr::from_ref(self).addr() as u64 | 1;
        loop {
            let next = {
                let mut work = lock(&self.work);
                loop {
                    match work.pop_front() {
                        Some(next) => break next,
                        None => work = self.more.wait(work).expect("no queue panics"),
                    }
                }
            };
            if longest_us > 0 {
                // Xorshift: any sequence that does not repeat soon will do.
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                std::thread::sleep(Duration::from_micros(random % longest_us));
            }
            next();
        }
    }
}

/// Things that streams wait for until they are let go.
static HELD: Mutex<bool> = Mutex::new(false);
static LET_GO: Condvar = Condvar::new();

/// Give the stream something that does not end before [`fakecuda_release`].
///
/// # Safety
/// Safe for any argument.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fakecuda_hold(stream: *mut std::ffi::c_void) -> crate::Code {
    *lock(&HELD) = true;
    let wait = || {
        let mut held = lock(&HELD);
        while *held {
            held = LET_GO.wait(held).expect("no queue panics");
        }
    };
    crate::streams::find(stream).map(|stream| stream.submit(Arc::new(wait))).err().unwrap_or(0)
}

/// Let all streams go on.
#[unsafe(no_mangle)]
pub extern "C" fn fakecuda_release() {
    *lock(&HELD) = false;
    LET_GO.notify_all();
}

/// The queue that the `nth` stream of a device is put on.
pub fn queue(ordinal: usize, nth: usize) -> Arc<Queue> {
    static QUEUES: OnceLock<Vec<Vec<Arc<Queue>>>> = OnceLock::new();
    let each = setting("FAKECUDA_QUEUES", 8);
    if each == 0 {
        return Queue::start();
    }
    let queues = QUEUES.get_or_init(|| {
        let device = |_| (0..each).map(|_| Queue::start()).collect();
        (0..crate::ndevices()).map(device).collect()
    });
    let device = &queues[ordinal];
    Arc::clone(&device[nth % device.len()])
}
