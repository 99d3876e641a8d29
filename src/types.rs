//! Element types and reduction operations, with NCCL's numbers where NCCL has them.

use std::fmt;

/// The type of one element. Values below 64 are NCCL's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i32)]
pub enum DataType {
    Int8 = 0,
    Uint8 = 1,
    Int32 = 2,
    Uint32 = 3,
    Int64 = 4,
    Uint64 = 5,
    Float16 = 6,
    Float32 = 7,
    Float64 = 8,
    Bfloat16 = 9,
    Float8e4m3 = 10,
    Float8e5m2 = 11,
    Int16 = 64,
    Uint16 = 65,
    /// One byte; any non-zero byte is true, results are 0 or 1.
    Bool = 66,
}

impl DataType {
    pub const ALL: [DataType; 15] = [
        DataType::Int8,
        DataType::Uint8,
        DataType::Int16,
        DataType::Uint16,
        DataType::Int32,
        DataType::Uint32,
        DataType::Int64,
        DataType::Uint64,
        DataType::Bool,
        DataType::Float8e4m3,
        DataType::Float8e5m2,
        DataType::Float16,
        DataType::Bfloat16,
        DataType::Float32,
        DataType::Float64,
    ];

    /// Bytes of one element.
    pub const fn size(self) -> usize {
        use DataType::*;
        match self {
            Int8 | Uint8 | Bool | Float8e4m3 | Float8e5m2 => 1,
            Int16 | Uint16 | Float16 | Bfloat16 => 2,
            Int32 | Uint32 | Float32 => 4,
            Int64 | Uint64 | Float64 => 8,
        }
    }

    pub const fn is_float(self) -> bool {
        use DataType::*;
        matches!(self, Float16 | Bfloat16 | Float32 | Float64 | Float8e4m3 | Float8e5m2)
    }

    /// The name `ring-perf -d` takes and error texts print.
    pub const fn name(self) -> &'static str {
        use DataType::*;
        match self {
            Int8 => "int8",
            Uint8 => "uint8",
            Int16 => "int16",
            Uint16 => "uint16",
            Int32 => "int32",
            Uint32 => "uint32",
            Int64 => "int64",
            Uint64 => "uint64",
            Bool => "bool",
            Float8e4m3 => "f8e4m3",
            Float8e5m2 => "f8e5m2",
            Float16 => "half",
            Bfloat16 => "bfloat16",
            Float32 => "float",
            Float64 => "double",
        }
    }

    pub fn from_raw(value: i32) -> Option<DataType> {
        DataType::ALL.into_iter().find(|t| *t as i32 == value)
    }
}

impl fmt::Display for DataType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A reduction. Values below 64 are NCCL's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i32)]
pub enum ReduceOp {
    Sum = 0,
    Prod = 1,
    Max = 2,
    Min = 3,
    /// The sum divided by the number of ranks, once, at the end.
    Avg = 4,
    Band = 64,
    Bor = 65,
    Bxor = 66,
    /// Every rank's input is multiplied by a scalar of its own, then summed.
    PreMulSum = 67,
}

impl ReduceOp {
    /// The operations that need no scalar.
    pub const ALL: [ReduceOp; 8] = [
        ReduceOp::Sum,
        ReduceOp::Prod,
        ReduceOp::Max,
        ReduceOp::Min,
        ReduceOp::Avg,
        ReduceOp::Band,
        ReduceOp::Bor,
        ReduceOp::Bxor,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            ReduceOp::Sum => "sum",
            ReduceOp::Prod => "prod",
            ReduceOp::Max => "max",
            ReduceOp::Min => "min",
            ReduceOp::Avg => "avg",
            ReduceOp::Band => "band",
            ReduceOp::Bor => "bor",
            ReduceOp::Bxor => "bxor",
            ReduceOp::PreMulSum => "premulsum",
        }
    }

    /// Whether the operation is defined on the type: bitwise ones need integers or bool, and bool
    /// has neither a mean nor a scaled sum.
    pub const fn supports(self, data_type: DataType) -> bool {
        match self {
            ReduceOp::Band | ReduceOp::Bor | ReduceOp::Bxor => !data_type.is_float(),
            ReduceOp::Avg | ReduceOp::PreMulSum => !matches!(data_type, DataType::Bool),
            _ => true,
        }
    }

    /// Whether any order and grouping of the operands gives the same bits on the type.
    pub const fn is_associative(self, data_type: DataType) -> bool {
        match self {
            ReduceOp::Max | ReduceOp::Min | ReduceOp::Band | ReduceOp::Bor | ReduceOp::Bxor => true,
            _ => !data_type.is_float(),
        }
    }
}

impl fmt::Display for ReduceOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
