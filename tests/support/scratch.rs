//! Calls whose results do not matter.

use ringcomm::communicator::{Call, Communicator};
use ringcomm::error::Result;
use ringcomm::plan::Collective;
use ringcomm::transport::shm_export;
use ringcomm::types::DataType;

/// Elements of the buffers of [`Scratch`], for each rank.
pub const ROOM: usize = 20_000;

/// Of long ones: a vector is cut between two hosts, and goes whole between more.
pub const LONG_ROOM: usize = 300_000;

/// Buffers for calls whose results do not matter.
pub struct Scratch {
    pub send: &'static mut [f32],
    pub recv: &'static mut [f32],
    /// Elements for each rank.
    pub room: usize,
    /// In memory that other processes map, and read and write themselves.
    mapped: bool,
}

impl Scratch {
    pub fn new(nranks: usize) -> Scratch {
        Scratch::of(ROOM, nranks)
    }

    pub fn long(nranks: usize) -> Scratch {
        Scratch::of(LONG_ROOM, nranks)
    }

    fn of(room: usize, nranks: usize) -> Scratch {
        let zeroed = || Box::leak(vec![0.0; room * nranks].into_boxed_slice());
        Scratch { send: zeroed(), recv: zeroed(), room, mapped: false }
    }

    pub fn mapped(nranks: usize) -> Scratch {
        let zeroed = || {
            let address = shm_export::allocate(ROOM * nranks * size_of::<f32>()).expect("memory");
            // SAFETY: so many zeroed bytes on a page of their own, until they are released.
            unsafe { std::slice::from_raw_parts_mut(address.cast(), ROOM * nranks) }
        };
        Scratch { send: zeroed(), recv: zeroed(), room: ROOM, mapped: true }
    }

    pub fn call(&mut self, collective: Collective, count: usize) -> Call<'static> {
        assert!(count <= self.room);
        Call {
            send: self.send.as_ptr().cast(),
            recv: self.recv.as_mut_ptr().cast(),
            count,
            ..Call::new(collective, DataType::Float32)
        }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        for buffer in [&mut self.send, &mut self.recv] {
            let slice = &raw mut **buffer;
            match self.mapped {
                true => shm_export::release(slice.cast()).expect("it was allocated"),
                // SAFETY: leaked by `new`, and nobody has it any more.
                false => drop(unsafe { Box::from_raw(slice) }),
            }
        }
    }
}

/// Run a call on buffers that are long enough.
pub fn run(comm: &Communicator, call: &Call) -> Result<()> {
    assert!(call.count <= LONG_ROOM);
    // SAFETY: the buffers of `Scratch` hold `room` elements for every rank, and `call` was asked
    // for no more.
    unsafe { comm.run(call) }
}
