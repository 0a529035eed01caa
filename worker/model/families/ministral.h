/* Mistral's queries that grow with their position (llama_4_scaling_beta). */
#ifndef CTW_WORKER_MINISTRAL_H
#define CTW_WORKER_MINISTRAL_H

#include <math.h>

#include "worker/model/families/family.h"

/* Reads its two keys, after the RoPE. `absent_length`: without a RoPE in the file. */
static inline void ministral_query_factor(struct ctw_config *c, double absent_length)
{
    static const char beta_key[] = "llama_4_scaling_beta";
    static const char length_key[] = "original_max_position_embeddings";
    bool given = ctw_key_has_rope(c);
    double beta = ctw_key_rope_number(c, beta_key, given ? NAN : 0.1);
    double length =
        ctw_key_rope_number(c, length_key, given ? (double)c->model->max_length : absent_length);
    if (isnan(beta))
        ctw_key_fail(c, beta_key, CTW_EFORMAT, "expected a number in the RoPE's parameters");
    if (!(length > 0))
        ctw_key_fail(c, length_key, CTW_EFORMAT, "found %g, expected a number above 0", length);
    if (c->status != CTW_OK)
        return;
    c->model->q_factor_beta = beta;
    c->model->q_factor_length = length;
}

#endif
