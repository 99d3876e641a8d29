//! Other hosts: this machine, behind a script in the remote shell's place that drops their names.

use crate::job::*;

#[test]
fn other_hosts_are_reached_without_showing_the_secret() {
    let folder = Folder::new("remote");
    let log = folder.0.join("log");
    let shell = folder
        .shell(&format!("echo \"$@\" >> {}; echo Welcome!; shift 3; exec \"$@\"", log.display()));
    let options = ["-np", "4", "-H", "a:2,me@b:2", "-p", "22", "-x", "V=1"];
    let mut command = command(&options, "echo $RINGCOMM_SECRET $V");
    command.env("RINGCOMM_SSH", &shell);
    let result = finish(command.spawn().unwrap()).expect(0);
    assert_eq!(result.lines().len(), 4);
    let secret = &result.lines()[0]["[0]<stdout>:".len()..][..64];
    assert!(result.lines().iter().all(|line| line.contains(secret) && line.ends_with(" 1")));
    let asked = folder.text("log");
    let mut asked: Vec<&str> = asked.lines().collect();
    asked.sort_unstable();
    let program = env!("CARGO_BIN_EXE_ringrun");
    assert_eq!(
        asked,
        [format!("-p 22 a {program} --agent"), format!("-p 22 me@b {program} --agent")]
    );
}

#[test]
fn the_death_of_a_remote_shell_ends_the_job() {
    let folder = Folder::new("death");
    let mark = marker(40);
    // The shell stays, as ssh does, between the launcher and the agent.
    let shell = folder.shell(&format!(
        "host=$1; shift; echo $$ > {0}/$host; \"$@\"; exit $?",
        folder.0.display()
    ));
    let options = ["-np", "3", "-H", "a:2,b:1", "--ssh-command", &shell];
    let child = command(&options, &format!("printf 'last words'; {}", family(&mark, &mark, &mark)))
        .spawn()
        .unwrap();
    wait_until("all are there", || with_argument(&mark).len() == 9);
    send(folder.text("b").trim().parse().unwrap(), libc::SIGKILL);
    let result = finish(child).expect(255);
    assert_eq!(result.lines(), [0, 1, 2].map(|rank| format!("[{rank}]<stdout>:last words")));
    result.says("host b was lost with rank 2: its remote shell was killed by signal 9 (SIGKILL)");
    wait_until("nobody is left", || with_argument(&mark).is_empty());
}

#[test]
fn a_remote_shell_that_does_not_leave_is_killed() {
    let folder = Folder::new("lingering");
    let mark = marker(70);
    let shell = folder.shell(&format!("shift; \"$@\"; exec sleep {mark} >&-"));
    let options = ["-H", "a", "--ssh-command", &shell, "--kill-grace", "0.2"];
    assert_eq!(run(&options, "echo x").expect(0).out, "[0]<stdout>:x\n");
    assert!(with_argument(&mark).is_empty());
}

#[test]
fn a_host_that_cannot_take_part_is_named_with_what_to_do() {
    let folder = Folder::new("hosts");
    for (script, wanted) in [
        ("exit 255", "it cannot be reached; try `"),
        ("exit 127", "or say where it is with --remote-path"),
        ("printf '\\000ringrun-agent 0.0.7 1\\n'; cat", "host a has ringrun 0.0.7, this is"),
        ("echo 'no more logins'", "host a says: no more logins"),
    ] {
        let shell = folder.shell(script);
        run(&["-H", "a", "--ssh-command", &shell], "echo x").expect(255).says(wanted);
    }
    let shell = folder.shell("cat");
    let options = ["-H", "a", "--ssh-command", &shell, "--start-timeout", "0.1"];
    run(&options, "echo x").expect(255).says("host a has not answered within 0.1 s");
    run(&["-H", "a", "--ssh-command", "/nowhere/ssh"], "").expect(127).says("/nowhere/ssh");
}

/// Of ports that the kernel gives nobody unless asked for them.
#[test]
fn ports_are_chosen_within_the_range_that_the_ranks_listen_in() {
    let folder = Folder::new("ports");
    let shell = folder.shell("shift; exec \"$@\"");
    let options = ["-np", "2", "-H", "a,b", "--ssh-command", &shell];
    let with = |range: &str| {
        let mut command = command(&options, "echo $MASTER_PORT ${RINGCOMM_ADDRESS##*:}");
        finish(command.env("RINGCOMM_PORT_RANGE", range).spawn().unwrap())
    };
    let taken = std::net::TcpListener::bind("0.0.0.0:17405").unwrap();
    let result = with("17402-17407").expect(0);
    for line in result.lines() {
        // While the agent of a looks, that of b may have tried the same ports.
        let ports = line.rsplit_once(':').map_or(line, |(_, ports)| ports);
        let ports: Vec<u16> = ports.split(' ').map(|port| port.parse().unwrap()).collect();
        let fits = |port: &u16| (17402..=17407).contains(port) && *port != 17405;
        assert!(ports.iter().all(fits) && ports[0] != ports[1], "{line}");
    }
    let port = taken.local_addr().unwrap().port();
    with(&format!("{port}-{port}")).expect(1).says("host a: there is no free port");
    with("20-10").expect(2).says("RINGCOMM_PORT_RANGE=\"20-10\" is not a range of ports");
}
