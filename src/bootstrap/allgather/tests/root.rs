use super::*;
use crate::bootstrap::tcp::hello::{ANYONE, Purpose};

const PATIENCE: Duration = Duration::from_secs(60);

/// A root whose first contact, rank 1, took so long to prove itself and is cut off at `now`.
fn cut_off(took_ms: u64, now: Instant) -> (AllgatherRoot, TreeEvent) {
    let (purpose, to) = (Purpose::Meet, ANYONE);
    let greeting = Hello { purpose, rank: 1, to, nranks: 2, detail: 77, note: 5 };
    let came = |link| TreeEvent::Came {
        link,
        greeting: greeting.clone(),
        took: Duration::from_millis(took_ms),
    };
    let mut root = AllgatherRoot::apart(1, now, PATIENCE);
    root.on(came(1), now);
    root.on(TreeEvent::Lost { link: 1 }, now);
    (root, came(2))
}

fn here(pid: u32, host: &str) -> AllgatherMessage {
    AllgatherMessage::Here { pid, remaining_ms: 60_000, host: host.into(), addresses: Vec::new() }
}

#[test]
fn a_contact_that_is_cut_off_has_time_to_come_again_by_what_its_handshake_took() {
    let now = Instant::now();
    for (took_ms, at_least_ms, at_most_ms) in [(1, 70, 80), (300, 1200, 1400), (900, 1400, 1500)] {
        let after = |ms| now + Duration::from_millis(ms);
        let (mut root, again) = cut_off(took_ms, now);
        root.tick(after(at_least_ms));
        assert!(root.outcome().is_none(), "{took_ms} ms");
        root.on(again, after(at_least_ms));
        root.tick(after(at_most_ms));
        assert!(root.outcome().is_none(), "it has come again");
        let (mut root, _) = cut_off(took_ms, now);
        assert!(root.next_deadline().is_some_and(|at| at <= after(at_most_ms)));
        root.tick(after(at_most_ms));
        let outcome = root.outcome().expect("an outcome").as_ref().unwrap_err();
        assert!(outcome.error.to_string().contains("rank 1"), "{}", outcome.error);
    }
}

#[test]
fn a_meeting_that_ended_by_what_was_damaged_may_be_tried_again() {
    let now = Instant::now();
    let (mut root, again) = cut_off(1, now);
    root.on(again, now);
    root.on(TreeEvent::Garbled { link: 2, why: "nonsense" }, now);
    let unmet = root.outcome().expect("an outcome").clone().unwrap_err();
    assert_eq!(unmet.cause, crate::bootstrap::Blame::There);
    assert!(unmet.error.to_string().contains("got nonsense from rank 1"), "{}", unmet.error);
}

#[test]
fn the_tree_is_as_deep_as_the_logarithm_says() {
    let now = Instant::now();
    // Whole levels below the root of an arity of eight, one rank more, and the largest of
    // rendezvous.
    for (nranks, depth) in [(9, 1), (10, 2), (73, 2), (74, 3), (585, 3), (100_000, 6)] {
        let me = PeerId { rank: 0, pid: 1 };
        let mut root = AllgatherRoot::of(me, nranks, &[], now, now + PATIENCE);
        let mut depths = vec![0; nranks];
        for rank in 1..nranks as u32 {
            let link = u64::from(rank);
            let (purpose, to, nranks) = (Purpose::Meet, ANYONE, nranks as u32);
            let greeting = Hello { purpose, rank, to, nranks, detail: rank, note: link };
            root.on(TreeEvent::Came { link, greeting, took: Duration::ZERO }, now);
            root.on(TreeEvent::Said { link, message: here(rank, "") }, now);
            let parent = root.take_actions().iter().find_map(|action| match action {
                TreeAction::Say { message: AllgatherMessage::Place { parent, .. }, .. }
                | TreeAction::Say { message: AllgatherMessage::Adopted { parent, .. }, .. } => {
                    Some(parent.rank)
                }
                _ => None,
            });
            depths[rank as usize] = depths[parent.expect("a place") as usize] + 1;
        }
        assert_eq!(depths.iter().max(), Some(&depth), "{nranks} ranks");
        // Eight children each: one level more than the logarithm at most.
        assert!(depth <= nranks.ilog(ARITY) + 1);
    }
}

#[test]
fn a_failure_names_the_host_that_its_rank_is_on_whoever_found_it_out() {
    let now = Instant::now();
    // What the root hears, on the connection of which rank, and what it says.
    let failures: [(u64, Option<Failure>, &str); 3] = [
        (1, None, "rank 1 (host node7, pid 41) died"),
        (2, Some(died(PeerId { rank: 1, pid: 41 })), "rank 1 (host node7, pid 41) died"),
        // It has not said where it is: this host it is not, for all that is known.
        (3, Some(died(PeerId { rank: 5, pid: 45 })), "rank 5 (pid 45) died"),
    ];
    for (link, heard, text) in failures {
        let me = PeerId { rank: 0, pid: 40 };
        let mut root = AllgatherRoot::of(me, 8, &[], now, now + PATIENCE);
        for rank in 1..4 {
            let (purpose, to, note) = (Purpose::Meet, ANYONE, u64::from(rank));
            let greeting = Hello { purpose, rank, to, nranks: 8, detail: 40 + rank, note };
            root.on(TreeEvent::Came { link: note, greeting, took: Duration::ZERO }, now);
            let message = here(40 + rank, "node7");
            root.on(TreeEvent::Said { link: note, message }, now);
        }
        root.on(
            match heard {
                Some(failure) => {
                    TreeEvent::Said { link, message: AllgatherMessage::Failure(failure) }
                }
                None => TreeEvent::Lost { link },
            },
            now,
        );
        let unmet = root.outcome().expect("an outcome").clone().unwrap_err();
        assert!(unmet.error.to_string().starts_with(text), "{}", unmet.error);
        let told = root.take_actions().into_iter().any(|action| match action {
            TreeAction::Say { message: AllgatherMessage::Failure(failure), .. } => {
                into_unmet(failure, 6, 8).error.to_string().starts_with(text)
            }
            _ => false,
        });
        assert!(told, "{text}");
    }
}

/// A rank that has come and cannot be let in is no rank that is missing, nor does who waits for it
/// hold the rendezvous up.
#[test]
fn a_root_that_can_take_no_more_connections_says_so_of_itself() {
    let now = Instant::now();
    let (purpose, to) = (Purpose::Meet, ANYONE);
    for (nranks, before) in [(3, "only 2 of 3 ranks"), (2, "it came to the rendezvous and then")] {
        let text = |shortage: Option<i32>, root: PeerId| {
            let mut of = AllgatherRoot::of(root, nranks, &[], now, now + PATIENCE);
            let n = nranks as u32;
            let greeting = Hello { purpose, rank: 1, to, nranks: n, detail: 41, note: 1 };
            of.on(TreeEvent::Came { link: 1, greeting, took: Duration::ZERO }, now);
            of.set_shortage(shortage, false, now);
            assert!(of.outcome().is_none(), "what is short now may not be at the deadline");
            of.tick(now + PATIENCE);
            let failure = of.take_actions().into_iter().find_map(|action| match action {
                TreeAction::Say { message: AllgatherMessage::Failure(failure), .. } => {
                    Some(failure)
                }
                _ => None,
            });
            let unmet = of.outcome().expect("an outcome").clone().unwrap_err();
            let told = into_unmet(failure.expect("everybody is told"), 1, nranks);
            [unmet.error, told.error].map(|error| error.to_string())
        };
        let root = PeerId { rank: 0, pid: 40 };
        let why = |who: &str| format!("{who} can take no more connections (its process may have ");
        text(None, root).iter().for_each(|text| assert!(text.contains(before), "{text}"));
        let [own, told] = text(Some(libc::EMFILE), root);
        assert!(own.starts_with(&why("rank 0")) && own.contains("raise `ulimit -n`"), "{own}");
        let failed = format!("rank 0 (host {}, pid 40) failed and rank 1", host::name());
        assert!(told.starts_with(&failed) && told.contains(&why("rank 0")), "{told}");
        let [_, told] = text(Some(libc::ENFILE), PeerId { rank: NO_RANK, pid: 40 });
        let process =
            format!("the process that made the unique id (host {}, pid 40)", host::name());
        assert!(told.starts_with(&process) && told.contains("fs.file-max"), "{told}");
    }
}

/// Nobody waits for the deadline where no stranger has what the root lacks.
#[test]
fn a_root_that_starves_gives_up_soon_unless_it_recovers() {
    let (now, me) = (Instant::now(), PeerId { rank: 0, pid: 40 });
    let mut root = AllgatherRoot::of(me, 2, &[], now, now + 100 * PATIENCE);
    root.set_shortage(Some(libc::EMFILE), true, now);
    let starved = root.next_deadline().unwrap();
    assert!(starved < now + PATIENCE);
    root.set_shortage(None, false, now);
    root.tick(starved);
    assert!(root.outcome().is_none() && root.next_deadline().unwrap() > starved);
    root.set_shortage(Some(libc::EMFILE), true, now);
    root.set_shortage(Some(libc::EMFILE), true, starved);
    root.tick(starved);
    let unmet = root.outcome().expect("an outcome").clone().unwrap_err();
    assert!(unmet.error.to_string().contains("raise `ulimit -n`"), "{}", unmet.error);
}
