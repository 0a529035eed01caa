#include "ipc/messages.h"

static const struct ctw_schema request = {"health", sizeof(struct ctw_empty), NULL, 0};

static const struct ctw_field reply_fields[] = {
    CTW_FIELD(STR, struct ctw_health_reply, state),
    CTW_FIELD(STR, struct ctw_health_reply, message),
    CTW_FIELD(BIN, struct ctw_health_reply, boot),
    CTW_FIELD(UINT, struct ctw_health_reply, jobs),
    CTW_FIELD(UINT, struct ctw_health_reply, stalled_ms),
};
static const struct ctw_schema reply =
    CTW_SCHEMA("health reply", struct ctw_health_reply, reply_fields);

const struct ctw_op_messages ctw_op_health = {"health", &request, &reply};
