/*
 * A block's share of `targets <- reduce(sources)`.
 *
 * Sixteen bytes at a time where all ends are aligned alike: a thread asks for the first two
 * sources' vectors before it uses one, and for each further source's before it adds those that have
 * come, so that something is on its way while it computes. Where no thread has a second vector, it
 * asks for eight sources at once instead. Every source is read once and every target written once,
 * after all sources at that place were read, so a target may be a source. What does not fill a
 * vector, at either end, goes element by element, as does everything when ends are not aligned
 * alike.
 */
#pragma once

#include "numbers.cuh"

/* What is reduced: `ends` are the sources, then the targets. */
struct Job {
    const uint64_t *ends;
    uint32_t nsources;
    uint32_t ntargets;
    /* Factors by source, or null; else the one source that `scalar` multiplies. */
    const double *scalars;
    uint32_t scaled;
    double scalar;
    /* A mean divides. */
    bool divides;

    DEVICE uint64_t source(uint32_t index) const { return ends[index]; }
    DEVICE uint64_t target(uint32_t index) const { return ends[nsources + index]; }
};

/* Vectors of a thread that are on their way at once for one source: with two sources as many bytes
   as 512 threads need to cover the latency of memory (about 30 KB for each multiprocessor of an
   H200: 4.8 TB/s times 0.8 us over 132), within the 128 registers that a thread then has. */
template <class K> constexpr int BATCH = K::IS_FLOAT && K::SIZE == 1 ? 2 : 4;

/* Sources that a thread with one vector asks for before it uses one: a machine of eight GPUs has as
   many, and they take 32 of the 128 registers. A loop adds them by halves: code for all eight would
   be twice as long, and one vector does not make up for fetching it. */
constexpr int WIDE = 8;

/* Vectors of a thread at a place, where it asks for those of the next place before it has written
   these: as many as its registers hold; and the most sources that are read so. With more, the loads
   of one place are enough. */
template <class K> constexpr int AHEAD = K::IS_FLOAT && K::SIZE < 4 ? 2 : 4;
constexpr uint32_t AHEAD_SOURCES = 4;

/* Whether the value passes unchanged: one source, nothing to do to it. */
DEVICE bool copies(const Operation &op, const Job &job) {
    return job.nsources == 1 && !job.divides && !op.scales && !op.is_truth;
}

/* Whether there is more to do than to combine floats or integers, and to divide floats: then one
   vector at a time, for divisions of integers take many registers. */
template <class K> DEVICE bool is_full(const Operation &op, const Job &job) {
    return op.scales || job.nsources == 1 || (job.divides && !K::IS_FLOAT);
}

/* The end of a mean of floats: to multiply by the reciprocal of a power of two gives the same. */
template <class K, int COUNT>
DEVICE void finish(const Operation &op, const Job &job, typename K::Acc (&to)[COUNT]) {
    if (!job.divides) return;
    if ((op.parts & (op.parts - 1)) == 0) {
        halve<K, COUNT>(to, op.shift);
    } else {
        divide<K, COUNT>(op, to);
    }
}

/* The values that loads give are used from here on, not before: else the compiler would use the
   first before it asks for the next. */
template <int U> DEVICE void after_loads(Quad (&quads)[U]) {
    UNROLL for (int u = 0; u < U; u++) keep_order(quads[u]);
}

/* Source `index`, multiplied where it is to be. */
template <class K, int COUNT> DEVICE void prepare(const Operation &op, const Job &job,
                                                  uint32_t index, typename K::Acc (&next)[COUNT]) {
    if (!op.scales) return;
    if (job.scalars) {
        scale<K, COUNT>(next, job.scalars[index]);
    } else if (job.scaled == index) {
        scale<K, COUNT>(next, job.scalar);
    }
}

/* One element at any address. */
template <class K> DEVICE typename BitsOf<K::SIZE>::Type load_element(uint64_t address) {
    using Bits = typename BitsOf<K::SIZE>::Type;
    if (address % K::SIZE == 0) return load_scalar<Bits>(address);
    Bits bits = 0;
    UNROLL for (int i = 0; i < K::SIZE; i++)
        bits |= Bits(load_scalar<uint8_t>(address + i)) << 8 * i;
    return bits;
}
template <class K>
DEVICE void store_element(uint64_t address, typename BitsOf<K::SIZE>::Type bits) {
    if (address % K::SIZE == 0) return store_scalar(address, bits);
    UNROLL for (int i = 0; i < K::SIZE; i++) store_scalar(address + i, uint8_t(bits >> 8 * i));
}

/* Whether every end of a job has aligned elements. */
template <class K> DEVICE bool are_aligned(const Job &job, uint64_t offset) {
    uint64_t any = 0;
    ROLLED for (uint32_t e = 0; e < job.nsources + job.ntargets; e++) any |= job.ends[e] + offset;
    return any % K::SIZE == 0;
}

/* One aligned element, which waits for memory once for eight sources. */
template <class K>
DEVICE void reduce_aligned(const Operation &op, const Job &job, uint64_t offset) {
    using Bits = typename BitsOf<K::SIZE>::Type;
    typename K::Acc to[1] = {};
    ROLLED for (uint32_t first = 0; first < job.nsources; first += WIDE) {
        Bits coming[WIDE] = {};
        UNROLL for (int s = 0; s < WIDE; s++) {
            if (first + s < job.nsources)
                coming[s] = load_scalar<Bits>(job.source(first + s) + offset);
        }
        const uint32_t end = first + WIDE < job.nsources ? first + WIDE : job.nsources;
        ROLLED for (uint32_t index = first; index < end; index++) {
            typename K::Acc next[1] = {K::decode(op, coming[0])};
            prepare<K, 1>(op, job, index, next);
            if (index == 0) {
                to[0] = next[0];
            } else {
                combine<K, 1>(op.code, to, next);
            }
            UNROLL for (int s = 0; s + 1 < WIDE; s++) coming[s] = coming[s + 1];
        }
    }
    if (job.divides) divide<K, 1>(op, to);
    const Bits bits = Bits(K::encode(to[0]));
    ROLLED for (uint32_t t = 0; t < job.ntargets; t++)
        store_scalar<Bits>(job.target(t) + offset, bits);
}

template <class K>
DEVICE void reduce_element(const Operation &op, const Job &job, uint64_t offset) {
    if (!copies(op, job) && are_aligned<K>(job, offset))
        return reduce_aligned<K>(op, job, offset);
    using Bits = typename BitsOf<K::SIZE>::Type;
    Bits bits = load_element<K>(job.source(0) + offset);
    if (!copies(op, job)) {
        typename K::Acc to[1] = {K::decode(op, bits)};
        prepare<K, 1>(op, job, 0, to);
        ROLLED for (uint32_t s = 1; s < job.nsources; s++) {
            typename K::Acc next[1] = {K::decode(op, load_element<K>(job.source(s) + offset))};
            prepare<K, 1>(op, job, s, next);
            combine<K, 1>(op.code, to, next);
        }
        if (job.divides) divide<K, 1>(op, to);
        bits = Bits(K::encode(to[0]));
    }
    ROLLED for (uint32_t t = 0; t < job.ntargets; t++)
        store_element<K>(job.target(t) + offset, bits);
}

/* Where the vectors of a thread lie: number `u` is `index + u * stride`, if that is below `count`.
 */
struct Vectors {
    uint64_t offset;
    uint32_t index;
    uint32_t stride;
    uint32_t count;

    DEVICE Quad load_one(uint64_t base) const {
        return load_quad(base + offset + uint64_t(index) * 16);
    }
    template <int U> DEVICE void load(uint64_t base, Quad (&out)[U]) const {
        base += offset + uint64_t(index) * 16;
        UNROLL for (int u = 0; u < U; u++) {
            if (index + u * stride < count) out[u] = load_quad(base + u * stride * 16);
        }
    }
    template <int U> DEVICE void store(uint64_t base, const Quad (&in)[U]) const {
        base += offset + uint64_t(index) * 16;
        UNROLL for (int u = 0; u < U; u++) {
            if (index + u * stride < count) store_quad(base + u * stride * 16, in[u]);
        }
    }
};

/* One source's bytes to all targets, of all vectors of a thread. Those of the next place are on
   their way while this one's are written. With four, ptxas for sm_80 moves the first of eight
   sources elsewhere before it asks for the last. */
DEVICE void copy_ahead(const Job &job, Vectors vectors) {
    constexpr int U = 3;
    Quad here[U] = {}, coming[U] = {};
    vectors.load(job.source(0), coming);
    ROLLED while (vectors.index < vectors.count) {
        Vectors after = vectors;
        after.index += vectors.stride * U;
        after_loads(coming);
        UNROLL for (int u = 0; u < U; u++) here[u] = coming[u];
        after.load(job.source(0), coming);
        ROLLED for (uint32_t t = 0; t < job.ntargets; t++) vectors.store(job.target(t), here);
        vectors = after;
    }
}

/* The hot path: two sources or more, nothing to multiply, and nothing to divide but floats. */
template <class K>
DEVICE void reduce_batch(const Operation &op, const Job &job, const Vectors &vectors) {
    constexpr int U = BATCH<K>;
    Quad here[U] = {}, coming[U] = {};
    vectors.load(job.source(0), here);
    vectors.load(job.source(1), coming);
    after_loads(here);
    typename K::Acc to[U][K::ACCS];
    UNROLL for (int u = 0; u < U; u++) K::unpack(op, here[u], to[u]);
    ROLLED for (uint32_t s = 1; s < job.nsources; s++) {
        UNROLL for (int u = 0; u < U; u++) here[u] = coming[u];
        if (s + 1 < job.nsources) vectors.load(job.source(s + 1), coming);
        after_loads(here);
        UNROLL for (int u = 0; u < U; u++) {
            typename K::Acc next[K::ACCS];
            K::unpack(op, here[u], next);
            combine<K, K::ACCS>(op.code, to[u], next);
        }
    }
    UNROLL for (int u = 0; u < U; u++) {
        finish<K, K::ACCS>(op, job, to[u]);
        here[u] = K::pack(to[u]);
    }
    ROLLED for (uint32_t t = 0; t < job.ntargets; t++) vectors.store(job.target(t), here);
}

/* The same of few sources, and of all vectors of a thread. The first two sources' of the next place
   are on their way while this one's are added and written. */
template <class K>
DEVICE void reduce_ahead(const Operation &op, const Job &job, Vectors vectors) {
    constexpr int U = AHEAD<K>;
    Quad first[U] = {}, coming[U] = {};
    vectors.load(job.source(0), first);
    vectors.load(job.source(1), coming);
    ROLLED while (vectors.index < vectors.count) {
        Vectors after = vectors;
        after.index += vectors.stride * U;
        after_loads(first);
        typename K::Acc to[U][K::ACCS];
        UNROLL for (int u = 0; u < U; u++) K::unpack(op, first[u], to[u]);
        ROLLED for (uint32_t s = 1; s < job.nsources; s++) {
            Quad here[U];
            after_loads(coming);
            UNROLL for (int u = 0; u < U; u++) here[u] = coming[u];
            if (s + 1 < job.nsources) {
                vectors.load(job.source(s + 1), coming);
            } else {
                after.load(job.source(0), first);
                after.load(job.source(1), coming);
            }
            UNROLL for (int u = 0; u < U; u++) {
                typename K::Acc next[K::ACCS];
                K::unpack(op, here[u], next);
                combine<K, K::ACCS>(op.code, to[u], next);
            }
        }
        Quad sums[U];
        UNROLL for (int u = 0; u < U; u++) {
            finish<K, K::ACCS>(op, job, to[u]);
            sums[u] = K::pack(to[u]);
        }
        ROLLED for (uint32_t t = 0; t < job.ntargets; t++) vectors.store(job.target(t), sums);
        vectors = after;
    }
}

/* The same of a thread's only vector, which waits for memory once for eight sources. */
template <class K>
DEVICE void reduce_wide(const Operation &op, const Job &job, const Vectors &vectors) {
    constexpr int HALF = WIDE / 2;
    typename K::Acc to[K::ACCS] = {};
    ROLLED for (uint32_t first = 0; first < job.nsources; first += WIDE) {
        Quad coming[WIDE] = {};
        UNROLL for (int s = 0; s < WIDE; s++) {
            if (first + s < job.nsources) coming[s] = vectors.load_one(job.source(first + s));
        }
        after_loads(coming);
        const uint32_t end = first + WIDE < job.nsources ? first + WIDE : job.nsources;
        ROLLED for (uint32_t index = first; index < end; index += HALF) {
            UNROLL for (int s = 0; s < HALF; s++) {
                if (index + s >= end) break;
                typename K::Acc next[K::ACCS];
                K::unpack(op, coming[s], next);
                if (index + s == 0) {
                    UNROLL for (int i = 0; i < K::ACCS; i++) to[i] = next[i];
                } else {
                    combine<K, K::ACCS>(op.code, to, next);
                }
            }
            UNROLL for (int s = 0; s < HALF; s++) coming[s] = coming[HALF + s];
        }
    }
    finish<K, K::ACCS>(op, job, to);
    const Quad sum[1] = {K::pack(to)};
    ROLLED for (uint32_t t = 0; t < job.ntargets; t++) vectors.store(job.target(t), sum);
}

DEVICE uint64_t half_of(const Quad &quad, int half) {
    return quad.words[2 * half] | uint64_t(quad.words[2 * half + 1]) << 32;
}

/* Eight bytes in registers: half a vector. */
template <class K> struct Unit {
    static constexpr int ACCS = K::ACCS / 2;
    typename K::Acc lanes[ACCS];

    DEVICE void unpack(const Operation &op, uint64_t bytes) {
        typename K::Acc vector[K::ACCS];
        K::unpack(op, Quad{{uint32_t(bytes), uint32_t(bytes >> 32), 0, 0}}, vector);
        UNROLL for (int i = 0; i < ACCS; i++) lanes[i] = vector[i];
    }
    DEVICE uint64_t pack() const {
        typename K::Acc vector[K::ACCS] = {};
        UNROLL for (int i = 0; i < ACCS; i++) vector[i] = lanes[i];
        const Quad quad = K::pack(vector);
        return quad.words[0] | uint64_t(quad.words[1]) << 32;
    }
};

/* One vector with everything that may happen to a sum, the next source's asked for before this one's
   is used; its halves one after the other. */
template <class K>
DEVICE void reduce_full(const Operation &op, const Job &job, const Vectors &vectors) {
    constexpr int ACCS = Unit<K>::ACCS;
    Quad here[1] = {}, coming[1] = {};
    vectors.load(job.source(0), here);
    if (job.nsources > 1) vectors.load(job.source(1), coming);
    after_loads(here);
    Unit<K> to[2];
    UNROLL for (int half = 0; half < 2; half++) {
        to[half].unpack(op, half_of(here[0], half));
        prepare<K, ACCS>(op, job, 0, to[half].lanes);
    }
    ROLLED for (uint32_t s = 1; s < job.nsources; s++) {
        here[0] = coming[0];
        if (s + 1 < job.nsources) vectors.load(job.source(s + 1), coming);
        after_loads(here);
        UNROLL for (int half = 0; half < 2; half++) {
            Unit<K> next;
            next.unpack(op, half_of(here[0], half));
            prepare<K, ACCS>(op, job, s, next.lanes);
            combine<K, ACCS>(SUM, to[half].lanes, next.lanes);
        }
    }
    UNROLL for (int half = 0; half < 2; half++) {
        if (job.divides) divide<K, ACCS>(op, to[half].lanes);
        const uint64_t bytes = to[half].pack();
        here[0].words[2 * half] = uint32_t(bytes);
        here[0].words[2 * half + 1] = uint32_t(bytes >> 32);
    }
    ROLLED for (uint32_t t = 0; t < job.ntargets; t++) vectors.store(job.target(t), here);
}

/* Of `count` elements `offset` bytes into a job, those before all ends are aligned to vectors: all,
   where they never are together. */
template <class K> DEVICE uint32_t lead_of(const Job &job, uint64_t offset, uint32_t count) {
    const uint32_t nends = job.nsources + job.ntargets;
    const uint32_t first = uint32_t(job.ends[0]);
    uint32_t differ = 0;
    ROLLED for (uint32_t e = 1; e < nends; e++) differ |= uint32_t(job.ends[e]) ^ first;
    const uint32_t missing = (0 - (first + uint32_t(offset))) & 15;
    const bool never = (differ & 15) != 0 || missing % K::SIZE != 0;
    return never || missing / K::SIZE > count ? count : missing / K::SIZE;
}

/* `count` elements of a job, fewer than 2^31, from `offset` bytes on, by so many threads, of which
   this is number `tid`. */
template <class K> DEVICE void reduce_range(const Operation &op, const Job &job, uint64_t offset,
                                            uint32_t count, uint32_t tid, uint32_t nthreads) {
    const uint32_t lead = lead_of<K>(job, offset, count);
    const uint32_t nvectors = (count - lead) / K::LANES;
    Vectors vectors = {offset + lead * K::SIZE, tid, nthreads, nvectors};
    const uint32_t step = nthreads * BATCH<K>;
    if (copies(op, job)) {
        copy_ahead(job, vectors);
    } else if (is_full<K>(op, job)) {
        ROLLED for (; vectors.index < nvectors; vectors.index += nthreads)
            reduce_full<K>(op, job, vectors);
    } else if (nvectors <= nthreads) {
        if (tid < nvectors) reduce_wide<K>(op, job, vectors);
    } else if (job.nsources <= AHEAD_SOURCES) {
        reduce_ahead<K>(op, job, vectors);
    } else {
        ROLLED for (; vectors.index < nvectors; vectors.index += step)
            reduce_batch<K>(op, job, vectors);
    }
    /* What is before the vectors, and what is after them. */
    const uint32_t vectored = nvectors * K::LANES;
    ROLLED for (uint32_t single = tid; single < count - vectored; single += nthreads) {
        const uint32_t element = single < lead ? single : single + vectored;
        reduce_element<K>(op, job, offset + uint64_t(element) * K::SIZE);
    }
}

/* Tile `tile` of a job of `count` elements. The first tile also has what is before the first
   aligned vector, so that all others start with one. */
template <class K> DEVICE void reduce_tile(const Operation &op, const Job &job, uint64_t count,
                                           uint32_t tile, uint32_t size) {
    const uint32_t lead = lead_of<K>(job, 0, count < 16 ? uint32_t(count) : 16) % (16 / K::SIZE);
    const uint64_t begin = tile == 0 ? 0 : lead + uint64_t(tile) * size;
    const uint64_t end = lead + uint64_t(tile + 1) * size;
    if (begin >= count) return;
    reduce_range<K>(op, job, begin * K::SIZE, uint32_t((end < count ? end : count) - begin),
                    thread_index(), thread_count());
}
