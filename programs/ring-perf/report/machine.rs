//! The machine's facts that figures depend on: its processor, what its memory carries, and how long
//! a cache line takes from one core to another.
#![allow(unsafe_code)]

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde_json::{Value, json};
use std::hint::black_box;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Bytes of each block that is streamed: far past the caches that one core owns, and with three
/// blocks a core past most shared ones too.
const BLOCK: usize = 48 << 20;
/// Blocks that a core streams.
const BLOCKS: usize = 3;
/// The share of the memory that they take of it together at most: other programs have theirs.
const SHARE: usize = 8;
/// Bytes of a block at least: below, a core's own caches hold it.
const LEAST_BLOCK: usize = 1 << 20;
/// Passes; the first faults the pages in, the best of the others counts.
const PASSES: usize = 4;

/// Memory bandwidth in GB/s, read plus written.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct MemoryBandwidth {
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
    pub bandwidth: Option<MemoryBandwidth>,
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
        let block = block_bytes(cores.len(), available());
        let (copy_one, add_one) = stream(&cores[..1.min(cores.len())], block);
        let (copy_all, add_all) = stream(&cores, block);
        let bandwidth = Some(MemoryBandwidth { copy_one, copy_all, add_one, add_all });
        Machine { cross_core_ns, bandwidth, ..machine }
    }

    pub fn to_json(&self) -> Value {
        let bandwidth = self.bandwidth.map(|bandwidth| {
            json!({
                "copy_one_core": bandwidth.copy_one,
                "copy_all_cores": bandwidth.copy_all,
                "add_one_core": bandwidth.add_one,
                "add_all_cores": bandwidth.add_all,
            })
        });
        json!({
            "cpu": self.cpu,
            "cores": self.cores,
            "cross_core_ns": self.cross_core_ns,
            "memory_gbs": bandwidth,
        })
    }
}

/// Bytes of a block, where so many cores stream theirs in so much memory.
fn block_bytes(cores: usize, available: usize) -> usize {
    let fair = available / SHARE / (BLOCKS * cores.max(1));
    fair.clamp(LEAST_BLOCK, BLOCK) / size_of::<Wide>() * size_of::<Wide>()
}

/// Bytes of memory that this process may take: what is free, or what its cgroup has, if less.
fn available() -> usize {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let free = free_bytes(&read("/proc/meminfo"));
    // A container sees its own cgroup here; no number is no limit.
    let limits = ["/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"];
    let limits = limits.into_iter().filter_map(|path| read(path).trim().parse().ok());
    limits.chain(free).min().unwrap_or(usize::MAX)
}

/// What the kernel says can be taken without swapping.
fn free_bytes(meminfo: &str) -> Option<usize> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: usize = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib << 10)
}

/// The cores this process may use.
pub fn allowed_cores() -> Vec<usize> {
    let set = sched_getaffinity(None).unwrap_or_default();
    (0..CpuSet::MAX_CPU).filter(|core| set.is_set(*core)).collect()
}

/// Let the calling thread, and those that it starts, run on one core only.
pub fn bind(core: usize) {
    let mut one = CpuSet::new();
    one.set(core);
    // Who may not be bound runs where it is.
    let _ = sched_setaffinity(None, &one);
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

/// Copy and add bandwidth with a thread on each of the cores, each of which has blocks of so many
/// bytes, in GB/s read plus written.
fn stream(cores: &[usize], block: usize) -> (f64, f64) {
    let barrier = Barrier::new(cores.len().max(1));
    let work = |core: usize| {
        bind(core);
        let [mut a, b, c]: [AlignedFloats; BLOCKS] =
            [1.0, 2.0, 3.0].map(|value| AlignedFloats::new(value, block));
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
    let bytes = (block * cores.len()) as f64;
    (2.0 * bytes / slowest(0) / 1e9, 3.0 * bytes / slowest(1) / 1e9)
}

/// Floats aligned for the widest store.
struct AlignedFloats(Vec<Wide>);

#[derive(Clone, Copy)]
#[repr(align(64))]
struct Wide([f32; 16]);

impl AlignedFloats {
    fn new(value: f32, bytes: usize) -> AlignedFloats {
        AlignedFloats(vec![Wide([value; 16]); bytes / size_of::<Wide>()])
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_blocks_of_all_cores_leave_memory_to_others() {
        let gib = 1usize << 30;
        assert_eq!(block_bytes(2, 16 * gib), BLOCK);
        for (cores, available) in [(64, 4 * gib), (128, 16 * gib), (2, gib)] {
            let block = block_bytes(cores, available);
            assert!((LEAST_BLOCK..BLOCK).contains(&block), "{block}");
            assert!(block * BLOCKS * cores <= available / SHARE, "{block}");
        }
        assert_eq!(block_bytes(1000, 0), LEAST_BLOCK);
        assert_eq!(block_bytes(0, usize::MAX), BLOCK);
    }

    #[test]
    fn what_is_free_is_read_in_bytes() {
        let text = "MemTotal:       24684084 kB\nMemAvailable:   23816304 kB\n";
        assert_eq!(free_bytes(text), Some(23_816_304 << 10));
        assert_eq!(free_bytes("MemTotal: 1 kB\n"), None);
    }
}
