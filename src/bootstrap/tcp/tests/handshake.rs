//! The handshake against itself, and against everybody who does not hold the secret.

use super::*;
use crate::bootstrap::tcp::hello::{ANYONE, Purpose};
use std::collections::HashSet;

fn greeting() -> Hello {
    let (purpose, rank, note) = (Purpose::Data, 3, 0x1234_5678_9abc_def0);
    Hello { purpose, rank, to: ANYONE, nranks: 8, detail: 2, note }
}

fn secret() -> SharedSecret {
    SharedSecret::new(&UniqueId::generate().unwrap())
}

/// Everything `from` has to say, fed to `to`.
fn carry(from: &mut Handshake, to: &mut Handshake) -> Result<Vec<u8>, Refusal> {
    let bytes = from.outgoing().to_vec();
    from.sent(bytes.len());
    feed(to, &bytes)?;
    Ok(bytes)
}

fn feed(to: &mut Handshake, bytes: &[u8]) -> Result<(), Refusal> {
    let mut rest = bytes;
    while !rest.is_empty() && to.wanted() > 0 {
        let (now, later) = rest.split_at(rest.len().min(to.wanted()));
        to.feed(now)?;
        rest = later;
    }
    Ok(())
}

/// A whole handshake: both ends and what travelled in each direction.
fn shake(
    caller: &SharedSecret,
    listener: &SharedSecret,
) -> Result<(Handshake, Handshake, [Vec<u8>; 4]), Refusal> {
    let mut caller = Handshake::caller(caller, &greeting()).unwrap();
    let mut listener = Handshake::listener(listener).unwrap();
    let hello = carry(&mut caller, &mut listener)?;
    let answer = carry(&mut listener, &mut caller)?;
    let proof = carry(&mut caller, &mut listener)?;
    assert!(caller.keys().is_none(), "a caller is not through before its welcome");
    let welcome = carry(&mut listener, &mut caller)?;
    Ok((caller, listener, [hello, answer, proof, welcome]))
}

#[test]
fn both_ends_get_keys_that_match_and_are_fresh() {
    let secret = secret();
    let (caller, listener, messages) = shake(&secret, &secret).unwrap();
    assert_eq!(messages.each_ref().map(Vec::len), [HELLO, ANSWER, PROOF, PROOF]);
    let (ours, theirs) = (caller.keys().unwrap(), listener.keys().unwrap());
    assert!(ours.send == theirs.receive && ours.receive == theirs.send);
    assert!(ours.send != ours.receive);
    assert_eq!(listener.greeting(), Some(&greeting()));
    let (again, ..) = shake(&secret, &secret).unwrap();
    assert!(again.keys().unwrap().send != ours.send);
}

#[test]
fn the_greeting_and_the_secret_do_not_travel_in_clear() {
    let secret = secret();
    let (.., [hello, ..]) = shake(&secret, &secret).unwrap();
    let note = greeting().note.to_le_bytes();
    assert!(!hello.windows(8).any(|part| part == note));
    assert!(!hello.windows(8).any(|part| part == &secret.key[..8]));
}

#[test]
fn another_secret_is_refused_at_once() {
    let error = shake(&secret(), &secret()).err().unwrap();
    assert_eq!(error, "a caller that does not hold the secret");
}

#[test]
fn the_listener_has_no_keys_before_the_proof() {
    let secret = secret();
    let mut caller = Handshake::caller(&secret, &greeting()).unwrap();
    let mut listener = Handshake::listener(&secret).unwrap();
    carry(&mut caller, &mut listener).unwrap();
    listener.sent(listener.outgoing().len());
    assert!(listener.is_greeted() && listener.keys().is_none());
    assert_eq!(listener.wanted(), PROOF);
    assert!(listener.feed(&[0; PROOF]).is_err());
    assert!(listener.keys().is_none());
}

#[test]
fn a_recorded_caller_is_refused_at_its_proof() {
    let secret = secret();
    let (.., [hello, _, proof, _]) = shake(&secret, &secret).unwrap();
    let mut listener = Handshake::listener(&secret).unwrap();
    feed(&mut listener, &hello).unwrap();
    listener.sent(ANSWER);
    assert_eq!(feed(&mut listener, &proof), Err("a replayed or altered handshake"));
    assert!(listener.keys().is_none());
}

#[test]
fn a_recorded_listener_is_refused_at_its_answer() {
    let secret = secret();
    let (.., [_, answer, ..]) = shake(&secret, &secret).unwrap();
    let mut caller = Handshake::caller(&secret, &greeting()).unwrap();
    caller.sent(HELLO);
    assert!(feed(&mut caller, &answer).is_err());
    assert!(caller.keys().is_none());
}

#[test]
fn a_stranger_is_known_by_its_first_bytes() {
    let secret = secret();
    for (bytes, why) in [
        (&b"G"[..], "not a ringcomm handshake"),
        (b"GET /metrics HTTP/1.1\r\n\r\n", "not a ringcomm handshake"),
        (b"\0\0\0\0", "not a ringcomm handshake"),
        (b"ringnet\0\x03\0\0\0", "a handshake of another version"),
    ] {
        assert_eq!(feed(&mut Handshake::listener(&secret).unwrap(), bytes), Err(why));
    }
    let mut slow = Handshake::listener(&secret).unwrap();
    b"ringnet\0\x02".iter().for_each(|byte| slow.feed(&[*byte]).unwrap());
    assert!(!slow.is_greeted());
}

/// One flipped bit anywhere in any of the four messages: nobody gets keys by it.
#[test]
fn every_flipped_bit_is_refused() {
    let secret = secret();
    for (message, len) in [HELLO, ANSWER, PROOF, PROOF].into_iter().enumerate() {
        for bit in (0..len * 8).step_by(if cfg!(debug_assertions) { 7 } else { 1 }) {
            let mut caller = Handshake::caller(&secret, &greeting()).unwrap();
            let mut listener = Handshake::listener(&secret).unwrap();
            let (mut from, mut to) = (&mut caller, &mut listener);
            let mut refused = false;
            for number in 0..4 {
                let mut bytes = from.outgoing().to_vec();
                from.sent(bytes.len());
                if number == message {
                    bytes[bit / 8] ^= 1 << (bit % 8);
                }
                if feed(to, &bytes).is_err() {
                    assert!(number >= message && to.keys().is_none());
                    refused = true;
                    break;
                }
                (from, to) = (to, from);
            }
            assert!(refused, "bit {bit} of message {message} made no difference");
        }
    }
}

/// What somebody without the secret says in place of one of the four messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lie {
    /// What a holder of another secret says there.
    Foreign,
    /// What was said there in an earlier handshake of holders of this secret.
    Replayed,
    /// What is right there, but for one bit.
    Flipped,
    /// Random bytes, in a hello behind a true beginning.
    Random,
}

/// Who lies in place of which message, and how often: 10^5 times in all. Callers without the secret
/// try to get past the hello; those who come later are on the way of a handshake that was honest.
const LIES: [(usize, Lie, usize); 16] = [
    (0, Lie::Foreign, 24_000),
    (0, Lie::Replayed, 2_000),
    (0, Lie::Flipped, 31_000),
    (0, Lie::Random, 31_000),
    (1, Lie::Foreign, 1_000),
    (1, Lie::Replayed, 1_000),
    (1, Lie::Flipped, 1_000),
    (1, Lie::Random, 1_000),
    (2, Lie::Foreign, 1_000),
    (2, Lie::Replayed, 1_000),
    (2, Lie::Flipped, 1_000),
    (2, Lie::Random, 1_000),
    (3, Lie::Foreign, 1_000),
    (3, Lie::Replayed, 1_000),
    (3, Lie::Flipped, 1_000),
    (3, Lie::Random, 1_000),
];

/// Attempts for which a recording serves: made anew each time, they would take most of the test.
const RECORDED_FOR: usize = 5;

/// All that is said in a handshake.
fn record(secret: &SharedSecret) -> [Vec<u8>; 4] {
    let (.., messages) = shake(secret, secret).unwrap();
    messages
}

struct Stranger {
    secret: SharedSecret,
    /// A handshake of holders of the secret, and one of holders of another.
    ours: [Vec<u8>; 4],
    theirs: [Vec<u8>; 4],
    random: u64,
}

impl Stranger {
    fn new() -> Stranger {
        let (secret, random) = (secret(), 0x9e37_79b9_7f4a_7c15);
        let (ours, theirs) = (record(&secret), record(&self::secret()));
        Stranger { secret, ours, theirs, random }
    }

    fn draw(&mut self) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random as usize
    }

    /// What is said in place of a message that would be right.
    fn say(&mut self, message: usize, lie: Lie, right: &[u8]) -> Vec<u8> {
        let mut words = right.to_vec();
        match lie {
            // No handshake need be recorded for it.
            Lie::Foreign if message == 0 => {
                let caller = Handshake::caller(&secret(), &greeting()).unwrap();
                words.copy_from_slice(caller.outgoing());
            }
            Lie::Foreign => words.copy_from_slice(&self.theirs[message]),
            Lie::Replayed => words.copy_from_slice(&self.ours[message]),
            Lie::Flipped => {
                let bit = self.draw() % (8 * words.len());
                words[bit / 8] ^= 1 << (bit % 8);
            }
            Lie::Random => {
                let known = if message == 0 { PREAMBLE } else { 0 };
                words[known..].iter_mut().for_each(|byte| *byte = self.draw() as u8);
            }
        }
        words
    }

    /// Lie once: what was said, what became of it, and whether the other end has keys.
    fn lie(&mut self, message: usize, lie: Lie) -> (Vec<u8>, Result<(), Refusal>, bool) {
        let mut listener = Handshake::listener(&self.secret).unwrap();
        if message == 0 {
            let words = self.say(0, lie, &self.ours[0].clone());
            // A recorded hello is answered, and the proof that followed it comes next.
            let refused = feed(&mut listener, &words).and_then(|()| {
                listener.sent(ANSWER);
                feed(&mut listener, &self.ours[2])
            });
            listener.sent(listener.outgoing().len());
            return (words, refused, listener.keys().is_some());
        }
        let mut caller = Handshake::caller(&self.secret, &greeting()).unwrap();
        let (mut from, mut to) = (&mut caller, &mut listener);
        for _ in 0..message {
            carry(from, to).unwrap();
            (from, to) = (to, from);
        }
        let words = self.say(message, lie, from.outgoing());
        let refused = feed(to, &words);
        to.sent(to.outgoing().len());
        (words, refused, to.keys().is_some())
    }
}

/// How an end refuses what was said to it in place of a message: that shows how far it came.
fn refusal(message: usize, lie: Lie, words: &[u8]) -> Refusal {
    match message {
        0 if lie == Lie::Replayed => "a replayed or altered handshake",
        0 if words[..8] != MAGIC => "not a ringcomm handshake",
        0 if words[..PREAMBLE] != PROLOGUE => "a handshake of another version",
        0 => "a caller that does not hold the secret",
        1 => "an answer from somebody who does not hold the secret",
        _ => "a replayed or altered handshake",
    }
}

#[test]
fn a_hundred_thousand_strangers_are_refused() {
    let mut stranger = Stranger::new();
    let (mut attempts, mut admitted) = (0, 0);
    let mut distinct = HashSet::new();
    for (message, lie, number) in LIES {
        let before = distinct.len();
        for attempt in 0..number {
            match lie {
                _ if attempt % RECORDED_FOR > 0 => {}
                Lie::Foreign if message > 0 => stranger.theirs = record(&secret()),
                Lie::Replayed => stranger.ours = record(&stranger.secret),
                Lie::Flipped if message == 0 => stranger.ours = record(&stranger.secret),
                _ => {}
            }
            let (words, refused, has_keys) = stranger.lie(message, lie);
            let wanted = refusal(message, lie, &words);
            assert_eq!(refused, Err(wanted), "message {message}, {lie:?}, attempt {attempt}");
            admitted += usize::from(has_keys);
            distinct.insert(words);
        }
        attempts += number;
        println!("message {message}, {lie:?}: {number}, distinct: {}", distinct.len() - before);
    }
    println!("{attempts} attempts, distinct: {}", distinct.len());
    assert_eq!((attempts, admitted), (100_000, 0));
    // The recordings are fewer; of flipped bits some are the same ones.
    assert!(distinct.len() > 93_000, "only {} attempts are distinct", distinct.len());
}
