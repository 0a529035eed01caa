#include "ipc/messages.h"

static const struct ctw_field fields[] = {
    CTW_FIELD(BIN, struct ctw_poll, job, REQUIRED),
    CTW_FIELD(UINT, struct ctw_poll, wait_ms, OPTIONAL),
    CTW_FIELD(UINT, struct ctw_poll, seen, OPTIONAL),
    CTW_FIELD(STR, struct ctw_poll, owner, OPTIONAL),
};
static const struct ctw_schema request = CTW_SCHEMA("poll", struct ctw_poll, fields);

static const struct ctw_field progress_fields[] = {
    CTW_FIELD(UINT, struct ctw_progress_map, tokens_done, REQUIRED),
    CTW_FIELD(UINT, struct ctw_progress_map, tokens, REQUIRED),
    CTW_FIELD(FLOAT, struct ctw_progress_map, tokens_per_s, REQUIRED),
    CTW_FIELD(FLOAT, struct ctw_progress_map, seconds_left, REQUIRED),
    CTW_FIELD(UINT, struct ctw_progress_map, pass, REQUIRED),
    CTW_FIELD(UINT, struct ctw_progress_map, passes, REQUIRED),
    CTW_FIELD(UINT, struct ctw_progress_map, layer, REQUIRED),
    CTW_FIELD(UINT, struct ctw_progress_map, layers, REQUIRED),
};
static const struct ctw_schema progress_schema =
    CTW_SCHEMA("poll reply.progress", struct ctw_progress_map, progress_fields);

static const struct ctw_field reply_fields[] = {
    CTW_FIELD(STR, struct ctw_poll_reply, state, REQUIRED),
    CTW_FIELD(UINT, struct ctw_poll_reply, items_done, REQUIRED),
    CTW_FIELD(UINT, struct ctw_poll_reply, items, REQUIRED),
    CTW_FIELD_OF(MAP, struct ctw_poll_reply, progress, REQUIRED, &progress_schema),
    CTW_FIELD_OF(MAP, struct ctw_poll_reply, error, OPTIONAL, &ctw_error_schema),
    CTW_FIELD(UINT, struct ctw_poll_reply, again_ms, REQUIRED),
};
static const struct ctw_schema reply =
    CTW_SCHEMA("poll reply", struct ctw_poll_reply, reply_fields);

const struct ctw_op_messages ctw_op_poll = {"poll", &request, &reply};
