//! One cell on all ranks: its buffers, its times, its check.
#![allow(unsafe_code)]

use crate::cli::operation::Operation;
use crate::cli::options::Options;
use ringcomm::communicator::{Call, Communicator, Order, enqueue};
use ringcomm::device::cuda::{Device, DeviceMemory, Event, OwnedStream, Recording, copy, wait};
use ringcomm::error::{Error, Result};
use ringcomm::plan::Collective;
use ringcomm::types::{DataType, ReduceOp};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::*};
use std::thread;
use std::time::Instant;

pub struct GpuCell {
    pub operation: Operation,
    pub collective: Collective,
    pub data_type: DataType,
    pub op: ReduceOp,
    /// Elements as the call has them, and blocks of so many in the larger buffer.
    pub count: usize,
    pub blocks: usize,
}

/// Microseconds of one call.
#[derive(Default)]
pub struct GpuTimes {
    /// The same buffers every time.
    pub hot_us: f64,
    /// Buffers in turn, together larger than the device's cache.
    pub rotating_us: f64,
    /// A call of a replayed graph; NaN where there is none.
    pub graph_us: f64,
    /// Why there is none where one was asked for; the communicators may have ended with it.
    pub graph_error: Option<String>,
    /// The host's part of a call.
    pub eager_us: f64,
    /// A call that one thread makes in a group for all ranks, which share a stream; NaN where the
    /// ranks are not all of this process and on one device.
    pub eager_one_stream_us: f64,
    /// Calls of each of the times above but the graph's.
    pub iterations: usize,
    /// Bytes that differ from the processor's result; `None`: not checked.
    pub wrong: Option<usize>,
    pub transport: &'static str,
    pub algorithm: &'static str,
}

/// Bytes of rotating buffers together: several times a cache of 60 MB.
const ROTATING: usize = 256 << 20;
/// Results up to this many bytes a rank are checked whole: the processor computes them too.
const CHECKED: usize = 16 << 20;
/// Of larger ones, after they were timed, this many windows of so many bytes each: the first begins
/// where the result does, the last ends where it does, and their distance is no power of two.
const WINDOWS: (usize, usize) = (16, 64 << 10);
/// Calls that one graph holds, and replays that are timed together: of small calls, whose times
/// are of the order of a launch, and of large ones, of which few take milliseconds.
const SMALL: (usize, usize) = (20, 10);
const LARGE: (usize, usize) = (5, 3);
/// Bytes above which a call is large: it takes longer than a launch.
const LARGE_BYTES: usize = 4 << 20;

/// A rank's device memory and stream.
struct DeviceRank<'a> {
    comm: &'a Arc<Communicator>,
    device: Arc<Device>,
    stream: Arc<OwnedStream>,
    input: DeviceMemory,
    output: DeviceMemory,
    /// From one set of buffers to the next.
    input_bytes: usize,
    output_bytes: usize,
}

impl DeviceRank<'_> {
    /// Microseconds of the device between what the stream had and what `work` gives it.
    fn time(&self, work: impl FnOnce() -> Result<()>) -> Result<f64> {
        let event = || Event::new(&self.device, Recording::Time);
        let (begin, end) = (event()?, event()?);
        let record = |event: &Event| {
            let _current = self.device.enter()?;
            event.record(self.stream.raw())
        };
        record(&begin)?;
        work()?;
        record(&end)?;
        self.stream.synchronize()?;
        Ok(f64::from(end.since(&begin)?) * 1e3)
    }
}

/// Where ranks begin together what is timed, and none waits for one that has failed before.
struct Start {
    missing: AtomicUsize,
    is_off: AtomicBool,
}

impl Start {
    fn of(nranks: usize) -> Start {
        Start { missing: AtomicUsize::new(nranks), is_off: AtomicBool::new(false) }
    }

    /// Wait for the others, with what has come of this rank so far.
    fn wait(&self, so_far: Result<()>) -> Result<()> {
        if so_far.is_err() {
            // Relaxed: that it is so is all there is to know.
            self.is_off.store(true, Relaxed);
            return so_far;
        }
        // AcqRel, and Acquire below: what all have done before, all find done.
        self.missing.fetch_sub(1, AcqRel);
        while self.missing.load(Acquire) > 0 {
            if self.is_off.load(Relaxed) {
                return Err(Error::Internal("another rank has failed".into()));
            }
            thread::yield_now();
        }
        Ok(())
    }
}

/// Whether a rank has failed by itself, and not because another one has.
fn is_own<T>(result: &Result<T>) -> bool {
    match result {
        Err(Error::Aborted { .. } | Error::Remote { .. }) | Ok(_) => false,
        Err(_) => true,
    }
}

pub struct Bench<'a> {
    cell: &'a GpuCell,
    options: &'a Options,
    ranks: Vec<DeviceRank<'a>>,
    sets: usize,
}

impl<'a> Bench<'a> {
    pub fn new(
        comms: &'a [Arc<Communicator>],
        cell: &'a GpuCell,
        options: &'a Options,
    ) -> Result<Bench<'a>> {
        // Both buffers as large as the larger one: every collective fits.
        let bytes = (cell.count * cell.blocks * cell.data_type.size()).max(1);
        let each = bytes.next_multiple_of(256);
        let nranks = comms[0].nranks();
        let largest = if nranks * 2 * each > ROTATING { 1 } else { 64 };
        let sets = options.rotate.unwrap_or((ROTATING / (2 * each * nranks)).max(1));
        let sets = sets.clamp(1, largest);
        let rank = |comm: &'a Arc<Communicator>| {
            let device = Device::of_ordinal(comm.device().unwrap_or(0))?;
            Ok(DeviceRank {
                comm,
                stream: Arc::new(OwnedStream::new(&device)?),
                input: DeviceMemory::new(&device, sets * each)?,
                output: DeviceMemory::new(&device, sets * each)?,
                input_bytes: each,
                output_bytes: each,
                device,
            })
        };
        let ranks = comms.iter().map(rank).collect::<Result<_>>()?;
        Ok(Bench { cell, options, ranks, sets })
    }

    pub fn measure(&self) -> Result<GpuTimes> {
        let is_large = self.bytes() > CHECKED;
        let checked = |now: bool| match self.options.check && now {
            true => self.check(),
            false => Ok(None),
        };
        let before = checked(!is_large)?;
        let (hot_us, eager_us) = self.timed(1)?;
        let (rotating_us, _) = self.timed(self.sets)?;
        let one_device =
            !self.is_part() && self.ranks.iter().all(|rank| rank.device.is(&self.ranks[0].device));
        let eager_one_stream_us = if one_device { self.on_one_stream()? } else { f64::NAN };
        let answer = self.ranks[0].comm.explain(&self.call(0, 0))?;
        let wrong = checked(is_large)?.or(before);
        // Last: ranks whose capture fails are aborted, so that none waits for another.
        let replayed = match (one_device, self.is_part()) {
            (true, _) => self.replayed(),
            (_, true) => self.replayed_apart(),
            _ => self.replayed_on_all(),
        };
        Ok(GpuTimes {
            hot_us,
            rotating_us,
            graph_us: *replayed.as_ref().unwrap_or(&f64::NAN),
            graph_error: replayed.err().map(|error| error.to_string()),
            eager_us,
            eager_one_stream_us,
            iterations: self.iterations(),
            wrong,
            transport: answer.transport,
            algorithm: answer.algorithm,
        })
    }

    fn call(&self, rank: usize, set: usize) -> Call<'static> {
        let rank = &self.ranks[rank];
        Call {
            send: rank.input.pointer().wrapping_add(set * rank.input_bytes),
            recv: rank.output.pointer().wrapping_add(set * rank.output_bytes),
            count: self.cell.count,
            op: self.cell.op,
            order: Order::on(rank.stream.raw()),
            ..Call::new(self.cell.collective, self.cell.data_type)
        }
    }

    /// Whether the other ranks are processes of their own.
    fn is_part(&self) -> bool {
        self.ranks.len() < self.ranks[0].comm.nranks()
    }

    /// Of the numbers that every process has, those of all.
    fn combined<const N: usize>(&self, op: ReduceOp, mut numbers: [f64; N]) -> Result<[f64; N]> {
        if self.is_part() {
            let call = Call {
                send: numbers.as_ptr().cast(),
                recv: numbers.as_mut_ptr().cast(),
                count: N,
                op,
                ..Call::new(Collective::AllReduce, DataType::Float64)
            };
            // SAFETY: both buffers are the numbers.
            unsafe { self.ranks[0].comm.run(&call)? };
        }
        Ok(numbers)
    }

    fn bytes(&self) -> usize {
        self.cell.count * self.cell.blocks * self.cell.data_type.size()
    }

    fn iterations(&self) -> usize {
        // Small calls often enough for a mean, large ones within the budget.
        self.options.iterations.unwrap_or(if self.bytes() > LARGE_BYTES { 20 } else { 100 })
    }

    /// Every rank on a thread of its own; the slowest rank's microseconds on the device, and on the
    /// host, of a call.
    fn timed(&self, sets: usize) -> Result<(f64, f64)> {
        let start = Start::of(self.ranks.len());
        let one = |rank: usize| {
            let (mine, n) = (&self.ranks[rank], self.iterations());
            let calls = |count: usize| {
                // SAFETY: the buffers live until the stream is synchronized.
                (0..count).try_for_each(|i| unsafe { mine.comm.call(&self.call(rank, i % sets)) })
            };
            let warm = calls(self.options.warmup.unwrap_or(5));
            start.wait(warm.and_then(|()| mine.stream.synchronize()))?;
            self.combined(ReduceOp::Max, [0.0])?;
            let mut host = 0.0;
            let us = mine.time(|| {
                let started = Instant::now();
                calls(n)?;
                host = started.elapsed().as_secs_f64();
                Ok(())
            })?;
            Ok((us / n as f64, host * 1e6 / n as f64))
        };
        let times = self.on_threads(one)?;
        let most = |most: (f64, f64), time: (f64, f64)| (time.0.max(most.0), time.1.max(most.1));
        let (device, host) = times.into_iter().fold((0.0, 0.0), most);
        let [device, host] = self.combined(ReduceOp::Max, [device, host])?;
        Ok((device, host))
    }

    fn on_threads<T: Send>(&self, one: impl Fn(usize) -> Result<T> + Sync) -> Result<Vec<T>> {
        thread::scope(|scope| {
            let threads: Vec<_> = (0..self.ranks.len())
                .map(|rank| (rank, &one))
                .map(|(rank, one)| {
                    scope.spawn(move || one(rank).inspect_err(|_| self.ranks[rank].comm.abort()))
                })
                .collect();
            let panicked = |_| Err(Error::Internal("a rank panicked".into()));
            let joined = threads.into_iter().map(|thread| thread.join().unwrap_or_else(panicked));
            let mut ended: Vec<Result<T>> = joined.collect();
            // What went wrong first, not what the others were told of it.
            if let Some(first) = ended.iter().position(is_own) {
                ended.swap(0, first);
            }
            ended.into_iter().collect()
        })
    }

    /// Microseconds of a call of a graph in which all ranks use one stream.
    fn replayed(&self) -> Result<f64> {
        let first = &self.ranks[0];
        let (captured, replays) = if self.bytes() > LARGE_BYTES { LARGE } else { SMALL };
        let replay = first.stream.capture(|| {
            for _ in 0..captured {
                let one = |rank: usize| {
                    let stream = first.stream.raw();
                    // SAFETY: the buffers live as long as the graph.
                    unsafe {
                        self.ranks[rank]
                            .comm
                            .call(&Call { order: Order::on(stream), ..self.call(rank, 0) })
                    }
                };
                self.on_threads(one)?;
            }
            Ok(())
        })?;
        replay.launch(&first.stream)?;
        let us = first.time(|| (0..replays).try_for_each(|_| replay.launch(&first.stream)))?;
        Ok(us / (replays * captured) as f64)
    }

    /// Microseconds of a call of a graph of all ranks' streams, on all devices.
    fn replayed_on_all(&self) -> Result<f64> {
        let first = &self.ranks[0];
        let (captured, replays) = if self.bytes() > LARGE_BYTES { LARGE } else { SMALL };
        let moment = |rank: &DeviceRank| Event::new(&rank.device, Recording::Moment);
        let moments = self.ranks.iter().map(moment).collect::<Result<Vec<Event>>>()?;
        let record = |rank: usize| {
            let _current = self.ranks[rank].device.enter()?;
            moments[rank].record(self.ranks[rank].stream.raw())
        };
        let follow = |rank: usize, other: usize| {
            let _current = self.ranks[rank].device.enter()?;
            wait(self.ranks[rank].stream.raw(), &moments[other])
        };
        let replay = first.stream.capture(|| {
            record(0)?;
            (1..self.ranks.len()).try_for_each(|rank| follow(rank, 0))?;
            self.on_threads(|rank| {
                let call = self.call(rank, 0);
                // SAFETY: the buffers live as long as the graph.
                (0..captured).try_for_each(|_| unsafe { self.ranks[rank].comm.call(&call) })
            })?;
            (1..self.ranks.len()).try_for_each(|rank| {
                record(rank)?;
                follow(0, rank)
            })
        })?;
        replay.launch(&first.stream)?;
        let us = first.time(|| (0..replays).try_for_each(|_| replay.launch(&first.stream)))?;
        Ok(us / (replays * captured) as f64)
    }

    /// Microseconds of a call of graphs of which every process replays its own. Where they share a
    /// device all are refused one, and go on.
    fn replayed_apart(&self) -> Result<f64> {
        let mine = &self.ranks[0];
        let (captured, replays) = if self.bytes() > LARGE_BYTES { LARGE } else { SMALL };
        let replay = mine.stream.capture(|| {
            // SAFETY: the buffers live as long as the graph.
            (0..captured).try_for_each(|_| unsafe { mine.comm.call(&self.call(0, 0)) })
        });
        // One rank's failure is nobody's wait: kernels that are launched wait for the others'.
        let replay = self.of_all(replay)?;
        self.of_all(replay.launch(&mine.stream).and_then(|()| mine.stream.synchronize()))?;
        let us = mine.time(|| (0..replays).try_for_each(|_| replay.launch(&mine.stream)))?;
        let [us] = self.combined(ReduceOp::Max, [us])?;
        Ok(us / (replays * captured) as f64)
    }

    /// What this process has, if all have theirs.
    fn of_all<T>(&self, mine: Result<T>) -> Result<T> {
        let [all] = self.combined(ReduceOp::Min, [f64::from(mine.is_ok())])?;
        let mine = mine?;
        let none = || Error::Internal("another rank has no graph".into());
        (all == 1.0).then_some(mine).ok_or_else(none)
    }

    /// Microseconds of a call that one thread makes for all ranks, which share a stream: no wait
    /// for an event, no other thread.
    fn on_one_stream(&self) -> Result<f64> {
        let first = &self.ranks[0];
        let order = || Order::on(first.stream.raw());
        let all = self.ranks.iter().enumerate();
        let calls: Vec<(&Arc<Communicator>, Call)> = all
            .map(|(at, rank)| (rank.comm, Call { order: order(), ..self.call(at, 0) }))
            .collect();
        let groups = |count: usize| {
            (0..count).try_for_each(|_| {
                enqueue::start();
                let mut calls = calls.iter();
                // SAFETY: the buffers live until the stream is synchronized.
                let given = calls
                    .try_for_each(|(comm, call)| unsafe { enqueue::collective(comm, call, None) });
                let ended = enqueue::end();
                given.and(ended)
            })
        };
        groups(self.options.warmup.unwrap_or(5))?;
        first.stream.synchronize()?;
        let n = self.iterations();
        Ok(first.time(|| groups(n))? / n as f64)
    }

    /// Bytes that differ from what the processor computes of the same inputs.
    fn check(&self) -> Result<Option<usize>> {
        let (bytes, size) = (self.bytes(), self.cell.data_type.size());
        if bytes == 0 {
            return Ok(None);
        }
        if bytes <= CHECKED {
            return self.compare(&[(0, bytes)], self.cell.count, random_bytes).map(Some);
        }
        if self.cell.collective != Collective::AllReduce {
            return Ok(None);
        }
        let (count, len) = WINDOWS;
        let start = |index: usize| index * (bytes - len) / (count - 1) / size * size;
        let windows: Vec<(usize, usize)> = (0..count).map(|index| (start(index), len)).collect();
        let data_type = self.cell.data_type;
        let exact = |state: &mut u64, input: &mut [u8]| exact_elements(data_type, state, input);
        self.compare(&windows, count * len / size, exact).map(Some)
    }

    /// The same of these ranges of the buffers, by offset and length, which hold `count` elements
    /// of the processor's call.
    fn compare(
        &self,
        windows: &[(usize, usize)],
        count: usize,
        draw: impl Fn(&mut u64, &mut [u8]) + Sync,
    ) -> Result<usize> {
        let bytes = windows.iter().map(|(_, len)| len).sum();
        let wrong = self.on_threads(|rank| {
            let mine = &self.ranks[rank];
            let mut input = vec![0u8; bytes];
            // From another start on every rank.
            let mut state = 0x9e37_79b9_7f4a_7c15 ^ (mine.comm.rank() as u64 + 1) << 32;
            draw(&mut state, &mut input);
            let (mut want, mut got) = (vec![0x5au8; bytes], vec![0x5au8; bytes]);
            let call = self.call(rank, 0);
            let on_host = Call { send: input.as_ptr(), recv: want.as_mut_ptr(), ..call.clone() };
            let on_host = Call { order: Order::default(), count, ..on_host };
            let moved = |device: &DeviceMemory, host: *mut u8, is_up: bool| {
                let _current = mine.device.enter()?;
                let mut host = host;
                windows.iter().try_for_each(|(offset, len)| {
                    let there = device.pointer().wrapping_add(*offset);
                    let (to, from) = if is_up { (there, host) } else { (host, there) };
                    host = host.wrapping_add(*len);
                    // SAFETY: all buffers have the bytes, until the stream is synchronized.
                    unsafe { copy(&mine.device, to, from, *len, mine.stream.raw()) }
                })
            };
            moved(&mine.input, input.as_ptr().cast_mut(), true)?;
            moved(&mine.output, got.as_mut_ptr(), true)?;
            // SAFETY: as above; the host's buffers are as long.
            unsafe {
                mine.comm.call(&call)?;
                mine.comm.run(&on_host)?;
            }
            moved(&mine.output, got.as_mut_ptr(), false)?;
            mine.stream.synchronize()?;
            Ok(got.iter().zip(&want).filter(|(got, want)| got != want).count())
        })?;
        let wrong: usize = wrong.into_iter().sum();
        let [wrong] = self.combined(ReduceOp::Sum, [wrong as f64])?;
        Ok(wrong as usize)
    }
}

/// Xorshift.
fn drawn(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

/// Any bytes are values of every type.
fn random_bytes(state: &mut u64, input: &mut [u8]) {
    input.iter_mut().for_each(|byte| *byte = drawn(state) as u8);
}

/// Zeros, ones and, of types that have it, minus ones, of which eight ranks' sums are exact in
/// every type: large calls may be rings, which add up in an order of their own.
fn exact_elements(data_type: DataType, state: &mut u64, input: &mut [u8]) {
    let one = match data_type {
        DataType::Float64 => 1f64.to_bits(),
        DataType::Float32 => 1f32.to_bits().into(),
        DataType::Float16 | DataType::Float8e5m2 => 0x3c << (8 * (data_type.size() - 1)),
        DataType::Bfloat16 => 0x3f80,
        DataType::Float8e4m3 => 0x38,
        _ => 1,
    };
    let size = data_type.size();
    for element in input.chunks_exact_mut(size) {
        let drawn = drawn(state) % 3;
        element.copy_from_slice(&(if drawn == 0 { 0 } else { one }).to_le_bytes()[..size]);
        match (drawn, data_type) {
            (2, DataType::Bool) | (0 | 1, _) => {}
            (_, data_type) if data_type.is_float() => element[size - 1] |= 0x80,
            _ => element.fill(0xff),
        }
    }
}
