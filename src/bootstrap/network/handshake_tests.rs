//! The handshake against itself, and against everybody who does not hold the secret.

use super::super::greeting::{ANYONE, Purpose};
use super::*;

fn greeting() -> Greeting {
    let (purpose, rank, note) = (Purpose::Data, 3, 0x1234_5678_9abc_def0);
    Greeting { purpose, rank, to: ANYONE, nranks: 8, lane: 2, note }
}

fn secret() -> Secret {
    Secret::new(&UniqueId::generate().unwrap())
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
fn shake(caller: &Secret, gate: &Secret) -> Result<(Handshake, Handshake, [Vec<u8>; 4]), Refusal> {
    let mut caller = Handshake::caller(caller, &greeting()).unwrap();
    let mut gate = Handshake::gate(gate).unwrap();
    let hello = carry(&mut caller, &mut gate)?;
    let answer = carry(&mut gate, &mut caller)?;
    let proof = carry(&mut caller, &mut gate)?;
    assert!(caller.keys().is_none(), "a caller is not through before its welcome");
    let welcome = carry(&mut gate, &mut caller)?;
    Ok((caller, gate, [hello, answer, proof, welcome]))
}

#[test]
fn both_ends_get_keys_that_match_and_are_fresh() {
    let secret = secret();
    let (caller, gate, messages) = shake(&secret, &secret).unwrap();
    assert_eq!(messages.each_ref().map(Vec::len), [HELLO, ANSWER, PROOF, PROOF]);
    let (ours, theirs) = (caller.keys().unwrap(), gate.keys().unwrap());
    assert!(ours.send == theirs.receive && ours.receive == theirs.send);
    assert!(ours.send != ours.receive);
    assert_eq!(gate.greeting(), Some(&greeting()));
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
fn the_gate_has_no_keys_before_the_proof() {
    let secret = secret();
    let mut caller = Handshake::caller(&secret, &greeting()).unwrap();
    let mut gate = Handshake::gate(&secret).unwrap();
    carry(&mut caller, &mut gate).unwrap();
    gate.sent(gate.outgoing().len());
    assert!(gate.is_greeted() && gate.keys().is_none());
    assert_eq!(gate.wanted(), PROOF);
    assert!(gate.feed(&[0; PROOF]).is_err());
    assert!(gate.keys().is_none());
}

#[test]
fn a_recorded_caller_is_refused_at_its_proof() {
    let secret = secret();
    let (.., [hello, _, proof, _]) = shake(&secret, &secret).unwrap();
    let mut gate = Handshake::gate(&secret).unwrap();
    feed(&mut gate, &hello).unwrap();
    gate.sent(ANSWER);
    assert_eq!(feed(&mut gate, &proof), Err("a replayed or altered handshake"));
    assert!(gate.keys().is_none());
}

#[test]
fn a_recorded_gate_is_refused_at_its_answer() {
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
        (b"ringnet\0\x02\0\0\0", "a handshake of another version"),
    ] {
        assert_eq!(feed(&mut Handshake::gate(&secret).unwrap(), bytes), Err(why));
    }
    let mut slow = Handshake::gate(&secret).unwrap();
    b"ringnet\0\x01".iter().for_each(|byte| slow.feed(&[*byte]).unwrap());
    assert!(!slow.is_greeted());
}

/// One flipped bit anywhere in any of the four messages: nobody gets keys by it.
#[test]
fn every_flipped_bit_is_refused() {
    let secret = secret();
    for (message, len) in [HELLO, ANSWER, PROOF, PROOF].into_iter().enumerate() {
        for bit in (0..len * 8).step_by(if cfg!(debug_assertions) { 7 } else { 1 }) {
            let mut caller = Handshake::caller(&secret, &greeting()).unwrap();
            let mut gate = Handshake::gate(&secret).unwrap();
            let (mut from, mut to) = (&mut caller, &mut gate);
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

/// Wrong secrets, recordings, flipped and random bytes: 10^5 attempts, none gets in.
#[test]
fn a_hundred_thousand_strangers_are_refused() {
    let (secret, other) = (secret(), secret());
    let (.., recording) = shake(&secret, &secret).unwrap();
    let mut foreign = Handshake::caller(&other, &greeting()).unwrap();
    let foreign_hello = foreign.outgoing().to_vec();
    foreign.sent(HELLO);
    let mut random = 0x9e37_79b9_7f4a_7c15u64;
    let mut draw = || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random
    };
    let mut admitted = 0;
    for attempt in 0..100_000 {
        let mut gate = Handshake::gate(&secret).unwrap();
        // Few get as far as to cost the gate a Diffie-Hellman exchange; few are enough.
        let mut hello =
            if attempt % 100 == 0 { recording[0].clone() } else { foreign_hello.clone() };
        match attempt % 4 {
            0 => {}
            1 => hello[draw() as usize % HELLO] ^= 1 << (draw() % 8),
            2 => hello[PREAMBLE..].iter_mut().for_each(|byte| *byte = draw() as u8),
            _ => {
                hello.clone_from(&recording[0]);
                hello[PREAMBLE + draw() as usize % (HELLO - PREAMBLE)] ^= 1 << (draw() % 8);
            }
        }
        if feed(&mut gate, &hello).is_ok() {
            gate.sent(gate.outgoing().len());
            let mut proof = recording[2].clone();
            if attempt % 200 == 0 {
                proof.iter_mut().for_each(|byte| *byte = draw() as u8);
            }
            let _ = feed(&mut gate, &proof);
        }
        admitted += usize::from(gate.keys().is_some());
    }
    assert_eq!(admitted, 0);
}
