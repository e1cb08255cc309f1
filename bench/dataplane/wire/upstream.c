/* A mock of an inference server: one thread, epoll, and as little work as possible for each event, so
 * that what is measured in front of it is not this.
 *
 *   upstream PORT        serves on 127.0.0.1, 0 is any free port; the first line out is {"port": N}
 *
 *   POST anything        a chat completion of about 500 bytes; where the body asks for a stream, events
 *                        of about 220 bytes at an interval, each event with the moment at which it was sent (CLOCK_MONOTONIC, nanoseconds)
 *   GET /bench/plan?events=N&interval_us=U&in_step=B     what streams are from now on; drops those that
 *                        run. In step, all streams have their next event at the same moment, as those of an
 *                        engine that computes a token of each at a time; else each at a phase of its own
 *   GET /bench/aborts    when which marked stream (common.h) was seen to be left since the last plan
 *   GET /health, /metrics, /v1/models          what proxies ask an engine
 *
 * Never more than what these need: no TLS, no pipelining, bodies up to 4 MiB. */
#define _GNU_SOURCE
#include "common.h"

#define MAX_REQUEST (4 << 20)
#define MAX_ABORTS 65536
#define READ_SIZE 65536
#define EVENTS_AT_ONCE 512
#define MAX_ANSWER 4096

struct connection {
    char *in; /* the request so far, as text */
    size_t in_length, in_size;
    bool streams, watched_for_room;
    int events_left;
    int64_t due_ns, interval_ns;
    int leaver; /* the number in the mark, -1 without one */
    int next, previous; /* in the queue of streams, by descriptor */
    /* What the socket did not take. An event is only made once the one before it is out. */
    char rest[1024];
    size_t rest_length;
};

struct abort_note {
    int leaver;
    int64_t at_ns;
};

static struct connection *connections;
static long max_connections;
static int epoll, timer;

static int plan_events = 200, plan_in_step = 1;
static int64_t plan_interval_ns = 20000 * NS_PER_US;

static struct abort_note aborts[MAX_ABORTS];
static int abort_count;

/* The streams in order of what is due next. All have the same interval, so that whoever has just had its
 * event goes to the end: no heap. */
static int first = -1, last = -1, running;

static char answer[MAX_ANSWER], stream_head[512], event[512], ending[1024];
static size_t answer_length, stream_head_length, event_length, ending_length;
static char *event_stamp;

static void enqueue(int fd)
{
    struct connection *c = &connections[fd];
    c->next = -1;
    c->previous = last;
    if (last >= 0)
        connections[last].next = fd;
    else
        first = fd;
    last = fd;
}

static void dequeue(int fd)
{
    struct connection *c = &connections[fd];
    if (c->previous >= 0)
        connections[c->previous].next = c->next;
    else
        first = c->next;
    if (c->next >= 0)
        connections[c->next].previous = c->previous;
    else
        last = c->previous;
}

static void stop_streaming(int fd)
{
    connections[fd].streams = false;
    running--;
    dequeue(fd);
}

static void hang_up(int fd)
{
    struct connection *c = &connections[fd];
    if (c->streams) {
        stop_streaming(fd);
        if (c->leaver >= 0 && abort_count < MAX_ABORTS)
            aborts[abort_count++] = (struct abort_note){c->leaver, now_ns()};
    }
    free(c->in);
    memset(c, 0, sizeof *c);
    close(fd);
}

/* Gives false when the connection is gone. What is not taken now is kept, up to the size of `rest`. */
static bool put(int fd, const char *data, size_t length)
{
    struct connection *c = &connections[fd];
    ssize_t taken = 0;
    if (!c->rest_length) {
        taken = send(fd, data, length, MSG_NOSIGNAL);
        if (taken < 0 && errno != EAGAIN) {
            hang_up(fd);
            return false;
        }
        if (taken < 0)
            taken = 0;
    }
    size_t left = length - (size_t)taken;
    if (!left)
        return true;
    if (c->rest_length + left > sizeof c->rest) {
        hang_up(fd);
        return false;
    }
    memcpy(c->rest + c->rest_length, data + taken, left);
    c->rest_length += left;
    if (!c->watched_for_room) {
        c->watched_for_room = true;
        watch(epoll, EPOLL_CTL_MOD, fd, EPOLLIN | EPOLLRDHUP | EPOLLOUT);
    }
    return true;
}

static void put_rest(int fd)
{
    struct connection *c = &connections[fd];
    ssize_t taken = send(fd, c->rest, c->rest_length, MSG_NOSIGNAL);
    if (taken < 0) {
        if (errno != EAGAIN)
            hang_up(fd);
        return;
    }
    c->rest_length -= (size_t)taken;
    memmove(c->rest, c->rest + taken, c->rest_length);
    if (!c->rest_length) {
        c->watched_for_room = false;
        watch(epoll, EPOLL_CTL_MOD, fd, EPOLLIN | EPOLLRDHUP);
    }
}

/* The next event of a stream, or its end. A client that does not take what it has gets no more, as an
 * engine's output would wait; the events that it misses are never made. */
static void next_event(int fd, int64_t at_ns)
{
    struct connection *c = &connections[fd];
    dequeue(fd);
    enqueue(fd);
    c->due_ns += c->interval_ns;
    if (plan_in_step)
        c->due_ns -= c->due_ns % c->interval_ns;
    if (c->due_ns < at_ns)
        c->due_ns = at_ns;
    if (c->rest_length)
        return;
    int64_t stamp = now_ns();
    for (int digit = STAMP_DIGITS - 1; digit >= 0; digit--, stamp /= 10)
        event_stamp[digit] = (char)('0' + stamp % 10);
    if (!put(fd, event, event_length))
        return;
    if (--c->events_left == 0) {
        stop_streaming(fd);
        put(fd, ending, ending_length);
    }
}

static void start_stream(int fd, const char *body)
{
    struct connection *c = &connections[fd];
    const char *mark = strstr(body, LEAVER_MARK);
    c->leaver = mark ? atoi(mark + strlen(LEAVER_MARK)) : -1;
    c->streams = true;
    c->events_left = plan_events;
    c->interval_ns = plan_interval_ns;
    c->due_ns = now_ns();
    running++;
    enqueue(fd);
    if (put(fd, stream_head, stream_head_length))
        next_event(fd, c->due_ns);
}

static void run_streams(void)
{
    int64_t at_ns = now_ns();
    while (first >= 0 && connections[first].due_ns <= at_ns)
        next_event(first, at_ns);
}

/* Answers are small but for the list of aborts: the socket's buffer takes them. */
static void put_text(int fd, const char *type, const char *text, size_t length)
{
    char head[256];
    int head_length = snprintf(head, sizeof head,
                               "HTTP/1.1 200 OK\r\ncontent-type: %s\r\ncontent-length: %zu\r\n\r\n", type,
                               length);
    if (send(fd, head, (size_t)head_length, MSG_NOSIGNAL | MSG_MORE) < 0)
        return;
    for (size_t sent = 0; sent < length;) {
        ssize_t taken = send(fd, text + sent, length - sent, MSG_NOSIGNAL);
        if (taken < 0 && errno != EAGAIN)
            return;
        if (taken > 0)
            sent += (size_t)taken;
    }
}

static void drop_streams(void)
{
    while (first >= 0) {
        connections[first].leaver = -1; /* not the client's doing */
        hang_up(first);
    }
    abort_count = 0;
}

static void put_aborts(int fd)
{
    size_t size = 64 + (size_t)abort_count * 40, length = 0;
    char *text = malloc(size);
    if (!text)
        die("malloc");
    length += (size_t)snprintf(text, size, "{\"running\": %d, \"aborts\": [", running);
    for (int i = 0; i < abort_count; i++)
        length += (size_t)snprintf(text + length, size - length, "%s[%d, %lld]", i ? ", " : "",
                                   aborts[i].leaver, (long long)aborts[i].at_ns);
    length += (size_t)snprintf(text + length, size - length, "]}");
    put_text(fd, "application/json", text, length);
    free(text);
}

/* An engine with room for every stream, so that a budget of tokens is kept and never refuses. */
static void put_metrics(int fd)
{
    char text[1024];
    int length = snprintf(text, sizeof text,
                          "# TYPE vllm:cache_config_info gauge\n"
                          "vllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"268435456\"} 1.0\n"
                          "# TYPE vllm:num_requests_running gauge\n"
                          "vllm:num_requests_running{model_name=\"m\"} %d.0\n"
                          "# TYPE vllm:num_requests_waiting gauge\n"
                          "vllm:num_requests_waiting{model_name=\"m\"} 0.0\n"
                          "# TYPE vllm:kv_cache_usage_perc gauge\n"
                          "vllm:kv_cache_usage_perc{model_name=\"m\"} 0.01\n",
                          running);
    put_text(fd, "text/plain; version=0.0.4", text, (size_t)length);
}

static void get(int fd, const char *target)
{
    int events, in_step;
    long long interval_us;
    if (sscanf(target, "/bench/plan?events=%d&interval_us=%lld&in_step=%d", &events, &interval_us, &in_step) ==
        3) {
        plan_events = events;
        plan_in_step = in_step;
        plan_interval_ns = interval_us * NS_PER_US;
        drop_streams();
        put_text(fd, "application/json", "{}", 2);
    } else if (!strncmp(target, "/bench/aborts ", 14)) {
        put_aborts(fd);
    } else if (!strncmp(target, "/metrics ", 9)) {
        put_metrics(fd);
    } else if (!strncmp(target, "/v1/models ", 11)) {
        const char *models = "{\"object\": \"list\", \"data\": [{\"id\": \"m\", \"object\": \"model\", "
                             "\"created\": 1700000000, \"owned_by\": \"bench\", \"max_model_len\": 131072}]}";
        put_text(fd, "application/json", models, strlen(models));
    } else {
        put_text(fd, "application/json", "{}", 2);
    }
}

/* Where the body of the request ends, 0 while it has not come. */
static size_t request_end(const char *in, size_t length, const char *body)
{
    size_t head_length = (size_t)(body - in);
    const char *field = strcasestr(in, "\r\ncontent-length:");
    if (field && field < body) {
        size_t end = head_length + strtoul(field + 17, NULL, 10);
        return length >= end ? end : 0;
    }
    field = strcasestr(in, "\r\ntransfer-encoding:");
    if (field && field < body)
        return length >= 5 && !memcmp(in + length - 5, "0\r\n\r\n", 5) ? length : 0;
    return head_length;
}

static void handle(int fd)
{
    struct connection *c = &connections[fd];
    c->in[c->in_length] = 0;
    char *body = strstr(c->in, "\r\n\r\n");
    if (!body || !request_end(c->in, c->in_length, body + 4))
        return;
    c->in_length = 0;
    if (!strncmp(c->in, "GET ", 4))
        get(fd, c->in + 4);
    else if (strstr(body, "\"stream\":true") || strstr(body, "\"stream\": true"))
        start_stream(fd, body);
    else
        put(fd, answer, answer_length);
}

static void receive(int fd)
{
    struct connection *c = &connections[fd];
    if (c->in_size < c->in_length + READ_SIZE + 1) {
        c->in_size = c->in_length + 2 * READ_SIZE;
        c->in = realloc(c->in, c->in_size);
        if (!c->in)
            die("realloc");
    }
    ssize_t count = recv(fd, c->in + c->in_length, READ_SIZE, 0);
    if (count < 0 && errno == EAGAIN)
        return;
    if (count <= 0 || c->in_length + (size_t)count > MAX_REQUEST) {
        hang_up(fd);
        return;
    }
    c->in_length += (size_t)count;
    handle(fd);
}

static void accept_all(int listener)
{
    for (;;) {
        int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK);
        if (fd < 0)
            return;
        if (fd >= max_connections) {
            close(fd);
            continue;
        }
        no_delay(fd);
        memset(&connections[fd], 0, sizeof connections[fd]);
        watch(epoll, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLRDHUP);
    }
}

static void prepare(void)
{
    const char *body =
        "{\"id\":\"chatcmpl-0123456789abcdef\",\"object\":\"chat.completion\",\"created\":1700000000,"
        "\"model\":\"m\",\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\"An answer "
        "of moderate length, such as an agent has between two of its calls: it says what was found and "
        "what it will look at next.\",\"refusal\":null,\"tool_calls\":[]},\"logprobs\":null,"
        "\"finish_reason\":\"stop\",\"stop_reason\":null}],\"service_tier\":null,\"usage\":{"
        "\"prompt_tokens\":612,\"total_tokens\":642,\"completion_tokens\":30}}";
    answer_length = (size_t)snprintf(answer, sizeof answer,
                                     "HTTP/1.1 200 OK\r\ndate: Mon, 30 Nov 2026 00:00:00 GMT\r\n"
                                     "server: uvicorn\r\ncontent-length: %zu\r\n"
                                     "content-type: application/json\r\n\r\n%s",
                                     strlen(body), body);
    stream_head_length = (size_t)snprintf(stream_head, sizeof stream_head,
                                          "HTTP/1.1 200 OK\r\ndate: Mon, 30 Nov 2026 00:00:00 GMT\r\n"
                                          "server: uvicorn\r\ncontent-type: text/event-stream; "
                                          "charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n");
    char chunk[400];
    int length = snprintf(chunk, sizeof chunk,
                          "data: {\"id\":\"chatcmpl-0123456789abcdef\",\"object\":\"chat.completion.chunk\","
                          "\"created\":1700000000,\"model\":\"m\",\"choices\":[{\"index\":0,\"delta\":{"
                          "\"content\":\"%c%0*d\"},\"logprobs\":null,\"finish_reason\":null}]}\n\n",
                          STAMP_MARK, STAMP_DIGITS, 0);
    event_length = (size_t)snprintf(event, sizeof event, "%x\r\n%s\r\n", length, chunk);
    event_stamp = strchr(event, STAMP_MARK) + 1;
    const char *usage = "data: {\"id\":\"chatcmpl-0123456789abcdef\",\"object\":\"chat.completion.chunk\","
                        "\"created\":1700000000,\"model\":\"m\",\"choices\":[],\"usage\":{"
                        "\"prompt_tokens\":612,\"total_tokens\":812,\"completion_tokens\":200}}\n\n";
    ending_length = (size_t)snprintf(ending, sizeof ending,
                                     "%zx\r\n%s\r\ne\r\ndata: [DONE]\n\n\r\n0\r\n\r\n", strlen(usage), usage);
}

static int listen_on(int port)
{
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), one = 1;
    if (listener < 0)
        die("socket");
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    struct sockaddr_in address = loopback(port);
    socklen_t size = sizeof address;
    if (bind(listener, (struct sockaddr *)&address, size) || listen(listener, 4096) ||
        getsockname(listener, (struct sockaddr *)&address, &size))
        die("listen");
    printf("{\"port\": %d}\n", ntohs(address.sin_port));
    fflush(stdout);
    return listener;
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: upstream PORT\n");
        return 2;
    }
    end_with_parent();
    max_connections = raise_fd_limit();
    connections = calloc((size_t)max_connections, sizeof *connections);
    if (!connections)
        die("calloc");
    prepare();
    epoll = epoll_create1(0);
    timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
    int listener = listen_on(atoi(argv[1]));
    watch(epoll, EPOLL_CTL_ADD, listener, EPOLLIN);
    watch(epoll, EPOLL_CTL_ADD, timer, EPOLLIN);

    struct epoll_event events[EVENTS_AT_ONCE];
    for (;;) {
        if (first >= 0)
            arm(timer, connections[first].due_ns);
        int count = epoll_wait(epoll, events, EVENTS_AT_ONCE, -1);
        for (int i = 0; i < count; i++) {
            int fd = events[i].data.fd;
            if (fd == listener)
                accept_all(listener);
            else if (fd == timer)
                drain_timer(timer);
            else if (events[i].events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR))
                receive(fd);
            else if (events[i].events & EPOLLOUT)
                put_rest(fd);
        }
        run_streams();
    }
}
