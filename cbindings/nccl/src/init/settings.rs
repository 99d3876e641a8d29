//! From `ncclConfig_t`, of any size that NCCL has given it, to the library's configuration.
#![allow(unsafe_code)]

use crate::comm::text_at;
use crate::environment::variable;
use crate::types::*;
use ringcomm::Config;
use ringcomm::communicator::gpu::pin_current_device;
use ringcomm::error::{Error, Result};
use std::ffi::{c_int, c_uint};
use std::mem::offset_of;

/// What a program may say of a communicator that means something here.
pub struct Settings {
    pub is_blocking: bool,
    pub name: Option<String>,
}

/// NCCL 2.17, which was the first whose structure had more than `blocking`.
const WITH_CTAS: c_uint = 21700;
/// NCCL 2.27, which named communicators.
const WITH_NAME: c_uint = 22700;

impl Settings {
    /// Those of a communicator of its own, and the library's.
    ///
    /// # Safety
    /// `raw` is NULL or points to as many bytes as its size says.
    pub unsafe fn of_new(raw: *const ncclConfig_t) -> Result<(Settings, Config)> {
        // SAFETY: the caller's promise.
        let fields = unsafe { read(raw) }?;
        let mut config = Config::from_environment()?;
        pin_current_device(&mut config);
        Ok((Settings::of(fields, true)?, config))
    }

    /// Those of a communicator that is made from another one, which blocks or not.
    ///
    /// # Safety
    /// As for [`Settings::of_new`].
    pub unsafe fn of_child(raw: *const ncclConfig_t, is_blocking: bool) -> Result<Settings> {
        // SAFETY: the caller's promise.
        Settings::of(unsafe { read(raw) }?, is_blocking)
    }

    fn of(fields: Option<ncclConfig_t>, is_blocking: bool) -> Result<Settings> {
        let Some(fields) = fields else {
            return Ok(Settings { is_blocking: asked(None, is_blocking)?, name: None });
        };
        check(&fields)?;
        let blocking = (fields.blocking != NCCL_CONFIG_UNDEF_INT).then_some(fields.blocking == 1);
        let name = text_at(fields.commName);
        Ok(Settings { is_blocking: asked(blocking, is_blocking)?, name })
    }
}

/// Whether it blocks: `NCCL_COMM_BLOCKING` wins over the configuration.
fn asked(configured: Option<bool>, otherwise: bool) -> Result<bool> {
    match variable("NCCL_COMM_BLOCKING").as_deref().map(str::trim) {
        None | Some("") => Ok(configured.unwrap_or(otherwise)),
        Some("0") => Ok(false),
        Some("1") => Ok(true),
        Some(other) => Err(Error::argument(format!("NCCL_COMM_BLOCKING={other}; give 0 or 1"))),
    }
}

/// The fields that the program's structure has; the others are not set.
unsafe fn read(raw: *const ncclConfig_t) -> Result<Option<ncclConfig_t>> {
    if raw.is_null() {
        return Ok(None);
    }
    // SAFETY: every structure has its head, whatever its size.
    let (size, magic, version) = unsafe {
        (
            raw.cast::<usize>().read_unaligned(),
            (&raw const (*raw).magic).read_unaligned(),
            (&raw const (*raw).version).read_unaligned(),
        )
    };
    let least = offset_of!(ncclConfig_t, blocking) + size_of::<c_int>();
    if magic != NCCL_API_MAGIC || size < least {
        return Err(Error::argument(
            "the configuration was not initialized; begin with NCCL_CONFIG_INITIALIZER",
        ));
    }
    let mut fields = UNDEFINED;
    // A newer header's structure begins as this one does: what is added changes no meaning.
    let bytes = size.min(size_of::<ncclConfig_t>());
    // SAFETY: the program's structure has so many bytes, by its size.
    unsafe {
        std::ptr::copy_nonoverlapping(raw.cast::<u8>(), (&raw mut fields).cast::<u8>(), bytes);
    }
    // What is behind the last field up to a multiple of its alignment is nobody's.
    if version < WITH_CTAS {
        fields = ncclConfig_t { blocking: fields.blocking, ..UNDEFINED };
    }
    if version < WITH_NAME || size < offset_of!(ncclConfig_t, collnetEnable) {
        fields.commName = std::ptr::null();
    }
    Ok(Some(fields))
}

/// A configuration in which nothing is set.
const UNDEFINED: ncclConfig_t = ncclConfig_t {
    size: size_of::<ncclConfig_t>(),
    magic: NCCL_API_MAGIC,
    version: NCCL_VERSION_CODE as c_uint,
    blocking: NCCL_CONFIG_UNDEF_INT,
    cgaClusterSize: NCCL_CONFIG_UNDEF_INT,
    minCTAs: NCCL_CONFIG_UNDEF_INT,
    maxCTAs: NCCL_CONFIG_UNDEF_INT,
    netName: std::ptr::null(),
    splitShare: NCCL_CONFIG_UNDEF_INT,
    trafficClass: NCCL_CONFIG_UNDEF_INT,
    commName: std::ptr::null(),
    collnetEnable: NCCL_CONFIG_UNDEF_INT,
    CTAPolicy: NCCL_CONFIG_UNDEF_INT,
    shrinkShare: NCCL_CONFIG_UNDEF_INT,
    nvlsCTAs: NCCL_CONFIG_UNDEF_INT,
    nChannelsPerNetPeer: NCCL_CONFIG_UNDEF_INT,
    nvlinkCentricSched: NCCL_CONFIG_UNDEF_INT,
    graphUsageMode: NCCL_CONFIG_UNDEF_INT,
    numRmaCtx: NCCL_CONFIG_UNDEF_INT,
    maxP2pPeers: NCCL_CONFIG_UNDEF_INT,
    graphStreamOrdering: NCCL_CONFIG_UNDEF_INT,
    launchOrderImplicit: NCCL_CONFIG_UNDEF_INT,
    numRmaSig: NCCL_CONFIG_UNDEF_INT,
    rmaEagerInit: NCCL_CONFIG_UNDEF_INT,
    hostCftMode: NCCL_CONFIG_UNDEF_INT,
    nvlsHostMode: NCCL_CONFIG_UNDEF_INT,
};

/// Refuse what NCCL refuses. Fields that tune NCCL's own kernels and plugins change nothing here.
fn check(fields: &ncclConfig_t) -> Result<()> {
    let within = |name: &str, value: c_int, least: c_int, most: c_int| {
        if value == NCCL_CONFIG_UNDEF_INT || (least..=most).contains(&value) {
            return Ok(());
        }
        Err(Error::argument(format!("config.{name} is {value}; allowed: {least} to {most}")))
    };
    within("blocking", fields.blocking, 0, 1)?;
    within("cgaClusterSize", fields.cgaClusterSize, 0, 8)?;
    within("minCTAs", fields.minCTAs, 1, c_int::MAX)?;
    within("maxCTAs", fields.maxCTAs, 1, c_int::MAX)?;
    if fields.minCTAs.max(1) > fields.maxCTAs && fields.maxCTAs != NCCL_CONFIG_UNDEF_INT {
        let (least, most) = (fields.minCTAs, fields.maxCTAs);
        return Err(Error::argument(format!("config.minCTAs {least} is above maxCTAs {most}")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(fields: &ncclConfig_t) -> Result<Settings> {
        // SAFETY: a structure of its own size, at most.
        unsafe { Settings::of_child(fields, true) }
    }

    #[test]
    fn every_size_of_the_structure_is_read_as_far_as_it_goes() {
        // 2.14, 2.17, 2.18, 2.27, 2.28, 2.29 and behind, and one of a header still to come.
        for (size, version) in [
            (24, 21400),
            (40, 21700),
            (48, 21800),
            (72, 22700),
            (80, 22800),
            (96, 23000),
            (size_of::<ncclConfig_t>(), 23203),
            (size_of::<ncclConfig_t>() + 8, 24000),
        ] {
            let garbage = c"garbage".as_ptr();
            let fields = ncclConfig_t { size, version, blocking: 0, ..UNDEFINED };
            let named = size >= 72;
            // What is behind its end would be refused, or followed.
            let fields = match size {
                24 => ncclConfig_t { cgaClusterSize: 99, commName: garbage, ..fields },
                _ if !named => ncclConfig_t { commName: garbage, ..fields },
                _ => ncclConfig_t { commName: c"job".as_ptr(), ..fields },
            };
            let read = settings(&fields).unwrap();
            assert!(!read.is_blocking, "{size}");
            assert_eq!(read.name.as_deref(), named.then_some("job"), "{size}");
        }
    }

    #[test]
    fn what_is_no_configuration_is_refused_with_the_reason() {
        let refused = [
            (ncclConfig_t { magic: 0, ..UNDEFINED }, "NCCL_CONFIG_INITIALIZER"),
            (ncclConfig_t { size: 16, ..UNDEFINED }, "NCCL_CONFIG_INITIALIZER"),
            (ncclConfig_t { blocking: 2, ..UNDEFINED }, "config.blocking is 2"),
            (ncclConfig_t { cgaClusterSize: 9, ..UNDEFINED }, "config.cgaClusterSize is 9"),
            (ncclConfig_t { minCTAs: 0, ..UNDEFINED }, "config.minCTAs is 0"),
            (ncclConfig_t { minCTAs: 8, maxCTAs: 4, ..UNDEFINED }, "minCTAs 8 is above maxCTAs 4"),
        ];
        for (fields, why) in refused {
            let text = settings(&fields).err().unwrap().to_string();
            assert!(text.contains(why), "{text}");
        }
        assert!(settings(&ncclConfig_t { maxCTAs: 4, ..UNDEFINED }).unwrap().is_blocking);
    }
}
