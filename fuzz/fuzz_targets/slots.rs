//! A peer writes what it likes into a ring, at both of its ends: messages stay inside their slots,
//! and what is reserved is room.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ringcomm::transport::fifo::{FifoShape, Receiver, Sender, Stamp};
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};

mod support;
use support::{Input, patch};

/// A ring of exactly its bytes, so that AddressSanitizer sees the first one behind it used.
struct Ring(*mut u8, Layout);

impl Ring {
    fn new(geometry: FifoShape) -> Ring {
        let layout = Layout::from_size_align(geometry.bytes(), 128).unwrap();
        // SAFETY: the layout is not empty.
        let base = unsafe { alloc_zeroed(layout) };
        if base.is_null() {
            handle_alloc_error(layout);
        }
        Ring(base, layout)
    }

    fn holds(&self, address: *const u8, bytes: usize) -> bool {
        let at = address.addr().wrapping_sub(self.0.addr());
        at <= self.1.size() && bytes <= self.1.size() - at
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: made with the same layout.
        unsafe { dealloc(self.0, self.1) };
    }
}

fuzz_target!(|data: &[u8]| {
    let mut input = Input(data);
    let (Some(depth), Some(lines)) = (input.byte(), input.byte()) else { return };
    let geometry =
        FifoShape { depth: 2 + usize::from(depth % 4), slot_bytes: 64 * (1 + usize::from(lines)) };
    let (inbound, outbound) = (Ring::new(geometry), Ring::new(geometry));
    // SAFETY: zeroed, aligned, and they outlive the ends.
    let (mut receiver, mut sender) =
        unsafe { (Receiver::new(inbound.0, geometry), Sender::new(outbound.0, geometry)) };
    let stamp = Stamp { fingerprint: 1, ..Stamp::default() };
    while let Some(what) = input.byte() {
        match what % 5 {
            0 => {
                let Some(message) = receiver.peek() else { continue };
                assert!(message.length <= geometry.slot_bytes);
                assert!(inbound.holds(message.payload, message.length));
                let same = Stamp { source: message.stamp.source, ..stamp } == message.stamp;
                assert_eq!(message.matches(&stamp, message.length), same);
                let mut copy = vec![0; message.length];
                // SAFETY: the payload lies in the ring.
                unsafe {
                    message.payload.copy_to_nonoverlapping(copy.as_mut_ptr(), copy.len());
                }
                if what & 0x80 == 0 {
                    receiver.free();
                }
            }
            1 => {
                let length = usize::from(input.short().unwrap_or(0)) % (geometry.slot_bytes + 1);
                let Some(room) = sender.try_reserve(length) else { continue };
                assert!(outbound.holds(room, length));
                // SAFETY: the room lies in the ring.
                unsafe { room.write_bytes(0xa5, length) };
                sender.post(&stamp, length);
            }
            2 => drop(sender.is_drained()),
            // What the peer does: to the ring that it sends through, or to the one it reads.
            ring => {
                let ring = if ring == 3 { &inbound } else { &outbound };
                // SAFETY: the ring's memory is the peer's to write.
                if unsafe { patch(&mut input, ring.0, geometry.bytes()) }.is_none() {
                    break;
                }
            }
        }
    }
});
