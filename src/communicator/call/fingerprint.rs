//! The fingerprint that a message carries: 64 bits of the call that it belongs to.
//!
//! A collective's is a hash, since more is agreed on than 64 bits hold; ranks that differ read each
//! other's records. What only two ranks know, a message of
//! [`Message`](super::message::Message) or a block of a `v` form, can be read back: the receiver
//! says what the sender called.

use crate::types::DataType;

/// Set in the fingerprint of a message of its own, and in no other.
const SINGLE: u64 = 1 << 63;

/// Set in all of them: none is 0.
const USED: u64 = 1;

/// Bits above the type, between the marks, for a count: more elements than addresses there are.
const COUNT_SHIFT: u32 = 8;

/// A count above it was not sent by any rank.
const MOST: u64 = 1 << (63 - COUNT_SHIFT);

/// The finaliser of SplitMix64 (Steele, Lea and Flood 2014): every input bit reaches every output
/// bit.
pub fn mix(mut word: u64) -> u64 {
    word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ word >> 31
}

/// Of a collective that these words describe.
pub fn of_words(words: &[u64]) -> u64 {
    let hash = words.iter().fold(0x9e37_79b9_7f4a_7c15, |hash, word| mix(hash ^ word));
    hash & !SINGLE | USED
}

/// Of a message of so many elements.
pub fn of_message(count: usize, data_type: DataType) -> u64 {
    SINGLE | (count as u64 % MOST) << COUNT_SHIFT | (data_type as u64) << 1 | USED
}

/// The count and the type of a message, if it is one.
pub fn message(fingerprint: u64) -> Option<(usize, DataType)> {
    let data_type = DataType::from_raw((fingerprint >> 1 & 0x7f) as i32)?;
    let count = (fingerprint & !SINGLE) >> COUNT_SHIFT;
    (fingerprint & SINGLE != 0).then_some((count as usize, data_type))
}

/// Of a block of so many elements in the `v` form with this fingerprint.
pub fn of_block(form: u64, count: usize) -> u64 {
    form ^ (count as u64 % MOST) << 1
}

/// The elements of a block, if it is one of that form.
pub fn block(form: u64, fingerprint: u64) -> Option<usize> {
    let count = (form ^ fingerprint) >> 1;
    (fingerprint & SINGLE == 0 && count < MOST).then_some(count as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_and_blocks_are_read_back() {
        let form = of_words(&[1, 2, 3]);
        for count in [0, 1, 2, 4097, 1 << 40] {
            for data_type in DataType::ALL {
                assert_eq!(message(of_message(count, data_type)), Some((count, data_type)));
            }
            assert_eq!(block(form, of_block(form, count)), Some(count));
            assert_eq!(message(of_block(form, count)), None);
            assert_eq!(block(form, of_message(count, DataType::Int8)), None);
        }
        assert_eq!(message(form), None);
        assert_ne!(of_block(form, 0), 0);
        // A block of another form, but for one in 128.
        assert_eq!(block(form, of_block(of_words(&[1, 2, 4]), 7)), None);
    }
}
