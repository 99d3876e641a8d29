//! Somebody on the way cuts what a peer sends into any pieces, alters it and forges frames: what
//! arrives stays inside its slot or where it is wanted, and is the peer's where nothing was altered
//! or the connection is encrypted.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ringcomm::config::Protection;
use ringcomm::transport::fifo::{FifoShape, Stamp};
use ringcomm::transport::network::{Connection, Lengths};
use ringcomm::transport::tcp::{
    FRAME_BYTES, Frame, NewDataSocket, Settings, SocketKeys, TcpConnection,
};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

mod support;
use support::Input;

/// A connection's end, and the other end of its socket.
fn end(settings: Settings, keys: SocketKeys) -> (TcpConnection, UnixStream) {
    let (ours, wire) = UnixStream::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    wire.set_nonblocking(true).unwrap();
    let mut connection = TcpConnection::new(settings).unwrap();
    connection.add_socket(NewDataSocket { peer: 0, socket: ours.into(), keys });
    (connection, wire)
}

/// What message `position` carries.
fn payload(position: u64, length: usize) -> Vec<u8> {
    (0..length).map(|at| (position as usize * 31 + at) as u8).collect()
}

struct World {
    sender: TcpConnection,
    from_sender: UnixStream,
    receiver: TcpConnection,
    to_receiver: UnixStream,
    geometry: FifoShape,
    /// Between the two.
    wire: Vec<u8>,
    /// Lengths of what was sent.
    sent: Vec<usize>,
    received: u64,
    is_altered: bool,
    is_encrypted: bool,
    /// Where messages were wanted; the last is where one is now.
    landings: Vec<Box<[u8]>>,
}

fn stamp(position: u64) -> Stamp {
    Stamp { sequence: position, fingerprint: 1, ..Stamp::default() }
}

impl World {
    fn new(mode: u8, lines: u8) -> World {
        let protection = Protection::ALL[usize::from(mode % 3)];
        let slot_bytes = 64 * (1 + usize::from(lines % 64));
        let geometry = FifoShape { depth: 2 + usize::from(mode >> 4), slot_bytes };
        let lengths = Lengths { cut: geometry.slot_bytes, whole: 0 };
        let (steps, messages) = (lengths, lengths);
        let settings = Settings { geometry, steps, messages, protection, data_sockets: 1 };
        let keys = |send, receive| SocketKeys { send: [send; 32], receive: [receive; 32] };
        let (sender, from_sender) = end(settings, keys(1, 2));
        let (receiver, to_receiver) = end(settings, keys(2, 1));
        World {
            sender,
            from_sender,
            receiver,
            to_receiver,
            geometry,
            wire: Vec::new(),
            sent: Vec::new(),
            received: 0,
            is_altered: false,
            is_encrypted: protection == Protection::Encrypted,
            landings: Vec::new(),
        }
    }

    fn send(&mut self, length: usize) {
        let position = self.sent.len() as u64;
        if let Some(room) = self.sender.try_reserve(length) {
            // SAFETY: the room was reserved for as many bytes.
            unsafe { room.copy_from_nonoverlapping(payload(position, length).as_ptr(), length) };
            self.sender.post(&stamp(position), length);
            self.sent.push(length);
        }
        let mut some = [0; 8192];
        while let Ok(got @ 1..) = self.from_sender.read(&mut some) {
            self.wire.extend(&some[..got]);
            self.sender.flush();
        }
    }

    fn deliver(&mut self, bytes: usize) {
        let bytes = bytes.min(self.wire.len());
        // A receiver that gave up takes nothing.
        let written = self.to_receiver.write(&self.wire[..bytes]).unwrap_or(0);
        self.wire.drain(..written);
    }

    fn want(&mut self, length: usize) {
        let mut place: Box<[u8]> = vec![0; length].into();
        self.receiver.receive_at(place.as_mut_ptr(), length, &stamp(self.received));
        self.landings.push(place);
    }

    fn receive(&mut self) {
        let Some((message, landed)) = self.receiver.peek() else {
            assert!(self.is_altered || !self.receiver.is_broken(), "nothing was wrong");
            return;
        };
        assert!(message.length <= self.geometry.slot_bytes);
        let got: Vec<u8> = if landed {
            let is_there = |place: &&Box<[u8]>| place.len() == message.length;
            self.landings.iter().rfind(is_there).expect("it was wanted somewhere").to_vec()
        } else {
            // SAFETY: a slot of the receiver's; that it is one is what is tested.
            unsafe { std::slice::from_raw_parts(message.payload, message.length) }.to_vec()
        };
        if self.is_encrypted || !self.is_altered {
            let length = *self.sent.get(self.received as usize).expect("it was sent");
            assert_eq!(message.stamp, stamp(self.received));
            let right = payload(self.received, length);
            // The place of an earlier wish may be the one.
            let has_landed = || landed && self.landings.iter().any(|place| **place == *right);
            assert!(got == right || has_landed(), "another message's bytes");
        }
        self.receiver.free();
        self.received += 1;
    }

    fn alter(&mut self, at: usize, bytes: &[u8]) {
        for (cell, byte) in self.wire.iter_mut().skip(at).zip(bytes) {
            self.is_altered |= *byte != 0;
            *cell ^= byte;
        }
    }

    fn insert(&mut self, at: usize, bytes: &[u8]) {
        self.is_altered |= !bytes.is_empty();
        let at = at.min(self.wire.len());
        self.wire.splice(at..at, bytes.iter().copied());
    }
}

/// A header that is right in itself.
fn forged(input: &mut Input, received: u64) -> Option<[u8; FRAME_BYTES]> {
    let (ahead, length) = (input.byte()?, input.short()?);
    let position = received.wrapping_add_signed((ahead as i8).into());
    let length = if length == u16::MAX { u32::MAX } else { length.into() };
    let frame = Frame { position, length, payload_check: 0, stamp: stamp(position) };
    Some(frame.encode())
}

fuzz_target!(|data: &[u8]| {
    let mut input = Input(data);
    if let Some(bytes) = data.first_chunk::<FRAME_BYTES>()
        && let Ok(frame) = Frame::decode(bytes)
    {
        assert_eq!(&frame.encode(), bytes);
    }
    let (Some(mode), Some(lines)) = (input.byte(), input.byte()) else { return };
    let mut world = World::new(mode, lines);
    while let Some(what) = input.byte() {
        let number = usize::from(input.short().unwrap_or(0));
        match what % 8 {
            0 => world.send(number % (world.geometry.slot_bytes + 1)),
            1 => world.deliver(number),
            2 => world.receive(),
            3 => world.alter(number, &[what | 1]),
            4 => {
                let bytes = input.some(usize::from(what >> 3));
                world.insert(number, bytes);
            }
            5 => {
                let Some(header) = forged(&mut input, world.received) else { break };
                world.insert(number, &header);
            }
            6 => world.want(1 + number % world.geometry.slot_bytes),
            _ => world.receiver.receive_anywhere(),
        }
    }
    // What is whole on the wire arrives.
    for _ in 0..2 * world.sent.len() + 2 {
        world.deliver(usize::MAX);
        world.receive();
        world.send(0);
    }
});
