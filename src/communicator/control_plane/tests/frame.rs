//! Frames as a neighbour, or somebody on the way, might send them.

use super::*;
use crate::bootstrap::tcp::encoded;
use proptest::prelude::*;

fn seen() -> impl Strategy<Value = OperationRecord> {
    let words = (0..u64::MAX, any::<u64>(), any::<u64>(), any::<u64>(), any::<u64>());
    (words, proptest::option::of(0..u32::MAX)).prop_map(
        |((sequence, fingerprint, count, what, waited_ms), waiting_for)| OperationRecord {
            sequence,
            fingerprint,
            count,
            what,
            waiting_for,
            waited_ms,
        },
    )
}

fn board() -> impl Strategy<Value = Announcement> {
    use Phase::*;
    let phase = prop::sample::select(vec![Idle, Proposing, Made, GaveUp, Closed]);
    let dead = prop::collection::vec(0..MOST_RANKS, 0..8);
    (any::<u64>(), phase, any::<u64>(), any::<u16>(), dead).prop_map(
        |(attempt, phase, settled, port, ranks)| {
            let mut dead = RankSet::EMPTY;
            for rank in ranks {
                dead.insert(rank);
            }
            Announcement { attempt, phase, settled, port, label: settled ^ 1, dead }
        },
    )
}

fn status() -> impl Strategy<Value = Status> {
    let life = prop::sample::select(vec![Life::Working, Life::Failed, Life::Left]);
    let culprit = proptest::option::of(0..u32::MAX);
    let calls = prop::collection::vec(seen(), 0..=CALLS);
    let words = (any::<u32>(), any::<u64>());
    let texts = ("[a-zé ]{0,400}", "[a-z.]{0,60}");
    (life, culprit, texts, words, calls, proptest::option::of(seen()), board()).prop_map(
        |(life, culprit, (text, host), (pid, completed), calls, batch, board)| Status {
            life,
            culprit,
            text,
            pid,
            host,
            completed,
            calls,
            batch,
            board,
        },
    )
}

fn item() -> impl Strategy<Value = Item> {
    prop_oneof![
        any::<u64>().prop_map(|read| Item::Beat { read }),
        any::<u32>().prop_map(|rank| Item::Gone { rank }),
        (any::<u32>(), any::<u32>(), "[a-zé ]{0,400}")
            .prop_map(|(rank, by, why)| Item::Unreached { rank, by, why }),
        (any::<u32>(), any::<u64>(), status()).prop_map(|(rank, version, status)| Item::Status {
            rank,
            version,
            status: Box::new(status)
        }),
    ]
}

/// Frames of these items under a key of sevens.
fn sealed(items: &[Item]) -> Vec<u8> {
    let (mut sealer, mut bytes) = (ControlSealer::new(&[7; 32]), Vec::new());
    items.iter().for_each(|item| sealer.seal(item, &mut bytes));
    bytes
}

/// What comes out of bytes in pieces of `piece`, and how it ends.
fn opened(bytes: &[u8], piece: usize) -> (Vec<Item>, Result<(), Refusal>) {
    let (mut opener, mut items) = (ControlOpener::new(&[7; 32]), Vec::new());
    for piece in bytes.chunks(piece) {
        if let Err(refusal) = opener.feed(piece, |item| items.push(item)) {
            return (items, Err(refusal));
        }
        assert!(opener.bytes.len() < MOST_FRAME, "no more than a part of a frame is kept");
    }
    (items, Ok(()))
}

proptest! {
    #[test]
    fn an_item_survives_its_bytes_and_has_room(item in item()) {
        let bytes = item.encode();
        prop_assert!(bytes.len() <= MOST_ITEM);
        prop_assert_eq!(Item::decode(&bytes).unwrap(), item);
    }

    /// Whatever decodes encodes to the same bytes: there is one way to write an item.
    #[test]
    fn a_damaged_item_is_refused_or_exact(item in item(), at: prop::sample::Index, byte: u8) {
        let mut bytes = item.encode();
        let at = at.index(bytes.len());
        bytes[at] = byte;
        if let Ok(item) = Item::decode(&bytes) {
            prop_assert_eq!(item.encode(), bytes);
        }
        let mut bytes = item.encode();
        prop_assert!(Item::decode(&bytes[..at]).is_err());
        bytes.push(0);
        prop_assert!(Item::decode(&bytes).is_err());
    }

    #[test]
    fn random_bytes_are_refused_or_exact(kind in 0u8..6, rest: Vec<u8>) {
        let bytes = [&[kind][..], &rest].concat();
        if let Ok(item) = Item::decode(&bytes) {
            prop_assert_eq!(item.encode(), bytes);
        }
    }

    #[test]
    fn frames_come_out_of_any_pieces(
        items in prop::collection::vec(item(), 0..6),
        piece in 1usize..900,
    ) {
        let (got, end) = opened(&sealed(&items), piece);
        prop_assert_eq!(end, Ok(()));
        prop_assert_eq!(got, items);
    }

    /// What came before the damage is taken, and nothing after it.
    #[test]
    fn any_flipped_bit_ends_the_connection(
        items in prop::collection::vec(item(), 1..4),
        at: prop::sample::Index,
        bit in 0u8..8,
    ) {
        let mut bytes = sealed(&items);
        let at = at.index(bytes.len());
        bytes[at] ^= 1 << bit;
        let (got, end) = opened(&bytes, bytes.len());
        prop_assert!(end.is_err());
        prop_assert_eq!(&items[..got.len()], &got[..]);
    }
}

#[test]
fn frames_are_not_left_out_repeated_or_moved() {
    let items = [Item::Gone { rank: 1 }, Item::Gone { rank: 2 }, Item::Gone { rank: 3 }];
    let bytes = sealed(&items);
    let frames: Vec<&[u8]> = bytes.chunks(bytes.len() / 3).collect();
    for order in [vec![1], vec![0, 2], vec![0, 0], vec![1, 0, 2]] {
        let bytes: Vec<u8> = order.iter().flat_map(|frame| frames[*frame]).copied().collect();
        assert!(opened(&bytes, 1000).1.is_err(), "{order:?}");
    }
}

#[test]
fn a_length_that_no_frame_has_is_refused_before_its_bytes() {
    let head = |length: usize| encoded(length as u32);
    assert!(opened(&head(MOST_ITEM), 4).1.is_ok());
    assert!(opened(&head(MOST_ITEM + 1), 4).1.is_err());
    assert!(opened(&[0xff; LENGTH], 4).1.is_err());
}

#[test]
fn the_longest_status_has_room() {
    let seen = OperationRecord { waiting_for: Some(1), ..OperationRecord::default() };
    let mut board = Announcement::NOTHING;
    board.dead.insert(MOST_RANKS - 1);
    let status = Status {
        life: Life::Failed,
        culprit: Some(1),
        text: "x".repeat(TEXT_BYTES),
        pid: 1,
        host: "y".repeat(HOST_BYTES),
        completed: 1,
        calls: vec![seen; CALLS],
        batch: Some(seen),
        board,
    };
    let item = Item::Status { rank: 1, version: 1, status: Box::new(status) };
    assert!(item.encode().len() <= MOST_ITEM);
    assert_eq!(opened(&sealed(std::slice::from_ref(&item)), 1).0, [item]);
}
