//! The machine's facts that figures depend on: its processor, what its memory carries, and how long
//! a cache line takes from one core to another.
#![allow(unsafe_code)]

use crate::json::{Value, object};
use std::hint::black_box;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Bytes of each block that is streamed: far past the caches that one core owns, and with three
/// blocks a core past most shared ones too.
const BLOCK: usize = 48 << 20;
/// Passes; the first faults the pages in, the best of the others counts.
const PASSES: usize = 4;

/// Memory bandwidth in GB/s, read plus written.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Bandwidth {
    pub copy_one: f64,
    pub copy_all: f64,
    pub add_one: f64,
    pub add_all: f64,
}

#[derive(Clone, Debug, Default)]
pub struct Machine {
    pub cpu: String,
    pub cores: usize,
    /// Least and greatest time of a cache line between two cores, in ns; `None`: one core, or not
    /// measured.
    pub cross_core_ns: Option<(f64, f64)>,
    pub bandwidth: Option<Bandwidth>,
    /// What the caches hold of what the ranks use; 0: not known.
    pub cache_bytes: usize,
}

impl Machine {
    /// What can be known without measuring.
    pub fn described() -> Machine {
        let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model = text.lines().find_map(|line| line.strip_prefix("model name"));
        let model = model.and_then(|rest| rest.split_once(':')).map(|(_, name)| name.trim());
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
        let cpu = model.unwrap_or(std::env::consts::ARCH).to_string();
        // Where streaming stores begin to win: half of the last cache.
        let cache_bytes = 2 * ringcomm::device::host::streaming_threshold();
        Machine { cpu, cores, cache_bytes, ..Machine::default() }
    }

    /// Measure the rest; takes about a second.
    pub fn probed() -> Machine {
        let machine = Machine::described();
        let cores = allowed_cores();
        let cross_core_ns = cross_core(&cores);
        let (copy_one, add_one) = stream(&cores[..1.min(cores.len())]);
        let (copy_all, add_all) = stream(&cores);
        let bandwidth = Some(Bandwidth { copy_one, copy_all, add_one, add_all });
        Machine { cross_core_ns, bandwidth, ..machine }
    }

    pub fn to_json(&self) -> Value {
        let bandwidth = self.bandwidth.map_or(Value::Null, |bandwidth| {
            object([
                ("copy_one_core", bandwidth.copy_one.into()),
                ("copy_all_cores", bandwidth.copy_all.into()),
                ("add_one_core", bandwidth.add_one.into()),
                ("add_all_cores", bandwidth.add_all.into()),
            ])
        });
        let cross = self
            .cross_core_ns
            .map_or(Value::Null, |(near, far)| Value::List(vec![near.into(), far.into()]));
        object([
            ("cpu", self.cpu.as_str().into()),
            ("cores", self.cores.into()),
            ("cross_core_ns", cross),
            ("memory_gbs", bandwidth),
        ])
    }
}

/// The cores this process may use.
pub fn allowed_cores() -> Vec<usize> {
    // SAFETY: a cpu_set_t is plain bits and all-zero is the empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the set is ours and its size is passed.
    unsafe { libc::sched_getaffinity(0, size_of_val(&set), &mut set) };
    let all = 0..libc::CPU_SETSIZE as usize;
    // SAFETY: reads a bit of the set inside its capacity.
    all.filter(|core| unsafe { libc::CPU_ISSET(*core, &set) }).collect()
}

/// Let the calling thread, and those that it starts, run on one core only.
pub fn bind(core: usize) {
    // SAFETY: plain bits; the core number came out of such a set.
    unsafe {
        let mut one: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(core, &mut one);
        libc::sched_setaffinity(0, size_of_val(&one), &one);
    }
}

/// Least and greatest one-way time from the first core to some others.
fn cross_core(cores: &[usize]) -> Option<(f64, f64)> {
    let first = *cores.first()?;
    // Eight others, spread over the machine, show near and far without taking long.
    let stride = cores.len().div_ceil(8).max(1);
    let others = cores.iter().skip(1).step_by(stride);
    let times: Vec<f64> = others.map(|other| one_way(first, *other)).collect();
    let least = times.iter().copied().reduce(f64::min)?;
    let most = times.iter().copied().reduce(f64::max)?;
    Some((least, most))
}

/// A cache line of its own (two, for the prefetcher that fetches pairs).
#[repr(align(128))]
struct Line(AtomicU64);

/// Nanoseconds for a word from one core to another: half of a round trip, the best of some runs.
fn one_way(a: usize, b: usize) -> f64 {
    const ROUNDS: u64 = 2000;
    let (ping, pong) = (Line(AtomicU64::new(0)), Line(AtomicU64::new(0)));
    // Where the two share a core after all, each must let the other run now and then.
    let wait = |line: &Line, value: u64| {
        let mut polls = 0u32;
        // Acquire: pairs with the Release store of the other side.
        while line.0.load(Ordering::Acquire) < value {
            polls += 1;
            if polls.is_multiple_of(1 << 14) {
                std::thread::yield_now();
            }
            std::hint::spin_loop();
        }
    };
    let mut best = f64::INFINITY;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            bind(b);
            for round in 1..=5 * ROUNDS {
                wait(&ping, round);
                // Release: pairs with the Acquire load in `wait`.
                pong.0.store(round, Ordering::Release);
            }
        });
        let here = scope.spawn(|| {
            bind(a);
            let mut best = f64::INFINITY;
            for run in 0..5 {
                let begin = Instant::now();
                for round in run * ROUNDS + 1..=(run + 1) * ROUNDS {
                    // Release: pairs with the Acquire load in `wait`.
                    ping.0.store(round, Ordering::Release);
                    wait(&pong, round);
                }
                best = best.min(begin.elapsed().as_nanos() as f64 / (2 * ROUNDS) as f64);
            }
            best
        });
        best = here.join().expect("only counts");
    });
    best
}

/// Copy and add bandwidth with a thread on each of the cores, in GB/s read plus written.
fn stream(cores: &[usize]) -> (f64, f64) {
    let barrier = Barrier::new(cores.len().max(1));
    let work = |core: usize| {
        bind(core);
        let (mut a, b, c) = (Block::new(1.0), Block::new(2.0), Block::new(3.0));
        let mut best = [f64::INFINITY; 2];
        for _ in 0..PASSES {
            for (kind, best) in best.iter_mut().enumerate() {
                barrier.wait();
                let begin = Instant::now();
                match kind {
                    0 => copy(&mut a.0, &b.0),
                    _ => add(&mut a.0, &b.0, &c.0),
                }
                black_box(&mut a.0);
                // The slowest core's time counts: all have then done their share.
                barrier.wait();
                *best = best.min(begin.elapsed().as_secs_f64());
            }
        }
        best
    };
    let times: Vec<[f64; 2]> = std::thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = cores.iter().map(|core| scope.spawn(move || work(*core))).collect();
        threads.into_iter().map(|thread| thread.join().expect("only adds")).collect()
    });
    let slowest = |kind: usize| times.iter().map(|times| times[kind]).fold(0.0, f64::max);
    let bytes = (BLOCK * cores.len()) as f64;
    (2.0 * bytes / slowest(0) / 1e9, 3.0 * bytes / slowest(1) / 1e9)
}

/// Floats aligned for the widest store.
struct Block(Vec<Wide>);

#[derive(Clone, Copy)]
#[repr(align(64))]
struct Wide([f32; 16]);

impl Block {
    fn new(value: f32) -> Block {
        Block(vec![Wide([value; 16]); BLOCK / size_of::<Wide>()])
    }
}

/// Four floats past the caches: what leaves no line to be read before it is written.
#[cfg(target_arch = "x86_64")]
fn store(target: &mut Wide, value: Wide) {
    use std::arch::x86_64::{_mm_loadu_ps, _mm_stream_ps};
    for lane in (0..16).step_by(4) {
        // SAFETY: SSE is part of x86-64; the lanes are inside both arrays, the target is aligned.
        unsafe {
            let four = _mm_loadu_ps(value.0.as_ptr().add(lane));
            _mm_stream_ps(target.0.as_mut_ptr().add(lane), four);
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn store(target: &mut Wide, value: Wide) {
    *target = value;
}

#[inline(never)]
fn copy(a: &mut [Wide], b: &[Wide]) {
    for (a, b) in a.iter_mut().zip(b) {
        store(a, *b);
    }
}

#[inline(never)]
fn add(a: &mut [Wide], b: &[Wide], c: &[Wide]) {
    for ((a, b), c) in a.iter_mut().zip(b).zip(c) {
        store(a, Wide(std::array::from_fn(|lane| b.0[lane] + c.0[lane])));
    }
}
