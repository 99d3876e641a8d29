/* Communicators from a communicator: rows and columns of a grid, and one thread for all ranks. */
#include "check.h"

enum { WIDTH = 2, HEIGHT = 2, RANKS = WIDTH * HEIGHT };

int main(void) {
    ringComm_t grid[RANKS], rows[RANKS], columns[RANKS];
    int row_sum[RANKS], column_sum[RANKS];
    CHECK(NULL, ringCommInitAll(grid, RANKS, NULL));

    /* A thread that makes the calls of several ranks makes them in a group. */
    CHECK(NULL, ringGroupStart());
    for (int rank = 0; rank < RANKS; rank++)
        CHECK(grid[rank], ringCommSplit(grid[rank], rank / WIDTH, rank, &rows[rank], NULL));
    CHECK(NULL, ringGroupEnd());
    CHECK(NULL, ringGroupStart());
    for (int rank = 0; rank < RANKS; rank++)
        CHECK(grid[rank], ringCommSplit(grid[rank], rank % WIDTH, rank, &columns[rank], NULL));
    CHECK(NULL, ringGroupEnd());

    CHECK(NULL, ringGroupStart());
    for (int rank = 0; rank < RANKS; rank++) {
        row_sum[rank] = column_sum[rank] = rank;
        CHECK(rows[rank], ringAllReduce(&row_sum[rank], &row_sum[rank], 1, ringInt, ringSum,
                                        rows[rank], NULL));
        CHECK(columns[rank], ringAllReduce(&column_sum[rank], &column_sum[rank], 1, ringInt,
                                           ringSum, columns[rank], NULL));
    }
    CHECK(NULL, ringGroupEnd());

    for (int rank = 0; rank < RANKS; rank++) {
        int row = rank / WIDTH, column = rank % WIDTH;
        EXPECT(row_sum[rank] == WIDTH * (row * WIDTH) + WIDTH * (WIDTH - 1) / 2);
        EXPECT(column_sum[rank] == HEIGHT * column + WIDTH * (HEIGHT * (HEIGHT - 1) / 2));
        CHECK(NULL, ringCommDestroy(rows[rank]));
        CHECK(NULL, ringCommDestroy(columns[rank]));
        CHECK(NULL, ringCommDestroy(grid[rank]));
    }
    printf("%d ranks summed over %d rows and %d columns\n", RANKS, HEIGHT, WIDTH);
    return 0;
}
