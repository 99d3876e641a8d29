//! Communicators of ranks that a launcher, a user or a URL brings together.
#![allow(unsafe_code)]

use super::{config, grouped_creation};
use crate::bootstrap::rendezvous::{detect, launched};
use crate::communicator::{Communicator, enqueue::refuse, gpu::pin_current_device};
use crate::error::{Error, Result};
use crate::ffi::boundary::run;
use crate::ffi::convert;
use crate::ffi::types::*;
use crate::os::environment::variable;
use std::ffi::{c_char, c_int};

/// Join the ranks that meet at `url`, without handing an id around; returns when all have come.
///
/// - `tcp://host:port`: rank 0 is on that host.
/// - `file:///path`: rank 0 leaves a file there, which the others see; its folder exists. The file
///   goes when the ranks have met, and one that a crashed job left behind does no harm.
/// - `env://`: at MASTER_ADDR, on the port after MASTER_PORT, as RANK of WORLD_SIZE.
/// - `slurm://`: on the first node of the step, as `srun` numbers its tasks.
/// - NULL: as the environment says. RINGCOMM_RANK and RINGCOMM_NRANKS, RANK and WORLD_SIZE,
///   HOROVOD_*, OMPI_COMM_WORLD_*, PMI_* and SLURM_* are asked in this order, and the first family
///   that is complete is believed. RINGCOMM_ADDRESS (`host:port` or a URL) says where to meet.
///
/// `nranks` and `rank` are -1 where the environment says them, or the URL itself in
/// `?rank=R&world_size=N`. Every rank gives the same URL. Called again, it makes another
/// communicator of the same ranks, on the next port; all ranks make theirs in the same order.
/// `config` may be NULL. In a group the call returns at once and `ringGroupEnd` does it; a group
/// joins no rank of one URL twice.
///
/// Strangers are kept out by a secret: RINGCOMM_SECRET, the same text of at least 16 characters on
/// every rank; or RINGCOMM_SECRET_FILE, a file of mode 0600 that holds it; or what `file://` brings
/// with it. Without one, only ranks of one machine meet.
///
/// `*comm` is written on success. Errors: `ringInvalidArgument` for NULL, a URL that is none, and
/// where variables do not say rank, number of ranks and place (the text says what was found and
/// what is missing); `ringInvalidUsage` where no launcher says anything, and for another host
/// without a secret; `ringTimeout` where not all ranks came in time; and those of
/// `ringCommInitRankConfig`.
///
/// # Safety
/// `comm` has room for a `ringComm_t`, in a group until `ringGroupEnd`; `url` is NULL or a C
/// string; `config` is NULL or points to an initialized `ringConfig_t`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringCommInitUrl(
    comm: *mut ringComm_t,
    url: *const c_char,
    nranks: c_int,
    rank: c_int,
    config: *const ringConfig_t,
) -> ringResult_t {
    run(|| init_url(comm, url, nranks, rank, config).map_err(refuse))
}

fn init_url(
    comm: *mut ringComm_t,
    url: *const c_char,
    nranks: c_int,
    rank: c_int,
    config: *const ringConfig_t,
) -> Result<()> {
    let out = convert::out(comm, "comm")?;
    let url = convert::text(url, "url")?;
    let (rank, nranks) = (given(rank, "rank")?, given(nranks, "nranks")?);
    let found = detect(variable, url.as_deref(), rank, nranks)?;
    let mut config = config::resolve(config)?;
    pin_current_device(&mut config);
    grouped_creation::create(out, config.debug, None, move || {
        Communicator::init_found(&found, &config).map(Some)
    })
}

/// A number that is -1 where the environment says it.
fn given(raw: c_int, what: &str) -> Result<Option<usize>> {
    match usize::try_from(raw) {
        Ok(number) => Ok(Some(number)),
        Err(_) if raw == -1 => Ok(None),
        Err(_) => Err(Error::argument(format!("{what} is {raw}; -1 leaves it to the environment"))),
    }
}

/// What `ringCommInitUrl` would find in the environment: rank, number of ranks, the rank among
/// those of this machine, and all of it in a sentence. Joins nobody.
///
/// `*localRank` is -1 where the launcher does not say it. `text` has room for `size` bytes; what
/// does not fit is cut off, and a NUL closes it. Where only a URL could say where to meet, the text
/// says so. Each pointer may be NULL. They are written on success.
///
/// Errors: `ringInvalidUsage` where no launcher's variables are set, `ringInvalidArgument` where
/// they do not say rank and number of ranks; the text of `ringGetLastError` says what was found and
/// what is missing.
///
/// # Safety
/// `rank`, `nranks` and `localRank` are NULL or have room for an `int`, `text` is NULL or has room
/// for `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringLauncherInfo(
    rank: *mut c_int,
    nranks: *mut c_int,
    localRank: *mut c_int,
    text: *mut c_char,
    size: usize,
) -> ringResult_t {
    run(|| {
        let found = launched(variable)?;
        let local = found.local_rank.map_or(-1, |local| local as c_int);
        let numbers =
            [(rank, found.rank as c_int), (nranks, found.nranks as c_int), (localRank, local)];
        for (place, number) in numbers.into_iter().filter(|(place, _)| !place.is_null()) {
            convert::out(place, "a number's place")?.set(number);
        }
        convert::write_cut(&found.found, text, size);
        Ok(())
    })
}
