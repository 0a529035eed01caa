/* The map `error` of a failed reply and of a failed job. */
#include "ipc/messages.h"

static const struct ctw_field fields[] = {
    CTW_FIELD(STR, struct ctw_error_map, code, REQUIRED),
    CTW_FIELD(STR, struct ctw_error_map, message, REQUIRED),
    CTW_FIELD(UINT, struct ctw_error_map, retry_ms, OPTIONAL),
    CTW_FIELD(UINT, struct ctw_error_map, item, OPTIONAL),
    CTW_FIELD(UINT, struct ctw_error_map, layer, OPTIONAL),
};

const struct ctw_schema ctw_error_schema = CTW_SCHEMA("error", struct ctw_error_map, fields);
