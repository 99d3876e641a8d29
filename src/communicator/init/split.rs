//! Splitting: communicators of the ranks that name the same color.
#![allow(unsafe_code)]

use super::child_ranks::ChildRanks;
use super::descriptors;
use super::host_setup::StopConditions;
use crate::bootstrap::UniqueId;
use crate::bootstrap::tcp::AuthListener;
use crate::communicator::health::wait_check::CancelCheck;
use crate::communicator::{Call, Communicator};
use crate::config::{Config, DeviceChoice};
use crate::error::{Error, Result};
use crate::os::descriptors::room_for;
use crate::plan::Collective;
use crate::types::DataType;
use std::fmt::Debug;
use std::time::Instant;

/// What a rank tells the others: its color, its key, the port of its listener for the new
/// communicator, where there are other hosts, and how many descriptors it can open.
type SplitRequest = [i32; 4];

/// The ranks that want this color, as the new communicator orders them.
fn group_of(color: i32, all: &[SplitRequest]) -> Vec<usize> {
    let mut group: Vec<usize> = (0..all.len()).filter(|rank| all[*rank][0] == color).collect();
    // Ranks of one key stay in their order.
    group.sort_by_key(|rank| all[*rank][1]);
    group
}

/// Take over a setting from which the ranks' addresses come; another one is refused, since whoever
/// listened elsewhere would be looked for in vain.
fn inherit<T: Clone + PartialEq + Debug>(
    name: &str,
    own: &mut Option<T>,
    parent: &Option<T>,
) -> Result<()> {
    let shown = |setting: &Option<T>| match setting {
        Some(value) => format!("{value:?}"),
        None => "not set".into(),
    };
    if own.is_some() && own != parent {
        return Err(Error::argument(format!(
            "{name}, or the config's field for it, is {} for the new communicator and {} for the \
             one that it is made of; ranks on several hosts look for each other at the addresses \
             that they have: leave it unset, or make a communicator from the beginning",
            shown(own),
            shown(parent)
        )));
    }
    own.clone_from(parent);
    Ok(())
}

impl Communicator {
    /// The settings of a communicator that is made of this one: on this one's device, where they do
    /// not name another; between hosts at this one's addresses, where ranks look for each other.
    pub(in crate::communicator) fn child_config(&self, given: Option<&Config>) -> Result<Config> {
        let mut config = given.unwrap_or(&self.config).clone();
        if config.device == DeviceChoice::Current {
            config.device = self.config.device;
        }
        if self.outside.is_some() {
            let parent = &self.config;
            inherit("RINGCOMM_SOCKET_IFNAME", &mut config.interfaces, &parent.interfaces)?;
            inherit("RINGCOMM_SOCKET_FAMILY", &mut config.family, &parent.family)?;
        }
        Ok(config)
    }

    /// A communicator of the ranks that give the same color, ordered by (key, rank). `None` for a
    /// negative color.
    ///
    /// The group's rendezvous ends soon where one of its ranks dies or fails, and where this
    /// communicator is aborted meanwhile.
    ///
    /// ```
    /// # use ringcomm::{Communicator, Config};
    /// # let ranks = Communicator::init_all(4, &Config::default())?;
    /// # std::thread::scope(|scope| {
    /// #     for comm in &ranks {
    /// #         scope.spawn(move || {
    /// // Even ranks, and odd ones; each group in the order of the ranks.
    /// let (color, key) = (comm.rank() as i32 % 2, 0);
    /// let group = comm.split(color, key, None).unwrap().unwrap();
    /// assert_eq!((group.rank(), group.nranks()), (comm.rank() / 2, 2));
    /// #         });
    /// #     }
    /// # });
    /// # Ok::<(), ringcomm::Error>(())
    /// ```
    pub fn split(
        &self,
        color: i32,
        key: i32,
        config: Option<&Config>,
    ) -> Result<Option<Communicator>> {
        self.check_process()?;
        let config = self.child_config(config);
        // Held until the ranks have gathered, so that splits of several threads are counted in the
        // order in which they meet the other ranks.
        let mut children = self.children.lock();
        let child = *children;
        *children += 1;
        let label = format!("split {child} {color}");
        let local_id = self.id.derive_at(label.as_bytes(), &[]);
        let listener = self.child_gate(color, &local_id, &config);
        // A rank without a listener says so before it fails: the others would wait for it.
        let port = match &listener {
            Ok(Some(listener)) => listener.addresses().first().map_or(0, |address| address.port()),
            _ => 0,
        };
        let (room, lack) = match color {
            ..0 => (0, Ok(())),
            _ => room_for(self.needed(&Vec::from_iter(0..self.nranks), self.rank)),
        };
        let all = self.gather_wishes([color, key, i32::from(port), room as i32])?;
        drop(children);
        if color < 0 {
            return Ok(None);
        }
        let group = group_of(color, &all);
        self.check_room(&group, &all, lack)?;
        let listener = listener?;
        let config = &config?;
        let rank = group.iter().position(|rank| *rank == self.rank);
        let rank = rank.expect("this rank gave its own color");
        if listener.is_some()
            && let Some(shut) = group.iter().find(|rank| all[**rank][2] == 0)
        {
            return Err(Error::usage(format!(
                "split: rank {shut} cannot listen for the others; its own error says why"
            )));
        }
        // Who dies before it comes is known here, and to nobody that it would meet there.
        let peer_error = || match self.is_broken() {
            true => self.check().err(),
            false => self.health.trouble_among(|rank| group.contains(&rank)),
        };
        let cancelled = || peer_error().is_some();
        let deadline = Instant::now() + config.init_timeout();
        let numbering = ChildRanks(&group);
        let broken_off = || peer_error().map(|error| numbering.to_child(error));
        let failed: CancelCheck = Some(&broken_off);
        let until = StopConditions { deadline, cancelled: Some(&cancelled), failed };
        let made = match (&self.outside, listener) {
            (Some(outside), Some(listener)) if !outside.share_a_host(&group) => {
                let root = outside.at_port(group[0], all[group[0]][2] as u16);
                let id = self.id.derive_at(label.as_bytes(), &root);
                let listener = if rank == 0 { listener.of_root() } else { listener };
                Communicator::init_through(listener, group.len(), &id, rank, config, until)
            }
            _ => Communicator::init_unless(group.len(), &local_id, rank, config, until),
        };
        made.map(Some).map_err(|unmet| {
            let unmet = numbering.to_parent(unmet);
            peer_error().unwrap_or_else(|| self.health.with_cause(&group, unmet))
        })
    }

    /// Where ranks of other hosts can reach this one while they make a communicator.
    fn child_gate(
        &self,
        color: i32,
        id: &UniqueId,
        config: &Result<Config>,
    ) -> Result<Option<AuthListener>> {
        match (&self.outside, config) {
            (Some(_), Ok(config)) if color >= 0 => AuthListener::open(id, &config.into()).map(Some),
            _ => Ok(None),
        }
    }

    /// The descriptors that a rank opens for the communicator of a group.
    fn needed(&self, group: &[usize], rank: usize) -> usize {
        if group.len() == 1 {
            return 0;
        }
        let hosts = self.outside.as_ref().map(|outside| &outside.hosts);
        let is_near = |other: usize| hosts.is_none_or(|hosts| hosts[other] == hosts[rank]);
        let near = group.iter().filter(|other| is_near(**other)).count() - 1;
        let far = group.len() - 1 - near;
        let near = if self.health.together { 0 } else { near };
        // The new one's may differ, but not by what a rank knows of the others before they meet.
        descriptors::needed(near, far, self.config.nsocks)
    }

    /// An error, on all ranks of a group, where one of them has no room for the descriptors that
    /// it needs. `lack` is what the system answered to this one.
    fn check_room(
        &self,
        group: &[usize],
        all: &[SplitRequest],
        lack: rustix::io::Result<()>,
    ) -> Result<()> {
        let room = |rank: usize| all[rank][3] as usize;
        let needed = |rank: usize| self.needed(group, rank);
        let mut lacking = group.iter().copied().filter(|rank| room(*rank) < needed(*rank));
        let Some(first) = lacking.next() else { return Ok(()) };
        let is_own = first == self.rank || lacking.any(|rank| rank == self.rank);
        let short = if is_own { self.rank } else { first };
        let what = format!("split: {}", descriptors::lacking(short, room(short), needed(short)));
        // To the others it is said as it would be here: what the system of another one answered
        // is the same, but where all of its machine's files are open.
        let errno =
            lack.err().filter(|_| is_own).map_or(libc::EMFILE, |errno| errno.raw_os_error());
        let error = Error::System { what, errno };
        if is_own {
            return Err(error);
        }
        let (rank, peer, text) = (self.rank, self.health.who(first), error.to_string());
        Err(Error::Remote { rank, peer, operation: None, text })
    }

    fn gather_wishes(&self, mine: SplitRequest) -> Result<Vec<SplitRequest>> {
        let mut all = vec![SplitRequest::default(); self.nranks];
        let call = Call {
            send: mine.as_ptr().cast(),
            recv: all.as_mut_ptr().cast(),
            count: mine.len(),
            ..Call::new(Collective::AllGather, DataType::Int32)
        };
        // SAFETY: both buffers hold what an all-gather of a wish from each rank needs.
        unsafe { self.run(&call)? };
        Ok(all)
    }
}
