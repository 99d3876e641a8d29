//! From `ringConfig_t` to the library's own configuration.
//!
//! A structure says its size first, so that programs built with an older header, whose structure
//! is a prefix of today's, go on working: fields they do not have count as not set.

use crate::config::{
    Config, DeviceChoice, LEAST_BUFF_SIZE, MOST_NSOCKS, NetChoice, Protection, ports,
};
use crate::error::{Error, Result};
use crate::ffi::convert;
use crate::ffi::types::{RING_CONFIG_UNDEF_INT, RING_MAGIC, ringConfig_t};
use std::ffi::c_int;
use std::mem::offset_of;

/// The size of the structure in the first release that had it: no header has less.
const FIRST_SIZE: usize = offset_of!(ringConfig_t, device) + size_of::<c_int>();

/// A configuration in which nothing is set.
fn undefined() -> ringConfig_t {
    ringConfig_t {
        size: size_of::<ringConfig_t>(),
        magic: RING_MAGIC,
        version: crate::ffi::types::RING_VERSION_CODE as u32,
        timeoutMs: RING_CONFIG_UNDEF_INT.into(),
        buffSize: RING_CONFIG_UNDEF_INT.into(),
        deterministic: RING_CONFIG_UNDEF_INT,
        spins: RING_CONFIG_UNDEF_INT,
        debug: RING_CONFIG_UNDEF_INT,
        protection: RING_CONFIG_UNDEF_INT,
        algorithm: std::ptr::null(),
        tuningFile: std::ptr::null(),
        interfaces: std::ptr::null(),
        ports: std::ptr::null(),
        nsocks: RING_CONFIG_UNDEF_INT,
        device: RING_CONFIG_UNDEF_INT,
        initTimeoutMs: RING_CONFIG_UNDEF_INT.into(),
        net: std::ptr::null(),
    }
}

/// Check the three fields that every structure begins with; returns the bytes that are there.
pub fn check_head(
    structure: &str,
    (size, magic): (usize, u32),
    (first, ours): (usize, usize),
) -> Result<usize> {
    let initializer = if structure == "ringExplain_t" { "EXPLAIN" } else { "CONFIG" };
    if magic != RING_MAGIC || size < first {
        return Err(Error::argument(format!(
            "the {structure} was not initialized; begin with RING_{initializer}_INITIALIZER"
        )));
    }
    if size > ours {
        return Err(Error::argument(format!(
            "the {structure} has {size} bytes and this library knows {ours}: the program was built \
             with a newer header than the library it runs with"
        )));
    }
    Ok(size)
}

/// The configuration of a communicator: what is set in `raw`, else the environment's, else the
/// default. NULL sets nothing.
pub fn resolve(raw: *const ringConfig_t) -> Result<Config> {
    resolve_from(Config::from_environment()?, raw)
}

/// As [`resolve`], where NULL means: as the parent's. What does not say where its memory is, or
/// which interfaces it uses, goes where the parent is, whatever the environment says.
pub fn resolve_or_parent(raw: *const ringConfig_t) -> Result<Option<Config>> {
    if raw.is_null() {
        return Ok(None);
    }
    resolve_from(of_child(Config::from_environment()?), raw).map(Some)
}

fn of_child(environment: Config) -> Config {
    Config { device: DeviceChoice::Current, interfaces: None, family: None, ..environment }
}

fn resolve_from(mut base: Config, raw: *const ringConfig_t) -> Result<Config> {
    if !raw.is_null() {
        let fields = read(raw)?;
        apply(&fields, &mut base)?;
    }
    Ok(base)
}

fn read(raw: *const ringConfig_t) -> Result<ringConfig_t> {
    let size = convert::read(raw.cast::<usize>(), "config")?;
    let magic = raw.wrapping_byte_add(offset_of!(ringConfig_t, magic)).cast::<u32>();
    // Even a structure that was never initialized is large enough for its own head.
    let magic = convert::read(magic, "config")?;
    let ours = size_of::<ringConfig_t>();
    let bytes = check_head("ringConfig_t", (size, magic), (FIRST_SIZE, ours))?;
    let mut fields = undefined();
    convert::read_prefix(raw, bytes, &mut fields);
    Ok(fields)
}

/// A whole number field between two bounds; `None` where it was not set.
fn field(name: &str, value: i64, least: i64, most: i64) -> Result<Option<i64>> {
    if value == i64::from(RING_CONFIG_UNDEF_INT) {
        return Ok(None);
    }
    if (least..=most).contains(&value) {
        Ok(Some(value))
    } else {
        Err(Error::argument(format!("config.{name} is {value}; allowed: {least} to {most}")))
    }
}

fn apply(fields: &ringConfig_t, config: &mut Config) -> Result<()> {
    if let Some(ms) = field("timeoutMs", fields.timeoutMs, 1, i64::MAX)? {
        config.timeout_ms = ms as u64;
    }
    if let Some(ms) = field("initTimeoutMs", fields.initTimeoutMs, 1, i64::MAX)? {
        config.init_timeout_ms = Some(ms as u64);
    }
    let least = LEAST_BUFF_SIZE as i64;
    if let Some(bytes) = field("buffSize", fields.buffSize, least, i64::MAX)? {
        config.buff_size = Some(bytes as usize);
    }
    if let Some(on) = field("deterministic", fields.deterministic.into(), 0, 1)? {
        config.deterministic = on == 1;
    }
    if let Some(spins) = field("spins", fields.spins.into(), 0, i32::MAX.into())? {
        config.spins = Some(spins as u32);
    }
    if let Some(level) = field("debug", fields.debug.into(), 0, 2)? {
        config.debug = level as u32;
    }
    if let Some(kind) = field("protection", fields.protection.into(), 0, 2)? {
        config.protection = Protection::ALL[kind as usize];
    }
    if let Some(sockets) = field("nsocks", fields.nsocks.into(), 1, MOST_NSOCKS as i64)? {
        config.nsocks = sockets as usize;
    }
    if let Some(device) = field("device", fields.device.into(), -1, i32::MAX.into())? {
        config.device =
            if device < 0 { DeviceChoice::Host } else { DeviceChoice::Device(device as i32) };
    }
    if let Some(interfaces) = convert::text(fields.interfaces, "config.interfaces")? {
        config.interfaces = Some(interfaces);
    }
    if let Some(range) = convert::text(fields.ports, "config.ports")? {
        let wrong = |why| Error::argument(format!("config.ports={range:?} {why}"));
        config.ports = Some(ports(&range).map_err(wrong)?);
    }
    if let Some(net) = convert::text(fields.net, "config.net")? {
        let wrong = |why| Error::argument(format!("config.net={net:?} {why}"));
        config.net = NetChoice::from_name(&net).map_err(wrong)?;
    }
    if let Some(algorithm) = convert::text(fields.algorithm, "config.algorithm")? {
        config.algorithm = Some(algorithm);
    }
    if let Some(path) = convert::text(fields.tuningFile, "config.tuningFile")? {
        config.tuning_file = Some(path);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ffi::types::RING_PROTECTION_ENCRYPTED;

    fn applied(change: impl FnOnce(&mut ringConfig_t)) -> Result<Config> {
        let mut raw = undefined();
        change(&mut raw);
        let mut config = Config::default();
        apply(&read(&raw)?, &mut config).map(|()| config)
    }

    #[test]
    fn what_is_not_set_stays_as_it_was() {
        assert_eq!(applied(|_| {}).unwrap(), Config::default());
    }

    #[test]
    fn every_field_reaches_the_configuration() {
        let config = applied(|raw| {
            raw.timeoutMs = 250;
            raw.buffSize = 1 << 20;
            raw.deterministic = 1;
            raw.spins = 0;
            raw.debug = 2;
            raw.algorithm = c"ring".as_ptr();
            raw.tuningFile = c"costs".as_ptr();
            raw.protection = RING_PROTECTION_ENCRYPTED;
            raw.nsocks = 3;
            raw.device = 5;
            raw.initTimeoutMs = 70;
            raw.interfaces = c"eth".as_ptr();
            raw.ports = c"7-9".as_ptr();
            raw.net = c"plugin:ofi".as_ptr();
        });
        let wanted = Config {
            timeout_ms: 250,
            buff_size: Some(1 << 20),
            deterministic: true,
            spins: Some(0),
            debug: 2,
            algorithm: Some("ring".into()),
            tuning_file: Some("costs".into()),
            protection: Protection::Encrypted,
            nsocks: 3,
            device: DeviceChoice::Device(5),
            init_timeout_ms: Some(70),
            interfaces: Some("eth".into()),
            ports: Some(7..=9),
            net: NetChoice::Plugin(Some("ofi".into())),
            ..Config::default()
        };
        assert_eq!(config.unwrap(), wanted);
        assert_eq!(applied(|raw| raw.device = -1).unwrap().device, DeviceChoice::Host);
    }

    #[test]
    fn a_child_does_not_ask_the_environment_where_its_parent_is() {
        let environment = Config {
            device: DeviceChoice::Host,
            interfaces: Some("eth".into()),
            family: Some(crate::config::AddressFamily::V6),
            nsocks: 3,
            ..Config::default()
        };
        let child = of_child(environment);
        assert_eq!(child, Config { nsocks: 3, ..Config::default() });
    }

    #[test]
    fn a_field_out_of_bounds_is_named() {
        type Change = fn(&mut ringConfig_t);
        let bad: [(&str, Change); 11] = [
            ("timeoutMs is 0", |raw| raw.timeoutMs = 0),
            ("buffSize is 100", |raw| raw.buffSize = 100),
            ("deterministic is 2", |raw| raw.deterministic = 2),
            ("spins is -1", |raw| raw.spins = -1),
            ("debug is 3", |raw| raw.debug = 3),
            ("protection is 3", |raw| raw.protection = 3),
            ("nsocks is 0", |raw| raw.nsocks = 0),
            ("device is -2", |raw| raw.device = -2),
            ("initTimeoutMs is 0", |raw| raw.initTimeoutMs = 0),
            ("config.ports=\"9-7\"", |raw| raw.ports = c"9-7".as_ptr()),
            ("config.net=\"udp\" is none of auto, tcp,", |raw| raw.net = c"udp".as_ptr()),
        ];
        for (text, change) in bad {
            let error = applied(change).unwrap_err().to_string();
            assert!(error.contains(text), "{error}");
        }
    }

    #[test]
    fn structures_that_were_not_initialized_or_are_too_new_are_refused() {
        let refused = |change: fn(&mut ringConfig_t)| applied(change).unwrap_err().to_string();
        assert!(refused(|raw| raw.magic = 0).contains("RING_CONFIG_INITIALIZER"));
        assert!(refused(|raw| raw.size = 8).contains("RING_CONFIG_INITIALIZER"));
        assert!(refused(|raw| raw.size += 8).contains("newer header"));
    }
}
