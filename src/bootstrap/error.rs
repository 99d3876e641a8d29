//! Why ranks did not meet: the error, and on whose account it came.
//!
//! An error's kind does not tell the two apart: a rank that has no memory and one that was refused
//! by a rank that has just died both say what the system answered. Who meets knows, so it says it.

use crate::error::Error;

/// On whose account a rendezvous failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blame {
    /// This rank can go no further, whatever the others do.
    Here,
    /// Another rank has ended, cannot be reached or has gone no further; or the first of the ranks
    /// has called the rendezvous off.
    There,
    /// A rank other than the first has heard from elsewhere that the rendezvous has no point any
    /// more.
    CalledOff,
    /// The deadline came.
    Late,
}

/// A rendezvous that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BootstrapError {
    pub error: Error,
    pub cause: Blame,
}

impl BootstrapError {
    /// For what another rank did or did not do.
    pub fn there(error: Error) -> BootstrapError {
        BootstrapError { error, cause: Blame::There }
    }

    pub fn late(error: Error) -> BootstrapError {
        BootstrapError { error, cause: Blame::Late }
    }
}

/// What fails outside of the talk with other ranks fails here.
impl From<Error> for BootstrapError {
    fn from(error: Error) -> BootstrapError {
        BootstrapError { error, cause: Blame::Here }
    }
}

impl From<BootstrapError> for Error {
    fn from(unmet: BootstrapError) -> Error {
        unmet.error
    }
}
