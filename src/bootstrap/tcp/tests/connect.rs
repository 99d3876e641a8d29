use super::*;
use crate::bootstrap::tcp::hello::{ANYONE, Purpose};
use crate::bootstrap::tcp::stream_traits::ByteStream;
use crate::os::tcp_liveness::AckWatch;
use std::io;
use std::sync::{Arc, Mutex};

/// A listener's end of every connection that was made: what was said to it, and what it says.
#[derive(Clone, Default)]
struct Wires(Arc<Mutex<Vec<[Vec<u8>; 2]>>>);

struct Wire(Wires, usize);

impl ByteStream for Wire {
    fn receive(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let said = &mut self.0.0.lock().unwrap()[self.1][1];
        let got = bytes.len().min(said.len());
        bytes[..got].copy_from_slice(&said[..got]);
        said.drain(..got);
        if got == 0 { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(got) }
    }

    fn send(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.0.lock().unwrap()[self.1][0].extend(bytes);
        Ok(bytes.len())
    }

    fn finish(&mut self) {}
}

impl Network for Wires {
    type Stream = Wire;

    fn connect(&mut self, _: &SocketAddr) -> io::Result<Wire> {
        let mut wires = self.0.lock().unwrap();
        wires.push(Default::default());
        Ok(Wire(self.clone(), wires.len() - 1))
    }

    fn routes(&self, addresses: &[SocketAddr]) -> Vec<SocketAddr> {
        addresses.to_vec()
    }

    fn watch(&self, _: &Wire) {}

    fn enable_keepalive(&self, _: &Wire) {}

    fn is_silent(&self, _: &Wire, _: &mut AckWatch) -> bool {
        false
    }
}

/// Let a listener read what it was told over the connection, and answer.
fn answer(wires: &Wires, wire: usize, listener: &mut Handshake) {
    let [heard, said] = &mut wires.0.lock().unwrap()[wire];
    let wanted = listener.wanted();
    listener.feed(&heard.drain(..wanted).collect::<Vec<_>>()).unwrap();
    said.extend(listener.outgoing());
    listener.sent(listener.outgoing().len());
}

#[test]
fn a_listener_that_has_our_proof_is_not_given_up_for_another_address() {
    let secret = SharedSecret::new(&UniqueId::generate().unwrap());
    let to: [SocketAddr; 2] = ["192.0.2.1:1".parse().unwrap(), "192.0.2.2:1".parse().unwrap()];
    let (purpose, rank) = (Purpose::Control, 1);
    let greeting = Hello { purpose, rank, to: ANYONE, nranks: 2, detail: 0, note: 0 };
    let (mut wires, mut now) = (Wires::default(), Instant::now());
    let mut dial = Connecting::new(secret.clone(), &to, greeting, now, now + 60 * ATTEMPT);
    assert!(dial.advance(now, &mut wires).unwrap().is_none());
    // Nobody answers at the first address.
    now += ATTEMPT;
    assert!(dial.advance(now, &mut wires).unwrap().is_none());
    assert_eq!(wires.0.lock().unwrap().len(), 2);
    // The second has our proof, and its welcome is late.
    let mut listener = Handshake::listener(&secret).unwrap();
    answer(&wires, 1, &mut listener);
    assert!(dial.advance(now, &mut wires).unwrap().is_none());
    for _ in 0..10 {
        now += ATTEMPT;
        assert!(dial.next_deadline() > now, "it has nothing to do until the welcome comes");
        assert!(dial.advance(now, &mut wires).unwrap().is_none());
    }
    assert_eq!(wires.0.lock().unwrap().len(), 2);
    answer(&wires, 1, &mut listener);
    assert!(dial.advance(now, &mut wires).unwrap().is_some());
}

/// A network in which some addresses answer nothing, and the others take what is said.
struct Parted(Wires, Vec<SocketAddr>, usize);

/// Without a number: being connected.
struct Way(Option<Wire>);

impl ByteStream for Way {
    fn receive(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.0.as_mut().map_or(Err(io::ErrorKind::WouldBlock.into()), |wire| wire.receive(bytes))
    }

    fn send(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.as_mut().map_or(Err(io::ErrorKind::WouldBlock.into()), |wire| wire.send(bytes))
    }

    fn finish(&mut self) {}
}

impl Network for Parted {
    type Stream = Way;

    fn connect(&mut self, to: &SocketAddr) -> io::Result<Way> {
        let is_silent = self.1.contains(to);
        self.2 += 1;
        Ok(Way((!is_silent).then(|| self.0.connect(to)).transpose()?))
    }

    fn watch(&self, _: &Way) {}

    fn enable_keepalive(&self, _: &Way) {}

    fn is_silent(&self, _: &Way, _: &mut AckWatch) -> bool {
        false
    }
}

/// When a dial to these addresses ends, of which some answer nothing, in a minute at most.
fn ends(to: &[&str], silent: &[&str], was_open: bool) -> Option<Duration> {
    let addresses = |list: &[&str]| list.iter().map(|at| at.parse().unwrap()).collect::<Vec<_>>();
    let secret = SharedSecret::new(&UniqueId::generate().unwrap());
    let (purpose, rank) = (Purpose::Data, 1);
    let greeting = Hello { purpose, rank, to: 0, nranks: 2, detail: 0, note: 0 };
    let (begin, mut network) = (Instant::now(), Parted(Wires::default(), addresses(silent), 0));
    let dial = Connecting::new(secret, &addresses(to), greeting, begin, begin + 100 * ATTEMPT);
    let mut dial = if was_open { dial.fail_if_refused() } else { dial };
    let mut now = begin;
    while now < begin + 60 * ATTEMPT {
        match dial.advance(now, &mut network) {
            Err(_) => return Some(now - begin),
            Ok(arrival) => assert!(arrival.is_none(), "nobody says anything"),
        }
        now = dial.next_deadline().max(now + Duration::from_millis(1));
    }
    None
}

#[test]
fn where_nobody_answers_a_dial_ends_and_where_a_process_is_stopped_it_goes_on() {
    let (one, two) = ("192.0.2.1:1", "192.0.2.2:1");
    assert_eq!(ends(&[one], &[one], true), Some(SILENCE));
    assert_eq!(ends(&[one, two], &[one, two], true), Some(SILENCE));
    assert_eq!(ends(&[one, two], &[one], true), None);
    assert_eq!(ends(&[one], &[], true), None);
    // A listener that may not be open yet is waited for.
    assert_eq!(ends(&[one], &[one], false), None);
}

#[test]
fn who_answers_nothing_is_asked_anew_when_it_is_time_and_no_later() {
    let secret = SharedSecret::new(&UniqueId::generate().unwrap());
    let to: [SocketAddr; 1] = ["192.0.2.1:1".parse().unwrap()];
    let (purpose, rank) = (Purpose::Data, 1);
    let greeting = Hello { purpose, rank, to: 0, nranks: 2, detail: 0, note: 0 };
    let (begin, mut network) = (Instant::now(), Parted(Wires::default(), to.to_vec(), 0));
    let dial = Connecting::new(secret, &to, greeting, begin, begin + 100 * ATTEMPT);
    let mut dial = dial.fail_if_refused();
    assert!(dial.advance(begin, &mut network).unwrap().is_none());
    assert_eq!(dial.next_deadline(), begin + ATTEMPT, "nothing arrives that would wake anybody");
    assert!(dial.advance(begin + ATTEMPT, &mut network).unwrap().is_none());
    assert_eq!(network.2, 2, "the first attempt is given up for the next");
    assert_eq!(dial.streams().count(), 1);
}

/// A network in which somebody takes what is said on the first connection, which then ends in that
/// way, and nobody is there any more.
struct Fading(Option<i32>);

/// Of the first: how it ends, and whether it has been listened to.
struct Fade(Option<i32>, bool);

impl ByteStream for Fade {
    fn receive(&mut self, _: &mut [u8]) -> io::Result<usize> {
        let is_over = std::mem::replace(&mut self.1, true);
        let end = self.0.filter(|_| is_over).map(io::Error::from_raw_os_error);
        Err(end.unwrap_or(io::ErrorKind::WouldBlock.into()))
    }

    fn send(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.is_some() { Ok(bytes.len()) } else { Err(io::ErrorKind::WouldBlock.into()) }
    }

    fn finish(&mut self) {}
}

impl Network for Fading {
    type Stream = Fade;

    fn connect(&mut self, _: &SocketAddr) -> io::Result<Fade> {
        Ok(Fade(self.0.take(), false))
    }

    fn watch(&self, _: &Fade) {}

    fn enable_keepalive(&self, _: &Fade) {}

    fn is_silent(&self, _: &Fade, _: &mut AckWatch) -> bool {
        false
    }
}

#[test]
fn a_host_that_falls_silent_once_it_has_answered_is_not_waited_for() {
    let secret = SharedSecret::new(&UniqueId::generate().unwrap());
    let to: [SocketAddr; 1] = ["192.0.2.1:1".parse().unwrap()];
    let (purpose, rank) = (Purpose::Control, 1);
    let greeting = Hello { purpose, rank, to: 0, nranks: 2, detail: 0, note: 0 };
    // The kernel has tried for seconds, or the connection was cut before.
    for (end, rest) in [(libc::ETIMEDOUT, LAST_TRY), (libc::ECONNRESET, FIRST_PAUSE + SILENCE)] {
        let (begin, mut network) = (Instant::now(), Fading(Some(end)));
        let (secret, greeting) = (secret.clone(), greeting.clone());
        let dial = Connecting::new(secret, &to, greeting, begin, begin + 100 * ATTEMPT);
        let mut dial = dial.fail_if_refused();
        assert!(dial.advance(begin, &mut network).unwrap().is_none());
        let mut now = begin + 8 * ATTEMPT;
        while let Ok(arrival) = dial.advance(now, &mut network) {
            assert!(arrival.is_none(), "nobody says anything");
            now = dial.next_deadline();
        }
        assert_eq!(now, begin + 8 * ATTEMPT + rest);
        assert!(dial.is_silent(now));
    }
}

/// A network in which the listener at one address hangs up on whoever has spoken, and no other
/// answers.
struct Rude(SocketAddr);

/// Whether it is that listener's.
struct Line(bool);

impl ByteStream for Line {
    fn receive(&mut self, _: &mut [u8]) -> io::Result<usize> {
        if self.0 { Ok(0) } else { Err(io::ErrorKind::WouldBlock.into()) }
    }

    fn send(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0 { Ok(bytes.len()) } else { Err(io::ErrorKind::WouldBlock.into()) }
    }

    fn finish(&mut self) {}
}

impl Network for Rude {
    type Stream = Line;

    fn interface_to(&self, to: &SocketAddr) -> Option<String> {
        Some(format!("eth{}", to.port()))
    }

    fn connect(&mut self, to: &SocketAddr) -> io::Result<Line> {
        Ok(Line(*to == self.0))
    }

    fn watch(&self, _: &Line) {}

    fn enable_keepalive(&self, _: &Line) {}

    fn is_silent(&self, _: &Line, _: &mut AckWatch) -> bool {
        false
    }
}

/// The error of a dial for a purpose to these addresses, of which one hangs up.
fn complaint(purpose: Purpose, to: &[&str], rude: &str) -> String {
    let to: Vec<SocketAddr> = to.iter().map(|at| at.parse().unwrap()).collect();
    let secret = SharedSecret::new(&UniqueId::generate().unwrap());
    let greeting = Hello { purpose, rank: 1, to: ROOT, nranks: 2, detail: 0, note: 0 };
    let (mut now, mut network) = (Instant::now(), Rude(rude.parse().unwrap()));
    let mut dial = Connecting::new(secret, &to, greeting, now, now + 10 * ATTEMPT);
    loop {
        if let Err(error) = dial.advance(now, &mut network) {
            return error.to_string();
        }
        now = dial.next_deadline();
    }
}

#[test]
fn who_is_hung_up_on_is_told_that_it_may_be_the_secret() {
    let (one, two) = ("192.0.2.1:1", "192.0.2.2:1");
    for to in [&[one][..], &[one, two], &[two, one]] {
        let text = complaint(Purpose::Meet, to, one);
        assert!(text.contains("192.0.2.1:1 was reached and hung up"), "{text}");
        assert!(text.contains("RINGCOMM_SECRET") && text.contains("the root"), "{text}");
    }
    let text = complaint(Purpose::Meet, &[two], one);
    assert!(!text.contains("RINGCOMM_SECRET"), "{text}");
    assert!(text.contains("by eth1; if the hosts have another network in common"), "{text}");
    assert!(text.contains("RINGCOMM_SOCKET_IFNAME"), "{text}");
    // Who has met the others has their secret.
    for purpose in [Purpose::Control, Purpose::Data] {
        let text = complaint(purpose, &[one], one);
        assert!(text.contains("192.0.2.1:1 was reached and hung up"), "{text}");
        assert!(!text.contains("RINGCOMM_SECRET"), "{text}");
    }
}

/// As where a host has networks that lead nowhere, and one that leads to the other host.
#[test]
fn networks_that_lead_nowhere_cost_little() {
    let silent: Vec<SocketAddr> =
        (1..8).map(|last| SocketAddr::from(([192, 0, 2, last], 1))).collect();
    let to = [&silent[..], &["198.51.100.1:1".parse().unwrap()]].concat();
    for was_open in [false, true] {
        let secret = SharedSecret::new(&UniqueId::generate().unwrap());
        let (purpose, rank) = (Purpose::Meet, 1);
        let greeting = Hello { purpose, rank, to: ROOT, nranks: 2, detail: 0, note: 0 };
        let (begin, mut network) = (Instant::now(), Parted(Wires::default(), silent.clone(), 0));
        let dial = Connecting::new(secret, &to, greeting, begin, begin + 100 * ATTEMPT);
        let mut dial = if was_open { dial.fail_if_refused() } else { dial };
        let mut now = begin;
        assert!(dial.advance(now, &mut network).unwrap().is_none());
        while network.0.0.lock().unwrap().is_empty() {
            now = dial.next_deadline();
            assert!(dial.advance(now, &mut network).unwrap().is_none());
        }
        assert_eq!(now - begin, 7 * HEAD_START);
        // Who has answered is not given up so soon: it may be far away, or busy.
        assert!(dial.advance(now, &mut network).unwrap().is_none());
        assert!(dial.streams().map(|(stream, _)| stream.0.is_some()).eq([true]));
        assert!(dial.next_deadline() >= begin + 7 * HEAD_START + ATTEMPT);
    }
}

/// A network whose answers take a while.
struct Far(Wires, Arc<Mutex<Instant>>, Duration);

/// A connection, when it is made, and what time it is.
struct Delayed(Wire, Instant, Arc<Mutex<Instant>>);

impl Delayed {
    fn made(&mut self) -> io::Result<&mut Wire> {
        let is_made = *self.2.lock().unwrap() >= self.1;
        if is_made { Ok(&mut self.0) } else { Err(io::ErrorKind::WouldBlock.into()) }
    }
}

impl ByteStream for Delayed {
    fn receive(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.made()?.receive(bytes)
    }

    fn send(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.made()?.send(bytes)
    }

    fn finish(&mut self) {}
}

impl Network for Far {
    type Stream = Delayed;

    fn connect(&mut self, to: &SocketAddr) -> io::Result<Delayed> {
        let made = *self.1.lock().unwrap() + self.2;
        Ok(Delayed(self.0.connect(to)?, made, self.1.clone()))
    }

    fn watch(&self, _: &Delayed) {}

    fn enable_keepalive(&self, _: &Delayed) {}

    fn is_silent(&self, _: &Delayed, _: &mut AckWatch) -> bool {
        false
    }
}

/// Attempts go on while others begin: the first that is answered goes through, and the listeners of
/// the others hear nothing.
#[test]
fn far_hosts_are_reached_though_all_their_addresses_are_tried_at_once() {
    let secret = SharedSecret::new(&UniqueId::generate().unwrap());
    let to: Vec<SocketAddr> = (1..5).map(|last| SocketAddr::from(([192, 0, 2, last], 1))).collect();
    let greeting =
        Hello { purpose: Purpose::Meet, rank: 1, to: ROOT, nranks: 2, detail: 0, note: 0 };
    let begin = Instant::now();
    let (clock, far) = (Arc::new(Mutex::new(begin)), Duration::from_millis(300));
    let mut network = Far(Wires::default(), clock.clone(), far);
    let mut dial = Connecting::new(secret, &to, greeting, begin, begin + 100 * ATTEMPT);
    let mut now = begin;
    while now < begin + far {
        assert!(dial.advance(now, &mut network).unwrap().is_none());
        now = dial.next_deadline().min(begin + far);
        *clock.lock().unwrap() = now;
    }
    assert_eq!(dial.streams().count(), to.len());
    assert!(dial.advance(now, &mut network).unwrap().is_none());
    assert_eq!(dial.streams().count(), 1);
    let wires = network.0.0.lock().unwrap();
    assert_eq!(wires.len(), to.len(), "nobody is asked twice");
    assert!(wires.iter().map(|[said, _]| !said.is_empty()).eq([true, false, false, false]));
}

#[test]
fn the_kernel_says_by_which_interface_an_address_is_reached() {
    let to = SocketAddr::from(([127, 0, 0, 1], 1));
    let own = crate::bootstrap::tcp::interface::interfaces().unwrap();
    let own = own.into_iter().find(|one| one.address.ip() == to.ip()).map(|one| one.name);
    assert!(own.is_some() && OsNetwork.interface_to(&to) == own, "{own:?}");
}
