/*
 * Elements: every type's kind, and the operations on lanes of it.
 *
 * A kind says how its elements are written in memory (`unpack` and `pack` for vectors, `decode` and
 * `encode` for one element) and what the operations do to it in registers. The rules are those of
 * the CPU path (src/device/host), bit for bit.
 */
#pragma once

#include "floats.cuh"
#include "integers.cuh"

/* An element's bits, as an integer of its size. */
template <int SIZE> struct BitsOf;
template <> struct BitsOf<1> {
    using Type = uint8_t;
};
template <> struct BitsOf<2> {
    using Type = uint16_t;
};
template <> struct BitsOf<4> {
    using Type = uint32_t;
};
template <> struct BitsOf<8> {
    using Type = uint64_t;
};

/* `accumulators op= next`, lane by lane; the switch is outside, so it costs once for all lanes. */
template <class K, int COUNT>
DEVICE void combine(Code code, typename K::Acc (&to)[COUNT], const typename K::Acc (&next)[COUNT]) {
#define LANEWISE(OPERATION)                                                                        \
    UNROLL for (int i = 0; i < COUNT; i++) to[i] = K::OPERATION(to[i], next[i])
    /* By itself: a jump through a table costs small calls 0.1 us at every source. */
    if (code == SUM) {
        LANEWISE(sum);
        return;
    }
    switch (code) {
    case SUM: break;
    case PROD: LANEWISE(prod); break;
    case MAX: LANEWISE(max); break;
    case MIN: LANEWISE(min); break;
    case MAX_UNSIGNED: LANEWISE(max_unsigned); break;
    case MIN_UNSIGNED: LANEWISE(min_unsigned); break;
    case AND: LANEWISE(bit_and); break;
    case OR: LANEWISE(bit_or); break;
    case XOR: LANEWISE(bit_xor); break;
    }
#undef LANEWISE
}

/* What happens to one lane on its way in, and on its way out. */
template <class K, int COUNT> DEVICE void scale(typename K::Acc (&values)[COUNT], double scalar) {
    UNROLL for (int i = 0; i < COUNT; i++) values[i] = K::scale(values[i], scalar);
}
template <class K, int COUNT> DEVICE void halve(typename K::Acc (&values)[COUNT], uint32_t shift) {
    UNROLL for (int i = 0; i < COUNT; i++) values[i] = K::halve(values[i], shift);
}
template <class K, int COUNT>
DEVICE void divide(const Operation &op, typename K::Acc (&values)[COUNT]) {
    UNROLL for (int i = 0; i < COUNT; i++) values[i] = K::divide(op, values[i]);
}
