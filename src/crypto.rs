//! Cryptography, all of it from `ring`: one cipher, one hash, one authenticator.

use crate::sync::Mutex;
use ring::aead::{AES_128_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use ring::agreement::{EphemeralPrivateKey, UnparsedPublicKey, X25519, agree_ephemeral};
use ring::pbkdf2::{self, PBKDF2_HMAC_SHA256};
use ring::rand::SystemRandom;
use ring::{digest, hmac};
use snow::params::{CipherChoice, DHChoice, HashChoice};
use snow::resolvers::{BoxedCryptoResolver, CryptoResolver, RingResolver};
use snow::types::{Cipher, Dh, Hash, Random};
use std::num::NonZeroU32;

/// Bytes of the tag that follows what is sealed.
pub const TAG_BYTES: usize = 16;

/// A key for AES-128-GCM. Whoever seals gives every message a number that the key has not had.
pub struct Aead(Box<LessSafeKey>);

impl Aead {
    /// With the first half of a secret of a connection.
    pub fn new(key: &[u8; 32]) -> Aead {
        let key =
            UnboundKey::new(&AES_128_GCM, &key[..16]).expect("the key has the cipher's length");
        Aead(Box::new(LessSafeKey::new(key)))
    }

    fn nonce(number: u64) -> Nonce {
        let mut nonce = [0; 12];
        nonce[..8].copy_from_slice(&number.to_le_bytes());
        Nonce::assume_unique_for_key(nonce)
    }

    /// Encrypt `bytes`; the tag is also over `beside`, which stays in clear.
    pub fn seal(&self, number: u64, beside: &[u8], bytes: &mut [u8]) -> [u8; TAG_BYTES] {
        let (nonce, beside) = (Aead::nonce(number), Aad::from(beside));
        let tag = self.0.seal_in_place_separate_tag(nonce, beside, bytes);
        // A message is far below what the mode allows (64 GiB).
        tag.expect("not too long for AES-GCM").as_ref().try_into().expect("a tag's bytes")
    }

    /// Whether all is as it was sealed; the bytes are then in clear.
    pub fn open(&self, number: u64, beside: &[u8], bytes: &mut [u8], tag: &[u8]) -> bool {
        let Ok(tag) = tag.try_into() else { return false };
        let (nonce, beside) = (Aead::nonce(number), Aad::from(beside));
        self.0.open_in_place_separate_tag(nonce, beside, tag, bytes, 0..).is_ok()
    }
}

/// SHA-256 of these parts, one after the other.
pub fn sha256(parts: &[&[u8]]) -> [u8; 32] {
    let mut hash = digest::Context::new(&digest::SHA256);
    parts.iter().for_each(|part| hash.update(part));
    hash.finish().as_ref().try_into().expect("32 bytes")
}

fn keyed(key: &[u8], parts: &[&[u8]]) -> (hmac::Key, Vec<u8>) {
    (hmac::Key::new(hmac::HMAC_SHA256, key), parts.concat())
}

/// HMAC-SHA256 of these parts, one after the other.
pub fn hmac(key: &[u8], parts: &[&[u8]]) -> [u8; 32] {
    let (key, bytes) = keyed(key, parts);
    hmac::sign(&key, &bytes).as_ref().try_into().expect("32 bytes")
}

/// Whether `tag` is what [`hmac`] gives, in time that does not depend on either.
pub fn hmac_is(key: &[u8], parts: &[&[u8]], tag: &[u8]) -> bool {
    let (key, bytes) = keyed(key, parts);
    hmac::verify(&key, &bytes, tag).is_ok()
}

/// Rounds of PBKDF2 for a secret that could be guessed: a tenth of a second.
const STRETCHES: NonZeroU32 = NonZeroU32::new(600_000).unwrap();

/// A key from a secret that could be guessed, with so much work that each guess takes long.
pub fn stretched(secret: &[u8]) -> [u8; 32] {
    let mut key = [0; 32];
    pbkdf2::derive(PBKDF2_HMAC_SHA256, STRETCHES, b"ringcomm secret", secret, &mut key);
    key
}

/// What a Noise handshake is made of: snow has `ring`'s cipher and hash, but not its X25519.
pub fn noise_primitives() -> BoxedCryptoResolver {
    Box::new(NoisePrimitives)
}

struct NoisePrimitives;

impl CryptoResolver for NoisePrimitives {
    fn resolve_rng(&self) -> Option<Box<dyn Random>> {
        RingResolver.resolve_rng()
    }

    fn resolve_dh(&self, choice: &DHChoice) -> Option<Box<dyn Dh>> {
        match choice {
            DHChoice::Curve25519 => Some(Box::<EphemeralKey>::default()),
            _ => None,
        }
    }

    fn resolve_hash(&self, choice: &HashChoice) -> Option<Box<dyn Hash>> {
        RingResolver.resolve_hash(choice)
    }

    fn resolve_cipher(&self, choice: &CipherChoice) -> Option<Box<dyn Cipher>> {
        RingResolver.resolve_cipher(choice)
    }
}

/// A key for one exchange, which is all that a handshake without static keys has.
#[derive(Default)]
struct EphemeralKey {
    private: Mutex<Option<EphemeralPrivateKey>>,
    public: [u8; 32],
}

impl Dh for EphemeralKey {
    fn name(&self) -> &'static str {
        "25519"
    }

    fn pub_len(&self) -> usize {
        32
    }

    fn priv_len(&self) -> usize {
        32
    }

    fn set(&mut self, _: &[u8]) {
        unreachable!("no key of these handshakes is given");
    }

    fn generate(&mut self, _: &mut dyn Random) -> Result<(), snow::Error> {
        let private = EphemeralPrivateKey::generate(&X25519, &SystemRandom::new());
        let private = private.map_err(|_| snow::Error::Rng)?;
        let public = private.compute_public_key().map_err(|_| snow::Error::Dh)?;
        self.public.copy_from_slice(public.as_ref());
        self.private = Mutex::new(Some(private));
        Ok(())
    }

    fn pubkey(&self) -> &[u8] {
        &self.public
    }

    fn privkey(&self) -> &[u8] {
        &[]
    }

    fn dh(&self, theirs: &[u8], out: &mut [u8]) -> Result<(), snow::Error> {
        let private = self.private.lock().take();
        let theirs = UnparsedPublicKey::new(&X25519, &theirs[..32]);
        let give = |shared: &[u8]| out[..32].copy_from_slice(shared);
        agree_ephemeral(private.ok_or(snow::Error::Dh)?, &theirs, give).map_err(|_| snow::Error::Dh)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// FIPS 180-2, appendix B.1, and RFC 4231, case 2.
    #[test]
    fn hash_and_authenticator_are_the_standards() {
        let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(hex(&sha256(&[b"a", b"bc"])), abc);
        let jefe = "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843";
        let parts: [&[u8]; 2] = [b"what do ya want ", b"for nothing?"];
        assert_eq!(hex(&hmac(b"Jefe", &parts)), jefe);
        assert!(hmac_is(b"Jefe", &parts, &hmac(b"Jefe", &parts)));
        assert!(!hmac_is(b"jefe", &parts, &hmac(b"Jefe", &parts)));
    }

    /// Test case 2 of the GCM specification: a block of zeros under a key of zeros.
    #[test]
    fn the_cipher_is_the_standards() {
        let mut block = [0; 16];
        let tag = Aead::new(&[0; 32]).seal(0, &[], &mut block);
        assert_eq!(hex(&block), "0388dace60b6a392f328c2b971b2fe78");
        assert_eq!(hex(&tag), "ab6e47d42cec13bdf53a67b21257bddf");
    }

    #[test]
    fn whatever_is_altered_does_not_open() {
        let (key, beside) = (Aead::new(&[1; 32]), *b"beside");
        let mut sealed = *b"some bytes";
        let tag = key.seal(3, &beside, &mut sealed);
        let opens = |number, beside: &[u8], sealed: &[u8], tag: &[u8]| {
            let mut bytes = sealed.to_vec();
            key.open(number, beside, &mut bytes, tag) && bytes == b"some bytes"
        };
        assert!(opens(3, &beside, &sealed, &tag));
        assert!(!opens(4, &beside, &sealed, &tag) && !opens(3, b"Beside", &sealed, &tag));
        assert!(!opens(3, &beside, &sealed[1..], &tag) && !opens(3, &beside, &sealed, &tag[1..]));
        let mut other = tag;
        other[15] ^= 1;
        assert!(!opens(3, &beside, &sealed, &other));
    }
}
