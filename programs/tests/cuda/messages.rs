//! Messages of device memory in batches longer than the pinned memory that comes with a
//! communicator.

use super::here::{is_apart, is_on_fake};
use super::processes::finish;
use super::support::exchange::{Begun, Planned, batch};
use super::support::guarded::Memory;
use super::support::processes::{Ranks, Seat as Place};
use super::support::{
    HARD_DEADLINE_S, Random, config, joined_hosts, seated_hosts, small_slots, threads,
};
use super::together::Together;
use super::{Bench, fake, ndevices, on_seats, spread};
use ringcomm::communicator::{Communicator, Message, Order, OrderedMessage};
use ringcomm::config::{Config, DeviceChoice, Protection};
use ringcomm::device::cuda::{DeviceMemory, copy};
use ringcomm::error::Error;
use ringcomm::types::DataType;
use std::time::{Duration, Instant};

/// A rank's part of a batch on copies of its buffers in the memory of its device, of two streams in
/// turn; every fourth buffer stays in host memory.
fn try_run(
    comm: &Communicator,
    bench: &Bench,
    batch: &[Planned],
    random: &mut Random,
) -> Result<(), Error> {
    let place = (comm.rank(), comm.nranks());
    let mut begun = Begun::new(place, batch, Memory::Ordinary, random);
    let messages = begun.messages();
    if comm.device().is_none() {
        // SAFETY: every buffer holds its message.
        unsafe { comm.exchange(&messages) }?;
        begun.check();
        return Ok(());
    }
    let streams = [bench.stream.clone(), Bench::new(bench.device.ordinal).stream];
    let shift = random.below(4);
    let (mut posted, mut back) = (Vec::new(), Vec::new());
    for (index, message) in messages.into_iter().enumerate() {
        let order = Order::on(streams[index % 2].raw());
        if index % 4 == shift {
            posted.push(OrderedMessage { message, order });
            continue;
        }
        let _current = bench.device.enter()?;
        let (Message::Send { count, data_type, .. } | Message::Recv { count, data_type, .. }) =
            message;
        let bytes = count * data_type.size();
        let memory = DeviceMemory::new(&bench.device, bytes)?;
        let mut moved = message;
        match &mut moved {
            Message::Send { buffer, .. } => {
                // SAFETY: both hold the message, and stay until the streams are synchronized.
                unsafe { copy(&bench.device, memory.pointer(), *buffer, bytes, order.stream)? };
                *buffer = memory.pointer();
                back.push((memory, None));
            }
            Message::Recv { buffer, .. } => {
                let target = std::mem::replace(buffer, memory.pointer());
                back.push((memory, Some((target, bytes, order.stream))));
            }
        }
        posted.push(OrderedMessage { message: moved, order });
    }
    // SAFETY: every buffer holds its message.
    let outcome = unsafe { comm.post(&posted) };
    if outcome.is_ok() {
        let _current = bench.device.enter()?;
        for (memory, target) in &back {
            if let Some((target, bytes, stream)) = *target {
                // SAFETY: as above.
                unsafe { copy(&bench.device, target, memory.pointer(), bytes, stream)? };
            }
        }
    }
    streams.iter().try_for_each(|stream| stream.synchronize())?;
    outcome?;
    begun.check();
    Ok(())
}

fn run(comm: &Communicator, bench: &Bench, batch: &[Planned], random: &mut Random) {
    let ran = try_run(comm, bench, batch, random);
    ran.unwrap_or_else(|error| panic!("rank {}: {error}", comm.rank()));
}

/// Messages between all ranks, of which each has ten times as many bytes as `room`.
fn long_batch(nranks: usize, room: usize, random: &mut Random) -> Vec<Planned> {
    let mut all = Vec::new();
    let has = |all: &[Planned], rank: usize| {
        let mine = all.iter().filter(|one| one.from == rank || one.to == rank);
        mine.map(|one| one.count * one.data_type.size()).sum::<usize>() >= 10 * room
    };
    while !(0..nranks).all(|rank| has(&all, rank)) {
        all.extend(batch(nranks, random));
    }
    all
}

/// Run batches of ten times the room, with one that fits and none between them; the allocations
/// that a rank saw meanwhile.
fn run_long(comm: &Communicator, bench: &Bench, room: usize, all: Option<&Together>) {
    let mut random = Random(comm.rank() as u64);
    let mut plan = Random(17);
    let place = all.map(Together::join);
    let wait = || place.iter().for_each(|place| place.wait());
    wait();
    if comm.rank() == 0 && fake::is_there() {
        fake::fail("", 0, 0);
    }
    wait();
    for _ in 0..3 {
        run(comm, bench, &long_batch(comm.nranks(), room, &mut plan), &mut random);
        let short = |from: usize| Planned {
            from,
            to: (from + 1) % comm.nranks(),
            count: 100,
            data_type: DataType::Uint8,
            seed: plan.next(),
        };
        let fits: Vec<Planned> = (0..comm.nranks()).map(short).collect();
        run(comm, bench, &fits, &mut random);
    }
    wait();
    if fake::is_there() {
        assert_eq!(fake::calls("cuMemHostAlloc"), 0, "pinned memory came in a call");
    }
    wait();
}

/// Bytes of the pinned memory where connections are as small as can be: the least for portions.
const LEAST: usize = 2 * (4 << 10);

#[test]
fn batches_of_any_length_between_threads_allocate_nothing() {
    let test = "messages::batches_of_any_length_between_threads_allocate_nothing";
    if !is_apart(test, &[]) {
        return;
    }
    let devices = ndevices() as i32;
    let mixed = [
        DeviceChoice::Device(0),
        DeviceChoice::Host,
        DeviceChoice::Device(1 % devices),
        DeviceChoice::Host,
    ];
    for seats in [&spread(1), &spread(2), &spread(3), &mixed[..2], &mixed[..]] {
        for slot_bytes in [64, 256, 1024] {
            let all = Together::of(seats.len());
            on_seats(seats, &small_slots(seats.len(), slot_bytes), |comm, bench| {
                run_long(comm, bench, LEAST, Some(&all));
            });
        }
    }
    let all = Together::of(3);
    let config = Config { buff_size: Some(100 << 10), ..config() };
    on_seats(&spread(3), &config, |comm, bench| run_long(comm, bench, 200 << 10, Some(&all)));
}

#[test]
fn batches_of_any_length_go_over_the_network() {
    let test = "messages::batches_of_any_length_go_over_the_network";
    if !is_apart(test, &[]) {
        return;
    }
    let hosts = [0, 0, 1];
    for protection in [Protection::default(), Protection::Encrypted] {
        for slot_bytes in [256, 16 << 10] {
            let narrow = small_slots(3, slot_bytes);
            let room = 2 * narrow.buff_size.unwrap();
            let config = Config { device: DeviceChoice::Device(0), protection, ..narrow };
            let all = Together::of(3);
            threads::run_all(&joined_hosts(&hosts, &config), |comm| {
                run_long(comm, &Bench::new(0), room.max(LEAST), Some(&all));
            });
        }
    }
}

/// Ranks with the default buffers, some of them in host memory, which cut by the same rule.
#[test]
fn long_messages_of_ranks_on_hosts_of_their_own_are_cut_alike() {
    if ndevices() == 0 {
        return;
    }
    for nranks in [2, 3, 17] {
        let hosts: Vec<usize> = (0..nranks).collect();
        let seats = [DeviceChoice::Device(0), DeviceChoice::Host, DeviceChoice::Device(0)];
        let seats: Vec<DeviceChoice> = seats.into_iter().cycle().take(nranks).collect();
        threads::run_all(&seated_hosts(&hosts, &seats, &config()), |comm| {
            let (mut random, mut plan) = (Random(comm.rank() as u64), Random(nranks as u64));
            // Together more than the pinned memory, in pieces around those that go whole.
            let mut message = |from: usize, count: usize| {
                let (to, seed) = ((from + 1) % nranks, plan.next());
                Planned { from, to, count, data_type: DataType::Uint8, seed }
            };
            let counts = [300_000, 524_288, 524_289, 3_000_000, 254 << 10, 8_000_000];
            let batch: Vec<Planned> = (0..nranks)
                .flat_map(|from| counts.map(|count| (from, count)))
                .map(|(from, count)| message(from, count))
                .collect();
            run(comm, &Bench::new(0), &batch, &mut random);
        });
    }
}

/// A bay does not go on over what a socket, whose other end is late, has not taken yet.
#[test]
fn what_waits_for_a_socket_is_not_overwritten() {
    if ndevices() == 0 {
        return;
    }
    let config = Config { device: DeviceChoice::Device(0), ..small_slots(2, 16 << 10) };
    threads::run_all(&joined_hosts(&[0, 1], &config), |comm| {
        // More than sockets hold.
        let batch = [Planned { from: 0, to: 1, ..floats(24) }];
        if comm.rank() == 1 {
            std::thread::sleep(Duration::from_millis(300));
        }
        run(comm, &Bench::new(0), &batch, &mut Random(1));
    });
}

/// A rank, the last one on the host.
fn join(place: &Place) -> (Communicator, Bench) {
    let device = (place.rank % ndevices()) as i32;
    let seat = if place.rank == 2 { DeviceChoice::Host } else { DeviceChoice::Device(device) };
    let config = Config { device: seat, ..place.config.clone() };
    let comm = Communicator::init_rank(place.nranks, &place.id, place.rank, &config).unwrap();
    (comm, Bench::new(device))
}

#[test]
fn batches_of_any_length_between_processes_allocate_nothing() {
    if ndevices() == 0 {
        return;
    }
    for (nranks, buff_size) in [(2, 48 << 10), (3, 48 << 10), (3, 2 << 10)] {
        let config = Config { buff_size: Some(buff_size), ..config() };
        let ranks = Ranks::start_apart(nranks, &config, "", |place, _| {
            let (comm, bench) = join(place);
            if fake::is_there() {
                fake::fail("", 0, 0);
            }
            run_long(&comm, &bench, 2 * place.config.buff_size.unwrap(), None);
            String::new()
        });
        finish(ranks, nranks);
    }
}

/// Rounds that all ranks have to end together would not end here: what the long message is received
/// with waits for nothing, and what its sender receives waits for that.
#[test]
fn a_batch_waits_for_nothing_that_its_peers_do_later() {
    if ndevices() == 0 {
        return;
    }
    on_seats(&spread(3), &small_slots(3, 256), |comm, bench| {
        let planned = |from, to, count| Planned {
            from,
            to,
            count,
            data_type: DataType::Uint8,
            seed: (10 * from + to) as u64,
        };
        let long = planned(0, 1, 20 * LEAST);
        let (second, third) = (planned(1, 2, 3000), planned(2, 0, 3 * LEAST));
        let batches = match comm.rank() {
            0 => vec![vec![long, third]],
            1 => vec![vec![long], vec![second]],
            _ => vec![vec![second], vec![third]],
        };
        batches.iter().for_each(|batch| run(comm, bench, batch, &mut Random(1)));
    });
}

/// A float after the other, of so many MiB.
fn floats(mib: usize) -> Planned {
    Planned { from: 0, to: 1, count: mib << 20, data_type: DataType::Uint8, seed: mib as u64 }
}

#[test]
fn a_death_in_the_middle_of_a_long_batch_ends_it_and_leaves_nothing_behind() {
    if ndevices() == 0 {
        return;
    }
    let config = Config { buff_size: Some(64 << 10), ..config() };
    let mut ranks = Ranks::start_apart(2, &config, "", |place, _| {
        let (comm, bench) = join(place);
        let back = Planned { from: 1, to: 0, ..floats(1) };
        if place.rank == 0 {
            run(&comm, &bench, &[floats(1)], &mut Random(1));
            // SAFETY: it ends this process, as from outside.
            unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
        }
        let batch = [floats(1), floats(2), back];
        let error = try_run(&comm, &bench, &batch, &mut Random(2)).unwrap_err();
        drop(comm);
        if fake::is_there() {
            let calls = ["cuMemHostAlloc", "cuMemFreeHost"].map(fake::calls);
            assert_eq!(calls[0], calls[1], "pinned memory was left behind");
        }
        error.to_string()
    });
    let who = ranks.who(0);
    let deadline = Instant::now() + Duration::from_secs(HARD_DEADLINE_S);
    assert!(ranks.end(0, deadline).killed);
    let text = ranks.end(1, deadline).result.unwrap();
    assert!(text.contains(&who), "{text}");
}

/// A copy that was refused is none; behind one that was not, but no word, the memory is given up.
#[test]
fn what_is_refused_in_a_long_batch_ends_it() {
    let test = "messages::what_is_refused_in_a_long_batch_ends_it";
    if !is_on_fake() || !is_apart(test, &[]) {
        return;
    }
    for sends in [true, false] {
        for (symbol, freed) in [("cuMemcpyAsync", 2), ("cuStreamWriteValue32_v2", 0)] {
            let config = Config { buff_size: Some(64 << 10), ..config() };
            let ranks =
                Communicator::init_all_on(&[DeviceChoice::Device(0), DeviceChoice::Host], &config)
                    .unwrap();
            let bench = Bench::new(0);
            let memory = DeviceMemory::new(&bench.device, 1 << 20).unwrap();
            let (buffer, count, data_type, peer) = (memory.pointer(), 1 << 20, DataType::Uint8, 1);
            let message = match sends {
                true => Message::Send { buffer, count, data_type, peer },
                false => Message::Recv { buffer, count, data_type, peer },
            };
            fake::fail(symbol, 3, 4711);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let mut other = vec![0u8; 1 << 20];
                    let (buffer, peer) = (other.as_mut_ptr(), 0);
                    let message = match sends {
                        true => Message::Recv { buffer, count, data_type, peer },
                        false => Message::Send { buffer, count, data_type, peer },
                    };
                    // SAFETY: as many bytes. All may have been sent when the copy is refused.
                    let _ = unsafe { ranks[1].exchange(&[message]) };
                });
                let posted = [OrderedMessage { message, order: Order::on(bench.stream.raw()) }];
                // SAFETY: the memory lives until the end of the test.
                let error = unsafe { ranks[0].post(&posted) }.unwrap_err().to_string();
                assert!(error.contains("4711"), "{error}");
            });
            bench.stream.synchronize().unwrap();
            drop(ranks);
            assert_eq!(fake::calls("cuMemFreeHost"), freed, "{symbol}");
            fake::fail("", 0, 0);
        }
    }
}
