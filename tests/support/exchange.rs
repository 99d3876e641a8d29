//! Batches of sends and receives that every rank knows, and each runs in an order of its own.

use super::data::Random;
use super::guarded::{Guarded, Memory};
use ringcomm::communicator::{Communicator, Message};
use ringcomm::error::Error;
use ringcomm::types::DataType;

/// One message of a batch, known to all ranks.
#[derive(Clone, Copy, Debug)]
pub struct Planned {
    pub from: usize,
    pub to: usize,
    pub count: usize,
    pub data_type: DataType,
    pub seed: u64,
}

impl Planned {
    pub fn content(&self) -> Vec<u8> {
        let mut random = Random(self.seed);
        (0..self.count * self.data_type.size()).map(|_| random.next() as u8).collect()
    }
}

/// Messages between any ranks, a rank and itself included, several of one pair.
pub fn batch(nranks: usize, random: &mut Random) -> Vec<Planned> {
    batch_of(nranks, &[0, 1, 3, 64, 129, 1000, 5000, 40_000], random)
}

/// As `batch`, with messages of up to 3 MB: longer than any goes whole, and than a run of them.
pub fn batch_long(nranks: usize, random: &mut Random) -> Vec<Planned> {
    batch_of(nranks, &[0, 1000, 60_000, 300_000, 380_000], random)
}

fn batch_of(nranks: usize, counts: &[usize], random: &mut Random) -> Vec<Planned> {
    (0..random.below(3 * nranks) + 1)
        .map(|_| Planned {
            from: random.below(nranks),
            to: random.below(nranks),
            count: random.pick(counts),
            data_type: random.pick(&[DataType::Uint8, DataType::Bfloat16, DataType::Float64]),
            seed: random.next(),
        })
        .collect()
}

/// Run this rank's part: its sends and receives, each kind in the batch's order for each peer, but
/// the two kinds and the peers mixed by `random`.
pub fn run(comm: &Communicator, batch: &[Planned], random: &mut Random) {
    try_run(comm, batch, random).unwrap_or_else(|error| panic!("rank {}: {error}", comm.rank()));
}

/// As `run`, with the library's error; panics if what came is wrong.
pub fn try_run(comm: &Communicator, batch: &[Planned], random: &mut Random) -> Result<(), Error> {
    let place = (comm.rank(), comm.nranks());
    let mut begun = Begun::new(place, batch, Memory::Ordinary, random);
    // SAFETY: every buffer holds its message.
    unsafe { comm.exchange(&begun.messages()) }?;
    begun.check();
    Ok(())
}

/// One rank's part of a batch, with its buffers, which must stay until it has run.
pub struct Begun {
    rank: usize,
    /// Whether it is sent, and what.
    order: Vec<(bool, Planned)>,
    buffers: Vec<Guarded>,
}

impl Begun {
    pub fn new(
        (rank, nranks): (usize, usize),
        batch: &[Planned],
        memory: Memory,
        random: &mut Random,
    ) -> Begun {
        let mut queues: Vec<Vec<(bool, Planned)>> = Vec::new();
        for peer in 0..nranks {
            let queue = |sends: bool| {
                let mine = batch.iter().filter(|m| match sends {
                    true => (m.from, m.to) == (rank, peer),
                    false => (m.from, m.to) == (peer, rank),
                });
                mine.map(|message| (sends, *message)).collect::<Vec<_>>()
            };
            queues.push(queue(true));
            queues.push(queue(false));
        }
        let mut order = Vec::new();
        while queues.iter().any(|queue| !queue.is_empty()) {
            let queue = random.below(queues.len());
            if !queues[queue].is_empty() {
                order.push(queues[queue].remove(0));
            }
        }
        let shift = random.below(64);
        let buffers = order.iter().map(|(sends, message)| match sends {
            true => Guarded::of_content(memory, &message.content(), shift),
            false => Guarded::of(memory, message.content().len(), shift / 2),
        });
        let buffers = buffers.collect();
        Begun { rank, order, buffers }
    }

    pub fn messages(&mut self) -> Vec<Message> {
        let all = self.order.iter().zip(&mut self.buffers);
        all.map(|((sends, message), buffer)| {
            let Planned { from, to, count, data_type, .. } = *message;
            let buffer = buffer.pointer();
            match sends {
                true => Message::Send { buffer, count, data_type, peer: to },
                false => Message::Recv { buffer, count, data_type, peer: from },
            }
        })
        .collect()
    }

    /// Panics if what came is wrong.
    pub fn check(&self) {
        for ((sends, message), buffer) in self.order.iter().zip(&self.buffers) {
            if let Some(text) = buffer.differs(&message.content(), 1) {
                panic!("rank {} sends {sends} {message:?}: {text}", self.rank);
            }
        }
    }
}
