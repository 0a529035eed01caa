#include "ipc/messages.h"

static const struct ctw_schema request = {"info", sizeof(struct ctw_empty), NULL, 0};

static const struct ctw_field library_fields[] = {
    CTW_FIELD(STR, struct ctw_libraries_map, nng),
    CTW_FIELD(STR, struct ctw_libraries_map, msgpack),
};
static const struct ctw_schema libraries =
    CTW_SCHEMA("info.libraries", struct ctw_libraries_map, library_fields);

static const struct ctw_field weights_fields[] = {
    CTW_FIELD(UINT, struct ctw_weights_map, kept),
    CTW_FIELD(UINT, struct ctw_weights_map, gathered),
    CTW_FIELD(UINT, struct ctw_weights_map, hosted),
    CTW_FIELD(UINT, struct ctw_weights_map, streamed),
    CTW_FIELD_IF(files, STR, struct ctw_weights_map, files),
};
static const struct ctw_schema weights =
    CTW_SCHEMA("info.models.weights", struct ctw_weights_map, weights_fields);

/* Only a ready model has the keys from architecture on. */
static const struct ctw_field model_fields[] = {
    CTW_FIELD(STR, struct ctw_model_map, name),
    CTW_FIELD(STR, struct ctw_model_map, path),
    CTW_FIELD(STR, struct ctw_model_map, state),
    CTW_FIELD(STR, struct ctw_model_map, message),
    CTW_FIELD_IF(ready, STR, struct ctw_model_map, architecture),
    CTW_FIELD_IF(ready, STR, struct ctw_model_map, model_type),
    CTW_FIELD_IF(ready, STR, struct ctw_model_map, identity),
    CTW_FIELD_IF(ready, STR, struct ctw_model_map, numerics),
    CTW_FIELD_IF(ready, STR, struct ctw_model_map, backend),
    CTW_FIELD_IF(ready, STR, struct ctw_model_map, variant),
    CTW_FIELD_IF(ready, STR, struct ctw_model_map, device),
    CTW_FIELD_IF(ready, UINT, struct ctw_model_map, threads),
    CTW_FIELD_IF(ready, STR, struct ctw_model_map, dtype),
    CTW_FIELD_IF(ready, STR, struct ctw_model_map, activations),
    CTW_FIELD_IF(ready, UINT, struct ctw_model_map, max_length),
    CTW_FIELD_IF(ready, UINT, struct ctw_model_map, vocab),
    CTW_FIELD_IF(ready, UINT, struct ctw_model_map, params),
    CTW_FIELD_IF(ready, FLOAT, struct ctw_model_map, weight_bits),
    CTW_FIELD_IF(ready, UINT, struct ctw_model_map, chunk_tokens),
    CTW_FIELD_IF(ready, UINT, struct ctw_model_map, pass_tokens),
    CTW_FIELD_IF(ready, UINT, struct ctw_model_map, memory_planned),
    CTW_FIELD_IF(ready, UINT, struct ctw_model_map, memory_limit),
    CTW_FIELD_IF(more, STR, struct ctw_model_map, reason),
    CTW_FIELD_IF(more, STR, struct ctw_model_map, products),
    CTW_FIELD_IF(more, UINT, struct ctw_model_map, fit_length),
    CTW_FIELD_IF(more, STR, struct ctw_model_map, placement),
    CTW_FIELD_IF(more, STR, struct ctw_model_map, weights_note),
    CTW_FIELD_IF(more, UINT, struct ctw_model_map, weights_bytes),
    CTW_FIELD_IF(more, UINT, struct ctw_model_map, weights_memory),
    CTW_FIELD_IF(more, UINT, struct ctw_model_map, weights_streamed),
    CTW_FIELD_IF(more, STR, struct ctw_model_map, activations_mode),
    CTW_FIELD_OF_IF(weights, MAP, struct ctw_model_map, weights, &weights),
    CTW_FIELD_IF(own_length, UINT, struct ctw_model_map, own_length),
};
static const struct ctw_schema model =
    CTW_SCHEMA("info.models", struct ctw_model_map, model_fields);

static const struct ctw_field device_fields[] = {
    CTW_FIELD(UINT, struct ctw_device_map, device),
    CTW_FIELD(STR, struct ctw_device_map, backend),
    CTW_FIELD(STR, struct ctw_device_map, name),
    CTW_FIELD(STR, struct ctw_device_map, pci),
    CTW_FIELD(STR, struct ctw_device_map, uuid),
    CTW_FIELD(UINT, struct ctw_device_map, threads),
    CTW_FIELD(UINT, struct ctw_device_map, memory_total),
    CTW_FIELD(UINT, struct ctw_device_map, memory_free),
    CTW_FIELD(UINT, struct ctw_device_map, memory_used),
    CTW_FIELD(UINT, struct ctw_device_map, weights),
    CTW_FIELD(UINT, struct ctw_device_map, passes_planned),
    CTW_FIELD(STR, struct ctw_device_map, state),
    CTW_FIELD(STR, struct ctw_device_map, message),
    CTW_FIELD(STR, struct ctw_device_map, model),
    CTW_FIELD(UINT, struct ctw_device_map, layer),
    CTW_FIELD(UINT, struct ctw_device_map, layers),
    CTW_FIELD(FLOAT, struct ctw_device_map, weights_read),
    CTW_FIELD(UINT, struct ctw_device_map, tokens_done),
    CTW_FIELD(FLOAT, struct ctw_device_map, tokens_per_s),
};
static const struct ctw_schema device =
    CTW_SCHEMA("info.devices", struct ctw_device_map, device_fields);

static const struct ctw_field job_fields[] = {
    CTW_FIELD(BIN, struct ctw_job_map, job),
    CTW_FIELD(STR, struct ctw_job_map, model),
    CTW_FIELD(STR, struct ctw_job_map, kind),
    CTW_FIELD(STR, struct ctw_job_map, state),
    CTW_FIELD(UINT, struct ctw_job_map, items_done),
    CTW_FIELD(UINT, struct ctw_job_map, items),
    CTW_FIELD_IF(progress, UINT, struct ctw_job_map, tokens_done),
    CTW_FIELD_IF(progress, UINT, struct ctw_job_map, tokens_computed),
    CTW_FIELD_IF(progress, UINT, struct ctw_job_map, tokens),
    CTW_FIELD_IF(progress, FLOAT, struct ctw_job_map, seconds_left),
    CTW_FIELD_IF(owner, STR, struct ctw_job_map, owner),
};
static const struct ctw_schema job = CTW_SCHEMA("info.jobs", struct ctw_job_map, job_fields);

static const struct ctw_field limit_fields[] = {
    CTW_FIELD(UINT, struct ctw_limits_map, message_bytes),
    CTW_FIELD(UINT, struct ctw_limits_map, part_bytes),
    CTW_FIELD(UINT, struct ctw_limits_map, fetch_bytes),
    CTW_FIELD(UINT, struct ctw_limits_map, jobs),
    CTW_FIELD(UINT, struct ctw_limits_map, job_items),
    CTW_FIELD(UINT, struct ctw_limits_map, queue_bytes),
    CTW_FIELD(UINT, struct ctw_limits_map, ttl_s),
    CTW_FIELD(UINT, struct ctw_limits_map, wait_ms),
    CTW_FIELD(UINT, struct ctw_limits_map, request_bytes),
    CTW_FIELD(UINT, struct ctw_limits_map, connections),
    CTW_FIELD(UINT, struct ctw_limits_map, unanswered),
    CTW_FIELD(UINT, struct ctw_limits_map, waiting),
    CTW_FIELD(UINT, struct ctw_limits_map, requests_per_s),
    CTW_FIELD(UINT, struct ctw_limits_map, unhandled_bytes),
};
static const struct ctw_schema limits =
    CTW_SCHEMA("info.limits", struct ctw_limits_map, limit_fields);

static const struct ctw_field store_fields[] = {
    CTW_FIELD(STR, struct ctw_store_map, path),   CTW_FIELD(UINT, struct ctw_store_map, entries),
    CTW_FIELD(UINT, struct ctw_store_map, bytes), CTW_FIELD(UINT, struct ctw_store_map, limit),
    CTW_FIELD(UINT, struct ctw_store_map, hits),  CTW_FIELD(UINT, struct ctw_store_map, kept),
    CTW_FIELD(UINT, struct ctw_store_map, lost),
};
static const struct ctw_schema store = CTW_SCHEMA("info.store", struct ctw_store_map, store_fields);

static const struct ctw_field reply_fields[] = {
    CTW_FIELD(STR, struct ctw_info_reply, version),
    CTW_FIELD(UINT, struct ctw_info_reply, protocol),
    CTW_FIELD(BIN, struct ctw_info_reply, boot),
    CTW_FIELD(UINT, struct ctw_info_reply, pid),
    CTW_FIELD(STR, struct ctw_info_reply, state),
    CTW_FIELD(STR, struct ctw_info_reply, message),
    CTW_FIELD(FLOAT, struct ctw_info_reply, uptime_s),
    CTW_FIELD_OF(MAP, struct ctw_info_reply, libraries, &libraries),
    CTW_FIELD_OF(MAPS, struct ctw_info_reply, models, &model),
    CTW_FIELD_OF(MAPS, struct ctw_info_reply, jobs, &job),
    CTW_FIELD_OF(MAP, struct ctw_info_reply, limits, &limits),
    CTW_FIELD_IF(insecure, BOOL, struct ctw_info_reply, insecure),
    CTW_FIELD_OF_IF(store, MAP, struct ctw_info_reply, store, &store),
    CTW_FIELD_OF_IF(devices, MAPS, struct ctw_info_reply, devices, &device),
};
static const struct ctw_schema reply =
    CTW_SCHEMA("info reply", struct ctw_info_reply, reply_fields);

const struct ctw_op_messages ctw_op_info = {"info", &request, &reply};
