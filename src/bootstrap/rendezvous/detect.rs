//! Who this rank is and where it meets the others: the first complete answer, never a mixture.

use super::launcher_env::{FAMILIES, LauncherRank, Lookup, Reading, master};
use super::secret::SecretSource;
use super::url::{self, JoinUrl};
use super::{LaunchFacts, Launched, RendezvousPlace};
use crate::error::{Error, Result};

/// Find out from arguments, URL and variables, in that order.
///
/// `rank` and `nranks`, both given here or in the URL's query, are a family of their own; one alone
/// must agree with what the environment says. `url` NULL asks every family. The place is the URL's,
/// else RINGCOMM_ADDRESS, else the family's own.
pub fn detect(
    lookup: impl Fn(&str) -> Option<String>,
    url: Option<&str>,
    rank: Option<usize>,
    nranks: Option<usize>,
) -> Result<LaunchFacts> {
    let lookup = |name: &str| lookup(name).filter(|value| !value.trim().is_empty());
    let lookup: Lookup = &lookup;
    let none = JoinUrl { place: None, only: None, rank: None, nranks: None };
    let request = url.map_or(Ok(none), url::parse)?;
    let rank = agreeing("rank", rank, request.rank)?;
    let nranks = agreeing("the number of ranks", nranks, request.nranks)?;
    let place = match (request.place, lookup("RINGCOMM_ADDRESS")) {
        (Some(place), _) => Some((place.clone(), format!("they meet at {place} (the URL)"))),
        (None, Some(text)) => {
            let place = url::place(&text, &format!("RINGCOMM_ADDRESS={text}"))?;
            Some((place.clone(), format!("they meet at {place} (RINGCOMM_ADDRESS)")))
        }
        (None, None) => None,
    };
    let (who, place, said) = match (rank, nranks) {
        (Some(rank), Some(nranks)) => of_arguments(lookup, rank, nranks, place)?,
        _ => {
            let found = of_environment(lookup, request.only, place.as_ref())?;
            for (what, given, read) in
                [("rank", rank, found.0.rank), ("the number of ranks", nranks, found.0.nranks)]
            {
                if let Some(given) = given.filter(|given| *given != read) {
                    return Err(Error::argument(format!(
                        "{what} is {given} in the call and {read} in the environment ({}); give \
                         rank and number of ranks both, or neither",
                        found.0.said
                    )));
                }
            }
            found
        }
    };
    // C programs count ranks in an int.
    if who.nranks > i32::MAX as usize {
        return Err(Error::argument(format!("{} ranks are more than there can be", who.nranks)));
    }
    Ok(found(lookup, who, place, said))
}

/// What the environment says of this rank; where the ranks meet may be left to a URL.
pub fn launched(lookup: impl Fn(&str) -> Option<String>) -> Result<Launched> {
    let refused = match detect(&lookup, None, None, None) {
        Ok(LaunchFacts { rank, nranks, local_rank, found, .. }) => {
            return Ok(Launched { rank, nranks, local_rank, found });
        }
        Err(refused) => refused,
    };
    let lookup = |name: &str| lookup(name).filter(|value| !value.trim().is_empty());
    let anywhere = (RendezvousPlace::Machine, String::new());
    match of_environment(&lookup, None, Some(&anywhere)) {
        // The ranks are known, so it was the place that was missing.
        Ok((LauncherRank { rank, nranks, local_rank, .. }, ..)) => {
            Ok(Launched { rank, nranks, local_rank, found: refused.to_string() })
        }
        Err(_) => Err(refused),
    }
}

fn found(lookup: Lookup, who: LauncherRank, place: RendezvousPlace, said: String) -> LaunchFacts {
    let secret = SecretSource::of(lookup);
    let carried = matches!(place, RendezvousPlace::File(_));
    let known = if carried { "the file carries the secret".into() } else { secret.said() };
    let local = who.local_rank.map_or(String::new(), |local| format!(", local rank {local}"));
    let text =
        format!("rank {} of {}{local} ({}); {said}; {known}", who.rank, who.nranks, who.said);
    // A job that was named for ringcomm is apart from all that are called otherwise.
    let named = ["RINGCOMM_JOB", "RINGCOMM_RESTART"]
        .into_iter()
        .filter_map(|name| lookup(name).map(|value| format!("{name}={value}")));
    let job: Vec<String> = named.chain([who.job]).filter(|part| !part.is_empty()).collect();
    LaunchFacts {
        rank: who.rank,
        nranks: who.nranks,
        local_rank: who.local_rank,
        local_size: who.local_size,
        place,
        address: who.address,
        job: job.join(" "),
        secret,
        found: text,
    }
}

/// One number, said by any of two.
fn agreeing(what: &str, one: Option<usize>, other: Option<usize>) -> Result<Option<usize>> {
    match (one, other) {
        (Some(one), Some(other)) if one != other => Err(Error::argument(format!(
            "{what} is {one} in the call and {other} in the URL; say it once"
        ))),
        _ => Ok(one.or(other)),
    }
}

/// The caller knows the rank; the place may still be in the environment.
fn of_arguments(
    lookup: Lookup,
    rank: usize,
    nranks: usize,
    place: Option<(RendezvousPlace, String)>,
) -> Result<(LauncherRank, RendezvousPlace, String)> {
    if rank >= nranks {
        return Err(Error::argument(format!(
            "rank {rank} of {nranks}: ranks are 0 to nranks - 1, and there is at least one"
        )));
    }
    let (place, said) = match place {
        Some(place) => place,
        None => master(lookup)?.map_err(|missing| {
            Error::argument(format!(
                "rank {rank} of {nranks} as the call says, but nothing says where they meet: \
                 {missing}; or give a URL"
            ))
        })?,
    };
    let who = LauncherRank {
        rank,
        nranks,
        local_rank: None,
        local_size: None,
        address: None,
        job: String::new(),
        said: "from the call".into(),
    };
    Ok((who, place, said))
}

/// The first complete family. One that knows the ranks but no place leaves the place to a later one
/// only if that counts the ranks alike: a launcher within another one's job does not.
fn of_environment(
    lookup: Lookup,
    only: Option<&str>,
    place: Option<&(RendezvousPlace, String)>,
) -> Result<(LauncherRank, RendezvousPlace, String)> {
    let mut incomplete = Vec::new();
    let mut placeless: Option<(&str, LauncherRank, String)> = None;
    for family in FAMILIES.iter().filter(|family| only.is_none_or(|only| only == family.name)) {
        match family.read(lookup, place)? {
            Reading::Absent => {}
            Reading::Incomplete { missing } => {
                incomplete.push(format!("{} is incomplete: {missing}", family.name));
            }
            Reading::Placeless { who, missing } => {
                if placeless.is_none() {
                    placeless = Some((family.name, who, missing));
                }
            }
            Reading::Complete { who, place, said } => {
                let counted =
                    |first: &LauncherRank| (first.rank, first.nranks) == (who.rank, who.nranks);
                if placeless.as_ref().is_none_or(|(_, first, _)| counted(first)) {
                    let ignored: String =
                        incomplete.iter().map(|text| format!("; ignored: {text}")).collect();
                    return Ok((who, place, said + &ignored));
                }
                break;
            }
        }
    }
    if let Some((family, who, missing)) = placeless {
        return Err(Error::argument(format!(
            "{family} says rank {} of {} ({}), but {missing}",
            who.rank, who.nranks, who.said
        )));
    }
    let asked = only.map_or("no launcher's variables are set".to_string(), |only| {
        format!("no variable of {only} is set")
    });
    // Who may go on without a launcher must not take half of what one says for none.
    let (error, seen): (fn(String) -> Error, _) = match incomplete.is_empty() {
        true => (Error::usage, asked),
        false => (Error::argument, incomplete.join("; ")),
    };
    Err(error(format!(
        "nothing says which rank this is: {seen}. Give rank and number of ranks, or start the \
         program with ringrun, torchrun, mpirun or srun, or set RINGCOMM_RANK, RINGCOMM_NRANKS and \
         RINGCOMM_ADDRESS=host:port"
    )))
}
