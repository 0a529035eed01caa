/* Shared by the kinds of attention: quantised heads, and attention over the carry. */
#ifndef CTW_WORKER_KEYS_H
#define CTW_WORKER_KEYS_H

#include "worker/engine/pass/step.h"

/* The carries of kinds of attention. */
enum { CTW_CARRY_K, CTW_CARRY_V, CTW_CARRY_INDEX, CTW_CARRY_CHOICE, CTW_CARRY_CONV };

struct ctw_keys {
    struct ctw_carried k, v;
};

/* The chunk's keys, values or queries, in place, as the checkpoint quantises them: n_heads heads of
 * `head` elements in rows that are ld elements apart. */
enum ctw_status ctw_heads_quantise(const struct ctw_step *s, const struct ctw_heads_input *h,
                                   void *x, int n_heads, int64_t head, int64_t ld,
                                   struct ctw_err *err) CTW_MUST_CHECK;

/* Attention of op's queries, [n_tok, n_head * head], over the keys; op's shape is set. */
enum ctw_status ctw_keys_attend(const struct ctw_step *s, const struct ctw_keys *keys,
                                struct ctw_op_attention op, struct ctw_err *err) CTW_MUST_CHECK;

#endif
