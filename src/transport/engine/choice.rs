//! Which engine a rank brings along, and whether that is the other ranks'.

use super::plugin::engine::PluginEngine;
use super::plugin::library;
use super::ucx::engine::UcxEngine;
use super::{EngineInfo, NetEngine, SharedEngine};
use crate::config::NetChoice;
use crate::crypto::sha256;
use crate::error::Result;
use std::path::Path;
use std::sync::Arc;

/// Where the kernel lists what is faster than TCP: InfiniBand, RoCE, EFA; Slingshot.
const DEVICES: [&str; 2] = ["/sys/class/infiniband", "/sys/class/cxi"];

/// An engine that has started, and what tells it from others.
pub struct Candidate {
    pub engine: Arc<SharedEngine>,
    pub info: EngineInfo,
    /// What ranks that can talk with each other have in common; not 0.
    pub kind: u64,
}

fn candidate(engine: Box<dyn NetEngine>) -> Result<Candidate> {
    let info = engine.info();
    let digest = sha256(&[info.name.as_bytes()]);
    let kind = u64::from_le_bytes(*digest.first_chunk().expect("a digest is longer")) | 1;
    Ok(Candidate { engine: Arc::new(SharedEngine::new(engine)?), info, kind })
}

fn has_devices() -> bool {
    let has_any =
        |path: &str| Path::new(path).read_dir().is_ok_and(|mut entries| entries.next().is_some());
    DEVICES.into_iter().any(has_any)
}

/// The engine of a rank among so many: the one that is asked for, or where nothing is asked for,
/// one that this machine may be faster with, if there is any.
pub fn candidate_of(net: &NetChoice, nranks: usize) -> Result<Option<Candidate>> {
    let ucx = || UcxEngine::new(nranks).and_then(|worker| candidate(Box::new(worker)));
    let plugin =
        |name| PluginEngine::new(name, nranks).and_then(|engine| candidate(Box::new(engine)));
    match net {
        NetChoice::Tcp => Ok(None),
        NetChoice::Ucx => ucx().map(Some),
        NetChoice::Plugin(name) => plugin(name.as_deref()).map(Some),
        // Whatever cannot be used is not there.
        NetChoice::Auto => {
            let asked = library::is_asked_for();
            let named = || (asked == Some(true)).then(|| plugin(None).ok()).flatten();
            let usual = || asked.is_none().then(|| plugin(None).ok()).flatten();
            let of_devices = || has_devices().then(|| ucx().ok().or_else(usual)).flatten();
            Ok(named().or_else(of_devices))
        }
    }
}
