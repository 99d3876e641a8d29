//! What agents report, and what their silence means.

use super::{Attempt, Rank};
use crate::agent::rank_processes::{has_begun, has_ended};
use crate::launcher::agent_connection::News;
use crate::launcher::failure_text;
use crate::launcher::output::Target;
use crate::launcher::policy::Failure;
use crate::protocol::messages::Stream;
use crate::protocol::messages::ToLauncher;
use std::time::Instant;

impl Attempt<'_> {
    pub(super) fn hear(&mut self, host: usize, news: News) {
        let name = self.launcher.setup.stations[host].name.clone();
        match news {
            News::Message(message) => self.obey(host, message),
            News::Nonsense(why) => {
                self.links[host].abandon();
                self.lose(host, &why);
            }
            News::Greeted => {
                let theirs = self.links[host].greeting.as_ref().map(|own| own.version.clone());
                let theirs = theirs.unwrap_or_default();
                if theirs != env!("CARGO_PKG_VERSION") {
                    self.fail(failure_text::other_version(&name, &theirs));
                    self.links[host].hang_up();
                } else if self.started {
                    self.let_join(host);
                } else if self.links.iter().all(|link| link.greeting.is_some())
                    && self.links.len() == self.launcher.setup.stations.len()
                    && !self.policy.is_ending()
                    && let Err(what) = self.begin()
                {
                    self.fail(Failure { what, status: 1, lasting: true });
                }
            }
        }
    }

    fn obey(&mut self, host: usize, message: ToLauncher) {
        let name = &self.launcher.setup.stations[host].name;
        // What an agent says about ranks that are not its own is not heard.
        let own = |rank: u32| self.ranks.get(rank as usize).is_some_and(|rank| rank.host == host);
        // Nor what comes after a rank's end, or after its host was given up.
        let open = |rank: u32| own(rank) && !self.ranks[rank as usize].over;
        match message {
            ToLauncher::Started { rank, pid } if own(rank) => self.ranks[rank as usize].pid = pid,
            ToLauncher::Output { rank, stream, bytes } if own(rank) => {
                self.show(rank as usize, stream, Some(&bytes));
            }
            ToLauncher::End { rank, stream } if own(rank) => self.show(rank as usize, stream, None),
            ToLauncher::Exited { rank, ended } if open(rank) => {
                let rank = rank as usize;
                let failure = failure_text::rank(rank, name, self.ranks[rank].pid, ended);
                self.over(rank);
                let Some(failure) = failure else {
                    if let Some(folder) = &self.launcher.elastic
                        && has_ended(folder.as_ref())
                    {
                        self.policy.made_good();
                        self.finishing = true;
                    }
                    return;
                };
                if let Some(folder) = &self.launcher.elastic
                    && !has_begun(folder.as_ref())
                {
                    self.policy.end_at_failure();
                }
                let told = self.tidings.heard(failure, ended.is_a_kill(), Instant::now());
                told.into_iter().for_each(|failure| self.fail(failure));
            }
            ToLauncher::Replaced { rank, ended, pid } if open(rank) => {
                let number = rank as usize;
                let failure = failure_text::rank(number, name, self.ranks[number].pid, ended);
                self.ranks[number].pid = pid;
                let what = failure.map_or_else(String::new, |failure| failure.what);
                let text = format!("{what}; the others go on, and process {pid} joins them");
                self.launcher.writer.complain(&text);
                if number == 0 {
                    self.launcher.input.end();
                }
            }
            ToLauncher::NotStarted { rank, why, status } if open(rank) => {
                let why = String::from_utf8_lossy(&why);
                let failure = failure_text::not_started(rank as usize, name, &why, status);
                self.over(rank as usize);
                self.fail(failure);
            }
            ToLauncher::Taken(bytes) => self.launcher.input.taken(bytes as usize),
            _ => {}
        }
    }

    pub(super) fn over(&mut self, rank: usize) {
        self.ranks[rank].over = true;
        self.forget_to_leave(rank);
        if rank == 0 {
            self.launcher.input.end();
        }
    }

    /// Print what a rank said; `None` is the end of the stream.
    pub(super) fn show(&mut self, rank: usize, stream: Stream, bytes: Option<&[u8]>) {
        let launcher = &*self.launcher;
        let mut text = Vec::new();
        let mut line = |line: &[u8]| {
            launcher.prefix.write(&mut text, rank, stream);
            text.extend_from_slice(line);
        };
        let lines = match stream {
            Stream::Output => &mut self.ranks[rank].lines[0],
            Stream::Error => &mut self.ranks[rank].lines[1],
        };
        match bytes {
            Some(bytes) => {
                launcher.writer.keep(rank, stream, bytes);
                lines.push(bytes, &mut line);
            }
            None => lines.finish(&mut line),
        }
        if !text.is_empty() {
            launcher.writer.push(Target::Terminal(stream), text);
        }
    }

    /// A host is gone before its ranks.
    fn lose(&mut self, host: usize, why: &str) {
        self.links[host].hang_up();
        if std::mem::replace(&mut self.links[host].lost, true) {
            return;
        }
        let station = &self.launcher.setup.stations[host];
        let of_host = |(_, rank): &(usize, &Rank)| rank.host == host && !rank.over;
        let with: Vec<usize> =
            self.ranks.iter().enumerate().filter(of_host).map(|(rank, _)| rank).collect();
        let link = &self.links[host];
        let failure = if link.greeting.is_none() {
            let chatter = link.chatter();
            if !chatter.is_empty() {
                self.launcher.writer.complain(&format!("host {} says: {chatter}", station.name));
            }
            failure_text::unreached(&station.name, station.remote.as_deref(), link.ended)
        } else {
            failure_text::lost(&station.name, &with, why)
        };
        let unreached = link.greeting.is_none();
        for rank in &with {
            self.over(*rank);
        }
        if !with.is_empty() && (unreached || self.started) {
            self.fail(failure);
        }
    }

    /// The process behind a link has ended, and not because all was done.
    pub(super) fn lose_for_its_end(&mut self, host: usize) {
        let remote = self.launcher.setup.stations[host].remote.is_some();
        let why = failure_text::way_ended(remote, self.links[host].ended);
        self.lose(host, &why);
    }

    /// Agents that have gone without a word.
    pub(super) fn check_hosts(&mut self) {
        for host in 0..self.links.len() {
            let open = self.ranks.iter().any(|rank| rank.host == host && !rank.over);
            if self.links[host].is_over() && open {
                self.lose_for_its_end(host);
            }
        }
    }
}
