#include "ipc/messages.h"

static const struct ctw_schema request = {"info", sizeof(struct ctw_empty), NULL, 0};

static const struct ctw_field library_fields[] = {
    CTW_FIELD(STR, struct ctw_libraries_map, nng, REQUIRED),
    CTW_FIELD(STR, struct ctw_libraries_map, msgpack, REQUIRED),
};
static const struct ctw_schema libraries =
    CTW_SCHEMA("info.libraries", struct ctw_libraries_map, library_fields);

static const struct ctw_field weights_fields[] = {
    CTW_FIELD(UINT, struct ctw_weights_map, kept, REQUIRED),
    CTW_FIELD(UINT, struct ctw_weights_map, gathered, REQUIRED),
    CTW_FIELD(UINT, struct ctw_weights_map, hosted, REQUIRED),
    CTW_FIELD(UINT, struct ctw_weights_map, streamed, REQUIRED),
    CTW_FIELD(STR, struct ctw_weights_map, files, OPTIONAL),
};
static const struct ctw_schema weights =
    CTW_SCHEMA("info.models.weights", struct ctw_weights_map, weights_fields);

/* Only a ready model has the keys from architecture on. */
static const struct ctw_field model_fields[] = {
    CTW_FIELD(STR, struct ctw_model_map, name, REQUIRED),
    CTW_FIELD(STR, struct ctw_model_map, path, REQUIRED),
    CTW_FIELD(STR, struct ctw_model_map, state, REQUIRED),
    CTW_FIELD(STR, struct ctw_model_map, message, REQUIRED),
    CTW_FIELD(STR, struct ctw_model_map, architecture, OPTIONAL),
    CTW_FIELD(STR, struct ctw_model_map, model_type, OPTIONAL),
    CTW_FIELD(STR, struct ctw_model_map, identity, OPTIONAL),
    CTW_FIELD(STR, struct ctw_model_map, numerics, OPTIONAL),
    CTW_FIELD(STR, struct ctw_model_map, backend, OPTIONAL),
    CTW_FIELD(STR, struct ctw_model_map, variant, OPTIONAL),
    CTW_FIELD(STR, struct ctw_model_map, device, OPTIONAL),
    CTW_FIELD(UINT, struct ctw_model_map, threads, OPTIONAL),
    CTW_FIELD(STR, struct ctw_model_map, dtype, OPTIONAL),
    CTW_FIELD(STR, struct ctw_model_map, activations, OPTIONAL),
    CTW_FIELD(UINT, struct ctw_model_map, max_length, OPTIONAL),
    CTW_FIELD(UINT, struct ctw_model_map, vocab, OPTIONAL),
    CTW_FIELD(UINT, struct ctw_model_map, params, OPTIONAL),
    CTW_FIELD(FLOAT, struct ctw_model_map, weight_bits, OPTIONAL),
    CTW_FIELD(UINT, struct ctw_model_map, chunk_tokens, OPTIONAL),
    CTW_FIELD(UINT, struct ctw_model_map, pass_tokens, OPTIONAL),
    CTW_FIELD(UINT, struct ctw_model_map, memory_planned, OPTIONAL),
    CTW_FIELD(UINT, struct ctw_model_map, memory_limit, OPTIONAL),
    CTW_FIELD(STR, struct ctw_model_map, reason, OPTIONAL),
    CTW_FIELD(STR, struct ctw_model_map, products, OPTIONAL),
    CTW_FIELD(UINT, struct ctw_model_map, fit_length, OPTIONAL),
    CTW_FIELD(STR, struct ctw_model_map, placement, OPTIONAL),
    CTW_FIELD(STR, struct ctw_model_map, weights_note, OPTIONAL),
    CTW_FIELD(UINT, struct ctw_model_map, weights_bytes, OPTIONAL),
    CTW_FIELD(UINT, struct ctw_model_map, weights_memory, OPTIONAL),
    CTW_FIELD(UINT, struct ctw_model_map, weights_streamed, OPTIONAL),
    CTW_FIELD(STR, struct ctw_model_map, activations_mode, OPTIONAL),
    CTW_FIELD_OF(MAP, struct ctw_model_map, weights, OPTIONAL, &weights),
    CTW_FIELD(UINT, struct ctw_model_map, own_length, OPTIONAL),
};
static const struct ctw_schema model =
    CTW_SCHEMA("info.models", struct ctw_model_map, model_fields);

static const struct ctw_field device_fields[] = {
    CTW_FIELD(UINT, struct ctw_device_map, device, REQUIRED),
    CTW_FIELD(STR, struct ctw_device_map, backend, REQUIRED),
    CTW_FIELD(STR, struct ctw_device_map, name, REQUIRED),
    CTW_FIELD(STR, struct ctw_device_map, pci, REQUIRED),
    CTW_FIELD(STR, struct ctw_device_map, uuid, REQUIRED),
    CTW_FIELD(UINT, struct ctw_device_map, threads, REQUIRED),
    CTW_FIELD(UINT, struct ctw_device_map, memory_total, REQUIRED),
    CTW_FIELD(UINT, struct ctw_device_map, memory_free, REQUIRED),
    CTW_FIELD(UINT, struct ctw_device_map, memory_used, REQUIRED),
    CTW_FIELD(UINT, struct ctw_device_map, weights, REQUIRED),
    CTW_FIELD(UINT, struct ctw_device_map, passes_planned, REQUIRED),
    CTW_FIELD(STR, struct ctw_device_map, state, REQUIRED),
    CTW_FIELD(STR, struct ctw_device_map, message, REQUIRED),
    CTW_FIELD(STR, struct ctw_device_map, model, REQUIRED),
    CTW_FIELD(UINT, struct ctw_device_map, layer, REQUIRED),
    CTW_FIELD(UINT, struct ctw_device_map, layers, REQUIRED),
    CTW_FIELD(FLOAT, struct ctw_device_map, weights_read, REQUIRED),
    CTW_FIELD(UINT, struct ctw_device_map, tokens_done, REQUIRED),
    CTW_FIELD(FLOAT, struct ctw_device_map, tokens_per_s, REQUIRED),
};
static const struct ctw_schema device =
    CTW_SCHEMA("info.devices", struct ctw_device_map, device_fields);

static const struct ctw_field job_fields[] = {
    CTW_FIELD(BIN, struct ctw_job_map, job, REQUIRED),
    CTW_FIELD(STR, struct ctw_job_map, model, REQUIRED),
    CTW_FIELD(STR, struct ctw_job_map, kind, REQUIRED),
    CTW_FIELD(STR, struct ctw_job_map, state, REQUIRED),
    CTW_FIELD(UINT, struct ctw_job_map, items_done, REQUIRED),
    CTW_FIELD(UINT, struct ctw_job_map, items, REQUIRED),
    CTW_FIELD(UINT, struct ctw_job_map, tokens_done, OPTIONAL),
    CTW_FIELD(UINT, struct ctw_job_map, tokens, OPTIONAL),
    CTW_FIELD(FLOAT, struct ctw_job_map, seconds_left, OPTIONAL),
    CTW_FIELD(STR, struct ctw_job_map, owner, OPTIONAL),
};
static const struct ctw_schema job = CTW_SCHEMA("info.jobs", struct ctw_job_map, job_fields);

static const struct ctw_field limit_fields[] = {
    CTW_FIELD(UINT, struct ctw_limits_map, message_bytes, REQUIRED),
    CTW_FIELD(UINT, struct ctw_limits_map, part_bytes, REQUIRED),
    CTW_FIELD(UINT, struct ctw_limits_map, fetch_bytes, REQUIRED),
    CTW_FIELD(UINT, struct ctw_limits_map, jobs, REQUIRED),
    CTW_FIELD(UINT, struct ctw_limits_map, job_items, REQUIRED),
    CTW_FIELD(UINT, struct ctw_limits_map, queue_bytes, REQUIRED),
    CTW_FIELD(UINT, struct ctw_limits_map, ttl_s, REQUIRED),
    CTW_FIELD(UINT, struct ctw_limits_map, wait_ms, REQUIRED),
    CTW_FIELD(UINT, struct ctw_limits_map, request_bytes, REQUIRED),
    CTW_FIELD(UINT, struct ctw_limits_map, connections, REQUIRED),
    CTW_FIELD(UINT, struct ctw_limits_map, unanswered, REQUIRED),
    CTW_FIELD(UINT, struct ctw_limits_map, waiting, REQUIRED),
    CTW_FIELD(UINT, struct ctw_limits_map, requests_per_s, REQUIRED),
    CTW_FIELD(UINT, struct ctw_limits_map, unhandled_bytes, REQUIRED),
};
static const struct ctw_schema limits =
    CTW_SCHEMA("info.limits", struct ctw_limits_map, limit_fields);

static const struct ctw_field store_fields[] = {
    CTW_FIELD(STR, struct ctw_store_map, path, REQUIRED),
    CTW_FIELD(UINT, struct ctw_store_map, entries, REQUIRED),
    CTW_FIELD(UINT, struct ctw_store_map, bytes, REQUIRED),
    CTW_FIELD(UINT, struct ctw_store_map, limit, REQUIRED),
    CTW_FIELD(UINT, struct ctw_store_map, hits, REQUIRED),
    CTW_FIELD(UINT, struct ctw_store_map, kept, REQUIRED),
    CTW_FIELD(UINT, struct ctw_store_map, lost, REQUIRED),
};
static const struct ctw_schema store = CTW_SCHEMA("info.store", struct ctw_store_map, store_fields);

static const struct ctw_field reply_fields[] = {
    CTW_FIELD(STR, struct ctw_info_reply, version, REQUIRED),
    CTW_FIELD(UINT, struct ctw_info_reply, protocol, REQUIRED),
    CTW_FIELD(BIN, struct ctw_info_reply, boot, REQUIRED),
    CTW_FIELD(UINT, struct ctw_info_reply, pid, REQUIRED),
    CTW_FIELD(STR, struct ctw_info_reply, state, REQUIRED),
    CTW_FIELD(STR, struct ctw_info_reply, message, REQUIRED),
    CTW_FIELD(FLOAT, struct ctw_info_reply, uptime_s, REQUIRED),
    CTW_FIELD_OF(MAP, struct ctw_info_reply, libraries, REQUIRED, &libraries),
    CTW_FIELD_OF(MAPS, struct ctw_info_reply, models, REQUIRED, &model),
    CTW_FIELD_OF(MAPS, struct ctw_info_reply, jobs, REQUIRED, &job),
    CTW_FIELD_OF(MAP, struct ctw_info_reply, limits, REQUIRED, &limits),
    CTW_FIELD(BOOL, struct ctw_info_reply, insecure, OPTIONAL),
    CTW_FIELD_OF(MAP, struct ctw_info_reply, store, OPTIONAL, &store),
    CTW_FIELD_OF(MAPS, struct ctw_info_reply, devices, OPTIONAL, &device),
};
static const struct ctw_schema reply =
    CTW_SCHEMA("info reply", struct ctw_info_reply, reply_fields);

const struct ctw_op_messages ctw_op_info = {"info", &request, &reply};
