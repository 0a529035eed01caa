/*
 * Checks that the operands of an operation lie in the fake GPU's memory, and records reads of
 * weights. Operations are those of kernels/list.h, each with its fake_check_NAME(). A mistake of
 * the caller ends the process.
 */
#ifndef CTW_TESTS_FAKE_DEVICE_OPERANDS_H
#define CTW_TESTS_FAKE_DEVICE_OPERANDS_H

#include "fake_device_gpu.h"
#include "kernels/recurrent.h"

#define DECLARE(name) void fake_check_##name(struct gpu *gpu, const struct ctw_op_##name *op);
CTW_OPERATIONS(DECLARE)
#undef DECLARE

/* x and y [.., n] of a product, gathered and scattered. */
void fake_check_product(struct gpu *gpu, const struct ctw_op_linear *op, int64_t n);
void fake_read_bias(struct gpu *gpu, const struct ctw_shard *s, const char *what);
/* The bytes of a shard's weight, and its bias. */
void fake_read_shard(struct gpu *gpu, const struct ctw_shard *s, const char *what);

/* The states, of `bytes` bytes, that parts read and leave: no part has what another leaves. What is
 * left becomes all ones: a GPU may use all of a state. */
void fake_check_states(struct gpu *gpu, const struct ctw_states *states,
                       const struct ctw_seq_part *parts, int64_t n_parts, size_t bytes);

/* The rows of queries and of keys that sequences name. */
void fake_count_rows(const struct ctw_attn_seq *seqs, int64_t n_seqs, int64_t *n_q, int64_t *n_kv);

static inline size_t area(int64_t n_rows, int64_t ld, int64_t row, enum ctw_dtype dtype)
{
    return n_rows == 0 ? 0 : (size_t)((n_rows - 1) * ld + row) * ctw_dtype_bytes(dtype);
}

#endif
