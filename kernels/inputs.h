/* Products whose shards rotate or quantise their input, or rotate their output. Used by backend.c
 * and backend_memory.c only. */
#ifndef CTW_KERNELS_INPUTS_H
#define CTW_KERNELS_INPUTS_H

#include "kernels/backend.h"

static inline size_t ctw_inputs_bytes(const struct ctw_reserve *r)
{
    return (size_t)r->n_tok * (size_t)r->input_elems * ctw_dtype_bytes(r->dtype);
}

/* Makes room for products' own inputs and outputs; the content is lost. */
enum ctw_status ctw_inputs_reserve(struct ctw_backend *be, size_t bytes,
                                   struct ctw_err *err) CTW_MUST_CHECK;
void ctw_inputs_free(struct ctw_backend *be);

/* Is this a way to quantise rows of dim elements? */
bool ctw_quantise_ok(const struct ctw_quantise *q, int64_t dim);

/* Operations that have been checked, with ctw_input_elems() above 0. */
enum ctw_status ctw_inputs_linear(struct ctw_backend *be, const struct ctw_op_linear *op,
                                  struct ctw_err *err) CTW_MUST_CHECK;
enum ctw_status ctw_inputs_linear_qkv(struct ctw_backend *be, const struct ctw_op_linear *op,
                                      const struct ctw_op_qkv *qkv,
                                      struct ctw_err *err) CTW_MUST_CHECK;
enum ctw_status ctw_inputs_head(struct ctw_backend *be, const struct ctw_op_head *op,
                                struct ctw_err *err) CTW_MUST_CHECK;

#endif
