/*
 * The interpreter: runs a bound plan, a block for each channel, over connections.
 *
 * As src/executor/host.rs does: one slice after another, later stages behind earlier ones. A block
 * has three roles, so that nobody who moves bytes waits for a flag or a fence. The first warp opens
 * steps: it waits for their messages and slots, and writes down as a task what is to be moved. The
 * other warps, but one, move. The second warp closes steps: it posts and frees. There are two
 * tasks, so that one is opened while another is moved:
 *
 *              first waits for               then                    then tells
 *   opener     the task before last: FREED   fills a task            FILLED, and waits there
 *   movers     FILLED                        reduce                  MOVED
 *   closer     MOVED                         posts and frees         FREED, before it posts
 *
 * The opener ends with a task that has nothing to move, and waits until both are freed. It is not
 * in the closer's way: what it waits for may need what the closer has yet to post. Positions are in
 * shared memory while the kernel runs, and in the connections between launches.
 */
#include "fifo.cuh"
#include "reduce.cuh"

/* What a task is for. */
constexpr uint32_t MOVES = 0, ENDS = 1, FAILS = 2;
/* The barriers of the two tasks: of all but the closer's warp, of all but the opener's, and of these
   two warps; 0 is sync_block's. */
constexpr uint32_t FILLED = 1, MOVED = 3, FREED = 5;

/* At a barrier of the task of a number. */
template <uint32_t ID> DEVICE void sync_at(uint32_t number, uint32_t count) {
    number % 2 ? sync_threads<ID + 1>(count) : sync_threads<ID>(count);
}
template <uint32_t ID> DEVICE void arrive_at(uint32_t number, uint32_t count) {
    number % 2 ? arrive_threads<ID + 1>(count) : arrive_threads<ID>(count);
}

/* A slice of a step, or of one of its spans, as the movers need it. */
struct Task {
    uint32_t what;
    uint32_t count;
    Operation op;
    Job job;
    uint64_t ends[RINGCOMM_STEP_ENDS];
};

/* By peer: messages posted and freed. */
struct Positions {
    uint64_t sent[RINGCOMM_PLAN_PEERS];
    uint64_t received[RINGCOMM_PLAN_PEERS];
};

/* What the threads of a channel share: registers are for vectors. */
struct Run {
    const ringcomm_plan_call *call;
    const ringcomm_program *program;
    const ringcomm_connection *sends;
    const ringcomm_connection *receives;
    Positions opened;
    Positions closed;
    Task tasks[2];
};

/* A step at one of its slices. */
struct StepSlice {
    const ringcomm_step &step;
    const ringcomm_end *ends;
    uint32_t index;
    uint32_t slice;

    DEVICE uint32_t nends() const { return step.nsources + step.ntargets; }
    DEVICE bool is_source(uint32_t end) const { return end < step.nsources; }
    DEVICE bool is_peer(uint32_t end) const { return ends[end].place == RINGCOMM_PEER; }
    /* A step without spans has messages of no bytes. */
    DEVICE uint32_t ntasks() const { return step.nspans > 1 ? step.nspans : 1; }
};

/* All steps at all their slices, in order, until `visit` says no. */
template <class Visit> DEVICE bool visit_slices(const ringcomm_program &program, Visit visit) {
    for (uint32_t tick = 0; tick < program.ticks; tick++) {
        for (uint32_t index = 0; index < program.nsteps; index++) {
            const ringcomm_step &step = at<const ringcomm_step>(program.steps)[index];
            /* Before the step's first slice this wraps, which no step has as many slices as. */
            const uint32_t slice = tick - step.stage;
            if (slice >= step.slices) continue;
            const ringcomm_end *ends = at<const ringcomm_end>(program.ends) + step.first_end;
            if (!visit(StepSlice{step, ends, index, slice})) return false;
        }
    }
    return true;
}

DEVICE uint64_t bytes_of_slice(const ringcomm_span &span, uint64_t sliced, uint64_t slice_bytes) {
    const uint64_t left = span.bytes > sliced ? span.bytes - sliced : 0;
    return left < slice_bytes ? left : slice_bytes;
}

/* Where an end is for a slice of a span, `packed` bytes into its message. */
DEVICE uint64_t address_of(const Run &run, const StepSlice &turn, uint32_t index,
                           const ringcomm_span &span, uint64_t packed) {
    const ringcomm_plan_call &call = *run.call;
    const ringcomm_program &program = *run.program;
    const ringcomm_end &end = turn.ends[index];
    const uint64_t sliced = turn.slice * program.slice_bytes;
    switch (end.place) {
    case RINGCOMM_INPUT: return call.input + span.input + sliced;
    case RINGCOMM_OUTPUT: return call.output + span.output + sliced;
    case RINGCOMM_SCRATCH:
        return call.scratch + program.scratch +
               turn.slice % program.lives * program.scratch_share + span.scratch;
    default:
        return packed +
               (turn.is_source(index) ? slot(run.receives[end.peer], run.opened.received[end.peer],
                                              call.depth, call.slot_bytes)
                                       : slot(run.sends[end.peer], run.opened.sent[end.peer],
                                              call.depth, call.slot_bytes));
    }
}

/* Wait for the messages and slots of a step; whether all came. */
DEVICE bool await_peers(const Run &run, const StepSlice &turn) {
    bool came = true;
    for (uint32_t e = lane_index(); e < turn.nends(); e += WARP) {
        if (!turn.is_peer(e)) continue;
        const uint32_t peer = turn.ends[e].peer;
        const Waiting waiting = {0, peer, block_index(), turn.index};
        const ringcomm_watch &watch = run.call->watch;
        came = came && (turn.is_source(e)
                            ? wait(watch, run.receives[peer], run.opened.received[peer], waiting)
                            : reserve(watch, run.sends[peer], run.opened.sent[peer],
                                      run.call->depth, waiting));
    }
    return sync_warp_and(came);
}

/* What happens to the elements of a step. */
DEVICE void describe(const Run &run, Task &task, Operation op, const ringcomm_step &step) {
    /* A mean of inputs that are multiplied by a power of two: what is left to divide by. */
    const bool prescale = op.divides && run.call->scalar != 1.0;
    if (prescale) op.divisor *= run.call->scalar;
    op.scales = (op.scales || prescale) && step.scaled != RINGCOMM_NONE;
    if (step.flags & RINGCOMM_COPY) op.scales = op.is_truth = false;
    task.op = op;
    task.job = {task.ends,
                step.nsources,
                step.ntargets,
                nullptr,
                step.scaled,
                run.call->scalar,
                (step.flags & RINGCOMM_FINISH) && op.divides && op.divisor != 1.0};
}

/* Bring the positions of all connections in; of the warp that keeps them. */
DEVICE void load_positions(const Run &run, Positions &positions) {
    for (uint32_t peer = lane_index(); peer < run.call->npeers; peer += WARP) {
        positions.sent[peer] = run.sends[peer].position;
        positions.received[peer] = run.receives[peer].position;
    }
    sync_warp();
}

/* And out again. */
DEVICE void store_positions(const Run &run) {
    for (uint32_t peer = lane_index(); peer < run.call->npeers; peer += WARP) {
        const_cast<ringcomm_connection *>(run.sends)[peer].position = run.closed.sent[peer];
        const_cast<ringcomm_connection *>(run.receives)[peer].position = run.closed.received[peer];
    }
}

/* The task of a number, once nobody needs what was there. */
DEVICE Task &task_to_fill(Run &run, uint32_t number) {
    if (number >= 2) sync_at<FREED>(number, 2 * WARP);
    return run.tasks[number % 2];
}
DEVICE void tell_filled(Task &task, uint32_t what, uint32_t number) {
    if (lane_index() == 0) task.what = what;
    sync_at<FILLED>(number, thread_count() - WARP);
}

/* The tasks of a step, from this number on; the number of the next. */
template <class K> DEVICE uint32_t open_step(const ringcomm_plan_args &args, Run &run,
                                             const StepSlice &turn, uint32_t number) {
    const uint64_t slice_bytes = run.program->slice_bytes;
    const ringcomm_span *spans = at<const ringcomm_span>(run.program->spans);
    uint64_t packed = 0;
    for (uint32_t s = 0; s < turn.ntasks(); s++, number++) {
        Task &task = task_to_fill(run, number);
        uint64_t bytes = 0;
        if (s < turn.step.nspans) {
            const ringcomm_span &span = spans[turn.step.first_span + s];
            bytes = bytes_of_slice(span, turn.slice * slice_bytes, slice_bytes);
            for (uint32_t e = lane_index(); e < turn.nends(); e += WARP)
                task.ends[e] = address_of(run, turn, e, span, packed);
        }
        if (lane_index() == 0) {
            describe(run, task, resolve(args.data_type, args.op, args.parts), turn.step);
            task.count = uint32_t(bytes / K::SIZE);
        }
        packed += bytes;
        tell_filled(task, MOVES, number);
    }
    return number;
}

/* One step further at all peers that are ends of a step. */
DEVICE void advance(Positions &positions, const StepSlice &turn) {
    for (uint32_t e = lane_index(); e < turn.nends(); e += WARP) {
        if (!turn.is_peer(e)) continue;
        uint64_t(&of)[RINGCOMM_PLAN_PEERS] =
            turn.is_source(e) ? positions.received : positions.sent;
        of[turn.ends[e].peer]++;
    }
    sync_warp();
}

template <class K> DEVICE void open_all(const ringcomm_plan_args &args, Run &run) {
    load_positions(run, run.opened);
    uint32_t number = 0;
    /* Of a rank that gave up in an earlier launch the positions are those from before it, and the
       peers' flags are not: it would post again what it has posted. */
    const bool is_stopped = load_flag(run.call->watch.stop) != 0;
    const bool came = !is_stopped && visit_slices(*run.program, [&](const StepSlice &turn) {
        if (!await_peers(run, turn)) return false;
        number = open_step<K>(args, run, turn, number);
        advance(run.opened, turn);
        return true;
    });
    tell_filled(task_to_fill(run, number), came ? ENDS : FAILS, number);
    if (number >= 1) sync_at<FREED>(number - 1, 2 * WARP);
    sync_at<FREED>(number, 2 * WARP);
}

template <class K> DEVICE void move_all(Run &run) {
    const uint32_t others = 2 * WARP;
    for (uint32_t number = 0;; number++) {
        const Task &task = run.tasks[number % 2];
        sync_at<FILLED>(number, thread_count() - WARP);
        const bool is_last = task.what != MOVES;
        if (!is_last && task.count > 0) {
            reduce_range<K>(task.op, task.job, 0, task.count, thread_index() - others,
                            thread_count() - others);
        }
        arrive_at<MOVED>(number, thread_count() - WARP);
        if (is_last) return;
    }
}

/* What the task of a number is for; it is done. */
DEVICE uint32_t await_moved(const Run &run, uint32_t number) {
    sync_at<MOVED>(number, thread_count() - WARP);
    const uint32_t what = run.tasks[number % 2].what;
    arrive_at<FREED>(number, 2 * WARP);
    return what;
}

/* Post and free what a step wrote and read. */
DEVICE void close_step(const Run &run, const StepSlice &turn) {
    fence_system();
    for (uint32_t e = lane_index(); e < turn.nends(); e += WARP) {
        if (!turn.is_peer(e)) continue;
        const uint32_t peer = turn.ends[e].peer;
        if (turn.is_source(e)) {
            free_slot(run.receives[peer], run.closed.received[peer]);
        } else {
            post(run.sends[peer], run.closed.sent[peer]);
        }
    }
}

DEVICE void close_all(Run &run) {
    load_positions(run, run.closed);
    uint32_t number = 0;
    const bool moved = visit_slices(*run.program, [&](const StepSlice &turn) {
        for (uint32_t s = 0; s < turn.ntasks(); s++, number++) {
            if (await_moved(run, number) != MOVES) return false;
        }
        close_step(run, turn);
        advance(run.closed, turn);
        return true;
    });
    /* Of the last task, which is not a step's. */
    if (moved && await_moved(run, number) == ENDS) store_positions(run);
}

template <class K> DEVICE void plan_kernel(const ringcomm_plan_args &args, Run &run) {
    if (thread_index() == 0) {
        const ringcomm_plan_call &call =
            args.calls ? at<const ringcomm_plan_call>(args.calls)[row_index()] : args.call;
        const uint64_t first = uint64_t(block_index()) * call.npeers;
        run.call = &call;
        run.program = at<const ringcomm_program>(call.programs) + block_index();
        run.sends = at<const ringcomm_connection>(call.sends) + first;
        run.receives = at<const ringcomm_connection>(call.receives) + first;
    }
    sync_block();
    const uint32_t warp = thread_index() / WARP;
    if (warp == 0) {
        open_all<K>(args, run);
    } else if (warp == 1) {
        close_all(run);
    } else {
        move_all<K>(run);
    }
}

#define PLAN(KIND, TYPE)                                                                           \
    KERNEL(ringcomm_plan_##KIND, ringcomm_plan_args) {                                             \
        SHARED(Run, run);                                                                          \
        plan_kernel<TYPE>(args, run);                                                              \
    }

PLAN(w1, W1)
PLAN(w2, W2)
PLAN(w4, W4)
PLAN(w8, W8)
PLAN(e4m3, E4m3)
PLAN(e5m2, E5m2)
PLAN(f16, F16)
PLAN(bf16, Bf16)
PLAN(f32, F32)
PLAN(f64, F64)
