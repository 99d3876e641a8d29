//! Who calls and what for: the encrypted payload of a connection's first message.

use super::Refusal;

/// Bytes of an encoded greeting.
pub const GREETING: usize = 28;

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Purpose {
    Meet = 1,
    Control = 2,
    Data = 3,
}

/// Who calls and what for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    pub purpose: Purpose,
    pub rank: u32,
    /// The rank that is meant, [`ROOT`] or [`ANYONE`]: hosts may share an address that is private
    /// to each (a container bridge's), so that an address alone can lead to another rank's
    /// listener.
    pub to: u32,
    pub nranks: u32,
    /// Of data, which of a peer's sockets; of a rendezvous, the process id; of control, the kind.
    pub detail: u32,
    /// Whatever the purpose needs.
    pub note: u64,
}

/// Addressed to whoever listens.
pub const ANYONE: u32 = u32::MAX;

/// Addressed to whoever introduces the ranks, whatever its number. No rank has this one.
pub const ROOT: u32 = u32::MAX - 1;

impl Hello {
    pub fn encode(&self) -> [u8; GREETING] {
        let mut bytes = [0; GREETING];
        let words = [self.purpose as u32, self.rank, self.to, self.nranks, self.detail];
        for (cell, word) in bytes.chunks_exact_mut(4).zip(words) {
            cell.copy_from_slice(&word.to_le_bytes());
        }
        bytes[20..].copy_from_slice(&self.note.to_le_bytes());
        bytes
    }

    pub fn decode(bytes: &[u8]) -> Result<Hello, Refusal> {
        let bytes: &[u8; GREETING] = bytes.try_into().map_err(|_| "a greeting of wrong length")?;
        let word = |at: usize| {
            u32::from_le_bytes(bytes[4 * at..4 * at + 4].try_into().expect("four bytes"))
        };
        let purpose = match word(0) {
            1 => Purpose::Meet,
            2 => Purpose::Control,
            3 => Purpose::Data,
            _ => return Err("unknown purpose in hello"),
        };
        Ok(Hello {
            purpose,
            rank: word(1),
            to: word(2),
            nranks: word(3),
            detail: word(4),
            note: u64::from_le_bytes(bytes[20..].try_into().expect("eight bytes")),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Whatever decodes encodes to the same bytes.
        #[test]
        fn a_greeting_is_refused_or_exact(mut bytes: [u8; GREETING], purpose in 0u8..5) {
            bytes[..4].copy_from_slice(&[purpose, 0, 0, 0]);
            match Hello::decode(&bytes) {
                Ok(greeting) => prop_assert_eq!(greeting.encode(), bytes),
                Err(_) => prop_assert!(!(1..=3).contains(&purpose)),
            }
            prop_assert!(Hello::decode(&bytes[1..]).is_err());
        }
    }
}
