//! From (instruction set, type, operation) to kernels: the table of what exists.
//!
//! An [`Isa`] names its vector of each type and compiles a kernel in a shell that enables its
//! instructions; one function walks the types and operations for all of them.

#![allow(unsafe_code)]

use super::Job;
use super::float_vectors::{Double, Float, Register, Register64};
#[cfg(target_arch = "aarch64")]
use super::neon::Neon;
use super::number_format::{Bf16, E4m3, E5m2, F16, F32};
use super::portable::{Bytes, Doubles, Lanes, Truth, Words};
use super::reduce_loop::{ReduceLoop, singles};
use super::vector::{
    And, Bits, ElementOp, FullSum, Integer, Max, Mean, Min, Number, Or, Prod, Sum, Vector, Xor,
};
#[cfg(target_arch = "x86_64")]
use super::{avx2::Avx2, avx512::Avx512};
use crate::error::{Error, Result};
use crate::types::{DataType, ReduceOp};

/// An instruction set: its vectors and its shell.
pub trait Isa {
    type Words: Register;
    type Doubles: Register64;
    type Bytes: Bytes;
    type I8: Number;
    type U8: Number;
    type I16: Number;
    type U16: Number;
    type I32: Number;
    type U32: Number;
    type I64: Number;
    type U64: Number;
    /// The kernel, compiled with the instructions enabled.
    fn kernel<V: Vector, O: ElementOp<V>>() -> ReduceLoop;
}

/// The instruction sets that kernels exist for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InstructionSet {
    Portable,
    Avx2,
    Avx512,
    Neon,
}

impl InstructionSet {
    const ALL: [InstructionSet; 4] = {
        use InstructionSet::*;
        [Portable, Avx2, Avx512, Neon]
    };

    /// Those that this processor has, the widest last.
    pub fn present() -> impl Iterator<Item = InstructionSet> {
        InstructionSet::ALL.into_iter().filter(|set| set.is_present())
    }

    /// The widest that this processor has.
    pub fn best() -> InstructionSet {
        InstructionSet::present().last().unwrap_or(InstructionSet::Portable)
    }

    pub fn name(self) -> &'static str {
        match self {
            InstructionSet::Portable => "portable",
            InstructionSet::Avx2 => "avx2+f16c",
            InstructionSet::Avx512 => "avx512bw+dq+vl",
            InstructionSet::Neon => "neon",
        }
    }

    /// The standard library asks the processor once and remembers.
    fn is_present(self) -> bool {
        match self {
            InstructionSet::Portable => true,
            #[cfg(target_arch = "x86_64")]
            InstructionSet::Avx2 => Avx2::is_present(),
            #[cfg(target_arch = "x86_64")]
            InstructionSet::Avx512 => Avx512::is_present(),
            #[cfg(target_arch = "aarch64")]
            InstructionSet::Neon => Neon::is_present(),
            _ => false,
        }
    }

    /// The kernels of an operation that the type supports.
    pub(super) fn choose(self, data_type: DataType, op: ReduceOp) -> Result<ReduceKernels> {
        if !self.is_present() {
            return Err(Error::argument(format!("this processor has no {}", self.name())));
        }
        Ok(match self {
            #[cfg(target_arch = "x86_64")]
            InstructionSet::Avx2 => choose::<Avx2>(data_type, op),
            #[cfg(target_arch = "x86_64")]
            InstructionSet::Avx512 => choose::<Avx512>(data_type, op),
            #[cfg(target_arch = "aarch64")]
            InstructionSet::Neon => choose::<Neon>(data_type, op),
            _ => choose::<Portable>(data_type, op),
        })
    }
}

/// What [`choose`] found.
#[derive(Clone, Copy, Debug)]
pub struct ReduceKernels {
    /// Elements in a vector: both kernels take multiples of them.
    pub lanes: usize,
    pub plain: ReduceLoop,
    /// With scaling and division; the same as `plain` where the operation has neither.
    pub full: ReduceLoop,
}

/// Arrays of 16 bytes: one register on every 64-bit processor.
pub struct Portable;
/// One element at a time.
pub struct Single;

macro_rules! portable {
    ($isa:ident, $bytes:expr) => {
        impl Isa for $isa {
            type Words = Words<{ lanes($bytes, 4) }>;
            type Doubles = Doubles<{ lanes($bytes, 8) }>;
            type Bytes = Lanes<u8, { lanes($bytes, 1) }>;
            type I8 = Lanes<i8, { lanes($bytes, 1) }>;
            type U8 = Lanes<u8, { lanes($bytes, 1) }>;
            type I16 = Lanes<i16, { lanes($bytes, 2) }>;
            type U16 = Lanes<u16, { lanes($bytes, 2) }>;
            type I32 = Lanes<i32, { lanes($bytes, 4) }>;
            type U32 = Lanes<u32, { lanes($bytes, 4) }>;
            type I64 = Lanes<i64, { lanes($bytes, 8) }>;
            type U64 = Lanes<u64, { lanes($bytes, 8) }>;
            fn kernel<V: Vector, O: ElementOp<V>>() -> ReduceLoop {
                shell::<V, O>
            }
        }
    };
}

const fn lanes(bytes: usize, size: usize) -> usize {
    if bytes > size { bytes / size } else { 1 }
}

portable!(Portable, 16);
portable!(Single, 1);

unsafe fn shell<V: Vector, O: ElementOp<V>>(job: &Job, start: usize, end: usize, divisor: f64) {
    // SAFETY: portable vectors need no instruction beyond the target's own.
    unsafe { singles::<V, O>(job, start, end, divisor) }
}

fn plain<I: Isa, V: Vector, O: ElementOp<V>>() -> ReduceKernels {
    let kernel = I::kernel::<V, O>();
    ReduceKernels { lanes: V::LANES, plain: kernel, full: kernel }
}

/// Kernels of an operation on numbers whose sum and product are computed by `S`, which for unsigned
/// integers is the signed vector: the bits are the same.
fn number<I: Isa, V: Number, S: Number>(op: ReduceOp, full: ReduceLoop) -> ReduceKernels {
    match op {
        ReduceOp::Prod => plain::<I, S, Prod>(),
        ReduceOp::Min => plain::<I, V, Min>(),
        ReduceOp::Max => plain::<I, V, Max>(),
        ReduceOp::Avg | ReduceOp::PreMulSum => ReduceKernels { full, ..plain::<I, S, Sum>() },
        _ => plain::<I, S, Sum>(),
    }
}

/// As `number`; an integer mean divides element by element, in portable vectors of `N` lanes, whose
/// number divides that of any other vector's.
fn integer<I: Isa, V: Number, S: Number, T: Integer, const N: usize>(
    op: ReduceOp,
) -> ReduceKernels {
    let full = match V::LANES {
        1 => Single::kernel::<Lanes<T, 1>, FullSum>(),
        _ => Portable::kernel::<Lanes<T, N>, FullSum>(),
    };
    number::<I, V, S>(op, full)
}

fn float<I: Isa, V: Mean>(op: ReduceOp) -> ReduceKernels {
    number::<I, V, V>(op, I::kernel::<V, FullSum>())
}

fn bits<I: Isa, V: Bits>(op: ReduceOp) -> ReduceKernels {
    match op {
        ReduceOp::Prod | ReduceOp::Min | ReduceOp::Band => plain::<I, V, And>(),
        ReduceOp::Bxor => plain::<I, V, Xor>(),
        _ => plain::<I, V, Or>(),
    }
}

/// The kernels of an operation that the type supports. Bitwise ones count bytes, not elements.
pub fn choose<I: Isa>(data_type: DataType, op: ReduceOp) -> ReduceKernels {
    if data_type == DataType::Bool {
        return bits::<I, Truth<I::Bytes>>(op);
    }
    if matches!(op, ReduceOp::Band | ReduceOp::Bor | ReduceOp::Bxor) {
        return bits::<I, I::Bytes>(op);
    }
    match data_type {
        DataType::Int8 => integer::<I, I::I8, I::I8, i8, 16>(op),
        DataType::Uint8 | DataType::Bool => integer::<I, I::U8, I::I8, u8, 16>(op),
        DataType::Int16 => integer::<I, I::I16, I::I16, i16, 8>(op),
        DataType::Uint16 => integer::<I, I::U16, I::I16, u16, 8>(op),
        DataType::Int32 => integer::<I, I::I32, I::I32, i32, 4>(op),
        DataType::Uint32 => integer::<I, I::U32, I::I32, u32, 4>(op),
        DataType::Int64 => integer::<I, I::I64, I::I64, i64, 2>(op),
        DataType::Uint64 => integer::<I, I::U64, I::I64, u64, 2>(op),
        DataType::Float8e4m3 => float::<I, Float<I::Words, E4m3>>(op),
        DataType::Float8e5m2 => float::<I, Float<I::Words, E5m2>>(op),
        DataType::Float16 => float::<I, Float<I::Words, F16>>(op),
        DataType::Bfloat16 => float::<I, Float<I::Words, Bf16>>(op),
        DataType::Float32 => float::<I, Float<I::Words, F32>>(op),
        DataType::Float64 => float::<I, Double<I::Doubles>>(op),
    }
}
