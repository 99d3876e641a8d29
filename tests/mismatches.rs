//! Ranks that make different calls: an error on every rank that names both ranks and both calls.

mod support;

use ringcomm::communicator::{Call, Vector};
use ringcomm::config::Config;
use ringcomm::plan::Collective;
use ringcomm::types::{DataType, ReduceOp};
use std::sync::Barrier;
use std::time::{Duration, Instant};
use support::processes::Ranks;
use support::scratch::{Scratch, run};
use support::{config, on_threads};

/// One way in which rank 1 may differ, and what the two calls are called.
type Slip = (&'static str, fn(&mut Call), &'static str, &'static str);

#[test]
fn ranks_that_disagree_all_fail_and_name_both_ranks_and_both_calls() {
    let slips: [(Collective, Slip); 8] = [
        (
            Collective::AllReduce,
            (
                "collective",
                |call| call.collective = Collective::AllGather,
                "AllReduce(count=100",
                "AllGather(count=100",
            ),
        ),
        (Collective::AllReduce, ("count", |call| call.count = 101, "count=100", "count=101")),
        (
            Collective::AllReduce,
            ("type", |call| call.data_type = DataType::Int32, "type=float", "type=int32"),
        ),
        (Collective::AllReduce, ("op", |call| call.op = ReduceOp::Max, "op=sum", "op=max")),
        (Collective::Broadcast, ("root", |call| call.root = 1, "root=0", "root=1")),
        (Collective::Reduce, ("root", |call| call.root = 1, "root=0", "root=1")),
        (Collective::Gather, ("count", |call| call.count = 7, "count=100", "count=7")),
        (
            Collective::Broadcast,
            (
                "collective",
                |call| call.collective = Collective::Barrier,
                "Broadcast(count=100",
                "Barrier(",
            ),
        ),
    ];
    for nranks in [2, 3, 5] {
        for (collective, (what, change, right, wrong)) in slips {
            let config = Config { timeout_ms: 20_000, ..config() };
            let agreed = Barrier::new(nranks);
            on_threads(nranks, &config, |comm| {
                let mut scratch = Scratch::new(nranks);
                let mut call = scratch.call(collective, 100);
                run(comm, &call).unwrap();
                agreed.wait();
                if comm.rank() == 1 {
                    change(&mut call);
                }
                // A rank that only sends may be through before anybody can know; it learns of it
                // at its next call.
                let next = scratch.call(Collective::AllReduce, 1);
                let outcome = run(comm, &call).and_then(|()| run(comm, &next));
                let text = outcome.expect_err("a mismatch").to_string();
                let named = text.contains(right) && text.contains(wrong) && text.contains("rank 1");
                let rank = comm.rank();
                let shown = collective.name();
                assert!(named, "{shown}, {what}, rank {rank} of {nranks}: {text}");
            });
        }
    }
}

#[test]
fn v_forms_whose_counts_disagree_fail_everywhere() {
    on_threads(3, &Config { timeout_ms: 20_000, ..config() }, |comm| {
        let mut scratch = Scratch::new(3);
        let counts = if comm.rank() == 2 { vec![5, 5, 6] } else { vec![5, 6, 6] };
        let vector = Vector {
            recv_displacements: vec![0, 10, 20],
            recv_counts: counts.clone(),
            ..Vector::default()
        };
        let call = scratch.call(Collective::AllGather, counts[comm.rank()]);
        let call = Call { vector: Some(&vector), ..call };
        let text = run(comm, &call).unwrap_err().to_string();
        assert!(text.contains("AllGather") && text.contains("rank 2"), "{text}");
    });
}

#[test]
fn processes_that_disagree_all_fail_too() {
    let config = Config { timeout_ms: 20_000, ..config() };
    let mut ranks = Ranks::start(3, &config, "", |comm, _| {
        let mut scratch = Scratch::new(3);
        let count = if comm.rank() == 2 { 50 } else { 60 };
        let call = scratch.call(Collective::AllReduce, count);
        run(comm, &call).unwrap_err().to_string()
    });
    let deadline = Instant::now() + Duration::from_secs(60);
    for rank in 0..3 {
        let text = ranks.end(rank, deadline).result.unwrap();
        assert!(text.contains("count=50") && text.contains("count=60"), "{text}");
        assert!(text.contains("rank 2"), "{text}");
    }
}
