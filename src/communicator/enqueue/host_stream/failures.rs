//! The errors of a stream's jobs: the first, which the stream tells, and of the last many each
//! job's own, which a handle tells.

use super::CAPACITY;
use crate::error::{Error, Result};
use std::collections::VecDeque;

/// Errors that are kept for those who ask for a job's own: of all jobs that may wait, twice. Who
/// looks at what is done whenever it submits a job, as the Python package does, misses none.
const KEPT: usize = 2 * CAPACITY;

/// Every error has its job's number, from 1.
#[derive(Default)]
pub struct Failures {
    /// The first since somebody was told.
    first: Option<(u64, Error)>,
    /// The last [`KEPT`], in the order of the jobs, whoever was told.
    last: VecDeque<(u64, Error)>,
    /// The number of the last that is kept no more; 0: there is none.
    forgotten: u64,
}

impl Failures {
    /// The job of this number, higher than that of any before, has failed.
    pub fn add(&mut self, number: u64, error: Error) {
        if self.last.len() == KEPT {
            self.forgotten = self.last.pop_front().map_or(0, |(number, _)| number);
        }
        self.last.push_back((number, error.clone()));
        self.first.get_or_insert((number, error));
    }

    /// The first since the last time, which from now on was told.
    pub fn take(&mut self) -> Result<()> {
        self.first.take().map_or(Ok(()), |(_, error)| Err(error))
    }

    /// The first, if a job up to `mark` had it.
    pub fn until(&self, mark: u64) -> Result<()> {
        match &self.first {
            Some((number, error)) if *number <= mark => Err(error.clone()),
            _ => Ok(()),
        }
    }

    /// The error of this job, which is done, and of no other.
    pub fn of(&self, job: u64) -> Result<()> {
        if let Ok(place) = self.last.binary_search_by_key(&job, |(number, _)| *number) {
            return Err(self.last[place].1.clone());
        }
        if job > self.forgotten {
            return Ok(());
        }
        // Better than a success that may be none.
        Err(Error::usage(format!(
            "how call {job} of this stream went is no longer known, since {KEPT} later ones have \
             failed; ask before that"
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::super::{ALONE, JobStream};
    use super::*;
    use std::time::Duration;

    type Job = Box<dyn FnOnce() -> Result<()> + Send>;

    fn failure(number: u64) -> Error {
        Error::usage(format!("job {number}"))
    }

    #[test]
    fn a_job_has_its_own_error_and_no_others() {
        let stream = JobStream::<Job>::new().unwrap();
        for number in 1..=4 {
            let failed = number == 2 || number == 4;
            let job: Job = Box::new(move || if failed { Err(failure(number)) } else { Ok(()) });
            stream.submit(job).unwrap();
            assert_eq!(stream.mark(), Ok(number));
        }
        let own = |job| stream.reached(job | ALONE, None);
        for _ in 0..2 {
            assert_eq!(
                [1, 2, 3, 4].map(own),
                [Ok(true), Err(failure(2)), Ok(true), Err(failure(4))]
            );
            // The second time, too, when the stream has told its first and knows of none.
            let _ = stream.synchronize();
        }
        assert_eq!(stream.reached(4, None), Ok(true));
    }

    #[test]
    fn a_job_is_waited_for_alone() {
        let stream = JobStream::<Job>::new().unwrap();
        let (go, gate) = std::sync::mpsc::channel();
        stream.submit(Box::new(|| Err(failure(1)))).unwrap();
        stream.submit(Box::new(move || gate.recv().map_err(|_| failure(2)))).unwrap();
        assert_eq!(stream.reached(1 | ALONE, None), Err(failure(1)));
        assert_eq!(stream.reached(2 | ALONE, Some(Duration::from_millis(1))), Ok(false));
        go.send(()).unwrap();
        assert_eq!(stream.reached(2 | ALONE, None), Ok(true));
    }

    #[test]
    fn what_is_forgotten_is_no_success() {
        let mut failures = Failures::default();
        let last = KEPT as u64 + 2;
        // The first job alone went well.
        (2..=last).for_each(|number| failures.add(number, failure(number)));
        for job in [1, 2] {
            assert!(failures.of(job).unwrap_err().to_string().contains("no longer known"));
        }
        (3..=last).for_each(|job| assert_eq!(failures.of(job), Err(failure(job))));
        assert_eq!(failures.of(last + 1), Ok(()));
        assert_eq!(failures.until(1), Ok(()));
        assert_eq!(failures.until(2), Err(failure(2)));
        assert_eq!(failures.take(), Err(failure(2)));
        assert_eq!((failures.until(last), failures.take()), (Ok(()), Ok(())));
    }
}
