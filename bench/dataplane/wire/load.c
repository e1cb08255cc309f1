/* The clients: one thread, epoll, keep-alive connections to 127.0.0.1. What it measures goes to stdout as
 * one line of JSON; before that a line "start" and a line "end", between which everything was counted, so
 * that whoever started this can look at the CPU time of the server at the same two moments.
 *
 *   load requests   closed loop: each connection asks again as soon as it has its answer
 *   load rate       open loop: requests fall due by a Poisson process whether the others are answered or
 *                   not, and their time counts from then, also while no connection is free for them
 *   load streams    each connection has one stream after the other
 *   load aborts     each connection has one stream after the other and leaves it at a random moment
 *
 *   --port P --body FILE [--path /v1/chat/completions] [--header "name: value"]…
 *   --connections N --seconds S --warmup S   [--ramp S: over which the connections are opened]
 *   --rate R         requests a second
 *   --events N       that a whole stream has; one that ends otherwise is an error
 *   --stall-ms M     a stream that was silent for longer has stalled
 *   --upstream P     whom to ask when it saw each leave; --leave-ms A B  after so long at random */
#define _GNU_SOURCE
#include "common.h"
#include "response.h"

#define READ_SIZE 262144
#define EVENTS_AT_ONCE 512
#define MAX_HEADERS 16
#define MAX_BACKLOG 100000
/* How long after the last client has left the upstream may take to notice. */
#define ABORT_PATIENCE_NS (5 * NS_PER_SECOND)

enum mode { REQUESTS, RATE, STREAMS, ABORTS };

struct connection {
    int fd; /* -1: not open */
    bool busy, heard, waits_for_room;
    int64_t due_ns; /* of the request: sent then, or in an open loop meant to be */
    int64_t last_ns, gap_ns; /* of the stream: the last event, the longest silence */
    int64_t leave_ns; /* 0: not before its first event */
    int leaver;
    int events;
    int digits; /* of a stamp that is being read; -1 outside of one */
    int64_t stamp;
    size_t unsent;
    struct response response;
};

struct samples {
    int64_t *values;
    size_t count, size;
};

struct options {
    enum mode mode;
    int port, upstream, connections, events;
    double seconds, warmup, ramp, rate;
    int64_t stall_ns, leave_least_ns, leave_most_ns;
    const char *path, *body_file;
    const char *headers[MAX_HEADERS];
    int header_count;
};

static struct options options = {
    .path = "/v1/chat/completions", .connections = 32, .seconds = 5, .warmup = 1, .events = 200,
    .stall_ns = NS_PER_SECOND, .leave_least_ns = 10000000, .leave_most_ns = 500000000, .rate = 100};

static struct connection *connections;
static int *by_fd; /* descriptor -> connection */
static long max_fds;
static int epoll, timer;

static char *request;
static size_t request_length;
static char *leaver_digits; /* in the request, where it marks one that is going to leave */

static bool counting;
static struct samples answered, first_bytes, delays;
static long long requests, events, streams_done, errors, refused, stalled, late;
static int last_bad_status;

static int64_t *left_at; /* by leaver: when it closed its socket */
static int leavers, leavers_size;

/* Requests that are due while every connection is busy, first come first served. */
static int64_t backlog[MAX_BACKLOG];
static int backlog_first, backlog_count;

static void note(struct samples *s, int64_t value)
{
    if (s->count == s->size) {
        s->size = s->size ? 2 * s->size : 65536;
        s->values = realloc(s->values, s->size * sizeof *s->values);
        if (!s->values)
            die("realloc");
    }
    s->values[s->count++] = value;
}

/* xorshift64*: the same moments in every run, and no lock around it. */
static double uniform(void)
{
    static uint64_t state = 0x9E3779B97F4A7C15ULL;
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    return (double)((state * 2685821657736338717ULL) >> 11) / 9007199254740992.0;
}

/* -ln of a uniform number without libm: the exponential distribution's, by halving and a series. */
static double exponential(void)
{
    double u = 1.0 - uniform(), sum = 0.0;
    while (u < 0.5) {
        u *= 2;
        sum += 0.69314718055994531;
    }
    double z = (1 - u) / (1 + u), square = z * z, power = z;
    for (int n = 1; n < 40; n += 2, power *= square)
        sum += 2 * power / n;
    return sum;
}

static void lost(struct connection *c)
{
    if (counting)
        errors++;
    close(c->fd);
    c->fd = -1;
    c->busy = false;
    c->unsent = 0;
}

/* The number of whoever asks, written into the one request that all share. */
static void mark_leaver(int leaver)
{
    for (int digit = LEAVER_DIGITS - 1; digit >= 0; digit--, leaver /= 10)
        leaver_digits[digit] = (char)('0' + leaver % 10);
}

static void send_more(struct connection *c)
{
    if (options.mode == ABORTS && c->unsent == request_length)
        mark_leaver(c->leaver);
    ssize_t sent = send(c->fd, request + request_length - c->unsent, c->unsent, MSG_NOSIGNAL);
    if (sent < 0 && errno != EAGAIN)
        c->unsent = 0; /* epoll tells of the error, which is then handled in one place */
    c->unsent -= sent > 0 ? (size_t)sent : 0;
    bool waits = c->unsent > 0;
    if (waits != c->waits_for_room)
        watch(epoll, EPOLL_CTL_MOD, c->fd, waits ? EPOLLIN | EPOLLOUT : EPOLLIN);
    c->waits_for_room = waits;
}

static bool open_connection(struct connection *c)
{
    c->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    if (c->fd < 0 || c->fd >= max_fds)
        die("socket");
    struct sockaddr_in address = loopback(options.port);
    if (connect(c->fd, (struct sockaddr *)&address, sizeof address) && errno != EINPROGRESS) {
        lost(c);
        return false;
    }
    no_delay(c->fd);
    by_fd[c->fd] = (int)(c - connections);
    c->waits_for_room = true;
    watch(epoll, EPOLL_CTL_ADD, c->fd, EPOLLIN | EPOLLOUT);
    return true;
}

static int new_leaver(void)
{
    if (leavers == leavers_size) {
        leavers_size = leavers_size ? 2 * leavers_size : 1024;
        left_at = realloc(left_at, (size_t)leavers_size * sizeof *left_at);
        if (!left_at)
            die("realloc");
    }
    left_at[leavers] = 0;
    return leavers++;
}

static void ask(struct connection *c, int64_t due_ns)
{
    bool fresh = c->fd < 0;
    if (fresh && !open_connection(c))
        return;
    response_reset(&c->response);
    c->busy = true;
    c->heard = false;
    c->events = 0;
    c->digits = -1;
    c->due_ns = c->last_ns = due_ns;
    c->leave_ns = 0;
    if (options.mode == ABORTS)
        c->leaver = new_leaver();
    c->unsent = request_length;
    if (!fresh)
        send_more(c);
}

static void on_event(struct connection *c, int64_t at_ns)
{
    c->events++;
    int64_t gap = at_ns - c->last_ns;
    c->last_ns = at_ns;
    if (options.mode == ABORTS && !c->leave_ns)
        c->leave_ns = at_ns + options.leave_least_ns +
                      (int64_t)(uniform() * (double)(options.leave_most_ns - options.leave_least_ns));
    if (!counting)
        return;
    events++;
    if (gap > c->gap_ns)
        c->gap_ns = gap;
    if (c->events == 1)
        note(&first_bytes, at_ns - c->due_ns);
    note(&delays, at_ns - c->stamp);
}

struct reading {
    struct connection *connection;
    int64_t at_ns;
};

/* Looks for stamps: whatever carries them is an event, however it was framed on the way. */
static void take(void *whose, const char *data, size_t length)
{
    struct reading *reading = whose;
    struct connection *c = reading->connection;
    if (options.mode == REQUESTS || options.mode == RATE)
        return;
    for (const char *at = data, *end = data + length; at < end; at++) {
        if (c->digits < 0) {
            at = memchr(at, STAMP_MARK, (size_t)(end - at));
            if (!at)
                return;
            c->digits = 0;
            c->stamp = 0;
        } else if (*at < '0' || *at > '9') {
            c->digits = -1;
        } else {
            c->stamp = c->stamp * 10 + (*at - '0');
            if (++c->digits == STAMP_DIGITS) {
                c->digits = -1;
                on_event(c, reading->at_ns);
            }
        }
    }
}

static void answered_at(struct connection *c, int64_t at_ns)
{
    bool streams = options.mode == STREAMS || options.mode == ABORTS;
    c->busy = false;
    if (counting) {
        if (c->response.status != 200) {
            refused++;
            last_bad_status = c->response.status;
        } else if (streams && c->events != options.events) {
            errors++;
        } else if (streams) {
            streams_done++;
        } else {
            requests++;
            note(&answered, at_ns - c->due_ns);
        }
    }
    if (c->response.closes) {
        close(c->fd);
        c->fd = -1;
    }
    if (options.mode != RATE) {
        ask(c, at_ns);
    } else if (backlog_count) {
        ask(c, backlog[backlog_first]);
        backlog_first = (backlog_first + 1) % MAX_BACKLOG;
        backlog_count--;
    }
}

static void receive(struct connection *c, char *buffer)
{
    ssize_t count = recv(c->fd, buffer, READ_SIZE, 0);
    if (count < 0 && errno == EAGAIN)
        return;
    int64_t at_ns = now_ns();
    if (count <= 0) {
        if (count == 0 && c->busy && c->response.state == UNTIL_CLOSE) {
            c->response.closes = true;
            answered_at(c, at_ns);
        } else if (c->busy) {
            lost(c);
            ask(c, at_ns);
        } else {
            close(c->fd); /* an idle connection: the next request opens one */
            c->fd = -1;
        }
        return;
    }
    if (!c->heard && options.mode == RATE && counting)
        note(&first_bytes, at_ns - c->due_ns);
    c->heard = true;
    struct reading reading = {c, at_ns};
    size_t taken = response_feed(&c->response, buffer, (size_t)count, take, &reading);
    if (c->response.state == BROKEN || taken < (size_t)count) {
        lost(c);
        ask(c, at_ns);
    } else if (c->response.state == DONE) {
        answered_at(c, at_ns);
    }
}

static void come_due(int64_t due_ns)
{
    for (int i = 0; i < options.connections; i++)
        if (!connections[i].busy) {
            ask(&connections[i], due_ns);
            return;
        }
    if (backlog_count == MAX_BACKLOG) {
        late++;
        return;
    }
    backlog[(backlog_first + backlog_count++) % MAX_BACKLOG] = due_ns;
}

/* Whoever's time has come closes its socket. Gives when the next one's comes. */
static int64_t leave(int64_t at_ns)
{
    int64_t next_ns = at_ns + NS_PER_SECOND;
    for (int i = 0; i < options.connections; i++) {
        struct connection *c = &connections[i];
        if (!c->busy || !c->leave_ns)
            continue;
        if (c->leave_ns > at_ns) {
            next_ns = c->leave_ns < next_ns ? c->leave_ns : next_ns;
            continue;
        }
        left_at[c->leaver] = now_ns();
        close(c->fd);
        c->fd = -1;
        c->busy = false;
        ask(c, now_ns());
    }
    return next_ns;
}

static void mark(const char *word)
{
    puts(word);
    fflush(stdout);
}

static void begin_window(int64_t at_ns)
{
    counting = true;
    for (int i = 0; i < options.connections; i++) {
        connections[i].gap_ns = 0;
        /* What was silent before is not this window's silence. */
        if (connections[i].last_ns && connections[i].last_ns < at_ns)
            connections[i].last_ns = at_ns;
    }
    mark("start");
}

static void end_window(int64_t at_ns)
{
    counting = false;
    mark("end");
    for (int i = 0; options.mode == STREAMS && i < options.connections; i++) {
        struct connection *c = &connections[i];
        if (at_ns - c->last_ns > c->gap_ns)
            c->gap_ns = at_ns - c->last_ns;
        if (c->gap_ns > options.stall_ns)
            stalled++;
    }
}

/* Everything from the first connection to the end of the window. */
static double run(void)
{
    static char buffer[READ_SIZE];
    int64_t begin = now_ns();
    int64_t start = begin + (int64_t)((options.ramp + options.warmup) * NS_PER_SECOND);
    int64_t end = start + (int64_t)(options.seconds * NS_PER_SECOND), started = 0;
    int64_t next_due = begin;
    int opened = options.mode == RATE ? options.connections : 0;
    struct epoll_event ready[EVENTS_AT_ONCE];
    for (;;) {
        int64_t at = now_ns(), next = counting ? end : start;
        if (!counting && at >= start) {
            started = at;
            begin_window(at);
            next = end;
        }
        if (at >= end)
            break;
        while (opened < options.connections) {
            int64_t opens = begin + (int64_t)(options.ramp * NS_PER_SECOND * opened / options.connections);
            if (opens > at) {
                next = opens < next ? opens : next;
                break;
            }
            ask(&connections[opened++], at);
        }
        if (options.mode == RATE) {
            while (next_due <= at) {
                come_due(next_due);
                next_due += (int64_t)(exponential() / options.rate * NS_PER_SECOND);
            }
            next = next_due < next ? next_due : next;
        }
        if (options.mode == ABORTS) {
            int64_t leaves = leave(at);
            next = leaves < next ? leaves : next;
        }
        arm(timer, next);
        int count = epoll_wait(epoll, ready, EVENTS_AT_ONCE, -1);
        for (int i = 0; i < count; i++) {
            int fd = ready[i].data.fd;
            if (fd == timer) {
                drain_timer(timer);
                continue;
            }
            struct connection *c = &connections[by_fd[fd]];
            if (c->fd != fd)
                continue; /* closed while its event waited */
            if (ready[i].events & EPOLLOUT && c->unsent)
                send_more(c);
            if (c->fd == fd && ready[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR))
                receive(c, buffer);
        }
    }
    int64_t ended = now_ns();
    end_window(ended);
    return (double)(ended - started) / NS_PER_SECOND;
}

static void build_request(void)
{
    FILE *file = fopen(options.body_file, "r");
    if (!file)
        die(options.body_file);
    static char body[1 << 21];
    size_t length = fread(body, 1, sizeof body - 1, file);
    fclose(file);
    request = malloc(length + 16384);
    if (!request)
        die("malloc");
    char *at = request;
    at += sprintf(at, "POST %s HTTP/1.1\r\nhost: 127.0.0.1:%d\r\n", options.path, options.port);
    for (int i = 0; i < options.header_count; i++)
        at += snprintf(at, 512, "%.500s\r\n", options.headers[i]);
    at += sprintf(at, "content-type: application/json\r\ncontent-length: %zu\r\n\r\n", length);
    memcpy(at, body, length);
    at[length] = 0;
    char *marked = strstr(at, LEAVER_MARK);
    leaver_digits = marked ? marked + strlen(LEAVER_MARK) : NULL;
    request_length = (size_t)(at - request) + length;
    if (options.mode == ABORTS && !leaver_digits) {
        fprintf(stderr, "the body has no mark for those that leave\n");
        exit(2);
    }
}

/* One GET over a connection of its own; the body, to be freed. */
static char *get(int port, const char *path)
{
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in address = loopback(port);
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address))
        die("the upstream");
    char head[256];
    int length = snprintf(head, sizeof head, "GET %s HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n", path);
    if (send(fd, head, (size_t)length, MSG_NOSIGNAL) != length)
        die("the upstream");
    size_t size = 1 << 16, got = 0;
    char *text = malloc(size + 1), *body = NULL;
    for (;;) {
        ssize_t count = recv(fd, text + got, size - got, 0);
        if (count <= 0)
            die("the upstream");
        got += (size_t)count;
        text[got] = 0;
        body = strstr(text, "\r\n\r\n");
        const char *field = strcasestr(text, "content-length:");
        if (body && field && got >= (size_t)(body + 4 - text) + strtoul(field + 15, NULL, 10))
            break;
        if (got == size && !(text = realloc(text, (size *= 2) + 1)))
            die("realloc");
    }
    close(fd);
    body = strdup(body + 4);
    free(text);
    return body;
}

static int ascending(const void *left, const void *right)
{
    int64_t a = *(const int64_t *)left, b = *(const int64_t *)right;
    return (a > b) - (a < b);
}

static void print_samples(const char *name, struct samples *s)
{
    static const double shares[] = {0.5, 0.9, 0.99, 0.999};
    static const char *names[] = {"p50", "p90", "p99", "p999"};
    if (s->count)
        qsort(s->values, s->count, sizeof *s->values, ascending);
    printf(", \"%s\": {\"count\": %zu", name, s->count);
    for (int i = 0; i < 4 && s->count; i++) {
        size_t at = (size_t)(shares[i] * (double)s->count);
        at = at < s->count ? at : s->count - 1;
        printf(", \"%s_us\": %.1f", names[i], (double)s->values[at] / NS_PER_US);
    }
    if (s->count)
        printf(", \"max_us\": %.1f", (double)s->values[s->count - 1] / NS_PER_US);
    printf("}");
}

/* What the upstream saw of those that left: the time from the client's close to it. */
static void print_aborts(void)
{
    struct samples noticed = {0};
    int gone = 0;
    for (int i = 0; i < leavers; i++)
        gone += left_at[i] != 0;
    for (int64_t until = now_ns() + ABORT_PATIENCE_NS;;) {
        char *text = get(options.upstream, "/bench/aborts"), *at = strchr(text, '[');
        noticed.count = 0;
        while (at && (at = strchr(at + 1, '['))) {
            int leaver;
            long long seen;
            if (sscanf(at, "[%d, %lld]", &leaver, &seen) == 2 && leaver < leavers && left_at[leaver])
                note(&noticed, seen - left_at[leaver]);
        }
        free(text);
        if (noticed.count >= (size_t)gone || now_ns() > until)
            break;
        usleep(50000);
    }
    printf(", \"left\": %d, \"unnoticed\": %d", gone, gone - (int)noticed.count);
    print_samples("abort", &noticed);
}

static void parse(int argc, char **argv)
{
    static const char *modes[] = {"requests", "rate", "streams", "aborts"};
    bool known = false;
    for (int i = 0; argc > 1 && i < 4; i++)
        if (!strcmp(argv[1], modes[i])) {
            options.mode = (enum mode)i;
            known = true;
        }
    for (int i = 2; known && i + 1 < argc; i += 2) {
        const char *name = argv[i], *value = argv[i + 1];
        if (!strcmp(name, "--port"))
            options.port = atoi(value);
        else if (!strcmp(name, "--upstream"))
            options.upstream = atoi(value);
        else if (!strcmp(name, "--connections"))
            options.connections = atoi(value);
        else if (!strcmp(name, "--events"))
            options.events = atoi(value);
        else if (!strcmp(name, "--seconds"))
            options.seconds = atof(value);
        else if (!strcmp(name, "--warmup"))
            options.warmup = atof(value);
        else if (!strcmp(name, "--ramp"))
            options.ramp = atof(value);
        else if (!strcmp(name, "--rate"))
            options.rate = atof(value);
        else if (!strcmp(name, "--stall-ms"))
            options.stall_ns = atoll(value) * 1000000;
        else if (!strcmp(name, "--leave-ms") && i + 2 < argc) {
            options.leave_least_ns = atoll(value) * 1000000;
            options.leave_most_ns = atoll(argv[++i + 1]) * 1000000;
        } else if (!strcmp(name, "--path"))
            options.path = value;
        else if (!strcmp(name, "--body"))
            options.body_file = value;
        else if (!strcmp(name, "--header") && options.header_count < MAX_HEADERS)
            options.headers[options.header_count++] = value;
        else
            known = false;
    }
    if (!known || !options.port || !options.body_file || (options.mode == ABORTS && !options.upstream)) {
        fprintf(stderr, "usage: see the top of load.c\n");
        exit(2);
    }
}

int main(int argc, char **argv)
{
    parse(argc, argv);
    end_with_parent();
    build_request();
    max_fds = raise_fd_limit();
    connections = calloc((size_t)options.connections, sizeof *connections);
    by_fd = calloc((size_t)max_fds, sizeof *by_fd);
    if (!connections || !by_fd)
        die("calloc");
    for (int i = 0; i < options.connections; i++)
        connections[i].fd = -1;
    epoll = epoll_create1(0);
    timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
    watch(epoll, EPOLL_CTL_ADD, timer, EPOLLIN);
    double seconds = run();
    int64_t longest = 0;
    for (int i = 0; i < options.connections; i++) {
        longest = connections[i].gap_ns > longest ? connections[i].gap_ns : longest;
        if (connections[i].fd >= 0)
            close(connections[i].fd);
    }
    printf("{\"seconds\": %.4f, \"requests\": %lld, \"events\": %lld, \"streams\": %lld, \"errors\": %lld, "
           "\"refused\": %lld, \"last_bad_status\": %d, \"stalled\": %lld, \"longest_gap_ms\": %.1f, "
           "\"never_sent\": %lld",
           seconds, requests, events, streams_done, errors, refused, last_bad_status, stalled,
           (double)longest / 1e6, late + backlog_count);
    print_samples("latency", &answered);
    print_samples("first_byte", &first_bytes);
    print_samples("delay", &delays);
    if (options.mode == ABORTS)
        print_aborts();
    printf("}\n");
    return 0;
}
