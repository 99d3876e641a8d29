/*
 * Pieces: copies, fused collectives, and between two barriers the exchanges over memory that all
 * ranks address.
 *
 * A call's pieces are cut into tiles that the blocks of its row take in turn. With a barrier, a
 * block starts when the same block of every rank has started, and ends when each has done its part:
 * then everything that any rank wrote, in any rank's memory, is there.
 */
#include "fifo.cuh"
#include "reduce.cuh"

/* Every rank's block of this number, at its `epoch`th barrier. Who writes after it looks whether the
   rank was called off: its peers may have given up, and gone on. */
DEVICE bool meet(const ringcomm_barrier &barrier, uint64_t epoch, bool looks) {
    const uint32_t tid = thread_index(), nthreads = thread_count();
    const uint64_t *flags = at<const uint64_t>(barrier.flags);
    const uint32_t me = barrier.watch.rank, row = block_index() * barrier.nranks;
    bool came = true;
    sync_block();
    if (tid < barrier.nranks) {
        fence_system();
        for (uint32_t peer = tid; peer < barrier.nranks; peer += nthreads) {
            store_flag(flags[peer] + (row + me) * sizeof(ringcomm_flag), epoch);
        }
        for (uint32_t peer = tid; peer < barrier.nranks; peer += nthreads) {
            const Waiting waiting = {RINGCOMM_FOR_BARRIER, peer, block_index(), 0};
            const uint64_t flag = flags[me] + (row + peer) * sizeof(ringcomm_flag);
            came = came && await(barrier.watch, flag, epoch, waiting);
        }
    }
    /* A thread that has no peer, if there is one, so that the look is not on the flags' way. */
    if (looks && tid == (barrier.nranks < nthreads ? barrier.nranks : 0)) {
        const Waiting waiting = {RINGCOMM_FOR_BARRIER, me, block_index(), 0};
        came = came && !is_cancelled(barrier.watch, waiting);
    }
    return sync_block_and(came);
}

template <class K>
DEVICE void run_pieces(const ringcomm_reduce_args &args, const ringcomm_reduce_call &call) {
    const Operation op = resolve(args.data_type, args.op, args.parts);
    const uint64_t *ends = args.ends ? at<const uint64_t>(args.ends) : args.inline_ends;
    const double *scalars = args.scalars ? at<const double>(args.scalars) : args.inline_scalars;
    const ringcomm_piece *pieces =
        (args.pieces ? at<const ringcomm_piece>(args.pieces) : args.inline_pieces) +
        call.first_piece;
    uint32_t index = 0;
    for (uint32_t tile = block_index(); tile < call.ntiles; tile += block_count()) {
        while (index + 1 < call.npieces && pieces[index + 1].first_tile <= tile) index++;
        const ringcomm_piece &piece = pieces[index];
        const bool divides = (piece.flags & RINGCOMM_FINISH) && op.divides;
        const Job job = {ends + piece.first_end,
                         piece.nsources,
                         piece.ntargets,
                         scalars,
                         RINGCOMM_NONE,
                         1.0,
                         divides};
        Operation now = op;
        if (piece.flags & RINGCOMM_COPY) now.scales = now.is_truth = false;
        reduce_tile<K>(now, job, piece.count, tile - piece.first_tile, args.tile);
    }
}

template <class K> DEVICE void reduce_kernel(const ringcomm_reduce_args &args) {
    const ringcomm_reduce_call &call =
        args.calls ? at<const ringcomm_reduce_call>(args.calls)[row_index()] : args.call;
    const bool meets = call.barrier.flags;
    uint64_t *epoch = at<uint64_t>(call.barrier.epochs + block_index() * sizeof(uint64_t));
    const uint64_t before = meets ? *epoch : 0;
    if (meets && !meet(call.barrier, before + 1, true)) return;
    /* The only place, as this is most of the kernel's code. */
    run_pieces<K>(args, call);
    if (!meets || !meet(call.barrier, before + 2, false)) return;
    if (thread_index() == 0) *epoch = before + 2;
}

#define REDUCE(KIND, TYPE)                                                                         \
    KERNEL(ringcomm_reduce_##KIND, ringcomm_reduce_args) { reduce_kernel<TYPE>(args); }

REDUCE(w1, W1)
REDUCE(w2, W2)
REDUCE(w4, W4)
REDUCE(w8, W8)
REDUCE(e4m3, E4m3)
REDUCE(e5m2, E5m2)
REDUCE(f16, F16)
REDUCE(bf16, Bf16)
REDUCE(f32, F32)
REDUCE(f64, F64)
