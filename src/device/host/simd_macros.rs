//! What the SIMD vectors share: the shell of an instruction set, and integers as one function per
//! operation.

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

/// An instruction set whose file has a vector of each type under these names: its shell, which
/// enables the instructions, and its table.
macro_rules! isa {
    ($isa:ident, $features:literal) => {
        #[target_feature(enable = $features)]
        unsafe fn shell<V: Vector, O: ElementOp<V>>(
            job: &Job,
            start: usize,
            end: usize,
            divisor: f64,
        ) {
            // SAFETY: this function enables what the vectors of this file need.
            unsafe { blocks::<V, O>(job, start, end, divisor) }
        }

        impl Isa for $isa {
            type Words = Words;
            type Doubles = Doubles;
            type Bytes = U8;
            type I8 = I8;
            type U8 = U8;
            type I16 = I16;
            type U16 = U16;
            type I32 = I32;
            type U32 = U32;
            type I64 = I64;
            type U64 = U64;
            fn kernel<V: Vector, O: ElementOp<V>>() -> ReduceLoop {
                shell::<V, O>
            }
        }
    };
}

pub(super) use {integers, isa};
