/* Communicators from a communicator: the rows and columns of a grid of ranks. */
#include "check.h"

enum { WIDTH = 3, HEIGHT = 2, RANKS = WIDTH * HEIGHT, COUNT = 5003 };

static int row_sums[RANKS][COUNT], column_sums[RANKS][COUNT];

static void expect_place(ncclComm_t comm, int rank, int count) {
    int own = -1, all = -1;
    CHECK(comm, ncclCommUserRank(comm, &own));
    CHECK(comm, ncclCommCount(comm, &all));
    EXPECT(own == rank && all == count);
}

/* One of the ranks stays out, and the others stand in reverse. */
static void leave_out(ncclComm_t *grid) {
    ncclComm_t rest[RANKS];
    CHECK(NULL, ncclGroupStart());
    for (int rank = 0; rank < RANKS; rank++) {
        int color = rank == 1 ? NCCL_SPLIT_NOCOLOR : 0;
        CHECK(grid[rank], ncclCommSplit(grid[rank], color, -rank, &rest[rank], NULL));
    }
    CHECK(NULL, ncclGroupEnd());
    for (int rank = 0; rank < RANKS; rank++) {
        if (rank == 1)
            EXPECT(rest[rank] == NULL);
        else
            expect_place(rest[rank], rank == 0 ? RANKS - 2 : RANKS - 1 - rank, RANKS - 1);
        /* Of NULL it does nothing. */
        CHECK(NULL, ncclCommDestroy(rest[rank]));
    }
}

int main(void) {
    ncclComm_t grid[RANKS], rows[RANKS], columns[RANKS];
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.commName = "column";
    config.splitShare = 1;
    CHECK(NULL, ncclCommInitAll(grid, RANKS, NULL));
    CHECK(NULL, ncclGroupStart());
    for (int rank = 0; rank < RANKS; rank++)
        CHECK(grid[rank], ncclCommSplit(grid[rank], rank / WIDTH, rank, &rows[rank], NULL));
    CHECK(NULL, ncclGroupEnd());
    CHECK(NULL, ncclGroupStart());
    for (int rank = 0; rank < RANKS; rank++)
        CHECK(grid[rank], ncclCommSplit(grid[rank], rank % WIDTH, rank, &columns[rank], &config));
    CHECK(NULL, ncclGroupEnd());
    leave_out(grid);
    /* What was made of it goes on without it. */
    for (int rank = 0; rank < RANKS; rank++)
        CHECK(NULL, ncclCommDestroy(grid[rank]));

    /* Both sums at the same time, on communicators that share their ranks. */
    CHECK(NULL, ncclGroupStart());
    for (int rank = 0; rank < RANKS; rank++) {
        int *row = row_sums[rank], *column = column_sums[rank];
        expect_place(rows[rank], rank % WIDTH, WIDTH);
        expect_place(columns[rank], rank / WIDTH, HEIGHT);
        for (int i = 0; i < COUNT; i++)
            row[i] = column[i] = rank + i;
        CHECK(rows[rank], ncclAllReduce(row, row, COUNT, ncclInt, ncclSum, rows[rank], NULL));
        CHECK(columns[rank],
              ncclAllReduce(column, column, COUNT, ncclInt, ncclSum, columns[rank], NULL));
    }
    CHECK(NULL, ncclGroupEnd());
    for (int rank = 0; rank < RANKS; rank++) {
        int first_of_row = rank / WIDTH * WIDTH, first_of_column = rank % WIDTH;
        for (int i = 0; i < COUNT; i++) {
            EXPECT(row_sums[rank][i] == WIDTH * (first_of_row + i) + WIDTH * (WIDTH - 1) / 2);
            EXPECT(column_sums[rank][i] ==
                   HEIGHT * (first_of_column + i) + WIDTH * HEIGHT * (HEIGHT - 1) / 2);
        }
        CHECK(NULL, ncclCommDestroy(rows[rank]));
        CHECK(NULL, ncclCommDestroy(columns[rank]));
    }
    printf("ok %d ranks summed over %d rows and %d columns\n", RANKS, HEIGHT, WIDTH);
    return 0;
}
