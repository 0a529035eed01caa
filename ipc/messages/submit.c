#include "ipc/messages.h"

static const struct ctw_field orphan_fields[] = {
    CTW_FIELD(STR, struct ctw_orphan_map, policy),
    CTW_FIELD(UINT, struct ctw_orphan_map, ttl_s),
};
static const struct ctw_schema orphan_schema =
    CTW_SCHEMA("submit.head.orphan", struct ctw_orphan_map, orphan_fields);

/* worker/service/jobs/job_head.c checks which keys each kind of job requires and accepts. */
static const struct ctw_field head_fields[] = {
    CTW_FIELD(STR, struct ctw_head_map, kind),
    CTW_FIELD_IF(model, STR, struct ctw_head_map, model),
    CTW_FIELD_IF(max_length, UINT, struct ctw_head_map, max_length),
    CTW_FIELD_IF(columns, STRS, struct ctw_head_map, columns),
    CTW_FIELD_OF_IF(orphan, MAP, struct ctw_head_map, orphan, &orphan_schema),
    CTW_FIELD_IF(prefix_token, UINT, struct ctw_head_map, prefix_token),
    CTW_FIELD_IF(context_length, UINT, struct ctw_head_map, context_length),
    CTW_FIELD_IF(window, UINT, struct ctw_head_map, window),
    CTW_FIELD_IF(stride, UINT, struct ctw_head_map, stride),
    CTW_FIELD_IF(first, UINT, struct ctw_head_map, first),
    CTW_FIELD_IF(rows, UINT, struct ctw_head_map, rows),
    CTW_FIELD_IF(new, BOOL, struct ctw_head_map, new),
    CTW_FIELD_IF(tail, BOOL, struct ctw_head_map, tail),
    CTW_FIELD_IF(bos, UINT, struct ctw_head_map, bos),
    CTW_FIELD_IF(bos_mode, STR, struct ctw_head_map, bos_mode),
    CTW_FIELD_IF(reference, STR, struct ctw_head_map, reference),
    CTW_FIELD_IF(layers, BOOL, struct ctw_head_map, layers),
    CTW_FIELD_IF(matrices, BOOL, struct ctw_head_map, matrices),
    CTW_FIELD_IF(vocabulary, UINT, struct ctw_head_map, vocabulary),
};
static const struct ctw_schema head_schema =
    CTW_SCHEMA("submit.head", struct ctw_head_map, head_fields);

static const struct ctw_field items_fields[] = {
    CTW_FIELD(BIN, struct ctw_items_map, tokens),
    CTW_FIELD_IF(n_context, BIN, struct ctw_items_map, n_context),
    CTW_FIELD_IF(n_continuation, BIN, struct ctw_items_map, n_continuation),
    CTW_FIELD_IF(n_tokens, BIN, struct ctw_items_map, n_tokens),
};
static const struct ctw_schema items_schema =
    CTW_SCHEMA("submit.items", struct ctw_items_map, items_fields);

static const struct ctw_field fields[] = {
    CTW_FIELD(BIN, struct ctw_submit, job),
    CTW_FIELD(UINT, struct ctw_submit, part),
    CTW_FIELD_OF_IF(head, MAP, struct ctw_submit, head, &head_schema),
    CTW_FIELD_OF(MAP, struct ctw_submit, items, &items_schema),
};
static const struct ctw_schema request = CTW_SCHEMA("submit", struct ctw_submit, fields);

static const struct ctw_field reply_fields[] = {
    CTW_FIELD(STR, struct ctw_submit_reply, state),
    CTW_FIELD(UINT, struct ctw_submit_reply, parts),
    CTW_FIELD(UINT, struct ctw_submit_reply, items),
    CTW_FIELD(BOOL, struct ctw_submit_reply, repeated),
};
static const struct ctw_schema reply =
    CTW_SCHEMA("submit reply", struct ctw_submit_reply, reply_fields);

const struct ctw_op_messages ctw_op_submit = {"submit", &request, &reply};
