//! Elastic jobs whose hosts a program prints. Ranks say that they are there, and end when a file
//! says so; a script in the remote shell's place leads to this machine.

use crate::job::*;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command};

/// A job whose discovery program runs `script` in the folder; the folder's `hosts` is what most
/// scripts print.
struct Job {
    folder: Folder,
}

const RANK: &str = "mkdir -p ranks; echo $RINGCOMM_ELASTIC_JOIN > ranks/$RANK; \
                    while [ ! -e end ]; do sleep 0.02; done";

impl Job {
    fn new(name: &str, script: &str, hosts: &str) -> Job {
        let folder = Folder::new(name);
        let path = folder.0.join("discover");
        fs::write(&path, format!("#!/bin/sh\ncd {}\n{script}\n", folder.0.display())).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        let job = Job { folder };
        job.hosts(hosts);
        fs::create_dir(job.folder.0.join("meeting")).unwrap();
        job
    }

    /// The hosts from now on, whole at once.
    fn hosts(&self, text: &str) {
        fs::write(self.folder.0.join("new"), text).unwrap();
        fs::rename(self.folder.0.join("new"), self.folder.0.join("hosts")).unwrap();
    }

    fn touch(&self, name: &str) {
        fs::write(self.folder.0.join(name), "").unwrap();
    }

    fn command(&self, options: &[&str]) -> Command {
        let path = |name: &str| self.folder.0.join(name).to_str().unwrap().to_string();
        let (script, place) = (path("discover"), path(""));
        let own = ["--host-discovery-script", &script, "--wdir", &place];
        let mut command = command(&[&own, options].concat(), RANK);
        command.env("RINGCOMM_ELASTIC", path("meeting"));
        command
    }

    fn start(&self, options: &[&str]) -> Child {
        let child = self.command(options).spawn().unwrap();
        wait_until("the first rank is there", || self.has(0));
        self.touch("meeting/job.begun");
        child
    }

    fn has(&self, rank: usize) -> bool {
        !self.folder.text(&format!("ranks/{rank}")).is_empty()
    }

    /// The training ends.
    fn end(&self, child: Child) -> Run {
        self.touch("meeting/job.over");
        self.touch("end");
        finish(child)
    }
}

const CAT: &str = "cat hosts";

#[test]
fn ranks_come_and_go_with_the_slots() {
    let job = Job::new("slots", CAT, "localhost\n");
    let child = job.start(&["--slots-per-host", "2", "--min-np", "1", "--max-np", "3"]);
    wait_until("both first ranks are there", || job.has(1));
    job.hosts("localhost:4\n");
    wait_until("a rank has come", || job.has(2));
    assert_eq!(
        (job.folder.text("ranks/1"), job.folder.text("ranks/2")),
        ("\n".into(), "1\n".into())
    );
    job.hosts("localhost:1\n");
    let left = |rank: usize| job.folder.0.join(format!("meeting/leave.{rank}")).exists();
    wait_until("two are told to leave", || left(1) && left(2));
    assert!(!left(0) && !job.has(3), "three are the most");
    let result = job.end(child).expect(0);
    result.says("1 rank more on host localhost").says("rank 2 is to leave host localhost");
}

#[test]
fn a_program_that_fails_or_hangs_changes_nothing() {
    let mark = marker(92);
    let script = &format!(
        "[ -e hang ] && sleep {mark}; [ -e fail ] && {{ echo localhost:9; exit 1; }}; cat hosts"
    );
    let job = Job::new("failing", script, "localhost:4\n");
    let child = job.start(&["-np", "1", "--start-timeout", "1.5"]);
    for file in ["fail", "hang"] {
        job.touch(file);
        std::thread::sleep(std::time::Duration::from_secs(4));
        fs::remove_file(job.folder.0.join(file)).unwrap();
    }
    assert!(!job.has(1), "there are no new slots");
    let result = job.end(child).expect(0);
    result.says("it has failed; the hosts stay as they were");
    assert!(with_argument(&mark).is_empty(), "it is killed");
}

#[test]
fn a_host_that_never_answers_is_given_up_and_the_others_go_on() {
    let job = Job::new("silent", CAT, "localhost\n");
    let mark = marker(91);
    let shell = job.folder.shell(&format!("exec sleep {mark}"));
    let child = job.start(&["--ssh-command", &shell, "--start-timeout", "0.5"]);
    job.hosts("localhost\nother\n");
    wait_until("the host is asked", || !with_argument(&mark).is_empty());
    wait_until("it is given up", || with_argument(&mark).is_empty());
    let result = job.end(child).expect(0);
    result.says("1 rank more on host other").says("host other has not answered within 0.5 s");
}

#[test]
fn a_host_with_another_ringrun_does_not_keep_the_job() {
    let job = Job::new("version", CAT, "localhost\n");
    let program = env!("CARGO_BIN_EXE_ringrun");
    let shell = job.folder.shell(&format!(
        "{program} --agent < /dev/null | sed -u s/{}/9.9.9/; cat > /dev/null",
        env!("CARGO_PKG_VERSION")
    ));
    let child = job.start(&["--ssh-command", &shell, "--kill-grace", "1"]);
    job.hosts("localhost\nother\n");
    std::thread::sleep(std::time::Duration::from_secs(3));
    job.end(child).expect(0).says("9.9.9");
}

#[test]
fn hosts_that_do_not_come_in_time_are_told() {
    let job = Job::new("late", CAT, "localhost:1\n");
    let late = |options: &[&str]| finish(job.command(options).spawn().unwrap());
    let result = late(&["-np", "2", "--start-timeout", "0.2"]).expect(255);
    result.says("its hosts have 1 slots, and 2 ranks are needed");
    assert_eq!(late(&["--dry-run", "--min-np", "1"]).expect(0).err, "");
    for (options, text) in [
        (&["-np", "2", "--min-np", "3"][..], "-np is less than --min-np"),
        (&["-H", "a"], "leave out -H"),
        (&["--output-filename", "x"], "neither --output-filename"),
    ] {
        late(options).expect(2).says(text);
    }
}
