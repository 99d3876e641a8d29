//! Noise's primitives for the simulation: random numbers of the seed, a Diffie-Hellman exchange
//! that is one addition, everything else real.

use snow::params::{CipherChoice, DHChoice, HashChoice};
use snow::resolvers::{BoxedCryptoResolver, CryptoResolver, RingResolver};
use snow::types::{Cipher, Dh, Hash, Random};
use std::cell::Cell;

thread_local! {
    static STATE: Cell<u64> = const { Cell::new(0) };
}

/// Numbers of one seed (splitmix64).
#[derive(Clone)]
pub struct Seeded(pub u64);

impl Seeded {
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.draw() % end.max(1)
    }

    pub fn chance(&mut self, of_a_hundred: u64) -> bool {
        self.below(100) < of_a_hundred
    }
}

/// Start the random numbers of this thread's handshakes.
pub fn seed(seed: u64) {
    STATE.set(seed);
}

pub fn toy() -> BoxedCryptoResolver {
    Box::new(Toy)
}

struct Toy;

impl CryptoResolver for Toy {
    fn resolve_rng(&self) -> Option<Box<dyn Random>> {
        Some(Box::new(Toy))
    }

    fn resolve_dh(&self, _: &DHChoice) -> Option<Box<dyn Dh>> {
        Some(Box::new(Addition([0; 32])))
    }

    fn resolve_hash(&self, choice: &HashChoice) -> Option<Box<dyn Hash>> {
        RingResolver.resolve_hash(choice)
    }

    fn resolve_cipher(&self, choice: &CipherChoice) -> Option<Box<dyn Cipher>> {
        RingResolver.resolve_cipher(choice)
    }
}

impl Random for Toy {
    fn try_fill_bytes(&mut self, target: &mut [u8]) -> Result<(), snow::Error> {
        let mut numbers = Seeded(STATE.get());
        target.iter_mut().for_each(|byte| *byte = numbers.draw() as u8);
        STATE.set(numbers.0);
        Ok(())
    }
}

/// Private and public key are one; the shared one is their sum.
struct Addition([u8; 32]);

impl Dh for Addition {
    fn name(&self) -> &'static str {
        "25519"
    }

    fn pub_len(&self) -> usize {
        32
    }

    fn priv_len(&self) -> usize {
        32
    }

    fn set(&mut self, key: &[u8]) {
        self.0.copy_from_slice(key);
    }

    fn generate(&mut self, random: &mut dyn Random) -> Result<(), snow::Error> {
        random.try_fill_bytes(&mut self.0)
    }

    fn pubkey(&self) -> &[u8] {
        &self.0
    }

    fn privkey(&self) -> &[u8] {
        &self.0
    }

    fn dh(&self, theirs: &[u8], out: &mut [u8]) -> Result<(), snow::Error> {
        for ((sum, mine), theirs) in out.iter_mut().zip(&self.0).zip(theirs) {
            *sum = mine.wrapping_add(*theirs);
        }
        Ok(())
    }
}
