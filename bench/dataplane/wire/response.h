/* Reads one HTTP/1.1 response as it comes in. Only what servers really send: it is a load generator's,
 * and whatever it does not understand is an error of the one that is measured. */
#ifndef BULWARK_BENCH_RESPONSE_H
#define BULWARK_BENCH_RESPONSE_H

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum response_state { HEAD, FIXED, CHUNK_SIZE, CHUNK, CHUNK_END, TRAILER, UNTIL_CLOSE, DONE, BROKEN };

struct response {
    enum response_state state;
    int status;
    bool closes; /* the server says that this is the connection's last */
    long long left; /* of the body, or of this chunk */
    char line[4096]; /* the head; later a line between chunks */
    size_t line_length;
};

typedef void take_body(void *whose, const char *data, size_t length);

static inline void response_reset(struct response *r)
{
    r->state = HEAD;
    r->line_length = 0;
    r->closes = false;
}

static inline enum response_state response_head(struct response *r)
{
    r->line[r->line_length] = 0;
    if (strncmp(r->line, "HTTP/1.1 ", 9))
        return BROKEN;
    r->status = atoi(r->line + 9);
    const char *length = strcasestr(r->line, "\r\ncontent-length:");
    const char *coding = strcasestr(r->line, "\r\ntransfer-encoding:");
    const char *connection = strcasestr(r->line, "\r\nconnection:");
    r->closes = connection && !strncasecmp(connection + 13 + strspn(connection + 13, " "), "close", 5);
    r->line_length = 0;
    if (coding)
        return CHUNK_SIZE;
    r->left = length ? atoll(length + 17) : -1;
    if (r->left < 0)
        return UNTIL_CLOSE;
    return r->left ? FIXED : DONE;
}

static inline enum response_state response_line(struct response *r)
{
    bool empty = r->line_length == 2;
    long long size = strtoll(r->line, NULL, 16);
    r->line_length = 0;
    if (r->state == TRAILER)
        return empty ? DONE : TRAILER;
    if (r->state == CHUNK_END)
        return empty ? CHUNK_SIZE : BROKEN;
    r->left = size;
    return size ? CHUNK : TRAILER;
}

/* Takes what came; gives how much of it was taken, less than all only where the response has ended. */
static inline size_t response_feed(struct response *r, const char *data, size_t length, take_body *take,
                                   void *whose)
{
    size_t at = 0;
    while (at < length && r->state != DONE && r->state != BROKEN) {
        if (r->state == FIXED || r->state == CHUNK || r->state == UNTIL_CLOSE) {
            size_t here = length - at;
            if (r->state != UNTIL_CLOSE && (long long)here > r->left)
                here = (size_t)r->left;
            take(whose, data + at, here);
            at += here;
            if (r->state != UNTIL_CLOSE && (r->left -= (long long)here) == 0)
                r->state = r->state == FIXED ? DONE : CHUNK_END;
            continue;
        }
        if (r->line_length == sizeof r->line - 1) {
            r->state = BROKEN;
            break;
        }
        r->line[r->line_length++] = data[at++];
        size_t n = r->line_length;
        if (r->line[n - 1] != '\n')
            continue;
        if (r->state != HEAD)
            r->state = response_line(r);
        else if (n >= 4 && !memcmp(r->line + n - 4, "\r\n\r\n", 4))
            r->state = response_head(r);
    }
    return at;
}

#endif
