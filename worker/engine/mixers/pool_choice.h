/* Attention over chosen pools of keys: the indexer's heads choose the pools that a query sees. */
#ifndef CTW_WORKER_POOL_CHOICE_H
#define CTW_WORKER_POOL_CHOICE_H

#include "worker/engine/mixers/keys.h"

/* Do queries of sequences of up to `longest` tokens see fewer keys than all? */
bool ctw_pools_are_chosen(const struct ctw_attention *a, int64_t longest);
/* Of a token, what ctw_pools_choose() needs behind the queries, in elements; 0 without a choice. */
int64_t ctw_pools_wide(const struct ctw_attention *a, int64_t longest);
/* Sets the carry of the choice's keys, and of the choice. */
void ctw_pools_carry(const struct ctw_attention *a, int64_t longest, enum ctw_dtype dtype,
                     struct ctw_carry_rule rules[CTW_BRANCH_CARRIES]);

/* Chooses for the chunk's queries, from the product in f->wide. */
enum ctw_status ctw_pools_choose(const struct ctw_step *s, void *behind_queries,
                                 struct ctw_err *err) CTW_MUST_CHECK;
/* Attention's queries see what was chosen. */
void ctw_pools_show(const struct ctw_step *s, struct ctw_op_attention *op);

#endif
