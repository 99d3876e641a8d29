//! Lanes of UCX (Unified Communication X), which drives InfiniBand, RoCE and EFA.

mod declarations;
pub mod engine;
mod lane;
pub mod library;
