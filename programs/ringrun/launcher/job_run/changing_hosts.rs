//! An elastic job's hosts come and go: ranks are started on those that come, and those on hosts
//! that go are told to leave.

use super::{Attempt, Rank};
use crate::agent::rank_processes::NEWCOMER;
use crate::launcher::agent_connection::Link;
use crate::placement::hosts::Host;
use crate::protocol::messages::ToAgent;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Instant;

impl Attempt<'_> {
    /// The hosts that there are now.
    pub(super) fn found(&mut self, found: Result<Vec<Host>, String>) {
        let hosts = match found {
            Ok(hosts) => hosts,
            Err(why) => {
                let text = format!("--host-discovery-script: {why}; the hosts stay as they were");
                return self.launcher.writer.complain(&text);
            }
        };
        if self.policy.is_ending() || self.finishing {
            return;
        }
        for rank in self.too_many(&hosts) {
            self.tell_to_leave(rank);
        }
        let before = std::mem::replace(&mut self.hosts, hosts.clone());
        for host in &hosts {
            // Slots that are new: those of a host that was lost are not tried again and again.
            let old = before.iter().find(|old| old.name == host.name).map_or(0, |old| old.slots);
            let there = self.ranks_on(&host.name).len();
            let all = self.ranks.iter().filter(|rank| !rank.over && !rank.leaving).count();
            let room = self.launcher.options.most(self.launcher.setup.nranks()).saturating_sub(all);
            let new = host.slots.saturating_sub(old);
            let more = new.min(host.slots.saturating_sub(there)).min(room);
            if more > 0 {
                self.start_on(host, more);
            }
        }
    }

    /// The ranks on a host that go on.
    fn ranks_on(&self, name: &str) -> Vec<usize> {
        let stations = &self.launcher.setup.stations;
        let there = |rank: &Rank| !rank.over && !rank.leaving && stations[rank.host].name == name;
        (0..self.ranks.len()).filter(|at| there(&self.ranks[*at])).collect()
    }

    /// The ranks for which there are no slots any more: on each host the last.
    fn too_many(&self, hosts: &[Host]) -> Vec<usize> {
        let mut names: Vec<&str> = self.ranks.iter().map(|rank| self.name_of(rank.host)).collect();
        names.sort_unstable();
        names.dedup();
        let mut all = Vec::new();
        for name in names {
            let slots = hosts.iter().find(|host| host.name == name).map_or(0, |host| host.slots);
            all.extend(self.ranks_on(name).into_iter().skip(slots));
        }
        all
    }

    fn name_of(&self, host: usize) -> &str {
        &self.launcher.setup.stations[host].name
    }

    fn tell_to_leave(&mut self, rank: usize) {
        let Some(file) = self.leave_file(rank) else { return };
        let name = self.name_of(self.ranks[rank].host);
        let text = match File::create(file) {
            Ok(_) => format!("rank {rank} is to leave host {name}"),
            Err(error) => format!("rank {rank} cannot be told to leave host {name}: {error}"),
        };
        self.ranks[rank].leaving = true;
        self.launcher.writer.complain(&text);
    }

    fn leave_file(&self, rank: usize) -> Option<PathBuf> {
        let folder = self.launcher.elastic.as_ref()?;
        Some(Path::new(folder).join(format!("leave.{rank}")))
    }

    /// A rank has ended, whether it was to leave or not.
    pub(super) fn forget_to_leave(&self, rank: usize) {
        if self.ranks[rank].leaving
            && let Some(file) = self.leave_file(rank)
        {
            // It removes the file itself when it leaves.
            let _ = std::fs::remove_file(file);
        }
    }

    /// Start an agent for so many newcomers.
    fn start_on(&mut self, host: &Host, count: usize) {
        let station = self.launcher.setup.station(&self.launcher.options, host);
        if station.remote.is_some() && self.launcher.own_elastic {
            let text = format!(
                "host {} gets no ranks: name a folder that all hosts see in RINGCOMM_ELASTIC",
                host.name
            );
            return self.launcher.writer.complain(&text);
        }
        let link = match Link::start(&station, self.launcher.raw_output.as_ref()) {
            Ok(link) => link,
            Err(error) => {
                let text = format!("host {}: cannot run an agent: {error}", host.name);
                return self.launcher.writer.complain(&text);
            }
        };
        let number = self.links.len();
        self.links.push(link);
        self.launcher.setup.add(station, count);
        self.ranks.extend((0..count).map(|_| Rank::on(number)));
        let ranks = if count == 1 { "1 rank" } else { &format!("{count} ranks") };
        self.launcher.writer.complain(&format!("{ranks} more on host {}", host.name));
    }

    /// The agent of a host that has come later is there: tell it what to run.
    pub(super) fn let_join(&mut self, host: usize) {
        let Some(facts) = &self.facts else { return };
        if self.policy.is_ending() {
            return self.links[host].hang_up();
        }
        let setup = &self.launcher.setup;
        let raw = self.launcher.raw_number().filter(|_| setup.stations[host].remote.is_none());
        let mut job = setup.job(host, facts, raw);
        for rank in &mut job.ranks {
            rank.variables.push((NEWCOMER.into(), b"1".to_vec()));
        }
        self.links[host].send(&ToAgent::Job(job));
    }

    /// Until when hosts that have come later are to answer.
    pub(super) fn answer_deadlines(&self) -> impl Iterator<Item = Instant> {
        let limit = self.launcher.options.start_timeout;
        let waits = |link: &&Link| self.started && link.greeting.is_none() && !link.lost;
        self.links.iter().filter(waits).map(move |link| link.begun + limit)
    }

    /// Hosts that have come later and do not answer are given up; all of them, once nobody is left
    /// to join.
    pub(super) fn check_answers(&mut self) {
        let (now, limit) = (Instant::now(), self.launcher.options.start_timeout);
        if !self.started {
            return;
        }
        let greeted = |rank: &Rank| !rank.over && self.links[rank.host].greeting.is_some();
        let alone = !self.ranks.iter().any(greeted);
        for host in 0..self.links.len() {
            let link = &mut self.links[host];
            let late = now >= link.begun + limit;
            if link.greeting.is_some() || link.lost || !(alone || late) {
                continue;
            }
            link.lost = true;
            link.abandon();
            let own = |(_, rank): &(usize, &Rank)| rank.host == host;
            let own: Vec<usize> =
                self.ranks.iter().enumerate().filter(own).map(|of| of.0).collect();
            own.into_iter().for_each(|rank| self.over(rank));
            if late {
                let (name, limit) = (self.name_of(host), limit.as_secs_f64());
                let text =
                    format!("host {name} has not answered within {limit} s (--start-timeout)");
                self.launcher.writer.complain(&text);
            }
        }
    }
}
