//! Back-off for shapes of calls whose ranks have asked in vain whether their buffers can be shared.
//!
//! Where processes run a call in each other's buffers if all of those suit that, they ask first:
//! all tell all where their buffers are, and nobody goes on before it has heard the others. For a
//! short call that is a good part of its time, and a root that could have run ahead waits. So a
//! shape for which the answer was no is not asked about at its next call, then at its next three,
//! seven, fifteen. What the answer was all ranks know alike, and they make the same calls in the
//! same order: so all of them ask or none does, without a word.

/// Calls of a shape that are not asked about, at most, before one is.
const MOST: u8 = 15;

/// Shapes kept at a time: each has one place, which the next that falls there takes.
const PLACES: usize = 64;

#[derive(Clone, Copy, Default)]
struct CallShape {
    /// What all ranks call it by.
    fingerprint: u64,
    /// Calls that are not asked about before the next that is, and as they were counted last.
    left: u8,
    span: u8,
}

/// The shapes of one communicator.
pub struct ProbeBackoff([CallShape; PLACES]);

impl Default for ProbeBackoff {
    fn default() -> ProbeBackoff {
        ProbeBackoff([CallShape::default(); PLACES])
    }
}

impl ProbeBackoff {
    fn place(&mut self, fingerprint: u64) -> &mut CallShape {
        &mut self.0[fingerprint as usize % PLACES]
    }

    /// Whether the ranks ask at this call, which is counted.
    #[inline]
    pub fn should_probe(&mut self, fingerprint: u64) -> bool {
        let shape = self.place(fingerprint);
        if shape.fingerprint != fingerprint || shape.left == 0 {
            return true;
        }
        shape.left -= 1;
        false
    }

    /// What came of asking.
    pub fn record(&mut self, fingerprint: u64, ran: bool) {
        let shape = self.place(fingerprint);
        let is_known = shape.fingerprint == fingerprint;
        match (ran, is_known) {
            (false, _) => {
                let before = if is_known { shape.span } else { 0 };
                let span = (2 * before + 1).min(MOST);
                *shape = CallShape { fingerprint, left: span, span };
            }
            (true, true) => *shape = CallShape::default(),
            (true, false) => (),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Which of so many calls are asked about, where the answer is the same at all of them.
    fn asked(backoff: &mut ProbeBackoff, fingerprint: u64, calls: usize, ran: bool) -> Vec<usize> {
        let mut asked = Vec::new();
        for call in 0..calls {
            if backoff.should_probe(fingerprint) {
                backoff.record(fingerprint, ran);
                asked.push(call);
            }
        }
        asked
    }

    #[test]
    fn what_is_in_vain_is_asked_ever_less_often_but_never_given_up() {
        let mut backoff = ProbeBackoff::default();
        assert_eq!(asked(&mut backoff, 7, 64, false), [0, 2, 6, 14, 30, 46, 62]);
        // The first that is not starts over.
        assert_eq!(asked(&mut backoff, 7, 16, true), [14, 15]);
        assert_eq!(asked(&mut backoff, 7, 8, false), [0, 2, 6]);
    }

    #[test]
    fn a_shape_is_one_thing_and_its_place_another() {
        let (mut backoff, one, other) = (ProbeBackoff::default(), 3, 3 + PLACES as u64);
        assert_eq!(asked(&mut backoff, one, 2, false), [0]);
        // It does not concern the other, which takes the place only when its answer is no.
        assert_eq!(asked(&mut backoff, other, 2, true), [0, 1]);
        assert_eq!(asked(&mut backoff, one, 1, false), [0]);
        assert!(!backoff.should_probe(one));
        assert_eq!(asked(&mut backoff, other, 2, false), [0]);
        assert_eq!(asked(&mut backoff, one, 3, false), [0, 2]);
    }
}
