//! Calls whose results do not matter.

use ringcomm::communicator::{Call, Communicator};
use ringcomm::error::Result;
use ringcomm::plan::Collective;
use ringcomm::types::DataType;

/// Elements of the buffers of [`Scratch`], for each rank.
pub const ROOM: usize = 20_000;

/// Buffers for calls whose results do not matter.
pub struct Scratch {
    pub send: Vec<f32>,
    pub recv: Vec<f32>,
}

impl Scratch {
    pub fn new(nranks: usize) -> Scratch {
        Scratch { send: vec![1.0; ROOM * nranks], recv: vec![0.0; ROOM * nranks] }
    }

    pub fn call(&mut self, collective: Collective, count: usize) -> Call<'static> {
        Call {
            send: self.send.as_ptr().cast(),
            recv: self.recv.as_mut_ptr().cast(),
            count,
            ..Call::new(collective, DataType::Float32)
        }
    }
}

/// Run a call on buffers that are long enough.
pub fn run(comm: &Communicator, call: &Call) -> Result<()> {
    assert!(call.count <= ROOM);
    // SAFETY: the buffers of `Scratch` hold `ROOM` elements for every rank.
    unsafe { comm.run(call) }
}
