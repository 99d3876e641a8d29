//! The prover on plans small enough to know the answer.

use super::*;
use crate::plan::Collective::*;

fn exchange() -> Vec<Plan> {
    let one = Span::one(0);
    let mut low = Plan::new(0, 2, 1);
    low.send(one, 1, End::Input);
    low.finish(one, &[End::Output], &[End::Input, End::Peer(1)]);
    let mut high = Plan::new(1, 2, 1);
    high.send(one, 0, End::Input);
    high.finish(one, &[End::Output], &[End::Peer(0), End::Input]);
    vec![low, high]
}

fn fault(collective: Collective, plans: &[Plan], depth: usize, placement: Placement) -> Fault {
    verify(collective, plans, 0, depth, placement).unwrap_err().fault
}

#[test]
fn an_exchange_in_rank_order_is_right_and_serial() {
    for placement in Placement::ALL {
        let report = verify(AllReduce, &exchange(), 0, 1, placement).unwrap();
        assert_eq!((report.messages, report.chunks), (vec![1, 1], vec![1, 1]));
        assert!(report.serial && report.formed.len() == 1);
    }
}

#[test]
fn another_order_on_one_rank_is_another_result() {
    let mut plans = exchange();
    plans[1].steps[1].sources.reverse();
    let fault = fault(AllReduce, &plans, 2, Placement::OutOfPlace);
    assert_eq!(fault, Fault::Disagree { chunk: 0 });
}

#[test]
fn an_input_sent_after_the_output_replaced_it_is_wrong_in_place_only() {
    let one = Span::one(0);
    let mut root = Plan::new(0, 2, 1);
    root.finish(one, &[End::Output], &[End::Input, End::Peer(1)]);
    root.send(one, 1, End::Input);
    let mut leaf = Plan::new(1, 2, 1);
    leaf.send(one, 0, End::Input);
    leaf.finish(one, &[End::Output], &[End::Peer(0), End::Input]);
    let mut plans = vec![root, leaf];
    plans[1].steps[1].sources.reverse();
    assert_eq!(
        fault(AllReduce, &plans, 2, Placement::InPlace),
        Fault::InputGone { chunk: 0 },
        "in place"
    );
    plans[1].steps[1].sources.reverse();
    assert!(verify(AllReduce, &plans, 0, 2, Placement::OutOfPlace).is_ok(), "out of place");
}

#[test]
fn the_text_names_rank_step_and_reason() {
    let mut plans = exchange();
    plans[0].steps.remove(0);
    let text = verify(AllReduce, &plans, 0, 2, Placement::OutOfPlace).unwrap_err().to_string();
    assert_eq!(text, "rank 1, step 1, slice 0: deadlock: waits for a message from rank 0");
}

#[test]
fn a_full_connection_in_a_circle_is_a_deadlock() {
    let one = Span::one(0);
    let mut plans = exchange();
    for (rank, plan) in plans.iter_mut().enumerate() {
        plan.steps.insert(0, plan.steps[0].clone());
        plan.steps.push(Step {
            span: one,
            targets: vec![End::Scratch],
            sources: vec![End::Peer(1 - rank)],
            finish: false,
            balanced: false,
            stage: 0,
        });
    }
    assert!(verify(AllReduce, &plans, 0, 2, Placement::OutOfPlace).is_ok());
    assert_eq!(
        fault(AllReduce, &plans, 1, Placement::OutOfPlace),
        Fault::Deadlock { waits_for: Wait::Slot { to: 1 } }
    );
}

#[test]
fn a_message_for_nobody_is_found() {
    let mut plans = exchange();
    let extra = plans[0].steps[0].clone();
    plans[0].steps.push(extra);
    let found = fault(AllReduce, &plans, 8, Placement::OutOfPlace);
    assert!(matches!(found, Fault::Mismatch { peer: 0, .. }), "{found:?}");
}
