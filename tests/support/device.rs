//! Buffers of a test in the memory of a device.

use super::guarded::Guarded;
use ringcomm::communicator::{Call, Communicator, Order};
use ringcomm::device::cuda::{Device, DeviceMemory, OwnedStream, copy};
use std::cell::RefCell;
use std::sync::Arc;

/// One rank's stream, and its memory on a device.
pub struct Bench {
    pub device: Arc<Device>,
    pub stream: Arc<OwnedStream>,
    /// Copies of a call's buffers, each as large as the largest so far.
    memory: RefCell<Vec<(usize, DeviceMemory)>>,
    /// Of a call's buffers, those that stay in host memory: a bit each.
    pub on_host: u32,
}

impl Bench {
    pub fn new(ordinal: i32) -> Bench {
        let device = Device::of_ordinal(ordinal).expect("a device");
        let stream = Arc::new(OwnedStream::new(&device).expect("a stream"));
        Bench { device, stream, memory: RefCell::default(), on_host: 0 }
    }

    /// On the same stream as another.
    pub fn beside(other: &Bench) -> Bench {
        let (device, stream) = (other.device.clone(), other.stream.clone());
        Bench { device, stream, memory: RefCell::default(), on_host: 0 }
    }

    /// Run `call` on copies of its buffers, from loading them to reading them back in the order of
    /// the stream alone.
    pub fn run(
        &self,
        comm: &Communicator,
        call: &Call,
        buffers: &mut [&mut Guarded],
    ) -> Result<(), String> {
        let text = |error: ringcomm::error::Error| error.to_string();
        let stream = self.stream.raw();
        let mut moved = Vec::new();
        for (index, buffer) in buffers.iter_mut().enumerate() {
            let all = buffer.all();
            let (start, bytes) = (all.as_mut_ptr(), all.len());
            if self.on_host >> index & 1 == 1 {
                continue;
            }
            // At the same place in a cache line.
            let place = self.memory(index, bytes + 64).wrapping_add(start.addr() % 64);
            let _current = self.device.enter().map_err(text)?;
            // SAFETY: both are so long, and stay until the stream is synchronized.
            unsafe { copy(&self.device, place, start, bytes, stream) }.map_err(text)?;
            moved.push((start, bytes, place));
        }
        let at = |pointer: *mut u8| {
            let within = |(start, bytes, _): &&(*mut u8, usize, *mut u8)| {
                (start.addr()..start.addr() + bytes).contains(&pointer.addr())
            };
            match moved.iter().find(within) {
                Some((start, _, place)) => place.wrapping_add(pointer.addr() - start.addr()),
                None => pointer,
            }
        };
        let (send, recv) = (at(call.send.cast_mut()).cast_const(), at(call.recv));
        let call = Call { send, recv, order: Order::on(stream), ..call.clone() };
        // SAFETY: copies of buffers that have the sizes that the collective defines.
        let called = unsafe { comm.call(&call) }.map_err(text);
        for (start, bytes, place) in &moved {
            let _current = self.device.enter().map_err(text)?;
            // SAFETY: as above.
            unsafe { copy(&self.device, *start, *place, *bytes, stream) }.map_err(text)?;
        }
        self.stream.synchronize().map_err(text)?;
        called
    }

    fn memory(&self, index: usize, bytes: usize) -> *mut u8 {
        let mut memory = self.memory.borrow_mut();
        while memory.len() <= index {
            memory.push((0, DeviceMemory::new(&self.device, 1).expect("memory")));
        }
        if memory[index].0 < bytes {
            let bytes = bytes.next_power_of_two();
            memory[index] = (bytes, DeviceMemory::new(&self.device, bytes).expect("memory"));
        }
        memory[index].1.pointer()
    }
}
