//! Functions that ranks communicate by: collectives, messages, groups, streams, reductions.

pub mod collective;
pub mod group;
pub mod red_op;
pub mod stream;
pub mod vector;

mod arg_check;
pub mod dispatch;
