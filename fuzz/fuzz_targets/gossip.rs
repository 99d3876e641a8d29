//! Neighbours say anything on the control connections, sealed as a right one's or not: what is
//! passed on is what can be read, no rank is told of itself, and pages show it.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ringcomm::communicator::control_plane::frame::{ControlOpener, ControlSealer, Item, MOST_ITEM};
use ringcomm::communicator::control_plane::gossip::{Gossip, News};
use ringcomm::communicator::control_plane::status::Status;
use ringcomm::executor::control_block::ControlBlock;

mod support;
use support::{Input, patch};

const NRANKS: usize = 5;
const RANK: usize = 1;

/// A page of its alignment; all of it is atomics.
fn page() -> Box<ControlBlock> {
    // SAFETY: zeroes are a page, and the block is made of its size and alignment.
    unsafe { Box::<ControlBlock>::new_zeroed().assume_init() }
}

/// The other ends of the connections.
struct Ends {
    sealer: ControlSealer,
    opener: ControlOpener,
}

struct World {
    gossip: Gossip,
    ends: [Option<Ends>; NRANKS],
    mirror: Box<ControlBlock>,
    own: Box<ControlBlock>,
}

impl World {
    fn connect(&mut self, neighbour: usize) {
        let (there, back) = ([1; 32], [2; 32]);
        self.gossip.connected(neighbour, &there, &back);
        let ends = Ends { sealer: ControlSealer::new(&back), opener: ControlOpener::new(&there) };
        self.ends[neighbour] = Some(ends);
    }

    /// The neighbour says `bytes`; they come in two pieces.
    fn say(&mut self, neighbour: usize, bytes: &[u8], cut: usize) {
        let (first, rest) = bytes.split_at(cut.min(bytes.len()));
        for piece in [first, rest] {
            if self.gossip.received(neighbour, piece).is_err() {
                self.gossip.closed(neighbour);
                self.ends[neighbour] = None;
            }
        }
    }

    /// What is decoded is what was encoded; a right neighbour may say it.
    fn seal(&mut self, neighbour: usize, bytes: &[u8], cut: usize) {
        let Ok(item) = Item::decode(bytes) else { return };
        assert_eq!(item.encode(), bytes);
        assert!(bytes.len() <= MOST_ITEM);
        let mut frame = Vec::new();
        if let Some(ends) = &mut self.ends[neighbour] {
            ends.sealer.seal(&item, &mut frame);
            self.say(neighbour, &frame, cut);
        }
    }

    /// The neighbour reads what it is told.
    fn hear(&mut self, neighbour: usize, most: usize) {
        let bytes = self.gossip.outgoing(neighbour);
        let bytes = bytes[..most.min(bytes.len())].to_vec();
        self.gossip.sent(neighbour, bytes.len());
        if let Some(ends) = &mut self.ends[neighbour] {
            let read = ends.opener.feed(&bytes, |item| {
                let (Item::Status { rank, .. }
                | Item::Gone { rank }
                | Item::Unreached { rank, .. }) = item
                else {
                    return;
                };
                assert!((rank as usize) < NRANKS);
            });
            assert_eq!(read, Ok(()));
        }
    }

    fn look(&mut self) {
        for news in self.gossip.take_news() {
            match news {
                News::Status(rank) => {
                    assert_ne!(rank, RANK);
                    let status = self.gossip.status(rank).expect("there is news of it");
                    assert!(status.is_bounded());
                    status.reflect(&self.mirror);
                    assert!(Status::of(&self.mirror).is_bounded());
                }
                News::Gone(rank) => {
                    assert!(rank != RANK && self.gossip.is_gone(rank));
                    assert!(self.gossip.obstacle(rank).is_none_or(|(by, _)| by < NRANKS));
                }
            }
        }
        let neighbours = self.gossip.neighbours();
        assert!(neighbours.iter().all(|rank| *rank != RANK && !self.gossip.is_gone(*rank)));
    }
}

fuzz_target!(|data: &[u8]| {
    let mut input = Input(data);
    let gossip = Gossip::new(RANK, NRANKS);
    let mut world = World { gossip, ends: [const { None }; NRANKS], mirror: page(), own: page() };
    while let (Some(what), Some(number)) = (input.byte(), input.short()) {
        let neighbour = [0, 2, 3, 4][usize::from(what >> 6)];
        let number = usize::from(number);
        match what % 8 {
            0 => world.connect(neighbour),
            1 => {
                world.gossip.closed(neighbour);
                world.ends[neighbour] = None;
            }
            2 | 3 => {
                let length = usize::from(input.short().unwrap_or(0));
                let bytes = input.some(length);
                match what % 8 {
                    2 => world.seal(neighbour, bytes, number),
                    _ => world.say(neighbour, bytes, number),
                }
            }
            4 => world.hear(neighbour, number),
            5 if number % 8 == 7 => world.gossip.died(neighbour),
            5 if number % 8 == 6 => world.gossip.unreached(neighbour, "was refused".into()),
            5 => world.gossip.beat(neighbour),
            6 => {
                // Ranks of this machine write in each other's pages.
                let own = (&raw mut *world.own).cast();
                // SAFETY: the page's bytes may hold anything.
                if unsafe { patch(&mut input, own, size_of::<ControlBlock>()) }.is_none() {
                    break;
                }
                world.gossip.publish(Status::of(&world.own));
            }
            _ => world.look(),
        }
    }
    world.look();
    (0..NRANKS).for_each(|neighbour| world.hear(neighbour, usize::MAX));
});
