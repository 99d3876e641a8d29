//! One rail to a peer: a connection of a network plugin each way, from connecting to closing, with
//! the requests under way.
//!
//! A plugin matches messages in the order in which both ends post them, and moves them only while a
//! request is tested. Requests are tested from the oldest on, as NCCL does.
#![allow(unsafe_code)]

use super::abi::{HANDLE_BYTES, MemoryHandle, NetCode, NetComm, NetHandle, Request};
use super::calls::NetCalls;
use super::library::NetPlugin;
use std::collections::VecDeque;
use std::ffi::c_int;

/// Requests that are tested behind the oldest one that is not done. Plugins over sockets begin the
/// next message when its request is tested; to test all would cost a system call for each.
const BEHIND: usize = 1;

/// Memory that requests lie in.
pub type Memory = (*mut u8, usize);

/// A failed call: its name in NCCL, and the code.
pub type Failed = (&'static str, NetCode);

/// A request and what it is for.
struct Post<T> {
    /// Null as long as the plugin has not taken it.
    request: Request,
    memory: Memory,
    what: T,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    Send,
    Receive,
}

/// One end of a connection, which goes one way.
pub struct Channel<T> {
    direction: Direction,
    /// Null until the connection is there.
    comm: NetComm,
    /// The connection's memory, once it is registered; that may be null.
    registration: Option<MemoryHandle>,
    posts: VecDeque<Post<T>>,
    /// The first so many are requests of the plugin's.
    taken: usize,
    /// Nothing more is handed in.
    refuses: bool,
    /// Nothing of it is used any more, but to close it.
    has_failed: bool,
}

impl<T: Copy> Channel<T> {
    fn new(direction: Direction) -> Channel<T> {
        Channel {
            direction,
            comm: std::ptr::null_mut(),
            registration: None,
            posts: VecDeque::new(),
            taken: 0,
            refuses: false,
            has_failed: false,
        }
    }

    pub fn is_connected(&self) -> bool {
        !self.comm.is_null()
    }

    /// Send from this memory, or receive into it, behind what is posted already.
    ///
    /// # Safety
    /// The memory lies in that which the channel is driven with, and is nobody else's until the
    /// message is over or the channel closed.
    pub unsafe fn post(&mut self, memory: Memory, what: T) {
        self.posts.push_back(Post { request: std::ptr::null_mut(), memory, what });
    }

    /// Do what is to be done, and give `over` what is over, with its memory and the bytes that
    /// came.
    ///
    /// # Safety
    /// `all` is the memory of all that is posted; it stays mapped until the channel is closed.
    pub unsafe fn drive(
        &mut self,
        calls: &NetCalls,
        all: Memory,
        over: &mut impl FnMut(T, Memory, usize),
    ) -> Result<(), Failed> {
        if self.comm.is_null() || self.has_failed {
            return Ok(());
        }
        let tested = self.test(calls, over);
        self.has_failed = tested.is_err();
        tested?;
        if self.refuses {
            return Ok(());
        }
        let before = self.taken;
        let handed_in =
            self.register(calls, all).and_then(|registration| self.hand_in(calls, registration));
        // What was taken before may still come to its end.
        self.refuses = handed_in.is_err();
        handed_in?;
        // A message may go at once.
        if self.taken > before && self.direction == Direction::Send {
            let tested = self.test(calls, over);
            self.has_failed = tested.is_err();
            tested?;
        }
        Ok(())
    }

    fn register(&mut self, calls: &NetCalls, all: Memory) -> Result<MemoryHandle, Failed> {
        if let Some(registration) = self.registration {
            return Ok(registration);
        }
        // SAFETY: the connection is there, and `drive` has the promise of the memory.
        let made = unsafe { calls.register(self.comm, all) }.map_err(|code| ("regMr", code))?;
        self.registration = Some(made);
        Ok(made)
    }

    /// Give the plugin what it has not taken yet, in order.
    fn hand_in(&mut self, calls: &NetCalls, registration: MemoryHandle) -> Result<(), Failed> {
        while self.taken < self.posts.len() && self.taken < calls.abi.most_requests() {
            let post = &mut self.posts[self.taken];
            // SAFETY: the connection is there; `post` has the promise of the memory.
            post.request = unsafe {
                match self.direction {
                    Direction::Send => calls.isend(self.comm, post.memory, registration),
                    Direction::Receive => calls.irecv(self.comm, post.memory, registration),
                }
            }
            .map_err(|code| (self.direction.name(), code))?;
            if post.request.is_null() {
                break;
            }
            self.taken += 1;
        }
        Ok(())
    }

    fn test(
        &mut self,
        calls: &NetCalls,
        over: &mut impl FnMut(T, Memory, usize),
    ) -> Result<(), Failed> {
        let mut at = 0;
        while at < self.taken && at <= BEHIND {
            // SAFETY: the request is not done yet.
            match unsafe { calls.test(self.posts[at].request) }.map_err(|code| ("test", code))? {
                None => at += 1,
                Some(size) => {
                    let Post { memory, what, .. } = self.posts.remove(at).expect("it is there");
                    self.taken -= 1;
                    over(what, memory, size);
                }
            }
        }
        Ok(())
    }

    /// What there is to close.
    fn remains(&self) -> ChannelRemains {
        let Channel { direction, comm, registration, .. } = *self;
        ChannelRemains { direction, comm, registration }
    }
}

impl Direction {
    fn name(self) -> &'static str {
        if self == Direction::Send { "isend" } else { "irecv" }
    }
}

/// A channel that nobody uses any more.
struct ChannelRemains {
    direction: Direction,
    comm: NetComm,
    registration: Option<MemoryHandle>,
}

/// What a rail leaves to be closed, by any thread.
pub struct RailRemains {
    channels: [ChannelRemains; 2],
    listener: NetComm,
}

// SAFETY: plugins are told of no threads: each end of a connection is used by one at a time.
unsafe impl Send for RailRemains {}

impl RailRemains {
    /// Close everything; what fails is closed all the same.
    pub fn close(self, calls: &NetCalls) {
        for ChannelRemains { direction, comm, registration } in self.channels {
            if comm.is_null() {
                continue;
            }
            // SAFETY: nobody uses the connection any more; requests may be under way.
            let _ = unsafe {
                if let Some(registration) = registration {
                    let _ = calls.deregister(comm, registration);
                }
                match direction {
                    Direction::Send => calls.close_send(comm),
                    Direction::Receive => calls.close_receive(comm),
                }
            };
        }
        if !self.listener.is_null() {
            // SAFETY: nobody uses the listener any more.
            let _ = unsafe { calls.close_listen(self.listener) };
        }
    }
}

/// Connections of one device, to a peer and from it.
pub struct Rail {
    device: c_int,
    /// Null once the peer's connection was accepted.
    listener: NetComm,
    /// By which the peer finds this rank.
    pub mine: [u8; HANDLE_BYTES],
    /// The peer's, where the plugin keeps what it has begun.
    theirs: Option<Box<NetHandle>>,
    pub sends: Channel<Option<u64>>,
    pub receives: Channel<usize>,
}

impl Rail {
    /// Await a peer's connection.
    pub fn listen(plugin: &NetPlugin, device: c_int) -> Result<Rail, Failed> {
        let mut handle = NetHandle([0; HANDLE_BYTES]);
        // SAFETY: a device of the plugin's.
        let listener = unsafe { plugin.calls.listen(plugin.context, device, &mut handle) };
        Ok(Rail {
            device,
            listener: listener.map_err(|code| ("listen", code))?,
            mine: handle.0,
            theirs: None,
            sends: Channel::new(Direction::Send),
            receives: Channel::new(Direction::Receive),
        })
    }

    /// Connect to the peer who gave this handle, from now on.
    pub fn open(&mut self, theirs: [u8; HANDLE_BYTES]) {
        self.theirs = Some(Box::new(NetHandle(theirs)));
    }

    /// Go on connecting both ways, of which neither may come to an end without the other.
    pub fn connect(&mut self, plugin: &NetPlugin) -> Result<(), Failed> {
        if let Some(theirs) = self.theirs.as_mut().filter(|_| self.sends.comm.is_null()) {
            // SAFETY: a device of the plugin's; the handle is the same one each time.
            let sends = unsafe { plugin.calls.connect(plugin.context, self.device, theirs) };
            self.sends.comm = sends.map_err(|code| ("connect", code))?;
        }
        if self.receives.comm.is_null() {
            // SAFETY: the listener is open until it has accepted.
            let receives = unsafe { plugin.calls.accept(self.listener) };
            self.receives.comm = receives.map_err(|code| ("accept", code))?;
            if !self.receives.comm.is_null() {
                let listener = std::mem::replace(&mut self.listener, std::ptr::null_mut());
                // SAFETY: it has accepted the one connection that it was for. What fails changes
                // nothing.
                let _ = unsafe { plugin.calls.close_listen(listener) };
            }
        }
        Ok(())
    }

    pub fn is_connected(&self) -> bool {
        self.sends.is_connected() && self.receives.is_connected()
    }

    /// What there is to close; nothing else is called any more.
    pub fn remains(self) -> RailRemains {
        let channels = [self.sends.remains(), self.receives.remains()];
        RailRemains { channels, listener: self.listener }
    }
}
