//! Collective communication for CPUs and GPUs.
//!
//! ```
//! use ringcomm::{Communicator, Config, ReduceOp};
//!
//! // Two ranks as threads; `Communicator::from_environment` joins processes of a launcher.
//! let ranks = Communicator::init_all(2, &Config::default())?;
//! std::thread::scope(|scope| {
//!     for comm in &ranks {
//!         scope.spawn(move || {
//!             let mut gradient = vec![comm.rank() as f32; 1 << 20];
//!             comm.all_reduce_in_place(&mut gradient, ReduceOp::Avg).unwrap();
//!             assert!(gradient.iter().all(|value| *value == 0.5));
//!         });
//!     }
//! });
//! # Ok::<(), ringcomm::Error>(())
//! ```
//!
//! [`Communicator`] has the collectives, over slices of [`Element`]s, and messages between two
//! ranks ([`Communicator::messages`]). Ranks are threads, processes or processes of several hosts.
//! Every wait ends: with its message, or with an [`Error`] that names the rank, its host, its
//! process and the call. [`Config`] has the settings, which `RINGCOMM_*` variables change.
//!
//! The C interface is `include/ringcomm.h`. Everything else that is public here is for this
//! package's own tests and programs, and may change at any time; `ARCHITECTURE.md` is its map.

#![deny(unsafe_code)]

pub use bootstrap::UniqueId;
pub use communicator::Communicator;
pub use communicator::typed::{Element, Messages};
pub use config::{AddressFamily, Config, DeviceChoice, Protection};
pub use error::{Error, Result};
pub use half::{bf16, f16};
pub use types::{DataType, ReduceOp};

#[doc(hidden)]
pub mod algorithm;
#[doc(hidden)]
pub mod bootstrap;
#[doc(hidden)]
pub mod communicator;
#[doc(hidden)]
pub mod config;
mod crypto;
#[doc(hidden)]
pub mod cycle_counter;
#[doc(hidden)]
pub mod device;
#[doc(hidden)]
pub mod error;
#[doc(hidden)]
pub mod executor;
#[doc(hidden)]
pub mod ffi;
#[doc(hidden)]
pub mod fork;
#[doc(hidden)]
pub mod host;
#[doc(hidden)]
pub mod os;
#[doc(hidden)]
pub mod plan;
#[doc(hidden)]
pub mod suggest;
#[doc(hidden)]
pub mod sync;
#[doc(hidden)]
pub mod transport;
#[doc(hidden)]
pub mod types;

/// Where these sources were last compiled, for reports; see `build.rs`.
#[doc(hidden)]
pub const COMMIT: Option<&str> = option_env!("RINGCOMM_GIT_COMMIT");
