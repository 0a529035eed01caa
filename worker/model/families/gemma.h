/* What the Gemma families share. */
#ifndef CTW_WORKER_GEMMA_H
#define CTW_WORKER_GEMMA_H

#include <math.h>
#include <string.h>

#include "kernels/dtype.h"
#include "worker/model/families/family.h"

/* The factor of embeddings: the square root of their width, which the models round to bf16. */
static inline double gemma_embed_scale(int64_t width)
{
    return ctw_bf16_to_f32(ctw_f32_to_bf16(sqrtf((float)width)));
}

/* The same of an embedding in the files, whose name has `part`: that of codes is not rounded. */
static inline double gemma_scale_of(const struct ctw_config *c, const char *part, int64_t width)
{
    const bool codes = ctw_files_find(c, part) != NULL;
    return codes ? (double)sqrtf((float)width) : gemma_embed_scale(width);
}

/* Norms multiply by 1 + weight. */
static inline struct ctw_norm_form gemma_key_norm(struct ctw_config *c)
{
    struct ctw_norm_form norm = ctw_key_rms_norm(c, "rms_norm_eps", 1e-6);
    norm.offset = 1;
    return norm;
}

/* The factor of scores. */
static inline double gemma_key_scale(struct ctw_config *c)
{
    return 1 / sqrt(ctw_key_number(c, "query_pre_attn_scalar", 256, CTW_NULL_REFUSED, 1e-6, 1e9));
}

/* Text may be read in both directions by embedding models only. */
static inline void gemma_check_causal(struct ctw_config *c)
{
    if (ctw_key_is_true(c, "use_bidirectional_attention"))
        ctw_key_fail(c, "use_bidirectional_attention", CTW_EUNSUP,
                     "attention to later tokens is not supported");
}

/* Norms before and after both branches of layer i. */
static inline void gemma_describe_norms(struct ctw_config *c, int64_t i,
                                        const struct ctw_norm_form *norm)
{
    ctw_describe_norm(c, i, CTW_AT_MIXER, norm, "input_layernorm", 0);
    ctw_describe_norm(c, i, CTW_AT_MIXER_OUT, norm, "post_attention_layernorm", 0);
    ctw_describe_norm(c, i, CTW_AT_MLP, norm, "pre_feedforward_layernorm", 0);
    ctw_describe_norm(c, i, CTW_AT_MLP_OUT, norm, "post_feedforward_layernorm", 0);
}

/* The index of the RoPE of layers with a window, or without one, of Gemma 3 and 3n. */
static inline int gemma_describe_rope(struct ctw_config *c, int64_t head, bool window)
{
    const struct ctw_rope_rules full = {
        .head = head, .theta = 1000000.0, .layer_type = "full_attention"};
    const struct ctw_rope_rules local = {.head = head,
                                         .theta = 10000.0,
                                         .theta_key = "rope_local_base_freq",
                                         .layer_type = "sliding_attention",
                                         .unscaled = true};
    return ctw_describe_rope(c, window ? &local : &full);
}

#endif
