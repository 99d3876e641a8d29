//! What a rank needs of the others, collected while they meet: segments, mailboxes, processes.

use super::excuse;
use super::peer_info::{Cores, PeerInfo, own_cores};
use super::vanished_ranks::VanishedRanks;
use crate::bootstrap::{self, BootstrapError, Contribution, LivenessProbe, Member, UniqueId};
use crate::communicator::gpu::DevicePlacement;
use crate::communicator::health::wait_check::CancelCheck;
use crate::config::Config;
use crate::error::{Error, Result};
use crate::executor::links::{Links, Pages, Reach, SegmentMap};
use crate::fork::ForkSafeMutex;
use crate::host;
use crate::sync::atomic::{AtomicU64, Ordering::*};
use crate::transport::cma::ReadProbe;
use crate::transport::pidfd::{self, ReadableProcess};
use crate::transport::segment::Segment;
use crate::transport::shm_export::{Mailbox, MailboxSender};
use crate::transport::wait::SpinPolicy;
use std::collections::{BTreeMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};
use std::time::Instant;

/// Segments of this process by number, for ranks that are threads of it.
static LOCAL: ForkSafeMutex<BTreeMap<u64, Local>> = ForkSafeMutex::new(BTreeMap::new());

/// A rank's segment, and which rank of which rendezvous it is: what another says of itself, this
/// process knows of its own.
struct Local {
    rendezvous: Vec<u8>,
    rank: usize,
    segment: Weak<Segment>,
}

/// Numbers for `LOCAL`; never reused in a process.
static NEXT_SEGMENT: AtomicU64 = AtomicU64::new(1);

fn register_segment(segment: &Arc<Segment>, id: &UniqueId, rank: usize) -> u64 {
    let number = NEXT_SEGMENT.fetch_add(1, Relaxed);
    let (rendezvous, segment) = (bootstrap::rendezvous_name(id), Arc::downgrade(segment));
    LOCAL.lock().insert(number, Local { rendezvous, rank, segment });
    number
}

/// Segments of this process whose ranks are gone are forgotten; `number` stays while threads of
/// this process may still look for it, which they do before they return from their own rendezvous.
fn unregister_segment(number: u64, reach: &[Reach]) {
    let mut local = LOCAL.lock();
    if reach.iter().filter(|reach| **reach == Reach::Process).count() == 1 {
        local.remove(&number);
    }
    local.retain(|_, local| local.segment.strong_count() > 0);
}

fn local_segment(number: u64, id: &UniqueId, rank: usize) -> Result<Arc<Segment>, BootstrapError> {
    let rendezvous = bootstrap::rendezvous_name(id);
    let local = LOCAL.lock();
    let found =
        local.get(&number).filter(|local| local.rendezvous == rendezvous && local.rank == rank);
    found.and_then(|local| local.segment.upgrade()).ok_or_else(|| {
        let failures = FAILURES.lock();
        let why = failures.iter().find(|(of, _)| *of == number);
        let why = why.map_or(String::new(), |(_, why)| format!(": {why}"));
        let text = format!("rank {rank} gave up while the communicator was being made{why}");
        BootstrapError::there(Error::usage(text))
    })
}

/// What ranks of this process failed with after they had met, by their segments' numbers, the
/// newest last: a thread that comes later finds those segments gone.
static FAILURES: ForkSafeMutex<VecDeque<(u64, String)>> = ForkSafeMutex::new(VecDeque::new());

/// Failures that are kept: more than ranks that fail at once.
const MOST_FAILURES: usize = 256;

/// Put a rank together; what it fails with is kept before its segment goes, so that a thread that
/// comes later finds one of them.
pub(super) fn keeping_failure<T>(
    setup: LocalSetup,
    assemble: impl FnOnce(LocalSetup) -> Result<T, BootstrapError>,
) -> Result<T, BootstrapError> {
    let (number, segment) = (setup.number, setup.segments[setup.rank].clone());
    let made = assemble(setup).inspect_err(|failed| keep_failure(number, &failed.error));
    drop(segment);
    made
}

fn keep_failure(number: u64, error: &Error) {
    let mut failures = FAILURES.lock();
    if failures.len() == MOST_FAILURES {
        failures.pop_front();
    }
    failures.push_back((number, error.to_string()));
}

/// A rank's view of all ranks, by rank, while it is being put together.
pub(super) struct LocalSetup {
    pub rank: usize,
    pub map: SegmentMap,
    /// The number of this rank's own segment among those of the process; 0 until it has one.
    pub number: u64,
    pub segments: Vec<Option<Arc<Segment>>>,
    pub reach: Vec<Reach>,
    /// By rank: a number that the ranks of one host share.
    pub hosts: Vec<usize>,
    pub mailbox: Option<Mailbox>,
    pub senders: Vec<Option<MailboxSender>>,
    pub processes: Vec<Option<OwnedFd>>,
    /// The same as the kernel names them, where this process can see them.
    pub seen: Vec<Option<ReadableProcess>>,
    /// On which device this rank is, and the others.
    pub seated: DevicePlacement,
    pub core_counts: CoreCounts,
}

/// How many ranks there are to how many cores.
#[derive(Clone, Copy, Debug)]
pub(super) struct CoreCounts {
    /// On this rank's machine.
    pub ranks_here: usize,
    pub cores_here: usize,
    /// On all machines.
    pub cores: usize,
}

impl CoreCounts {
    /// Of the ranks that introduced themselves so.
    pub fn of(peer_infos: &[PeerInfo], mine: &PeerInfo) -> CoreCounts {
        let mut machines: BTreeMap<u64, (usize, Cores)> = BTreeMap::new();
        for theirs in peer_infos {
            let (ranks, cores) = machines.entry(theirs.machine).or_default();
            *ranks += 1;
            cores.iter_mut().zip(theirs.cores).for_each(|(all, theirs)| *all |= theirs);
        }
        let count = |cores: &Cores| cores.iter().map(|word| word.count_ones()).sum::<u32>();
        let cores = |cores: &Cores| count(cores).max(1) as usize;
        let (ranks_here, here) = machines[&mine.machine];
        CoreCounts {
            ranks_here,
            cores_here: cores(&here),
            cores: machines.values().map(|(_, all)| cores(all)).sum(),
        }
    }
}

/// What a rank shares with those of its machine, made before any of them counts on it.
pub(super) struct SharedSegment {
    segment: Arc<Segment>,
    mailbox: Mailbox,
    process: u64,
    fds: Vec<OwnedFd>,
}

impl SharedSegment {
    /// With a segment of so many bytes.
    pub fn new(bytes: usize) -> Result<SharedSegment> {
        let segment = Arc::new(Segment::create(bytes)?);
        let (mailbox, sender) = Mailbox::pair()?;
        let mut fds = vec![segment.descriptor()?, sender];
        fds.extend(pidfd::own_descriptor());
        let process = bootstrap::process_token()?;
        // Peers look at these as soon as they have the segment.
        let pages = Pages::new(0, vec![segment.clone()]);
        pages.mine().introduce(std::process::id(), host::name());
        pages.mine().offer(ReadProbe::of_this_process(process));
        Ok(SharedSegment { segment, mailbox, process, fds })
    }
}

/// When to stop waiting for the other ranks.
#[derive(Clone, Copy)]
pub(in crate::communicator) struct StopConditions<'a> {
    /// When they have to have come.
    pub deadline: Instant,
    /// Asked while they come.
    pub cancelled: Option<&'a dyn Fn() -> bool>,
    /// Asked for a reason once all have come: the first to be ready may end its part in what they
    /// came from.
    pub failed: CancelCheck<'a>,
}

impl StopConditions<'_> {
    pub fn deadline(deadline: Instant) -> StopConditions<'static> {
        StopConditions { deadline, cancelled: None, failed: None }
    }
}

impl LocalSetup {
    pub fn new(rank: usize, nranks: usize, map: SegmentMap) -> LocalSetup {
        let cores = own_cores().iter().map(|word| word.count_ones()).sum::<u32>().max(1) as usize;
        LocalSetup {
            rank,
            map,
            number: 0,
            segments: (0..nranks).map(|_| None).collect(),
            reach: vec![Reach::Process; nranks],
            hosts: vec![0; nranks],
            mailbox: None,
            senders: (0..nranks).map(|_| None).collect(),
            processes: (0..nranks).map(|_| None).collect(),
            seen: vec![None; nranks],
            seated: DevicePlacement::default(),
            core_counts: CoreCounts { ranks_here: nranks, cores_here: cores, cores },
        }
    }

    /// Meet the ranks of this machine, `locals` in order, this one among them, and take what they
    /// share; `vanished_ranks` finds those who never come. Returns what they said of themselves, in
    /// the same order. A rank that has nothing to share tells the others why.
    pub fn meet_locals(
        &mut self,
        share: Result<SharedSegment>,
        locals: &[usize],
        id: &UniqueId,
        mine: &PeerInfo,
        until: StopConditions,
        vanished_ranks: Option<&VanishedRanks>,
    ) -> Result<Vec<PeerInfo>, BootstrapError> {
        let place = locals.iter().position(|rank| *rank == self.rank).expect("it is one of them");
        let StopConditions { deadline, cancelled, .. } = until;
        let find = || vanished_ranks.map_or_else(Vec::new, VanishedRanks::find);
        let liveness_probe =
            LivenessProbe { cancelled, absent: vanished_ranks.is_some().then_some(&find) };
        let exchange = |contribution| {
            let nlocals = locals.len();
            bootstrap::exchange_unless(id, place, nlocals, contribution, deadline, liveness_probe)
                .map_err(|unmet| {
                    let number = |place: usize| locals.get(place).copied().unwrap_or(place);
                    BootstrapError { error: unmet.error.renumbered(number), ..unmet }
                })
        };
        let SharedSegment { segment, mailbox, process, fds } = match share {
            Ok(share) => share,
            Err(error) => {
                let (payload, process) = (excuse::pack(&error), bootstrap::process_token()?);
                // Whatever becomes of the rendezvous, this is why the rank has failed.
                let _ = exchange(Contribution { payload, process, fds: Vec::new() });
                return Err(error.into());
            }
        };
        self.number = register_segment(&segment, id, self.rank);
        let mine = PeerInfo { segment: self.number, ..*mine };
        let members = exchange(Contribution { payload: mine.pack(), process, fds })?;
        let taken = self.take(locals, id, &mine, members, &segment);
        let taken = taken.inspect_err(|unmet| self.tell(&segment, &unmet.error))?;
        self.mailbox = Some(mailbox);
        let reach: Vec<Reach> = locals.iter().map(|rank| self.reach[*rank]).collect();
        unregister_segment(mine.segment, &reach);
        Ok(taken)
    }

    /// Take what the ranks of this machine share.
    fn take(
        &mut self,
        locals: &[usize],
        id: &UniqueId,
        mine: &PeerInfo,
        members: Vec<Member>,
        segment: &Arc<Segment>,
    ) -> Result<Vec<PeerInfo>, BootstrapError> {
        let place = locals.iter().position(|rank| *rank == self.rank).expect("it is one of them");
        let near: Vec<bool> =
            members.iter().map(|member| member.shares_process(&members[place])).collect();
        let mut peer_infos = Vec::with_capacity(locals.len());
        for (&other, member) in locals.iter().zip(&members) {
            excuse::unpack(&member.payload, other, self.rank)
                .map_or(Ok(()), |error| Err(BootstrapError::there(error)))?;
        }
        for ((&other, member), near) in locals.iter().zip(members).zip(near) {
            let theirs = PeerInfo::unpack(&member.payload)?;
            mine.check(self.rank, other, &theirs)?;
            peer_infos.push(theirs);
            let same = near || other == self.rank;
            self.reach[other] = if same { Reach::Process } else { Reach::Machine };
            self.seen[other] = same.then(ReadableProcess::this);
            self.segments[other] = Some(if other == self.rank {
                segment.clone()
            } else if same {
                local_segment(theirs.segment, id, other)?
            } else {
                self.adopt(other, member)?
            });
        }
        Ok(peer_infos)
    }

    /// The links with all ranks, each of which has a segment here by now.
    pub fn links(&self, config: &Config) -> Links {
        let spins =
            SpinPolicy::new(self.core_counts.ranks_here, self.core_counts.cores_here, config.spins);
        let segments = self.segments.iter().cloned();
        let segments = segments.map(|segment| segment.expect("every rank has one")).collect();
        let mut links = Links::new(self.rank, self.map, segments, &self.reach, spins);
        links.set_processes(self.seen.clone());
        links
    }

    /// Give the ranks of other hosts a mirror each.
    pub fn mirror(&mut self, hosts: &[usize]) -> Result<(), BootstrapError> {
        for other in (0..hosts.len()).filter(|other| hosts[*other] != hosts[self.rank]) {
            let mirror = Segment::anonymous(SegmentMap::mirror_bytes()).inspect_err(|error| {
                self.tell(self.segments[self.rank].as_ref().expect("its own"), error);
            })?;
            self.segments[other] = Some(Arc::new(mirror));
            self.reach[other] = Reach::Network;
        }
        self.hosts = hosts.to_vec();
        Ok(())
    }

    /// Say why this rank goes no further, to ranks of this machine that have its segment and go on
    /// to where its page is looked at.
    fn tell(&self, segment: &Arc<Segment>, error: &Error) {
        let pages = Pages::new(0, vec![segment.clone()]);
        pages.mine().introduce(std::process::id(), host::name());
        pages.mine().fail(self.rank, &error.to_string());
    }

    /// Take a peer's descriptors: its segment, its process, its mailbox.
    fn adopt(&mut self, rank: usize, member: Member) -> Result<Arc<Segment>> {
        let mut fds = member.fds.into_iter();
        let (Some(segment), Some(mailbox), process, None) =
            (fds.next(), fds.next(), fds.next(), fds.next())
        else {
            return Err(Error::usage(format!("rank {rank} sent the wrong descriptors")));
        };
        if let Some(process) = process {
            self.seen[rank] = ReadableProcess::of(&process, member.pid)?;
            self.processes[rank] = Some(process);
        }
        self.senders[rank] = Some(MailboxSender::new(mailbox));
        Segment::map(segment, self.map.bytes()).map(Arc::new)
    }
}
