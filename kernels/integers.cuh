/*
 * Integers: they wrap, and their mean truncates towards zero. Those of up to 32 bits share
 * registers, so that a vector is four of them whatever its type.
 */
#pragma once

#include "operation.cuh"

/* The scalar's whole part, at the bounds where it is beyond them; NaN is 0. */
DEVICE uint64_t whole(double scalar) {
    constexpr double TWO_63 = 9223372036854775808.0;
    if (scalar < 0) return scalar <= -TWO_63 ? 1ull << 63 : uint64_t(int64_t(scalar));
    if (scalar >= 0) return scalar >= 2 * TWO_63 ? ~0ull : uint64_t(scalar);
    return 0;
}

/* Towards zero. A divisor beyond 32 bits leaves nothing of such a value, but -1 of the least one by
   itself. */
DEVICE uint32_t quotient(int32_t value, uint64_t parts) {
    if (parts > 0x7fffffff) return uint32_t(-int32_t(parts == 0x80000000 && value == INT32_MIN));
    return uint32_t(value / int32_t(parts));
}
DEVICE uint32_t quotient(uint32_t value, uint64_t parts) {
    return parts > 0xffffffff ? 0 : value / uint32_t(parts);
}

/* Integers of up to 32 bits, four bytes of them in a register: `LANE` bits each. */
template <class Bits, class Signed> struct Packed {
    using Acc = uint32_t;
    static constexpr int SIZE = sizeof(Bits);
    static constexpr int LANES = 16 / SIZE;
    /* Registers of a vector. */
    static constexpr int ACCS = 4;
    static constexpr bool IS_FLOAT = false;
    static constexpr int LANE = 8 * SIZE;
    /* The lowest and the highest bit of every lane. */
    static constexpr uint32_t LOW = SIZE == 1 ? 0x01010101u : SIZE == 2 ? 0x00010001u : 1u;
    static constexpr uint32_t HIGH = LOW << (LANE - 1);

    template <class F> DEVICE static Acc lanewise(Acc a, Acc b, F f) {
        Acc result = 0;
        UNROLL for (int i = 0; i < 32; i += LANE)
            result |= Acc(Bits(f(Bits(a >> i), Bits(b >> i)))) << i;
        return result;
    }
    /* All but the highest bits, which would carry into the next lane, and those by themselves. */
    DEVICE static Acc sum(Acc a, Acc b) { return ((a & ~HIGH) + (b & ~HIGH)) ^ ((a ^ b) & HIGH); }
    DEVICE static Acc prod(Acc a, Acc b) {
        return lanewise(a, b, [](Bits x, Bits y) { return uint32_t(x) * uint32_t(y); });
    }
    DEVICE static Acc max(Acc a, Acc b) {
        return lanewise(a, b, [](Bits x, Bits y) { return Signed(x) > Signed(y) ? x : y; });
    }
    DEVICE static Acc min(Acc a, Acc b) {
        return lanewise(a, b, [](Bits x, Bits y) { return Signed(x) < Signed(y) ? x : y; });
    }
    DEVICE static Acc max_unsigned(Acc a, Acc b) {
        return lanewise(a, b, [](Bits x, Bits y) { return x > y ? x : y; });
    }
    DEVICE static Acc min_unsigned(Acc a, Acc b) {
        return lanewise(a, b, [](Bits x, Bits y) { return x < y ? x : y; });
    }
    DEVICE static Acc bit_and(Acc a, Acc b) { return a & b; }
    DEVICE static Acc bit_or(Acc a, Acc b) { return a | b; }
    DEVICE static Acc bit_xor(Acc a, Acc b) { return a ^ b; }
    /* Integers have no reciprocal. */
    DEVICE static Acc halve(Acc value, uint32_t) { return value; }
    DEVICE static Acc divide(const Operation &op, Acc value) {
        return lanewise(value, 0, [&](Bits x, Bits) {
            return op.is_signed ? quotient(int32_t(Signed(x)), op.parts)
                                : quotient(uint32_t(x), op.parts);
        });
    }
    DEVICE static Acc scale(Acc value, double scalar) {
        const uint32_t factor = uint32_t(whole(scalar));
        return lanewise(value, 0, [&](Bits x, Bits) { return uint32_t(x) * factor; });
    }
    /* Of truth values, each non-zero byte is 1. */
    DEVICE static Acc decode(const Operation &op, uint32_t bits) {
        if (SIZE > 1 || !op.is_truth) return bits;
        return (((bits & ~HIGH) + ~HIGH) | bits) >> 7 & LOW;
    }
    DEVICE static Bits encode(Acc value) { return Bits(value); }
    DEVICE static void unpack(const Operation &op, const Quad &quad, Acc (&out)[ACCS]) {
        UNROLL for (int i = 0; i < ACCS; i++) out[i] = decode(op, quad.words[i]);
    }
    DEVICE static Quad pack(const Acc (&in)[ACCS]) { return {{in[0], in[1], in[2], in[3]}}; }
};

using W1 = Packed<uint8_t, int8_t>;
using W2 = Packed<uint16_t, int16_t>;
using W4 = Packed<uint32_t, int32_t>;

struct W8 {
    using Acc = uint64_t;
    static constexpr int SIZE = 8, LANES = 2, ACCS = 2;
    static constexpr bool IS_FLOAT = false;

    DEVICE static Acc sum(Acc a, Acc b) { return a + b; }
    DEVICE static Acc prod(Acc a, Acc b) { return a * b; }
    DEVICE static Acc max(Acc a, Acc b) { return int64_t(a) > int64_t(b) ? a : b; }
    DEVICE static Acc min(Acc a, Acc b) { return int64_t(a) < int64_t(b) ? a : b; }
    DEVICE static Acc max_unsigned(Acc a, Acc b) { return a > b ? a : b; }
    DEVICE static Acc min_unsigned(Acc a, Acc b) { return a < b ? a : b; }
    DEVICE static Acc bit_and(Acc a, Acc b) { return a & b; }
    DEVICE static Acc bit_or(Acc a, Acc b) { return a | b; }
    DEVICE static Acc bit_xor(Acc a, Acc b) { return a ^ b; }
    /* Integers have no reciprocal. */
    DEVICE static Acc halve(Acc value, uint32_t) { return value; }
    DEVICE static Acc divide(const Operation &op, Acc value) {
        constexpr uint64_t MOST = ~uint64_t(0) >> 1;
        if (!op.is_signed) return value / op.parts;
        return Acc(int64_t(value) / int64_t(op.parts < MOST ? op.parts : MOST));
    }
    DEVICE static Acc scale(Acc value, double scalar) { return value * whole(scalar); }
    DEVICE static Acc decode(const Operation &, Acc bits) { return bits; }
    DEVICE static Acc encode(Acc value) { return value; }
    DEVICE static void unpack(const Operation &, const Quad &quad, Acc (&out)[ACCS]) {
        UNROLL for (int i = 0; i < ACCS; i++) {
            out[i] = Acc(quad.words[2 * i]) | Acc(quad.words[2 * i + 1]) << 32;
        }
    }
    DEVICE static Quad pack(const Acc (&in)[ACCS]) {
        return {{uint32_t(in[0]), uint32_t(in[0] >> 32), uint32_t(in[1]), uint32_t(in[1] >> 32)}};
    }
};
