/* Names and keys of latent attention, which several tables of architectures share: archs_latent.c.
 */
#ifndef CTW_WORKER_LATENT_NAMES_H
#define CTW_WORKER_LATENT_NAMES_H

#include <stdbool.h>

#include "worker/checkpoint/gguf/archs.h"

#define CTW_GGUF_LATENT_Q(module)                                                                  \
    {"attn_q_a", module ".q_a_proj", 0}, {"attn_q_a_norm", module ".q_a_layernorm", 0},            \
    {                                                                                              \
        "attn_q_b", module ".q_b_proj", 0                                                          \
    }

/* The matrix from latents to keys and values is two tensors. */
#define CTW_GGUF_LATENT_KV(module)                                                                 \
    {"attn_kv_a_mqa", module ".kv_a_proj_with_mqa", 0},                                            \
        {"attn_kv_a_norm", module ".kv_a_layernorm", 0}, {"attn_k_b", module ".kv_b_proj", 0},     \
    {                                                                                              \
        "attn_v_b.weight", module ".kv_b_proj.more_values", CTW_GGUF_WHOLE                         \
    }

/* Sizes of heads and latents, and the number of key heads; `turns`: a part of each head is rotated
 * in every model of the architecture. */
void ctw_gguf_write_latent(struct ctw_gguf_keys *k, bool turns);

#endif
