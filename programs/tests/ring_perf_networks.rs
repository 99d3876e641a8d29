//! ring-perf and ringrun over network engines: they say which one it is.

#[path = "../../tests/support/fixture_plugin.rs"]
mod fixture_plugin;

use fixture_plugin::FixturePlugin;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

/// Run a program with these arguments and variables; its standard output and standard error.
fn run(program: &str, line: &str, variables: &[(&str, &str)]) -> (String, String) {
    let mut command = Command::new(program);
    command.args(line.split(' ')).env_remove("RINGCOMM_NET").env_remove("NCCL_NET_PLUGIN");
    let output = command.envs(variables.iter().copied()).output().expect("it starts");
    let [said, errors] =
        [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    assert!(output.status.success(), "{line}: {said}{errors}");
    (said, errors)
}

const RING_PERF: &str = env!("CARGO_BIN_EXE_ring-perf");
const SMALL: &str = "-b 8 -e 1K -f 128 -n 3 -w 1 --explain";

#[test]
fn explanations_name_the_engine_its_devices_and_its_speed() {
    let plugin = FixturePlugin { devices: 2, ..FixturePlugin::new(12) }.path();
    let line = format!("all_reduce --tcp --procs 3 --net plugin:{plugin} {SMALL}");
    let (said, _) = run(RING_PERF, &line, &[]);
    let name = "plugin fixture v12 (libnccl-net-fixture.so)";
    assert!(said.contains(&format!("over net/plugin ({name} (")), "{said}");
    assert!(said.contains("200 Gbit/s)"), "two of 100 Gbit/s: {said}");
    let (messages, _) = run(RING_PERF, &line.replace("all_reduce", "send_recv"), &[]);
    assert!(messages.contains(&format!("direct over net/plugin ({name} (")), "{messages}");
    assert!(said.contains(&format!("# transport: plugin:{plugin} over loopback")), "{said}");
}

#[test]
fn tcp_is_taken_where_an_engine_is_slower_and_nothing_was_asked_for() {
    let plugin = FixturePlugin::with_faults(12, "late=3").path();
    let variables = [("NCCL_NET_PLUGIN", plugin.as_str()), ("RINGCOMM_DEBUG", "WARN")];
    let line = format!("all_reduce --tcp --procs 3 {SMALL}");
    let (said, errors) = run(RING_PERF, &line, &variables);
    assert!(said.contains(" over net/tcp, "), "{said}");
    let measured = "messages between hosts go over tcp: 8 B take ";
    assert!(errors.contains(measured) && errors.contains("over plugin fixture v12 ("), "{errors}");
}

#[test]
fn a_check_of_hosts_names_the_engine() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    // This machine, which counts as another host under each name.
    let shell = folder.join(format!("shell-{}", std::process::id()));
    let script = "#!/bin/sh\nexport RINGCOMM_HOSTID=$1\nshift\nexec \"$@\"\n";
    std::fs::write(&shell, script).unwrap();
    std::fs::set_permissions(&shell, Permissions::from_mode(0o700)).unwrap();
    let plugin = FixturePlugin::new(11).path();
    let line = format!(
        "--check -np 2 -H a:1,b:1 --master-addr 127.0.0.1 --ssh-command {} \
         -x RINGCOMM_SOCKET_IFNAME=lo -x RINGCOMM_NET=plugin:{plugin}",
        shell.display()
    );
    let (said, _) = run(env!("CARGO_BIN_EXE_ringrun"), &line, &[]);
    std::fs::remove_file(&shell).unwrap();
    assert!(said.contains("2 ranks, every pair talks"), "{said}");
    assert!(said.contains("  between hosts: plugin fixture v11 ("), "{said}");
}
