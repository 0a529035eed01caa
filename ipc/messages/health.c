#include "ipc/messages.h"

static const struct ctw_schema request = {"health", sizeof(struct ctw_empty), NULL, 0};

static const struct ctw_field reply_fields[] = {
    CTW_FIELD(STR, struct ctw_health_reply, state, REQUIRED),
    CTW_FIELD(STR, struct ctw_health_reply, message, REQUIRED),
    CTW_FIELD(BIN, struct ctw_health_reply, boot, REQUIRED),
    CTW_FIELD(UINT, struct ctw_health_reply, jobs, REQUIRED),
    CTW_FIELD(UINT, struct ctw_health_reply, stalled_ms, REQUIRED),
};
static const struct ctw_schema reply =
    CTW_SCHEMA("health reply", struct ctw_health_reply, reply_fields);

const struct ctw_op_messages ctw_op_health = {"health", &request, &reply};
