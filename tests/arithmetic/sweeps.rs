//! What tests of every type share: numbers that are the same on every run, a test for each type.

/// xorshift64*.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
}

/// A test for each type, which calls the `sweep` of the place where this stands.
macro_rules! sweeps {
    () => {
        sweeps! {
            every_int8, Int8;
            every_uint8, Uint8;
            every_int16, Int16;
            every_uint16, Uint16;
            every_int32, Int32;
            every_uint32, Uint32;
            every_int64, Int64;
            every_uint64, Uint64;
            every_bool, Bool;
            every_f8e4m3, Float8e4m3;
            every_f8e5m2, Float8e5m2;
            every_half, Float16;
            every_bfloat16, Bfloat16;
            every_float, Float32;
            every_double, Float64;
        }
    };
    ($($name:ident, $data_type:ident;)*) => { $(
        #[test]
        fn $name() {
            sweep(DataType::$data_type);
        }
    )* };
}
pub(crate) use sweeps;
