//! Making communicators: by id and rank, all at once, and from another one.
#![allow(unsafe_code)]

use super::engine::Engine;
use super::memory::Memory;
use super::turn::Turns;
use super::watch::Watched;
use super::{Call, Communicator, choose};
use crate::bootstrap::{self, Contribution, Member, UniqueId};
use crate::clock;
use crate::config::Config;
use crate::error::{Error, Result};
use crate::executor::links::{Links, Reach, SegmentMap};
use crate::plan::Collective;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use crate::transport::exports::{Mailbox, MailboxSender};
use crate::transport::fifo::Geometry;
use crate::transport::process::{self, Liveness};
use crate::transport::segment::Segment;
use crate::transport::wait::Patience;
use crate::types::DataType;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, LazyLock, OnceLock, Weak};
use std::time::{Duration, Instant};

/// Segments of this process by number, for ranks that are threads of it.
static LOCAL: LazyLock<Mutex<HashMap<u64, Weak<Segment>>>> = LazyLock::new(Mutex::default);

/// The longest a slot is: a slot, what it is reduced with and the result share the second-level
/// cache (1 MiB on Zen 4) with as much again of the slice before.
const LONGEST_SLOT: usize = 128 << 10;

/// Slots of a connection where the buffer size allows; two is the least a ring algorithm needs.
/// With as many as give a ring of 4 MiB, writers meet lines that both second-level caches have let
/// go: 64 KiB between two processes take 3.8 us, with half of it 9 us (near cores of an AMD EPYC).
const DEPTH: usize = 32;

/// A connection's slots under the buffer budget of one rank.
fn geometry(config: &Config, nranks: usize) -> Result<Geometry> {
    /// Bytes of a cache line; a ring's counter takes two, a slot's header one.
    const LINE: usize = 64;
    let share = config.buffer_bytes / (nranks - 1).max(1);
    let slot =
        |depth: usize| (share.saturating_sub(2 * LINE) / depth).saturating_sub(LINE) / LINE * LINE;
    let depth = [DEPTH, 16, 8, 4].into_iter().find(|depth| slot(*depth) >= 8 << 10).unwrap_or(2);
    let slot_bytes = slot(depth).min(LONGEST_SLOT);
    if slot_bytes < LINE && nranks > 1 {
        return Err(Error::argument(format!(
            "RINGCOMM_BUFFSIZE={} leaves no room for {} peers; give at least {}",
            config.buffer_bytes,
            nranks - 1,
            (nranks - 1) * (2 * LINE + 2 * (LINE + LINE))
        )));
    }
    Ok(Geometry { depth, slot_bytes: slot_bytes.max(LINE) })
}

/// What a rank tells the others at the rendezvous.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Introduction {
    /// The number of its segment, for threads of its process.
    segment: u64,
    /// Settings that must be the same on all ranks.
    buffer_bytes: u64,
    deterministic: u64,
    algorithm: u64,
    /// 1 where the rank has a profile; only rank 0's counts.
    profiled: u64,
    /// The cores that it may run on: ranks bound to a core each do not share cores.
    cores: Cores,
}

/// A set of cores, a bit each; as many as the kernel's fixed-size sets hold.
type Cores = [u64; 16];

/// The cores that the calling thread may run on; none where the kernel does not say.
fn own_cores() -> Cores {
    let mut cores = Cores::default();
    // SAFETY: the kernel writes at most the bytes of the array.
    unsafe { libc::sched_getaffinity(0, size_of::<Cores>(), cores.as_mut_ptr().cast()) };
    cores
}

impl Introduction {
    pub(super) fn pack(&self) -> Vec<u8> {
        [self.segment, self.buffer_bytes, self.deterministic, self.algorithm, self.profiled]
            .iter()
            .chain(&self.cores)
            .flat_map(|word| word.to_le_bytes())
            .collect()
    }

    pub(super) fn unpack(bytes: &[u8]) -> Result<Introduction> {
        let mut words = bytes
            .chunks_exact(8)
            .map(|word| u64::from_le_bytes(word.try_into().expect("chunks of eight")));
        let mut next =
            || words.next().ok_or_else(|| Error::Internal("a short introduction".into()));
        Ok(Introduction {
            segment: next()?,
            buffer_bytes: next()?,
            deterministic: next()?,
            algorithm: next()?,
            profiled: next()?,
            cores: {
                let mut cores = Cores::default();
                for word in &mut cores {
                    *word = next()?;
                }
                cores
            },
        })
    }

    fn check(&self, rank: usize, other: usize, theirs: &Introduction) -> Result<()> {
        let fields = [
            ("RINGCOMM_BUFFSIZE", self.buffer_bytes, theirs.buffer_bytes),
            ("RINGCOMM_DETERMINISTIC", self.deterministic, theirs.deterministic),
            ("RINGCOMM_ALGO", self.algorithm, theirs.algorithm),
        ];
        match fields.iter().find(|(_, mine, theirs)| mine != theirs) {
            None => Ok(()),
            Some((name, mine, theirs)) => Err(Error::usage(format!(
                "ranks disagree on {name}: rank {rank} has {mine}, rank {other} has {theirs}; \
                 set it alike on all ranks"
            ))),
        }
    }
}

fn algorithm_word(config: &Config) -> Result<u64> {
    match &config.algorithm {
        None => Ok(0),
        Some(name) => Ok(crate::algorithm::Algorithm::from_name(name)? as u64 + 1),
    }
}

impl Communicator {
    /// Join `nranks` ranks that share `id`; returns when all have come.
    pub fn init_rank(
        nranks: usize,
        id: &UniqueId,
        rank: usize,
        config: &Config,
    ) -> Result<Communicator> {
        check_rank(nranks, rank)?;
        clock::start();
        if nranks == 1 {
            let map = SegmentMap { nranks, geometry: geometry(config, nranks)? };
            let segment = Arc::new(Segment::anonymous(map.bytes())?);
            return assemble(
                rank,
                map,
                vec![segment],
                vec![Reach::Process],
                Parts::alone(1),
                id,
                config,
            );
        }
        let map = SegmentMap { nranks, geometry: geometry(config, nranks)? };
        let segment = Arc::new(Segment::create(map.bytes())?);
        let (mailbox, sender) = Mailbox::pair()?;
        let mine = Introduction {
            segment: register_segment(&segment),
            buffer_bytes: config.buffer_bytes as u64,
            deterministic: u64::from(config.deterministic),
            algorithm: algorithm_word(config)?,
            profiled: u64::from(config.profile.is_some()),
            cores: own_cores(),
        };
        let token = bootstrap::process_token()?;
        let contribution = Contribution {
            payload: mine.pack(),
            process: token,
            fds: vec![segment.descriptor()?, process::own_descriptor()?, sender],
        };
        let deadline = Instant::now() + Duration::from_millis(config.timeout_ms);
        let members = bootstrap::exchange(id, rank, nranks, contribution, deadline)?;
        let mut parts = Parts::alone(nranks);
        let (mut segments, mut reach) = (Vec::new(), Vec::new());
        for (other, member) in members.into_iter().enumerate() {
            let theirs = Introduction::unpack(&member.payload)?;
            mine.check(rank, other, &theirs)?;
            parts.profiled |= other == 0 && theirs.profiled == 1;
            parts.cores.iter_mut().zip(theirs.cores).for_each(|(all, theirs)| *all |= theirs);
            let same = member.process == token;
            reach.push(if same { Reach::Process } else { Reach::Machine });
            segments.push(if other == rank {
                segment.clone()
            } else if same {
                local_segment(theirs.segment, other)?
            } else {
                parts.adopt(other, member, map.bytes())?
            });
        }
        parts.mailbox = Some(mailbox);
        unregister_segment(mine.segment, &reach);
        assemble(rank, map, segments, reach, parts, id, config)
    }

    /// All ranks of a new communicator in this process.
    pub fn init_all(nranks: usize, config: &Config) -> Result<Vec<Communicator>> {
        check_rank(nranks, 0)?;
        clock::start();
        let id = UniqueId::generate()?;
        let map = SegmentMap { nranks, geometry: geometry(config, nranks)? };
        let segments: Vec<Arc<Segment>> = (0..nranks)
            .map(|_| Segment::anonymous(map.bytes()).map(Arc::new))
            .collect::<Result<_>>()?;
        let join = |rank: usize| {
            let (segments, reach) = (segments.clone(), vec![Reach::Process; nranks]);
            let parts = Parts { profiled: config.profile.is_some(), ..Parts::alone(nranks) };
            assemble(rank, map, segments, reach, parts, &id, config)
        };
        // Ranks measure together as they start, so each needs a thread of its own.
        std::thread::scope(|scope| {
            let ranks: Vec<_> = (0..nranks).map(|rank| scope.spawn(move || join(rank))).collect();
            ranks
                .into_iter()
                .map(|rank| {
                    rank.join().unwrap_or_else(|_| Err(Error::Internal("init panicked".into())))
                })
                .collect()
        })
    }

    /// A communicator of the ranks that give the same color, ordered by (key, rank). `None` for a
    /// negative color.
    pub fn split(
        &self,
        color: i32,
        key: i32,
        config: Option<&Config>,
    ) -> Result<Option<Communicator>> {
        let mine = [color, key];
        let mut all = vec![[0i32; 2]; self.nranks];
        let call = Call {
            send: mine.as_ptr().cast(),
            recv: all.as_mut_ptr().cast(),
            count: 2,
            ..Call::new(Collective::AllGather, DataType::Int32)
        };
        // SAFETY: both buffers hold what an all-gather of two elements a rank needs.
        unsafe { self.run(&call)? };
        let child = self.children.fetch_add(1, Relaxed);
        if color < 0 {
            return Ok(None);
        }
        let mut group: Vec<(i32, usize)> = (0..self.nranks)
            .filter(|rank| all[*rank][0] == color)
            .map(|rank| (all[rank][1], rank))
            .collect();
        group.sort_unstable();
        let rank = group.iter().position(|(_, rank)| *rank == self.rank);
        let rank = rank.expect("this rank gave its own color");
        let id = self.id.derive(format!("split {child} {color}").as_bytes());
        Communicator::init_rank(group.len(), &id, rank, config.unwrap_or(&self.config)).map(Some)
    }

    /// A communicator without the `excluded` ranks; they need not take part.
    pub fn shrink(&self, excluded: &[usize], config: Option<&Config>) -> Result<Communicator> {
        let mut gone = excluded.to_vec();
        gone.sort_unstable();
        gone.dedup();
        if let Some(bad) = gone.iter().find(|rank| **rank >= self.nranks) {
            return Err(Error::argument(format!(
                "shrink: rank {bad} is not a rank of this communicator; ranks are 0 to {}",
                self.nranks - 1
            )));
        }
        if gone.contains(&self.rank) {
            return Err(Error::argument(format!(
                "shrink: rank {} excludes itself; excluded ranks do not call shrink",
                self.rank
            )));
        }
        let left: Vec<usize> = (0..self.nranks).filter(|rank| !gone.contains(rank)).collect();
        let rank = left.iter().position(|rank| *rank == self.rank).expect("not excluded");
        // Survivors of a failure may have split differently often, so the label is what they share:
        // who is left. A second shrink to the same ranks starts from the first one's communicator.
        let id = self.id.derive(format!("shrink {gone:?}").as_bytes());
        Communicator::init_rank(left.len(), &id, rank, config.unwrap_or(&self.config))
    }
}

/// What messages carry of the id: enough to tell communicators apart, nothing of the secret.
fn number_of(id: &UniqueId) -> u32 {
    let derived = id.derive(b"number");
    let fold = |hash: u64, byte: &u8| super::record::mix(hash ^ u64::from(*byte));
    derived.as_bytes().iter().fold(0, fold) as u32
}

fn check_rank(nranks: usize, rank: usize) -> Result<()> {
    if nranks == 0 || rank >= nranks {
        return Err(Error::argument(format!(
            "rank {rank} of {nranks}: ranks are 0 to nranks - 1, and there is at least one"
        )));
    }
    Ok(())
}

/// Numbers for `LOCAL`; never reused in a process.
static NEXT_SEGMENT: AtomicU64 = AtomicU64::new(1);

fn register_segment(segment: &Arc<Segment>) -> u64 {
    let number = NEXT_SEGMENT.fetch_add(1, Relaxed);
    LOCAL.lock().insert(number, Arc::downgrade(segment));
    number
}

/// Segments of this process whose ranks are gone are forgotten; `number` stays while threads of
/// this process may still look for it, which they do before they return from their own rendezvous.
fn unregister_segment(number: u64, reach: &[Reach]) {
    let mut local = LOCAL.lock();
    if reach.iter().filter(|reach| **reach == Reach::Process).count() == 1 {
        local.remove(&number);
    }
    local.retain(|_, segment| segment.strong_count() > 0);
}

fn local_segment(number: u64, rank: usize) -> Result<Arc<Segment>> {
    let found = LOCAL.lock().get(&number).and_then(Weak::upgrade);
    found.ok_or_else(|| {
        Error::usage(format!("rank {rank} gave up while the communicator was being made"))
    })
}

/// What a rank holds of its peers beside their segments.
struct Parts {
    mailbox: Option<Mailbox>,
    senders: Vec<Option<MailboxSender>>,
    processes: Vec<Option<OwnedFd>>,
    /// Rank 0 has a profile.
    profiled: bool,
    /// The cores that any of the ranks may run on.
    cores: Cores,
}

impl Parts {
    fn alone(nranks: usize) -> Parts {
        Parts {
            mailbox: None,
            senders: (0..nranks).map(|_| None).collect(),
            processes: (0..nranks).map(|_| None).collect(),
            profiled: false,
            cores: own_cores(),
        }
    }

    /// Take a peer's descriptors: its segment, its process, its mailbox.
    fn adopt(&mut self, rank: usize, member: Member, bytes: usize) -> Result<Arc<Segment>> {
        let Ok([segment, process, mailbox]) = <[OwnedFd; 3]>::try_from(member.fds) else {
            return Err(Error::Internal(format!("rank {rank} sent the wrong descriptors")));
        };
        self.processes[rank] = Some(process);
        self.senders[rank] = Some(MailboxSender::new(mailbox));
        Segment::map(segment, bytes).map(Arc::new)
    }
}

/// Put a rank together from its parts and measure the machine with the others.
fn assemble(
    rank: usize,
    map: SegmentMap,
    segments: Vec<Arc<Segment>>,
    reach: Vec<Reach>,
    parts: Parts,
    id: &UniqueId,
    config: &Config,
) -> Result<Communicator> {
    let cores: u32 = parts.cores.iter().map(|word| word.count_ones()).sum();
    let cores = cores.max(1) as usize;
    let patience = Patience::new(map.nranks, cores, config.spins);
    let links = Links::new(rank, map, segments, &reach, patience);
    let pages = links.pages();
    pages.mine().pid.store(std::process::id(), Relaxed);
    let memory = Memory::new(links.one_process(), parts.mailbox, parts.senders);
    let engine = Engine::new(links, memory, number_of(id));
    let communicator = Communicator {
        rank,
        nranks: map.nranks,
        id: id.clone(),
        config: config.clone(),
        engine: Turns::new(engine),
        watched: Watched {
            pages,
            liveness: Liveness::new(parts.processes),
            aborted: AtomicBool::new(false),
            timeout: Duration::from_millis(config.timeout_ms),
        },
        failure: Mutex::new(None),
        children: AtomicU64::new(0),
        finalized: AtomicBool::new(false),
        worker: OnceLock::new(),
    };
    choose::calibrate(&communicator, parts.profiled, cores)?;
    Ok(communicator)
}
