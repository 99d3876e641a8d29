//! Network engines keep the contract of transports, too. Where UCX's library is not there, this
//! says so.

use super::conformance::{Network, Patience, keeps_the_contract, messages, stamp, transfer};
use super::plugins::{OF_TOKEN, through};
use super::skips::skip;
use super::tcp::{Tcp, ends};
use proptest::prelude::*;
use ringcomm::config::Protection;
use ringcomm::transport::engine::ucx::engine::UcxEngine;
use ringcomm::transport::engine::ucx::library::ucp;
use ringcomm::transport::engine::{NetEngine, SharedEngine};
use ringcomm::transport::network::Endpoint;
use ringcomm::transport::tcp::TcpEndpoint;
use std::sync::Arc;
use std::time::Duration;

/// UCX over its own TCP: there is no other device, and memory that hosts do not share is not for
/// what is between hosts.
fn ucx(nranks: usize) -> Option<Box<dyn NetEngine>> {
    // SAFETY: tests of this file set the same, before the library reads it.
    unsafe { std::env::set_var("UCX_TLS", "tcp,self") };
    // Only where there is none, or too old a one, there is nothing to test.
    ucp().is_ok().then(|| Box::new(UcxEngine::new(nranks).unwrap()) as Box<dyn NetEngine>)
}

/// What makes the engine of each rank among so many.
pub type MakeEngine = Box<dyn Fn(usize) -> Option<Box<dyn NetEngine>>>;

/// An engine beside sockets.
pub struct Beside {
    pub sockets: Tcp,
    pub name: String,
    pub make: MakeEngine,
}

/// Give each endpoint an engine that carries its messages, and goes on between calls.
pub fn with_engines<const N: usize>(
    endpoints: [TcpEndpoint; N],
    make: &MakeEngine,
) -> [Box<dyn Endpoint>; N] {
    endpoints.map(|endpoint| {
        let engine = make(N).expect("it was there before");
        let engine = Arc::new(SharedEngine::new(engine).unwrap());
        engine.serve(|| {}).unwrap();
        Box::new(endpoint.with_engine(engine, true)) as Box<dyn Endpoint>
    })
}

/// Wait until all lanes are open: messages go over the sockets before.
pub fn open_lanes(ranks: &mut [Box<dyn Endpoint>]) {
    let nranks = ranks.len();
    Patience::LONG.until(|| {
        let mut are_open = true;
        for (number, rank) in ranks.iter_mut().enumerate() {
            let peers = (0..nranks).filter(|peer| *peer != number);
            peers.for_each(|peer| rank.connection(peer).flush());
            are_open &= rank.engine().expect("it was given").0.lanes == nranks - 1;
        }
        are_open.then_some(())
    });
}

impl Beside {
    fn ranks<const N: usize>(&self) -> [Box<dyn Endpoint>; N] {
        let mut ranks = with_engines(self.sockets.endpoints(), &self.make);
        open_lanes(&mut ranks);
        ranks
    }
}

impl Network for Beside {
    fn name(&self) -> String {
        format!("{} beside {}", self.name, self.sockets.name())
    }

    fn ranks(&self) -> [Box<dyn Endpoint>; 2] {
        Beside::ranks(self)
    }

    fn three_ranks(&self) -> [Box<dyn Endpoint>; 3] {
        Beside::ranks(self)
    }
}

fn over_ucx(sockets: Tcp) -> Beside {
    Beside { sockets, name: "UCX".into(), make: Box::new(ucx) }
}

#[test]
fn ucx_keeps_the_contract_of_transports() {
    if ucx(2).is_none() {
        return skip(ucx_keeps_the_contract_of_transports, "no UCX");
    }
    for protection in Protection::ALL {
        for sockets in [1, 3] {
            keeps_the_contract(&over_ucx(Tcp(protection, sockets)), Patience::LONG);
        }
    }
}

/// Send some messages from the first to the second rank, numbered from `first` on.
fn some(ranks: &mut [Box<dyn Endpoint>; 2]) {
    let lengths = [0, 1, 500, 1000];
    let messages: Vec<_> = (0..40).map(|at| (lengths[at % 4], at % 3 == 0, at % 2 == 0)).collect();
    transfer(Patience::LONG, ranks, &messages);
}

/// As ranks do that find out which is faster: over sockets, over the engine, and over the one that
/// they take, of which each rank hears at a moment of its own.
pub fn moves_to_and_fro(make: MakeEngine) {
    for protection in Protection::ALL {
        let mut ranks = with_engines(Tcp(protection, 2).endpoints(), &make);
        let sent = |ranks: &[Box<dyn Endpoint>; 2]| ranks[0].engine().map(|(info, _)| info.sent);
        open_lanes(&mut ranks);
        ranks.iter_mut().for_each(|rank| rank.use_engine(false));
        some(&mut ranks);
        assert_eq!(sent(&ranks), Some(0), "over sockets");
        ranks[0].use_engine(true);
        some(&mut ranks);
        assert_eq!(sent(&ranks), Some(40), "over the engine, to a rank that uses sockets");
        ranks[0].use_engine(false);
        some(&mut ranks);
        assert_eq!(sent(&ranks), Some(40), "over sockets again");
        // Once more, and closed as soon as all has come: the engine may not have said so yet.
        ranks[0].use_engine(true);
        some(&mut ranks);
        ranks[0].close_engine();
        some(&mut ranks);
        ranks[1].close_engine();
        some(&mut ranks);
        assert!(ranks[0].engine().is_none());
    }
}

#[test]
fn messages_move_between_sockets_and_ucx() {
    match ucx(2) {
        Some(_) => moves_to_and_fro(Box::new(ucx)),
        None => skip(messages_move_between_sockets_and_ucx, "no UCX"),
    }
}

#[test]
fn what_comes_over_ucx_without_the_token_is_dropped() {
    if ucx(2).is_none() {
        return skip(what_comes_over_ucx_without_the_token_is_dropped, "no UCX");
    }
    let make: MakeEngine = Box::new(ucx);
    let mut ranks = with_engines(ends(vec![through(OF_TOKEN)], Protection::Clear), &make);
    open_lanes(&mut ranks);
    // Rank 1 knows rank 0 by the wrong token, and so speaks to it as a stranger.
    let [receiver, sender] = &mut ranks;
    let message = [1; 100];
    Patience::LONG.until(|| {
        // SAFETY: what goes over an engine is copied.
        unsafe { sender.connection(0).send_from(&stamp(0), message.as_ptr(), message.len()) };
        sender.posted(0);
        sender.flush();
        (sender.engine()?.0.sent > 0).then_some(())
    });
    for _ in 0..100 {
        assert!(receiver.connection(1).peek().is_none(), "it was taken");
        std::thread::sleep(Duration::from_millis(2));
    }
    // The other way the tokens are right.
    // SAFETY: as above.
    unsafe { receiver.connection(1).send_from(&stamp(0), message.as_ptr(), message.len()) };
    receiver.posted(1);
    Patience::LONG.until(|| {
        receiver.flush();
        sender.connection(0).peek().map(|_| ())
    });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn every_message_arrives_once_in_order_unchanged_over_ucx(
        messages in messages(1024),
        sockets in 1usize..4,
        protection in prop::sample::select(Protection::ALL.to_vec()),
    ) {
        if ucx(2).is_some() {
            let network = over_ucx(Tcp(protection, sockets));
            transfer(Patience::LONG, &mut network.ranks(), &messages);
        }
    }
}
