/* What every example does with a result: print what went wrong, and stop. */
#ifndef EXAMPLE_CHECK_H
#define EXAMPLE_CHECK_H

#include <ringcomm.h>
#include <stdio.h>
#include <stdlib.h>

#define CHECK(comm, call)                                                                          \
    do {                                                                                           \
        ringResult_t check_result = (call);                                                        \
        if (check_result != ringSuccess) {                                                         \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__,                                 \
                    ringGetErrorString(check_result), ringGetLastError(comm));                     \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

/* Stop unless the condition holds. */
#define EXPECT(condition)                                                                          \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: wrong: %s\n", __FILE__, __LINE__, #condition);                 \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

#endif
