#include "ipc/messages.h"

static const struct ctw_field fields[] = {
    CTW_FIELD(BIN, struct ctw_poll, job),
    CTW_FIELD_IF(wait_ms, UINT, struct ctw_poll, wait_ms),
    CTW_FIELD_IF(seen, UINT, struct ctw_poll, seen),
    CTW_FIELD_IF(owner, STR, struct ctw_poll, owner),
};
static const struct ctw_schema request = CTW_SCHEMA("poll", struct ctw_poll, fields);

static const struct ctw_field progress_fields[] = {
    CTW_FIELD(UINT, struct ctw_progress_map, tokens_done),
    CTW_FIELD(UINT, struct ctw_progress_map, tokens),
    CTW_FIELD(UINT, struct ctw_progress_map, tokens_computed),
    CTW_FIELD(FLOAT, struct ctw_progress_map, tokens_per_s),
    CTW_FIELD(FLOAT, struct ctw_progress_map, seconds_left),
    CTW_FIELD(UINT, struct ctw_progress_map, pass),
    CTW_FIELD(UINT, struct ctw_progress_map, passes),
    CTW_FIELD(UINT, struct ctw_progress_map, layer),
    CTW_FIELD(UINT, struct ctw_progress_map, layers),
};
static const struct ctw_schema progress_schema =
    CTW_SCHEMA("poll reply.progress", struct ctw_progress_map, progress_fields);

static const struct ctw_field reply_fields[] = {
    CTW_FIELD(STR, struct ctw_poll_reply, state),
    CTW_FIELD(UINT, struct ctw_poll_reply, items_done),
    CTW_FIELD(UINT, struct ctw_poll_reply, items),
    CTW_FIELD_OF(MAP, struct ctw_poll_reply, progress, &progress_schema),
    CTW_FIELD_OF_IF(error, MAP, struct ctw_poll_reply, error, &ctw_error_schema),
    CTW_FIELD(UINT, struct ctw_poll_reply, again_ms),
};
static const struct ctw_schema reply =
    CTW_SCHEMA("poll reply", struct ctw_poll_reply, reply_fields);

const struct ctw_op_messages ctw_op_poll = {"poll", &request, &reply};
