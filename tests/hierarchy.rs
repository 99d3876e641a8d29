//! Plans between hosts: the proof over every topology of up to six ranks and many larger ones that
//! all of them sum in host order, and how often bytes cross between hosts.

#[path = "support/mutants.rs"]
mod mutants;

use mutants::mutants;
use ringcomm::algorithm::{self, Algorithm};
use ringcomm::plan::topology::Topology;
use ringcomm::plan::verify::{self, MAX_RANKS, Placement};
use ringcomm::plan::{Collective, End, PIPELINE_DEPTH, Plan};

/// Slots of a connection, the least that is shipped.
const DEPTH: usize = 2;

const NESTED: [Algorithm; 2] = [Algorithm::Hierarchical, Algorithm::Leaders];

fn plans(
    topology: &Topology,
    algorithm: Algorithm,
    collective: Collective,
    root: usize,
) -> Option<Vec<Plan>> {
    let plan = |rank| algorithm::plan_on(topology, algorithm, collective, rank, root);
    (0..topology.nranks()).map(plan).collect()
}

/// What an algorithm does in host order on a topology.
fn does(topology: &Topology, algorithm: Algorithm, collective: Collective) -> bool {
    use Collective::*;
    let alone = topology.nhosts() == topology.nranks();
    match algorithm {
        _ if topology.nhosts() == 1 => false,
        Algorithm::Hierarchical | Algorithm::Leaders if alone => false,
        Algorithm::Doubling => matches!(collective, AllReduce | Barrier),
        Algorithm::Halving => matches!(collective, AllReduce | ReduceScatter),
        Algorithm::Binomial => collective == Reduce,
        Algorithm::OneShot if alone => collective.reduces(),
        Algorithm::TwoShot if alone => matches!(collective, AllReduce | Reduce),
        Algorithm::Hierarchical => {
            matches!(collective, AllReduce | ReduceScatter | AllGather | Broadcast | Reduce)
        }
        Algorithm::Leaders => matches!(collective, AllReduce | Broadcast | Reduce | Barrier),
        _ => false,
    }
}

fn roots(collective: Collective, nranks: usize) -> std::ops::Range<usize> {
    0..if collective.has_root() { nranks } else { 1 }
}

/// Every way to spread `nranks` ranks over hosts, hosts numbered by their first rank.
fn every_topology(nranks: usize) -> Vec<Topology> {
    let mut all = vec![vec![0]];
    for _ in 1..nranks {
        let longer = |hosts: Vec<usize>| {
            let next = hosts.iter().max().unwrap() + 1;
            (0..=next).map(move |host| [hosts.clone(), vec![host]].concat())
        };
        all = all.into_iter().flat_map(longer).collect();
    }
    all.iter().map(|hosts| Topology::new(hosts)).collect()
}

/// A xorshift generator: the same topologies on every run.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % limit as u64) as usize
    }
}

/// Topologies of up to 64 ranks: equal hosts, equal hosts dealt out in turns, and any.
fn some_topologies(count: usize) -> impl Iterator<Item = Topology> {
    let mut random = Random(7);
    (0..count).map(move |number| {
        let nhosts = 2 + random.below(if number % 4 == 3 { 63 } else { 9 });
        let local = 2 + random.below((64 / nhosts).max(3) - 2);
        let nranks = (nhosts * local).min(64);
        let host = |rank: usize| match number % 3 {
            0 => rank / local,
            1 => rank % nhosts,
            _ => random.below(nhosts),
        };
        Topology::new(&(0..nranks).map(host).collect::<Vec<_>>())
    })
}

/// What is wrong with the plans, if anything.
fn judge(
    topology: &Topology,
    collective: Collective,
    plans: &[Plan],
    root: usize,
) -> Result<(), String> {
    for placement in Placement::ALL {
        let report = verify::verify(collective, plans, root, DEPTH, placement)
            .map_err(|why| format!("{placement:?}: {why}"))?;
        for (chunk, formed) in report.formed.iter().enumerate() {
            if *formed != verify::formed_by_hosts(topology, chunk) {
                return Err(format!("chunk {chunk} is not in host order"));
            }
        }
    }
    verify::verify_pipelined(plans, PIPELINE_DEPTH).map_err(|why| format!("in stages: {why}"))
}

/// Proves everything for one topology; how many proofs that were.
fn prove(topology: &Topology) -> usize {
    let nranks = topology.nranks();
    prove_with(topology, &|collective| roots(collective, nranks).collect())
}

fn prove_with(topology: &Topology, roots: &dyn Fn(Collective) -> Vec<usize>) -> usize {
    let mut proofs = 0;
    let alone = topology.nhosts() == topology.nranks();
    for algorithm in Algorithm::ALL {
        for collective in Collective::ALL {
            let expected = does(topology, algorithm, collective);
            for root in roots(collective) {
                let name = format!("{collective:?} {algorithm}, root {root}, {topology:?}");
                let plans = plans(topology, algorithm, collective, root);
                if !algorithm::host_order(algorithm, collective, alone) || topology.nhosts() == 1 {
                    assert!(!expected, "{name}");
                    continue;
                }
                assert_eq!(plans.is_some(), expected, "{name}");
                let Some(plans) = plans else { continue };
                judge(topology, collective, &plans, root)
                    .unwrap_or_else(|why| panic!("{name}: {why}"));
                if NESTED.contains(&algorithm) {
                    check_wire(topology, algorithm, collective, &plans, root);
                }
                proofs += 1;
            }
        }
    }
    proofs
}

#[test]
fn every_plan_on_up_to_six_ranks_is_right_and_cannot_deadlock() {
    // The Bell number of n less the two topologies that are not nested.
    for (nranks, nested) in [(1, 0), (2, 0), (3, 3), (4, 13), (5, 50), (6, 201)] {
        let topologies = every_topology(nranks);
        assert_eq!(topologies.iter().filter(|topology| topology.is_hierarchical()).count(), nested);
        for topology in topologies {
            let proofs = prove(&topology);
            // With a root: two collectives by each of the hierarchical ones, and the binomial tree.
            // Without: three and two, and two each of doubling and halving.
            let nested = 4 * nranks + 5 + nranks + 4;
            // With a root: three trees or shots. Without: three shots and one.
            let alone = nranks + 4 + 2 * nranks + 4;
            let expected = match topology.nhosts() {
                1 => 0,
                hosts if hosts == nranks => alone,
                _ => nested,
            };
            assert_eq!(proofs, expected, "{topology:?}");
        }
    }
}

/// Ranks that follow each other, in hosts of every size.
#[test]
fn every_plan_on_even_and_uneven_hosts_is_right_for_every_number_of_ranks() {
    for nranks in 2..=MAX_RANKS {
        for local in (1..nranks).filter(|local| nranks <= 16 || local.is_power_of_two()) {
            // The last host has what is left.
            let topology = Topology::new(&(0..nranks).map(|rank| rank / local).collect::<Vec<_>>());
            let some = |root: &usize| nranks <= 16 || [0, nranks / 2, nranks - 1].contains(root);
            prove_with(&topology, &|collective| roots(collective, nranks).filter(some).collect());
        }
    }
}

#[test]
fn every_plan_on_larger_topologies_is_right_and_cannot_deadlock() {
    for topology in some_topologies(60) {
        prove(&topology);
    }
}

/// Chunks that leave and enter each host.
fn crossings(topology: &Topology, plans: &[Plan]) -> Vec<(usize, usize)> {
    let mut crossings = vec![(0, 0); topology.nhosts()];
    for plan in plans {
        let from = topology.host(plan.rank);
        for step in &plan.steps {
            for target in &step.targets {
                if let End::Peer(peer) = target
                    && topology.host(*peer) != from
                {
                    crossings[from].0 += step.span.len;
                    crossings[topology.host(*peer)].1 += step.span.len;
                }
            }
        }
    }
    crossings
}

/// What the header promises: how many times the vector leaves and enters a host, in chunks.
fn promised(
    topology: &Topology,
    algorithm: Algorithm,
    collective: Collective,
    nchunks: usize,
    root: usize,
    host: usize,
) -> (usize, usize) {
    let (nranks, nhosts) = (topology.nranks(), topology.nhosts());
    let (others, mine) = (nhosts - 1, topology.ranks(host).len());
    let home = topology.host(root) == host;
    let one_round = algorithm == Algorithm::Leaders || nhosts == 2;
    // The H-th part of the vector.
    let part = nchunks / nhosts;
    match collective {
        Collective::AllReduce | Collective::Barrier if one_round => {
            (others * nchunks, others * nchunks)
        }
        Collective::AllReduce => (2 * others * part, 2 * others * part),
        Collective::ReduceScatter => (nranks - mine, others * mine),
        Collective::AllGather => (others * mine, nranks - mine),
        Collective::Broadcast if home && one_round => (others * nchunks, 0),
        Collective::Broadcast if home => (2 * others * part, 0),
        Collective::Broadcast if one_round => (0, nchunks),
        Collective::Broadcast => ((nhosts - 2) * part, nchunks),
        Collective::Reduce if home && one_round => (0, others * nchunks),
        Collective::Reduce if home => (others * part, 2 * others * part),
        Collective::Reduce if one_round => (nchunks, 0),
        Collective::Reduce => (nchunks, others * part),
        _ => unreachable!("no hierarchical plan"),
    }
}

fn check_wire(
    topology: &Topology,
    algorithm: Algorithm,
    collective: Collective,
    plans: &[Plan],
    root: usize,
) {
    let counted = crossings(topology, plans);
    for (host, counted) in counted.into_iter().enumerate() {
        let nchunks = plans[0].nchunks;
        let promised = promised(topology, algorithm, collective, nchunks, root, host);
        assert_eq!(counted, promised, "{collective:?} {algorithm} host {host} of {topology:?}");
    }
}

#[test]
fn an_all_reduce_sends_twice_the_others_share_of_the_vector_from_each_host() {
    for (nhosts, local) in [(2, 2), (2, 8), (3, 2), (4, 4), (8, 8)] {
        let marks: Vec<usize> = (0..nhosts * local).map(|rank| rank / local).collect();
        let topology = Topology::new(&marks);
        let hierarchical = Algorithm::Hierarchical;
        let plans = plans(&topology, hierarchical, Collective::AllReduce, 0).expect("it exists");
        // A vector of `bytes` bytes that every number of chunks here divides.
        let bytes = 8 * 8 * 3 * 64;
        let chunk = bytes / plans[0].nchunks;
        for (out, into) in crossings(&topology, &plans) {
            assert_eq!(out * chunk, 2 * (nhosts - 1) * bytes / nhosts);
            assert_eq!(into, out);
        }
        // Every rank carries the same share of it.
        for plan in &plans {
            let alone = crossings(&topology, std::slice::from_ref(plan));
            let (out, _) = alone[topology.host(plan.rank)];
            assert_eq!(out * local * chunk, 2 * (nhosts - 1) * bytes / nhosts);
        }
    }
}

#[test]
fn every_mutant_is_rejected() {
    let mut survivors = Vec::new();
    let mut rejected = 0;
    let nested = [vec![0, 0, 1], vec![0, 1, 0, 1], vec![0, 0, 1, 1, 2], vec![0, 1, 1, 2, 0, 2]];
    for hosts in nested.into_iter().chain([vec![0, 1, 2, 3], vec![0, 1, 2, 3, 4]]) {
        let topology = Topology::new(&hosts);
        let alone = topology.nhosts() == topology.nranks();
        for algorithm in Algorithm::ALL {
            for collective in Collective::ALL {
                let root = if collective.has_root() { 1 } else { 0 };
                if !algorithm::host_order(algorithm, collective, alone) {
                    continue;
                }
                let Some(plans) = plans(&topology, algorithm, collective, root) else { continue };
                for (what, mutant) in mutants(&plans, collective.reduces()) {
                    match judge(&topology, collective, &mutant, root) {
                        Err(_) => rejected += 1,
                        Ok(()) => {
                            survivors.push(format!("{collective:?} {algorithm} {hosts:?}: {what}"))
                        }
                    }
                }
            }
        }
    }
    assert!(survivors.is_empty(), "{} of {rejected}: {survivors:#?}", survivors.len());
    assert!(rejected > 2000, "only {rejected} mutants");
}
