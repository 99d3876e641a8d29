/*
 * The device side of a connection, and every wait there is.
 *
 *              first wait until           then            and then
 *   sender     freed >= position+1-depth  write the slot  posted = position+1
 *   receiver   posted >= position+1       read the slot   freed  = position+1
 *
 * with an acquire at the end of the wait, and a barrier and a fence before the flag is set.
 *
 * The same four verbs as src/transport/fifo.rs, with counters instead of a number in each slot,
 * since a slot's first line may be an ocean away: each side polls its own memory. Polls and posts
 * are relaxed; before the posts stands one fence, however many peers there are.
 *
 * No wait is endless: it ends with the host's abort, with another thread of the rank having given
 * up, or with the deadline, and the first to give up leaves a report.
 */
#pragma once

#include "platform.cuh"

/* What a thread waits for, as a report will say it. */
struct Waiting {
    uint32_t what;
    uint32_t peer;
    uint32_t block;
    uint32_t step;
};

/* How long a thread has waited. */
struct Patience {
    uint32_t polls = 0;
    uint64_t since = 0;
};

/* Polls between looks at the clock and at this rank's other threads: a poll takes about half a
   microsecond, so a look every 32 us. */
constexpr uint32_t POLLS_TO_LOOK = 64;
/* And between looks at the host's memory, which cross its bus: every half a millisecond. */
constexpr uint32_t POLLS_TO_ASK = 1024;

/* The first thread of a rank to give up says why. */
DEVICE void give_up(const ringcomm_watch &watch, const Waiting &waiting, uint32_t reason,
                    uint64_t wanted, uint64_t found) {
    if (swap_if_zero(watch.stop, reason) != 0) return;
    ringcomm_report *report = &at<ringcomm_control>(watch.control)->report;
    report->waiting = waiting.what;
    report->rank = watch.rank;
    report->peer = waiting.peer;
    report->block = waiting.block;
    report->step = waiting.step;
    report->wanted = wanted;
    report->found = found;
    fence_system();
    store_flag32(uint64_t(&report->reason), reason);
}

/* Where the host calls this block off. */
DEVICE uint64_t abort_word(const ringcomm_watch &watch, const Waiting &waiting) {
    return watch.control + waiting.block * sizeof(ringcomm_flag);
}

/* Whether the rank's kernels are to end: also those that would not have to wait, since their peers
   may have given up and gone on. */
DEVICE bool is_cancelled(const ringcomm_watch &watch, const Waiting &waiting) {
    if (load_flag(watch.stop) != 0) return true;
    if (load_flag(abort_word(watch, waiting)) == 0) return false;
    give_up(watch, waiting, RINGCOMM_ABORTED, 0, 0);
    return true;
}

/* To be asked after every poll in vain; whether to give up. */
DEVICE bool loses_patience(const ringcomm_watch &watch, Patience &patience, const Waiting &waiting,
                           uint64_t wanted, uint64_t found) {
    patience.polls++;
    breathe();
    if (patience.polls % POLLS_TO_LOOK != 0) return false;
    if (load_flag(watch.stop) != 0) return true;
    if (patience.polls % POLLS_TO_ASK == 0 && load_flag(abort_word(watch, waiting)) != 0) {
        give_up(watch, waiting, RINGCOMM_ABORTED, wanted, found);
        return true;
    }
    const uint64_t now = now_ns();
    if (patience.since == 0) patience.since = now;
    if (watch.timeout_ns == 0 || now - patience.since < watch.timeout_ns) return false;
    give_up(watch, waiting, RINGCOMM_LATE, wanted, found);
    return true;
}

/* Poll until the counter has come to `wanted`; whether it has. What was written before it came is
   seen from here on. */
DEVICE bool await(const ringcomm_watch &watch, uint64_t flag, uint64_t wanted,
                  const Waiting &waiting) {
    Patience patience;
    uint64_t found = load_flag(flag);
    while (int64_t(found - wanted) < 0) {
        if (loses_patience(watch, patience, waiting, wanted, found)) return false;
        found = load_flag(flag);
    }
    acquire_flag(flag);
    return true;
}

/* Where the message at `position` lies. */
DEVICE uint64_t slot(const ringcomm_connection &connection, uint64_t position, uint32_t depth,
                     uint64_t slot_bytes) {
    return connection.slots + position % depth * slot_bytes;
}

/* Sender: until the slot of the next message is free. */
DEVICE bool reserve(const ringcomm_watch &watch, const ringcomm_connection &connection,
                    uint64_t position, uint32_t depth, Waiting waiting) {
    waiting.what = RINGCOMM_FOR_SLOT;
    return await(watch, connection.freed, position + 1 - depth, waiting);
}

/* Receiver: until the next message has come. */
DEVICE bool wait(const ringcomm_watch &watch, const ringcomm_connection &connection,
                 uint64_t position, Waiting waiting) {
    waiting.what = RINGCOMM_FOR_MESSAGE;
    return await(watch, connection.posted, position + 1, waiting);
}

/* After a fence: the message at `position` may be read. */
DEVICE void post(const ringcomm_connection &connection, uint64_t position) {
    store_flag(connection.posted, position + 1);
}

/* After a fence: the slot of the message at `position` may be written again. */
DEVICE void free_slot(const ringcomm_connection &connection, uint64_t position) {
    store_flag(connection.freed, position + 1);
}
