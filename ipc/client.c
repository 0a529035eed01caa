#include "ipc/client.h"

#include <errno.h>
#include <nng/nng.h>
#include <nng/protocol/reqrep0/req.h>
#include <string.h>
#include <sys/stat.h>

#include "base/mem.h"
#include "ipc/endpoint.h"
#include "ipc/limits.h"

struct ctw_client {
    nng_socket socket;
    bool open;
    struct ctw_endpoint endpoint;
    nng_msg *msg; /* the last reply; spans point into it */
    uint64_t next_id;
};

static enum ctw_status check_socket_file(const struct ctw_endpoint *e, struct ctw_err *err)
{
    struct stat st;
    if (e->path == NULL)
        return CTW_OK;
    if (lstat(e->path, &st) != 0)
        return ctw_fail(err, CTW_ENOTFOUND, "no worker at %s: %s", e->url, strerror(errno));
    if (!S_ISSOCK(st.st_mode))
        return ctw_fail(err, CTW_EINVAL, "%s is not a socket", e->path);
    return CTW_OK;
}

enum ctw_status ctw_client_open(struct ctw_client **out, const char *url, struct ctw_err *err)
{
    struct ctw_client *c = ctw_calloc(1, sizeof(*c));
    if (c == NULL)
        return ctw_fail(err, CTW_ENOMEM, "client: out of memory");
    enum ctw_status st = ctw_endpoint_parse(&c->endpoint, url, err);
    if (st == CTW_OK)
        st = check_socket_file(&c->endpoint, err);
    if (st != CTW_OK)
        goto fail;
    int rc = nng_req0_open(&c->socket);
    c->open = rc == 0;
    if (rc == 0)
        rc = nng_socket_set_ms(c->socket, NNG_OPT_REQ_RESENDTIME, NNG_DURATION_INFINITE);
    if (rc == 0)
        rc = nng_socket_set_size(c->socket, NNG_OPT_RECVMAXSZ,
                                 CTW_IPC_MESSAGE_BYTES + CTW_IPC_HEADER_BYTES);
    if (rc == 0)
        rc = nng_socket_set_ms(c->socket, NNG_OPT_RECONNMINT, 50);
    if (rc == 0)
        rc = nng_socket_set_ms(c->socket, NNG_OPT_RECONNMAXT, 1000);
    if (rc == 0)
        rc = nng_dial(c->socket, c->endpoint.url, NULL, NNG_FLAG_NONBLOCK);
    if (rc != 0) {
        st = ctw_fail(err, CTW_EIO, "%s: %s", url, nng_strerror(rc));
        goto fail;
    }
    c->next_id = 1;
    *out = c;
    return CTW_OK;
fail:
    ctw_client_close(c);
    return st;
}

void ctw_client_close(struct ctw_client *c)
{
    if (c == NULL)
        return;
    if (c->msg != NULL)
        nng_msg_free(c->msg);
    if (c->open)
        nng_close(c->socket);
    ctw_free(c);
}

enum listener { NOBODY, CLOSES, GREETS };

/* For functions that tests/tsan_suppressions.txt names. */
#define NEVER_INLINE __attribute__((noinline))

/* Finds out how the listener treats a new connection. A worker without a free place closes the
 * connection without a word. nng's own socket would dial again and again, and not report this. */
static NEVER_INLINE enum listener probe(const struct ctw_client *c)
{
    enum { PROBE_MS = 500 };
    enum listener found = NOBODY;
    nng_stream_dialer *dialer = NULL;
    nng_stream *stream = NULL;
    nng_aio *aio = NULL;
    unsigned char hello[8];
    nng_iov iov = {.iov_buf = hello, .iov_len = sizeof(hello)};
    int rc = nng_aio_alloc(&aio, NULL, NULL);
    if (rc == 0)
        rc = nng_stream_dialer_alloc(&dialer, c->endpoint.url);
    if (rc == 0) {
        nng_aio_set_timeout(aio, PROBE_MS);
        nng_stream_dialer_dial(dialer, aio);
        nng_aio_wait(aio);
        rc = nng_aio_result(aio);
    }
    if (rc == 0) {
        stream = nng_aio_get_output(aio, 0);
        (void)nng_aio_set_iov(aio, 1, &iov);
        nng_stream_recv(stream, aio);
        nng_aio_wait(aio);
        rc = nng_aio_result(aio);
        if (rc == NNG_ECONNSHUT || rc == NNG_ECONNRESET || rc == NNG_ECLOSED)
            found = CLOSES;
        else if (rc == 0)
            found = GREETS;
    }
    nng_stream_free(stream);
    nng_stream_dialer_free(dialer);
    nng_aio_free(aio);
    return found;
}

static NEVER_INLINE enum ctw_status call_failed(const struct ctw_client *c, int rc, int timeout_ms,
                                                struct ctw_err *err)
{
    enum listener found = rc == NNG_ETIMEDOUT || rc == NNG_ECONNRESET ? probe(c) : NOBODY;
    if (found == CLOSES)
        return ctw_fail(
            err, CTW_EBUSY,
            "%s: the worker closes new connections at once: all its connections are in "
            "use, or it belongs to another user; its log says which, and who holds them",
            c->endpoint.url);
    if (found == GREETS && rc == NNG_ECONNRESET) /* the worker runs, and has seen the token */
        return ctw_fail(err, CTW_EBUSY,
                        "%s: the worker closes connections without an answer: too many of its "
                        "connections are in use; its log says who holds them",
                        c->endpoint.url);
    if (rc == NNG_ETIMEDOUT) /* there was no connection, or no reply */
        return ctw_fail(err, CTW_EIO,
                        "%s: no answer within %d ms: check that a ctworker runs there",
                        c->endpoint.url, timeout_ms);
    return ctw_fail(err, CTW_EIO, "%s: %s", c->endpoint.url, nng_strerror(rc));
}

static enum ctw_status send_request(struct ctw_client *c, const struct ctw_request *request,
                                    int timeout_ms, struct ctw_err *err)
{
    struct ctw_writer w = {0};
    enum ctw_status st = ctw_request_encode(request, &w, err);
    if (st != CTW_OK)
        goto done;
    int rc = nng_socket_set_ms(c->socket, NNG_OPT_SENDTIMEO, timeout_ms);
    if (rc == 0)
        rc = nng_socket_set_ms(c->socket, NNG_OPT_RECVTIMEO, timeout_ms);
    if (rc == 0)
        rc = nng_send(c->socket, w.data, w.n, 0);
    if (rc != 0)
        st = call_failed(c, rc, timeout_ms, err);
done:
    ctw_writer_fini(&w);
    return st;
}

enum ctw_status ctw_client_call(struct ctw_client *c, struct ctw_request *request, int timeout_ms,
                                struct ctw_reply *reply, struct ctw_err *err)
{
    memset(reply, 0, sizeof(*reply));
    request->id = c->next_id++;
    enum ctw_status st = send_request(c, request, timeout_ms, err);
    if (st != CTW_OK)
        return st;
    if (c->msg != NULL)
        nng_msg_free(c->msg);
    c->msg = NULL;
    int rc = nng_recvmsg(c->socket, &c->msg, 0);
    if (rc != 0)
        return call_failed(c, rc, timeout_ms, err);
    st = ctw_reply_decode(reply, request->op, nng_msg_body(c->msg), nng_msg_len(c->msg), err);
    if (st == CTW_OK && reply->id != request->id)
        st = ctw_fail(err, CTW_EFORMAT, "the reply belongs to another request");
    return st == CTW_OK ? st : ctw_fail_prefix(err, "%s", c->endpoint.url);
}

enum ctw_status ctw_reply_status(const struct ctw_reply *reply, struct ctw_err *err)
{
    if (reply->ok)
        return CTW_OK;
    for (int s = 1; s < CTW_N_STATUS; s++) {
        if (ctw_span_is(reply->error.code, ctw_status_name((enum ctw_status)s)))
            return ctw_fail(err, (enum ctw_status)s, "%.*s", (int)reply->error.message.n,
                            reply->error.message.data);
    }
    return ctw_fail(err, CTW_EIO, "%.*s: %.*s", (int)reply->error.code.n, reply->error.code.data,
                    (int)reply->error.message.n, reply->error.message.data);
}
