//! Detection: every family complete, every family with each of its variables missing, never a
//! mixture.

use super::*;
use crate::error::{Error, Result};
use std::collections::HashMap;

type Variables = Vec<(&'static str, &'static str)>;

fn with(
    variables: &[(&str, &str)],
    url: Option<&str>,
    rank: Option<usize>,
    nranks: Option<usize>,
) -> Result<LaunchFacts> {
    let all: HashMap<&str, &str> = variables.iter().copied().collect();
    detect(|name| all.get(name).map(|value| value.to_string()), url, rank, nranks)
}

fn of(variables: &[(&str, &str)]) -> Result<LaunchFacts> {
    with(variables, None, None, None)
}

fn refusal(variables: &[(&str, &str)]) -> String {
    of(variables).unwrap_err().to_string()
}

fn address(host: &str, port: u16) -> RendezvousPlace {
    RendezvousPlace::Address { host: host.into(), port }
}

/// A family's name, its variables for rank 2 of 4 on two machines, and where its ranks meet.
fn families() -> Vec<(&'static str, Variables, RendezvousPlace)> {
    let master = [("MASTER_ADDR", "head"), ("MASTER_PORT", "29500")];
    let own = [("RINGCOMM_ADDRESS", "head:5000")];
    let family = |names: [&'static str; 4]| -> Variables {
        names.into_iter().zip(["2", "4", "0", "2"]).collect()
    };
    let ringcomm =
        family(["RINGCOMM_RANK", "RINGCOMM_NRANKS", "RINGCOMM_LOCAL_RANK", "RINGCOMM_LOCAL_SIZE"]);
    let torch = family(["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"]);
    let horovod =
        family(["HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE"]);
    let open_mpi = family([
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ]);
    let pmi = family(["PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"]);
    let slurm = vec![
        ("SLURM_PROCID", "2"),
        ("SLURM_STEP_NUM_TASKS", "4"),
        ("SLURM_LOCALID", "0"),
        ("SLURM_NODEID", "1"),
        ("SLURM_STEP_TASKS_PER_NODE", "2(x2)"),
        ("SLURM_JOB_ID", "71234"),
        ("SLURM_STEP_ID", "3"),
        ("SLURM_STEP_NODELIST", "node[07-08]"),
    ];
    let and = |family: Variables, more: &[(&'static str, &'static str)]| {
        family.into_iter().chain(more.iter().copied()).collect()
    };
    vec![
        ("RINGCOMM_*", and(ringcomm, &own), address("head", 5000)),
        ("RANK/WORLD_SIZE", and(torch, &master), address("head", 29501)),
        ("HOROVOD_*", and(horovod, &own), address("head", 5000)),
        ("OMPI_COMM_WORLD_*", and(open_mpi, &own), address("head", 5000)),
        ("PMI_*", and(pmi, &own), address("head", 5000)),
        // 71234 + 3 * 1009 = 74261.
        ("SLURM_*", slurm, address("node07", 24261)),
    ]
}

#[test]
fn every_complete_family_is_read() {
    for (family, variables, place) in families() {
        let found = of(&variables).unwrap();
        assert_eq!((found.rank, found.nranks), (2, 4), "{family}");
        assert_eq!((found.local_rank, found.local_size), (Some(0), Some(2)), "{family}");
        assert_eq!(found.place, place, "{family}");
        for (name, _) in &variables[..2] {
            assert!(found.found.contains(&format!("{name}=")), "{family}: {}", found.found);
        }
    }
}

#[test]
fn an_incomplete_family_is_named_with_what_is_missing() {
    for (family, variables, _) in families() {
        for (at, (name, _)) in variables[..2].iter().enumerate() {
            let mut rest = variables.clone();
            rest.remove(at);
            let text = refusal(&rest);
            assert!(text.contains(&format!("{family} is incomplete")), "{text}");
            assert!(text.contains(&format!("{name} is not set")), "{text}");
        }
    }
    let without = |family: &str, name: &str| {
        let mut all = families().into_iter().find(|(this, ..)| *this == family).unwrap().1;
        all.retain(|(this, _)| *this != name);
        refusal(&all)
    };
    for (family, name) in [
        ("RANK/WORLD_SIZE", "MASTER_ADDR"),
        ("RANK/WORLD_SIZE", "MASTER_PORT"),
        ("SLURM_*", "SLURM_JOB_ID"),
        ("SLURM_*", "SLURM_STEP_ID"),
        ("SLURM_*", "SLURM_STEP_NODELIST"),
    ] {
        let text = without(family, name);
        assert!(text.contains(family) && text.contains(&format!("{name} is not set")), "{text}");
    }
    for family in ["RINGCOMM_*", "HOROVOD_*", "OMPI_COMM_WORLD_*", "PMI_*"] {
        let text = without(family, "RINGCOMM_ADDRESS");
        assert!(text.contains(family) && text.contains("RINGCOMM_ADDRESS"), "{text}");
    }
}

#[test]
fn the_first_complete_family_counts_and_none_lends_another_a_variable() {
    let families = families();
    for (at, (first, variables, place)) in families.iter().enumerate() {
        for (later, others, _) in &families[at + 1..] {
            // The later family's ranks differ: 1 of 3.
            let changed = others.iter().enumerate().map(|(at, (name, value))| match at {
                0 => (*name, "1"),
                1 => (*name, "3"),
                _ => (*name, *value),
            });
            let changed: Variables = changed.collect();
            let both: Variables = changed.iter().chain(variables).copied().collect();
            let found = of(&both).unwrap();
            let place = match both.contains(&("RINGCOMM_ADDRESS", "head:5000")) {
                true => &address("head", 5000),
                false => place,
            };
            assert_eq!((found.rank, &found.place), (2, place), "{first} before {later}");
            // Without its number of ranks the first is passed over, whole.
            let mut both: Variables = variables.clone();
            let gone = both.remove(1).0;
            both.extend(&changed);
            let found = of(&both).unwrap();
            assert_eq!((found.rank, found.nranks), (1, 3), "{first} without {gone}, then {later}");
            assert!(found.found.contains(&format!("ignored: {first}")), "{}", found.found);
        }
    }
}

#[test]
fn a_launcher_within_another_ones_job_does_not_get_its_place() {
    let slurm = families().pop().unwrap().1;
    let pmi = |rank, size| [("PMI_RANK", rank), ("PMI_SIZE", size)];
    let both = |pmi: [(&'static str, &'static str); 2]| -> Variables {
        pmi.into_iter().chain(slurm.iter().copied()).collect()
    };
    assert_eq!(of(&both(pmi("2", "4"))).unwrap().place, address("node07", 24261));
    let text = refusal(&both(pmi("1", "4")));
    assert!(text.contains("PMI_* says rank 1 of 4"), "{text}");
}

#[test]
fn ranks_of_one_machine_need_no_address() {
    for (family, mut variables, _) in families().into_iter().take(5) {
        variables.retain(|(name, _)| *name != "RINGCOMM_ADDRESS");
        variables[3].1 = "4";
        let found = of(&variables).unwrap();
        assert_eq!(found.place, RendezvousPlace::Machine, "{family}");
    }
    // Of two jobs at once, the address still tells which.
    let torch = |port| {
        of(&[
            ("RANK", "0"),
            ("WORLD_SIZE", "2"),
            ("LOCAL_WORLD_SIZE", "2"),
            ("MASTER_ADDR", "a"),
            ("MASTER_PORT", port),
        ])
    };
    assert_ne!(torch("1").unwrap().job, torch("2").unwrap().job);
}

#[test]
fn a_batch_script_is_no_rank() {
    let batch = [
        ("SLURM_PROCID", "0"),
        ("SLURM_NTASKS", "2"),
        ("SLURM_JOB_ID", "7"),
        ("SLURM_NODELIST", "a,b"),
    ];
    let text = refusal(&batch);
    assert!(text.contains("SLURM_STEP_ID") && text.contains("srun"), "{text}");
}

#[test]
fn arguments_come_first_and_must_agree() {
    let slurm = families().pop().unwrap().1;
    let found = with(&slurm, Some("tcp://h:7"), Some(0), Some(9)).unwrap();
    assert_eq!((found.rank, found.nranks, found.place), (0, 9, address("h", 7)));
    let found = with(&slurm, Some("tcp://h:7"), None, None).unwrap();
    assert_eq!((found.rank, found.nranks, found.place), (2, 4, address("h", 7)));
    let found = with(&slurm, None, None, Some(4)).unwrap();
    assert_eq!((found.rank, found.nranks), (2, 4));
    let text = with(&slurm, None, None, Some(5)).unwrap_err().to_string();
    assert!(text.contains("5 in the call and 4 in the environment"), "{text}");
    let text = with(&[], Some("tcp://h:7?rank=1"), Some(0), Some(2)).unwrap_err().to_string();
    assert!(text.contains("0 in the call and 1 in the URL"), "{text}");
    let found = with(&[], Some("tcp://h:7?rank=1&world_size=2"), None, None).unwrap();
    assert_eq!((found.rank, found.nranks), (1, 2));
    let master = [("MASTER_ADDR", "h"), ("MASTER_PORT", "65535")];
    let found = with(&master, Some("env://"), Some(1), Some(2)).unwrap();
    assert_eq!(found.place, address("h", 65534));
    let text = with(&[], None, Some(1), Some(2)).unwrap_err().to_string();
    assert!(text.contains("nothing says where they meet"), "{text}");
    assert!(with(&[], Some("tcp://h:7"), Some(2), Some(2)).is_err());
    assert!(with(&[], Some("tcp://h:7"), Some(0), Some(0)).is_err());
}

#[test]
fn a_url_can_ask_one_family_alone() {
    let all: Variables = families().into_iter().flat_map(|(_, all, _)| all).collect();
    let all: Variables = all
        .into_iter()
        .filter(|(name, _)| *name != "RINGCOMM_ADDRESS")
        .map(|(name, value)| if name == "SLURM_PROCID" { (name, "3") } else { (name, value) })
        .collect();
    assert_eq!(with(&all, Some("slurm://"), None, None).unwrap().rank, 3);
    assert_eq!(with(&all, Some("env://"), None, None).unwrap().rank, 2);
    let text = with(&[], Some("slurm://"), None, None).unwrap_err().to_string();
    assert!(text.contains("no variable of SLURM_* is set"), "{text}");
}

#[test]
fn a_rank_is_known_where_only_a_url_can_say_where_it_meets() {
    let known = |variables: &[(&'static str, &'static str)]| {
        let all: HashMap<&str, &str> = variables.iter().copied().collect();
        launched(|name| all.get(name).map(|value| value.to_string()))
    };
    let mpi = [("OMPI_COMM_WORLD_RANK", "2"), ("OMPI_COMM_WORLD_SIZE", "4")];
    let found = known(&mpi).unwrap();
    assert_eq!((found.rank, found.nranks, found.local_rank), (2, 4, None));
    assert!(found.found.contains("RINGCOMM_ADDRESS"), "{}", found.found);
    assert!(known(&[("RANK", "0")]).is_err());
    assert!(known(&[("RANK", "x"), ("WORLD_SIZE", "2")]).is_err());
    assert_eq!(known(&families()[1].1).unwrap().rank, 2);
}

#[test]
fn values_that_are_no_ranks_are_named() {
    let text = refusal(&[("RANK", "x"), ("WORLD_SIZE", "2")]);
    assert!(text.contains("RANK=\"x\" is no whole number"), "{text}");
    let text = refusal(&[("RANK", "2"), ("WORLD_SIZE", "2")]);
    assert!(text.contains("RANK=2 WORLD_SIZE=2"), "{text}");
    let text = with(&[], Some("tcp://h:7"), Some(0), Some(1 << 31)).unwrap_err().to_string();
    assert!(text.contains("2147483648 ranks"), "{text}");
    let text = refusal(&[("RANK", ""), ("WORLD_SIZE", " ")]);
    assert!(text.contains("nothing says which rank this is: no launcher"), "{text}");
    // No launcher at all is told from half of what one says by the kind of the error.
    assert!(matches!(with(&[], None, None, None), Err(Error::InvalidUsage(_))));
    assert!(matches!(with(&[("RANK", "1")], None, None, None), Err(Error::InvalidArgument(_))));
}

#[test]
fn jobs_and_restarts_have_names_of_their_own() {
    let job = |more: &[(&'static str, &'static str)]| {
        let torch = families().remove(1).1;
        of(&torch.into_iter().chain(more.iter().copied()).collect::<Variables>()).unwrap().job
    };
    let names = [
        job(&[]),
        job(&[("TORCHELASTIC_RUN_ID", "a")]),
        job(&[("RINGCOMM_JOB", "a")]),
        job(&[("RINGCOMM_JOB", "a"), ("RINGCOMM_RESTART", "1")]),
    ];
    let apart: std::collections::HashSet<_> = names.iter().collect();
    assert_eq!(apart.len(), names.len(), "{names:?}");
}

/// With c10d MASTER_PORT is a free one of those that connections get, and so are its neighbours.
#[test]
fn a_port_that_torchrun_drew_leads_to_one_that_no_connection_gets() {
    let place = |port, more: &[(&'static str, &'static str)]| {
        let mut torch = families().remove(1).1;
        torch.retain(|(name, _)| *name != "MASTER_PORT");
        torch.extend([("MASTER_PORT", port)].iter().chain(more));
        of(&torch).unwrap().place
    };
    let run = [("TORCHELASTIC_RUN_ID", "a")];
    assert_eq!(place("41235", &run), address("head", 21235));
    assert_eq!(place("32768", &run), address("head", 22768));
    assert_eq!(place("29500", &run), address("head", 29501));
    assert_eq!(place("41235", &[]), address("head", 41236), "chosen by hand");
}

/// An agent that joins a job after a restart has not restarted anything yet.
#[test]
fn restarts_that_one_agent_counts_part_no_ranks_of_several() {
    let job = |local_size, count, url: Option<&str>| {
        let mut torch = families().remove(1).1;
        torch[3].1 = local_size;
        torch.extend([("TORCHELASTIC_RUN_ID", "a"), ("TORCHELASTIC_RESTART_COUNT", count)]);
        with(&torch, url, None, None).unwrap().job
    };
    for url in [None, Some("file:///shared/f"), Some("tcp://h:7")] {
        assert_eq!(job("2", "0", url), job("2", "1", url), "{url:?}");
        // All ranks are this agent's, which has ended those of its last start.
        assert_ne!(job("4", "0", url), job("4", "1", url), "{url:?}");
    }
}

#[test]
fn the_message_says_where_the_secret_is_and_not_what() {
    let torch = families().remove(1).1;
    let said = |more: &[(&'static str, &'static str)]| {
        of(&torch.iter().chain(more).copied().collect::<Variables>()).unwrap().found
    };
    assert!(said(&[]).contains("only this machine"));
    let text = said(&[("RINGCOMM_SECRET", "abcdefghijklmnop"), ("RINGCOMM_SECRET_FILE", "/x")]);
    assert!(text.contains("RINGCOMM_SECRET") && !text.contains("abcdef"), "{text}");
    assert!(said(&[("RINGCOMM_SECRET_FILE", "/x/y")]).contains("/x/y"));
    let found = with(&torch, Some("file:///shared/f"), None, None).unwrap();
    assert_eq!(found.place, RendezvousPlace::File("/shared/f".into()));
    assert!(found.found.contains("the file carries the secret"), "{}", found.found);
}

#[test]
fn every_variable_of_ours_is_in_the_table() {
    let sources =
        [include_str!("launcher_env.rs"), include_str!("detect.rs"), include_str!("secret.rs")]
            .concat();
    let known: Vec<&str> = crate::config::Config::variables().map(|(name, _)| name).collect();
    let named = sources.match_indices("RINGCOMM_").map(|(at, _)| {
        let rest = &sources[at..];
        let end = rest.find(|c: char| !c.is_ascii_uppercase() && c != '_').unwrap_or(rest.len());
        rest[..end].trim_end_matches('_')
    });
    let named: std::collections::BTreeSet<&str> =
        named.filter(|name| *name != "RINGCOMM").collect();
    assert!(named.len() >= 9, "{named:?}");
    for name in named {
        assert!(known.contains(&name), "{name} is not in the table of config.rs");
    }
}
