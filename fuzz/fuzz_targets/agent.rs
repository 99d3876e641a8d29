//! Anything may come through the pipes between ringrun's launcher and its agents, in any pieces: it
//! is refused, or is messages that are written and read to the same. A rank's output keeps its
//! bytes.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[allow(dead_code, reason = "the program's other parts are its users")]
#[path = "../../programs/ringrun/agent"]
mod agent {
    pub mod children;
    pub mod environment;
    pub mod output_lines;
    pub mod status_dir;
}
#[allow(dead_code, reason = "the program's other parts are its users")]
#[path = "../../programs/ringrun/placement/mod.rs"]
mod placement;
#[allow(dead_code, reason = "the program's other parts are its users")]
#[path = "../../programs/ringrun/protocol"]
mod protocol {
    pub mod frame;
    pub mod messages;
}
mod support;

use agent::output_lines;
use protocol::frame::Inbox;
use protocol::messages::{ToAgent, ToLauncher};
use support::Input;

fn read(body: &[u8]) {
    // A frame's length stands before its body.
    if let Ok(message) = ToAgent::parse(body) {
        assert_eq!(ToAgent::parse(&message.frame()[4..]).as_ref(), Ok(&message));
    }
    if let Ok(message) = ToLauncher::parse(body) {
        assert_eq!(ToLauncher::parse(&message.frame()[4..]).as_ref(), Ok(&message));
    }
}

/// Every frame that is whole.
fn read_all(inbox: &mut Inbox) -> Result<(), String> {
    while let Some(body) = inbox.next()? {
        read(body);
    }
    Ok(())
}

fuzz_target!(|data: &[u8]| {
    let mut input = Input(data);
    let (mut inbox, mut lines) = (Inbox::default(), output_lines::Lines::default());
    let (mut pushed, mut written) = (Vec::new(), Vec::new());
    let Some(mode) = input.byte() else { return };
    let mut greeted = mode & 1 == 0;
    // Pieces of so many bytes, as a pipe may give them.
    while let Some(length) = input.byte() {
        let piece = input.some(length.into());
        pushed.extend_from_slice(piece);
        lines.push(piece, &mut |line| written.extend_from_slice(line));
        inbox.push(piece);
        greeted |= inbox.greeting().is_some();
        if greeted && read_all(&mut inbox).is_err() {
            return;
        }
        assert!(inbox.rest().len() <= pushed.len());
    }
    lines.finish(&mut |line| written.extend_from_slice(line));
    // Only the last line may have been given the end that it lacked.
    assert!(written == pushed || written.split_last() == Some((&b'\n', &pushed[..])));
});
