#include "ipc/messages.h"

static const struct ctw_field fields[] = {
    CTW_FIELD(STR, struct ctw_mode, mode),
};
static const struct ctw_schema request = CTW_SCHEMA("drain", struct ctw_mode, fields);

static const struct ctw_field reply_fields[] = {
    CTW_FIELD(STR, struct ctw_drain_reply, state),
    CTW_FIELD(UINT, struct ctw_drain_reply, jobs),
};
static const struct ctw_schema reply =
    CTW_SCHEMA("drain reply", struct ctw_drain_reply, reply_fields);

const struct ctw_op_messages ctw_op_drain = {"drain", &request, &reply};
