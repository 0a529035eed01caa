/*
 * The requests and replies of docs/PROTOCOL.md as C structs. Each operation has one file in
 * ipc/messages/ with the tables of its request and reply, used for both encoding and decoding, and
 * one line in ipc/messages.c. Spans and lists of a decoded message are valid until the message is
 * closed.
 *
 * Member names are the keys on the wire. `has` tells which optional members are present. A bool in
 * it stands for one member or for several, as the table of the message states.
 */
#ifndef CTW_IPC_MESSAGES_H
#define CTW_IPC_MESSAGES_H

#include "ipc/codec.h"

enum ctw_op {
    CTW_OP_INFO,
    CTW_OP_HEALTH,
    CTW_OP_SUBMIT,
    CTW_OP_SEAL,
    CTW_OP_POLL,
    CTW_OP_FETCH,
    CTW_OP_CANCEL,
    CTW_OP_RELEASE,
    CTW_OP_LOAD,
    CTW_OP_UNLOAD,
    CTW_OP_DRAIN,
    CTW_OP_SHUTDOWN,
    CTW_N_OPS
};

struct ctw_error_map {
    struct {
        bool retry_ms, item, layer;
    } has;
    struct ctw_span code, message;
    uint64_t retry_ms, item, layer;
};

struct ctw_empty {
    char unused;
};

/* ---- requests ---- */

struct ctw_orphan_map {
    struct ctw_span policy;
    uint64_t ttl_s;
};

struct ctw_head_map {
    struct {
        bool model, max_length, columns, orphan, prefix_token, context_length, window, stride,
            first, rows, new, tail, bos, bos_mode, reference, layers, matrices, vocabulary;
    } has;
    struct ctw_span kind, model;
    uint64_t max_length;
    struct ctw_list columns; /* of struct ctw_span */
    struct ctw_orphan_map orphan;
    uint64_t prefix_token, context_length;
    uint64_t window, stride, first, rows;
    bool new, tail;
    uint64_t bos;
    struct ctw_span bos_mode;
    struct ctw_span reference;
    bool layers, matrices;
    uint64_t vocabulary;
};

struct ctw_items_map {
    struct {
        bool n_context, n_continuation, n_tokens;
    } has;
    struct ctw_span tokens, n_context, n_continuation, n_tokens; /* int32, little-endian */
};

struct ctw_submit {
    struct {
        bool head;
    } has;
    struct ctw_span job;
    uint64_t part;
    struct ctw_head_map head;
    struct ctw_items_map items;
};

struct ctw_seal {
    struct ctw_span job;
    uint64_t parts;
};

struct ctw_poll {
    struct {
        bool wait_ms, seen, owner;
    } has;
    struct ctw_span job;
    uint64_t wait_ms, seen;
    struct ctw_span owner; /* an administrator's request: owner of the job; "": not given */
};

struct ctw_fetch {
    struct {
        bool max_bytes, owner;
    } has;
    struct ctw_span job;
    uint64_t first, max_bytes;
    struct ctw_span owner; /* as in poll */
};

struct ctw_job_request { /* cancel, release */
    struct {
        bool owner;
    } has;
    struct ctw_span job;
    struct ctw_span owner; /* as in poll */
};

struct ctw_load {
    struct {
        bool model;
    } has;
    struct ctw_span path, model;
};

struct ctw_unload {
    struct ctw_span model;
};

struct ctw_mode { /* drain, shutdown */
    struct ctw_span mode;
};

/* ---- replies ---- */

struct ctw_libraries_map {
    struct ctw_span nng, msgpack;
};

struct ctw_weights_map {
    struct {
        bool files;
    } has;
    uint64_t kept, gathered, hosted, streamed;
    struct ctw_span files;
};

struct ctw_model_map {
    struct {
        bool ready, more, weights, own_length;
    } has;
    struct ctw_span name, path, state, message;
    struct ctw_span architecture, model_type, identity, numerics;
    struct ctw_span backend, variant, device;
    uint64_t threads;
    struct ctw_span dtype, activations;
    uint64_t max_length, vocab, params;
    double weight_bits;
    uint64_t chunk_tokens, pass_tokens, memory_planned, memory_limit;
    struct ctw_span reason, products;
    uint64_t fit_length;
    struct ctw_span placement, weights_note;
    uint64_t weights_bytes, weights_memory, weights_streamed;
    struct ctw_span activations_mode;
    struct ctw_weights_map weights;
    uint64_t own_length;
};

struct ctw_device_map {
    uint64_t device;
    struct ctw_span backend, name, pci, uuid;
    uint64_t threads, memory_total, memory_free, memory_used, weights, passes_planned;
    struct ctw_span state, message, model;
    uint64_t layer, layers;
    double weights_read;
    uint64_t tokens_done;
    double tokens_per_s;
};

struct ctw_job_map {
    struct {
        bool progress, owner;
    } has;
    struct ctw_span job, model, kind, state;
    uint64_t items_done, items;
    uint64_t tokens_done, tokens, tokens_computed;
    double seconds_left;
    struct ctw_span owner;
};

struct ctw_limits_map {
    uint64_t message_bytes, part_bytes, fetch_bytes, jobs, job_items, queue_bytes, ttl_s, wait_ms;
    uint64_t request_bytes, connections, unanswered, waiting, requests_per_s, unhandled_bytes;
};

struct ctw_store_map {
    struct ctw_span path;
    uint64_t entries, bytes, limit, hits, kept, lost;
};

struct ctw_info_reply {
    struct {
        bool insecure, store, devices;
    } has;
    struct ctw_span version;
    uint64_t protocol;
    struct ctw_span boot;
    uint64_t pid;
    struct ctw_span state, message;
    double uptime_s;
    struct ctw_libraries_map libraries;
    struct ctw_list models; /* of struct ctw_model_map */
    struct ctw_list jobs;   /* of struct ctw_job_map */
    struct ctw_limits_map limits;
    bool insecure;
    struct ctw_store_map store;
    struct ctw_list devices; /* of struct ctw_device_map */
};

struct ctw_health_reply {
    struct ctw_span state, message, boot;
    uint64_t jobs, stalled_ms;
};

struct ctw_submit_reply {
    struct ctw_span state;
    uint64_t parts, items;
    bool repeated;
};

struct ctw_seal_reply {
    struct ctw_span state;
    uint64_t items;
};

struct ctw_progress_map {
    uint64_t tokens_done, tokens, tokens_computed;
    double tokens_per_s, seconds_left;
    uint64_t pass, passes, layer, layers;
};

struct ctw_poll_reply {
    struct {
        bool error;
    } has;
    struct ctw_span state;
    uint64_t items_done, items;
    struct ctw_progress_map progress;
    struct ctw_error_map error;
    uint64_t again_ms;
};

struct ctw_result_map {
    struct {
        bool logprob, greedy, windows, divergence, layers, matrices;
    } has;
    struct ctw_span item, sum, count, is_greedy, truncated, logprob, greedy;
    struct ctw_span windows, window_sum, window_count;
    struct ctw_span ref_logprob, ref_greedy, ref_top, kl, kl_reverse, tv, overlap5;
    struct ctw_span window_tokens, layer_reference, layer_error, layer_cosine, layer_relative;
    struct ctw_span layer_channel, layer_channel_error;
    struct ctw_span matrix_kl;
};

struct ctw_fetch_reply {
    struct {
        bool reference, layers, matrices;
    } has;
    struct ctw_span state;
    uint64_t first, n;
    struct ctw_result_map result;
    struct ctw_span numerics, identity;
    struct ctw_span ref_numerics, ref_identity;
    uint64_t layers;
    struct ctw_list matrices; /* of struct ctw_span */
};

struct ctw_state_reply { /* cancel, release */
    struct ctw_span state;
};

struct ctw_model_reply { /* load, unload */
    struct ctw_span model, state;
};

struct ctw_drain_reply { /* drain, shutdown */
    struct ctw_span state;
    uint64_t jobs;
};

/* ---- tables ---- */

struct ctw_op_messages {
    const char *op;
    const struct ctw_schema *request, *reply;
};

/* The operation's name and tables. */
const struct ctw_op_messages *ctw_op_messages(enum ctw_op op);

extern const struct ctw_op_messages ctw_op_info, ctw_op_health, ctw_op_submit, ctw_op_seal,
    ctw_op_poll, ctw_op_fetch, ctw_op_cancel, ctw_op_release, ctw_op_load, ctw_op_unload,
    ctw_op_drain, ctw_op_shutdown;
extern const struct ctw_schema ctw_error_schema; /* ipc/messages/error.c */

/* ---- whole messages ---- */

struct ctw_request {
    uint64_t id;
    enum ctw_op op;
    struct ctw_span token; /* from the envelope; empty: no token */
    union {
        struct ctw_empty empty; /* info, health */
        struct ctw_submit submit;
        struct ctw_seal seal;
        struct ctw_poll poll;
        struct ctw_fetch fetch;
        struct ctw_job_request job; /* cancel, release */
        struct ctw_load load;
        struct ctw_unload unload;
        struct ctw_mode mode; /* drain, shutdown */
    } body;
    struct ctw_reader reader;
};

struct ctw_reply {
    uint64_t id;
    enum ctw_op op;
    bool ok;
    struct ctw_error_map error; /* if not ok */
    union {
        struct ctw_info_reply info;
        struct ctw_health_reply health;
        struct ctw_submit_reply submit;
        struct ctw_seal_reply seal;
        struct ctw_poll_reply poll;
        struct ctw_fetch_reply fetch;
        struct ctw_state_reply state; /* cancel, release */
        struct ctw_model_reply model; /* load, unload */
        struct ctw_drain_reply drain; /* drain, shutdown */
    } body;
    struct ctw_reader reader; /* of a decoded reply */
    void *blocks;             /* from ctw_reply_alloc() */
};

/*
 * `data` must outlive *out. On failure (CTW_EFORMAT, CTW_ENOMEM, or CTW_EUNSUP for an unknown
 * version or operation) out->id is the request's id, or 0 if the id could not be read. Close *out
 * in either case.
 */
enum ctw_status ctw_request_decode(struct ctw_request *out, const void *data, size_t bytes,
                                   struct ctw_err *err) CTW_MUST_CHECK;
void ctw_request_close(struct ctw_request *request);
enum ctw_status ctw_request_encode(const struct ctw_request *request, struct ctw_writer *w,
                                   struct ctw_err *err) CTW_MUST_CHECK;

enum ctw_status ctw_reply_encode(const struct ctw_reply *reply, struct ctw_writer *w,
                                 struct ctw_err *err) CTW_MUST_CHECK;
enum ctw_status ctw_reply_decode(struct ctw_reply *out, enum ctw_op op, const void *data,
                                 size_t bytes, struct ctw_err *err) CTW_MUST_CHECK;
void ctw_reply_close(struct ctw_reply *reply);

/* Zeroed memory that ctw_reply_close() frees; NULL: out of memory. */
void *ctw_reply_alloc(struct ctw_reply *reply, size_t bytes) CTW_MUST_CHECK;
/* Sets *out to a copy of the text in memory from ctw_reply_alloc(); false: out of memory. */
bool ctw_reply_copy(struct ctw_reply *reply, const char *text, struct ctw_span *out);
/* Turns the reply into an error reply; copies the message. */
void ctw_reply_fail(struct ctw_reply *reply, const struct ctw_err *err);

/* For --version: the versions that the libraries report at run time. */
const char *ctw_ipc_nng_version(void);
const char *ctw_ipc_msgpack_version(void);

#endif
