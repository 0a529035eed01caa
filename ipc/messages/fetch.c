#include "ipc/messages.h"

static const struct ctw_field fields[] = {
    CTW_FIELD(BIN, struct ctw_fetch, job, REQUIRED),
    CTW_FIELD(UINT, struct ctw_fetch, first, REQUIRED),
    CTW_FIELD(UINT, struct ctw_fetch, max_bytes, OPTIONAL),
    CTW_FIELD(STR, struct ctw_fetch, owner, OPTIONAL),
};
static const struct ctw_schema request = CTW_SCHEMA("fetch", struct ctw_fetch, fields);

static const struct ctw_field result_fields[] = {
    CTW_FIELD(BIN, struct ctw_result_map, item, REQUIRED),
    CTW_FIELD(BIN, struct ctw_result_map, sum, REQUIRED),
    CTW_FIELD(BIN, struct ctw_result_map, count, REQUIRED),
    CTW_FIELD(BIN, struct ctw_result_map, is_greedy, REQUIRED),
    CTW_FIELD(BIN, struct ctw_result_map, truncated, REQUIRED),
    CTW_FIELD(BIN, struct ctw_result_map, logprob, OPTIONAL),
    CTW_FIELD(BIN, struct ctw_result_map, greedy, OPTIONAL),
    CTW_FIELD(BIN, struct ctw_result_map, windows, OPTIONAL),
    CTW_FIELD(BIN, struct ctw_result_map, window_sum, OPTIONAL),
    CTW_FIELD(BIN, struct ctw_result_map, window_count, OPTIONAL),
    CTW_FIELD(BIN, struct ctw_result_map, ref_logprob, OPTIONAL),
    CTW_FIELD(BIN, struct ctw_result_map, ref_greedy, OPTIONAL),
    CTW_FIELD(BIN, struct ctw_result_map, ref_top, OPTIONAL),
    CTW_FIELD(BIN, struct ctw_result_map, kl, OPTIONAL),
    CTW_FIELD(BIN, struct ctw_result_map, kl_reverse, OPTIONAL),
    CTW_FIELD(BIN, struct ctw_result_map, tv, OPTIONAL),
    CTW_FIELD(BIN, struct ctw_result_map, overlap5, OPTIONAL),
    CTW_FIELD(BIN, struct ctw_result_map, window_tokens, OPTIONAL),
    CTW_FIELD(BIN, struct ctw_result_map, layer_reference, OPTIONAL),
    CTW_FIELD(BIN, struct ctw_result_map, layer_error, OPTIONAL),
    CTW_FIELD(BIN, struct ctw_result_map, layer_cosine, OPTIONAL),
    CTW_FIELD(BIN, struct ctw_result_map, layer_relative, OPTIONAL),
    CTW_FIELD(BIN, struct ctw_result_map, layer_channel, OPTIONAL),
    CTW_FIELD(BIN, struct ctw_result_map, layer_channel_error, OPTIONAL),
    CTW_FIELD(BIN, struct ctw_result_map, matrix_kl, OPTIONAL),
};
static const struct ctw_schema result_schema =
    CTW_SCHEMA("fetch reply.result", struct ctw_result_map, result_fields);

static const struct ctw_field reply_fields[] = {
    CTW_FIELD(STR, struct ctw_fetch_reply, state, REQUIRED),
    CTW_FIELD(UINT, struct ctw_fetch_reply, first, REQUIRED),
    CTW_FIELD(UINT, struct ctw_fetch_reply, n, REQUIRED),
    CTW_FIELD_OF(MAP, struct ctw_fetch_reply, result, REQUIRED, &result_schema),
    CTW_FIELD(STR, struct ctw_fetch_reply, numerics, REQUIRED),
    CTW_FIELD(STR, struct ctw_fetch_reply, identity, REQUIRED),
    CTW_FIELD(STR, struct ctw_fetch_reply, ref_numerics, OPTIONAL),
    CTW_FIELD(STR, struct ctw_fetch_reply, ref_identity, OPTIONAL),
    CTW_FIELD(UINT, struct ctw_fetch_reply, layers, OPTIONAL),
    CTW_FIELD(STRS, struct ctw_fetch_reply, matrices, OPTIONAL),
};
static const struct ctw_schema reply =
    CTW_SCHEMA("fetch reply", struct ctw_fetch_reply, reply_fields);

const struct ctw_op_messages ctw_op_fetch = {"fetch", &request, &reply};
