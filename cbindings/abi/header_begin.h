/*
 * ringcomm: collective communication between threads and processes.
 *
 * Generated from the comments and signatures in src/ffi; `make header` makes it anew.
 *
 * Whoever knows NCCL knows this interface: s/nccl/ring/. What holds for every function:
 *
 * - It returns a ringResult_t. ringGetLastError explains a failure in one sentence. Results are
 *   written through pointers on success only. NULL, unknown numbers and handles that are none, or
 *   no more, give ringInvalidArgument.
 * - It may be called from any thread. Calls on one communicator take turns, in the order in which
 *   every rank must make them.
 *
 * And for every collective:
 *
 * - `count` is in elements of `datatype`; zero is a count, and buffers need no alignment.
 * - `comm` is this rank's end; every rank of the communicator makes the same calls with the same
 *   count, type, operation and root.
 * - `stream` NULL: the call returns when it is done. A stream of ringStreamCreate: it returns at
 *   once, and buffers are left alone until ringStreamSynchronize. In a group: until ringGroupEnd.
 * - Send and receive buffers do not overlap, except in place, as each function says.
 * - Every rank gets the same bits, and the same call gives them again in the next run with as many
 *   ranks on each host; with `deterministic`, wherever the ranks are.
 * - Errors: ringInvalidArgument; ringInvalidUsage where ranks disagree (the text names both calls);
 *   ringRemoteError where a rank died or failed, ringTimeout where it did not come in time (the
 *   text names rank and operation); ringAborted. A communicator that failed stays failed: destroy
 *   or shrink it.
 */
