//! Tuning: which algorithm and data path a call takes, bound once and kept in a cache.

mod compile_call;
pub(super) mod context;
pub(super) mod direct_probe_backoff;
pub(super) mod plan_cache;
pub(super) mod select;
pub(super) mod slot_sizing;
