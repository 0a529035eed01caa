/* The map `error` of a failed reply and of a failed job. */
#include "ipc/messages.h"

static const struct ctw_field fields[] = {
    CTW_FIELD(STR, struct ctw_error_map, code),
    CTW_FIELD(STR, struct ctw_error_map, message),
    CTW_FIELD_IF(retry_ms, UINT, struct ctw_error_map, retry_ms),
    CTW_FIELD_IF(item, UINT, struct ctw_error_map, item),
    CTW_FIELD_IF(layer, UINT, struct ctw_error_map, layer),
};

const struct ctw_schema ctw_error_schema = CTW_SCHEMA("error", struct ctw_error_map, fields);
