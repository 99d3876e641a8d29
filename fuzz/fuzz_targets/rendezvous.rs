//! A stranger sends anything to a live coordinator: it proves nothing, and the ranks meet.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ringcomm::bootstrap::{Contribution, UniqueId, exchange, process_token, rendezvous_name};
use std::io::Write;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::time::{Duration, Instant};

fuzz_target!(|data: &[u8]| {
    let id = &UniqueId::generate().unwrap();
    let meet = |rank: usize| {
        let process = process_token().unwrap();
        let mine = Contribution { payload: vec![rank as u8], process, fds: Vec::new() };
        exchange(id, rank, 2, mine, Instant::now() + Duration::from_secs(20))
    };
    let address = SocketAddr::from_abstract_name(rendezvous_name(id)).unwrap();
    std::thread::scope(|scope| {
        let first = scope.spawn(move || meet(0));
        let mut stranger = loop {
            match UnixStream::connect_addr(&address) {
                Ok(stream) => break stream,
                Err(_) => std::thread::yield_now(),
            }
        };
        // The coordinator may hang up before it has all been written.
        let _ = stranger.write_all(data);
        let second = meet(1);
        for members in [first.join().unwrap(), second] {
            assert_eq!(members.unwrap().len(), 2);
        }
    });
});
