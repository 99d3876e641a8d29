//! What a stage calls, and on which data.

use super::*;
use ringcomm::communicator::Explanation;
use ringcomm::types::{DataType, ReduceOp};
use std::cell::RefCell;

/// One rank alone, which notes what is asked of it and does nothing.
#[derive(Default)]
struct Notebook {
    asked: RefCell<Vec<String>>,
    has_host_order: bool,
}

impl Notebook {
    fn note(&self, text: String) -> Result<()> {
        self.asked.borrow_mut().push(text);
        Ok(())
    }
}

impl Endpoint for Notebook {
    unsafe fn run(&self, call: &Call) -> Result<()> {
        self.note(format!("run {}", call.count))
    }

    unsafe fn exchange(&self, messages: &[Message]) -> Result<()> {
        self.note(format!("exchange {}", messages.len()))
    }

    fn start_group(&self) {
        self.asked.borrow_mut().push("start".into());
    }

    fn end_group(&self) -> Result<()> {
        self.note("end".into())
    }

    unsafe fn defer(&self, call: &Call) -> Result<()> {
        self.note(format!("defer {}", call.count))
    }

    unsafe fn defer_messages(&self, messages: &[Message]) -> Result<()> {
        self.note(format!("defer {} messages", messages.len()))
    }

    fn explain(&self, _call: &Call) -> Result<Explanation> {
        unreachable!()
    }

    fn has_host_order(&self) -> bool {
        self.has_host_order
    }

    fn register(&self, _address: *mut u8, _bytes: usize) -> Result<()> {
        Ok(())
    }

    fn finalize(&self) -> Result<()> {
        Ok(())
    }
}

/// What an iteration of so many calls asks for, and what the next call would be.
fn noted(operation: Operation, buckets: &[usize], calls: usize) -> (Vec<String>, Vec<usize>) {
    let (data_type, op) = (DataType::Float32, ReduceOp::Sum);
    let place = |at: &mut usize, count: &usize| {
        let offset = *at;
        *at += count;
        Some(Extent { offset, count: *count })
    };
    let bytes = 400;
    let buckets = buckets.iter().scan(0, place).collect();
    let cell = Cell { operation, bytes, data_type, op, root: 0, buckets };
    let options = Options { aggregate: calls, ..Options::default() };
    let placement = Placement::OutOfPlace;
    let arena = Arena::new(arena_bytes(&cell, placement, 0, 2, &options)).unwrap();
    let (layout, notebook) = (cell.layout(0, 2), Notebook::default());
    let what = (&cell, &layout, placement);
    let mut stage = Stage::new(&notebook, &arena, (0, 2), what, &options);
    stage.iterate(calls).unwrap();
    let counts = stage.aimed().iter().map(|call| call.count).collect();
    drop(stage);
    (notebook.asked.into_inner(), counts)
}

#[test]
fn calls_in_place_get_fresh_inputs_only_where_results_are_checked() {
    let (data_type, op) = (DataType::Float32, ReduceOp::Sum);
    let (operation, buckets) = (Operation::AllReduce, Vec::new());
    let cell = Cell { operation, bytes: 400, data_type, op, root: 0, buckets };
    let (layout, notebook) = (cell.layout(0, 2), Notebook::default());
    let refilled = |check| {
        let options = Options { check, ..Options::default() };
        let placement = Placement::InPlace;
        let arena = Arena::new(arena_bytes(&cell, placement, 0, 2, &options)).unwrap();
        let what = (&cell, &layout, placement);
        let mut stage = Stage::new(&notebook, &arena, (0, 2), what, &options);
        let before = stage.recvs[0].contents().to_vec();
        stage.refill();
        (before.clone(), stage.recvs[0].contents() != before)
    };
    let (poisoned, is_fresh) = refilled(true);
    assert!(poisoned == [POISON; 400] && is_fresh);
    assert_eq!(refilled(false), (vec![0; 400], false));
}

#[test]
fn inputs_are_written_anew_where_that_is_asked_for() {
    let (data_type, op) = (DataType::Float32, ReduceOp::Sum);
    let (operation, buckets) = (Operation::AllReduce, Vec::new());
    let cell = Cell { operation, bytes: 400, data_type, op, root: 0, buckets };
    let (layout, notebook) = (cell.layout(0, 2), Notebook::default());
    for placement in [Placement::OutOfPlace, Placement::InPlace] {
        for rewrite in [false, true] {
            let options = Options { check: false, rewrite, ..Options::default() };
            let arena = Arena::new(arena_bytes(&cell, placement, 0, 2, &options)).unwrap();
            let what = (&cell, &layout, placement);
            let mut stage = Stage::new(&notebook, &arena, (0, 2), what, &options);
            let inputs = if placement == Placement::InPlace { 0 } else { stage.sends.len() };
            let input = match inputs {
                0 => &mut stage.recvs[0],
                _ => &mut stage.sends[0],
            };
            let before = input.contents().to_vec();
            input.contents_mut().fill(POISON);
            stage.refill();
            let after = if inputs == 0 { &stage.recvs[0] } else { &stage.sends[0] };
            assert_eq!(after.contents() == before, rewrite, "{placement:?}");
        }
    }
}

#[test]
fn a_leaf_of_a_broadcast_has_no_input_to_write() {
    let (data_type, op) = (DataType::Float32, ReduceOp::Sum);
    let (operation, buckets) = (Operation::Broadcast, Vec::new());
    let cell = Cell { operation, bytes: 400, data_type, op, root: 1, buckets };
    let placement = Placement::InPlace;
    let options = Options { check: false, rewrite: true, ..Options::default() };
    let written = [0, 1].map(|rank| {
        let (layout, notebook) = (cell.layout(rank, 2), Notebook::default());
        let arena = Arena::new(arena_bytes(&cell, placement, rank, 2, &options)).unwrap();
        let what = (&cell, &layout, placement);
        let mut stage = Stage::new(&notebook, &arena, (rank, 2), what, &options);
        stage.recvs[0].contents_mut().fill(POISON);
        stage.refill();
        stage.recvs[0].contents().iter().any(|byte| *byte != POISON)
    });
    assert_eq!(written, [false, true]);
}

#[test]
fn sums_show_their_order_but_where_hosts_have_parts_of_their_own() {
    let (data_type, op) = (DataType::Float32, ReduceOp::Sum);
    let (operation, buckets) = (Operation::AllReduce, Vec::new());
    let cell = Cell { operation, bytes: 400, data_type, op, root: 0, buckets };
    let layout = cell.layout(0, 3);
    let plain = Options::default();
    let tcp = Options { tcp: true, ..plain.clone() };
    let ring = Options { algorithm: Some("ring".into()), ..plain.clone() };
    let twoshot = Options { algorithm: Some("twoshot".into()), ..plain.clone() };
    let asked = Options { deterministic: true, ..ring.clone() };
    for (options, nested, serial) in [
        (&plain, false, true),
        (&plain, true, false),
        (&tcp, false, true),
        (&tcp, true, false),
        (&ring, false, false),
        (&twoshot, false, true),
        (&asked, true, true),
    ] {
        let notebook = Notebook { has_host_order: nested, ..Notebook::default() };
        let placement = Placement::OutOfPlace;
        let arena = Arena::new(arena_bytes(&cell, placement, 0, 3, options)).unwrap();
        let what = (&cell, &layout, placement);
        let stage = Stage::new(&notebook, &arena, (0, 3), what, options);
        let wanted = Pattern::new(data_type, Some(op), 3, serial);
        assert!(stage.pattern.input(0, 1) == wanted.input(0, 1), "{options:?} {nested}");
    }
}

#[test]
fn several_calls_of_an_iteration_are_one_group() {
    let asked = |operation, calls| noted(operation, &[], calls).0;
    assert_eq!(asked(Operation::AllReduce, 1), ["run 100"]);
    let three = ["start", "defer 100", "defer 100", "defer 100", "end"];
    assert_eq!(asked(Operation::AllReduce, 3), three);
    assert_eq!(asked(Operation::SendRecv, 1), ["exchange 2"]);
    // The second waits for the first to come, on both ranks.
    assert_eq!(asked(Operation::PingPong, 1), ["exchange 1", "exchange 1"]);
    assert_eq!(asked(Operation::PingPong, 2), ["exchange 1"; 4]);
    let two = ["start", "defer 2 messages", "defer 2 messages", "end"];
    assert_eq!(asked(Operation::SendRecv, 2), two);
}

#[test]
fn a_step_is_explained_by_its_buckets_and_a_call_by_itself() {
    let buckets = [60, 30, 10];
    let (asked, next) = noted(Operation::AllReduce, &buckets, 1);
    assert_eq!(asked, ["run 60", "run 30", "run 10"]);
    assert_eq!(next, buckets);
    assert_eq!(noted(Operation::AllReduce, &[], 1).1, [100]);
}
