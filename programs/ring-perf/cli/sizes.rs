//! The sizes of a scan, by nccl-tests' rule, one after the other: nobody holds a list of them.

/// How the next size follows from the last.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Progression {
    Add(usize),
    Multiply(usize),
}

/// What nccl-tests adds where nothing says how much.
const STEP_BYTES: usize = 1 << 20;

impl Progression {
    /// From `-f` and `-i`, as nccl-tests understands them: a factor above 1 multiplies whatever the
    /// step is, any other factor gives way to the step. Alone, a step of 0 is none.
    pub fn new(factor: Option<usize>, step: Option<usize>) -> Result<Progression, String> {
        match (factor, step) {
            (Some(factor), _) if factor > 1 => Ok(Progression::Multiply(factor)),
            (None, None | Some(0)) => Ok(Progression::Multiply(2)),
            (Some(factor), Some(0)) => {
                Err(format!("-f {factor} goes by -i, and -i 0 never reaches another size"))
            }
            (_, step) => Ok(Progression::Add(step.unwrap_or(STEP_BYTES))),
        }
    }
}

/// From the least to the most.
#[derive(Clone, Debug)]
pub struct Sizes {
    next: usize,
    most: usize,
    progression: Progression,
}

impl Sizes {
    pub fn new(least: usize, most: usize, progression: Progression) -> Sizes {
        Sizes { next: least, most, progression }
    }
}

impl Iterator for Sizes {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        let bytes = self.next;
        // The end of all numbers is past any size.
        if bytes > self.most || bytes == usize::MAX {
            return None;
        }
        self.next = match self.progression {
            Progression::Add(step) => bytes.saturating_add(step),
            Progression::Multiply(factor) => bytes.saturating_mul(factor).max(bytes + 1),
        };
        Some(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_factor_and_the_step_are_those_of_nccl_tests() {
        use Progression::{Add, Multiply};
        for (factor, step, wanted) in [
            (None, None, Multiply(2)),
            (Some(4), None, Multiply(4)),
            (None, Some(512), Add(512)),
            // Whichever comes last: the factor wins where it is one.
            (Some(4), Some(512), Multiply(4)),
            (Some(4), Some(0), Multiply(4)),
            (Some(1), Some(512), Add(512)),
            (Some(0), Some(512), Add(512)),
            (Some(1), None, Add(1 << 20)),
            (None, Some(0), Multiply(2)),
        ] {
            assert_eq!(Progression::new(factor, step), Ok(wanted), "{factor:?} {step:?}");
        }
        assert!(Progression::new(Some(1), Some(0)).unwrap_err().contains("-i 0"));
    }

    #[test]
    fn a_scan_ends_with_the_largest_that_fits() {
        let scan = |least, most, progression| -> Vec<usize> {
            Sizes::new(least, most, progression).collect()
        };
        assert_eq!(scan(8, 40, Progression::Multiply(2)), [8, 16, 32]);
        assert_eq!(scan(0, 5, Progression::Multiply(2)), [0, 1, 2, 4]);
        assert_eq!(scan(8, 18, Progression::Add(5)), [8, 13, 18]);
        assert_eq!(scan(8, 8, Progression::Add(5)), [8]);
        assert_eq!(scan(usize::MAX - 1, usize::MAX, Progression::Add(5)), [usize::MAX - 1]);
    }

    #[test]
    fn a_fine_scan_takes_no_memory() {
        let mut sizes = Sizes::new(0, usize::MAX, Progression::Add(1));
        assert_eq!(sizes.nth(5), Some(5));
    }
}
