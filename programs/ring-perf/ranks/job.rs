//! A job that a launcher has started: this process is one of its ranks.
//!
//! The ranks of such a job may be on several hosts and share no memory, so what the board of other
//! runs shares goes through the communicator itself, between the calls that are measured.
#![allow(unsafe_code)]

use crate::cli::options::Options;
use ringcomm::bootstrap::rendezvous::{LaunchFacts, detect, launched};
use ringcomm::communicator::{Call, Communicator};
use ringcomm::error::Result;
use ringcomm::plan::Collective;
use ringcomm::types::DataType;
use std::sync::Arc;

/// The job that this process belongs to, if a launcher's variables say so and the command line does
/// not ask for ranks of its own.
pub fn found(options: &Options) -> Option<Result<LaunchFacts>> {
    let own = options.procs.is_some()
        || options.threads.is_some()
        || options.tcp
        || options.simulate.is_some()
        || options.save_tuning.is_some();
    let lookup = |name: &str| std::env::var(name).ok();
    if own || launched(lookup).is_err() {
        return None;
    }
    // A rank that cannot find the others must not measure something else in their place.
    Some(detect(lookup, None, None, None))
}

/// One rank of the job: the communicator that is measured also carries what the ranks tell each
/// other.
#[derive(Clone)]
pub struct Rank(pub Arc<Communicator>);

impl Rank {
    pub fn barrier(&self) -> Result<()> {
        // SAFETY: a barrier has no buffers.
        unsafe { self.0.run(&Call::new(Collective::Barrier, DataType::Uint8)) }
    }

    /// Give everyone rank 0's words.
    pub fn broadcast(&self, words: &mut [u64]) -> Result<()> {
        let call = Call {
            send: words.as_ptr().cast(),
            recv: words.as_mut_ptr().cast(),
            count: words.len(),
            ..Call::new(Collective::Broadcast, DataType::Uint64)
        };
        // SAFETY: both buffers are the words.
        unsafe { self.0.run(&call) }
    }

    /// The words of all ranks, by rank; every rank gives as many.
    pub fn gather(&self, words: &[u64]) -> Result<Vec<u64>> {
        let mut all = vec![0; words.len() * self.0.nranks()];
        let call = Call {
            send: words.as_ptr().cast(),
            recv: all.as_mut_ptr().cast(),
            count: words.len(),
            ..Call::new(Collective::AllGather, DataType::Uint64)
        };
        // SAFETY: the result holds the words of every rank.
        unsafe { self.0.run(&call)? };
        Ok(all)
    }
}
