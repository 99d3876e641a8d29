//! What ends a rank's kernels that wait for other processes', from whatever thread finds that they
//! wait in vain.

use crate::executor::device_p2p::{Control, Ending};
use crate::sync::Mutex;
use std::sync::Arc;

/// Empty as long as there are no such kernels.
#[derive(Default)]
pub struct Stopper(Mutex<Option<Arc<Control>>>);

impl Stopper {
    /// From here on there are kernels.
    pub fn appoint(&self, control: Arc<Control>) {
        *self.0.lock() = Some(control);
    }

    /// There are none any more, and will be none.
    pub fn dismiss(&self) {
        *self.0.lock() = None;
    }

    /// Kernels of the rank end, those that run and those that have not begun.
    pub fn stop(&self) {
        self.0.lock().iter().for_each(|control| control.stop());
    }

    /// Where and why one has ended early, if one has.
    pub fn ending(&self) -> Option<Ending> {
        self.0.lock().as_ref().and_then(|control| control.ending())
    }
}
