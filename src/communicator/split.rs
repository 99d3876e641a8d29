//! Splitting: communicators of the ranks that name the same color.
#![allow(unsafe_code)]

use super::assembly::Until;
use super::{Call, Communicator};
use crate::bootstrap::Unmet;
use crate::bootstrap::network::{Gate, NetworkConfig};
use crate::config::{Config, Seat};
use crate::error::{Error, Result};
use crate::plan::Collective;
use crate::types::DataType;
use std::time::{Duration, Instant};

/// What a rank tells the others: its color, its key, and the port of its gate for the new
/// communicator, where there are other hosts.
type Wish = [i32; 3];

impl Communicator {
    /// The settings of a communicator that is made of this one: on this one's device, where they do
    /// not name another.
    pub(super) fn child_config(&self, given: Option<&Config>) -> Config {
        let given = given.unwrap_or(&self.config).clone();
        match given.seat {
            Seat::Current => Config { seat: self.config.seat, ..given },
            _ => given,
        }
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
        let config = &self.child_config(config);
        // Held until the ranks have gathered, so that splits of several threads are counted in the
        // order in which they meet the other ranks.
        let mut children = self.children.lock();
        let child = *children;
        *children += 1;
        let label = format!("split {child} {color}");
        let local_id = self.id.derive_at(label.as_bytes(), &[]);
        let gate = match &self.outside {
            Some(_) if color >= 0 => Gate::open(&local_id, &NetworkConfig::from(config)).map(Some),
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
        let mut group: Vec<(i32, usize)> = (0..self.nranks)
            .filter(|rank| all[*rank][0] == color)
            .map(|rank| (all[rank][1], rank))
            .collect();
        group.sort_unstable();
        let group: Vec<usize> = group.into_iter().map(|(_, rank)| rank).collect();
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
            false => self.watched.trouble_among(|rank| group.contains(&rank)),
        };
        let is_called_off = || trouble().is_some();
        let deadline = Instant::now() + Duration::from_millis(config.timeout_ms);
        let until =
            Until { deadline, is_called_off: Some(&is_called_off), is_broken_off: Some(&trouble) };
        let made = match (&self.outside, gate) {
            (Some(outside), Some(gate)) if !outside.share_a_host(&group) => {
                let root = outside.at_port(group[0], all[group[0]][2] as u16);
                let id = self.id.derive_at(label.as_bytes(), &root);
                let gate = if rank == 0 { gate.of_root() } else { gate };
                Communicator::init_through(gate, group.len(), &id, rank, config, until)
            }
            _ => Communicator::init_unless(group.len(), &local_id, rank, config, until),
        };
        let number = |place: usize| group.get(place).copied().unwrap_or(place);
        made.map(Some).map_err(|unmet| {
            let unmet = Unmet { error: unmet.error.renumbered(number), ..unmet };
            trouble().unwrap_or_else(|| self.watched.explained(&group, unmet))
        })
    }

    fn gather_wishes(&self, mine: Wish) -> Result<Vec<Wish>> {
        let mut all = vec![Wish::default(); self.nranks];
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
