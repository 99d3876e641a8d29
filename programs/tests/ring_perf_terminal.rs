//! ring-perf on a terminal: a progress bar there, and nothing of it anywhere else.

use std::fs::File;
use std::io::Read;
use std::os::fd::{FromRawFd, OwnedFd};
use std::process::{Command, Stdio};
use std::ptr::{null, null_mut};

/// Both ends of a terminal: what is read here, and what a program writes to.
fn terminal() -> (File, OwnedFd) {
    let (mut reader, mut program) = (-1, -1);
    // SAFETY: room for both descriptors, which are then ours.
    unsafe {
        let made = libc::openpty(&mut reader, &mut program, null_mut(), null(), null());
        assert_eq!(made, 0, "{}", std::io::Error::last_os_error());
        (File::from_raw_fd(reader), OwnedFd::from_raw_fd(program))
    }
}

/// Three sizes with standard error as given; what came to standard output.
fn table(errors: Stdio) -> String {
    let arguments = "all_reduce -t 2 -b 8 -e 32 -n 4 -w 1 --placement out --probe 0 --budget 1";
    let mut command = Command::new(env!("CARGO_BIN_EXE_ring-perf"));
    let output = command.args(arguments.split(' ')).stderr(errors).output().expect("it starts");
    assert!(output.status.success());
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn a_terminal_shows_how_far_it_has_come() {
    let (mut reader, program) = terminal();
    let shown = std::thread::spawn(move || {
        let (mut text, mut part) = (Vec::new(), [0; 1024]);
        // An error is the end: the program's last descriptor is closed.
        while let Ok(length @ 1..) = reader.read(&mut part) {
            text.extend_from_slice(&part[..length]);
        }
        String::from_utf8(text).expect("text")
    });
    let table = table(program.into());
    assert!(!table.contains(['\r', '\x1b']), "{table:?}");
    let shown = shown.join().expect("the reader");
    // A bar is there all the time but while a row is printed, and not at the end.
    for (done, bar) in [(0, ".".repeat(30)), (1, "#".repeat(10)), (2, "#".repeat(20))] {
        assert!(shown.contains(&format!("[{bar}")), "{shown:?}");
        assert!(shown.contains(&format!("] {done}/3 ")), "{shown:?}");
    }
    let last = shown.trim_end_matches('\r');
    assert!(last.ends_with("\x1b[2K"), "{shown:?}");
}

#[test]
fn what_is_no_terminal_gets_no_bar() {
    let (mut reader, writer) = std::io::pipe().expect("a pipe");
    table(writer.into());
    let mut shown = String::new();
    reader.read_to_string(&mut shown).expect("text");
    assert_eq!(shown, "");
}
