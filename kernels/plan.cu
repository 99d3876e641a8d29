/*
 * The interpreter: runs a bound plan, a block for each channel, over connections.
 *
 * As src/executor/host.rs does: one slice after another, later stages behind earlier ones. In a
 * step, the threads whose ends are peers wait for their messages and slots, all at once; the block
 * reduces; then the same threads post and free. Positions are in shared memory while the kernel
 * runs, and in the connections between launches.
 */
#include "fifo.cuh"
#include "reduce.cuh"

/* What the threads of a channel share, and what all of them know: registers are for vectors. */
struct Run {
    const ringcomm_plan_call *call;
    const ringcomm_program *program;
    const ringcomm_connection *sends;
    const ringcomm_connection *receives;
    /* What happens to the elements of the step at hand. */
    Operation op;
    Job job;
    /* Where its ends are, in the span at hand. */
    uint64_t ends[RINGCOMM_STEP_ENDS];
    /* By peer: messages posted and freed. */
    uint64_t sent[RINGCOMM_PLAN_PEERS];
    uint64_t received[RINGCOMM_PLAN_PEERS];
};

DEVICE uint64_t bytes_of_slice(const ringcomm_span &span, uint64_t sliced, uint64_t slice_bytes) {
    const uint64_t left = span.bytes > sliced ? span.bytes - sliced : 0;
    return left < slice_bytes ? left : slice_bytes;
}

/* Where an end is for a slice of a span, `packed` bytes into its message. */
DEVICE uint64_t address_of(Run &run, const ringcomm_end &end, bool source, uint32_t slice,
                           const ringcomm_span &span, uint64_t packed) {
    const ringcomm_plan_call &call = *run.call;
    const ringcomm_program &program = *run.program;
    const uint64_t sliced = slice * program.slice_bytes;
    switch (end.place) {
    case RINGCOMM_INPUT: return call.input + span.input + sliced;
    case RINGCOMM_OUTPUT: return call.output + span.output + sliced;
    case RINGCOMM_SCRATCH:
        return call.scratch + program.scratch + slice % program.lives * program.scratch_share +
               span.scratch;
    default:
        return packed + (source ? slot(run.receives[end.peer], run.received[end.peer], call.depth,
                                       call.slot_bytes)
                                : slot(run.sends[end.peer], run.sent[end.peer], call.depth,
                                       call.slot_bytes));
    }
}

/* Wait for the messages and slots of a step; whether all came. */
DEVICE bool open_step(Run &run, const ringcomm_step &step, const ringcomm_end *ends,
                      uint32_t index) {
    const uint32_t nends = step.nsources + step.ntargets;
    bool came = true;
    if (thread_index() < nends) {
        for (uint32_t e = thread_index(); e < nends; e += thread_count()) {
            if (ends[e].place != RINGCOMM_PEER) continue;
            const uint32_t peer = ends[e].peer;
            const Waiting waiting = {0, peer, block_index(), index};
            const ringcomm_watch &watch = run.call->watch;
            came = came &&
                   (e < step.nsources ? wait(watch, run.receives[peer], run.received[peer], waiting)
                                      : reserve(watch, run.sends[peer], run.sent[peer],
                                                run.call->depth, waiting));
        }
        fence_system();
    }
    return sync_block_and(came);
}

/* Post and free what a step wrote and read. */
DEVICE void close_step(Run &run, const ringcomm_step &step, const ringcomm_end *ends) {
    const uint32_t nends = step.nsources + step.ntargets;
    sync_block();
    if (thread_index() < nends) {
        fence_system();
        for (uint32_t e = thread_index(); e < nends; e += thread_count()) {
            if (ends[e].place != RINGCOMM_PEER) continue;
            const uint32_t peer = ends[e].peer;
            if (e < step.nsources) {
                free_slot(run.receives[peer], run.received[peer]++);
            } else {
                post(run.sends[peer], run.sent[peer]++);
            }
        }
    }
    sync_block();
}

/* What happens to the elements of a step. */
DEVICE void describe(Run &run, const Operation &op, const ringcomm_step &step) {
    run.op = op;
    /* A mean of inputs that are multiplied by a power of two: what is left to divide by. */
    const bool prescale = op.divides && run.call->scalar != 1.0;
    if (prescale) run.op.divisor *= run.call->scalar;
    run.op.scales = (op.scales || prescale) && step.scaled != RINGCOMM_NONE;
    if (step.flags & RINGCOMM_COPY) run.op.scales = run.op.is_truth = false;
    run.job = {run.ends,
               step.nsources,
               step.ntargets,
               nullptr,
               step.scaled,
               run.call->scalar,
               (step.flags & RINGCOMM_FINISH) && op.divides && run.op.divisor != 1.0};
}

template <class K> DEVICE void move_spans(Run &run, const ringcomm_step &step,
                                          const ringcomm_end *ends, uint32_t slice) {
    const ringcomm_span *spans = at<const ringcomm_span>(run.program->spans) + step.first_span;
    const uint32_t nends = step.nsources + step.ntargets;
    uint64_t packed = 0;
    for (uint32_t s = 0; s < step.nspans; s++) {
        for (uint32_t e = thread_index(); e < nends; e += thread_count()) {
            run.ends[e] = address_of(run, ends[e], e < step.nsources, slice, spans[s], packed);
        }
        sync_block();
        const uint64_t slice_bytes = run.program->slice_bytes;
        const uint64_t bytes = bytes_of_slice(spans[s], slice * slice_bytes, slice_bytes);
        reduce_range<K>(run.op, run.job, 0, uint32_t(bytes / K::SIZE));
        packed += bytes;
        if (s + 1 < step.nspans) sync_block();
    }
}

/* Bring the positions of all connections in, or out again. */
DEVICE void load_positions(Run &run) {
    for (uint32_t peer = thread_index(); peer < run.call->npeers; peer += thread_count()) {
        run.sent[peer] = run.sends[peer].position;
        run.received[peer] = run.receives[peer].position;
    }
    sync_block();
}
DEVICE void store_positions(Run &run) {
    for (uint32_t peer = thread_index(); peer < run.call->npeers; peer += thread_count()) {
        const_cast<ringcomm_connection *>(run.sends)[peer].position = run.sent[peer];
        const_cast<ringcomm_connection *>(run.receives)[peer].position = run.received[peer];
    }
}

DEVICE void begin(Run &run, const ringcomm_plan_args &args) {
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
    load_positions(run);
}

template <class K> DEVICE void plan_kernel(const ringcomm_plan_args &args, Run &run) {
    begin(run, args);
    for (uint32_t tick = 0; tick < run.program->ticks; tick++) {
        for (uint32_t index = 0; index < run.program->nsteps; index++) {
            const ringcomm_step &step = at<const ringcomm_step>(run.program->steps)[index];
            /* Before the step's first slice this wraps, which no step has as many slices as. */
            const uint32_t slice = tick - step.stage;
            if (slice >= step.slices) continue;
            const ringcomm_end *ends = at<const ringcomm_end>(run.program->ends) + step.first_end;
            if (!open_step(run, step, ends, index)) return;
            if (thread_index() == 0)
                describe(run, resolve(args.data_type, args.op, args.parts), step);
            move_spans<K>(run, step, ends, slice);
            close_step(run, step, ends);
        }
    }
    store_positions(run);
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
