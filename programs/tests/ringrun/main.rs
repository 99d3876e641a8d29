//! ringrun as its users run it: variables, output, failures, signals, other hosts.
//!
//! Ranks are small shell scripts.

mod discovery;
mod job;
mod nccl;
mod remote;
#[path = "../../../tests/support/skips.rs"]
mod skips;
mod ssh;

use job::*;
use std::io::Write;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

#[test]
fn every_rank_gets_its_variables() {
    let folder = Folder::new("variables");
    let shell = folder.shell("shift; exec \"$@\"");
    let script = "echo $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $GROUP_RANK \
        $RINGCOMM_RANK/$RINGCOMM_NRANKS $RINGCOMM_LOCAL_RANK/$RINGCOMM_LOCAL_SIZE \
        $RINGCOMM_RESTART \
        $HOROVOD_RANK/$HOROVOD_SIZE $HOROVOD_LOCAL_RANK/$HOROVOD_LOCAL_SIZE \
        $HOROVOD_CROSS_RANK/$HOROVOD_CROSS_SIZE omp=$OMP_NUM_THREADS $MASTER_ADDR \
        ${RINGCOMM_ADDRESS%:*}";
    let options =
        ["-np", "3", "--hosts", "here.invalid:2,there.invalid:2", "--ssh-command", &shell];
    let result = run(&options, script).expect(0);
    assert_eq!(
        result.lines(),
        [
            "[0]<stdout>:0/3 0/2 0 0/3 0/2 0 0/3 0/2 0/2 omp=1 here.invalid here.invalid",
            "[1]<stdout>:1/3 1/2 0 1/3 1/2 0 1/3 1/2 0/1 omp=1 here.invalid here.invalid",
            "[2]<stdout>:2/3 0/1 1 2/3 0/1 0 2/3 0/1 1/2 omp= here.invalid here.invalid",
        ]
    );
}

#[test]
fn ranks_share_a_secret_a_name_and_a_port_that_no_other_job_has() {
    let script = "echo $RINGCOMM_SECRET $RINGCOMM_JOB $MASTER_ADDR $MASTER_PORT";
    let one = || {
        let result = run(&["-np", "2"], script).expect(0);
        let lines = result.lines();
        let strip = |line: &str| line.split_once(':').unwrap().1.to_string();
        assert_eq!(strip(lines[0]), strip(lines[1]));
        strip(lines[0]).split(' ').map(str::to_string).collect::<Vec<_>>()
    };
    let (first, second) = (one(), one());
    assert_eq!(first[0].len(), 64);
    assert!(first[0].chars().all(|c| c.is_ascii_hexdigit()), "{}", first[0]);
    assert_eq!(first[2], "127.0.0.1");
    assert!(first[3].parse::<u16>().unwrap() > 0);
    assert!(first[0] != second[0] && first[1] != second[1]);
}

#[test]
fn an_outer_launchers_variables_are_gone_and_forwarded_ones_are_there() {
    let mut command = command(
        &["-np", "1", "-x", "GIVEN=a b", "-x", "TAKEN", "--env", "PMI_RANK=5"],
        "echo $SLURM_PROCID-$OMPI_COMM_WORLD_RANK-$PMI_RANK-$TORCHELASTIC_RUN_ID-$SLURM_JOB_ID; \
         echo $GIVEN-$TAKEN-$RANK",
    );
    for name in ["SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "TORCHELASTIC_RUN_ID"] {
        command.env(name, "9");
    }
    command.env("SLURM_JOB_ID", "77").env("TAKEN", "c").env("RANK", "9");
    let result = finish(command.spawn().unwrap()).expect(0);
    assert_eq!(result.out, "--5--77\na b-c-0\n");
}

#[test]
fn a_job_within_a_rank_does_not_meet_where_the_outer_one_does() {
    let script = "echo meet at $RINGCOMM_ADDRESS on $RINGCOMM_HOSTID";
    let result = |options: &[&str]| {
        let mut command = command(options, script);
        command.env("RINGCOMM_RANK", "0").env("RINGCOMM_ADDRESS", "outer:1");
        command.env("RINGCOMM_HOSTID", "this");
        finish(command.spawn().unwrap()).expect(0).out
    };
    assert_eq!(result(&["-np", "1"]), "meet at on this\n");
    assert_eq!(result(&["-np", "1", "-x", "RINGCOMM_ADDRESS"]), "meet at outer:1 on this\n");
    // On another machine it has a name of its own, or none.
    let folder = Folder::new("within");
    let shell = folder.shell("shift; unset RINGCOMM_HOSTID; exec \"$@\"");
    let hosts = ["-np", "2", "-H", "a.invalid:1,b.invalid:1", "--ssh-command", &shell];
    let out = result(&hosts);
    assert_eq!(out.matches("meet at a.invalid:").count(), 2, "{out}");
    assert!(!out.contains("on this"), "{out}");
}

#[test]
fn lines_of_ranks_that_write_at_once_stay_whole() {
    // In pieces, so that a line is several writes.
    let script = "i=0; while [ $i -lt 400 ]; do printf 'rank %s ' $RANK; \
                  printf 'line %s' $i; echo ' end'; i=$((i+1)); done; printf 'no end'";
    let result = run(&["-np", "6"], script).expect(0);
    let mut next = [0; 6];
    for line in result.out.lines() {
        let (tag, text) = line.split_once("<stdout>:").expect("a prefix");
        let rank: usize = tag.trim_matches(['[', ']']).parse().unwrap();
        let expected = match next[rank] {
            400 => "no end".to_string(),
            line => format!("rank {rank} line {line} end"),
        };
        assert_eq!(text, expected);
        next[rank] += 1;
    }
    assert_eq!(next, [401; 6]);
}

#[test]
fn bytes_arrive_as_they_were_written() {
    let folder = Folder::new("bytes");
    let files = folder.0.join("logs");
    let script = r"printf 'a\000\377b\r\nc'; printf 'wrong\n' >&2";
    let options = ["-np", "11", "--output-filename", files.to_str().unwrap()];
    let mut child = command(&options, script);
    let output = child.output().unwrap();
    for rank in 0..11 {
        let file = |name: &str| std::fs::read(files.join(format!("rank.{rank:02}/{name}")));
        assert_eq!(file("stdout").unwrap(), b"a\0\xffb\r\nc");
        assert_eq!(file("stderr").unwrap(), b"wrong\n");
        let line = [format!("[{rank}]<stdout>:").as_bytes(), b"a\0\xffb\r\n"].concat();
        assert!(output.stdout.windows(line.len()).any(|window| window == line));
    }
    // What cannot be written is named.
    let nowhere = command(&["-np", "1", "--output-filename", "/proc/nope"], script);
    let said = String::from_utf8({ nowhere }.output().unwrap().stderr).unwrap();
    assert!(said.contains("--output-filename: /proc/nope/rank.0: "), "{said}");
    // Nothing is added where no prefix is wanted.
    let one = command(&["-np", "1"], script).output().unwrap();
    assert_eq!(one.stdout, b"a\0\xffb\r\nc");
    let plain = command(&["-np", "1", "--timestamp"], "echo x").output().unwrap();
    let text = String::from_utf8(plain.stdout).unwrap();
    assert!(text.starts_with("20") && text.ends_with("Z x\n"), "{text}");
}

#[test]
fn standard_input_is_rank_0s() {
    let text: String = (0..100_000).map(|line| format!("{line}\n")).collect();
    let mut child = command(&["-np", "2"], "md5sum").stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let result = finish(child).expect(0);
    let mut sum = Command::new("md5sum").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let sum = sum.as_mut().unwrap();
    sum.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let mut expected = String::new();
    std::io::Read::read_to_string(sum.stdout.as_mut().unwrap(), &mut expected).unwrap();
    sum.wait().unwrap();
    let nothing = "d41d8cd98f00b204e9800998ecf8427e  -";
    let tagged = [format!("[0]<stdout>:{}", expected.trim_end()), format!("[1]<stdout>:{nothing}")];
    assert_eq!(result.lines(), tagged);
}

#[test]
fn a_rank_that_does_not_read_its_input_holds_up_nothing() {
    let mut child =
        command(&["-np", "1"], "echo ready; sleep 1000").stdin(Stdio::piped()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    // More than every buffer on the way takes.
    let writer = std::thread::spawn(move || input.write_all(&vec![b'x'; 16 << 20]).is_err());
    let mut ready = [0; 6];
    std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut ready).unwrap();
    send(child.id(), libc::SIGTERM);
    finish(child).expect(128 + libc::SIGTERM);
    assert!(writer.join().unwrap(), "somebody read it all");
}

#[test]
fn input_that_nobody_wants_holds_up_no_writer() {
    let folder = Folder::new("unwanted");
    let script =
        format!("exec 0<&-; while [ ! -e {}/stop ]; do sleep 0.05; done", folder.0.display());
    let mut child = command(&["-np", "1"], &script).stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(&vec![b'x'; 4 << 20]).unwrap();
    std::fs::write(folder.0.join("stop"), "").unwrap();
    finish(child).expect(0);
}

#[test]
fn a_rank_starts_with_no_signal_blocked() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ringrun"));
    // No shell between: it would unblock them itself.
    command.args(["-np", "1", "grep", "SigBlk", "/proc/self/status"]).stdin(Stdio::null());
    let output = command.output().unwrap();
    assert_eq!(output.stdout, b"SigBlk:\t0000000000000000\n");
}

#[test]
fn the_first_failing_rank_ends_the_job_and_is_named() {
    let script = "[ $RANK = 1 ] && exit 7; sleep 1000";
    let result = run(&["-np", "3"], script).expect(7);
    result.says("ringrun: rank 1 (host localhost, pid ").says("exited with status 7; ending the");

    let script = "[ $RANK = 2 ] && kill -9 $$; sleep 1000";
    let result = run(&["-np", "3"], script).expect(137);
    result.says("rank 2 (host localhost, pid ").says("was killed by signal 9 (SIGKILL); ending");

    // Who ends early and well does no harm.
    let script = "[ $RANK = 0 ] || { sleep 0.3; echo done; }";
    assert_eq!(run(&["-np", "2"], script).expect(0).out, "[1]<stdout>:done\n");
}

#[test]
fn a_rank_that_was_killed_is_named_before_those_that_failed_because_of_it() {
    let folder = Folder::new("first");
    let script = format!(
        "echo $$ > {0}/part.$RANK; mv {0}/part.$RANK {0}/pid.$RANK; \
         while [ ! -e {0}/end.$RANK ]; do sleep 0.02; done; [ $RANK = 2 ] && kill -9 $$; exit 1",
        folder.0.display()
    );
    let child = command(&["-np", "3"], &script).spawn().unwrap();
    let pid = |rank: u32| folder.text(&format!("pid.{rank}")).trim().parse::<u32>().ok();
    wait_until("the ranks are there", || (0..3).all(|rank| pid(rank).is_some()));
    // All have ended when the agent looks next, in another order than they were started in.
    let agent = agent_of(child.id());
    send(agent, libc::SIGSTOP);
    wait_until("the agent is stopped", || state(agent) == 'T');
    for rank in [2, 0, 1] {
        std::fs::write(folder.0.join(format!("end.{rank}")), "").unwrap();
        wait_until("it has ended", || state(pid(rank).unwrap()) == 'Z');
    }
    send(agent, libc::SIGCONT);
    finish(child).expect(137).says("rank 2 (host localhost, pid ").says("signal 9 (SIGKILL)");
}

#[test]
fn a_rank_that_ignores_the_request_is_killed() {
    // `exec` would keep the ignored signal in sleep; the loop keeps it in the shell.
    let script = "trap '' TERM; [ $RANK = 0 ] && { sleep 0.3; exit 5; }; \
                  while :; do sleep 0.05; done";
    let result = run(&["-np", "2", "--kill-grace", "0.2"], script).expect(5);
    result.says("after 0.2 s, killing 1 rank");
}

#[test]
fn survivors_go_on_when_asked() {
    let script = "[ $RANK = 1 ] && exit 4; sleep 0.5; echo alive";
    let result = run(&["-np", "3", "--keep-going"], script).expect(4);
    assert_eq!(result.lines(), ["[0]<stdout>:alive", "[2]<stdout>:alive"]);
    result.says("rank 1 ").says("exited with status 4; the others go on");
}

#[test]
fn a_failed_job_is_started_anew() {
    let script = "echo $RINGCOMM_RESTART $RINGCOMM_SECRET; [ $RINGCOMM_RESTART = 2 ]";
    let result = run(&["-np", "1", "--max-restarts", "5"], script).expect(0);
    let lines: Vec<&str> = result.out.lines().collect();
    assert_eq!(lines.iter().map(|line| &line[..2]).collect::<Vec<_>>(), ["0 ", "1 ", "2 "]);
    assert!(lines[0][2..] != lines[1][2..] && lines[1][2..] != lines[2][2..]);
    result.says("starting the job anew (2 of 5)");

    let result = run(&["-np", "1", "--max-restarts", "2"], "echo once; exit 3").expect(3);
    assert_eq!(result.out, "once\n".repeat(3));
}

#[test]
fn signals_reach_every_rank() {
    // One that ends in a failure would end the others before they have theirs, were the job not
    // ending already.
    for (signal, name, status) in
        [(libc::SIGINT, "INT", 6), (libc::SIGTERM, "TERM", 6), (libc::SIGUSR1, "USR1", 0)]
    {
        let folder = Folder::new(name);
        let script = format!(
            "trap 'touch {0}/got.$RANK; exit {status}' {name}; touch {0}/ready.$RANK; \
             while :; do sleep 0.05; done",
            folder.0.display()
        );
        let child = command(&["-np", "2"], &script).spawn().unwrap();
        let exists = |name: &str| folder.0.join(name).exists();
        wait_until("the ranks are ready", || exists("ready.0") && exists("ready.1"));
        send(child.id(), signal);
        finish(child).expect(status);
        assert!(exists("got.0") && exists("got.1"), "{name}");
    }
}

#[test]
fn the_ranks_stop_and_go_on_with_the_launcher() {
    let mark = marker(50);
    let child = command(&["-np", "2"], &format!("sleep {mark}; exit 3")).spawn().unwrap();
    wait_until("all are there", || with_argument(&mark).len() == 2);
    let sleepers = with_argument(&mark);
    let all = |wanted: char| {
        state(child.id()) == wanted && sleepers.iter().all(|pid| state(*pid) == wanted)
    };
    send(child.id(), libc::SIGTSTP);
    wait_until("all are stopped", || all('T'));
    send(child.id(), libc::SIGCONT);
    wait_until("all go on", || all('S'));
    sleepers.iter().for_each(|pid| send(*pid, libc::SIGKILL));
    finish(child).expect(3);
}

#[test]
fn a_second_interrupt_kills() {
    let folder = Folder::new("second");
    let script = format!(
        "trap 'touch {0}/got.$RANK' INT; touch {0}/ready.$RANK; while :; do sleep 0.05; done",
        folder.0.display()
    );
    let child = command(&["-np", "2", "--kill-grace", "900"], &script).spawn().unwrap();
    let exist = |name: &str| (0..2).all(|rank| folder.0.join(format!("{name}.{rank}")).exists());
    wait_until("the ranks are ready", || exist("ready"));
    send(child.id(), libc::SIGINT);
    wait_until("the ranks have it", || exist("got"));
    send(child.id(), libc::SIGINT);
    finish(child).expect(137).says("passing signal 2 (SIGINT) on").says("killing 2 ranks");
}

/// The launcher's agent: its only child.
fn agent_of(launcher: u32) -> u32 {
    let path = format!("/proc/{launcher}/task/{launcher}/children");
    std::fs::read_to_string(path).unwrap().trim().parse().unwrap()
}

#[test]
fn nothing_outlives_a_launcher_that_is_killed() {
    let marks = [marker(0), marker(1), marker(2)];
    let child = command(&["-np", "2"], &family(&marks[0], &marks[1], &marks[2])).spawn().unwrap();
    wait_until("all are there", || marks.iter().all(|mark| with_argument(mark).len() == 2));
    send(child.id(), libc::SIGKILL);
    assert_eq!(finish(child).status, None);
    wait_until("nobody is left", || marks.iter().all(|mark| with_argument(mark).is_empty()));
}

/// The processor time that a process has used, in the kernel's hundredths of a second.
fn cpu_ticks(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let fields: Vec<&str> = stat.rsplit_once(") ")?.1.split(' ').collect();
    // The state is the first of these; a zombie has done its work.
    (fields[0] != "Z")
        .then(|| fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap())
}

#[test]
fn an_agent_without_a_launcher_waits_for_stubborn_ranks_in_peace() {
    let marks = [marker(20), marker(21)];
    // The one in another session holds the rank's outputs.
    let script = format!(
        "trap '' TERM; setsid sleep {} & while :; do echo x; sleep {} & wait; done",
        marks[1], marks[0]
    );
    let mut command = command(&["-np", "2", "--kill-grace", "3"], &script);
    let child = command.spawn().unwrap();
    wait_until("all are there", || marks.iter().all(|mark| with_argument(mark).len() == 2));
    let agent = agent_of(child.id());
    send(child.id(), libc::SIGKILL);
    let mut used = 0;
    let start = Instant::now();
    while let Some(ticks) = cpu_ticks(agent) {
        used = ticks;
        assert!(start.elapsed() < PATIENCE, "the agent does not leave");
        std::thread::sleep(Duration::from_millis(5));
    }
    // To spin through the grace would take 300 on an idle machine.
    assert!(used < 100, "{used} hundredths of a second");
    wait_until("nobody is left", || marks.iter().all(|mark| with_argument(mark).is_empty()));
    drop(finish(child));
}

#[test]
fn nothing_outlives_an_agent_that_is_killed() {
    let marks = [marker(10), marker(11), marker(12)];
    // The rank itself: what dies without anybody's help.
    let script =
        format!("sleep {} & setsid sleep {} & exec sleep {}", marks[1], marks[2], marks[0]);
    let child = command(&["-np", "2"], &script).spawn().unwrap();
    wait_until("all are there", || marks.iter().all(|mark| with_argument(mark).len() == 2));
    // Even with a launcher that can do nothing about it.
    send(child.id(), libc::SIGSTOP);
    send(agent_of(child.id()), libc::SIGKILL);
    wait_until("the ranks are dead", || with_argument(&marks[0]).is_empty());
    send(child.id(), libc::SIGCONT);
    finish(child).expect(255).says("was lost with ranks 0, 1");
    wait_until("nobody is left", || marks.iter().all(|mark| with_argument(mark).is_empty()));
}

#[test]
fn a_daemon_of_a_rank_lives_until_the_job_ends() {
    let (folder, mark) = (Folder::new("daemon"), marker(60));
    // The leader of the daemon's session ends at once, as in the usual double fork.
    let script = format!(
        "[ $RANK = 1 ] && exit 0; ( setsid sh -c 'sleep {mark} &' & ); \
         while [ ! -e {}/stop ]; do sleep 0.05; done",
        folder.0.display()
    );
    let child = command(&["-np", "2"], &script).spawn().unwrap();
    wait_until("the daemon is there", || with_argument(&mark).len() == 1);
    // A kill would come as soon as the leader is reaped, for which this is ample.
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(with_argument(&mark).len(), 1);
    std::fs::write(folder.0.join("stop"), "").unwrap();
    finish(child).expect(0);
    assert!(with_argument(&mark).is_empty());
}

#[test]
fn what_a_rank_leaves_running_ends_with_the_job() {
    let (folder, child, stray) = (Folder::new("left"), marker(30), marker(31));
    // Without the job's name, by which a launcher would know it: the agent must find it.
    let script = format!(
        "sleep {child} & env -i setsid sh -c 'touch {0}/stray.'$RANK'; exec sleep {stray}' & \
         while [ ! -e {0}/stray.$RANK ]; do sleep 0.02; done",
        folder.0.display()
    );
    run(&["-np", "2"], &script).expect(0);
    assert!(with_argument(&child).is_empty() && with_argument(&stray).is_empty());
}

#[test]
fn a_missing_program_is_told_apart_from_one_that_cannot_run() {
    let start = |words: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ringrun"));
        command.args(["-np", "2"]).args(words).stdin(Stdio::null());
        finish(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
    };
    start(&["no-such-program"]).expect(127).says("there is no program no-such-program here");
    start(&["/"]).expect(126).says("cannot run /: Permission denied");
    start(&["--wdir", "/nowhere", "sh"]).expect(126).says("no directory /nowhere");
}

#[test]
fn a_reader_that_goes_away_ends_the_job() {
    let mut child = command(&["-np", "2"], "while echo x; do :; done").spawn().unwrap();
    drop(child.stdout.take());
    finish(child).expect(128 + libc::SIGPIPE).says("nobody reads the standard output any more");
}

#[test]
fn a_reader_that_sleeps_holds_up_the_output_and_no_signal() {
    let folder = Folder::new("slow");
    // Much more than all buffers on the way are meant to take.
    let script = format!(
        "touch {0}/ready; yes xxxxxxxxxxxxxxx | head -c 33554432; touch {0}/done; sleep 1000",
        folder.0.display()
    );
    let child = command(&["-np", "2", "--kill-grace", "0.2"], &script).spawn().unwrap();
    wait_until("there is output", || folder.0.join("ready").exists());
    // Until every buffer is full nothing special happens; nobody tells when they are.
    std::thread::sleep(Duration::from_millis(1000));
    assert!(!folder.0.join("done").exists(), "somebody keeps it all in memory");
    send(child.id(), libc::SIGTERM);
    let result = finish(child);
    assert_eq!(result.status, Some(128 + libc::SIGTERM), "{}", result.err);
}

#[test]
fn bad_options_exit_with_2_and_a_suggestion() {
    for (options, wanted) in [
        (&["--hostfil", "x"][..], "'--hostfile'"),
        (&["--max-restart", "1"], "'--max-restarts'"),
        (&["-q"], "unexpected argument '-q'"),
        (&["-np", "0"], "must be at least 1"),
        (&["-np", "5", "-H", "a:2,b:2"], "the hosts have 4 slots"),
        (&["-H", "a:many"], "\"many\" is not a number of slots"),
        (&["--hostfile", "/nowhere/hosts"], "/nowhere/hosts: No such file"),
        (&["-x", "NOT_SET_ANYWHERE"], "write -x NOT_SET_ANYWHERE=VALUE"),
        (&["-x", "MASTER_PORT=1"], "use --master-port"),
    ] {
        run(options, "echo x").expect(2).says(wanted);
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_ringrun"));
    assert_eq!(command.output().unwrap().status.code(), Some(2));
}

#[test]
fn help_version_and_dry_run_start_nothing() {
    let help = run(&["--help"], "").expect(0).out;
    for text in ["-n, --np <N>", "-H, --hosts", "SLURM_PROCID", "OMP_NUM_THREADS=1", "torchrun"] {
        assert!(help.contains(text), "{text}\n{help}");
    }
    let version = run(&["--version"], "").expect(0).out;
    assert_eq!(version, format!("ringrun {}\n", env!("CARGO_PKG_VERSION")));
    let folder = Folder::new("dry");
    let hosts = folder.0.join("hosts");
    std::fs::write(&hosts, "localhost slots=1\nb slots=2 # far\n").unwrap();
    let options = ["--dry-run", "--hostfile", hosts.to_str().unwrap(), "--master-addr", "m"];
    let text = run(&options, "echo x").expect(0).out;
    for wanted in ["host localhost: here", "host b: through ssh", "MASTER_ADDR=m", "rank 2: RANK=2"]
    {
        assert!(text.contains(wanted), "{wanted}\n{text}");
    }
    assert!(text.contains("RINGCOMM_SECRET=(secret)"), "{text}");
}
