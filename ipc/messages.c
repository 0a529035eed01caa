#include "ipc/messages.h"

#include <inttypes.h>
#include <stdalign.h>
#include <string.h>

#include "base/mem.h"
#include "ipc/limits.h"

static const char *const request_envelope[] = {"v", "op", "id", "token", NULL};
static const char *const reply_envelope[] = {"v", "id", "ok", NULL};

/* One line per operation. */
static const struct ctw_op_messages *const ops[CTW_N_OPS] = {
    [CTW_OP_INFO] = &ctw_op_info,     [CTW_OP_HEALTH] = &ctw_op_health,
    [CTW_OP_SUBMIT] = &ctw_op_submit, [CTW_OP_SEAL] = &ctw_op_seal,
    [CTW_OP_POLL] = &ctw_op_poll,     [CTW_OP_FETCH] = &ctw_op_fetch,
    [CTW_OP_CANCEL] = &ctw_op_cancel, [CTW_OP_RELEASE] = &ctw_op_release,
    [CTW_OP_LOAD] = &ctw_op_load,     [CTW_OP_UNLOAD] = &ctw_op_unload,
    [CTW_OP_DRAIN] = &ctw_op_drain,   [CTW_OP_SHUTDOWN] = &ctw_op_shutdown,
};

const struct ctw_op_messages *ctw_op_messages(enum ctw_op op)
{
    return ops[op];
}

/* ---- requests ---- */

static enum ctw_status unknown_op(struct ctw_span op, struct ctw_err *err)
{
    char known[256] = "";
    for (int i = 0; i < CTW_N_OPS; i++) {
        strcat(known, i == 0 ? "" : ", ");
        strcat(known, ops[i]->op);
    }
    return ctw_fail(err, CTW_EUNSUP, "unknown operation \"%.*s\"; this worker has %s",
                    (int)(op.n < 48 ? op.n : 48), op.data, known);
}

static enum ctw_status read_envelope(struct ctw_request *out, struct ctw_err *err)
{
    uint64_t version;
    struct ctw_span op;
    /* First, so that an unauthorised client learns nothing about other errors in the request. */
    bool has_token = ctw_reader_has(&out->reader, "token");
    if (has_token && !ctw_reader_str(&out->reader, "token", &out->token))
        return ctw_fail(err, CTW_EFORMAT, "the request's \"token\" is not a str, or occurs twice");
    if (!ctw_reader_uint(&out->reader, "id", &out->id))
        return ctw_fail(err, CTW_EFORMAT, "the request has no \"id\" (an unsigned integer, once)");
    if (!ctw_reader_uint(&out->reader, "v", &version))
        return ctw_fail(err, CTW_EFORMAT, "the request has no \"v\" (an unsigned integer, once)");
    if (version != CTW_PROTOCOL_VERSION)
        return ctw_fail(err, CTW_EUNSUP,
                        "protocol version %" PRIu64 " is not supported; this worker speaks %d",
                        version, CTW_PROTOCOL_VERSION);
    if (!ctw_reader_str(&out->reader, "op", &op))
        return ctw_fail(err, CTW_EFORMAT, "the request has no \"op\" (a str, once)");
    for (int i = 0; i < CTW_N_OPS; i++) {
        if (ctw_span_is(op, ops[i]->op)) {
            out->op = (enum ctw_op)i;
            return CTW_OK;
        }
    }
    return unknown_op(op, err);
}

enum ctw_status ctw_request_decode(struct ctw_request *out, const void *data, size_t bytes,
                                   struct ctw_err *err)
{
    memset(out, 0, sizeof(*out));
    enum ctw_status st = ctw_reader_open(&out->reader, data, bytes, err);
    if (st != CTW_OK)
        return st;
    st = read_envelope(out, err);
    if (st != CTW_OK)
        return st;
    return ctw_reader_read(&out->reader, ops[out->op]->request, request_envelope, false, &out->body,
                           err);
}

void ctw_request_close(struct ctw_request *request)
{
    ctw_reader_close(&request->reader);
}

static enum ctw_status written(const struct ctw_writer *w, size_t most, struct ctw_err *err)
{
    if (w->failed)
        return ctw_fail(err, CTW_ENOMEM, "message: out of memory");
    if (w->n > most)
        return ctw_fail(err, CTW_EINVAL, "the message has %zu bytes, at most %zu are allowed", w->n,
                        most);
    return CTW_OK;
}

enum ctw_status ctw_request_encode(const struct ctw_request *request, struct ctw_writer *w,
                                   struct ctw_err *err)
{
    const struct ctw_op_messages *m = ops[request->op];
    bool has_token = request->token.n > 0;
    ctw_write_map(w, 3 + has_token + ctw_count_pairs(m->request, &request->body));
    ctw_write_key_uint(w, "v", CTW_PROTOCOL_VERSION);
    ctw_write_key_str(w, "op", ctw_span_of(m->op));
    ctw_write_key_uint(w, "id", request->id);
    if (has_token)
        ctw_write_key_str(w, "token", request->token);
    ctw_write_struct(w, m->request, &request->body);
    return written(w, CTW_IPC_REQUEST_BYTES, err);
}

/* ---- replies ---- */

struct failed_reply {
    struct ctw_error_map error;
};

static const struct ctw_field failed_fields[] = {
    CTW_FIELD_OF(MAP, struct failed_reply, error, &ctw_error_schema),
};
static const struct ctw_schema failed_schema =
    CTW_SCHEMA("error reply", struct failed_reply, failed_fields);

enum ctw_status ctw_reply_encode(const struct ctw_reply *reply, struct ctw_writer *w,
                                 struct ctw_err *err)
{
    struct failed_reply failed = {.error = reply->error};
    const struct ctw_schema *schema = reply->ok ? ops[reply->op]->reply : &failed_schema;
    const void *body = reply->ok ? (const void *)&reply->body : &failed;
    ctw_write_map(w, 3 + ctw_count_pairs(schema, body));
    ctw_write_key_uint(w, "v", CTW_PROTOCOL_VERSION);
    ctw_write_key_uint(w, "id", reply->id);
    ctw_write_key_bool(w, "ok", reply->ok);
    ctw_write_struct(w, schema, body);
    return written(w, CTW_IPC_MESSAGE_BYTES, err);
}

enum ctw_status ctw_reply_decode(struct ctw_reply *out, enum ctw_op op, const void *data,
                                 size_t bytes, struct ctw_err *err)
{
    memset(out, 0, sizeof(*out));
    out->op = op;
    enum ctw_status st = ctw_reader_open(&out->reader, data, bytes, err);
    if (st != CTW_OK)
        return st;
    if (!ctw_reader_uint(&out->reader, "id", &out->id) ||
        !ctw_reader_bool(&out->reader, "ok", &out->ok))
        return ctw_fail(err, CTW_EFORMAT, "the reply has no \"id\" or no \"ok\"");
    if (out->ok)
        return ctw_reader_read(&out->reader, ops[op]->reply, reply_envelope, true, &out->body, err);
    struct failed_reply failed;
    st = ctw_reader_read(&out->reader, &failed_schema, reply_envelope, true, &failed, err);
    out->error = failed.error;
    return st;
}

/* Header of a block in the list of blocks; the memory after it is aligned for any type. */
union block {
    union block *next;
    max_align_t align;
};

void *ctw_reply_alloc(struct ctw_reply *reply, size_t bytes)
{
    size_t total;
    if (!ctw_size_add(bytes, sizeof(union block), &total))
        return NULL;
    union block *b = ctw_calloc(total, 1);
    if (b == NULL)
        return NULL;
    b->next = reply->blocks;
    reply->blocks = b;
    return b + 1;
}

void ctw_reply_close(struct ctw_reply *reply)
{
    ctw_reader_close(&reply->reader);
    for (union block *b = reply->blocks, *next; b != NULL; b = next) {
        next = b->next;
        ctw_free(b);
    }
    reply->blocks = NULL;
}

bool ctw_reply_copy(struct ctw_reply *reply, const char *text, struct ctw_span *out)
{
    size_t n = text == NULL ? 0 : strlen(text);
    char *copy = ctw_reply_alloc(reply, n + 1);
    *out = (struct ctw_span){0};
    if (copy == NULL)
        return false;
    if (n > 0)
        memcpy(copy, text, n);
    ctw_text_clean(copy, n);
    *out = (struct ctw_span){.data = copy, .n = n};
    return true;
}

void ctw_reply_fail(struct ctw_reply *reply, const struct ctw_err *err)
{
    reply->ok = false;
    reply->error.code = ctw_span_of(ctw_status_name(err->status));
    if (!ctw_reply_copy(reply, err->msg, &reply->error.message))
        reply->error.message = ctw_span_of("out of memory");
}
