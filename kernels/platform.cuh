/*
 * The two platforms: what CUDA has and C++ has not, under one set of names.
 *
 * Everything that is assembly, an intrinsic or a memory-order question is here, for the device
 * below and for the host in host.hpp; the other files are plain C++ over these names.
 */
#pragma once

#include "abi.h"

/* Sixteen bytes: what one access moves. */
struct alignas(16) Quad {
    uint32_t words[4];
};

#ifndef __CUDACC__
#include "host.hpp"
#else

#define DEVICE __device__ __forceinline__
#define UNROLL _Pragma("unroll")
/* Unrolled, a loop over sources has more of them in registers than there is room for. */
#define ROLLED _Pragma("unroll 1")
/* One block to a multiprocessor: with fewer registers ptxas puts additions between the loads. */
#define KERNEL(NAME, ARGS)                                                                         \
    extern "C" __global__ void __launch_bounds__(RINGCOMM_THREADS, 1)                              \
        NAME(const __grid_constant__ ARGS args)
/* What a block's threads share, once in a kernel. */
#define SHARED(TYPE, NAME) __shared__ TYPE NAME

DEVICE uint32_t thread_index() { return threadIdx.x; }
DEVICE uint32_t thread_count() { return blockDim.x; }
DEVICE uint32_t block_index() { return blockIdx.x; }
DEVICE uint32_t block_count() { return gridDim.x; }
DEVICE uint32_t row_index() { return blockIdx.y; }

DEVICE void sync_block() { __syncthreads(); }
/* As sync_block; whether all threads said yes. */
DEVICE bool sync_block_and(bool yes) { return __syncthreads_and(yes); }

/* Barrier `ID`, of so many threads: whole warps, of which some wait for all and others go on. */
template <uint32_t ID> DEVICE void sync_threads(uint32_t count) {
    __syncwarp();
    asm volatile("bar.sync %0, %1;" ::"n"(ID), "r"(count) : "memory");
}
template <uint32_t ID> DEVICE void arrive_threads(uint32_t count) {
    __syncwarp();
    asm volatile("bar.arrive %0, %1;" ::"n"(ID), "r"(count) : "memory");
}

/* Threads that go together. */
constexpr uint32_t WARP = 32;
DEVICE uint32_t lane_index() { return threadIdx.x % WARP; }
DEVICE void sync_warp() { __syncwarp(); }
/* As sync_warp; whether all its threads said yes. */
DEVICE bool sync_warp_and(bool yes) { return __all_sync(0xffffffffu, yes); }

template <class T> DEVICE T *at(uint64_t address) { return reinterpret_cast<T *>(address); }

/* Past the first-level cache, in which a slot's former content could still lie, and which has
   nothing to give to what is read once. */
DEVICE Quad load_quad(uint64_t address) {
    const uint4 v = __ldcg(at<const uint4>(address));
    return Quad{{v.x, v.y, v.z, v.w}};
}
DEVICE void store_quad(uint64_t address, const Quad &q) {
    *at<uint4>(address) = make_uint4(q.words[0], q.words[1], q.words[2], q.words[3]);
}
/* What is done with the value comes after the loads that come before. */
DEVICE void keep_order(Quad &q) {
    asm volatile(""
                 : "+r"(q.words[0]), "+r"(q.words[1]), "+r"(q.words[2]),
                   "+r"(q.words[3])::"memory");
}
template <class T> DEVICE T load_scalar(uint64_t address) { return __ldcg(at<const T>(address)); }
template <class T> DEVICE void store_scalar(uint64_t address, T value) { *at<T>(address) = value; }

/* Relaxed: the order is acquire_flag's and fence_system's. A poll that acquires would invalidate
   the first-level cache at every look. */
DEVICE uint64_t load_flag(uint64_t address) {
    uint64_t value;
    asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(address) : "memory");
    return value;
}
/* After a poll that succeeded: the payload is read or written behind the flag. A fence would do, and
   take half a microsecond. */
DEVICE void acquire_flag(uint64_t address) {
    [[maybe_unused]] uint64_t value;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(address) : "memory");
}
DEVICE void store_flag(uint64_t address, uint64_t value) {
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(address), "l"(value) : "memory");
}
DEVICE void store_flag32(uint64_t address, uint32_t value) {
    asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
}
/* Between the accesses to payload and the stores of flags, once for all of them. */
DEVICE void fence_system() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }

DEVICE uint64_t swap_if_zero(uint64_t address, uint64_t value) {
    return atomicCAS(at<unsigned long long>(address), 0ull, value);
}
DEVICE void add_atomic(uint64_t address, uint64_t value) {
    atomicAdd(at<unsigned long long>(address), value);
}
DEVICE uint32_t add_atomic32(uint32_t *counter, uint32_t value) {
    return atomicAdd(counter, value);
}

/* Both halves are valid by themselves: 16 bytes travel in pieces of 8 or more. */
DEVICE ringcomm_line load_line(uint64_t address) {
    ringcomm_line line;
    asm volatile("ld.volatile.global.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(line.low), "=r"(line.low_flag), "=r"(line.high), "=r"(line.high_flag)
                 : "l"(address)
                 : "memory");
    return line;
}
DEVICE void store_line(uint64_t address, const ringcomm_line &line) {
    asm volatile("st.volatile.global.v4.u32 [%0], {%1,%2,%3,%4};" ::"l"(address), "r"(line.low),
                 "r"(line.low_flag), "r"(line.high), "r"(line.high_flag)
                 : "memory");
}

DEVICE uint64_t now_ns() {
    uint64_t now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
}
DEVICE void breathe() {}

DEVICE uint32_t bits_of(float value) { return __float_as_uint(value); }
DEVICE float float_of(uint32_t bits) { return __uint_as_float(bits); }
DEVICE uint64_t bits_of(double value) { return __double_as_longlong(value); }
DEVICE double double_of(uint64_t bits) { return __longlong_as_double(bits); }

/* NaN if either is; -0 is less than +0. */
DEVICE float least(float a, float b) {
    float result;
    asm("min.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
    return result;
}
DEVICE float greatest(float a, float b) {
    float result;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
    return result;
}

/* Two elements in one register, the first in its lower half; what NaN becomes is 0x7fff, as on the
   host. */
#define HAVE_HALF_CONVERSIONS 1
DEVICE float half_to_float(uint32_t bits) {
    float result;
    asm("{ .reg .b16 h; cvt.u16.u32 h, %1; cvt.f32.f16 %0, h; }" : "=f"(result) : "r"(bits));
    return result;
}
DEVICE uint32_t floats_to_halves(float first, float second) {
    uint32_t result;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(result) : "f"(second), "f"(first));
    return result;
}
DEVICE uint32_t floats_to_brains(float first, float second) {
    uint32_t result;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(result) : "f"(second), "f"(first));
    return result;
}

#if __CUDA_ARCH__ >= 890
#define HAVE_BYTE_CONVERSIONS 1
/* Bytes of 8-bit floats to two halves, exactly. */
DEVICE uint32_t e4m3_to_halves(uint32_t pair) {
    uint32_t result;
    asm("{ .reg .b16 p; cvt.u16.u32 p, %1; cvt.rn.f16x2.e4m3x2 %0, p; }"
        : "=r"(result)
        : "r"(pair));
    return result;
}
DEVICE uint32_t e5m2_to_halves(uint32_t pair) {
    uint32_t result;
    asm("{ .reg .b16 p; cvt.u16.u32 p, %1; cvt.rn.f16x2.e5m2x2 %0, p; }"
        : "=r"(result)
        : "r"(pair));
    return result;
}
DEVICE uint32_t floats_to_e4m3(float first, float second) {
    uint32_t result;
    asm("{ .reg .b16 p; cvt.rn.satfinite.e4m3x2.f32 p, %1, %2; cvt.u32.u16 %0, p; }"
        : "=r"(result)
        : "f"(second), "f"(first));
    return result;
}
DEVICE uint32_t floats_to_e5m2(float first, float second) {
    uint32_t result;
    asm("{ .reg .b16 p; cvt.rn.satfinite.e5m2x2.f32 p, %1, %2; cvt.u32.u16 %0, p; }"
        : "=r"(result)
        : "f"(second), "f"(first));
    return result;
}
#endif

#endif
