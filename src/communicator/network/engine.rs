//! The control thread: lets proved connections in and makes those that are asked for.
#![allow(unsafe_code)]

use crate::bootstrap::UniqueId;
use crate::bootstrap::network::{Dial, Gate, Greeting, Proved, Purpose};
use crate::error::Result;
use crate::executor::links::Pages;
use crate::transport::tcp::{Connect, Inbox, LaneKeys, NewLane};
use parking_lot::Mutex;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::*};
use std::time::{Duration, Instant};

pub struct Start {
    pub rank: usize,
    pub id: UniqueId,
    pub gate: Gate,
    pub addresses: Vec<Vec<SocketAddr>>,
    pub remote: Vec<bool>,
    pub pages: Pages,
    pub inbox: Arc<Inbox>,
    pub lanes: usize,
    pub timeout: Duration,
}

struct Shared {
    wanted: Mutex<Vec<usize>>,
    stop: AtomicBool,
}

pub struct Engine {
    shared: Arc<Shared>,
    thread: Option<std::thread::JoinHandle<()>>,
}

struct Connector(Arc<Shared>);

impl Connect for Connector {
    fn connect(&self, peer: usize) {
        self.0.wanted.lock().push(peer);
    }
}

impl Engine {
    pub fn start(start: Start) -> Result<Engine> {
        let shared = Arc::new(Shared { wanted: Mutex::default(), stop: AtomicBool::new(false) });
        let theirs = shared.clone();
        let thread = std::thread::spawn(move || run(start, &theirs));
        Ok(Engine { shared, thread: Some(thread) })
    }

    pub fn connector(&self) -> Box<dyn Connect> {
        Box::new(Connector(self.shared.clone()))
    }

    pub fn publish(&self) {}
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.shared.stop.store(true, Relaxed);
        let _ = self.thread.take().map(|thread| thread.join());
    }
}

fn run(mut start: Start, shared: &Shared) {
    let mut dials: Vec<(usize, Dial)> = Vec::new();
    let mut fds = Vec::new();
    while !shared.stop.load(Relaxed) {
        for peer in std::mem::take(&mut *shared.wanted.lock()) {
            for lane in 0..start.lanes {
                let greeting = Greeting {
                    purpose: Purpose::Data,
                    rank: start.rank as u32,
                    to: peer as u32,
                    nranks: start.addresses.len() as u32,
                    epoch: 0,
                    lane: lane as u32,
                    note: 0,
                };
                let deadline = Instant::now() + start.timeout;
                dials
                    .push((peer, Dial::new(&start.id, &start.addresses[peer], greeting, deadline)));
            }
        }
        let push = |peer: usize, proved: Proved| {
            let keys = LaneKeys { send: proved.keys.send, receive: proved.keys.receive };
            start.inbox.push(NewLane { peer, socket: proved.socket, keys });
        };
        for proved in start.gate.advance() {
            if proved.greeting.purpose == Purpose::Data {
                push(proved.greeting.rank as usize, proved);
            }
        }
        dials.retain_mut(|(peer, dial)| match dial.advance() {
            Ok(None) => true,
            Ok(Some(proved)) => {
                push(*peer, proved);
                false
            }
            Err(error) => {
                start.inbox.fail(*peer, error.to_string());
                false
            }
        });
        fds.clear();
        start.gate.poll_fds(&mut fds);
        dials.iter().for_each(|(_, dial)| dial.poll_fds(&mut fds));
        // SAFETY: the entries are live.
        unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as _, 2) };
    }
}
