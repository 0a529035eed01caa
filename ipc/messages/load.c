#include "ipc/messages.h"

static const struct ctw_field fields[] = {
    CTW_FIELD(STR, struct ctw_load, path),
    CTW_FIELD_IF(model, STR, struct ctw_load, model),
};
static const struct ctw_schema request = CTW_SCHEMA("load", struct ctw_load, fields);

static const struct ctw_field reply_fields[] = {
    CTW_FIELD(STR, struct ctw_model_reply, model),
    CTW_FIELD(STR, struct ctw_model_reply, state),
};
static const struct ctw_schema reply =
    CTW_SCHEMA("load reply", struct ctw_model_reply, reply_fields);

const struct ctw_op_messages ctw_op_load = {"load", &request, &reply};
