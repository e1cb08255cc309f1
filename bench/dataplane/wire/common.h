/* What both programs need: the clock, the end with a word, sockets, the limit on descriptors.
 *
 * Everything is bound and connected to 127.0.0.1 only: nothing here leaves the machine. */
#ifndef BULWARK_BENCH_COMMON_H
#define BULWARK_BENCH_COMMON_H

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#define NS_PER_SECOND 1000000000LL
#define NS_PER_US 1000LL

/* A stamp in an event: this character, then the nanoseconds in so many digits. Nothing else that the
 * mock upstream writes has the character, so that whoever reads need not parse JSON. */
#define STAMP_MARK '@'
#define STAMP_DIGITS 20

/* How the load marks a stream that it is going to leave, so that the upstream can say when it knew.
 * The digits that follow are its number. */
#define LEAVER_MARK "bench-leaver-"
#define LEAVER_DIGITS 8

static inline void die(const char *what)
{
    perror(what);
    exit(1);
}

static inline int64_t now_ns(void)
{
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (int64_t)at.tv_sec * NS_PER_SECOND + at.tv_nsec;
}

/* As many descriptors as the hard limit allows; gives how many these are. */
static inline long raise_fd_limit(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit))
        die("getrlimit");
    limit.rlim_cur = limit.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &limit))
        die("setrlimit");
    return limit.rlim_cur > 1 << 20 ? 1 << 20 : (long)limit.rlim_cur;
}

/* Whoever started this waits for it and ends it; where that is killed itself, nothing stays behind. */
static inline void end_with_parent(void)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
}

static inline struct sockaddr_in loopback(int port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return address;
}

/* Each event is its own packet: the one that waits for another to fill it would count as delay. */
static inline void no_delay(int fd)
{
    int one = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}

static inline void watch(int epoll, int operation, int fd, uint32_t events)
{
    struct epoll_event event = {.events = events, .data.fd = fd};
    if (epoll_ctl(epoll, operation, fd, &event))
        die("epoll_ctl");
}

/* One shot, at this moment; a moment that has passed is at once. */
static inline void arm(int timer, int64_t at_ns)
{
    struct itimerspec when = {.it_value = {at_ns / NS_PER_SECOND, at_ns % NS_PER_SECOND}};
    if (timerfd_settime(timer, TFD_TIMER_ABSTIME, &when, NULL))
        die("timerfd_settime");
}

static inline void drain_timer(int timer)
{
    uint64_t times;
    if (read(timer, &times, sizeof times) < 0 && errno != EAGAIN)
        die("timerfd");
}

#endif
