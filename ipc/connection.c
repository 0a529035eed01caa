/* One connection: its bytes, with the framing of nng's request/reply protocol. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "ipc/server_internal.h"

enum { HELLO_MS = 10000, MIN_BYTES = 4 /* MIN_BYTES of a message: nng's request id */ };

static const unsigned char hello_of_rep[CTW_HELLO_BYTES] = {0, 'S', 'P', 0, 0, 0x31, 0, 0};
static const unsigned char hello_of_req[CTW_HELLO_BYTES] = {0, 'S', 'P', 0, 0, 0x30, 0, 0};

static size_t frame_bytes(const struct ctw_connection *c)
{
    return c->server->endpoint.path != NULL ? CTW_FRAME_BYTES : CTW_FRAME_BYTES - 1;
}

/* ---- closing ---- */

void ctw_connection_drop(struct ctw_connection *c, const char *why)
{
    struct ctw_server *s = c->server;
    if (c->closing)
        return;
    if (why != NULL)
        ctw_server_note(s, "%s: connection closed: %s", c->address, why);
    c->closing = true;
    nng_stream_close(c->stream);
    ctw_room_leave(c);
    if (c->receiving != NULL && !c->rx_busy) {
        ctw_call_free(c->receiving);
        c->receiving = NULL;
    }
    ctw_calls_forget(c);
    ctw_server_look_at(s, 0);
}

bool ctw_connection_is_free(const struct ctw_connection *c)
{
    return c->closing && !c->rx_busy && !c->tx_busy && c->active == NULL;
}

void ctw_connection_free(struct ctw_connection *c)
{
    if (c == NULL)
        return;
    nng_aio_free(c->rx); /* waits until the callback has returned */
    nng_aio_free(c->tx);
    nng_stream_free(c->stream);
    ctw_free(c);
}

/* ---- sending ---- */

static void start_sending(struct ctw_connection *c)
{
    struct ctw_call *e = c->active;
    const unsigned char *first = c->hello_sent ? e->head : hello_of_rep;
    size_t n_first = c->hello_sent ? e->n_head : CTW_HELLO_BYTES;
    nng_iov iov[2];
    unsigned n = 0;
    if (c->sent < n_first)
        iov[n++] = (nng_iov){.iov_buf = (void *)(uintptr_t)(first + c->sent),
                             .iov_len = n_first - c->sent};
    if (c->hello_sent) {
        size_t done = c->sent < n_first ? 0 : c->sent - n_first;
        iov[n++] = (nng_iov){.iov_buf = e->reply.data + done, .iov_len = e->reply.n - done};
    }
    nng_aio_set_iov(c->tx, n, iov);
    nng_aio_set_timeout(c->tx, c->server->options.send_ms);
    c->tx_busy = true;
    nng_stream_send(c->stream, c->tx);
}

void ctw_connection_send(struct ctw_connection *c)
{
    if (c->closing || c->tx_busy || c->active == NULL || c->active->n_head == 0)
        return;
    c->sent = 0;
    c->sending_pace = (struct ctw_pace){0};
    start_sending(c);
}

/* The hello or a reply is completely sent. */
static void finish_sending(struct ctw_connection *c)
{
    if (!c->hello_sent) {
        c->hello_sent = true;
    } else {
        struct ctw_call *e = c->active;
        c->active = NULL;
        c->active_ms = ctw_now_ms();
        ctw_call_free(e);
        ctw_call_next(c);
        ctw_connection_receive(c);
    }
    ctw_connection_send(c);
}

static void fail_sending(struct ctw_connection *c, int rc)
{
    char why[96];
    snprintf(why, sizeof(why),
             "it has taken no byte of its replies for %d ms (%d requests are unanswered)",
             c->server->options.send_ms, c->n_calls);
    ctw_connection_drop(c, rc == NNG_ETIMEDOUT && c->hello_sent ? why : NULL);
}

static void on_sent(void *arg)
{
    struct ctw_connection *c = arg;
    struct ctw_server *s = c->server;
    pthread_mutex_lock(&s->lock);
    int rc = nng_aio_result(c->tx);
    c->tx_busy = false;
    if (rc != 0)
        fail_sending(c, rc);
    if (c->closing) {
        if (c->active != NULL && c->active->n_head > 0) { /* no thread has the call */
            ctw_call_free(c->active);
            c->active = NULL;
        }
        ctw_server_look_at(s, 0);
    } else {
        size_t all = c->hello_sent ? c->active->n_head + c->active->reply.n : CTW_HELLO_BYTES;
        c->sent += nng_aio_count(c->tx);
        if (c->sent < all)
            start_sending(c);
        else
            finish_sending(c);
    }
    ctw_connections_resume(s);
    pthread_mutex_unlock(&s->lock);
}

/* ---- receiving ---- */

static void start_receiving(struct ctw_connection *c)
{
    bool body = c->state == CTW_RECEIVING_BODY;
    nng_iov iov = {.iov_buf = (body ? c->receiving->data : c->in) + c->got,
                   .iov_len = c->want - c->got};
    int ms = c->server->options.receive_ms;
    if (c->state == CTW_RECEIVING_HELLO)
        ms = HELLO_MS;
    else if (!body && c->got == 0)
        ms = NNG_DURATION_INFINITE;
    nng_aio_set_iov(c->rx, 1, &iov);
    nng_aio_set_timeout(c->rx, ms);
    c->rx_busy = true;
    nng_stream_recv(c->stream, c->rx);
}

static void expect(struct ctw_connection *c, enum ctw_receiving state, size_t n)
{
    c->state = state;
    c->got = 0;
    c->want = n;
}

void ctw_connection_receive(struct ctw_connection *c)
{
    bool may_begin = c->state != CTW_RECEIVING_FRAME || c->got > 0 ||
                     (c->n_calls < CTW_IPC_UNANSWERED && c->resume_ms == 0);
    if (!c->closing && !c->rx_busy && c->waits_in == NULL && may_begin && !c->server->ending)
        start_receiving(c);
}

/* Receives a request of c->want bytes, for which there is room. */
static void receive_body(struct ctw_connection *c)
{
    struct ctw_call *e = ctw_calloc(1, sizeof(*e));
    unsigned char *data = e == NULL ? NULL : ctw_calloc(1, c->want);
    if (data == NULL) {
        ctw_free(e);
        ctw_connection_drop(c, "out of memory for its request");
        return;
    }
    e->conn = c;
    e->data = data;
    e->n = c->want;
    ctw_room_charge(c, e);
    c->receiving = e;
    c->receiving_pace = (struct ctw_pace){0};
    expect(c, CTW_RECEIVING_BODY, e->n);
}

void ctw_connections_resume(struct ctw_server *s)
{
    for (struct ctw_connection *c; (c = ctw_rooms_next(s)) != NULL;) {
        receive_body(c);
        ctw_connection_receive(c);
    }
}

static void read_frame(struct ctw_connection *c)
{
    size_t at = frame_bytes(c) - 8;
    uint64_t n = 0;
    char why[96];
    for (size_t i = at; i < at + 8; i++)
        n = n << 8 | c->in[i];
    if (at == 1 && c->in[0] != 1) {
        ctw_connection_drop(c, "it does not speak nng's protocol");
        return;
    }
    if (n < MIN_BYTES || n > CTW_IPC_REQUEST_BYTES + CTW_TRACE_BYTES) {
        if (n < MIN_BYTES)
            snprintf(why, sizeof(why),
                     "its message has %" PRIu64 " bytes, too few for nng's header of at least %d",
                     n, MIN_BYTES);
        else
            snprintf(why, sizeof(why), "its request has %" PRIu64 " bytes, at most %d are allowed",
                     n, CTW_IPC_REQUEST_BYTES);
        ctw_connection_drop(c, why);
        return;
    }
    c->want = (size_t)n;
    if (ctw_room_take(c))
        receive_body(c);
}

/* Length of nng's header, which ends after the first word with its highest bit set; 0: no end. */
static size_t trace_bytes(const struct ctw_call *e)
{
    for (size_t n = 4; n <= e->n && n <= CTW_TRACE_BYTES; n += 4) {
        if (e->data[n - 4] & 0x80)
            return n;
    }
    return 0;
}

/* All expected bytes have been received. */
static void finish_receiving(struct ctw_connection *c)
{
    struct ctw_call *e = c->receiving;
    switch (c->state) {
    case CTW_RECEIVING_HELLO:
        if (memcmp(c->in, hello_of_req, CTW_HELLO_BYTES) != 0)
            ctw_connection_drop(c, "it is not an nng REQ socket");
        expect(c, CTW_RECEIVING_FRAME, frame_bytes(c));
        return;
    case CTW_RECEIVING_FRAME:
        read_frame(c);
        return;
    case CTW_RECEIVING_BODY:
        c->receiving = NULL;
        expect(c, CTW_RECEIVING_FRAME, frame_bytes(c));
        e->n_trace = trace_bytes(e);
        if (e->n_trace > 0) {
            ctw_call_add(e);
            return;
        }
        ctw_call_free(e);
        ctw_connection_drop(c, "it does not speak nng's protocol");
    }
}

static void on_received(void *arg)
{
    struct ctw_connection *c = arg;
    struct ctw_server *s = c->server;
    char why[96];
    pthread_mutex_lock(&s->lock);
    int rc = nng_aio_result(c->rx);
    c->rx_busy = false;
    if (rc != 0) {
        snprintf(why, sizeof(why), "it has sent no byte of its request for %d ms (%zu arrived)",
                 s->options.receive_ms, c->got);
        bool stalled = rc == NNG_ETIMEDOUT && c->state != CTW_RECEIVING_HELLO;
        ctw_connection_drop(c, stalled ? why : NULL);
    }
    if (c->closing) {
        if (c->receiving != NULL)
            ctw_call_free(c->receiving);
        c->receiving = NULL;
        ctw_server_look_at(s, 0);
    } else {
        c->got += nng_aio_count(c->rx);
        if (c->got == c->want)
            finish_receiving(c);
        ctw_connection_receive(c);
    }
    ctw_connections_resume(s);
    pthread_mutex_unlock(&s->lock);
}

/* ---- opening ---- */

bool ctw_connection_start(struct ctw_connection *c)
{
    if (nng_aio_alloc(&c->rx, on_received, c) != 0 || nng_aio_alloc(&c->tx, on_sent, c) != 0)
        return false;
    ctw_calls_init(&c->pending);
    expect(c, CTW_RECEIVING_HELLO, CTW_HELLO_BYTES);
    start_sending(c);
    start_receiving(c);
    return true;
}
