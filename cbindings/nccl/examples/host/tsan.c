/* What ThreadSanitizer calls in Rust code and the runtime of an older gcc lacks: plain copying. */
#include <string.h>

void *__tsan_memcpy(void *to, const void *from, size_t bytes) {
    return memcpy(to, from, bytes);
}

void *__tsan_memmove(void *to, const void *from, size_t bytes) {
    return memmove(to, from, bytes);
}

void *__tsan_memset(void *to, int value, size_t bytes) {
    return memset(to, value, bytes);
}
