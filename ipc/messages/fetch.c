#include "ipc/messages.h"

static const struct ctw_field fields[] = {
    CTW_FIELD(BIN, struct ctw_fetch, job),
    CTW_FIELD(UINT, struct ctw_fetch, first),
    CTW_FIELD_IF(max_bytes, UINT, struct ctw_fetch, max_bytes),
    CTW_FIELD_IF(owner, STR, struct ctw_fetch, owner),
};
static const struct ctw_schema request = CTW_SCHEMA("fetch", struct ctw_fetch, fields);

static const struct ctw_field result_fields[] = {
    CTW_FIELD(BIN, struct ctw_result_map, item),
    CTW_FIELD(BIN, struct ctw_result_map, sum),
    CTW_FIELD(BIN, struct ctw_result_map, count),
    CTW_FIELD(BIN, struct ctw_result_map, is_greedy),
    CTW_FIELD(BIN, struct ctw_result_map, truncated),
    CTW_FIELD_IF(logprob, BIN, struct ctw_result_map, logprob),
    CTW_FIELD_IF(greedy, BIN, struct ctw_result_map, greedy),
    CTW_FIELD_IF(windows, BIN, struct ctw_result_map, windows),
    CTW_FIELD_IF(windows, BIN, struct ctw_result_map, window_sum),
    CTW_FIELD_IF(windows, BIN, struct ctw_result_map, window_count),
    CTW_FIELD_IF(divergence, BIN, struct ctw_result_map, ref_logprob),
    CTW_FIELD_IF(divergence, BIN, struct ctw_result_map, ref_greedy),
    CTW_FIELD_IF(divergence, BIN, struct ctw_result_map, ref_top),
    CTW_FIELD_IF(divergence, BIN, struct ctw_result_map, kl),
    CTW_FIELD_IF(divergence, BIN, struct ctw_result_map, kl_reverse),
    CTW_FIELD_IF(divergence, BIN, struct ctw_result_map, tv),
    CTW_FIELD_IF(divergence, BIN, struct ctw_result_map, overlap5),
    CTW_FIELD_IF(layers, BIN, struct ctw_result_map, window_tokens),
    CTW_FIELD_IF(layers, BIN, struct ctw_result_map, layer_reference),
    CTW_FIELD_IF(layers, BIN, struct ctw_result_map, layer_error),
    CTW_FIELD_IF(layers, BIN, struct ctw_result_map, layer_cosine),
    CTW_FIELD_IF(layers, BIN, struct ctw_result_map, layer_relative),
    CTW_FIELD_IF(layers, BIN, struct ctw_result_map, layer_channel),
    CTW_FIELD_IF(layers, BIN, struct ctw_result_map, layer_channel_error),
    CTW_FIELD_IF(matrices, BIN, struct ctw_result_map, matrix_kl),
};
static const struct ctw_schema result_schema =
    CTW_SCHEMA("fetch reply.result", struct ctw_result_map, result_fields);

static const struct ctw_field reply_fields[] = {
    CTW_FIELD(STR, struct ctw_fetch_reply, state),
    CTW_FIELD(UINT, struct ctw_fetch_reply, first),
    CTW_FIELD(UINT, struct ctw_fetch_reply, n),
    CTW_FIELD_OF(MAP, struct ctw_fetch_reply, result, &result_schema),
    CTW_FIELD(STR, struct ctw_fetch_reply, numerics),
    CTW_FIELD(STR, struct ctw_fetch_reply, identity),
    CTW_FIELD_IF(reference, STR, struct ctw_fetch_reply, ref_numerics),
    CTW_FIELD_IF(reference, STR, struct ctw_fetch_reply, ref_identity),
    CTW_FIELD_IF(layers, UINT, struct ctw_fetch_reply, layers),
    CTW_FIELD_IF(matrices, STRS, struct ctw_fetch_reply, matrices),
};
static const struct ctw_schema reply =
    CTW_SCHEMA("fetch reply", struct ctw_fetch_reply, reply_fields);

const struct ctw_op_messages ctw_op_fetch = {"fetch", &request, &reply};
