//! The rank that the others meet at: it admits, gathers, delivers, and releases.
//!
//! One thread, one `poll` over every socket, and no call that waits for a particular one of them.

use super::broadcast::{Outbox, TableBroadcast};
use super::framing::{Arrived, FrameReader};
use super::handshake::{HandshakeProgress, LocalHandshake};
use super::socket::{self, UnixSocket};
use super::wire::{self, Failure, FrameHeader, FrameKind, LocalHello};
use super::{LocalRendezvous, Member, ProcessOrigin};
use crate::bootstrap::admission::{Admission, PROOF_TIME, Unproven, is_transient};
use crate::bootstrap::error::BootstrapError;
use crate::bootstrap::process::out_of_sockets;
use crate::error::Result;
use crate::os::poll::poll;
use crate::os::sockets::PeerCredentials;
use std::io;
use std::time::{Duration, Instant};

/// How long a failed coordinator stays to tell the members why. Only a member that does not read
/// makes it wait at all.
const LAST_WORDS: Duration = Duration::from_millis(250);

/// Pause before descriptors are tried again when too many of this user's are under way.
const THROTTLE: Duration = Duration::from_millis(1);

/// A step of the rendezvous, or why it failed for everybody.
type StepResult = Result<(), Failure>;

/// A member: a connection that has proved itself.
struct ProvenMember {
    socket: UnixSocket,
    rank: u32,
    peer: PeerCredentials,
    process: u64,
    inbox: FrameReader,
    outbox: Outbox,
    done: bool,
}

impl ProvenMember {
    fn origin(&self) -> ProcessOrigin {
        ProcessOrigin { process: self.process, pid: self.peer.pid }
    }
}

pub(super) struct LocalRoot<'a> {
    rendezvous: LocalRendezvous<'a>,
    listener: Option<UnixSocket>,
    admission: Admission<LocalHandshake>,
    seats: Vec<ProvenMember>,
    /// Contributions, by rank.
    gathered: Vec<Option<Member>>,
    /// The first deadline of all members known.
    deadline: Instant,
}

impl<'a> LocalRoot<'a> {
    pub fn new(
        rendezvous: LocalRendezvous<'a>,
        listener: UnixSocket,
        mine: Member,
    ) -> LocalRoot<'a> {
        let mut gathered: Vec<Option<Member>> = Vec::new();
        gathered.resize_with(rendezvous.nranks, || None);
        gathered[rendezvous.rank] = Some(mine);
        let deadline = rendezvous.deadline;
        let (admission, seats) = (Admission::default(), Vec::new());
        LocalRoot { rendezvous, listener: Some(listener), admission, seats, gathered, deadline }
    }

    /// Meet everybody.
    pub fn run(mut self) -> Result<Vec<Member>, BootstrapError> {
        let (rank, nranks) = (self.rendezvous.rank, self.rendezvous.nranks);
        if let Err(failure) = self.gather() {
            self.announce(&failure, None);
            return Err(failure.into_unmet(rank, nranks));
        }
        self.close_door();
        let gathered = std::mem::take(&mut self.gathered);
        let mut members: Vec<Member> = gathered.into_iter().flatten().collect();
        let bulletin = TableBroadcast::new(&members);
        if let Err(failure) = self.deliver(&bulletin) {
            self.announce(&failure, Some(&bulletin));
            return Err(failure.into_unmet(rank, nranks));
        }
        let mine = members[rank].origin();
        for (peer, member) in members.iter_mut().enumerate() {
            if peer != rank && member.origin().is(mine) {
                member.fds.clear();
            }
        }
        Ok(members)
    }

    fn system(&self, what: &str, error: &io::Error) -> Failure {
        let errno = error.raw_os_error().unwrap_or(0);
        Failure::system_here(self.rendezvous.rank as u32, errno, what)
    }

    /// Wait until something can be done: at most to the deadline.
    fn poll(&self, entries: &mut [libc::pollfd], until: Instant) -> StepResult {
        let until = until.min(self.deadline);
        let is_waiting = self.listener.is_some();
        let rendezvous = &self.rendezvous;
        let until =
            if is_waiting { rendezvous.look_around(until)? } else { rendezvous.glance(until)? };
        let slept = poll(entries, until).map(|_| ());
        slept.map_err(|error| self.system("waiting at the rendezvous", &error))
    }

    /// Admit members until every rank's contribution is here.
    fn gather(&mut self) -> StepResult {
        while self.gathered.iter().any(Option::is_none) {
            let now = Instant::now();
            if now >= self.deadline {
                return Err(self.missing());
            }
            let door = self.listener.as_ref().expect("open while gathering");
            let open = self.admission.is_open(now);
            let mut entries = vec![socket::entry(door, if open { libc::POLLIN } else { 0 })];
            let sockets = self.admission.waiting.iter().map(|candidate| &candidate.socket);
            let sockets = sockets.chain(self.seats.iter().map(|seat| &seat.socket));
            entries.extend(sockets.map(|socket| socket::entry(socket, libc::POLLIN)));
            self.poll(&mut entries, self.admission.next_deadline(now).unwrap_or(self.deadline))?;
            let ready: Vec<bool> = entries.iter().map(|entry| entry.revents != 0).collect();
            let (door, rest) = ready.split_first().expect("the listener is there");
            let (candidates, seats) = rest.split_at(self.admission.waiting.len());
            for index in (0..seats.len()).filter(|index| seats[*index]) {
                self.hear(index)?;
            }
            self.examine(candidates)?;
            if *door {
                self.admit()?;
            } else if open {
                self.admission.clear_shortage();
            }
        }
        Ok(())
    }

    /// Why not everybody is here.
    fn missing(&self) -> Failure {
        if let Some(errno) = self.admission.shortage() {
            let rank = self.rendezvous.rank;
            let what = out_of_sockets(&format!("rank {rank}"), errno);
            return Failure::system_here(rank as u32, errno, what);
        }
        let absent = |(rank, member): (usize, &Option<Member>)| match member {
            None => Some(rank as u32),
            Some(_) => None,
        };
        let missing = self.gathered.iter().enumerate().filter_map(absent).collect();
        Failure::Missing { waited_ms: self.rendezvous.waited_ms(), missing, unlisted: 0 }
    }

    /// Let one connection in.
    fn admit(&mut self) -> StepResult {
        let door = self.listener.as_ref().expect("open while gathering");
        let now = Instant::now();
        match door.accept() {
            Ok(accepted) => {
                self.admission.clear_shortage();
                let candidate = accepted.and_then(LocalHandshake::new);
                if let Some(candidate) = candidate {
                    let evicted = self.admission.make_room(now);
                    evicted.into_iter().for_each(|evicted| dismiss(evicted, &retry()));
                    self.admission.waiting.push(candidate);
                }
            }
            Err(error) if is_transient(&error) => self.admission.pause(error.raw_os_error(), now),
            Err(error) => return Err(self.system("letting ranks in", &error)),
        }
        Ok(())
    }

    /// Go on with every handshake that can, and end those that take too long.
    fn examine(&mut self, ready: &[bool]) -> StepResult {
        let candidates = std::mem::take(&mut self.admission.waiting);
        let mut result = Ok(());
        for (index, mut candidate) in candidates.into_iter().enumerate() {
            let expired = candidate.since.elapsed() >= PROOF_TIME;
            let progress = if ready[index] {
                candidate.advance(&self.rendezvous)
            } else {
                HandshakeProgress::Waiting
            };
            match progress {
                HandshakeProgress::Waiting if expired => dismiss(candidate, &retry()),
                HandshakeProgress::Waiting => self.admission.waiting.push(candidate),
                HandshakeProgress::Refused => {}
                HandshakeProgress::Proved(hello) => {
                    result = result.and(self.seat(candidate, &hello))
                }
            }
        }
        result
    }

    /// Give a proven rank its seat, if it is one that is missing.
    fn seat(&mut self, candidate: LocalHandshake, hello: &LocalHello) -> StepResult {
        let (rank, nranks) = (hello.rank as usize, self.rendezvous.nranks);
        let pid = candidate.peer.pid;
        let before = self.holder(hello.rank);
        let LocalHandshake { socket, peer, .. } = candidate;
        self.seats.push(ProvenMember {
            socket,
            rank: hello.rank,
            peer,
            process: 0,
            inbox: FrameReader::new(),
            outbox: Outbox::default(),
            done: false,
        });
        let text = if hello.nranks as usize != nranks {
            format!(
                "rank {rank} (pid {pid}) was started with {} ranks, but rank {} (pid {}) with \
                 {nranks}; every rank must give the same number",
                hello.nranks,
                self.rendezvous.rank,
                std::process::id()
            )
        } else if rank >= nranks {
            format!("rank {rank} (pid {pid}) is not one of {nranks} ranks, numbered from 0")
        } else if let Some(first) = before {
            format!(
                "rank {rank} came twice: pid {first} and pid {pid}; every rank needs a number of \
                 its own"
            )
        } else {
            let remaining = Duration::from_millis(hello.remaining_ms.into());
            self.deadline = self.deadline.min(Instant::now() + remaining);
            return Ok(());
        };
        Err(Failure::Usage { text })
    }

    /// The process that already has a rank.
    fn holder(&self, rank: u32) -> Option<u32> {
        if rank as usize == self.rendezvous.rank {
            return Some(std::process::id());
        }
        self.seats.iter().find(|seat| seat.rank == rank).map(|seat| seat.peer.pid)
    }

    /// Take what a member says.
    fn hear(&mut self, index: usize) -> StepResult {
        loop {
            let seat = &mut self.seats[index];
            let (rank, pid) = (seat.rank, seat.peer.pid);
            let Arrived { header, body, fds } = match seat.inbox.advance(&seat.socket) {
                Ok(Some(arrived)) => arrived,
                Ok(None) => return Ok(()),
                Err(error) if error.raw_os_error() == Some(libc::EMFILE) => {
                    return Err(self.system("receiving a rank's descriptors", &error));
                }
                Err(_) => return Err(Failure::died_here(rank, pid)),
            };
            let offer = self.gathered.get_mut(rank as usize);
            match (header.kind, offer) {
                (FrameKind::Offer, Some(slot @ None)) if fds.len() == usize::from(header.fds) => {
                    seat.process = header.process;
                    *slot = Some(Member { payload: body, pid, process: header.process, fds });
                }
                (FrameKind::Done, _) => seat.done = true,
                (FrameKind::Failure, _) => {
                    let died = |_| Failure::died_here(rank, pid);
                    return Err(Failure::decode(&body).unwrap_or_else(died));
                }
                _ => {
                    let text = format!("rank {rank} (pid {pid}) sent something out of turn");
                    return Err(Failure::Usage { text });
                }
            }
        }
    }

    /// Nobody else is expected: whoever still tries is told so.
    fn close_door(&mut self) {
        self.listener = None;
        let text = format!("all {} ranks had come already", self.rendezvous.nranks);
        let frame = wire::failure_frame(&Failure::Usage { text });
        self.admission.waiting.drain(..).for_each(|candidate| dismiss(candidate, &frame));
    }

    /// Send everything to everybody, wait until all have it, and release them.
    fn deliver(&mut self, bulletin: &TableBroadcast) -> StepResult {
        self.seats.iter_mut().for_each(|seat| seat.outbox.publish(bulletin));
        while let Some(slow) = self.seats.iter().find(|seat| !seat.done) {
            if Instant::now() >= self.deadline {
                let (rank, pid) = (slow.rank, slow.peer.pid);
                return Err(Failure::stuck_here(rank, pid, self.rendezvous.waited_ms()));
            }
            let throttled = self.push_all(Some(bulletin));
            let mut entries = self.entries(throttled);
            let pause = Instant::now() + THROTTLE;
            self.poll(&mut entries, if throttled { pause } else { self.deadline })?;
            for (index, entry) in entries.iter().enumerate() {
                if entry.revents & !libc::POLLOUT != 0 {
                    self.hear(index)?;
                }
            }
        }
        // Every member has read all there was, so these few bytes fit. One that died since is found
        // by the first operation.
        let go = FrameHeader::bare(FrameKind::Go).encode();
        for seat in &self.seats {
            let _ = seat.socket.send(&go, &[]);
        }
        Ok(())
    }

    /// Send what the members' sockets take. A failure to send is left to `hear`, which finds the
    /// member's last words or its end. True: try again soon.
    fn push_all(&mut self, bulletin: Option<&TableBroadcast>) -> bool {
        self.seats.iter_mut().fold(false, |throttled, seat| {
            let pushed = seat.outbox.push(&seat.socket, bulletin, seat.origin());
            pushed.unwrap_or(false) || throttled
        })
    }

    fn entries(&self, throttled: bool) -> Vec<libc::pollfd> {
        let events = |seat: &ProvenMember| {
            let sending = !throttled && !seat.outbox.is_empty();
            libc::POLLIN | if sending { libc::POLLOUT } else { 0 }
        };
        self.seats.iter().map(|seat| socket::entry(&seat.socket, events(seat))).collect()
    }

    /// Tell everybody who came why it failed.
    fn announce(&mut self, failure: &Failure, bulletin: Option<&TableBroadcast>) {
        self.listener = None;
        let frame = wire::failure_frame(failure);
        self.admission.waiting.drain(..).for_each(|candidate| dismiss(candidate, &frame));
        for seat in &mut self.seats {
            seat.outbox.finish_with(bulletin, &frame);
        }
        let until = Instant::now() + LAST_WORDS;
        while Instant::now() < until {
            self.seats.retain_mut(|seat| {
                let pushed = seat.outbox.push(&seat.socket, bulletin, seat.origin());
                pushed.is_ok() && !seat.outbox.is_empty()
            });
            if self.seats.is_empty() {
                return;
            }
            std::thread::sleep(THROTTLE);
        }
    }
}

fn retry() -> [u8; wire::HEADER] {
    FrameHeader::bare(FrameKind::Retry).encode()
}

/// Part from a candidate, with a frame if it is far enough to understand one.
fn dismiss(candidate: LocalHandshake, frame: &[u8]) {
    if candidate.has_greeted() {
        let _ = candidate.socket.send(frame, &[]);
    }
}
