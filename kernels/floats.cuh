/*
 * Floats: those of up to 32 bits are f32 between load and store and are rounded once, to nearest
 * even.
 *
 * A NaN result has every bit but the sign set; min and max propagate NaN and order -0 below +0;
 * 8-bit floats saturate. Where the hardware converts, it is the hardware that converts; elsewhere
 * it is `narrow`, which is the host's own.
 */
#pragma once

#include "operation.cuh"

constexpr uint32_t MAGNITUDE = 0x7fffffffu;
constexpr uint32_t INFINITY_BITS = 0x7f800000u;
constexpr uint32_t NAN_BITS = 0x7fffffffu;

/* f32 to a sign, an exponent with `BIAS` and `FRACTION` bits: to nearest even; finite values beyond
   `largest` become it. */
template <uint32_t FRACTION, uint32_t BIAS>
DEVICE uint32_t narrow(float value, uint32_t largest, uint32_t infinity, uint32_t nan) {
    constexpr uint32_t DROP = 23 - FRACTION;
    const uint32_t bits = bits_of(value);
    const uint32_t magnitude = bits & MAGNITUDE;
    const uint32_t sign = FRACTION == 10 ? bits >> 16 & 0x8000 : bits >> 24 & 0x80;
    if (magnitude > INFINITY_BITS) return nan;
    if (magnitude == INFINITY_BITS) return infinity | sign;
    /* Half a place less one, and the new bias, in one constant. */
    constexpr uint32_t REBIAS = ((1u << (DROP - 1)) - 1) - ((127 - BIAS) << 23);
    uint32_t result = (magnitude + REBIAS + (magnitude >> DROP & 1)) >> DROP;
    if (magnitude < (127 - BIAS + 1) << 23) {
        /* Adding a number whose last place is the smallest denormal lets the hardware round. */
        constexpr uint32_t MAGIC = (127 + 24 - BIAS - FRACTION) << 23;
        result = bits_of(float_of(magnitude) + float_of(MAGIC)) - MAGIC;
    }
    return (result < largest ? result : largest) | sign;
}

DEVICE float decode_half(uint32_t bits) {
#ifdef HAVE_HALF_CONVERSIONS
    return half_to_float(bits);
#else
    const uint32_t magnitude = (bits & 0x7fff) << 13;
    const uint32_t sign = (bits & 0x8000) << 16;
    if (magnitude > 0x0f7fffff) return float_of(magnitude | INFINITY_BITS | sign);
    if (magnitude >= 1u << 23) return float_of((magnitude + ((127 - 15) << 23)) | sign);
    /* Give the fraction the exponent of the smallest normal, then take that away. */
    constexpr uint32_t SMALLEST = (127 - 14) << 23;
    return float_of(bits_of(float_of(magnitude + SMALLEST) - float_of(SMALLEST)) | sign);
#endif
}

/* How a float of up to 32 bits is written: to and from f32, one element or a pair in the low bits.
 */
struct FormatF16 {
    static constexpr int SIZE = 2;
    DEVICE static void decode_pair(uint32_t pair, float &first, float &second) {
        first = decode_half(pair & 0xffff);
        second = decode_half(pair >> 16);
    }
    DEVICE static uint32_t encode_pair(float first, float second) {
#ifdef HAVE_HALF_CONVERSIONS
        return floats_to_halves(first, second);
#else
        return narrow<10, 15>(first, 0x7c00, 0x7c00, 0x7fff) |
               narrow<10, 15>(second, 0x7c00, 0x7c00, 0x7fff) << 16;
#endif
    }
};

struct FormatBf16 {
    static constexpr int SIZE = 2;
    DEVICE static void decode_pair(uint32_t pair, float &first, float &second) {
        first = float_of(pair << 16);
        second = float_of(pair & 0xffff0000u);
    }
    DEVICE static uint32_t encode_pair(float first, float second) {
#ifdef HAVE_HALF_CONVERSIONS
        return floats_to_brains(first, second);
#else
        return encode(first) | encode(second) << 16;
#endif
    }
    DEVICE static uint32_t encode(float value) {
        const uint32_t bits = bits_of(value);
        if ((bits & MAGNITUDE) > INFINITY_BITS) return 0x7fff;
        return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    }
};

/* No infinities, largest 448, NaN 0x7f and 0xff. Overflow saturates. */
struct FormatE4m3 {
    static constexpr int SIZE = 1;
    DEVICE static void decode_pair(uint32_t pair, float &first, float &second) {
#ifdef HAVE_BYTE_CONVERSIONS
        FormatF16::decode_pair(e4m3_to_halves(pair), first, second);
#else
        first = decode(pair & 0xff);
        second = decode(pair >> 8 & 0xff);
#endif
    }
    /* From an f16 that holds the bits, whose exponent's bias is 8 greater. */
    DEVICE static float decode(uint32_t bits) {
        if ((bits & 0x7f) == 0x7f) return float_of(NAN_BITS);
        return decode_half((bits & 0x7f) << 7 | (bits & 0x80) << 8) * 256.0f;
    }
    DEVICE static uint32_t encode_pair(float first, float second) {
#ifdef HAVE_BYTE_CONVERSIONS
        return floats_to_e4m3(first, second);
#else
        return narrow<3, 7>(first, 0x7e, 0x7e, 0x7f) | narrow<3, 7>(second, 0x7e, 0x7e, 0x7f) << 8;
#endif
    }
};

/* The upper half of an f16. Finite overflow saturates at 57344, but an infinity stays one. */
struct FormatE5m2 {
    static constexpr int SIZE = 1;
    DEVICE static void decode_pair(uint32_t pair, float &first, float &second) {
#ifdef HAVE_BYTE_CONVERSIONS
        FormatF16::decode_pair(e5m2_to_halves(pair), first, second);
#else
        first = decode_half((pair & 0xff) << 8);
        second = decode_half(pair & 0xff00);
#endif
    }
    DEVICE static uint32_t encode_pair(float first, float second) {
#ifdef HAVE_BYTE_CONVERSIONS
        const uint32_t pair = floats_to_e5m2(first, second);
        return special(first, pair & 0xff) | special(second, pair >> 8 & 0xff) << 8;
#else
        return narrow<2, 15>(first, 0x7b, 0x7c, 0x7f) | narrow<2, 15>(second, 0x7b, 0x7c, 0x7f)
                                                            << 8;
#endif
    }
    /* The hardware's saturation takes infinities too, and its NaN has other bits. */
    DEVICE static uint32_t special(float value, uint32_t encoded) {
        const uint32_t magnitude = bits_of(value) & MAGNITUDE;
        if (magnitude < INFINITY_BITS) return encoded;
        return magnitude > INFINITY_BITS ? 0x7f : 0x7c | (bits_of(value) >> 24 & 0x80);
    }
};

/* What floats have no operation for never gets here: the library refuses it. */
template <class Self, class Real> struct FloatOperations {
    using Acc = Real;
    static constexpr bool IS_FLOAT = true;
    DEVICE static Real sum(Real a, Real b) { return a + b; }
    DEVICE static Real prod(Real a, Real b) { return a * b; }
    DEVICE static Real max(Real a, Real b) { return greatest(a, b); }
    DEVICE static Real min(Real a, Real b) { return least(a, b); }
    DEVICE static Real max_unsigned(Real a, Real) { return a; }
    DEVICE static Real min_unsigned(Real a, Real) { return a; }
    DEVICE static Real bit_and(Real a, Real) { return a; }
    DEVICE static Real bit_or(Real a, Real) { return a; }
    DEVICE static Real bit_xor(Real a, Real) { return a; }
    DEVICE static Real divide(const Operation &op, Real value) { return value / Real(op.divisor); }
    /* By a power of two, which is to multiply by its reciprocal. */
    DEVICE static Real halve(Real value, uint32_t shift) {
        return value * Real(float_of((127 - shift) << 23));
    }
};

/* Floats of a narrow format, accumulated in f32. */
template <class Format> struct Narrow : FloatOperations<Narrow<Format>, float> {
    using Acc = float;
    static constexpr int SIZE = Format::SIZE;
    static constexpr int LANES = 16 / SIZE, ACCS = LANES;

    /* The product is rounded to the type. */
    DEVICE static float scale(float value, double scalar) {
        float product, unused;
        Format::decode_pair(Format::encode_pair(value * float(scalar), 0.0f), product, unused);
        return product;
    }
    DEVICE static float decode(const Operation &, uint32_t bits) {
        float value, unused;
        Format::decode_pair(bits, value, unused);
        return value;
    }
    DEVICE static uint32_t encode(float value) {
        return Format::encode_pair(value, 0.0f) & ((1u << 8 * SIZE) - 1);
    }
    DEVICE static void unpack(const Operation &, const Quad &quad, float (&out)[ACCS]) {
        constexpr int PAIR = 16 * SIZE;
        UNROLL for (int i = 0; i < LANES; i += 2) {
            const uint32_t word = quad.words[i * SIZE / 4] >> PAIR * (i * SIZE % 4 / (2 * SIZE));
            Format::decode_pair(word, out[i], out[i + 1]);
        }
    }
    DEVICE static Quad pack(const float (&in)[ACCS]) {
        constexpr int PAIR = 16 * SIZE;
        Quad quad = {{0, 0, 0, 0}};
        UNROLL for (int i = 0; i < LANES; i += 2) {
            const uint32_t pair = Format::encode_pair(in[i], in[i + 1]);
            quad.words[i * SIZE / 4] |= pair << PAIR * (i * SIZE % 4 / (2 * SIZE));
        }
        return quad;
    }
};

using E4m3 = Narrow<FormatE4m3>;
using E5m2 = Narrow<FormatE5m2>;
using F16 = Narrow<FormatF16>;
using Bf16 = Narrow<FormatBf16>;

struct F32 : FloatOperations<F32, float> {
    static constexpr int SIZE = 4, LANES = 4, ACCS = 4;

    DEVICE static float canonical(float value) {
        return (bits_of(value) & MAGNITUDE) > INFINITY_BITS ? float_of(NAN_BITS) : value;
    }
    DEVICE static float scale(float value, double scalar) { return value * float(scalar); }
    DEVICE static float decode(const Operation &, uint32_t bits) { return float_of(bits); }
    DEVICE static uint32_t encode(float value) { return bits_of(canonical(value)); }
    DEVICE static void unpack(const Operation &, const Quad &quad, float (&out)[ACCS]) {
        UNROLL for (int i = 0; i < LANES; i++) out[i] = float_of(quad.words[i]);
    }
    DEVICE static Quad pack(const float (&in)[ACCS]) {
        Quad quad;
        UNROLL for (int i = 0; i < LANES; i++) quad.words[i] = encode(in[i]);
        return quad;
    }
};

struct F64 : FloatOperations<F64, double> {
    static constexpr int SIZE = 8, LANES = 2, ACCS = 2;

    DEVICE static double canonical(double value) {
        return value != value ? double_of(0x7fffffffffffffffull) : value;
    }
    /* Each order of operands gives the second one for a NaN and for a pair of zeros; the union of
       their bits is then a NaN and -0. */
    DEVICE static double min(double a, double b) {
        return double_of(bits_of(a < b ? a : b) | bits_of(b < a ? b : a));
    }
    DEVICE static double max(double a, double b) { return -min(-a, -b); }
    DEVICE static double scale(double value, double scalar) { return value * scalar; }
    DEVICE static double decode(const Operation &, uint64_t bits) { return double_of(bits); }
    DEVICE static uint64_t encode(double value) { return bits_of(canonical(value)); }
    DEVICE static void unpack(const Operation &, const Quad &quad, double (&out)[ACCS]) {
        UNROLL for (int i = 0; i < LANES; i++) {
            out[i] = double_of(quad.words[2 * i] | uint64_t(quad.words[2 * i + 1]) << 32);
        }
    }
    DEVICE static Quad pack(const double (&in)[ACCS]) {
        Quad quad;
        UNROLL for (int i = 0; i < LANES; i++) {
            const uint64_t bits = encode(in[i]);
            quad.words[2 * i] = uint32_t(bits);
            quad.words[2 * i + 1] = uint32_t(bits >> 32);
        }
        return quad;
    }
};
