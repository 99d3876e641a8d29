//! Making communicators: by id and rank, all at once, and from another one.

pub mod spawn_all;

mod calibrate;
pub(super) mod child_ranks;
mod descriptors;
mod excuse;
pub(super) mod from_launcher;
pub(super) mod host_setup;
pub(super) mod multi_host;
pub(super) mod peer_info;
mod split;
mod vanished_ranks;

use super::call::portions::portion_bytes;
use super::call::signature::CallSignature;
use super::exec::Engine;
use super::exec::op_lock::OpLock;
use super::gpu::ipc::peer_values::PeerValues;
use super::gpu::{self, DevicePlacement, Gpu, PeerSummary};
use super::health::wait_check::{CancelCheck, CommHealth, OpWaitCheck};
use super::memory::peer_regions::Registrations;
use super::observe::flight_dump::FlightDump;
use super::observe::status_server;
use super::observe::timeline::TimelineWriter;
use super::tuning::select::forced_algorithm;
use super::tuning::slot_sizing::{buff_size, geometry};
use super::{Communicator, number_of};
use crate::algorithm::Algorithm;
use crate::bootstrap::allgather::root_threads;
use crate::bootstrap::tcp::{AuthListener, NetworkConfig};
use crate::bootstrap::{self, Blame, BootstrapError, UniqueId};
use crate::config::{Config, DeviceChoice};
use crate::cycle_counter;
use crate::device;
use crate::device::cuda::Device;
use crate::error::{Error, Result};
use crate::executor::links::{Links, Pages, SegmentMap};
use crate::fork;
use crate::host;
use crate::os::thread_signals::say;
use crate::plan::topology::Topology;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, AtomicU64};
use crate::transport::fifo::Stamp;
use crate::transport::pidfd::Liveness;
use crate::transport::segment::Segment;
use crate::transport::wait;
use crate::types::{DataType, ReduceOp};
pub use from_launcher::new_id;
use host_setup::{CoreCounts, LocalSetup, SharedSegment, StopConditions};
use multi_host::RemotePeers;
use peer_info::PeerInfo;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

impl Communicator {
    /// Join `nranks` ranks that share `id`; returns when all have come.
    pub fn init_rank(
        nranks: usize,
        id: &UniqueId,
        rank: usize,
        config: &Config,
    ) -> Result<Communicator> {
        let deadline = Instant::now() + config.init_timeout();
        Ok(Communicator::init_unless(nranks, id, rank, config, StopConditions::deadline(deadline))?)
    }

    /// As [`Communicator::init_rank`], until `cancelled` says that nobody waits for it any more.
    #[doc(hidden)]
    pub fn init_rank_unless(
        nranks: usize,
        id: &UniqueId,
        rank: usize,
        config: &Config,
        cancelled: &dyn Fn() -> bool,
    ) -> Result<Communicator> {
        let deadline = Instant::now() + config.init_timeout();
        let until = StopConditions { deadline, cancelled: Some(cancelled), failed: None };
        Ok(Communicator::init_unless(nranks, id, rank, config, until)?)
    }

    /// As [`Communicator::init_rank`], with reasons to stop waiting for the others.
    pub(super) fn init_unless(
        nranks: usize,
        id: &UniqueId,
        rank: usize,
        config: &Config,
        until: StopConditions,
    ) -> Result<Communicator, BootstrapError> {
        check(nranks, rank, config)?;
        cycle_counter::start();
        let map = SegmentMap::new(nranks, geometry(config, nranks)?);
        let mut setup = LocalSetup::new(rank, nranks, map);
        if nranks == 1 {
            // Nobody else comes by it.
            root_threads::free(id);
            setup.segments[0] = Some(Arc::new(Segment::anonymous(map.bytes())?));
            setup.seated.device = gpu::device(config)?;
            setup.seated.among([setup.seated.device.is_some()].into_iter());
            return assemble(setup, None, id, config, None);
        }
        if !id.addresses().is_empty() {
            let listener = AuthListener::open(id, &NetworkConfig::from(config))?;
            return Communicator::join_hosts(setup, id, config, until, listener);
        }
        setup.seated.device = gpu::device(config)?;
        let mine = PeerInfo::new(config, nranks, setup.seated.device.is_some())?;
        let all: Vec<usize> = (0..nranks).collect();
        // Which ranks are in other processes is not known yet.
        let share = descriptors::ensure(rank, descriptors::needed(0, 0, 0))
            .and_then(|()| SharedSegment::new(map.bytes()));
        let peer_infos = setup.meet_locals(share, &all, id, &mine, until, None)?;
        setup.seated.among(peer_infos.iter().map(|one| one.device == 1));
        setup.core_counts = CoreCounts::of(&peer_infos, &mine);
        host_setup::keeping_failure(setup, |setup| assemble(setup, None, id, config, until.failed))
    }

    /// As [`Communicator::init_unless`] for ranks that may be on several hosts, with a listener
    /// that is open already: the root's, at the id's address, on the rank that the others meet.
    pub(super) fn init_through(
        listener: AuthListener,
        nranks: usize,
        id: &UniqueId,
        rank: usize,
        config: &Config,
        until: StopConditions,
    ) -> Result<Communicator, BootstrapError> {
        check(nranks, rank, config)?;
        cycle_counter::start();
        let map = SegmentMap::new(nranks, geometry(config, nranks)?);
        Communicator::join_hosts(LocalSetup::new(rank, nranks, map), id, config, until, listener)
    }

    /// All ranks of a new communicator in this process, where `config` seats them.
    pub fn init_all(nranks: usize, config: &Config) -> Result<Vec<Communicator>> {
        Communicator::init_all_on(&vec![config.device; nranks], config)
    }

    /// All ranks of a new communicator in this process, each with a seat of its own.
    #[doc(hidden)]
    pub fn init_all_on(seats: &[DeviceChoice], config: &Config) -> Result<Vec<Communicator>> {
        let nranks = seats.len();
        check(nranks, 0, config)?;
        cycle_counter::start();
        let id = UniqueId::generate()?;
        let map = SegmentMap::new(nranks, geometry(config, nranks)?);
        let segments: Vec<Arc<Segment>> = (0..nranks)
            .map(|_| Segment::anonymous(map.bytes()).map(Arc::new))
            .collect::<Result<_>>()?;
        let devices: Vec<Option<Arc<Device>>> = seats
            .iter()
            .map(|seat| gpu::device(&Config { device: *seat, ..config.clone() }))
            .collect::<Result<_>>()?;
        let maker = Some(std::thread::current().id());
        let join = &|rank: usize| {
            let mut setup = LocalSetup::new(rank, nranks, map);
            setup.seated = DevicePlacement {
                device: devices[rank].clone(),
                maker,
                ..DevicePlacement::default()
            };
            setup.seated.among(devices.iter().map(Option::is_some));
            setup.segments = segments.iter().cloned().map(Some).collect();
            assemble(setup, None, &id, config, None).map_err(Error::from)
        };
        // Ranks measure together as they start, so each needs a thread of its own.
        let joined = spawn_all::all_or_none((0..nranks).map(|rank| move || join(rank)))?;
        let panicked = |_| Err(Error::Internal("init panicked".into()));
        joined.into_iter().map(|rank| rank.unwrap_or_else(panicked)).collect()
    }

    /// Find out whether the ranks' devices can share memory, where the ranks are several processes
    /// of one machine.
    fn survey(&self, cancel: CancelCheck) -> Result<()> {
        let Some(gpu) = self.gpu.as_ref().filter(|gpu| gpu.may_share) else { return Ok(()) };
        let mut engine = self.engine.take();
        let descriptor = CallSignature {
            collective: None,
            data_type: DataType::Uint8,
            op: ReduceOp::Sum,
            algorithm: Algorithm::OneShot,
            root: 0,
            count: 0,
        };
        // No call of the user's has the number.
        let sequence = u64::MAX;
        let mut watch = OpWaitCheck::new(&self.health, cancel, descriptor, sequence);
        watch.makes_communicator = true;
        let stamp = Stamp { sequence, fingerprint: 1, ..engine.origin };
        let engine = &mut *engine;
        let (links, memory) = (&mut engine.links, &mut engine.memory);
        gpu.survey(&mut PeerValues { links, memory, stamp: &stamp, watch: &watch })
    }
}

/// What a rank can tell to be wrong before it meets the others.
fn check(nranks: usize, rank: usize, config: &Config) -> Result<()> {
    if nranks == 0 || rank >= nranks {
        return Err(Error::argument(format!(
            "rank {rank} of {nranks}: ranks are 0 to nranks - 1, and there is at least one"
        )));
    }
    forced_algorithm(config).map(drop)
}

/// Put a rank together from its parts and measure the machine with the others.
fn assemble(
    setup: LocalSetup,
    outside: Option<RemotePeers>,
    id: &UniqueId,
    config: &Config,
    cancel: CancelCheck,
) -> Result<Communicator, BootstrapError> {
    let mut links = setup.links(config);
    let LocalSetup {
        rank,
        reach,
        hosts,
        mailbox,
        senders,
        processes,
        seen,
        seated,
        core_counts,
        ..
    } = setup;
    prepare();
    let pages = links.pages();
    pages.mine().introduce(std::process::id(), host::name());
    let outside = outside.map(|outside| outside.attach(&mut links, id, config)).transpose();
    let outside = outside.inspect_err(|error| tell(&pages, error))?;
    let lifelines = senders.iter().map(|sender| Some(sender.as_ref()?.lifeline())).collect();
    let memory = Registrations::new(links.one_process(), mailbox, senders);
    let topology = topology(&hosts, links.nranks, config);
    let around = around(&links, &topology, config);
    let (maker, cut) = (seated.maker, seated.any.then_some(around.portion_bytes));
    let gpu = Gpu::seated(seated, rank, &bootstrap::rendezvous_name(id), &around, config);
    let gpu = gpu.inspect_err(|error| tell(&pages, error))?;
    let flight = FlightDump { pages: pages.clone(), number: number_of(id) };
    let track = TimelineWriter::new(&flight, &reach).inspect_err(|error| tell(&pages, error))?;
    let communicator = Communicator {
        rank,
        nranks: links.nranks,
        id: id.clone(),
        config: of_children(config, gpu.as_ref()),
        plan_context: OnceLock::new(),
        engine: OpLock::new(Engine::new(links, memory, topology, (number_of(id), id.epoch()), cut)),
        health: CommHealth {
            pages,
            liveness: Liveness::new(processes).with_lifelines(lifelines),
            processes: seen,
            aborted: AtomicBool::new(false),
            timeout: Duration::from_millis(config.timeout_ms),
            init_timeout: config.init_timeout(),
            publisher: outside.as_ref().map(|post| post.control_thread.publisher()),
            track,
            maker,
            together: around.together,
        },
        failure: Mutex::new(None),
        last_error: Arc::default(),
        shrinking: Mutex::default(),
        aborts: AtomicU64::new(0),
        children: Mutex::default(),
        finalized: AtomicBool::new(false),
        worker: OnceLock::new(),
        kept: Arc::default(),
        gpu,
        outside,
        exhibit: exhibit(flight, rank, config),
        born: fork::generation(),
    };
    start(communicator, core_counts.cores, cancel)
}

/// What the process has once for all its communicators.
fn prepare() {
    fork::prepare();
    device::host::prepare();
}

/// Where a rank's peers are.
fn around(links: &Links, topology: &Topology, config: &Config) -> PeerSummary {
    let nranks = links.nranks;
    let together = links.one_process() && topology.nhosts() == 1;
    let buff_size = buff_size(config, nranks);
    let portion_bytes = portion_bytes(buff_size, nranks);
    PeerSummary { nranks, together, near: links.one_machine(), buff_size, portion_bytes }
}

/// A communicator that is made from another one has its settings and its device.
fn of_children(config: &Config, gpu: Option<&Gpu>) -> Config {
    let seat = gpu.map_or(DeviceChoice::Host, |gpu| DeviceChoice::Context(gpu.device.token()));
    Config { device: seat, ..config.clone() }
}

/// Measure the machine and try the devices with the others.
fn start(
    communicator: Communicator,
    cores: usize,
    cancel: CancelCheck,
) -> Result<Communicator, BootstrapError> {
    calibrate::calibrate(&communicator, cores, cancel)
        .and_then(|()| communicator.survey(cancel))
        .map_err(|error| BootstrapError { cause: cause(&error), error })?;
    if communicator.config.debug > 0
        && communicator.rank == 0
        && let Some(network) = communicator.network()
    {
        communicator.log(&format!("messages between hosts go over {network}"));
    }
    // Say why calls on devices take a longer way, where they do.
    if communicator.config.debug > 0
        && let Some((gpu, warning)) =
            communicator.gpu.as_ref().and_then(|gpu| Some((gpu, gpu.fallback_reason()?)))
    {
        communicator.log(&format!("calls on devices are {}: {warning}", gpu.transport()));
    }
    Ok(communicator)
}

/// Which ranks share a host: as the configuration says, else as it was found.
fn topology(found: &[usize], nranks: usize, config: &Config) -> Topology {
    let given = config.hosts.as_ref().filter(|given| given.len() == nranks);
    Topology::new(given.map_or(found, |given| given))
}

/// Let onlookers see the rank. One that cannot be looked at works as well as others.
fn exhibit(flight: FlightDump, rank: usize, config: &Config) -> Option<status_server::StatusEntry> {
    status_server::register(flight).unwrap_or_else(|error| {
        if config.debug > 0 {
            say(&format!("ringcomm: rank {rank}: no status socket: {error}"));
        }
        None
    })
}

/// On whose account an operation failed.
pub(super) fn cause(error: &Error) -> Blame {
    use Error::{Aborted, Disconnected, PeerDied, Remote, Timeout, Unreached};
    match error {
        Aborted { .. } | Disconnected { .. } | PeerDied { .. } => Blame::There,
        Remote { .. } | Unreached { .. } => Blame::There,
        Timeout { .. } => Blame::Late,
        _ => Blame::Here,
    }
}

/// Tell the ranks of this machine why this one does not come any further.
fn tell(pages: &Pages, error: &Error) {
    pages.mine().fail(pages.rank, &error.to_string());
    for peer in (0..pages.nranks()).filter(|peer| *peer != pages.rank) {
        wait::ring_bell(&pages.of(peer).bell);
    }
}
