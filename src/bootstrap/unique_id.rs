//! The unique id: 128 bytes that lead the ranks of one communicator together.
//!
//! Its 32-byte secret is the only credential in the library: everything a rank proves, and every
//! name it meets the others under, is an HMAC-SHA256 of it under a label of its own.

use super::addresses::best_few;
use super::process::random;
use crate::crypto;
use crate::error::{Error, Result};
use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::ops::Range;

const MAGIC: [u8; 8] = *b"ringcomm";
const VERSION: u16 = 2;
/// Only ranks of the machine that made the id can meet; the address area is zero.
const THIS_MACHINE_ONLY: u16 = 1;
/// Ranks meet at one of the addresses in the address area.
const NETWORK: u16 = 2;

const VERSION_AT: Range<usize> = 8..10;
const FLAGS_AT: Range<usize> = 10..12;
const SECRET_AT: Range<usize> = 12..44;
const NONCE_AT: Range<usize> = 44..60;
/// Room for a network rendezvous: places, best first, then zeroes. See [`place`].
const ADDRESS_AT: Range<usize> = 60..120;
const AREA: usize = ADDRESS_AT.end - ADDRESS_AT.start;
/// Bytes of one address: family (4, 6; 0 for none), a zero, port, the IP, scope.
const ADDRESS_BYTES: usize = 24;
/// Addresses that an id carries at most: so many of IPv4, or three of IPv6, or some of both.
pub(super) const MOST_ADDRESSES: usize = 8;
const CHECKSUM_AT: Range<usize> = 120..128;

/// The 128 bytes that lead the ranks of one communicator together, a 32-byte secret among them.
#[derive(Clone)]
pub struct UniqueId {
    bytes: [u8; 128],
    /// How often it was derived. It does not travel: who has an id from elsewhere has a first one.
    epoch: u32,
}

impl UniqueId {
    /// A new id, different from every other.
    pub fn generate() -> Result<UniqueId> {
        let mut drawn = [0; SECRET_AT.end - SECRET_AT.start + NONCE_AT.end - NONCE_AT.start];
        random(&mut drawn)?;
        let (secret, nonce) = drawn.split_at(SECRET_AT.len());
        Ok(UniqueId::assemble(THIS_MACHINE_ONLY, secret, nonce, &[0; 60]))
    }

    /// A new id whose ranks meet over the network at `addresses`, best first; as many travel as
    /// there is room for, of both families where there are both.
    pub fn at(addresses: &[SocketAddr]) -> Result<UniqueId> {
        Ok(UniqueId::generate()?.moved_to(addresses))
    }

    /// The id of a secret that the ranks share already, for ranks that meet at `addresses`.
    /// The addresses are not part of what is proved: ranks may know the place by different ones.
    pub fn from_secret(secret: &[u8], label: &[u8], addresses: &[SocketAddr]) -> UniqueId {
        let blank = UniqueId::assemble(THIS_MACHINE_ONLY, &[0; 32], &[0; 16], &[0; 60]);
        let key = blank.mac("shared secret", &[secret]);
        let keyed = UniqueId::assemble(THIS_MACHINE_ONLY, &key, &[0; 16], &[0; 60]);
        UniqueId { epoch: 0, ..keyed.derive_at(label, addresses) }
    }

    /// As [`UniqueId::derive`], for ranks that meet at other addresses.
    pub fn derive_at(&self, label: &[u8], addresses: &[SocketAddr]) -> UniqueId {
        self.derive(label).moved_to(addresses)
    }

    /// The same secret, for ranks that meet at `addresses`: over the network, unless it is empty.
    pub(super) fn moved_to(&self, addresses: &[SocketAddr]) -> UniqueId {
        let (mut places, mut port) = (Vec::with_capacity(AREA), 0);
        let told = best_few(addresses, MOST_ADDRESSES);
        for (at, address) in told.iter().enumerate() {
            let place = place(address, port);
            // The last may be the only one of its family.
            let (last, others) = told.split_last().expect("there is this one");
            let is_only = others.iter().all(|other| other.is_ipv4() != last.is_ipv4());
            let kept = match is_only && at < others.len() {
                true => self::place(last, address.port()).len(),
                false => 0,
            };
            if places.len() + place.len() + kept <= AREA {
                places.extend(place);
                port = address.port();
            }
        }
        places.resize(AREA, 0);
        let area = places;
        let flags = if addresses.is_empty() { THIS_MACHINE_ONLY } else { NETWORK };
        let moved = UniqueId::assemble(flags, &self.bytes[SECRET_AT], &self.bytes[NONCE_AT], &area);
        UniqueId { epoch: self.epoch, ..moved }
    }

    /// Where the ranks meet over the network, best first; empty if they share a machine.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        let (mut rest, mut port, mut found) = (&self.bytes[ADDRESS_AT], 0, Vec::new());
        while let Some(address) = next_place(&mut rest, &mut port) {
            found.push(address);
        }
        found
    }

    /// Whether the address area says what the flags say, in the one way to write it.
    fn has_consistent_area(&self, flags: u16) -> bool {
        let area = &self.bytes[ADDRESS_AT];
        if flags == THIS_MACHINE_ONLY {
            return area.iter().all(|byte| *byte == 0);
        }
        let addresses = self.addresses();
        !addresses.is_empty() && self.moved_to(&addresses).bytes[ADDRESS_AT] == *area
    }

    fn assemble(flags: u16, secret: &[u8], nonce: &[u8], address: &[u8]) -> UniqueId {
        let mut bytes = [0; 128];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[VERSION_AT].copy_from_slice(&VERSION.to_le_bytes());
        bytes[FLAGS_AT].copy_from_slice(&flags.to_le_bytes());
        bytes[SECRET_AT].copy_from_slice(secret);
        bytes[NONCE_AT].copy_from_slice(nonce);
        bytes[ADDRESS_AT].copy_from_slice(address);
        let checksum = checksum(&bytes);
        bytes[CHECKSUM_AT].copy_from_slice(&checksum);
        UniqueId { bytes, epoch: 0 }
    }

    /// An id that travelled as bytes; refused with the reason if it cannot be one.
    pub fn from_bytes(bytes: &[u8; 128]) -> Result<UniqueId> {
        let hint = "pass all 128 bytes that ringGetUniqueId gave, unchanged, to every rank";
        if bytes[..8] != MAGIC {
            return Err(Error::argument(format!("these bytes are not a unique id; {hint}")));
        }
        let version = u16::from_le_bytes([bytes[8], bytes[9]]);
        if version != VERSION {
            return Err(Error::argument(format!(
                "the unique id has version {version}, this library reads version {VERSION}; \
                 use the same ringcomm on every rank"
            )));
        }
        if bytes[CHECKSUM_AT] != checksum(bytes) {
            return Err(Error::argument(format!("the unique id was damaged on its way; {hint}")));
        }
        let flags = u16::from_le_bytes([bytes[10], bytes[11]]);
        if flags != THIS_MACHINE_ONLY && flags != NETWORK {
            return Err(Error::argument(format!(
                "the unique id has flags {flags:#x}, which this library does not know; \
                 use the same ringcomm on every rank"
            )));
        }
        let id = UniqueId { bytes: *bytes, epoch: 0 };
        if !id.has_consistent_area(flags) {
            return Err(Error::argument(format!("the unique id holds no valid address; {hint}")));
        }
        Ok(id)
    }

    pub fn as_bytes(&self) -> &[u8; 128] {
        &self.bytes
    }

    /// The id of a communicator that is made from this one: every rank that gives the same label
    /// gets the same id, and nobody without this id's secret can.
    pub fn derive(&self, label: &[u8]) -> UniqueId {
        let secret = self.mac("derived secret", &[label]);
        let nonce = self.mac("derived nonce", &[label]);
        let flags = u16::from_le_bytes([self.bytes[10], self.bytes[11]]);
        let area = &self.bytes[ADDRESS_AT];
        let derived = UniqueId::assemble(flags, &secret, &nonce[..NONCE_AT.len()], area);
        UniqueId { epoch: self.epoch.wrapping_add(1), ..derived }
    }

    /// How often this id was derived: what all names, keys and proofs under it depend on as well.
    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    /// The authenticator of `parts` under this id's secret and a label for its use. Every part is
    /// preceded by its length, so that no two lists of parts read the same.
    pub(super) fn mac(&self, purpose: &str, parts: &[&[u8]]) -> [u8; 32] {
        crypto::hmac(&self.bytes[SECRET_AT], &[&self.message(purpose, parts)])
    }

    /// Whether `tag` is the authenticator of `parts`, in time that does not depend on either.
    pub(super) fn verify(&self, purpose: &str, parts: &[&[u8]], tag: &[u8; 32]) -> bool {
        crypto::hmac_is(&self.bytes[SECRET_AT], &[&self.message(purpose, parts)], tag)
    }

    fn message(&self, purpose: &str, parts: &[&[u8]]) -> Vec<u8> {
        let (nonce, epoch) = (&self.bytes[NONCE_AT], self.epoch.to_le_bytes());
        let mut message = Vec::new();
        for part in [purpose.as_bytes(), nonce, &epoch].iter().chain(parts) {
            message.extend((part.len() as u64).to_le_bytes());
            message.extend(*part);
        }
        message
    }
}

/// What a place in an id begins with: a port of its own (else it is that of the place before), and
/// an IPv4 address, an IPv6 address, or one with a scope.
const PORT: u8 = 1;
const V4: u8 = 4;
const V6: u8 = 6;
const V6_SCOPED: u8 = 7;

/// An address as a place behind others, of which the last has this port.
fn place(address: &SocketAddr, port: u16) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(ADDRESS_BYTES);
    if address.port() != port {
        bytes.push(PORT);
        bytes.extend(address.port().to_le_bytes());
    }
    match address {
        SocketAddr::V4(v4) => {
            bytes.push(V4);
            bytes.extend(v4.ip().octets());
        }
        SocketAddr::V6(v6) if v6.scope_id() == 0 => {
            bytes.push(V6);
            bytes.extend(v6.ip().octets());
        }
        SocketAddr::V6(v6) => {
            bytes.push(V6_SCOPED);
            bytes.extend(v6.ip().octets());
            bytes.extend(v6.scope_id().to_le_bytes());
        }
    }
    bytes
}

/// The next place, if another one follows that can be read.
fn next_place(rest: &mut &[u8], port: &mut u16) -> Option<SocketAddr> {
    let mut kind = *rest.split_off_first()?;
    if kind == PORT {
        *port = u16::from_le_bytes(rest.split_off(..2)?.try_into().ok()?);
        kind = *rest.split_off_first()?;
    }
    match kind {
        V4 => {
            let ip: [u8; 4] = rest.split_off(..4)?.try_into().ok()?;
            Some(SocketAddr::new(IpAddr::from(ip), *port))
        }
        V6 | V6_SCOPED => {
            let ip: [u8; 16] = rest.split_off(..16)?.try_into().ok()?;
            let scope = match kind {
                V6 => 0,
                _ => u32::from_le_bytes(rest.split_off(..4)?.try_into().ok()?),
            };
            Some(SocketAddr::V6(SocketAddrV6::new(Ipv6Addr::from(ip), *port, 0, scope)))
        }
        _ => None,
    }
}

fn checksum(bytes: &[u8; 128]) -> [u8; 8] {
    let digest = crypto::sha256(&[&bytes[..CHECKSUM_AT.start]]);
    digest[..8].try_into().expect("eight of thirty-two bytes")
}

/// One address as 24 bytes, little endian.
pub(super) fn encode_address(address: &SocketAddr) -> [u8; ADDRESS_BYTES] {
    let mut bytes = [0; ADDRESS_BYTES];
    bytes[2..4].copy_from_slice(&address.port().to_le_bytes());
    match address {
        SocketAddr::V4(v4) => {
            bytes[0] = 4;
            bytes[4..8].copy_from_slice(&v4.ip().octets());
        }
        SocketAddr::V6(v6) => {
            bytes[0] = 6;
            bytes[4..20].copy_from_slice(&v6.ip().octets());
            bytes[20..].copy_from_slice(&v6.scope_id().to_le_bytes());
        }
    }
    bytes
}

/// The address in 24 bytes, `None` for 24 zeroes.
pub(super) fn decode_address(
    bytes: &[u8],
) -> std::result::Result<Option<SocketAddr>, &'static str> {
    let bytes: &[u8; ADDRESS_BYTES] = bytes.try_into().map_err(|_| "an address cut short")?;
    let port = u16::from_le_bytes([bytes[2], bytes[3]]);
    let address = match bytes[0] {
        0 => None,
        4 => {
            let ip: [u8; 4] = bytes[4..8].try_into().expect("four bytes");
            Some(SocketAddr::new(IpAddr::from(ip), port))
        }
        6 => {
            let ip: [u8; 16] = bytes[4..20].try_into().expect("sixteen bytes");
            let scope = u32::from_le_bytes(bytes[20..].try_into().expect("four bytes"));
            Some(SocketAddr::V6(SocketAddrV6::new(Ipv6Addr::from(ip), port, 0, scope)))
        }
        _ => return Err("an address of unknown family"),
    };
    // There is one way to write an address.
    let same = address.map_or([0; ADDRESS_BYTES], |address| encode_address(&address)) == *bytes;
    if same { Ok(address) } else { Err("an address with bytes that mean nothing") }
}

impl PartialEq for UniqueId {
    /// In constant time: the bytes hold a secret.
    fn eq(&self, other: &UniqueId) -> bool {
        self.bytes.iter().zip(&other.bytes).fold(0, |differ, (a, b)| differ | (a ^ b)) == 0
    }
}

impl Eq for UniqueId {}

impl fmt::Debug for UniqueId {
    /// A fingerprint that tells ids apart; never the secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tag = self.mac("fingerprint", &[]);
        write!(f, "UniqueId({:02x}{:02x}{:02x}{:02x})", tag[0], tag[1], tag[2], tag[3])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_id_survives_its_bytes_and_differs_from_the_next() {
        let id = UniqueId::generate().unwrap();
        assert_eq!(UniqueId::from_bytes(id.as_bytes()).unwrap(), id);
        assert_ne!(UniqueId::generate().unwrap(), id);
    }

    #[test]
    fn garbage_is_named() {
        let good = *UniqueId::generate().unwrap().as_bytes();
        let refused = |change: &dyn Fn(&mut [u8; 128])| {
            let mut bytes = good;
            change(&mut bytes);
            UniqueId::from_bytes(&bytes).unwrap_err().to_string()
        };
        assert!(refused(&|b| b.fill(0)).contains("not a unique id"));
        assert!(refused(&|b| b[8] = 9).contains("version 9"));
        assert!(refused(&|b| b[20] ^= 1).contains("damaged"));
        let later = UniqueId::assemble(4, &[1; 32], &[2; 16], &[0; 60]);
        let error = UniqueId::from_bytes(later.as_bytes()).unwrap_err().to_string();
        assert!(error.contains("flags 0x4"), "{error}");
    }

    #[test]
    fn derived_ids_follow_the_label_and_the_secret() {
        let (one, two) = (UniqueId::generate().unwrap(), UniqueId::generate().unwrap());
        assert_eq!(one.derive(b"split 1"), one.derive(b"split 1"));
        assert_ne!(one.derive(b"split 1"), one.derive(b"split 2"));
        assert_ne!(one.derive(b"split 1"), two.derive(b"split 1"));
        UniqueId::from_bytes(one.derive(b"").as_bytes()).unwrap();
    }

    #[test]
    fn addresses_travel_in_the_id() {
        let addresses: [SocketAddr; 2] =
            ["10.1.2.3:4000".parse().unwrap(), "[fe80::1%7]:4000".parse().unwrap()];
        let id = UniqueId::at(&addresses).unwrap();
        assert_eq!(id.addresses(), addresses);
        assert_eq!(UniqueId::from_bytes(id.as_bytes()).unwrap().addresses(), addresses);
        assert_eq!(id.derive(b"split").addresses(), addresses);
        let moved = id.derive_at(b"split", &addresses[1..]);
        assert_eq!(moved.addresses(), addresses[1..]);
        assert_eq!(moved.mac("x", &[]), id.derive(b"split").mac("x", &[]));
        assert_eq!(UniqueId::generate().unwrap().addresses(), []);
        let (one, two) = (&addresses[..1], &addresses[1..]);
        let shared = |secret: &[u8], label: &[u8]| UniqueId::from_secret(secret, label, one);
        assert_eq!(shared(b"s", b"a"), shared(b"s", b"a"));
        assert_ne!(shared(b"s", b"a"), shared(b"t", b"a"));
        assert_ne!(shared(b"s", b"a"), shared(b"s", b"b"));
        let elsewhere = UniqueId::from_secret(b"s", b"a", two);
        assert_eq!(shared(b"s", b"a").mac("x", &[]), elsewhere.mac("x", &[]));
    }

    #[test]
    fn of_many_addresses_the_best_of_each_family_travel() {
        let told = |all: &[&str]| {
            let all: Vec<SocketAddr> = all.iter().map(|one| one.parse().unwrap()).collect();
            let told = UniqueId::at(&all).unwrap().addresses();
            told.iter().map(|one| one.ip().to_string()).collect::<Vec<_>>()
        };
        let (first, second, v6) = ("10.0.0.1:9", "10.0.0.2:9", "[2001:db8::1]:9");
        assert_eq!(told(&[first, v6, second]), ["10.0.0.1", "2001:db8::1", "10.0.0.2"]);
        let many: Vec<String> = (1..20).map(|last| format!("10.0.0.{last}:9")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        let ips = |count: usize| many[..count].iter().map(|one| one.trim_end_matches(":9"));
        assert_eq!(told(&many), Vec::from_iter(ips(MOST_ADDRESSES)));
        let both = [&many[..], &[v6]].concat();
        assert_eq!(told(&both), Vec::from_iter(ips(MOST_ADDRESSES - 1).chain(["2001:db8::1"])));
        let v6s: Vec<String> = (1..20).map(|last| format!("[2001:db8::{last}]:9")).collect();
        let v6s: Vec<&str> = v6s.iter().map(String::as_str).collect();
        assert_eq!(told(&v6s).len(), 3);
        let of_both = told(&[&v6s[..], &[first]].concat());
        assert!(of_both.len() == 4 && of_both.contains(&"10.0.0.1".to_string()), "{of_both:?}");
        // Each has a port of its own.
        assert_eq!(told(&["10.0.0.1:9", "10.0.0.2:8", "10.0.0.3:9"]).len(), 3);
    }

    #[test]
    fn an_area_that_contradicts_the_flags_is_refused() {
        let address: SocketAddr = "10.1.2.3:4000".parse().unwrap();
        let mut area = [0; 60];
        let refused = |flags, area: &[u8]| {
            let id = UniqueId::assemble(flags, &[1; 32], &[2; 16], area);
            UniqueId::from_bytes(id.as_bytes()).is_err()
        };
        assert!(refused(NETWORK, &area));
        let bytes = place(&address, 0);
        area[..bytes.len()].copy_from_slice(&bytes);
        assert!(!refused(NETWORK, &area) && refused(THIS_MACHINE_ONLY, &area));
        for wrong in [8, 12, 23, 59] {
            let mut area = area;
            area[wrong] = 1;
            assert!(refused(NETWORK, &area), "byte {wrong}");
        }
    }

    #[test]
    fn debug_prints_nothing_of_the_id() {
        let id = UniqueId::generate().unwrap();
        let hex: String = id.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
        let text = format!("{id:?}");
        let shown = text.trim_start_matches("UniqueId(").trim_end_matches(')');
        assert_eq!(shown.len(), 8);
        assert!(!hex.contains(shown), "{text}");
    }

    #[test]
    fn parts_do_not_run_together() {
        let id = UniqueId::generate().unwrap();
        assert_ne!(id.mac("x", &[b"ab", b"c"]), id.mac("x", &[b"a", b"bc"]));
        assert!(id.verify("x", &[b"ab"], &id.mac("x", &[b"ab"])));
        assert!(!id.verify("y", &[b"ab"], &id.mac("x", &[b"ab"])));
    }

    proptest! {
        #[test]
        fn any_changed_byte_is_refused(at in 0usize..128, flip in 1u8..) {
            let mut bytes = *UniqueId::generate().unwrap().as_bytes();
            bytes[at] ^= flip;
            prop_assert!(UniqueId::from_bytes(&bytes).is_err());
        }

        #[test]
        fn random_bytes_are_refused(bytes in proptest::array::uniform32(any::<[u8; 4]>())) {
            let bytes: Vec<u8> = bytes.concat();
            prop_assert!(UniqueId::from_bytes(&bytes.try_into().unwrap()).is_err());
        }
    }
}
