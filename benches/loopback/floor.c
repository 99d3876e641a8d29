// What the kernel takes to move bytes both ways at once over loopback TCP, without a library.
//
//     cc -O2 -o /tmp/floor benches/loopback/floor.c && /tmp/floor [BYTES]
//
// With BYTES: only so many, in pieces of 254 KiB through one socket. Nothing is paced (Reno).
// Two processes on cores 0 and 1 send each other so many bytes and receive as many, without ever
// sleeping: the bound for any exchange that goes through one socket per direction or one for both.
// `zerocopy` sends with MSG_ZEROCOPY, and takes the kernel's completions before it ends. `one piece`
// sends the same piece again and again and receives onto itself, as iperf3 does: such bytes stay in
// a core's cache, which a user's vector does not.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <linux/errqueue.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static double now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e6 + t.tv_nsec / 1e3;
}

static void connect_pair(int ends[2]) {
    int listener = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof at;
    if (bind(listener, (struct sockaddr *)&at, length) || listen(listener, 1)) abort();
    getsockname(listener, (struct sockaddr *)&at, &length);
    ends[0] = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(ends[0], (struct sockaddr *)&at, length)) abort();
    ends[1] = accept(listener, NULL, NULL);
    close(listener);
    for (int i = 0; i < 2; i++) {
        setsockopt(ends[i], IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        setsockopt(ends[i], IPPROTO_TCP, TCP_CONGESTION, "reno", 4);
    }
}

// Completions of sends that were not copied; whether the kernel copied after all.
static int completed(int fd, unsigned *done) {
    char control[128];
    struct msghdr message = {.msg_control = control, .msg_controllen = sizeof control};
    if (recvmsg(fd, &message, MSG_ERRQUEUE | MSG_DONTWAIT) < 0) return 0;
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    struct sock_extended_err *note = (void *)CMSG_DATA(head);
    *done = note->ee_data + 1;
    return note->ee_code == SO_EE_CODE_ZEROCOPY_COPIED;
}

enum how { COPY, ZEROCOPY, ONE_PIECE };
static const char *const NAMES[] = {"copy", "zerocopy", "one piece"};

// One exchange of `bytes` each way in pieces of at most `piece`.
static int exchange(int out, int in, char *send_from, char *receive_to, size_t bytes, size_t piece,
                    enum how how, unsigned *sends) {
    int zerocopy = how == ZEROCOPY;
    size_t stride = how != ONE_PIECE;
    size_t sent = 0, received = 0;
    int copied = 0;
    unsigned done = *sends;
    while (sent < bytes || received < bytes || (zerocopy && done != *sends)) {
        if (sent < bytes) {
            size_t now = bytes - sent < piece ? bytes - sent : piece;
            int flags = MSG_DONTWAIT | MSG_NOSIGNAL | (zerocopy ? MSG_ZEROCOPY : 0);
            ssize_t got = send(out, send_from + stride * sent, now, flags);
            if (got > 0) sent += got, *sends += zerocopy;
            else if (errno != EAGAIN && errno != ENOBUFS) abort();
        }
        if (received < bytes) {
            size_t now = bytes - received < piece ? bytes - received : piece;
            ssize_t got = recv(in, receive_to + stride * received, now, MSG_DONTWAIT);
            if (got > 0) received += got;
            else if (errno != EAGAIN) abort();
        }
        if (zerocopy) copied |= completed(out, &done);
    }
    return copied;
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void measure(size_t bytes, size_t piece, int sockets, enum how how) {
    int pairs[2][2], one = 1;
    connect_pair(pairs[0]);
    if (sockets == 2) connect_pair(pairs[1]);
    else memcpy(pairs[1], pairs[0], sizeof pairs[0]);
    for (int i = 0; how == ZEROCOPY && i < 4; i++)
        if (setsockopt(pairs[i / 2][i % 2], SOL_SOCKET, SO_ZEROCOPY, &one, sizeof one)) abort();
    int rounds = bytes >= 16 << 20 ? 8 : 500, child = fork() == 0;
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(child, &set);
    sched_setaffinity(0, sizeof set, &set);
    int out = child ? pairs[1][1] : pairs[0][0], in = child ? pairs[0][1] : pairs[1][0];
    char *from = aligned_alloc(4096, bytes), *to = aligned_alloc(4096, bytes);
    memset(from, 1, bytes), memset(to, 1, bytes);
    double times[500];
    unsigned sends = 0;
    int copied = 0;
    for (int round = 0; round < rounds; round++) {
        double begun = now_us();
        copied |= exchange(out, in, from, to, bytes, piece, how, &sends);
        times[round] = now_us() - begun;
    }
    if (child) _exit(0);
    wait(NULL);
    qsort(times, rounds, sizeof *times, compare);
    printf("%9zu %8zu %7d  %-9s %9.1f %9.1f%s\n", bytes, piece, sockets, NAMES[how], times[0],
           times[rounds / 2],
           copied ? "  (the kernel copied)" : "");
    fflush(stdout);
    for (int i = 0; i < 4; i++) close(pairs[i / 2][i % 2]);
    free(from), free(to);
}

int main(int count, char **arguments) {
    if (count == 2) {
        measure(strtoull(arguments[1], NULL, 10), 254 << 10, 1, COPY);
        return 0;
    }
    printf("    bytes    piece sockets  send         min us median us\n");
    static const size_t sizes[] = {64 << 10, 1 << 20, 64 << 20};
    static const size_t pieces[] = {64 << 10, 127 << 10, 512 << 10};
    for (int size = 0; size < 3; size++) {
        for (int piece = 0; piece < 3; piece++) measure(sizes[size], pieces[piece], 1, COPY);
        measure(sizes[size], 127 << 10, 2, COPY);
        for (int piece = 1; piece < 3; piece++) measure(sizes[size], pieces[piece], 1, ZEROCOPY);
        measure(sizes[size], 127 << 10, 1, ONE_PIECE);
    }
    return 0;
}
