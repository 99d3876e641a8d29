//! Ranks as threads of this process. A rank that panics is one that failed: it is named, and the
//! others leave.

use super::launch;
use super::worker;
use crate::cli::mode::{self, Mode};
use crate::cli::options::Options;
use crate::measure::expected_layout::Cell;
use crate::ranks::endpoint::Endpoint;
use crate::ranks::shared_state::Board;
use crate::report::row::Told;
use ringcomm::bootstrap::UniqueId;
use ringcomm::communicator::Communicator;
use ringcomm::error::{Error, Result};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, mpsc};

/// Takes the reports of all ranks.
pub type SharedSink<'a> = &'a (dyn Fn(Told) + Sync);

/// The endpoints of a run of threads, where they can be made together.
fn together(options: &Options, nranks: usize) -> Result<Option<Vec<Box<dyn Endpoint>>>> {
    if options.parallel_init || options.tcp {
        return Ok(None);
    }
    let all = Communicator::init_all(nranks, &mode::config(options)?)?.into_iter();
    Ok(Some(all.map(|rank| Box::new(Arc::new(rank)) as Box<dyn Endpoint>).collect()))
}

/// Run `mode.threads` ranks of this process to the end.
pub fn run(
    options: &Options,
    cells: &[Cell],
    mode: Mode,
    process: usize,
    board: &Board,
    sink: SharedSink,
) -> Result<()> {
    let nranks = mode.nranks();
    let mut ready = match mode.procs {
        None => together(options, nranks)?.map(|all| all.into_iter().map(Some).collect()),
        Some(_) => None,
    }
    .unwrap_or_else(|| {
        let none: Vec<Option<Box<dyn Endpoint>>> = (0..mode.threads).map(|_| None).collect();
        none
    });
    let config = mode::config(options)?;
    let id = match ready.iter().all(Option::is_some) {
        true => None,
        false => Some(UniqueId::from_bytes(&board.unique_id())?),
    };
    std::thread::scope(|scope| {
        for (thread, mut endpoint) in ready.drain(..).enumerate() {
            let id = &id;
            let rank = process * mode.threads + thread;
            let config = mode::config_of(rank, nranks, &config, options);
            let join = move || -> Result<Box<dyn Endpoint>> {
                let id = id.as_ref().ok_or_else(|| Error::Internal("no id was made".into()))?;
                let rank = Communicator::init_rank(nranks, id, rank, &config)?;
                Ok(Box::new(Arc::new(rank)))
            };
            scope.spawn(move || {
                // The endpoint is outside: peers learn of a panic by its report, then by its end.
                let life = || -> Result<()> {
                    launch::pin(options, rank, nranks);
                    if endpoint.is_none() {
                        endpoint = Some(join()?);
                    }
                    let endpoint = endpoint.as_deref().expect("just made");
                    let place = (rank, mode.name());
                    worker::run(options, cells, place, board, endpoint, &|value| sink(value));
                    Ok(())
                };
                let failed = match catch_unwind(AssertUnwindSafe(life)) {
                    Ok(Ok(())) => return,
                    Ok(Err(error)) => error.to_string(),
                    Err(panic) => format!("panicked: {}", words(&*panic)),
                };
                worker::fail(board, rank, cells, &failed, &|value| sink(value));
            });
        }
    });
    Ok(())
}

/// What a panic says.
fn words(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("without a text")
}

/// Have `ranks` run on another thread and `receive` get their reports as they come.
pub fn received(
    ranks: impl FnOnce(SharedSink) -> Result<()> + Send,
    receive: &mut dyn FnMut(Told),
) -> Result<()> {
    let (sender, receiver) = mpsc::channel();
    std::thread::scope(|scope| {
        // The sender goes with the ranks, however they end: then nothing more comes.
        let ranks = scope.spawn(move || {
            let sender = Mutex::new(sender);
            // The receiver lives until the ranks are done.
            ranks(&|told| drop(sender.lock().expect("no sender panics").send(told)))
        });
        receiver.iter().for_each(receive);
        ranks.join().unwrap_or_else(|panic| {
            Err(Error::Internal(format!("starting the ranks panicked: {}", words(&*panic))))
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::operation::Operation;
    use ringcomm::types::{DataType, ReduceOp};

    const MODE: Mode = Mode { procs: None, threads: 2, launched: false };

    fn cell() -> Cell {
        let (data_type, op) = (DataType::Float32, ReduceOp::Sum);
        let (operation, buckets) = (Operation::AllReduce, Vec::new());
        Cell { operation, bytes: 8, data_type, op, root: 0, buckets }
    }

    /// Rank 0 panics where it reports its row; the other waits at the board meanwhile.
    #[test]
    fn a_rank_that_panics_alone_is_named_and_stops_the_others() {
        let options = Options { iterations: Some(1), warmup: Some(0), ..Options::default() };
        let board = Board::new(2).unwrap();
        let failed = Mutex::new(Vec::new());
        let sink = |told| match told {
            Told::Row(_) => panic!("no row here"),
            Told::Failed(text) => failed.lock().unwrap().push(text),
            _ => {}
        };
        run(&options, &[cell()], MODE, 0, &board, &sink).unwrap();
        assert!(board.stopped());
        let failed = failed.into_inner().unwrap();
        let wanted = "rank 0 in all_reduce of 8 B, float sum: panicked: no row here";
        assert_eq!(failed[0], wanted, "{failed:?}");
    }

    #[test]
    fn reports_end_where_the_ranks_panic() {
        let mut rows = 0;
        let panics = |sink: SharedSink| {
            sink(Told::LeftOutFrom(0));
            panic!("no ranks")
        };
        let error = received(panics, &mut |_| rows += 1).unwrap_err().to_string();
        assert!(rows == 1 && error.contains("panicked: no ranks"), "{rows} {error}");
    }
}
