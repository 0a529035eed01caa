#include "ipc/messages.h"

static const struct ctw_field fields[] = {
    CTW_FIELD(STR, struct ctw_mode, mode),
};
static const struct ctw_schema request = CTW_SCHEMA("shutdown", struct ctw_mode, fields);

static const struct ctw_field reply_fields[] = {
    CTW_FIELD(STR, struct ctw_drain_reply, state),
    CTW_FIELD(UINT, struct ctw_drain_reply, jobs),
};
static const struct ctw_schema reply =
    CTW_SCHEMA("shutdown reply", struct ctw_drain_reply, reply_fields);

const struct ctw_op_messages ctw_op_shutdown = {"shutdown", &request, &reply};
