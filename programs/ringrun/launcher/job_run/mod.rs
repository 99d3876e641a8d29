//! One start of a job: agents are reached, told what to run, and served until the last has gone.
//!
//! One loop waits for everything: agents, signals, standard input, room for output, deadlines. What
//! to do about a failure or a signal is `policy`'s to say.

mod agent_events;
mod changing_hosts;

use super::Launcher;
use super::agent_connection::Link;
use super::discovery::Discovery;
use super::policy::{Action, Failure, Policy, Tidings};
use crate::agent::PING_INTERVAL;
use crate::agent::children;
use crate::agent::environment::{Elastic, Facts};
use crate::agent::output_lines::Lines;
use crate::placement::hosts::Host;
use crate::protocol::messages::Stream;
use crate::protocol::messages::{Ended, ToAgent};
use crate::sys::poll::Watch;
use crate::sys::signals;
use std::time::{Duration, Instant};

/// A rank as the launcher knows it.
struct Rank {
    host: usize,
    pid: u32,
    over: bool,
    /// It was told to go, since its host is there no more.
    leaving: bool,
    lines: [Lines; 2],
}

impl Rank {
    fn on(host: usize) -> Rank {
        Rank { host, pid: 0, over: false, leaving: false, lines: Default::default() }
    }
}

pub struct Attempt<'a> {
    launcher: &'a mut Launcher,
    restart: usize,
    policy: Policy,
    tidings: Tidings,
    links: Vec<Link>,
    ranks: Vec<Rank>,
    /// The agents were told what to run; what ranks have in common since then.
    started: bool,
    facts: Option<Facts>,
    discovery: Option<Discovery>,
    /// The hosts as the discovery program said last.
    hosts: Vec<Host>,
    /// The training has come to its end: nobody is to come any more.
    finishing: bool,
    start_deadline: Instant,
    next_ping: Instant,
}

/// How an attempt ended.
pub struct Outcome {
    pub status: u8,
    pub wants_restart: bool,
}

/// Run the job once.
pub fn run(launcher: &mut Launcher, restart: usize) -> Result<Outcome, String> {
    let now = Instant::now();
    let options = &launcher.options;
    let mut attempt = Attempt {
        restart,
        policy: Policy::new(options.keep_going || options.is_elastic(), options.grace),
        tidings: Tidings::new(launcher.setup.stations.len()),
        links: Vec::new(),
        ranks: launcher.setup.places.iter().map(|place| Rank::on(place.host)).collect(),
        started: false,
        facts: None,
        discovery: None,
        hosts: launcher.setup.hosts.clone(),
        finishing: false,
        start_deadline: now + options.start_timeout,
        next_ping: now + PING_INTERVAL,
        launcher,
    };
    attempt.connect();
    while !attempt.links.iter().all(Link::is_over) {
        attempt.turn().map_err(|error| format!("waiting for the ranks: {error}"))?;
    }
    let held = attempt.tidings.release();
    held.into_iter().for_each(|failure| attempt.fail(failure));
    for rank in 0..attempt.ranks.len() {
        // Of a host that was lost nobody says that a stream has ended.
        attempt.show(rank, Stream::Output, None);
        attempt.show(rank, Stream::Error, None);
    }
    let name = attempt.launcher.name.clone();
    // An agent that was killed left its ranks' children to this process.
    children::kill_descendants(|pid| children::has_variable(pid, "RINGCOMM_JOB", &name));
    let policy = &attempt.policy;
    let wants_restart = policy.wants_restart() && !attempt.launcher.options.is_elastic();
    Ok(Outcome { status: policy.status(), wants_restart })
}

impl Attempt<'_> {
    /// Start an agent for every host.
    fn connect(&mut self) {
        for host in 0..self.launcher.setup.stations.len() {
            let station = &self.launcher.setup.stations[host];
            match Link::start(station, self.launcher.raw_output.as_ref()) {
                Ok(link) => self.links.push(link),
                Err(error) => {
                    let program = station.remote.as_ref().map_or("an agent", |words| &words[0]);
                    let what = format!("host {}: cannot run {program}: {error}", station.name);
                    self.fail(Failure { what, status: 127, lasting: true });
                    self.hang_up();
                    return;
                }
            }
        }
    }

    /// All agents are there: tell them what to run.
    fn begin(&mut self) -> Result<(), String> {
        let secret =
            children::random_hex::<32>().map_err(|error| format!("random bytes: {error}"))?;
        let found = self.links[0].greeting.as_ref().map_or(0, |greeting| greeting.port);
        let port = self.launcher.options.port.unwrap_or(found).to_string();
        let setup = &self.launcher.setup;
        let options = &self.launcher.options;
        let mut facts = setup.facts(port, secret, self.launcher.name.clone(), self.restart);
        let second = self.links[0].greeting.as_ref().map_or(0, |greeting| greeting.second_port);
        facts.meeting = setup.meeting(options, second)?;
        facts.elastic = self.launcher.elastic.as_ref().map(|folder| Elastic {
            folder: folder.clone(),
            least: options.min_np.unwrap_or(1),
            most: options.most(setup.nranks()),
        });
        for (host, link) in self.links.iter_mut().enumerate() {
            let raw = self.launcher.raw_number().filter(|_| setup.stations[host].remote.is_none());
            link.send(&ToAgent::Job(setup.job(host, &facts, raw)));
        }
        self.facts = Some(facts);
        self.discovery = Discovery::start(options, setup.hosts.clone())
            .map_err(|error| format!("--host-discovery-script: {error}"))?;
        self.started = true;
        self.next_ping = Instant::now() + PING_INTERVAL;
        self.launcher.input.begin();
        Ok(())
    }

    fn hang_up(&mut self) {
        self.links.iter_mut().for_each(Link::hang_up);
    }

    fn running(&self) -> usize {
        self.ranks.iter().filter(|rank| !rank.over).count()
    }

    /// Something failed: tell it, and do what is to be done about it.
    fn fail(&mut self, failure: Failure) {
        let what = failure.what.clone();
        let options = &self.launcher.options;
        let keep_going = (options.keep_going || options.is_elastic()) && self.started;
        let (action, first) = self.policy.failed(failure, Instant::now());
        let left = self.running();
        let then = match action {
            Action::Send(_) if left > 0 && self.started => match left {
                1 => "; ending the other rank".to_string(),
                left => format!("; ending the other {left} ranks"),
            },
            Action::Nothing if keep_going && left > 0 => "; the others go on".into(),
            _ => String::new(),
        };
        if first || (keep_going && !self.policy.is_ending()) {
            self.launcher.writer.complain(&format!("{what}{then}"));
        }
        self.act(action);
        if !self.started {
            self.hang_up();
        }
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Nothing => {}
            // Without ranks, the end of its input ends an agent.
            Action::Send(_) if !self.started => self.hang_up(),
            Action::Send(signal) => {
                self.links.iter_mut().for_each(|link| link.send(&ToAgent::Signal(signal)));
            }
            Action::Abandon => self.links.iter_mut().for_each(Link::abandon),
        }
    }

    /// How long to wait if nothing happens.
    fn patience(&self) -> Option<Duration> {
        let start = (!self.started).then_some(self.start_deadline);
        let ping = (self.started && self.launcher.has_remote()).then_some(self.next_ping);
        let grace = self.launcher.options.grace;
        let ends = self.links.iter().filter_map(|link| link.deadline(grace));
        let ends = ends.chain(self.answer_deadlines());
        let deadlines = [start, ping, self.policy.deadline(), self.tidings.deadline()];
        let next = deadlines.into_iter().flatten().chain(ends).min();
        let next = next.map(|at| at.saturating_duration_since(Instant::now()));
        // Nobody tells when the terminal becomes this process's again; a second is not missed.
        let look = self.launcher.input.is_in_background().then_some(Duration::from_secs(1));
        next.into_iter().chain(look).min()
    }

    fn turn(&mut self) -> std::io::Result<()> {
        let mut watch = Watch::default();
        let launcher = &*self.launcher;
        let signals = watch.reading(&launcher.signals);
        let wake = watch.reading(&launcher.writer.wake);
        let input = launcher.input.watch(&mut watch);
        let hosts = self.discovery.as_ref().map(|discovery| watch.reading(&discovery.wake));
        let room = launcher.writer.has_room();
        let places: Vec<_> = self.links.iter().map(|link| link.watch(&mut watch, room)).collect();
        watch.wait(self.patience())?;

        if watch.is_ready(Some(wake)) {
            self.launcher.writer.woken();
            self.check_output();
        }
        for (host, places) in places.iter().enumerate() {
            for news in self.links[host].serve(&watch, places) {
                self.hear(host, news);
            }
        }
        if watch.is_ready(Some(signals)) {
            self.take_signals();
        }
        if watch.is_ready(input)
            && let Some(message) = self.launcher.input.read()
        {
            self.links[0].send(&message);
        }
        if watch.is_ready(hosts)
            && let Some(discovery) = &mut self.discovery
        {
            let news = discovery.news();
            news.into_iter().for_each(|found| self.found(found));
        }
        self.check_hosts();
        self.check_answers();
        self.check_time();
        Ok(())
    }

    fn check_time(&mut self) {
        let now = Instant::now();
        let due = self.tidings.tick(now);
        due.into_iter().for_each(|failure| self.fail(failure));
        let action = self.policy.tick(now);
        if action == Action::Send(libc::SIGKILL) {
            let grace = self.launcher.options.grace.as_secs_f64();
            let left = self.running();
            self.launcher.writer.complain(&format!("after {grace} s, killing {left} ranks"));
        }
        self.act(action);
        let grace = self.launcher.options.grace;
        for link in &mut self.links {
            if link.deadline(grace).is_some_and(|at| now >= at) {
                link.abandon();
            }
        }
        if self.started && now >= self.next_ping {
            self.next_ping = now + PING_INTERVAL;
            self.links.iter_mut().for_each(|link| link.send(&ToAgent::Ping));
        }
        if !self.started && !self.policy.is_ending() && now >= self.start_deadline {
            let silent = self.links.iter().position(|link| link.greeting.is_none());
            let host = &self.launcher.setup.stations[silent.unwrap_or(0)].name;
            let limit = self.launcher.options.start_timeout.as_secs_f64();
            let what = format!("host {host} has not answered within {limit} s (--start-timeout)");
            self.fail(Failure { what, status: 255, lasting: false });
        }
    }

    /// A reader of the output that has gone away wants no more of it: the job ends as one program
    /// would, by SIGPIPE.
    fn check_output(&mut self) {
        if self.launcher.writer.take_broken() {
            let status = 128 + libc::SIGPIPE as u8;
            let what = "nobody reads the standard output any more".to_string();
            self.fail(Failure { what, status, lasting: true });
        }
    }

    fn take_signals(&mut self) {
        let mut gone = Vec::new();
        while let Some(signal) = self.launcher.signals.next() {
            match signal {
                libc::SIGCHLD => {}
                libc::SIGTSTP => self.stop(),
                _ => self.pass_on(signal),
            }
        }
        let reaped = children::reap_all(|pid| self.links.iter().any(|link| link.is(pid)));
        for (pid, ended) in reaped {
            let Some(host) = self.links.iter().position(|link| link.is(pid)) else { continue };
            self.links[host].reaped(ended);
            if ended != Ended::Code(0) {
                // An agent whose ranks have all ended gives 0: this one has lost them.
                gone.push(host);
            }
        }
        for host in gone {
            self.lose_for_its_end(host);
        }
    }

    /// Stop with the ranks, as the terminal asks, and go on with them.
    fn stop(&mut self) {
        self.act(Action::Send(libc::SIGSTOP));
        signals::stop_here();
        self.act(Action::Send(libc::SIGCONT));
    }

    fn pass_on(&mut self, signal: i32) {
        let action = self.policy.signalled(signal, Instant::now());
        let name = signals::describe(signal);
        if !self.started && self.policy.is_ending() {
            let status = 128 + signal as u8;
            self.fail(Failure { what: format!("ended by signal {name}"), status, lasting: true });
        } else {
            let left = self.running();
            let text = match action {
                // Signals that do not end a job are the ranks' own business.
                Action::Send(_) if !self.policy.is_ending() => None,
                Action::Send(libc::SIGKILL) => Some(format!("killing {left} ranks")),
                Action::Send(_) => Some(format!(
                    "passing signal {name} on to {left} ranks; a second one kills them"
                )),
                Action::Abandon => Some("giving up on ranks that cannot be killed".into()),
                Action::Nothing => None,
            };
            text.into_iter().for_each(|text| self.launcher.writer.complain(&text));
        }
        self.act(action);
    }
}
