/*
 * Small messages: every rank writes its input into the inbox of every other, and reduces what
 * comes.
 *
 * A line holds eight bytes of payload and the number of the exchange twice, so that its arrival
 * needs neither fence nor flag; a thread pushes its units to all peers, then polls eight peers at
 * once and reduces in the order of ranks: all ranks have the same bits. Inboxes have two halves,
 * used in turn: who begins exchange n + 2 has had everybody's lines of n + 1, and those were sent
 * by ranks that had finished n.
 */
#include "fifo.cuh"
#include "reduce.cuh"

/* Peers whose lines are on their way to a thread at once: as many registers as four vectors of a
   batch. */
constexpr uint32_t POLLED = 8;

/* Lines of an old exchange must not pass for new ones when numbers come round: every 2^30 exchanges
   (an hour of the shortest) both halves are cleared, one after the other. */
constexpr uint32_t CLEARING = 0x3fffffff;

/* One exchange, as all threads see it. */
struct Exchange {
    const ringcomm_oneshot_call *call;
    const uint64_t *inboxes;
    uint32_t number;
    /* Bytes of the input. */
    uint64_t bytes;

    /* Where the line of `source` lies in the inbox of `rank`. */
    DEVICE uint64_t line(uint32_t rank, uint32_t source, uint64_t unit) const {
        const uint64_t row = uint64_t(number & 1) * call->nranks + source;
        return inboxes[rank] + (row * call->lines + unit) * sizeof(ringcomm_line);
    }
};

DEVICE uint64_t load_unit(uint64_t address, uint64_t left) {
    if (left >= 8 && address % 8 == 0) return load_scalar<uint64_t>(address);
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < 8 && i < left; i++)
        bytes |= uint64_t(load_scalar<uint8_t>(address + i)) << 8 * i;
    return bytes;
}
DEVICE void store_unit(uint64_t address, uint64_t left, uint64_t bytes) {
    if (left >= 8 && address % 8 == 0) return store_scalar(address, bytes);
    for (uint32_t i = 0; i < 8 && i < left; i++) store_scalar(address + i, uint8_t(bytes >> 8 * i));
}

/* This rank's unit, as it sends it: scaled, and rounded to the type. */
template <class K>
DEVICE uint64_t own_unit(const Operation &op, const Exchange &exchange, uint64_t unit) {
    const ringcomm_oneshot_call &call = *exchange.call;
    const uint64_t bytes = load_unit(call.input + unit * 8, exchange.bytes - unit * 8);
    if (!op.scales) return bytes;
    Unit<K> own;
    own.unpack(op, bytes);
    scale<K, Unit<K>::ACCS>(own.lanes, call.scalar);
    return own.pack();
}

DEVICE bool has_come(const ringcomm_line &line, uint32_t number) {
    return line.low_flag == number && line.high_flag == number;
}

/* The unit's lines of `POLLED` ranks from `first` on; whether all came. */
DEVICE bool poll(const Exchange &exchange, uint64_t unit, uint32_t first,
                 ringcomm_line (&lines)[POLLED]) {
    const ringcomm_oneshot_call &call = *exchange.call;
    const uint32_t me = call.watch.rank;
    Patience patience;
    while (true) {
        uint32_t missing = RINGCOMM_NONE;
        UNROLL for (uint32_t i = 0; i < POLLED; i++) {
            const uint32_t peer = first + i;
            if (peer < call.nranks && peer != me)
                lines[i] = load_line(exchange.line(me, peer, unit));
        }
        UNROLL for (uint32_t i = 0; i < POLLED; i++) {
            const uint32_t peer = first + i;
            if (peer < call.nranks && peer != me && !has_come(lines[i], exchange.number))
                missing = peer;
        }
        if (missing == RINGCOMM_NONE) return true;
        const Waiting waiting = {RINGCOMM_FOR_LINES, missing, block_index(), 0};
        if (loses_patience(call.watch, patience, waiting, exchange.number, 0)) return false;
    }
}

/* Receive a unit of every rank, and reduce it or put it in its block. */
template <class K>
DEVICE bool receive(const Operation &op, const Exchange &exchange, bool reduces, uint64_t unit) {
    const ringcomm_oneshot_call &call = *exchange.call;
    const uint64_t left = exchange.bytes - unit * 8;
    const uint64_t own = own_unit<K>(op, exchange, unit);
    const bool passes = call.nranks == 1 && !op.scales && !op.divides && !op.is_truth;
    Unit<K> to = {}, next;
    for (uint32_t first = 0; first < call.nranks; first += POLLED) {
        ringcomm_line lines[POLLED] = {};
        if (!poll(exchange, unit, first, lines)) return false;
        UNROLL for (uint32_t i = 0; i < POLLED; i++) {
            const uint32_t rank = first + i;
            if (rank >= call.nranks) break;
            const uint64_t bytes =
                rank == call.watch.rank ? own : lines[i].low | uint64_t(lines[i].high) << 32;
            if (!reduces) {
                store_unit(call.output + rank * exchange.bytes + unit * 8, left, bytes);
                continue;
            }
            next.unpack(op, bytes);
            if (rank == 0) {
                to = next;
            } else {
                combine<K, Unit<K>::ACCS>(op.code, to.lanes, next.lanes);
            }
        }
    }
    if (!reduces) return true;
    if (op.divides) divide<K, Unit<K>::ACCS>(op, to.lanes);
    store_unit(call.output + unit * 8, left, passes ? own : to.pack());
    return true;
}

/* Forget what this half of the own inbox holds. */
DEVICE void clear(const Exchange &exchange, uint64_t first, uint64_t stride) {
    const ringcomm_oneshot_call &call = *exchange.call;
    const uint32_t me = call.watch.rank;
    for (uint64_t unit = first; unit < call.lines; unit += stride) {
        for (uint32_t peer = 0; peer < call.nranks; peer++) {
            if (peer != me) store_line(exchange.line(me, peer, unit), ringcomm_line{0, 0, 0, 0});
        }
    }
}

/* The number after `epoch`: 0 is no number, and odd and even ones alternate. */
DEVICE uint32_t next_number(uint32_t epoch) { return epoch == 0xffffffffu ? 2 : epoch + 1; }

template <class K> DEVICE void oneshot_kernel(const ringcomm_oneshot_args &args) {
    const ringcomm_oneshot_call &call =
        args.calls ? at<const ringcomm_oneshot_call>(args.calls)[row_index()] : args.call;
    const bool reduces = args.collective == RINGCOMM_ALL_REDUCE;
    Operation op = resolve(args.data_type, args.op, args.parts);
    if (!reduces) op.scales = op.is_truth = false;
    ringcomm_epoch *epoch = at<ringcomm_epoch>(call.epoch);
    const Exchange exchange = {&call, at<const uint64_t>(call.inboxes), next_number(epoch->epoch),
                               call.count * K::SIZE};
    const uint64_t units = (exchange.bytes + 7) / 8;
    const uint64_t first = uint64_t(block_index()) * thread_count() + thread_index();
    const uint64_t stride = uint64_t(block_count()) * thread_count();
    for (uint64_t unit = first; unit < units; unit += stride) {
        const uint64_t bytes = own_unit<K>(op, exchange, unit);
        const ringcomm_line line = {uint32_t(bytes), exchange.number, uint32_t(bytes >> 32),
                                    exchange.number};
        for (uint32_t peer = 0; peer < call.nranks; peer++) {
            if (peer != call.watch.rank)
                store_line(exchange.line(peer, call.watch.rank, unit), line);
        }
    }
    bool came = true;
    for (uint64_t unit = first; came && unit < units; unit += stride) {
        came = receive<K>(op, exchange, reduces, unit);
    }
    if (came && exchange.number > 1 && (exchange.number & CLEARING) <= 1)
        clear(exchange, first, stride);
    /* All of this block have read the number. */
    if (!sync_block_and(came) || thread_index() != 0) return;
    if (add_atomic32(&epoch->arrived, 1) + 1 == block_count()) {
        epoch->arrived = 0;
        epoch->epoch = exchange.number;
    }
}

#define ONESHOT(KIND, TYPE)                                                                        \
    KERNEL(ringcomm_oneshot_##KIND, ringcomm_oneshot_args) { oneshot_kernel<TYPE>(args); }

ONESHOT(w1, W1)
ONESHOT(w2, W2)
ONESHOT(w4, W4)
ONESHOT(w8, W8)
ONESHOT(e4m3, E4m3)
ONESHOT(e5m2, E5m2)
ONESHOT(f16, F16)
ONESHOT(bf16, Bf16)
ONESHOT(f32, F32)
ONESHOT(f64, F64)
