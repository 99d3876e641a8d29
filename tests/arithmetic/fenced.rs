//! Memory with nothing before and behind it: a kernel that reads beyond it ends the process.

use std::cell::RefCell;
use std::ops::{Deref, DerefMut};
use std::ptr::{null_mut, slice_from_raw_parts_mut};

fn page() -> usize {
    // SAFETY: asks for a constant.
    unsafe { libc::sysconf(libc::_SC_PAGESIZE) as usize }
}

/// Whole pages between two that cannot be touched.
struct Pages(*mut [u8]);

impl Pages {
    fn new(length: usize) -> Pages {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: the kernel chooses a place that nothing uses; the pages inside are made usable.
        unsafe {
            let all = length + 2 * page();
            let fence = libc::mmap(null_mut(), all, libc::PROT_NONE, flags, -1, 0);
            assert_ne!(fence, libc::MAP_FAILED);
            let start = fence.byte_add(page());
            let access = libc::PROT_READ | libc::PROT_WRITE;
            assert_eq!(libc::mprotect(start, length, access), 0);
            Pages(slice_from_raw_parts_mut(start.cast(), length))
        }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        let fence = self.0.cast::<u8>().wrapping_sub(page());
        // SAFETY: mapped in `new`, with a page on either side.
        unsafe { libc::munmap(fence.cast(), self.0.len() + 2 * page()) };
    }
}

thread_local! {
    /// What is not in use: to map it anew would take longer than the arithmetic.
    static SPARE: RefCell<Vec<Pages>> = const { RefCell::new(Vec::new()) };
}

/// Pages with any content.
pub struct Fenced(Option<Pages>);

impl Fenced {
    /// At least so many bytes, and at least one.
    pub fn new(length: usize) -> Fenced {
        let length = length.max(1).next_multiple_of(page());
        let spare = SPARE.with_borrow_mut(|spare| {
            let index = spare.iter().position(|pages| pages.0.len() == length)?;
            Some(spare.swap_remove(index))
        });
        Fenced(Some(spare.unwrap_or_else(|| Pages::new(length))))
    }

    fn pages(&self) -> *mut [u8] {
        self.0.as_ref().expect("until it is dropped").0
    }
}

impl Deref for Fenced {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: this value's own pages, which the kernel has zeroed at first.
        unsafe { &*self.pages() }
    }
}

impl DerefMut for Fenced {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above.
        unsafe { &mut *self.pages() }
    }
}

impl Drop for Fenced {
    fn drop(&mut self) {
        // Where the thread ends, they go at once.
        let _ = SPARE.try_with(|spare| spare.borrow_mut().extend(self.0.take()));
    }
}
