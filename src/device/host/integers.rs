//! What the SIMD vectors share: integers as one function per operation.

/// Integer vectors over one register type; `load`, `store` and `stream` are found where the macro
/// is used. There is no integer division in SIMD, so means stay with the portable vectors.
macro_rules! integers {
    ($register:ty, $bytes:expr;
     $($name:ident, $type:ty, $add:ident, $mul:ident, $min:ident, $max:ident;)*) => { $(
        #[derive(Clone, Copy)]
        pub struct $name($register);

        impl $crate::device::host::vector::Vector for $name {
            const LANES: usize = $bytes / size_of::<$type>();
            const SIZE: usize = size_of::<$type>();
            const STREAMS: bool = true;
            #[inline(always)]
            unsafe fn load(source: *const u8) -> Self {
                // SAFETY: the caller's promise, handed on.
                $name(unsafe { load(source) })
            }
            #[inline(always)]
            unsafe fn store(self, target: *mut u8) {
                // SAFETY: the caller's promise, handed on.
                unsafe { store(target, self.0) }
            }
            #[inline(always)]
            unsafe fn stream(self, target: *mut u8) {
                // SAFETY: the caller's promise, handed on.
                unsafe { stream(target, self.0) }
            }
        }

        impl $crate::device::host::vector::Number for $name {
            #[inline(always)]
            unsafe fn add(self, other: Self) -> Self {
                // SAFETY: registers only; the shell enables the instruction.
                $name(unsafe { $add(self.0, other.0) })
            }
            #[inline(always)]
            unsafe fn mul(self, other: Self) -> Self {
                // SAFETY: registers only; the shell enables the instruction.
                $name(unsafe { $mul(self.0, other.0) })
            }
            #[inline(always)]
            unsafe fn min(self, other: Self) -> Self {
                // SAFETY: registers only; the shell enables the instruction.
                $name(unsafe { $min(self.0, other.0) })
            }
            #[inline(always)]
            unsafe fn max(self, other: Self) -> Self {
                // SAFETY: registers only; the shell enables the instruction.
                $name(unsafe { $max(self.0, other.0) })
            }
        }
    )* };
}

pub(super) use integers;
