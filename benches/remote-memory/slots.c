/* What crosses from one core to another in a ring of slots, by how the writer stores it: through its cache,
 * past it (non-temporal), or with `rep movsb`. One way, and both ways at once. */
#define _GNU_SOURCE
#include <immintrin.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MOST = 4 << 20, RUNS = 5, MOVED = 32 << 20 };
enum way { CACHED, PAST, STRING, WAYS };
static const char *const NAMES[WAYS] = {"cached", "past", "rep movsb"};

struct ring {
    _Alignas(128) _Atomic uint64_t posted;
    _Alignas(128) _Atomic uint64_t freed;
    _Alignas(4096) char slots[MOST];
};

static struct ring *rings[2];
static size_t bytes, depth;
static enum way way;
static int both_ways;
static long messages;
static pthread_barrier_t together;
static double took_ns[2];

static double now_ns(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1e9 + time.tv_nsec;
}

__attribute__((target("avx2"))) static void store(char *to, const char *from, size_t length)
{
    if (way == STRING) {
        __asm__ volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(length) : : "memory");
        return;
    }
    for (size_t at = 0; at < length; at += 32) {
        __m256i word = _mm256_load_si256((const __m256i *)(from + at));
        if (way == PAST)
            _mm256_stream_si256((__m256i *)(to + at), word);
        else
            _mm256_store_si256((__m256i *)(to + at), word);
    }
    if (way == PAST)
        _mm_sfence();
}

static void put(struct ring *ring, uint64_t message, const char *from)
{
    while (atomic_load_explicit(&ring->freed, memory_order_acquire) + depth <= message)
        _mm_pause();
    store(ring->slots + message % depth * bytes, from, bytes);
    atomic_store_explicit(&ring->posted, message + 1, memory_order_release);
}

static void take(struct ring *ring, uint64_t message, char *to)
{
    while (atomic_load_explicit(&ring->posted, memory_order_acquire) <= message)
        _mm_pause();
    memcpy(to, ring->slots + message % depth * bytes, bytes);
    atomic_store_explicit(&ring->freed, message + 1, memory_order_release);
}

static void *core(void *argument)
{
    size_t number = (size_t)argument;
    cpu_set_t mask;
    CPU_ZERO(&mask);
    CPU_SET(number, &mask);
    sched_setaffinity(0, sizeof mask, &mask);
    char *from = aligned_alloc(4096, MOST), *to = aligned_alloc(4096, MOST);
    memset(from, 1, bytes);
    memset(to, 0, bytes);
    pthread_barrier_wait(&together);
    double begun = now_ns();
    for (long message = 0; message < messages; message++) {
        if (both_ways || number == 0)
            put(rings[number], message, from);
        if (both_ways || number == 1)
            take(rings[1 - number], message, to);
    }
    took_ns[number] = now_ns() - begun;
    free(from);
    free(to);
    return NULL;
}

static int by_value(const void *one, const void *other)
{
    double a = *(const double *)one, b = *(const double *)other;
    return (a > b) - (a < b);
}

static double median_ns(void)
{
    double runs[RUNS];
    for (int run = 0; run < RUNS; run++) {
        pthread_t threads[2];
        messages = MOVED / bytes;
        pthread_barrier_init(&together, NULL, 2);
        for (size_t number = 0; number < 2; number++) {
            rings[number]->posted = rings[number]->freed = 0;
        }
        for (size_t number = 0; number < 2; number++)
            pthread_create(&threads[number], NULL, core, (void *)number);
        for (size_t number = 0; number < 2; number++)
            pthread_join(threads[number], NULL);
        pthread_barrier_destroy(&together);
        runs[run] = (took_ns[0] > took_ns[1] ? took_ns[0] : took_ns[1]) / messages;
    }
    qsort(runs, RUNS, sizeof *runs, by_value);
    return runs[RUNS / 2];
}

int main(void)
{
    static const size_t SIZES[] = {1024, 4096, 8192, 16384, 65536, 131072};
    static const size_t RINGS[] = {32 << 10, 256 << 10, 1 << 20, 4 << 20};
    for (int number = 0; number < 2; number++) {
        rings[number] = aligned_alloc(4096, sizeof(struct ring));
        memset(rings[number], 0, sizeof(struct ring));
    }
    printf("ns a message; median of %d runs\n", RUNS);
    for (both_ways = 0; both_ways < 2; both_ways++) {
        for (size_t size = 0; size < sizeof SIZES / sizeof *SIZES; size++) {
            for (size_t ring = 0; ring < sizeof RINGS / sizeof *RINGS; ring++) {
                bytes = SIZES[size];
                depth = RINGS[ring] / bytes;
                if (depth < 2)
                    continue;
                printf("%s %6zu B, ring %4zu KiB:", both_ways ? "both ways" : "one way  ", bytes, RINGS[ring] >> 10);
                for (way = 0; way < WAYS; way++)
                    printf("  %s %7.0f", NAMES[way], median_ns());
                printf("\n");
            }
        }
    }
    return 0;
}
