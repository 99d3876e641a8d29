//! Splitting: communicators of the ranks that name the same color.
#![allow(unsafe_code)]

use super::child_ranks::ChildRanks;
use super::host_setup::StopConditions;
use crate::bootstrap::tcp::AuthListener;
use crate::communicator::health::wait_check::CancelCheck;
use crate::communicator::{Call, Communicator};
use crate::config::{Config, DeviceChoice};
use crate::error::{Error, Result};
use crate::plan::Collective;
use crate::types::DataType;
use std::fmt::Debug;
use std::time::Instant;

/// What a rank tells the others: its color, its key, and the port of its gate for the new
/// communicator, where there are other hosts.
type SplitRequest = [i32; 3];

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
    /// The group's meeting ends soon where one of its ranks dies or fails, and where this
    /// communicator is aborted meanwhile.
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
        let gate = match (&self.outside, &config) {
            (Some(_), Ok(config)) if color >= 0 => {
                AuthListener::open(&local_id, &config.into()).map(Some)
            }
            _ => Ok(None),
        };
        // A rank without a gate says so before it fails: the others would wait for it.
        let port = match &gate {
            Ok(Some(gate)) => gate.addresses().first().map_or(0, |address| address.port()),
            _ => 0,
        };
        let all = self.gather_wishes([color, key, i32::from(port)])?;
        drop(children);
        let gate = gate?;
        if color < 0 {
            return Ok(None);
        }
        let config = &config?;
        let group = group_of(color, &all);
        let rank = group.iter().position(|rank| *rank == self.rank);
        let rank = rank.expect("this rank gave its own color");
        if gate.is_some()
            && let Some(shut) = group.iter().find(|rank| all[**rank][2] == 0)
        {
            return Err(Error::usage(format!(
                "split: rank {shut} cannot listen for the others; its own error says why"
            )));
        }
        // Who dies before it comes is known here, and to nobody that it would meet there.
        let trouble = || match self.is_broken() {
            true => self.check().err(),
            false => self.health.trouble_among(|rank| group.contains(&rank)),
        };
        let is_called_off = || trouble().is_some();
        let deadline = Instant::now() + config.init_timeout();
        let numbering = ChildRanks(&group);
        let broken_off = || trouble().map(|error| numbering.to_child(error));
        let is_broken_off: CancelCheck = Some(&broken_off);
        let until = StopConditions { deadline, is_called_off: Some(&is_called_off), is_broken_off };
        let made = match (&self.outside, gate) {
            (Some(outside), Some(gate)) if !outside.share_a_host(&group) => {
                let root = outside.at_port(group[0], all[group[0]][2] as u16);
                let id = self.id.derive_at(label.as_bytes(), &root);
                let gate = if rank == 0 { gate.of_root() } else { gate };
                Communicator::init_through(gate, group.len(), &id, rank, config, until)
            }
            _ => Communicator::init_unless(group.len(), &local_id, rank, config, until),
        };
        made.map(Some).map_err(|unmet| {
            let unmet = numbering.to_parent(unmet);
            trouble().unwrap_or_else(|| self.health.with_cause(&group, unmet))
        })
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
