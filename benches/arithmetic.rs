//! What the arithmetic costs: against the machine's own copy and addition out of cache, as ratios
//! of interleaved best times, and by itself in cache.

use std::hint::black_box;
use std::ops::Range;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, Throughput};
use ringcomm::device::host::{self, Job, Reduction};
use ringcomm::types::{DataType, ReduceOp};

/// Bytes of a buffer that no cache holds.
const LARGE: usize = 64 << 20;
/// Bytes of a buffer that lies in a second-level cache with its sources.
const SMALL: usize = 64 << 10;

struct Buffers {
    target: Vec<u8>,
    sources: [Vec<u8>; 4],
}

impl Buffers {
    fn new(bytes: usize) -> Buffers {
        // Bytes whose value is small and normal in every type.
        let fill = |seed: usize| (0..bytes).map(|i| 0x38 + ((i + seed) % 4) as u8).collect();
        Buffers { target: vec![0; bytes], sources: [fill(0), fill(1), fill(2), fill(3)] }
    }

    fn reduce(&mut self, reduction: &Reduction, nsources: usize, bytes: usize, streaming: bool) {
        self.reduce_window(reduction, nsources, 0..bytes, streaming);
    }

    fn reduce_window(
        &mut self,
        reduction: &Reduction,
        nsources: usize,
        window: Range<usize>,
        streaming: bool,
    ) {
        let sources: [_; 4] =
            std::array::from_fn(|index| self.sources[index][window.clone()].as_ptr());
        let targets = [self.target[window.clone()].as_mut_ptr()];
        let count = window.len() / reduction.data_type().size();
        let job = Job {
            streaming: usize::from(streaming),
            ..Job::new(&targets, &sources[..nsources], count)
        };
        // SAFETY: every buffer holds the window.
        unsafe { reduction.run(black_box(&job)) }
    }

    fn copy(&mut self, window: Range<usize>, streaming: bool) {
        let bytes = window.len();
        let (target, source) = (&mut self.target[window.clone()], &self.sources[0][window]);
        // SAFETY: both hold the window.
        unsafe { host::copy(target.as_mut_ptr(), source.as_ptr(), bytes, streaming) }
    }
}

/// `a[i] = b[i] + c[i]` with streaming stores, as written for this machine alone.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn plain_add(target: *mut u8, left: *const u8, right: *const u8, bytes: usize) {
    use std::arch::x86_64::*;
    let aligned = target.align_offset(32);
    for offset in (aligned..bytes - 31).step_by(32) {
        // SAFETY: 32 bytes from `offset` are within the buffers, and the target is aligned there.
        unsafe {
            let sum = _mm256_add_ps(
                _mm256_loadu_ps(left.add(offset).cast()),
                _mm256_loadu_ps(right.add(offset).cast()),
            );
            _mm256_stream_ps(target.add(offset).cast(), sum);
        }
    }
    _mm_sfence();
}

fn timed(work: impl FnOnce()) -> Duration {
    let start = Instant::now();
    work();
    start.elapsed()
}

/// Best of several interleaved runs of each.
fn interleaved<const N: usize>(rounds: usize, mut run: impl FnMut(usize)) -> [f64; N] {
    let mut best = [f64::MAX; N];
    for _ in 0..rounds {
        for (index, best) in best.iter_mut().enumerate() {
            *best = best.min(timed(|| run(index)).as_secs_f64());
        }
    }
    best
}

/// As `interleaved`, over buffers that no cache holds, in windows: the best of each window, summed.
/// A window is over before the scheduler is likely to interfere, and is long out of the cache when
/// its turn comes again.
fn in_windows<const N: usize>(rounds: usize, mut run: impl FnMut(usize, Range<usize>)) -> [f64; N] {
    const WINDOW: usize = 1 << 20;
    let mut best = [[f64::MAX; N]; LARGE / WINDOW];
    for _ in 0..rounds {
        for index in 0..N {
            for (window, best) in best.iter_mut().enumerate() {
                let range = window * WINDOW..(window + 1) * WINDOW;
                best[index] = best[index].min(timed(|| run(index, range)).as_secs_f64());
            }
        }
    }
    std::array::from_fn(|index| best.iter().map(|window| window[index]).sum())
}

fn out_of_cache() {
    let mut buffers = Buffers::new(LARGE);
    let sum = |data_type| Reduction::new(data_type, ReduceOp::Sum, 2).unwrap();
    let gigabytes = |passes: usize, seconds: f64| (passes * LARGE) as f64 / seconds / 1e9;

    let [memcpy, streamed] = in_windows(9, |index, window| buffers.copy(window, index == 1));
    println!("copy, 64 MiB, read plus written:");
    println!("  memcpy           {:6.1} GB/s", gigabytes(2, memcpy));
    println!(
        "  streaming copy   {:6.1} GB/s  {:.2} of memcpy",
        gigabytes(2, streamed),
        memcpy / streamed
    );

    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        let float = sum(DataType::Float32);
        let [plain, streamed, cached] = in_windows(9, |index, window| match index {
            0 => {
                let [left, right] = [0, 1].map(|i| buffers.sources[i][window.clone()].as_ptr());
                let bytes = window.len();
                let target = buffers.target[window].as_mut_ptr();
                // SAFETY: every buffer holds the window, and the processor has AVX2.
                unsafe { plain_add(target, left, right, bytes) }
            }
            _ => buffers.reduce_window(&float, 2, window, index == 1),
        });
        println!("float sum of two, 64 MiB, read plus written:");
        println!("  a[i]=b[i]+c[i]   {:6.1} GB/s", gigabytes(3, plain));
        for (name, seconds) in [("streaming sum", streamed), ("cached sum   ", cached)] {
            println!(
                "  {name}    {:6.1} GB/s  {:.2} of plain",
                gigabytes(3, seconds),
                plain / seconds
            );
        }
    }

    println!("streaming sum of two by type, 64 MiB:");
    for data_type in DataType::ALL {
        let reduction = sum(data_type);
        let [seconds] =
            in_windows(4, |_, window| buffers.reduce_window(&reduction, 2, window, true));
        println!("  {:<10} {:6.1} GB/s", data_type.name(), gigabytes(3, seconds));
    }
}

/// The least time of one call, over batches that are too long for the clock to matter.
fn small_calls() {
    const BATCH: usize = 1000;
    let mut buffers = Buffers::new(SMALL);
    let float = Reduction::new(DataType::Float32, ReduceOp::Sum, 2).unwrap();
    println!("float sum of two, one call:");
    for bytes in [0, 8, 60, 64, 256, 1024, 8 << 10] {
        let [seconds] = interleaved(50, |_| {
            for _ in 0..BATCH {
                buffers.reduce(&float, 2, bytes, false);
            }
        });
        println!("  {bytes:>5} bytes {:8.1} ns", seconds / BATCH as f64 * 1e9);
    }
}

fn in_cache(criterion: &mut Criterion) {
    let mut buffers = Buffers::new(SMALL);
    let mut group = criterion.benchmark_group("in cache");
    group.sample_size(20).warm_up_time(Duration::from_millis(100));
    group.measurement_time(Duration::from_millis(300));
    let float = Reduction::new(DataType::Float32, ReduceOp::Sum, 2).unwrap();
    for bytes in [8, 60, 64, 1024, 8 << 10, SMALL] {
        group.throughput(Throughput::Bytes(3 * bytes as u64));
        group.bench_function(BenchmarkId::new("float sum of 2", bytes), |bencher| {
            bencher.iter(|| buffers.reduce(&float, 2, bytes, false));
        });
    }
    group.throughput(Throughput::Bytes(5 * SMALL as u64));
    group.bench_function("float sum of 4", |bencher| {
        bencher.iter(|| buffers.reduce(&float, 4, SMALL, false));
    });
    group.throughput(Throughput::Bytes(3 * SMALL as u64));
    for data_type in DataType::ALL {
        for op in [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Max] {
            let reduction = Reduction::new(data_type, op, 2).unwrap();
            let name = format!("{data_type} {op}");
            group.bench_function(BenchmarkId::new(name, SMALL), |bencher| {
                bencher.iter(|| buffers.reduce(&reduction, 2, SMALL, false));
            });
        }
    }
    group.throughput(Throughput::Bytes(2 * SMALL as u64));
    group.bench_function("copy", |bencher| bencher.iter(|| buffers.copy(0..SMALL, false)));
    group.finish();
}

fn main() {
    println!("instruction sets: {}", host::features());
    println!("streaming from {} KiB on", host::streaming_threshold() >> 10);
    // `cargo test --benches` asks only whether it runs.
    if !std::env::args().any(|argument| argument == "--test") {
        small_calls();
        out_of_cache();
    }
    let mut criterion = Criterion::default().configure_from_args().without_plots();
    in_cache(&mut criterion);
    criterion.final_summary();
}
