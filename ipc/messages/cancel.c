#include "ipc/messages.h"

static const struct ctw_field fields[] = {
    CTW_FIELD(BIN, struct ctw_job_request, job),
    CTW_FIELD_IF(owner, STR, struct ctw_job_request, owner),
};
static const struct ctw_schema request = CTW_SCHEMA("cancel", struct ctw_job_request, fields);

static const struct ctw_field reply_fields[] = {
    CTW_FIELD(STR, struct ctw_state_reply, state),
};
static const struct ctw_schema reply =
    CTW_SCHEMA("cancel reply", struct ctw_state_reply, reply_fields);

const struct ctw_op_messages ctw_op_cancel = {"cancel", &request, &reply};
