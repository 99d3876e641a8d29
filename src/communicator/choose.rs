//! Choosing an algorithm for a call, and measuring what the choice rests on.

use super::engine::Engine;
use super::{Call, Communicator};
use crate::algorithm::{self, Algorithm};
use crate::config::Config;
use crate::error::Result;

pub struct Chosen {
    pub algorithm: Algorithm,
    pub direct: bool,
    pub predicted_us: f64,
}

pub fn choose(engine: &Engine, call: &Call, _in_place: bool, config: &Config) -> Result<Chosen> {
    let n = engine.links.nranks;
    let bytes = call.count * call.data_type.size();
    let exists = |a: Algorithm| algorithm::plan(a, call.collective, 0, n, call.root).is_some();
    let direct = bytes >= 16384 && engine.links.one_process();
    let mut pick = if n == 1 {
        Algorithm::Local
    } else if bytes >= 16384 && exists(Algorithm::TwoShot) {
        Algorithm::TwoShot
    } else if exists(Algorithm::OneShot) {
        Algorithm::OneShot
    } else {
        Algorithm::Pairwise
    };
    if let Some(name) = &config.algorithm {
        let a = Algorithm::from_name(name)?;
        if exists(a) {
            pick = a;
        }
    }
    Ok(Chosen { algorithm: pick, direct, predicted_us: 0.0 })
}

pub fn calibrate(_communicator: &Communicator) -> Result<()> {
    Ok(())
}
