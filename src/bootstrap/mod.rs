//! How ranks find each other: the unique id, and the authenticated rendezvous it leads to.

/// The 128 bytes that lead the ranks of one communicator together, a 32-byte secret among them.
#[derive(Clone, PartialEq, Eq)]
pub struct UniqueId(pub(crate) [u8; 128]);
