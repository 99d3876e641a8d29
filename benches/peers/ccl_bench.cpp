// The calls of oneCCL on host memory, measured as bench.h does. Ranks come from PMI's variables,
// the address of the key-value store travels over the board.
#include "bench.h"
#include <oneapi/ccl.hpp>
#include <optional>

static std::optional<ccl::communicator> group;
static int rank, ranks;

static int has(enum operation operation, int in_place)
{
    if (operation == BROADCAST)
        return in_place;
    // Its in-place reduce-scatter and all-gather need the send pointer inside the result.
    return operation != SEND_RECV && operation != PING_PONG &&
           (!in_place || operation == ALL_REDUCE);
}

static void run(const struct call *call)
{
    const float *send = call->in_place ? call->recv : call->send;
    float *recv = call->recv;
    size_t count = call->count;
    const auto type = ccl::datatype::float32;
    switch (call->operation) {
    case ALL_REDUCE:
        ccl::allreduce(send, recv, count, type, ccl::reduction::sum, *group).wait();
        break;
    case REDUCE_SCATTER:
        ccl::reduce_scatter(send, recv, count, type, ccl::reduction::sum, *group).wait();
        break;
    case ALL_GATHER:
        ccl::allgather(send, recv, count, type, *group).wait();
        break;
    case BROADCAST:
        ccl::broadcast(recv, count, type, 0, *group).wait();
        break;
    default:
        ccl::alltoall(send, recv, count, type, *group).wait();
    }
}

static int number(const char *name)
{
    const char *text = getenv(name);
    if (!text)
        board_fail("PMI_RANK and PMI_SIZE must be set; start this with mpiexec");
    return atoi(text);
}

int main(int argc, char **argv)
{
    rank = number("PMI_RANK");
    ranks = number("PMI_SIZE");
    struct board *board = board_board();
    ccl::init();
    ccl::shared_ptr_class<ccl::kvs> store;
    static_assert(sizeof(ccl::kvs::address_type) <= sizeof board->blob,
                  "the address fits the board");
    ccl::kvs::address_type address;
    if (rank == 0) {
        store = ccl::create_main_kvs();
        address = store->get_address();
        memcpy(board->blob, address.data(), address.size());
        __atomic_store_n(&board->blob_ready, 1, __ATOMIC_RELEASE);
    } else {
        while (!__atomic_load_n(&board->blob_ready, __ATOMIC_ACQUIRE))
            usleep(1000);
        memcpy(address.data(), board->blob, address.size());
        store = ccl::create_kvs(address);
    }
    group.emplace(ccl::create_communicator(ranks, rank, store));
    struct library library = {rank, ranks, has, run};
    int status = bench_main(&library, board, argc, argv);
    fflush(stdout);
    // Its destructors and MPI's finalisation disagree on who goes first; there is nothing left to
    // do.
    _exit(status);
}
