//! The cost model's side: simulated networks, and the tuning file.

pub(super) mod network;
pub(super) mod simulate;
pub(super) mod tuning_file;
