#include "ipc/messages.h"

static const struct ctw_field fields[] = {
    CTW_FIELD(BIN, struct ctw_seal, job),
    CTW_FIELD(UINT, struct ctw_seal, parts),
};
static const struct ctw_schema request = CTW_SCHEMA("seal", struct ctw_seal, fields);

static const struct ctw_field reply_fields[] = {
    CTW_FIELD(STR, struct ctw_seal_reply, state),
    CTW_FIELD(UINT, struct ctw_seal_reply, items),
};
static const struct ctw_schema reply =
    CTW_SCHEMA("seal reply", struct ctw_seal_reply, reply_fields);

const struct ctw_op_messages ctw_op_seal = {"seal", &request, &reply};
