//! Network engine over one of NCCL's network plugins: all lanes of a rank.
//!
//! Every rank listens on the fastest devices, once for each peer, and both connect: two connections
//! for each rail, one each way. A plugin waits for nothing but in closing, which a helper thread
//! does, for a limited time.
#![allow(unsafe_code)]

use super::abi::HANDLE_BYTES;
use super::channel::{Rail, RailRemains};
use super::lane::PluginLane;
use super::library::NetPlugin;
use crate::error::{Error, Result};
use crate::fork;
use crate::os::thread_signals::{NoPipeSignal, spawn_deaf};
use crate::transport::engine::{EngineInfo, LaneToken, NetEngine, Seals};
use crate::transport::tcp::{Inbound, Outbound};
use std::ffi::c_int;
use std::os::fd::RawFd;
use std::sync::mpsc;
use std::time::Duration;

/// Rails to a peer, at most.
const MOST_RAILS: usize = 4;

/// How long a plugin may take to close a peer's connections, or to end; it takes milliseconds.
const CLOSING: Duration = Duration::from_secs(2);

/// One rank's end of all lanes.
pub struct PluginEngine {
    plugin: NetPlugin,
    /// The devices of the rails.
    devices: Vec<c_int>,
    /// By rank.
    lanes: Vec<Option<PluginLane>>,
    /// The peer whose lane is looked after beside the one of a call.
    turn: usize,
    /// Messages sent.
    sent: u64,
    /// The plugin has not come back from closing something, and closes nothing more.
    is_hung: bool,
    /// The process it was made in.
    born: u32,
}

// SAFETY: plugins are told of no threads; each end of a connection is used by one at a time, since
// whoever uses the engine has it locked.
unsafe impl Send for PluginEngine {}

/// Let a plugin do what it may not come back from; whether it has.
fn within_limit(work: impl FnOnce() + Send + 'static) -> bool {
    let (tell, told) = mpsc::channel();
    let thread = spawn_deaf("ringcomm-close", move || {
        work();
        // Nobody waits any more for what took too long.
        let _ = tell.send(());
    });
    let Ok(thread) = thread else { return false };
    told.recv_timeout(CLOSING).is_ok() && thread.join().is_ok()
}

impl PluginEngine {
    /// The engine of a rank among so many, over the plugin of this name, or the usual one.
    pub fn new(name: Option<&str>, nranks: usize) -> Result<PluginEngine> {
        let plugin = NetPlugin::start(name)?;
        let fastest = plugin.devices.iter().map(|(_, device)| device.speed).max().unwrap_or(0);
        let fast = plugin.devices.iter().filter(|(_, device)| device.speed == fastest);
        let devices = fast.map(|(number, _)| *number).take(MOST_RAILS).collect();
        let lanes = (0..nranks).map(|_| None).collect();
        let (turn, sent, is_hung, born) = (0, 0, false, fork::generation());
        Ok(PluginEngine { plugin, devices, lanes, turn, sent, is_hung, born })
    }

    /// What a rank's address begins with: the interface's version, and the rails.
    fn address(&self, lane: &PluginLane) -> Vec<u8> {
        let mut address = vec![self.plugin.calls.abi as u8, 0];
        for handle in lane.handles() {
            address[1] += 1;
            address.extend_from_slice(handle);
        }
        address
    }

    /// Look after a peer's lane, and after another one: a plugin moves nothing by itself.
    fn advance(&mut self, peer: usize) {
        self.turn = (self.turn + 1) % self.lanes.len();
        let both = [Some(peer), Some(self.turn).filter(|turn| *turn != peer)];
        for peer in both.into_iter().flatten() {
            if let Some(lane) = &mut self.lanes[peer] {
                lane.advance(&self.plugin);
            }
        }
    }

    /// Close what rails have left; whether the plugin has come back.
    fn close_rails(&mut self, rails: Vec<RailRemains>) -> bool {
        if self.is_hung {
            return false;
        }
        if !rails.is_empty() {
            let calls = self.plugin.calls;
            self.is_hung =
                !within_limit(move || rails.into_iter().for_each(|rail| rail.close(&calls)));
        }
        !self.is_hung
    }

    fn wrong_address(&self, why: &str) -> Error {
        Error::usage(format!(
            "network plugin {} ({}): {why}; use the same plugin on all hosts",
            self.plugin.name, self.plugin.file
        ))
    }
}

impl NetEngine for PluginEngine {
    fn info(&self) -> EngineInfo {
        let NetPlugin { calls, name, file, devices, .. } = &self.plugin;
        let rails = || devices.iter().filter(|(number, _)| self.devices.contains(number));
        let names: Vec<&str> = rails().map(|(_, device)| &*device.name).collect();
        EngineInfo {
            kind: "plugin",
            // A user has named it, or it drives the fast devices of this machine.
            beats_tcp: true,
            name: format!("plugin {name} v{} ({file})", calls.abi as u8),
            devices: names.join("+"),
            speed: rails().map(|(_, device)| device.speed).sum(),
            lanes: self.lanes.iter().flatten().filter(|lane| lane.is_connected()).count(),
            sent: self.sent,
        }
    }

    fn expect(&mut self, peer: usize, theirs: LaneToken) -> Result<Vec<u8>> {
        self.close(peer);
        let _signals = NoPipeSignal::begin();
        let mut rails = Vec::new();
        for device in &self.devices {
            match Rail::listen(&self.plugin, *device) {
                Ok(rail) => rails.push(rail),
                Err((call, code)) => {
                    self.close_rails(rails.into_iter().map(Rail::remains).collect());
                    return Err(Error::usage(format!(
                        "{}; see that the device works, or set another RINGCOMM_NET",
                        self.plugin.told(call, code)
                    )));
                }
            }
        }
        let lane = PluginLane::new(theirs, rails);
        let address = self.address(&lane);
        self.lanes[peer] = Some(lane);
        Ok(address)
    }

    fn open(&mut self, peer: usize, address: &[u8], mine: LaneToken) -> Result<()> {
        let abi = self.plugin.calls.abi as u8;
        let Some(([theirs, count], handles)) = address.split_first_chunk() else {
            return Err(self.wrong_address("the peer's address is none"));
        };
        if *theirs != abi {
            let why = format!("this rank's has version {abi} of the interface, a peer's {theirs}");
            return Err(self.wrong_address(&why));
        }
        let (handles, rest) = handles.as_chunks::<HANDLE_BYTES>();
        if !rest.is_empty() || handles.is_empty() || handles.len() != usize::from(*count) {
            return Err(self.wrong_address("the peer's address is none"));
        }
        let lane = self.lanes[peer].as_mut().expect("it was expected");
        let unused = lane.open(handles, mine);
        self.close_rails(unused);
        Ok(())
    }

    fn hears(&mut self, peer: usize) -> bool {
        let _signals = NoPipeSignal::begin();
        self.advance(peer);
        self.lanes[peer].as_ref().is_some_and(PluginLane::is_connected)
    }

    fn posts_receives(&self) -> bool {
        true
    }

    fn lend(&mut self, peer: usize, outbound: &mut Outbound, inbound: &mut Inbound) {
        let Some(lane) = &mut self.lanes[peer] else { return };
        let unused = lane.lend(&self.plugin, outbound, inbound);
        self.close_rails(unused);
    }

    fn write(
        &mut self,
        peer: usize,
        outbound: &mut Outbound,
        seals: &Seals,
    ) -> std::result::Result<(), String> {
        let Some(lane) = &mut self.lanes[peer] else { return Ok(()) };
        self.sent += lane.queue(outbound, seals);
        self.settle(peer, outbound);
        let Some(lane) = &mut self.lanes[peer] else { return Ok(()) };
        // A peer that has left is no matter as long as there is nothing for it.
        match lane.failure() {
            Some(why) if !outbound.is_written() => Err(why.into()),
            _ => Ok(()),
        }
    }

    fn settle(&mut self, peer: usize, outbound: &mut Outbound) {
        let _signals = NoPipeSignal::begin();
        self.advance(peer);
        if let Some(lane) = &mut self.lanes[peer] {
            lane.settle_sends(outbound);
        }
    }

    fn read(
        &mut self,
        peer: usize,
        inbound: &mut Inbound,
        seals: &Seals,
    ) -> std::result::Result<(), String> {
        let Some(lane) = &mut self.lanes[peer] else { return Ok(()) };
        lane.reclaim(inbound);
        let _signals = NoPipeSignal::begin();
        self.advance(peer);
        let Some(lane) = &mut self.lanes[peer] else { return Ok(()) };
        lane.hand_over(inbound, seals)?;
        // What has come is read first.
        match lane.failure() {
            Some(why) if inbound.ready().is_none() => Err(why.into()),
            _ => Ok(()),
        }
    }

    fn progress(&mut self) -> bool {
        let _signals = NoPipeSignal::begin();
        let mut has_news = false;
        for lane in self.lanes.iter_mut().flatten() {
            lane.advance(&self.plugin);
            has_news |= lane.has_news();
        }
        has_news
    }

    fn is_delivered(&mut self, peer: usize) -> bool {
        let _signals = NoPipeSignal::begin();
        self.advance(peer);
        self.lanes[peer].as_mut().is_none_or(PluginLane::is_delivered)
    }

    fn close(&mut self, peer: usize) -> bool {
        match self.lanes[peer].take() {
            Some(lane) => self.close_rails(lane.remains()),
            None => true,
        }
    }

    fn event(&self) -> Option<RawFd> {
        None
    }

    fn arm(&mut self) -> bool {
        true
    }
}

impl Drop for PluginEngine {
    fn drop(&mut self) {
        if self.born != fork::generation() {
            // All of it is the parent's.
            return;
        }
        for peer in 0..self.lanes.len() {
            self.close(peer);
        }
        if !self.is_hung {
            self.plugin.end(|work| {
                within_limit(work);
            });
        }
    }
}
