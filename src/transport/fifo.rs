//! fifo (bring-up)
#![allow(unsafe_code)]
use std::sync::atomic::{AtomicU64, Ordering::*};
#[derive(Clone, Copy, Debug)]
pub struct Geometry {
    pub depth: usize,
    pub slot_bytes: usize,
}
impl Geometry {
    pub fn bytes(&self) -> usize {
        128 + self.depth * (64 + self.slot_bytes)
    }
}
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    pub communicator: u32,
    pub epoch: u32,
    pub sequence: u64,
    pub fingerprint: u64,
    pub source: u32,
}
#[repr(C, align(64))]
pub struct Header {
    posted: AtomicU64,
    communicator: u32,
    epoch: u32,
    sequence: u64,
    fingerprint: u64,
    source: u32,
    length: u32,
    inline: [u8; 24],
}
pub struct Message {
    pub payload: *const u8,
    pub length: usize,
    pub stamp: Stamp,
}
impl Message {
    #[inline]
    pub fn matches(&self, s: &Stamp) -> bool {
        self.stamp.sequence == s.sequence
            && self.stamp.fingerprint == s.fingerprint
            && self.stamp.communicator == s.communicator
            && self.stamp.epoch == s.epoch
    }
}
pub struct Sender {
    base: *mut u8,
    g: Geometry,
    pos: u64,
    freed: u64,
    idx: usize,
}
pub struct Receiver {
    base: *mut u8,
    g: Geometry,
    pos: u64,
    idx: usize,
}
unsafe impl Send for Sender {}
unsafe impl Send for Receiver {}
fn slot(base: *mut u8, g: &Geometry, idx: usize) -> *mut Header {
    base.wrapping_add(128 + idx * (64 + g.slot_bytes)).cast()
}
fn payload(h: *mut Header, len: usize) -> *mut u8 {
    if len <= 24 { h.cast::<u8>().wrapping_add(40) } else { h.cast::<u8>().wrapping_add(64) }
}
impl Sender {
    pub unsafe fn new(base: *mut u8, g: Geometry) -> Sender {
        Sender { base, g, pos: 0, freed: 0, idx: 0 }
    }
    fn freed(&self) -> &AtomicU64 {
        unsafe { &*self.base.cast::<AtomicU64>() }
    }
    #[inline]
    pub fn try_reserve(&mut self, len: usize) -> Option<*mut u8> {
        if self.pos - self.freed == self.g.depth as u64 {
            self.freed = self.freed().load(Acquire);
            if self.pos - self.freed == self.g.depth as u64 {
                return None;
            }
        }
        Some(payload(slot(self.base, &self.g, self.idx), len))
    }
    #[inline]
    pub fn post(&mut self, s: &Stamp, len: usize) {
        let h = slot(self.base, &self.g, self.idx);
        unsafe {
            (*h).communicator = s.communicator;
            (*h).epoch = s.epoch;
            (*h).sequence = s.sequence;
            (*h).fingerprint = s.fingerprint;
            (*h).source = s.source;
            (*h).length = len as u32;
            self.pos += 1;
            self.idx += 1;
            if self.idx == self.g.depth {
                self.idx = 0;
            }
            (*h).posted.store(self.pos, Release);
        }
    }
    pub fn freed_all(&mut self) -> bool {
        self.freed = self.freed().load(Acquire);
        self.freed == self.pos
    }
}
impl Receiver {
    pub unsafe fn new(base: *mut u8, g: Geometry) -> Receiver {
        Receiver { base, g, pos: 0, idx: 0 }
    }
    #[inline]
    pub fn try_wait(&mut self) -> Option<Message> {
        let h = slot(self.base, &self.g, self.idx);
        unsafe {
            if (*h).posted.load(Acquire) != self.pos + 1 {
                return None;
            }
            let length = (*h).length as usize;
            Some(Message {
                payload: payload(h, length),
                length,
                stamp: Stamp {
                    communicator: (*h).communicator,
                    epoch: (*h).epoch,
                    sequence: (*h).sequence,
                    fingerprint: (*h).fingerprint,
                    source: (*h).source,
                },
            })
        }
    }
    #[inline]
    pub fn free(&mut self) {
        self.pos += 1;
        self.idx += 1;
        if self.idx == self.g.depth {
            self.idx = 0;
        }
        unsafe { (*self.base.cast::<AtomicU64>()).store(self.pos, Release) };
    }
}
