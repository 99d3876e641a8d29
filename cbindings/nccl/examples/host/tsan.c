/* What Rust's ThreadSanitizer calls and that of an older gcc has not: to both, copying is memcpy. */
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
