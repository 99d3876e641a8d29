//! `--nccl`: what the ranks are to load in NCCL's place, here and on other hosts.
//!
//! `scripts/test-install` has a program that loads the real one. Here the C library stands for it,
//! which every process has anyway.

use crate::job::*;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const NAMES: &str = "echo $LD_PRELOAD $LD_LIBRARY_PATH";

/// The C library, as this process has it.
fn some_library() -> PathBuf {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let mut paths = maps.lines().filter_map(|line| line.split_whitespace().nth(5));
    paths.find(|path| path.contains("/libc.so")).expect("a C library").into()
}

/// An installation of ringrun in a folder of this test's own: the program itself, in `bin`. Below
/// target, so that a hard link to the program can be made.
fn installation(name: &str) -> Folder {
    let below = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let folder = Folder(below.join(format!("ringrun-{}-{name}", std::process::id())));
    std::fs::create_dir_all(folder.0.join("bin")).unwrap();
    std::fs::hard_link(env!("CARGO_BIN_EXE_ringrun"), folder.0.join("bin/ringrun")).unwrap();
    folder
}

/// Give an installation a library at this place; the folder that has it.
fn put_library(folder: &Folder, place: &str) -> String {
    let place = folder.0.join(place);
    std::fs::create_dir_all(&place).unwrap();
    std::os::unix::fs::symlink(some_library(), place.join("libnccl.so.2")).unwrap();
    place.to_str().unwrap().to_string()
}

/// `ringrun` of an installation, with these options, as the program that `command` would start.
fn installed(folder: &Folder, options: &[&str], script: &str) -> Command {
    let mut command = Command::new(folder.0.join("bin/ringrun"));
    command.args(options).args(["sh", "-c", script]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    for name in ["LD_PRELOAD", "LD_LIBRARY_PATH", "RINGCOMM_NCCL_LIBRARY", "RINGCOMM_SSH"] {
        command.env_remove(name);
    }
    command
}

fn variable(value: &str) -> [(&str, &str); 1] {
    [("RINGCOMM_NCCL_LIBRARY", value)]
}

fn ran(mut command: Command) -> Run {
    finish(command.spawn().unwrap())
}

#[test]
fn the_library_is_beside_ringrun_or_where_it_was_installed() {
    let folder = installation("places");
    let found = |options: &[&str]| ran(installed(&folder, options, NAMES)).expect(0).out;
    for place in ["lib64/ringcomm", "lib/ringcomm", "bin/nccl"] {
        // The later one is looked for first.
        let place = put_library(&folder, place);
        assert_eq!(found(&["--nccl", "-np", "1"]), format!("{place}/libnccl.so.2 {place}\n"));
    }
    assert_eq!(found(&["-np", "1"]), "\n", "nobody asked for it");
    let both = found(&["--nccl", "-np", "2"]);
    assert_eq!(both.matches("bin/nccl/libnccl.so.2").count(), 2, "{both}");
    // A program of the installation that is started elsewhere, by another way to it.
    let link = folder.0.join("link");
    std::os::unix::fs::symlink(folder.0.join("bin/ringrun"), &link).unwrap();
    let mut command = Command::new(link);
    command.args(["--nccl", "-np", "1", "sh", "-c", NAMES]).env_remove("RINGCOMM_NCCL_LIBRARY");
    let out = String::from_utf8(command.output().unwrap().stdout).unwrap();
    assert!(out.contains("bin/nccl/libnccl.so.2"), "{out}");
}

#[test]
fn the_variable_wins_and_what_is_preloaded_stays() {
    let folder = installation("variable");
    put_library(&folder, "bin/nccl");
    let named = put_library(&folder, "elsewhere");
    let library = some_library().to_str().unwrap().to_string();
    let with = |options: &[&str], set: &[(&str, &str)]| {
        let mut command = installed(&folder, options, NAMES);
        command.envs(set.iter().copied()).current_dir(&folder.0);
        ran(command)
    };
    let one = ["--nccl", "-np", "1"];
    let expected = format!("{named}/libnccl.so.2 {named}\n");
    let absolute = format!("{named}/libnccl.so.2");
    assert_eq!(with(&one, &variable(&absolute)).expect(0).out, expected);
    assert_eq!(with(&one, &variable("elsewhere/libnccl.so.2")).expect(0).out, expected);
    let given = format!("RINGCOMM_NCCL_LIBRARY={absolute}");
    assert_eq!(with(&["--nccl", "-np", "1", "-x", &given], &[]).expect(0).out, expected);
    let empty = with(&one, &variable("")).expect(0).out;
    assert!(empty.contains("bin/nccl"), "an empty variable is none: {empty}");
    let set = [("RINGCOMM_NCCL_LIBRARY", &*absolute), ("LD_PRELOAD", &library)];
    let out = with(&one, &[&set[..], &[("LD_LIBRARY_PATH", "/a:/b")]].concat()).expect(0).out;
    assert_eq!(out, format!("{named}/libnccl.so.2:{library} {named}:/a:/b\n"));
    let preload = format!("LD_PRELOAD={library}");
    let out = with(&["--nccl", "-np", "1", "-x", &preload], &set[..1]).expect(0).out;
    assert_eq!(out, format!("{named}/libnccl.so.2:{library} {named}\n"));
    // A job within a rank of one.
    let both = [("LD_PRELOAD", &*absolute), ("LD_LIBRARY_PATH", &*named)];
    assert_eq!(with(&one, &[&set[..1], &both[..]].concat()).expect(0).out, expected);
}

#[test]
fn who_has_no_library_is_told_where_it_was_looked_for() {
    let folder = installation("nowhere");
    let one = ["--nccl", "-np", "1"];
    let said = ran(installed(&folder, &one, NAMES)).expect(127);
    let places = ["bin/nccl/libnccl.so.2", "lib/ringcomm/libnccl.so.2", "RINGCOMM_NCCL_LIBRARY"];
    let begin = format!("{}/", folder.0.display());
    let said = said.says("rank 0 (host localhost) was not started: --nccl needs ringcomm's");
    let said = places[..2].iter().fold(said, |said, place| said.says(&format!("{begin}{place}")));
    said.says(places[2]);
    let mut command = installed(&folder, &one, NAMES);
    command.env("RINGCOMM_NCCL_LIBRARY", "/nowhere/libnccl.so.2");
    ran(command).expect(127).says("RINGCOMM_NCCL_LIBRARY names /nowhere/libnccl.so.2, which is no");
    // The loader would take it for two.
    let place = put_library(&folder, "a folder");
    let mut command = installed(&folder, &one, NAMES);
    command.env("RINGCOMM_NCCL_LIBRARY", format!("{place}/libnccl.so.2"));
    ran(command).expect(127).says("a folder/libnccl.so.2: put it where the path has no space");
}

#[test]
fn every_host_has_a_library_of_its_own() {
    let (here, there) = (installation("here"), installation("there"));
    put_library(&here, "bin/nccl");
    let place = put_library(&there, "lib/ringcomm");
    let shell = there.shell("shift; exec \"$@\"");
    let remote = there.0.join("bin/ringrun");
    let options = ["--nccl", "-np", "2", "-H", "localhost,there.invalid", "--ssh-command", &shell];
    let options = [&options[..], &["--remote-path", remote.to_str().unwrap()]].concat();
    let run = ran(installed(&here, &options, NAMES)).expect(0);
    let lines = run.lines();
    assert!(lines[0].contains("/bin/nccl/libnccl.so.2 "), "{}", lines[0]);
    assert_eq!(lines[1], format!("[1]<stdout>:{place}/libnccl.so.2 {place}"));
    std::fs::remove_file(there.0.join("lib/ringcomm/libnccl.so.2")).unwrap();
    let said = ran(installed(&here, &options, NAMES)).expect(127);
    said.says("rank 1 (host there.invalid) was not started: --nccl needs");
    // Nothing starts, and it can be seen what would.
    let dry = [&options[..], &["--dry-run"]].concat();
    let out = ran(installed(&here, &dry, NAMES)).expect(0).out;
    assert!(out.contains("LD_PRELOAD: begins with the libnccl.so.2 of each host's"), "{out}");
}

#[test]
fn horovod_and_apex_are_in_the_package_around_ringrun() {
    let folder = installation("compat");
    let with = |options: &[&str], before: &str| {
        let mut command = installed(&folder, options, "echo $PYTHONPATH");
        command.env("PYTHONPATH", before);
        ran(command)
    };
    let none = with(&["--compat", "-np", "1"], "");
    assert!(none.err.contains("--compat needs the Python package's folder"), "{}", none.err);
    none.expect(127);
    let root = folder.0.display().to_string();
    std::fs::create_dir_all(folder.0.join("compat/horovod")).unwrap();
    std::fs::write(folder.0.join("compat/horovod/__init__.py"), "").unwrap();
    let around = folder.0.parent().unwrap().display();
    let found = with(&["--compat", "-np", "1"], "/else").expect(0).out;
    assert_eq!(found, format!("{root}/compat:{around}:/else\n"));
    assert_eq!(with(&["-np", "1"], "/else").expect(0).out, "/else\n", "nobody asked for it");
}
