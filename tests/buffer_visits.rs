//! A rank that gives up returns only when no peer uses its buffers any more.
#![allow(unsafe_code)]

use ringcomm::communicator::{Call, Communicator};
use ringcomm::config::Config;
use ringcomm::plan::Collective;
use ringcomm::types::DataType;
use std::thread::{scope, sleep};
use std::time::Duration;

/// Long enough that an abort can strike while the peer copies.
const BYTES: usize = 64 << 20;
const SENT: u8 = 1;
const REUSED: u8 = 2;

/// Aborts the root `delay` after the start; how much the leaf copied, and whether it saw reuse.
fn broadcast_and_abort(delay: Duration) -> (usize, bool) {
    let config = Config { algorithm: Some("oneshot".into()), ..Config::default() };
    let ranks = Communicator::init_all(2, &config).unwrap();
    let (root, leaf) = (&ranks[0], &ranks[1]);
    let (mut input, mut output) = (vec![SENT; BYTES], vec![0u8; BYTES]);
    let call = |send: *const u8, recv: *mut u8| Call {
        send,
        recv,
        count: BYTES,
        ..Call::new(Collective::Broadcast, DataType::Uint8)
    };
    scope(|scope| {
        let sends = scope.spawn(|| {
            let buffer = input.as_mut_ptr();
            // SAFETY: in place on the root, for as many bytes as the buffer has.
            let outcome = unsafe { root.run(&call(buffer, buffer)) };
            input.fill(REUSED);
            outcome
        });
        // SAFETY: the output has as many bytes.
        let receives =
            scope.spawn(|| unsafe { leaf.run(&call(std::ptr::null(), output.as_mut_ptr())) });
        sleep(delay);
        root.abort();
        let _ = sends.join().unwrap();
        let _ = receives.join().unwrap();
    });
    let copied = output.iter().filter(|byte| **byte != 0).count();
    (copied, output.contains(&REUSED))
}

#[test]
fn an_aborted_rank_keeps_its_buffer_until_its_visitor_has_gone() {
    let mut copied = 0;
    for round in 0..30 {
        let (bytes, reused) = broadcast_and_abort(Duration::from_micros(200 * (round + 1)));
        assert!(
            !reused,
            "round {round}: the leaf read the root's buffer after the root's call ended"
        );
        copied += bytes;
    }
    assert!(copied > 0, "no abort struck a copy");
}
