/* What net_plugin.c stands on: the ABI by version, faults, rules and traces, and the objects. */
#ifndef NET_PLUGIN_H
#define NET_PLUGIN_H
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { OK, SYSTEM_ERROR = 2, INVALID_USAGE = 5, REMOTE_ERROR = 6 };
enum { CAP = ABI == 6 ? 8 : 32, STRANGERS = 64, PTR_HOST = 1 };
#define UNUSED __attribute__((unused))
#if ABI >= 11
#define V11(...) __VA_ARGS__
#define ONLY_V11(value) value
typedef size_t length;
#else
#define V11(...)
#define ONLY_V11(value) NULL
typedef int length;
#endif
#if ABI >= 8
#define V8(...) __VA_ARGS__
#else
#define V8(...)
#endif
#ifdef NEURON
#define IF_NEURON(...) __VA_ARGS__
#else
#define IF_NEURON(...)
#endif
#if ABI >= 8 || defined NEURON
typedef size_t reg_length;
#else
typedef int reg_length;
#endif

typedef void logger_fn(int level, unsigned long flags, const char *file, int, const char *fmt, ...);
typedef int profiler_fn(void **event, int type, void *parent, int64_t id, void *data);
struct properties {
    char *name, *pci_path;
    uint64_t guid;
    int ptr_support V8(, reg_is_global) IF_NEURON(, reg_is_global) V11(, force_flush), speed, port;
    float latency;
    int max_comms, max_recvs V8(, device_type, device_version);
    V11(struct { int count, devices[ABI == 11 ? 4 : 8]; } virtual_device;)
    V11(size_t max_p2p, max_coll; int max_multi_request;)
    int16_t rails[ABI >= 12 ? 2 : 0];
    IF_NEURON(size_t max_inline, max_key; int rma;)
};
_Static_assert(sizeof(struct properties) == IF_NEURON(32 +) (ABI == 6 ? 48 : ABI == 8 ? 64
                                                              : ABI == 11 ? 112 : 128), "");

#define FAULTS(X) X(late, 0) X(null, 2) X(never, 3) X(corrupt, 1) X(full_null, 0) X(null_mr, 0) \
    X(reorder, 0) X(hang_close, 0) X(dead_silent, 0) X(log, 0) X(fail_init, 0) X(no_devices, 0)
#define DECLARE(fault, value) fault,
static struct { long FAULTS(DECLARE) devices, speed, max_bytes; } F; /* a fault not asked for: -1 */
static logger_fn *logger;
V11(static profiler_fn *profiler;)
static atomic_long told, received, posted, traced;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Thread_local const char *in_call;

#define LOG(...) (F.log >= 0 ? logger(3, 16, __func__, __LINE__, __VA_ARGS__) : (void)0)
#define RULE(holds, ...) ((holds) ? (void)0 : broken_rule(__VA_ARGS__))
#define FIND(c, test) ({ \
    struct request *best = NULL; \
    for (struct request *r = (c)->requests; r < (c)->requests + CAP; r++) \
        if (r->used && (test) && (!best || r->order < best->order)) \
            best = r; \
    best; })

__attribute__((noreturn, format(printf, 1, 2)))
static void broken_rule(const char *format, ...) {
    va_list args;
    va_start(args, format);
    fprintf(stderr, "fixture plugin: rule broken in %s: ", in_call);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    abort();
}

__attribute__((format(printf, 2, 3)))
static void trace(const char *event, const char *format, ...) {
    const char *path = getenv("FIXTURE_TRACE");
    char text[160], line[256];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    int n = snprintf(line, sizeof line, "%d %ld %s %s\n", getpid(), ++traced, event, text);
    LOG("%s %s (call %ld)", event, text, (long)traced);
    int fd = path ? open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600) : -1;
    if (path && (fd < 0 || write(fd, line, (size_t)n) != n || close(fd)))
        perror("fixture plugin: FIXTURE_TRACE");
}

static int64_t now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* ---- Objects. What is closed stays as a tombstone, so that its use is seen. ---- */

/* On the wire: hello, and back the same; then a clear for each receive, a header and data back. */
struct header { uint64_t magic, size; /* of hello: the cookie */ };
struct clear { uint64_t magic; int64_t tag; uint64_t size; };
static const uint64_t HELLO = 0x4f4c4c4548, CLEAR = 0x5241454c43, HEADER = 0x524544414548;

struct context { struct context *next; atomic_int comms; bool finalized; };
struct region { struct region *next; char *start; size_t size; };
struct request {
    struct comm *comm;
    bool used, ended;
    uint64_t order;
    int64_t end;
    char *data;
    size_t size, moved; /* a send's `moved` counts the header too */
    int tag;
    void *event;
};
enum kind { LISTENER = 0x4c495354, CONNECTING, SENDER, RECEIVER, CLOSED };
struct comm {
    enum kind kind;
    atomic_bool busy;
    int fd, error;
    bool mute, stale; /* the socket is not to be used; memory of a request has gone */
    long calls;
    uint64_t cookie, order;
    struct comm *next;
    struct context *context;
    struct region *regions;
    struct request requests[CAP];
    struct { int fd; size_t got; struct header hello; } strangers[STRANGERS];
    struct header in;
    struct clear clear, clears[CAP]; /* a sender's: as read; a receiver's: to be written */
    unsigned clears_head, clears_tail;
    size_t in_got, clear_got;
};
struct handle {
    uint64_t magic, cookie, port;
    struct comm *state; /* NULL on the wire */
    char filling[88];
    uint64_t check;
};
_Static_assert(sizeof(struct handle) == 128, "NCCL_NET_HANDLE_MAXSIZE");

#endif
