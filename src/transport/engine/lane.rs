//! A peer's lane of an engine, as its connection sees it: what is said over the sockets before any
//! message, the keys, and the engine behind it.

use super::{LaneToken, Seals, SharedEngine, TOKEN_BYTES, WHOSE_BYTES};
use crate::config::Protection;
use crate::crypto::Aead;
use crate::error::{Error, Result};
use crate::fork;
use crate::transport::tcp::{Inbound, MOST_GREETING, Outbound, SocketKeys};
use rustix::rand::{GetRandomFlags, getrandom};
use std::sync::Arc;

pub struct Lane {
    engine: Arc<SharedEngine>,
    peer: usize,
    seals: Seals,
    /// What the peer is told over every socket; the first byte says whether that one's keys are
    /// the lane's.
    greeting: Vec<u8>,
    /// The lower rank of the two says whose keys these are.
    chooses_keys: bool,
    has_keys: bool,
    is_open: bool,
    /// The engine has what it needs of both halves.
    is_lent: bool,
    /// It receives into blocks that it is lent beforehand.
    posts_receives: bool,
    /// The process it was made in: a forked child has no part in it.
    born: u32,
}

impl Lane {
    /// The lane of a rank to a peer.
    pub fn new(
        engine: Arc<SharedEngine>,
        (rank, peer): (usize, usize),
        protection: Protection,
    ) -> Result<Lane> {
        let mut theirs = LaneToken::default();
        let (whose, secret) = theirs.split_at_mut(WHOSE_BYTES);
        whose.copy_from_slice(&(peer as u32).to_le_bytes());
        getrandom(secret, GetRandomFlags::empty()).map_err(|error| Error::System {
            what: "asking for random bytes".into(),
            errno: error.raw_os_error(),
        })?;
        let (address, posts_receives) = {
            let mut engine = engine.lock()?;
            (engine.expect(peer, theirs)?, engine.posts_receives())
        };
        let greeting = [&[0], &theirs[..], &address].concat();
        if greeting.len() > MOST_GREETING {
            return Err(Error::usage(format!(
                "the network engine's address has {} bytes, and {MOST_GREETING} at most are told \
                 to peers; let it use fewer devices, as with UCX_NET_DEVICES",
                address.len()
            )));
        }
        let seals = Seals { protection, ..Seals::default() };
        let (chooses_keys, has_keys, is_open) = (rank < peer, false, false);
        let (is_lent, born) = (!posts_receives, fork::generation());
        Ok(Lane {
            engine,
            peer,
            seals,
            greeting,
            chooses_keys,
            has_keys,
            is_open,
            is_lent,
            posts_receives,
            born,
        })
    }

    /// What to say over a socket before all messages.
    pub fn greeting(&mut self, keys: &SocketKeys) -> &[u8] {
        let is_chosen = self.chooses_keys && !self.has_keys;
        if is_chosen {
            self.take_keys(keys);
        }
        self.greeting[0] = u8::from(is_chosen);
        &self.greeting
    }

    fn take_keys(&mut self, keys: &SocketKeys) {
        self.has_keys = true;
        if self.seals.protection == Protection::Encrypted {
            self.seals.seals = Some(Aead::new(&keys.send));
            self.seals.opens = Some(Aead::new(&keys.receive));
        }
    }

    pub fn is_open(&self) -> bool {
        self.is_open
    }

    /// Open it, if the peer's first words over a socket with such keys are all that it takes.
    pub fn open(&mut self, words: &[u8], keys: &SocketKeys) -> std::result::Result<(), String> {
        let words = words.split_first().and_then(|(is_chosen, words)| {
            let (mine, address) = words.split_first_chunk::<TOKEN_BYTES>()?;
            Some((*is_chosen == 1, mine, address))
        });
        let Some((is_chosen, mine, address)) = words else {
            return Err("its first words are none of an engine's".into());
        };
        if is_chosen && !self.chooses_keys {
            self.take_keys(keys);
        }
        if !self.has_keys || self.is_open {
            return Ok(());
        }
        let opened = self.engine.lock().and_then(|mut it| it.open(self.peer, address, *mine));
        opened.map_err(|why| why.to_string())?;
        self.is_open = true;
        Ok(())
    }

    /// Whether the engine receives into blocks that it is lent beforehand.
    pub fn posts_receives(&self) -> bool {
        self.posts_receives
    }

    /// Whether the engine still lacks what it needs of both halves.
    pub fn lacks_blocks(&self) -> bool {
        self.is_open && !self.is_lent
    }

    /// Lend the engine what it needs of both halves, if it is to be had now.
    pub fn lend(&mut self, outbound: &mut Outbound, inbound: &mut Inbound) {
        if let Some(mut engine) = self.engine.try_lock() {
            engine.lend(self.peer, outbound, inbound);
            self.is_lent = true;
        }
    }

    /// Whether the engine works between both ends; see [`NetEngine::hears`].
    pub fn hears(&self) -> bool {
        self.is_open && self.engine.try_lock().is_some_and(|mut engine| engine.hears(self.peer))
    }

    /// Send on what is posted.
    pub fn write(&mut self, outbound: &mut Outbound) -> std::result::Result<(), String> {
        match self.engine.try_lock().filter(|_| self.is_open) {
            Some(mut engine) => engine.write(self.peer, outbound, &self.seals),
            None => Ok(()),
        }
    }

    /// Hear of what is sent, and send nothing more.
    pub fn settle(&mut self, outbound: &mut Outbound) {
        if let Some(mut engine) = self.engine.try_lock().filter(|_| self.is_open) {
            engine.settle(self.peer, outbound);
        }
    }

    /// Take in what has come.
    pub fn read(&mut self, inbound: &mut Inbound) -> std::result::Result<(), String> {
        if !self.is_open {
            return Ok(());
        }
        match self.engine.try_lock() {
            Some(mut engine) => engine.read(self.peer, inbound, &self.seals),
            None => Ok(()),
        }
    }

    /// Whether the peer's engine has all that was sent.
    pub fn is_delivered(&self) -> bool {
        let asked = || self.engine.try_lock().is_some_and(|mut it| it.is_delivered(self.peer));
        !self.is_open || asked()
    }

    /// End it; whether the connection's slots are free now.
    pub fn close(&mut self) -> bool {
        self.is_open = false;
        // In a forked child the engine is the parent's.
        self.born == fork::generation()
            && self.engine.lock().is_ok_and(|mut engine| engine.close(self.peer))
    }
}
