//! Work that goes on until a rank dies: random calls of every kind, the same on every rank.

use super::data::Random;
use super::samples::WITH_V_FORM;
use super::scratch::{Scratch, run};
use ringcomm::communicator::{Call, Communicator, Message, VectorCounts};
use ringcomm::error::{Error, Result};
use ringcomm::plan::Collective;
use ringcomm::types::DataType;

/// Call after call on a new communicator until one fails. The error is that call's: it names what
/// this rank was in, and the number that its user counts.
pub fn until_one_fails(comm: &Communicator, scratch: &mut Scratch, random: &mut Random) -> Error {
    let (mut calls, mut batches) = (0_u64, 0_u64);
    // The one before which nobody says that it is ready.
    run(comm, &scratch.call(Collective::Barrier, 0)).expect("nobody is dead yet");
    super::processes::say("ready");
    loop {
        let (name, number, outcome) = if random.chance(4) {
            batches += 1;
            ("Send/Recv", batches - 1, pass_on(comm, scratch, random))
        } else {
            calls += 1;
            let call = any_call(scratch, comm.nranks(), random);
            (call.collective.name(), calls, run_any(comm, call, random))
        };
        if let Err(error) = outcome {
            let text = error.to_string();
            let named = text.contains(&format!(" {name}")) && text.contains(&format!(" #{number}"));
            // Who has aborted knows in what.
            let is_own = text.contains(&format!("communicator of rank {} was", comm.rank()));
            assert!(named || is_own, "{text}; it was {name} #{number}");
            return error;
        }
    }
}

/// A collective that all ranks agree on.
pub fn any_call(scratch: &mut Scratch, nranks: usize, random: &mut Random) -> Call<'static> {
    let collective = random.pick(&Collective::ALL);
    let count = random.pick(&[1, 100, 3000, scratch.room]);
    Call { root: random.below(nranks), ..scratch.call(collective, count) }
}

/// The call, or its `v` form with blocks of one length.
fn run_any(comm: &Communicator, call: Call, random: &mut Random) -> Result<()> {
    let nranks = comm.nranks();
    let takes_vector = WITH_V_FORM.contains(&call.collective);
    if !takes_vector || !random.chance(2) {
        return run(comm, &call);
    }
    let counts = vec![call.count; nranks];
    let displacements: Vec<usize> = (0..nranks).map(|rank| rank * call.count).collect();
    let vector = VectorCounts {
        send_counts: counts.clone(),
        send_displacements: displacements.clone(),
        recv_counts: counts,
        recv_displacements: displacements,
    };
    run(comm, &Call { vector: Some(&vector), ..call })
}

/// Every rank sends to the next and receives from the one before.
fn pass_on(comm: &Communicator, scratch: &mut Scratch, random: &mut Random) -> Result<()> {
    let (rank, nranks) = (comm.rank(), comm.nranks());
    let (count, data_type) = (random.pick(&[1, 3000, scratch.room]), DataType::Float32);
    let (buffer, into) = (scratch.send.as_ptr().cast(), scratch.recv.as_mut_ptr().cast());
    let messages = [
        Message::Send { buffer, count, data_type, peer: (rank + 1) % nranks },
        Message::Recv { buffer: into, count, data_type, peer: (rank + nranks - 1) % nranks },
    ];
    // SAFETY: the buffers of `Scratch` hold `room` elements.
    unsafe { comm.exchange(&messages) }
}
