//! Tests of the handle table: every misuse is told apart, also while calls are running.

use super::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize};

fn table<T: Send + Sync>(kind: HandleKind) -> &'static HandleTable<T> {
    Box::leak(Box::new(HandleTable::new(kind)))
}

#[test]
fn a_handle_leads_to_its_value_until_it_is_closed() {
    let table = table(HandleKind::Communicator);
    let (first, second) = (table.insert("one").unwrap(), table.insert("two").unwrap());
    assert!(!first.is_null() && first != second);
    assert_eq!((*table.enter(first).unwrap(), *table.enter(second).unwrap()), ("one", "two"));
    assert_eq!(table.close(first), Some("one"));
    assert!(table.enter(first).is_none() && table.enter_alive(first).is_none());
    assert_eq!(table.close(first), None);
    assert_eq!(*table.enter(second).unwrap(), "two");
}

#[test]
fn the_next_tenant_of_a_slot_is_not_reached_by_the_old_handle() {
    let table = table(HandleKind::Communicator);
    let old = table.insert(1).unwrap();
    table.close(old).unwrap();
    let new = table.insert(2).unwrap();
    assert_ne!(old, new);
    assert!(table.enter(old).is_none() && table.close(old).is_none());
    assert_eq!(*table.enter(new).unwrap(), 2);
}

#[test]
fn null_garbage_and_other_kinds_are_refused() {
    let table = table(HandleKind::Communicator);
    let streams = super::tests::table(HandleKind::Stream);
    let (stream, handle) = (streams.insert(1).unwrap(), table.insert(1).unwrap());
    assert!(table.enter(stream).is_none() && streams.enter(handle).is_none());
    let local = 5;
    let mut garbage = vec![0, 1, usize::MAX, &raw const local as usize];
    // Every single-bit change of a good handle, which also reaches segments never made.
    garbage.extend((0..64).map(|bit| handle.addr() ^ 1 << bit));
    for bits in garbage {
        let forged = std::ptr::without_provenance_mut(bits);
        assert!(table.enter(forged).is_none(), "{bits:#x}");
        assert!(table.enter_alive(forged).is_none(), "{bits:#x}");
        assert!(table.close(forged).is_none(), "{bits:#x}");
    }
    assert!(table.enter(handle).is_some());
}

#[test]
fn closing_waits_for_the_call_inside_and_lets_abort_in() {
    let table = table(HandleKind::Communicator);
    let handle = table.insert(AtomicBool::new(false)).unwrap().addr();
    let pointer = |bits| std::ptr::without_provenance_mut(bits);
    let inside = table.enter(pointer(handle)).unwrap();
    let closer = std::thread::spawn(move || table.close(pointer(handle)).is_some());
    while table.enter(pointer(handle)).is_some() {
        std::thread::yield_now();
    }
    let abort = table.enter_alive(pointer(handle)).expect("abort comes in while closing");
    abort.store(true, Ordering::Relaxed);
    assert!(table.close(pointer(handle)).is_none(), "a second destroy is refused");
    drop(abort);
    assert!(!closer.is_finished(), "a call is still inside");
    assert!(inside.load(Ordering::Relaxed));
    drop(inside);
    assert!(closer.join().unwrap());
}

/// Counts itself, so that a value dropped twice or never shows.
struct Counted(Arc<AtomicUsize>, [usize; 8]);

impl Drop for Counted {
    fn drop(&mut self) {
        self.1 = [0; 8];
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn callers_and_destroyers_of_the_same_handle_never_meet_a_dead_value() {
    let table = table::<Counted>(HandleKind::Communicator);
    let dropped = Arc::new(AtomicUsize::new(0));
    for round in 1..=200 {
        let value = Counted(dropped.clone(), [round; 8]);
        let handle = table.insert(value).unwrap().addr();
        let pointer = move || std::ptr::without_provenance_mut(handle);
        let closed: usize = std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(move || {
                    while let Some(value) = table.enter(pointer()) {
                        assert_eq!(value.1, [round; 8]);
                    }
                });
            }
            let closers: Vec<_> =
                (0..2).map(|_| scope.spawn(move || table.close(pointer()).is_some())).collect();
            closers.into_iter().map(|closer| usize::from(closer.join().unwrap())).sum()
        });
        assert_eq!(closed, 1, "exactly one destroy succeeds");
        assert_eq!(dropped.load(Ordering::Relaxed), round);
    }
}

#[test]
fn more_handles_than_one_segment_holds() {
    let table = table(HandleKind::Registration);
    let handles: Vec<_> = (0..SEGMENT * 2 + 3).map(|i| table.insert(i).unwrap()).collect();
    for (i, handle) in handles.iter().enumerate() {
        assert_eq!(*table.enter(*handle).unwrap(), i);
    }
}
