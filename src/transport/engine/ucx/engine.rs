//! A worker of UCX: one rank's end of all lanes, and what comes over them.
//!
//! A message is an active message: its header is an [`Envelope`], its payload is the frame's. What
//! has come is kept by UCX until a connection has a slot for it, so nothing is written anywhere
//! before a frame was checked; what a peer may send before that is bounded by [`WINDOW`]. UCX calls
//! back only within calls.
#![allow(unsafe_code)]

use super::declarations::{
    AmHandlerParam, BUSY, EpAttributes, EpParams, IN_PROGRESS, OK, Object, Params, RequestParam,
    TransportEntry, UcsStatus, WorkerParams, features,
};
use super::lane::{
    Arrival, Inbox, MESSAGE, Receiving, UcxLane, WINDOW, Whom, on_error, on_message, told,
};
use super::library::{Begun, Ucp, api, ucp};
use crate::error::{Error, Result};
use crate::fork;
use crate::transport::engine::{
    Coming, ENVELOPE_BYTES, EngineInfo, Envelope, LaneToken, NetEngine, Seals, whose,
};
use crate::transport::tcp::{Frame, FrameAdmission, Inbound, Outbound};
use std::ffi::{c_int, c_void};
use std::os::fd::RawFd;
use std::time::{Duration, Instant};

/// How long a lane that is closed by force may take; UCX takes milliseconds.
const CLOSING: Duration = Duration::from_secs(5);

/// Transports of a lane that are told of.
const MOST_DEVICES: usize = 16;

pub struct UcxEngine {
    ucp: &'static Ucp,
    context: Object,
    worker: Object,
    address: Vec<u8>,
    inbox: *mut Inbox,
    /// By rank.
    lanes: Vec<Option<UcxLane>>,
    event: RawFd,
    /// Messages sent.
    sent: u64,
    /// UCX has not closed a lane, and may still use what it was given: nothing more is closed.
    is_stuck: bool,
    /// The process it was made in.
    born: u32,
}

// SAFETY: UCX is told that calls come from one thread at a time; all that the pointers lead to is
// this object's, or a slot of the connection whose call is running.
unsafe impl Send for UcxEngine {}

fn failed(what: &str, status: UcsStatus) -> Error {
    Error::usage(format!("UCX: {what} failed: {}", told(status)))
}

fn check(what: &str, status: UcsStatus) -> Result<()> {
    if status == OK { Ok(()) } else { Err(failed(what, status)) }
}

impl UcxEngine {
    /// A worker of a rank among so many.
    pub fn new(nranks: usize) -> Result<UcxEngine> {
        let ucp = ucp()?;
        let mut worker = UcxEngine {
            ucp,
            context: std::ptr::null_mut(),
            worker: std::ptr::null_mut(),
            address: Vec::new(),
            inbox: Box::into_raw(Box::default()),
            lanes: (0..nranks).map(|_| None).collect(),
            event: -1,
            sent: 0,
            is_stuck: false,
            born: fork::generation(),
        };
        // SAFETY: the structures say which of their fields are set, and outlive the calls.
        unsafe { worker.start(nranks)? };
        Ok(worker)
    }

    unsafe fn start(&mut self, nranks: usize) -> Result<()> {
        let ucp = self.ucp;
        let mut config = std::ptr::null_mut();
        // SAFETY: as `new` says.
        unsafe {
            let read = (ucp.config_read)(std::ptr::null(), std::ptr::null(), &raw mut config);
            check("reading its configuration", read)?;
            let params = Params {
                field_mask: Params::FEATURES | Params::ESTIMATED_NUM_EPS,
                features: features::AM | features::WAKEUP,
                estimated_num_eps: nranks,
                ..Params::default()
            };
            let (major, minor) = api();
            let status =
                (ucp.init_version)(major, minor, &raw const params, config, &raw mut self.context);
            (ucp.config_release)(config);
            check("its start", status)?;
            let params = WorkerParams {
                field_mask: WorkerParams::THREAD_MODE,
                thread_mode: WorkerParams::SERIALIZED,
                ..WorkerParams::default()
            };
            let created =
                (ucp.worker_create)(self.context, &raw const params, &raw mut self.worker);
            check("making a worker", created)?;
            let (mut address, mut length) = (std::ptr::null_mut::<c_void>(), 0);
            let got = (ucp.worker_get_address)(self.worker, &raw mut address, &raw mut length);
            check("asking for its address", got)?;
            self.address = std::slice::from_raw_parts(address.cast::<u8>(), length).to_vec();
            (ucp.worker_release_address)(self.worker, address);
            let mut event: c_int = -1;
            check("asking for its descriptor", (ucp.worker_get_efd)(self.worker, &raw mut event))?;
            self.event = event;
            let param = AmHandlerParam::new(MESSAGE, on_message, self.inbox.cast());
            let set = (ucp.worker_set_am_recv_handler)(self.worker, &raw const param);
            check("setting what receives", set)
        }
    }

    /// The transports and devices of a lane, each once.
    fn devices(&self, endpoint: Object) -> Vec<String> {
        let mut entries = [TransportEntry::default(); MOST_DEVICES];
        let mut attributes = EpAttributes::of_transports(&mut entries);
        // SAFETY: the structure says which of its fields is asked for, and has room for as many
        // entries as it says.
        if unsafe { (self.ucp.ep_query)(endpoint, &raw mut attributes) } != OK {
            return Vec::new();
        }
        let mut devices: Vec<String> = Vec::new();
        for entry in &entries[..attributes.count().min(MOST_DEVICES)] {
            let device = entry.text();
            if !devices.contains(&device) {
                devices.push(device);
            }
        }
        devices
    }

    fn release(&self, arrival: &Arrival) {
        if !arrival.data.is_null() {
            // SAFETY: UCX keeps it until now.
            unsafe { (self.ucp.am_data_release)(self.worker, arrival.data) };
        }
    }

    /// Where the payload of the next message goes, once there is a slot.
    fn admit(
        arrival: &Arrival,
        inbound: &mut Inbound,
    ) -> std::result::Result<Option<Coming>, &'static str> {
        let Envelope { frame: header, tag, .. } = arrival.envelope;
        let frame = Frame::decode(&header)?;
        if frame.length as usize != arrival.length {
            return Err("a message has another length than its frame says");
        }
        Ok(match inbound.admit(&frame)? {
            FrameAdmission::Later => None,
            FrameAdmission::Into(place) => Some(Coming { frame, header, tag, place }),
        })
    }

    /// Have a message's payload at its slot; one that is still at the peer is fetched.
    fn bring(
        &mut self,
        peer: usize,
        arrival: &Arrival,
        what: Coming,
        (inbound, seals): (&mut Inbound, &Seals),
    ) -> std::result::Result<(), String> {
        let address = what.place.address;
        if !arrival.is_far {
            if arrival.length > 0 {
                let data = arrival.data.cast::<u8>();
                // SAFETY: UCX keeps as many bytes; the slot has room for them.
                unsafe { address.copy_from_nonoverlapping(data, arrival.length) };
            }
            self.release(arrival);
            return what.arrive(seals, inbound);
        }
        let param = RequestParam::default();
        // SAFETY: the slot is the message's until it is there or the lane is closed.
        let begun = Begun::of(unsafe {
            (self.ucp.am_recv_data_nbx)(
                self.worker,
                arrival.data,
                address.cast(),
                arrival.length,
                &raw const param,
            )
        });
        match begun {
            Begun::Done => what.arrive(seals, inbound),
            Begun::Request(request) => {
                let lane = self.lanes[peer].as_mut().expect("the lane is open");
                lane.receiving.push(Receiving { request, what });
                Ok(())
            }
            Begun::Failed(status) => Err(told(status)),
        }
    }

    /// Hand over the messages whose payloads have been fetched.
    fn fetched(
        &mut self,
        peer: usize,
        (inbound, seals): (&mut Inbound, &Seals),
    ) -> std::result::Result<(), String> {
        let ucp = self.ucp;
        let Some(lane) = &mut self.lanes[peer] else { return Ok(()) };
        let mut at = 0;
        while at < lane.receiving.len() {
            // SAFETY: the request is not freed yet.
            match unsafe { (ucp.request_check_status)(lane.receiving[at].request) } {
                IN_PROGRESS => at += 1,
                status => {
                    let Receiving { request, what } = lane.receiving.swap_remove(at);
                    // SAFETY: it is over.
                    unsafe { (ucp.request_free)(request) };
                    match status {
                        OK => what.arrive(seals, inbound)?,
                        status => return Err(told(status)),
                    }
                }
            }
        }
        Ok(())
    }

    /// Say what was taken of a peer's messages where that is much and nothing else tells it.
    fn give_credit(&mut self, peer: usize) -> std::result::Result<(), String> {
        match &mut self.lanes[peer] {
            Some(lane) if lane.taken - lane.taken_told >= WINDOW / 2 => lane.tell(self.ucp, false),
            _ => Ok(()),
        }
    }

    /// Give each arrival to its peer's lane.
    fn sort(&mut self) {
        // SAFETY: callbacks, which use it too, run only within calls of UCX's.
        let Inbox { mut arrivals, mut failures } = unsafe { std::mem::take(&mut *self.inbox) };
        for arrival in arrivals.drain(..) {
            let token = arrival.envelope.token;
            match self.lanes.get_mut(whose(&token)) {
                Some(Some(lane)) if lane.theirs == token => {
                    let is_kept = lane.hear(self.ucp, &arrival);
                    if is_kept {
                        lane.arrivals.push_back(arrival);
                    } else {
                        self.release(&arrival);
                    }
                }
                // Of nobody who has proved himself.
                _ => self.release(&arrival),
            }
        }
        for (peer, status) in failures.drain(..) {
            if let Some(lane) = &mut self.lanes[peer] {
                lane.failed.get_or_insert_with(|| told(status));
            }
        }
        // SAFETY: as above. What came meanwhile stays; else the room that there was does.
        unsafe {
            if (*self.inbox).arrivals.is_empty() && (*self.inbox).failures.is_empty() {
                *self.inbox = Inbox { arrivals, failures };
            }
        }
    }
}

impl NetEngine for UcxEngine {
    fn info(&self) -> EngineInfo {
        let (major, minor, release) = self.ucp.version;
        let open: Vec<Object> = self.lanes.iter().flatten().filter_map(|it| it.endpoint).collect();
        let devices = open.first().map_or_else(Vec::new, |endpoint| self.devices(*endpoint));
        EngineInfo {
            kind: "ucx",
            name: format!("ucx {major}.{minor}.{release}"),
            beats_tcp: devices.iter().any(|device| !device.starts_with("tcp/")),
            devices: devices.join(", "),
            speed: 0,
            lanes: open.len(),
            sent: self.sent,
        }
    }

    fn expect(&mut self, peer: usize, theirs: LaneToken) -> Result<Vec<u8>> {
        self.lanes[peer] = Some(UcxLane::new(theirs, Whom { inbox: self.inbox, peer }));
        Ok(self.address.clone())
    }

    fn open(&mut self, peer: usize, address: &[u8], mine: LaneToken) -> Result<()> {
        let lane = self.lanes[peer].as_mut().expect("it was expected");
        let arg = std::ptr::from_ref(&*lane.whom).cast_mut().cast();
        let params = EpParams::new(address.as_ptr().cast(), on_error, arg);
        let mut endpoint = std::ptr::null_mut();
        // SAFETY: the address outlives the call, and `whom` the endpoint.
        let status =
            unsafe { (self.ucp.ep_create)(self.worker, &raw const params, &raw mut endpoint) };
        check("reaching a peer", status)?;
        (lane.endpoint, lane.mine) = (Some(endpoint), mine);
        Ok(())
    }

    fn hears(&mut self, peer: usize) -> bool {
        self.progress();
        let Some(lane) = &mut self.lanes[peer] else { return false };
        lane.ask(self.ucp);
        lane.has_heard
    }

    fn write(
        &mut self,
        peer: usize,
        outbound: &mut Outbound,
        seals: &Seals,
    ) -> std::result::Result<(), String> {
        let ucp = self.ucp;
        let Some(lane) = &mut self.lanes[peer] else { return Ok(()) };
        lane.done.drain(..).for_each(|position| outbound.done(position));
        while lane.sent - lane.sent_taken < WINDOW {
            let Some(position) = outbound.take(seals.seals.as_ref()) else { break };
            let message = outbound.message(position);
            let payload = (message.payload.cast_const(), message.length);
            let envelope = (lane.envelope(message.header, message.tag), ENVELOPE_BYTES);
            lane.sent += 1;
            self.sent += 1;
            // SAFETY: the message keeps its slot until it is done, and the lane is closed before
            // the connection gives up its slots.
            if unsafe { lane.send(ucp, Some(position), envelope, payload)? } {
                outbound.done(position);
            }
        }
        // Most messages that one waits for are over at once.
        if lane.sending.is_empty() && lane.sent - lane.sent_taken < WINDOW {
            return Ok(());
        }
        self.settle(peer, outbound);
        let lane = self.lanes[peer].as_mut().expect("it is open");
        lane.failed.as_ref().map_or(Ok(()), |why| Err(why.clone()))
    }

    fn settle(&mut self, peer: usize, outbound: &mut Outbound) {
        self.progress();
        if let Some(lane) = &mut self.lanes[peer] {
            lane.done.drain(..).for_each(|position| outbound.done(position));
        }
    }

    fn read(
        &mut self,
        peer: usize,
        inbound: &mut Inbound,
        seals: &Seals,
    ) -> std::result::Result<(), String> {
        self.progress();
        let mut at = 0;
        // Over several rails one may come before another one that was sent first.
        while let Some(lane) = &mut self.lanes[peer] {
            let Some(arrival) = lane.arrivals.get(at) else { break };
            let Some(what) = UcxEngine::admit(arrival, inbound)? else {
                at += 1;
                continue;
            };
            lane.taken += 1;
            let arrival = lane.arrivals.remove(at).expect("it is there");
            self.bring(peer, &arrival, what, (&mut *inbound, seals))?;
        }
        self.fetched(peer, (inbound, seals))?;
        self.give_credit(peer)?;
        match &self.lanes[peer] {
            Some(UcxLane { failed: Some(why), arrivals, .. }) if arrivals.is_empty() => {
                Err(why.clone())
            }
            _ => Ok(()),
        }
    }

    fn progress(&mut self) -> bool {
        // Once: who waits comes again, and has first what this brings.
        // SAFETY: the worker is there.
        let has_moved = unsafe { (self.ucp.worker_progress)(self.worker) } != 0;
        self.sort();
        let sending = self.lanes.iter_mut().flatten().filter(|lane| !lane.sending.is_empty());
        sending.for_each(|lane| lane.reap(self.ucp));
        has_moved
    }

    fn is_delivered(&mut self, peer: usize) -> bool {
        let ucp = self.ucp;
        self.progress();
        let Some(lane) = &mut self.lanes[peer] else { return true };
        let messages = lane.sending.iter().filter(|one| one.position.is_some()).count();
        if lane.failed.is_some() || lane.sent_arrived == lane.sent && messages == 0 {
            return true;
        }
        lane.ask(ucp);
        false
    }

    fn close(&mut self, peer: usize) -> bool {
        let ucp = self.ucp;
        let Some(lane) = self.lanes[peer].as_ref().filter(|_| !self.is_stuck) else {
            return !self.is_stuck;
        };
        let param = RequestParam {
            op_attr_mask: RequestParam::FLAGS,
            flags: RequestParam::FORCE,
            ..RequestParam::default()
        };
        // SAFETY: the endpoint is closed once.
        let close = |it| Begun::of(unsafe { (ucp.ep_close_nbx)(it, &raw const param) });
        let closing = lane.endpoint.map_or(Begun::Done, close);
        let started = Instant::now();
        let is_over = loop {
            let lane = self.lanes[peer].as_ref().expect("it is being closed");
            let is_closed = match closing {
                // SAFETY: the request is not freed yet.
                Begun::Request(request) => unsafe {
                    (ucp.request_check_status)(request) != IN_PROGRESS
                },
                _ => true,
            };
            if is_closed && lane.is_idle(ucp) {
                break true;
            }
            if started.elapsed() > CLOSING {
                break false;
            }
            self.progress();
        };
        let lane = self.lanes[peer].take().expect("it is being closed");
        let closing = if let Begun::Request(request) = closing { Some(request) } else { None };
        for request in lane.requests().chain(closing) {
            // SAFETY: it is over, or UCX gives it back by itself when it is.
            unsafe { (ucp.request_free)(request) };
        }
        lane.arrivals.iter().for_each(|arrival| self.release(arrival));
        if !is_over {
            // UCX may still look at the envelopes, and at whom an error is of.
            std::mem::forget(lane);
            self.is_stuck = true;
        }
        is_over
    }

    fn event(&self) -> Option<RawFd> {
        Some(self.event)
    }

    fn arm(&mut self) -> bool {
        // SAFETY: the worker is there.
        unsafe { (self.ucp.worker_arm)(self.worker) != BUSY }
    }
}

impl Drop for UcxEngine {
    fn drop(&mut self) {
        if self.born != fork::generation() {
            // All of it is the parent's.
            return;
        }
        for peer in 0..self.lanes.len() {
            self.close(peer);
        }
        if self.is_stuck {
            return;
        }
        // SAFETY: what was made is given back, in the reverse order; callbacks run no more.
        unsafe {
            if !self.worker.is_null() {
                let arrivals = std::mem::take(&mut (*self.inbox).arrivals);
                arrivals.iter().for_each(|arrival| self.release(arrival));
                (self.ucp.worker_destroy)(self.worker);
            }
            if !self.context.is_null() {
                (self.ucp.cleanup)(self.context);
            }
            drop(Box::from_raw(self.inbox));
        }
    }
}
