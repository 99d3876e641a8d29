/* A network plugin for tests, over TCP on 127.0.0.1; build with -DABI=6, 8, 11 or 12.
 * As real ones do: only `test` makes progress; connect keeps its state in the handle; a send moves
 * nothing before its receive is posted; before init the table holds name and init alone; writes
 * raise SIGPIPE; iflush leaves its request as it was. A caller that breaks a rule is aborted.
 * FIXTURE_DEVICES (1), FIXTURE_SPEED (100000, Mbps), FIXTURE_MAXBYTES (1 GiB), FIXTURE_TRACE (file:
 * a line for each call), FIXTURE_FAULTS, a list with commas of:
 *   late=MS      test tells of an end MS milliseconds after it
 *   null=N       each Nth isend or irecv gives no request; the first N calls of connect and of
 *                accept give no comm
 *   full_null    a post beyond the cap gives no request (without: aborts)
 *   null_mr      memory handles are NULL, as those of NCCL's own sockets are
 *   reorder      of a comm's requests that ended the newest is told first (held 20 ms at most)
 *   never=N      after N (3) requests of this process no further one is told as done
 *   corrupt=N    a bit of the Nth message received that is not empty is wrong
 *   log          the log callback is called at each step (from 11 on also the profiler's)
 *   hang_close (closeSend, closeRecv take an hour), dead_silent (a peer's end is never told),
 *   fail_init, no_devices
 * -DABI=6 -DNEURON gives the symbol the layout of AWS Neuron's; its fini aborts. */
#include "net_plugin.h"

static struct comm *comms;
static struct context *contexts;

static struct comm *new_comm(enum kind kind, int fd, struct context *context) {
    struct comm *c = calloc(1, sizeof *c);
    RULE(c, "out of memory");
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
    c->kind = kind, c->fd = fd, c->context = context;
    for (int i = 0; i < STRANGERS; i++)
        c->strangers[i].fd = -1;
    pthread_mutex_lock(&lock);
    c->next = comms, comms = c;
    context->comms += kind != CONNECTING;
    pthread_mutex_unlock(&lock);
    return c;
}

#define ENTER(...) (in_call = __func__, enter(__VA_ARGS__))
static struct comm *enter(void *opaque, enum kind kind, enum kind other) {
    struct comm *c = opaque;
    RULE(contexts, "called before init");
    RULE(c && c->kind >= LISTENER && c->kind <= CLOSED, "%p is no comm", opaque);
    RULE(!atomic_exchange(&c->busy, true), "two threads at once in comm %p", opaque);
    RULE(c->kind != CLOSED, "comm %p is closed", opaque);
    RULE(c->kind == kind || c->kind == other, "comm %p is of another kind", opaque);
    return c;
}

static int leave(struct comm *c, int result) {
    atomic_store(&c->busy, false);
    return result;
}

/* The context that a call names (before 11: the one there is); its device is checked too. */
static struct context *context_of(const char *call, void *opaque, int dev) {
    in_call = call;
    pthread_mutex_lock(&lock);
    struct context *c = contexts;
    while (c && ABI >= 11 && c != opaque)
        c = c->next;
    RULE(c && !c->finalized, "%p is no context (before init, or finalized)", opaque);
    RULE(dev >= 0 && dev < F.devices, "device %d of %ld", dev, F.devices);
    pthread_mutex_unlock(&lock);
    return c;
}

/* ---- Moving bytes ---- */

static void broken(struct comm *c, int error) {
    /* As fastsocket's, a send here knows no MSG_NOSIGNAL: the caller has to mask SIGPIPE. */
    for (int i = 0; i < 3 && c->kind == SENDER && FIND(c, !r->ended); i++)
        if (send(c->fd, "", 1, 0) < 0)
            LOG("send: %s", strerror(errno));
    c->mute = true;
    c->error = F.dead_silent >= 0 && error != INVALID_USAGE ? 0 : error;
}

/* Read or write a head and data, `done` bytes of them already; false: not all yet, or never. */
static bool move(struct comm *c, ssize_t io(int, const struct iovec *, int), void *head,
                 size_t head_size, char *data, size_t size, size_t *done) {
    while (!c->mute && *done < head_size + size) {
        size_t in_head = *done < head_size ? *done : head_size, in_data = *done - in_head;
        struct iovec v[] = {{(char *)head + in_head, head_size - in_head},
                            {data ? data + in_data : NULL, size - in_data}};
        ssize_t k = io(c->fd, v, 2);
        if (k < 0 && errno == EAGAIN)
            return false;
        if (k == 0 || (k < 0 && errno != EINTR))
            broken(c, !k || errno == EPIPE || errno == ECONNRESET ? REMOTE_ERROR : SYSTEM_ERROR);
        *done += k > 0 ? (size_t)k : 0;
    }
    return *done >= head_size + size;
}

static void progress_send(struct comm *c) {
    struct request *r;
    while (move(c, readv, &c->clear, sizeof c->clear, NULL, 0, &c->clear_got)) {
        if (c->clear.magic != CLEAR || c->clears_tail - c->clears_head >= CAP)
            return broken(c, REMOTE_ERROR);
        c->clears[c->clears_tail++ % CAP] = c->clear, c->clear_got = 0;
    }
    for (; c->clears_head != c->clears_tail && (r = FIND(c, !r->ended)); c->clears_head++) {
        int tag = (int)c->clears[c->clears_head % CAP].tag;
        RULE(r->tag == tag, "tag %d is sent, the oldest receive's is %d", r->tag, tag);
        if (!move(c, writev, &(struct header){HEADER, r->size}, 16, r->data, r->size, &r->moved))
            return;
        r->ended = true, r->end = now_ms();
    }
}

static void progress_recv(struct comm *c) {
    for (; c->clears_head != c->clears_tail; c->clears_head++, c->clear_got = 0)
        if (!move(c, writev, &c->clears[c->clears_head % CAP], 24, NULL, 0, &c->clear_got))
            break;
    while (move(c, readv, &c->in, sizeof c->in, NULL, 0, &c->in_got)) {
        struct request *r = FIND(c, !r->ended);
        if (c->in.magic != HEADER || !r || c->in.size > r->size)
            return broken(c, c->in.magic == HEADER && r ? INVALID_USAGE : REMOTE_ERROR);
        if (!move(c, readv, NULL, 0, r->data, c->in.size, &r->moved))
            return;
        if (r->moved && ++received == F.corrupt)
            r->data[r->moved / 2] ^= 8;
        r->ended = true, r->end = now_ms(), c->in_got = 0;
    }
}

/* ---- The calls ---- */

static int net_devices(int *count) {
    in_call = __func__;
    RULE(contexts, "called before init");
    *count = F.no_devices >= 0 ? 0 : (int)F.devices;
    return OK;
}

static int net_properties(int dev, struct properties *p) {
    static char names[64][16];
    in_call = __func__;
    RULE(contexts && dev >= 0 && dev < F.devices, "device %d of %ld", dev, F.devices);
    snprintf(names[dev % 64], 16, "fixture%hhd", (char)dev);
    *p = (struct properties){.name = names[dev % 64], .guid = (uint64_t)dev, .port = 1,
        .ptr_support = PTR_HOST, .speed = (int)F.speed, .max_comms = 1 << 16, .max_recvs = 1,
        V11(.virtual_device = {1, {dev}}, .max_p2p = (size_t)F.max_bytes,
            .max_coll = (size_t)F.max_bytes, .max_multi_request = 1)};
    memset(p->rails, -1, sizeof p->rails);
    return OK;
}

static int net_listen(V11(void *ctx,) int dev, void *handle, void **out) {
    struct context *context = context_of(__func__, ONLY_V11(ctx), dev);
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0 || bind(fd, (void *)&a, sizeof a) || listen(fd, 256) ||
        getsockname(fd, (void *)&a, &(socklen_t){sizeof a}))
        return SYSTEM_ERROR;
    struct comm *c = *out = new_comm(LISTENER, fd, context);
    RULE(!getentropy(&c->cookie, sizeof c->cookie), "no entropy");
    *(struct handle *)handle = (struct handle){HELLO, c->cookie, a.sin_port, 0, "", ~c->cookie};
    trace("listen", "%p dev=%d port=%d", *out, dev, ntohs(a.sin_port));
    return OK;
}

static int net_connect(V11(void *ctx,) int dev, void *opaque, void **out
                       V8(, void *offload UNUSED)) {
    struct context *context = context_of(__func__, ONLY_V11(ctx), dev);
    struct handle *h = opaque;
    struct comm *c = h->state, *other = comms;
    *out = NULL;
    RULE(h->magic == HELLO && h->check == ~h->cookie, "the handle is not whole");
    if (!c) {
        for (; other; other = other->next)
            RULE(other->kind != CONNECTING || other->cookie != h->cookie,
                 "a second handle for a connection begun: was the first one not kept?");
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                                .sin_port = (in_port_t)h->port};
        if (fd < 0 || (connect(fd, (void *)&a, sizeof a) && errno != EINPROGRESS))
            return SYSTEM_ERROR;
        c = h->state = new_comm(CONNECTING, fd, context);
        c->cookie = h->cookie;
        return OK;
    }
    enter(c, CONNECTING, CONNECTING);
    struct header hello = {HELLO, c->cookie};
    bool now = c->calls++ >= F.null && move(c, writev, &hello, 16, NULL, 0, &c->clear_got);
    if (now && move(c, readv, &c->in, 16, NULL, 0, &c->in_got)) {
        c->kind = SENDER, c->clear_got = c->in_got = 0, *out = c;
        context->comms++;
        trace("connect", "%p dev=%d port=%d", *out, dev, ntohs((in_port_t)h->port));
    }
    if (c->error)
        c->kind = CLOSED, close(c->fd);
    return leave(c, c->error);
}

static int net_accept(void *opaque, void **out V8(, void *offload UNUSED)) {
    struct comm *c = ENTER(opaque, LISTENER, LISTENER);
    bool now = c->calls++ >= F.null;
    int fd;
    *out = NULL;
    while ((fd = accept4(c->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0) {
        int i = (int)(c->order++ % STRANGERS);
        close(c->strangers[i].fd);
        c->strangers[i].fd = fd, c->strangers[i].got = 0;
    }
    for (int i = 0; now && i < STRANGERS && !*out; i++) {
        struct header *hello = &c->strangers[i].hello;
        size_t *got = &c->strangers[i].got;
        if ((fd = c->strangers[i].fd) < 0)
            continue;
        ssize_t k = recv(fd, (char *)hello + *got, 16 - *got, 0);
        *got += k > 0 ? (size_t)k : 0;
        if (k < 0 ? errno == EAGAIN : k && *got < 16)
            continue;
        c->strangers[i].fd = -1;
        if (*got == 16 && hello->magic == HELLO && hello->size == c->cookie &&
            send(fd, hello, 16, MSG_NOSIGNAL) == 16) {
            trace("accept", "%p of=%p", *out = new_comm(RECEIVER, fd, c->context), opaque);
        } else {
            trace("stranger", "at=%p", opaque);
            close(fd);
        }
    }
    return leave(c, OK);
}

static int net_reg(void *opaque, void *data, reg_length size, int type, void **out) {
    struct comm *c = ENTER(opaque, SENDER, RECEIVER);
    struct region *r = malloc(sizeof *r);
    RULE(r && type == PTR_HOST && (long)size >= 0, "size %ld, type %d", (long)size, type);
    *r = (struct region){c->regions, data, (size_t)size};
    c->regions = r;
    *out = F.null_mr >= 0 ? NULL : r;
    trace("reg", "%p comm=%p size=%ld", data, opaque, (long)size);
    return leave(c, OK);
}

static bool within(struct region *r, char *data, size_t size) {
    return data >= r->start && size <= r->size && (size_t)(data - r->start) <= r->size - size;
}

static int net_dereg(void *opaque, void *handle) {
    struct comm *c = ENTER(opaque, SENDER, RECEIVER);
    struct region **p = &c->regions, *mr;
    while (*p && *p != handle && F.null_mr < 0)
        p = &(*p)->next;
    RULE((mr = *p) && (F.null_mr < 0 || !handle), "%p is not registered here", handle);
    /* With requests under way only dereg and close are left to this comm, as after an abort. */
    c->stale |= FIND(c, within(mr, r->data, r->size)) != NULL;
    *p = mr->next;
    trace("dereg", "%p comm=%p", (void *)mr->start, opaque);
    free(mr);
    return leave(c, OK);
}

static int post(void *opaque, enum kind kind, void *data, long size, int tag, void *mr,
                void *parent UNUSED, void **out) {
    struct comm *c = enter(opaque, kind, kind);
    struct region *region = c->regions;
    struct request *r = c->requests;
    while (region && !((mr == region || F.null_mr >= 0) && within(region, data, (size_t)size)))
        region = region->next;
    RULE(region, "%p+%ld is not within region %p of this comm", data, size, mr);
    RULE(size >= 0 && size <= F.max_bytes, "size %ld of %ld", size, F.max_bytes);
    RULE(!c->stale, "memory of a request under way was deregistered");
    *out = NULL;
    if (c->error || (F.null > 0 && ++posted % F.null == 0))
        return leave(c, c->error);
    while (r < c->requests + CAP && r->used)
        r++;
    RULE(r < c->requests + CAP || F.full_null >= 0, "more than %d requests", CAP);
    if (r == c->requests + CAP)
        return leave(c, OK);
    *r = (struct request){.comm = c, .used = true, .order = c->order++, .data = data,
                          .size = (size_t)size, .tag = tag};
    if (kind == RECEIVER)
        c->clears[c->clears_tail++ % CAP] = (struct clear){CLEAR, tag, r->size};
    LOG("%s %p size %ld tag %d", in_call, (void *)r, size, tag);
    V11(if (F.log >= 0) profiler(&r->event, 0, parent, 2 << 16 | 1, r);)
    *out = r;
    return leave(c, OK);
}

static int net_isend(void *c, void *data, length size, int tag, void *mr, V11(void *ph,)
                     void **out) {
    in_call = __func__;
    return post(c, SENDER, data, (long)size, tag, mr, ONLY_V11(ph), out);
}

static int net_irecv(void *c, int n, void **data, length *sizes, int *tags, void **mrs,
                     V11(void **phs,) void **out) {
    in_call = __func__;
    RULE(n == 1, "n is %d, maxRecvs 1", n);
    RULE(ABI >= 11 || *out != (void *)1, "*request is 1 before the call");
    return post(c, RECEIVER, *data, (long)*sizes, *tags, *mrs, ONLY_V11(phs ? *phs : NULL), out);
}

/* Nothing to flush in host memory: like NCCL's IB, leave *request as it was. */
static int net_iflush(void *opaque, int n, void **data UNUSED, int *sizes UNUSED, void **mrs UNUSED,
                      void **out UNUSED) {
    struct comm *c = ENTER(opaque, RECEIVER, RECEIVER);
    RULE(n == 1, "n is %d, maxRecvs 1", n);
    return leave(c, OK);
}

static int net_test(void *request, int *done, int *sizes) {
    struct request *q = request;
    in_call = __func__;
    RULE(q && q->comm, "%p is no request", request);
    struct comm *c = enter(q->comm, SENDER, RECEIVER);
    RULE(q->used, "request %p was told as done before", request);
    RULE(!c->stale, "memory of a request under way was deregistered");
    *done = 0;
    (c->kind == SENDER ? progress_send : progress_recv)(c);
    if (!q->ended)
        return leave(c, c->error);
    bool newer = F.reorder >= 0 && FIND(c, r->order > q->order) && now_ms() < q->end + 20;
    if (newer || now_ms() < q->end + F.late || (F.never >= 0 && told >= F.never))
        return leave(c, OK);
    told++;
    q->used = false, *done = 1;
    if (sizes)
        *sizes = (int)(c->kind == SENDER ? q->size : q->moved);
    LOG("test %p done", request);
    V11(if (F.log >= 0) profiler(&q->event, 1, NULL, 0, NULL);)
    return leave(c, OK);
}

static int close_comm(const char *call, void *opaque, enum kind kind) {
    in_call = call;
    struct comm *c = enter(opaque, kind, kind);
    char unread[4096];
    RULE(!c->regions, "memory at %p is still registered", (void *)c->regions->start);
    trace("close", "%s %p", call, opaque);
    while (F.hang_close >= 0 && kind != LISTENER)
        sleep(3600);
    for (int i = 0; i < STRANGERS; i++)
        if (c->strangers[i].fd >= 0)
            close(c->strangers[i].fd);
    /* Unread bytes would make of the end a reset, which takes the data on its way with it. */
    shutdown(c->fd, SHUT_WR);
    while (recv(c->fd, unread, sizeof unread, MSG_DONTWAIT) > 0)
        ;
    close(c->fd);
    c->context->comms--;
    c->kind = CLOSED;
    return leave(c, OK);
}

static int net_close_send(void *c) { return close_comm("closeSend", c, SENDER); }
static int net_close_recv(void *c) { return close_comm("closeRecv", c, RECEIVER); }
static int net_close_listen(void *c) { return close_comm("closeListen", c, LISTENER); }

V11(static int net_finalize(void *ctx) {
    struct context *c = context_of(__func__, ctx, 0);
    RULE(c->comms == 0, "%d comms are open", c->comms);
    c->finalized = true;
    trace("finalize", "%p", ctx);
    return OK;
})

IF_NEURON(static int net_fini(void) {
    in_call = "fini";
    broken_rule("called, in place of devices?");
})

static int net_init(V11(void **ctx, uint64_t id, void *config,) logger_fn *log
                    V11(, profiler_fn *profile));

/* The words of the ABI's structure; until init the exported one has but the first two. */
static void *const functions[] = {
    "fixture", net_init, IF_NEURON(net_fini,) net_devices, net_properties, net_listen, net_connect,
    net_accept, net_reg, NULL /* regMrDmaBuf */, net_dereg, net_isend, net_irecv, net_iflush,
    net_test, net_close_send, net_close_recv, net_close_listen,
    V8(NULL /* getDeviceMr */, NULL /* irecvConsumed */,)
    V11(NULL /* makeVDevice */, net_finalize, NULL /* setNetAttr */,)
    IF_NEURON(NULL, NULL, NULL, NULL /* getMrKey, iwrite, iwriteInline, iread */)
};
#define PASTE(prefix, version) prefix##version
#define NAME(prefix, version) PASTE(prefix, version)
void *NAME(ncclNetPlugin_v, ABI)[sizeof functions / sizeof *functions] = {"fixture", net_init};

/* A fault's value; -1 where it is not asked for. */
static long fault(const char *name, long without_value) {
    const char *p = getenv("FIXTURE_FAULTS");
    size_t n = strlen(name);
    for (; p; p = strchr(p, ',') ? strchr(p, ',') + 1 : NULL)
        if (!strncmp(p, name, n) && (p[n] == '=' || p[n] == ',' || !p[n]))
            return p[n] == '=' ? atol(p + n + 1) : without_value;
    return -1;
}

static long setting(const char *name, long otherwise) {
    return getenv(name) ? atol(getenv(name)) : otherwise;
}

static int net_init(V11(void **ctx, uint64_t id, void *config,) logger_fn *log
                    V11(, profiler_fn *profile)) {
    in_call = __func__;
    RULE(log V11(&& ctx && config && profile), "an argument is NULL");
    if (ABI < 11 && contexts)
        return SYSTEM_ERROR; /* as OFI's does when it is called again */
    logger = log;
    V11(profiler = profile;)
#define READ(name, value) F.name = fault(#name, value);
    FAULTS(READ)
    F.devices = setting("FIXTURE_DEVICES", 1), F.speed = setting("FIXTURE_SPEED", 100000);
    F.max_bytes = setting("FIXTURE_MAXBYTES", 1 << 30);
    trace("init", "v%d id=%llx", ABI, 0ull V11(+ id));
    struct context *c = calloc(1, sizeof *c);
    if (F.fail_init >= 0 || !c)
        return free(c), SYSTEM_ERROR;
    pthread_mutex_lock(&lock);
    c->next = contexts, contexts = c;
    pthread_mutex_unlock(&lock);
    V11(*ctx = c;)
    memcpy(NAME(ncclNetPlugin_v, ABI), functions, sizeof functions);
    return OK;
}
