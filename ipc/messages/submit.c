#include "ipc/messages.h"

static const struct ctw_field orphan_fields[] = {
    CTW_FIELD(STR, struct ctw_orphan_map, policy, REQUIRED),
    CTW_FIELD(UINT, struct ctw_orphan_map, ttl_s, REQUIRED),
};
static const struct ctw_schema orphan_schema =
    CTW_SCHEMA("submit.head.orphan", struct ctw_orphan_map, orphan_fields);

/* worker/service/jobs/job_head.c checks which keys each kind of job requires and accepts. */
static const struct ctw_field head_fields[] = {
    CTW_FIELD(STR, struct ctw_head_map, kind, REQUIRED),
    CTW_FIELD(STR, struct ctw_head_map, model, OPTIONAL),
    CTW_FIELD(UINT, struct ctw_head_map, max_length, OPTIONAL),
    CTW_FIELD(STRS, struct ctw_head_map, columns, OPTIONAL),
    CTW_FIELD_OF(MAP, struct ctw_head_map, orphan, OPTIONAL, &orphan_schema),
    CTW_FIELD(UINT, struct ctw_head_map, prefix_token, OPTIONAL),
    CTW_FIELD(UINT, struct ctw_head_map, context_length, OPTIONAL),
    CTW_FIELD(UINT, struct ctw_head_map, window, OPTIONAL),
    CTW_FIELD(UINT, struct ctw_head_map, stride, OPTIONAL),
    CTW_FIELD(UINT, struct ctw_head_map, first, OPTIONAL),
    CTW_FIELD(UINT, struct ctw_head_map, rows, OPTIONAL),
    CTW_FIELD(BOOL, struct ctw_head_map, new, OPTIONAL),
    CTW_FIELD(BOOL, struct ctw_head_map, tail, OPTIONAL),
    CTW_FIELD(UINT, struct ctw_head_map, bos, OPTIONAL),
    CTW_FIELD(STR, struct ctw_head_map, bos_mode, OPTIONAL),
    CTW_FIELD(STR, struct ctw_head_map, reference, OPTIONAL),
    CTW_FIELD(BOOL, struct ctw_head_map, layers, OPTIONAL),
    CTW_FIELD(BOOL, struct ctw_head_map, matrices, OPTIONAL),
    CTW_FIELD(UINT, struct ctw_head_map, vocabulary, OPTIONAL),
};
static const struct ctw_schema head_schema =
    CTW_SCHEMA("submit.head", struct ctw_head_map, head_fields);

static const struct ctw_field items_fields[] = {
    CTW_FIELD(BIN, struct ctw_items_map, tokens, REQUIRED),
    CTW_FIELD(BIN, struct ctw_items_map, n_context, OPTIONAL),
    CTW_FIELD(BIN, struct ctw_items_map, n_continuation, OPTIONAL),
    CTW_FIELD(BIN, struct ctw_items_map, n_tokens, OPTIONAL),
};
static const struct ctw_schema items_schema =
    CTW_SCHEMA("submit.items", struct ctw_items_map, items_fields);

static const struct ctw_field fields[] = {
    CTW_FIELD(BIN, struct ctw_submit, job, REQUIRED),
    CTW_FIELD(UINT, struct ctw_submit, part, REQUIRED),
    CTW_FIELD_OF(MAP, struct ctw_submit, head, OPTIONAL, &head_schema),
    CTW_FIELD_OF(MAP, struct ctw_submit, items, REQUIRED, &items_schema),
};
static const struct ctw_schema request = CTW_SCHEMA("submit", struct ctw_submit, fields);

static const struct ctw_field reply_fields[] = {
    CTW_FIELD(STR, struct ctw_submit_reply, state, REQUIRED),
    CTW_FIELD(UINT, struct ctw_submit_reply, parts, REQUIRED),
    CTW_FIELD(UINT, struct ctw_submit_reply, items, REQUIRED),
    CTW_FIELD(BOOL, struct ctw_submit_reply, repeated, REQUIRED),
};
static const struct ctw_schema reply =
    CTW_SCHEMA("submit reply", struct ctw_submit_reply, reply_fields);

const struct ctw_op_messages ctw_op_submit = {"submit", &request, &reply};
