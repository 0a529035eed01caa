/* Shared by the files of kernels/ that check operations and call the table: products.c, which calls
 * shard_inputs.c, which calls backend.c; and backend_memory.c. */
#ifndef CTW_KERNELS_BACKEND_INTERNAL_H
#define CTW_KERNELS_BACKEND_INTERNAL_H

#include "kernels/backend.h"
#include "kernels/recurrent.h"

/* ---- backend.c: checks ---- */

/* CTW_EINTERNAL with the violated rule. */
#define REQUIRE(op_name, rule)                                                                     \
    do {                                                                                           \
        if (!(rule))                                                                               \
            return ctw_fail(err, CTW_EINTERNAL, "%s: needs %s", op_name, #rule);                   \
    } while (0)

static inline bool ctw_is_float(enum ctw_dtype dtype)
{
    return dtype == CTW_F32 || dtype == CTW_BF16 || dtype == CTW_F16;
}

/* Are the parts in the order of their rows, with a state before each that has begun before? */
static inline bool ctw_are_in_order(const struct ctw_seq_part *parts, int64_t n_parts, int64_t n_tok,
                                    const struct ctw_states *states)
{
    int64_t row = 0;
    bool ok = n_parts >= 1;
    for (int64_t i = 0; ok && i < n_parts; i++) {
        const struct ctw_seq_part *p = &parts[i];
        ok = p->q_row >= row && p->n_q >= 1 && (p->pos0 > 0) == (p->before >= 0) &&
             (p->before < 0 || p->before != p->after) &&
             (states->data != NULL || states->bytes == 0 || (p->before < 0 && p->after < 0));
        row = p->q_row + p->n_q;
    }
    return ok && row <= n_tok;
}

bool ctw_shard_ok(const struct ctw_shard *s);
/* Is this a way to quantise rows of dim elements? */
bool ctw_quantise_ok(const struct ctw_quantise *q, int64_t dim);
/* *full: op, with q, k and v side by side if it gives no columns. */
enum ctw_status ctw_check_qkv(const struct ctw_op_qkv *op, struct ctw_op_qkv *full,
                              struct ctw_err *err) CTW_MUST_CHECK;

/* ---- backend_memory.c ---- */

/* Makes room for products' own inputs and outputs; the content is lost. */
enum ctw_status ctw_inputs_reserve(struct ctw_backend *be, size_t bytes,
                                   struct ctw_err *err) CTW_MUST_CHECK;
void ctw_inputs_free(struct ctw_backend *be);

/* ---- shard_inputs.c: operations that have been checked, with ctw_input_elems() above 0 ---- */

enum ctw_status ctw_inputs_linear(struct ctw_backend *be, const struct ctw_op_linear *op,
                                  struct ctw_err *err) CTW_MUST_CHECK;
/* Changes *op, whose shards have one input: op then reads the rotated or quantised input from the
 * backend's memory, and has plain shards. */
enum ctw_status ctw_inputs_make(struct ctw_backend *be, struct ctw_op_linear *op,
                                struct ctw_shard shards[CTW_MAX_SHARDS],
                                struct ctw_err *err) CTW_MUST_CHECK;
/* The same for a head, with its plain shard. */
enum ctw_status ctw_inputs_make_head(struct ctw_backend *be, struct ctw_op_head *op,
                                     struct ctw_shard *shard, struct ctw_err *err) CTW_MUST_CHECK;

#endif
