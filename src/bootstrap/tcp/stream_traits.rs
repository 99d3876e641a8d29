//! A connection as a protocol sees it, whether a socket or a simulated one.

use crate::os::tcp_liveness::AckWatch;
use std::io;
use std::net::SocketAddr;

/// Bytes in both directions; no call waits.
pub trait ByteStream {
    /// What is there now, at most the length of `bytes`; 0 is the end of the stream, and
    /// `WouldBlock` means that nothing is there yet.
    fn receive(&mut self, bytes: &mut [u8]) -> io::Result<usize>;

    /// Send what fits now; `WouldBlock` where nothing does, or while the connection is being made.
    fn send(&mut self, bytes: &[u8]) -> io::Result<usize>;

    /// Send nothing more; what comes can still be received.
    fn finish(&mut self);
}

/// Where connections come from.
pub trait Network {
    type Stream: ByteStream;

    /// Begin to connect; a refusal may be told by the stream's first use.
    fn connect(&mut self, to: &SocketAddr) -> io::Result<Self::Stream>;

    /// What to dial to reach any of `to`, best first.
    fn routes(&self, to: &[SocketAddr]) -> Vec<SocketAddr> {
        to.to_vec()
    }

    /// What reaches others by the network of this stream is best from now on.
    fn prefer(&self, _stream: &Self::Stream) {}

    /// The interface of this machine by which an address is reached.
    fn interface_to(&self, _to: &SocketAddr) -> Option<String> {
        None
    }

    /// Let a stream fail with `TimedOut` some seconds after nobody is at its other end any more, or
    /// takes what comes.
    fn watch(&self, stream: &Self::Stream);

    /// The same while nothing is on its way only, for an end that may be stopped as long as it
    /// likes.
    fn enable_keepalive(&self, stream: &Self::Stream);

    /// Whether nobody acknowledges what is on its way, by this look and those before it, one every
    /// [`LOOK`](crate::os::tcp_liveness::LOOK).
    fn is_silent(&self, stream: &Self::Stream, before: &mut AckWatch) -> bool;
}

/// Whether a call should simply be made again later.
pub fn is_not_yet(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

/// The error of a stream that ended where it should go on.
pub fn unexpected_eof() -> io::Error {
    io::ErrorKind::UnexpectedEof.into()
}
