/* The calls of an MPI library, measured as bench.h does. Built with each library's own mpicc. */
#include "bench.h"
#include <mpi.h>

static int rank, ranks;

static int has(enum operation operation, int in_place)
{
    /* MPI_Bcast has one buffer: it is in place by nature. */
    if (operation == BROADCAST)
        return in_place;
    return !in_place || (operation != SEND_RECV && operation != PING_PONG);
}

static void there_and_back(const struct call *call, int count)
{
    int partner = bench_partner(rank, ranks);
    if (rank < partner)
        MPI_Send(call->send, count, MPI_FLOAT, partner, 0, MPI_COMM_WORLD);
    if (rank != partner)
        MPI_Recv(call->recv, count, MPI_FLOAT, partner, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    if (rank > partner)
        MPI_Send(call->send, count, MPI_FLOAT, partner, 0, MPI_COMM_WORLD);
    if (rank == partner)
        MPI_Sendrecv(call->send, count, MPI_FLOAT, partner, 0, call->recv, count, MPI_FLOAT,
                     partner, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

static void run(const struct call *call)
{
    const void *send = call->in_place ? MPI_IN_PLACE : call->send;
    int count = (int)call->count, next = (rank + 1) % ranks, previous = (rank + ranks - 1) % ranks;
    switch (call->operation) {
    case ALL_REDUCE:
        MPI_Allreduce(send, call->recv, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        break;
    case REDUCE_SCATTER:
        MPI_Reduce_scatter_block(send, call->recv, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        break;
    case ALL_GATHER:
        MPI_Allgather(send, count, MPI_FLOAT, call->recv, count, MPI_FLOAT, MPI_COMM_WORLD);
        break;
    case BROADCAST:
        MPI_Bcast(call->recv, count, MPI_FLOAT, 0, MPI_COMM_WORLD);
        break;
    case ALL_TO_ALL:
        MPI_Alltoall(send, count, MPI_FLOAT, call->recv, count, MPI_FLOAT, MPI_COMM_WORLD);
        break;
    case PING_PONG:
        there_and_back(call, count);
        break;
    default:
        MPI_Sendrecv(send, count, MPI_FLOAT, next, 0, call->recv, count, MPI_FLOAT, previous, 0,
                     MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    }
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    struct library library = {rank, ranks, has, run};
    int status = bench_main(&library, board_board(), argc, argv);
    MPI_Finalize();
    return status;
}
