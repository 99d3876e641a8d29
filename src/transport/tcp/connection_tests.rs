//! A connection over sockets that end, and over those that are damaged.

use super::super::SocketKeys;
use super::super::frame::Frame;
use super::*;
use crate::config::Protection;
use crate::transport::network::Lengths;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;

/// A connection of two data sockets, and the other ends of both.
fn connection() -> (TcpConnection, [TcpStream; 2]) {
    connection_of()
}

fn connection_of<const SOCKETS: usize>() -> (TcpConnection, [TcpStream; SOCKETS]) {
    let geometry = FifoShape { depth: 4, slot_bytes: 64 };
    let settings = Settings {
        geometry,
        steps: Lengths { cut: 64, whole: 0 },
        messages: Lengths { cut: 64, whole: 0 },
        protection: Protection::Clear,
        data_sockets: 2,
    };
    let mut connection = TcpConnection::new(settings, None, false).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let ends = [(); SOCKETS].map(|()| {
        let end = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let socket = OwnedFd::from(listener.accept().unwrap().0);
        let keys = SocketKeys { send: [1; 32], receive: [2; 32] };
        connection.add_socket(NewDataSocket { peer: 1, socket, keys });
        end
    });
    (connection, ends)
}

fn message(position: u64) -> [u8; super::super::frame::FRAME_BYTES] {
    Frame { position, ..Frame::default() }.encode()
}

fn until(connection: &mut TcpConnection, is_done: impl Fn(&mut TcpConnection) -> bool) {
    let started = Instant::now();
    while !is_done(connection) {
        assert!(started.elapsed() < Duration::from_secs(60), "nothing happens any more");
    }
}

#[test]
fn what_came_before_the_end_of_a_socket_is_read_from_the_others() {
    let (mut connection, [mut first, mut second]) = connection();
    second.write_all(&message(0)).unwrap();
    first.write_all(&message(1)).unwrap();
    drop(first);
    for _ in 0..2 {
        until(&mut connection, |connection| connection.peek().is_some());
        connection.free();
    }
    until(&mut connection, |connection| connection.peek().is_none() && connection.is_broken());
}

#[test]
fn a_peer_that_lives_and_has_ended_one_socket_may_still_send_over_the_other() {
    let (mut connection, [first, mut second]) = connection();
    // No time passes.
    let now = Instant::now();
    drop(first);
    until(&mut connection, |connection| connection.peek().is_none() && connection.is_broken());
    connection.explained();
    assert!(connection.breach(now).is_none(), "the other data_socket is open");
    second.write_all(&message(0)).unwrap();
    until(&mut connection, |connection| connection.peek().is_some());
    connection.free();
    drop(second);
    until(&mut connection, |connection| {
        connection.peek().is_none() && connection.breach(now).is_some()
    });
}

#[test]
fn a_peer_that_comes_again_and_again_gets_no_more_sockets_than_there_can_be() {
    let (mut connection, ends) = connection_of::<40>();
    let mut ends = ends.into_iter();
    let mut first = ends.next().unwrap();
    for mut surplus in &ends.as_slice()[MOST_SOCKETS - 1..] {
        surplus.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        assert_eq!(surplus.read(&mut [0]).expect("an end"), 0, "it was hung up on");
    }
    let now = Instant::now();
    drop(ends);
    until(&mut connection, |connection| {
        connection.peek().is_none()
            && connection.ended.count_ones() as usize == connection.data_sockets.len() - 1
    });
    connection.explained();
    assert!(connection.breach(now).is_none(), "the first data_socket is open");
    first.write_all(&message(0)).unwrap();
    until(&mut connection, |connection| connection.peek().is_some());
}

#[test]
fn sockets_end_when_all_of_them_have_delivered() {
    let (connection, [_first, second]) = connection();
    // The kernels of both ends hold less than this.
    let bytes = vec![0; 64 << 20];
    let data_socket = &connection.data_sockets[0];
    let sent = data_socket.send_unframed(&bytes).unwrap();
    assert!(sent > 0 && !connection.is_delivered());
    connection.end();
    second.set_nonblocking(true).unwrap();
    let error = (&second).read(&mut [0]).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock, "the other data_socket has not ended");
}

#[test]
fn a_socket_that_ends_within_a_message_breaks_the_connection() {
    let (mut connection, [mut first, _second]) = connection();
    first.write_all(&message(0)[..9]).unwrap();
    drop(first);
    until(&mut connection, |connection| connection.peek().is_none() && connection.is_broken());
}
