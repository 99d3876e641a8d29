//! When a job ends and with which status: decisions only, so that they can be tested.
//!
//! The first failure decides the status, whatever follows from it. A job is ended in three steps,
//! each given the grace period: its ranks are asked, they are killed, whoever holds them is killed.

use std::time::{Duration, Instant};

/// What went wrong first.
#[derive(Clone, Debug, PartialEq)]
pub struct Failure {
    /// Of whom and how: the subject and verb of the report.
    pub what: String,
    /// What the launcher exits with.
    pub status: u8,
    /// A restart would meet it again.
    pub lasting: bool,
}

/// How long a failure waits for word of another host that a rank was killed there. Connections that
/// break tell the dead rank's peers within a round trip, and its agent tells the launcher through a
/// remote shell in two or three: tenths of a second at most. It is what such a job ends later.
const WORD_TRAVELS: Duration = Duration::from_millis(300);

/// Failures of a job's ranks, in the order in which they are to be told. One that is killed has its
/// peers fail, and seldom the other way round; but word of different hosts comes in any order.
pub struct Tidings {
    /// Whether there is an order to find out: there are several hosts, and nothing was told yet.
    open: bool,
    held: Vec<Failure>,
    until: Option<Instant>,
}

impl Tidings {
    pub fn new(hosts: usize) -> Tidings {
        Tidings { open: hosts > 1, held: Vec::new(), until: None }
    }

    /// A rank failed; what is to be told now.
    pub fn heard(&mut self, failure: Failure, was_killed: bool, now: Instant) -> Vec<Failure> {
        if self.open && !was_killed {
            self.held.push(failure);
            self.until.get_or_insert(now + WORD_TRAVELS);
            return Vec::new();
        }
        let before = self.release();
        self.open = false;
        std::iter::once(failure).chain(before).collect()
    }

    /// Nothing more can come that goes before what is held.
    pub fn release(&mut self) -> Vec<Failure> {
        self.until = None;
        self.open &= self.held.is_empty();
        std::mem::take(&mut self.held)
    }

    /// What the time that has passed lets be told.
    pub fn tick(&mut self, now: Instant) -> Vec<Failure> {
        match self.until {
            Some(until) if now >= until => self.release(),
            _ => Vec::new(),
        }
    }

    pub fn deadline(&self) -> Option<Instant> {
        self.until
    }
}

/// How far the ending of a job has come.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Phase {
    Running,
    /// The ranks were asked to end.
    Asked(Instant),
    /// The ranks were killed.
    Killed(Instant),
    /// The agents were killed too: nothing is left to try.
    Abandoned,
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Action {
    Nothing,
    /// Send every rank this signal.
    Send(i32),
    /// Kill the agents themselves.
    Abandon,
}

pub struct Policy {
    keep_going: bool,
    grace: Duration,
    first: Option<Failure>,
    phase: Phase,
    /// Whether a signal to the launcher, not a failure, began the end.
    interrupted: bool,
    /// A rank of an elastic job has come to its end: what has failed before was made good.
    made_good: bool,
}

impl Policy {
    pub fn new(keep_going: bool, grace: Duration) -> Policy {
        let (first, phase) = (None, Phase::Running);
        Policy { keep_going, grace, first, phase, interrupted: false, made_good: false }
    }

    /// Nobody could go on: the next failure ends the job.
    pub fn end_at_failure(&mut self) {
        self.keep_going = false;
    }

    /// A rank of an elastic job has come to its end.
    pub fn made_good(&mut self) {
        self.made_good |= self.phase == Phase::Running;
    }

    /// A rank or a host failed. Returns what to do and whether this is the first failure.
    pub fn failed(&mut self, failure: Failure, now: Instant) -> (Action, bool) {
        let first = self.first.is_none();
        if first {
            self.first = Some(failure);
        }
        if self.phase != Phase::Running || self.keep_going {
            return (Action::Nothing, first);
        }
        self.phase = Phase::Asked(now + self.grace);
        (Action::Send(libc::SIGTERM), first)
    }

    /// The launcher got a signal that is meant for the job.
    pub fn signalled(&mut self, signal: i32, now: Instant) -> Action {
        if !matches!(signal, libc::SIGINT | libc::SIGTERM | libc::SIGHUP) {
            return Action::Send(signal);
        }
        match self.phase {
            Phase::Running => {
                self.interrupted = true;
                self.phase = Phase::Asked(now + self.grace);
                Action::Send(signal)
            }
            // Who asks again does not want to wait; the first may have been a failure's.
            Phase::Asked(_) if self.interrupted => self.kill(now),
            Phase::Asked(_) => {
                self.interrupted = true;
                Action::Send(signal)
            }
            Phase::Killed(_) => self.abandon(),
            Phase::Abandoned => Action::Nothing,
        }
    }

    fn kill(&mut self, now: Instant) -> Action {
        self.phase = Phase::Killed(now + self.grace);
        Action::Send(libc::SIGKILL)
    }

    fn abandon(&mut self) -> Action {
        self.phase = Phase::Abandoned;
        Action::Abandon
    }

    /// What the time that has passed calls for.
    pub fn tick(&mut self, now: Instant) -> Action {
        match self.phase {
            Phase::Asked(until) if now >= until => self.kill(now),
            Phase::Killed(until) if now >= until => self.abandon(),
            _ => Action::Nothing,
        }
    }

    /// When to call [`Policy::tick`] next.
    pub fn deadline(&self) -> Option<Instant> {
        match self.phase {
            Phase::Asked(until) | Phase::Killed(until) => Some(until),
            Phase::Running | Phase::Abandoned => None,
        }
    }

    pub fn is_ending(&self) -> bool {
        self.phase != Phase::Running
    }

    pub fn status(&self) -> u8 {
        match &self.first {
            Some(failure) if !self.made_good => failure.status,
            _ => 0,
        }
    }

    /// Whether the job failed in a way that a new start may mend.
    pub fn wants_restart(&self) -> bool {
        !self.interrupted && self.first.as_ref().is_some_and(|failure| !failure.lasting)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRACE: Duration = Duration::from_secs(10);

    fn failure(status: u8) -> Failure {
        Failure { what: format!("rank {status}"), status, lasting: false }
    }

    #[test]
    fn the_first_failure_ends_the_job_and_is_its_status() {
        let (mut policy, now) = (Policy::new(false, GRACE), Instant::now());
        assert_eq!(policy.status(), 0);
        assert_eq!(policy.failed(failure(7), now), (Action::Send(libc::SIGTERM), true));
        assert_eq!(policy.failed(failure(143), now), (Action::Nothing, false));
        assert_eq!((policy.status(), policy.wants_restart()), (7, true));
    }

    #[test]
    fn a_rank_that_was_killed_goes_before_those_of_other_hosts_that_missed_it() {
        let (mut tidings, now) = (Tidings::new(2), Instant::now());
        assert_eq!(tidings.heard(failure(1), false, now), []);
        assert_eq!(tidings.heard(failure(2), false, now + WORD_TRAVELS / 2), []);
        assert_eq!(tidings.deadline(), Some(now + WORD_TRAVELS));
        assert_eq!(tidings.tick(now + WORD_TRAVELS / 2), []);
        let told = tidings.heard(failure(137), true, now + WORD_TRAVELS / 2);
        assert_eq!(told, [failure(137), failure(1), failure(2)]);
        // The first is known: nobody waits any more.
        assert_eq!(tidings.heard(failure(3), false, now), [failure(3)]);
        assert_eq!(tidings.deadline(), None);
    }

    #[test]
    fn a_failure_waits_for_a_worse_one_only_a_moment_and_only_where_there_are_several_hosts() {
        let (mut tidings, now) = (Tidings::new(2), Instant::now());
        assert_eq!(tidings.heard(failure(1), false, now), []);
        assert_eq!(tidings.tick(now + WORD_TRAVELS), [failure(1)]);
        assert_eq!(tidings.heard(failure(2), false, now), [failure(2)]);
        assert_eq!(Tidings::new(1).heard(failure(1), false, now), [failure(1)]);
        let mut tidings = Tidings::new(2);
        assert_eq!(tidings.heard(failure(137), true, now), [failure(137)]);
        assert_eq!(tidings.heard(failure(1), false, now), [failure(1)], "it was told first");
    }

    #[test]
    fn time_ends_what_asking_did_not() {
        let (mut policy, now) = (Policy::new(false, GRACE), Instant::now());
        assert_eq!(policy.deadline(), None);
        policy.failed(failure(1), now);
        assert_eq!(policy.deadline(), Some(now + GRACE));
        assert_eq!(policy.tick(now + GRACE / 2), Action::Nothing);
        assert_eq!(policy.tick(now + GRACE), Action::Send(libc::SIGKILL));
        assert_eq!(policy.tick(now + GRACE), Action::Nothing);
        assert_eq!(policy.tick(now + 2 * GRACE), Action::Abandon);
        assert_eq!(policy.tick(now + 9 * GRACE), Action::Nothing);
    }

    #[test]
    fn survivors_go_on_if_asked_and_the_status_is_kept() {
        let (mut policy, now) = (Policy::new(true, GRACE), Instant::now());
        assert_eq!(policy.failed(failure(3), now), (Action::Nothing, true));
        assert_eq!(policy.failed(failure(4), now), (Action::Nothing, false));
        assert_eq!((policy.status(), policy.is_ending()), (3, false));
    }

    #[test]
    fn what_an_elastic_job_has_got_over_is_no_failure() {
        let (mut policy, now) = (Policy::new(true, GRACE), Instant::now());
        policy.failed(failure(137), now);
        assert_eq!(policy.status(), 137);
        policy.made_good();
        assert_eq!(policy.status(), 0);
        let mut policy = Policy::new(true, GRACE);
        policy.failed(failure(137), now);
        policy.signalled(libc::SIGTERM, now);
        policy.made_good();
        assert_eq!(policy.status(), 137, "who ends at a signal has not come to the end");
    }

    #[test]
    fn a_second_interrupt_kills_and_a_third_gives_up() {
        let (mut policy, now) = (Policy::new(false, GRACE), Instant::now());
        assert_eq!(policy.signalled(libc::SIGUSR1, now), Action::Send(libc::SIGUSR1));
        assert!(!policy.is_ending());
        assert_eq!(policy.signalled(libc::SIGINT, now), Action::Send(libc::SIGINT));
        assert_eq!(policy.signalled(libc::SIGINT, now), Action::Send(libc::SIGKILL));
        assert_eq!(policy.signalled(libc::SIGINT, now), Action::Abandon);
        policy.failed(failure(130), now);
        assert!(!policy.wants_restart(), "who interrupts a job does not want it again");
    }

    #[test]
    fn what_a_restart_cannot_mend_is_not_restarted() {
        let mut policy = Policy::new(false, GRACE);
        policy.failed(Failure { lasting: true, ..failure(127) }, Instant::now());
        assert!(!policy.wants_restart());
        assert!(!Policy::new(false, GRACE).wants_restart(), "nothing failed");
    }

    #[test]
    fn an_interrupt_while_a_failed_job_ends_is_passed_on_first() {
        let (mut policy, now) = (Policy::new(false, GRACE), Instant::now());
        policy.failed(failure(1), now);
        assert_eq!(policy.signalled(libc::SIGINT, now), Action::Send(libc::SIGINT));
        assert_eq!(policy.signalled(libc::SIGINT, now), Action::Send(libc::SIGKILL));
    }
}
