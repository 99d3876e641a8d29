//! Whatever comes to either end of a connection's handshake, in any pieces: only an end that hears
//! the other's own words gets keys, and both get the same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ringcomm::bootstrap::UniqueId;
use ringcomm::bootstrap::tcp::{
    GREETING, Handshake, Hello, MAX_FRAME, Opener, Purpose, Sealer, SharedSecret,
};

mod support;
use support::Input;

thread_local! {
    static SECRET: SharedSecret = SharedSecret::new(&UniqueId::generate().unwrap());
}

fn greeting() -> Hello {
    let (to, nranks) = (u32::MAX, 4);
    Hello { purpose: Purpose::Data, rank: 1, to, nranks, detail: 2, note: 3 }
}

/// Feed one end with the input; true if it got keys.
fn alone(mut end: Handshake, input: &mut Input) -> bool {
    while let Some(length) = input.byte() {
        let wanted = end.wanted();
        let piece = input.some(usize::from(length).min(wanted));
        if end.feed(piece).is_err() {
            return false;
        }
        assert!(end.wanted() <= wanted.max(128), "never more than a message");
        let some = end.outgoing().len() / 2;
        end.sent(some);
        if piece.is_empty() {
            break;
        }
    }
    end.sent(end.outgoing().len());
    end.keys().is_some()
}

/// Move what one end says to the other, altered by the input; whether all was well.
fn carry(from: &mut Handshake, to: &mut Handshake, input: &mut Input, altered: &mut bool) -> bool {
    let mut bytes = from.outgoing().to_vec();
    from.sent(bytes.len());
    // Mostly nothing is altered, so that the later messages come.
    if let (Some(at), Some(flip)) = (input.byte(), input.byte())
        && at & 3 == 3
        && let Some(cell) = bytes.get_mut(usize::from(at >> 2))
    {
        *cell ^= flip;
        *altered |= flip != 0;
    }
    let cut = usize::from(input.byte().unwrap_or(0)).min(bytes.len());
    for piece in [&bytes[..cut], &bytes[cut..]] {
        if to.feed(&piece[..piece.len().min(to.wanted())]).is_err() {
            return false;
        }
    }
    true
}

fn between(secret: &SharedSecret, input: &mut Input) {
    let mut caller = Handshake::caller(secret, &greeting()).unwrap();
    let mut listener = Handshake::listener(secret).unwrap();
    let mut altered = false;
    let went = (0..2).all(|_| {
        carry(&mut caller, &mut listener, input, &mut altered)
            && carry(&mut listener, &mut caller, input, &mut altered)
    });
    assert_eq!(went, !altered, "it goes through exactly where nothing was altered");
    let (Some(calls), Some(listeners)) = (caller.keys(), listener.keys()) else {
        assert!(altered);
        return;
    };
    // An altered welcome is seen by the caller alone.
    assert!(!altered && listener.greeting() == Some(&greeting()));
    assert!(calls.send == listeners.receive && calls.receive == listeners.send);
    frames(&calls.send, &listeners.receive, input);
}

/// Frames of the input's bytes, and the input as frames.
fn frames(send: &[u8; 32], receive: &[u8; 32], input: &mut Input) {
    let (mut sealer, mut opener) = (Sealer::new(send), Opener::new(receive));
    let mut frame = Vec::new();
    sealer.seal(input.0, &mut frame);
    let (length, sealed) = frame.split_first_chunk_mut().unwrap();
    assert_eq!(Opener::rest(*length, MAX_FRAME), Ok(sealed.len()));
    assert_eq!(opener.open(*length, sealed), Ok(input.0));
    let Some(length) = input.array::<8>() else { return };
    if let Ok(rest) = Opener::rest(length, MAX_FRAME) {
        let mut sealed = input.some(rest).to_vec();
        assert!(opener.open(length, &mut sealed).is_err(), "nobody sealed it");
    }
}

fuzz_target!(|data: &[u8]| {
    let mut input = Input(data);
    if let Ok(greeting) = Hello::decode(&data[..data.len().min(GREETING)]) {
        assert_eq!(greeting.encode(), data[..GREETING]);
    }
    SECRET.with(|secret| match input.byte() {
        Some(0) => assert!(!alone(Handshake::listener(secret).unwrap(), &mut input)),
        Some(1) => {
            let caller = Handshake::caller(secret, &greeting()).unwrap();
            assert!(!alone(caller, &mut input));
        }
        Some(_) => between(secret, &mut input),
        None => {}
    });
});
