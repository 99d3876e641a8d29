//! What ends a rank's kernels that wait for other processes', from whatever thread finds that they
//! wait in vain.

use crate::executor::flags::{Control, Ending};
use std::sync::{Arc, OnceLock};

/// Empty as long as there are no such kernels.
#[derive(Default)]
pub struct Stopper(OnceLock<Arc<Control>>);

impl Stopper {
    /// From here on there are kernels.
    pub fn appoint(&self, control: Arc<Control>) {
        // Once for each communicator.
        let _ = self.0.set(control);
    }

    /// Kernels of the rank end, those that run and those that have not begun.
    pub fn stop(&self) {
        self.0.get().into_iter().for_each(|control| control.stop());
    }

    /// Where and why one has ended early, if one has.
    pub fn ending(&self) -> Option<Ending> {
        self.0.get().and_then(|control| control.ending())
    }
}
